//! What passes with proposed tokens cost a model, as they were measured, and how many tokens pay most.

use crate::device_kernels::MOST_TOKENS;

/// How many tokens are looked up at once. A GPU compiles or plans for each number when it first comes,
/// so there are few. The pass that checks them reads one token more.
pub(crate) const LOOKED_UP: [usize; 4] = [1, 3, 7, MOST_TOKENS as usize - 1];
/// How many tokens a head or a draft model draws at once: each costs something, and is right only where
/// those before it are.
pub(crate) const DRAWN: [usize; 3] = [1, 2, 3];
/// A gain that measurement could not tell from none.
pub(crate) const LEAST_GAIN: f64 = 1.05;
/// What each proposed token adds to a pass, as a share of one without, before that is measured.
const USUAL_COST: f64 = 0.1;
/// The weight of a new measurement.
pub(crate) const NEW_WEIGHT: f64 = 0.2;
/// Where a shorter number costs more than this for each token, a longer one is not tried before predictions
/// are right nearly always: on a CPU a token may cost nearly what a pass does.
const CHEAP: f64 = 0.35;
const NEARLY_ALWAYS: f64 = 0.9;
/// The first pass of a length counts if no token costs more than this in it; otherwise a GPU has compiled.
const MOST_AT_FIRST: f64 = 1.2;
/// A pass that takes longer than this many without proposals pays for nothing, or was disturbed.
const MOST_PASSES: f64 = 20.0;
/// The part of a length's measured time above the usual one that is forgotten with each pass.
const FORGOTTEN: f64 = 0.001;

/// What proposals cost, for each source and length: on some devices two tokens cost nearly what sixteen do,
/// on others each costs nearly what a pass does. A model keeps it from one answer to the next, so that it
/// is found out once. It is forgotten slowly, because one disturbed measurement would end proposals for
/// good.
#[derive(Debug, Clone)]
pub(crate) struct PassCosts {
    pub(crate) looked_up: Costs<{ LOOKED_UP.len() }>,
    pub(crate) drawn: Costs<{ DRAWN.len() }>,
}

impl Default for PassCosts {
    fn default() -> Self {
        PassCosts { looked_up: Costs::new(LOOKED_UP), drawn: Costs::new(DRAWN) }
    }
}

/// What proposals of one source cost.
#[derive(Debug, Clone)]
pub(crate) struct Costs<const N: usize> {
    /// How many tokens are proposed at once.
    steps: [usize; N],
    /// For each of them: how many passes without proposals take as long as one with so many.
    pub(crate) passes: [Option<f64>; N],
    /// Whether there was more than one pass of that length: the second replaces the first.
    is_sure: [bool; N],
}

impl<const N: usize> Costs<N> {
    fn new(steps: [usize; N]) -> Self {
        Costs { steps, passes: [None; N], is_sure: [false; N] }
    }

    /// The number with the largest gain, where each token is right with a probability of `right` if
    /// those before it are, and `num_before` have to be right before the first counts.
    pub(crate) fn best(&self, right: f64, num_before: usize) -> Option<(usize, f64)> {
        let mut longest = 0.0f64;
        let mut best = None;
        for (index, (num_tokens, measured)) in self.steps.into_iter().zip(self.passes).enumerate() {
            if measured.is_none() && !self.may_try(index, right) {
                continue;
            }
            // One that was not measured takes no less time than a shorter one.
            longest = measured.unwrap_or(usual(num_tokens).max(longest));
            let accepted: f64 =
                (1..=num_tokens).map(|place| right.powi((num_before + place) as i32)).sum();
            let gain = (1.0 + accepted) / longest;
            if gain >= best.map_or(LEAST_GAIN, |(_, gain)| gain) {
                best = Some((num_tokens, gain));
            }
        }
        best
    }

    /// Whether a number that was not measured may be proposed: the lowest, and others after a lower one was
    /// measured that was cheap or where predictions are right nearly always.
    fn may_try(&self, index: usize, right: f64) -> bool {
        let Some(lower) = index.checked_sub(1) else { return true };
        let cheap = 1.0 + CHEAP * self.steps[lower] as f64;
        self.passes[lower].is_some_and(|passes| passes <= cheap)
            || (right >= NEARLY_ALWAYS && self.passes[..index].iter().any(Option::is_some))
    }

    /// A pass with so many took as long as so many without. Returns the weight of that in their cost.
    pub(crate) fn record(&mut self, num_tokens: usize, passes: f64) -> f64 {
        let step = self.step(num_tokens);
        let found = passes.clamp(1.0, MOST_PASSES);
        let weight = match self.passes[step] {
            None if found > 1.0 + MOST_AT_FIRST * num_tokens as f64 && !self.is_sure[step] => 0.0,
            None => {
                self.passes[step] = Some(found);
                return 1.0;
            }
            Some(_) if !self.is_sure[step] => 1.0,
            Some(_) => NEW_WEIGHT,
        };
        self.is_sure[step] = true;
        if let Some(before) = &mut self.passes[step] {
            *before += weight * (found - *before);
        }
        weight
    }

    /// The latest pass with so many has cost so many passes more.
    pub(crate) fn add_cost(&mut self, num_tokens: usize, passes: f64) {
        let step = self.step(num_tokens);
        if let Some(before) = &mut self.passes[step] {
            *before = (*before + passes).clamp(1.0, MOST_PASSES);
        }
    }

    fn step(&self, num_tokens: usize) -> usize {
        self.steps.iter().position(|&step| step >= num_tokens).unwrap_or(N - 1)
    }

    pub(crate) fn forget(&mut self) {
        for (num_tokens, measured) in self.steps.into_iter().zip(&mut self.passes) {
            if let Some(passes) = measured {
                *passes += (usual(num_tokens) - *passes).min(0.0) * FORGOTTEN;
            }
        }
    }
}

/// How many passes without proposals one with so many usually takes.
fn usual(num_tokens: usize) -> f64 {
    1.0 + USUAL_COST * num_tokens as f64
}
