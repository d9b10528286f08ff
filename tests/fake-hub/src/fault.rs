//! What a fake hub does wrong, and when.

use std::time::Duration;

/// Requests that a fault can be meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Any.
    Any,
    /// What a revision is.
    Info,
    /// The list of files.
    Tree,
    /// A search.
    Search,
    /// A file, at the hub.
    File(&'static str),
    /// A file's bytes, at the host that the hub redirects to.
    Bytes(&'static str),
}

/// One entry of the table of faults: the first that fits a request decides about it.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Which requests.
    pub asked: Asked,
    /// How many of them; then the fault is gone.
    pub times: u32,
    /// What happens.
    pub misdeed: Misdeed,
}

impl Fault {
    /// A fault that happens each time.
    pub fn always(asked: Asked, misdeed: Misdeed) -> Fault {
        Fault { asked, times: u32::MAX, misdeed }
    }

    /// A fault that happens once.
    pub fn once(asked: Asked, misdeed: Misdeed) -> Fault {
        Fault { asked, times: 1, misdeed }
    }
}

/// What happens instead of the right answer.
#[derive(Debug, Clone)]
pub enum Misdeed {
    /// This status, with these headers and a body that must not become a file.
    Status(u16, Vec<(&'static str, String)>),
    /// 200 with this type and body.
    Instead(&'static str, Vec<u8>),
    /// A redirect to this address.
    Redirect(String),
    /// The connection ends before an answer.
    CutBeforeAnswer,
    /// The connection ends after so many bytes of the body.
    CutAfter(u64),
    /// After so many bytes nothing comes any more, and the connection stays open.
    StallAfter(u64),
    /// One byte at a time, with this time between them.
    Drip(Duration),
    /// This `Content-Length`; then that many bytes, the right ones as far as there are any.
    Length(u64),
    /// The right body without its length.
    NoLength,
    /// A body that never ends, without a length.
    Endless,
    /// A `Content-Encoding: gzip`.
    Gzip,
    /// 200 and the whole file, whatever range was asked for.
    IgnoreRange,
    /// 206 with a range that begins somewhere else.
    OtherRange,
    /// The byte at this position of the file is another one.
    Damage(u64),
    /// These headers besides.
    Headers(Vec<(&'static str, String)>),
}
