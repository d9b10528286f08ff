//! Sequences that decode together in one forward pass: one token per row and step, in a pipeline
//! two steps deep.

use cairn_chat::{FinishReason, StopTokens};
use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Array, ops};

use super::{BatchFinish, BatchRequest, BatchStep, BatchToken, RequestId, RowState};
use crate::cache::batch::{batch_spec, extend, extract, filter, merge};
use crate::cache::{CacheSpec, LayerCache, row_indices};
use crate::constraint::{ConstrainedRow, launch_masked};
use crate::models::Model;
use crate::sample::{likeliest_token, logprobs};
use crate::{LmError, LogitsProcessors, Logprobs, RandomSampler, Sampler, TokenBuffer, ffi};

/// The state of one sequence.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: RequestId,
    /// The tokens that the caches hold, from `cached_tokens` on.
    pub(super) tokens: Vec<u32>,
    sampler: Sampler,
    processors: LogitsProcessors,
    /// The tokens that processors see; `None` without processors but a grammar.
    history: Option<TokenBuffer>,
    stop: StopTokens,
    num_sampled: usize,
    max_tokens: usize,
    num_top_logprobs: Option<usize>,
    pub(super) returns_caches: bool,
    /// The log-probabilities `[1, V]` from which the row's next input was sampled.
    logprobs: Option<Array>,
    /// Whether the row's next input was sampled; the first one is the prompt's last token.
    is_input_sampled: bool,
}

impl Row {
    pub(super) fn new(id: RequestId, request: BatchRequest, stop: StopTokens) -> Self {
        Row {
            id,
            tokens: request.cached_tokens,
            sampler: request.sampler,
            processors: request.processors,
            history: None,
            stop,
            num_sampled: 0,
            max_tokens: request.max_tokens,
            num_top_logprobs: request.num_top_logprobs,
            returns_caches: request.return_caches,
            logprobs: None,
            is_input_sampled: false,
        }
    }

    /// Whether the next input is the last token that may be sampled.
    fn is_at_limit(&self) -> bool {
        self.is_input_sampled && self.num_sampled + 1 >= self.max_tokens
    }

    /// Counts a sampled token and returns why it ends the sequence, if it does; a stop sequence
    /// takes precedence over the length.
    fn push(&mut self, token: u32) -> Option<FinishReason> {
        self.num_sampled += 1;
        if self.stop.push(token).is_some() {
            return Some(FinishReason::Stop);
        }
        (self.num_sampled >= self.max_tokens).then_some(FinishReason::Length)
    }

    /// Counts and reports a sampled token; returns why it ends the sequence, if it does.
    /// `logprobs` `[1, V]` are those that it was sampled from.
    fn report(
        &mut self,
        token: u32,
        logprobs: Option<Array>,
        step: &mut BatchStep,
    ) -> Result<Option<FinishReason>, LmError> {
        let reason = self.push(token);
        let num_top = self.num_top_logprobs.unwrap_or(0);
        let read =
            |logprobs: Array| Logprobs::read(ops::reshape(&logprobs, &[-1])?, token, num_top);
        let logprobs = logprobs.map(read).transpose()?;
        step.tokens.push(BatchToken { id: self.id, token, logprobs, finish: None });
        Ok(reason)
    }

    fn random_sampler(&mut self) -> Option<&mut RandomSampler> {
        if let Sampler::Random(sampler) = &mut self.sampler { Some(sampler) } else { None }
    }

    /// Applies the row's processors but its grammar to its logits `[1, V]`, of the token after
    /// `input` `[1]`.
    fn process(&mut self, input: &Array, logits: Array) -> Result<Array, LmError> {
        let tokens = &self.tokens;
        let history = self.history.get_or_insert_with(|| TokenBuffer::from_tokens(tokens));
        history.append(input)?;
        self.processors.apply_unconstrained(history, logits)
    }
}

/// A row that is about to enter a decode batch: its own caches, and the one token that they do not
/// hold yet.
#[derive(Debug)]
pub(super) struct PendingRow {
    pub(super) row: Row,
    pub(super) caches: Vec<LayerCache>,
    pub(super) input: u32,
}

impl PendingRow {
    pub(super) fn id(&self) -> RequestId {
        self.row.id
    }
}

