//! Which chunks are evicted when a budget is exceeded, and which are removed on request.
//!
//! Only leaves are evicted, so no chunk loses its ancestors, and pinned chunks stay: those of every
//! branch of a pinned conversation. An answer goes
//! before a question and a question before a system prompt, as long as there are at least as many
//! leaves of the one kind as of the next; within a kind the least recently used goes first. (The
//! balance is mlx-lm's LRUPromptCache: without it the answer of a minute ago would go before the
//! question of last year.)

use std::collections::HashSet;

use super::{Chunk, ChunkIndex};
use crate::{
    CacheChange, ChunkKey, ChunkKind, ChunkRecord, LossReason, Owner, PromptCacheError, RefName,
};

/// What enforcing the memory budget changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct MemoryChanges {
    /// Chunks whose contents left memory; they stay on disk.
    pub dropped: Vec<ChunkKey>,
    /// Chunks that were only in memory, and the references to them.
    pub changes: Vec<CacheChange>,
}

impl ChunkIndex {
    /// Evicts chunks until a file of `new_bytes` more fits the disk budget, but neither `keep` nor
    /// its ancestors. If it can never fit, evicts nothing and fails with
    /// [`PromptCacheError::NoRoom`].
    pub fn make_room_on_disk(
        &mut self,
        new_bytes: u64,
        keep: Option<&ChunkKey>,
        now_ms: i64,
    ) -> Result<Vec<CacheChange>, PromptCacheError> {
        let budget = self.budgets.disk_bytes;
        let surplus = (self.disk_bytes + new_bytes).saturating_sub(budget);
        // Checked first, so that nothing is evicted for a chunk that cannot be stored.
        if new_bytes > budget || (surplus > 0 && !self.can_free(surplus, keep)) {
            return Err(PromptCacheError::NoRoom);
        }
        Ok(self.free_on_disk(surplus, keep, now_ms))
    }

    /// Whether `bytes` more fit the disk budget, perhaps after an eviction.
    pub fn has_room_on_disk(&self, bytes: u64) -> bool {
        let surplus =
            (self.disk_bytes.saturating_add(bytes)).saturating_sub(self.budgets.disk_bytes);
        bytes <= self.budgets.disk_bytes && (surplus == 0 || self.can_free(surplus, None))
    }

    /// Evicts chunks until those on disk are within the budget, as far as pinned ones allow.
    pub fn enforce_disk_budget(&mut self, now_ms: i64) -> Vec<CacheChange> {
        let surplus = self.disk_bytes.saturating_sub(self.budgets.disk_bytes);
        self.free_on_disk(surplus, None, now_ms)
    }

    fn free_on_disk(
        &mut self,
        surplus: u64,
        keep: Option<&ChunkKey>,
        now_ms: i64,
    ) -> Vec<CacheChange> {
        let (mut freed, mut removed) = (0, Vec::new());
        while freed < surplus {
            let may_go = |chunk: &Chunk| {
                (chunk.is_on_disk() || self.blocks_eviction(chunk)) && Some(&chunk.key()) != keep
            };
            let Some(leaf) = self.next_leaf(may_go) else { break };
            let Some(record) = self.remove_leaf(&leaf, &LossReason::DiskBudget, now_ms) else {
                break;
            };
            freed += record.num_file_bytes();
            removed.push(record);
        }
        self.changes(removed, LossReason::DiskBudget)
    }

    /// Whether a chunk that could not be written has ancestors on disk, which cannot go before it.
    fn blocks_eviction(&self, chunk: &Chunk) -> bool {
        !chunk.is_on_disk()
            && !chunk.is_pending
            && self.path(&chunk.key()).first().is_some_and(|first| first.is_on_disk())
    }

