//! The engine through its handle, with a model that answers from a script and with a tiny real one.

mod answers;
mod client;
mod detokenizer;
mod jobs;
mod prompt_cache;
mod scripted;
