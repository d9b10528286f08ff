//! Watches whether the database is still where it was opened. A cleaner or a sync program may take
//! it away while Cairn runs; unless Cairn looks, no one would notice before the next start.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_formats::free_disk_bytes;
use cairn_store::{SavedCopy, StoreError};

use crate::app::App;
use crate::folder_lock::FolderLock;
use crate::wire::{Event, Failure, NoticeKind, NoticeLevel};

/// Time between two looks at the file.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// While saving fails, the time between two attempts doubles up to this: each one may read the
/// whole database, and nothing else is written meanwhile.
const MAX_INTERVAL: Duration = Duration::from_secs(2 * 60);

/// Saves a copy of the database if its file is gone, and says so, until the app closes.
pub(crate) async fn watch(app: Arc<App>) {
    // One notice of a failure is enough, however often saving is tried.
    let mut is_told = false;
    let mut rest = LOOK_INTERVAL;
    while app.is_open_after(rest).await {
        let rest_after_failure = MAX_INTERVAL.min(rest * 2);
        rest = LOOK_INTERVAL;
        if let Err(error) = app.store.keep_log().await {
            tracing::warn!(
                "the log of the database was deleted, and it is not written back: {error}"
            );
        }
        if !app.store.is_displaced() {
            if is_told {
                // The file is back, so what waits to be told is outdated.
                file_notice(&app).take();
            }
            is_told = false;
            continue;
        }
        match app.store.save_displaced(free_disk_bytes(app.data_folder.home())).await {
            Ok(saved) => {
                is_told = false;
                restore_folder(&app);
                tell(&app, NoticeLevel::Warning, said(&saved), saved_kind(&saved));
            }
            Err(error) => {
                rest = rest_after_failure;
                if !is_told {
                    tell_failure(&app, error);
                }
                is_told = true;
            }
        }
    }
}

fn tell_failure(app: &App, error: StoreError) {
    let why = Failure::from(error);
    let text = format!(
        "The database file was deleted or moved, and Cairn can't save it again yet. Don't quit Cairn: it keeps trying. {}",
        why.message
    );
    tell(app, NoticeLevel::Error, text, NoticeKind::DatabaseGone { why });
}

/// Makes the folders that went with the database again, and the lock in them.
fn restore_folder(app: &App) {
    if let Err(error) = app.data_folder.create() {
        tracing::warn!("the data folder is not complete: {error}");
    }
    let mut lock = app.lock.lock().unwrap_or_else(PoisonError::into_inner);
    // If the lock's file is still there, it is locked, by this process.
    if let (Some(lock), Ok(new)) = (lock.as_mut(), FolderLock::take(&app.data_folder)) {
        *lock = new;
    }
}

/// Sends a notice, and keeps it for the next interface that asks for the state: a page that is
/// loading or has crashed does not show what is sent.
fn tell(app: &App, level: NoticeLevel, text: String, kind: NoticeKind) {
    tracing::error!("{text}");
    let notice = Event::Notice { level, text, kind: Some(Box::new(kind)) };
    app.emit(notice.clone());
    *file_notice(app) = Some(notice);
}

fn file_notice(app: &App) -> MutexGuard<'_, Option<Event>> {
    app.file_notice.lock().unwrap_or_else(PoisonError::into_inner)
}

fn said(saved: &SavedCopy) -> String {
    let path = saved.path.display();
    if saved.is_in_place {
        return format!(
            "The database file was deleted or moved while Cairn was running. All chats are saved in {path} again, and nothing is lost. If another program removed the file, exclude Cairn's folder there."
        );
    }
    format!(
        "Another file took the place of the database while Cairn was running. All chats are saved in {path}, and Cairn continues with that file until you quit. To keep them, quit Cairn and rename it to cairn.db."
    )
}

fn saved_kind(saved: &SavedCopy) -> NoticeKind {
    let SavedCopy { path, is_in_place } = saved;
    NoticeKind::DatabaseSaved { path: path.display().to_string(), is_in_place: *is_in_place }
}
