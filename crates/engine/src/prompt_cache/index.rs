//! Which chunks there are, what they continue, and what to do with them: pure policy, no files.

use std::collections::{BTreeSet, HashMap};

use super::ChunkRecord;

/// The most tokens of one chunk.
pub(super) const MAX_CHUNK_TOKENS: usize = 256;

/// All stored chunks, as a forest by parent.
#[derive(Debug)]
pub(super) struct ChunkIndex {
    chunks: HashMap<String, ChunkRecord>,
    /// Children by parent key; the roots of a model under its root key.
    children: HashMap<String, BTreeSet<String>>,
    total_bytes: u64,
    budget_bytes: u64,
}

/// The longest stored beginning of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The chunks in order; of the last one perhaps only the first tokens.
    pub(super) parts: Vec<PrefixPart>,
    /// Their tokens together.
    pub(super) num_tokens: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PrefixPart {
    pub(super) record: ChunkRecord,
    pub(super) num_tokens: usize,
}

/// A chunk that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedChunk {
    pub(super) key: String,
    pub(super) parent_key: Option<String>,
    pub(super) fingerprint: String,
    pub(super) start: usize,
    pub(super) token_ids: Vec<u32>,
}

impl ChunkIndex {
    pub(super) fn new(budget_bytes: u64, records: Vec<ChunkRecord>) -> Self {
        let mut index = ChunkIndex { chunks: HashMap::new(), children: HashMap::new(), total_bytes: 0, budget_bytes };
        for record in records {
            index.insert(record);
        }
        index
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Whether nothing may be stored at all.
    pub(super) fn is_off(&self) -> bool {
        self.budget_bytes == 0
    }

    /// Every chunk, in no order.
    pub(super) fn records(&self) -> impl Iterator<Item = &ChunkRecord> {
        self.chunks.values()
    }

    pub(super) fn set_budget(&mut self, budget_bytes: u64) {
        self.budget_bytes = budget_bytes;
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.chunks.contains_key(key)
    }

    pub(super) fn insert(&mut self, record: ChunkRecord) {
        self.children.entry(self.parent_of(&record)).or_default().insert(record.key.clone());
        self.total_bytes += record.bytes;
        if let Some(old) = self.chunks.insert(record.key.clone(), record) {
            self.total_bytes -= old.bytes;
        }
    }

    /// The longest run of chunks that begins as `tokens` do; the last may match in part.
    pub(super) fn longest_prefix(&self, fingerprint: &str, tokens: &[u32]) -> Prefix {
        let mut prefix = Prefix { parts: Vec::new(), num_tokens: 0 };
        let mut parent = root_key(fingerprint);
        loop {
            let rest = &tokens[prefix.num_tokens..];
            let best = self
                .children(&parent)
                .map(|record| (super::common_prefix(&record.token_ids, rest), record))
                .max_by_key(|(matched, record)| (*matched, *matched == record.token_ids.len()));
            let Some((matched, record)) = best.filter(|(matched, _)| *matched > 0) else { return prefix };
            prefix.parts.push(PrefixPart { record: record.clone(), num_tokens: matched });
            prefix.num_tokens += matched;
            if matched < record.token_ids.len() {
                return prefix;
            }
            parent = record.key.clone();
        }
    }

    /// The chunks that `tokens` still need: after those already stored, cut at every boundary and at 256 tokens.
    pub(super) fn plan(&self, fingerprint: &str, tokens: &[u32], boundaries: &[usize]) -> Vec<PlannedChunk> {
        let mut start = 0;
        let mut parent_key = None;
        for part in self.longest_prefix(fingerprint, tokens).parts {
            // A chunk is never rewritten: one that matches in part gets a sibling that repeats the matching tokens.
            if part.num_tokens == part.record.token_ids.len() {
                start += part.num_tokens;
                parent_key = Some(part.record.key);
            }
        }
        let mut planned = Vec::new();
        while start < tokens.len() {
            let boundary = boundaries.iter().copied().find(|&boundary| boundary > start).unwrap_or(tokens.len());
            let stop = boundary.min(start + MAX_CHUNK_TOKENS).min(tokens.len());
            let token_ids = tokens[start..stop].to_vec();
            let key = chunk_key(&parent_key.clone().unwrap_or_else(|| root_key(fingerprint)), &token_ids);
            planned.push(PlannedChunk { key: key.clone(), parent_key, fingerprint: fingerprint.to_owned(), start, token_ids });
            parent_key = Some(key);
            start = stop;
        }
        planned
    }

    pub(super) fn touch(&mut self, keys: &[String], at_ms: i64) {
        for key in keys {
            if let Some(record) = self.chunks.get_mut(key) {
                record.last_used_at_ms = at_ms;
            }
        }
    }

    /// Removes the least recently used chunks until `new_bytes` more fit the budget; none, and nothing is removed, if they never can.
    ///
    /// Only chunks without children go, so that no chunk loses the beginning it needs; `keep` and what it continues stay.
    pub(super) fn make_room(&mut self, new_bytes: u64, keep: Option<&str>) -> Option<Vec<ChunkRecord>> {
        if new_bytes > self.budget_bytes {
            return None;
        }
        let mut removed = Vec::new();
        while self.total_bytes + new_bytes > self.budget_bytes {
            let leaf = self
                .chunks
                .values()
                .filter(|record| self.children.get(&record.key).is_none_or(BTreeSet::is_empty) && Some(record.key.as_str()) != keep)
                // Among equals the deepest goes first: beginnings are shared more.
                .min_by_key(|record| (record.last_used_at_ms, std::cmp::Reverse(record.start), record.key.clone()))
                .map(|record| record.key.clone());
            let Some(leaf) = leaf else {
                // Only what is being continued is left.
                for record in removed {
                    self.insert(record);
                }
                return None;
            };
            removed.extend(self.remove(&leaf));
        }
        Some(removed)
    }

    /// Removes a chunk and everything that continues it, and returns them.
    pub(super) fn remove_with_descendants(&mut self, key: &str) -> Vec<ChunkRecord> {
        let mut pending = vec![key.to_owned()];
        let mut removed = Vec::new();
        while let Some(key) = pending.pop() {
            pending.extend(self.children.get(&key).into_iter().flatten().cloned());
            removed.extend(self.remove(&key));
        }
        removed
    }

    fn remove(&mut self, key: &str) -> Option<ChunkRecord> {
        let record = self.chunks.remove(key)?;
        self.total_bytes -= record.bytes;
        let parent = self.parent_of(&record);
        if let Some(siblings) = self.children.get_mut(&parent) {
            siblings.remove(key);
            if siblings.is_empty() {
                self.children.remove(&parent);
            }
        }
        Some(record)
    }

    fn parent_of(&self, record: &ChunkRecord) -> String {
        record.parent_key.clone().unwrap_or_else(|| root_key(&record.fingerprint))
    }

    fn children(&self, parent: &str) -> impl Iterator<Item = &ChunkRecord> {
        self.children.get(parent).into_iter().flatten().filter_map(|key| self.chunks.get(key))
    }
}

/// What the first chunks of a model's conversations continue.
fn root_key(fingerprint: &str) -> String {
    hash(b"cairn prompt cache 1", fingerprint.as_bytes())
}

/// The key of a chunk: everything that its keys and values depend on is in the parent's key or the token ids.
fn chunk_key(parent: &str, token_ids: &[u32]) -> String {
    let ids: Vec<u8> = token_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hash(parent.as_bytes(), &ids)
}

fn hash(first: &[u8], second: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(first.len() as u64).to_le_bytes());
    hasher.update(first);
    hasher.update(second);
    // 128 bits: keys name files and rows, and nobody gains from a collision, which the token ids in the record would show.
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "model";

