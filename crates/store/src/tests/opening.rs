//! Opening and closing: a new file, a second program, the rows of a program that died, files that
//! are refused.

use cairn_prompt_cache::LossReason;
use std::fs;
use std::path::Path;

use super::{Scratch, finished, texts, turn};
use crate::store::MIGRATIONS;
use crate::{MessageStatus, Store, StoreError};

async fn pragma(store: &Store, statement: &'static str) -> String {
    let value: sqlx::sqlite::SqliteRow =
        sqlx::query(statement).fetch_one(&store.writer).await.unwrap();
    let number: Result<i64, _> = sqlx::Row::try_get(&value, 0);
    number.map(|number| number.to_string()).unwrap_or_else(|_| sqlx::Row::get(&value, 0))
}

#[tokio::test]
async fn the_file_is_set_up_to_survive_a_crash() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    for (statement, expected) in [
        ("pragma journal_mode", "wal"),
        ("pragma synchronous", "2"),
        ("pragma foreign_keys", "1"),
        ("pragma secure_delete", "1"),
        ("pragma busy_timeout", "5000"),
        ("pragma fullfsync", "1"),
        ("pragma checkpoint_fullfsync", "1"),
        ("pragma integrity_check", "ok"),
    ] {
        assert_eq!(pragma(&store, statement).await, expected, "{statement}");
    }
    assert!(
        sqlx::query("delete from settings").execute(&store.readers).await.is_err(),
        "a reader can write"
    );
}

#[tokio::test]
async fn sqlite_has_the_fix_for_the_damage_that_a_reset_log_could_do() {
    let scratch = Scratch::new();
    let version: String = sqlx::query_scalar("select sqlite_version()")
        .fetch_one(&scratch.open().await.writer)
        .await
        .unwrap();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![3, 51, 3], "SQLite {version} is older than 3.51.3");
}

/// `json_valid(null)` was 0 before SQLite 3.45, and such a row then looked damaged.
#[tokio::test]
async fn checks_of_json_allow_null_in_every_sqlite() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let nullable: Vec<(String, String)> = sqlx::query_as(
        "select tables.name, columns.name
         from sqlite_schema as tables, pragma_table_info(tables.name) as columns
         where tables.type = 'table' and columns.\"notnull\" = 0
             and instr(tables.sql, 'check (json_valid(' || columns.name || '))') > 0",
    )
    .fetch_all(&store.writer)
    .await
    .unwrap();
    assert_eq!(nullable, []);
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q", "a").await;
    // A connection that reads the changed text of the checks still checks.
    store.close().await.unwrap();
    let mut other = scratch.connect().await;
    let garbled = sqlx::query("update messages set segments = '{'").execute(&mut other).await;
    assert!(garbled.unwrap_err().to_string().contains("CHECK constraint failed"));
}

#[tokio::test]
async fn a_closed_store_leaves_one_file_and_says_that_it_is_closed() {
    let scratch = Scratch::new();
    let nested = scratch.0.path().join("folder with ünïcode").join("deeper").join("cairn.db");
    let store = Store::open(&nested).await.unwrap();
    store.set_setting("key", "1").await.unwrap();
    store.close().await.unwrap();
    store.close().await.unwrap();
    assert!(
        matches!(store.setting("key").await, Err(StoreError::Closed { path }) if path == nested)
    );
    assert!(matches!(store.set_setting("key", "2").await, Err(StoreError::Closed { .. })));
    let mut names: Vec<_> = fs::read_dir(nested.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["cairn.db", "cairn.db-runs"]);
    assert_eq!(
        Store::open(&nested).await.unwrap().setting("key").await.unwrap().as_deref(),
        Some("1")
    );
}

#[tokio::test]
async fn an_answer_that_was_being_written_is_interrupted_with_its_text() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let (_, assistant) = store.begin_turn(&id, "q", 1).await.unwrap();
    store.save_progress(&assistant.id, "half an ans", None, &[4, 5], None).await.unwrap();
    // Dropped without closing, as far as a test can be killed.
    drop(store);

    let store = scratch.open().await;
    let read = store.message(&assistant.id).await.unwrap().unwrap();
    assert_eq!(
        (read.status, read.text.as_str(), read.token_ids),
        (MessageStatus::Interrupted, "half an ans", Some(vec![4, 5]))
    );
    assert_eq!([store.take_interrupted(), store.take_interrupted()], [Some(id.clone()), None]);
    let broken_off = store.broken_off_answers().await.unwrap();
    assert_eq!(broken_off.into_iter().collect::<Vec<_>>(), [assistant.id.as_str()]);
    turn(&store, &id, "q2", "a2").await;
    assert_eq!(texts(&store, &id).await, ["q", "half an ans", "q2", "a2"]);
    let whole = finished(MessageStatus::Complete, "half an answer");
    store.finish(&assistant.id, &whole).await.unwrap();
    assert!(store.broken_off_answers().await.unwrap().is_empty());
}

