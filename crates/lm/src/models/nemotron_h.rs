//! Nemotron-H and Nemotron 3 (NVIDIA 2025): each layer is one block, a state space, attention without
//! rotation, a feed-forward network, or experts. Reference: mlx-lm's nemotron_h.py.

use serde::Deserialize;
use serde_json::Value;

use super::decoder::{
    Around, Blocks, Common, Decoder, ExpertForm, Family, GateKind, Mamba2Sizes, Matrix, Mixer,
    MlpInputs, Names, NormKind, Output, Projections, RecurrentKind, SharedExpertKind,
    StoredExperts, Usual, Wiring,
};
use super::glm4_moe::ExpertArgs;
use crate::LmError;
use crate::config::{Bound, BoundWord, Size, check_bounds, check_positive, check_range};

const USUAL: Usual = Usual { context: 8192, rope_theta: Some(10_000.0), is_tied: false };

/// The fields of config.json.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    vocab_size: i64,
    hidden_size: i64,
    intermediate_size: i64,
    max_position_embeddings: i64,
    num_attention_heads: i64,
    num_key_value_heads: i64,
    head_dim: Option<i64>,
    attention_bias: bool,
    mamba_num_heads: i64,
    mamba_head_dim: i64,
    mamba_proj_bias: bool,
    ssm_state_size: i64,
    conv_kernel: i64,
    n_groups: i64,
    mlp_bias: bool,
    layer_norm_epsilon: f64,
    use_conv_bias: bool,
    time_step_limit: Option<[Bound; 2]>,
    /// A letter for each layer, as one text or a list.
    hybrid_override_pattern: Option<Value>,
    layers_block_type: Option<Vec<String>>,
    layer_types: Option<Vec<String>>,
    moe_shared_expert_intermediate_size: Option<i64>,
    moe_latent_size: Option<i64>,
    #[serde(flatten)]
    experts: ExpertArgs,
}

/// What a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    StateSpace,
    Attention,
    Network,
    Experts,
}

impl Family for ModelArgs {
    fn decoder(&self) -> Result<Decoder, LmError> {
        let kinds = self.kinds()?;
        let eps = check_positive("layer_norm_epsilon", self.layer_norm_epsilon)?;
        let common = Common {
            intermediate_size: self.intermediate_size,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: Some(self.num_key_value_heads),
            head_dim: self.head_dim,
            max_position_embeddings: Some(self.max_position_embeddings),
            ..Common::of_sizes(self.hidden_size, kinds.len() as i64, self.vocab_size)
        };
        let mut decoder = common.decoder(NormKind::Rms(eps), USUAL)?;
        decoder.names = Names {
            embeddings: "backbone.embeddings",
            layers: "backbone.layers",
            norm: "backbone.norm_f",
            attention: "mixer",
            recurrent: "mixer",
        };
        let before = Around::before("norm");
        decoder.wiring = Wiring::Sequential { attention: before, mlp: before };
        decoder.attention.projections = Projections::Separate { has_bias: self.attention_bias };
        decoder.attention.output = Matrix::new("o_proj", self.attention_bias);
        decoder.mlp.block = "mixer";
        decoder.mlp.inputs = MlpInputs::SquaredRelu(Matrix::new("up_proj", self.mlp_bias));
        decoder.mlp.output = Matrix::new("down_proj", self.mlp_bias);
        decoder.output = Output::Own { has_bias: false };
        decoder.has_further_layers = true;
        if kinds.contains(&Kind::StateSpace) {
            decoder.recurrent = Some(RecurrentKind::Mamba2(self.mamba(eps)?));
        }
        if kinds.contains(&Kind::Experts) {
            self.set_experts(&mut decoder)?;
        }
        for (layer, kind) in decoder.layers.iter_mut().zip(kinds) {
            layer.rope = None;
            layer.has_experts = kind == Kind::Experts;
            (layer.mixer, layer.blocks) = match kind {
                Kind::StateSpace => (Mixer::Recurrent, Blocks::Mixer),
                Kind::Attention => (Mixer::Attention, Blocks::Mixer),
                Kind::Network | Kind::Experts => (Mixer::Attention, Blocks::Network),
            };
        }
        Ok(decoder)
    }
}