    fn index(budget_bytes: u64) -> ChunkIndex {
        ChunkIndex::new(budget_bytes, Vec::new())
    }

    /// Files what a turn computed: one byte per token, used at `at_ms`.
    fn file(index: &mut ChunkIndex, tokens: &[u32], boundaries: &[usize], at_ms: i64) -> usize {
        let planned = index.plan(MODEL, tokens, boundaries);
        for chunk in &planned {
            index.insert(ChunkRecord {
                key: chunk.key.clone(),
                parent_key: chunk.parent_key.clone(),
                fingerprint: chunk.fingerprint.clone(),
                start: chunk.start,
                bytes: chunk.token_ids.len() as u64,
                token_ids: chunk.token_ids.clone(),
                file_hash: String::new(),
                last_used_at_ms: at_ms,
            });
        }
        planned.len()
    }

    fn spans(index: &ChunkIndex, tokens: &[u32]) -> Vec<usize> {
        index.longest_prefix(MODEL, tokens).parts.iter().map(|part| part.num_tokens).collect()
    }

    fn ids(from: u32, to: u32) -> Vec<u32> {
        (from..to).collect()
    }

    #[test]
    fn chunks_end_at_boundaries_and_at_256_tokens() {
        let check = |length: u32, boundaries: &[usize], expected: &[usize]| {
            let mut index = index(u64::MAX);
            file(&mut index, &ids(0, length), boundaries, 0);
            assert_eq!(spans(&index, &ids(0, length)), expected, "{length} tokens, {boundaries:?}");
        };
        check(10, &[], &[10]);
        check(10, &[4], &[4, 6]);
        check(10, &[4, 10], &[4, 6]);
        check(600, &[], &[256, 256, 88]);
        check(600, &[30, 300], &[30, 256, 14, 256, 44]);
        check(10, &[4, 25], &[4, 6]);
    }

