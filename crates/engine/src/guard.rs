//! Panics end what they happened in, and nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::EngineError;

/// Runs something that changes nothing but what it owns, and turns a panic into an error.
pub(crate) fn caught<T>(
    during: &'static str,
    part: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| {
        Err(EngineError::Panicked { during, message: panic_message(panic.as_ref()) })
    })
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
