//! What a request says of sampling, over what is set for its model.

use std::collections::BTreeMap;

use cairn_app::completion::{GenerateRequest, SamplingParams};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::own_fields::OwnFields;

/// Bounds for what is looked for in every answer's text.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

/// The vendors' sampling fields; none: what is set for the model.
#[derive(Debug, Default)]
pub(super) struct VendorSampling {
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) seed: Option<i64>,
}

/// Changes a request's sampling to what the program has asked for.
pub(super) fn apply(
    request: &mut GenerateRequest,
    vendor: &VendorSampling,
    own: &OwnFields,
) -> Result<(), ApiError> {
    request.sampling = changed(&request.sampling, vendor, own)?;
    Ok(())
}

/// Checks what a request says of sampling, also where nothing is sampled.
pub(super) fn check(own: &OwnFields) -> Result<(), ApiError> {
    changed(&SamplingParams::default(), &VendorSampling::default(), own).map(drop)
}

fn changed(
    before: &SamplingParams,
    vendor: &VendorSampling,
    own: &OwnFields,
) -> Result<SamplingParams, ApiError> {
    let sampling = SamplingParams {
        temperature: vendor.temperature.unwrap_or(before.temperature),
        top_p: vendor.top_p.unwrap_or(before.top_p),
        presence_penalty: vendor.presence_penalty.or(before.presence_penalty),
        frequency_penalty: vendor.frequency_penalty.or(before.frequency_penalty),
        // A negative seed is one of 64 bits, too.
        seed: vendor.seed.map(i64::cast_unsigned).or(before.seed),
        top_k: own.top_k.unwrap_or(before.top_k),
        min_p: own.min_p.unwrap_or(before.min_p),
        repetition_penalty: own.repetition_penalty.or(before.repetition_penalty),
        xtc_probability: own.xtc_probability.unwrap_or(before.xtc_probability),
        xtc_threshold: own.xtc_threshold.unwrap_or(before.xtc_threshold),
        logit_bias: own.logit_bias.as_ref().map_or(Ok(BTreeMap::new()), logit_bias)?,
        ..before.clone()
    };
    sampling.validate().map_err(|error| {
        let message = error.to_string();
        // The sentence begins with the name of the argument.
        let param = message.split([' ', '=']).next().unwrap_or_default().to_owned();
        ApiError::invalid(param, format!("{message}."))
    })?;
    // OpenAI's 0 leaves only the likeliest token; here it would turn the filter off.
    let temperature = if sampling.top_p == 0.0 { 0.0 } else { sampling.temperature };
    Ok(SamplingParams { temperature, ..sampling })
}

fn logit_bias(biases: &Map<String, Value>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let bias = |(id, bias): (&String, &Value)| {
        let pair = id.parse().ok().zip(bias.as_f64().map(|bias| bias as f32));
        pair.ok_or_else(|| {
            let message = format!("logit_bias is a number for each token id, not {id}: {bias}.");
            ApiError::invalid("logit_bias", message)
        })
    };
    biases.iter().map(bias).collect()
}

/// The texts that end an answer; Cairn holds back as much text as the longest of them.
pub(super) fn checked_stops(stops: Vec<String>, param: &str) -> Result<Vec<String>, ApiError> {
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("`{param}` may have {MAX_STOPS} texts of {MAX_STOP_BYTES} bytes.");
        return Err(ApiError::invalid(param, message));
    }
    if stops.iter().any(String::is_empty) {
        let message = format!("`{param}` has an empty text, which would end every answer at once.");
        return Err(ApiError::invalid(param, message));
    }
    Ok(stops)
}
