//! Tests of the index by example: planning, lookup, eviction and references. A chunk takes one byte
//! per token here.

use std::collections::BTreeSet;

use super::search::{Matched, num_restorable};
use super::*;
use crate::{ChunkKind, KvFormat, Loss, Namespace, Owner, PromptTokens};
use ChunkKind::{Assistant, System, User};

mod eviction;
mod lookups;
mod records;
mod references;

fn namespace() -> Namespace {
    Namespace::computed("0123456789abcdef", KvFormat::Plain)
}

/// The needs of a model whose caches can be restored after every token.
const ANYWHERE: RestoreNeeds = RestoreNeeds { window: None, needs_state: false };

fn index(disk_bytes: u64) -> ChunkIndex {
    let budgets = Budgets { disk_bytes, memory_bytes: u64::MAX };
    ChunkIndex::new(budgets, Vec::new(), Vec::new()).0
}

fn set_disk_budget(index: &mut ChunkIndex, disk_bytes: u64) {
    index.set_budgets(Budgets { disk_bytes, ..index.budgets() });
}

fn set_memory_budget(index: &mut ChunkIndex, memory_bytes: u64) {
    index.set_budgets(Budgets { memory_bytes, ..index.budgets() });
}

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn prompt(ids: &[u32]) -> PromptTokens {
    PromptTokens::known(ids)
}

fn file_of(num_bytes: u64) -> ChunkFile {
    ChunkFile { num_bytes, hash: "0".repeat(64).into() }
}

/// The record of a planned chunk on disk.
fn record(chunk: PlannedChunk, at_ms: i64) -> ChunkRecord {
    ChunkRecord {
        key: chunk.key,
        parent: chunk.parent,
        namespace: namespace(),
        kind: chunk.kind,
        start: chunk.start,
        held_from: chunk.start,
        has_state: false,
        file: Some(file_of(chunk.tokens.len() as u64)),
        tokens: chunk.tokens,
        hits: 0,
        created_at_ms: at_ms,
        last_used_at_ms: at_ms,
    }
}

fn plan(
    index: &ChunkIndex,
    tokens: &[u32],
    boundaries: &[(usize, ChunkKind)],
) -> Vec<PlannedChunk> {
    index.write_plan(&namespace(), &prompt(tokens), boundaries, &[], ANYWHERE)
}

fn add(index: &mut ChunkIndex, record: ChunkRecord) {
    assert!(index.adopt(record));
}

/// Adds the chunks of a turn, used at `at_ms`; returns the last chunk's key.
fn save(
    index: &mut ChunkIndex,
    tokens: &[u32],
    boundaries: &[(usize, ChunkKind)],
    at_ms: i64,
) -> ChunkKey {
    for chunk in plan(index, tokens, boundaries) {
        add(index, record(chunk, at_ms));
    }
    *index.keys_of(&namespace(), &prompt(tokens)).last().unwrap()
}

fn found<'a>(index: &'a ChunkIndex, tokens: &[u32]) -> Vec<Matched<'a>> {
    index.restorable(&namespace(), &prompt(tokens), ANYWHERE).path
}

fn lengths(index: &ChunkIndex, tokens: &[u32]) -> Vec<usize> {
    found(index, tokens).iter().map(|part| part.num_tokens).collect()
}

fn owner(id: &str) -> Owner {
    Owner::Conversation(id.to_owned())
}

fn reference(index: &mut ChunkIndex, id: &str, key: ChunkKey, is_pinned: bool) -> Vec<CacheChange> {
    index.set_ref(CacheRef {
        name: owner(id).into(),
        namespace: namespace(),
        model_name: "m".to_owned(),
        target: Some(key),
        num_tokens: 0,
        is_pinned,
        loss: None,
    })
}

/// The references among the changes, and the names of those that are gone.
fn changed_refs(changes: &[CacheChange]) -> (Vec<&CacheRef>, Vec<&RefName>) {
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            CacheChange::RefSet(cache_ref) => set.push(cache_ref),
            CacheChange::RefRemoved(name) => removed.push(name),
            _ => {}
        }
    }
    (set, removed)
}

fn removed(changes: Vec<CacheChange>) -> Vec<ChunkRecord> {
    let chunks = changes.into_iter().filter_map(|change| match change {
        CacheChange::Removed { chunks, .. } => Some(chunks),
        _ => None,
    });
    chunks.flatten().collect()
}

/// When the removed chunks were used, and where they started.
fn starts(changes: Vec<CacheChange>) -> Vec<(i64, usize)> {
    let of = |record: ChunkRecord| (record.last_used_at_ms, record.start);
    removed(changes).into_iter().map(of).collect()
}

fn num_removed_bytes(changes: Vec<CacheChange>) -> u64 {
    removed(changes).iter().map(ChunkRecord::num_file_bytes).sum()
}
