//! Copies of the database from before a migration: each is a whole database in one file beside it.
//!
//! ```text
//! cairn.backup-v1-2026-03-09-141502.db    version 1 of the tables, copied on that day (UTC)
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sqlx::sqlite::SqlitePool;

use crate::{StoreError, run};

/// Older backups are removed when a new one is complete.
const MAX_BACKUPS: usize = 3;
/// Marks the new database of a recovery until it is complete. It has one name, since the opening
/// lock lets one program recover at a time.
pub(crate) const RECOVERING: &str = "recovering";
/// "2026-03-09-141502"
const TIMESTAMP_LENGTH: usize = 17;

/// Copies the database, whose tables have `version`, into a new file beside it, and removes all but
/// the newest [`MAX_BACKUPS`] of these copies.
///
/// The copy gets its name when it is complete and synced. If copying fails, no part of a copy
/// stays, and the database is as it was.
pub(crate) async fn back_up(
    path: &Path,
    version: i64,
    writer: &SqlitePool,
) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_sqlx(path, error);
    let now = timestamp(writer).await.map_err(failed)?;
    let target = beside(path, &format!("backup-v{version}-{now}"));
    let partial = target.with_extension("db-partial");
    let copied = copy(&partial, &target, writer).await;
    if copied.is_err() {
        let _ = fs::remove_file(&partial);
    }
    copied?;
    for old in backups(path).into_iter().skip(MAX_BACKUPS) {
        // If this fails, the file only takes room.
        let _ = fs::remove_file(old);
    }
    Ok(())
}

async fn copy(partial: &Path, target: &Path, writer: &SqlitePool) -> Result<(), StoreError> {
    let failed = |error| StoreError::from_io(target, error);
    // SQLite refuses to write into a file that is not empty.
    match fs::remove_file(partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    run::make_private(partial);
    sqlx::query("vacuum into ?")
        .bind(partial.to_string_lossy())
        .execute(writer)
        .await
        .map_err(|error| StoreError::from_sqlx(target, error))?;
    File::open(partial).and_then(|file| file.sync_all()).map_err(failed)?;
    fs::rename(partial, target).map_err(failed)?;
    sync_folder(target);
    Ok(())
}

/// Removes the unfinished copies and databases of programs that were killed. Called with the opening
/// lock held.
pub(crate) fn remove_unfinished(path: &Path) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    for (name, file) in regular_files_beside(path) {
        let is_copy =
            name.strip_suffix("-partial").is_some_and(|name| backup_time(name, &stem).is_some());
        if is_copy || file == beside(path, RECOVERING) {
            // If this fails, the next program tries again.
            let _ = fs::remove_file(file);
        }
    }
}

/// The copies of the database at `path`, the newest first. Only regular files with a name as
/// [`back_up`] gives are among them.
pub(crate) fn backups(path: &Path) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut found: Vec<(String, PathBuf)> = regular_files_beside(path)
        .into_iter()
        .filter_map(|(name, file)| Some((backup_time(&name, &stem)?.to_owned(), file)))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

/// Name and path of every file in the folder of `path`; links and folders are left out.
fn regular_files_beside(path: &Path) -> Vec<(String, PathBuf)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = fs::read_dir(folder.unwrap_or(Path::new("."))) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect()
}

/// The time in a backup's file name; none for the name of anything else.
fn backup_time<'a>(name: &'a str, stem: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(stem)?.strip_prefix(".backup-v")?.strip_suffix(".db")?;
    let (version, time) = rest.split_once('-')?;
    let is_version = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    (is_version && is_time(time)).then_some(time)
}

fn is_time(text: &str) -> bool {
    text.len() == TIMESTAMP_LENGTH && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// `cairn.<mark>.db` for `cairn.db`.
pub(crate) fn beside(path: &Path, mark: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}.{mark}.db"))
}

/// The current time as in file names: UTC, in an order that is also that of the names.
pub(crate) async fn timestamp(
    connection: impl sqlx::SqliteExecutor<'_>,
) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select strftime('%Y-%m-%d-%H%M%S', 'now')").fetch_one(connection).await
}

/// Syncs the folder of a file, and so the names in it, where the system allows that.
pub(crate) fn sync_folder(file: &Path) {
    if let Some(folder) = file.parent() {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_backups_are_taken_for_backups() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(backup_time(name, "cairn"), expected, "for {name:?}");
        };
        check("cairn.backup-v1-2026-03-09-141502.db", Some("2026-03-09-141502"));
        check("cairn.backup-v12-2026-03-09-141502.db", Some("2026-03-09-141502"));
        check("cairn.db", None);
        check("cairn.backup-v1-2026-03-09-141502.db-partial", None);
        check("cairn.backup-v-2026-03-09-141502.db", None);
        check("cairn.backup-v1-before-the-holiday.db", None);
        check("cairn.backup-vx-2026-03-09-141502.db", None);
        check("other.backup-v1-2026-03-09-141502.db", None);
    }
}
