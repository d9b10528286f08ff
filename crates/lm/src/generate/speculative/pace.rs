//! Decides how many tokens to propose, from how often proposals are right and what they cost.

use std::time::Duration;

/// How many tokens are proposed at once. A GPU compiles or plans for each number when it first comes,
/// so there are few.
const STEPS: [usize; 4] = [1, 3, 7, 15];
/// A gain that measurement could not tell from none.
const LEAST_GAIN: f64 = 1.05;
/// What each proposed token adds to a pass, as a share of one without, before that is measured.
const USUAL_COST: f64 = 0.1;
/// The weight of a new measurement.
const NEW: f64 = 0.2;
/// A pass that takes longer than this many without proposals pays for nothing, or was disturbed.
const MOST_PASSES: f64 = 20.0;
/// The part of a length's measured time above the usual one that is forgotten with each pass.
const FORGOTTEN: f64 = 0.001;
/// Passes without proposals before the first with some. The first of them is not counted.
const PLAIN_PASSES: u32 = 3;

/// What has been seen of one sequence.
///
/// - Whether a prediction is right is seen for every token, also where nothing was proposed, so that
///   it costs nothing to begin again.
/// - What proposals cost is measured where there are some, for each length: on some devices two
///   tokens cost nearly what sixteen do. It is forgotten slowly, because one disturbed measurement
///   would end them for good.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Seconds of a pass without proposals, and how many there were.
    plain_pass: Option<f64>,
    num_plain_passes: u32,
    /// For each of `STEPS`: how many passes without proposals take as long as one with so many.
    passes: [Option<f64>; STEPS.len()],
    /// Whether there was a pass of that length. The first is not measured.
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
            passes: [None; STEPS.len()],
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
        let mut longest = 0.0f64;
        let mut best = (0, LEAST_GAIN);
        for (num_tokens, measured) in STEPS.into_iter().zip(self.passes) {
            // One that was not measured takes no less time than a shorter one.
            longest = measured.unwrap_or(usual(num_tokens).max(longest));
            let accepted: f64 =
                (1..=num_tokens).map(|place| right.powi((num_before + place) as i32)).sum();
            let gain = (1.0 + accepted) / longest;
            if gain >= best.1 {
                best = (num_tokens, gain);
            }
        }
        best.0
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
                for (num_tokens, measured) in STEPS.into_iter().zip(&mut self.passes) {
                    if let Some(passes) = measured {
                        *passes += (usual(num_tokens) - *passes).min(0.0) * FORGOTTEN;
                    }
                }
            }
            return;
        }
        let step = STEPS.iter().position(|&step| step >= num_tokens).unwrap_or(STEPS.len() - 1);
        if let (true, Some(plain)) =
            (std::mem::replace(&mut self.has_run[step], true), self.plain_pass)
        {
            let found = (took / plain).clamp(1.0, MOST_PASSES);
            let before = self.passes[step].unwrap_or(found);
            self.passes[step] = Some(before + NEW * (found - before));
        }
    }

    fn share(&self, length: usize) -> Share {
        if is_long(length) { self.long } else { self.short }
    }
}

/// How many passes without proposals one with so many usually takes.
fn usual(num_tokens: usize) -> f64 {
    1.0 + USUAL_COST * num_tokens as f64
}

fn is_long(length: usize) -> bool {
    length > 4
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Duration = Duration::from_millis(10);

    /// A sequence of which `share` of the predictions are right, with passes of which any proposal costs
    /// `first` and each one `cost`. Returns how many tokens are proposed at each of 200 tokens.
    fn run(share: f64, first: f64, cost: f64) -> Vec<usize> {
        let mut pace = Pace::default();
        let mut due = 0.0;
        (0..200)
            .map(|_| {
                let num_tokens = pace.num_tokens(8, 0);
                let first = if num_tokens > 0 { first } else { 0.0 };
                pace.passed(num_tokens, PLAIN.mul_f64(1.0 + first + cost * num_tokens as f64));
                due += share;
                pace.predicted(8, due >= 1.0);
                due -= due.floor();
                num_tokens
            })
            .collect()
    }

    #[test]
    fn right_predictions_bring_long_proposals() {
        let proposed = run(1.0, 0.0, 0.05);
        assert!(proposed[50..].iter().all(|&number| number == 15), "{proposed:?}");
        // As on a device where a pass over two tokens costs what one over sixteen does.
        let proposed = run(1.0, 4.0, 0.05);
        assert!(proposed[50..].iter().all(|&number| number == 15), "{proposed:?}");
    }

    #[test]
    fn what_does_not_pay_ends_within_sixteen_tokens() {
        let cases =
            [(0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.1, 0.0, 0.3), (1.0, 0.0, 2.0), (0.5, 4.0, 0.0)];
        for (share, first, cost) in cases {
            let proposed = run(share, first, cost);
            let after = &proposed[16..];
            // A few are tried after one that was right, and because what they cost is forgotten.
            let most = if share == 0.0 { 0 } else { after.len() / 20 };
            let count = after.iter().filter(|&&number| number > 0).count();
            assert!(count <= most, "{share}, {first}, {cost}: {proposed:?}");
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
