//! What a purge leaves of a sequence that has finished and is not saved yet.

use std::rc::Rc;
use std::sync::Arc;

use cairn_lm::cache::KvCache;
use cairn_prompt_cache::Owner;
use mlx_rs::Array;

use super::*;
use crate::model_pool::Loaded;
use crate::scripted_model::worker_with;

/// Three chunks.
pub(super) const NUM_TOKENS: usize = 600;

fn conversation(id: &str) -> Owner {
    Owner::Conversation(id.to_owned())
}

/// An empty cache in a folder.
pub(super) fn stored_cache(folder: &std::path::Path) -> StoredCache {
    let options = CacheOptions {
        folder: folder.to_owned(),
        old_folders: Vec::new(),
        disk_budget_bytes: 1 << 30,
        memory_budget_bytes: 1 << 30,
        chunks: Vec::new(),
        refs: Vec::new(),
        cleanup_lock: None,
    };
    let (events, _) = mpsc::unbounded_channel();
    let (status, _) = watch::channel(EngineStatus::default());
    StoredCache::open(Some(options), events, status)
}

/// Caches of [`NUM_TOKENS`] tokens in one layer.
pub(super) fn caches() -> Vec<LayerCache> {
    let rows = Array::zeros::<f32>(&[1, 1, NUM_TOKENS as i32, 4]).unwrap();
    let cache = KvCache::from_parts(std::slice::from_ref(&rows), std::slice::from_ref(&rows));
    vec![LayerCache::Kv(cache.unwrap())]
}

/// What a sequence has computed whose tokens are all `token`.
fn computed(loaded: &Loaded, token: u32, permit: Option<Arc<SavePermit>>) -> Computed<'_> {
    Computed {
        model: &loaded.model,
        model_name: &loaded.name,
        tokens: vec![token; NUM_TOKENS],
        boundaries: Vec::new(),
        checkpoints: Vec::new(),
        caches: caches(),
        kv_format: KvFormat::Plain,
        prefix_provenance: &Provenance::Computed,
        num_opaque: 0,
        permit,
        is_draft: false,
    }
}

/// How much of a prompt of this token is found.
fn num_found(cache: &mut PromptCache, loaded: &Loaded, token: u32) -> usize {
    let prompt = Prompt {
        tokens: vec![token; NUM_TOKENS + 1],
        new_from: 0,
        last_from: 0,
        boundaries: Vec::new(),
        roles: Vec::new(),
        breakpoints: Vec::new(),
        text: String::new(),
    };
    let query = Query {
        prompt: &prompt,
        limit: NUM_TOKENS,
        model_name: &loaded.name,
        kv_format: KvFormat::Plain,
        prefix_provenance: &Provenance::Computed,
        num_opaque: 0,
        owner: None,
        only_looks: true,
        is_draft: false,
    };
    cache.num_reusable(&loaded.model, &query).0
}

#[test]
fn what_has_just_finished_is_purged_with_the_rest() {
    let worker = worker_with(r#"{"script": [97]}"#);
    let loaded: Rc<Loaded> = worker.models.get(None).unwrap();
    // The tokens of each sequence.
    let (purged, other, pinned, unowned) = (1, 2, 3, 4);
    let check = |act: fn(&CacheHandle), expected: &[u32]| {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = PromptCache::new(stored_cache(folder.path()));
        let handle = CacheHandle::new(cache.store.as_ref().unwrap().state.clone());
        for (token, id) in [(purged, "purged"), (other, "other"), (pinned, "pinned")] {
            let permit = handle.permit_for(Some(&conversation(id)));
            cache.save(computed(&loaded, token, Some(permit)));
        }
        cache.save(computed(&loaded, unowned, Some(handle.permit_for(None))));
        handle.pin(&conversation("pinned"), true);
        // Nothing runs any more, and nothing is cut yet.
        assert_eq!(handle.view(0).num_chunks, 0);
        act(&handle);
        for token in [purged, other, pinned, unowned] {
            let num_left = if expected.contains(&token) { NUM_TOKENS } else { 0 };
            assert_eq!(num_found(&mut cache, &loaded, token), num_left, "in memory, {token}");
        }
        cache.drop_residents();
        for token in [purged, other, pinned, unowned] {
            let num_left = if expected.contains(&token) { NUM_TOKENS } else { 0 };
            assert_eq!(num_found(&mut cache, &loaded, token), num_left, "in chunks, {token}");
        }
        cache.close();
    };
    check(|_| {}, &[purged, other, pinned, unowned]);
    let purge = |handle: &CacheHandle| {
        handle.purge(&conversation("purged"));
    };
    check(purge, &[other, pinned, unowned]);
    let clear = |handle: &CacheHandle| {
        handle.clear();
    };
    check(clear, &[pinned]);
}
