//! Restores the longest beginning of a prompt that chunks hold.

use std::borrow::Cow;
use std::path::PathBuf;

use cairn_lm::LoadedModel;
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_prompt_cache::{ChunkKey, ChunkProblem, Namespace, PromptTokens, RestorePlan};

use super::blocking::Blocking;
use super::chunk_store::ChunkStore;
use super::namespace::needs;
use super::restore::{Restore, Source, Unusable};

/// The caches that were restored.
pub(super) struct Restored {
    pub(super) num_tokens: usize,
    /// The chunks that they came from, from the root on.
    pub(super) keys: Vec<ChunkKey>,
    pub(super) caches: Vec<LayerCache>,
    /// The reason why some chunks could not be used.
    pub(super) problem: Option<ChunkProblem>,
}

impl Restored {
    fn nothing(problem: Option<ChunkProblem>) -> Self {
        Restored { num_tokens: 0, keys: Vec::new(), caches: Vec::new(), problem }
    }
}

/// Which caches are restored from which chunks: equal sources give equal caches. The chunks' keys
/// name their namespace.
#[derive(Debug, PartialEq)]
pub(super) struct PrefixSource<'a> {
    keys: Cow<'a, [ChunkKey]>,
    num_tokens: usize,
    spec: Cow<'a, CacheSpec>,
}

impl PrefixSource<'_> {
    pub(super) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    pub(super) fn into_owned(self) -> PrefixSource<'static> {
        let PrefixSource { keys, num_tokens, spec } = self;
        let (keys, spec) = (Cow::Owned(keys.into_owned()), Cow::Owned(spec.into_owned()));
        PrefixSource { keys, num_tokens, spec }
    }
}

/// The longest beginning of a prompt while it is restored. Where a chunk cannot be used, the chunks
/// before it are tried; it is removed unless a later attempt may succeed.
pub(super) struct PrefixRestore {
    namespace: Namespace,
    /// None where such caches cannot be stored.
    spec: Option<CacheSpec>,
    tokens: PromptTokens,
    problem: Option<ChunkProblem>,
    attempt: Option<(Restore, usize)>,
}

impl PrefixRestore {
    /// Begins to restore the longest beginning of `tokens` in a namespace.
    pub(super) fn new(
        store: &ChunkStore,
        namespace: &Namespace,
        model: &LoadedModel,
        tokens: &PromptTokens,
    ) -> Self {
        let spec = store.spec(namespace, model, tokens);
        let (namespace, tokens) = (namespace.clone(), tokens.clone());
        let mut prefix = PrefixRestore { namespace, spec, tokens, problem: None, attempt: None };
        prefix.begin_attempt(store);
        prefix
    }

    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Which tokens of which chunks it restores; none where there are none.
    pub(super) fn source(&self) -> Option<PrefixSource<'_>> {
        let ((restore, num_tokens), spec) = (self.attempt.as_ref()?, self.spec.as_ref()?);
        let (keys, num_tokens) = (restore.keys().into(), *num_tokens);
        Some(PrefixSource { keys, num_tokens, spec: Cow::Borrowed(spec) })
    }

    /// The reason why some chunks could not be used so far.
    pub(super) fn problem(&self) -> Option<ChunkProblem> {
        self.problem.clone()
    }

    /// How many chunks are not in the caches yet.
    pub(super) fn num_left(&self) -> usize {
        self.attempt.as_ref().map_or(0, |(restore, _)| restore.num_left())
    }

    /// Adds the next chunk to the caches; without blocking only if one has been read.
    pub(super) fn advance(&mut self, store: &ChunkStore, blocking: Blocking) {
        let Some((restore, _)) = &mut self.attempt else { return };
        if let Err(unusable) = restore.advance(blocking) {
            self.try_shorter(store, unusable);
        }
    }

    /// Restores what is left, and returns all that was restored.
    pub(super) fn finish(mut self, store: &ChunkStore) -> Restored {
        while let Some((restore, num_tokens)) = self.attempt.take() {
            match restore.run() {
                Ok((caches, keys)) => {
                    let mut state = store.state.lock();
                    state.figures.num_restored_chunks += keys.len() as u64;
                    state.used(keys.clone());
                    return Restored { num_tokens, keys, caches, problem: self.problem };
                }
                Err(unusable) => self.try_shorter(store, unusable),
            }
        }
        Restored::nothing(self.problem)
    }

    /// Takes the caches that another restore of the same source has returned.
    pub(super) fn take(self, store: &ChunkStore, caches: Vec<LayerCache>) -> Restored {
        let (restore, num_tokens) = match self.attempt {
            Some(attempt) => attempt,
            None => return Restored::nothing(self.problem),
        };
        let mut state = store.state.lock();
        state.figures.num_restored_chunks += restore.num_added() as u64;
        let keys = restore.keys().to_vec();
        state.used(keys.clone());
        Restored { num_tokens, keys, caches, problem: self.problem }
    }

    fn begin_attempt(&mut self, store: &ChunkStore) {
        self.attempt = None;
        let Some((folder, sources, num_tokens)) = self.plan(store) else { return };
        let Some(spec) = &self.spec else { return };
        match Restore::new(&folder, sources, spec, num_tokens) {
            Ok(restore) => self.attempt = Some((restore, num_tokens)),
            Err(unusable) => self.try_shorter(store, unusable),
        }
    }

    /// The folder, the chunks to restore from and how many tokens they hold; none where there are
    /// none.
    fn plan(&self, store: &ChunkStore) -> Option<(PathBuf, Vec<Source>, usize)> {
        let spec = self.spec.as_ref()?;
        let state = store.state.lock();
        let RestorePlan { chunks, num_tokens } =
            state.index.restore_plan(&self.namespace, &self.tokens, needs(spec));
        let sources = chunks.into_iter().map(|record| state.source(record)).collect();
        (num_tokens > 0).then(|| (state.folder.clone(), sources, num_tokens))
    }

    fn try_shorter(&mut self, store: &ChunkStore, unusable: Unusable) {
        let Unusable { key, start, error } = unusable;
        tracing::warn!(chunk = %key, %error, "a stored prompt cache cannot be used");
        match error.is_lasting() {
            true => store.state.lock().forget(&key, error.loss()),
            false => self.tokens.truncate(start),
        }
        self.problem = Some(error.problem());
        self.begin_attempt(store);
    }
}
