//! Opening the app, asking it, closing it.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_engine::{CacheOptions, Engine, EngineOptions};
use cairn_hub::ModelFolders;
use cairn_store::Store;
use tokio::sync::{OnceCell, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Options};
use crate::cache::previews::Imports;
use crate::cache::{follow, rows, transfers};
use crate::chat::deletion;
use crate::chat::running::RunningAnswers;
use crate::wire::{Command, Failure, FailureCode, Reply};
use crate::{
    DataFolder, OpenError, commands, convert, models, platform, recovered, settings, status,
};

/// Events that a subscriber may be behind before it misses some: half a minute of one answer.
const EVENT_CAPACITY: usize = 1024;
/// What closing may take; then the rest is left to the next start, which tidies up.
const CLOSING_LIMIT: Duration = Duration::from_millis(1900);
/// Of that, what the answers and the prompt cache may take before the database is closed in any
/// case.
const ENGINE_LIMIT: Duration = Duration::from_millis(1500);

/// How far [`App::close`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Everything has ended; the process may end as it likes.
    Completely,
    /// The engine still computes: the process must end with [`crate::exit_now`], because MLX aborts
    /// where exit handlers run beside it.
    EngineBusy,
}

impl App {
    /// Opens the data folder, making what is missing, and starts the engine. Must be called in a
    /// Tokio runtime, which the app then uses.
    pub async fn open(options: Options) -> Result<Arc<App>, OpenError> {
        let Options { data_folder, hub_variables, autoload } = options;
        data_folder.create()?;
        let lock = lock(&data_folder)?;
        let model_folders = ModelFolders::new(data_folder.home(), &hub_variables);
        remove_leftovers(&data_folder, &model_folders, &lock).await;
        // Before the rows are read: files that come between the two would belong to none of them.
        let cleanup_lock = cleanup_lock(&data_folder);
        let (store, recovery) = Store::open_or_recover(&data_folder.database()).await?;
        let store = Arc::new(store);
        let recovery_notice = recovery.as_ref().map(recovered::notice);
        if let Some(recovery) = &recovery {
            tracing::error!("the database was damaged: {recovery:?}");
        }

        let rows = tokio::try_join!(store.chunks(), store.cache_refs());
        let cache_problem = rows.as_ref().err().map(ToString::to_string);
        if let Some(problem) = &cache_problem {
            tracing::warn!("the stored prompt caches are left alone: {problem}");
        }
        let (chunks, cache_refs) = rows.unwrap_or_default();
        let chunks: Vec<_> = chunks.into_iter().filter_map(convert::chunk_record).collect();
        let cache_bytes: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
        let disk_bytes =
            platform::free_disk_bytes(data_folder.home()).unwrap_or(0).saturating_add(cache_bytes);
        let settings = settings::load(&store, disk_bytes).await;
        let cache_refs = cache_refs.into_iter().filter_map(convert::cache_ref).collect();
        let cache = CacheOptions {
            folder: data_folder.prompt_cache(),
            old_folders: data_folder.old_prompt_caches(),
            disk_budget_bytes: settings.cache_budget_bytes,
            memory_budget_bytes: settings.cache_ram_budget_bytes,
            chunks,
            refs: cache_refs,
            cleanup_lock,
        };
        // Without the rows every file would be a leftover, and what is pinned could go.
        let cache = cache_problem.is_none().then_some(cache);
        let (engine, cache_events) =
            Engine::start(EngineOptions { cache, ..EngineOptions::default() });
        let (moved, moves) = tokio::sync::mpsc::unbounded_channel();
        let cache_rows = tokio::spawn(rows::keep(store.clone(), cache_events, moved));

        let app = Arc::new(App {
            model_folders,
            data_folder,
            store,
            private: OnceCell::new(),
            engine,
            cache_problem,
            recovery_notice: Mutex::new(recovery_notice),
            answers: RunningAnswers::default(),
            imports: Imports::default(),
            turns: tokio::sync::Mutex::default(),
            naming: tokio::sync::Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            settings: Mutex::new(settings),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            tasks: TaskTracker::new(),
            cache_rows: Mutex::new(Some(cache_rows)),
            runtime: tokio::runtime::Handle::current(),
            lock: Mutex::new(Some(lock)),
        });
        app.spawn(status::emit(app.clone()));
        {
            let app = app.clone();
            app.clone().spawn(async move { follow::release_purged(&app).await });
        }
        app.spawn(follow::emit_changes(app.clone(), moves));
        app.spawn(follow::follow_other_programs(app.clone()));
        if autoload {
            let app = app.clone();
            app.clone().spawn(async move {
                // What goes wrong is in the status; that there is no model yet is nothing wrong.
                let _ = models::ensure_loaded(app).await;
            });
        }
        Ok(app)
    }

