//! Damaged databases: what is carried over into a new one, and where the old one is.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Scratch, finished, named_cache, texts, turn};
use crate::lost_rows::DamagedFile;
use crate::recovery::copy_readable;
use crate::store::MIGRATIONS;
use crate::table_roots::TableRoots;
use crate::{DocumentKind, MessageStatus, NewDocument, Recovery, Store, StoreError};

const PAGE: usize = 4_096;

/// A closed database with `num_conversations` conversations of two turns, whose texts fill pages of
/// their own, a setting, a model and a named prompt cache. Returns the conversations' ids.
async fn filled(scratch: &Scratch, num_conversations: usize) -> Vec<String> {
    let store = scratch.open().await;
    let mut ids = Vec::new();
    for number in 0..num_conversations {
        let id = store.create_conversation(1).await.unwrap().id;
        for round in 0..2 {
            let answer = format!("answer {number}.{round} {}", "words ".repeat(500));
            turn(&store, &id, &format!("question {number}.{round}"), &answer).await;
        }
        ids.push(id);
    }
    store.set_setting("settings", r#"{"seed":7}"#).await.unwrap();
    store.record_model_use("/models/a", "a", 1).await.unwrap();
    store.create_named_cache(&named_cache("n", "My book", 1)).await.unwrap();
    store.close().await.unwrap();
    ids
}

/// Overwrites the root page of a table or an index.
async fn damage(scratch: &Scratch, name: &str) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(scratch.database());
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let page: i64 = sqlx::query_scalar("select rootpage from sqlite_schema where name = ?")
        .bind(name)
        .fetch_one(&pool)
        .await
        .unwrap();
    pool.close().await;
    overwrite_page(&scratch.database(), usize::try_from(page).unwrap() - 1);
}

fn overwrite_page(path: &Path, index: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[index * PAGE..(index + 1) * PAGE].fill(0xff);
    fs::write(path, bytes).unwrap();
}

async fn recover(scratch: &Scratch) -> (Store, Recovery) {
    let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
    (store, recovery.expect("a recovery"))
}

async fn check_sound(store: &Store) {
    let found: String =
        sqlx::query_scalar("pragma integrity_check").fetch_one(&store.writer).await.unwrap();
    assert_eq!(found, "ok");
    let broken = sqlx::query("pragma foreign_key_check").fetch_all(&store.writer).await.unwrap();
    assert!(broken.is_empty(), "{} rows refer to rows that are not there", broken.len());
}

#[tokio::test]
async fn a_sound_database_is_opened_as_ever() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 2).await;
    let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
    assert_eq!((recovery, store.conversations().await.unwrap().len()), (None, ids.len()));
    let new = Scratch::new();
    assert_eq!(Store::open_or_recover(&new.database()).await.unwrap().1, None);
}

#[tokio::test]
async fn a_damaged_index_costs_nothing() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 5).await;
    damage(&scratch, "messages_by_parent").await;
    let damaged = fs::read(scratch.database()).unwrap();
    let (store, recovery) = recover(&scratch).await;
    assert_eq!((recovery.num_conversations, recovery.num_messages), (5, 20), "{recovery:?}");
    assert_eq!(recovery.total_conversations, Some(5));
    for (number, id) in ids.iter().enumerate() {
        let texts = texts(&store, id).await;
        assert_eq!(texts.len(), 4);
        assert!(texts[3].starts_with(&format!("answer {number}.1")), "{:.20}", texts[3]);
    }
    assert_eq!(store.setting("settings").await.unwrap().as_deref(), Some(r#"{"seed":7}"#));
    assert_eq!(store.last_used_model().await.unwrap(), Some(("/models/a".into(), "a".into())));
    assert_eq!(store.named_caches().await.unwrap()[0].row.name, "My book");
    check_sound(&store).await;
    turn(&store, &ids[0], "goes", "on").await;
    assert!(fs::read(&recovery.damaged).unwrap() == damaged, "the damaged file was changed");
    let name = recovery.damaged.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("cairn.damaged-20") && name.ends_with(".db"), "{name}");
    store.close().await.unwrap();
    assert_eq!(Store::open_or_recover(&scratch.database()).await.unwrap().1, None);
}

