//! [`App`]: the state that all commands and background tasks share, and its accessors.
//! `lifecycle.rs` opens it, runs commands on it and closes it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_engine::{Engine, KvCacheOptions, LoadedModelStatus, SnapKv, Speculation};
use cairn_hub::{CacheVariables, HubOptions, ModelFolders};
use cairn_store::{Store, StoreError};
use tokio::sync::{OnceCell, broadcast};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::state::Api;
use crate::cache::previews::Imports;
use crate::cache::saved;
use crate::chat::running::RunningAnswers;
use crate::chat::running_reads::RunningReads;
use crate::chat::title_queue::TitleQueue;
use crate::documents::readings::Readings;
use crate::jobs::running_jobs::RunningJobs;
use crate::lifecycle::{Closed, FolderLock};
use crate::models::catalog::Catalog;
use crate::models::download_queue::ModelDownloads;
use crate::models::hub_account::HubAccount;
use crate::models::measurements::Measurements;
use crate::models::of_chats;
use crate::models::removed_revisions::RemovedRevisions;
use crate::models::running_import::RunningImport;
use crate::monitor::recent::Monitor;
use crate::settings::{AppSettings, Settings};
use crate::wire::{Conversation, Event, Failure, NoticeKind, NoticeLevel};
use crate::{DataFolder, OpenError, convert};

/// How long closing may take: a system that shuts down does not wait much longer.
const CLOSING_LIMIT: Duration = Duration::from_millis(1900);

/// How to open the app.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder.
    pub data_folder: DataFolder,
    /// The variables that locate the cache of downloaded models.
    pub hub_variables: CacheVariables,
    /// The hub that models are downloaded from; none: nothing is downloaded.
    pub hub: Option<HubOptions>,
    /// Whether the hub's access token is kept in the system's keychain.
    pub uses_keychain: bool,
    /// The program that opens the files of a new model for the first time, with the arguments of
    /// [`crate::run_child_if_asked`]; none: models are not checked before they are loaded.
    pub check_program: Option<PathBuf>,
    /// How long the engine has computed nothing before what rounding costs a model is measured.
    pub measures_after: Duration,
    /// Whether to load the default model at once, in the background.
    pub autoload: bool,
    /// How long [`App::close`] may take; none: as long as it needs.
    pub closing_limit: Option<Duration>,
    /// The most bytes of models and answers together; none: what the device's memory leaves.
    pub memory_limit_bytes: Option<u64>,
    /// What proposes tokens for every answer; none: what each model's settings say.
    pub speculation: Option<ForcedSpeculation>,
    /// What every answer keeps of a long prompt, whatever a model's settings say; none: what they say.
    pub snapkv: Option<SnapKv>,
    /// Whether saved context is coded, without loss, to take less of the disk, whatever the settings
    /// say.
    pub compresses_cache: bool,
}

/// What proposes tokens for every answer, whatever the settings say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForcedSpeculation {
    /// Nothing does.
    Off,
    /// As [`Speculation::Lookup`].
    Lookup {
        /// At least 1.
        num_tokens: usize,
    },
    /// As [`Speculation::Mtp`]; nothing for a model without a head.
    Mtp {
        /// At least 1.
        num_tokens: usize,
    },
    /// The draft model of all models, see [`App::check_forced_draft`]; nothing for one that cannot use it.
    /// All of a long prompt is kept.
    Draft {
        /// Its name.
        model: String,
        /// At least 1.
        num_tokens: usize,
    },
    /// As [`Speculation::Auto`].
    Auto {
        /// The draft model of all models, if there is one.
        draft_model: Option<String>,
    },
}

impl ForcedSpeculation {
    /// The draft model of all models.
    pub fn draft_model(&self) -> Option<&str> {
        match self {
            ForcedSpeculation::Draft { model, .. } => Some(model),
            ForcedSpeculation::Auto { draft_model } => draft_model.as_deref(),
            ForcedSpeculation::Off
            | ForcedSpeculation::Lookup { .. }
            | ForcedSpeculation::Mtp { .. } => None,
        }
    }

    /// What proposes for a model with or without a draft model and a head.
    pub fn speculation(&self, has_draft: bool, has_head: bool) -> Speculation {
        match *self {
            ForcedSpeculation::Lookup { num_tokens } => Speculation::Lookup { num_tokens },
            ForcedSpeculation::Mtp { num_tokens } if has_head => Speculation::Mtp { num_tokens },
            ForcedSpeculation::Draft { num_tokens, .. } if has_draft => {
                Speculation::Draft { num_tokens }
            }
            ForcedSpeculation::Auto { .. } => Speculation::Auto,
            ForcedSpeculation::Off
            | ForcedSpeculation::Mtp { .. }
            | ForcedSpeculation::Draft { .. } => Speculation::Off,
        }
    }
}

