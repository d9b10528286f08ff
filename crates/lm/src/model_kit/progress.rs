//! Progress of the prefill: events for both models, or a single percentage.

use std::ops::ControlFlow;

/// An event of the prefill. With a draft model its events come first, then the main model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptProgress {
    /// A model begins to read.
    Begin {
        /// Whether it is the draft model.
        is_draft: bool,
        /// How many tokens its caches hold already.
        cached_tokens: usize,
        /// The length of the prompt. Its last token is left to the first decode step.
        total_prompt_tokens: usize,
    },
    /// The model has read a chunk.
    Update {
        /// Whether it is the draft model.
        is_draft: bool,
        /// Tokens read so far, without cached ones.
        prefill_tokens_processed: usize,
    },
    /// The model has finished reading.
    Finish {
        /// Whether it is the draft model.
        is_draft: bool,
        /// Tokens read, without cached ones.
        prefill_tokens_processed: usize,
    },
}

/// Converts events to percentages (0 to 100) of the tokens that the main model has to read. Events
/// of the draft model are ignored.
pub struct PromptProgressReporter<'a> {
    on_percent: &'a mut dyn FnMut(f32) -> ControlFlow<()>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Reading { num_to_read: usize },
    Finished,
}

impl<'a> PromptProgressReporter<'a> {
    /// A reporter that calls `on_percent`, which may break to cancel.
    pub fn new(on_percent: &'a mut dyn FnMut(f32) -> ControlFlow<()>) -> Self {
        PromptProgressReporter { on_percent, state: State::Waiting }
    }

    /// Reports an event. Events of the draft model, before `Begin` and after `Finish` are ignored.
    pub fn report(&mut self, event: PromptProgress) -> ControlFlow<()> {
        match (event, self.state) {
            (
                PromptProgress::Begin { is_draft: false, cached_tokens, total_prompt_tokens },
                State::Waiting,
            ) => {
                let num_to_read = total_prompt_tokens.saturating_sub(cached_tokens + 1);
                self.state = State::Reading { num_to_read };
                (self.on_percent)(percent(0, num_to_read))
            }
            (
                PromptProgress::Update { is_draft: false, prefill_tokens_processed },
                State::Reading { num_to_read },
            ) => (self.on_percent)(percent(prefill_tokens_processed, num_to_read)),
            (PromptProgress::Finish { is_draft: false, .. }, State::Reading { num_to_read }) => {
                self.state = State::Finished;
                // With nothing to read, `Begin` has reported 100 already.
                if num_to_read == 0 { ControlFlow::Continue(()) } else { (self.on_percent)(100.0) }
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn percent(processed: usize, num_to_read: usize) -> f32 {
    if num_to_read == 0 {
        100.0
    } else {
        (processed as f32 / num_to_read as f32 * 100.0).clamp(0.0, 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::PromptProgress::{Begin, Finish, Update};
    use super::*;

    fn begin(is_draft: bool, cached_tokens: usize, total_prompt_tokens: usize) -> PromptProgress {
        Begin { is_draft, cached_tokens, total_prompt_tokens }
    }

    fn update(is_draft: bool, prefill_tokens_processed: usize) -> PromptProgress {
        Update { is_draft, prefill_tokens_processed }
    }

    fn finish(is_draft: bool, prefill_tokens_processed: usize) -> PromptProgress {
        Finish { is_draft, prefill_tokens_processed }
    }

    fn check(events: &[PromptProgress], expected: &[f32]) {
        let mut percents = Vec::new();
        let mut on_percent = |percent| {
            percents.push(percent);
            ControlFlow::Continue(())
        };
        let mut reporter = PromptProgressReporter::new(&mut on_percent);
        for &event in events {
            assert!(reporter.report(event).is_continue());
        }
        assert_eq!(percents, expected, "{events:?}");
    }

    #[test]
    fn percentages_count_what_is_neither_cached_nor_the_last_token() {
        check(
            &[begin(false, 0, 101), update(false, 25), update(false, 100), finish(false, 100)],
            &[0.0, 25.0, 100.0, 100.0],
        );
        check(&[begin(false, 50, 151), update(false, 50), finish(false, 100)], &[0.0, 50.0, 100.0]);
        check(&[begin(false, 0, 11), update(false, 20)], &[0.0, 100.0]);
    }

    #[test]
    fn nothing_to_read_is_all_read() {
        check(&[begin(false, 10, 11), finish(false, 0)], &[100.0]);
        check(&[begin(false, 0, 1), finish(false, 0)], &[100.0]);
        check(&[begin(false, 5, 3)], &[100.0]);
    }

    #[test]
    fn the_draft_model_is_silent() {
        check(&[begin(true, 0, 11), update(true, 5), finish(true, 10)], &[]);
        check(
            &[
                begin(true, 0, 11),
                update(true, 10),
                finish(true, 10),
                begin(false, 0, 11),
                update(false, 5),
                finish(false, 10),
            ],
            &[0.0, 50.0, 100.0],
        );
    }

    #[test]
    fn events_out_of_order_say_nothing() {
        check(&[update(false, 5), finish(false, 5)], &[]);
        check(
            &[
                begin(false, 0, 11),
                finish(false, 10),
                update(false, 5),
                finish(false, 10),
                begin(false, 0, 11),
            ],
            &[0.0, 100.0],
        );
    }

    #[test]
    fn breaking_is_passed_on() {
        let mut on_percent = |percent| {
            if percent < 50.0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut reporter = PromptProgressReporter::new(&mut on_percent);
        assert!(reporter.report(begin(false, 0, 11)).is_continue());
        assert!(reporter.report(update(true, 9)).is_continue());
        assert!(reporter.report(update(false, 9)).is_break());
    }
}