    /// Runs a command. It runs to its end even if the caller stops waiting.
    ///
    /// `Subscribe` is answered with `Done` and nothing else: a shell that is asked for it calls
    /// [`App::subscribe`] first and sends the events after the reply.
    pub async fn call(self: &Arc<Self>, command: Command) -> Result<Reply, Failure> {
        if self.closing.is_cancelled() {
            return Err(Failure::new(FailureCode::Engine, "Cairn is closing."));
        }
        let app = self.clone();
        match self.spawn(async move { commands::run(&app, command).await }).await {
            Ok(result) => result,
            Err(fault) => Err(Failure::new(
                FailureCode::Engine,
                format!("A fault in Cairn stopped this command: {fault}"),
            )),
        }
    }

    /// Stops the answers and saves them, files the prompt caches, and closes the database, within
    /// two seconds. Whatever has not come to its end by then is put right when the folder is opened
    /// next. Closing again does nothing.
    pub async fn close(&self) -> Closed {
        if self.closing.is_cancelled() {
            return Closed::Completely;
        }
        self.closing.cancel();
        let mut closed = Closed::EngineBusy;
        let close = async {
            let engine_stops = async {
                for running in self.answers.all() {
                    running.stop.cancel();
                }
                for running in self.answers.all() {
                    running.ended.cancelled().await;
                }
                deletion::purge_all(self).await;
                // Ends a load between two tensors, and writes what is queued.
                self.engine.shutdown().await;
                closed = Closed::Completely;
                let cache_rows =
                    self.cache_rows.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(cache_rows) = cache_rows {
                    // It ends with the engine; if it died, there is nothing left to wait for.
                    let _ = cache_rows.await;
                }
            };
            if tokio::time::timeout(ENGINE_LIMIT, engine_stops).await.is_err() {
                tracing::warn!("the engine was not done when Cairn closed");
            }
            if let Err(error) = self.store.close().await {
                tracing::warn!("{error}");
            }
        };
        if tokio::time::timeout(CLOSING_LIMIT, close).await.is_err() {
            tracing::warn!("the database was still busy when Cairn closed");
        }
        // From here on another process may open the folder.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        closed
    }
}

/// Removes what earlier processes left behind. Called with the data folder's lock, which says that
/// no other process is making any of it.
async fn remove_leftovers(
    data_folder: &DataFolder,
    model_folders: &ModelFolders,
    _lock: &FolderLock,
) {
    let (data_folder, model_folders) = (data_folder.clone(), model_folders.clone());
    let removing = tokio::task::spawn_blocking(move || {
        transfers::remove_leftovers(&data_folder);
        model_folders.remove_leftovers();
    });
    // What stays is removed at the next start.
    let _ = removing.await;
}

/// The lock that makes this process the only one with the data folder. The system gives it back
/// however the process ends.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that is just being started holds a copy
        // of it until it runs its program.
        let _ = self.0.unlock();
    }
}

fn lock(data_folder: &DataFolder) -> Result<FolderLock, OpenError> {
    let path = data_folder.lock();
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| not_writable(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(FolderLock(file)),
        Err(TryLockError::WouldBlock) => {
            Err(OpenError::AlreadyRunning { folder: data_folder.home().to_owned() })
        }
        Err(TryLockError::Error(error)) => Err(not_writable(&path, error)),
    }
}

/// A lock that says that no other program is adding files to the prompt cache; none while one is.
fn cleanup_lock(data_folder: &DataFolder) -> Option<File> {
    let lock =
        File::options().create(true).append(true).open(data_folder.prompt_cache_lock()).ok()?;
    lock.try_lock().is_ok().then_some(lock)
}

fn not_writable(path: &Path, source: io::Error) -> OpenError {
    OpenError::NotWritable { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_given_back_is_free_while_a_child_still_has_a_copy_of_the_file() {
        let home = tempfile::tempdir().expect("a folder");
        let data_folder = DataFolder::new(home.path());
        let held = lock(&data_folder).expect("is free");
        let copy = held.0.try_clone().expect("a copy");
        assert!(matches!(lock(&data_folder), Err(OpenError::AlreadyRunning { .. })));
        drop(held);
        assert!(lock(&data_folder).is_ok());
        drop(copy);
    }
}
