//! Prefill: one chunk of each prompt per round, several prompts in one forward pass if that wastes
//! little on padding.

use std::time::Duration;

use cairn_chat::StopTokens;
use mlx_rs::Array;
use mlx_rs::transforms::eval;

use super::decode_batch::{PendingRow, Row};
use super::{BatchOptions, BatchRequest, BatchStep, PromptProgress, RequestId, RowState};
use crate::cache::batch::{batch_spec, extract, merge, prepare};
use crate::cache::{CacheSpec, Choice, LayerCache, SnapKv, forget_queries, observe_queries};
use crate::generate::{check_tokens, finish_pass, num_cached, token_limit};
use crate::models::Model;
use crate::{LmError, memory};

/// Chunks up to this length share a pass whatever the padding: a pass over so few tokens is bound
/// by reading the weights.
const SHORT_CHUNK: usize = 32;

/// How long others wait at once while a row chooses what is kept of its prompt, about.
const CHOOSING_PART: Duration = Duration::from_millis(50);

/// A request that waits for prefill or is in it.
#[derive(Debug)]
pub(super) struct Prefilling {
    row: Row,
    caches: Vec<LayerCache>,
    /// What is kept of the prompt once all but its last token has been read.
    snapkv: Option<SnapKv>,
    choice: Choice,
    prompt: Vec<u32>,
    num_processed: usize,
    boundaries: Vec<usize>,
}

impl Prefilling {
    pub(super) fn new(
        id: RequestId,
        mut request: BatchRequest,
        model: &Model,
        options: &BatchOptions,
        stop: &StopTokens,
    ) -> Result<Self, LmError> {
        if request.max_tokens == 0 {
            return Err(LmError::NoTokensAskedFor);
        }
        check_tokens(&request.prompt, model.vocab_size())?;
        check_tokens(&request.cached_tokens, model.vocab_size())?;
        let expected = model.cache_spec().layers().len();
        if let Some(caches) = &request.caches {
            if caches.len() != expected {
                return Err(LmError::CacheLayers { found: caches.len(), expected });
            }
            let held = num_cached(caches);
            if !request.cached_tokens.is_empty() && held != request.cached_tokens.len() {
                return Err(LmError::CachedTokens { held, named: request.cached_tokens.len() });
            }
        }
        if request.prompt.is_empty() {
            reread_cached_tokens(&mut request)?;
        }
        let num_held = request.caches.as_deref().map_or(0, num_cached);
        request.max_tokens =
            token_limit(request.max_tokens, num_held + request.prompt.len(), model);
        let mut caches =
            request.caches.take().unwrap_or_else(|| new_caches(model, options.max_kv_size));
        request.snapkv.map_or(Ok(()), |snapkv| snapkv.check())?;
        // A decode step reads the last token, so where it is the only one nothing is left to choose by.
        request.snapkv = request.snapkv.filter(|_| request.prompt.len() > 1);
        match request.snapkv {
            Some(_) => observe_queries(&mut caches),
            None => forget_queries(&mut caches),
        }
        let boundaries = request
            .boundaries
            .iter()
            .copied()
            .filter(|&position| position > 0 && position < request.prompt.len())
            .collect();
        let prompt = std::mem::take(&mut request.prompt);
        let stop = match request.stop.is_empty() {
            true => stop.clone(),
            false => StopTokens::new(options.stop.iter().chain(&request.stop).cloned().collect()),
        };
        Ok(Prefilling {
            snapkv: request.snapkv.take(),
            choice: Choice::default(),
            row: Row::new(id, request, stop),
            caches,
            prompt,
            num_processed: 0,
            boundaries,
        })
    }

    pub(super) fn id(&self) -> RequestId {
        self.row.id
    }

    /// Adds a position at which a chunk ends.
    pub(super) fn add_boundary(&mut self, position: usize) {
        if position > self.num_processed && position < self.prompt.len() {
            self.boundaries.push(position);
        }
    }

    /// Bytes of the row's caches.
    pub(super) fn cache_nbytes(&self) -> usize {
        self.caches.iter().map(LayerCache::nbytes).sum()
    }

    /// Whether only the last token is left, which the first decode step reads, and nothing to choose.
    pub(super) fn is_ready(&self) -> bool {
        self.is_read() && self.snapkv.is_none()
    }

    fn is_read(&self) -> bool {
        self.num_processed + 1 == self.prompt.len()
    }

    /// How many tokens are not read yet.
    pub(super) fn num_unread(&self) -> usize {
        self.prompt.len() - self.num_processed
    }

    /// The progress of a prompt whose decoding begins.
    pub(super) fn finished(&self) -> PromptProgress {
        let total = self.prompt.len();
        PromptProgress {
            id: self.id(),
            processed: total,
            total,
            end_of_segment: true,
            end_of_prompt: true,
            compressed: None,
        }
    }

    pub(super) fn into_pending_row(self) -> PendingRow {
        PendingRow {
            row: self.row,
            caches: self.caches,
            input: self.prompt.last().copied().unwrap_or(0),
        }
    }

