//! Watches whether the database is still where it was opened. A cleaner or a sync program may take
//! it away while Cairn runs; unless Cairn looks, no one would notice before the next start.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cairn_store::SavedCopy;

use crate::app::App;
use crate::folder_lock::FolderLock;
use crate::wire::{Event, Failure, NoticeKind, NoticeLevel};

/// Time between two looks at the file.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Saves a copy of the database if its file is gone, and says so, until the app closes.
pub(crate) async fn watch(app: Arc<App>) {
    // One notice of a failure is enough, however often saving is tried.
    let mut is_told = false;
    while app.is_open_after(LOOK_INTERVAL).await {
        if let Err(error) = app.store.keep_log().await {
            tracing::warn!(
                "the log of the database was deleted, and it is not written back: {error}"
            );
        }
        if !app.store.is_displaced() {
            continue;
        }
        match app.store.save_displaced().await {
            Ok(saved) => {
                is_told = false;
                restore_folder(&app);
                tell(&app, NoticeLevel::Warning, said(&saved), saved_kind(&saved));
            }
            Err(error) if !is_told => {
                is_told = true;
                let why = Failure::from(error);
                let text = format!(
                    "The database file was deleted or moved, and Cairn can't save it again yet. Don't quit Cairn: it keeps trying. {}",
                    why.message
                );
                tell(&app, NoticeLevel::Error, text, NoticeKind::DatabaseGone { why });
            }
            Err(_) => {}
        }
    }
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

/// Sends a notice, or keeps it for the first interface that asks for the state.
fn tell(app: &App, level: NoticeLevel, text: String, kind: NoticeKind) {
    tracing::error!("{text}");
    let notice = Event::Notice { level, text, kind: Some(Box::new(kind)) };
    if app.events.receiver_count() > 0 {
        app.emit(notice);
        return;
    }
    *app.recovery_notice.lock().unwrap_or_else(PoisonError::into_inner) = Some(notice);
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
