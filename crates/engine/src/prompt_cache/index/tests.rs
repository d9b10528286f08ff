//! Tests of the index: planning, lookup, eviction and references. A chunk takes one byte per token
//! here.

use super::super::eviction::{DISK_BUDGET, PURGED};
use super::*;
use crate::records::{CacheEvent, KvFormat, Loss};
use ChunkKind::{Assistant, System, User};

fn namespace() -> Namespace {
    Namespace::computed("model", KvFormat::Plain)
}

/// The needs of a model whose caches can be restored after every token.
const ANYWHERE: (Needs, &[usize]) = (Needs { window: None, state: false }, &[]);

fn index(disk_budget: u64) -> ChunkIndex {
    ChunkIndex::new(disk_budget, u64::MAX, Vec::new(), Vec::new())
}

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn record(namespace: &Namespace, chunk: PlannedChunk, at_ms: i64) -> ChunkRecord {
    ChunkRecord {
        key: chunk.key,
        parent_key: chunk.parent_key,
        namespace: namespace.clone(),
        kind: chunk.kind,
        start: chunk.start,
        held_from: chunk.start,
        has_state: false,
        bytes: chunk.token_ids.len() as u64,
        token_ids: chunk.token_ids,
        file_hash: "hash".to_owned(),
        hits: 0,
        last_used_at_ms: at_ms,
    }
}

/// Adds the chunks of a turn, used at `at_ms`; returns the last chunk's key.
fn insert_turn(
    index: &mut ChunkIndex,
    tokens: &[u32],
    boundaries: &[(usize, ChunkKind)],
    at_ms: i64,
) -> String {
    for chunk in index.plan(&namespace(), tokens, boundaries, ANYWHERE) {
        index.insert(record(&namespace(), chunk, at_ms), None);
    }
    index.longest_prefix(&namespace(), tokens).parts.last().unwrap().record.key.clone()
}

/// How many tokens of each chunk match the beginning of `tokens`.
fn matched(index: &ChunkIndex, tokens: &[u32]) -> Vec<usize> {
    index.longest_prefix(&namespace(), tokens).parts.iter().map(|part| part.num_tokens).collect()
}

fn reference(index: &mut ChunkIndex, owner: &str, key: &str, is_pinned: bool) {
    let num_tokens = index.get(key).unwrap().record.stop();
    let chunk_key = Some(key.to_owned());
    let cache_ref = CacheRef {
        owner: owner.to_owned(),
        namespace: namespace(),
        model: "m".to_owned(),
        chunk_key,
        num_tokens,
        is_pinned,
        loss: None,
    };
    index.set_ref(cache_ref);
}

/// The references that have changed since the last call, and the owners of removed ones.
fn changed_refs(index: &mut ChunkIndex) -> (Vec<CacheRef>, Vec<String>) {
    let (mut refs, mut removed) = (Vec::new(), Vec::new());
    for event in index.take_changed_refs() {
        match event {
            CacheEvent::RefSet(cache_ref) => refs.push(cache_ref),
            CacheEvent::RefRemoved { owner } => removed.push(owner),
            event => panic!("not of a reference: {event:?}"),
        }
    }
    (refs, removed)
}

fn starts(removed: &[ChunkRecord]) -> Vec<(i64, usize)> {
    removed.iter().map(|record| (record.last_used_at_ms, record.start)).collect()
}

#[test]
fn chunks_end_at_boundaries_and_at_256_tokens() {
    let check = |length: u32,
                 boundaries: &[(usize, ChunkKind)],
                 expected: &[(usize, ChunkKind)]| {
        let mut index = index(u64::MAX);
        insert_turn(&mut index, &ids(0, length), boundaries, 0);
        let parts = index.longest_prefix(&namespace(), &ids(0, length)).parts;
        let found: Vec<_> = parts.iter().map(|part| (part.num_tokens, part.record.kind)).collect();
        assert_eq!(found, expected, "{length} tokens, {boundaries:?}");
    };
    check(1, &[(1, User)], &[(1, User)]);
    check(256, &[(256, User)], &[(256, User)]);
    check(257, &[], &[(256, Assistant), (1, Assistant)]);
    check(
        600,
        &[(40, System), (300, User)],
        &[(40, System), (256, User), (4, User), (256, Assistant), (44, Assistant)],
    );
    check(40, &[(40, System), (300, User)], &[(40, System)]);
}

