//! How long what was deleted can be brought back.

use std::time::Duration;

/// Conversations and jobs. Interfaces offer that for some seconds.
pub(crate) const UNDO_LIMIT: Duration = Duration::from_secs(600);
/// Models and their older versions. It is short because people delete models to make room.
pub(crate) const MODEL_UNDO_LIMIT: Duration = Duration::from_secs(30);
