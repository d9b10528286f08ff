//! The next token of many prompts that begin alike.
//!
//! ```text
//! ClassifyRequest ─▶ RowEncoder ─▶ prefix tokens ─▶ SharedPrefix: read once
//!      rows, shortest first ─▶ tokens ─▶ Pass: rows of similar length ─▶ logits behind each
//!                                          │ as many as the slice allows        │
//!                                          ▼                                    ▼
//!                              slices, beside answers              options ─▶ RowAnswer
//! ```
//! An error of a row is its own; a pass that fails is computed again in halves, so that only the row
//! at fault fails.

mod common_beginning;
mod options;
mod pass;
mod prefix;
mod request;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use cairn_lm::batch::SharedPrefix;
use cairn_lm::{LogitsProcessor, ModelMemory, PassSizes, Tokenizer};
use tokio::sync::mpsc;

use crate::EngineError;
use crate::model_pool::Loaded;
use crate::request::PromptInput;
use crate::slice_limits::SliceLimits;
use crate::worker::Worker;

use common_beginning::common_beginning;
use pass::{OptionEncoder, Pass, PreparedRow};
use prefix::RowEncoder;
pub use request::{
    Classification, ClassifyEvent, ClassifyRequest, ClassifyRow, OptionScoring, RowAnswer,
};

/// Makes the logits processor of a request from the model's tokenizer. It is applied to the logits
/// `[1, V]` behind each row, given all of the row's tokens. Not plain data: only callers in this
/// process have it.
pub type LogitsProcessorFactory = Arc<dyn Fn(&Tokenizer) -> LogitsProcessor + Send + Sync>;

/// How many attention scores of one head a pass may hold, rows and prefix together: 32 MiB in f32.
const MAX_SCORES: usize = 1 << 23;

/// The most rows of a request: what an index of 32 bits counts.
const MAX_ROWS: usize = u32::MAX as usize;

/// What a row that is not encoded yet is taken to have, for the progress.
const GUESSED_ROW_TOKENS: usize = 16;

/// A request under way. Its rows share a prefix, which is read first.
pub(crate) struct Classifier {
    loaded: Rc<Loaded>,
    request: ClassifyRequest,
    encoder: RowEncoder,
    options: OptionEncoder,
    prefix: SharedPrefix,
    processor: Option<LogitsProcessor>,
    /// The rows that are not encoded yet, shortest first.
    order: VecDeque<usize>,
    /// Encoded rows that wait for a pass.
    prepared: VecDeque<PreparedRow>,
    /// The most rows of the next pass: fewer after one that failed.
    most_rows: usize,
    pass: Option<Pass>,
    /// The prefix made room for another task, and is read again when none holds memory.
    gave_way: bool,
    /// What the pass takes beside the prefix.
    pass_bytes: u64,
    num_read: usize,
    /// The same without padding.
    num_read_tokens: usize,
    events: mpsc::UnboundedSender<ClassifyEvent>,
}

