//! The segments of answers of well-known families, however the stream is cut.
#![allow(clippy::unwrap_used)]

mod any_text;
mod formats;
mod harmony;
mod json_calls;
mod kit;
mod other_calls;
mod reasoning;
