//! How far a load has come, and the pauses that it makes.

use std::fmt;
use std::ops::ControlFlow;
use std::rc::Rc;

use crate::LmError;

/// How far a load has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of tensors that have been read.
    pub bytes_read: u64,
    /// Bytes of all tensors that the model needs.
    pub total_bytes: u64,
}

/// The most bytes that a load reads or computes between two pauses: some hundredths of a second.
pub(crate) const PART_BYTES: usize = 32 << 20;

/// Called before each part of a load; where it breaks, the load ends.
#[derive(Clone)]
pub(crate) struct OnPart(Rc<dyn Fn(LoadProgress) -> ControlFlow<()>>);

impl OnPart {
    pub(crate) fn new(on_part: impl Fn(LoadProgress) -> ControlFlow<()> + 'static) -> Self {
        OnPart(Rc::new(on_part))
    }

    /// A load without pauses.
    pub(crate) fn none() -> Self {
        OnPart::new(|_| ControlFlow::Continue(()))
    }

    /// Lets others go on. Fails with [`LmError::Cancelled`] if the load is to end.
    pub(crate) fn pause(&self, progress: LoadProgress) -> Result<(), LmError> {
        match (self.0)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LmError::Cancelled),
        }
    }
}

impl fmt::Debug for OnPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("OnPart")
    }
}
