//! [`App`]: the state that all commands and background tasks share, and its accessors.
//! `lifecycle.rs` opens it, runs commands on it and closes it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_engine::{
    Engine, KvCacheOptions, LoadedModelStatus, SnapKv, Speculation, WorkDone, WorkLog,
};
use cairn_hub::ModelFolders;
use cairn_store::Store;
use tokio::sync::{OnceCell, broadcast};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::state::Api;
use crate::cache::previews::Imports;
use crate::chat::running::RunningAnswers;
use crate::chat::running_reads::RunningReads;
use crate::chat::title_queue::TitleQueue;
use crate::consent::RemovedFolders;
use crate::convert;
use crate::crashes::record::{RunningStep, Step, StepKind};
use crate::crashes::state::Crashes;
use crate::data_folder::DataFolder;
use crate::documents::readings::Readings;
use crate::folder_lock::FolderLock;
use crate::jobs::running_jobs::RunningJobs;
use crate::models::catalog::Catalog;
use crate::models::download_queue::ModelDownloads;
use crate::models::hub_account::HubAccount;
use crate::models::measurements::Measurements;
use crate::models::removed_revisions::RemovedRevisions;
use crate::models::running_import::RunningImport;
use crate::models::thinking::KnownThinking;
use crate::monitor::recent::Monitor;
use crate::options::{
    AnswerDefaults, ForcedKvQuantization, ForcedSpeculation, SavedContextOptions,
};
use crate::settings::{AppSettings, Settings};
use crate::wire::{Event, Failure, NoticeKind, NoticeLevel};

/// How far [`App::close`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The engine has ended, and what it changed is in the database; the process may end as it
    /// likes.
    Completely,
    /// The engine still computes, or writes. The process must end with [`crate::exit_now`], because
    /// MLX's exit handlers abort the process while MLX is busy.
    EngineBusy,
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
    pub(crate) removed_folders: RemovedFolders,
    pub(crate) importing: RunningImport,
    pub(crate) measurements: Measurements,
    pub(crate) known_thinking: Arc<KnownThinking>,
    pub(crate) store: Arc<Store>,
    /// The in-memory database of private conversations; opened with the first of them.
    pub(crate) private: OnceCell<Arc<Store>>,
    pub(crate) engine: Engine,
    /// The reason why this run stores no prompt caches, if any.
    pub(crate) cache_problem: Option<String>,
    /// The notice about a damaged database, for the first interface that asks for the state.
    pub(crate) recovery_notice: Mutex<Option<Event>>,
    /// The newest notice about a database that was taken away, for the next one that asks.
    pub(crate) file_notice: Mutex<Option<Event>>,
    pub(crate) crashes: Crashes,
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
    /// The work of requests that have ended, until it is stored.
    pub(crate) work: WorkLog,
    /// Locked while that work is stored.
    pub(crate) recording: tokio::sync::Mutex<()>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) tasks: TaskTracker,
    pub(crate) cache_rows: Mutex<Option<JoinHandle<()>>>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// How far closing came; none before it began. Locked while it runs.
    pub(crate) closed: tokio::sync::Mutex<Option<Closed>>,
    pub(crate) closing_limit: Option<Duration>,
    /// See [`crate::Options::speculation`].
    pub(crate) forced_speculation: Option<ForcedSpeculation>,
    /// See [`crate::Options::snapkv`].
    pub(crate) forced_snapkv: Option<SnapKv>,
    /// See [`crate::Options::kv_quantization`].
    pub(crate) forced_kv_quantization: Option<ForcedKvQuantization>,
    /// See [`crate::Options::answer_defaults`].
    pub(crate) answer_defaults: AnswerDefaults,
    /// See [`crate::Options::saved_context`].
    pub(crate) saved_context: SavedContextOptions,
    /// See [`crate::Options::compresses_cache`].
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

    /// The engine's work since the app was opened.
    pub fn work_done(&self) -> WorkDone {
        self.engine.status().borrow().work
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

    /// Waits until the app may load and resume by itself, which is at once unless the start is
    /// quiet. False if the app closes first.
    pub(crate) async fn is_open_and_not_quiet(&self) -> bool {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => false,
            () = self.crashes.not_quiet() => true,
        }
    }

    /// Notes a step of a chat in the crash record until the result is dropped.
    pub(crate) async fn begin_step(
        &self,
        kind: StepKind,
        conversation_id: &str,
        model: Option<&str>,
    ) -> RunningStep {
        // Nothing of a private chat is written anywhere.
        let is_private = self.is_private(conversation_id).await;
        let conversation_id = Some(conversation_id.to_owned()).filter(|_| !is_private);
        self.crashes.begin(Step { conversation_id, ..Step::new(kind, model.map(str::to_owned)) })
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

    /// The store that has a conversation's rows: a private one is only in memory.
    pub(crate) async fn store_of(&self, conversation_id: &str) -> &Arc<Store> {
        match self.private.get() {
            Some(private) if self.is_private(conversation_id).await => private,
            _ => &self.store,
        }
    }

    /// Whether the conversations of a store exist only in memory.
    pub(crate) fn is_private_store(&self, store: &Arc<Store>) -> bool {
        !Arc::ptr_eq(store, &self.store)
    }

    /// Whether a conversation exists only in memory. A failure counts as yes, so that nothing of a
    /// private conversation reaches the disk.
    pub(crate) async fn is_private(&self, conversation_id: &str) -> bool {
        match self.private.get() {
            Some(private) => !matches!(private.conversation(conversation_id).await, Ok(None)),
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
        let group_size = model.and_then(|model| model.kv_group_size);
        let mut kv_cache = match (self.forced_snapkv, self.forced_kv_quantization) {
            // Quantized keys and values are all kept, so the two exclude each other.
            (snapkv @ Some(_), _) => KvCacheOptions { snapkv, ..KvCacheOptions::default() },
            (None, Some(forced)) => {
                let quantization = forced.for_model(group_size);
                KvCacheOptions { quantization, ..KvCacheOptions::default() }
            }
            (None, None) => convert::kv_cache(settings, group_size),
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

    /// Gives saved context the room that these settings say.
    pub(crate) fn follow_cache_budgets(&self, settings: &Settings) {
        let (disk_bytes, memory_bytes) = self.saved_context.budgets(settings);
        self.engine.set_cache_budgets(disk_bytes, memory_bytes);
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
