//! The next token's log-probabilities after any tokens, for programs that score and sample by
//! themselves: [`AsyncLm`].
//!
//! ```text
//! next_token_logprobs ─▶ LogprobTrie ─▶ BatchQueue ──Job──▶ LmState ─┬─ live rows
//!        ▲                known: at once    full, or 1 ms              ├─ KvStore (KvTree)
//!        └──────────────────────────── Arc<[f32]> ────────────────────└─ NextTokenLogprobs
//!          the caller's thread                                the engine's thread
//! ```
//! The engine's half is `next_tokens`. What decides is pure and knows no MLX: here when a batch goes
//! (`batch_queue`) and which log-probabilities are stored (`logprob_trie`); there which keys and
//! values are stored (`kv_tree`), and which rows share a pass (`plan`).

mod batch_queue;
mod logprob_trie;
mod sample;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use tokio::sync::{oneshot, watch};

use crate::lm_job::{LmAsk, LmJob};
use crate::next_tokens::{LmCounts, LmId, LmLimits, LmQuery};
use crate::thread::Job;
use crate::{Engine, EngineError, EngineOptions, EngineStatus};
use batch_queue::BatchQueue;
use logprob_trie::LogprobTrie;

pub use sample::SampleRequest;

/// The options of an [`AsyncLm`], with genlm's defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct AsyncLmOptions {
    /// The most queries in a batch.
    pub batch_size: usize,
    /// How long the first query of a batch waits for others.
    pub timeout: Duration,
    /// The most tokens of a query that are read at once. The engine takes fewer where its device or
    /// other work ask for it.
    pub prefill_step_size: usize,
    /// The most tokens whose keys and values are stored for later queries. The rows of the last
    /// batch stay besides, and those before it as long as all hold at most eight times as many
    /// tokens.
    pub cache_size: usize,
    /// The most bytes of stored log-probabilities.
    pub logprob_bytes: usize,
}

impl Default for AsyncLmOptions {
    fn default() -> Self {
        AsyncLmOptions {
            batch_size: 5,
            timeout: Duration::from_millis(1),
            prefill_step_size: 2048,
            cache_size: 400,
            logprob_bytes: 64 << 20,
        }
    }
}

/// How much of a token sequence is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheWalk {
    /// The longest beginning after which the log-probabilities are stored, in tokens.
    pub num_logprob_tokens: usize,
    /// The longest beginning with keys and values to continue from, in tokens.
    pub num_kv_tokens: usize,
}

/// Answers what the next token's log-probabilities are after any tokens. Clones share everything.
///
/// - Queries that come together share a forward pass; equal ones are computed once.
/// - A query whose log-probabilities are stored is answered at once.
/// - Each row of a batch continues the longest beginning that was computed before, whatever the
///   other rows do. Rows that continue, fork or drop the rows of the last batches compute only
///   their new tokens.
/// - It takes its turns with the answers of its engine, slice by slice.
///
/// ```no_run
/// use cairn_engine::{AsyncLm, AsyncLmOptions};
///
/// # async fn example() -> Result<(), cairn_engine::EngineError> {
/// let lm = AsyncLm::from_name("models/SmolLM2-135M-Instruct", AsyncLmOptions::default()).await?;
/// let rows = lm.batch_next_token_logprobs(&[vec![1, 2, 3], vec![1, 2, 4]]).await?;
/// assert_eq!(rows[0].len(), rows[1].len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncLm {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    model: String,
    id: LmId,
    options: AsyncLmOptions,
    status: watch::Receiver<EngineStatus>,
    known: Mutex<Known>,
    queue: Arc<Queue>,
    timer: Option<JoinHandle<()>>,
}

/// What was answered, by one model: another may be loaded under its name.
#[derive(Debug)]
struct Known {
    logprobs: LogprobTrie,
    fingerprint: Option<String>,
    /// How many models there have been.
    generation: u64,
}

