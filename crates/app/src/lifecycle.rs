//! Opens the app, runs commands on it, and closes it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_engine::{CacheOptions, Engine, EngineOptions, WorkLog, default_memory_limit_bytes};
use cairn_hub::ModelFolders;
use cairn_prompt_cache::{CacheChange, ChunkRecord, RefName};
use cairn_store::{Recovery, Store};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OnceCell, broadcast};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::state::Api;
use crate::app::{App, Closed};
use crate::cache::previews::Imports;
use crate::cache::{follow, rows, transfers};
use crate::chat::deletion;
use crate::chat::running::RunningAnswers;
use crate::chat::running_reads::RunningReads;
use crate::chat::title_queue::TitleQueue;
use crate::clock::now_ms;
use crate::consent::RemovedFolders;
use crate::crashes::state::{Crashes, Start};
use crate::data_folder::DataFolder;
use crate::documents::readings::Readings;
use crate::error::OpenError;
use crate::folder_lock::{FolderLock, cleanup_lock};
use crate::jobs::running_jobs::RunningJobs;
use crate::models::catalog::Catalog;
use crate::models::download_queue::ModelDownloads;
use crate::models::due_measurements::DueMeasurement;
use crate::models::hub_account::HubAccount;
use crate::models::hub_options;
use crate::models::measurements::Measurements;
use crate::models::measuring;
use crate::models::removed_revisions::RemovedRevisions;
use crate::models::running_import::RunningImport;
use crate::models::token_store::TokenStore;
use crate::monitor::recent::Monitor;
use crate::monitor::{recording, writing};
use crate::options::Options;
use crate::settings::{AppSettings, Settings};
use crate::wire::{Command, Failure, FailureCode, FailureKind, Reply};
use crate::{commands, database_file, finding, jobs, models, platform, recovered, status};

/// How many events a subscriber may be behind before it misses some: half a minute of one answer.
const EVENT_CAPACITY: usize = 1024;
/// The part of the time for closing that the answers and the prompt cache get; then the database is
/// closed in any case.
const ENGINE_PART: f64 = 0.8;

impl App {
    /// Opens the data folder, creating what is missing, and starts the engine. Must be called in a
    /// Tokio runtime, which the app then uses.
    pub async fn open(options: Options) -> Result<Arc<App>, OpenError> {
        let lock = FolderLock::take(&options.data_folder)?;
        App::open_locked(lock, options).await
    }

    /// As [`App::open`], with the lock of the same data folder, which the caller has taken.
    pub async fn open_locked(lock: FolderLock, options: Options) -> Result<Arc<App>, OpenError> {
        let data_folder = options.data_folder.clone();
        // First: a start that dies is an unclean end too.
        let start = Start::begin(&data_folder);
        let model_folders = ModelFolders::new(data_folder.home(), &options.hub_variables);
        remove_leftovers(&data_folder, &model_folders, &lock).await;

        // Locked before the rows are read: a file that another program adds in between has no row,
        // and would be removed as a leftover.
        let cleanup_lock = cleanup_lock(&data_folder);
        let (store, recovery) = open_store(&data_folder).await?;
        let crashes = start.settle(&store).await;
        let engine = start_engine(&data_folder, &store, cleanup_lock, &options).await;
        let settings = engine.settings.current();
        let models = open_models(model_folders, &store, &settings, &options).await;

        let autoload = options.autoload;
        let (app, moves) =
            Parts { lock, store, recovery, crashes, engine, models }.into_app(options);
        // The engine's thread writes nothing before it is asked for something.
        app.follow_compression(&settings);
        let left_over = measuring::left_over(&app).await;
        jobs::running::pause_set_aside(&app).await;
        app.start_background_tasks(moves, left_over, autoload);
        Ok(app)
    }