/// Damaged before an update, or a backup from before one.
#[tokio::test]
async fn a_damaged_file_of_an_earlier_version_is_recovered() {
    for version in MIGRATIONS.iter().map(|migration| migration.version) {
        let scratch = Scratch::new();
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(scratch.database())
            .create_if_missing(true);
        let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
        MIGRATIONS.run_to(version, &old).await.unwrap();
        let setting = "insert into settings (key, value) values ('language', 'de')";
        sqlx::query(setting).execute(&old).await.unwrap();
        old.close().await;
        damage(&scratch, "messages_by_parent").await;
        let (store, _) = recover(&scratch).await;
        let kept = store.setting("language").await.unwrap();
        assert_eq!(kept.as_deref(), Some("de"), "of version {version}");
        check_sound(&store).await;
    }
}

/// Also the pages of the list of tables, the first one with the header, and pages that lead to others.
#[tokio::test]
async fn lost_page_takes_only_its_own_rows() {
    async fn check(file: &Good, page: usize, bytes: u8, noted: Option<&[u8]>) {
        let Good { bytes: good, ids, messages } = file;
        let on_page = messages.get(&page).copied().unwrap_or(0);
        let case = format!("page {page} of {bytes:#x}, noted: {}", noted.is_some());
        let scratch = Scratch::new();
        if let Some(noted) = noted {
            fs::write(noted_path(&scratch), noted).unwrap();
        }
        let mut damaged = good.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(bytes);
        fs::write(scratch.database(), &damaged).unwrap();
        let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
        check_sound(&store).await;
        let mut num_messages = 0;
        for conversation in store.conversations().await.unwrap() {
            assert!(ids.contains(&conversation.id), "{case}");
            num_messages += store.branch(&conversation.id).await.unwrap().len();
        }
        let Some(recovery) = recovery else {
            assert_eq!(num_messages, 32, "{case} held nothing");
            return;
        };
        assert_eq!(num_messages as i64, recovery.num_messages, "{case}: {recovery:?}");
        assert!(num_messages + on_page >= 32, "{case}, {on_page} rows: {recovery:?}");
        assert!(recovery.num_conversations >= 7, "{case}: {recovery:?}");
        if on_page == 0 {
            assert_eq!(recovery.num_conversations, 8, "{case}: {recovery:?}");
        }
    }
    let scratch = Scratch::new();
    let ids = filled(&scratch, 8).await;
    let messages = messages_by_page(&scratch).await;
    let good = Good { bytes: fs::read(scratch.database()).unwrap(), ids, messages };
    let noted = fs::read(noted_path(&scratch)).unwrap();
    // Half of the cases each: a recovery takes some time.
    for page in 0..good.bytes.len() / PAGE {
        match page % 2 {
            0 => check(&good, page, 0xff, None).await,
            _ => check(&good, page, 0, Some(&noted)).await,
        }
    }
    check(&good, 0, 0, Some(&noted)).await;
}

/// A sound database of 32 messages.
struct Good {
    bytes: Vec<u8>,
    /// Its conversations.
    ids: Vec<String>,
    /// How many messages are lost with a page, if any.
    messages: HashMap<usize, usize>,
}

