//! How many results of each width a decoder holds at once while it reads, by the example `memory`.

use super::recurrent::RecurrentScratch;
use super::{
    Activation, Blocks, CachedForm, Decoder, ExpertActivation, ExpertsKind, HeadNormKind,
    HeadShape, LatentSizes, LayerKind, Mixer, Projections, RecurrentKind, RopeSpec, Scratch,
    Wiring,
};
use crate::nn::has_kernel;

/// What the blocks of a layer hold for a token.
#[derive(Debug, Clone, Copy)]
struct OfBlocks {
    attention: u64,
    attention_before_experts: u64,
    dense: u64,
    experts: u64,
    /// Of the residual stream and norms alone.
    hidden: u64,
}

impl Decoder {
    pub(super) fn scratch(&self) -> Scratch {
        let (_, numbers_per_key) = self.numbers_of_keys();
        let blocks = self.numbers_of_blocks();
        let recurrent = self.recurrent.as_ref().map(RecurrentKind::scratch);
        let attends =
            |layer: &LayerKind| layer.blocks.has_mixer() && layer.mixer != Mixer::Recurrent;
        let attends = self.layers.iter().any(attends);
        Scratch {
            numbers_per_token: if attends { self.of_attention(blocks, recurrent) } else { 0 },
            recurrent_per_token: self.of_recurrence(blocks, recurrent),
            numbers_per_key,
            fixed_numbers: recurrent.map_or(0, |recurrent| recurrent.fixed_numbers),
            heads: if attends { self.attention.heads.heads as u64 } else { 0 },
            // Where scores are stored, they are copied beside the sinks, and their shares again.
            score_arrays: if self.attention.has_sinks { 3 } else { 1 },
            vocab: self.vocab as u64,
            stores_scores: attends && self.stores_scores(),
        }
    }

    /// Whether no kernel attends to the keys and values of a prompt.
    fn stores_scores(&self) -> bool {
        let HeadShape { head_dim, softcap, .. } = self.attention.heads;
        let value_dim = self.latent_sizes().map_or(head_dim, |sizes| sizes.value_dim);
        !has_kernel([head_dim, value_dim], softcap)
    }

    fn latent_sizes(&self) -> Option<LatentSizes> {
        match self.attention.projections {
            Projections::Latent(sizes) => Some(sizes),
            Projections::Separate { .. } | Projections::Joined(_) => None,
        }
    }

    /// Of the keys and values of a token, and of what is made of each key in every pass anew: those of
    /// all heads, where latent vectors are cached.
    fn numbers_of_keys(&self) -> (u64, u64) {
        let HeadShape { heads, kv_heads, head_dim, .. } = self.attention.heads;
        let (keys_values, made_of_key) = match self.latent_sizes() {
            None => (2 * kv_heads * head_dim, 0),
            Some(LatentSizes { rank, rotated_dim, value_dim, cached, .. }) => match cached {
                CachedForm::Heads => (heads * (head_dim + value_dim), 0),
                CachedForm::Latents => (rank + rotated_dim, heads * (head_dim + value_dim)),
            },
        };
        (keys_values as u64, made_of_key as u64)
    }

    fn numbers_of_blocks(&self) -> OfBlocks {
        let HeadShape { heads, head_dim, .. } = self.attention.heads;
        let (keys_values, _) = self.numbers_of_keys();
        let [hidden, intermediate, queries] =
            [self.hidden, self.mlp.intermediate, heads * head_dim].map(|width| width as u64);
        let is_scaled = |layer: &LayerKind| layer.rope.as_ref().is_some_and(RopeSpec::scales_input);
        let is_normed = self.attention.head_norms != HeadNormKind::None;
        let has_bias =
            matches!(self.attention.projections, Projections::Separate { has_bias: true });
        let of_heads = match is_normed || has_bias || self.layers.iter().any(is_scaled) {
            true => 3,
            false => 2,
        };
        let of_mlp = if self.mlp.activation == Activation::Silu { 5 } else { 6 };
        let of_hidden = match self.wiring {
            Wiring::Sequential { .. } => 3,
            Wiring::Parallel { .. } => 4,
        };
        OfBlocks {
            attention: of_heads * (queries + keys_values),
            attention_before_experts: 2 * (queries + keys_values),
            dense: of_hidden * hidden + of_mlp * intermediate,
            experts: self.experts.as_ref().map_or(0, |experts| experts.numbers_per_token(hidden)),
            hidden: of_hidden * hidden,
        }
    }

    /// Whether some layers attend and are recurrent side by side.
    fn has_both(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer == Mixer::Both)
    }

    /// Whether each layer is one block.
    fn has_single_blocks(&self) -> bool {
        self.layers.iter().all(|layer| layer.blocks != Blocks::Both)
    }

    /// Of a mixer and the network behind it. A layer of one block holds no results of two.
    fn with_network(&self, mixer: u64, network: u64, blocks: OfBlocks) -> u64 {
        match self.has_single_blocks() {
            true => network.max(mixer + blocks.hidden),
            false => mixer + network,
        }
    }

    /// Per token of a layer that attends.
    fn of_attention(&self, blocks: OfBlocks, recurrent: Option<RecurrentScratch>) -> u64 {
        let dense = self.with_network(blocks.attention, blocks.dense, blocks);
        let whole = match blocks.experts {
            0 => dense,
            experts => {
                dense.max(self.with_network(blocks.attention_before_experts, experts, blocks))
            }
        };
        // What a recurrent block before still holds.
        let held = recurrent.filter(|_| self.has_both() || self.has_single_blocks());
        whole + held.map_or(0, |recurrent| recurrent.numbers_per_token / 5)
    }

    /// Per token of a layer that is recurrent.
    fn of_recurrence(&self, blocks: OfBlocks, recurrent: Option<RecurrentScratch>) -> u64 {
        let has_both = self.has_both();
        let network = blocks.dense.max(blocks.experts);
        let is_state_space = matches!(self.recurrent, Some(RecurrentKind::Mamba2(_)));
        let per_token =
            recurrent.map_or(0, |RecurrentScratch { numbers_per_token: mixer, .. }| {
                // Most of what a state space holds is gone when the network begins.
                match is_state_space && !self.has_single_blocks() && !has_both {
                    true => mixer.max(network) + mixer.min(network) / 3,
                    false => self.with_network(mixer, network, blocks),
                }
            });
        per_token + if has_both { 2 * blocks.attention } else { 0 }
    }
}

impl ExpertsKind {
    fn numbers_per_token(&self, hidden: u64) -> u64 {
        let [count, num_chosen, intermediate] =
            [self.count, self.routing.num_chosen, self.intermediate].map(|count| count as u64);
        // The bounded SwiGLU is of more operations.
        let of_activation = match self.form.activation {
            ExpertActivation::Clipped(_) => 9,
            ExpertActivation::Gated(_) => 5,
        };
        let chosen = num_chosen * (3 * hidden + of_activation * intermediate);
        let shared = self.shared.map_or(0, |kind| 3 * hidden + 5 * kind.intermediate as u64);
        chosen.max(shared) + count + 2 * hidden
    }
}
