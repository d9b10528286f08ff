//! The public generation functions, on tiny checkpoints of every architecture: tokens, text, draft
//! models and kits.

mod bf16_state;
mod draws;
mod golden;
mod heads;
mod kit;
mod kit_caches;
mod prompts;
mod speculative;
mod text;
mod traced_steps;
