//! The vectors of texts.
//!
//! ```text
//! Engine::embed ─▶ submit: what the model's texts need ─▶ a thread of its own: tokens of inputs
//!                                                            │ Job::Embed
//!                                                            ▼
//!      vectors, in the order of the inputs ◀── Embedding, a task: passes of rows alike in length
//! ```

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;

use cairn_lm::models::Model;
use cairn_lm::{
    Embedder, EmbeddingSettings, LmError, LoadedModel, ModelMemory, PassSizes, Tokenizer,
};
use tokio::sync::oneshot;

use crate::EngineError;
use crate::slice_limits::SliceLimits;

/// The most rows of a pass.
const MAX_ROWS: usize = 64;
/// The most tokens of a pass of several rows, padding included, as in their caches.
const MAX_PASS_TOKENS: usize = 16 << 10;

/// Asks for the vectors of some inputs.
#[derive(Debug, Clone, Default)]
pub struct EmbedRequest {
    /// The name of a loaded model; `None` for the model that was loaded last.
    pub model: Option<String>,
    /// Inputs, each of which becomes a vector.
    pub inputs: Vec<EmbedInput>,
    /// The length to which vectors are cut; the model's own without one.
    pub dimensions: Option<usize>,
}

/// An input that becomes a vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EmbedInput {
    /// A text. It gets the tokens that the model expects around it.
    Text(String),
    /// Token ids, which are used as they are.
    Tokens(Vec<u32>),
}

/// The vectors of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// One for each input, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// The tokens of all inputs together.
    pub num_tokens: usize,
}

/// Why an input has no vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputProblem {
    /// It has no text and no tokens.
    Empty,
    /// It does not fit.
    TooLong {
        /// Its tokens.
        num_tokens: usize,
        /// The most that the model takes.
        max_tokens: usize,
    },
    /// It names a token that the model does not have.
    UnknownToken {
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// The tokenizer failed on it.
    Tokenizer(String),
}

impl fmt::Display for InputProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputProblem::Empty => formatter.write_str("is empty: send a text, or token ids"),
            InputProblem::TooLong { num_tokens, max_tokens } => write!(
                formatter,
                "has {num_tokens} tokens, but the model takes {max_tokens}: cut it into parts"
            ),
            InputProblem::UnknownToken { token, vocab_size } => write!(
                formatter,
                "has the token id {token}, which is outside the vocabulary of {vocab_size}"
            ),
            InputProblem::Tokenizer(reason) => write!(formatter, "has no tokens: {reason}"),
        }
    }
}

/// The parts of a model that turn inputs into tokens, away from the engine's thread.
pub(crate) struct InputReader {
    tokenizer: Arc<Tokenizer>,
    prompt: Option<String>,
    max_tokens: usize,
    vocab_size: usize,
}

impl InputReader {
    /// Fails if no vectors of this length can be made with the model.
    pub(crate) fn new(
        loaded: &LoadedModel,
        dimensions: Option<usize>,
    ) -> Result<Self, EngineError> {
        let settings = settings(loaded)?;
        let size = loaded.model.hidden_size()?;
        if let Some(dimensions) = dimensions.filter(|dimensions| !(1..=size).contains(dimensions)) {
            return Err(EngineError::Refused(LmError::OutOfRange {
                name: "dimensions",
                value: dimensions.to_string(),
                allowed: format!("from 1 to {size}, the length of this model's vectors"),
            }));
        }
        let context_length = loaded.model.context_length();
        Ok(InputReader {
            tokenizer: Arc::clone(&loaded.tokenizer),
            prompt: settings.prompt.clone(),
            max_tokens: settings.max_tokens.unwrap_or(context_length).min(context_length),
            vocab_size: loaded.model.vocab_size(),
        })
    }

    /// The tokens of each input. Fails on the first input that cannot have a vector; ends with
    /// [`EngineError::Closed`] once no one waits. Runs on a thread of its own: long texts take
    /// seconds.
    pub(crate) async fn read(self, inputs: Vec<EmbedInput>) -> Result<Vec<Vec<u32>>, EngineError> {
        let (reply, answer) = oneshot::channel();
        let thread = std::thread::Builder::new().name("cairn-embed".to_owned());
        let read = move || {
            let mut rows = Vec::with_capacity(inputs.len());
            for (index, input) in inputs.into_iter().enumerate() {
                if reply.is_closed() {
                    return;
                }
                match self.tokens(input) {
                    Ok(tokens) => rows.push(tokens),
                    Err(problem) => {
                        return drop(reply.send(Err(EngineError::Input { index, problem })));
                    }
                }
            }
            drop(reply.send(Ok(rows)));
        };
        thread.spawn(read).map_err(|_| EngineError::Closed)?;
        answer.await.unwrap_or(Err(EngineError::Closed))
    }

    fn tokens(&self, input: EmbedInput) -> Result<Vec<u32>, InputProblem> {
        let tokens = match input {
            EmbedInput::Text(text) if text.is_empty() => return Err(InputProblem::Empty),
            EmbedInput::Text(text) => {
                let prompt = self.prompt.as_deref().unwrap_or_default();
                let tokens = self.tokenizer.encode_whole(&format!("{prompt}{text}"));
                tokens.map_err(|error| InputProblem::Tokenizer(error.to_string()))?
            }
            EmbedInput::Tokens(tokens) => tokens,
        };
        let (num_tokens, max_tokens) = (tokens.len(), self.max_tokens);
        let (vocab_size, mut ids) = (self.vocab_size, tokens.iter());
        if num_tokens == 0 {
            return Err(InputProblem::Empty);
        }
        if num_tokens > max_tokens {
            return Err(InputProblem::TooLong { num_tokens, max_tokens });
        }
        match ids.find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(InputProblem::UnknownToken { token, vocab_size }),
            None => Ok(tokens),
        }
    }
}

