//! What goes when a budget is spent, or somebody asks for it.
//!
//! Only chunks that nothing continues go, so no chunk loses the beginning it needs; what a pinned
//! reference holds stays. Among the rest an answer goes before a question and a question before a
//! system prompt, as long as there are at least as many of the one as of the next; within a kind
//! the least recently used goes first. (The balance is mlx-lm's LRUPromptCache: without it the
//! answer of a minute ago would go before the question of last year.)

use std::collections::HashSet;

use super::index::{ChunkIndex, Entry, child, rank};
use crate::records::{ChunkKind, ChunkRecord};

/// Why something is not stored.
pub(super) const NO_ROOM: &str = "the disk budget of the prompt cache has no room for it beside what is pinned: raise it in the settings";
/// The reasons that people read.
pub(super) const DISK_BUDGET: &str = "evicted to keep to the disk budget";
pub(super) const MEMORY_BUDGET: &str =
    "evicted to keep to the memory budget, and it was not on disk";
pub(super) const PURGED: &str = "removed by hand";
pub(super) const CLEARED: &str = "the cache was cleared";

impl ChunkIndex {
    /// Removes chunks until a file of `new_bytes` more fits the disk budget; none, and nothing is
    /// removed, if it never can. What `keep` continues stays, and so does `keep`.
    pub(super) fn make_room_on_disk(
        &mut self,
        new_bytes: u64,
        keep: Option<&str>,
        at_ms: i64,
    ) -> Option<Vec<ChunkRecord>> {
        let surplus = (self.disk.bytes + new_bytes).saturating_sub(self.disk.budget);
        // Seen beforehand, so that nothing is given up for a chunk that cannot be kept.
        if new_bytes > self.disk.budget || (surplus > 0 && !self.can_free(surplus, keep)) {
            return None;
        }
        Some(self.free_on_disk(surplus, keep, at_ms))
    }

    /// Whether there is room on disk for `bytes` more, perhaps after an eviction.
    pub(super) fn has_room_on_disk(&self, bytes: u64) -> bool {
        let surplus = (self.disk.bytes + bytes).saturating_sub(self.disk.budget);
        bytes <= self.disk.budget && (surplus == 0 || self.can_free(surplus, None))
    }

    /// Removes chunks until those on disk are within the budget, as far as pinned ones allow.
    pub(super) fn enforce_disk_budget(&mut self, at_ms: i64) -> Vec<ChunkRecord> {
        self.free_on_disk(self.disk.bytes.saturating_sub(self.disk.budget), None, at_ms)
    }

