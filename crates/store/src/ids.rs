//! Ids of rows.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::{NoContext, Timestamp, Uuid};

/// A new id, which sorts after the ids that this process has made before. A clock before 1970 has no
/// such order, and no UUID of version 7 either: then the id is one of the first moment of 1970.
pub fn new_id() -> Uuid {
    id_at(SystemTime::now())
}

fn id_at(now: SystemTime) -> Uuid {
    match now.duration_since(UNIX_EPOCH) {
        Ok(_) => Uuid::now_v7(),
        Err(_) => Uuid::new_v7(Timestamp::from_unix(NoContext, 0, 0)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ids_differ_before_1970_too() {
        let before = UNIX_EPOCH - Duration::from_secs(1);
        let (one, other) = (id_at(before), id_at(before));
        assert_ne!(one, other);
        assert!(one < new_id() && other < new_id());
    }
}
