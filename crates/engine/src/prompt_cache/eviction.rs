//! Which chunks are evicted when a budget is exceeded, and which are removed on request.
//!
//! Only leaves are evicted, so no chunk loses its ancestors, and pinned chunks stay. An answer goes
//! before a question and a question before a system prompt, as long as there are at least as many
//! leaves of the one kind as of the next; within a kind the least recently used goes first. (The
//! balance is mlx-lm's LRUPromptCache: without it the answer of a minute ago would go before the
//! question of last year.)

use std::collections::HashSet;

use super::index::{ChunkIndex, Entry, child, rank};
use crate::records::{ChunkKind, ChunkRecord};

/// The reason why a chunk was not written.
pub(super) const NO_ROOM: &str = "the disk limit leaves no room for it beside pinned chats and starting points: raise it in the settings";
/// Reasons that the window shows after "re-read N tokens:".
pub(super) const DISK_BUDGET: &str = "evicted to stay within the disk limit";
pub(super) const MEMORY_BUDGET: &str =
    "evicted from memory to stay within the memory limit, and it was not on disk";
pub(super) const PURGED: &str = "deleted by hand";
pub(super) const CLEARED: &str = "the saved context was deleted";

impl ChunkIndex {
    /// Evicts chunks until a file of `new_bytes` more fits the disk budget, but neither `keep` nor
    /// its ancestors. If it can never fit, evicts nothing and returns none.
    pub(super) fn make_room_on_disk(
        &mut self,
        new_bytes: u64,
        keep: Option<&str>,
        at_ms: i64,
    ) -> Option<Vec<ChunkRecord>> {
        let surplus = (self.disk.bytes + new_bytes).saturating_sub(self.disk.budget);
        // Checked first, so that nothing is evicted for a chunk that cannot be stored.
        if new_bytes > self.disk.budget || (surplus > 0 && !self.can_free(surplus, keep)) {
            return None;
        }
        Some(self.free_on_disk(surplus, keep, at_ms))
    }

    /// Whether `bytes` more fit the disk budget, perhaps after an eviction.
    pub(super) fn has_room_on_disk(&self, bytes: u64) -> bool {
        let surplus = (self.disk.bytes + bytes).saturating_sub(self.disk.budget);
        bytes <= self.disk.budget && (surplus == 0 || self.can_free(surplus, None))
    }

    /// Evicts chunks until those on disk are within the budget, as far as pinned ones allow.
    pub(super) fn enforce_disk_budget(&mut self, at_ms: i64) -> Vec<ChunkRecord> {
        self.free_on_disk(self.disk.bytes.saturating_sub(self.disk.budget), None, at_ms)
    }

    fn free_on_disk(&mut self, surplus: u64, keep: Option<&str>, at_ms: i64) -> Vec<ChunkRecord> {
        let (mut freed, mut removed) = (0, Vec::new());
        while freed < surplus {
            let may_go = |entry: &Entry| entry.is_on_disk || self.blocks_eviction(entry);
            let Some(leaf) =
                self.next_leaf(|entry| may_go(entry) && Some(entry.record.key.as_str()) != keep)
            else {
                break;
            };
            let is_on_disk = self.is_on_disk(&leaf);
            let Some(record) = self.remove(&leaf, DISK_BUDGET, at_ms) else { break };
            freed += if is_on_disk { record.bytes } else { 0 };
            removed.push(record);
        }
        removed
    }

    /// Whether a chunk that could not be written has ancestors on disk, which cannot go before it.
    fn blocks_eviction(&self, entry: &Entry) -> bool {
        !entry.is_on_disk
            && !entry.is_pending
            && self.path(&entry.record.key).first().is_some_and(|first| first.is_on_disk)
    }

    /// Whether evicting leaf by leaf can free `surplus` bytes on disk.
    fn can_free(&self, surplus: u64, keep: Option<&str>) -> bool {
        let mut protected: HashSet<&str> = HashSet::new();
        let pinned = self
            .refs
            .values()
            .filter(|cache_ref| cache_ref.is_pinned)
            .filter_map(|cache_ref| cache_ref.chunk_key.as_deref());
        // A pending chunk is not on disk, so it is in memory.
        let in_memory = self.in_memory.iter().filter_map(|(.., key)| self.get(key));
        let pending =
            in_memory.filter(|entry| entry.is_pending).map(|entry| entry.record.key.as_str());
        for key in pinned.chain(pending).chain(keep) {
            let mut next = Some(key);
            while let Some(entry) =
                next.filter(|key| protected.insert(key)).and_then(|key| self.get(key))
            {
                next = entry.record.parent_key.as_deref();
            }
        }
        let protected_bytes: u64 = protected
            .iter()
            .filter_map(|key| self.get(key))
            .filter(|entry| entry.is_on_disk)
            .map(|entry| entry.record.bytes)
            .sum();
        self.disk.bytes - protected_bytes >= surplus
    }

    /// Evicts until the memory budget holds: first contents that are also on disk, then chunks that
    /// are only in memory. Returns the keys of dropped contents and the removed chunks.
    pub(super) fn make_room_in_memory(&mut self, at_ms: i64) -> (Vec<String>, Vec<ChunkRecord>) {
        let (mut dropped, mut removed) = (Vec::new(), Vec::new());
        while self.bytes_in_memory() > self.memory.budget {
            let also_on_disk = self
                .in_memory
                .iter()
                .map(|(.., key)| key)
                .find(|key| self.is_on_disk(key))
                .cloned();
            if let Some(key) = also_on_disk {
                self.drop_contents(&key);
                dropped.push(key);
                continue;
            }
            let Some(leaf) =
                self.next_leaf(|entry| !entry.is_pending && entry.memory_bytes.is_some())
            else {
                break;
            };
            removed.extend(self.remove(&leaf, MEMORY_BUDGET, at_ms));
        }
        (dropped, removed)
    }

