//! The keys of config.json that dense families share, and the llama that they describe.

use serde::Deserialize;
use serde_json::Value;

use super::{
    Around, AttentionKind, Blocks, Decoder, HeadNormKind, LayerKind, Matrix, Mixer, MlpInputs,
    MlpKind, Names, NormKind, Output, Projections, Wiring,
};
use crate::LmError;
use crate::config::{Size, check_heads, check_range};
use crate::device_kernels::{Activation, HeadShape};
use crate::nn::RopeSpec;
use crate::rope_keys;

/// Keys with the same meaning in every family that has them. A family's file reads the others.
#[derive(Debug, Clone, Deserialize)]
pub struct Common {
    pub hidden_size: i64,
    pub num_hidden_layers: i64,
    pub intermediate_size: i64,
    pub num_attention_heads: i64,
    pub num_key_value_heads: Option<i64>,
    pub head_dim: Option<i64>,
    pub vocab_size: i64,
    pub max_position_embeddings: Option<i64>,
    pub rope_theta: Option<f64>,
    pub rope_traditional: Option<bool>,
    pub rope_scaling: Option<Value>,
    /// Where newer configs have all keys of RoPE. The keys above have their values already, unless
    /// it has a rotation for each type of layer.
    pub rope_parameters: Option<Value>,
    pub partial_rotary_factor: Option<f64>,
    pub layer_types: Option<Vec<String>>,
    pub sliding_window: Option<i64>,
    pub tie_word_embeddings: Option<bool>,
}

/// What a family takes for keys that a config leaves out.
#[derive(Debug, Clone, Copy)]
pub struct Usual {
    pub context: i64,
    /// `None`: the config has to name it.
    pub rope_theta: Option<f64>,
    pub is_tied: bool,
}

impl Common {
    /// So many layers of a model without anything else: families whose configs name it otherwise, or
    /// have no layers that attend, fill in what they have.
    pub fn of_sizes(hidden_size: i64, num_hidden_layers: i64, vocab_size: i64) -> Self {
        Common {
            hidden_size,
            num_hidden_layers,
            intermediate_size: 1,
            num_attention_heads: 1,
            num_key_value_heads: None,
            head_dim: Some(2),
            vocab_size,
            max_position_embeddings: None,
            rope_theta: None,
            rope_traditional: None,
            rope_scaling: None,
            rope_parameters: None,
            partial_rotary_factor: None,
            layer_types: None,
            sliding_window: None,
            tie_word_embeddings: None,
        }
    }

