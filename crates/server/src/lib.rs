//! The app over HTTP on this machine: its commands for a browser, the built interface, and the API
//! that other programs speak.
//!
//! ```text
//! POST /api/call      one command as JSON; answered with frames, one JSON object a line
//!                     (application/x-ndjson): a reply or a failure, and for `subscribe` every
//!                     event after that, until the client disconnects
//! GET  /api/cache/export?type=conversation|named&id=…&layout=0.32|0.30
//!                     its prompt cache as a .safetensors file for that version of mlx-lm (0.32
//!                     if none is named), or a failure as above
//! POST /api/cache/import
//!                     a prompt-cache file, its name percent-encoded in `x-file-name`; answered
//!                     with a preview of it as a reply
//! POST /api/models/import
//!                     a GGUF file, its name as above; answered when it is imported as a model
//! GET  /, /assets/…   the interface
//! /v1/…, /health      the API (`api/`), described in docs/api.md
//! ```
//!
//! Any web page that a browser shows can send requests to a loopback port, so every request passes
//! the same checks (`request_guard.rs`):
//!
//! - the `Host` header names this server by its address or as localhost, not by a DNS name, which
//!   anyone may point at this machine;
//! - an `Origin` header, where a browser sends one, is this server's own;
//! - a command that needs a person's consent is refused ([`cairn_app::Consent`]): no one can be asked
//!   here, and script in the page has the token too;
//! - a command carries the token and the content type application/json, which an HTML form cannot
//!   send; file transfers carry the token, and requests of the API the token or a key that was made
//!   in the app.
//!
//! [`Server`] serves all of this, for `cairn serve`. The desktop app has its window instead of a
//! browser; its [`ApiSwitch`] serves the API alone, while the settings say so.
//!
//! # Example
//!
//! ```
//! // Without a token of its own a server makes one, and prints the address that carries it.
//! let options = cairn_server::ServeOptions::default();
//! assert!(options.token.is_none());
//! ```
//!
//! There are no CORS headers. The printed URL holds the token in its fragment, which browsers do
//! not send to the server.

mod api;
mod cache;
mod call;
mod chats;
mod connections;
mod interface;
mod models;
mod parsing;
mod paths;
mod request_guard;
mod server;
mod shared;
mod switch;
mod upload;

pub use server::{ServeError, ServeOptions, Server, serve};
pub use switch::ApiSwitch;
