//! Whether a call waits for the disk.

/// Whether a call may block until the next chunk has been read, or the writer has room for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocking {
    Allowed,
    Forbidden,
}

impl Blocking {
    /// Allowed where nothing else is to be computed.
    pub(crate) fn if_idle(is_idle: bool) -> Self {
        if is_idle { Blocking::Allowed } else { Blocking::Forbidden }
    }
}
