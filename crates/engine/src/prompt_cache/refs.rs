//! References of owners to chunks, and which chunks they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::ChunkIndex;
use crate::records::{CacheEvent, CacheRef, Loss};

/// Separates an owner's name from a chunk key in the name of a stale reference: one to a position
/// that the owner has moved away from, such as an earlier branch of a conversation, or the same
/// conversation read by another model. Stale references let a purge find these chunks. They are
/// stored as rows, but callers never see them.
const STALE: &str = "#stale:";

/// The owner that a reference belongs to: its name, without the suffix of a stale reference.
pub fn owner_of(owner: &str) -> &str {
    owner.split(STALE).next().unwrap_or(owner)
}

/// The chunks behind a reference, as far as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUsage {
    /// The reference.
    pub cache_ref: CacheRef,
    /// Bytes of all its chunks.
    pub bytes: u64,
    /// Bytes of the chunks that no other owner refers to.
    pub own_bytes: u64,
    /// Whether the contents of all its chunks are in memory.
    pub is_in_memory: bool,
    /// Other owners that refer to some of the same chunks.
    pub shared_with: Vec<String>,
    /// When its last chunk was used or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkIndex {
    /// Sets or moves a reference; its loss is cleared. A position that it moves away from stays
    /// referenced by a stale reference.
    pub(super) fn set_ref(&mut self, cache_ref: CacheRef) {
        let (owner, previous) = (cache_ref.owner.clone(), self.refs.get(&cache_ref.owner).cloned());
        self.unresolved_refs.remove(&owner);
        self.put_ref(cache_ref);
        let previous = previous.and_then(|previous| Some((previous.chunk_key.clone()?, previous)));
        if let Some((key, previous)) = previous
            && !self.is_used_by(&owner, &key)
        {
            self.put_ref(CacheRef {
                owner: format!("{owner}{STALE}{key}"),
                is_pinned: false,
                loss: None,
                ..previous
            });
        }
        // Drop the stale references to positions that the owner has returned to, or that another
        // covers.
        for stale in self.stale_refs_of(&owner) {
            self.remove_if_redundant(&stale);
        }
    }

    /// The names of an owner's stale references.
    pub(super) fn stale_refs_of(&self, owner: &str) -> Vec<String> {
        let first = format!("{owner}{STALE}");
        self.refs
            .range(first.clone()..)
            .map(|(name, _)| name)
            .take_while(|name| name.starts_with(&first))
            .cloned()
            .collect()
    }

    /// Adds a reference from a caller's rows. If its chunk is missing, the reference notes the
    /// loss.
    pub(super) fn restore_ref(&mut self, mut cache_ref: CacheRef) {
        if cache_ref.chunk_key.as_ref().is_some_and(|key| !self.contains(key)) {
            let reason = "its file is missing".to_owned();
            let loss = Loss { num_tokens: cache_ref.num_tokens, reason, at_ms: super::now_ms() };
            cache_ref.loss.get_or_insert(loss);
            (cache_ref.chunk_key, cache_ref.num_tokens) = (None, 0);
            self.changed_refs.insert(cache_ref.owner.clone());
        }
        self.unlink(&cache_ref.owner);
        // A stale reference without a chunk has no use.
        if cache_ref.chunk_key.is_some() || owner_of(&cache_ref.owner) == cache_ref.owner {
            self.reference(&Arc::from(cache_ref.owner.as_str()), cache_ref.chunk_key.as_deref());
            self.refs.insert(cache_ref.owner.clone(), cache_ref);
        } else {
            self.changed_refs.insert(cache_ref.owner);
        }
    }

    /// Removes a reference; its chunks stay until they are evicted.
    pub(super) fn remove_ref(&mut self, owner: &str) {
        if self.unlink(owner) {
            self.changed_refs.insert(owner.to_owned());
        }
    }

    /// Removes a reference without recording the change; returns whether there was one.
    pub(super) fn unlink(&mut self, owner: &str) -> bool {
        self.unresolved_refs.remove(owner);
        let Some(cache_ref) = self.refs.remove(owner) else { return false };
        let mut next = cache_ref.chunk_key.as_deref();
        while let Some(record) =
            next.and_then(|key| self.entries.get(key)).map(|entry| &entry.record)
        {
            if let Some(owners) = self.owners_of.get_mut(&record.key) {
                owners.remove(owner);
                if owners.is_empty() {
                    self.owners_of.remove(&record.key);
                }
            }
            next = record.parent_key.as_deref();
        }
        true
    }

    fn put_ref(&mut self, cache_ref: CacheRef) {
        self.unlink(&cache_ref.owner);
        self.changed_refs.insert(cache_ref.owner.clone());
        self.reference(&Arc::from(cache_ref.owner.as_str()), cache_ref.chunk_key.as_deref());
        self.refs.insert(cache_ref.owner.clone(), cache_ref);
    }

    /// Adds `owner` to the owners of a chunk and of all its ancestors.
    pub(super) fn reference(&mut self, owner: &Arc<str>, chunk_key: Option<&str>) {
        let mut next = chunk_key;
        while let Some(record) =
            next.and_then(|key| self.entries.get(key)).map(|entry| &entry.record)
        {
            match self.owners_of.get_mut(&record.key) {
                Some(owners) => drop(owners.insert(Arc::clone(owner))),
                None => drop(
                    self.owners_of.insert(record.key.clone(), BTreeSet::from([Arc::clone(owner)])),
                ),
            }
            next = record.parent_key.as_deref();
        }
    }

    /// The owners of references to a chunk or to one of its descendants.
    pub(super) fn owners_of(&self, key: &str) -> impl Iterator<Item = &Arc<str>> {
        self.owners_of.get(key).into_iter().flatten()
    }

    /// Whether only `owner` refers to a chunk, stale references included.
    pub(super) fn is_used_only_by(&self, owner: &str, key: &str) -> bool {
        self.owners_of(key).all(|other| owner_of(other) == owner)
    }

    /// Whether the reference of exactly this name covers a chunk.
    fn is_used_by(&self, owner: &str, key: &str) -> bool {
        self.owners_of.get(key).is_some_and(|owners| owners.contains(owner))
    }

    /// Moves a reference back to before its last chunk, which was removed for `reason`.
    pub(super) fn move_back(
        &mut self,
        owner: &str,
        to: (Option<&str>, usize),
        reason: &str,
        at_ms: i64,
    ) {
        let Some(cache_ref) = self.refs.get_mut(owner) else { return };
        let num_tokens =
            cache_ref.loss.as_ref().map_or(cache_ref.num_tokens, |loss| loss.num_tokens);
        cache_ref.loss = Some(Loss { num_tokens, reason: reason.to_owned(), at_ms });
        (cache_ref.chunk_key, cache_ref.num_tokens) = (to.0.map(str::to_owned), to.1);
        self.changed_refs.insert(owner.to_owned());
        if owner_of(owner) != owner {
            self.remove_if_redundant(owner);
        }
    }

    /// Removes a stale reference that has no chunk any more, or whose chunk another reference of
    /// the same owner covers.
    fn remove_if_redundant(&mut self, stale: &str) {
        let key = self.refs.get(stale).and_then(|cache_ref| cache_ref.chunk_key.as_deref());
        if key.is_none_or(|key| {
            self.owners_of(key).any(|other| **other != *stale && owner_of(other) == owner_of(stale))
        }) {
            self.remove_ref(stale);
        }
    }

    /// Pins a reference, so that its chunks are never evicted, or unpins it.
    pub(super) fn pin(&mut self, owner: &str, is_pinned: bool) {
        if let Some(cache_ref) = self.refs.get_mut(owner)
            && cache_ref.is_pinned != is_pinned
        {
            cache_ref.is_pinned = is_pinned;
            self.changed_refs.insert(owner.to_owned());
        }
        // Reported when its chunk has been looked for.
        if let Some(cache_ref) = self.unresolved_refs.get_mut(owner) {
            cache_ref.is_pinned = is_pinned;
        }
    }

    /// Whether an owner's reference is pinned, also while its chunk is missing.
    pub(super) fn is_ref_pinned(&self, owner: &str) -> bool {
        let cache_ref = self.refs.get(owner).or_else(|| self.unresolved_refs.get(owner));
        cache_ref.is_some_and(|cache_ref| cache_ref.is_pinned)
    }

    /// Whether a pinned reference covers this chunk.
    pub(super) fn is_pinned(&self, key: &str) -> bool {
        self.owners_of(key)
            .any(|owner| self.refs.get(&**owner).is_some_and(|cache_ref| cache_ref.is_pinned))
    }

    /// Events for the references that have changed since the last call, as they would survive a
    /// crash: where the last chunks are not written yet, the event names the last written one.
    pub(super) fn take_changed_refs(&mut self) -> Vec<CacheEvent> {
        let changed = std::mem::take(&mut self.changed_refs);
        let events = changed.into_iter().map(|owner| match self.refs.get(&owner) {
            Some(cache_ref) => CacheEvent::RefSet(self.on_disk(cache_ref)),
            None => CacheEvent::RefRemoved { owner },
        });
        events.collect()
    }

    fn on_disk(&self, cache_ref: &CacheRef) -> CacheRef {
        let path = cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        let record = path.iter().rfind(|entry| entry.is_on_disk).map(|entry| &entry.record);
        let (chunk_key, num_tokens) =
            record.map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        CacheRef { chunk_key, num_tokens, ..cache_ref.clone() }
    }

    /// Marks the references that end at a chunk as changed once it is on disk: their last event
    /// named a chunk before it.
    pub(super) fn mark_refs_at(&mut self, key: &str) {
        let ends_at = |owner: &&Arc<str>| {
            self.refs
                .get(&***owner)
                .is_some_and(|cache_ref| cache_ref.chunk_key.as_deref() == Some(key))
        };
        let at: Vec<String> =
            self.owners_of(key).filter(ends_at).map(|owner| owner.to_string()).collect();
        self.changed_refs.extend(at);
    }

    /// The usage of every reference that is not stale.
    pub(super) fn ref_usages(&self) -> Vec<RefUsage> {
        let refs =
            self.refs.values().filter(|cache_ref| owner_of(&cache_ref.owner) == cache_ref.owner);
        refs.map(|cache_ref| self.usage_of(cache_ref)).collect()
    }

    /// The usage of one reference.
    pub(super) fn ref_usage(&self, owner: &str) -> Option<RefUsage> {
        self.refs.get(owner).map(|cache_ref| self.usage_of(cache_ref))
    }

    fn usage_of(&self, cache_ref: &CacheRef) -> RefUsage {
        let path = cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        // Walk from the end, so that the owners that share the most come first.
        let mut known = BTreeSet::new();
        let others = path
            .iter()
            .rev()
            .flat_map(|entry| self.owners_of(&entry.record.key))
            .map(|owner| owner_of(owner));
        let others = others.filter(|owner| *owner != cache_ref.owner && known.insert(*owner));
        let shared_with = others.take(MAX_SHARED_WITH).map(str::to_owned).collect();
        let own =
            path.iter().filter(|entry| self.is_used_only_by(&cache_ref.owner, &entry.record.key));
        RefUsage {
            cache_ref: cache_ref.clone(),
            bytes: path.iter().map(|entry| entry.record.bytes).sum(),
            own_bytes: own.map(|entry| entry.record.bytes).sum(),
            is_in_memory: !path.is_empty() && path.iter().all(|entry| entry.memory_bytes.is_some()),
            shared_with,
            last_used_at_ms: path.last().map_or(0, |entry| entry.record.last_used_at_ms),
        }
    }
}

/// A longer list would not be read.
const MAX_SHARED_WITH: usize = 8;
