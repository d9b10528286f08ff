//! A request whose prompt is being restored from chunks, before its sequence begins.

use std::rc::Rc;
use std::time::Instant;

use cairn_chat::Prompt;

use crate::guard::guarded;
use crate::model_pool::Loaded;
use crate::prompt_cache::{Blocking, PendingRestore, Query, kv_format};
use crate::request::GenerateRequest;
use crate::sequence::{GenerateJob, check};
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
    pub(crate) pending: PendingRestore,
}

impl Restoring {
    /// Begins to restore; returns the job if there is nothing to wait for.
    pub(crate) fn begin(
        worker: &mut Worker,
        mut job: GenerateJob,
    ) -> Result<Self, Box<GenerateJob>> {
        let began = Instant::now();
        let begun = guarded(worker, "looking up a prompt", |worker| {
            let loaded = worker.models.get(job.request.model.as_deref())?;
            check(&job.request)?;
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
            Ok(pending.map(|pending| (loaded, pending)))
        });
        match begun {
            Ok(Some((loaded, pending))) => {
                // Another model may be loaded meanwhile.
                job.request.model = Some(loaded.name.clone());
                Ok(Restoring { job, loaded, restored: Restored { began, pending } })
            }
            // What is wrong with it is found again when the sequence begins.
            Ok(None) | Err(_) => Err(Box::new(job)),
        }
    }

    /// Whether `other` restores the same, and will be ready sooner: this one takes its caches then.
    pub(crate) fn follows(&self, other: &Restoring) -> bool {
        let order = |one: &Restoring| (one.restored.pending.num_left(), one.restored.began);
        order(other) < order(self) && self.restored.pending.is_like(&other.restored.pending)
    }

    /// Restores the next chunk; without blocking only if one has been read. Returns whether the
    /// sequence can begin.
    pub(crate) fn advance(&mut self, worker: &mut Worker, blocking: Blocking) -> bool {
        let pending = &mut self.restored.pending;
        let restored = guarded(worker, "restoring a prompt", |worker| {
            Ok(worker.cache.restore_next(pending, blocking))
        });
        restored.unwrap_or(true)
    }
}

/// The lookup of a prompt that has `num_tokens` with those in the request's file.
pub(crate) fn query<'a>(
    request: &'a GenerateRequest,
    prompt: &'a Prompt,
    num_tokens: usize,
    loaded: &'a Loaded,
) -> Query<'a> {
    Query {
        prompt,
        // At least one token must be run, to have something to sample from.
        limit: num_tokens - 1,
        model_name: &loaded.name,
        kv_format: kv_format(&request.kv_cache),
        prefix_provenance: request.prefix_provenance(),
        num_opaque: request.prompt.num_opaque(),
        owner: request.owner.as_ref(),
        only_looks: false,
        is_draft: false,
    }
}
