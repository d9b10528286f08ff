//! Who holds which place among the chunks, and what they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::ChunkIndex;
use crate::records::{CacheEvent, CacheRef, Loss};

/// Between an owner and the last chunk of a place that the owner has left: an earlier branch of a
/// conversation, or what another model read of it. References of such names let it be found again when
/// all of the owner's is to go. Nobody outside sees them but as rows.
const STALE: &str = "#stale:";

/// Whose a reference is by its owner's name, which says more where the owner has left the place: such
/// references are rows like others, and nothing else.
pub fn owner_of(owner: &str) -> &str {
    owner.split(STALE).next().unwrap_or(owner)
}

/// What a reference holds, as far as it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUsage {
    /// The reference.
    pub cache_ref: CacheRef,
    /// Bytes of the chunks before its place.
    pub bytes: u64,
    /// Bytes of those that no one else holds.
    pub own_bytes: u64,
    /// Whether the contents of all of them are in memory.
    pub is_in_memory: bool,
    /// Other owners that hold some of the same chunks.
    pub shared_with: Vec<String>,
    /// When its last chunk was read or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkIndex {
    /// Moves a reference, or makes it. What it lost is forgotten: whoever sets it has what there is.
    pub(super) fn set_ref(&mut self, cache_ref: CacheRef) {
        let (owner, left) = (cache_ref.owner.clone(), self.refs.get(&cache_ref.owner).cloned());
        self.unresolved_refs.remove(&owner);
        self.put_ref(cache_ref);
        let left = left.and_then(|left| Some((left.chunk_key.clone()?, left)));
        if let Some((key, left)) = left
            && !self.is_used_by(&owner, &key)
        {
            self.put_ref(CacheRef {
                owner: format!("{owner}{STALE}{key}"),
                is_pinned: false,
                loss: None,
                ..left
            });
        }
        // Those that the owner has come back to, or that stand on the way to another.
        for left in self.stale_refs_of(&owner) {
            self.remove_if_redundant(&left);
        }
    }

    /// The references of the places that an owner has left.
    pub(super) fn stale_refs_of(&self, owner: &str) -> Vec<String> {
        let first = format!("{owner}{STALE}");
        self.refs
            .range(first.clone()..)
            .map(|(left, _)| left)
            .take_while(|left| left.starts_with(&first))
            .cloned()
            .collect()
    }

    /// A reference from a caller's rows. A chunk that is not there was lost while nobody looked.
    pub(super) fn restore_ref(&mut self, mut cache_ref: CacheRef) {
        if cache_ref.chunk_key.as_ref().is_some_and(|key| !self.contains(key)) {
            let reason = "its file was not there any more".to_owned();
            let loss = Loss { num_tokens: cache_ref.num_tokens, reason, at_ms: super::now_ms() };
            cache_ref.loss.get_or_insert(loss);
            (cache_ref.chunk_key, cache_ref.num_tokens) = (None, 0);
            self.changed_refs.insert(cache_ref.owner.clone());
        }
        self.unlink(&cache_ref.owner);
        // Nothing is left of what was left.
        if cache_ref.chunk_key.is_some() || owner_of(&cache_ref.owner) == cache_ref.owner {
            self.reference(&Arc::from(cache_ref.owner.as_str()), cache_ref.chunk_key.as_deref());
            self.refs.insert(cache_ref.owner.clone(), cache_ref);
        } else {
            self.changed_refs.insert(cache_ref.owner);
        }
    }

    /// Forgets a reference; its chunks stay until they are evicted.
    pub(super) fn remove_ref(&mut self, owner: &str) {
        if self.unlink(owner) {
            self.changed_refs.insert(owner.to_owned());
        }
    }

    /// Drops a reference without telling so; whether there was one.
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

    /// Notes that `owner` holds a chunk and all before it.
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

    /// Who holds a chunk, because their reference stands at it or behind it.
    pub(super) fn owners_of(&self, key: &str) -> impl Iterator<Item = &Arc<str>> {
        self.owners_of.get(key).into_iter().flatten()
    }

    /// Whether nobody but `owner` holds a chunk.
    pub(super) fn is_used_only_by(&self, owner: &str, key: &str) -> bool {
        self.owners_of(key).all(|holder| owner_of(holder) == owner)
    }

    /// Whether the reference of this very name holds a chunk.
    fn is_used_by(&self, owner: &str, key: &str) -> bool {
        self.owners_of.get(key).is_some_and(|owners| owners.contains(owner))
    }

    /// Lets a reference fall back to before its last chunk, which is gone.
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

    /// Forgets the reference of a place that was left where nothing is left of it, or something else
    /// of its owner's holds it.
    fn remove_if_redundant(&mut self, left: &str) {
        let key = self.refs.get(left).and_then(|cache_ref| cache_ref.chunk_key.as_deref());
        if key.is_none_or(|key| {
            self.owners_of(key)
                .any(|holder| **holder != *left && owner_of(holder) == owner_of(left))
        }) {
            self.remove_ref(left);
        }
    }

    /// Keeps a reference's chunks whatever the budgets say, or no longer.
    pub(super) fn pin(&mut self, owner: &str, is_pinned: bool) {
        if let Some(cache_ref) = self.refs.get_mut(owner)
            && cache_ref.is_pinned != is_pinned
        {
            cache_ref.is_pinned = is_pinned;
            self.changed_refs.insert(owner.to_owned());
        }
    }

    /// Whether a pinned reference holds this chunk.
    pub(super) fn is_pinned(&self, key: &str) -> bool {
        self.owners_of(key)
            .any(|owner| self.refs.get(&**owner).is_some_and(|cache_ref| cache_ref.is_pinned))
    }

    /// What has become of the references that have changed since the last call, as far as it survives
    /// a crash: where chunks are yet to be written, a reference stands before them.
    pub(super) fn take_changed_refs(&mut self) -> Vec<CacheEvent> {
        let moved = std::mem::take(&mut self.changed_refs);
        let told = moved.into_iter().map(|owner| match self.refs.get(&owner) {
            Some(cache_ref) => CacheEvent::RefSet(self.on_disk(cache_ref)),
            None => CacheEvent::RefRemoved { owner },
        });
        told.collect()
    }

    fn on_disk(&self, cache_ref: &CacheRef) -> CacheRef {
        let path = cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        let record = path.iter().rfind(|entry| entry.is_on_disk).map(|entry| &entry.record);
        let (chunk_key, num_tokens) =
            record.map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        CacheRef { chunk_key, num_tokens, ..cache_ref.clone() }
    }

    /// Notes that a chunk is on disk: references that stand at it were told to stand before it.
    pub(super) fn mark_refs_at(&mut self, key: &str) {
        let stands_at = |owner: &&Arc<str>| {
            self.refs
                .get(&***owner)
                .is_some_and(|cache_ref| cache_ref.chunk_key.as_deref() == Some(key))
        };
        let at: Vec<String> =
            self.owners_of(key).filter(stands_at).map(|owner| owner.to_string()).collect();
        self.changed_refs.extend(at);
    }

    /// What every owner holds at their place.
    pub(super) fn ref_usages(&self) -> Vec<RefUsage> {
        let refs =
            self.refs.values().filter(|cache_ref| owner_of(&cache_ref.owner) == cache_ref.owner);
        refs.map(|cache_ref| self.usage_of(cache_ref)).collect()
    }

    /// What one reference holds.
    pub(super) fn ref_usage(&self, owner: &str) -> Option<RefUsage> {
        self.refs.get(owner).map(|cache_ref| self.usage_of(cache_ref))
    }

    fn usage_of(&self, cache_ref: &CacheRef) -> RefUsage {
        let path = cache_ref.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        // Who shares more stands first: all that share a chunk share those before it.
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

/// More would be a list that nobody reads.
const MAX_SHARED_WITH: usize = 8;
