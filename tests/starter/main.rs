//! The starter model, SmolLM2-135M-Instruct: imported without changing a weight, and answering as
//! mlx-lm does.

mod answers;
mod gguf;
mod prefix;
mod weights;
