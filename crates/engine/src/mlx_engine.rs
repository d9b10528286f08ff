//! One token for each of many conversations that begin with the same messages.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_chat::Message;
use cairn_lm::{LoadedModel, device};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, OnceCell, RwLock, RwLockReadGuard, oneshot};

use crate::classify::{
    Classification, ClassifyEvent, ClassifyRequest, ClassifyRow, LogitsProcessorFactory,
};
use crate::request::{ModelInfo, PromptInput};
use crate::{Engine, EngineError, EngineOptions};

/// What a [`MlxEngine`] starts with.
#[derive(Clone)]
pub struct MlxEngineOptions {
    /// The folder of the model, such as one into which an adapter was fused.
    pub fused_dir: PathBuf,
    /// Makes the logits processor that is applied behind every conversation.
    pub logits_processor_factory: Option<LogitsProcessorFactory>,
    /// The messages with which every conversation begins; they are read once.
    pub prefix_messages: Vec<Message>,
    /// The most conversations that share a pass.
    pub batch_size: usize,
    /// The name of the thread.
    pub worker_name: String,
    /// More variables for the chat template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
    /// Computes on quantized weights on a CPU device too.
    pub keep_quantized: bool,
}

impl MlxEngineOptions {
    /// The options for a model, without a prefix or a logits processor.
    pub fn new(fused_dir: impl Into<PathBuf>) -> Self {
        MlxEngineOptions {
            fused_dir: fused_dir.into(),
            logits_processor_factory: None,
            prefix_messages: Vec::new(),
            batch_size: ClassifyRequest::BATCH_SIZE,
            worker_name: "mlx".to_owned(),
            template_variables: Map::new(),
            keep_quantized: false,
        }
    }
}

/// An engine with one model, which answers each conversation with one token.
///
/// Its thread loads the model and reads the prefix as soon as it is made; [`MlxEngine::ensure_loaded`]
/// says whether that has worked. All methods may be called from any thread.
///
/// ```no_run
/// use cairn_engine::{Message, MlxEngine, MlxEngineOptions, Role};
///
/// # async fn run() -> Result<(), cairn_engine::EngineError> {
/// let say = |role, content: &str| Message { role, content: content.to_owned(), token_ids: None };
/// let system = say(Role::System, "Answer with yes or no: is the review friendly?");
/// let engine = MlxEngine::new(MlxEngineOptions {
///     prefix_messages: vec![system.clone()],
///     ..MlxEngineOptions::new("models/reviews-fused")
/// });
/// engine.ensure_loaded().await?;
/// let reviews = ["Lovely!", "Never again."];
/// let conversations = reviews.map(|review| vec![system.clone(), say(Role::User, review)]);
/// let answers = engine.generate(conversations.to_vec(), |count| println!("{count} more")).await?;
/// engine.close().await;
/// # Ok(())
/// # }
/// ```
pub struct MlxEngine {
    engine: Engine,
    options: MlxEngineOptions,
    starting: Mutex<Starting>,
    started: OnceCell<Result<(), Arc<EngineError>>>,
    /// Held by every call under way, so that closing waits for them.
    calls: RwLock<()>,
    is_closed: AtomicBool,
}

/// The answers to what a new engine has asked its thread for.
struct Starting {
    /// None once it has been received.
    load: Option<oneshot::Receiver<Result<ModelInfo, EngineError>>>,
    prefix: Classification,
}

