//! The app: opening it, asking it, listening to it, closing it.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_engine::{CacheOptions, Engine, EngineOptions};
use cairn_hub::{CacheVariables, ModelFolders};
use cairn_store::Store;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::Answers;
use crate::wire::{Command, Event, Failure, FailureCode, Reply, Settings};
use crate::{OpenError, Places, cache_rows, commands, convert, models, platform, settings, status};

/// Events that a subscriber may be behind before it misses some: half a minute of one answer.
const EVENT_CAPACITY: usize = 1024;
/// What closing may take; then the rest is left to the next start, which tidies up.
const CLOSING_LIMIT: Duration = Duration::from_millis(1900);
/// Of that, what the answers and the prompt cache may take before the database is closed in any case.
const ENGINE_LIMIT: Duration = Duration::from_millis(1500);

/// How to open the app.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder.
    pub places: Places,
    /// Where the cache of downloaded models lies.
    pub hub_variables: CacheVariables,
    /// Whether to load the default model at once, in the background.
    pub autoload: bool,
}

impl Options {
    /// As the environment says, with a model loaded at once.
    pub fn from_environment() -> Result<Options, OpenError> {
        let hub_variables = CacheVariables::from_lookup(std::env::var_os);
        Ok(Options { places: Places::from_environment()?, hub_variables, autoload: true })
    }
}

/// The open app. Share it behind its `Arc`; every method may be called from any task.
///
/// - It owns the data folder (by a lock), the store, the engine, the settings and the running answers.
/// - A command that has begun goes on when its caller goes away.
/// - What a reply or an event says was saved is on the disk.
#[derive(Debug)]
pub struct App {
    pub(crate) places: Places,
    pub(crate) model_folders: ModelFolders,
    pub(crate) store: Arc<Store>,
    pub(crate) engine: Engine,
    pub(crate) answers: Answers,
    /// Held while a turn begins or a conversation is deleted, so that neither meets the other half done.
    pub(crate) turns: tokio::sync::Mutex<()>,
    /// Held while a model is chosen and loaded.
    pub(crate) loading: tokio::sync::Mutex<()>,
    /// Cancelled when the app closes.
    pub(crate) closing: CancellationToken,
    settings: Mutex<Settings>,
    events: broadcast::Sender<Event>,
    tasks: TaskTracker,
    cache_rows: Mutex<Option<JoinHandle<()>>>,
    runtime: tokio::runtime::Handle,
    lock: Mutex<Option<File>>,
}

impl App {
    /// Opens the data folder, making what is missing, and starts the engine. Must be called in a Tokio runtime, which the app then uses.
    pub async fn open(options: Options) -> Result<Arc<App>, OpenError> {
        let Options { places, hub_variables, autoload } = options;
        places.create()?;
        let lock = lock(&places)?;
        let store = Arc::new(Store::open(&places.database()).await?);

        let chunks = store.chunks().await.unwrap_or_else(|error| {
            tracing::warn!("the prompt cache starts empty: {error}");
            Vec::new()
        });
        let chunks: Vec<_> = chunks.into_iter().filter_map(convert::chunk_record).collect();
        let cache_bytes: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
        let disk_bytes = platform::free_disk_bytes(places.home()).unwrap_or(0).saturating_add(cache_bytes);
        let settings = settings::load(&store, disk_bytes).await;
        let cache = CacheOptions { folder: places.prompt_cache(), budget_bytes: settings.cache_budget_bytes, chunks };
        let (engine, cache_events) = Engine::start(EngineOptions { cache: Some(cache), keep_quantized: false });
        let cache_rows = tokio::spawn(cache_rows::keep(store.clone(), cache_events));

        let app = Arc::new(App {
            model_folders: ModelFolders::new(places.home(), &hub_variables),
            places,
            store,
            engine,
            answers: Answers::default(),
            turns: tokio::sync::Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            closing: CancellationToken::new(),
            settings: Mutex::new(settings),
            events: broadcast::Sender::new(EVENT_CAPACITY),
            tasks: TaskTracker::new(),
            cache_rows: Mutex::new(Some(cache_rows)),
            runtime: tokio::runtime::Handle::current(),
            lock: Mutex::new(Some(lock)),
        });
        app.spawn(status::tell(app.clone()));
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
    /// `Subscribe` is answered with `Done` and nothing else: a shell that is asked for it calls [`App::subscribe`] first and sends the
    /// events after the reply.
    pub async fn call(self: &Arc<Self>, command: Command) -> Result<Reply, Failure> {
        if self.closing.is_cancelled() {
            return Err(Failure::new(FailureCode::Engine, "Cairn is closing."));
        }
        let app = self.clone();
        match self.spawn(async move { commands::run(&app, command).await }).await {
            Ok(result) => result,
            Err(fault) => Err(Failure::new(FailureCode::Engine, format!("A fault in Cairn stopped this command: {fault}"))),
        }
    }

    /// Every event from now on. A subscriber that is too slow gets `Lagged` and has missed some: its shell sends `Reply::Done` once more,
    /// upon which an interface asks for everything again, as after any new subscription. `Closed` never comes while the app lives.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// The data folder's names.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Stops the answers and saves them, files the prompt caches, and closes the database, within two seconds. Whatever has not come to
    /// its end by then is put right when the folder is opened next. Closing again does nothing.
    pub async fn close(&self) {
        if self.closing.is_cancelled() {
            return;
        }
        self.closing.cancel();
        let close = async {
            let engine_stops = async {
                for running in self.answers.all() {
                    running.stop.cancel();
                }
                for running in self.answers.all() {
                    running.ended.cancelled().await;
                }
                self.engine.flush_cache().await;
                self.engine.shutdown().await;
                let cache_rows = self.cache_rows.lock().unwrap_or_else(PoisonError::into_inner).take();
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
    }

    /// Runs work that the caller need not wait for.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// Runs work that blocks; none if it panicked.
    pub(crate) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.runtime.spawn_blocking(work).await.ok()
    }

    /// Sends an event to whoever listens; nobody may.
    pub(crate) fn tell(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends a conversation's row as it is now, unless it is gone or cannot be read.
    pub(crate) async fn tell_conversation(&self, id: &str) {
        if let Ok(Some(row)) = self.store.conversation(id).await
            && row.deleted_at_ms.is_none()
        {
            let conversation = convert::conversation(row, self.answers.is_streaming(id));
            self.tell(Event::Conversation { conversation });
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings_guard().clone()
    }

    pub(crate) fn replace_settings(&self, settings: Settings) {
        *self.settings_guard() = settings;
    }

    fn settings_guard(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the lock that makes this process the only one with the data folder. The system gives it back however the process ends.
fn lock(places: &Places) -> Result<File, OpenError> {
    let path = places.lock();
    let file = File::options().create(true).append(true).open(&path).map_err(|error| not_writable(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::AlreadyRunning { folder: places.home().to_owned() }),
        Err(TryLockError::Error(error)) => Err(not_writable(&path, error)),
    }
}

fn not_writable(path: &Path, source: io::Error) -> OpenError {
    OpenError::NotWritable { path: path.to_owned(), source }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
