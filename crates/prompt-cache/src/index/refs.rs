//! References of owners to chunks, and which chunks they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ChunkIndex;
use crate::{
    CacheChange, CacheRef, Chunk, ChunkKey, ChunkRecord, Loss, LossReason, Namespace, Owner,
    PromptTokens, RefName, RestoreNeeds,
};

/// The chunks behind a reference, as far as they are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUsage {
    /// The reference.
    pub cache_ref: CacheRef,
    /// Bytes of all its chunks.
    pub num_bytes: u64,
    /// Bytes of the chunks that no other owner refers to.
    pub num_own_bytes: u64,
    /// Whether all its chunks are in memory (see [`ChunkIndex::is_in_memory`]).
    pub is_in_memory: bool,
    /// Other owners that refer to some of the same chunks, those that share the most first.
    pub shared_with: Vec<Owner>,
    /// When its last chunk was used or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

/// A longer list would not be read.
const MAX_SHARED_WITH: usize = 8;

impl ChunkIndex {
    /// All references, by name.
    pub fn refs(&self) -> impl Iterator<Item = &CacheRef> {
        self.refs.values()
    }

    /// The reference of an owner that is not stale.
    pub fn ref_of(&self, owner: &Owner) -> Option<&CacheRef> {
        self.refs.get(&RefName::from(owner.clone()))
    }

    /// Sets or moves a reference. A position that it moves away from stays referenced by a stale
    /// reference.
    pub fn set_ref(&mut self, cache_ref: CacheRef) -> Vec<CacheChange> {
        let name = cache_ref.name.clone();
        let previous = self.refs.get(&name).cloned();
        self.put_ref(cache_ref);
        if let Some(previous) = previous
            && let Some(key) = previous.target
            && !self.refs_through(&key).any(|through| **through == name)
        {
            let name = RefName { stale_key: Some(key), ..name.clone() };
            self.put_ref(CacheRef { name, is_pinned: false, loss: None, ..previous });
        }
        // Drop the stale references to positions that the owner has returned to, or that another
        // covers.
        for stale in self.stale_refs_of(&name.owner) {
            self.remove_if_redundant(&stale);
        }
        self.take_changed_refs()
    }

    /// Adds a stale reference of an owner to what another model has read of the same tokens beside the one
    /// that answers, up to `target`, unless a reference of the owner covers it. So a deletion finds those
    /// chunks, while the owner's own reference stays.
    pub fn refer_beside(
        &mut self,
        owner: &Owner,
        namespace: &Namespace,
        model_name: &str,
        target: Option<ChunkKey>,
    ) -> Vec<CacheChange> {
        let covers = |key: &ChunkKey| self.refs_through(key).any(|name| name.owner == *owner);
        if let Some(key) = target.filter(|key| self.contains(key) && !covers(key)) {
            self.put_ref(CacheRef {
                name: RefName { owner: owner.clone(), stale_key: Some(key) },
                namespace: namespace.clone(),
                model_name: model_name.to_owned(),
                target,
                num_tokens: 0, // follows from the target
                is_pinned: false,
                loss: None,
            });
        }
        for stale in self.stale_refs_of(owner) {
            self.remove_if_redundant(&stale);
        }
        self.take_changed_refs()
    }

    /// Moves an owner's reference to what is stored of one branch of a conversation: to the longest
    /// beginning of `tokens` in a namespace that `of` refers to, which is the owner itself or the
    /// conversation that it was copied from. An owner of whose branch nothing is stored refers to
    /// nothing; one that was copied then gets no reference.
    pub fn point_ref(
        &mut self,
        owner: &Owner,
        of: &Owner,
        tokens: &PromptTokens,
    ) -> Vec<CacheChange> {
        let stale = self.stale_refs_of(of);
        let names = [RefName::from(of.clone())].into_iter().chain(stale);
        let known: Vec<CacheRef> = names.filter_map(|name| self.refs.get(&name).cloned()).collect();
        let Some(current) = known.first().cloned() else { return Vec::new() };
        let found = known.into_iter().filter_map(|cache_ref| {
            let key = self.end_of(&cache_ref.namespace, tokens, RestoreNeeds::default())?;
            Some((self.get(&key)?.record.stop(), key, cache_ref))
        });
        // Among equals the first, which is where the owner is now.
        let longest = found.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let (target, like) = match longest {
            Some((_, key, cache_ref)) => (Some(key), cache_ref),
            None if owner == of => (None, current),
            None => return Vec::new(),
        };
        let before = self.ref_of(owner);
        if before.is_some_and(|before| before.target == target) {
            return Vec::new();
        }
        let is_pinned = self.is_ref_pinned(owner);
        let name = owner.clone().into();
        self.set_ref(CacheRef { name, target, num_tokens: 0, is_pinned, loss: None, ..like })
    }

