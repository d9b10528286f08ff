//! Who holds which place among the chunks, and what they share.

use std::collections::BTreeMap;

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
        self.anchors.insert(anchor.owner.clone(), anchor);
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
        self.anchors.insert(anchor.owner.clone(), anchor);
    }

    /// Lets go of an anchor; its chunks stay until they are evicted.
    pub(super) fn remove_anchor(&mut self, owner: &str) {
        self.anchors.remove(owner);
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

    /// Whether a pinned anchor stands right behind this chunk. Those further up are safe because something continues them.
    pub(super) fn is_pinned(&self, key: &str) -> bool {
        self.anchors.values().any(|anchor| anchor.is_pinned && anchor.chunk_key.as_deref() == Some(key))
    }

    /// The anchors that have changed since the last call.
    pub(super) fn take_moved_anchors(&mut self) -> Vec<Anchor> {
        std::mem::take(&mut self.moved_anchors)
    }

    /// What every anchor holds.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for anchor in self.anchors.values() {
            for entry in anchor.chunk_key.iter().flat_map(|key| self.path(key)) {
                owners.entry(&entry.record.key).or_default().push(&anchor.owner);
            }
        }
        let holding = |anchor: &Anchor| {
            let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
            let others = |key: &str| owners.get(key).into_iter().flatten().filter(|owner| **owner != anchor.owner);
            let is_own = |key: &str| others(key).next().is_none();
            // Who shares more stands first: all that share a chunk share those before it.
            let mut shared_with: Vec<String> = Vec::new();
            for owner in path.iter().rev().flat_map(|entry| others(&entry.record.key)) {
                if shared_with.len() == MAX_SHARED_WITH {
                    break;
                }
                if !shared_with.iter().any(|known| known == owner) {
                    shared_with.push((*owner).to_owned());
                }
            }
            Holding {
                anchor: anchor.clone(),
                bytes: path.iter().map(|entry| entry.record.bytes).sum(),
                own_bytes: path.iter().filter(|entry| is_own(&entry.record.key)).map(|entry| entry.record.bytes).sum(),
                is_in_memory: !path.is_empty() && path.iter().all(|entry| entry.memory_bytes.is_some()),
                shared_with,
                last_used_at_ms: path.last().map_or(0, |entry| entry.record.last_used_at_ms),
            }
        };
        self.anchors.values().map(holding).collect()
    }
}

/// More would be a list that nobody reads.
const MAX_SHARED_WITH: usize = 8;