    /// Drops the contents of all chunks that are on disk too; returns their keys.
    pub(super) fn demote(&mut self) -> Vec<String> {
        let keys: Vec<String> = self
            .in_memory
            .iter()
            .map(|(.., key)| key.clone())
            .filter(|key| self.is_on_disk(key))
            .collect();
        keys.iter().for_each(|key| self.drop_contents(key));
        keys
    }

    fn drop_contents(&mut self, key: &str) {
        if let Some(entry) = self.entries.get_mut(key)
            && let Some(bytes) = entry.memory_bytes.take()
        {
            self.memory.bytes -= bytes;
            self.in_memory.remove(&rank(&entry.record));
        }
    }

    /// The leaf to evict next among those that `may_go` allows.
    fn next_leaf(&self, may_go: impl Fn(&Entry) -> bool) -> Option<String> {
        let of_kind = |kind: ChunkKind| {
            let keys = self.leaves[kind as usize].iter().map(|(.., key)| key);
            keys.filter_map(|key| self.get(key))
                .find(|entry| may_go(entry) && !self.is_pinned(&entry.record.key))
        };
        let order = [ChunkKind::Assistant, ChunkKind::User, ChunkKind::System];
        let count = |kind: ChunkKind| self.leaves[kind as usize].len();
        let balanced =
            order.windows(2).filter(|pair| count(pair[0]) >= count(pair[1])).map(|pair| pair[0]);
        let leaf =
            balanced.chain(order.into_iter().rev().take(1)).chain(order).find_map(of_kind)?;
        Some(leaf.record.key.clone())
    }

    /// Removes a chunk and its descendants, and returns them.
    pub(super) fn remove_with_descendants(
        &mut self,
        key: &str,
        reason: &str,
        at_ms: i64,
    ) -> Vec<ChunkRecord> {
        let mut pending = vec![key.to_owned()];
        let mut order = Vec::new();
        while let Some(key) = pending.pop() {
            pending
                .extend(self.children.get(&key).into_iter().flatten().map(|(_, key)| key.clone()));
            order.push(key);
        }
        // Leaves first, so that references fall back step by step to the chunk that remains.
        order.iter().rev().filter_map(|key| self.remove(key, reason, at_ms)).collect()
    }

    /// Removes every chunk that only `owner` refers to, now or through stale references; the
    /// owner's reference falls back to what others share.
    pub(super) fn purge(&mut self, owner: &str, at_ms: i64) -> Vec<ChunkRecord> {
        let mut removed = Vec::new();
        let stale = self.stale_refs_of(owner);
        for name in stale.iter().map(String::as_str).chain([owner]) {
            let Some(key) =
                self.refs.get(name).and_then(|cache_ref| cache_ref.chunk_key.as_deref())
            else {
                continue;
            };
            let mut path = self.path(key).into_iter().map(|entry| entry.record.key.as_str());
            if let Some(first) =
                path.find(|key| self.is_used_only_by(owner, key)).map(str::to_owned)
            {
                removed.extend(self.remove_with_descendants(&first, PURGED, at_ms));
            }
        }
        stale.iter().for_each(|stale| self.remove_ref(stale));
        removed
    }

    /// Removes every chunk that is not on disk.
    pub(super) fn remove_unwritten(&mut self, reason: &str, at_ms: i64) -> Vec<ChunkRecord> {
        let unwritten = self
            .entries
            .values()
            .filter(|entry| !entry.is_on_disk)
            .map(|entry| entry.record.key.clone());
        // The descendants of an unwritten chunk are not on disk either.
        unwritten
            .collect::<Vec<_>>()
            .iter()
            .flat_map(|key| self.remove_with_descendants(key, reason, at_ms))
            .collect()
    }

    /// Removes every chunk that no pinned reference needs.
    pub(super) fn clear(&mut self, at_ms: i64) -> Vec<ChunkRecord> {
        let mut removed = Vec::new();
        while let Some(leaf) = self.next_leaf(|_| true) {
            removed.extend(self.remove(&leaf, CLEARED, at_ms));
        }
        removed
    }

    fn remove(&mut self, key: &str, reason: &str, at_ms: i64) -> Option<ChunkRecord> {
        self.drop_contents(key);
        let entry = self.entries.remove(key)?;
        let record = entry.record;
        if entry.is_on_disk {
            self.disk.bytes -= record.bytes;
        }
        self.leaves[record.kind as usize].remove(&rank(&record));
        let parent = self.parent_of(&record);
        if let Some(siblings) = self.children.get_mut(&parent) {
            siblings.remove(&child(&record));
            if siblings.is_empty() {
                self.children.remove(&parent);
                if let Some(parent) = self.entries.get(&parent) {
                    self.leaves[parent.record.kind as usize].insert(rank(&parent.record));
                }
            }
        }
        // The chunk is a leaf, so the references to it end exactly at it.
        for owner in self.owners_of.remove(key).into_iter().flatten() {
            self.move_back(&owner, (record.parent_key.as_deref(), record.start), reason, at_ms);
        }
        Some(record)
    }
}