    pub(super) fn state(&self) -> RowState {
        RowState { caches: self.caches.clone(), tokens: self.row.tokens.clone() }
    }

    /// The state of a removed row; its caches are empty unless the request asked for them.
    pub(super) fn into_state(self) -> RowState {
        let caches = if self.row.returns_caches { self.caches } else { Vec::new() };
        RowState { caches, tokens: self.row.tokens }
    }

    /// The end of the next chunk: after a step, at a boundary, or before the last token.
    fn chunk_end(&self, step_size: usize) -> usize {
        let end = (self.num_processed + step_size).min(self.prompt.len() - 1);
        self.boundaries
            .iter()
            .copied()
            .filter(|&position| position > self.num_processed)
            .fold(end, usize::min)
    }

    fn chunk(&self, step_size: usize) -> &[u32] {
        &self.prompt[self.num_processed..self.chunk_end(step_size)]
    }

    fn advance(&mut self, step_size: usize) -> PromptProgress {
        let end = self.chunk_end(step_size);
        self.row.tokens.extend_from_slice(&self.prompt[self.num_processed..end]);
        self.num_processed = end;
        // What is chosen at the end of the prompt is not there yet.
        let is_choosing = self.is_read() && self.snapkv.is_some();
        let end_of_segment = self.is_ready() || self.boundaries.contains(&end) && !is_choosing;
        PromptProgress {
            id: self.id(),
            processed: end,
            total: self.prompt.len(),
            end_of_segment,
            end_of_prompt: false,
            compressed: None,
        }
    }

    /// Whether the row must not share passes: the queries of a row in a batch are not remembered.
    fn reads_alone(&self) -> bool {
        self.snapkv.is_some()
    }

    /// Chooses what is kept of a prompt that has been read, for a while. Once all is chosen, drops the
    /// rest and returns where the prompt stands.
    fn choose(&mut self) -> Result<Option<PromptProgress>, LmError> {
        let Some(snapkv) = self.snapkv else { return Ok(None) };
        if !self.choice.advance(&self.caches, &snapkv, CHOOSING_PART)? {
            return Ok(None);
        }
        self.snapkv = None;
        let compressed = std::mem::take(&mut self.choice).apply(&mut self.caches, &snapkv)?;
        Ok(Some(PromptProgress {
            id: self.id(),
            processed: self.num_processed,
            total: self.prompt.len(),
            end_of_segment: true,
            end_of_prompt: false,
            compressed,
        }))
    }
}

/// For a request whose whole prompt is cached: trims the last token so that it is read again; reads
/// the whole prompt again if the caches cannot be trimmed.
fn reread_cached_tokens(request: &mut BatchRequest) -> Result<(), LmError> {
    let Some(&last) = request.cached_tokens.last() else { return Err(LmError::EmptyPrompt) };
    match &mut request.caches {
        Some(caches) if caches.iter().all(LayerCache::is_trimmable) => {
            for cache in caches {
                cache.trim(1);
            }
            request.cached_tokens.pop();
            request.prompt = vec![last];
        }
        _ => {
            request.caches = None;
            request.prompt = std::mem::take(&mut request.cached_tokens);
        }
    }
    Ok(())
}

fn new_caches(model: &Model, max_kv_size: Option<usize>) -> Vec<LayerCache> {
    match max_kv_size {
        Some(max_size) => model.cache_spec().bounded(max_size, 0).make(),
        None => model.make_cache(),
    }
}

/// Reads the next chunk of every row and returns the number of tokens read. Rows that fail are
/// reported in `step` and must be dropped.
pub(super) fn prefill_chunks(
    model: &Model,
    rows: &mut [Prefilling],
    step_size: usize,
    step: &mut BatchStep,
) -> usize {
    groups(rows, step_size)
        .into_iter()
        .map(|group| read_group(model, rows, &group, step_size, step))
        .sum()
}

/// A pass over fewer tokens than this part of a slice is left to the next slice: it would read all
/// weights for little.
const MIN_PART_OF_SLICE: usize = 4;

/// Reads at most `max_tokens`, padding included, and returns the number of tokens read. It finishes
/// one prompt before the next, the one with the fewest unread tokens first, or the oldest one with
/// `oldest_first`. The order of the rows changes. Rows that fail are reported in `step` and must be
/// dropped.
pub(super) fn prefill_slice(
    model: &Model,
    rows: &mut [Prefilling],
    max_tokens: usize,
    oldest_first: bool,
    step: &mut BatchStep,
) -> usize {
    let oldest = rows.iter().map(Prefilling::id).min().filter(|_| oldest_first);
    rows.sort_by_key(|row| (Some(row.id()) != oldest, row.num_unread(), row.id()));
    let (mut num_tokens, mut num_left, mut num_waiting) = (0, max_tokens, rows.len());
    while num_waiting > 0 && num_left * MIN_PART_OF_SLICE >= max_tokens {
        let waiting = &mut rows[..num_waiting];
        let group = group_of_first(waiting, num_left);
        let longest = group.iter().map(|&index| waiting[index].chunk(num_left).len()).max();
        num_tokens += read_group(model, waiting, &group, num_left, step);
        num_left -= (longest.unwrap_or(0) * group.len()).min(num_left);
        num_waiting -= group.len();
        rotate_to_end(rows, &group);
    }
    num_tokens
}

