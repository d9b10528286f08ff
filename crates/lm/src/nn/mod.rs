//! The layers that architectures share. How they are connected is in the architectures' own files.

mod attention;
pub mod cuda;
mod embedding;
mod gated_delta;
mod gelu;
mod linear;
mod norm;
mod rope;
mod short_conv;
mod swiglu;
mod switch;

pub use attention::{attention, split_heads};
pub use embedding::Embedding;
pub use gated_delta::GatedDelta;
pub use gelu::GeluApprox;
pub use linear::{FusedLinear, Linear};
pub use norm::RmsNorm;
pub use rope::{Rope, RopeScaling};
pub use short_conv::ShortConv;
pub use swiglu::SwiGlu;
pub use switch::{SwitchGlu, route};
