//! How positions are rotated: GGUF's keys, or the factors that it keeps as tensors, become
//! config.json's `rope_scaling`.

use serde_json::{Value, json};

use super::architectures::LOG_MULTIPLIER;
use super::blocks::f16_to_f32;
use super::error::quoted;
use super::sizes::{Keys, Sizes};
use super::tensors::{GgmlType, TensorInfo};
use super::{GgufFile, GgufProblem};

/// Tensors that are not weights: each a factor for every rotated pair.
pub const FACTORS: [&str; 3] = [ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS];
const ROPE_FREQS: &str = "rope_freqs.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL_CONTEXT: &str = "rope.scaling.original_context_length";
const MAGNITUDE: &str = "rope.scaling.attn_factor";

/// The section, if positions are scaled.
pub fn rope_scaling(keys: &Keys, sizes: &Sizes, theta: f64) -> Result<Option<Value>, GgufProblem> {
    let kind = keys.text(TYPE)?;
    let factor = keys.number(FACTOR)?.or(keys.number("rope.scale_linear")?);
    let scaled = match kind {
        Some("none") => None,
        Some("linear" | "yarn") | None => factor.filter(|factor| *factor != 0.0 && *factor != 1.0),
        Some("longrope") if keys.gguf.tensor(LONG_FACTORS).is_some() => None,
        Some(other) => {
            return Err(keys.unsupported(TYPE, quoted(other), "none, linear and yarn"));
        }
    };
    if let Some(factor) = scaled.filter(|factor| *factor <= 0.0) {
        return Err(keys.unsupported(FACTOR, factor, "positive numbers"));
    }
    let (freqs, long) = (keys.gguf.tensor(ROPE_FREQS), keys.gguf.tensor(LONG_FACTORS));
    match (scaled, freqs, long) {
        (None, None, None) => Ok(None),
        (Some(factor), None, None) if kind == Some("yarn") => yarn(keys, factor).map(Some),
        (Some(factor), None, None) => {
            Ok(Some(json!({"type": "linear", "rope_type": "linear", "factor": factor})))
        }
        (None, Some(tensor), None) => llama3(keys.gguf, tensor, theta, sizes).map(Some),
        (None, None, Some(long)) => longrope(keys, long, sizes).map(Some),
        _ => Err(GgufProblem::UnknownRopeFactors),
    }
}

/// YaRN's section. What it multiplies queries and keys by follows from the factor, and where the file
/// says so is divided by as much of it as scores are then multiplied by.
fn yarn(keys: &Keys, factor: f64) -> Result<Value, GgufProblem> {
    let usual = 0.1 * factor.ln() + 1.0;
    check_magnitude(keys, &[1.0, usual])?;
    let mut section = json!({
        "type": "yarn", "rope_type": "yarn", "factor": factor,
        "original_max_position_embeddings": keys.size(ORIGINAL_CONTEXT)?,
    });
    for name in ["beta_fast", "beta_slow"] {
        if let Some(value) = keys.number(&format!("rope.scaling.yarn_{name}"))? {
            section[name] = json!(value);
        }
    }
    if let Some(share) = keys.number(LOG_MULTIPLIER)?.filter(|share| *share != 0.0) {
        // DeepSeek's writers have a tenth of it.
        let share = if keys.prefix == "deepseek2" { 10.0 * share } else { share };
        // Ten times an f32's decimal, which is no longer short.
        let share = (share * 1e6).round() / 1e6;
        (section["mscale"], section["mscale_all_dim"]) = (json!(share), json!(share));
    }
    Ok(section)
}