/// The rows of one forward pass.
///
/// - `caches` are plain while there is one row, and batched from the second on.
/// - `inputs` are the tokens that the next pass reads. Sampled ones may not be computed yet.
#[derive(Debug)]
pub(super) struct DecodeBatch {
    /// `None` if the caches have no batched form, so that no row can join.
    pub(super) spec: Option<CacheSpec>,
    rows: Vec<Row>,
    caches: Vec<LayerCache>,
    inputs: Array, // u32 [B]
}

impl DecodeBatch {
    /// A batch of the rows `pending`, whose caches must be of the same kinds.
    pub(super) fn new(pending: Vec<PendingRow>) -> Result<Self, LmError> {
        let inputs = inputs(&pending);
        let (rows, mut caches): (Vec<Row>, Vec<Vec<LayerCache>>) =
            pending.into_iter().map(|pending| (pending.row, pending.caches)).unzip();
        let spec = caches.first().and_then(|caches| batch_spec(caches).ok());
        let caches = if rows.len() == 1 { caches.remove(0) } else { merge(caches)? };
        Ok(DecodeBatch { spec, rows, caches, inputs })
    }

    pub(super) fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of the caches of all rows.
    pub(super) fn cache_nbytes(&self) -> usize {
        self.caches.iter().map(LayerCache::nbytes).sum()
    }

    pub(super) fn returns_caches(&self, row: usize) -> bool {
        self.rows[row].returns_caches
    }

    pub(super) fn tokens(&self, row: usize) -> &[u32] {
        &self.rows[row].tokens
    }

    pub(super) fn position(&self, id: RequestId) -> Option<usize> {
        self.rows.iter().position(|row| row.id == id)
    }

    /// Adds rows whose caches are of the batch's kinds. On an error the batch is unchanged.
    pub(super) fn extend(&mut self, pending: Vec<PendingRow>) -> Result<(), LmError> {
        let inputs = ops::concatenate(&[self.inputs.clone(), inputs(&pending)], 0)?;
        let (rows, mut added): (Vec<Row>, Vec<Vec<LayerCache>>) =
            pending.into_iter().map(|pending| (pending.row, pending.caches)).unzip();
        let mut caches = self.caches.clone();
        if self.rows.len() == 1 {
            added.insert(0, caches);
            caches = merge(added)?;
        } else {
            extend(&mut caches, merge(added)?)?;
        }
        (self.caches, self.inputs) = (caches, inputs);
        self.rows.extend(rows);
        // Each layer is copied and its old buffers are dropped before the next one, so that long rows
        // are not in memory twice, and the next step does not wait for copies. What fails here fails
        // again in that step, which reports it.
        for cache in &self.caches {
            let _ = eval(cache.arrays());
        }
        Ok(())
    }

    /// A copy of the caches and tokens of a row.
    pub(super) fn state(&self, row: usize) -> Result<RowState, LmError> {
        let tokens = self.rows[row].tokens.clone();
        if self.rows.len() == 1 {
            return Ok(RowState { caches: self.caches.clone(), tokens });
        }
        let caches = extract(&self.caches, row)?;
        // Unevaluated copies would keep the buffers of all rows alive.
        async_eval(caches.iter().flat_map(LayerCache::arrays))?;
        Ok(RowState { caches, tokens })
    }

    /// Keeps only the rows `kept`, in that order.
    pub(super) fn filter(&mut self, kept: &[usize]) -> Result<(), LmError> {
        self.split_off(&[], kept).map(|_| ())
    }

    /// Keeps only the rows `kept`, in that order, and returns the state of the rows `leaving`; its
    /// caches are empty unless the row's request asked for them.
    fn split_off(&mut self, leaving: &[usize], kept: &[usize]) -> Result<Vec<RowState>, LmError> {
        if kept.len() == self.rows.len() {
            return Ok(Vec::new());
        }
        let state =
            |&row: &usize| RowState { caches: Vec::new(), tokens: self.rows[row].tokens.clone() };
        let mut states: Vec<RowState> = leaving.iter().map(state).collect();
        // The states that get caches, with their rows.
        let mut returning: Vec<(&mut RowState, usize)> = states
            .iter_mut()
            .zip(leaving.iter().copied())
            .filter(|&(_, row)| self.rows[row].returns_caches)
            .collect();
        let caches = std::mem::take(&mut self.caches);
        if self.rows.len() == 1 {
            if let [(state, _)] = returning.as_mut_slice() {
                state.caches = caches;
            }
        } else {
            // Each layer is evaluated and its batch dropped before the next one, so that many rows
            // that end together are not in memory twice.
            for cache in caches {
                let mut cache = [cache];
                for (state, row) in &mut returning {
                    state.caches.extend(extract(&cache, *row)?);
                }
                match *kept {
                    [] => {}
                    [row] => self.caches.extend(extract(&cache, row)?),
                    _ => {
                        filter(&mut cache, kept)?;
                        self.caches.extend(cache);
                    }
                }
                if !returning.is_empty() {
                    let extracted = returning.iter().filter_map(|(state, _)| state.caches.last());
                    eval(extracted.chain(self.caches.last()).flat_map(LayerCache::arrays))?;
                }
            }
        }
        self.inputs = self.inputs.take_axis(row_indices(kept), 0)?;
        let mut index = 0;
        self.rows.retain(|_| {
            index += 1;
            kept.contains(&(index - 1))
        });
        Ok(states)
    }

