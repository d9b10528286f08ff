//! What is given slices: a batch of sequences, an unbatched sequence, or a task.

use std::time::Duration;

use crate::batch_run::BatchRun;
use crate::task::Task;
use crate::unbatched::UnbatchedRun;

/// Work, and the numbers of its last slices.
pub(super) struct Run {
    pub(super) work: RunWork,
    pub(super) last_decode: u64,
    pub(super) last_prefill: u64,
    /// How long prefill slices have waited for its last decode step. The step's tokens come with its
    /// next decode slice, so that the time is counted there.
    pub(super) waited_for_decode: Duration,
}

pub(super) enum RunWork {
    Batch(Box<BatchRun>),
    Unbatched(Box<UnbatchedRun>),
    Task(Task),
}

impl Run {
    pub(super) fn model(&self) -> &str {
        let loaded = match &self.work {
            RunWork::Batch(batch) => &batch.loaded,
            RunWork::Unbatched(run) => run.loaded(),
            RunWork::Task(task) => task.loaded(),
        };
        &loaded.name
    }

    pub(super) fn is_decoding(&self) -> bool {
        match &self.work {
            RunWork::Batch(batch) => batch.is_decoding(),
            RunWork::Unbatched(run) => !run.is_reading(),
            RunWork::Task(_) => false,
        }
    }

    pub(super) fn is_reading(&self) -> bool {
        match &self.work {
            RunWork::Batch(batch) => batch.is_reading(),
            RunWork::Unbatched(run) => run.is_reading(),
            RunWork::Task(_) => true,
        }
    }

    pub(super) fn num_decoding_rows(&self) -> usize {
        match &self.work {
            RunWork::Batch(batch) => batch.num_decoding(),
            RunWork::Unbatched(_) | RunWork::Task(_) => usize::from(self.is_decoding()),
        }
    }

    pub(super) fn num_waiting_rows(&self) -> usize {
        match &self.work {
            RunWork::Batch(batch) => batch.rows.len().saturating_sub(batch.num_decoding()),
            RunWork::Unbatched(_) | RunWork::Task(_) => usize::from(self.is_reading()),
        }
    }

    pub(super) fn num_unread_tokens(&self) -> usize {
        match &self.work {
            RunWork::Batch(batch) => batch.num_unread_tokens(),
            RunWork::Unbatched(run) => run.num_unread_tokens(),
            RunWork::Task(task) => task.num_unread_tokens(),
        }
    }

    pub(super) fn prefill_step_size(&self) -> Option<usize> {
        match &self.work {
            RunWork::Batch(batch) => batch.prefill_step_size(),
            RunWork::Unbatched(run) => Some(run.sequence().job.request.prefill_step_size),
            RunWork::Task(task) => task.prefill_step_size(),
        }
    }
}
