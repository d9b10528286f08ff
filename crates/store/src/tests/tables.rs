//! Models, settings and the prompt cache's index.

use super::Scratch;
use crate::{DownloadRow, ModelOrigin, UncleanEnds, UncleanSubject};
use cairn_prompt_cache::CacheChange::{Removed, Used, Written};
use cairn_prompt_cache::{
    ChunkFile, ChunkKey, ChunkKind, ChunkRecord, LossReason, Namespace, Provenance, Tokens,
};

fn key(byte: u8) -> ChunkKey {
    ChunkKey::from_bytes([byte; 16])
}

fn file(num_bytes: u64) -> Option<ChunkFile> {
    Some(ChunkFile { num_bytes, hash: "beef".into() })
}

fn chunk(key: ChunkKey, parent: Option<ChunkKey>, start: usize) -> ChunkRecord {
    ChunkRecord {
        key,
        parent,
        namespace: Namespace::computed("f00d", "kv8g64".parse().unwrap()),
        kind: ChunkKind::User,
        start,
        held_from: start + 1,
        has_state: true,
        tokens: Tokens::known([1, 70_000, u32::MAX]),
        file: file(1_000),
        created_at_ms: 5,
        last_used_at_ms: -6,
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
async fn a_newer_version_of_a_model_is_used_in_place_of_the_one_before() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (old, new) = ("/hub/models--o--m/snapshots/1", "/hub/models--o--m/snapshots/2");
    for (path, at) in [("/elsewhere/m", 1), (old, 2)] {
        store.record_model_use(path, "o/m", at).await.unwrap();
    }
    for _ in 0..2 {
        store.move_model("o/m", "/hub/models--o--m/snapshots/", new).await.unwrap();
        assert_eq!(store.model_folder("o/m").await.unwrap().as_deref(), Some(new));
        let last = store.last_used_model().await.unwrap();
        assert_eq!(last, Some((new.to_owned(), "o/m".to_owned())));
    }
}

#[tokio::test]
async fn the_hub_that_a_model_came_from_is_remembered_for_each_cache() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let model = |cache: &str, origin: &str| ModelOrigin {
        cache: cache.to_owned(),
        repo: "o/m".to_owned(),
        origin: origin.to_owned(),
    };
    for (cache, origin) in [("/a", "https://one"), ("/b", "https://two"), ("/a", "https://three")] {
        store.save_model_origin(&model(cache, origin)).await.unwrap();
    }
    let mut found = store.model_origins().await.unwrap();
    found.sort_by(|a, b| a.cache.cmp(&b.cache));
    assert_eq!(found, [model("/a", "https://three"), model("/b", "https://two")]);
    for _ in 0..2 {
        store.forget_model_origin("/a", "o/m").await.unwrap();
        assert_eq!(store.model_origins().await.unwrap(), [model("/b", "https://two")]);
    }
}

#[tokio::test]
async fn downloads_keep_their_order_their_cache_and_whether_they_are_paused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let row = |repo: &str, cache: Option<&str>, is_paused| DownloadRow {
        repo: repo.to_owned(),
        cache: cache.map(str::to_owned),
        is_paused,
    };
    let first = row("o/first", Some("/models"), false);
    for added in [first, row("o/second", None, false), row("o/third", None, false)] {
        store.save_download(&added).await.unwrap();
    }
    store.save_download(&row("o/first", Some("/elsewhere"), true)).await.unwrap();
    store.forget_download("o/second").await.unwrap();
    store.forget_download("o/never").await.unwrap();
    store.close().await.unwrap();
    let rows = scratch.open().await.downloads().await.unwrap();
    let stays = row("o/first", Some("/models"), true);
    assert_eq!(rows, [stays, row("o/third", None, false)], "what has come is in the first folder");
}

#[tokio::test]
async fn the_newest_verdict_on_a_models_files_counts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    store.save_model_check("a", "1", 10).await.unwrap();
    store.save_model_check("b", "2", 20).await.unwrap();
    store.save_model_check("a", "3", 30).await.unwrap();
    assert!(store.save_model_check("c", "no JSON", 40).await.is_err());
    let all = || async {
        let mut all = store.model_checks().await.unwrap();
        all.sort();
        all
    };
    let row = |identity: &str, verdict: &str| (identity.to_owned(), verdict.to_owned());
    assert_eq!(all().await, [row("a", "3"), row("b", "2")]);
    store.forget_model_check("a").await.unwrap();
    assert_eq!(all().await, [row("b", "2")]);
}

#[tokio::test]
async fn replaces_all_counts_of_unclean_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let of = |subject, num_ends| UncleanEnds { subject, build: "0.1.0".to_owned(), num_ends };
    let [model, job] = [UncleanSubject::Model("m".into()), UncleanSubject::Job("m".into())];
    for ends in [vec![of(job.clone(), 1), of(model.clone(), 2)], vec![of(model, 1)], Vec::new()] {
        store.set_unclean_ends(&ends).await.unwrap();
        assert_eq!(store.unclean_ends().await.unwrap(), ends);
    }
    let twice = [of(job.clone(), 1), of(job, 2)];
    assert!(store.set_unclean_ends(&twice).await.is_err(), "one row for each");
    assert_eq!(store.unclean_ends().await.unwrap(), []);
}