/// The queries that wait to become a batch. A thread of its own sends those that fill none.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    batch: BatchQueue<LmQuery>,
    is_closed: bool,
}

/// Where the answer to a query comes.
type AnswerReceiver = oneshot::Receiver<Result<Arc<[f32]>, EngineError>>;

/// The answer to a query, or where it will come.
enum QueryAnswer {
    Known(Arc<[f32]>),
    Waits {
        answer: AnswerReceiver,
        /// What [`Known::generation`] was.
        generation: u64,
    },
}

impl AsyncLm {
    /// Loads the model in a folder into an engine of its own. As genlm's, which also downloads.
    pub async fn from_name(name: &str, options: AsyncLmOptions) -> Result<Self, EngineError> {
        let (engine, _cache_changes) = Engine::start(EngineOptions::default());
        engine.load(name, Path::new(name)).await?;
        Ok(AsyncLm::of_engine(&engine, name, options))
    }

    /// Asks a model that the engine has loaded under this name, beside the engine's other work.
    pub fn of_engine(engine: &Engine, model: &str, options: AsyncLmOptions) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let waiting = Waiting {
            batch: BatchQueue::new(options.batch_size, options.timeout),
            is_closed: false,
        };
        let queue = Arc::new(Queue { waiting: Mutex::new(waiting), changed: Condvar::new() });
        let mut shared = Shared {
            engine: engine.clone(),
            model: model.to_owned(),
            id: LmId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            status: engine.status(),
            known: Mutex::new(Known {
                logprobs: LogprobTrie::new(options.logprob_bytes),
                fingerprint: None,
                generation: 0,
            }),
            options,
            queue: Arc::clone(&queue),
            timer: None,
        };
        let (engine, job) = (engine.clone(), shared.job_maker());
        let timer = std::thread::Builder::new().name("cairn-async-lm".to_owned());
        let timer = timer.spawn(move || queue.send_due(|batch| drop(engine.send(job(batch)))));
        shared.timer = Some(timer.expect("the system starts a thread"));
        AsyncLm { shared: Arc::new(shared) }
    }

    /// The natural log-probabilities of the token after `ids`, over the vocabulary. Queries that
    /// wait at the same time share a batch.
    ///
    /// Fails on no ids, ids outside the vocabulary, and more than the context. Dropping the future
    /// drops the query.
    pub async fn next_token_logprobs(&self, ids: &[u32]) -> Result<Arc<[f32]>, EngineError> {
        let answer = self.ask([ids])?.remove(0);
        self.answered(ids, answer).await
    }

    /// As [`AsyncLm::next_token_logprobs`], for callers that are not async: a batch of one, which
    /// waits for no other query.
    pub fn next_token_logprobs_sync(&self, ids: &[u32]) -> Result<Arc<[f32]>, EngineError> {
        let answer = match self.stored(ids)? {
            Some(logprobs) => QueryAnswer::Known(logprobs),
            None => self.send(&[ids], false).remove(0),
        };
        block_on(self.answered(ids, answer))
    }

    /// [`AsyncLm::next_token_logprobs`] of several sequences, in their order.
    pub async fn batch_next_token_logprobs(
        &self,
        sequences: &[Vec<u32>],
    ) -> Result<Vec<Arc<[f32]>>, EngineError> {
        let answers = self.ask(sequences.iter().map(Vec::as_slice))?;
        self.all_answered(sequences, answers).await
    }

    /// As [`AsyncLm::batch_next_token_logprobs`], for callers that are not async; batches are full
    /// and wait for no other query.
    pub fn batch_next_token_logprobs_sync(
        &self,
        sequences: &[Vec<u32>],
    ) -> Result<Vec<Arc<[f32]>>, EngineError> {
        let mut answers = Vec::with_capacity(sequences.len());
        for batch in sequences.chunks(self.shared.options.batch_size.max(1)) {
            let known = batch.iter().map(|ids| self.stored(ids)).collect::<Result<Vec<_>, _>>()?;
            let unknown = batch.iter().zip(&known).filter(|(_, known)| known.is_none());
            let unknown: Vec<&[u32]> = unknown.map(|(ids, _)| ids.as_slice()).collect();
            let mut sent = self.send(&unknown, false).into_iter();
            let or_sent = |known: Option<_>| known.map(QueryAnswer::Known).or_else(|| sent.next());
            answers.extend(known.into_iter().filter_map(or_sent));
        }
        block_on(self.all_answered(sequences, answers))
    }

    /// How much of `ids` is stored.
    pub async fn walk_cache(&self, ids: &[u32]) -> Result<CacheWalk, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(LmAsk::Walk { ids: Arc::from(ids), reply });
        let num_kv_tokens = self.received(answer.await)?;
        let num_logprob_tokens = self.known().logprobs.longest(ids);
        Ok(CacheWalk { num_logprob_tokens, num_kv_tokens })
    }

    /// Reads `ids` in, so that queries that begin with them compute the rest only. Of more than
    /// `cache_size` tokens the first are stored, unless the model has windows or recurrent states.
    /// The log-probabilities after them are stored too.
    pub async fn cache_kv(&self, ids: &[u32]) -> Result<(), EngineError> {
        if ids.is_empty() {
            return Err(cairn_lm::LmError::EmptyPrompt.into());
        }
        let answer = self.send(&[ids], true).remove(0);
        self.answered(ids, answer).await.map(drop)
    }

    /// Drops all that is stored.
    pub async fn clear_cache(&self) -> Result<(), EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(LmAsk::Clear { reply });
        let cleared = self.received(answer.await);
        self.known().logprobs.clear();
        cleared
    }

    /// Drops the queries that are not computed yet; whoever waits for one gets
    /// [`EngineError::QueryReset`].
    pub fn reset_async_queries(&self) {
        let waiting = lock(&self.shared.queue.waiting).batch.take();
        for query in waiting {
            let _ = query.reply.send(Err(EngineError::QueryReset));
        }
        self.shared.send(LmAsk::Reset);
    }

    /// What was computed so far, and what is held.
    pub async fn counts(&self) -> Result<LmCounts, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(LmAsk::Counts { reply });
        self.received(answer.await)
    }

    /// How many log-probabilities are stored, and bytes of them.
    pub fn stored_logprobs(&self) -> (usize, usize) {
        self.known().logprobs.figures()
    }

    /// What was answered by the model that is loaded now.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = lock(&self.shared.known);
        let status = self.shared.status.borrow();
        let model = status.models.iter().find(|model| model.name == self.shared.model);
        if let Some(model) = model
            && known.fingerprint.as_ref() != Some(&model.fingerprint)
        {
            known.fingerprint = Some(model.fingerprint.clone());
            known.generation += 1;
            known.logprobs.clear();
        }
        drop(status);
        known
    }

    /// The stored log-probabilities after exactly `ids`.
    fn stored(&self, ids: &[u32]) -> Result<Option<Arc<[f32]>>, EngineError> {
        if ids.is_empty() {
            return Err(cairn_lm::LmError::EmptyPrompt.into());
        }
        Ok(self.known().logprobs.get(ids))
    }

    /// Answers what is known, and queues what is not: all of it before the batch that it is in may
    /// go because of its time.
    fn ask<'a>(
        &self,
        sequences: impl IntoIterator<Item = &'a [u32]>,
    ) -> Result<Vec<QueryAnswer>, EngineError> {
        let known = sequences.into_iter().map(|ids| Ok((ids, self.stored(ids)?)));
        let known = known.collect::<Result<Vec<_>, EngineError>>()?;
        let generation = self.known().generation;
        let (mut answers, mut full) = (Vec::with_capacity(known.len()), Vec::new());
        let mut waiting = lock(&self.shared.queue.waiting);
        for (ids, known) in known {
            answers.push(match known {
                Some(logprobs) => QueryAnswer::Known(logprobs),
                None => {
                    let (query, answer) = query(ids, false);
                    full.extend(waiting.batch.push(query, Instant::now()));
                    QueryAnswer::Waits { answer, generation }
                }
            });
        }
        drop(waiting);
        full.into_iter().for_each(|batch| self.shared.send(LmAsk::Queries(batch)));
        self.shared.queue.changed.notify_one();
        Ok(answers)
    }

    /// Sends queries as a batch of their own.
    fn send(&self, sequences: &[&[u32]], stores: bool) -> Vec<QueryAnswer> {
        let generation = self.known().generation;
        let (queries, answers): (Vec<LmQuery>, Vec<QueryAnswer>) = sequences
            .iter()
            .map(|ids| query(ids, stores))
            .map(|(query, answer)| (query, QueryAnswer::Waits { answer, generation }))
            .unzip();
        if !queries.is_empty() {
            self.shared.send(LmAsk::Queries(queries));
        }
        answers
    }

    /// The log-probabilities of an answer, once they are there.
    async fn answered(&self, ids: &[u32], answer: QueryAnswer) -> Result<Arc<[f32]>, EngineError> {
        match answer {
            QueryAnswer::Known(logprobs) => Ok(logprobs),
            QueryAnswer::Waits { answer, generation } => {
                let logprobs = self.received(answer.await)?;
                let mut known = self.known();
                if known.generation == generation {
                    known.logprobs.insert(ids, Arc::clone(&logprobs));
                }
                Ok(logprobs)
            }
        }
    }

    async fn all_answered(
        &self,
        sequences: &[Vec<u32>],
        answers: Vec<QueryAnswer>,
    ) -> Result<Vec<Arc<[f32]>>, EngineError> {
        let mut rows = Vec::with_capacity(answers.len());
        for (ids, answer) in sequences.iter().zip(answers) {
            rows.push(self.answered(ids, answer).await?);
        }
        Ok(rows)
    }

    fn received<T>(
        &self,
        answer: Result<Result<T, EngineError>, oneshot::error::RecvError>,
    ) -> Result<T, EngineError> {
        answer.unwrap_or_else(|_| Err(self.shared.engine.ended_error()))
    }
}