    /// Launches the next pass, then waits for the tokens of the one before it, reports them and
    /// removes finished rows.
    pub(super) fn step(&mut self, model: &Model, step: &mut BatchStep) -> Result<(), LmError> {
        let inputs = self.inputs.clone();
        let logprobs: Vec<Option<Array>> =
            self.rows.iter_mut().map(|row| row.logprobs.take()).collect();
        let was_sampled: Vec<bool> = self.rows.iter().map(|row| row.is_input_sampled).collect();
        // A stop sequence is only known after the next pass has been launched; the length limit is
        // known before, so that pass is saved.
        let launches = !self.rows.iter().all(Row::is_at_limit);
        let mut failed = Vec::new();
        let is_read = launches && self.launch_or_fail(model, &mut failed)?;
        let tokens = inputs.try_as_slice::<u32>()?.to_vec();
        let (mut kept, mut leaving, mut ends) =
            (Vec::with_capacity(self.rows.len()), Vec::new(), Vec::new());
        for (index, logprobs) in logprobs.into_iter().enumerate() {
            let row = &mut self.rows[index];
            if is_read {
                row.tokens.push(tokens[index]);
            }
            if was_sampled[index]
                && let Some(reason) = row.report(tokens[index], logprobs, step)?
            {
                leaving.push(index);
                ends.push((step.tokens.len() - 1, reason));
                continue;
            }
            match failed.iter().position(|(failed, _)| *failed == index) {
                Some(position) => {
                    step.failed.push((self.rows[index].id, failed.swap_remove(position).1));
                }
                None => kept.push(index),
            }
        }
        for (RowState { caches, tokens }, (position, reason)) in
            self.split_off(&leaving, &kept)?.into_iter().zip(ends)
        {
            step.tokens[position].finish = Some(BatchFinish { reason, caches, tokens });
        }
        Ok(())
    }

