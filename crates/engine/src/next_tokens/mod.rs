//! What the engine's thread has of one [`AsyncLm`](crate::AsyncLm): the queries that wait, the pass
//! under way, and the keys and values of what was computed.

mod kv_store;
mod kv_tree;
mod live;
mod plan;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use cairn_lm::batch::{NextTokenLogprobs, RowCaches};
use cairn_lm::models::Model;
use cairn_lm::{LmError, ModelMemory, PassSizes, check_length};
use tokio::sync::oneshot;

use crate::EngineError;
use crate::guard::caught;
use crate::slice_limits::SliceLimits;
use kv_store::KvStore;
use live::{ComputedRow, LiveBatches, LiveMatch};
use plan::{Group, RowPlan, next_group, shared_prefix};

/// All live rows hold at most so many times the tokens that are stored.
const LIVE_PER_STORED: usize = 8;

/// Names an [`AsyncLm`](crate::AsyncLm), in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LmId(pub(crate) u64);

/// How much there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LmLimits {
    /// Tokens whose keys and values are stored.
    pub(crate) cache_size: usize,
    /// The most tokens of a row that are read at once.
    pub(crate) prefill_step_size: usize,
}

/// A question for the next token's log-probabilities.
#[derive(Debug)]
pub(crate) struct LmQuery {
    pub(crate) ids: Arc<[u32]>,
    /// Whether its keys and values are stored at once, whatever becomes of its batch.
    pub(crate) stores: bool,
    pub(crate) reply: LmReply,
}

pub(crate) type LmReply = oneshot::Sender<Result<Arc<[f32]>, EngineError>>;

/// A row to compute, and who waits for it: nobody for a prefix, which is read for the rows that
/// share it.
#[derive(Debug)]
struct Row {
    ids: Arc<[u32]>,
    stores: bool,
    /// Whether it failed together with others.
    is_alone: bool,
    is_prefix: bool,
    replies: Vec<LmReply>,
}

impl Row {
    fn new(ids: Arc<[u32]>) -> Self {
        Row { ids, stores: false, is_alone: false, is_prefix: false, replies: Vec::new() }
    }

    /// What it is for a plan, with nothing like it.
    fn plan(&self, found: &Beginning) -> RowPlan {
        let live = if let Beginning::Live(live) = found { Some(live) } else { None };
        RowPlan {
            num_new: self.ids.len() - found.num_tokens(),
            num_found: found.num_tokens(),
            found_in: live.map(|live| live.row.batch),
            live: live.filter(|live| live.is_whole).map(|live| live.row),
            alike: 0,
            is_alone: self.is_alone,
        }
    }

    fn is_wanted(&self) -> bool {
        self.is_prefix || self.replies.iter().any(|reply| !reply.is_closed())
    }
}

/// Rows that are being computed.
#[derive(Debug)]
struct Pass {
    rows: Vec<Row>,
    work: NextTokenLogprobs,
    /// How many tokens are not computed, because a row's beginning was found.
    num_found: usize,
    /// What it takes beside what was computed before.
    bytes: u64,
}

/// What was computed, in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LmCounts {
    /// Passes, of one slice or several.
    pub num_passes: usize,
    /// Rows in them.
    pub num_rows: usize,
    /// Tokens read, padding included.
    pub num_tokens: usize,
    /// Tokens that were found instead.
    pub num_found: usize,
    /// Passes that continued the caches of a batch as they were.
    pub num_moved: usize,
    /// Tokens in live rows now, padding included.
    pub live_tokens: usize,
    /// Tokens whose keys and values are stored now.
    pub stored_tokens: usize,
}

/// One for each [`AsyncLm`](crate::AsyncLm) and model, owned by the pooled model; a task that
/// computes for it holds it too.
///
/// - `rows` are those of one batch, none of them in `pass`.
#[derive(Debug)]
pub(crate) struct LmState {
    limits: LmLimits,
    model: Model,
    batches: VecDeque<Vec<LmQuery>>,
    /// The rows of the batch that was taken last that are not computed yet.
    rows: Vec<Row>,
    pass: Option<Pass>,
    live: LiveBatches,
    stored: KvStore,
    counts: LmCounts,
}

impl LmState {
    pub(crate) fn new(model: &Model, limits: LmLimits) -> Self {
        let spec = model.cache_spec();
        LmState {
            limits,
            model: model.clone(),
            batches: VecDeque::new(),
            rows: Vec::new(),
            pass: None,
            live: LiveBatches::new(spec, limits.cache_size.saturating_mul(LIVE_PER_STORED)),
            stored: KvStore::new(spec, limits.cache_size),
            counts: LmCounts::default(),
        }
    }

