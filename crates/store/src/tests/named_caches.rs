//! Named prompt caches: order, names, deletion.

use super::{Scratch, named_cache};
use crate::{ListedNamedCache, NamedCacheKind, NamedCacheRow, Prefix, Store, StoreError};

async fn names(store: &Store) -> Vec<String> {
    store.named_caches().await.unwrap().into_iter().map(|cache| cache.row.name).collect()
}

#[tokio::test]
async fn a_named_cache_comes_back_as_it_was_saved() {
    async fn check(cache: NamedCacheRow) {
        let scratch = Scratch::new();
        let store = scratch.open().await;
        store.create_named_cache(&cache).await.unwrap();
        store.close().await.unwrap();
        let store = scratch.open().await;
        assert_eq!(store.named_cache(&cache.id).await.unwrap(), Some(cache.clone()));
        let has_token_ids = cache.token_ids.is_some();
        let listed = ListedNamedCache {
            row: NamedCacheRow { token_ids: None, ..cache },
            has_token_ids,
            num_conversations: 0,
        };
        assert_eq!(store.named_caches().await.unwrap(), [listed]);
        assert_eq!(store.named_cache("unknown").await.unwrap(), None);
    }
    let made = named_cache("n", "A long book", 6);
    check(made.clone()).await;
    check(NamedCacheRow { token_ids: Some(vec![]), num_tokens: 0, ..made.clone() }).await;
    let imported_from = Some("book\u{202e}.safetensors".into());
    check(NamedCacheRow {
        kind: NamedCacheKind::Conversation,
        token_ids: None,
        imported_from,
        ..made
    })
    .await;
}

#[tokio::test]
async fn the_one_used_last_stands_first() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for (name, used_at_ms) in [("old", 10), ("new", 30), ("older", 5)] {
        store.create_named_cache(&named_cache(name, name, used_at_ms)).await.unwrap();
    }
    assert_eq!(names(&store).await, ["new", "old", "older"]);
    store.touch_named_cache("older", 40).await.unwrap();
    store.touch_named_cache("unknown", 50).await.unwrap();
    assert_eq!(names(&store).await, ["older", "new", "old"]);
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fn check(what: &str, outcome: Result<(), StoreError>) {
        assert!(
            matches!(&outcome, Err(StoreError::NameInUse { name }) if name == "book"),
            "{what}: {outcome:?}"
        );
    }
    store.create_named_cache(&named_cache("a", "book", 2)).await.unwrap();
    check("create", store.create_named_cache(&named_cache("b", "book", 1)).await);
    assert_eq!(store.named_cache("b").await.unwrap(), None);
    store.create_named_cache(&named_cache("b", "Book", 1)).await.unwrap();
    check("rename", store.rename_named_cache("b", "book").await);
    store.rename_named_cache("a", "book").await.unwrap();
    assert_eq!(names(&store).await, ["book", "Book"]);

    // A deleted one frees its name, and cannot be restored while another has it.
    store.delete_named_cache("a", 3).await.unwrap();
    store.rename_named_cache("b", "book").await.unwrap();
    check("restore", store.restore_named_cache("a").await);
    assert_eq!(names(&store).await, ["book"]);
    store.rename_named_cache("b", "other").await.unwrap();
    store.restore_named_cache("a").await.unwrap();
    assert_eq!(names(&store).await, ["book", "other"]);
}

#[tokio::test]
async fn a_deleted_named_cache_can_be_restored_until_the_program_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for id in ["live", "deleted"] {
        store.create_named_cache(&named_cache(id, id, 1)).await.unwrap();
        store.delete_named_cache(id, 50).await.unwrap();
    }
    assert_eq!(names(&store).await, [""; 0]);

    // Deleting again keeps the first date; restoring twice is as good as once.
    store.delete_named_cache("deleted", 70).await.unwrap();
    assert_eq!(store.named_cache("deleted").await.unwrap().unwrap().deleted_at_ms, Some(50));
    store.restore_named_cache("live").await.unwrap();
    store.restore_named_cache("live").await.unwrap();
    assert_eq!(names(&store).await, ["live"]);

    // A second program does not purge what the first may still restore.
    let command = scratch.open().await;
    assert!(command.named_cache("deleted").await.unwrap().is_some());
    command.close().await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.named_cache("deleted").await.unwrap(), None);
    assert_eq!(names(&store).await, ["live"]);
}

#[tokio::test]
async fn a_named_cache_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    fn check(what: &str, id: &str, outcome: Result<(), StoreError>) {
        assert!(
            matches!(&outcome, Err(StoreError::NoNamedCache { id: named }) if named == id),
            "{what}: {outcome:?}"
        );
    }
    check("rename", "unknown", store.rename_named_cache("unknown", "x").await);
    check("delete", "unknown", store.delete_named_cache("unknown", 1).await);
    check("restore", "unknown", store.restore_named_cache("unknown").await);
    store.create_named_cache(&named_cache("deleted", "y", 1)).await.unwrap();
    store.delete_named_cache("deleted", 1).await.unwrap();
    check("rename of a deleted one", "deleted", store.rename_named_cache("deleted", "x").await);
}

#[tokio::test]
async fn the_conversations_that_begin_with_one_are_counted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for id in ["both", "none"] {
        store.create_named_cache(&named_cache(id, id, 1)).await.unwrap();
    }
    store.create_conversation(1).await.unwrap();
    let row = store.listed_named_cache("both").await.unwrap();
    let prefix = Prefix {
        named_id: row.id,
        name: row.name,
        kind: row.kind,
        kv_format: row.namespace.kv_format,
        provenance: row.namespace.provenance,
        num_tokens: row.num_tokens,
        token_ids: row.token_ids,
        start_text: row.start_text,
        end_text: row.end_text,
        is_imported: false,
    };
    let check = async |expected: [(&str, i64); 2]| {
        let listed = store.named_caches().await.unwrap();
        assert_eq!(
            listed
                .iter()
                .map(|cache| (cache.row.id.as_str(), cache.num_conversations))
                .collect::<Vec<_>>(),
            expected
        );
    };
    let first = store.create_conversation_from(1, &prefix, "").await.unwrap();
    store.create_conversation_from(2, &prefix, "").await.unwrap();
    check([("none", 0), ("both", 2)]).await;
    store.delete_conversations(&[&first.id], 3).await.unwrap();
    check([("none", 0), ("both", 1)]).await;
}