#[test]
fn a_prefix_is_found_however_it_was_cut() {
    let mut index = index(u64::MAX);
    insert_turn(&mut index, &ids(0, 100), &[(40, System)], 0);
    assert_eq!(matched(&index, &ids(0, 100)), [40, 60]);
    assert_eq!(matched(&index, &ids(0, 70)), [40, 30]);
    let mut edited = ids(0, 100);
    edited[70] = 9999;
    assert_eq!(matched(&index, &edited), [40, 30]);
    // The longer of two branches wins.
    insert_turn(&mut index, &edited, &[(40, System)], 0);
    assert_eq!(matched(&index, &edited), [40, 60]);
    assert_eq!(matched(&index, &ids(0, 100)), [40, 60]);
    assert_eq!(matched(&index, &ids(1, 100)), Vec::<usize>::new());
    for other in [
        Namespace { model: "other".to_owned(), ..namespace() },
        Namespace { kv_format: KvFormat::Quantized { bits: 8, group_size: 64 }, ..namespace() },
    ] {
        assert!(index.longest_prefix(&other, &ids(0, 100)).parts.is_empty(), "{other:?}");
    }
}

#[test]
fn a_shorter_sibling_wins_if_its_descendants_match_further() {
    let mut index = index(u64::MAX);
    // A question, and a prefix of that question whose continuation matches it for a while.
    insert_turn(&mut index, &ids(0, 100), &[(40, System), (90, User)], 0);
    let shorter: Vec<u32> = ids(0, 63).into_iter().chain(ids(1000, 1040)).collect();
    insert_turn(&mut index, &shorter, &[(40, System), (60, User)], 0);
    assert_eq!(matched(&index, &shorter), [40, 20, 43]);
    assert_eq!(matched(&index, &ids(0, 100)), [40, 50, 10]);
    assert_eq!(matched(&index, &ids(0, 80)), [40, 40]);
    assert!(
        index.plan(&namespace(), &shorter, &[(40, System), (60, User)], ANYWHERE).is_empty(),
        "nothing is missing"
    );

    // The restorable length counts, not the matching length.
    let end = index.longest_prefix(&namespace(), &shorter).parts[1].record.key.clone();
    index.entries.get_mut(&end).unwrap().record.has_state = true;
    let state = Needs { window: None, state: true };
    assert_eq!(index.restorable_prefix(&namespace(), &ids(0, 100), state).1, 60);
    assert_eq!(index.restorable_prefix(&namespace(), &ids(0, 100), Needs::default()).1, 100);
}

