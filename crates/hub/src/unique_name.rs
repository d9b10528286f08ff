//! Names that no other file or folder has.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::{Timestamp, Uuid};

/// A new name; the random part makes it unique also where the clock is wrong.
pub(crate) fn unique_name() -> Uuid {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Uuid::new_v7(Timestamp::from_unix_time(since.as_secs(), since.subsec_nanos(), 0, 0))
}
