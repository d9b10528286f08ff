//! Keys of the API: by name, found by their hash, and gone when they are revoked.

use super::Scratch;
use crate::{ApiKeyRow, StoreError};

fn key(id: &str, name: &str, created_at_ms: i64) -> ApiKeyRow {
    ApiKeyRow { id: id.into(), name: name.into(), created_at_ms, last_used_at_ms: None }
}

#[tokio::test]
async fn a_key_is_found_by_its_hash_until_it_is_deleted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (editor, agent) = (key("2", "Editor", 10), key("1", "Agent", 20));
    store.create_api_key(&editor, "beef").await.unwrap();
    store.create_api_key(&agent, "f00d").await.unwrap();
    store.touch_api_key("1", 30).await.unwrap();
    store.touch_api_key("none", 30).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let agent = ApiKeyRow { last_used_at_ms: Some(30), ..agent };
    assert_eq!(store.api_keys().await.unwrap(), [editor.clone(), agent.clone()]);
    assert_eq!(store.api_key_with_hash("f00d").await.unwrap(), Some(agent));
    assert_eq!(store.api_key_with_hash("F00D").await.unwrap(), None);
    store.delete_api_key("1").await.unwrap();
    assert_eq!(store.api_key_with_hash("f00d").await.unwrap(), None);
    let again = store.delete_api_key("1").await;
    assert!(matches!(&again, Err(StoreError::NoApiKey { id }) if id == "1"), "{again:?}");
    assert_eq!(store.api_keys().await.unwrap(), [editor]);
}

#[tokio::test]
async fn a_name_belongs_to_one_key() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    store.create_api_key(&key("1", "Editor", 10), "beef").await.unwrap();
    let second = store.create_api_key(&key("2", "Editor", 20), "f00d").await;
    let is_refused = matches!(&second, Err(StoreError::KeyNameInUse { name }) if name == "Editor");
    assert!(is_refused, "{second:?}");
    assert_eq!(store.api_key_with_hash("f00d").await.unwrap(), None);
    store.delete_api_key("1").await.unwrap();
    store.create_api_key(&key("2", "Editor", 20), "f00d").await.unwrap();
}

#[tokio::test]
async fn a_file_of_the_version_before_gets_the_table() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let conversation = store.create_conversation(1).await.unwrap();
    store.close().await.unwrap();
    scratch.execute("drop table api_keys; delete from _sqlx_migrations where version = 9;").await;
    let store = scratch.open().await;
    assert_eq!(store.conversations().await.unwrap()[0].id, conversation.id);
    store.create_api_key(&key("1", "Editor", 10), "beef").await.unwrap();
}