    /// Starts the tasks that run until the app closes, and loads the default model if asked to.
    /// `moves` receives what [`follow::emit_changes`] expects, `left_over` is what is still to be
    /// measured.
    fn start_background_tasks(
        self: &Arc<Self>,
        moves: UnboundedReceiver<Option<RefName>>,
        left_over: Vec<DueMeasurement>,
        autoload: bool,
    ) {
        self.engine.set_pinned(self.settings.pinned_models());
        self.spawn(status::emit(self.clone(), platform::memory_pressure));
        self.spawn(writing::write_minutes(self.clone()));
        self.spawn(recording::record(self.clone()));
        self.spawn(follow::emit_changes(self.clone(), moves));
        self.spawn(follow::follow_other_programs(self.clone()));
        self.spawn(database_file::watch(self.clone()));
        self.spawn(models::downloads::follow(self.clone()));
        self.spawn(models::watching::follow_folders(self.clone()));
        let app = self.clone();
        self.spawn(async move { follow::release_purged(&app).await });
        self.spawn_unless_quiet(jobs::running::resume(self.clone()));
        self.spawn_unless_quiet(measuring::resume(self.clone(), left_over));
        self.spawn_unless_quiet(finding::index_older(self.clone()));
        self.spawn_unless_quiet(finding::index_documents(self.clone()));
        if autoload {
            // A failure is in the status; a missing model is none.
            let load = models::loading::load_at_start(self.clone());
            self.spawn_unless_quiet(async { drop(load.await) });
        }
    }

    /// Runs work that no one has asked for. A quiet start delays it until a person wants an
    /// ordinary one.
    fn spawn_unless_quiet(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let app = self.clone();
        self.spawn(async move {
            if app.is_open_and_not_quiet().await {
                work.await;
            }
        });
    }

    /// Runs a command. It runs to its end even if the caller stops waiting.
    ///
    /// `Subscribe` only replies `Done`: the shell that receives this command calls
    /// [`App::subscribe`] first, and sends the events after the reply.
    pub async fn call(self: &Arc<Self>, command: Command) -> Result<Reply, Failure> {
        if self.closing.is_cancelled() {
            return Err(Failure::new(FailureCode::Engine, "Cairn is closing.")
                .of_kind(FailureKind::Closing));
        }
        let app = self.clone();
        match self.spawn(async move { commands::run(&app, command).await }).await {
            Ok(result) => result,
            Err(fault) => {
                Err(Failure::fault(format!("A fault in Cairn stopped this command: {fault}")))
            }
        }
    }

    /// Stops the answers and saves them, writes the prompt caches to disk, and closes the database,
    /// within [`Options::closing_limit`]. What is not done by then is completed when the folder is opened next.
    /// Closing again returns how far the first close came.
    pub async fn close(&self) -> Closed {
        let mut closed = self.closed.lock().await;
        if let Some(closed) = *closed {
            return closed;
        }
        // It stays so if the caller stops waiting.
        *closed = Some(Closed::EngineBusy);
        self.closing.cancel();
        // This end is wanted, however long the rest takes and even if the process is killed
        // meanwhile.
        self.crashes.close();
        self.downloads.stop();
        let mut cache_rows = self.cache_rows.lock().unwrap_or_else(PoisonError::into_inner).take();
        let close = async {
            let stops = self.stop_engine(cache_rows.as_mut());
            match within(self.closing_limit.map(|limit| limit.mul_f64(ENGINE_PART)), stops).await {
                Some(()) => *closed = Some(Closed::Completely),
                None => tracing::warn!("the engine was not done when Cairn closed"),
            }
            self.crashes.forgive_used(&self.store).await;
            writing::write_last(self).await;
            recording::write_pending(self).await;
            if let Err(error) = self.store.close().await {
                tracing::warn!("{error}");
            }
        };
        if within(self.closing_limit, close).await.is_none() {
            tracing::warn!("the database was still busy when Cairn closed");
        }
        let closed = closed.unwrap_or(Closed::EngineBusy);
        self.unlock(closed, cache_rows);
        closed
    }

    /// Ends the answers and all that was to end with the app, then the engine.
    async fn stop_engine(&self, cache_rows: Option<&mut JoinHandle<()>>) {
        for running in self.answers.all() {
            running.interrupt();
        }
        for running in self.answers.all() {
            running.ended.cancelled().await;
        }
        deletion::purge_all(self).await;
        models::deletion::delete_all_hidden(self).await;
        // This stops a load between two tensors, and writes the queued chunks.
        self.engine.shutdown().await;
        // Only now no model is being loaded.
        models::revisions::remove_all(self).await;
        if let Some(cache_rows) = cache_rows {
            // The task ends with the engine. If it panicked, there is nothing to wait for.
            let _ = cache_rows.await;
        }
    }