#[test]
fn a_position_that_a_chunk_blocks_gets_sibling_chunks() {
    /// Stores tokens 0 to 40 in chunks of ten, the first with the state and window that the model
    /// needs; then checks the plan for a position.
    fn check(
        tokens: std::ops::Range<u32>,
        position: usize,
        needs: Needs,
        expected: &[(usize, usize)],
    ) {
        let mut index = index(u64::MAX);
        for chunk in
            index.plan(&namespace(), &ids(0, 40), &[(10, System), (20, User), (30, User)], ANYWHERE)
        {
            let (held_from, has_state) =
                if chunk.start == 0 { (0, true) } else { (chunk.start + 10, false) };
            index.insert(
                ChunkRecord { held_from, has_state, ..record(&namespace(), chunk, 0) },
                None,
            );
        }
        let tokens = ids(tokens.start, tokens.end);
        let planned = index.plan(
            &namespace(),
            &tokens,
            &[(10, System), (20, User), (position, User)],
            (needs, &[position]),
        );
        let spans: Vec<_> = planned
            .iter()
            .map(|chunk| (chunk.start, chunk.start + chunk.token_ids.len()))
            .collect();
        assert_eq!(spans, expected, "{position} for {needs:?}");
        // Once they are stored, nothing more is planned.
        for chunk in planned {
            index.insert(ChunkRecord { has_state: true, ..record(&namespace(), chunk, 0) }, None);
        }
        assert_eq!(index.restorable_prefix(&namespace(), &tokens, needs).1, tokens.len());
        assert!(
            index
                .plan(
                    &namespace(),
                    &tokens,
                    &[(10, System), (20, User), (position, User)],
                    (needs, &[position])
                )
                .is_empty()
        );
    }
    let state = Needs { window: None, state: true };
    let window = |window| Needs { window: Some(window), state: false };
    check(0..10, 10, state, &[]);
    check(0..25, 25, state, &[(20, 25)]);
    check(0..30, 30, state, &[(20, 29), (29, 30)]);
    check(0..30, 30, window(4), &[(20, 29), (29, 30)]);
    // The window also reaches into the chunk before.
    check(0..23, 23, window(4), &[(10, 19), (19, 20), (20, 23)]);
}

#[test]
fn shared_chunks_are_stored_once() {
    let mut index = index(u64::MAX);
    for conversation in 0..10_000 {
        let mut tokens = ids(0, 2000);
        tokens.extend([100_000 + conversation, 7, 8]);
        insert_turn(&mut index, &tokens, &[(2000, System), (2003, User)], 0);
    }
    assert_eq!(index.disk.bytes, 2000 + 3 * 10_000);
    assert_eq!(index.records().count(), 8 + 10_000);
}

#[test]
fn windows_and_states_are_restorable_only_where_they_were_saved() {
    /// Chunks given as (stop, held_from, has_state).
    fn check(chunks: &[(usize, usize, bool)], needs: Needs, limit: usize, expected: usize) {
        let mut start = 0;
        let parts = chunks.iter().map(|&(stop, held_from, has_state)| {
            let token_ids = ids(start as u32, stop as u32);
            let planned = PlannedChunk {
                key: stop.to_string(),
                parent_key: None,
                kind: User,
                start,
                token_ids,
            };
            let record = ChunkRecord { held_from, has_state, ..record(&namespace(), planned, 0) };
            start = stop;
            PrefixPart { num_tokens: record.token_ids.len(), record }
        });
        let prefix =
            Prefix { parts: parts.collect(), num_tokens: chunks.last().map_or(0, |chunk| chunk.0) };
        assert_eq!(
            prefix.num_restorable(needs, limit),
            expected,
            "{chunks:?} for {needs:?} up to {limit}"
        );
    }
    let plain = Needs::default();
    check(&[(10, 0, false), (20, 10, false)], plain, 100, 20);
    check(&[(10, 0, false), (20, 10, false)], plain, 13, 13);
    check(&[], plain, 13, 0);
    let window = Needs { window: Some(4), state: false };
    check(&[(10, 0, false), (20, 10, false)], window, 13, 13);
    // Only the end of the second chunk was still in the window.
    check(&[(10, 0, false), (20, 16, false)], window, 100, 20);
    check(&[(10, 0, false), (20, 16, false)], window, 19, 10);
    check(&[(10, 0, false), (20, 17, false)], window, 100, 10);
    check(&[(10, 8, false), (20, 20, false), (30, 26, false)], window, 100, 30);
    check(&[(10, 8, false), (20, 20, false), (30, 26, false)], window, 29, 0);
    check(&[(3, 0, false), (20, 20, false)], window, 100, 3);
    let state = Needs { window: None, state: true };
    check(&[(10, 0, true), (20, 10, false), (30, 20, true)], state, 100, 30);
    check(&[(10, 0, true), (20, 10, false), (30, 20, true)], state, 29, 10);
    check(&[(10, 0, false), (20, 10, false)], state, 100, 0);
    check(&[(10, 0, true), (20, 19, true)], Needs { window: Some(4), state: true }, 100, 10);
}

