//! Downloads from a fake hub that misbehaves in every way that was thought of: what becomes visible
//! is right, or nothing does.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod answers;
mod cuts;
mod kills;
mod layout;
mod progress;
mod questions;
mod queue;
mod secrets;
mod support;