/// LongRoPE's section, with the length of the first training, which phi3's config has beside it.
fn longrope(keys: &Keys, long: &TensorInfo, sizes: &Sizes) -> Result<Value, GgufProblem> {
    let short = keys
        .gguf
        .tensor(SHORT_FACTORS)
        .ok_or_else(|| GgufProblem::MissingTensor { tensor: SHORT_FACTORS.into() })?;
    let original = keys.size(ORIGINAL_CONTEXT)? as f64;
    let growth = sizes.context as f64 / original;
    let usual = if growth <= 1.0 { 1.0 } else { (1.0 + growth.ln() / original.ln()).sqrt() };
    check_magnitude(keys, &[usual])?;
    Ok(json!({
        "type": "longrope",
        "long_factor": factors(keys.gguf, long, sizes)?,
        "short_factor": factors(keys.gguf, short, sizes)?,
    }))
}

/// Fails if the file multiplies rotated numbers by something that no config.json says.
fn check_magnitude(keys: &Keys, allowed: &[f64]) -> Result<(), GgufProblem> {
    match keys.number(MAGNITUDE)?.filter(|found| *found != 0.0) {
        Some(found) if allowed.iter().all(|usual| (found - usual).abs() > 1e-3) => {
            let allowed: Vec<String> = allowed.iter().map(|usual| format!("{usual:.4}")).collect();
            Err(keys.unsupported(MAGNITUDE, found, &allowed.join(" or ")))
        }
        _ => Ok(()),
    }
}

/// The numbers of a tensor with one for each rotated pair.
fn factors(gguf: &GgufFile, tensor: &TensorInfo, sizes: &Sizes) -> Result<Vec<f64>, GgufProblem> {
    let expected = vec![sizes.rotated_dim / 2];
    if tensor.shape != expected {
        let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
        return Err(GgufProblem::WrongShape { tensor, found, expected });
    }
    let mut bytes = vec![0; (tensor.bytes.end - tensor.bytes.start) as usize];
    gguf.read_at(tensor, &mut bytes, 0)?;
    let factors: Vec<f64> = match tensor.ggml_type {
        GgmlType::F32 => bytes
            .chunks_exact(4)
            .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]).into())
            .collect(),
        GgmlType::F16 => {
            bytes.chunks_exact(2).map(|value| f16_to_f32([value[0], value[1]]).into()).collect()
        }
        _ => {
            let (tensor, found) = (tensor.name.clone(), tensor.ggml_type.name());
            return Err(GgufProblem::UnsupportedTensorType { tensor, found });
        }
    };
    match factors.iter().all(|factor| factor.is_finite()) {
        true => Ok(factors),
        false => Err(GgufProblem::NotFinite { tensor: tensor.name.clone() }),
    }
}

/// Finds the Llama 3 parameters behind a table of factors: the largest is `factor`, the rest are
/// the same in every such model, or without any between those that stay and those that are divided.
fn llama3(
    gguf: &GgufFile,
    tensor: &TensorInfo,
    theta: f64,
    sizes: &Sizes,
) -> Result<Value, GgufProblem> {
    const LOW: f64 = 1.0;
    const ORIGINAL_CONTEXT: f64 = 8192.0;
    let factors = factors(gguf, tensor, sizes)?;
    let factor = factors.iter().copied().fold(1.0, f64::max);
    let is_made_with = |high: f64| {
        factors.iter().enumerate().all(|(i, &found)| {
            let wavelength =
                2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / sizes.rotated_dim as f64);
            let expected = if wavelength < ORIGINAL_CONTEXT / high {
                1.0
            } else if wavelength > ORIGINAL_CONTEXT / LOW {
                factor
            } else {
                let smooth = (ORIGINAL_CONTEXT / wavelength - LOW) / (high - LOW);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            // The writer computed in f32, or rounded to f16.
            (found - expected).abs() <= expected * 2e-3
        })
    };
    // Llama 3's, and Llama 4's.
    let Some(high) = [4.0, LOW].into_iter().find(|high| is_made_with(*high)) else {
        return Err(GgufProblem::UnknownRopeFactors);
    };
    Ok(json!({
        "factor": factor, "high_freq_factor": high, "low_freq_factor": LOW,
        "original_max_position_embeddings": ORIGINAL_CONTEXT as u64, "rope_type": "llama3",
    }))
}
