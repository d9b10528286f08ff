//! The work that requests cause, counted once, while it is done: for the totals of the engine and for
//! the record of its request. So the sum of all records is what the engine has done.
//!
//! ```text
//! sequence, task ─▶ OpenWork ─┬▶ WorkCounter ─▶ EngineStatus::work     totals and speeds
//!                             └▶ RequestWork ─▶ WorkLog                when the request ends
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_chat::CachedFrom;
use tokio::sync::Notify;

use crate::status::WorkDone;

/// The purpose of a request, as its caller says; the engine hands it back with the work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkFor {
    /// The kind of work.
    pub kind: WorkKind,
    /// The conversation that it is done for, by its id.
    pub conversation: Option<String>,
    /// The message that it writes, by its id.
    pub message: Option<String>,
    /// Whether the conversation exists only in memory: then nothing of the work may reach the disk.
    /// The engine does not look at it.
    pub is_private: bool,
}

impl WorkFor {
    /// Work without a conversation.
    pub fn kind(kind: WorkKind) -> Self {
        WorkFor { kind, ..WorkFor::default() }
    }

    /// Work for a conversation, which may be private.
    pub fn conversation(kind: WorkKind, id: &str, is_private: bool) -> Self {
        WorkFor { kind, conversation: Some(id.to_owned()), message: None, is_private }
    }
}

/// A kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum WorkKind {
    /// An answer of a conversation.
    Answer,
    /// An answer that is compared with another one.
    Comparison,
    /// Reading documents before their question is there. The only token that it samples is thrown
    /// away, so it does not count as written.
    ReadAhead,
    /// A title of a conversation.
    Title,
    /// A summary of a conversation's earlier messages.
    Summary,
    /// The probabilities of an answer's tokens.
    Probabilities,
    /// A question about many texts.
    Job,
    /// A request of another program, or of a caller that does not say.
    #[default]
    Program,
}

impl WorkKind {
    /// Its name, as it is stored.
    pub fn name(self) -> &'static str {
        match self {
            WorkKind::Answer => "answer",
            WorkKind::Comparison => "comparison",
            WorkKind::ReadAhead => "read_ahead",
            WorkKind::Title => "title",
            WorkKind::Summary => "summary",
            WorkKind::Probabilities => "probabilities",
            WorkKind::Job => "job",
            WorkKind::Program => "program",
        }
    }
}

/// The work of one request that has ended, however it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestWork {
    /// Its purpose.
    pub work_for: WorkFor,
    /// The name of the model.
    pub model: String,
    /// Tokens read, without those from the prompt cache.
    pub num_read_tokens: u64,
    /// Tokens from the prompt cache. Tokens that were read ahead are not told apart here.
    pub cached_from: CachedFrom,
    /// Tokens written, without an end-of-sequence token.
    pub num_written_tokens: u64,
    /// From the request's arrival to its first token, in milliseconds.
    pub first_token_ms: Option<f64>,
}

impl RequestWork {
    fn is_empty(&self) -> bool {
        self.num_read_tokens + self.num_written_tokens == 0 && self.cached_from.num_tokens() == 0
    }
}

/// The work of requests that have ended, until it is taken. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct WorkLog(Arc<Ended>);

#[derive(Debug, Default)]
struct Ended {
    work: Mutex<Vec<RequestWork>>,
    added: Notify,
}

impl WorkLog {
    /// Takes the work that was added since the last call, in order.
    pub fn take(&self) -> Vec<RequestWork> {
        std::mem::take(&mut *self.guard())
    }

    /// Puts back work that was taken and could not be stored, in front of work that was added
    /// meanwhile.
    pub fn put_back(&self, mut work: Vec<RequestWork>) {
        let mut added = self.guard();
        work.append(&mut added);
        *added = work;
    }

    /// Waits until something is added.
    pub async fn added(&self) {
        self.0.added.notified().await;
    }

    fn add(&self, work: RequestWork) {
        self.guard().push(work);
        self.0.added.notify_one();
    }

    fn guard(&self) -> MutexGuard<'_, Vec<RequestWork>> {
        self.0.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The totals of an engine's thread, which its requests share.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkCounter {
    total: Rc<Cell<WorkDone>>,
    log: Option<WorkLog>,
}

impl WorkCounter {
    /// Totals from zero. The work of each request goes to the `log`.
    pub(crate) fn new(log: Option<WorkLog>) -> Self {
        WorkCounter { total: Rc::default(), log }
    }

    /// The work so far.
    pub(crate) fn total(&self) -> WorkDone {
        self.total.get()
    }

    /// Counts the work of a request that begins.
    pub(crate) fn open(&self, work_for: WorkFor, model: &str) -> OpenWork {
        let work = RequestWork {
            work_for,
            model: model.to_owned(),
            num_read_tokens: 0,
            cached_from: CachedFrom::default(),
            num_written_tokens: 0,
            first_token_ms: None,
        };
        OpenWork { counter: self.clone(), work: Some(work) }
    }

    /// Adds the time of a slice that has read `num_tokens`. The slice has computed all of them.
    pub(crate) fn reading_took(&self, num_tokens: usize, took: Duration) {
        self.change(|total| total.reading.add(num_tokens, took));
    }

    /// Adds time that was spent on sampling tokens; they are counted where they are sampled.
    pub(crate) fn writing_took(&self, took: Duration) {
        self.change(|total| total.writing.add(0, took));
    }

    /// Counts a pass that several answers shared.
    pub(crate) fn shared_a_pass(&self) {
        self.change(|total| total.num_shared_passes += 1);
    }

    fn change(&self, change: impl FnOnce(&mut WorkDone)) {
        let mut total = self.total.get();
        change(&mut total);
        self.total.set(total);
    }
}

/// The work of a request under way. It goes to the log at its end, or when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenWork {
    counter: WorkCounter,
    /// None once it has ended.
    work: Option<RequestWork>,
}

impl OpenWork {
    /// Counts tokens that came from the prompt cache.
    pub(crate) fn cached(&mut self, from: CachedFrom) {
        let Some(work) = &mut self.work else { return };
        work.cached_from = from;
        let num_tokens = from.num_tokens() as u64;
        self.counter.change(|total| total.num_cached_tokens += num_tokens);
    }

    /// Counts tokens that were read.
    pub(crate) fn read(&mut self, num_tokens: usize) {
        let Some(work) = &mut self.work else { return };
        work.num_read_tokens += num_tokens as u64;
        self.counter.change(|total| total.num_read_tokens += num_tokens as u64);
    }

    /// Counts a token that was sampled, and whether it is a part of the answer.
    pub(crate) fn sampled(&mut self, is_written: bool) {
        let Some(work) = &mut self.work else { return };
        let num_written = u64::from(is_written && work.work_for.kind != WorkKind::ReadAhead);
        work.num_written_tokens += num_written;
        self.counter.change(|total| {
            total.num_written_tokens += num_written;
            total.writing.num_tokens += 1;
        });
    }

    /// Ends the work, with the time to the first token if there was one.
    pub(crate) fn end(&mut self, first_token_ms: Option<f64>) {
        let Some(work) = self.work.take().filter(|work| !work.is_empty()) else { return };
        if let Some(log) = &self.counter.log {
            log.add(RequestWork { first_token_ms, ..work });
        }
    }
}

impl Drop for OpenWork {
    fn drop(&mut self) {
        self.end(None);
    }
}
