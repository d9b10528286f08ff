//! The engine through its handle, with a model that answers from a script and with a tiny real one.

mod answers;
mod batch;
mod client;
mod detokenizer;
mod exchange;
mod file_parts;
mod imports;
mod jobs;
mod keeper;
mod kept;
mod kept_damage;
mod kept_load;
mod kept_places;
mod kit;
mod prefix;
mod prompt_cache;
mod prompt_file;
mod scripted;
mod stops;
