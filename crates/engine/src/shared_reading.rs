//! Prompts that come together and begin alike: one is read, and the others wait for the beginning
//! that they share with it.

use std::rc::Rc;
use std::time::Instant;

use cairn_lm::cache::{LayerCache, can_trim_prompt_cache, trim_prompt_cache};
use tokio::sync::watch;

use crate::generate_job::GenerateJob;
use crate::model_pool::Loaded;
use crate::request::GenerateRequest;

/// The fewest unread tokens for which a request waits until another has read them.
pub(crate) const LEAST_SHARED_TOKENS: usize = 256;

/// A beginning of a prompt that has been read, with its caches.
#[derive(Debug)]
pub(crate) struct ReadBeginning {
    pub(crate) num_tokens: usize,
    pub(crate) caches: Vec<LayerCache>,
}

/// Beginnings of a prompt that others wait for while it is read.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// How many tokens each of them shares with the prompt.
    lengths: Vec<usize>,
    /// Whether reading must stop at each length, because the caches cannot be trimmed afterwards.
    pub(crate) is_exact: bool,
    /// Copies of the caches, which share arrays with them until one is written to.
    read: Vec<ReadBeginning>,
}

impl Awaited {
    pub(crate) fn add(&mut self, num_tokens: usize, is_exact: bool) {
        self.lengths.push(num_tokens);
        self.is_exact = is_exact;
    }

    /// Where reading must stop.
    pub(crate) fn stops(&self) -> &[usize] {
        if self.is_exact { &self.lengths } else { &[] }
    }

    /// Whether the first `num_read` tokens of the prompt are enough for someone who waits.
    pub(crate) fn is_enough(&self, num_read: usize) -> bool {
        self.lengths.iter().any(|&length| length <= num_read)
    }

    /// Keeps a copy of the caches for those who wait for no more than they hold.
    pub(crate) fn keep(&mut self, caches: Vec<LayerCache>) {
        let num_tokens = caches.iter().map(LayerCache::offset).min().unwrap_or(0);
        if self.is_enough(num_tokens) {
            self.lengths.retain(|&length| length > num_tokens);
            self.read.push(ReadBeginning { num_tokens, caches });
        }
    }

    /// Returns the caches of the first `num_tokens`, if they have been read.
    fn beginning(&self, num_tokens: usize) -> Option<ReadBeginning> {
        let read = self.read.iter().find(|read| read.num_tokens >= num_tokens)?;
        let mut caches = read.caches.clone();
        let num_more = read.num_tokens - num_tokens;
        if num_more > 0 && can_trim_prompt_cache(&caches) {
            trim_prompt_cache(&mut caches, num_more);
        }
        let is_trimmed = caches.iter().all(|cache| cache.offset() == num_tokens);
        is_trimmed.then_some(ReadBeginning { num_tokens, caches })
    }

    /// Forgets the copies, once those who waited have theirs.
    pub(crate) fn forget_read(&mut self) {
        self.read.clear();
    }
}

/// A request that waits until another has read the beginning that both share.
pub(crate) struct Following {
    pub(crate) job: GenerateJob,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) began: Instant,
    /// A shorter beginning that it has already.
    pub(crate) has: Option<ReadBeginning>,
    /// Identifies the request that is read. A sender of its events would keep them open.
    leader: watch::Receiver<bool>,
    num_shared: usize,
}

/// The state of a request that waits for another.
pub(crate) enum Followed {
    Waits,
    /// The beginning has been read.
    Read(ReadBeginning),
    /// It will not be read.
    Lost,
}

impl Following {
    pub(crate) fn new(
        job: GenerateJob,
        loaded: Rc<Loaded>,
        began: Instant,
        has: Option<ReadBeginning>,
        leader: &Leader,
    ) -> Self {
        let Leader { stop, num_shared } = leader;
        Following { job, loaded, began, has, leader: stop.clone(), num_shared: *num_shared }
    }

    pub(crate) fn follows(&self, job: &GenerateJob) -> bool {
        self.leader.same_channel(&job.stop)
    }

    /// Returns its state if the prompt of its leader is being read or has been read.
    pub(crate) fn look_at(&self, awaited: &Awaited, is_reading: bool) -> Followed {
        match awaited.beginning(self.num_shared) {
            Some(read) => Followed::Read(read),
            None if is_reading && awaited.lengths.contains(&self.num_shared) => Followed::Waits,
            None => Followed::Lost,
        }
    }
}

/// The request whose prompt shares most with another.
pub(crate) struct Leader {
    /// The stop signal of that request, by which it is found.
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) num_shared: usize,
}

/// A request whose prompt is being read, or will be before others.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) job: &'a GenerateJob,
    pub(crate) loaded: &'a Rc<Loaded>,
    pub(crate) tokens: &'a [u32],
    pub(crate) num_read: usize,
}

impl Candidate<'_> {
    /// Returns how many tokens of its reading another request can use. The last token of either
    /// prompt does not count: its pass samples the first token of the answer.
    fn num_shared(&self, request: &GenerateRequest, tokens: &[u32], is_exact: bool) -> usize {
        if !may_share(&self.job.request, request) {
            return 0;
        }
        // The caches are copied before the answer begins, unless they can be trimmed afterwards.
        let most = self.tokens.len().saturating_sub(1 + usize::from(is_exact));
        let most = most.min(tokens.len().saturating_sub(1));
        let num_common = self.tokens.iter().zip(tokens).take_while(|(own, other)| own == other);
        let num_shared = num_common.count().min(most);
        if is_exact && num_shared <= self.num_read { 0 } else { num_shared }
    }
}

/// Whether two requests compute the same keys and values from the same tokens.
fn may_share(one: &GenerateRequest, other: &GenerateRequest) -> bool {
    let is_plain = |request: &GenerateRequest| {
        request.uses_prompt_cache()
            && request.kv_cache.snapkv.is_none()
            && request.prompt.opaque_prefix().is_none()
    };
    is_plain(one)
        && is_plain(other)
        && one.kv_cache == other.kv_cache
        && one.prefix_provenance() == other.prefix_provenance()
}

/// The request that shares most tokens with this one, if those are enough to wait for.
pub(crate) fn find_leader<'a>(
    candidates: impl Iterator<Item = Candidate<'a>>,
    job: &GenerateJob,
    loaded: &Rc<Loaded>,
    is_exact: bool,
) -> Option<Leader> {
    let tokens = &job.prompt.as_ref()?.1.tokens;
    let of_model = candidates.filter(|candidate| Rc::ptr_eq(candidate.loaded, loaded));
    let mut best: Option<Leader> = None;
    for candidate in of_model {
        let num_shared = candidate.num_shared(&job.request, tokens, is_exact);
        // If several share as much, the first of them is taken.
        if num_shared > best.as_ref().map_or(LEAST_SHARED_TOKENS - 1, |best| best.num_shared) {
            best = Some(Leader { stop: candidate.job.stop.clone(), num_shared });
        }
    }
    best
}
