//! The door over HTTP on this machine: the app's commands for a browser, and the built interface.
//!
//! ```text
//! POST /api/call      one command as JSON; answered with frames, one JSON object a line (application/x-ndjson):
//!                     a reply or a failure, and for `subscribe` every event after that, until the caller leaves
//! GET  /api/cache/export?type=conversation|named&id=…
//!                     what is kept of it as a .safetensors file, or a failure as above
//! POST /api/cache/import
//!                     a prompt-cache file, its name percent-encoded in `x-file-name`; answered with its preview as a reply
//! GET  /, /assets/…   the interface
//! ```
//!
//! Web pages of strangers can reach a loopback port too, so every request passes the same checks
//! (`door.rs`):
//!
//! - the `Host` header names this server by address, never by a name that someone else may point
//!   here;
//! - an `Origin` header, where a browser sends one, is this server's own;
//! - a command carries the token and says that it is JSON, which no plain form can; files, in and
//!   out, need the token too.
//!
//! There are no CORS headers. The token travels in the fragment of the printed URL, which browsers
//! keep to themselves.

mod cache;
mod call;
mod door;
mod interface;
mod server;
mod shared;

pub use server::{ServeError, ServeOptions, Server, serve};
