//! Tests of the index by example: planning, lookup, eviction and references. A chunk takes one byte
//! per token here.

use std::collections::BTreeSet;

use super::search::{Matched, num_restorable};
use super::*;
use crate::{ChunkKind, KvFormat, Loss, Namespace, Owner, PromptTokens};
use ChunkKind::{Assistant, System, User};

fn namespace() -> Namespace {
    Namespace::computed("0123456789abcdef", KvFormat::Plain)
}

/// The needs of a model whose caches can be restored after every token.
const ANYWHERE: RestoreNeeds = RestoreNeeds { window: None, needs_state: false };

fn index(disk_bytes: u64) -> ChunkIndex {
    let budgets = Budgets { disk_bytes, memory_bytes: u64::MAX };
    ChunkIndex::new(budgets, Vec::new(), Vec::new()).0
}

fn set_disk_budget(index: &mut ChunkIndex, disk_bytes: u64) {
    index.set_budgets(Budgets { disk_bytes, ..index.budgets() });
}

fn set_memory_budget(index: &mut ChunkIndex, memory_bytes: u64) {
    index.set_budgets(Budgets { memory_bytes, ..index.budgets() });
}

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn prompt(ids: &[u32]) -> PromptTokens {
    PromptTokens::known(ids)
}

fn file_of(num_bytes: u64) -> ChunkFile {
    ChunkFile { num_bytes, hash: "0".repeat(64).into() }
}

/// The record of a planned chunk on disk.
fn record(chunk: PlannedChunk, at_ms: i64) -> ChunkRecord {
    ChunkRecord {
        key: chunk.key,
        parent: chunk.parent,
        namespace: namespace(),
        kind: chunk.kind,
        start: chunk.start,
        held_from: chunk.start,
        has_state: false,
        file: Some(file_of(chunk.tokens.len() as u64)),
        tokens: chunk.tokens,
        hits: 0,
        created_at_ms: at_ms,
        last_used_at_ms: at_ms,
    }
}

fn plan(
    index: &ChunkIndex,
    tokens: &[u32],
    boundaries: &[(usize, ChunkKind)],
) -> Vec<PlannedChunk> {
    index.write_plan(&namespace(), &prompt(tokens), boundaries, &[], ANYWHERE)
}

fn add(index: &mut ChunkIndex, record: ChunkRecord) {
    assert!(index.adopt(record));
}

/// Adds the chunks of a turn, used at `at_ms`; returns the last chunk's key.
fn save(
    index: &mut ChunkIndex,
    tokens: &[u32],
    boundaries: &[(usize, ChunkKind)],
    at_ms: i64,
) -> ChunkKey {
    for chunk in plan(index, tokens, boundaries) {
        add(index, record(chunk, at_ms));
    }
    *index.keys_of(&namespace(), &prompt(tokens)).last().unwrap()
}

fn found<'a>(index: &'a ChunkIndex, tokens: &[u32]) -> Vec<Matched<'a>> {
    index.restorable(&namespace(), &prompt(tokens), ANYWHERE).path
}

fn lengths(index: &ChunkIndex, tokens: &[u32]) -> Vec<usize> {
    found(index, tokens).iter().map(|part| part.num_tokens).collect()
}

fn owner(id: &str) -> Owner {
    Owner::Conversation(id.to_owned())
}

fn reference(index: &mut ChunkIndex, id: &str, key: ChunkKey, is_pinned: bool) -> Vec<CacheChange> {
    index.set_ref(CacheRef {
        name: owner(id).into(),
        namespace: namespace(),
        model_name: "m".to_owned(),
        target: Some(key),
        num_tokens: 0,
        is_pinned,
        loss: None,
    })
}

/// The references among the changes, and the names of those that are gone.
fn changed_refs(changes: &[CacheChange]) -> (Vec<&CacheRef>, Vec<&RefName>) {
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            CacheChange::RefSet(cache_ref) => set.push(cache_ref),
            CacheChange::RefRemoved(name) => removed.push(name),
            _ => {}
        }
    }
    (set, removed)
}

fn removed(changes: Vec<CacheChange>) -> Vec<ChunkRecord> {
    let chunks = changes.into_iter().filter_map(|change| match change {
        CacheChange::Removed { chunks, .. } => Some(chunks),
        _ => None,
    });
    chunks.flatten().collect()
}

/// When the removed chunks were used, and where they started.
fn starts(changes: Vec<CacheChange>) -> Vec<(i64, usize)> {
    let of = |record: ChunkRecord| (record.last_used_at_ms, record.start);
    removed(changes).into_iter().map(of).collect()
}

fn num_removed_bytes(changes: Vec<CacheChange>) -> u64 {
    removed(changes).iter().map(ChunkRecord::num_file_bytes).sum()
}