impl Classifier {
    pub(crate) fn new(
        worker: &mut Worker,
        loaded: &Rc<Loaded>,
        mut request: ClassifyRequest,
        processor: Option<&LogitsProcessorFactory>,
        events: mpsc::UnboundedSender<ClassifyEvent>,
    ) -> Result<Self, EngineError> {
        let model = &loaded.model;
        let variables = std::mem::take(&mut request.template_variables);
        let thinking = request.thinking;
        let abandoned = events.clone();
        let cancel = worker.cancel(move || abandoned.is_closed());
        let encoder = match request.prefix.take() {
            Some(prefix) => RowEncoder::new(model, Some(prefix), variables, thinking, cancel)?,
            None => {
                let common = common_beginning(&request.rows);
                match RowEncoder::new(model, common, variables.clone(), thinking, cancel.clone()) {
                    Ok(encoder) => encoder,
                    // A template may refuse the rows' beginning by itself.
                    Err(_) => RowEncoder::new(model, None, variables, thinking, cancel)?,
                }
            }
        };
        let kept = worker.prefixes.take(&model.fingerprint, encoder.prefix_tokens());
        let prefix = match kept {
            Some(prefix) => prefix,
            None => SharedPrefix::new(&model.model, encoder.prefix_tokens().to_vec())?,
        };
        request.rows.truncate(MAX_ROWS);
        let mut order: Vec<usize> = (0..request.rows.len()).collect();
        order.sort_by_key(|&index| num_bytes_of_last(&request.rows[index].prompt));
        let batch_size = request.batch_size.max(1);
        Ok(Classifier {
            loaded: Rc::clone(loaded),
            processor: processor.map(|factory| factory(&model.tokenizer)),
            encoder,
            options: OptionEncoder::default(),
            prefix,
            order: order.into(),
            prepared: VecDeque::new(),
            most_rows: batch_size,
            pass: None,
            gave_way: false,
            pass_bytes: 0,
            num_read: 0,
            num_read_tokens: 0,
            events,
            request: ClassifyRequest { batch_size, ..request },
        })
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// How many tokens have been read, of how many; what waits is estimated.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let width =
            |row: &PreparedRow| row.num_tokens() - self.prefix.tokens().len().min(row.num_tokens());
        let unread = self.prefix.num_unread()
            + self.pass.as_ref().map_or(0, Pass::num_unread)
            + self.prepared.iter().map(width).sum::<usize>()
            + self.order.len() * GUESSED_ROW_TOKENS;
        (self.num_read, self.num_read + unread)
    }

    /// How many tokens have been read, without padding.
    pub(crate) fn num_read_tokens(&self) -> usize {
        self.num_read_tokens
    }

    pub(crate) fn is_done(&self) -> bool {
        self.prefix.num_unread() == 0
            && self.pass.is_none()
            && self.prepared.is_empty()
            && self.order.is_empty()
    }