    /// The llama that these keys describe, with the norms of a family.
    pub fn decoder(&self, norm: NormKind, usual: Usual) -> Result<Decoder, LmError> {
        let num_kv_heads = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
        let (heads, kv_heads) = check_heads(self.num_attention_heads, num_kv_heads)?;
        // What follows from a wrong size is not what is wrong.
        let hidden = Size::HIDDEN.check(self.hidden_size)?;
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / i64::from(heads));
        let heads = HeadShape::new(heads, kv_heads, Size::HEAD_DIM.check(head_dim)?);
        let num_layers = Size::LAYERS.check(self.num_hidden_layers)?;
        let rope = self.rope(heads.head_dim, usual)?;
        let layer = LayerKind {
            window: None,
            chunk: None,
            rope: Some(rope),
            position_scale: None,
            has_experts: false,
            mixer: Mixer::Attention,
            blocks: Blocks::Both,
        };
        Ok(Decoder {
            hidden,
            vocab: Size::VOCAB.check(self.vocab_size)?,
            context: self.context(usual)?,
            layers: vec![layer; num_layers as usize],
            norm,
            last_norm: None,
            attention: AttentionKind {
                heads,
                projections: Projections::Separate { has_bias: false },
                output: Matrix::new("o_proj", false),
                head_norms: HeadNormKind::None,
                has_sinks: false,
            },
            recurrent: None,
            mlp: MlpKind {
                block: "mlp",
                intermediate: Size::INTERMEDIATE.check(self.intermediate_size)?,
                activation: Activation::Silu,
                inputs: MlpInputs::Gated { has_bias: false },
                output: Matrix::new("down_proj", false),
            },
            experts: None,
            wiring: Wiring::Sequential {
                attention: Around::before("input_layernorm"),
                mlp: Around::before("post_attention_layernorm"),
            },
            names: Names::USUAL,
            output: self.output(usual.is_tied),
            embedding_multiplier: None,
            residual_multiplier: None,
            logit_multiplier: None,
            logit_softcap: None,
            published_factors: None,
            has_further_layers: false,
        })
    }

    fn context(&self, usual: Usual) -> Result<i32, LmError> {
        Size::CONTEXT.check(self.max_position_embeddings.unwrap_or(usual.context))
    }

    fn output(&self, is_usually_tied: bool) -> Output {
        match self.tie_word_embeddings.unwrap_or(is_usually_tied) {
            true => Output::Tied,
            false => Output::Own { has_bias: false },
        }
    }

    /// The rotation of all layers' heads.
    pub fn rope(&self, head_dim: i32, usual: Usual) -> Result<RopeSpec, LmError> {
        if self.rope_parameters.as_ref().is_some_and(rope_keys::differs_by_layer) {
            return Err(LmError::Config {
                name: "rope_parameters",
                value: "a rotation for each type of layer".to_owned(),
                allowed: "all layers rotate alike in this architecture".to_owned(),
            });
        }
        let Some(theta) = self.rope_theta.or(usual.rope_theta) else {
            return Err(LmError::Config {
                name: "rope_theta",
                value: "nothing".to_owned(),
                allowed: "this architecture needs it, there or in rope_parameters".to_owned(),
            });
        };
        let factor = self.partial_rotary_factor.unwrap_or(1.0);
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(LmError::Config {
                name: "partial_rotary_factor",
                value: factor.to_string(),
                allowed: "it must be above 0 and at most 1".to_owned(),
            });
        }
        let dimensions = (f64::from(head_dim) * factor) as i32;
        let is_traditional = self.rope_traditional.unwrap_or(false);
        let scaling = self.rope_scaling.as_ref();
        RopeSpec::check(dimensions, theta, is_traditional, scaling, self.context(usual)?)
    }

    /// The same keys without scaling of positions.
    pub fn without_scaling(&self) -> Common {
        let plain = serde_json::json!({ "rope_type": "default" });
        Common { rope_scaling: Some(plain), ..self.clone() }
    }

    /// Gives layers the windows that `layer_types` asks for; without it, all layers but every
    /// `pattern`-th have one.
    pub fn set_windows_or_pattern(
        &self,
        pattern: i64,
        usual_window: Option<i64>,
        layers: &mut [LayerKind],
    ) -> Result<(), LmError> {
        let pattern = check_range("sliding_window_pattern", pattern, 1..=1024)?;
        if self.layer_types.is_some() {
            return self.set_windows(layers);
        }
        let window = Size::WINDOW.check(self.sliding_window.or(usual_window).unwrap_or(0))?;
        for (number, layer) in (1..).zip(layers) {
            layer.window = (number % pattern != 0).then_some(window);
        }
        Ok(())
    }

    /// Gives layers the windows that `layer_types` and `sliding_window` ask for.
    pub fn set_windows(&self, layers: &mut [LayerKind]) -> Result<(), LmError> {
        let Some(kinds) = &self.layer_types else { return Ok(()) };
        let refused = |value: String, allowed: &str| {
            Err(LmError::Config { name: "layer_types", value, allowed: allowed.to_owned() })
        };
        if kinds.len() != layers.len() {
            let allowed = format!("it must name the type of each of the {} layers", layers.len());
            return refused(format!("a list of {}", kinds.len()), &allowed);
        }
        for (layer, kind) in layers.iter_mut().zip(kinds) {
            layer.window = match (kind.as_str(), self.sliding_window) {
                ("full_attention", _) => None,
                ("sliding_attention", Some(window)) => Some(Size::WINDOW.check(window)?),
                ("sliding_attention", None) => {
                    return refused(kind.clone(), "such layers need a sliding_window");
                }
                _ => {
                    let allowed = "only full_attention and sliding_attention are supported for \
                                   this architecture";
                    return refused(kind.chars().take(80).collect(), allowed);
                }
            };
        }
        Ok(())
    }
}