    /// Launches a pass and returns whether the caches will hold its inputs.
    ///
    /// A pass over one row fails for that row only. Its layers may have read different numbers of
    /// tokens, so the caches cannot be used again.
    fn launch_or_fail(
        &mut self,
        model: &Model,
        failed: &mut Vec<(usize, LmError)>,
    ) -> Result<bool, LmError> {
        match self.launch(model, failed) {
            Ok(()) => Ok(true),
            Err(error) if self.rows.len() == 1 => {
                self.caches.clear();
                self.rows[0].tokens.clear();
                failed.push((0, error));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Builds and launches the pass over `inputs` and makes its samples the next inputs. Rows whose
    /// processor or sampler fails are added to `failed`.
    fn launch(&mut self, model: &Model, failed: &mut Vec<(usize, LmError)>) -> Result<(), LmError> {
        let num_rows = self.rows.len() as i32;
        let hidden =
            model.forward(&ops::reshape(&self.inputs, &[num_rows, 1])?, &mut self.caches)?;
        let logits = ops::reshape(model.logits(&hidden)?, &[num_rows, -1])?;
        let logits = self.process(logits, failed)?;
        let logits = self.constrain(logits, failed)?;
        self.inputs = self.sample(&logits, failed)?;
        if self.rows.iter().any(|row| row.num_top_logprobs.is_some()) {
            let logprobs = logprobs(&logits)?;
            for (index, row) in
                self.rows.iter_mut().enumerate().filter(|(_, row)| row.num_top_logprobs.is_some())
            {
                row.logprobs = Some(one_row(&logprobs, index)?);
            }
        }
        for row in &mut self.rows {
            row.is_input_sampled = true;
        }
        let history =
            self.rows.iter().filter_map(|row| row.history.as_ref()).map(TokenBuffer::array);
        async_eval(
            std::iter::once(&self.inputs)
                .chain(self.rows.iter().filter_map(|row| row.logprobs.as_ref()))
                .chain(history),
        )?;
        Ok(())
    }

    /// Applies each row's processors but its grammar to the logits `[B, V]`.
    fn process(
        &mut self,
        logits: Array,
        failed: &mut Vec<(usize, LmError)>,
    ) -> Result<Array, LmError> {
        if self.rows.iter().all(|row| row.processors.has_only_constraint()) {
            return Ok(logits);
        }
        let mut processed = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter_mut().enumerate() {
            let own = one_row(&logits, index)?;
            let input = one_row(&self.inputs, index)?;
            processed.push(match row.processors.has_only_constraint() {
                true => own,
                false => row.process(&input, own.clone()).unwrap_or_else(|error| {
                    failed.push((index, error));
                    own
                }),
            });
        }
        // A custom processor that returns another shape would shift the rows after it.
        for (index, row) in processed.iter_mut().enumerate() {
            if row.shape() != [1, logits.dim(1)] {
                let shape = row.shape().to_vec();
                failed.push((
                    index,
                    LmError::ProcessedShape { expected: logits.dim(1), found: shape },
                ));
                *row = one_row(&logits, index)?;
            }
        }
        Ok(if processed.len() == 1 {
            processed.remove(0)
        } else {
            ops::concatenate(&processed, 0)?
        })
    }

    /// Masks the logits `[B, V]` of the rows that grammars constrain.
    fn constrain(
        &mut self,
        logits: Array,
        failed: &mut Vec<(usize, LmError)>,
    ) -> Result<Array, LmError> {
        if self.rows.iter_mut().all(|row| row.processors.constraint_mut().is_none()) {
            return Ok(logits);
        }
        let inputs = &self.inputs;
        let rows = self.rows.iter_mut().enumerate();
        let constrained = || {
            let inputs = inputs.try_as_slice::<u32>()?;
            let constrained = rows.filter_map(|(index, row)| {
                let constraint = row.processors.constraint_mut()?;
                let (tokens, last) = (row.tokens.as_slice(), inputs[index]);
                Some(ConstrainedRow { row: index, constraint, tokens, last })
            });
            Ok(constrained.collect())
        };
        let (logits, left) = launch_masked(&logits, ffi::is_available(inputs), constrained)?;
        failed.extend(left);
        Ok(logits)
    }

    /// Samples a token per row: logits `[B, V]` to token ids `[B]`.
    fn sample(
        &mut self,
        logits: &Array,
        failed: &mut Vec<(usize, LmError)>,
    ) -> Result<Array, LmError> {
        if self.rows.iter().all(|row| matches!(row.sampler, Sampler::Greedy)) {
            return Ok(likeliest_token(logits)?);
        }
        if self.rows.len() > 1
            && let Some(mut samplers) =
                self.rows.iter_mut().map(Row::random_sampler).collect::<Option<Vec<_>>>()
            && let Some(sampled) = RandomSampler::sample_rows(&mut samplers, logits)?
        {
            return Ok(sampled);
        }
        let mut sampled = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter_mut().enumerate() {
            let own = one_row(logits, index)?;
            sampled.push(match row.sampler.sample(&own) {
                Ok(token) => token,
                Err(error) => {
                    failed.push((index, error));
                    likeliest_token(&own)?
                }
            });
        }
        Ok(if sampled.len() == 1 { sampled.remove(0) } else { ops::concatenate(&sampled, 0)? })
    }
}

/// One row of `array` `[B, ...]`, as `[1, ...]`.
fn one_row(array: &Array, row: usize) -> Result<Array, LmError> {
    if array.dim(0) == 1 {
        return Ok(array.clone());
    }
    let (mut start, mut stop) = (vec![0; array.ndim()], array.shape().to_vec());
    start[0] = row as i32;
    stop[0] = row as i32 + 1;
    Ok(ffi::slice(array, &start, &stop)?)
}

fn inputs(pending: &[PendingRow]) -> Array {
    let tokens: Vec<u32> = pending.iter().map(|pending| pending.input).collect();
    Array::from_slice(&tokens, &[tokens.len() as i32])
}
