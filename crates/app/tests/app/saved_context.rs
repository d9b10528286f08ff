//! Saved context in the rows of the database, and beside other programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cairn_app::wire::{
    CacheFileLayout, CacheSource, Command, Event, FailureCode, MessageStatus, Reply,
};
use cairn_app::{DataFolder, OfflineCaches};
use tempfile::TempDir;

use crate::kit::{
    MODEL, answered, check_failure, chunk_files, database, home_with_model, new_conversation, next,
    open, open_greedy, open_with_one_turn, overview, save_as, set_for_all,
};

#[tokio::test(flavor = "multi_thread")]
async fn saved_context_survives_unreadable_rows() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    save_as(&app, &id, "Notes").await;
    app.close().await;
    drop(app);
    let files = chunk_files(&home);
    let change = async |statement: &'static str| {
        let database = database(&home).await;
        sqlx::raw_sql(statement).execute(&database).await.unwrap();
        database.close().await;
    };
    for (damage, repair) in [
        (
            "pragma ignore_check_constraints = on; update chunks set kind = 'x' || kind",
            "update chunks set kind = substr(kind, 2)",
        ),
        (
            "alter table cache_refs rename column model to other",
            "alter table cache_refs rename column other to model",
        ),
    ] {
        change(damage).await;
        let app = open(&home).await;
        check_failure(&app, Command::GetCache, FailureCode::Storage, "cairn.db").await;
        assert_eq!(answered(&app, &id, "Two").await.status, MessageStatus::Complete);
        app.close().await;
        drop(app);
        change(repair).await;
        assert_eq!(chunk_files(&home).len(), files.len(), "after {damage}");
    }
    let app = open(&home).await;
    let named = overview(&app).await.named;
    assert!(named[0].tier.is_some(), "{named:?}");
    assert!(answered(&app, &id, "Three").await.stats.unwrap().cached_tokens > 0);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_name_their_model_before_one_is_loaded() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    save_as(&app, &id, "Notes").await;
    app.close().await;
    drop(app);

    let app = open(&home).await;
    let Reply::Bootstrap { conversations, named, status, .. } =
        app.call(Command::Bootstrap).await.unwrap()
    else {
        panic!()
    };
    let cache = conversations[0].cache.clone().unwrap();
    assert!(
        cache.is_whole
            && status.model_fingerprint.is_none()
            && overview(&app).await.nodes[0].text.is_none(),
        "{cache:?}"
    );
    assert_eq!(
        named.iter().map(|named| (named.name.as_str(), &named.fingerprint)).collect::<Vec<_>>(),
        [("Notes", &cache.fingerprint)]
    );
    let mut events = app.subscribe();
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let loaded = loop {
        if let Event::Status { status } = next(&mut events).await
            && let Some(fingerprint) = status.model_fingerprint
        {
            break fingerprint;
        }
    };
    assert_eq!(loaded, cache.fingerprint);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_whose_answer_was_killed_is_not_whole_until_it_has_gone_on() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    app.close().await;
    drop(app);
    let database = database(&home).await;
    let write =
        "update messages set status = 'streaming', run_id = 'one that has ended', stats = null
         where role = 'assistant'";
    sqlx::raw_sql(write).execute(&database).await.unwrap();
    database.close().await;

    let app = open(&home).await;
    let is_whole = async || {
        let Reply::Bootstrap { conversations, .. } = app.call(Command::Bootstrap).await.unwrap()
        else {
            panic!()
        };
        let get = Command::GetConversation { id: id.clone() };
        let Reply::Conversation { conversation, .. } = app.call(get).await.unwrap() else {
            panic!()
        };
        [conversations[0].clone(), conversation].map(|row| row.cache.unwrap().is_whole)
    };
    assert_eq!(is_whole().await, [false; 2]);
    answered(&app, &id, "Two").await;
    assert_eq!(is_whole().await, [true; 2]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_beside_the_app_does_not_evict_chunks_pinned_meanwhile() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let (old, new) = (new_conversation(&app).await, new_conversation(&app).await);
    for (id, text) in [(&old, "One"), (&new, "Two")] {
        answered(&app, id, text).await;
    }
    let file = home.path().join("old.safetensors");
    let source = CacheSource::Conversation { id: old.clone() };
    app.export_cache(&source, CacheFileLayout::V0_32, &file).await.unwrap();

    let caches = OfflineCaches::open(DataFolder::new(home.path())).await.unwrap();
    let folder = home.path().join("models").join(MODEL);
    let import = caches.begin_import(&file, MODEL, &folder).await.unwrap();
    app.call(Command::PinConversation { id: old.clone(), is_pinned: true }).await.unwrap();
    let is_written = async || caches.list().await.unwrap().iter().any(|entry| entry.is_pinned);
    while !is_written().await {
        tokio::task::yield_now().await;
    }
    let cache_budget_bytes =
        caches.total_bytes().await.unwrap() + std::fs::metadata(&file).unwrap().len() / 2;
    set_for_all(&app, "cache_budget_bytes", cache_budget_bytes).await;
    import.confirm("Copy", false).await.unwrap();
    let loss: Vec<(String, bool)> = caches
        .list()
        .await
        .unwrap()
        .iter()
        .map(|entry| (entry.id().to_owned(), entry.loss.is_some()))
        .collect();
    assert!(loss.contains(&(old, false)) && loss.contains(&(new, true)), "{loss:?}");
    caches.close().await;
    app.close().await;
}