    /// Bytes of the prefix, and what the pass under way takes.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let of_pass = if self.pass.is_some() { self.pass_bytes } else { 0 };
        self.prefix.nbytes() as u64 + of_pass
    }

    /// The part of the reserved bytes that stays reserved until there is room for the next pass.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.pass.is_some() { 0 } else { self.reserved_bytes() }
    }

    /// Frees the prefix for another task.
    pub(crate) fn give_way(&mut self) {
        self.prefix.forget();
        self.gave_way = true;
    }

    /// Whether it still waits for the tasks to which it has given way. `holds_any`: one of them holds
    /// memory.
    pub(crate) fn waits_for_tasks(&mut self, holds_any: bool) -> bool {
        self.gave_way &= holds_any;
        self.gave_way
    }

    /// Bytes without which no more of the prefix can be read, or no pass can begin; none while one is
    /// under way.
    pub(crate) fn least_bytes(&mut self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        let sizes = match self.prefix.num_unread() {
            0 if self.pass.is_some() => return 0,
            0 => {
                self.prepare();
                let Some(first) = self.prepared.front() else { return 0 };
                let sizes = sizes(first.num_entries(), first.num_shared(), first.width());
                PassSizes { num_logits: first.num_scored(), ..sizes }
            }
            left => {
                let num_new = left.min(max_tokens);
                let num_before = self.prefix.tokens().len() - left;
                PassSizes { shares: false, num_logits: 0, ..sizes(1, num_before, num_new) }
            }
        };
        memory.pass_bytes(&sizes)
    }

    /// Fails the row for which there are not that many, or the request if it is for the prefix.
    pub(crate) fn refuse(&mut self, error: EngineError) -> Result<(), EngineError> {
        if self.prefix.num_unread() > 0 {
            return Err(error);
        }
        if let Some(first) = self.prepared.pop_front() {
            self.fail_rows(vec![first], error);
        }
        Ok(())
    }

    /// Reads a slice, padding included, and at least one column of a pass. A row's failure is its
    /// event; an error ends the request.
    pub(crate) fn advance(
        &mut self,
        worker: &mut Worker,
        limits: SliceLimits,
    ) -> Result<(), EngineError> {
        if self.prefix.num_unread() > 0 {
            self.read_prefix(limits.max_tokens)?;
        } else {
            if self.pass.is_none() {
                self.prepare();
                self.begin_pass(limits);
            }
            self.read_pass(limits.max_tokens);
        }
        if self.is_done() && self.request.keep_prefix {
            self.keep_prefix(worker)?;
        }
        Ok(())
    }

    /// Reports the end.
    pub(crate) fn end(self, result: Result<(), EngineError>) {
        let event = match result {
            Ok(()) => ClassifyEvent::Finished,
            Err(error) => ClassifyEvent::Failed(error),
        };
        let _ = self.events.send(event);
    }

    fn read_prefix(&mut self, max_tokens: usize) -> Result<(), EngineError> {
        let before = self.prefix.num_unread();
        self.prefix.read(max_tokens)?;
        self.num_read += before - self.prefix.num_unread();
        self.num_read_tokens += before - self.prefix.num_unread();
        let total = self.prefix.tokens().len();
        let processed = total - self.prefix.num_unread();
        let _ = self.events.send(ClassifyEvent::Prefix { processed, total });
        Ok(())
    }

    /// Encodes the next `batch_size` rows if none waits.
    fn prepare(&mut self) {
        while self.prepared.is_empty() && !self.order.is_empty() {
            for _ in 0..self.request.batch_size.min(self.order.len()) {
                let Some(index) = self.order.pop_front() else { break };
                match self.prepared_row(index) {
                    Ok(row) => self.add_prepared(row),
                    Err(error) if error.is_interruption() => self.fail_unprepared(index, error),
                    Err(error) => self.fail_row(index, error),
                }
            }
        }
    }

    /// Fails a row and all that are not encoded yet: to wait for each would take too long.
    fn fail_unprepared(&mut self, index: usize, error: EngineError) {
        let message = error.to_string();
        self.fail_row(index, error);
        for index in std::mem::take(&mut self.order) {
            self.fail_row(index, EngineError::SameRow { message: message.clone() });
        }
    }

    fn prepared_row(&mut self, index: usize) -> Result<PreparedRow, EngineError> {
        let row = &self.request.rows[index];
        if !self.encoder.is_beginning_of(&row.prompt) {
            return Err(EngineError::OutsidePrefix);
        }
        let model = &self.loaded.model;
        let tokens = self.encoder.encode(model, &row.prompt)?;
        let prefix = self.encoder.prefix_tokens();
        let num_shared = match tokens.strip_prefix(prefix) {
            Some(rest) if !rest.is_empty() => prefix.len(),
            // Its tokens go across the end of the prefix, or end with it: it is read by itself.
            _ => 0,
        };
        PreparedRow::new(
            model,
            index,
            tokens,
            num_shared,
            (&row.options, self.request.option_scoring),
            &mut self.options,
        )
    }

    /// Rows with the same tokens and options are computed once.
    fn add_prepared(&mut self, row: PreparedRow) {
        match self.prepared.iter_mut().find(|other| other.is_same(&row)) {
            Some(other) => other.join(row),
            None => self.prepared.push_back(row),
        }
    }

    /// Takes as many rows as a slice reads at once, and as there is memory for.
    fn begin_pass(&mut self, limits: SliceLimits) {
        let mut rows: Vec<PreparedRow> = Vec::new();
        let (mut width, mut num_entries, mut num_logits) = (0, 0, 0);
        while let Some(next) = self.prepared.front() {
            let num_shared = next.num_shared();
            let wider = width.max(next.width());
            let entries = num_entries + next.num_entries();
            let scored = num_logits + next.num_scored();
            let sizes = sizes(entries, num_shared, wider);
            let bytes = limits.bytes_of(&PassSizes { num_logits: scored, ..sizes });
            let fits = entries * wider <= limits.max_tokens
                && limits.memory.is_none_or(|(_, free_bytes)| bytes <= free_bytes)
                && entries * wider <= MAX_SCORES / (num_shared + wider)
                && rows.len() < self.most_rows
                && rows.first().is_none_or(|first| first.num_shared() == num_shared);
            if !rows.is_empty() && !fits {
                break;
            }
            (width, num_entries, num_logits) = (wider, entries, scored);
            self.pass_bytes = bytes;
            rows.extend(self.prepared.pop_front());
        }
        if rows.is_empty() {
            return;
        }
        self.most_rows = self.request.batch_size;
        let mut alone;
        let prefix = match rows.first().is_some_and(|row| row.num_shared() > 0) {
            true => &mut self.prefix,
            false => match SharedPrefix::new(&self.loaded.model.model, Vec::new()) {
                Ok(empty) => {
                    alone = empty;
                    &mut alone
                }
                Err(error) => return self.fail_rows(rows, error.into()),
            },
        };
        match Pass::begin(prefix, rows) {
            Ok(pass) => self.pass = Some(pass),
            Err(failed) => self.retry(failed.rows, failed.error),
        }
    }

    fn read_pass(&mut self, max_tokens: usize) {
        let Some(mut pass) = self.pass.take() else { return };
        let (before, read_before) = (pass.num_unread(), pass.num_read_tokens());
        match pass.read(max_tokens) {
            Ok(()) => {
                self.num_read += before - pass.num_unread();
                self.num_read_tokens += pass.num_read_tokens() - read_before;
            }
            Err(error) => return self.retry(pass.into_rows(), error),
        }
        if pass.num_unread() > 0 {
            self.pass = Some(pass);
            return;
        }
        let model = &self.loaded.model;
        match pass.answers(model, self.request.num_top, self.processor.as_mut()) {
            Ok(answers) => {
                for (index, answer) in answers {
                    let _ = self.events.send(ClassifyEvent::Row { index, answer: Ok(answer) });
                }
            }
            Err(failed) => self.retry(failed.rows, failed.error),
        }
    }

    /// Computes the rows of a pass that failed again, in halves; one that fails alone is at fault.
    fn retry(&mut self, rows: Vec<PreparedRow>, error: EngineError) {
        if rows.len() <= 1 {
            return self.fail_rows(rows, error);
        }
        self.most_rows = rows.len().div_ceil(2);
        for row in rows.into_iter().rev() {
            self.prepared.push_front(row);
        }
    }

    fn fail_rows(&self, rows: Vec<PreparedRow>, error: EngineError) {
        let indices: Vec<usize> = rows.iter().flat_map(PreparedRow::indices).collect();
        let message = error.to_string();
        let mut first = Some(error);
        for index in indices {
            // Rows with the same tokens fail alike; an error cannot be cloned.
            let error = first.take();
            let error = error.unwrap_or_else(|| EngineError::SameRow { message: message.clone() });
            self.fail_row(index, error);
        }
    }

    fn fail_row(&self, index: usize, error: EngineError) {
        let _ = self.events.send(ClassifyEvent::Row { index, answer: Err(error) });
    }

    fn keep_prefix(&mut self, worker: &mut Worker) -> Result<(), EngineError> {
        let model = &self.loaded.model;
        let empty = SharedPrefix::new(&model.model, Vec::new())?;
        let prefix = std::mem::replace(&mut self.prefix, empty);
        worker.prefixes.keep(&model.fingerprint, prefix);
        Ok(())
    }
}

/// What a pass over rows of this width is.
fn sizes(num_rows: usize, num_before: usize, num_new: usize) -> PassSizes {
    PassSizes { num_rows, num_before, num_new, shares: true, num_logits: num_rows }
}

/// By what rows are ordered, so that those of a pass have similar lengths: what precedes the last
/// message is mostly the prefix.
fn num_bytes_of_last(prompt: &PromptInput) -> usize {
    match prompt {
        PromptInput::Messages(messages)
        | PromptInput::After { messages, .. }
        | PromptInput::OpenTurn(messages)
        | PromptInput::Continuation(messages) => {
            messages.last().map_or(0, |message| message.content.len())
        }
        PromptInput::Turns(prompt) => prompt.turns.last().map_or(0, |turn| turn.content().len()),
        PromptInput::Text(text) | PromptInput::MoreText(text) => text.len(),
        PromptInput::Tokens(tokens) => tokens.len(),
        PromptInput::Assembled(prompt) => prompt.tokens.len(),
    }
}
