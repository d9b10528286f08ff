//! References: one for each owner, and those whose owner is gone.

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

    let fallen = CacheRefRow {
        chunk_key: None,
        num_tokens: 0,
        is_pinned: false,
        lost_tokens: 512,
        lost_reason: Some("evicted".into()),
        lost_at_ms: Some(-1),
        ..chat
    };
    store.change_cache(&[RefSet(fallen.clone())]).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap(), [fallen, book.clone()]);
    for _ in 0..2 {
        store.change_cache(&[RefRemoved { owner: "conversation/c".into() }]).await.unwrap();
        assert_eq!(store.cache_refs().await.unwrap(), std::slice::from_ref(&book));
    }
}

#[tokio::test]
async fn a_reference_outlives_its_owner_until_it_is_deleted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let kept = store.create_conversation(1).await.unwrap().id;
    let gone = store.create_conversation(2).await.unwrap().id;
    for (id, name) in [("kept", "one"), ("gone", "other")] {
        store.create_named_cache(&named_cache(id, name, 1)).await.unwrap();
    }
    let of_gone = format!("conversation/{gone}");
    // The last two have the ids of the other table, and so no owner.
    let swapped = format!("named/{kept}");
    let left = |owner: &str| format!("{owner}#00");
    let kept = format!("conversation/{kept}");
    // A conversation's stale references are its own, too.
    let owners = [
        &kept,
        &left(&kept),
        &left(&of_gone),
        "named/kept",
        "named/gone",
        &swapped,
        "conversation/kept",
        &left("conversation/kept"),
    ];
    store.change_cache(&owners.map(|owner| RefSet(cache_ref(owner)))).await.unwrap();
    let mut orphans = vec!["conversation/kept".to_owned(), swapped];
    assert_eq!(store.purged_owners().await.unwrap(), orphans);

    // An owner that can still be restored keeps its reference.
    store.delete_conversation(&gone, 3).await.unwrap();
    store.delete_named_cache("gone", 3).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap().len(), 8);
    orphans.extend([of_gone, "named/gone".to_owned()]);
    orphans.sort();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    let released = orphans
        .iter()
        .flat_map(|owner| [owner.clone(), left(owner)])
        .map(|owner| RefRemoved { owner });
    store.change_cache(&released.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), [""; 0]);
    assert_eq!(store.cache_refs().await.unwrap().len(), 3);
}