impl Options {
    /// A data folder without anything beside it: no hub, no keychain, no shared cache.
    pub fn new(data_folder: DataFolder) -> Options {
        Options {
            data_folder,
            hub_variables: CacheVariables::default(),
            hub: None,
            uses_keychain: false,
            check_program: None,
            measures_after: Duration::from_secs(5),
            autoload: false,
            closing_limit: None,
            memory_limit_bytes: None,
            speculation: None,
            snapkv: None,
            compresses_cache: false,
        }
    }

    /// The options that the environment sets, with a model loaded at once.
    pub fn from_environment() -> Result<Options, OpenError> {
        // A hub that cannot be used is no reason not to open: its commands say what is wrong.
        let hub = HubOptions::from_lookup(std::env::var_os)
            .inspect_err(|error| tracing::warn!("models cannot be downloaded: {error}"));
        Ok(Options {
            hub_variables: CacheVariables::from_lookup(std::env::var_os),
            hub: hub.ok(),
            uses_keychain: true,
            check_program: std::env::current_exe().ok(),
            autoload: true,
            closing_limit: Some(CLOSING_LIMIT),
            ..Options::new(DataFolder::from_environment()?)
        })
    }
}

/// The open app. Share it behind its `Arc`; every method may be called from any task.
///
/// - It owns the data folder (by a lock), the store, the engine, the settings and the running
///   answers.
/// - A command that has started continues if its caller goes away.
/// - What a reply or an event reports as saved is on the disk.
#[derive(Debug)]
pub struct App {
    pub(crate) data_folder: DataFolder,
    pub(crate) model_folders: ModelFolders,
    pub(crate) catalog: Catalog,
    pub(crate) hub: HubAccount,
    pub(crate) downloads: ModelDownloads,
    pub(crate) removed_revisions: RemovedRevisions,
    pub(crate) importing: RunningImport,
    pub(crate) measurements: Measurements,
    pub(crate) store: Arc<Store>,
    /// The in-memory database of private conversations; opened with the first of them.
    pub(crate) private: OnceCell<Arc<Store>>,
    pub(crate) engine: Engine,
    /// The reason why this run stores no prompt caches, if any.
    pub(crate) cache_problem: Option<String>,
    /// How a damaged database was recovered. The first interface that asks for the state gets it.
    pub(crate) recovery_notice: Mutex<Option<Event>>,
    pub(crate) answers: RunningAnswers,
    pub(crate) reads: RunningReads,
    pub(crate) titles: TitleQueue,
    pub(crate) readings: Readings,
    pub(crate) imports: Imports,
    pub(crate) jobs: RunningJobs,
    /// Locked while a turn begins or a conversation is deleted, so that neither runs in the middle of
    /// the other.
    pub(crate) turns: tokio::sync::Mutex<()>,
    /// Locked while a new starting point has a reference but no row yet: in that state it looks like
    /// one that another program has deleted, and `cache/follow.rs` would release it.
    pub(crate) naming: tokio::sync::Mutex<()>,
    /// Locked while a model is chosen and loaded.
    pub(crate) loading: tokio::sync::Mutex<()>,
    /// Cancelled when the app closes.
    pub(crate) closing: CancellationToken,
    pub(crate) settings: AppSettings,
    pub(crate) api: Api,
    pub(crate) monitor: Monitor,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) tasks: TaskTracker,
    pub(crate) cache_rows: Mutex<Option<JoinHandle<()>>>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// How far closing came; none before it began. Locked while it runs.
    pub(crate) closed: tokio::sync::Mutex<Option<Closed>>,
    pub(crate) closing_limit: Option<Duration>,
    /// See [`Options::speculation`].
    pub(crate) forced_speculation: Option<ForcedSpeculation>,
    /// See [`Options::snapkv`].
    pub(crate) forced_snapkv: Option<SnapKv>,
    /// See [`Options::compresses_cache`].
    pub(crate) forces_compression: bool,
    pub(crate) lock: Mutex<Option<FolderLock>>,
}

impl App {
    /// Every event from now on. A subscriber that is too slow gets `Lagged` and has missed some:
    /// its shell then sends `Reply::Done` once more, and the interface asks for everything again,
    /// as after any new subscription. `Closed` never comes while the app lives.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// The data folder.
    pub fn data_folder(&self) -> &DataFolder {
        &self.data_folder
    }