#[test]
fn answers_are_evicted_before_questions_and_questions_before_system_prompts() {
    let mut index = index(1000);
    // Two conversations: a system prompt of 10, a question of 20, an answer of 5; the first is
    // older.
    for (from, at_ms) in [(0, 1), (1000, 2)] {
        insert_turn(&mut index, &ids(from, from + 35), &[(10, System), (30, User)], at_ms);
    }
    index.disk.budget = 60;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(1, 30), (2, 30)]);
    index.disk.budget = 45;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(1, 10)]);
    // One question and one system prompt remain, so the question goes first.
    index.disk.budget = 25;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(2, 10)]);
    index.disk.budget = 10;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(1, 0)]);
    assert_eq!(index.disk.bytes, 10);
}

#[test]
fn nothing_is_evicted_for_a_chunk_that_cannot_fit() {
    let mut index = index(100);
    let continued = insert_turn(&mut index, &ids(0, 40), &[(20, User)], 2);
    insert_turn(&mut index, &ids(1000, 1010), &[], 1);
    assert_eq!(index.make_room_on_disk(101, None, 9), None, "larger than the whole budget");
    assert_eq!(
        index.make_room_on_disk(70, Some(&continued), 9),
        None,
        "only what is being continued would be left"
    );
    assert_eq!(index.disk.bytes, 50);
    assert_eq!(starts(&index.make_room_on_disk(60, Some(&continued), 9).unwrap()), [(1, 0)]);
    assert_eq!(index.disk.bytes, 40);
}

#[test]
fn pinned_chunks_are_not_evicted() {
    let mut index = index(u64::MAX);
    let named = insert_turn(&mut index, &ids(0, 40), &[(20, User)], 1);
    insert_turn(&mut index, &ids(1000, 1040), &[(20, User)], 2);
    reference(&mut index, "named", &named, true);
    index.disk.budget = 0;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(2, 20), (2, 0)]);
    assert_eq!(matched(&index, &ids(0, 40)), [20, 20]);
    assert!(index.clear(9).is_empty());
    index.pin("named", false);
    assert_eq!(index.clear(9).len(), 2);
}

#[test]
fn a_reference_falls_back_to_its_remaining_chunks_and_notes_its_loss() {
    let mut index = index(u64::MAX);
    let key = insert_turn(&mut index, &ids(0, 600), &[], 1);
    reference(&mut index, "chat", &key, false);
    index.take_changed_refs();
    let second = index.longest_prefix(&namespace(), &ids(0, 600)).parts[1].record.key.clone();
    assert_eq!(index.remove_with_descendants(&second, "damaged", 7).len(), 2);
    let fallen = changed_refs(&mut index).0.pop().unwrap();
    assert_eq!(
        (fallen.num_tokens, fallen.chunk_key.clone()),
        (256, index.get(fallen.chunk_key.as_deref().unwrap()).map(|e| e.record.key.clone()))
    );
    assert_eq!(fallen.loss, Some(Loss { num_tokens: 600, reason: "damaged".to_owned(), at_ms: 7 }));
    index.disk.budget = 0;
    index.enforce_disk_budget(8);
    let fallen = changed_refs(&mut index).0.pop().unwrap();
    assert_eq!((fallen.num_tokens, fallen.chunk_key), (0, None));
    assert_eq!(
        fallen.loss,
        Some(Loss { num_tokens: 600, reason: DISK_BUDGET.to_owned(), at_ms: 8 })
    );
    // A row whose chunk is missing.
    let cache_ref = CacheRef {
        chunk_key: Some("missing".to_owned()),
        num_tokens: 50,
        loss: None,
        ..index.refs["chat"].clone()
    };
    let mut reopened = ChunkIndex::new(0, 0, Vec::new(), vec![cache_ref]);
    reopened.resolve_refs();
    assert_eq!(reopened.refs["chat"].loss.as_ref().map(|loss| loss.num_tokens), Some(50));
}

