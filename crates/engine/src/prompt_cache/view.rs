//! The prompt cache as people look at it: the tree of what is kept, who holds what, and how much of
//! the budgets is used.

use std::collections::{BTreeMap, HashSet};

use super::anchors::{Holding, whose};
use super::chunk_file;
use super::eviction::{CLEARED, PURGED};
use super::index::{ChunkIndex, Entry};
use super::now_ms;
use super::shelf::{CacheFigures, SharedShelf};
use crate::records::{Anchor, ChunkKind, ChunkRecord};

/// A run of chunks that only one other continues, of one kind, with nobody's place in it but at its
/// end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheNode {
    /// The key of its last chunk.
    pub key: String,
    /// The node that it continues.
    pub parent_key: Option<String>,
    /// The model's fingerprint.
    pub fingerprint: String,
    /// Whether its tokens only stand for what a file held without saying.
    pub is_opaque: bool,
    /// Position of its first token.
    pub start: usize,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Whose words they are.
    pub kind: ChunkKind,
    /// Whether the contents of all its chunks are in memory.
    pub is_in_memory: bool,
    /// How often a conversation went on behind its last chunk, or from it.
    pub hits: u64,
    /// When that was last, in milliseconds since the Unix epoch.
    pub last_used_at_ms: i64,
    /// Owners of the anchors at its end.
    pub owners: Vec<String>,
    /// Whether one of them is pinned.
    pub is_pinned: bool,
}

/// Everything that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheView {
    /// Bytes on disk, and the most that may be there.
    pub disk: (u64, u64),
    /// Bytes in memory beside the conversation that ran last, and the most that may be there.
    pub memory: (u64, u64),
    /// How many chunks there are.
    pub num_chunks: usize,
    /// Depth first; among siblings the one used last comes first.
    pub nodes: Vec<CacheNode>,
    /// Nodes left out because there are too many.
    pub num_hidden_nodes: usize,
    /// The names of the models that read it, by their fingerprints.
    pub models: BTreeMap<String, String>,
    /// How well it has served.
    pub figures: CacheFigures,
    /// Why chunks could not be written lately.
    pub problem: Option<String>,
}

/// A way to look at the prompt cache, and to change what it keeps, without waiting for the engine's
/// thread.
#[derive(Debug, Clone)]
pub struct CacheWindow(SharedShelf);

impl CacheWindow {
    pub(super) fn new(shelf: SharedShelf) -> Self {
        CacheWindow(shelf)
    }

    /// Everything, as at most `max_nodes` nodes.
    pub fn view(&self, max_nodes: usize) -> CacheView {
        let shelf = self.0.lock();
        let index = &shelf.index;
        let (nodes, num_hidden_nodes) = nodes(index, max_nodes);
        let model = |anchor: &Anchor| (anchor.space.fingerprint.clone(), anchor.model.clone());
        CacheView {
            models: index.anchors.values().map(model).collect(),
            disk: (index.disk.bytes, index.disk.budget),
            memory: (index.bytes_in_memory(), index.memory.budget),
            num_chunks: index.entries.len(),
            nodes,
            num_hidden_nodes,
            figures: shelf.figures,
            problem: shelf.problem.clone(),
        }
    }

    /// Why chunks could not be written lately.
    pub fn problem(&self) -> Option<String> {
        self.0.lock().problem.clone()
    }

    /// What every anchor holds.
    pub fn holdings(&self) -> Vec<Holding> {
        self.0.lock().index.holdings()
    }

    /// What one owner's anchor holds; costs the same however many others there are.
    pub fn holding(&self, owner: &str) -> Option<Holding> {
        self.0.lock().index.holding(owner)
    }

    /// The tokens before an anchor's place, as far as they are kept.
    pub fn tokens(&self, owner: &str) -> Vec<u32> {
        self.path(owner).into_iter().flat_map(|record| record.token_ids).collect()
    }

    /// The chunks before an anchor's place, from the first of the conversation on.
    pub fn path(&self, owner: &str) -> Vec<ChunkRecord> {
        let shelf = self.0.lock();
        let key = shelf.index.anchors.get(owner).and_then(|anchor| anchor.chunk_key.clone());
        key.map_or(Vec::new(), |key| {
            shelf.index.path(&key).into_iter().map(|entry| entry.record.clone()).collect()
        })
    }