impl MlxEngine {
    /// Starts a thread, which loads the model and reads the prefix.
    pub fn new(options: MlxEngineOptions) -> Self {
        let (engine, _) = Engine::start(EngineOptions {
            thread_name: options.worker_name.clone(),
            keep_quantized: options.keep_quantized,
            ..EngineOptions::default()
        });
        let name = options.fused_dir.to_string_lossy().into_owned();
        let load = engine.begin_load(&name, &options.fused_dir);
        let prefix = engine.classify(request(&options, Vec::new()));
        MlxEngine {
            engine,
            options,
            starting: Mutex::new(Starting { load: Some(load), prefix }),
            started: OnceCell::new(),
            calls: RwLock::new(()),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Waits until the model is loaded and the prefix read; fails as these did.
    pub async fn ensure_loaded(&self) -> Result<(), EngineError> {
        let started = self.started.get_or_init(|| async {
            // A call that is dropped here leaves the rest to the next one.
            self.starting.lock().await.wait().await.map_err(Arc::new)
        });
        started.await.clone().map_err(EngineError::NotStarted)
    }

    /// The token that follows each conversation, as text, in the order of the conversations. They are
    /// computed in batches, the shortest last message first; `on_progress` is called after each batch
    /// with the number of its conversations. Dropping the future cancels the work.
    ///
    /// Fails if a conversation does not begin with the prefix, or cannot be answered; the error names
    /// it.
    pub async fn generate(
        &self,
        message_lists: Vec<Vec<Message>>,
        mut on_progress: impl FnMut(usize),
    ) -> Result<Vec<String>, EngineError> {
        let _call = self.begin_call().await?;
        let mut texts = vec![String::new(); message_lists.len()];
        let row = |messages| ClassifyRow {
            prompt: PromptInput::Messages(messages),
            options: Arc::from([]),
        };
        let rows = message_lists.into_iter().map(row).collect();
        let factory = self.options.logits_processor_factory.clone();
        let mut running = self.engine.classify_with(request(&self.options, rows), factory);
        let mut num_in_batch = 0;
        while let Some(event) = running.recv().await {
            match event {
                ClassifyEvent::Prefix { .. } => {}
                ClassifyEvent::Row { index, answer } => {
                    let wrap = |source| EngineError::Row { number: index + 1, source };
                    texts[index] = answer.map_err(Box::new).map_err(wrap)?.text;
                    num_in_batch += 1;
                    if num_in_batch == self.options.batch_size {
                        on_progress(std::mem::take(&mut num_in_batch));
                    }
                }
                ClassifyEvent::Finished if num_in_batch > 0 => on_progress(num_in_batch),
                ClassifyEvent::Finished => {}
                ClassifyEvent::Failed(error) => return Err(error),
            }
        }
        Ok(texts)
    }

    /// Runs `run` with the model on the engine's thread and returns its result. A panic in it is an
    /// error, and the engine keeps running.
    pub async fn submit<T: Send + 'static>(
        &self,
        run: impl FnOnce(&LoadedModel) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let _call = self.begin_call().await?;
        self.engine.submit(None, run).await
    }

    /// Ends the thread when the calls under way have their answers. Later calls fail with
    /// [`EngineError::Closed`].
    pub async fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let _all = self.calls.write().await;
        self.engine.shutdown().await;
    }

    /// The most memory that this process has had so far, in GiB.
    pub fn peak_memory_gb(&self) -> f64 {
        device::process_peak_bytes() as f64 / (1u64 << 30) as f64
    }

    async fn begin_call(&self) -> Result<RwLockReadGuard<'_, ()>, EngineError> {
        let call = self.calls.read().await;
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(EngineError::Closed);
        }
        self.ensure_loaded().await?;
        Ok(call)
    }
}

impl Starting {
    async fn wait(&mut self) -> Result<(), EngineError> {
        if let Some(load) = &mut self.load {
            let loaded = load.await;
            self.load = None;
            loaded.map_err(|_| EngineError::Closed)??;
        }
        while let Some(event) = self.prefix.recv().await {
            if let ClassifyEvent::Failed(error) = event {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A request whose prefix is that of all others of the engine.
fn request(options: &MlxEngineOptions, rows: Vec<ClassifyRow>) -> ClassifyRequest {
    ClassifyRequest {
        prefix: Some(PromptInput::Messages(options.prefix_messages.clone())),
        batch_size: options.batch_size,
        template_variables: options.template_variables.clone(),
        keep_prefix: true,
        ..ClassifyRequest::new(rows)
    }
}