    /// Queues a batch.
    pub(crate) fn push(&mut self, queries: Vec<LmQuery>) {
        self.batches.push_back(queries);
    }

    /// Whether nothing is left to compute.
    pub(crate) fn is_idle(&self) -> bool {
        self.batches.is_empty() && self.rows.is_empty() && self.pass.is_none()
    }

    /// Drops the rows that nobody waits for any more. Returns whether nothing is left to compute.
    pub(crate) fn drop_abandoned(&mut self) -> bool {
        for batch in &mut self.batches {
            batch.retain(|query| !query.reply.is_closed());
        }
        self.batches.retain(|batch| !batch.is_empty());
        self.rows.retain(Row::is_wanted);
        let is_wanted = |pass: &Pass| {
            // A prefix is read for the rows that follow it.
            let own = pass.rows.iter().filter(|row| !row.is_prefix || !self.rows.is_empty());
            own.into_iter().any(Row::is_wanted)
        };
        self.pass = self.pass.take().filter(is_wanted);
        self.is_idle()
    }

    /// How many tokens the pass under way and the rows behind it have left, as far as is known.
    pub(crate) fn num_unread_tokens(&self) -> usize {
        let in_pass = self.pass.as_ref().map_or(0, |pass| pass.work.num_left());
        in_pass + self.rows.iter().map(|row| row.ids.len()).sum::<usize>()
    }

    pub(crate) fn prefill_step_size(&self) -> usize {
        let num_rows = self.pass.as_ref().map_or(1, |pass| pass.rows.len());
        self.limits.prefill_step_size.saturating_mul(num_rows)
    }

    /// Answers every query with an error that `error` makes.
    pub(crate) fn fail_all(&mut self, error: impl Fn() -> EngineError) {
        let pass = self.pass.take().map(|pass| pass.rows).unwrap_or_default();
        let rows = std::mem::take(&mut self.rows).into_iter().chain(pass);
        let of_rows = rows.flat_map(|row| row.replies);
        let waiting = std::mem::take(&mut self.batches).into_iter().flatten();
        for reply in of_rows.chain(waiting.map(|query| query.reply)) {
            let _ = reply.send(Err(error()));
        }
    }

    /// Drops what was computed. The pass under way goes on.
    pub(crate) fn clear(&mut self) {
        self.live.clear();
        self.stored.clear();
    }

    /// Drops the live rows, so that only what is stored is left.
    #[cfg(test)]
    pub(crate) fn drop_live(&mut self) {
        self.live.clear();
    }

    /// How many of the first tokens have keys and values to continue from.
    pub(crate) fn num_found(&self, ids: &[u32]) -> usize {
        let live = self.live.longest(ids, ids.len()).map_or(0, |found| found.num_tokens);
        live.max(self.stored.num_found(ids, ids.len()))
    }

    pub(crate) fn counts(&self) -> LmCounts {
        LmCounts {
            live_tokens: self.live.num_tokens(),
            stored_tokens: self.stored.num_tokens(),
            ..self.counts
        }
    }

