//! What is removed for the budgets, and in which order.

use super::*;

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
