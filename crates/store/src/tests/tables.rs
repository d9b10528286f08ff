//! Models, settings and the prompt cache's index.

use super::Scratch;
use crate::CacheChange::{Removed, Touched, Written};
use crate::{ChunkKind, ChunkRow};

fn chunk(key: &str, parent_key: Option<&str>, start: i64) -> ChunkRow {
    ChunkRow {
        key: key.into(),
        parent_key: parent_key.map(str::to_owned),
        fingerprint: "f00d".into(),
        kv_format: "kv8g64".into(),
        provenance: "computed".into(),
        kind: ChunkKind::User,
        start,
        held_from: start - 100,
        has_state: true,
        token_ids: vec![1, 70_000, u32::MAX],
        bytes: 1_000,
        file_hash: "beef".into(),
        created_at_ms: 5,
        last_used_at_ms: 6,
        hits: 2,
    }
}

#[tokio::test]
async fn the_model_used_last_is_remembered() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    assert_eq!(store.last_used_model().await.unwrap(), None);
    for (path, name, now_ms) in
        [("/models/a", "a", 300), ("/models/b", "b", 200), ("/models/a", "a, renamed", 100)]
    {
        store.record_model_use(path, name, now_ms).await.unwrap();
        assert_eq!(
            store.last_used_model().await.unwrap(),
            Some((path.to_owned(), name.to_owned()))
        );
    }
}

#[tokio::test]
async fn a_model_has_settings_of_its_own() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    assert_eq!(store.model_folder("a").await.unwrap(), None);
    assert_eq!(store.model_settings("/models/a").await.unwrap(), None);
    for path in ["/models/a", "/elsewhere/a", "/models/b"] {
        store.record_model_use(path, &path[path.len() - 1..], 1).await.unwrap();
    }
    assert_eq!(store.model_folder("a").await.unwrap().as_deref(), Some("/elsewhere/a"));
    for overrides in [Some(r#"{"top_k":20}"#), None, Some("{}")] {
        store.set_model_settings("/models/a", overrides).await.unwrap();
        assert_eq!(store.model_settings("/models/a").await.unwrap().as_deref(), overrides);
        assert_eq!(store.model_settings("/elsewhere/a").await.unwrap(), None);
    }
    // Using it again leaves them.
    store.record_model_use("/models/a", "a", 2).await.unwrap();
    assert_eq!(store.model_settings("/models/a").await.unwrap().as_deref(), Some("{}"));
}

#[tokio::test]
async fn a_conversation_has_settings_of_its_own() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (id, other) = (
        store.create_conversation(1).await.unwrap().id,
        store.create_conversation(2).await.unwrap().id,
    );
    for overrides in [Some(r#"{"seed":7}"#), None] {
        store.set_conversation_settings(&id, overrides).await.unwrap();
        assert_eq!(store.conversation_settings(&id).await.unwrap().as_deref(), overrides);
        assert_eq!(store.conversation_settings(&other).await.unwrap(), None);
    }
    let missing = [
        store.conversation_settings("x").await.map(drop),
        store.set_conversation_settings("x", None).await,
    ];
    for result in missing {
        assert!(matches!(result, Err(crate::StoreError::NoConversation { .. })), "{result:?}");
    }
}

#[tokio::test]
async fn settings_are_kept_verbatim() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    assert_eq!(store.setting("app").await.unwrap(), None);
    for value in [r#"{"appearance":"dark","top_p":0.95}"#, "null", r#""a\u0000b""#] {
        store.set_setting("app", value).await.unwrap();
        assert_eq!(store.setting("app").await.unwrap().as_deref(), Some(value));
    }
    assert_eq!(store.setting("other").await.unwrap(), None);
}

#[tokio::test]
async fn chunks_come_back_parents_first() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (root, child) = (chunk("ff", None, 0), chunk("00", Some("ff"), 3));
    store.change_cache(&[Written(child.clone()), Written(root.clone())]).await.unwrap();
    assert_eq!(store.chunks().await.unwrap(), [root.clone(), child.clone()]);
    assert_eq!(store.total_chunk_bytes().await.unwrap(), 2_000);

    // Written again, as after a crash: still one row, with the figures of the new file.
    let again = ChunkRow {
        kv_format: "plain".into(),
        provenance: "computed".into(),
        kind: ChunkKind::System,
        held_from: 0,
        has_state: false,
        bytes: 1_500,
        created_at_ms: 99,
        last_used_at_ms: 99,
        hits: 0,
        ..root.clone()
    };
    store.change_cache(&[Written(again.clone())]).await.unwrap();
    let root = ChunkRow { created_at_ms: 5, hits: 2, ..again };
    assert_eq!(store.chunks().await.unwrap(), [root.clone(), child.clone()]);

    let keys = vec!["00".into(), "nothing".into(), "00".into()];
    store.change_cache(&[Touched { keys, at_ms: 1_234 }]).await.unwrap();
    assert_eq!(
        store.chunks().await.unwrap(),
        [root.clone(), ChunkRow { last_used_at_ms: 1_234, hits: 3, ..child }]
    );
    for _ in 0..2 {
        let keys = vec!["00".into(), "nothing".into(), "\"quoted\"".into()];
        store.change_cache(&[Removed { keys }]).await.unwrap();
        assert_eq!(store.chunks().await.unwrap(), std::slice::from_ref(&root));
    }
    store.change_cache(&[Removed { keys: Vec::new() }]).await.unwrap();
    assert_eq!(store.total_chunk_bytes().await.unwrap(), 1_500);
}

#[tokio::test]
async fn ten_thousand_chunks_are_read_at_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    sqlx::query(
        "with recursive n (i) as (select 0 union all select i + 1 from n where i < 9999)
         insert into chunks
         select printf('%064x', i), printf('%064x', i - 1), printf('%064x', 7), 'plain', 'computed', 'user', i, i, 0,
             zeroblob(1024), 1, printf('%064x', i), 0, 0, 0 from n",
    )
    .execute(&store.writer)
    .await
    .unwrap();
    let chunks = store.chunks().await.unwrap();
    assert_eq!(
        (chunks.len(), chunks[9_999].start, chunks[9_999].token_ids.len()),
        (10_000, 9_999, 256)
    );

    let keys: Vec<String> = chunks.into_iter().map(|chunk| chunk.key).collect();
    store.change_cache(&[Removed { keys }]).await.unwrap();
    assert_eq!(store.total_chunk_bytes().await.unwrap(), 0);
}
