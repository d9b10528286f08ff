//! What owners refer to, and what they lose.

use super::*;

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

/// Its row goes later than the reference: until then whoever reads the rows finds it.
#[test]
fn a_removed_reference_does_not_come_back_from_its_row() {
    let mut index = index(u64::MAX);
    let key = save(&mut index, &ids(0, 300), &[], 1);
    reference(&mut index, "chat", key, true);
    let row = index.ref_of(&owner("chat")).unwrap().clone();
    index.remove_refs_of(&owner("chat"));
    assert_eq!(index.adopt_ref(row.clone(), 2), []);
    assert_eq!(index.ref_of(&owner("chat")), None);
    assert!(!index.is_pinned(&key));
    index.check("its row was read");

    reference(&mut index, "chat", key, false);
    index.forget_ref(&owner("chat").into());
    index.adopt_ref(row.clone(), 3);
    assert_eq!(index.ref_of(&owner("chat")), Some(&row), "another program knows it better");
    index.check("it was set again");
}

#[test]
fn a_reference_can_be_removed_while_its_chunk_is_missing() {
    let mut whole = index(u64::MAX);
    let key = save(&mut whole, &ids(0, 300), &[], 1);
    reference(&mut whole, "chat", key, false);
    let refs: Vec<CacheRef> = whole.refs().cloned().collect();
    let mut index = ChunkIndex::new(whole.budgets(), Vec::new(), refs.clone()).0;
    let removed = CacheChange::RefRemoved(owner("chat").into());
    assert_eq!(index.remove_refs_of(&owner("chat")), [removed]);
    assert_eq!(index.resolve_refs(2), []);
    assert_eq!(index.adopt_ref(refs[0].clone(), 3), []);
    assert_eq!(index.ref_of(&owner("chat")), None);
    index.check("its row was read");
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
    // Stale references are hidden from callers, and pinned with the conversation that has left them.
    let usages = index.ref_usages();
    let ids_of: Vec<_> = usages.iter().map(|usage| usage.cache_ref.owner().id()).collect();
    assert_eq!(ids_of, ["chat", "other"]);
    assert_eq!(index.ref_usage(&owner("other")).unwrap().shared_with, [owner("chat")]);
    let changes = index.clear(9);
    assert_eq!(changed_refs(&changes).1.len(), 0, "every branch of a pinned conversation stays");
    assert_eq!(num_removed_bytes(changes), 10, "the other one's");
    // They are restored from rows after a restart.
    let last = save(&mut index, &branch(3000), &boundaries, 3);
    reference(&mut index, "chat", last, false);
    let records = index.chunks().map(|chunk| chunk.record.clone()).collect();
    let refs = index.refs().cloned().collect();
    let (mut index, _) = ChunkIndex::new(index.budgets(), records, refs);
    assert_eq!(num_removed_bytes(index.purge(&owner("chat"), 9)), 10 + 10 + 10 + 10 + 20);
    assert_eq!(index.refs().count(), 2);
    assert_eq!(lengths(&index, &branch(9000)), [100]);
}

#[test]
fn what_a_draft_model_has_read_goes_with_its_conversation() {
    let mut index = index(u64::MAX);
    let draft = Namespace::computed("fedcba9876543210", KvFormat::Plain);
    let tokens = ids(0, 60);
    let read_by_draft = |index: &mut ChunkIndex, length: usize| {
        let read = prompt(&tokens[..length]);
        for chunk in index.write_plan(&draft, &read, &[], &[], ANYWHERE) {
            add(index, ChunkRecord { namespace: draft.clone(), ..record(chunk, 1) });
        }
        let end = index.end_of(&draft, &read, ANYWHERE);
        index.refer_beside(&owner("chat"), &draft, "small", end);
        index.check("a draft model has read");
        index.stale_refs_of(&owner("chat")).len()
    };
    assert_eq!(read_by_draft(&mut index, 20), 1, "before anything else of the conversation");
    let last = save(&mut index, &tokens, &[(30, User)], 1);
    reference(&mut index, "chat", last, true);
    assert_eq!(read_by_draft(&mut index, 40), 1, "the longer one covers the other");
    assert_eq!(read_by_draft(&mut index, 40), 1);
    assert_eq!(index.refer_beside(&owner("chat"), &draft, "small", None), []);
    let now = index.ref_of(&owner("chat")).unwrap();
    assert_eq!((now.target, now.num_tokens), (Some(last), 60), "the conversation is where it was");
    assert_eq!(num_removed_bytes(index.clear(9)), 40, "it is not pinned with the conversation");
    read_by_draft(&mut index, 60);
    assert_eq!(num_removed_bytes(index.purge(&owner("chat"), 9)), 60 + 60);
    assert_eq!(index.stale_refs_of(&owner("chat")), []);
}

#[test]
fn a_reference_follows_the_branch_that_is_shown() {
    let mut index = index(u64::MAX);
    let one = ids(0, 30);
    let other = [ids(0, 20), ids(500, 540)].concat();
    let boundaries = [(20, User)];
    for tokens in [&one, &other] {
        let last = save(&mut index, tokens, &boundaries, 1);
        reference(&mut index, "chat", last, true);
    }
    let mut shown = |of: &str, tokens: &[u32]| {
        index.point_ref(&owner(of), &owner("chat"), &PromptTokens::known(tokens));
        index.check("a branch is shown");
        let (is_pinned, num_stale) =
            (index.is_ref_pinned(&owner(of)), index.stale_refs_of(&owner(of)).len());
        index.ref_of(&owner(of)).map(|found| (found.num_tokens, is_pinned, num_stale))
    };
    assert_eq!(shown("chat", &one), Some((30, true, 1)));
    assert_eq!(shown("chat", &other), Some((60, true, 1)));
    assert_eq!(shown("chat", &[one.as_slice(), &[7]].concat()), Some((30, true, 1)));
    assert_eq!(shown("chat", &ids(900, 910)), Some((0, true, 2)), "nothing is saved of it");
    assert_eq!(shown("copy", &one[..20]), Some((20, false, 0)));
    assert_eq!(shown("another", &ids(900, 910)), None);
    assert_eq!(removed(index.clear(9)).len(), 0, "every branch is pinned");
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
