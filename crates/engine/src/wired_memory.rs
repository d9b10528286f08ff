//! Wired memory: on a Mac, memory that the system keeps for the GPU and never swaps out.
//!
//! Large models answer faster with it, and a Mac may stop with a kernel panic where its limit is changed
//! while the GPU works. So it is asked for, and follows what was asked only between two answers.

use cairn_lm::memory;
use mlx_rs::error::Exception;

/// Whether weights of so many bytes leave little or nothing of what the GPU can keep: then a model is
/// slow, wired or not.
pub fn is_tight(weight_bytes: u64, recommended_bytes: u64) -> bool {
    // As in mlx-lm.
    weight_bytes > recommended_bytes / 10 * 9
}

/// Whether models are kept wired. Owned by the engine's thread.
///
/// - `set_limit` is called only by [`WiredMemory::settle`], after whatever was launched has ended.
pub(crate) struct WiredMemory {
    is_wanted: bool,
    is_set: bool,
    /// The most that the system recommends; none where memory is not wired.
    recommended_bytes: Option<u64>,
    set_limit: Box<dyn FnMut(u64) -> Result<(), Exception>>,
}

impl WiredMemory {
    /// That of this machine.
    pub(crate) fn of_system() -> Self {
        WiredMemory::new(memory::recommended_wired_bytes(), memory::set_wired_limit)
    }

    pub(crate) fn new(
        recommended_bytes: Option<u64>,
        set_limit: impl FnMut(u64) -> Result<(), Exception> + 'static,
    ) -> Self {
        let set_limit = Box::new(set_limit);
        WiredMemory { is_wanted: false, is_set: false, recommended_bytes, set_limit }
    }

    /// Wires models, or no longer does, from the next [`WiredMemory::settle`] on.
    pub(crate) fn want(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    /// Does what was asked for. Only while no run and no load is under way.
    pub(crate) fn settle(&mut self) {
        let Some(recommended_bytes) = self.recommended_bytes else { return };
        if self.is_set == self.is_wanted {
            return;
        }
        match (self.set_limit)(if self.is_wanted { recommended_bytes } else { 0 }) {
            Ok(()) => self.is_set = self.is_wanted,
            Err(error) => {
                tracing::warn!(%error, "the limit of wired memory stays as it was");
                self.is_wanted = self.is_set;
            }
        }
    }

    /// What there is to say about a model whose weights take so many bytes; none where they fit well.
    /// Wired or not, a model that leaves the system nothing is slow.
    pub(crate) fn warning(&self, weight_bytes: u64) -> Option<String> {
        let recommended = self.recommended_bytes?;
        if !is_tight(weight_bytes, recommended) {
            return None;
        }
        let share = if weight_bytes > recommended { "more than" } else { "nearly all of" };
        let [weights, most] = [weight_bytes, recommended].map(|bytes| bytes as f64 / 1e9);
        Some(format!(
            "this model requires {weights:.1} GB, {share} the {most:.1} GB that the GPU can keep, so it can \
             be slow: choose fewer bits or a smaller model, or let the GPU keep more (sudo sysctl \
             iogpu.wired_limit_mb=N, in megabytes: more than the model takes, less than the Mac has)"
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_limit_changes_once_and_only_when_settled() {
        let calls = Rc::new(RefCell::new(Vec::new()));
        let record = Rc::clone(&calls);
        let mut wired = WiredMemory::new(Some(1000), move |bytes| {
            record.borrow_mut().push(bytes);
            Ok(())
        });
        wired.settle();
        assert!(calls.borrow().is_empty(), "off by default");
        wired.want(true);
        assert!(calls.borrow().is_empty(), "not before it is settled");
        wired.settle();
        wired.settle();
        wired.want(false);
        wired.want(true);
        wired.settle();
        assert_eq!(*calls.borrow(), [1000]);
        wired.want(false);
        wired.settle();
        assert_eq!(*calls.borrow(), [1000, 0]);
    }

    #[test]
    fn a_limit_that_cannot_change_is_asked_for_once() {
        let calls = Rc::new(RefCell::new(0));
        let count = Rc::clone(&calls);
        let mut wired = WiredMemory::new(Some(1000), move |_| {
            *count.borrow_mut() += 1;
            Err(Exception::custom("the device does not answer".to_owned()))
        });
        wired.want(true);
        wired.settle();
        wired.settle();
        assert_eq!(*calls.borrow(), 1);
        wired.want(true);
        wired.settle();
        assert_eq!(*calls.borrow(), 2);
    }

    #[test]
    fn nothing_is_wired_and_nothing_warned_of_where_memory_is_not() {
        let mut wired = WiredMemory::new(None, |_| panic!("there is nothing to set"));
        wired.want(true);
        wired.settle();
        assert_eq!(wired.warning(u64::MAX), None);
    }

    #[test]
    fn a_model_that_leaves_little_is_warned_of_with_what_helps() {
        let wired = WiredMemory::new(Some(20_000_000_000), |_| Ok(()));
        assert_eq!(wired.warning(18_000_000_000), None);
        let warning = wired.warning(18_100_000_000).unwrap();
        assert!(warning.contains("18.1 GB, nearly all of the 20.0 GB"), "{warning}");
        let warning_of_more = wired.warning(30_000_000_000).unwrap();
        assert!(warning_of_more.contains("30.0 GB, more than the 20.0 GB"), "{warning_of_more}");
        assert!(warning.contains("iogpu.wired_limit_mb"), "{warning}");
    }
}
