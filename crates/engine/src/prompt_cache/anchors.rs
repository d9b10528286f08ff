//! Who holds which place among the chunks, and what they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::ChunkIndex;
use crate::records::{Anchor, Lost};

/// What an anchor holds, as far as it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The anchor.
    pub anchor: Anchor,
    /// Bytes of the chunks before its place.
    pub bytes: u64,
    /// Bytes of those that no other anchor holds.
    pub own_bytes: u64,
    /// Whether the contents of all of them are in memory.
    pub is_in_memory: bool,
    /// Other owners that hold some of the same chunks.
    pub shared_with: Vec<String>,
    /// When its last chunk was read or written, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
}

impl ChunkIndex {
    /// Moves an anchor, or makes it. What it lost is forgotten: whoever sets it has what there is.
    pub(super) fn set_anchor(&mut self, anchor: Anchor) {
        self.moved_anchors.push(anchor.clone());
        self.place(anchor);
    }

    /// An anchor from a caller's rows. A chunk that is not there was lost while nobody looked.
    pub(super) fn restore_anchor(&mut self, mut anchor: Anchor) {
        if anchor.chunk_key.as_ref().is_some_and(|key| !self.contains(key)) {
            let reason = "its file was not there any more".to_owned();
            let lost = Lost { num_tokens: anchor.num_tokens, reason, at_ms: super::now_ms() };
            anchor.lost.get_or_insert(lost);
            (anchor.chunk_key, anchor.num_tokens) = (None, 0);
            self.moved_anchors.push(anchor.clone());
        }
        self.place(anchor);
    }

    /// Lets go of an anchor; its chunks stay until they are evicted.
    pub(super) fn remove_anchor(&mut self, owner: &str) {
        let Some(anchor) = self.anchors.remove(owner) else { return };
        for key in self.keys_before(anchor.chunk_key) {
            if let Some(owners) = self.holders.get_mut(&key) {
                owners.remove(owner);
                if owners.is_empty() {
                    self.holders.remove(&key);
                }
            }
        }
    }

    fn place(&mut self, anchor: Anchor) {
        self.remove_anchor(&anchor.owner);
        self.hold(&Arc::from(anchor.owner.as_str()), anchor.chunk_key.clone());
        self.anchors.insert(anchor.owner.clone(), anchor);
    }

    /// Notes that `owner` holds a chunk and all before it.
    pub(super) fn hold(&mut self, owner: &Arc<str>, chunk_key: Option<String>) {
        for key in self.keys_before(chunk_key) {
            self.holders.entry(key).or_default().insert(Arc::clone(owner));
        }
    }

    fn keys_before(&self, chunk_key: Option<String>) -> Vec<String> {
        chunk_key.map_or(Vec::new(), |key| self.path(&key).into_iter().map(|entry| entry.record.key.clone()).collect())
    }

    /// Who holds a chunk, because their anchor stands at it or behind it.
    pub(super) fn holders(&self, key: &str) -> impl Iterator<Item = &Arc<str>> {
        self.holders.get(key).into_iter().flatten()
    }

    /// Whether nobody but `owner` holds a chunk.
    pub(super) fn is_held_only_by(&self, owner: &str, key: &str) -> bool {
        self.holders(key).all(|holder| &**holder == owner)
    }

    /// Keeps an anchor's chunks whatever the budgets say, or no longer.
    pub(super) fn pin(&mut self, owner: &str, is_pinned: bool) {
        if let Some(anchor) = self.anchors.get_mut(owner)
            && anchor.is_pinned != is_pinned
        {
            anchor.is_pinned = is_pinned;
            self.moved_anchors.push(anchor.clone());
        }
    }

    /// Whether a pinned anchor holds this chunk.
    pub(super) fn is_pinned(&self, key: &str) -> bool {
        self.holders(key).any(|owner| self.anchors.get(&**owner).is_some_and(|anchor| anchor.is_pinned))
    }

    /// The anchors that have changed since the last call.
    pub(super) fn take_moved_anchors(&mut self) -> Vec<Anchor> {
        std::mem::take(&mut self.moved_anchors)
    }

    /// What every anchor holds.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        self.anchors.values().map(|anchor| self.held_by(anchor)).collect()
    }

    /// What one anchor holds.
    pub(super) fn holding(&self, owner: &str) -> Option<Holding> {
        self.anchors.get(owner).map(|anchor| self.held_by(anchor))
    }

    fn held_by(&self, anchor: &Anchor) -> Holding {
        let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        // Who shares more stands first: all that share a chunk share those before it.
        let mut known = BTreeSet::new();
        let others = path.iter().rev().flat_map(|entry| self.holders(&entry.record.key));
        let others = others.filter(|owner| ***owner != anchor.owner && known.insert(Arc::clone(owner)));
        let shared_with = others.take(MAX_SHARED_WITH).map(|owner| owner.to_string()).collect();
        let own = path.iter().filter(|entry| self.is_held_only_by(&anchor.owner, &entry.record.key));
        Holding {
            anchor: anchor.clone(),
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
