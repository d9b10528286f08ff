//! Copies of the database from before a migration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::Scratch;
use crate::store::MIGRATIONS;
use crate::{Store, StoreError};

/// Makes a database as the first version of Cairn left it, with one conversation.
async fn make_old(scratch: &Scratch) {
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(scratch.database())
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .create_if_missing(true);
    let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
    MIGRATIONS.run_to(1, &old).await.unwrap();
    sqlx::query("insert into conversations values ('c', 'title', '', null, 1, 2, 3, null, null)")
        .execute(&old)
        .await
        .unwrap();
    old.close().await;
}

fn names(scratch: &Scratch) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(scratch.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("cairn.db"))
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_database_is_copied_before_a_migration_changes_it() {
    let scratch = Scratch::new();
    make_old(&scratch).await;
    scratch.open().await.close().await.unwrap();
    let [name] = &names(&scratch)[..] else { panic!("{:?}", names(&scratch)) };
    assert!(name.starts_with("cairn.backup-v1-20") && name.ends_with(".db"), "{name}");

    // The copy is the database as it was: put back, it is migrated again.
    fs::copy(scratch.0.path().join(name), scratch.database()).unwrap();
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(scratch.database());
    let copy = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let version: i64 = sqlx::query_scalar("select max(version) from _sqlx_migrations")
        .fetch_one(&copy)
        .await
        .unwrap();
    assert_eq!(version, 1);
    copy.close().await;
    let store = scratch.open().await;
    assert_eq!(store.conversation("c").await.unwrap().unwrap().title, "title");
}

#[tokio::test]
async fn neither_a_new_database_nor_one_of_this_version_is_copied() {
    let scratch = Scratch::new();
    for _ in 0..2 {
        scratch.open().await.close().await.unwrap();
        assert_eq!(names(&scratch), Vec::<String>::new());
    }
}

#[tokio::test]
async fn only_their_owner_may_read_a_database_and_its_copies() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mode_of = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["cairn.db", "cairn.db-wal", "cairn.db-shm"] {
        assert_eq!(mode_of(scratch.0.path().join(name)), 0o600, "{name}");
    }
    store.close().await.unwrap();

    let scratch = Scratch::new();
    make_old(&scratch).await;
    scratch.open().await.close().await.unwrap();
    for name in names(&scratch) {
        assert_eq!(mode_of(scratch.0.path().join(&name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn three_copies_stay_and_nothing_else_is_removed() {
    let scratch = Scratch::new();
    make_old(&scratch).await;
    let write = |name: &str| fs::write(scratch.0.path().join(name), "x").unwrap();
    for day in 1..=4 {
        write(&format!("cairn.backup-v1-2001-01-0{day}-000000.db"));
    }
    // Those that only look like it, and links, are somebody else's.
    write("cairn.backup-v1-before-the-holiday.db");
    write("elsewhere");
    write("cairn.recovering-mine.db");
    // What a program that died was making.
    write("cairn.backup-v1-2001-01-01-000000.db-partial");
    write("cairn.recovering.db");
    #[cfg(unix)]
    std::os::unix::fs::symlink(
        scratch.0.path().join("elsewhere"),
        scratch.0.path().join("cairn.backup-v1-2000-01-01-000000.db"),
    )
    .unwrap();
    scratch.open().await.close().await.unwrap();
    let mut names = names(&scratch);
    names.retain(|name| !name.starts_with("cairn.backup-v1-202"));
    let mut expected = vec![
        "cairn.backup-v1-2001-01-03-000000.db",
        "cairn.backup-v1-2001-01-04-000000.db",
        "cairn.backup-v1-before-the-holiday.db",
        "cairn.recovering-mine.db",
        "elsewhere",
    ];
    if cfg!(unix) {
        expected.insert(0, "cairn.backup-v1-2000-01-01-000000.db");
    }
    assert_eq!(names, expected);
}

#[tokio::test]
async fn without_a_copy_nothing_is_migrated() {
    let scratch = Scratch::new();
    make_old(&scratch).await;
    let before = fs::read(scratch.database()).unwrap();
    // The names that the copy could have for the next ten minutes are taken, by folders.
    let options = sqlx::sqlite::SqliteConnectOptions::new().in_memory(true);
    let clock = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let now: String = sqlx::query_scalar("select datetime('now')").fetch_one(&clock).await.unwrap();
    for second in 0..600 {
        let name: String = sqlx::query_scalar(
            "select strftime('cairn.backup-v1-%Y-%m-%d-%H%M%S.db-partial', ?, ?)",
        )
        .bind(&now)
        .bind(format!("{second} seconds"))
        .fetch_one(&clock)
        .await
        .unwrap();
        fs::create_dir(scratch.0.path().join(name)).unwrap();
    }
    let refused = Store::open(&scratch.database()).await;
    assert!(
        matches!(&refused, Err(StoreError::NotWritable { .. } | StoreError::Io { .. })),
        "{refused:?}"
    );
    assert!(fs::read(scratch.database()).unwrap() == before, "the database was changed");
}