#[test]
fn chunks_end_at_boundaries_and_at_256_tokens() {
    let check =
        |length: u32, boundaries: &[(usize, ChunkKind)], expected: &[(usize, ChunkKind)]| {
            let mut index = index(u64::MAX);
            save(&mut index, &ids(0, length), boundaries, 0);
            let parts = found(&index, &ids(0, length));
            let found: Vec<_> =
                parts.iter().map(|part| (part.num_tokens, part.chunk.record.kind)).collect();
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
fn chunks_end_at_checkpoints() {
    let needs = RestoreNeeds { window: None, needs_state: true };
    let boundaries = [(10, System), (30, User)];
    let planned =
        index(0).write_plan(&namespace(), &prompt(&ids(0, 40)), &boundaries, &[10, 25], needs);
    let cuts: Vec<_> = planned.iter().map(|chunk| (chunk.start, chunk.kind)).collect();
    assert_eq!(cuts, [(0, System), (10, User), (25, User), (30, Assistant)]);
}

#[test]
fn opaque_tokens_get_chunks_of_their_own_that_only_opaque_prompts_find() {
    let opaque =
        Namespace { provenance: crate::Provenance::OpaqueImport("0f".into()), ..namespace() };
    let whole = PromptTokens::after_opaque(300, [0, 0, 7]);
    let mut index = index(u64::MAX);
    for chunk in index.write_plan(&opaque, &whole, &[(303, User)], &[], ANYWHERE) {
        let record = ChunkRecord { namespace: opaque.clone(), ..record(chunk, 0) };
        let ids = record.tokens.stored_ids();
        assert_eq!(ChunkRecord::stored_tokens(&opaque, record.kind, ids), record.tokens);
        add(&mut index, record);
    }
    index.check("saving an opaque import");
    let check = |tokens: PromptTokens, expected: &[usize]| {
        let path = index.restorable(&opaque, &tokens, ANYWHERE).path;
        let lengths: Vec<usize> = path.iter().map(|part| part.num_tokens).collect();
        assert_eq!(lengths, expected, "{tokens:?}");
    };
    check(whole.clone(), &[256, 44, 3]);
    check(PromptTokens::after_opaque(300, [0, 1]), &[256, 44, 1]);
    check(PromptTokens::after_opaque(270, [0, 1]), &[256, 14]);
    check(PromptTokens::known(vec![0; 303]), &[]);
    assert!(index.write_plan(&opaque, &whole, &[(303, User)], &[], ANYWHERE).is_empty());
}

#[test]
fn a_prefix_is_found_however_it_was_cut() {
    let mut index = index(u64::MAX);
    save(&mut index, &ids(0, 100), &[(40, System)], 0);
    assert_eq!(lengths(&index, &ids(0, 100)), [40, 60]);
    assert_eq!(lengths(&index, &ids(0, 70)), [40, 30]);
    let mut edited = ids(0, 100);
    edited[70] = 9999;
    assert_eq!(lengths(&index, &edited), [40, 30]);
    // The longer of two branches wins.
    save(&mut index, &edited, &[(40, System)], 0);
    assert_eq!(lengths(&index, &edited), [40, 60]);
    assert_eq!(lengths(&index, &ids(0, 100)), [40, 60]);
    assert_eq!(lengths(&index, &ids(1, 100)), Vec::<usize>::new());
    for other in [
        Namespace { model: "fedcba9876543210".into(), ..namespace() },
        Namespace { kv_format: KvFormat::Quantized { bits: 8, group_size: 64 }, ..namespace() },
    ] {
        assert!(index.keys_of(&other, &prompt(&ids(0, 100))).is_empty(), "{other:?}");
    }
}

#[test]
fn a_shorter_sibling_wins_if_its_descendants_match_further() {
    let mut index = index(u64::MAX);
    // A question, and a prefix of that question whose continuation matches it for a while.
    save(&mut index, &ids(0, 100), &[(40, System), (90, User)], 0);
    let shorter: Vec<u32> = ids(0, 63).into_iter().chain(ids(1000, 1040)).collect();
    save(&mut index, &shorter, &[(40, System), (60, User)], 0);
    assert_eq!(lengths(&index, &shorter), [40, 20, 43]);
    assert_eq!(lengths(&index, &ids(0, 100)), [40, 50, 10]);
    assert_eq!(lengths(&index, &ids(0, 80)), [40, 40]);
    let missing = plan(&index, &shorter, &[(40, System), (60, User)]);
    assert!(missing.is_empty(), "{missing:?}");

    // The restorable length counts, not the matching length.
    let end = found(&index, &shorter)[1].chunk.key();
    index.chunks.get_mut(&end).unwrap().record.has_state = true;
    let restorable =
        |needs| index.restore_plan(&namespace(), &prompt(&ids(0, 100)), needs).num_tokens;
    assert_eq!(restorable(RestoreNeeds { window: None, needs_state: true }), 60);
    assert_eq!(restorable(ANYWHERE), 100);
}

#[test]
fn a_position_that_a_chunk_blocks_gets_sibling_chunks() {
    /// Stores tokens 0 to 40 in chunks of ten, the first with the state and window that the model
    /// needs; then checks the plan for a position.
    fn check(tokens: std::ops::Range<u32>, needs: RestoreNeeds, expected: &[(usize, usize)]) {
        let mut index = index(u64::MAX);
        for chunk in plan(&index, &ids(0, 40), &[(10, System), (20, User), (30, User)]) {
            let (held_from, has_state) =
                if chunk.start == 0 { (0, true) } else { (chunk.start + 10, false) };
            add(&mut index, ChunkRecord { held_from, has_state, ..record(chunk, 0) });
        }
        let tokens = prompt(&ids(tokens.start, tokens.end));
        let boundaries = [(10, System), (20, User), (tokens.len(), User)];
        let planned = index.write_plan(&namespace(), &tokens, &boundaries, &[], needs);
        let cuts = planned.iter().map(|chunk| (chunk.start, chunk.start + chunk.tokens.len()));
        assert_eq!(cuts.collect::<Vec<_>>(), expected, "{tokens:?} for {needs:?}");
        // Once they are stored, nothing more is planned.
        for chunk in planned {
            add(&mut index, ChunkRecord { has_state: true, ..record(chunk, 0) });
        }
        assert_eq!(index.restore_plan(&namespace(), &tokens, needs).num_tokens, tokens.len());
        assert!(index.write_plan(&namespace(), &tokens, &boundaries, &[], needs).is_empty());
    }
    let state = RestoreNeeds { window: None, needs_state: true };
    let window = |window| RestoreNeeds { window: Some(window), needs_state: false };
    check(0..10, state, &[]);
    check(0..25, state, &[(20, 25)]);
    check(0..30, state, &[(20, 29), (29, 30)]);
    check(0..30, window(4), &[(20, 29), (29, 30)]);
    // The window also reaches into the chunk before.
    check(0..23, window(4), &[(10, 19), (19, 20), (20, 23)]);
}

#[test]
fn shared_chunks_are_stored_once() {
    let mut index = index(u64::MAX);
    for conversation in 0..1_000 {
        let mut tokens = ids(0, 2000);
        tokens.extend([100_000 + conversation, 7, 8]);
        save(&mut index, &tokens, &[(2000, System), (2003, User)], 0);
    }
    assert_eq!(index.disk_bytes(), 2000 + 3 * 1_000);
    assert_eq!(index.num_chunks(), 8 + 1_000);
}

/// Ten thousand conversations on one system prompt of eight chunks. Their questions begin as a
/// template writes them, and many go on alike.
fn ten_thousand_conversations() -> ChunkIndex {
    let mut whole = index(u64::MAX);
    let parent = save(&mut whole, &ids(0, 2048), &[(2048, System)], 0);
    let mut records: Vec<ChunkRecord> =
        whole.chunks().map(|chunk| chunk.record().clone()).collect();
    for conversation in 0..10_000 {
        let tokens = Tokens::known(question(conversation));
        let key = parent.child(&tokens);
        let planned = PlannedChunk { key, parent: Some(parent), kind: User, start: 2048, tokens };
        records.push(record(planned, 0));
    }
    ChunkIndex::new(whole.budgets(), records, Vec::new()).0
}

fn question(conversation: u32) -> Vec<u32> {
    [ids(50_000, 50_004), vec![conversation % 10, conversation, 7, 8, 9]].concat()
}

#[test]
fn a_lookup_among_ten_thousand_chunks_compares_few_of_them() {
    let index = ten_thousand_conversations();
    assert_eq!(index.num_chunks(), 8 + 10_000);
    let check = |question: &[u32], needs: RestoreNeeds, expected: usize| {
        let tokens = prompt(&[&ids(0, 2048), question].concat());
        let found = index.restorable(&namespace(), &tokens, needs);
        assert_eq!(found.worth, expected, "{question:?}");
        // Eight for the system prompt, and a few neighbours among the questions.
        assert!(found.num_visited <= 30, "{} compared for {question:?}", found.num_visited);
    };
    check(&question(4_321), ANYWHERE, 2048 + 9);
    check(&[question(4_321), ids(0, 9)].concat(), ANYWHERE, 2048 + 9);
    check(&question(10_001), ANYWHERE, 2048 + 5);
    check(&question(4_321)[..6], ANYWHERE, 2048 + 6);
    check(&[50_000, 50_001], ANYWHERE, 2048 + 2);
    check(&[60_000], ANYWHERE, 2048);
    check(&[], ANYWHERE, 2048);
    let window = RestoreNeeds { window: Some(512), needs_state: false };
    check(&question(10_001), window, 2048 + 5);
    let state = RestoreNeeds { window: None, needs_state: true };
    check(&question(10_001), state, 0);
}

#[test]
fn windows_and_states_are_restorable_only_where_they_were_saved() {
    /// Chunks given as (stop, held_from, has_state).
    fn check(chunks: &[(usize, usize, bool)], needs: RestoreNeeds, limit: usize, expected: usize) {
        let mut start = 0;
        let chunk = |&(stop, held_from, has_state): &(usize, usize, bool)| {
            let planned = PlannedChunk {
                key: ChunkKey::from_bytes([stop as u8; 16]),
                parent: None,
                kind: User,
                start,
                tokens: Tokens::known(ids(start as u32, stop as u32)),
            };
            start = stop;
            let record = ChunkRecord { held_from, has_state, ..record(planned, 0) };
            Chunk { record, memory_bytes: None, is_pending: false }
        };
        let chunks: Vec<Chunk> = chunks.iter().map(chunk).collect();
        let matched = |chunk| {
            let Chunk { record, .. }: &Chunk = chunk;
            let num_tokens = record.num_tokens().min(limit - record.start.min(limit));
            (num_tokens > 0).then_some(Matched { chunk, num_tokens })
        };
        let path: Vec<Matched<'_>> = chunks.iter().filter_map(matched).collect();
        assert_eq!(num_restorable(&path, needs), expected, "{needs:?} up to {limit}: {path:?}");
    }
    check(&[(10, 0, false), (20, 10, false)], ANYWHERE, 100, 20);
    check(&[(10, 0, false), (20, 10, false)], ANYWHERE, 13, 13);
    check(&[], ANYWHERE, 13, 0);
    let window = RestoreNeeds { window: Some(4), needs_state: false };
    check(&[(10, 0, false), (20, 10, false)], window, 13, 13);
    // Only the end of the second chunk was still in the window.
    check(&[(10, 0, false), (20, 16, false)], window, 100, 20);
    check(&[(10, 0, false), (20, 16, false)], window, 19, 10);
    check(&[(10, 0, false), (20, 17, false)], window, 100, 10);
    check(&[(10, 8, false), (20, 20, false), (30, 26, false)], window, 100, 30);
    check(&[(10, 8, false), (20, 20, false), (30, 26, false)], window, 29, 0);
    check(&[(3, 0, false), (20, 20, false)], window, 100, 3);
    let state = RestoreNeeds { window: None, needs_state: true };
    check(&[(10, 0, true), (20, 10, false), (30, 20, true)], state, 100, 30);
    check(&[(10, 0, true), (20, 10, false), (30, 20, true)], state, 29, 10);
    check(&[(10, 0, false), (20, 10, false)], state, 100, 0);
    let both = RestoreNeeds { window: Some(4), needs_state: true };
    check(&[(10, 0, true), (20, 19, true)], both, 100, 10);
}

#[test]
fn answers_are_evicted_before_questions_and_questions_before_system_prompts() {
    let mut index = index(1000);
    // Two conversations: a system prompt of 10, a question of 20, an answer of 5; the first is
    // older.
    for (from, at_ms) in [(0, 1), (1000, 2)] {
        save(&mut index, &ids(from, from + 35), &[(10, System), (30, User)], at_ms);
    }
    let mut check = |budget: u64, expected: &[(i64, usize)]| {
        set_disk_budget(&mut index, budget);
        assert_eq!(starts(index.enforce_disk_budget(9)), expected, "{budget}");
        assert_eq!(index.disk_bytes(), budget);
        index.check("an eviction");
    };
    check(60, &[(1, 30), (2, 30)]);
    check(40, &[(1, 10)]);
    // One question and one system prompt remain, so the question goes first.
    check(20, &[(2, 10)]);
    check(10, &[(1, 0)]);
}

#[test]
fn nothing_is_evicted_for_a_chunk_that_cannot_fit() {
    let mut index = index(100);
    let continued = save(&mut index, &ids(0, 40), &[(20, User)], 2);
    save(&mut index, &ids(1000, 1010), &[], 1);
    let larger_than_all = index.make_room_on_disk(101, None, 9);
    assert_eq!(larger_than_all, Err(crate::PromptCacheError::NoRoom));
    let only_what_is_continued_would_be_left = index.make_room_on_disk(70, Some(&continued), 9);
    assert_eq!(only_what_is_continued_would_be_left, Err(crate::PromptCacheError::NoRoom));
    assert_eq!(index.disk_bytes(), 50);
    assert_eq!(starts(index.make_room_on_disk(60, Some(&continued), 9).unwrap()), [(1, 0)]);
    assert_eq!(index.disk_bytes(), 40);
}

#[test]
fn pinned_chunks_are_not_evicted() {
    let mut index = index(u64::MAX);
    let named = save(&mut index, &ids(0, 40), &[(20, User)], 1);
    save(&mut index, &ids(1000, 1040), &[(20, User)], 2);
    reference(&mut index, "named", named, true);
    set_disk_budget(&mut index, 0);
    assert_eq!(starts(index.enforce_disk_budget(9)), [(2, 20), (2, 0)]);
    assert_eq!(lengths(&index, &ids(0, 40)), [20, 20]);
    assert!(index.clear(9).is_empty());
    index.pin(&owner("named"), false);
    assert_eq!(removed(index.clear(9)).len(), 2);
}

#[test]
fn a_reference_falls_back_to_its_remaining_chunks_and_notes_its_loss() {
    let mut index = index(u64::MAX);
    let key = save(&mut index, &ids(0, 600), &[], 1);
    reference(&mut index, "chat", key, false);
    let second = found(&index, &ids(0, 600))[1].chunk.key();
    let first = found(&index, &ids(0, 600))[0].chunk.key();
    let changes = index.remove(&second, LossReason::FileDamaged, 7);
    let fallen = changed_refs(&changes).0[0];
    assert_eq!((fallen.num_tokens, fallen.target), (256, Some(first)));
    let loss = |reason, at_ms| Some(Loss { num_tokens: 600, reason, at_ms });
    assert_eq!(fallen.loss, loss(LossReason::FileDamaged, 7));
    assert_eq!(removed(changes).len(), 2);
    set_disk_budget(&mut index, 0);
    let changes = index.enforce_disk_budget(8);
    let fallen = changed_refs(&changes).0[0];
    assert_eq!((fallen.num_tokens, fallen.target), (0, None));
    assert_eq!(fallen.loss, loss(LossReason::DiskBudget, 8));
    index.check("everything was evicted");
}

#[test]
fn a_reference_whose_chunk_has_no_row_waits_until_the_files_were_looked_at() {
    let mut whole = index(u64::MAX);
    let key = save(&mut whole, &ids(0, 300), &[], 1);
    reference(&mut whole, "chat", key, true);
    let refs: Vec<CacheRef> = whole.refs().cloned().collect();
    let rows = |start| {
        let chunks = whole.chunks().filter(move |chunk| chunk.record.start == start);
        chunks.map(|chunk| chunk.record.clone()).collect::<Vec<_>>()
    };
    let reopened = || ChunkIndex::new(whole.budgets(), rows(0), refs.clone()).0;
    let check = |index: &ChunkIndex, num_tokens: usize, lost: Option<usize>| {
        let cache_ref = index.ref_of(&owner("chat")).unwrap();
        let loss = cache_ref.loss.as_ref();
        assert_eq!((cache_ref.num_tokens, loss.map(|loss| loss.num_tokens)), (num_tokens, lost));
        index.check("references were resolved");
    };
    let mut index = reopened();
    assert!(index.ref_of(&owner("chat")).is_none());
    assert!(index.pin(&owner("chat"), false).is_empty(), "its row stays");
    assert!(!index.is_ref_pinned(&owner("chat")));
    index.pin(&owner("chat"), true);
    assert!(index.is_ref_pinned(&owner("chat")), "what is saved meanwhile stays pinned");
    add(&mut index, rows(256).remove(0));
    let changes = index.resolve_refs(5);
    let found = changed_refs(&changes).0[0];
    assert_eq!((found.is_pinned, found.target), (true, Some(key)));
    check(&index, 300, None);
    let mut index = reopened();
    assert_eq!(index.resolve_refs(5).len(), 1);
    check(&index, 0, Some(300));
}

#[test]
fn a_stored_reference_that_contradicts_its_chunk_is_corrected() {
    let mut whole = index(u64::MAX);
    let key = save(&mut whole, &ids(0, 300), &[], 1);
    reference(&mut whole, "chat", key, false);
    let records = || whole.chunks().map(|chunk| chunk.record.clone()).collect::<Vec<_>>();
    let check = |change: fn(&mut CacheRef), expected: (usize, bool)| {
        let mut cache_ref = whole.ref_of(&owner("chat")).unwrap().clone();
        change(&mut cache_ref);
        let name = cache_ref.name.clone();
        let (mut index, _) = ChunkIndex::new(whole.budgets(), records(), vec![cache_ref]);
        let changes = index.resolve_refs(5);
        let changed = changed_refs(&changes).0[0];
        assert_eq!(
            (&changed.name, changed.num_tokens, changed.is_pinned),
            (&name, expected.0, expected.1)
        );
        index.check("a reference was corrected");
    };
    check(|cache_ref| cache_ref.num_tokens = 5_000, (300, false));
    let stale_and_pinned = |cache_ref: &mut CacheRef| {
        cache_ref.name.stale_key = cache_ref.target;
        cache_ref.is_pinned = true;
    };
    check(stale_and_pinned, (300, false));
}

#[test]
fn a_purge_removes_the_chunks_that_no_other_owner_refers_to() {
    let mut index = index(u64::MAX);
    let shared: Vec<u32> = ids(0, 100);
    let branch =
        |from: u32| shared.iter().copied().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    let first = save(&mut index, &branch(1000), &[(100, System), (105, User)], 1);
    let second = save(&mut index, &branch(2000), &[(100, System), (105, User)], 1);
    // An earlier answer to the first one's question.
    let mut sibling = branch(1000);
    sibling.truncate(105);
    sibling.extend(ids(3000, 3009));
    save(&mut index, &sibling, &[(100, System), (105, User)], 1);
    reference(&mut index, "first", first, true);
    reference(&mut index, "second", second, false);

    let usages: Vec<_> = index
        .ref_usages()
        .into_iter()
        .map(|usage| {
            let id = usage.cache_ref.owner().id().to_owned();
            (id, usage.num_bytes, usage.num_own_bytes, usage.shared_with)
        })
        .collect();
    let with = |id: &str| vec![owner(id)];
    let expected = [
        ("first".to_owned(), 110, 10, with("second")),
        ("second".to_owned(), 110, 10, with("first")),
    ];
    assert_eq!(usages, expected);

    assert_eq!(num_removed_bytes(index.purge(&owner("first"), 9)), 5 + 5 + 9);
    assert_eq!(lengths(&index, &branch(2000)), [100, 5, 5]);
    let purged = index.ref_of(&owner("first")).unwrap();
    assert_eq!(purged.num_tokens, 100);
    assert_eq!(purged.loss.as_ref().unwrap().reason, LossReason::Deleted);
    let mut purge = || removed(index.purge(&owner("second"), 9)).len();
    assert_eq!((purge(), purge()), (2, 0), "the rest is the first one's too");
    index.remove_refs_of(&owner("first"));
    assert_eq!(removed(index.purge(&owner("second"), 9)).len(), 1);
    assert_eq!(index.disk_bytes(), 0);
}

#[test]
fn a_purge_removes_the_chunks_of_stale_references_too() {
    let mut index = index(u64::MAX);
    let shared = ids(0, 100);
    let branch =
        |from: u32| shared.iter().copied().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    let boundaries = [(100, System)];
    let other = save(&mut index, &branch(9000), &boundaries, 1);
    reference(&mut index, "other", other, false);
    // An edited first question, then a new beginning, then back to the first, which continues.
    let first = save(&mut index, &branch(1000), &boundaries, 1);
    reference(&mut index, "chat", first, true);
    let mut num_stale = Vec::new();
    for tokens in [branch(2000), ids(5000, 5020), [branch(1000), ids(1010, 1020)].concat()] {
        let last = save(&mut index, &tokens, &boundaries, 2);
        reference(&mut index, "chat", last, true);
        num_stale.push(index.stale_refs_of(&owner("chat")).len());
        index.check("a reference moved");
    }
    assert_eq!(num_stale, [1, 2, 2], "the conversation has returned to the first");
    // Stale references are hidden from callers, and pin nothing.
    let usages = index.ref_usages();
    let ids_of: Vec<_> = usages.iter().map(|usage| usage.cache_ref.owner().id()).collect();
    assert_eq!(ids_of, ["chat", "other"]);
    assert_eq!(index.ref_usage(&owner("other")).unwrap().shared_with, [owner("chat")]);
    let changes = index.clear(9);
    assert_eq!(changed_refs(&changes).1.len(), 2, "the stale references are gone too");
    assert_eq!(num_removed_bytes(changes), 10 + 10 + 20);
    // They are restored from rows after a restart.
    let last = save(&mut index, &branch(3000), &boundaries, 3);
    reference(&mut index, "chat", last, false);
    let records = index.chunks().map(|chunk| chunk.record.clone()).collect();
    let refs = index.refs().cloned().collect();
    let (mut index, _) = ChunkIndex::new(index.budgets(), records, refs);
    assert_eq!(num_removed_bytes(index.purge(&owner("chat"), 9)), 10 + 10 + 10);
    assert_eq!(index.refs().count(), 2);
    assert_eq!(lengths(&index, &branch(9000)), [100]);
}

#[test]
fn a_change_of_a_reference_names_the_last_chunk_on_disk() {
    let mut index = index(u64::MAX);
    let mut keys = Vec::new();
    for chunk in plan(&index, &ids(0, 30), &[(10, System), (20, User)]) {
        keys.push(chunk.key);
        assert!(index.insert(record(chunk, 1), 10));
    }
    let told = |changes: Vec<CacheChange>| {
        let refs = changed_refs(&changes).0;
        refs.first().map(|cache_ref| (cache_ref.num_tokens, cache_ref.target))
    };
    assert_eq!(told(reference(&mut index, "chat", keys[2], false)), Some((0, None)));
    assert_eq!(told(index.written(&keys[0], file_of(10))), None);
    assert_eq!(told(index.written(&keys[1], file_of(10))), None, "it is told when all is there");
    assert_eq!(told(index.written(&keys[2], file_of(10))), Some((30, Some(keys[2]))));
}

#[test]
fn rows_without_a_parent_are_rejected() {
    let mut whole = index(u64::MAX);
    let last = save(&mut whole, &ids(0, 600), &[(30, System)], 5);
    reference(&mut whole, "chat", last, false);
    save(&mut whole, &ids(1000, 1010), &[], 6);
    let refs: Vec<CacheRef> = whole.refs().cloned().collect();
    let records: Vec<ChunkRecord> = whole
        .chunks()
        .map(|chunk| chunk.record.clone())
        .filter(|record| record.start != 30)
        .collect();
    let (mut index, rejected) = ChunkIndex::new(whole.budgets(), records, refs);
    let starts: BTreeSet<usize> = rejected.iter().map(|record| record.start).collect();
    assert_eq!(starts, BTreeSet::from([286, 542]));
    assert_eq!(
        (lengths(&index, &ids(0, 600)), lengths(&index, &ids(1000, 1010)), index.disk_bytes()),
        (vec![30], vec![10], 40)
    );
    index.resolve_refs(9);
    index.check("orphans were rejected");
    assert_eq!(index.ref_of(&owner("chat")).unwrap().target, None);
    // The chunks that replace the lost ones are written as if those had never existed.
    save(&mut index, &ids(0, 600), &[(30, System)], 7);
    assert_eq!(lengths(&index, &ids(0, 600)), [30, 256, 256, 58]);
    assert_eq!(removed(index.clear(9)).len(), 5);
    index.check("everything was removed");
    assert!(index.children.is_empty() && index.disk_bytes() == 0);
}

#[test]
fn a_row_that_contradicts_itself_or_its_parent_is_rejected_with_what_continues_it() {
    let check = |change: fn(&mut ChunkRecord), expected: usize| {
        let mut whole = index(u64::MAX);
        save(&mut whole, &ids(0, 600), &[], 5);
        let mut records: Vec<ChunkRecord> =
            whole.chunks().map(|chunk| chunk.record.clone()).collect();
        records.iter_mut().filter(|record| record.start == 256).for_each(change);
        let (index, rejected) = ChunkIndex::new(whole.budgets(), records, Vec::new());
        assert_eq!((rejected.len(), index.num_chunks()), (expected, 3 - expected));
        index.check("a row was rejected");
    };
    check(|_| {}, 0);
    check(|record| record.tokens = Tokens::known([1]), 2);
    check(|record| record.start = 255, 2);
    check(|record| record.namespace.model = "fedcba9876543210".into(), 2);
    check(|record| record.file = None, 2);
}

#[test]
fn a_chunk_of_another_process_is_adopted_only_behind_its_parent_on_disk() {
    let mut whole = index(u64::MAX);
    save(&mut whole, &ids(0, 300), &[], 5);
    let records: Vec<ChunkRecord> =
        found(&whole, &ids(0, 300)).into_iter().map(|part| part.chunk.record.clone()).collect();
    let (mut empty, mut index) = (index(u64::MAX), index(u64::MAX));
    assert!(!index.adopt(records[1].clone()), "its parent is missing");
    assert!(index.insert(records[0].clone(), 10));
    assert!(!index.adopt(records[1].clone()), "its parent is only in memory");
    index.written(&records[0].key, file_of(10));
    // No key covers the position, and only a root's key covers the namespace.
    let changes: [fn(&mut ChunkRecord); 5] = [
        |record| record.tokens = Tokens::known([1]),
        |record| (record.start, record.held_from) = (255, 255),
        |record| (record.start, record.held_from) = (257, 257),
        |record| record.namespace.kv_format = KvFormat::Quantized { bits: 8, group_size: 64 },
        |record| record.file = None,
    ];
    for change in changes {
        let mut changed = records[1].clone();
        change(&mut changed);
        assert!(!index.adopt(changed.clone()), "{changed:?}");
    }
    let late_root = ChunkRecord { start: 2, held_from: 2, ..records[0].clone() };
    assert!(!empty.adopt(late_root), "it begins no prompt");
    assert!(index.adopt(records[1].clone()));
    assert!(!index.adopt(records[1].clone()), "it is there already");
    index.check("a chunk was adopted");
}

#[test]
fn a_chunk_that_could_not_be_written_is_evicted_for_the_budget() {
    let mut index = index(u64::MAX);
    let on_disk = save(&mut index, &ids(0, 20), &[], 1);
    for chunk in plan(&index, &ids(0, 30), &[]) {
        assert!(index.insert(record(chunk, 2), 10));
    }
    let elsewhere = plan(&index, &ids(1000, 1010), &[]).remove(0);
    assert!(index.insert(record(elsewhere, 1), 10));
    set_disk_budget(&mut index, 0);
    assert_eq!(starts(index.enforce_disk_budget(9)), [(2, 20), (1, 0)]);
    assert!(!index.contains(&on_disk));
    assert_eq!(
        lengths(&index, &ids(1000, 1010)),
        [10],
        "it takes no room on disk, and stands in nobody's way"
    );
}

#[test]
fn a_chunk_whose_parent_was_evicted_since_the_plan_is_not_added() {
    let mut index = index(u64::MAX);
    let planned = plan(&index, &ids(0, 300), &[]);
    assert!(!index.insert(record(planned[1].clone(), 1), 10));
    assert!(index.insert(record(planned[0].clone(), 1), 10));
    assert!(!index.insert(record(planned[0].clone(), 1), 10), "it is there already");
    assert_eq!(index.memory_bytes(), 10);
}

#[test]
fn references_through_a_chunk_stay_correct_after_every_change() {
    let mut index = index(u64::MAX);
    let branch =
        |from: u32| ids(0, 300).into_iter().chain(ids(from, from + 10)).collect::<Vec<u32>>();
    for (id, from) in [("first", 1000), ("second", 2000), ("third", 3000)] {
        let last = save(&mut index, &branch(from), &[(300, System), (305, User)], i64::from(from));
        reference(&mut index, id, last, id == "third");
    }
    index.check("three beginnings alike");
    let shared = found(&index, &ids(0, 256))[0].chunk.key();
    reference(&mut index, "second", shared, false);
    index.check("one goes back");
    index.pin(&owner("first"), true);
    index.remove_refs_of(&owner("third"));
    index.check("one lets go");
    index.clear(9);
    index.check("chunks without a pinned reference are gone");
    assert_eq!(lengths(&index, &branch(1000)), [256, 44, 5, 5]);
    index.remove(&shared, LossReason::FileDamaged, 10);
    index.check("nothing is left");
    assert!(index.refs_through.is_empty());
}

#[test]
fn contents_on_disk_are_dropped_from_memory_before_those_only_in_memory() {
    let mut index = index(u64::MAX);
    let mut keys = Vec::new();
    for (from, at_ms) in [(0, 1), (1000, 2)] {
        for chunk in plan(&index, &ids(from, from + 20), &[(10, User)]) {
            keys.push(chunk.key);
            assert!(index.insert(record(chunk, at_ms), 10));
        }
    }
    let (older, newer) = keys.split_at(2);
    for key in newer {
        index.written(key, file_of(11));
    }
    assert_eq!((index.memory_bytes(), index.disk_bytes()), (40, 22));
    let mut check = |budget: u64, pending: bool, dropped: &[ChunkKey], starts: &[usize]| {
        index.set_pending(&older[1], pending);
        set_memory_budget(&mut index, budget);
        let MemoryChanges { dropped: found, changes } = index.enforce_memory_budget(9);
        assert_eq!(found, dropped);
        let removed: Vec<usize> = removed(changes).iter().map(|record| record.start).collect();
        assert_eq!(removed, starts);
        index.check("the memory budget was enforced");
        index.memory_bytes()
    };
    assert_eq!(check(30, false, &newer[1..], &[]), 30);
    // Pending chunks stay, even over the budget.
    assert_eq!(check(0, true, &newer[..1], &[]), 20);
    assert_eq!(check(0, false, &[], &[10, 0]), 0);
    assert_eq!(index.disk_bytes(), 22);
}

#[test]
fn a_use_is_counted_and_delays_eviction() {
    let mut index = index(u64::MAX);
    let first = save(&mut index, &ids(0, 10), &[], 1);
    save(&mut index, &ids(1000, 1010), &[], 2);
    assert_eq!(index.used(vec![first], 3), CacheChange::Used { keys: vec![first], at_ms: 3 });
    assert_eq!(index.get(&first).unwrap().record.hits, 1);
    set_disk_budget(&mut index, 10);
    assert_eq!(starts(index.enforce_disk_budget(9)), [(2, 0)]);
}

#[test]
fn an_index_is_rebuilt_from_its_records() {
    let mut first = index(u64::MAX);
    save(&mut first, &ids(0, 600), &[(30, System)], 5);
    let records = first.chunks().map(|chunk| chunk.record.clone()).collect();
    let (mut second, _) = ChunkIndex::new(first.budgets(), records, Vec::new());
    assert_eq!(lengths(&second, &ids(0, 600)), lengths(&first, &ids(0, 600)));
    assert_eq!(second.disk_bytes, first.disk_bytes);
    assert_eq!(second.leaves, first.leaves);
    assert_eq!(starts(second.clear(9)), [(5, 542), (5, 286), (5, 30), (5, 0)]);
}

#[test]
fn a_clock_set_back_does_not_change_the_order_of_eviction() {
    let mut index = index(30);
    let at_ms = index.next_use_ms(1000);
    save(&mut index, &ids(0, 10), &[], at_ms);
    // The clock is set back; the chunk used now is still the last to be evicted.
    for (start, now_ms) in [(100, 500), (200, 500), (300, 400)] {
        let at_ms = index.next_use_ms(now_ms);
        save(&mut index, &ids(start, start + 10), &[], at_ms);
    }
    assert_eq!(starts(index.enforce_disk_budget(2000)), [(1000, 0)]);
    // The same holds after a restart.
    let records = index.chunks().map(|chunk| chunk.record.clone()).collect();
    let (mut index, _) = ChunkIndex::new(index.budgets(), records, Vec::new());
    assert_eq!(index.next_use_ms(10), 1004);
    assert_eq!(index.next_use_ms(5000), 5000);
}
