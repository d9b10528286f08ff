//! A request whose prompt is being restored from chunks, before its sequence begins.

use std::rc::Rc;
use std::time::Instant;

use crate::generate_job::GenerateJob;
use crate::lookup::{draft_query, query};
use crate::model_pool::Loaded;
use crate::prompt_cache::{Blocking, PendingRestore};
use crate::shared_reading::{Awaited, ReadBeginning};
use crate::worker::Worker;

/// A request whose prompt's beginning is being restored from chunks, a chunk at a time.
pub(crate) struct Restoring {
    pub(crate) job: GenerateJob,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) restored: Restored,
}

/// What has been restored of a prompt.
pub(crate) struct Restored {
    /// When the lookup began, which counts to the time of the answer.
    pub(crate) began: Instant,
    /// None where nothing has to be read for the model.
    pub(crate) pending: Option<PendingRestore>,
    /// The same of its draft model.
    pub(crate) of_draft: Option<PendingRestore>,
    /// A beginning of the prompt that another request has read. With it, nothing is looked up.
    pub(crate) shared: Option<ReadBeginning>,
    /// Beginnings of the prompt that others wait for.
    pub(crate) awaited: Awaited,
}

impl Default for Restored {
    /// Nothing, of a lookup that begins now.
    fn default() -> Self {
        Restored {
            began: Instant::now(),
            pending: None,
            of_draft: None,
            shared: None,
            awaited: Awaited::default(),
        }
    }
}

impl Restoring {
    /// Begins to restore; returns the job if there is nothing to wait for. An answer that is not alone
    /// proposes only where it was asked to.
    pub(crate) fn begin(
        worker: &mut Worker,
        mut job: GenerateJob,
        is_alone: bool,
    ) -> Result<Self, Box<GenerateJob>> {
        let began = Instant::now();
        let begun = worker.guarded("looking up a prompt", |worker| {
            let loaded = worker.models.get(job.request.model.as_deref())?;
            job.request.check()?;
            let num_tokens = job.prompt(&loaded)?.tokens.len();
            let request = &job.request;
            let is_looked_up = request.looks_up();
            let context_length = request.context_length(loaded.model.model.context_length());
            let has_place = (1..context_length).contains(&num_tokens);
            let Some((_, prompt)) = job
                .prompt
                .as_ref()
                .filter(|_| is_looked_up && has_place && request.prompt_cache_file.is_none())
            else {
                return Ok(None);
            };
            let query = query(request, prompt, num_tokens, &loaded);
            let pending = worker.cache.begin_restore(&loaded.model, &query);
            let proposes = is_alone || request.is_unbatched();
            let draft = proposes.then(|| worker.draft_for(&loaded, request)).flatten();
            let of_draft = draft.filter(|_| request.uses_prompt_cache()).and_then(|draft| {
                worker.cache.begin_restore(&draft.model, &draft_query(request, prompt, &draft))
            });
            let has_any = pending.is_some() || of_draft.is_some();
            Ok(has_any
                .then_some((loaded, Restored { began, pending, of_draft, ..Restored::default() })))
        });
        match begun {
            Ok(Some((loaded, restored))) => {
                // Another model may be loaded meanwhile.
                job.request.model = Some(loaded.name.clone());
                Ok(Restoring { job, loaded, restored })
            }
            // What is wrong with it is found again when the sequence begins.
            Ok(None) | Err(_) => Err(Box::new(job)),
        }
    }

    /// Whether `other` restores the same, and will be ready sooner: this one takes its caches then.
    pub(crate) fn follows(&self, other: &Restoring) -> bool {
        let (Some(own), Some(others)) = (&self.restored.pending, &other.restored.pending) else {
            return false;
        };
        (others.num_left(), other.restored.began) < (own.num_left(), self.restored.began)
            && own.is_like(others)
    }

    /// Restores the next chunk, of the draft model once the model's are restored; without blocking only if
    /// one has been read. Returns whether the sequence can begin.
    pub(crate) fn advance(&mut self, worker: &mut Worker, blocking: Blocking) -> bool {
        let Restored { pending, of_draft, .. } = &mut self.restored;
        let restored = worker.guarded("restoring a prompt", |worker| {
            let is_restored = |pending: &mut Option<PendingRestore>| {
                pending.as_mut().is_none_or(|pending| worker.cache.restore_next(pending, blocking))
            };
            Ok(is_restored(pending) && is_restored(of_draft))
        });
        restored.unwrap_or(true)
    }
}