fn settings(loaded: &LoadedModel) -> Result<&EmbeddingSettings, EngineError> {
    let settings = loaded.embedding.as_ref();
    settings.map_err(|reason| LmError::Embedding { reason: reason.clone() }.into())
}

/// Rows that become vectors. Rows of similar lengths share a pass.
#[derive(Debug)]
pub(crate) struct Embedding {
    model: Model,
    settings: EmbeddingSettings,
    dimensions: Option<usize>,
    /// The shortest last, as it is taken first; each with its place among the inputs.
    waiting: Vec<(usize, Vec<u32>)>,
    pass: Option<Pass>,
    vectors: Vec<Vec<f32>>,
    num_tokens: usize,
}

#[derive(Debug)]
struct Pass {
    embedder: Embedder,
    /// The places of its rows among the inputs.
    places: Vec<usize>,
    bytes: u64,
}

impl Embedding {
    /// Reads nothing yet. Fails if no vectors can be made with the model.
    pub(crate) fn new(
        loaded: &LoadedModel,
        rows: Vec<Vec<u32>>,
        dimensions: Option<usize>,
    ) -> Result<Self, EngineError> {
        let num_tokens = rows.iter().map(Vec::len).sum();
        let vectors = vec![Vec::new(); rows.len()];
        let mut waiting: Vec<_> = rows.into_iter().enumerate().collect();
        waiting.sort_by_key(|(_, row)| Reverse(row.len()));
        let (model, settings) = (loaded.model.clone(), settings(loaded)?.clone());
        Ok(Embedding { model, settings, dimensions, waiting, pass: None, vectors, num_tokens })
    }

    /// How many tokens have been read, of how many, padding left out.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let in_pass = self.pass.as_ref().map_or(0, |pass| pass.embedder.num_left());
        let left = in_pass + self.waiting.iter().map(|(_, row)| row.len()).sum::<usize>();
        (self.num_tokens - left, self.num_tokens)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.pass.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.pass.as_ref().map_or(0, |pass| pass.bytes)
    }

    pub(crate) fn least_bytes(&self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        match (&self.pass, self.waiting.last()) {
            (None, Some((_, row))) => pass_bytes(memory, max_tokens, 1, row.len()),
            _ => 0,
        }
    }

    /// Reads a slice and returns how many tokens passed through the model, padding included.
    pub(crate) fn advance(&mut self, limits: SliceLimits) -> Result<usize, EngineError> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => self.begin_pass(limits)?,
        };
        let num_computed = pass.embedder.read(limits.max_tokens)?;
        if pass.embedder.num_left() > 0 {
            self.pass = Some(pass);
            return Ok(num_computed);
        }
        for (place, mut vector) in pass.places.into_iter().zip(pass.embedder.finish()?) {
            vector.truncate(self.dimensions.unwrap_or(usize::MAX));
            self.settings.finish(&mut vector);
            self.vectors[place] = vector;
        }
        Ok(num_computed)
    }

    /// Takes the next rows, as many as fit together with little padding.
    fn begin_pass(&mut self, limits: SliceLimits) -> Result<Pass, EngineError> {
        let (mut rows, mut places, mut bytes, mut num_own) = (Vec::new(), Vec::new(), 0, 0);
        while let Some((_, next)) = self.waiting.last() {
            // Rows come in the order of their lengths: this is the longest so far.
            let (num_rows, width) = (rows.len() + 1, next.len());
            let num_padded = num_rows * width;
            let is_wasteful = 4 * num_padded > 5 * (num_own + width) + 4 * 32;
            let is_full = num_rows > MAX_ROWS || num_padded > MAX_PASS_TOKENS;
            let more = match limits.memory {
                Some((memory, _)) => pass_bytes(memory, limits.max_tokens, num_rows, width),
                None => 0,
            };
            let has_room = limits.memory.is_none_or(|(_, free_bytes)| more <= free_bytes);
            if !rows.is_empty() && (is_wasteful || is_full || !has_room) {
                break;
            }
            (bytes, num_own) = (more, num_own + width);
            if let Some((place, row)) = self.waiting.pop() {
                places.push(place);
                rows.push(row);
            }
        }
        let embedder = Embedder::new(&self.model, rows, self.settings.pooling)?;
        Ok(Pass { embedder, places, bytes })
    }

    /// The vectors, once all rows are read.
    pub(crate) fn finish(self) -> Embeddings {
        Embeddings { vectors: self.vectors, num_tokens: self.num_tokens }
    }
}

/// Returns the bytes of a pass over rows that are read in slices, without logits.
fn pass_bytes(memory: &ModelMemory, max_tokens: usize, num_rows: usize, width: usize) -> u64 {
    let num_new = (max_tokens / num_rows).clamp(1, width.max(1));
    let num_before = width.saturating_sub(num_new);
    memory.pass_bytes(&PassSizes { num_rows, num_before, num_new, shares: false, num_logits: 0 })
}
