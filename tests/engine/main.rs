//! The engine through its handle, with a model that answers from a script and with a tiny real one.

mod answers;
mod batch;
mod cache_refs;
mod classify;
mod client;
mod detokenizer;
mod exchange;
mod file_parts;
mod imports;
mod jobs;
mod kit;
mod memory_once;
mod mlx_engine;
mod panics;
mod pool;
mod prefix;
mod prompt_cache;
mod prompt_file;
mod saved;
mod saved_damage;
mod saved_faults;
mod saved_load;
mod scripted;
mod stops;
mod test_engine;
mod turns;