#[test]
fn a_purge_removes_the_chunks_that_no_other_owner_refers_to() {
    let mut index = index(u64::MAX);
    let shared: Vec<u32> = ids(0, 100);
    let branch =
        |from: u32| shared.iter().copied().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    let first = insert_turn(&mut index, &branch(1000), &[(100, System), (105, User)], 1);
    let second = insert_turn(&mut index, &branch(2000), &[(100, System), (105, User)], 1);
    // An earlier answer to the first one's question.
    let mut sibling = branch(1000);
    sibling.truncate(105);
    sibling.extend(ids(3000, 3009));
    insert_turn(&mut index, &sibling, &[(100, System), (105, User)], 1);
    reference(&mut index, "first", &first, true);
    reference(&mut index, "second", &second, false);

    let ref_usages = index.ref_usages();
    let held: Vec<_> = ref_usages
        .iter()
        .map(|held| {
            (held.cache_ref.owner.as_str(), held.bytes, held.own_bytes, held.shared_with.clone())
        })
        .collect();
    let with = |owner: &str| vec![owner.to_owned()];
    assert_eq!(held, [("first", 110, 10, with("second")), ("second", 110, 10, with("first"))]);

    index.take_changed_refs();
    let removed = index.purge("first", 9);
    assert_eq!(removed.iter().map(|record| record.bytes).sum::<u64>(), 5 + 5 + 9);
    assert_eq!(matched(&index, &branch(2000)), [100, 5, 5]);
    assert_eq!(index.refs["first"].num_tokens, 100);
    assert_eq!(index.refs["first"].loss.as_ref().unwrap().reason, PURGED);
    assert_eq!(index.purge("second", 9).len(), 2);
    assert_eq!(index.purge("second", 9).len(), 0, "the rest is the first one's too");
    index.remove_ref("first");
    assert_eq!(index.purge("second", 9).len(), 1);
    assert_eq!(index.disk.bytes, 0);
}

#[test]
fn a_purge_removes_the_chunks_of_stale_references_too() {
    let mut index = index(u64::MAX);
    let shared = ids(0, 100);
    let branch =
        |from: u32| shared.iter().copied().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    let boundaries = [(100, System)];
    let other = insert_turn(&mut index, &branch(9000), &boundaries, 1);
    reference(&mut index, "other", &other, false);
    // An edited first question, then a new beginning, then back to the first, which continues.
    let first = insert_turn(&mut index, &branch(1000), &boundaries, 1);
    reference(&mut index, "chat", &first, true);
    for tokens in [branch(2000), ids(5000, 5020), [branch(1000), ids(1010, 1020)].concat()] {
        let last = insert_turn(&mut index, &tokens, &boundaries, 2);
        reference(&mut index, "chat", &last, true);
    }
    let (refs, removed) = changed_refs(&mut index);
    assert_eq!(
        (refs.len(), removed.len()),
        (4, 1),
        "other, chat, and two stale references; the conversation has returned to the first: {refs:?}"
    );
    // Stale references are hidden from callers, and pin nothing.
    assert_eq!(
        index.ref_usages().iter().map(|held| held.cache_ref.owner.as_str()).collect::<Vec<_>>(),
        ["chat", "other"]
    );
    assert_eq!(index.ref_usage("other").unwrap().shared_with, ["chat"]);
    assert_eq!(index.clear(9).iter().map(|record| record.bytes).sum::<u64>(), 10 + 10 + 20);
    assert_eq!(changed_refs(&mut index).1.len(), 2, "nothing is left of what was left");
    // They are restored from rows after a restart.
    let last = insert_turn(&mut index, &branch(3000), &boundaries, 3);
    reference(&mut index, "chat", &last, false);
    let (records, refs) =
        (index.records().cloned().collect(), index.refs.values().cloned().collect());
    let mut index = ChunkIndex::new(u64::MAX, 0, records, refs);
    assert_eq!(index.purge("chat", 9).iter().map(|record| record.bytes).sum::<u64>(), 10 + 10 + 10);
    assert_eq!(index.refs.keys().collect::<Vec<_>>(), ["chat", "other"]);
    assert_eq!(matched(&index, &branch(9000)), [100]);
}