    /// Bytes of what was computed and is held for later queries.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.live.num_bytes() + self.stored.num_bytes()) as u64
    }

    /// Bytes that the pass under way takes beside that.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.pass.as_ref().map_or(0, |pass| pass.bytes)
    }

    /// Bytes without which no pass can begin; none while one is under way.
    pub(crate) fn least_bytes(&mut self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        if self.pass.is_some() {
            return 0;
        }
        self.take_rows_of_next_batch();
        let longest = self.longest_row().map(|row| self.rows[row].ids.len());
        longest.map_or(0, |num_tokens| {
            let num_new = num_tokens.min(max_tokens).max(1);
            let (num_before, shares) = (num_tokens - num_new, false);
            let sizes = PassSizes { num_rows: 1, num_before, num_new, shares, num_logits: 1 };
            memory.pass_bytes(&sizes)
        })
    }

    /// Fails the row for which there are not that many.
    pub(crate) fn refuse(&mut self, error: EngineError) {
        if let Some(longest) = self.longest_row() {
            let row = self.rows.remove(longest);
            self.fail(vec![row], error);
        }
    }

    fn longest_row(&self) -> Option<usize> {
        (0..self.rows.len()).max_by_key(|&row| self.rows[row].ids.len())
    }

    /// Reads at most about so many tokens, and returns how many it read. A failure ends the rows at
    /// fault; rows that fail together are computed again, each alone.
    pub(crate) fn advance(&mut self, limits: SliceLimits) -> usize {
        if self.pass.is_none() {
            self.begin_pass(limits);
        }
        let Some(mut pass) = self.pass.take() else { return 0 };
        let read = caught("computing log-probabilities", || {
            let num_read = pass.work.read(limits.max_tokens)?;
            Ok((num_read, pass.work.num_left() == 0))
        });
        match read {
            Ok((num_read, is_done)) => {
                self.counts.num_tokens += num_read;
                if is_done {
                    self.end_pass(pass);
                } else {
                    self.pass = Some(pass);
                }
                num_read
            }
            Err(error) => {
                self.fail(pass.rows, error);
                0
            }
        }
    }

    /// Builds the next pass. Rows that cannot be computed are answered, until one can.
    fn begin_pass(&mut self, limits: SliceLimits) {
        while self.pass.is_none() {
            self.take_rows_of_next_batch();
            if self.rows.is_empty() {
                return;
            }
            let found: Vec<Beginning> = self.rows.iter().map(|row| self.beginning(row)).collect();
            if let Some(row) = self.prefix_row(&found) {
                let found = [self.beginning(&row)];
                let sizes = sizes(&[0], &[row.plan(&found[0])]);
                self.start_pass(vec![row], &found, None, limits.bytes_of(&sizes));
                continue;
            }
            let plans = self.plans(&found);
            let Some(group) = self.next_group(&plans, limits) else { return };
            let bytes = limits.bytes_of(&sizes(&group.rows, &plans));
            let found: Vec<Beginning> = group.rows.iter().map(|&row| found[row]).collect();
            let rows = self.take_rows(&group.rows);
            self.start_pass(rows, &found, group.moves, bytes);
        }
    }

    /// Takes the next batch that has rows to compute, if none is left of the last one.
    fn take_rows_of_next_batch(&mut self) {
        while self.rows.is_empty()
            && let Some(batch) = self.batches.pop_front()
        {
            self.take_batch(batch);
        }
    }

    /// The rows of the next pass. Where memory keeps some out, batches that no row continues go.
    fn next_group(&mut self, plans: &[RowPlan], limits: SliceLimits) -> Option<Group> {
        let can_batch = self.model.cache_spec().check_batch().is_ok();
        let most_tokens = if can_batch { limits.max_tokens } else { 0 };
        let num_live_rows = self.live.num_rows();
        let group = |fits: &dyn Fn(&PassSizes) -> bool| {
            let fits = |rows: &[usize]| fits(&sizes(rows, plans));
            next_group(plans, &num_live_rows, most_tokens, fits)
        };
        let all = group(&|_| true)?;
        let Some((memory, free_bytes)) = limits.memory else { return Some(all) };
        let fits = |bytes: u64| move |sizes: &PassSizes| memory.pass_bytes(sizes) <= bytes;
        if fits(free_bytes)(&sizes(&all.rows, plans)) {
            return Some(all);
        }
        let before = self.live.num_bytes();
        let continued: Vec<u64> = plans.iter().filter_map(|row| row.found_in).collect();
        self.live.retain(&continued);
        let freed = (before - self.live.num_bytes()) as u64;
        group(&fits(free_bytes + freed))
    }

    /// Builds a pass over `rows`, whose beginnings are `found`.
    fn start_pass(&mut self, rows: Vec<Row>, found: &[Beginning], moves: Option<u64>, bytes: u64) {
        match caught("computing log-probabilities", || self.prefixes(&rows, found, moves)) {
            Ok((work, num_found)) => self.pass = Some(Pass { rows, work, num_found, bytes }),
            Err(error) => self.fail(rows, error),
        }
    }

    /// A prefix that is read before the rows that share it, if that pays.
    fn prefix_row(&self, found: &[Beginning]) -> Option<Row> {
        if self.rows.iter().any(|row| row.is_alone) {
            return None;
        }
        let rows = self.rows.iter().zip(found);
        let rows: Vec<(&[u32], usize)> =
            rows.map(|(row, found)| (&*row.ids, found.num_tokens())).collect();
        let (row, num_tokens) = shared_prefix(&rows)?;
        let ids = Arc::from(&self.rows[row].ids[..num_tokens]);
        Some(Row { is_prefix: true, ..Row::new(ids) })
    }

    /// Answers what is known or refused, and makes one row of each of the others; equal ones share
    /// it.
    fn take_batch(&mut self, batch: Vec<LmQuery>) {
        let mut rows: HashMap<Arc<[u32]>, usize> = HashMap::new();
        for LmQuery { ids, stores, reply } in batch {
            if reply.is_closed() {
                continue;
            }
            if let Err(error) = check_ids(&ids, &self.model) {
                let _ = reply.send(Err(error.into()));
                continue;
            }
            if let Some(logprobs) = self.live.logprobs(&ids).filter(|_| !stores) {
                let _ = reply.send(Ok(logprobs));
                continue;
            }
            let row = *rows.entry(Arc::clone(&ids)).or_insert_with(|| {
                self.rows.push(Row::new(ids));
                self.rows.len() - 1
            });
            self.rows[row].stores |= stores;
            self.rows[row].replies.push(reply);
        }
    }

    /// Where the longest beginning of a row is found. Its last token is computed in any case.
    fn beginning(&self, row: &Row) -> Beginning {
        let most = row.ids.len() - 1;
        let live = self.live.longest(&row.ids, most);
        let stored = self.stored.num_found(&row.ids, most);
        match live {
            Some(live) if live.num_tokens >= stored => Beginning::Live(live),
            _ if stored > 0 => Beginning::Stored { num_tokens: stored },
            _ => Beginning::Nothing,
        }
    }

    fn plans(&self, found: &[Beginning]) -> Vec<RowPlan> {
        let plan = |index: usize| {
            let (row, own) = (&self.rows[index], found[index]);
            let is_alike = |&other: &usize| {
                found[other] == own && own.begins_alike(&self.rows[other].ids, &row.ids)
            };
            RowPlan { alike: (0..index).find(is_alike).unwrap_or(index), ..row.plan(&own) }
        };
        (0..found.len()).map(plan).collect()
    }

    /// Takes the rows at `indices` out, in that order.
    fn take_rows(&mut self, indices: &[usize]) -> Vec<Row> {
        let mut rows: Vec<Option<Row>> = self.rows.drain(..).map(Some).collect();
        let taken = indices.iter().filter_map(|&index| rows[index].take()).collect();
        self.rows = rows.into_iter().flatten().collect();
        taken
    }

    /// Puts the beginnings of the rows of a group into one set of caches, and begins its pass. Also
    /// returns how many tokens were found. Rows that begin alike stand side by side, and share what
    /// they begin with if all rows do.
    fn prefixes(
        &mut self,
        rows: &[Row],
        found: &[Beginning],
        moves: Option<u64>,
    ) -> Result<(NextTokenLogprobs, usize), EngineError> {
        let parts = match moves.and_then(|number| self.live.take(number)) {
            Some(batch) => {
                self.counts.num_moved += 1;
                vec![batch.caches]
            }
            None => self.parts(rows, found)?,
        };
        for (row, found) in rows.iter().zip(found) {
            self.stored.touch(&row.ids[..found.num_tokens()]);
        }
        let new_tokens = rows.iter().zip(found);
        let new_tokens = new_tokens.map(|(row, found)| row.ids[found.num_tokens()..].to_vec());
        let work =
            NextTokenLogprobs::new(&self.model, RowCaches::joined(parts)?, new_tokens.collect())?;
        Ok((work, found.iter().map(Beginning::num_tokens).sum()))
    }

    fn parts(&mut self, rows: &[Row], found: &[Beginning]) -> Result<Vec<RowCaches>, EngineError> {
        let mut parts = Vec::new();
        let mut start = 0;
        while let Some(&first) = found.get(start) {
            let is_same = |index: &usize| match (first, found[*index]) {
                (Beginning::Live(one), Beginning::Live(other)) if one.is_whole => {
                    other.is_whole && one.row.batch == other.row.batch
                }
                (one, other) => {
                    one == other && one.begins_alike(&rows[start].ids, &rows[*index].ids)
                }
            };
            let stop = (start + 1..found.len()).find(|index| !is_same(index));
            let stop = stop.unwrap_or(found.len());
            let ids = &rows[start].ids;
            parts.push(match first {
                Beginning::Live(live) if live.is_whole => {
                    let rows: Vec<usize> =
                        found[start..stop].iter().filter_map(Beginning::live_row).collect();
                    self.live.gathered(live.row.batch, &rows)?
                }
                Beginning::Live(live) => {
                    RowCaches::repeated(self.live.beginning(live)?, stop - start)?
                }
                Beginning::Stored { num_tokens } => {
                    let caches = self.stored.caches(ids, num_tokens)?;
                    let caches = caches.ok_or(LmError::MixedCaches)?;
                    RowCaches::repeated(caches, stop - start)?
                }
                Beginning::Nothing => RowCaches::repeated(self.model.make_cache(), stop - start)?,
            });
            start = stop;
        }
        Ok(parts)
    }

    /// Answers the rows of a pass, and keeps their caches.
    fn end_pass(&mut self, pass: Pass) {
        let Pass { rows, work, num_found, .. } = pass;
        let finished = caught("computing log-probabilities", || {
            work.finish()?.ok_or_else(|| LmError::Cancelled.into())
        });
        let (logprobs, caches) = match finished {
            Ok(finished) => finished,
            Err(error) => return self.fail(rows, error),
        };
        self.counts.num_passes += 1;
        self.counts.num_rows += rows.len();
        self.counts.num_found += num_found;
        let stored = rows.iter().enumerate().filter(|(_, row)| row.stores);
        for (index, row) in stored {
            let stored = caught("storing keys and values", || {
                Ok(self.stored.store(&row.ids, &caches.row(index)?)?)
            });
            note_failure(stored);
        }
        let mut computed = Vec::with_capacity(rows.len());
        for (row, logprobs) in rows.into_iter().zip(logprobs) {
            for reply in row.replies {
                let _ = reply.send(Ok(Arc::clone(&logprobs)));
            }
            computed.push(ComputedRow { ids: row.ids, logprobs });
        }
        for gone in self.live.push(computed, caches) {
            for row in gone.rows_to_store(self.stored.most_tokens()) {
                let stored = caught("storing keys and values", || {
                    Ok(self.stored.store(&gone.rows[row].ids, &gone.caches.row(row)?)?)
                });
                note_failure(stored);
            }
        }
    }

    /// Answers a row with its error; several are computed again, each alone.
    fn fail(&mut self, rows: Vec<Row>, error: EngineError) {
        if rows.len() > 1 {
            tracing::warn!(%error, "a batch of log-probabilities is computed again row by row");
            self.rows.extend(rows.into_iter().map(|row| Row { is_alone: true, ..row }));
            return;
        }
        if rows.iter().any(|row| row.is_prefix) {
            // The rows that share it say what is wrong.
            self.rows.iter_mut().for_each(|row| row.is_alone = true);
        }
        let text = error.to_string();
        let mut error = Some(error);
        let again = || EngineError::QueryFailed { why: text.clone() };
        for reply in rows.into_iter().flat_map(|row| row.replies) {
            let _ = reply.send(Err(error.take().unwrap_or_else(again)));
        }
    }
}

