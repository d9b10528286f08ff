//! The layers that architectures share. How they are connected is in the architectures' own files.

mod attention;
mod attention_after_prefix;
mod attention_shapes;
mod dense_matrix;
mod elementwise;
mod embedding;
mod expert_blend;
pub(crate) mod exponential;
pub(crate) mod fused;
mod fused_linear;
mod gated_activation;
mod gated_conv;
mod gated_delta;
mod gelu;
mod head_matrices;
mod latent_attention;
mod layer_launches;
mod linear;
mod mamba;
mod mamba2;
mod norm;
mod norm_gated_up;
mod norm_projections;
mod norm_residual;
mod norm_up;
mod packed_product;
mod position_scale;
mod product_residual;
mod quantized_matrix;
mod rope;
mod rope_attention;
mod routing;
mod scalar;
mod scores;
mod shared_expert;
mod short_conv;
mod state_space;
pub(crate) mod stored_experts;
mod switch;
mod time_chunks;
mod whole_layers;

pub(crate) use attention::MOST_STORED_SCORES;
pub use attention::{attention, has_kernel};
pub use elementwise::Elementwise;
pub use embedding::Embedding;
pub use expert_blend::{ExpertBlend, ExpertSizes};
pub use fused_linear::{FusedLinear, Projected};
pub use gated_activation::{ClippedSwiGlu, GatedActivation};
pub use gated_conv::{GatedConv, GatedConvSizes};
pub use gated_delta::{GatedDelta, GatedDeltaStep};
pub use gelu::{Gelu, GeluApprox};
pub use head_matrices::HeadMatrices;
pub use latent_attention::{CachedForm, LatentAttention, LatentSizes};
pub use layer_launches::{LayerLaunches, LayersAhead};
pub use linear::Linear;
pub use mamba::{Mamba, MambaSizes, SelectiveScan};
pub use mamba2::{GateKind, Mamba2, Mamba2Sizes};
pub use norm::{LayerNorm, Norm, RmsNorm};
pub use norm_gated_up::NormGatedUp;
pub use norm_projections::NormProjections;
pub use norm_residual::NormResidual;
pub use norm_up::{NormUp, UpActivation};
pub use position_scale::PositionScale;
pub use product_residual::ProductResidual;
pub use rope::{Rope, RopeSpec, yarn_magnitude};
pub use rope_attention::{HeadLayerNorm, HeadNorms, RopeAttention};
pub use routing::{Chooser, ExpertGroups, GroupRank, Routing, Score};
pub(crate) use scalar::scalar;
pub use scores::{Scores, softcap};
pub use shared_expert::{SharedExpert, SharedExpertKind, SharedForm};
pub use short_conv::{ConvSizes, ShortConv};
pub use state_space::{StateSpace, StateSpaceStep, StepSizes, step_lengths};
pub use stored_experts::{ExpertActivation, ExpertForm, StoredExperts};
pub use switch::{SwitchGlu, SwitchSizes};
pub use whole_layers::{LayerOperations, WholeLayers};

use mlx_rs::Array;
use mlx_rs::error::Exception;

/// Parts whose number the code knows.
fn exactly<const N: usize>(parts: Vec<Array>) -> Result<[Array; N], Exception> {
    parts.try_into().map_err(|parts: Vec<Array>| {
        Exception::custom(format!("there are {} parts, not {N}", parts.len()))
    })
}