#[tokio::test]
async fn two_programs_work_on_one_file() {
    let scratch = Scratch::new();
    let app = scratch.open().await;
    let id = app.create_conversation(1).await.unwrap().id;
    let (_, assistant) = app.begin_turn(&id, "q", 1).await.unwrap();
    app.save_progress(&assistant.id, "half", None, &[1], None).await.unwrap();
    let deleted = app.create_conversation(2).await.unwrap().id;
    app.delete_conversations(&[&deleted], 2).await.unwrap();

    // The second program does not touch the first one's unfinished rows, and sees what it has
    // saved.
    let command = scratch.open().await;
    assert_eq!(
        command.message(&assistant.id).await.unwrap().unwrap().status,
        MessageStatus::Streaming
    );
    assert!(matches!(
        command.begin_turn(&id, "r", 2).await,
        Err(StoreError::AlreadyStreaming { .. })
    ));
    app.restore_conversations(&[&deleted]).await.unwrap();

    // Both write at once.
    let write = async |store: &Store, name: &str| {
        for round in 0..20 {
            store.record_model_use(&format!("/{name}/{round}"), name, round).await.unwrap();
        }
    };
    tokio::join!(write(&app, "app"), write(&command, "command"));
    let models: i64 = sqlx::query_scalar("select count(*) from models")
        .fetch_one(&command.readers)
        .await
        .unwrap();
    assert_eq!(models, 40);

    // The first dies while the second stays: a third tidies up after the first only.
    let theirs = command.create_conversation(3).await.unwrap().id;
    let (_, their_answer) = command.begin_turn(&theirs, "q", 3).await.unwrap();
    app.delete_conversations(&[&deleted], 4).await.unwrap();
    drop(app);
    let third = scratch.open().await;
    assert_eq!(
        third.message(&assistant.id).await.unwrap().unwrap().status,
        MessageStatus::Interrupted
    );
    assert_eq!(
        third.message(&their_answer.id).await.unwrap().unwrap().status,
        MessageStatus::Streaming
    );
    assert_eq!(third.conversation(&deleted).await.unwrap(), None);
    command.finish(&their_answer.id, &finished(MessageStatus::Complete, "a")).await.unwrap();
    assert_eq!(texts(&third, &theirs).await, ["q", "a"]);
}

#[tokio::test]
async fn programs_that_start_together_make_one_database() {
    let scratch = Scratch::new();
    let path = scratch.database();
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            tokio::spawn(async move { Store::open(&path).await })
        })
        .collect();
    for store in opening {
        store.await.unwrap().unwrap().create_conversation(1).await.unwrap();
    }
    assert_eq!(scratch.open().await.conversations().await.unwrap().len(), 8);
}

