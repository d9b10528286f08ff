//! A database whose file is taken away while it is open. What a kill would leave is a copy of the files
//! while the store is open.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Scratch, texts, turn};
use crate::{SavedCopy, Store};

/// A store in a folder of its own with one conversation of two turns.
async fn filled(scratch: &Scratch) -> (Store, PathBuf, String) {
    let path = scratch.0.path().join("data").join("cairn.db");
    let store = Store::open(&path).await.unwrap();
    let id = store.create_conversation(1).await.unwrap().id;
    turn(&store, &id, "q1", "a1").await;
    turn(&store, &id, "q2", "a2").await;
    // Reads, so that a reader has the file open too.
    assert_eq!(texts(&store, &id).await.len(), 4);
    assert!(!store.is_displaced());
    (store, path, id)
}

/// Takes the file away, chats, saves and chats again. Returns where the copy is, and checks that all is in
/// it after a kill.
async fn displace(scratch: &Scratch, take: impl Fn(&Path)) -> SavedCopy {
    let (store, path, id) = filled(scratch).await;
    take(&path);
    turn(&store, &id, "q3", "a3").await;
    assert!(store.is_displaced() || store.is_displaced());
    let saved = store.save_displaced().await.unwrap();
    assert!(!store.is_displaced() && !store.is_displaced());
    assert_eq!(texts(&store, &id).await[4..], ["q3", "a3"]);
    turn(&store, &id, "q4", "a4").await;
    assert_eq!(texts(&store, &id).await[6..], ["q4", "a4"]);
    check(&saved.path, &id).await;
    drop(store);
    saved
}

/// Checks what another program would find after a kill.
async fn check(database: &Path, id: &str) {
    let scratch = Scratch::new();
    fs::copy(database, scratch.database()).unwrap();
    let log = |database: &Path| PathBuf::from(format!("{}-wal", database.display()));
    if log(database).exists() {
        fs::copy(log(database), log(&scratch.database())).unwrap();
    }
    let (store, recovery) = Store::open_or_recover(&scratch.database()).await.unwrap();
    assert_eq!(recovery, None);
    assert_eq!(texts(&store, id).await, ["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]);
    let found: String =
        sqlx::query_scalar("pragma integrity_check").fetch_one(&store.writer).await.unwrap();
    assert_eq!(found, "ok");
    store.close().await.unwrap();
}

fn remove(path: &Path, suffixes: &[&str]) {
    for suffix in suffixes {
        fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
    }
}

#[tokio::test]
async fn saves_deleted_database_in_its_place() {
    for suffixes in [&[""][..], &["", "-wal"], &["", "-wal", "-shm"]] {
        let scratch = Scratch::new();
        let saved = displace(&scratch, |path| remove(path, suffixes)).await;
        assert!(saved.is_in_place, "{suffixes:?}");
    }
}

#[tokio::test]
async fn saves_database_whose_folder_is_gone() {
    let scratch = Scratch::new();
    let saved = displace(&scratch, |path| {
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    })
    .await;
    assert!(saved.is_in_place);

    let scratch = Scratch::new();
    let moved = scratch.0.path().join("moved");
    let saved = displace(&scratch, |path| {
        fs::rename(path.parent().unwrap(), &moved).unwrap();
    })
    .await;
    assert!(saved.is_in_place);
    assert!(moved.join("cairn.db").exists(), "what was moved stays");
}

#[tokio::test]
async fn saves_replaced_database_beside_the_other_file() {
    let scratch = Scratch::new();
    let saved = displace(&scratch, |path| {
        let other = path.with_extension("other");
        fs::write(&other, "someone else's").unwrap();
        fs::rename(&other, path).unwrap();
    })
    .await;
    let database = scratch.0.path().join("data").join("cairn.db");
    assert_eq!(fs::read_to_string(&database).unwrap(), "someone else's");
    let name = saved.path.file_name().unwrap().to_str().unwrap();
    assert!(!saved.is_in_place && name.starts_with("cairn.saved-20"), "{saved:?}");
}

#[tokio::test]
async fn saves_deleted_database_when_it_closes() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    remove(&path, &[""]);
    turn(&store, &id, "q3", "a3").await;
    turn(&store, &id, "q4", "a4").await;
    store.close().await.unwrap();
    check(&path, &id).await;
}

#[tokio::test]
async fn deleted_log_takes_no_message_with_it() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    remove(&path, &["-wal"]);
    turn(&store, &id, "q3", "a3").await;
    turn(&store, &id, "q4", "a4").await;
    store.keep_log().await.unwrap();
    check(&path, &id).await;
}

#[tokio::test]
async fn failed_copy_leaves_everything_as_it_was() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    remove(&path, &[""]);
    // The copy cannot be created, as on a full disk.
    let blocked = path.with_file_name("cairn.saving.db");
    fs::create_dir(&blocked).unwrap();
    store.save_displaced().await.unwrap_err();
    turn(&store, &id, "q3", "a3").await;
    fs::remove_dir(&blocked).unwrap();
    assert!(store.is_displaced());
    store.save_displaced().await.unwrap();
    turn(&store, &id, "q4", "a4").await;
    store.close().await.unwrap();
    check(&path, &id).await;
}
