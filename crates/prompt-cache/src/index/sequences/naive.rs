//! A naive model of the index: a list of chunks, each with the tokens of its path, and a list of
//! references. It is slow, and short enough to be read.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::*;
use crate::{ChunkKind, KvFormat, Namespace, Owner};

/// The chunks from a prompt's first token on, each as its tokens.
pub(super) type Path = Vec<Vec<u32>>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct NaiveChunk {
    pub(super) namespace: usize,
    pub(super) path: Path,
    /// Follows from both; computing it each time would take most of the test's time.
    pub(super) key: ChunkKey,
    pub(super) kind: ChunkKind,
    pub(super) held_from: usize,
    pub(super) has_state: bool,
    pub(super) used_ms: i64,
    pub(super) disk_bytes: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) is_pending: bool,
}

impl NaiveChunk {
    pub(super) fn key(&self) -> ChunkKey {
        self.key
    }

    pub(super) fn stop(&self) -> usize {
        self.path.iter().map(Vec::len).sum()
    }

    pub(super) fn start(&self) -> usize {
        self.stop() - self.path.last().map_or(0, Vec::len)
    }

    pub(super) fn ids(&self) -> Vec<u32> {
        self.path.concat()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct NaiveRef {
    pub(super) namespace: usize,
    pub(super) target: Option<ChunkKey>,
    pub(super) is_pinned: bool,
    pub(super) loss: Option<(usize, i64)>,
}

#[derive(Debug, Default)]
pub(super) struct Naive {
    pub(super) chunks: Vec<NaiveChunk>,
    pub(super) refs: BTreeMap<RefName, NaiveRef>,
    /// What resident conversations hold.
    pub(super) resident: Vec<ChunkKey>,
}

impl Naive {
    pub(super) fn get(&self, key: ChunkKey) -> &NaiveChunk {
        self.chunks.iter().find(|chunk| chunk.key() == key).expect("a chunk")
    }

    pub(super) fn keys(&self) -> Vec<ChunkKey> {
        self.chunks.iter().map(NaiveChunk::key).collect()
    }

    /// The chunks of a path, the root first.
    pub(super) fn path(&self, chunk: &NaiveChunk) -> Vec<&NaiveChunk> {
        let is_on_path = |other: &&NaiveChunk| {
            other.namespace == chunk.namespace && chunk.path.starts_with(&other.path)
        };
        let mut path: Vec<&NaiveChunk> = self.chunks.iter().filter(is_on_path).collect();
        path.sort_by_key(|chunk| chunk.path.len());
        path
    }

    pub(super) fn continues(&self, chunk: &NaiveChunk, ancestor: ChunkKey) -> bool {
        self.path(chunk).iter().any(|on_path| on_path.key() == ancestor)
    }

    pub(super) fn is_pinned(&self, key: ChunkKey) -> bool {
        let protects = |name: &RefName, reference: &NaiveRef| {
            let current = &self.refs.get(&RefName::from(name.owner.clone()));
            current.is_some_and(|now| now.is_pinned && now.namespace == reference.namespace)
        };
        let mut pinned = self.refs.iter().filter(|(name, found)| protects(name, found));
        pinned
            .any(|(_, pin)| pin.target.is_some_and(|target| self.continues(self.get(target), key)))
    }

    /// Whether one of these references covers a chunk.
    pub(super) fn is_covered(&self, key: ChunkKey, by: impl Fn(&RefName) -> bool) -> bool {
        self.refs.iter().any(|(name, reference)| {
            let covers = |target| self.continues(self.get(target), key);
            by(name) && reference.target.is_some_and(covers)
        })
    }

    /// The most tokens of a prompt that can be restored, by trying each position of each path.
    pub(super) fn num_restorable(
        &self,
        namespace: usize,
        ids: &[u32],
        needs: RestoreNeeds,
    ) -> usize {
        let mut most = 0;
        for last in self.chunks.iter().filter(|chunk| chunk.namespace == namespace) {
            let shared = common(&last.ids(), ids);
            if shared <= last.start() {
                continue;
            }
            let path = self.path(last);
            let is_restorable = |position: usize| {
                let has_state =
                    || path.iter().any(|chunk| chunk.stop() == position && chunk.has_state);
                let window = needs
                    .window
                    .map_or(position..position, |window| position.saturating_sub(window)..position);
                let is_held = |token: usize| {
                    let mut with = path.iter().filter(|chunk| chunk.start() <= token);
                    with.rfind(|chunk| token < chunk.stop())
                        .is_some_and(|chunk| chunk.held_from <= token)
                };
                (!needs.needs_state || has_state()) && window.into_iter().all(is_held)
            };
            most = most.max((1..=shared).rfind(|position| is_restorable(*position)).unwrap_or(0));
        }
        most
    }

    /// The stops of the stored paths that match a prompt whole.
    pub(super) fn whole_matches(&self, namespace: usize, ids: &[u32]) -> Vec<&NaiveChunk> {
        let matches =
            |chunk: &&NaiveChunk| chunk.namespace == namespace && ids.starts_with(&chunk.ids());
        self.chunks.iter().filter(matches).collect()
    }

    /// Where a plan must begin: behind the longest path in which no chunk stands in the way.
    pub(super) fn num_extendable(
        &self,
        namespace: usize,
        ids: &[u32],
        needs: RestoreNeeds,
        positions: &[usize],
    ) -> usize {
        let stands_in_the_way = |chunk: &NaiveChunk| {
            positions.iter().any(|&position| {
                let from = position.saturating_sub(needs.window.unwrap_or(0));
                let (start, stop) = (chunk.start(), chunk.stop());
                start < position
                    && (position < stop
                        || (position == stop && needs.needs_state && !chunk.has_state)
                        || (stop > from && chunk.held_from > start.max(from)))
            })
        };
        let ends = self.whole_matches(namespace, ids).into_iter();
        let free =
            ends.filter(|last| !self.path(last).iter().any(|chunk| stands_in_the_way(chunk)));
        free.map(NaiveChunk::stop).max().unwrap_or(0)
    }

    pub(super) fn leaves(&self) -> Vec<&NaiveChunk> {
        let is_leaf = |chunk: &&NaiveChunk| {
            !self.chunks.iter().any(|other| {
                other.namespace == chunk.namespace
                    && other.path.len() == chunk.path.len() + 1
                    && other.path.starts_with(&chunk.path)
            })
        };
        self.chunks.iter().filter(is_leaf).collect()
    }

    /// The leaf that is evicted next.
    pub(super) fn next_leaf(&self, may_go: impl Fn(&NaiveChunk) -> bool) -> Option<ChunkKey> {
        let leaves = self.leaves();
        let count = |kind| leaves.iter().filter(|leaf| leaf.kind == kind).count();
        use ChunkKind::{Assistant, System, User};
        let mut order = Vec::new();
        order.extend((count(Assistant) >= count(User)).then_some(Assistant));
        order.extend((count(User) >= count(System)).then_some(User));
        order.extend([System, Assistant, User]);
        order.into_iter().find_map(|kind| {
            let of_kind = leaves.iter().filter(|leaf| leaf.kind == kind);
            let may_go = of_kind.filter(|leaf| may_go(leaf) && !self.is_pinned(leaf.key()));
            may_go
                .min_by_key(|leaf| (leaf.used_ms, Reverse(leaf.start()), leaf.key()))
                .map(|leaf| leaf.key())
        })
    }

    pub(super) fn remove(&mut self, key: ChunkKey, at_ms: i64) {
        let position = self.chunks.iter().position(|chunk| chunk.key() == key).expect("a chunk");
        let removed = self.chunks.remove(position);
        let parent = self.path(&removed).last().map(|parent| parent.key());
        let at = |reference: &NaiveRef| reference.target == Some(key);
        let names: Vec<RefName> =
            self.refs.iter().filter(|(_, found)| at(found)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let reference = self.refs.get_mut(&name).expect("a reference");
            let num_tokens = reference.loss.map_or(removed.stop(), |loss| loss.0);
            (reference.loss, reference.target) = (Some((num_tokens, at_ms)), parent);
            if name.is_stale() {
                self.remove_if_redundant(&name);
            }
        }
    }

    pub(super) fn remove_subtree(&mut self, key: ChunkKey, at_ms: i64) {
        let mut below: Vec<&NaiveChunk> =
            self.chunks.iter().filter(|chunk| self.continues(chunk, key)).collect();
        below.sort_by_key(|chunk| Reverse(chunk.path.len()));
        for key in below.into_iter().map(NaiveChunk::key).collect::<Vec<_>>() {
            self.remove(key, at_ms);
        }
    }

    pub(super) fn remove_if_redundant(&mut self, stale: &RefName) {
        let Some(target) = self.refs.get(stale).map(|reference| reference.target) else { return };
        let is_other = |name: &RefName| name != stale && name.owner == stale.owner;
        if target.is_none_or(|key| self.is_covered(key, is_other)) {
            self.refs.remove(stale);
        }
    }

    pub(super) fn names_of(&self, owner: &Owner) -> Vec<RefName> {
        self.refs.keys().filter(|name| name.owner == *owner).cloned().collect()
    }

    pub(super) fn set_ref(
        &mut self,
        name: RefName,
        namespace: usize,
        target: Option<ChunkKey>,
        is_pinned: bool,
    ) {
        let reference = NaiveRef { namespace, target, is_pinned, loss: None };
        let before = self.refs.insert(name.clone(), reference);
        if let Some(before) = before
            && let Some(key) = before.target
            && !self.is_covered(key, |other| *other == name)
        {
            let stale = RefName { stale_key: Some(key), ..name.clone() };
            self.refs.insert(stale, NaiveRef { is_pinned: false, loss: None, ..before });
        }
        for stale in self.names_of(&name.owner).into_iter().filter(RefName::is_stale) {
            self.remove_if_redundant(&stale);
        }
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        self.chunks.iter().filter_map(|chunk| chunk.disk_bytes).sum()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.chunks.iter().filter_map(|chunk| chunk.memory_bytes).sum()
    }

    /// Bytes on disk that an eviction cannot free.
    pub(super) fn protected_bytes(&self, keep: Option<ChunkKey>) -> u64 {
        let is_protected = |chunk: &&NaiveChunk| {
            let key = chunk.key();
            let mut pending = self.chunks.iter().filter(|other| other.is_pending);
            self.is_pinned(key)
                || pending.any(|other| self.continues(other, key))
                || keep.is_some_and(|keep| self.continues(self.get(keep), key))
        };
        self.chunks.iter().filter(is_protected).filter_map(|chunk| chunk.disk_bytes).sum()
    }

    pub(super) fn free_on_disk(&mut self, surplus: u64, keep: Option<ChunkKey>, at_ms: i64) {
        let before = self.disk_bytes();
        while before - self.disk_bytes() < surplus {
            let may_go = |chunk: &NaiveChunk| {
                let begins_on_disk =
                    self.path(chunk).first().is_some_and(|root| root.disk_bytes.is_some());
                let blocks = !chunk.is_pending && begins_on_disk;
                (chunk.disk_bytes.is_some() || blocks) && Some(chunk.key()) != keep
            };
            let Some(leaf) = self.next_leaf(may_go) else { return };
            self.remove(leaf, at_ms);
        }
    }

    pub(super) fn drop_resident_contents(&mut self) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.disk_bytes.is_some()) {
            if self.resident.contains(&chunk.key) {
                chunk.memory_bytes = None;
            }
        }
    }