/// How many messages are on each page that has any, or continue there.
async fn messages_by_page(scratch: &Scratch) -> HashMap<usize, usize> {
    let mut connection = scratch.connect().await;
    let pages: Vec<(u32, u32)> = sqlx::query_as(
        "select pageno - 1, case pagetype when 'leaf' then ncell else 1 end from dbstat
         where name = 'messages' and pagetype <> 'internal'",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    pages.into_iter().map(|(page, count)| (page as usize, count as usize)).collect()
}

fn noted_path(scratch: &Scratch) -> PathBuf {
    let folder = scratch.0.path().join("cairn.db-runs");
    fs::create_dir_all(&folder).unwrap();
    folder.join("tables.json")
}

#[tokio::test]
async fn damaged_header_takes_no_chat() {
    let scratch = Scratch::new();
    filled(&scratch, 3).await;
    let good = fs::read(scratch.database()).unwrap();
    let noted = fs::read(noted_path(&scratch)).unwrap();
    for (place, mask) in (0..100).step_by(2).zip([0xff, 0x02, 0x80].into_iter().cycle()) {
        let scratch = Scratch::new();
        let mut damaged = good.clone();
        damaged[place] ^= mask;
        damaged[(place + 1) % 100] ^= mask;
        fs::write(scratch.database(), &damaged).unwrap();
        fs::write(noted_path(&scratch), &noted).unwrap();
        let (store, _) = Store::open_or_recover(&scratch.database()).await.unwrap();
        assert_eq!(store.conversations().await.unwrap().len(), 3, "bytes from {place}");
        check_sound(&store).await;
    }
}

#[tokio::test]
async fn pages_give_no_fewer_chats_than_sqlite() {
    let scratch = Scratch::new();
    filled(&scratch, 12).await;
    let good = fs::read(scratch.database()).unwrap();
    let noted = fs::read(noted_path(&scratch)).unwrap();
    let (mut num_by_sqlite, mut num_found) = (0, 0);
    for seed in cairn_sweeps::sweep("damages", 12) {
        let scratch = Scratch::new();
        fs::write(scratch.database(), damaged_at_random(&good, seed)).unwrap();
        fs::write(noted_path(&scratch), &noted).unwrap();
        let new = scratch.0.path().join("new.db");
        let by_sqlite = copy_readable(&new, &scratch.database(), None).await;
        let by_sqlite = by_sqlite.map_or(0, |copied| copied.conversations.0);
        let damaged = DamagedFile::open(&scratch.database(), TableRoots::load(&scratch.database()));
        let found = copy_readable(&new, &scratch.database(), damaged).await.unwrap();
        assert!(found.conversations.0 >= by_sqlite, "{seed}: {found:?}, {by_sqlite} before");
        num_by_sqlite += by_sqlite;
        num_found += found.conversations.0;
        let (store, _) = Store::open_or_recover(&scratch.database()).await.unwrap();
        check_sound(&store).await;
        store.conversations().await.unwrap();
    }
    println!("of 12 chats in each file: {num_by_sqlite} by SQLite alone, {num_found} with pages");
}

/// One to four damages: a page of zeros, a changed byte, or a lost end.
fn damaged_at_random(good: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |end: usize| {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % end
    };
    let mut bytes = good.to_vec();
    for _ in 0..=below(4) {
        match below(5) {
            0 | 1 => {
                let page = below(bytes.len() / PAGE);
                bytes[page * PAGE..(page + 1) * PAGE].fill(0);
            }
            2 | 3 => {
                let place = below(bytes.len());
                bytes[place] ^= 1 << below(8);
            }
            _ => {
                let lost = below(bytes.len() / 3);
                bytes.truncate(bytes.len() - lost);
            }
        }
    }
    bytes
}

/// SQLite finds nothing wrong with a changed byte in a text.
#[tokio::test]
async fn garbled_title_hides_chats_once() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 2).await;
    scratch
        .execute("update conversations set title = cast(x'41ff42' as text) where rowid = 1")
        .await;
    let store = scratch.open().await;
    let listed = store.conversations().await;
    assert!(matches!(&listed, Err(StoreError::Corrupt { .. })), "{listed:?}");
    store.close().await.unwrap();
    let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
    assert_eq!(recovery, None, "the file is sound");
    let titles: Vec<_> =
        store.conversations().await.unwrap().into_iter().map(|row| row.title).collect();
    assert_eq!(titles, ["question 1.0", "A\u{fffd}B"]);
    assert_eq!(texts(&store, &ids[0]).await.len(), 4);
}

#[tokio::test]
async fn conversations_without_a_row_are_named_after_their_first_question() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 3).await;
    damage(&scratch, "conversations").await;
    let (store, recovery) = recover(&scratch).await;
    assert_eq!((recovery.num_conversations, recovery.num_messages), (3, 12), "{recovery:?}");
    let titles: Vec<_> =
        store.conversations().await.unwrap().into_iter().map(|row| (row.id, row.title)).collect();
    let expected: Vec<_> = ids
        .iter()
        .enumerate()
        .rev()
        .map(|(number, id)| (id.clone(), format!("question {number}.0")))
        .collect();
    assert_eq!(titles, expected);
    check_sound(&store).await;
}