    /// Adds a reference from another process's rows, unless there is one of that name, or this index
    /// has removed it.
    pub fn adopt_ref(&mut self, cache_ref: CacheRef, now_ms: i64) -> Vec<CacheChange> {
        let name = &cache_ref.name;
        if !self.refs.contains_key(name) && !self.removed_refs.contains(name) {
            self.put_stored_ref(cache_ref, now_ms);
        }
        self.take_changed_refs()
    }

    /// Forgets a reference that another process knows better. Nobody is told: its row stays.
    pub fn forget_ref(&mut self, name: &RefName) {
        self.unlink(name);
    }

    /// Restores the references whose chunks were missing at the start: some of those chunks may have
    /// got their records back since, the others are lost.
    pub fn resolve_refs(&mut self, now_ms: i64) -> Vec<CacheChange> {
        for (name, cache_ref) in std::mem::take(&mut self.unresolved_refs) {
            if !self.refs.contains_key(&name) {
                self.put_stored_ref(cache_ref, now_ms);
                // It may have been pinned meanwhile.
                self.changed_refs.insert(name);
            }
        }
        self.take_changed_refs()
    }

    /// Removes all references of an owner; their chunks stay until they are evicted.
    pub fn remove_refs_of(&mut self, owner: &Owner) -> Vec<CacheChange> {
        let unresolved = self.unresolved_refs.keys().filter(|name| name.owner == *owner);
        let mut names: Vec<RefName> = unresolved.cloned().collect();
        names.extend(self.stale_refs_of(owner));
        names.push(owner.clone().into());
        names.iter().for_each(|name| self.remove_ref(name));
        self.take_changed_refs()
    }

    /// Pins an owner's reference, so that its chunks are never evicted, or unpins it.
    pub fn pin(&mut self, owner: &Owner, is_pinned: bool) -> Vec<CacheChange> {
        let name = RefName::from(owner.clone());
        if let Some(cache_ref) = self.refs.get_mut(&name)
            && cache_ref.is_pinned != is_pinned
        {
            cache_ref.is_pinned = is_pinned;
            self.changed_refs.insert(name.clone());
        }
        // Reported when its chunk has been looked for.
        if let Some(cache_ref) = self.unresolved_refs.get_mut(&name) {
            cache_ref.is_pinned = is_pinned;
        }
        self.take_changed_refs()
    }

    /// Whether an owner's reference is pinned, also while its chunk is missing.
    pub fn is_ref_pinned(&self, owner: &Owner) -> bool {
        let name = RefName::from(owner.clone());
        let cache_ref = self.refs.get(&name).or_else(|| self.unresolved_refs.get(&name));
        cache_ref.is_some_and(|cache_ref| cache_ref.is_pinned)
    }

    /// The usage of every reference that is not stale.
    pub fn ref_usages(&self) -> Vec<RefUsage> {
        let refs = self.refs.values().filter(|cache_ref| !cache_ref.name.is_stale());
        refs.map(|cache_ref| self.usage_of(cache_ref)).collect()
    }

    /// The usage of an owner's reference; the cost does not grow with the number of references.
    pub fn ref_usage(&self, owner: &Owner) -> Option<RefUsage> {
        self.ref_of(owner).map(|cache_ref| self.usage_of(cache_ref))
    }

    fn usage_of(&self, cache_ref: &CacheRef) -> RefUsage {
        let owner = cache_ref.owner();
        let path = cache_ref.target.map_or(Vec::new(), |key| self.path(&key));
        // Walk from the end, so that the owners that share the most come first.
        let mut known = BTreeSet::new();
        let others = path.iter().rev().flat_map(|chunk| self.refs_through(&chunk.key()));
        let others = others.map(|name| &name.owner);
        let others = others.filter(|other| *other != owner && known.insert(*other));
        let shared_with = others.take(MAX_SHARED_WITH).cloned().collect();
        let own = path.iter().filter(|chunk| self.is_used_only_by(owner, &chunk.key()));
        RefUsage {
            cache_ref: cache_ref.clone(),
            num_bytes: path.iter().map(|chunk| chunk.num_bytes()).sum(),
            num_own_bytes: own.map(|chunk| chunk.num_bytes()).sum(),
            is_in_memory: !path.is_empty()
                && path.iter().all(|chunk| self.is_in_memory(&chunk.key())),
            shared_with,
            last_used_at_ms: path.last().map_or(0, |chunk| chunk.record.last_used_at_ms),
        }
    }