impl Shared {
    /// What makes jobs of batches.
    fn job_maker(&self) -> impl Fn(Vec<LmQuery>) -> Job + Send + 'static {
        let (lm, model, limits) = (self.id, self.model.clone(), self.limits());
        move |batch| {
            let (model, ask) = (model.clone(), LmAsk::Queries(batch));
            Job::AsyncLm(LmJob { lm, model, limits, ask })
        }
    }

    fn send(&self, ask: LmAsk) {
        let (lm, model, limits) = (self.id, self.model.clone(), self.limits());
        self.engine.send(Job::AsyncLm(LmJob { lm, model, limits, ask }));
    }

    fn limits(&self) -> LmLimits {
        LmLimits {
            cache_size: self.options.cache_size,
            prefill_step_size: self.options.prefill_step_size.max(1),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        lock(&self.queue.waiting).is_closed = true;
        self.queue.changed.notify_one();
        self.send(LmAsk::Close);
        if let Some(timer) = self.timer.take() {
            // It holds a handle to the engine.
            let _ = timer.join();
        }
    }
}

impl Queue {
    /// Sends the batches whose deadline has come, until the queue is closed.
    fn send_due(&self, send: impl Fn(Vec<LmQuery>)) {
        let mut waiting = lock(&self.waiting);
        while !waiting.is_closed {
            let now = Instant::now();
            if let Some(batch) = waiting.batch.due(now) {
                drop(waiting);
                send(batch);
                waiting = lock(&self.waiting);
                continue;
            }
            waiting = match waiting.batch.deadline() {
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(now);
                    let woken = self.changed.wait_timeout(waiting, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

fn query(ids: &[u32], stores: bool) -> (LmQuery, AnswerReceiver) {
    let (reply, answer) = oneshot::channel();
    (LmQuery { ids: Arc::from(ids), stores, reply }, answer)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
