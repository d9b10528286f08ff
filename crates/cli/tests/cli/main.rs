//! Tests of `cairn` as a program: they run the binary on a data folder with a tiny model.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod cache;
mod chats;
mod classify;
mod convert;
mod download;
mod early_refusals;
mod generate;
mod import;
mod messages;
mod mlx_lm;
mod models;
mod perplexity;
mod program;
mod score;
mod serve;