#[test]
fn a_reference_event_names_the_last_chunk_on_disk() {
    let mut index = index(u64::MAX);
    let tokens = ids(0, 30);
    let keys: Vec<String> = index
        .plan(&namespace(), &tokens, &[(10, System), (20, User)], ANYWHERE)
        .into_iter()
        .map(|chunk| {
            let key = chunk.key.clone();
            index.insert(record(&namespace(), chunk, 1), Some(10));
            key
        })
        .collect();
    reference(&mut index, "chat", &keys[2], false);
    let reported = |index: &mut ChunkIndex| {
        changed_refs(index)
            .0
            .iter()
            .map(|cache_ref| (cache_ref.num_tokens, cache_ref.chunk_key.clone()))
            .next()
    };
    assert_eq!(reported(&mut index), Some((0, None)));
    index.mark_written(&keys[0], 10, "hash".to_owned());
    index.mark_written(&keys[1], 10, "hash".to_owned());
    assert_eq!(reported(&mut index), None, "it is reported again when its last chunk is written");
    index.mark_written(&keys[2], 10, "hash".to_owned());
    assert_eq!(reported(&mut index), Some((30, Some(keys[2].clone()))));
}

#[test]
fn rows_without_a_parent_are_orphans() {
    let mut whole = index(u64::MAX);
    let last = insert_turn(&mut whole, &ids(0, 600), &[(30, System)], 5);
    reference(&mut whole, "chat", &last, false);
    insert_turn(&mut whole, &ids(1000, 1010), &[], 6);
    let refs: Vec<CacheRef> = whole.refs.values().cloned().collect();
    let records: Vec<ChunkRecord> =
        whole.records().filter(|record| record.start != 30).cloned().collect();
    let mut index = ChunkIndex::new(u64::MAX, 0, records, refs);
    assert_eq!(
        index.orphans.iter().map(|record| record.start).collect::<BTreeSet<_>>(),
        BTreeSet::from([286, 542])
    );
    assert_eq!(
        (matched(&index, &ids(0, 600)), matched(&index, &ids(1000, 1010)), index.disk.bytes),
        (vec![30], vec![10], 40)
    );
    index.resolve_refs();
    assert_eq!(index.refs["chat"].chunk_key, None);
    // The chunks that replace the lost ones are written as if those had never existed.
    insert_turn(&mut index, &ids(0, 600), &[(30, System)], 7);
    assert_eq!(matched(&index, &ids(0, 600)), [30, 256, 256, 58]);
    assert_eq!(index.clear(9).len(), 5);
    assert_eq!(
        (
            index.disk.bytes,
            index.leaves.iter().map(BTreeSet::len).sum::<usize>(),
            index.children.len()
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_chunk_that_could_not_be_written_is_evicted_for_the_budget() {
    let mut index = index(u64::MAX);
    let on_disk = insert_turn(&mut index, &ids(0, 20), &[], 1);
    for chunk in index.plan(&namespace(), &ids(0, 30), &[], ANYWHERE) {
        index.insert(record(&namespace(), chunk, 2), Some(10));
    }
    let elsewhere = index.plan(&namespace(), &ids(1000, 1010), &[], ANYWHERE).remove(0);
    index.insert(record(&namespace(), elsewhere, 1), Some(10));
    index.disk.budget = 0;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(2, 20), (1, 0)]);
    assert!(!index.contains(&on_disk));
    assert_eq!(
        matched(&index, &ids(1000, 1010)),
        [10],
        "it takes no room on disk, and no chunk on disk is its ancestor"
    );
}

#[test]
fn owners_of_a_chunk_stay_correct_after_every_change() {
    fn check(index: &ChunkIndex, after: &str) {
        let mut expected: HashMap<String, BTreeSet<Arc<str>>> = HashMap::new();
        for cache_ref in index.refs.values() {
            for entry in cache_ref.chunk_key.iter().flat_map(|key| index.path(key)) {
                expected
                    .entry(entry.record.key.clone())
                    .or_default()
                    .insert(Arc::from(cache_ref.owner.as_str()));
            }
        }
        assert_eq!(index.owners_of, expected, "{after}");
    }
    let mut index = index(u64::MAX);
    let branch =
        |from: u32| ids(0, 300).into_iter().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    for (owner, from) in [("first", 1000), ("second", 2000), ("third", 3000)] {
        let last =
            insert_turn(&mut index, &branch(from), &[(300, System), (305, User)], i64::from(from));
        reference(&mut index, owner, &last, owner == "third");
    }
    check(&index, "three references share a beginning");
    let shared = index.longest_prefix(&namespace(), &ids(0, 256)).parts.remove(0).record;
    reference(&mut index, "second", &shared.key, false);
    check(&index, "a reference moves back");
    index.pin("first", true);
    index.remove_ref("third");
    check(&index, "a reference is removed");
    index.clear(9);
    check(&index, "all but pinned chunks are removed");
    assert_eq!(matched(&index, &branch(1000)), [256, 44, 5, 5]);
    index.remove_with_descendants(&shared.key, "damaged", 10);
    check(&index, "no chunk is left");
    assert!(index.owners_of.is_empty());
}

#[test]
fn contents_on_disk_are_dropped_from_memory_before_those_only_in_memory() {
    let mut index = ChunkIndex::new(u64::MAX, u64::MAX, Vec::new(), Vec::new());
    for (from, at_ms) in [(0, 1), (1000, 2)] {
        for chunk in index.plan(&namespace(), &ids(from, from + 20), &[(10, User)], ANYWHERE) {
            index.insert(record(&namespace(), chunk, at_ms), Some(10));
        }
    }
    let newer: Vec<String> = index
        .longest_prefix(&namespace(), &ids(1000, 1020))
        .parts
        .into_iter()
        .map(|part| part.record.key)
        .collect();
    let older: Vec<String> = index
        .longest_prefix(&namespace(), &ids(0, 20))
        .parts
        .into_iter()
        .map(|part| part.record.key)
        .collect();
    for key in &newer {
        index.mark_written(key, 11, "hash".to_owned());
    }
    assert_eq!((index.memory.bytes, index.disk.bytes), (40, 22));
    index.memory.budget = 30;
    let (dropped, removed) = index.make_room_in_memory(9);
    assert_eq!((dropped, removed.len()), (vec![newer[1].clone()], 0));
    // Pending chunks stay, even over the budget.
    index.set_pending(&older[1], true);
    index.memory.budget = 0;
    let (dropped, removed) = index.make_room_in_memory(9);
    assert_eq!((dropped, removed.len()), (vec![newer[0].clone()], 0));
    assert_eq!(index.memory.bytes, 20);
    index.set_pending(&older[1], false);
    let (_, removed) = index.make_room_in_memory(9);
    assert_eq!(removed.iter().map(|record| record.start).collect::<Vec<_>>(), [10, 0]);
    assert_eq!((index.memory.bytes, index.disk.bytes, index.in_memory.len()), (0, 22, 0));
}

#[test]
fn a_use_is_counted_and_delays_eviction() {
    let mut index = index(u64::MAX);
    let first = insert_turn(&mut index, &ids(0, 10), &[], 1);
    insert_turn(&mut index, &ids(1000, 1010), &[], 2);
    index.touch(std::slice::from_ref(&first), 3);
    assert_eq!(index.get(&first).unwrap().record.hits, 1);
    index.disk.budget = 10;
    assert_eq!(starts(&index.enforce_disk_budget(9)), [(2, 0)]);
}

#[test]
fn a_row_that_cannot_be_true_is_not_valid() {
    let check = |change: fn(&mut ChunkRecord), expected: bool| {
        let namespace = Namespace::computed("0123456789abcdef", KvFormat::Plain);
        let chunk = index(0).plan(&namespace, &ids(0, 9), &[], ANYWHERE).remove(0);
        let mut record = record(&namespace, chunk, 0);
        record.file_hash = "0".repeat(64);
        change(&mut record);
        assert_eq!(is_valid(&record), expected, "{record:?}");
    };
    check(|_| {}, true);
    check(|record| record.held_from = record.stop(), true);
    check(|record| record.held_from = record.stop() + 1, false);
    check(|record| record.start = usize::MAX, false);
    check(|record| record.token_ids.clear(), false);
    check(|record| record.token_ids[0] += 1, false);
    check(|record| record.bytes = u64::MAX, false);
    check(|record| record.key = "../../elsewhere".to_owned(), false);
    check(|record| record.namespace.model = "..".to_owned(), false);
    // A chunk without a hash counts as one that was never written: its row and file would stay.
    check(|record| record.file_hash.clear(), false);
    check(|record| record.file_hash = "hash".to_owned(), false);
}

#[test]
fn an_index_is_rebuilt_from_its_records() {
    let mut first = index(u64::MAX);
    insert_turn(&mut first, &ids(0, 600), &[(30, System)], 5);
    let records = first
        .longest_prefix(&namespace(), &ids(0, 600))
        .parts
        .into_iter()
        .map(|part| part.record)
        .rev()
        .collect();
    let mut second = ChunkIndex::new(u64::MAX, 0, records, Vec::new());
    assert_eq!(matched(&second, &ids(0, 600)), matched(&first, &ids(0, 600)));
    assert_eq!(second.disk.bytes, first.disk.bytes);
    assert_eq!(second.leaves, first.leaves);
    assert_eq!(starts(&second.clear(9)), [(5, 542), (5, 286), (5, 30), (5, 0)]);
}

#[test]
fn a_reference_can_be_pinned_while_its_chunk_is_rebuilt_from_its_file() {
    let mut before = index(u64::MAX);
    let key = insert_turn(&mut before, &ids(0, 10), &[], 5);
    reference(&mut before, "a", &key, false);
    let record = before.get(&key).unwrap().record.clone();

    // The database has lost the chunk's row.
    let refs = before.refs.into_values().collect();
    let mut index = ChunkIndex::new(u64::MAX, 0, Vec::new(), refs);
    index.pin("a", true);
    assert!(index.is_ref_pinned("a"), "what is saved meanwhile stays pinned");
    assert_eq!(changed_refs(&mut index), (Vec::new(), Vec::new()), "its row stays");
    index.insert(record, None);
    index.resolve_refs();
    assert!(index.is_pinned(&key));
    let (refs, removed) = changed_refs(&mut index);
    let found: Vec<_> =
        refs.iter().map(|cache_ref| (cache_ref.is_pinned, cache_ref.chunk_key.as_ref())).collect();
    assert_eq!((found, removed), (vec![(true, Some(&key))], Vec::new()));
}

#[test]
fn a_clock_set_back_does_not_change_the_order_of_eviction() {
    let mut index = index(30);
    let at = index.next_use_ms(1000);
    insert_turn(&mut index, &ids(0, 10), &[], at);
    // The clock is set back; the chunk used now is still the last to be evicted.
    for (start, now_ms) in [(100, 500), (200, 500), (300, 400)] {
        let at = index.next_use_ms(now_ms);
        insert_turn(&mut index, &ids(start, start + 10), &[], at);
    }
    let removed = index.enforce_disk_budget(2000);
    assert_eq!(starts(&removed), [(1000, 0)]);
    // The same holds after a restart.
    let records: Vec<ChunkRecord> =
        index.entries.values().map(|entry| entry.record.clone()).collect();
    let mut index = ChunkIndex::new(30, u64::MAX, records, Vec::new());
    assert_eq!(index.next_use_ms(10), 1004);
    assert_eq!(index.next_use_ms(5000), 5000);
}
