//! The server over a real socket.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

mod agents;
mod api;
mod decisions;
mod diagnosis;
mod document;
mod echo;
mod embeddings;
mod faults;
mod half_close;
mod http;
mod keys;
mod replay;
mod running;
mod speculation;
mod starting_points;
mod switch;
mod thinking;
mod tools;