    /// The names of an owner's stale references.
    pub(super) fn stale_refs_of(&self, owner: &Owner) -> Vec<RefName> {
        let stale =
            |bytes| RefName { owner: owner.clone(), stale_key: Some(ChunkKey::from_bytes(bytes)) };
        let range = self.refs.range(stale([0; 16])..=stale([u8::MAX; 16]));
        range.map(|(name, _)| name.clone()).collect()
    }

    /// Puts a reference from rows. If its chunk is missing, it notes the loss.
    pub(super) fn put_stored_ref(&mut self, mut cache_ref: CacheRef, now_ms: i64) {
        let stored = (cache_ref.num_tokens, cache_ref.is_pinned);
        if cache_ref.target.is_some_and(|key| !self.contains(&key)) {
            let num_tokens = cache_ref.num_tokens;
            let loss = Loss { num_tokens, reason: LossReason::FileMissing, at_ms: now_ms };
            cache_ref.loss.get_or_insert(loss);
            cache_ref.target = None;
        }
        let name = cache_ref.name.clone();
        self.unlink(&name);
        // A stale reference without a chunk has no use.
        if cache_ref.target.is_none() && name.is_stale() {
            self.changed_refs.insert(name);
            return;
        }
        if stored != self.link(cache_ref) {
            self.changed_refs.insert(name);
        }
    }

    fn put_ref(&mut self, cache_ref: CacheRef) {
        let name = cache_ref.name.clone();
        self.unlink(&name);
        self.link(cache_ref);
        self.removed_refs.remove(&name);
        self.changed_refs.insert(name);
    }

    /// Adds a reference. Returns its number of tokens, which its target says, and whether it is
    /// pinned, which a stale one is not.
    fn link(&mut self, mut cache_ref: CacheRef) -> (usize, bool) {
        let target = cache_ref.target.and_then(|key| self.chunks.get(&key));
        cache_ref.target = target.map(Chunk::key);
        cache_ref.num_tokens = target.map_or(0, |chunk| chunk.record.stop());
        cache_ref.is_pinned &= !cache_ref.name.is_stale();
        let name = Arc::new(cache_ref.name.clone());
        let mut next = cache_ref.target;
        while let Some(chunk) = next.and_then(|key| self.chunks.get(&key)) {
            self.refs_through.entry(chunk.key()).or_default().insert(Arc::clone(&name));
            next = chunk.record.parent;
        }
        let linked = (cache_ref.num_tokens, cache_ref.is_pinned);
        self.refs.insert(cache_ref.name.clone(), cache_ref);
        linked
    }

    /// Takes a reference out; returns whether there was one.
    fn unlink(&mut self, name: &RefName) -> bool {
        let was_unresolved = self.unresolved_refs.remove(name).is_some();
        let Some(cache_ref) = self.refs.remove(name) else { return was_unresolved };
        let mut next = cache_ref.target;
        while let Some(chunk) = next.and_then(|key| self.chunks.get(&key)) {
            if let Some(names) = self.refs_through.get_mut(&chunk.key()) {
                names.remove(name);
                if names.is_empty() {
                    self.refs_through.remove(&chunk.key());
                }
            }
            next = chunk.record.parent;
        }
        true
    }

    pub(super) fn remove_ref(&mut self, name: &RefName) {
        if self.unlink(name) {
            self.removed_refs.insert(name.clone());
            self.changed_refs.insert(name.clone());
        }
    }

    /// Sets references aside whose chunk is about to get another record, until
    /// [`ChunkIndex::resolve_refs`].
    pub(super) fn set_aside_refs_through(&mut self, key: &ChunkKey) {
        let names: Vec<Arc<RefName>> = self.refs_through(key).cloned().collect();
        for name in names {
            let cache_ref = self.refs.get(&*name).cloned();
            self.unlink(&name);
            self.unresolved_refs.extend(cache_ref.map(|found| (found.name.clone(), found)));
        }
    }

