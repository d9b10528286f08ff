//! How prompts are cut into chunks, and what a lookup finds.

use super::*;

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
