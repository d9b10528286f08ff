//! A model hub on loopback, for tests: it serves the repositories it is given, and misbehaves on
//! demand.
//!
//! Two listeners stand for two hosts: the hub, and the one that it redirects to for large files.
//! Threads serve them, so a test needs no runtime for it. What goes wrong is a table of [`Fault`]s;
//! every request is recorded.
//!
//! ```
//! use cairn_fake_hub::{FakeFile, FakeHub, FakeRepo};
//!
//! let repo = FakeRepo::new("owner/name", vec![FakeFile::small("config.json", "{}")]);
//! let hub = FakeHub::start(vec![repo]);
//! assert!(hub.endpoint().starts_with("http://127.0.0.1:"));
//! assert!(hub.requests().is_empty());
//! ```

mod content;
mod fault;
mod reply;
mod repo;
mod server;

pub use content::Content;
pub use fault::{Asked, Fault, Misdeed};
pub use repo::{FakeFile, FakeRepo};
pub use server::{FakeHub, Request, Side};
