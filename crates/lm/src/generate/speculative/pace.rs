//! Decides what proposes and how many tokens, from how often proposals are right and what they cost.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::pass_costs::{DRAWN, LEAST_GAIN, NEW_WEIGHT, PassCosts};

/// A pass beside proposals counts as no more than so many: it waits for the launch of one, or for its own.
const MOST_BESIDE: f64 = 4.0;
/// Passes without proposals before the first with some, of which the first and the last are not counted.
const PLAIN_PASSES: u32 = 4;
/// Where nothing is drawn because it did not pay, one is after so many passes, and then after twice as
/// many again and again, up to the second number.
const PAUSES: [u32; 2] = [32, 512];
/// The most that such a trial may cost, as a share of the passes since the one before.
const MOST_LOST: f64 = 0.02;

/// What makes proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// What stood behind the same tokens before.
    LookedUp,
    /// A head or a draft model.
    Drawn,
}

/// A source, how many tokens it proposes, and how many times faster that is than without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) source: Source,
    pub(super) num_tokens: usize,
    gain: f64,
}

/// What has been seen of one sequence.
///
/// - Whether a prediction that is looked up is right is seen for every token, also where nothing was
///   proposed, so that it costs nothing to begin again. What a head or a draft model would have
///   predicted is not known where it drew nothing: it is asked again now and then.
/// - Nothing is proposed before predictions have been right, because they can be watched for nothing.
/// - What proposals cost is measured where there are some, see [`PassCosts`]. A device that computes one
///   pass while the next is launched waits before and behind a pass with proposals: the passes beside it
///   take longer, and that is part of its cost.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    /// Seconds of a pass without proposals, and how many there were.
    plain_pass: Option<f64>,
    num_plain_passes: u32,
    costs: Rc<RefCell<PassCosts>>,
    previous: PreviousPass,
    /// How often the next token was predicted, after a short and after a long match.
    short: Share,
    long: Share,
    /// How often a token that was drawn was right, where those before it were.
    right: Share,
    /// Passes since tokens were drawn, and after how many of them one is drawn anyway.
    num_without: u32,
    pause: u32,
}

/// The pass before the next one.
#[derive(Debug, Clone, Copy)]
enum PreviousPass {
    /// One without proposals. `extra_seconds`: how much longer it took than one between its like.
    Plain { extra_seconds: f64 },
    /// One with proposals. `weight`: of its time in the cost of so many tokens.
    WithProposals { source: Source, num_tokens: usize, weight: f64 },
}

const PLAIN_BEFORE: PreviousPass = PreviousPass::Plain { extra_seconds: 0.0 };

/// A pass that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedPass {
    pub(super) source: Source,
    pub(super) num_proposed: usize,
    /// What it took, if that could be seen.
    pub(super) took: Option<Duration>,
    /// Whether it was launched while another without proposals was computed, and such a one was launched
    /// while it was.
    pub(super) is_between_plain: bool,
}

/// A share of successes, of which the latest count most.
#[derive(Debug, Clone, Copy)]
struct Share(f64);

impl Share {
    fn add(&mut self, is_success: bool) {
        self.0 += NEW_WEIGHT * (f64::from(u8::from(is_success)) - self.0);
    }
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            plain_pass: None,
            num_plain_passes: 0,
            costs: Rc::default(),
            previous: PLAIN_BEFORE,
            short: Share(0.1),
            long: Share(0.4),
            right: Share(0.5),
            num_without: 0,
            pause: PAUSES[0],
        }
    }
}

impl Pace {
    /// With what is known of a model's costs.
    pub(super) fn new(costs: Rc<RefCell<PassCosts>>) -> Self {
        Pace { costs, ..Pace::default() }
    }

