//! The time by which chunks were used.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch; only for "last used".
pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis() as i64)
}