    /// Whether evicting leaf by leaf can free `surplus` bytes on disk.
    fn can_free(&self, surplus: u64, keep: Option<&ChunkKey>) -> bool {
        let mut protected: HashSet<ChunkKey> = HashSet::new();
        let pinned = self.refs.values().filter(|cache_ref| self.protects(cache_ref));
        let pinned = pinned.filter_map(|cache_ref| cache_ref.target);
        // A pending chunk is not on disk, so it is in memory.
        let in_memory = self.in_memory.iter().filter_map(|(.., key)| self.get(key));
        let pending = in_memory.filter(|chunk| chunk.is_pending).map(Chunk::key);
        for key in pinned.chain(pending).chain(keep.copied()) {
            let mut next = Some(key);
            while let Some(chunk) =
                next.filter(|key| protected.insert(*key)).and_then(|key| self.get(&key))
            {
                next = chunk.record.parent;
            }
        }
        let protected = protected.iter().filter_map(|key| self.get(key));
        let protected_bytes: u64 = protected.map(|chunk| chunk.record.num_file_bytes()).sum();
        self.disk_bytes - protected_bytes >= surplus
    }

    /// Evicts until the memory budget holds, as far as pending chunks allow: first contents that are
    /// also on disk, then chunks that are only in memory.
    pub fn enforce_memory_budget(&mut self, now_ms: i64) -> MemoryChanges {
        let (mut dropped, mut removed) = (Vec::new(), Vec::new());
        while self.memory_bytes() > self.budgets.memory_bytes {
            let mut in_memory = self.in_memory.iter().map(|(.., key)| *key);
            if let Some(key) = in_memory.find(|key| self.is_on_disk(key)) {
                self.drop_contents(&key);
                dropped.push(key);
                continue;
            }
            let may_go = |chunk: &Chunk| !chunk.is_pending && chunk.is_in_memory();
            let Some(leaf) = self.next_leaf(may_go) else { break };
            removed.extend(self.remove_leaf(&leaf, &LossReason::MemoryBudget, now_ms));
        }
        MemoryChanges { dropped, changes: self.changes(removed, LossReason::MemoryBudget) }
    }

    /// Says which chunks' keys and values resident conversations hold. Drops the contents of those
    /// that are on disk too, and returns their keys.
    pub fn set_resident(&mut self, resident: HashSet<ChunkKey>) -> Vec<ChunkKey> {
        self.resident = resident;
        let chunks = self.resident.iter().filter_map(|key| self.get(key));
        let on_both = chunks.filter(|chunk| chunk.is_on_disk() && chunk.is_in_memory());
        let keys: Vec<ChunkKey> = on_both.map(Chunk::key).collect();
        keys.iter().for_each(|key| self.drop_contents(key));
        keys
    }

    /// Drops the contents of all chunks that are on disk too; returns their keys.
    pub fn demote(&mut self) -> Vec<ChunkKey> {
        let in_memory = self.in_memory.iter().map(|(.., key)| *key);
        let keys: Vec<ChunkKey> = in_memory.filter(|key| self.is_on_disk(key)).collect();
        keys.iter().for_each(|key| self.drop_contents(key));
        keys
    }

    pub(super) fn drop_contents(&mut self, key: &ChunkKey) {
        if let Some(chunk) = self.chunks.get_mut(key)
            && let Some(bytes) = chunk.memory_bytes.take()
        {
            self.memory_bytes -= bytes;
            self.in_memory.remove(&chunk.rank());
        }
    }

    /// The leaf to evict next among those that `may_go` allows.
    fn next_leaf(&self, may_go: impl Fn(&Chunk) -> bool) -> Option<ChunkKey> {
        let of_kind = |kind: ChunkKind| {
            let leaves = self.leaves[kind as usize].iter().filter_map(|(.., key)| self.get(key));
            leaves
                .map(|leaf| (leaf, leaf.key()))
                .find(|(leaf, key)| may_go(leaf) && !self.is_pinned(key))
        };
        let order = [ChunkKind::Assistant, ChunkKind::User, ChunkKind::System];
        let count = |kind: ChunkKind| self.leaves[kind as usize].len();
        let balanced =
            order.windows(2).filter(|pair| count(pair[0]) >= count(pair[1])).map(|pair| pair[0]);
        let mut kinds = balanced.chain([ChunkKind::System]).chain(order);
        kinds.find_map(of_kind).map(|(_, key)| key)
    }

