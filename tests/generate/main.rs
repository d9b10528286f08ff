//! Generation as its callers see it: tokens, text, drafts and kits, on tiny checkpoints of every
//! architecture.

mod golden;
mod kit;
mod kit_caches;
mod prompts;
mod speculative;
mod text;
