//! LFM2 (Liquid AI 2025): short convolutions between gates, and some layers that attend. Reference:
//! mlx-lm's lfm2.py.

use serde::Deserialize;

use super::decoder::{
    Around, Common, Decoder, Family, GatedConvSizes, HeadNormKind, Matrix, Mixer, MlpInputs, Names,
    NormKind, Output, RecurrentKind, Usual, Wiring,
};
use crate::LmError;
use crate::config::{Size, check_layer_types, check_positive, check_range};

const USUAL: Usual = Usual { context: 128_000, rope_theta: Some(1_000_000.0), is_tied: true };

/// Layers that are not convolutions.
const ATTENDING: &str = "full_attention";

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    #[serde(flatten)]
    layers: LayerArgs,
    hidden_size: i64,
    num_hidden_layers: i64,
    num_attention_heads: i64,
    num_key_value_heads: Option<i64>,
    vocab_size: i64,
    max_position_embeddings: i64,
    rope_theta: Option<f64>,
    rope_scaling: Option<serde_json::Value>,
    block_dim: i64,
    block_ff_dim: Option<i64>,
    intermediate_size: Option<i64>,
    block_multiple_of: i64,
    block_ffn_dim_multiplier: Option<f64>,
    block_auto_adjust_ff_dim: bool,
    layer_types: Option<Vec<String>>,
}

/// The keys that LFM2 with experts has too.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LayerArgs {
    norm_eps: f64,
    conv_bias: bool,
    #[serde(rename = "conv_L_cache")]
    conv_l_cache: i64,
    full_attn_idxs: Option<Vec<i64>>,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        // The residual stream is as wide in both blocks of a layer.
        let width = self.hidden_size;
        check_range("block_dim", self.block_dim, width..=width)?;
        let common = Common {
            intermediate_size: self.intermediate()?,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: None,
            max_position_embeddings: Some(self.max_position_embeddings),
            rope_theta: self.rope_theta,
            rope_scaling: self.rope_scaling.clone(),
            layer_types: self.layer_types.clone(),
            ..Common::of_sizes(width, self.num_hidden_layers, self.vocab_size)
        };
        self.layers.decoder(&common)
    }
}

impl ModelArgs {
    /// How wide the feed-forward network is: as named, or two thirds of it with a factor, made up to
    /// a multiple.
    fn intermediate(&self) -> Result<i64, LmError> {
        let Some(named) = self.block_ff_dim.or(self.intermediate_size) else {
            return Err(LmError::Config {
                name: "block_ff_dim",
                value: "nothing".to_owned(),
                allowed: "this architecture needs it, or intermediate_size".to_owned(),
            });
        };
        let named = i64::from(Size::new("block_ff_dim", 1, 1 << 20).check(named)?);
        if !self.block_auto_adjust_ff_dim {
            return Ok(named);
        }
        let factor = self.block_ffn_dim_multiplier.unwrap_or(1.0);
        let factor = f64::from(check_positive("block_ffn_dim_multiplier", factor)?);
        let multiple = check_range("block_multiple_of", self.block_multiple_of, 1..=1 << 20)?;
        let adjusted = (factor * (2 * named / 3) as f64) as i64;
        let adjusted = Size::INTERMEDIATE.check(adjusted)?;
        let multiple = i64::from(multiple);
        Ok(multiple * ((i64::from(adjusted) + multiple - 1) / multiple))
    }
}

impl LayerArgs {
    /// The decoder of `common` with these layers.
    pub(super) fn decoder(&self, common: &Common) -> Result<Decoder, LmError> {
        let norm = NormKind::Rms(check_positive("norm_eps", self.norm_eps)?);
        let mut decoder = common.decoder(norm, USUAL)?;
        decoder.names = Names { norm: "model.embedding_norm", recurrent: "conv", ..Names::USUAL };
        decoder.wiring = Wiring::Sequential {
            attention: Around::before("operator_norm"),
            mlp: Around::before("ffn_norm"),
        };
        decoder.attention.head_norms = HeadNormKind::OfEachCalledLayernorm;
        decoder.attention.output = Matrix::new("out_proj", false);
        decoder.mlp.block = "feed_forward";
        decoder.mlp.inputs = MlpInputs::GatedOrNumbered;
        decoder.output = Output::Tied;
        decoder.recurrent = Some(RecurrentKind::GatedConv(GatedConvSizes {
            channels: decoder.hidden,
            kernel: check_range("conv_L_cache", self.conv_l_cache, 2..=64)?,
            has_bias: self.conv_bias,
        }));
        self.check_layers(common, decoder.layers.len())?;
        for (index, layer) in decoder.layers.iter_mut().enumerate() {
            let attends = match (&self.full_attn_idxs, &common.layer_types) {
                (Some(attending), _) => attending.contains(&(index as i64)),
                (None, types) => types.as_ref().is_some_and(|types| types[index] == ATTENDING),
            };
            layer.mixer = if attends { Mixer::Attention } else { Mixer::Recurrent };
        }
        Ok(decoder)
    }

    /// Fails unless each layer is of a known kind.
    fn check_layers(&self, common: &Common, num_layers: usize) -> Result<(), LmError> {
        let refused = |name, value: String, allowed: &str| {
            Err(LmError::Config { name, value, allowed: allowed.to_owned() })
        };
        if let Some(attending) = &self.full_attn_idxs {
            let is_layer = |index: &&i64| (0..common.num_hidden_layers).contains(*index);
            return match attending.iter().find(|index| !is_layer(index)) {
                Some(other) => refused("full_attn_idxs", other.to_string(), "it must name layers"),
                None => Ok(()),
            };
        }
        let Some(types) = &common.layer_types else {
            return refused("layer_types", "nothing".to_owned(), "this architecture needs it");
        };
        check_layer_types("layer_types", types, num_layers, &["conv", ATTENDING])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::models::decoder::refused_key;

    #[test]
    fn every_layer_is_named_and_its_network_is_as_wide_as_the_factors_make_it() {
        let check = |changes: serde_json::Value, expected: Result<i32, &str>| {
            let mut config = json!({
                "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "vocab_size": 20, "max_position_embeddings": 4096,
                "norm_eps": 1e-5, "conv_bias": false, "conv_L_cache": 3, "block_dim": 64,
                "block_ff_dim": 100, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.5,
                "block_auto_adjust_ff_dim": true, "layer_types": ["conv", "full_attention"],
            });
            for (name, value) in changes.as_object().expect("an object") {
                config[name] = value.clone();
            }
            let found = match refused_key::<ModelArgs>(&config) {
                Some(key) => Err(key),
                None => {
                    let args: ModelArgs = serde_json::from_value(config).expect("arguments");
                    Ok(args.decoder().expect("a decoder").mlp.intermediate)
                }
            };
            assert_eq!(found, expected, "{changes}");
        };
        // Two thirds are 66, with the factor 99.
        check(json!({}), Ok(128));
        check(json!({"block_auto_adjust_ff_dim": false}), Ok(100));
        check(json!({"full_attn_idxs": [1], "layer_types": null}), Ok(128));
        check(json!({"full_attn_idxs": [2]}), Err("full_attn_idxs"));
        check(json!({"layer_types": ["conv"]}), Err("layer_types"));
        check(json!({"layer_types": ["conv", "mamba"]}), Err("layer_types"));
        check(json!({"layer_types": null}), Err("layer_types"));
        check(json!({"block_dim": 32}), Err("block_dim"));
        check(json!({"conv_L_cache": 1}), Err("conv_L_cache"));
        check(json!({"block_ffn_dim_multiplier": 1e300}), Err("block_ffn_dim_multiplier"));
    }
}