    /// Lets `owner` hold the same place as `other`, pinned or not; false where `other` holds
    /// nothing.
    pub fn copy_anchor(&self, other: &str, owner: &str, is_pinned: bool) -> bool {
        let mut shelf = self.0.lock();
        let Some(anchor) =
            shelf.index.anchors.get(other).filter(|anchor| anchor.chunk_key.is_some())
        else {
            return false;
        };
        let anchor = Anchor { owner: owner.to_owned(), is_pinned, lost: None, ..anchor.clone() };
        shelf.index.set_anchor(anchor);
        shelf.tell_anchors();
        true
    }

    /// Keeps what an anchor holds whatever the budgets say, or no longer.
    pub fn pin(&self, owner: &str, is_pinned: bool) {
        let mut shelf = self.0.lock();
        shelf.index.pin(owner, is_pinned);
        shelf.tell_anchors();
    }

    /// Forgets an anchor; what it held stays until it is evicted.
    pub fn remove_anchor(&self, owner: &str) {
        let mut shelf = self.0.lock();
        shelf
            .index
            .left_by(owner)
            .iter()
            .map(String::as_str)
            .chain([owner])
            .for_each(|owner| shelf.index.remove_anchor(owner));
        shelf.tell_anchors();
    }

    /// Removes what only `owner` holds, files included, also where its place was before; returns
    /// the bytes.
    pub fn purge(&self, owner: &str) -> u64 {
        self.0.lock().purged.push(owner.to_owned());
        self.discard(PURGED, |index| index.purge(owner, now_ms()))
    }

    /// Removes what only `owner` holds, and its anchor; returns the bytes.
    pub fn release(&self, owner: &str) -> u64 {
        let bytes = self.purge(owner);
        self.remove_anchor(owner);
        bytes
    }

    /// Removes a node, as [`CacheNode::key`] names it, and what continues it; returns the bytes,
    /// none where there is no such node.
    pub fn remove(&self, key: &str) -> Option<u64> {
        self.0.lock().index.get(key)?;
        Some(self.discard(PURGED, |index| index.remove_with_descendants(key, PURGED, now_ms())))
    }

    /// Takes over what another program did to the same folder: chunks and anchors that it added,
    /// and chunks that it removed, which are those without a record and without a file.
    pub fn adopt(&self, mut chunks: Vec<ChunkRecord>, anchors: Vec<Anchor>) {
        let mut shelf = self.0.lock();
        let known: HashSet<&str> = chunks.iter().map(|record| record.key.as_str()).collect();
        let is_gone = |record: &&ChunkRecord| {
            let path = || chunk_file::path(&shelf.folder, &record.space.fingerprint, &record.key);
            shelf.index.is_on_disk(&record.key)
                && !known.contains(record.key.as_str())
                && !path().exists()
        };
        let gone: Vec<String> =
            shelf.index.records().filter(is_gone).map(|record| record.key.clone()).collect();
        for key in gone {
            shelf.forget(&key, "removed by another program");
        }
        // Beginnings first. What has gone since the rows were read is not there, nor is what
        // continues it.
        chunks.sort_by_key(|record| record.start);
        for record in chunks {
            let is_led_to =
                record.parent_key.as_ref().is_none_or(|parent| shelf.index.is_on_disk(parent));
            let path = || chunk_file::path(&shelf.folder, &record.space.fingerprint, &record.key);
            if !shelf.index.contains(&record.key) && is_led_to && path().exists() {
                shelf.index.insert(record, None);
            }
        }
        for anchor in anchors {
            if !shelf.index.anchors.contains_key(&anchor.owner) {
                shelf.index.restore_anchor(anchor);
            }
        }
        shelf.keep_to_budgets();
        drop(shelf);
        self.0.publish();
    }