    /// Lets another process open the folder: now, or when the engine no longer writes files, because
    /// it has ended or this process has.
    fn unlock(&self, closed: Closed, cache_rows: Option<JoinHandle<()>>) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        if closed == Closed::EngineBusy {
            self.runtime.spawn(async move {
                if let Some(cache_rows) = cache_rows {
                    let _ = cache_rows.await;
                }
                drop(lock);
            });
        }
    }
}

/// What is opened one after another before there is an app.
struct Parts {
    lock: FolderLock,
    store: Arc<Store>,
    recovery: Option<Recovery>,
    crashes: Crashes,
    engine: Started,
    models: Models,
}

impl Parts {
    /// The app, in which nothing runs yet but what writes the engine's changes to the database. The
    /// receiver is told which reference moved, once that is written.
    fn into_app(self, options: Options) -> (Arc<App>, UnboundedReceiver<Option<RefName>>) {
        let Parts { lock, store, recovery, crashes, engine, models } = self;
        let Started { engine, work, cache_events, cache_problem, settings } = engine;
        let Models { folders, catalog, hub, downloads } = models;
        let (moved, moves) = tokio::sync::mpsc::unbounded_channel();
        let cache_rows = tokio::spawn(rows::write_changes(store.clone(), cache_events, moved));
        let app = App {
            model_folders: folders,
            catalog,
            hub,
            downloads,
            removed_revisions: RemovedRevisions::default(),
            removed_folders: RemovedFolders::default(),
            importing: RunningImport::default(),
            measurements: Measurements::new(options.measures_after),
            known_thinking: Arc::default(),
            data_folder: options.data_folder,
            store,
            private: OnceCell::new(),
            engine,
            cache_problem,
            recovery_notice: Mutex::new(recovery.as_ref().map(recovered::notice)),
            file_notice: Mutex::default(),
            crashes,
            answers: RunningAnswers::default(),
            reads: RunningReads::default(),
            titles: TitleQueue::default(),
            readings: Readings::default(),
            imports: Imports::default(),
            jobs: RunningJobs::default(),
            turns: tokio::sync::Mutex::default(),
            naming: tokio::sync::Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            api: Api::new(&settings.current()),
            settings,
            monitor: Monitor::new(Instant::now(), now_ms()),
            work,
            recording: tokio::sync::Mutex::default(),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            tasks: TaskTracker::new(),
            cache_rows: Mutex::new(Some(cache_rows)),
            runtime: tokio::runtime::Handle::current(),
            closed: tokio::sync::Mutex::default(),
            closing_limit: options.closing_limit,
            forced_speculation: options.speculation,
            forced_snapkv: options.snapkv,
            forced_kv_quantization: options.kv_quantization,
            answer_defaults: options.answer_defaults,
            saved_context: options.saved_context,
            forces_compression: options.compresses_cache,
            lock: Mutex::new(Some(lock)),
        };
        (Arc::new(app), moves)
    }
}

/// Opens the database, and says how it was recovered if it was damaged.
async fn open_store(data_folder: &DataFolder) -> Result<(Arc<Store>, Option<Recovery>), OpenError> {
    let (store, recovery) = Store::open_or_recover(&data_folder.database()).await?;
    if let Some(recovery) = &recovery {
        tracing::error!("{}", recovered::sentences(recovery));
    }
    Ok((Arc::new(store), recovery))
}

/// The models on this machine, and where more come from.
struct Models {
    folders: ModelFolders,
    catalog: Catalog,
    hub: HubAccount,
    downloads: ModelDownloads,
}

/// Finds the models where the settings say, and what was known of them and of their downloads.
async fn open_models(
    folders: ModelFolders,
    store: &Arc<Store>,
    settings: &Settings,
    options: &Options,
) -> Models {
    folders.set_added(added_folders(store).await);
    folders.set_chosen_cache(hub_options::folder(settings));
    let tokens = TokenStore::new(options.data_folder.hub_token(), options.uses_keychain);
    let hub = HubAccount::load(options.hub.clone(), settings, tokens).await;
    let downloads = ModelDownloads::load(hub.hub(), store).await;
    let catalog = Catalog::load(store, options.check_program.clone()).await;
    Models { folders, catalog, hub, downloads }
}