#[tokio::test]
async fn a_folder_without_a_row_keeps_its_files_and_chats() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let folder = store.create_folder("Stones", 1).await.unwrap().id;
    let document = NewDocument {
        name: "map.txt".to_owned(),
        kind: DocumentKind::Text,
        text: "A map.".to_owned(),
    };
    store.add_folder_documents(&folder, &[document], 2).await.unwrap();
    let chat = store.create_conversation_in(3, &folder, "").await.unwrap().id;
    turn(&store, &chat, "Where?", "There.").await;
    store.close().await.unwrap();
    damage(&scratch, "folders").await;
    let (store, _) = recover(&scratch).await;
    let folders = store.folders().await.unwrap();
    assert_eq!(folders[0].name, "Recovered folder");
    assert_eq!(folders[0].id, folder);
    assert_eq!(store.folder_texts(&folder).await.unwrap()[0].1, "A map.");
    assert_eq!(store.conversation(&chat).await.unwrap().unwrap().folder_id, Some(folder));
    check_sound(&store).await;
}

#[tokio::test]
async fn the_messages_after_a_lost_one_stay_in_their_conversation() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    for round in 0..3 {
        turn(&store, &id, &format!("q{round}"), &format!("a{round}")).await;
    }
    // Rows that the new file refuses are as lost as those on a page that is gone.
    sqlx::raw_sql(
        "pragma ignore_check_constraints = on;
         update messages set status = 'garbled' where text in ('a0', 'a2');",
    )
    .execute(&store.writer)
    .await
    .unwrap();
    store.close().await.unwrap();
    let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
    assert_eq!(recovery, None, "the file itself is sound");
    store.close().await.unwrap();
    damage(&scratch, "messages_by_parent").await;
    let (store, recovery) = recover(&scratch).await;
    assert_eq!((recovery.num_messages, recovery.total_messages), (4, Some(6)));
    assert_eq!(texts(&store, &id).await, ["q0", "q1", "a1", "q2"]);
    check_sound(&store).await;
}

#[tokio::test]
async fn a_file_without_a_readable_row_is_set_aside_too() {
    async fn check(name: &str, bytes: &[u8]) {
        let scratch = Scratch::new();
        fs::write(scratch.database(), bytes).unwrap();
        let (store, recovery) = recover(&scratch).await;
        assert_eq!((recovery.num_conversations, recovery.total_conversations), (0, None), "{name}");
        assert!(fs::read(&recovery.damaged).unwrap() == bytes, "{name}: the file was changed");
        let id = store.create_conversation(1).await.unwrap().id;
        turn(&store, &id, "q", "a").await;
        store.close().await.unwrap();
        // Again at once: the file that was set aside first is still there.
        fs::write(scratch.database(), bytes).unwrap();
        let (_, again) = recover(&scratch).await;
        assert_ne!(again.damaged, recovery.damaged);
        assert!(fs::read(&recovery.damaged).unwrap() == bytes, "{name}: the file was overwritten");
    }
    check("a text", &b"Dear diary. ".repeat(1_000)).await;
    check("zeros", &[0; 2 * PAGE]).await;
}

#[tokio::test]
async fn what_a_backup_holds_stands_in_for_a_file_without_a_readable_row() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 3).await;
    let backup = scratch.0.path().join("cairn.backup-v1-2026-03-09-141502.db");
    fs::copy(scratch.database(), &backup).unwrap();
    let len = fs::metadata(scratch.database()).unwrap().len();
    fs::write(scratch.database(), vec![0xff; usize::try_from(len).unwrap()]).unwrap();
    let (store, recovery) = recover(&scratch).await;
    assert_eq!((recovery.num_conversations, recovery.backup), (3, Some(backup.clone())));
    assert_eq!(texts(&store, &ids[0]).await.len(), 4);
    assert!(backup.exists());
}

