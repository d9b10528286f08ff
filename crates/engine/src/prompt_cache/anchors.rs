//! Who holds which place among the chunks, and what they share.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::ChunkIndex;
use crate::records::{Anchor, CacheEvent, Lost};

/// Between an owner and the last chunk of a place that the owner has left: an earlier branch of a
/// conversation, or what another model read of it. Anchors of such names let it be found again when
/// all of the owner's is to go. Nobody outside sees them but as rows.
const LEFT: &str = "#left:";

/// Whose an anchor is by its owner's name, which says more where the owner has left the place: such
/// anchors are rows like others, and nothing else.
pub fn whose(owner: &str) -> &str {
    owner.split(LEFT).next().unwrap_or(owner)
}

/// What an anchor holds, as far as it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The anchor.
    pub anchor: Anchor,
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
    /// Moves an anchor, or makes it. What it lost is forgotten: whoever sets it has what there is.
    pub(super) fn set_anchor(&mut self, anchor: Anchor) {
        let (owner, left) = (anchor.owner.clone(), self.anchors.get(&anchor.owner).cloned());
        self.place(anchor);
        let left = left.and_then(|left| Some((left.chunk_key.clone()?, left)));
        if let Some((key, left)) = left
            && !self.is_held_by(&owner, &key)
        {
            self.place(Anchor {
                owner: format!("{owner}{LEFT}{key}"),
                is_pinned: false,
                lost: None,
                ..left
            });
        }
        // Those that the owner has come back to, or that stand on the way to another.
        for left in self.left_by(&owner) {
            self.remove_if_needless(&left);
        }
    }

    /// The anchors of the places that an owner has left.
    pub(super) fn left_by(&self, owner: &str) -> Vec<String> {
        let first = format!("{owner}{LEFT}");
        self.anchors
            .range(first.clone()..)
            .map(|(left, _)| left)
            .take_while(|left| left.starts_with(&first))
            .cloned()
            .collect()
    }

    /// An anchor from a caller's rows. A chunk that is not there was lost while nobody looked.
    pub(super) fn restore_anchor(&mut self, mut anchor: Anchor) {
        if anchor.chunk_key.as_ref().is_some_and(|key| !self.contains(key)) {
            let reason = "its file was not there any more".to_owned();
            let lost = Lost { num_tokens: anchor.num_tokens, reason, at_ms: super::now_ms() };
            anchor.lost.get_or_insert(lost);
            (anchor.chunk_key, anchor.num_tokens) = (None, 0);
            self.moved_anchors.insert(anchor.owner.clone());
        }
        self.let_go(&anchor.owner);
        // Nothing is left of what was left.
        if anchor.chunk_key.is_some() || whose(&anchor.owner) == anchor.owner {
            self.hold(&Arc::from(anchor.owner.as_str()), anchor.chunk_key.as_deref());
            self.anchors.insert(anchor.owner.clone(), anchor);
        } else {
            self.moved_anchors.insert(anchor.owner);
        }
    }

    /// Forgets an anchor; its chunks stay until they are evicted.
    pub(super) fn remove_anchor(&mut self, owner: &str) {
        if self.let_go(owner) {
            self.moved_anchors.insert(owner.to_owned());
        }
    }

    /// Drops an anchor without telling so; whether there was one.
    pub(super) fn let_go(&mut self, owner: &str) -> bool {
        let Some(anchor) = self.anchors.remove(owner) else { return false };
        let mut next = anchor.chunk_key.as_deref();
        while let Some(record) =
            next.and_then(|key| self.entries.get(key)).map(|entry| &entry.record)
        {
            if let Some(owners) = self.holders.get_mut(&record.key) {
                owners.remove(owner);
                if owners.is_empty() {
                    self.holders.remove(&record.key);
                }
            }
            next = record.parent_key.as_deref();
        }
        true
    }

    fn place(&mut self, anchor: Anchor) {
        self.let_go(&anchor.owner);
        self.moved_anchors.insert(anchor.owner.clone());
        self.hold(&Arc::from(anchor.owner.as_str()), anchor.chunk_key.as_deref());
        self.anchors.insert(anchor.owner.clone(), anchor);
    }

    /// Notes that `owner` holds a chunk and all before it.
    pub(super) fn hold(&mut self, owner: &Arc<str>, chunk_key: Option<&str>) {
        let mut next = chunk_key;
        while let Some(record) =
            next.and_then(|key| self.entries.get(key)).map(|entry| &entry.record)
        {
            match self.holders.get_mut(&record.key) {
                Some(owners) => drop(owners.insert(Arc::clone(owner))),
                None => drop(
                    self.holders.insert(record.key.clone(), BTreeSet::from([Arc::clone(owner)])),
                ),
            }
            next = record.parent_key.as_deref();
        }
    }

    /// Who holds a chunk, because their anchor stands at it or behind it.
    pub(super) fn holders(&self, key: &str) -> impl Iterator<Item = &Arc<str>> {
        self.holders.get(key).into_iter().flatten()
    }

    /// Whether nobody but `owner` holds a chunk.
    pub(super) fn is_held_only_by(&self, owner: &str, key: &str) -> bool {
        self.holders(key).all(|holder| whose(holder) == owner)
    }

    /// Whether the anchor of this very name holds a chunk.
    fn is_held_by(&self, owner: &str, key: &str) -> bool {
        self.holders.get(key).is_some_and(|owners| owners.contains(owner))
    }

    /// Lets an anchor fall back to before its last chunk, which is gone.
    pub(super) fn fall_back(
        &mut self,
        owner: &str,
        to: (Option<&str>, usize),
        reason: &str,
        at_ms: i64,
    ) {
        let Some(anchor) = self.anchors.get_mut(owner) else { return };
        let num_tokens = anchor.lost.as_ref().map_or(anchor.num_tokens, |lost| lost.num_tokens);
        anchor.lost = Some(Lost { num_tokens, reason: reason.to_owned(), at_ms });
        (anchor.chunk_key, anchor.num_tokens) = (to.0.map(str::to_owned), to.1);
        self.moved_anchors.insert(owner.to_owned());
        if whose(owner) != owner {
            self.remove_if_needless(owner);
        }
    }

    /// Forgets the anchor of a place that was left where nothing is left of it, or something else
    /// of its owner's holds it.
    fn remove_if_needless(&mut self, left: &str) {
        let key = self.anchors.get(left).and_then(|anchor| anchor.chunk_key.as_deref());
        if key.is_none_or(|key| {
            self.holders(key).any(|holder| **holder != *left && whose(holder) == whose(left))
        }) {
            self.remove_anchor(left);
        }
    }

    /// Keeps an anchor's chunks whatever the budgets say, or no longer.
    pub(super) fn pin(&mut self, owner: &str, is_pinned: bool) {
        if let Some(anchor) = self.anchors.get_mut(owner)
            && anchor.is_pinned != is_pinned
        {
            anchor.is_pinned = is_pinned;
            self.moved_anchors.insert(owner.to_owned());
        }
    }

    /// Whether a pinned anchor holds this chunk.
    pub(super) fn is_pinned(&self, key: &str) -> bool {
        self.holders(key)
            .any(|owner| self.anchors.get(&**owner).is_some_and(|anchor| anchor.is_pinned))
    }

    /// What has become of the anchors that have changed since the last call, as far as it survives
    /// a crash: where chunks are yet to be written, an anchor stands before them.
    pub(super) fn take_moved_anchors(&mut self) -> Vec<CacheEvent> {
        let moved = std::mem::take(&mut self.moved_anchors);
        let told = moved.into_iter().map(|owner| match self.anchors.get(&owner) {
            Some(anchor) => CacheEvent::Anchored(self.on_disk(anchor)),
            None => CacheEvent::Released { owner },
        });
        told.collect()
    }

    fn on_disk(&self, anchor: &Anchor) -> Anchor {
        let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        let record = path.iter().rfind(|entry| entry.is_on_disk).map(|entry| &entry.record);
        let (chunk_key, num_tokens) =
            record.map_or((None, 0), |record| (Some(record.key.clone()), record.stop()));
        Anchor { chunk_key, num_tokens, ..anchor.clone() }
    }

    /// Notes that a chunk is on disk: anchors that stand at it were told to stand before it.
    pub(super) fn tell_those_at(&mut self, key: &str) {
        let stands_at = |owner: &&Arc<str>| {
            self.anchors
                .get(&***owner)
                .is_some_and(|anchor| anchor.chunk_key.as_deref() == Some(key))
        };
        let at: Vec<String> =
            self.holders(key).filter(stands_at).map(|owner| owner.to_string()).collect();
        self.moved_anchors.extend(at);
    }

    /// What every owner holds at their place.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let anchors = self.anchors.values().filter(|anchor| whose(&anchor.owner) == anchor.owner);
        anchors.map(|anchor| self.held_by(anchor)).collect()
    }

    /// What one anchor holds.
    pub(super) fn holding(&self, owner: &str) -> Option<Holding> {
        self.anchors.get(owner).map(|anchor| self.held_by(anchor))
    }

    fn held_by(&self, anchor: &Anchor) -> Holding {
        let path = anchor.chunk_key.as_deref().map_or(Vec::new(), |key| self.path(key));
        // Who shares more stands first: all that share a chunk share those before it.
        let mut known = BTreeSet::new();
        let others = path
            .iter()
            .rev()
            .flat_map(|entry| self.holders(&entry.record.key))
            .map(|owner| whose(owner));
        let others = others.filter(|owner| *owner != anchor.owner && known.insert(*owner));
        let shared_with = others.take(MAX_SHARED_WITH).map(str::to_owned).collect();
        let own =
            path.iter().filter(|entry| self.is_held_only_by(&anchor.owner, &entry.record.key));
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