#[tokio::test]
async fn a_folder_of_models_is_added_once_and_removed() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for path in ["/b", "/a", "/b"] {
        store.add_model_folder(path).await.unwrap();
    }
    assert_eq!(store.model_folders().await.unwrap(), ["/a", "/b"]);
    store.remove_model_folder("/b").await.unwrap();
    assert_eq!(store.model_folders().await.unwrap(), ["/a"]);
}

#[tokio::test]
async fn a_model_has_settings_of_its_own() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    assert_eq!(store.model_folder("a").await.unwrap(), None);
    for path in ["/models/a", "/elsewhere/a", "/models/b"] {
        store.record_model_use(path, &path[path.len() - 1..], 1).await.unwrap();
    }
    assert_eq!(store.model_folder("a").await.unwrap().as_deref(), Some("/elsewhere/a"));
    // Also one that was never used.
    store.set_model_settings("new", Some("{}")).await.unwrap();
    for overrides in [Some(r#"{"top_k":20}"#), None, Some(r#"{"top_k":5}"#)] {
        store.set_model_settings("a", overrides).await.unwrap();
        let mut expected = vec![("new".to_owned(), "{}".to_owned())];
        expected.splice(..0, overrides.map(|json| ("a".to_owned(), json.to_owned())));
        assert_eq!(store.model_settings().await.unwrap(), expected);
    }
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
    let (root, child) = (chunk(key(255), None, 0), chunk(key(0), Some(key(255)), 3));
    store.change_cache(&[Written(child.clone()), Written(root.clone())]).await.unwrap();
    assert_eq!(store.chunks().await.unwrap(), [root.clone(), child.clone()]);
    assert_eq!(store.total_chunk_bytes().await.unwrap(), 2_000);

    // Written again, as after a crash: still one row, with the figures of the new file.
    let again = ChunkRecord {
        namespace: Namespace::computed("f00d", "plain".parse().unwrap()),
        kind: ChunkKind::System,
        held_from: 0,
        has_state: false,
        file: file(1_500),
        created_at_ms: 99,
        last_used_at_ms: 99,
        hits: 0,
        ..root.clone()
    };
    store.change_cache(&[Written(again.clone())]).await.unwrap();
    let root = ChunkRecord { created_at_ms: 5, hits: 2, ..again };
    assert_eq!(store.chunks().await.unwrap(), [root.clone(), child.clone()]);

    let keys = vec![key(0), key(7), key(0)];
    store.change_cache(&[Used { keys, at_ms: 1_234 }]).await.unwrap();
    assert_eq!(
        store.chunks().await.unwrap(),
        [root.clone(), ChunkRecord { last_used_at_ms: 1_234, hits: 3, ..child.clone() }]
    );
    let removed = |chunks: Vec<ChunkRecord>| Removed { chunks, reason: LossReason::DiskBudget };
    for _ in 0..2 {
        let unknown = chunk(key(7), None, 0);
        store.change_cache(&[removed(vec![child.clone(), unknown])]).await.unwrap();
        assert_eq!(store.chunks().await.unwrap(), std::slice::from_ref(&root));
    }
    store.change_cache(&[removed(Vec::new())]).await.unwrap();
    assert_eq!(store.total_chunk_bytes().await.unwrap(), 1_500);
}

#[tokio::test]
async fn opaque_tokens_survive_as_zeros() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut opaque = chunk(key(1), None, 0);
    opaque.namespace.provenance = Provenance::OpaqueImport("0f".into());
    opaque.kind = ChunkKind::System;
    opaque.tokens = Tokens::Opaque { count: 3 };
    store.change_cache(&[Written(opaque.clone())]).await.unwrap();
    assert_eq!(store.chunks().await.unwrap(), [opaque]);
    let blob = scratch.scalar::<Vec<u8>>("select token_ids from chunks").await;
    assert_eq!(blob, [0; 12]);
}

#[tokio::test]
async fn a_row_whose_key_names_no_chunk_is_removed_when_the_file_is_opened() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let good = chunk(key(0), None, 0);
    for change in ["key = 'ff'", "key = upper(key)", "key = 'x' || substr(key, 2)"] {
        store.change_cache(&[Written(chunk(key(255), None, 3))]).await.unwrap();
        scratch.execute(&format!("update chunks set {change} where start = 3")).await;
    }
    store.change_cache(&[Written(good.clone())]).await.unwrap();
    assert_eq!(scratch.scalar::<i64>("select count(*) from chunks").await, 4);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(scratch.scalar::<i64>("select count(*) from chunks").await, 1);
    assert_eq!(store.chunks().await.unwrap(), [good]);
}

#[tokio::test]
async fn a_row_that_no_version_writes_is_skipped() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (root, child) = (chunk(key(255), None, 0), chunk(key(0), Some(key(255)), 3));
    for change in [
        "key = 'ff'",
        "key = upper(key)",
        "parent_key = 'nothing'",
        "kv_format = 'kv'",
        "provenance = 'somebody'",
        "start = -1",
        "held_from = -1",
        "bytes = -1",
        "hits = -1",
    ] {
        store.change_cache(&[Written(root.clone()), Written(child.clone())]).await.unwrap();
        scratch.execute(&format!("update chunks set {change} where start = 0")).await;
        assert_eq!(store.chunks().await.unwrap(), std::slice::from_ref(&child), "{change}");
        scratch.execute("delete from chunks").await;
    }
}
