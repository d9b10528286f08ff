//! Whether a model or an answer fits into the memory limit. Pure.

use crate::MemoryShortage;

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldModel {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Whether a sequence or a task uses it: then it stays.
    pub(crate) is_in_use: bool,
    /// Whether a person wants it to stay.
    pub(crate) is_pinned: bool,
}

impl HeldModel {
    fn stays(&self) -> bool {
        self.is_in_use || self.is_pinned
    }
}

/// What memory is in use, and how much there may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryUse {
    pub(crate) limit_bytes: u64,
    /// The least recently used first.
    pub(crate) models: Vec<HeldModel>,
    /// What running sequences may come to take, and what passes of tasks take.
    pub(crate) reserved_bytes: u64,
    /// What was computed for later queries. It can go at once.
    pub(crate) held_bytes: u64,
}

/// What becomes of a request for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    Admit,
    /// It fits after what is held for later queries is dropped.
    AdmitAfterForgetting,
    /// It fits after that, and after these idle models are unloaded.
    AdmitAfterUnloading(Vec<String>),
    /// It fits when sequences under way have ended.
    Wait {
        missing_bytes: u64,
    },
    Refuse(MemoryShortage),
}

impl MemoryUse {
    /// What is left beside everything.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes().saturating_add(self.held_bytes))
    }

    /// What models and sequences take, and passes.
    fn used_bytes(&self) -> u64 {
        let models: u64 = self.models.iter().map(|model| model.bytes).sum();
        models.saturating_add(self.reserved_bytes)
    }

    /// For a model of `needed_bytes`. It never waits: what is in use may be in use for long.
    pub(crate) fn admit_model(&self, needed_bytes: u64) -> Admission {
        self.unload_for(needed_bytes, None).unwrap_or_else(|| self.refuse(needed_bytes))
    }

    /// For a sequence of the model `name` that takes `needed_bytes` at most, and `least_bytes` if
    /// its answer is short. One that runs by itself needs only those.
    pub(crate) fn admit_sequence(
        &self,
        name: &str,
        needed_bytes: u64,
        least_bytes: u64,
    ) -> Admission {
        if let Some(admitted) = self.unload_for(needed_bytes, Some(name)) {
            return admitted;
        }
        if self.reserved_bytes > 0 {
            let free = self.limit_bytes.saturating_sub(self.used_bytes());
            return Admission::Wait { missing_bytes: needed_bytes - free.min(needed_bytes) };
        }
        self.unload_for(least_bytes, Some(name)).unwrap_or_else(|| self.refuse(least_bytes))
    }

    /// For a pass of a task of the model `name`, which is in `reserved_bytes` with what it has already.
    /// It waits for what the others of these end with, `others_bytes`.
    pub(crate) fn admit_pass(&self, name: &str, needed_bytes: u64, others_bytes: u64) -> Admission {
        if let Some(admitted) = self.unload_for(needed_bytes, Some(name)) {
            return admitted;
        }
        if others_bytes > 0 {
            let free = self.limit_bytes.saturating_sub(self.used_bytes());
            return Admission::Wait { missing_bytes: needed_bytes - free.min(needed_bytes) };
        }
        self.refuse(needed_bytes)
    }

    /// How `needed_bytes` fit at once; none if they do not. `spared` is a model that stays.
    fn unload_for(&self, needed_bytes: u64, spared: Option<&str>) -> Option<Admission> {
        let mut used = self.used_bytes();
        let fits = |used: u64| {
            used.checked_add(needed_bytes).is_some_and(|bytes| bytes <= self.limit_bytes)
        };
        if fits(used.saturating_add(self.held_bytes)) {
            return Some(Admission::Admit);
        }
        if fits(used) {
            return Some(Admission::AdmitAfterForgetting);
        }
        let mut unloaded = Vec::new();
        let idle = self.models.iter().filter(|model| !model.stays());
        for model in idle.filter(|model| Some(model.name.as_str()) != spared) {
            used -= model.bytes;
            unloaded.push(model.name.clone());
            if fits(used) {
                return Some(Admission::AdmitAfterUnloading(unloaded));
            }
        }
        None
    }

    fn refuse(&self, needed_bytes: u64) -> Admission {
        let staying = || self.models.iter().filter(|model| model.stays());
        let (in_use, pinned): (Vec<_>, Vec<_>) = staying().partition(|model| model.is_in_use);
        let names =
            |models: Vec<&HeldModel>| models.into_iter().map(|model| model.name.clone()).collect();
        let held: u64 = staying().map(|model| model.bytes).sum();
        Admission::Refuse(MemoryShortage {
            needed_bytes,
            free_bytes: self.limit_bytes.saturating_sub(held.saturating_add(self.reserved_bytes)),
            limit_bytes: self.limit_bytes,
            would_have_to_go: names(in_use),
            pinned: names(pinned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models by name, bytes and whether they are in use.
    fn memory(limit: u64, models: &[(&str, u64, bool)], reserved: u64) -> MemoryUse {
        let held = |&(name, bytes, is_in_use): &(&str, u64, bool)| HeldModel {
            name: name.to_owned(),
            bytes,
            is_in_use,
            is_pinned: name.starts_with("pinned"),
        };
        let models = models.iter().map(held).collect();
        MemoryUse { limit_bytes: limit, models, reserved_bytes: reserved, held_bytes: 0 }
    }

    fn unloading(names: &[&str]) -> Admission {
        Admission::AdmitAfterUnloading(names.iter().map(|&name| name.to_owned()).collect())
    }

    fn refused(needed_bytes: u64, free_bytes: u64, names: &[&str]) -> Admission {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let (pinned, would_have_to_go) =
            names.into_iter().partition(|name| name.starts_with("pinned"));
        let limit_bytes = 100;
        Admission::Refuse(MemoryShortage {
            needed_bytes,
            free_bytes,
            limit_bytes,
            would_have_to_go,
            pinned,
        })
    }

    #[test]
    fn idle_models_go_for_another_least_recently_used_first() {
        let check = |models: &[(&str, u64, bool)], reserved, needed, expected: Admission| {
            let found = memory(100, models, reserved).admit_model(needed);
            assert_eq!(found, expected, "{needed} beside {models:?} and {reserved}");
        };
        check(&[], 0, 100, Admission::Admit);
        check(&[], 0, 101, refused(101, 100, &[]));
        check(&[("a", 40, false)], 0, 60, Admission::Admit);
        check(&[("a", 40, false)], 0, 61, unloading(&["a"]));
        check(&[("a", 40, false), ("b", 30, false)], 0, 40, unloading(&["a"]));
        check(&[("a", 10, false), ("b", 60, false)], 0, 45, unloading(&["a", "b"]));
        // One in use stays, and so does what its answers may come to take.
        check(&[("a", 40, true), ("b", 30, false)], 20, 40, unloading(&["b"]));
        check(&[("a", 40, true), ("b", 30, false)], 20, 41, refused(41, 40, &["a"]));
        check(&[("a", 40, true)], 0, u64::MAX, refused(u64::MAX, 60, &["a"]));
        // A pinned one stays too.
        check(&[("pinned", 40, false), ("b", 30, false)], 0, 60, unloading(&["b"]));
        let both = [("a", 20, true), ("pinned", 40, false)];
        check(&both, 0, 41, refused(41, 40, &["a", "pinned"]));
    }

    #[test]
    fn a_sequence_waits_for_others_or_runs_with_less() {
        let check = |models: &[(&str, u64, bool)], reserved, needed, expected: Admission| {
            let found = memory(100, models, reserved).admit_sequence("a", needed, 10);
            assert_eq!(found, expected, "{needed} beside {models:?} and {reserved}");
        };
        check(&[("a", 40, false)], 0, 60, Admission::Admit);
        check(&[("a", 40, true)], 30, 30, Admission::Admit);
        check(&[("a", 40, true)], 30, 31, Admission::Wait { missing_bytes: 1 });
        check(&[("b", 30, false), ("a", 40, false)], 0, 60, unloading(&["b"]));
        // By itself it begins with room for a short answer.
        check(&[("a", 40, false)], 0, 1000, Admission::Admit);
        check(&[("a", 95, false)], 0, 1000, refused(10, 100, &[]));
    }

    #[test]
    fn a_pass_waits_for_others_only() {
        let models = [("b", 30, false), ("a", 40, true)];
        let check = |needed, others, expected: Admission| {
            let found = memory(100, &models, 20).admit_pass("a", needed, others);
            assert_eq!(found, expected, "{needed} beside {others}");
        };
        check(10, 0, Admission::Admit);
        check(11, 0, unloading(&["b"]));
        check(41, 5, Admission::Wait { missing_bytes: 31 });
        check(41, 0, refused(41, 40, &["a"]));
    }

    #[test]
    fn what_is_held_for_later_goes_before_a_model_does() {
        let models = [("b", 30, false), ("a", 40, true)];
        let check = |held_bytes, needed, expected: Admission| {
            let used = MemoryUse { held_bytes, ..memory(100, &models, 10) };
            assert_eq!(
                used.admit_sequence("a", needed, 1),
                expected,
                "{needed} beside {held_bytes}"
            );
            assert_eq!(used.free_bytes(), 20 - held_bytes.min(20));
        };
        check(15, 5, Admission::Admit);
        check(15, 6, Admission::AdmitAfterForgetting);
        check(15, 20, Admission::AdmitAfterForgetting);
        check(15, 21, unloading(&["b"]));
        check(15, 51, Admission::Wait { missing_bytes: 31 });
        // More may be held than there is: what is held is not asked for.
        check(500, 20, Admission::AdmitAfterForgetting);
    }
}
