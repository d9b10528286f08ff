//! The layers that architectures share. How they are connected is in the architectures' own files.

mod attention;
mod attention_after_prefix;
mod embedding;
mod expert_blend;
mod fused_linear;
mod gated_activation;
mod gated_delta;
mod gelu;
mod linear;
mod norm;
mod norm_gated_up;
mod norm_projections;
mod norm_residual;
mod product_residual;
mod quantized_matrix;
mod rope;
mod rope_attention;
mod short_conv;
mod switch;

pub use attention::{attention, split_heads};
pub use embedding::Embedding;
pub use expert_blend::{ExpertBlend, ExpertSizes};
pub use fused_linear::{FusedLinear, Projected};
pub use gated_activation::GatedActivation;
pub use gated_delta::GatedDelta;
pub use gelu::GeluApprox;
pub use linear::Linear;
pub use norm::RmsNorm;
pub use norm_gated_up::NormGatedUp;
pub use norm_projections::NormProjections;
pub use norm_residual::NormResidual;
pub use product_residual::ProductResidual;
pub use rope::{Rope, RopeScaling};
pub use rope_attention::RopeAttention;
pub use short_conv::ShortConv;
pub use switch::{SwitchGlu, route};