    fn free_on_disk(&mut self, surplus: u64, keep: Option<&str>, at_ms: i64) -> Vec<ChunkRecord> {
        let (mut freed, mut removed) = (0, Vec::new());
        while freed < surplus {
            let may_go = |entry: &Entry| entry.is_on_disk || self.stands_in_the_way(entry);
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

    /// Whether a chunk could not be written but continues some that were, which cannot go before
    /// it.
    fn stands_in_the_way(&self, entry: &Entry) -> bool {
        !entry.is_on_disk
            && !entry.is_pending
            && self.path(&entry.record.key).first().is_some_and(|first| first.is_on_disk)
    }

    /// Whether leaves, and what becomes a leaf without them, take `surplus` bytes on disk.
    fn can_free(&self, surplus: u64, keep: Option<&str>) -> bool {
        let mut held: HashSet<&str> = HashSet::new();
        let pinned = self
            .refs
            .values()
            .filter(|cache_ref| cache_ref.is_pinned)
            .filter_map(|cache_ref| cache_ref.chunk_key.as_deref());
        // Whatever is not on disk is in memory.
        let in_memory = self.in_memory.iter().filter_map(|(.., key)| self.get(key));
        let pending =
            in_memory.filter(|entry| entry.is_pending).map(|entry| entry.record.key.as_str());
        for key in pinned.chain(pending).chain(keep) {
            let mut next = Some(key);
            while let Some(entry) =
                next.filter(|key| held.insert(key)).and_then(|key| self.get(key))
            {
                next = entry.record.parent_key.as_deref();
            }
        }
        let held_bytes: u64 = held
            .iter()
            .filter_map(|key| self.get(key))
            .filter(|entry| entry.is_on_disk)
            .map(|entry| entry.record.bytes)
            .sum();
        self.disk.bytes - held_bytes >= surplus
    }

    /// Keeps to the memory budget: contents that are on disk too are dropped, then chunks that are
    /// nowhere else. Returns the keys of dropped contents and the removed chunks.
    pub(super) fn make_room_in_memory(&mut self, at_ms: i64) -> (Vec<String>, Vec<ChunkRecord>) {
        let (mut dropped, mut removed) = (Vec::new(), Vec::new());
        while self.bytes_in_memory() > self.memory.budget {
            let spare = self
                .in_memory
                .iter()
                .map(|(.., key)| key)
                .find(|key| self.is_on_disk(key))
                .cloned();
            if let Some(key) = spare {
                self.forget_contents(&key);
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

    /// Gives up all contents that are on disk too; returns their keys.
    pub(super) fn demote(&mut self) -> Vec<String> {
        let keys: Vec<String> = self
            .in_memory
            .iter()
            .map(|(.., key)| key.clone())
            .filter(|key| self.is_on_disk(key))
            .collect();
        keys.iter().for_each(|key| self.forget_contents(key));
        keys
    }

    fn forget_contents(&mut self, key: &str) {
        if let Some(entry) = self.entries.get_mut(key)
            && let Some(bytes) = entry.memory_bytes.take()
        {
            self.memory.bytes -= bytes;
            self.in_memory.remove(&rank(&entry.record));
        }
    }

    /// The leaf that goes next among those that may.
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

    /// Removes a chunk and everything that continues it, and returns them.
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
        // From the ends, so that references fall back step by step to what is left.
        order.iter().rev().filter_map(|key| self.remove(key, reason, at_ms)).collect()
    }

    /// Removes everything that only `owner` holds, at its place, beside it and where it was before;
    /// its reference falls back to what others share.
    pub(super) fn purge(&mut self, owner: &str, at_ms: i64) -> Vec<ChunkRecord> {
        let mut removed = Vec::new();
        let left = self.stale_refs_of(owner);
        for place in left.iter().map(String::as_str).chain([owner]) {
            let Some(key) =
                self.refs.get(place).and_then(|cache_ref| cache_ref.chunk_key.as_deref())
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
        left.iter().for_each(|left| self.remove_ref(left));
        removed
    }

    /// Removes everything that is not on disk.
    pub(super) fn remove_unwritten(&mut self, reason: &str, at_ms: i64) -> Vec<ChunkRecord> {
        let unwritten = self
            .entries
            .values()
            .filter(|entry| !entry.is_on_disk)
            .map(|entry| entry.record.key.clone());
        // What continues one of them is not on disk either.
        unwritten
            .collect::<Vec<_>>()
            .iter()
            .flat_map(|key| self.remove_with_descendants(key, reason, at_ms))
            .collect()
    }

    /// Removes everything that no pinned reference holds.
    pub(super) fn clear(&mut self, at_ms: i64) -> Vec<ChunkRecord> {
        let mut removed = Vec::new();
        while let Some(leaf) = self.next_leaf(|_| true) {
            removed.extend(self.remove(&leaf, CLEARED, at_ms));
        }
        removed
    }

    fn remove(&mut self, key: &str, reason: &str, at_ms: i64) -> Option<ChunkRecord> {
        self.forget_contents(key);
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
        // Nothing continues it, so whoever holds it stands right behind it.
        for owner in self.owners_of.remove(key).into_iter().flatten() {
            self.move_back(&owner, (record.parent_key.as_deref(), record.start), reason, at_ms);
        }
        Some(record)
    }
}