#[tokio::test]
async fn a_file_of_the_first_version_keeps_its_rows() {
    let scratch = Scratch::new();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(scratch.database())
        .create_if_missing(true);
    let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
    MIGRATIONS.run_to(1, &old).await.unwrap();
    for statement in [
        "insert into conversations values ('c', 'title', 'system', null, 1, 2, 3, null, null)",
        "insert into chunks values ('aa', null, 'f00d', 0, x'01000000', 7, 'beef', 8, 9)",
    ] {
        sqlx::query(statement).execute(&old).await.unwrap();
    }
    old.close().await;

    // Twice, because the first time changes the file.
    for _ in 0..2 {
        let store = scratch.open().await;
        // Chunk files of that version cannot be used any more.
        assert_eq!(store.chunks().await.unwrap(), []);
        let conversation = store.conversation("c").await.unwrap().unwrap();
        assert_eq!((conversation.title.as_str(), conversation.prefix), ("title", None));
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_file_of_the_second_version_keeps_starting_points_and_explains_the_rest() {
    let scratch = Scratch::new();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(scratch.database())
        .create_if_missing(true);
    let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
    MIGRATIONS.run_to(2, &old).await.unwrap();
    // How the second version wrote namespaces, and how the third does.
    let variants = [
        ("a", "", "plain", "computed"),
        ("b", "kv8g64", "kv8g64", "computed"),
        ("c", "@0f", "plain", "import:0f"),
        ("d", "kv4g32@0f", "kv4g32", "import:0f"),
        ("e", "file:0f", "plain", "opaque:0f"),
    ];
    for (id, variant, ..) in variants {
        let statement = format!(
            "insert into anchors values
                 ('conversation/{id}', 'f00d', '{variant}', 'm', 'aa', 300, 1, 0, null, null),
                 ('conversation/{id}#left:bb', 'f00d', '{variant}', 'm', 'bb', 200, 0, 0, null, null);
             insert into named_caches values
                 ('{id}', 'name {id}', 'm', 'f00d', '{variant}', 'prompt', 2, 't', 's', 'e', null, 1, 2, null, null,
                  x'0100000002000000');
             insert into conversations values
                 ('{id}', 'title', '', null, 1, 2, 3, null, null, '{id}', 'name', 'prompt', '{variant}', 2, 's', 'e', 0,
                  x'0100000002000000')"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&old).await.unwrap();
    }
    old.close().await;

    let store = scratch.open().await;
    let refs = store.cache_refs().await.unwrap();
    assert_eq!(refs.len(), variants.len(), "positions that were left are forgotten: {refs:?}");
    for (row, (id, _, kv_format, provenance)) in refs.into_iter().zip(variants) {
        assert_eq!(row.name.to_string(), format!("conversation/{id}"));
        let expected = (kv_format.parse().unwrap(), provenance.parse().unwrap());
        assert_eq!((row.namespace.kv_format, row.namespace.provenance), expected);
        assert_eq!((row.target, row.num_tokens, row.is_pinned), (None, 0, true));
        let loss = row.loss.unwrap();
        assert_eq!((loss.num_tokens, loss.reason), (300, LossReason::EarlierVersion));
        assert!(loss.at_ms > 1_700_000_000_000);
        let named = store.named_cache(id).await.unwrap().unwrap();
        assert_eq!((named.namespace.kv_format, named.namespace.provenance), expected);
        assert_eq!(named.token_ids, Some(vec![1, 2]));
        let prefix = store.conversation(id).await.unwrap().unwrap().prefix.unwrap();
        assert_eq!((prefix.kv_format, prefix.provenance), expected);
        assert_eq!(prefix.token_ids, Some(vec![1, 2]));
    }
}

#[tokio::test]
async fn settings_of_the_third_version_keep_what_a_person_had_set() {
    async fn check(saved: &str, expected: &str) {
        let scratch = Scratch::new();
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(scratch.database())
            .create_if_missing(true);
        let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
        MIGRATIONS.run_to(3, &old).await.unwrap();
        sqlx::query("insert into settings values ('settings', ?), ('other', ?)")
            .bind(saved)
            .bind(saved)
            .execute(&old)
            .await
            .unwrap();
        old.close().await;

        let store = scratch.open().await;
        assert_eq!(store.setting("settings").await.unwrap().as_deref(), Some(expected));
        assert_eq!(store.setting("other").await.unwrap().as_deref(), Some(saved));
    }
    check(
        r#"{"default_model":"","temperature":0.7,"top_p":0.95,"max_tokens":4096,"seed":null,"appearance":"system"}"#,
        r#"{"default_model":"","seed":null,"appearance":"system"}"#,
    )
    .await;
    check(
        r#"{"temperature":0.25,"top_p":0.95,"max_tokens":8,"cache_budget_bytes":3145728}"#,
        r#"{"temperature":0.25,"max_tokens":8,"cache_budget_bytes":3145728}"#,
    )
    .await;
    check("[0.7]", "[0.7]").await;
    check("not json", "not json").await;
}

#[tokio::test]
async fn settings_of_models_move_from_their_newest_folder_to_their_name() {
    let scratch = Scratch::new();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(scratch.database())
        .create_if_missing(true);
    let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
    MIGRATIONS.run_to(5, &old).await.unwrap();
    let rows = [
        ("/old/a", "a", 1, Some(r#"{"top_k":1}"#)),
        ("/new/a", "a", 2, Some(r#"{"top_k":2}"#)),
        ("/newest/a", "a", 3, None),
        ("/b", "b", 4, None),
    ];
    for (path, name, use_seq, overrides) in rows {
        sqlx::query("insert into models values (?, ?, ?, 1, ?)")
            .bind(path)
            .bind(name)
            .bind(use_seq)
            .bind(overrides)
            .execute(&old)
            .await
            .unwrap();
    }
    old.close().await;

    let store = scratch.open().await;
    let expected = [("a".to_owned(), r#"{"top_k":2}"#.to_owned())];
    assert_eq!(store.model_settings().await.unwrap(), expected);
    assert_eq!(store.last_used_model().await.unwrap().unwrap().0, "/b");
}

#[tokio::test]
async fn a_newer_file_is_refused() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    sqlx::query(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time) values (9999, 'later', 1, x'00', 0)",
    )
    .execute(&store.writer)
    .await
    .unwrap();
    store.close().await.unwrap();
    let before = fs::read(scratch.database()).unwrap();
    let refused = Store::open(&scratch.database()).await;
    let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap();
    assert!(
        matches!(&refused, Err(StoreError::Newer { found: 9999, known, .. }) if *known == newest),
        "{refused:?}"
    );
    assert_eq!(fs::read(scratch.database()).unwrap(), before);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, &"q".repeat(20_000), "a").await;
    store.close().await.unwrap();
    let good = fs::read(scratch.database()).unwrap();

    async fn check(name: &str, bytes: &[u8]) {
        let scratch = Scratch::new();
        let path = scratch.database();
        fs::write(&path, bytes).unwrap();
        let refused = Store::open(&path).await;
        let Err(error @ StoreError::Corrupt { .. }) = &refused else {
            panic!("{name}: {refused:?}")
        };
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(fs::read(&path).unwrap() == bytes, "{name}: the file was changed");
        let log = fs::read(path.with_extension("db-wal")).unwrap_or_default();
        assert!(log.is_empty(), "{name}: a write is waiting beside the file");
    }
    check("a short text", b"hello").await;
    check("a long text", "Dear diary. ".repeat(1_000).as_bytes()).await;
    check("zeros", &[0; 8_192]).await;
    check("half a database", &good[..good.len() / 2]).await;
    let mut damaged = good.clone();
    damaged[4_096..].fill(0xff);
    check("damaged pages", &damaged).await;
    let mut damaged = good.clone();
    damaged[..16].copy_from_slice(b"SQLite format 2\0");
    check("another format", &damaged).await;
    let mut damaged = good.clone();
    damaged[100..4_096].fill(0xff);
    check("a damaged first page", &damaged).await;
}

#[tokio::test]
async fn damage_met_later_names_the_file_too() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q", "a").await;
    let page: i64 =
        sqlx::query_scalar("select rootpage from sqlite_schema where name = 'messages'")
            .fetch_one(&store.readers)
            .await
            .unwrap();
    store.close().await.unwrap();
    let mut bytes = fs::read(scratch.database()).unwrap();
    let start = (usize::try_from(page).unwrap() - 1) * 4_096;
    bytes[start..start + 4_096].fill(0xff);
    fs::write(scratch.database(), &bytes).unwrap();

    let store = scratch.open().await;
    assert_eq!(store.conversations().await.unwrap().len(), 1);
    let branch = store.branch(&id).await;
    assert!(
        matches!(&branch, Err(StoreError::Corrupt { path, .. }) if *path == scratch.database()),
        "{branch:?}"
    );
    let begun = store.begin_turn(&id, "r", 2).await;
    assert!(matches!(&begun, Err(StoreError::Corrupt { .. })), "{begun:?}");
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_named() {
    async fn check(name: &str, path: &Path) {
        let refused = Store::open(path).await;
        assert!(
            matches!(&refused, Err(StoreError::NotWritable { path: named }) if named == path),
            "{name}: {refused:?}"
        );
    }
    let scratch = Scratch::new();
    let file = scratch.0.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    check("under a file", &file.join("cairn.db")).await;
    check("deep under a file", &file.join("a").join("b").join("cairn.db")).await;
    let folder = scratch.0.path().join("folder");
    fs::create_dir(&folder).unwrap();
    check("a folder", &folder).await;
}