    pub(super) fn enforce_memory_budget(&mut self, budget: u64, at_ms: i64) {
        while self.memory_bytes() > budget {
            let on_both = self
                .chunks
                .iter_mut()
                .filter(|chunk| chunk.disk_bytes.is_some() && chunk.memory_bytes.is_some());
            let oldest =
                on_both.min_by_key(|chunk| (chunk.used_ms, Reverse(chunk.start()), chunk.key()));
            if let Some(chunk) = oldest {
                chunk.memory_bytes = None;
                continue;
            }
            let may_go = |chunk: &NaiveChunk| !chunk.is_pending && chunk.memory_bytes.is_some();
            let Some(leaf) = self.next_leaf(may_go) else { return };
            self.remove(leaf, at_ms);
        }
    }

    /// Whether the index holds the same.
    pub(super) fn compare(&self, index: &ChunkIndex, when: &str) {
        assert_eq!(self.chunks.len(), index.num_chunks(), "{when}");
        for chunk in &self.chunks {
            let found = index.get(&chunk.key()).unwrap_or_else(|| panic!("{when}: {chunk:?}"));
            let record = found.record();
            assert_eq!(
                (record.start, record.stop(), record.kind, record.held_from, record.has_state),
                (chunk.start(), chunk.stop(), chunk.kind, chunk.held_from, chunk.has_state),
                "{when}"
            );
            let file_bytes = record.file.as_ref().map(|file| file.num_bytes);
            assert_eq!(
                (file_bytes, found.memory_bytes, found.is_pending, record.last_used_at_ms),
                (chunk.disk_bytes, chunk.memory_bytes, chunk.is_pending, chunk.used_ms),
                "{when}: {chunk:?}"
            );
        }
        let refs: BTreeMap<RefName, NaiveRef> = index.refs().map(naive_ref).collect();
        assert_eq!(refs, self.refs, "{when}");
    }
}

pub(super) fn key_of(number: usize, path: &Path) -> ChunkKey {
    let root = ChunkKey::root(&namespace(number));
    path.iter().fold(root, |key, ids| key.child(&Tokens::known(ids.as_slice())))
}

pub(super) fn naive_ref(cache_ref: &CacheRef) -> (RefName, NaiveRef) {
    let loss = cache_ref.loss.as_ref().map(|loss| (loss.num_tokens, loss.at_ms));
    let number = usize::from(cache_ref.namespace != namespace(0));
    let (target, is_pinned) = (cache_ref.target, cache_ref.is_pinned);
    (cache_ref.name.clone(), NaiveRef { namespace: number, target, is_pinned, loss })
}

pub(super) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

pub(super) fn namespace(number: usize) -> Namespace {
    let kv_format = match number {
        0 => KvFormat::Plain,
        _ => KvFormat::Quantized { bits: 8, group_size: 64 },
    };
    Namespace::computed("0123456789abcdef", kv_format)
}