    /// What to propose. `length` is that of the match, if there is one, of which `num_before` predicted
    /// tokens have to be right before the first proposed one counts; `draws` says whether a head or a
    /// draft model could propose.
    pub(super) fn choose(
        &self,
        length: Option<usize>,
        num_before: usize,
        draws: bool,
    ) -> Option<Choice> {
        if self.num_plain_passes < PLAIN_PASSES {
            return None;
        }
        let costs = self.costs.borrow();
        let choice = |source, (num_tokens, gain)| Choice { source, num_tokens, gain };
        let looked_up = length.and_then(|length| {
            let Share(right) = self.share(length);
            let best = costs.looked_up.best(right, num_before)?;
            Some(choice(Source::LookedUp, best))
        });
        let drawn = if draws { self.best_drawn(&costs) } else { None };
        let drawn = drawn.map(|best| choice(Source::Drawn, best));
        let choices = looked_up.into_iter().chain(drawn);
        choices.max_by(|one, other| one.gain.total_cmp(&other.gain))
    }

    /// Whether tokens would be drawn now, if something could draw some.
    pub(super) fn wants_drawn(&self) -> bool {
        self.num_plain_passes >= PLAIN_PASSES && self.best_drawn(&self.costs.borrow()).is_some()
    }

    /// How many tokens to draw, with the gain; one, where it was long ago that any were.
    fn best_drawn(&self, costs: &PassCosts) -> Option<(usize, f64)> {
        let is_due = self.num_without >= self.pause;
        let best = costs.drawn.best(self.right.0, 0);
        best.or_else(|| is_due.then_some((DRAWN[0], LEAST_GAIN)))
    }

    /// After a match of `length` the next token was predicted, or not.
    pub(super) fn predicted(&mut self, length: usize, is_right: bool) {
        match is_long(length) {
            true => self.long.add(is_right),
            false => self.short.add(is_right),
        }
    }

    /// Of `num_tokens` that were drawn so many were right.
    pub(super) fn drawn(&mut self, num_tokens: usize, num_right: usize) {
        (0..num_right).for_each(|_| self.right.add(true));
        if num_right < num_tokens {
            self.right.add(false);
        }
        let costs = self.costs.borrow();
        let pays = costs.drawn.best(self.right.0, 0).is_some();
        let lost = costs.drawn.passes[0].unwrap_or(1.0) - 1.0;
        let shortest = ((lost / MOST_LOST) as u32).clamp(PAUSES[0], PAUSES[1]);
        self.pause = match pays {
            true => shortest,
            false if self.num_without > 0 => (2 * self.pause).clamp(shortest, PAUSES[1]),
            false => self.pause.max(shortest),
        };
        self.num_without = 0;
    }

    pub(super) fn passed(&mut self, pass: EndedPass) {
        if pass.num_proposed > 0 {
            self.passed_with_proposals(pass);
        } else {
            self.passed_plain(pass);
        }
        if pass.num_proposed == 0 || pass.source == Source::LookedUp {
            self.num_without = self.num_without.saturating_add(1);
        }
    }

    fn passed_plain(&mut self, pass: EndedPass) {
        self.num_plain_passes += 1;
        let previous = std::mem::replace(&mut self.previous, PLAIN_BEFORE);
        let costs = &mut *self.costs.borrow_mut();
        costs.looked_up.forget();
        costs.drawn.forget();
        let Some(took) = pass.took.map(|took| took.as_secs_f64()) else { return };
        if pass.is_between_plain && self.num_plain_passes > 1 {
            let plain = self.plain_pass.unwrap_or(took);
            // Disturbed passes would make proposals look cheap.
            self.plain_pass = Some(plain + NEW_WEIGHT * (took.min(2.0 * plain) - plain));
        } else if let (false, Some(plain)) = (pass.is_between_plain, self.plain_pass) {
            // And a disturbed pass beside proposals would end them.
            let extra = (took / plain).min(MOST_BESIDE) - 1.0;
            match previous {
                PreviousPass::Plain { .. } => {
                    self.previous = PreviousPass::Plain { extra_seconds: extra * plain };
                }
                PreviousPass::WithProposals { source: Source::LookedUp, num_tokens, weight } => {
                    costs.looked_up.add_cost(num_tokens, weight * extra);
                }
                PreviousPass::WithProposals { source: Source::Drawn, num_tokens, weight } => {
                    costs.drawn.add_cost(num_tokens, weight * extra);
                }
            }
        }
    }

