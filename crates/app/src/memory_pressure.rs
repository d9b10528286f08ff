//! When the engine is told that the system is short of memory.

use std::time::{Duration, Instant};

use cairn_engine::MemoryPressure;

/// While the system stays short of memory, the engine frees some again at this interval: answers
/// that have ended meanwhile are in memory again. More often would only make chats slow.
const INTERVAL: Duration = Duration::from_secs(10);

/// What the engine was told last, and when.
#[derive(Debug, Default)]
pub(crate) struct PressureWatch {
    last: Option<(MemoryPressure, Instant)>,
}

impl PressureWatch {
    /// The pressure to tell the engine of now, if any: a new or greater one, and one that lasts.
    pub(crate) fn due(
        &mut self,
        found: Option<MemoryPressure>,
        now: Instant,
    ) -> Option<MemoryPressure> {
        let found = found.filter(|found| *found > MemoryPressure::Normal)?;
        let is_due = |(before, at)| found > before || now >= at + INTERVAL;
        if !self.last.is_none_or(is_due) {
            return None;
        }
        self.last = Some((found, now));
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_told_of_new_greater_and_lasting_pressure() {
        use MemoryPressure::{Critical, Normal, Warning};

        let start = Instant::now();
        let mut watch = PressureWatch::default();
        let mut check = |second: u64, found, expected| {
            let due = watch.due(found, start + Duration::from_secs(second));
            assert_eq!(due, expected, "{found:?} after {second} s");
        };
        check(0, None, None);
        check(1, Some(Normal), None);
        check(2, Some(Warning), Some(Warning));
        check(4, Some(Warning), None);
        check(6, Some(Critical), Some(Critical));
        // Neither a lesser one nor one that comes and goes is due again at once.
        check(8, Some(Warning), None);
        check(10, Some(Normal), None);
        check(12, Some(Critical), None);
        check(16, Some(Critical), Some(Critical));
        check(26, Some(Warning), Some(Warning));
        check(50, Some(Normal), None);
    }
}
