//! The scores of several rows, as many at once as there is memory for.

use std::collections::VecDeque;

use cairn_lm::models::Model;
use cairn_lm::{LmError, ModelMemory, PassSizes, Scorer};

use crate::EngineError;
use crate::request::{Score, ScoreRequest};
use crate::slice_limits::SliceLimits;

/// Rows that are scored in their order, those of one pass together.
#[derive(Debug)]
pub(crate) struct Scoring {
    model: Model,
    num_top: usize,
    num_top_of_each: usize,
    waiting: VecDeque<Vec<u32>>,
    pass: Option<Pass>,
    scores: Vec<Score>,
    num_tokens: usize,
}

#[derive(Debug)]
struct Pass {
    scorer: Scorer,
    bytes: u64,
}

impl Scoring {
    /// Reads nothing yet. Fails on rows that cannot be scored.
    pub(crate) fn new(
        model: &Model,
        rows: Vec<Vec<u32>>,
        request: &ScoreRequest,
    ) -> Result<Self, LmError> {
        for row in &rows {
            // The checks of the scorer, before anything is computed.
            Scorer::new(model, vec![row.clone()], 0)?;
        }
        Ok(Scoring {
            model: model.clone(),
            num_top: request.num_top,
            num_top_of_each: request.num_top_of_each,
            num_tokens: rows.iter().map(Vec::len).sum(),
            waiting: rows.into(),
            pass: None,
            scores: Vec::new(),
        })
    }

    /// How many tokens have been read, of how many, padding left out.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let in_pass = self.pass.as_ref().map_or(0, |pass| pass.scorer.num_left());
        let left = in_pass + self.waiting.iter().map(Vec::len).sum::<usize>();
        (self.num_tokens.saturating_sub(left), self.num_tokens)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.pass.is_none() && self.waiting.is_empty()
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.pass.as_ref().map_or(0, |pass| pass.bytes)
    }

    pub(crate) fn least_bytes(&self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        match (&self.pass, self.waiting.front()) {
            (None, Some(row)) => pass_bytes(memory, max_tokens, 1, row.len()),
            _ => 0,
        }
    }

    /// Reads a slice.
    pub(crate) fn advance(&mut self, limits: SliceLimits) -> Result<(), EngineError> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => self.begin_pass(limits)?,
        };
        pass.scorer.read(limits.max_tokens)?;
        match pass.scorer.num_left() {
            0 => self.scores.extend(pass.scorer.finish()),
            _ => self.pass = Some(pass),
        }
        Ok(())
    }

    fn begin_pass(&mut self, limits: SliceLimits) -> Result<Pass, EngineError> {
        let (mut rows, mut width, mut bytes) = (Vec::new(), 0, 0);
        while let Some(next) = self.waiting.front() {
            let wider = width.max(next.len());
            if let Some((memory, free_bytes)) = limits.memory {
                let more = pass_bytes(memory, limits.max_tokens, rows.len() + 1, wider);
                if !rows.is_empty() && more > free_bytes {
                    break;
                }
                bytes = more;
            }
            width = wider;
            rows.extend(self.waiting.pop_front());
        }
        let scorer = Scorer::new(&self.model, rows, self.num_top)?;
        Ok(Pass { scorer: scorer.with_top_of_each(self.num_top_of_each), bytes })
    }

    /// The scores, once all rows are read.
    pub(crate) fn finish(self) -> Vec<Score> {
        self.scores
    }
}

/// What rows take that are read in slices, with logits after each token.
fn pass_bytes(memory: &ModelMemory, max_tokens: usize, num_rows: usize, width: usize) -> u64 {
    let num_new = (max_tokens / num_rows).clamp(1, width.max(1));
    let (num_logits, num_before) = (num_rows * num_new, width.saturating_sub(num_new));
    memory.pass_bytes(&PassSizes { num_rows, num_before, num_new, shares: false, num_logits })
}