    fn passed_with_proposals(&mut self, pass: EndedPass) {
        let EndedPass { source, num_proposed: num_tokens, took, .. } = pass;
        let extra_before = match std::mem::replace(&mut self.previous, PLAIN_BEFORE) {
            PreviousPass::Plain { extra_seconds } => extra_seconds,
            PreviousPass::WithProposals { .. } => 0.0,
        };
        let (Some(took), Some(plain)) = (took, self.plain_pass) else { return };
        let passes = (took.as_secs_f64() + extra_before) / plain;
        let costs = &mut *self.costs.borrow_mut();
        let weight = match source {
            Source::LookedUp => costs.looked_up.record(num_tokens, passes),
            Source::Drawn => costs.drawn.record(num_tokens, passes),
        };
        self.previous = PreviousPass::WithProposals { source, num_tokens, weight };
    }

    /// Seconds of a pass without proposals, if that was measured.
    #[cfg(test)]
    pub(super) fn plain_pass(&self) -> Option<f64> {
        self.plain_pass
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
    use crate::pass_costs::LOOKED_UP;

    const PLAIN: Duration = Duration::from_millis(10);
    const BOTH: [Source; 2] = [Source::LookedUp, Source::Drawn];

    /// A pass beside others without proposals.
    fn ended(source: Source, num_proposed: usize, took: Option<Duration>) -> EndedPass {
        EndedPass { source, num_proposed, took, is_between_plain: num_proposed == 0 }
    }

    /// Tokens that are looked up behind a match of eight tokens, or drawn; how many of each pass.
    fn number(pace: &Pace, source: Source, num_before: usize) -> usize {
        let length = (source == Source::LookedUp).then_some(8);
        let choice = pace.choose(length, num_before, source == Source::Drawn);
        choice.map_or(0, |choice| choice.num_tokens)
    }

    /// A sequence of which `share` of the predictions are right, with passes of which any proposal costs
    /// `first` and each one `cost`. Returns how many tokens are proposed in each of 200 passes.
    fn run(source: Source, share: f64, first: f64, cost: f64) -> Vec<usize> {
        let mut pace = Pace::default();
        let mut due = 0.0;
        let mut is_right = || {
            due += share;
            let is_right = due >= 1.0;
            due -= f64::from(u8::from(is_right));
            is_right
        };
        (0..200)
            .map(|_| {
                let num_tokens = number(&pace, source, 0);
                let first = if num_tokens > 0 { first } else { 0.0 };
                let took = PLAIN.mul_f64(1.0 + first + cost * num_tokens as f64);
                pace.passed(ended(source, num_tokens, Some(took)));
                if source == Source::LookedUp {
                    pace.predicted(8, is_right());
                } else if num_tokens > 0 {
                    let num_right = (0..num_tokens).take_while(|_| is_right()).count();
                    pace.drawn(num_tokens, num_right);
                }
                num_tokens
            })
            .collect()
    }

    #[test]
    fn right_predictions_bring_long_proposals() {
        let proposed = run(Source::LookedUp, 1.0, 0.0, 0.05);
        assert!(proposed[50..].iter().all(|&number| number == 15), "{proposed:?}");
        // As on a device where a pass over two tokens costs what one over sixteen does.
        let proposed = run(Source::LookedUp, 1.0, 4.0, 0.05);
        assert!(proposed[50..].iter().all(|&number| number == 15), "{proposed:?}");
        let proposed = run(Source::Drawn, 1.0, 0.0, 0.2);
        assert!(proposed[50..].iter().all(|&number| number == 3), "{proposed:?}");
    }

    #[test]
    fn what_does_not_pay_ends_within_sixteen_tokens() {
        let cases =
            [(0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.1, 0.0, 0.3), (1.0, 0.0, 2.0), (0.5, 4.0, 0.0)];
        for source in BOTH {
            for (share, first, cost) in cases {
                let proposed = run(source, share, first, cost);
                let after = &proposed[16..];
                // A few are tried after one that was right, because what they cost is forgotten, and
                // because what would be drawn is not known otherwise.
                let most = match (share, source) {
                    (0.0, Source::LookedUp) => 0,
                    _ => after.len() / 20,
                };
                let count = after.iter().filter(|&&number| number > 0).count();
                assert!(count <= most, "{source:?}, {share}, {first}, {cost}: {proposed:?}");
            }
        }
    }

    /// As on a device that computes one pass while the next is launched. A pass with proposals takes 1.5
    /// times as long there, the pass before it that launches it twice as long, and the pass behind it,
    /// during which nothing was launched, 2.5 times. So it costs as much as four.
    #[test]
    fn what_the_passes_beside_proposals_lose_is_counted() {
        for (share, pays) in [(0.6, false), (1.0, true)] {
            let mut pace = Pace::default();
            let mut due = 0.0;
            let (mut seconds, mut num_tokens, mut num_proposed) = (0.0, 0, 0);
            let mut proposes = 0;
            let mut was_proposed = false;
            while num_tokens < 400 {
                let next = if proposes > 0 { 0 } else { number(&pace, Source::LookedUp, 0) };
                let (passes, is_between_plain) = match (proposes, was_proposed, next) {
                    (1.., _, _) => (1.5, false),
                    (0, true, _) => (2.5, false),
                    (0, false, 1..) => (2.0, false),
                    (0, false, 0) => (1.0, true),
                };
                let took = Some(PLAIN.mul_f64(passes));
                let source = Source::LookedUp;
                pace.passed(EndedPass { source, num_proposed: proposes, took, is_between_plain });
                seconds += passes * PLAIN.as_secs_f64();
                let mut is_right = || {
                    due += share;
                    let is_right = due >= 1.0 - 1e-9;
                    due -= f64::from(u8::from(is_right));
                    is_right
                };
                let num_right = (0..proposes).take_while(|_| is_right()).count();
                (0..num_right).for_each(|_| pace.predicted(8, true));
                pace.predicted(8, is_right());
                num_tokens += 1 + num_right;
                num_proposed += proposes;
                was_proposed = proposes > 0;
                proposes = next;
            }
            let gain = num_tokens as f64 * PLAIN.as_secs_f64() / seconds;
            if pays {
                assert!(gain > 2.5, "{gain}, {num_proposed} proposed");
            } else {
                assert!(gain > 0.95 && num_proposed < 20, "{gain}, {num_proposed} proposed");
            }
        }
    }

    #[test]
    fn what_gains_more_proposes() {
        let mut pace = measured();
        (0..50).for_each(|_| pace.predicted(8, true));
        (0..50).for_each(|_| pace.drawn(1, 0));
        let choose = |pace: &Pace| pace.choose(Some(8), 0, true).map(|choice| choice.source);
        assert_eq!(choose(&pace), Some(Source::LookedUp));
        (0..50).for_each(|_| pace.predicted(8, false));
        assert_eq!(choose(&pace), None);
        (0..50).for_each(|_| pace.drawn(1, 1));
        assert_eq!(choose(&pace), Some(Source::Drawn));
    }

    #[test]
    fn drawing_is_tried_again_ever_more_rarely() {
        let mut pace = measured();
        (0..20).for_each(|_| pace.drawn(1, 0));
        let tried: Vec<usize> = (0..2000)
            .filter(|_| {
                let is_tried = number(&pace, Source::Drawn, 0) > 0;
                pace.passed(ended(Source::Drawn, usize::from(is_tried), Some(PLAIN)));
                if is_tried {
                    pace.drawn(1, 0);
                }
                is_tried
            })
            .collect();
        assert!((4..=8).contains(&tried.len()), "{tried:?}");
        // What is right again is drawn again.
        pace.pause = 0;
        for _ in 0..8 {
            pace.drawn(1, 1);
        }
        assert!(number(&pace, Source::Drawn, 0) > 0, "{pace:?}");
    }

    /// After passes without proposals, and some with, of which the first of each number count less.
    fn measured_with(numbers: &[usize]) -> Pace {
        let mut pace = Pace::default();
        (0..PLAIN_PASSES).for_each(|_| pace.passed(ended(Source::LookedUp, 0, Some(PLAIN))));
        for &number in numbers.iter().chain(numbers) {
            pace.passed(ended(
                Source::LookedUp,
                number,
                Some(PLAIN.mul_f64(1.0 + 0.05 * number as f64)),
            ));
        }
        pace
    }

    fn measured() -> Pace {
        measured_with(&LOOKED_UP)
    }

    #[test]
    fn where_each_token_costs_a_pass_few_are_tried_and_the_model_remembers() {
        let costs = Rc::default();
        let of_answer = |share: f64| {
            let mut pace = Pace::new(Rc::clone(&costs));
            let mut due = 0.0;
            let mut num_proposed = 0;
            for _ in 0..200 {
                let num_tokens = number(&pace, Source::LookedUp, 0);
                let took = PLAIN.mul_f64(1.0 + 0.8 * num_tokens as f64);
                pace.passed(ended(Source::LookedUp, num_tokens, Some(took)));
                due += share;
                pace.predicted(8, due >= 1.0);
                due -= due.floor();
                num_proposed += num_tokens;
            }
            num_proposed
        };
        assert!((1..=3).contains(&of_answer(0.6)));
        assert!(of_answer(0.6) <= 1);
        assert!(of_answer(0.0) == 0);
    }

    #[test]
    fn a_pass_that_was_not_measured_changes_no_cost() {
        let mut pace = measured();
        let before = (pace.plain_pass, pace.costs.borrow().looked_up.passes);
        pace.passed(ended(Source::LookedUp, 0, None));
        pace.passed(ended(Source::LookedUp, 3, None));
        let after = (pace.plain_pass, pace.costs.borrow().looked_up.passes);
        assert_eq!(after, before);
    }

    #[test]
    fn proposals_begin_again_when_predictions_are_right_again() {
        let mut pace = measured();
        (0..50).for_each(|_| pace.predicted(8, false));
        assert_eq!(number(&pace, Source::LookedUp, 0), 0);
        (0..50).for_each(|_| pace.predicted(8, true));
        assert_eq!(number(&pace, Source::LookedUp, 0), 15);
        // The token before them may be another one than predicted, which counts little here.
        assert_eq!(number(&pace, Source::LookedUp, 1), 15);
    }

    #[test]
    fn a_pass_that_was_disturbed_does_not_end_proposals() {
        let mut pace = measured_with(&LOOKED_UP[..3]);
        (0..20).for_each(|_| pace.predicted(8, true));
        // The first of its length, for which a GPU compiles.
        pace.passed(ended(Source::LookedUp, 15, Some(PLAIN * 100)));
        assert_eq!(number(&pace, Source::LookedUp, 0), 15);
        pace.passed(ended(Source::LookedUp, 15, Some(PLAIN * 100)));
        (0..400).for_each(|_| pace.passed(ended(Source::LookedUp, 0, Some(PLAIN))));
        assert!(number(&pace, Source::LookedUp, 0) > 0, "{pace:?}");
        // Nor does one beside a pass with proposals.
        pace.passed(ended(Source::LookedUp, 15, Some(PLAIN)));
        let disturbed = ended(Source::LookedUp, 0, Some(PLAIN * 100));
        pace.passed(EndedPass { is_between_plain: false, ..disturbed });
        assert!(number(&pace, Source::LookedUp, 0) > 0, "{pace:?}");
    }

    #[test]
    fn what_is_as_dear_as_can_be_is_tried_again_after_the_longest_pause() {
        let mut pace = measured();
        let source = Source::Drawn;
        for _ in 0..4 {
            pace.passed(ended(source, 1, Some(PLAIN * 100)));
            pace.drawn(1, 0);
            pace.passed(ended(source, 0, Some(PLAIN)));
        }
        assert_eq!(pace.pause, PAUSES[1], "{pace:?}");
    }
}
