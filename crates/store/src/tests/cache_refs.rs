//! References: one for each owner, and those whose owner is gone.

use super::{Scratch, named_cache};
use cairn_prompt_cache::CacheChange::{RefRemoved, RefSet};
use cairn_prompt_cache::{CacheRef, ChunkKey, Loss, LossReason, Namespace, Owner, RefName};

fn key() -> ChunkKey {
    ChunkKey::from_bytes([7; 16])
}

fn cache_ref(name: impl Into<RefName>) -> CacheRef {
    CacheRef {
        name: name.into(),
        namespace: Namespace::computed("f00d", "kv8g64".parse().unwrap()),
        model_name: "smol".into(),
        target: Some(key()),
        num_tokens: 512,
        is_pinned: true,
        loss: None,
    }
}

fn conversation(id: &str) -> Owner {
    Owner::Conversation(id.to_owned())
}

fn named(id: &str) -> Owner {
    Owner::Named(id.to_owned())
}

fn stale(owner: &Owner) -> RefName {
    RefName { owner: owner.clone(), stale_key: Some(key()) }
}

#[tokio::test]
async fn an_owner_has_one_reference() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (book, chat) = (cache_ref(named("n")), cache_ref(conversation("c")));
    store.change_cache(&[RefSet(book.clone()), RefSet(chat.clone())]).await.unwrap();
    assert_eq!(store.cache_refs().await.unwrap(), [chat.clone(), book.clone()]);

    let fallen = CacheRef {
        target: None,
        num_tokens: 0,
        is_pinned: false,
        loss: Some(Loss { num_tokens: 512, reason: LossReason::DiskBudget, at_ms: -1 }),
        ..chat
    };
    store.change_cache(&[RefSet(fallen.clone())]).await.unwrap();
    let reason = scratch.scalar::<String>("select lost_reason from cache_refs where is_pinned = 0");
    assert_eq!(reason.await, "evicted to stay within the disk limit");
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap(), [fallen, book.clone()]);
    for _ in 0..2 {
        store.change_cache(&[RefRemoved(conversation("c").into())]).await.unwrap();
        assert_eq!(store.cache_refs().await.unwrap(), std::slice::from_ref(&book));
    }
}

#[tokio::test]
async fn a_row_that_no_version_writes_is_skipped() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (book, chat) = (cache_ref(named("n")), cache_ref(conversation("c")));
    for change in [
        "owner = 'somebody'",
        "owner = owner || '#stale:00'",
        "kv_format = ''",
        "provenance = ''",
        "chunk_key = '07'",
        "num_tokens = -1",
        "lost_tokens = -1",
    ] {
        store.change_cache(&[RefSet(book.clone()), RefSet(chat.clone())]).await.unwrap();
        scratch.execute(&format!("update cache_refs set {change} where owner = 'named/n'")).await;
        assert_eq!(store.cache_refs().await.unwrap(), std::slice::from_ref(&chat), "{change}");
        scratch.execute("delete from cache_refs").await;
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
    // The last two have the ids of the other table, and so no owner.
    let (swapped, lost) = (named(&kept), conversation("kept"));
    // A conversation's stale references are its own, too.
    let names = [
        conversation(&kept).into(),
        stale(&conversation(&kept)),
        stale(&conversation(&gone)),
        named("kept").into(),
        named("gone").into(),
        Owner::Api("client".to_owned()).into(),
        swapped.clone().into(),
        lost.clone().into(),
        stale(&lost),
    ];
    store.change_cache(&names.map(|name| RefSet(cache_ref(name)))).await.unwrap();
    let mut orphans = vec![lost, swapped];
    assert_eq!(store.purged_owners().await.unwrap(), orphans);

    // An owner that can still be restored keeps its reference.
    store.delete_conversations(&[&gone], 3).await.unwrap();
    store.delete_named_cache("gone", 3).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    store.close().await.unwrap();

    let store = scratch.open().await;
    assert_eq!(store.cache_refs().await.unwrap().len(), 9);
    orphans.extend([conversation(&gone), named("gone")]);
    orphans.sort();
    assert_eq!(store.purged_owners().await.unwrap(), orphans);
    let released =
        orphans.iter().flat_map(|owner| [owner.clone().into(), stale(owner)]).map(RefRemoved);
    store.change_cache(&released.collect::<Vec<_>>()).await.unwrap();
    assert_eq!(store.purged_owners().await.unwrap(), []);
    assert_eq!(store.cache_refs().await.unwrap().len(), 4);
}
