//! A database whose file is taken away while it is open. What a kill would leave is a copy of the files
//! while the store is open.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Scratch, texts, turn};
use crate::{SavedCopy, Store, StoreError};

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
    let saved = store.save_displaced(None).await.unwrap();
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

/// Before and after the look that finds it, and twice.
#[tokio::test]
async fn deleted_log_takes_no_message_with_it() {
    for suffixes in [&["-wal"][..], &["-wal", "-shm"]] {
        let scratch = Scratch::new();
        let (store, path, id) = filled(&scratch).await;
        remove(&path, suffixes);
        turn(&store, &id, "q3", "a3").await;
        store.keep_log().await.unwrap();
        let old = store.readers.acquire().await.unwrap();
        assert_eq!(texts(&store, &id).await[4..], ["q3", "a3"], "read by a new connection");
        drop(old);
        remove(&path, suffixes);
        store.keep_log().await.unwrap();
        turn(&store, &id, "q4", "a4").await;
        let old = store.readers.acquire().await.unwrap();
        assert_eq!(texts(&store, &id).await[6..], ["q4", "a4"], "read by a new connection");
        drop(old);
        check(&path, &id).await;
    }
}

#[tokio::test]
async fn deleted_log_stays_shared_with_other_program() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    let other = Store::open(&path).await.unwrap();
    remove(&path, &["-wal"]);
    turn(&store, &id, "q3", "a3").await;
    store.keep_log().await.unwrap();
    turn(&other, &id, "q4", "a4").await;
    assert_eq!(texts(&store, &id).await[4..], ["q3", "a3", "q4", "a4"]);
    other.close().await.unwrap();
    store.keep_log().await.unwrap();
    check(&path, &id).await;
}

#[tokio::test]
async fn abandoned_save_continues_with_its_copy() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    remove(&path, &[""]);
    turn(&store, &id, "q3", "a3").await;
    assert!(store.is_displaced());
    tokio::select! {
        biased;
        saved = store.save_displaced(None) => drop(saved.unwrap()),
        () = async { while !path.exists() { tokio::task::yield_now().await } } => {}
    }
    assert!(!store.is_displaced() && !store.is_displaced(), "the copy is the open file");
    turn(&store, &id, "q4", "a4").await;
    check(&path, &id).await;
}

/// A closed database of four turns, and the complete copy that a kill leaves before its rename.
async fn killed_while_saving(scratch: &Scratch) -> (PathBuf, PathBuf, String) {
    let (store, path, id) = filled(scratch).await;
    turn(&store, &id, "q3", "a3").await;
    turn(&store, &id, "q4", "a4").await;
    let copy = path.with_file_name("cairn.saving.db");
    let write = sqlx::query("vacuum into ?").bind(copy.to_string_lossy().into_owned());
    write.execute(&store.writer).await.unwrap();
    store.close().await.unwrap();
    (path, copy, id)
}

#[tokio::test]
async fn start_adopts_copy_of_missing_database() {
    let scratch = Scratch::new();
    let (path, copy, id) = killed_while_saving(&scratch).await;
    fs::remove_file(&path).unwrap();
    let (store, _) = Store::open_or_recover(&path).await.unwrap();
    assert_eq!(texts(&store, &id).await[6..], ["q4", "a4"]);
    assert!(!copy.exists());
}

#[tokio::test]
async fn start_keeps_copy_next_to_another_file() {
    let scratch = Scratch::new();
    let (path, copy, id) = killed_while_saving(&scratch).await;
    fs::remove_file(&path).unwrap();
    let other = Store::open(&path.with_file_name("other.db")).await.unwrap();
    other.close().await.unwrap();
    fs::rename(other.path(), &path).unwrap();
    let (store, _) = Store::open_or_recover(&path).await.unwrap();
    assert!(store.conversations().await.unwrap().is_empty());
    assert!(!copy.exists());
    check(&saved_copies(&path)[0], &id).await;
}

#[tokio::test]
async fn start_removes_useless_copy() {
    for is_placed in [true, false] {
        let scratch = Scratch::new();
        let (path, copy, _) = killed_while_saving(&scratch).await;
        fs::remove_file(&path).unwrap();
        if is_placed {
            // Killed between the two steps of the rename.
            fs::hard_link(&copy, &path).unwrap();
        } else {
            let whole = fs::read(&copy).unwrap();
            fs::write(&copy, &whole[..whole.len() / 2]).unwrap();
        }
        let (store, recovery) = Store::open_or_recover(&path).await.unwrap();
        assert_eq!(recovery, None);
        assert_eq!(store.conversations().await.unwrap().len(), usize::from(is_placed));
        assert!(!copy.exists() && saved_copies(&path).is_empty(), "placed: {is_placed}");
    }
}

#[tokio::test]
async fn start_leaves_copy_of_running_program() {
    let scratch = Scratch::new();
    let (_store, path, _) = filled(&scratch).await;
    let copy = path.with_file_name("cairn.saving.db");
    fs::write(&copy, "not complete yet").unwrap();
    Store::open(&path).await.unwrap().close().await.unwrap();
    assert!(copy.exists());
}

/// The copies that were saved because another file was in the database's place.
fn saved_copies(path: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
    files.filter(|file| file.to_string_lossy().contains("cairn.saved-")).collect()
}

#[tokio::test]
async fn save_writes_nothing_without_room() {
    let scratch = Scratch::new();
    let (store, path, id) = filled(&scratch).await;
    turn(&store, &id, "q3", "a3").await;
    turn(&store, &id, "q4", "a4").await;
    let folder = path.parent().unwrap();
    fs::remove_dir_all(folder).unwrap();
    let error = store.save_displaced(Some(100_000)).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(!folder.exists());
    store.save_displaced(Some(1 << 30)).await.unwrap();
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
    store.save_displaced(None).await.unwrap_err();
    turn(&store, &id, "q3", "a3").await;
    fs::remove_dir(&blocked).unwrap();
    assert!(store.is_displaced());
    store.save_displaced(None).await.unwrap();
    turn(&store, &id, "q4", "a4").await;
    store.close().await.unwrap();
    check(&path, &id).await;
}