    /// As [`CacheWindow::adopt`], for a program that only looks on: places, pins and times of use
    /// become those of the rows.
    pub fn take_over(&self, chunks: Vec<ChunkRecord>, anchors: Vec<Anchor>) {
        {
            let mut shelf = self.0.lock();
            anchors.iter().for_each(|anchor| {
                shelf.index.let_go(&anchor.owner);
            });
            let is_newer = |record: &&ChunkRecord| {
                shelf
                    .index
                    .get(&record.key)
                    .is_some_and(|entry| entry.record.last_used_at_ms < record.last_used_at_ms)
            };
            let used: Vec<(String, i64)> = chunks
                .iter()
                .filter(is_newer)
                .map(|record| (record.key.clone(), record.last_used_at_ms))
                .collect();
            used.into_iter().for_each(|(key, at_ms)| shelf.index.touch(&[key], at_ms));
        }
        self.adopt(chunks, anchors);
    }

    /// Removes all that no pinned anchor holds; returns the bytes.
    pub fn clear(&self) -> u64 {
        self.discard(CLEARED, |index| index.clear(now_ms()))
    }

    /// Lets go of what `remove` removes; returns the bytes.
    fn discard(
        &self,
        reason: &str,
        remove: impl FnOnce(&mut ChunkIndex) -> Vec<ChunkRecord>,
    ) -> u64 {
        let mut shelf = self.0.lock();
        let removed = remove(&mut shelf.index);
        let bytes = removed.iter().map(|record| record.bytes).sum();
        shelf.discard(removed, reason);
        shelf.tell_anchors();
        drop(shelf);
        self.0.publish();
        bytes
    }
}

/// The first nodes, depth first, and how many there are beside them.
fn nodes(index: &ChunkIndex, max_nodes: usize) -> (Vec<CacheNode>, usize) {
    let mut owners: BTreeMap<&str, Vec<&Anchor>> = BTreeMap::new();
    for anchor in index.anchors.values() {
        if let Some(key) = &anchor.chunk_key {
            owners.entry(key).or_default().push(anchor);
        }
    }
    let mut roots: Vec<&Entry> =
        index.entries.values().filter(|entry| entry.record.parent_key.is_none()).collect();
    let by_use = |entry: &&Entry| {
        (entry.record.last_used_at_ms, std::cmp::Reverse(entry.record.key.clone()))
    };
    roots.sort_by_key(by_use);
    // The last one is taken first.
    let mut pending: Vec<(&Entry, Option<String>)> =
        roots.into_iter().map(|root| (root, None)).collect();
    let (mut nodes, mut num_hidden) = (Vec::new(), 0);
    while let Some((first, parent_key)) = pending.pop() {
        let mut node = CacheNode {
            key: first.record.key.clone(),
            parent_key,
            fingerprint: first.record.space.fingerprint.clone(),
            is_opaque: first.record.space.is_opaque(),
            start: first.record.start,
            token_ids: Vec::new(),
            bytes: 0,
            kind: first.record.kind,
            is_in_memory: true,
            hits: 0,
            last_used_at_ms: 0,
            owners: Vec::new(),
            is_pinned: false,
        };
        let mut entry = first;
        let children = loop {
            let record = &entry.record;
            node.key.clone_from(&record.key);
            // What is not shown is not copied: whoever computes waits for the shelf.
            if nodes.len() < max_nodes {
                node.token_ids.extend(&record.token_ids);
            }
            node.bytes += record.bytes;
            node.is_in_memory &= entry.memory_bytes.is_some();
            (node.hits, node.last_used_at_ms) = (record.hits, record.last_used_at_ms);
            let mut children: Vec<&Entry> = index.children_of(&record.key).collect();
            match children.as_slice() {
                [only]
                    if only.record.kind == node.kind
                        && !owners.contains_key(record.key.as_str()) =>
                {
                    entry = only
                }
                _ => {
                    children.sort_by_key(by_use);
                    break children;
                }
            }
        };
        let anchors = owners.get(node.key.as_str()).into_iter().flatten();
        node.is_pinned = anchors.clone().any(|anchor| anchor.is_pinned);
        node.owners = anchors.map(|anchor| whose(&anchor.owner).to_owned()).collect();
        node.owners.dedup();
        pending.extend(children.into_iter().map(|child| (child, Some(node.key.clone()))));
        if nodes.len() < max_nodes {
            nodes.push(node);
        } else {
            num_hidden += 1;
        }
    }
    (nodes, num_hidden)
}
