//! References: one for each owner, and those whose owner is deleted.

use super::{Scratch, named_cache};
use crate::CacheChange::{RefRemoved, RefSet};
use crate::CacheRefRow;

fn cache_ref(owner: &str) -> CacheRefRow {
    CacheRefRow {
        owner: owner.into(),
        fingerprint: "f00d".into(),
        kv_format: "kv8g64".into(),
        provenance: "computed".into(),
        model: "smol".into(),
        chunk_key: Some("ff".into()),
        num_tokens: 512,
        is_pinned: true,
        lost_tokens: 0,
        lost_reason: None,
        lost_at_ms: None,
    }
}

#[tokio::test]
async fn an_owner_has_one_reference() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (book, chat) = (cache_ref("named/n"), cache_ref("conversation/c"));
    store.change_cache(&[RefSet(book.clone()), RefSet(chat.clone())]).await.unwrap();
    assert_eq!(store.cache_refs().await.unwrap(), [chat.clone(), book.clone()]);

    let lost = CacheRefRow {
        chunk_key: None,
        num_tokens: 0,
        is_pinned: false,
        lost_tokens: 512,
        lost_reason: Some("evicted".into()),
        lost_at_ms: Some(-1),
        ..chat
    };
    store.change_cache(&[RefSet(lost.clone())]).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap(), [lost, book.clone()]);
    for _ in 0..2 {
        store.change_cache(&[RefRemoved { owner: "conversation/c".into() }]).await.unwrap();
        assert_eq!(store.cache_refs().await.unwrap(), std::slice::from_ref(&book));
    }
}

#[tokio::test]
async fn a_reference_outlives_its_owner_until_it_is_deleted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let live = store.create_conversation(1).await.unwrap().id;
    let deleted = store.create_conversation(2).await.unwrap().id;
    for (id, name) in [("live", "one"), ("deleted", "other")] {
        store.create_named_cache(&named_cache(id, name, 1)).await.unwrap();
    }
    let of_deleted = format!("conversation/{deleted}");
    // The last two have the ids of the other table, and so no owner.
    let of_other_table = format!("named/{live}");
    let stale = |owner: &str| format!("{owner}#00");
    let live = format!("conversation/{live}");
    // A conversation's stale references are its own, too.
    let owners = [
        &live,
        &stale(&live),
        &stale(&of_deleted),
        "named/live",
        "named/deleted",
        &of_other_table,
        "conversation/live",
        &stale("conversation/live"),
    ];
    store.change_cache(&owners.map(|owner| RefSet(cache_ref(owner)))).await.unwrap();
    let mut orphans = vec!["conversation/live".to_owned(), of_other_table];
    assert_eq!(store.purged_owners().await.unwrap(), orphans);

    // An owner that can still be restored keeps its reference.
    store.delete_conversation(&deleted, 3).await.unwrap();
    store.delete_named_cache("deleted", 3).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap().len(), 8);
    orphans.extend([of_deleted, "named/deleted".to_owned()]);
    orphans.sort();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    let released = orphans
        .iter()
        .flat_map(|owner| [owner.clone(), stale(owner)])
        .map(|owner| RefRemoved { owner });
    store.change_cache(&released.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), [""; 0]);
    assert_eq!(store.cache_refs().await.unwrap().len(), 3);
}