#[tokio::test]
async fn the_log_is_read_and_set_aside_with_its_file() {
    let scratch = Scratch::new();
    let ids = filled(&scratch, 3).await;
    // As a program leaves it that is killed: the last turn is only in the log.
    let store = scratch.open().await;
    turn(&store, &ids[0], "only in the log", "yes").await;
    let with_log = Scratch::new();
    for suffix in ["", "-wal"] {
        let name = format!("cairn.db{suffix}");
        fs::copy(scratch.0.path().join(&name), with_log.0.path().join(&name)).unwrap();
    }
    damage_index(&with_log);
    let (recovered, recovery) = recover(&with_log).await;
    assert_eq!(recovery.num_messages, 14, "{recovery:?}");
    assert_eq!(texts(&recovered, &ids[0]).await[4..], ["only in the log", "yes"]);
    check_sound(&recovered).await;
}

/// Overwrites a page in the file that no turn has changed since: one of a named prompt cache.
fn damage_index(scratch: &Scratch) {
    let bytes = fs::read(scratch.database()).unwrap();
    let holds = |page: &[u8]| page.windows(7).any(|window| window == b"My book");
    let page = bytes.chunks(PAGE).position(holds).unwrap();
    overwrite_page(&scratch.database(), page);
}

#[tokio::test]
async fn a_damaged_file_that_another_program_has_open_is_left_alone() {
    let scratch = Scratch::new();
    filled(&scratch, 3).await;
    let other = scratch.open().await;
    damage(&scratch, "messages_by_parent").await;
    let refused = Store::open_or_recover(&scratch.database()).await;
    assert!(matches!(&refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    drop(other);
    assert_eq!(recover(&scratch).await.1.num_conversations, 3);
}

#[tokio::test]
async fn a_damaged_file_of_a_newer_version_is_left_alone() {
    let scratch = Scratch::new();
    filled(&scratch, 1).await;
    let store = scratch.open().await;
    sqlx::query(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time) values (9999, 'later', 1, x'00', 0)",
    )
    .execute(&store.writer)
    .await
    .unwrap();
    store.close().await.unwrap();
    damage(&scratch, "messages_by_parent").await;
    let before = fs::read(scratch.database()).unwrap();
    let refused = Store::open_or_recover(&scratch.database()).await;
    assert!(matches!(&refused, Err(StoreError::Newer { found: 9999, .. })), "{refused:?}");
    assert!(fs::read(scratch.database()).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn a_full_disk_leaves_the_damaged_file_in_its_place() {
    let scratch = Scratch::new();
    filled(&scratch, 3).await;
    damage(&scratch, "messages_by_parent").await;
    let before = fs::read(scratch.database()).unwrap();
    // The new file cannot be created, as on a full disk.
    let blocked = scratch.0.path().join("cairn.recovering.db");
    fs::create_dir(&blocked).unwrap();
    let refused = Store::open_or_recover(&scratch.database()).await;
    assert!(
        matches!(&refused, Err(StoreError::NotWritable { .. } | StoreError::Full { .. })),
        "{refused:?}"
    );
    assert!(fs::read(scratch.database()).unwrap() == before, "the damaged file was changed");
    fs::remove_dir(blocked).unwrap();
    assert_eq!(recover(&scratch).await.1.num_conversations, 3);
}

#[tokio::test]
async fn an_answer_that_was_being_written_is_carried_over_as_interrupted() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let (_, assistant) = store.begin_turn(&id, "q", 1).await.unwrap();
    store.save_progress(&assistant.id, "half", None, &[4], None).await.unwrap();
    store.create_named_cache(&named_cache("n", "My book", 1)).await.unwrap();
    store.writer.close().await;
    drop(store);
    damage_index(&scratch);
    let (store, _) = recover(&scratch).await;
    let read = store.message(&assistant.id).await.unwrap().unwrap();
    assert_eq!((read.status, read.text.as_str()), (MessageStatus::Interrupted, "half"));
    store.finish(&read.id, &finished(MessageStatus::Complete, "whole")).await.unwrap();
}