    #[test]
    fn a_shared_beginning_is_kept_once() {
        let mut index = index(u64::MAX);
        let system = ids(0, 20);
        let first: Vec<u32> = system.iter().copied().chain(ids(100, 110)).collect();
        let second: Vec<u32> = system.iter().copied().chain(ids(200, 210)).collect();
        assert_eq!(file(&mut index, &first, &[20], 0), 2);
        assert_eq!(file(&mut index, &second, &[20], 0), 1, "only the new part");
        assert_eq!(index.total_bytes(), 40);
        assert_eq!(file(&mut index, &first, &[20], 0), 0, "nothing twice");
    }

    #[test]
    fn a_prompt_matches_to_the_token_where_it_differs() {
        let mut index = index(u64::MAX);
        file(&mut index, &ids(0, 100), &[40], 0);
        let mut edited = ids(0, 100);
        edited[70] = 9999;
        assert_eq!(spans(&index, &edited), [40, 30]);
        // The longer of two branches wins.
        file(&mut index, &edited, &[40], 0);
        assert_eq!(spans(&index, &edited), [40, 60]);
        assert_eq!(spans(&index, &ids(0, 100)), [40, 60]);
        assert_eq!(spans(&index, &ids(1, 100)), Vec::<usize>::new());
        assert!(index.longest_prefix("another model", &ids(0, 100)).parts.is_empty());
    }

    #[test]
    fn eviction_takes_old_ends_first_and_keeps_to_the_budget() {
        let mut index = index(100);
        file(&mut index, &ids(0, 40), &[20], 1); // beginning and end, old
        file(&mut index, &ids(1000, 1040), &[20], 2);
        let removed = index.make_room(50, None).expect("fits");
        assert_eq!(removed.iter().map(|record| (record.last_used_at_ms, record.start)).collect::<Vec<_>>(), [(1, 20), (1, 0)]);
        assert_eq!(index.total_bytes(), 40);
        assert!(index.make_room(101, None).is_none(), "larger than the whole budget");
    }

    #[test]
    fn eviction_never_takes_what_is_being_continued() {
        let mut index = index(30);
        file(&mut index, &ids(0, 30), &[10], 1);
        let leaf = index.longest_prefix(MODEL, &ids(0, 30)).parts[1].record.key.clone();
        assert!(index.make_room(10, Some(&leaf)).is_none());
        assert_eq!(index.total_bytes(), 30);
    }

    #[test]
    fn nothing_is_evicted_for_a_chunk_that_cannot_fit() {
        let mut index = index(100);
        file(&mut index, &ids(0, 40), &[20], 2);
        file(&mut index, &ids(1000, 1010), &[], 1);
        let continued = index.longest_prefix(MODEL, &ids(0, 40)).parts[1].record.key.clone();
        assert!(index.make_room(70, Some(&continued)).is_none());
        assert_eq!(index.total_bytes(), 50);
        assert_eq!(spans(&index, &ids(1000, 1010)), [10]);
    }

    #[test]
    fn a_damaged_chunk_takes_its_descendants_along() {
        let mut index = index(u64::MAX);
        file(&mut index, &ids(0, 600), &[], 0);
        let second = index.longest_prefix(MODEL, &ids(0, 600)).parts[1].record.key.clone();
        assert_eq!(index.remove_with_descendants(&second).len(), 2);
        assert_eq!(spans(&index, &ids(0, 600)), [256]);
        assert_eq!(index.total_bytes(), 256);
    }

    #[test]
    fn records_make_the_same_index_again() {
        let mut first = index(u64::MAX);
        file(&mut first, &ids(0, 600), &[30], 5);
        let records = first.longest_prefix(MODEL, &ids(0, 600)).parts.into_iter().map(|part| part.record).rev().collect();
        let second = ChunkIndex::new(u64::MAX, records);
        assert_eq!(spans(&second, &ids(0, 600)), spans(&first, &ids(0, 600)));
        assert_eq!(second.total_bytes(), first.total_bytes());
    }
}
