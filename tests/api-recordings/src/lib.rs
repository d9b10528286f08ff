//! What programs that speak the API have sent to Cairn, and what they got.
//!
//! `make interop` runs the vendors' own clients (`clients/`) against `cairn serve` through a
//! [`Recorder`], and commits what passed by, one [`Exchange`] a line, as `recordings/CLIENT.jsonl`.
//! A test of the server sends the same requests again and compares the answers, so that `make test`
//! needs neither Python nor npm.
//!
//! ```text
//! client ─▶ Recorder ─▶ cairn serve          make interop: writes recordings/
//!               │ Reply ─▶ normalized
//! recordings/ ─▶ Exchange ─▶ the server's test: Reply ─▶ normalized ─▶ the same?
//! ```
//!
//! Ids, times and what a random model says differ from run to run; [`Reply::normalized`] leaves
//! their form.
//!
//! ```
//! use cairn_api_recordings::{Detail, Reply};
//!
//! let raw = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{\"id\":\"resp_12ab\"}";
//! let reply = Reply::parse(raw).unwrap();
//! assert_eq!(reply.normalized(Detail::Values).body.unwrap()["id"], "resp_…");
//! ```

mod exchange;
mod http;
mod normal;
mod recorder;

pub use exchange::{Exchange, Recording, RecordingError, Sent};
pub use http::{Reply, SseEvent};
pub use normal::{Answer, Detail, EventShape};
pub use recorder::{Recorder, RecorderError};