/// The formats of the chunk files in a data folder.
fn chunk_formats(home: &TempDir) -> BTreeSet<String> {
    let format = |path: &PathBuf| file_metadata(path)["format"].as_str().unwrap().to_owned();
    chunk_files(home).iter().map(format).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn smaller_files_of_saved_context_are_written_when_asked_for_and_always_read() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let [id, plain] = [new_conversation(&app).await, new_conversation(&app).await];
    answered(&app, &plain, "Another beginning").await;
    // What is written when the app closes is written as was chosen until then.
    app.close().await;
    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    set_for_all(&app, "compresses_cache", true).await;
    let questions = ["One", "Two", "Three"];
    answered(&app, &id, questions[0]).await;
    app.close().await;
    let both = BTreeSet::from(["cairn-chunk-2".to_owned(), "cairn-chunk-3".to_owned()]);
    assert_eq!(chunk_formats(&home), both);

    // The choice outlives the app, and so does what was written with the other one.
    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let second = answered(&app, &id, questions[1]).await;
    assert!(second.stats.as_ref().unwrap().cached_tokens > 0, "{second:?}");
    let file = home.path().join("export.safetensors");
    let source = CacheSource::Conversation { id: id.clone() };
    app.export_cache(&source, CacheFileLayout::V0_32, &file).await.unwrap();
    assert_eq!(file_metadata(&file)["0.model"], MODEL, "mlx-lm reads what leaves the folder");
    set_for_all(&app, "compresses_cache", false).await;
    app.close().await;

    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let third = answered(&app, &id, questions[2]).await;
    assert!(third.stats.as_ref().unwrap().cached_tokens > 0, "{third:?}");
    // What a chat answers that is never read from disk.
    let alone = home_with_model();
    let fresh = open_greedy(&alone, 8).await;
    fresh.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let same = new_conversation(&fresh).await;
    for (question, expected) in questions.iter().zip([None, Some(second.text), Some(third.text)]) {
        let text = answered(&fresh, &same, question).await.text;
        assert!(expected.is_none_or(|expected| expected == text), "{question}");
    }
    fresh.close().await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_context_is_exported_in_the_layout_that_was_asked_for() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let source = CacheSource::Conversation { id };
    // mlx-lm 0.32 reads user metadata under `0.`, 0.30 and 0.31 read it under `1.`.
    for (layout, model_key) in
        [(CacheFileLayout::V0_32, "0.model"), (CacheFileLayout::V0_30, "1.model")]
    {
        let file = home.path().join("export.safetensors");
        app.export_cache(&source, layout, &file).await.unwrap();
        assert_eq!(file_metadata(&file)[model_key], MODEL, "{layout:?}");
        let preview = app.preview_import(file).await;
        assert_eq!(preview.problem, None, "{layout:?}");
    }
    app.close().await;
}

/// The metadata in the header of a safetensors file.
fn file_metadata(file: &Path) -> serde_json::Value {
    let bytes = std::fs::read(file).unwrap();
    let header_length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value =
        serde_json::from_slice(&bytes[8..8 + header_length]).unwrap();
    header["__metadata__"].take()
}