/// The engine with the stored prompt caches, and the settings that it was started with.
struct Started {
    engine: Engine,
    work: WorkLog,
    cache_events: UnboundedReceiver<CacheChange>,
    cache_problem: Option<String>,
    settings: AppSettings,
}

/// Starts the engine with the prompt caches that the database lists. `cleanup_lock` was taken before
/// the rows are read.
async fn start_engine(
    data_folder: &DataFolder,
    store: &Store,
    cleanup_lock: Option<File>,
    options: &Options,
) -> Started {
    let records = tokio::try_join!(store.chunks(), store.cache_refs());
    let is_off = options.saved_context.is_off;
    let cache_problem = match &records {
        _ if is_off => Some("Cairn was started without saved context".to_owned()),
        Ok(_) => None,
        Err(problem) => {
            tracing::warn!("the stored prompt caches are not used: {problem}");
            Some(problem.to_string())
        }
    };
    let cache_bytes = records
        .as_ref()
        .map_or(0, |(chunks, _)| chunks.iter().map(ChunkRecord::num_file_bytes).sum());
    let free_bytes = platform::free_disk_bytes(data_folder.home()).unwrap_or(0);
    let settings = AppSettings::load(store, free_bytes.saturating_add(cache_bytes)).await;
    let (disk_budget_bytes, memory_budget_bytes) =
        options.saved_context.budgets(&settings.current());
    // Without the rows every file would look like a leftover, and pinned chunks could be evicted.
    let cache = records.ok().filter(|_| !is_off).map(|(chunks, refs)| CacheOptions {
        folder: data_folder.prompt_cache(),
        old_folders: data_folder.old_prompt_caches(),
        disk_budget_bytes,
        memory_budget_bytes,
        chunks,
        refs,
        cleanup_lock,
    });
    let work = WorkLog::default();
    let defaults = EngineOptions::default();
    let (engine, cache_events) = Engine::start(EngineOptions {
        cache,
        work: Some(work.clone()),
        memory_limit_bytes: options
            .memory_limit_bytes
            .or_else(|| Some(default_memory_limit_bytes())),
        completion_batch_size: options
            .completion_batch_size
            .unwrap_or(defaults.completion_batch_size),
        prefill_batch_size: options.prefill_batch_size.unwrap_or(defaults.prefill_batch_size),
        device_failure: options.device_failure.clone(),
        ..defaults
    });
    engine.set_wired_memory(settings.current().wires_memory);
    Started { engine, work, cache_events, cache_problem, settings }
}

/// The folders of models that were added. Without them their models are not listed; they stay.
async fn added_folders(store: &Store) -> Vec<PathBuf> {
    let added = store.model_folders().await.unwrap_or_else(|error| {
        tracing::warn!("the folders of models that were added are not known: {error}");
        Vec::new()
    });
    added.into_iter().map(PathBuf::from).collect()
}

/// Removes temporary files of earlier processes. The data folder's lock proves that no running
/// process uses them.
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
    // A file that could not be removed is removed at the next start.
    let _ = removing.await;
}

/// None if the work takes longer than the limit.
async fn within<T>(limit: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        None => Some(work.await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_close_that_gives_up_says_so_each_time_and_the_folder_stays_locked() {
        let home = tempfile::tempdir().expect("a folder");
        let data_folder = DataFolder::new(home.path());
        let closing_limit = Some(Duration::from_millis(500));
        let options = Options { closing_limit, ..Options::new(data_folder.clone()) };
        let app = App::open(options).await.expect("opens");
        // The engine ends at once, but the task that writes its changes does not.
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        *app.cache_rows.lock().expect("no panic") = Some(tokio::spawn(async { drop(ended.await) }));
        let at_once = tokio::join!(app.close(), app.close());
        assert_eq!(at_once, (Closed::EngineBusy, Closed::EngineBusy));
        assert_eq!(app.close().await, Closed::EngineBusy);
        assert!(matches!(FolderLock::take(&data_folder), Err(OpenError::AlreadyRunning { .. })));

        drop(end);
        let unlocked = async {
            while FolderLock::take(&data_folder).is_err() {
                tokio::task::yield_now().await;
            }
        };
        // Only a failing test waits so long.
        let waited = tokio::time::timeout(Duration::from_secs(60), unlocked).await;
        assert!(waited.is_ok(), "the folder stays locked");
    }
}
