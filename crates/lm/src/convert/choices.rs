//! What mlx-lm chooses for each family when it converts a model: which matrices are packed and how,
//! which tensors keep their type, and what names begin with. Reference: the models' `quant_predicate` and
//! `cast_predicate`, and convert.py for recipes.

use crate::config::Quantization;

/// A family by its `model_type`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices<'a>(pub(super) &'a str);

impl Choices<'_> {
    /// What all names begin with: mlx-lm nests the text model of a multimodal one under `language_model`.
    fn prefix(self) -> &'static str {
        match self.0 {
            "gemma3" | "gemma4" | "gemma4_unified" | "kimi_k25" | "kimi_vl" | "llama4"
            | "mistral3" | "qwen3_5" | "qwen3_5_moe" => "language_model.",
            _ => "",
        }
    }

    /// mlx-lm's name of what is at `path` in a model of text alone.
    pub(super) fn stored_path(self, path: &str) -> String {
        match (self.0, path) {
            ("llama4_text", "lm_head") => "output".to_owned(),
            _ => format!("{}{path}", self.prefix()),
        }
    }

    /// Whether matrices of feed-forward networks keep the names `w1`, `w2` and `w3`.
    pub(super) fn keeps_numbered_names(self) -> bool {
        self.0 == "lfm2"
    }

    /// Whether files without an output layer get a copy of the embeddings as one.
    pub(super) fn copies_embeddings(self) -> bool {
        self.0 == "minicpm"
    }

    /// Whether an unused output layer is kept: mlx-lm's model has one even where the embeddings are tied.
    pub(super) fn keeps_unused_output(self) -> bool {
        self.0 == "helium"
    }

    /// Whether the matrix at `path` can be packed at all. Some routers are plain tensors.
    pub(super) fn can_be_packed(self, path: &str) -> bool {
        let is_router = path.ends_with("mlp.gate") || path.ends_with("mixer.gate");
        let has_plain_router = matches!(
            self.0,
            "deepseek_v2"
                | "deepseek_v3"
                | "joyai_llm_flash"
                | "kimi_k2"
                | "kimi_k25"
                | "kimi_vl"
                | "glm4_moe"
                | "glm4_moe_lite"
                | "nemotron_h"
        );
        !(is_router && has_plain_router)
    }

    /// The settings that the matrix at `path` always has, whatever the others have.
    pub(super) fn own_settings(self, path: &str) -> Option<Quantization> {
        let ends: &[&str] = match self.0 {
            "gemma4" | "gemma4_text" | "gemma4_unified" => &["router.proj"],
            "gpt_oss" | "jamba" => &["router"],
            "granite" => &["self_attn.o_proj", "mlp.down_proj"],
            "granitemoe" => &["block_sparse_moe.router.layer", "self_attn.o_proj", "mlp.down_proj"],
            "granitemoehybrid" => &["router.layer"],
            "lfm2_moe" => &["feed_forward.gate"],
            "qwen3_moe" => &["mlp.gate"],
            "qwen3_5" | "qwen3_5_moe" | "qwen3_next" => &["mlp.gate", "shared_expert_gate"],
            _ => &[],
        };
        let is_output = path == "lm_head" && matches!(self.0, "granite" | "granitemoe");
        let is_named = is_output || ends.iter().any(|end| path.ends_with(end));
        is_named.then_some(Quantization::affine(64, 8))
    }

    /// Whether the tensor `name` keeps the type that it is stored in.
    pub(super) fn keeps_type(self, name: &str) -> bool {
        match self.0 {
            "deepseek_v3" | "joyai_llm_flash" | "kimi_k2" | "kimi_k25" | "kimi_vl" | "glm4_moe"
            | "glm4_moe_lite" => name.contains("e_score_correction_bias"),
            "nemotron_h" => name.contains("e_score_correction_bias") || name.contains("A_log"),
            "lfm2_moe" => name.contains("expert_bias"),
            "qwen3_5" | "qwen3_5_moe" => name.ends_with("A_log"),
            _ => false,
        }
    }
}

/// Recipes of mlx-lm that pack some matrices with more bits than others: those of the first and the last
/// eighth of the layers and of every third between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each variant is its own name: fewer bits and more bits
pub enum MixedRecipe {
    Mixed2And6,
    Mixed3And4,
    Mixed3And6,
    Mixed4And6,
}

impl MixedRecipe {
    /// All of them.
    pub const ALL: [MixedRecipe; 4] = [
        MixedRecipe::Mixed2And6,
        MixedRecipe::Mixed3And4,
        MixedRecipe::Mixed3And6,
        MixedRecipe::Mixed4And6,
    ];

    /// mlx-lm's name.
    pub fn name(self) -> &'static str {
        match self {
            MixedRecipe::Mixed2And6 => "mixed_2_6",
            MixedRecipe::Mixed3And4 => "mixed_3_4",
            MixedRecipe::Mixed3And6 => "mixed_3_6",
            MixedRecipe::Mixed4And6 => "mixed_4_6",
        }
    }

    fn bits(self) -> (i32, i32) {
        match self {
            MixedRecipe::Mixed2And6 => (2, 6),
            MixedRecipe::Mixed3And4 => (3, 4),
            MixedRecipe::Mixed3And6 => (3, 6),
            MixedRecipe::Mixed4And6 => (4, 6),
        }
    }

    /// The settings of the matrix at `path` in a model of so many layers.
    pub(super) fn settings(self, path: &str, num_layers: usize, group_size: i32) -> Quantization {
        let (few, many) = self.bits();
        let (layer, eighth) = (layer_of(path), num_layers / 8);
        let is_chosen =
            layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth.min(layer)) % 3 == 2;
        let has_more_bits = ["v_proj", "v_a_proj", "v_b_proj", "down_proj"];
        let is_kind = has_more_bits.iter().any(|name| path.contains(name));
        let bits = if path.contains("lm_head") || (is_kind && is_chosen) { many } else { few };
        Quantization::affine(group_size, bits)
    }
}

/// The number of the layer that `path` is in; 0 for what is in none.
fn layer_of(path: &str) -> usize {
    path.split('.').find_map(|part| part.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_gives_more_bits_to_the_ends_and_to_every_third_layer_between() {
        let bits = |path: &str| MixedRecipe::Mixed3And6.settings(path, 16, 32).bits;
        let of_layers = |name: &str| {
            (0..16).map(|layer| bits(&format!("model.layers.{layer}.{name}"))).collect::<Vec<_>>()
        };
        let chosen = [6, 6, 3, 3, 6, 3, 3, 6, 3, 3, 6, 3, 3, 6, 6, 6];
        assert_eq!(of_layers("self_attn.v_proj"), chosen);
        assert_eq!(of_layers("mlp.down_proj"), chosen);
        assert_eq!(of_layers("mlp.up_proj"), [3; 16]);
        assert_eq!((bits("lm_head"), bits("model.embed_tokens")), (6, 3));
    }
}