/// What a pass over these rows is.
fn sizes(rows: &[usize], plans: &[RowPlan]) -> PassSizes {
    let most = |of: fn(&RowPlan) -> usize| rows.iter().map(|&row| of(&plans[row])).max();
    PassSizes {
        num_rows: rows.len(),
        num_before: most(|row| row.num_found).unwrap_or(0),
        num_new: most(|row| row.num_new).unwrap_or(0),
        shares: rows.len() > 1 && rows.iter().all(|&row| plans[row].alike == plans[rows[0]].alike),
        num_logits: rows.len(),
    }
}

/// Where the beginning of a row is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    Nothing,
    Live(LiveMatch),
    Stored { num_tokens: usize },
}

impl Beginning {
    fn num_tokens(&self) -> usize {
        match self {
            Beginning::Nothing => 0,
            Beginning::Live(live) => live.num_tokens,
            Beginning::Stored { num_tokens } => *num_tokens,
        }
    }

    /// Whether rows with the same beginning, one of these tokens and one of those, hold the same.
    fn begins_alike(&self, one: &[u32], other: &[u32]) -> bool {
        one[..self.num_tokens()] == other[..self.num_tokens()]
    }

    fn live_row(&self) -> Option<usize> {
        if let Beginning::Live(live) = self { Some(live.row.row) } else { None }
    }
}

fn check_ids(ids: &[u32], model: &Model) -> Result<(), LmError> {
    let vocab_size = model.vocab_size();
    if let Some(&token) = ids.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(LmError::TokenOutOfRange { token, vocab_size });
    }
    if ids.is_empty() {
        return Err(LmError::EmptyPrompt);
    }
    check_length(ids.len(), model)
}

/// What is not stored is computed again.
fn note_failure(stored: Result<(), EngineError>) {
    if let Err(error) = stored {
        tracing::warn!(%error, "keys and values are not stored");
    }
}
