//! Files of prompt caches: what is imported becomes chunks, and chunks become what is exported.

use cairn_lm::LoadedModel;
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_prompt_cache::{CacheRef, ChunkKind, Namespace, Owner, PromptCacheError, PromptTokens};
use tokio::sync::oneshot;

use super::PromptCache;
use super::chunk_store::{ChunkStore, NewRef};
use super::namespace::needs;
use super::restore::{Restore, Source};
use super::saving::{PendingSave, ToSave};
use super::view::CacheHandle;

/// The caches behind an owner's reference, to be written to a file.
pub(crate) struct Exported {
    pub(crate) cache_ref: CacheRef,
    /// The tokens in `caches`.
    pub(crate) tokens: Vec<u32>,
    pub(crate) caches: Vec<LayerCache>,
}

impl PromptCache {
    /// Adds the caches of a file as chunks, pinned for `owner`. Fails with a reason if not all of
    /// them reach the disk.
    pub(crate) fn import(
        &mut self,
        namespace: &Namespace,
        model_name: &str,
        tokens: &PromptTokens,
        caches: &[LayerCache],
        owner: &Owner,
    ) -> Result<(), String> {
        let store = self.store.as_ref().ok_or("this engine has no prompt-cache folder")?;
        if CacheSpec::of(caches).and_then(|spec| spec.layout()).is_none() {
            return Err("its kind of cache can only be continued from the file, as `cairn generate --prompt-cache-file` does".to_owned());
        }
        let num_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
        if !store.state.lock().index.has_room_on_disk(num_bytes as u64) {
            return Err(PromptCacheError::NoRoom.to_string());
        }
        let to_save = ToSave {
            namespace,
            tokens,
            boundaries: &[(tokens.len(), ChunkKind::System)],
            checkpoints: &[],
            caches,
            new_ref: Some(NewRef {
                owner: owner.clone(),
                model_name: model_name.to_owned(),
                is_pinned: true,
                is_draft: false,
            }),
            permit: None,
        };
        let saved = PendingSave::new(store, to_save).and_then(|save| save.finish(store));
        // Wait until the chunks are written: a disk budget that is too small shows only then.
        let (reply, answer) = oneshot::channel();
        store.writer.flush(reply);
        let _ = answer.blocking_recv();
        let saved = saved.map_err(|error| error.to_string());
        saved.and_then(|()| check_is_on_disk(store, owner, tokens.len())).inspect_err(|_| {
            CacheHandle::new(store.state.clone()).release(owner);
        })
    }

    /// Restores the caches behind an owner's reference. Fails with a reason.
    pub(crate) fn export(
        &mut self,
        owner: &Owner,
        model: Option<&LoadedModel>,
    ) -> Result<Exported, String> {
        self.finish_saving();
        let store = self.store.as_ref().ok_or("this engine has no prompt-cache folder")?;
        let (cache_ref, target) = {
            let state = store.state.lock();
            let cache_ref = state.index.ref_of(owner).cloned();
            let target = cache_ref.as_ref().and_then(|cache_ref| cache_ref.target);
            cache_ref.zip(target).ok_or("nothing of it is saved")?
        };
        let spec = store
            .spec_of_ref(&cache_ref, &target, model)
            .ok_or_else(|| format!("load its model first ({})", cache_ref.model_name))?;
        // After an eviction the reference may end at a position that the caches cannot be restored
        // at.
        let (folder, sources, num_tokens) = {
            let state = store.state.lock();
            let plan = state.index.restore_plan_to(&target, needs(&spec));
            let sources = plan.chunks.into_iter().map(|record| state.source(record));
            (state.folder.clone(), sources.collect::<Vec<Source>>(), plan.num_tokens)
        };
        if num_tokens == 0 {
            return Err("the part that is still saved is too short to continue from".to_owned());
        }
        let ids = sources.iter().flat_map(|source| source.record.tokens.stored_ids());
        let tokens = ids.take(num_tokens).collect();
        let restored = Restore::new(&folder, sources, &spec, num_tokens).and_then(Restore::run);
        let (caches, _) = restored.map_err(|unusable| unusable.error.to_string())?;
        Ok(Exported { cache_ref, tokens, caches })
    }
}

/// Fails with a reason unless the first `num_tokens` tokens of an owner are on disk.
fn check_is_on_disk(store: &ChunkStore, owner: &Owner, num_tokens: usize) -> Result<(), String> {
    let state = store.state.lock();
    let cache_ref = state.index.ref_of(owner);
    let whole = cache_ref.filter(|cache_ref| cache_ref.num_tokens == num_tokens);
    let target = whole.and_then(|cache_ref| cache_ref.target);
    match (target.is_some_and(|key| state.index.is_on_disk(&key)), &state.problem) {
        (true, _) => Ok(()),
        (false, Some(problem)) => Err(problem.clone()),
        (false, None) => Err(PromptCacheError::NoRoom.to_string()),
    }
}