    /// Runs work in a task that continues if the caller stops waiting for it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tasks.spawn_on(work, &self.runtime)
    }

    /// Runs blocking work on a thread for such work; none if it panicked.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.runtime.spawn_blocking(work).await.ok()
    }

    /// Waits this long, or until the app closes; whether it is still open.
    pub(crate) async fn is_open_after(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.closing.cancelled() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Sends an event to all subscribers, if there are any.
    pub(crate) fn emit(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// Sends a sentence that says what did not work although nobody waits for it.
    pub(crate) fn emit_warning(&self, text: String, kind: NoticeKind) {
        self.emit_notice(NoticeLevel::Warning, text, kind);
    }

    pub(crate) fn emit_notice(&self, level: NoticeLevel, text: String, kind: NoticeKind) {
        self.emit(Event::Notice { level, text, kind: Some(Box::new(kind)) });
    }

    /// Sends why something failed for which nobody waits.
    pub(crate) fn emit_failure(&self, why: Failure) {
        self.emit_warning(why.message.clone(), NoticeKind::Failed { why });
    }

    /// Sends a conversation's row as it is now. Fails if it is gone or cannot be read.
    pub(crate) async fn refresh_conversation(&self, id: &str) -> Result<(), StoreError> {
        let row = self.store_of(id).await.listed_conversation(id).await?;
        let conversation = self.described(row).await;
        self.emit(Event::Conversation { conversation });
        Ok(())
    }

    /// Sends a conversation's row after a change, unless it is gone or cannot be read: the change
    /// itself has succeeded.
    pub(crate) async fn emit_conversation(&self, id: &str) {
        if let Err(error) = self.refresh_conversation(id).await {
            tracing::debug!(%error, "a changed conversation is not sent");
        }
    }

    /// A conversation's row with its saved context.
    pub(crate) async fn described(&self, row: cairn_store::Conversation) -> Conversation {
        let cache = saved::of_conversation(&self.engine, &self.store, &row).await;
        let model = of_chats::of_row(self, &row).await;
        let (is_streaming, is_private) =
            (self.answers.is_streaming(&row.id), self.is_private(&row.id).await);
        Conversation { is_private, ..convert::conversation(row, model, is_streaming, cache) }
    }

    /// The store that has a conversation's rows: a private one is only in memory.
    pub(crate) async fn store_of(&self, conversation_id: &str) -> &Arc<Store> {
        match self.private.get() {
            Some(private) if self.is_private(conversation_id).await => private,
            _ => &self.store,
        }
    }

    /// Whether a conversation exists only in memory.
    pub(crate) async fn is_private(&self, conversation_id: &str) -> bool {
        match self.private.get() {
            Some(private) => {
                private.conversation(conversation_id).await.is_ok_and(|row| row.is_some())
            }
            None => false,
        }
    }

    /// How keys and values are kept for an answer of this model with these settings, and what proposes
    /// its tokens.
    pub(crate) fn decoding(
        &self,
        settings: &Settings,
        model: Option<&LoadedModelStatus>,
    ) -> (KvCacheOptions, Speculation) {
        let speculation = self.speculation(settings, model);
        let mut kv_cache = match self.forced_snapkv {
            // Quantized keys and values are all kept, so the two exclude each other.
            Some(snapkv) => KvCacheOptions { snapkv: Some(snapkv), ..KvCacheOptions::default() },
            None => convert::kv_cache(settings, model.and_then(|model| model.kv_group_size)),
        };
        if matches!(speculation, Speculation::Draft { .. }) {
            // It needs all of a long prompt. What the program was started with counts before the
            // settings, where the two cannot be set together.
            kv_cache.snapkv = None;
        }
        (kv_cache, speculation)
    }

    /// Lets the engine write saved context as these settings say.
    pub(crate) fn follow_compression(&self, settings: &Settings) {
        let coding = convert::file_coding(self.forces_compression || settings.compresses_cache);
        if let Some(cache) = self.engine.cache() {
            cache.set_file_coding(coding);
        }
    }

    /// What proposes tokens for an answer of this model with these settings. A draft model that is set for
    /// it does so where that pays.
    pub(crate) fn speculation(
        &self,
        settings: &Settings,
        model: Option<&LoadedModelStatus>,
    ) -> Speculation {
        let has_draft = model.is_some_and(|model| model.draft.is_some());
        let has_head = model.is_some_and(|model| model.has_mtp_head);
        match &self.forced_speculation {
            Some(forced) => forced.speculation(has_draft, has_head),
            None if has_draft => Speculation::Auto,
            None => convert::speculation(settings),
        }
    }

    /// The name of the draft model of a model with these settings; empty: none.
    pub(crate) fn draft_model(&self, settings: &Settings) -> String {
        match &self.forced_speculation {
            Some(forced) => forced.draft_model().unwrap_or_default().to_owned(),
            None => settings.draft_model.clone(),
        }
    }

    /// The settings that hold for all chats.
    pub(crate) fn settings(&self) -> Settings {
        self.settings.current()
    }
}