    /// The names of the references to a chunk or to one of its descendants.
    pub(super) fn refs_through(
        &self,
        key: &ChunkKey,
    ) -> impl Iterator<Item = &Arc<RefName>> + use<'_> {
        self.refs_through.get(key).into_iter().flatten()
    }

    /// Counts the tokens of chunks, which are in order from the root, that references of `owner`
    /// cover, stale ones included.
    pub fn num_owned(&self, owner: &Owner, keys: &[ChunkKey]) -> usize {
        let is_owned = |key: &&ChunkKey| self.refs_through(key).any(|name| name.owner == *owner);
        let last = keys.iter().take_while(is_owned).last();
        last.and_then(|key| self.get(key)).map_or(0, |chunk| chunk.record.stop())
    }

    /// Whether only `owner` refers to a chunk, stale references included.
    pub(super) fn is_used_only_by(&self, owner: &Owner, key: &ChunkKey) -> bool {
        self.refs_through(key).all(|name| name.owner == *owner)
    }

    /// Whether a reference that protects its chunks covers one.
    pub(super) fn is_pinned(&self, key: &ChunkKey) -> bool {
        let mut refs = self.refs_through(key).filter_map(|name| self.refs.get(&**name));
        refs.any(|cache_ref| self.protects(cache_ref))
    }

    /// Whether a reference keeps its chunks from being evicted: a pinned one does, and so does one that
    /// its owner has left for another branch in the same namespace, as long as that is pinned.
    pub(super) fn protects(&self, cache_ref: &CacheRef) -> bool {
        if !cache_ref.name.is_stale() {
            return cache_ref.is_pinned;
        }
        let current = self.ref_of(cache_ref.owner());
        current.is_some_and(|now| now.is_pinned && now.namespace == cache_ref.namespace)
    }

    /// Moves the references to a leaf that has just been removed back to its parent.
    pub(super) fn move_refs_back(&mut self, removed: &ChunkRecord, loss: (&LossReason, i64)) {
        for name in self.refs_through.remove(&removed.key).into_iter().flatten() {
            let Some(cache_ref) = self.refs.get_mut(&*name) else { continue };
            let before = cache_ref.loss.as_ref().map(|loss| loss.num_tokens);
            cache_ref.loss = Some(Loss {
                num_tokens: before.unwrap_or(cache_ref.num_tokens),
                reason: loss.0.clone(),
                at_ms: loss.1,
            });
            (cache_ref.target, cache_ref.num_tokens) = (removed.parent, removed.start);
            self.changed_refs.insert((*name).clone());
            if name.is_stale() {
                self.remove_if_redundant(&name);
            }
        }
    }

    /// Removes a stale reference that has no chunk any more, or whose chunk another reference of the
    /// same owner covers.
    fn remove_if_redundant(&mut self, stale: &RefName) {
        let target = self.refs.get(stale).and_then(|cache_ref| cache_ref.target);
        let is_covered = |key: ChunkKey| {
            let mut names = self.refs_through(&key).filter(|name| ***name != *stale);
            names.any(|name| name.owner == stale.owner)
        };
        if target.is_none_or(is_covered) {
            self.remove_ref(stale);
        }
    }

    /// The changes of references since the last call, as they would survive a crash: where the last
    /// chunks are not written yet, a change names the last written one.
    pub(super) fn take_changed_refs(&mut self) -> Vec<CacheChange> {
        let changed = std::mem::take(&mut self.changed_refs);
        let change = |name: RefName| match self.refs.get(&name) {
            Some(cache_ref) => CacheChange::RefSet(self.as_on_disk(cache_ref)),
            None => CacheChange::RefRemoved(name),
        };
        changed.into_iter().map(change).collect()
    }

    fn as_on_disk(&self, cache_ref: &CacheRef) -> CacheRef {
        let path = cache_ref.target.map_or(Vec::new(), |key| self.path(&key));
        let last = path.iter().rfind(|chunk| chunk.is_on_disk());
        CacheRef {
            target: last.map(|chunk| chunk.key()),
            num_tokens: last.map_or(0, |chunk| chunk.record.stop()),
            ..cache_ref.clone()
        }
    }

    /// Marks the references that end at a chunk as changed once it is on disk: their last change
    /// named a chunk before it.
    pub(super) fn mark_refs_at(&mut self, key: &ChunkKey) {
        let is_at = |name: &&Arc<RefName>| {
            self.refs.get(&***name).is_some_and(|cache_ref| cache_ref.target == Some(*key))
        };
        let at: Vec<RefName> =
            self.refs_through(key).filter(is_at).map(|name| (**name).clone()).collect();
        self.changed_refs.extend(at);
    }
}
