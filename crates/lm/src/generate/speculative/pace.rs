//! Decides how many tokens to propose, from how often proposals are right and what they cost.

use std::time::Duration;

/// How many tokens are proposed at once. A GPU compiles or plans for each number when it first comes,
/// so there are few.
const STEPS: [usize; 4] = [1, 3, 7, 15];
/// A gain that measurement could not tell from none.
const LEAST_GAIN: f64 = 1.05;
/// What each proposed token adds to a pass, as a share of it, before that has been measured.
const USUAL_COST: f64 = 0.1;
/// The weight of a new measurement.
const NEW: f64 = 0.2;
/// A pass that takes longer than three times as long was disturbed by something else.
const MOST_COST: f64 = 2.0;
/// The part of a cost above the usual one that is forgotten with each pass.
const FORGOTTEN: f64 = 0.003;
/// Passes without proposals before the first with some. The first of them is not counted.
const PLAIN_PASSES: u32 = 3;

/// What has been seen of one sequence.
///
/// - Whether a prediction is right is seen for every token, also where nothing was proposed, so that
///   it costs nothing to begin again.
/// - What proposals cost is measured where there are some. It is forgotten slowly, because one
///   disturbed measurement would end them for good.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Seconds of a pass without proposals, and how many there were.
    plain_pass: Option<f64>,
    num_plain_passes: u32,
    /// What each proposed token adds, as a share of a pass.
    cost: f64,
    /// The lengths of passes that have been measured; the first of each is left out.
    has_run: [bool; STEPS.len()],
    /// How often the next token was predicted, after a short and after a long match.
    short: Share,
    long: Share,
}

/// A share of successes, of which the latest count most.
#[derive(Debug, Clone, Copy)]
struct Share(f64);

impl Share {
    fn add(&mut self, is_success: bool) {
        self.0 += NEW * (f64::from(u8::from(is_success)) - self.0);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            plain_pass: None,
            num_plain_passes: 0,
            cost: USUAL_COST,
            has_run: [false; STEPS.len()],
            short: Share(0.3),
            long: Share(0.6),
        }
    }
}

impl Pace {
    /// How many tokens to propose after a match of `length`. `num_before` predicted tokens have to be
    /// right before the first of them counts.
    pub(super) fn num_tokens(&self, length: usize, num_before: usize) -> usize {
        if self.num_plain_passes < PLAIN_PASSES {
            return 0;
        }
        let Share(right) = self.share(length);
        let gain = |num_tokens: usize| {
            let accepted: f64 =
                (1..=num_tokens).map(|place| right.powi((num_before + place) as i32)).sum();
            (1.0 + accepted) / (1.0 + self.cost * num_tokens as f64)
        };
        let best = STEPS.into_iter().max_by(|&one, &other| gain(one).total_cmp(&gain(other)));
        best.filter(|&num_tokens| gain(num_tokens) >= LEAST_GAIN).unwrap_or(0)
    }

    /// After a match of `length` the next token was predicted, or not.
    pub(super) fn predicted(&mut self, length: usize, is_right: bool) {
        match is_long(length) {
            true => self.long.add(is_right),
            false => self.short.add(is_right),
        }
    }

    /// A pass with so many proposed tokens took so long.
    pub(super) fn passed(&mut self, num_tokens: usize, took: Duration) {
        let took = took.as_secs_f64();
        if num_tokens == 0 {
            self.num_plain_passes += 1;
            if self.num_plain_passes > 1 {
                let plain = self.plain_pass.unwrap_or(took);
                // Disturbed passes would make proposals look cheap.
                self.plain_pass = Some(plain + NEW * (took.min(2.0 * plain) - plain));
                self.cost += (USUAL_COST - self.cost).min(0.0) * FORGOTTEN;
            }
            return;
        }
        let position = STEPS.iter().position(|&step| step >= num_tokens);
        let has_run = &mut self.has_run[position.unwrap_or(STEPS.len() - 1)];
        if let (true, Some(plain)) = (std::mem::replace(has_run, true), self.plain_pass) {
            let cost = ((took / plain - 1.0) / num_tokens as f64).clamp(0.0, MOST_COST);
            self.cost += NEW * (cost - self.cost);
        }
    }

    fn share(&self, length: usize) -> Share {
        if is_long(length) { self.long } else { self.short }
    }
}

fn is_long(length: usize) -> bool {
    length > 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Duration = Duration::from_millis(10);

    /// A sequence of which `share` of the predictions are right, with passes in which a proposed
    /// token costs `cost`. Returns how many tokens are proposed at each of 200 tokens.
    fn run(share: f64, cost: f64) -> Vec<usize> {
        let mut pace = Pace::default();
        let mut due = 0.0;
        (0..200)
            .map(|_| {
                let num_tokens = pace.num_tokens(8, 0);
                pace.passed(num_tokens, PLAIN.mul_f64(1.0 + cost * num_tokens as f64));
                due += share;
                pace.predicted(8, due >= 1.0);
                due -= due.floor();
                num_tokens
            })
            .collect()
    }

    #[test]
    fn right_predictions_bring_long_proposals() {
        let proposed = run(1.0, 0.05);
        assert!(proposed[50..].iter().all(|&number| number == 15), "{proposed:?}");
    }

    #[test]
    fn what_does_not_pay_ends_within_sixteen_tokens() {
        for (share, cost) in [(0.0, 0.0), (0.0, 0.3), (0.1, 0.3), (1.0, 2.0)] {
            let proposed = run(share, cost);
            let after = &proposed[16..];
            // A few are tried after one that was right, and because what they cost is forgotten.
            let most = if share == 0.0 { 0 } else { after.len() / 20 };
            let count = after.iter().filter(|&&number| number > 0).count();
            assert!(count <= most, "{share}, {cost}: {proposed:?}");
        }
    }

    fn measured() -> Pace {
        let mut pace = Pace::default();
        (0..PLAIN_PASSES).for_each(|_| pace.passed(0, PLAIN));
        pace
    }

    #[test]
    fn proposals_begin_again_when_predictions_are_right_again() {
        let mut pace = measured();
        (0..50).for_each(|_| pace.predicted(8, false));
        assert_eq!(pace.num_tokens(8, 0), 0);
        (0..50).for_each(|_| pace.predicted(8, true));
        assert_eq!(pace.num_tokens(8, 0), 15);
        // The token before them may be another one than predicted, which counts little here.
        assert_eq!(pace.num_tokens(8, 1), 15);
    }

    #[test]
    fn a_pass_that_was_disturbed_does_not_end_proposals() {
        let mut pace = measured();
        (0..20).for_each(|_| pace.predicted(8, true));
        // The first of its length, for which a GPU compiles.
        pace.passed(15, PLAIN * 100);
        assert_eq!(pace.num_tokens(8, 0), 15);
        pace.passed(15, PLAIN * 100);
        (0..400).for_each(|_| pace.passed(0, PLAIN));
        assert!(pace.num_tokens(8, 0) > 0, "{pace:?}");
    }
}