impl ModelArgs {
    /// What each layer is: by letters, or by names.
    fn kinds(&self) -> Result<Vec<Kind>, LmError> {
        let refused = |name, value: &str, allowed: &str| LmError::Config {
            name,
            value: value.chars().take(80).collect(),
            allowed: allowed.to_owned(),
        };
        if let Some(pattern) = &self.hybrid_override_pattern {
            let name = "hybrid_override_pattern";
            let letters: Option<String> = match pattern {
                Value::String(letters) => Some(letters.clone()),
                Value::Array(list) => list.iter().map(Value::as_str).collect(),
                _ => None,
            };
            let allowed = "it must have a letter for each layer: M, *, - or E";
            let letters = letters.ok_or_else(|| refused(name, "something else", allowed))?;
            let kind = |letter| match letter {
                'M' => Ok(Kind::StateSpace),
                '*' => Ok(Kind::Attention),
                '-' => Ok(Kind::Network),
                'E' => Ok(Kind::Experts),
                other => Err(refused(name, &other.to_string(), allowed)),
            };
            return letters.chars().map(kind).collect();
        }
        let name = "layers_block_type";
        let listed = |list: &Option<Vec<String>>| list.clone().filter(|list| !list.is_empty());
        let listed = listed(&self.layers_block_type).or_else(|| listed(&self.layer_types));
        let allowed = "it must name the type of each layer, or hybrid_override_pattern";
        let listed = listed.ok_or_else(|| refused(name, "nothing", allowed))?;
        let kind = |kind: &String| match kind.as_str() {
            "linear_attention" | "mamba" | "conv" => Ok(Kind::StateSpace),
            "full_attention" | "attention" => Ok(Kind::Attention),
            "mlp" => Ok(Kind::Network),
            "moe" => Ok(Kind::Experts),
            other => Err(refused(name, other, allowed)),
        };
        listed.iter().map(kind).collect()
    }

    fn mamba(&self, eps: f32) -> Result<Mamba2Sizes, LmError> {
        let usual = [Bound::Number(0.0), Bound::Word(BoundWord::Infinity)];
        let groups = check_range("n_groups", self.n_groups, 1..=1024)?;
        let sizes = Mamba2Sizes {
            heads: check_range("mamba_num_heads", self.mamba_num_heads, 1..=4096)?,
            head_dim: check_range("mamba_head_dim", self.mamba_head_dim, 1..=4096)?,
            groups,
            state: check_range("ssm_state_size", self.ssm_state_size, 1..=4096)?,
            kernel: check_range("conv_kernel", self.conv_kernel, 2..=64)?,
            conv_has_bias: self.use_conv_bias,
            in_has_bias: self.mamba_proj_bias,
            out_has_bias: self.mamba_proj_bias,
            step_limits: check_bounds("time_step_limit", self.time_step_limit.unwrap_or(usual))?,
            gate: GateKind::ThenNorm { eps, parts: groups },
        };
        sizes.check("mamba_num_heads", "n_groups")?;
        Ok(sizes)
    }

    fn set_experts(&self, decoder: &mut Decoder) -> Result<(), LmError> {
        if let Some(size) = self.moe_latent_size {
            return Err(LmError::Config {
                name: "moe_latent_size",
                value: size.to_string(),
                allowed: "experts that read shorter vectors are not supported".to_owned(),
            });
        }
        self.experts.set(decoder, ExpertArgs::by_sigmoid)?;
        let width = self.moe_shared_expert_intermediate_size.unwrap_or(self.intermediate_size);
        let width = Size::new("moe_shared_expert_intermediate_size", 1, 1 << 20).check(width)?;
        let Some(experts) = &mut decoder.experts else {
            return Err(LmError::Config {
                name: "n_routed_experts",
                value: "nothing".to_owned(),
                allowed: "layers with experts need it".to_owned(),
            });
        };
        experts.block = "mixer";
        experts.form = ExpertForm { stored: StoredExperts::Ungated, ..ExpertForm::USUAL };
        let shared = experts.shared.take();
        experts.shared =
            shared.map(|_| SharedExpertKind::ungated("shared_experts", width, self.mlp_bias));
        Ok(())
    }
}