    /// Removes a chunk and its descendants.
    pub fn remove(&mut self, key: &ChunkKey, reason: LossReason, now_ms: i64) -> Vec<CacheChange> {
        let removed = self.remove_subtree(key, &reason, now_ms);
        self.changes(removed, reason)
    }

    /// Removes a chunk whose record is wrong, and those that continue it. The references to them
    /// wait until the files have been looked at ([`ChunkIndex::resolve_refs`]).
    pub fn take_out(&mut self, key: &ChunkKey, now_ms: i64) -> Vec<ChunkRecord> {
        self.set_aside_refs_through(key);
        self.remove_subtree(key, &LossReason::RecordDamaged, now_ms)
    }

    /// Removes every chunk that only `owner` refers to, now or through stale references; the owner's
    /// reference falls back to what others share.
    pub fn purge(&mut self, owner: &Owner, now_ms: i64) -> Vec<CacheChange> {
        let mut removed = Vec::new();
        let stale = self.stale_refs_of(owner);
        for name in stale.iter().chain([&RefName::from(owner.clone())]) {
            let Some(key) = self.refs.get(name).and_then(|cache_ref| cache_ref.target) else {
                continue;
            };
            let mut path = self.path(&key).into_iter().map(Chunk::key);
            if let Some(first) = path.find(|key| self.is_used_only_by(owner, key)) {
                removed.extend(self.remove_subtree(&first, &LossReason::Deleted, now_ms));
            }
        }
        stale.iter().for_each(|stale| self.remove_ref(stale));
        self.changes(removed, LossReason::Deleted)
    }

    /// Removes every chunk that is not on disk.
    pub fn remove_unwritten(&mut self, reason: LossReason, now_ms: i64) -> Vec<CacheChange> {
        let unwritten = self.chunks.values().filter(|chunk| !chunk.is_on_disk()).map(Chunk::key);
        let mut removed = Vec::new();
        // The descendants of an unwritten chunk are not on disk either.
        for key in unwritten.collect::<Vec<_>>() {
            removed.extend(self.remove_subtree(&key, &reason, now_ms));
        }
        self.changes(removed, reason)
    }

    /// Removes every chunk that no pinned reference needs.
    pub fn clear(&mut self, now_ms: i64) -> Vec<CacheChange> {
        let mut removed = Vec::new();
        while let Some(leaf) = self.next_leaf(|_| true) {
            removed.extend(self.remove_leaf(&leaf, &LossReason::Cleared, now_ms));
        }
        self.changes(removed, LossReason::Cleared)
    }

    fn remove_subtree(
        &mut self,
        key: &ChunkKey,
        reason: &LossReason,
        now_ms: i64,
    ) -> Vec<ChunkRecord> {
        let mut pending = vec![*key];
        let mut order = Vec::new();
        while let Some(key) = pending.pop() {
            pending.extend(self.children_of(&key).map(Chunk::key));
            order.push(key);
        }
        // Leaves first, so that references fall back step by step to the chunk that remains.
        order.iter().rev().filter_map(|key| self.remove_leaf(key, reason, now_ms)).collect()
    }

    fn remove_leaf(
        &mut self,
        key: &ChunkKey,
        reason: &LossReason,
        now_ms: i64,
    ) -> Option<ChunkRecord> {
        self.drop_contents(key);
        let chunk = self.chunks.remove(key)?;
        let rank = chunk.rank();
        let record = chunk.record;
        self.disk_bytes -= record.num_file_bytes();
        self.leaves[record.kind as usize].remove(&rank);
        let has_become_leaf = self.remove_child(&record);
        let parent = record.parent.filter(|_| has_become_leaf).and_then(|key| self.get(&key));
        if let Some((kind, rank)) = parent.map(|parent| (parent.record.kind, parent.rank())) {
            self.leaves[kind as usize].insert(rank);
        }
        // The chunk is a leaf, so the references through it end exactly at it.
        self.move_refs_back(&record, (reason, now_ms));
        Some(record)
    }
}