/// Moves the elements at the ascending `indices` behind the others; both keep their order.
fn rotate_to_end<T>(elements: &mut [T], indices: &[usize]) {
    for (num_moved, index) in indices.iter().enumerate() {
        elements[index - num_moved..].rotate_left(1);
    }
}

/// The rows that share a pass with the first one, in ascending order.
fn group_of_first(rows: &[Prefilling], step_size: usize) -> Vec<usize> {
    let with_first = groups(rows, step_size).into_iter().find(|group| group.contains(&0));
    let mut group = with_first.unwrap_or_else(|| vec![0]);
    group.sort_unstable();
    group
}

/// Reads the next chunk of the rows `group`, in one pass if there are several.
fn read_group(
    model: &Model,
    rows: &mut [Prefilling],
    group: &[usize],
    step_size: usize,
    step: &mut BatchStep,
) -> usize {
    let mut num_tokens = 0;
    if group.len() > 1 && prefill_group(model, rows, group, step_size).is_ok() {
        for &index in group {
            num_tokens += rows[index].chunk(step_size).len();
            step.prompts.push(rows[index].advance(step_size));
        }
        return num_tokens;
    }
    // A failed pass over several rows left their own caches unchanged. Run one by one, only the row
    // at fault fails again.
    for &index in group {
        let row = &mut rows[index];
        let length = row.chunk(step_size).len();
        let progress = match row.is_read() {
            true => row.choose(),
            false => prefill_one(model, row, step_size).map(|()| Some(row.advance(step_size))),
        };
        match progress {
            Ok(progress) => {
                num_tokens += length;
                step.prompts.extend(progress);
            }
            Err(error) => step.failed.push((row.id(), error)),
        }
    }
    num_tokens
}

/// Groups the rows that share a pass: their caches are of the same kinds, their chunks of similar
/// length, and the padded total is at most `step_size` tokens.
fn groups(rows: &[Prefilling], step_size: usize) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = rows.iter().map(|row| row.chunk(step_size).len()).collect();
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut groups: Vec<(Option<CacheSpec>, Vec<usize>)> = Vec::new();
    for index in order {
        let is_alone = rows[index].reads_alone();
        let spec = if is_alone { None } else { batch_spec(&rows[index].caches).ok() };
        let fits = |group: &&mut (Option<CacheSpec>, Vec<usize>)| {
            let longest = lengths[group.1[0]];
            let wastes_little = longest <= SHORT_CHUNK || lengths[index] * 4 >= longest * 3;
            are_batchable(&group.0, &spec)
                && wastes_little
                && longest * (group.1.len() + 1) <= step_size
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.1.push(index),
            None => groups.push((spec, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Whether caches of two specs can be rows of one batch; `None` is a spec that cannot.
pub(super) fn are_batchable(one: &Option<CacheSpec>, other: &Option<CacheSpec>) -> bool {
    one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.can_batch_with(other))
}

fn prefill_one(model: &Model, row: &mut Prefilling, step_size: usize) -> Result<(), LmError> {
    let chunk = row.chunk(step_size);
    let tokens = Array::from_slice(chunk, &[1, chunk.len() as i32]);
    model.forward(&tokens, &mut row.caches)?;
    finish_pass(&row.caches)
}

/// Reads the chunks of several rows in one pass. On an error the rows are unchanged.
fn prefill_group(
    model: &Model,
    rows: &mut [Prefilling],
    group: &[usize],
    step_size: usize,
) -> Result<(), LmError> {
    let lengths: Vec<i32> =
        group.iter().map(|&index| rows[index].chunk(step_size).len() as i32).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut tokens = Vec::with_capacity(group.len() * longest as usize);
    for (end, &index) in (1..).zip(group) {
        tokens.extend_from_slice(rows[index].chunk(step_size));
        tokens.resize(end * longest as usize, 0);
    }
    let mut caches = merge(group.iter().map(|&index| rows[index].caches.clone()).collect())?;
    if lengths.iter().any(|&length| length < longest) {
        prepare(&mut caches, &lengths)?;
    }
    model.forward(&Array::from_slice(&tokens, &[group.len() as i32, longest]), &mut caches)?;
    let read = (0..group.len()).map(|row| extract(&caches, row)).collect::<Result<Vec<_>, _>>()?;
    eval(read.iter().flatten().flat_map(LayerCache::arrays))?;
    for (&index, caches) in group.iter().zip(read) {
        rows[index].caches = caches;
    }
    memory::clear_cache();
    Ok(())
}
