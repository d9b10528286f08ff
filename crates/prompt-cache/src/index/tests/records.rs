//! Records from rows, from files and from other processes.

use super::*;

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
fn a_chunk_whose_parent_was_evicted_since_the_plan_is_not_added() {
    let mut index = index(u64::MAX);
    let planned = plan(&index, &ids(0, 300), &[]);
    assert!(!index.insert(record(planned[1].clone(), 1), 10));
    assert!(index.insert(record(planned[0].clone(), 1), 10));
    assert!(!index.insert(record(planned[0].clone(), 1), 10), "it is there already");
    assert_eq!(index.memory_bytes(), 10);
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
