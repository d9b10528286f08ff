//! When a running answer's progress is emitted and saved: pure rules over a clock that is passed
//! in.

use std::time::{Duration, Instant};

use cairn_chat::SegmentEvent;
use cairn_store::AnsweredWith;

use crate::chat::loops::LoopWatch;
use crate::chat::segments::{AnswerSegments, Change, Now};

/// The interval between two deltas of an answer, and between two reports of its prefill: 30 a
/// second.
const EMIT_INTERVAL: Duration = Duration::from_millis(33);
/// The most that a crash may cost: this much time of generation...
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// ...or this many tokens.
const SAVE_TOKENS: usize = 64;

/// Limits something to once in an interval.
#[derive(Debug)]
pub(crate) struct Pace {
    interval: Duration,
    last: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(interval: Duration) -> Self {
        Pace { interval, last: None }
    }

    /// The next time at which it may happen, not before `now`.
    pub(crate) fn due_at(&self, now: Instant) -> Instant {
        self.last.map_or(now, |last| (last + self.interval).max(now))
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due_at(now) <= now
    }

    pub(crate) fn mark(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

/// The progress of prefill, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefill {
    pub(crate) processed: usize,
    pub(crate) total: usize,
    pub(crate) cached: usize,
}

/// A running answer: its text, tokens and segments so far, and how much of them has been emitted and
/// saved.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The model that writes it, once that is known.
    pub(crate) model: Option<String>,
    /// What stands around the messages of its prompt, once that is known.
    pub(crate) answered_with: AnsweredWith,
    /// It has what is stored of an answer that goes on, until the engine has said the same.
    is_stored: bool,
    /// What the engine calls its text: without special tokens.
    text: String,
    token_ids: Vec<u32>,
    segments: AnswerSegments,
    /// The text of the segments, without markers and reasoning.
    without_markup: String,
    /// How many bytes of `text` are the raw text of segments; none once that differs, because markers
    /// are special tokens.
    matched_bytes: Option<usize>,
    /// None where nobody asks whether it repeats itself.
    loops: Option<LoopWatch>,
    pending_prefill: Option<Prefill>,
    emitting: Pace,
    saved_at: Instant,
    saved_bytes: usize,
    saved_tokens: usize,
}

impl Progress {
    pub(crate) fn new(now: Instant) -> Self {
        Progress {
            model: None,
            answered_with: AnsweredWith::default(),
            is_stored: false,
            text: String::new(),
            token_ids: Vec::new(),
            segments: AnswerSegments::default(),
            without_markup: String::new(),
            matched_bytes: Some(0),
            loops: None,
            pending_prefill: None,
            emitting: Pace::new(EMIT_INTERVAL),
            saved_at: now,
            saved_bytes: 0,
            saved_tokens: 0,
        }
    }

    /// An answer that goes on: it has what is stored of it, so that an end before the engine has begun
    /// changes nothing.
    pub(crate) fn of_stored(row: &cairn_store::Message, now: Instant) -> Self {
        let mut progress = Progress {
            model: row.model.clone(),
            is_stored: true,
            text: row.text.clone(),
            token_ids: row.token_ids.clone().unwrap_or_default(),
            segments: AnswerSegments::of_stored(row.segments.as_deref(), &row.text),
            ..Progress::new(now)
        };
        progress.mark_saved(now);
        progress
    }

    /// Takes what the engine says the tokens so far are, in place of what is stored: that may have the
    /// end of its text twice once the answer goes on. Nothing of an answer that was held here.
    pub(crate) fn so_far(&mut self, text: &str, events: &[SegmentEvent], now: Now) {
        if !std::mem::take(&mut self.is_stored) {
            return;
        }
        let stored = std::mem::take(&mut self.segments);
        (self.text, self.without_markup) = (String::new(), String::new());
        self.matched_bytes = Some(0);
        self.append(text, events, now);
        self.segments.take_times(&stored, now);
        // A person has seen it repeat itself, and lets it go on.
        while self.takes_loop() {
            self.loops.iter_mut().for_each(LoopWatch::allow);
        }
        self.mark_saved(now.at);
    }

    /// What later prompts are made of: all of the text, so that the template can treat reasoning as
    /// it does. Where the text lacks the markers, nothing could tell reasoning from the answer in it:
    /// then it is the answer alone.
    pub(crate) fn prompt_text(&self) -> &str {
        if self.matched_bytes.is_some() { &self.text } else { &self.without_markup }
    }

    /// The segments for the store; see [`AnswerSegments::to_stored`].
    pub(crate) fn stored_segments(&self, now: Instant) -> Option<String> {
        self.segments.to_stored(self.prompt_text(), now)
    }

    pub(crate) fn token_ids(&self) -> &[u32] {
        &self.token_ids
    }

    /// Only the newest report matters; it replaces one that was not emitted yet.
    pub(crate) fn prefill(&mut self, prefill: Prefill) {
        self.pending_prefill = Some(prefill);
    }

    pub(crate) fn token(&mut self, token: u32, text: &str, events: &[SegmentEvent], now: Now) {
        self.token_ids.push(token);
        self.append(text, events, now);
    }

    pub(crate) fn append(&mut self, text: &str, events: &[SegmentEvent], now: Now) {
        self.text.push_str(text);
        for event in events {
            self.segments.push(event, now);
            self.loops.iter_mut().for_each(|loops| loops.push(event));
            let raw = match event {
                SegmentEvent::Text(raw) | SegmentEvent::CallEnded { raw, .. } => {
                    self.without_markup.push_str(raw);
                    raw
                }
                SegmentEvent::Reasoning(raw) | SegmentEvent::Markup(raw) => raw,
                _ => continue,
            };
            let matched = self.matched_bytes.take();
            self.matched_bytes = matched.filter(|&at| self.text[at..].starts_with(raw.as_str()));
            self.matched_bytes = self.matched_bytes.map(|at| at + raw.len());
        }
    }

    /// From now on it is noticed when the answer repeats itself.
    pub(crate) fn watch_for_loops(&mut self) {
        self.loops = Some(LoopWatch::default());
    }

    /// Whether the answer repeats itself; once for each time that it begins to.
    pub(crate) fn takes_loop(&mut self) -> bool {
        self.loops.as_mut().is_some_and(LoopWatch::take)
    }

    /// Whether the model thinks.
    pub(crate) fn is_thinking(&self) -> bool {
        self.segments.is_thinking()
    }

    /// Continues the answer after these tokens, the last of which the model has not written. The engine
    /// tells what they say.
    pub(crate) fn go_on_after(&mut self, token_ids: &[u32], now: Instant) {
        self.segments.end(now);
        self.token_ids = token_ids.to_vec();
        self.is_stored = true;
    }

    /// Stops the clock of what goes on, because the answer is held.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.segments.pause(now);
    }

    /// Goes on after a pause; from now on it takes more for the answer to repeat itself.
    pub(crate) fn resume(&mut self, now: Now) {
        self.segments.resume(now);
        self.loops.iter_mut().for_each(LoopWatch::allow);
    }

    /// Ends what goes on, because the answer has ended.
    pub(crate) fn end(&mut self, now: Instant) {
        self.segments.end(now);
    }

    /// The prefill report that may be emitted now; none once there is text.
    pub(crate) fn take_prefill(&mut self, now: Instant) -> Option<Prefill> {
        if !self.text.is_empty() || !self.emitting.is_due(now) {
            return None;
        }
        self.pending_prefill.take().inspect(|_| self.emitting.mark(now))
    }

    /// The changes that may be emitted now.
    pub(crate) fn take_changes(&mut self, now: Instant) -> Vec<Change> {
        if !self.emitting.is_due(now) || !self.segments.has_changes() {
            return Vec::new();
        }
        self.emitting.mark(now);
        self.segments.take_changes()
    }

    /// All changes that have not been emitted, regardless of the interval.
    pub(crate) fn flush_changes(&mut self) -> Vec<Change> {
        self.segments.take_changes()
    }

    /// Whether the text should be saved now.
    pub(crate) fn wants_save(&self, now: Instant) -> bool {
        let has_more = self.text.len() > self.saved_bytes;
        has_more
            && (now >= self.saved_at + SAVE_INTERVAL
                || self.token_ids.len() >= self.saved_tokens + SAVE_TOKENS)
    }

    /// Records that saving has begun with the text so far.
    pub(crate) fn mark_saved(&mut self, now: Instant) {
        self.saved_at = now;
        self.saved_bytes = self.text.len();
        self.saved_tokens = self.token_ids.len();
    }

    /// The time at which something becomes due without new input; none if nothing will. While one
    /// save runs no other is due.
    pub(crate) fn next_due(&self, now: Instant, is_saving: bool) -> Option<Instant> {
        let has_pending =
            self.segments.has_changes() || (self.pending_prefill.is_some() && self.text.is_empty());
        let emitting = has_pending.then(|| self.emitting.due_at(now));
        let saving = (self.text.len() > self.saved_bytes && !is_saving)
            .then(|| (self.saved_at + SAVE_INTERVAL).max(now));
        emitting.into_iter().chain(saving).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_segment::AnswerSegment;

    impl Progress {
        /// A token that is text.
        fn says(&mut self, text: &str, at: Instant) {
            let events = [SegmentEvent::Text(text.to_owned())];
            self.token(7, text, &events, Now { at, ms: 0 });
        }
    }

    /// Feeds pieces of text that arrive at given milliseconds and collects what is emitted when.
    fn emitted(pieces: &[(u64, &str)], until_ms: u64) -> Vec<(u64, u32, String)> {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let mut emitted = Vec::new();
        for ms in 0..=until_ms {
            let now = start + Duration::from_millis(ms);
            for (_, text) in pieces.iter().filter(|(at, _)| *at == ms) {
                progress.says(text, now);
            }
            for change in progress.take_changes(now) {
                emitted.push(match change {
                    Change::Whole { index: 0, segment: AnswerSegment::Text { text } } => {
                        (ms, 0, text)
                    }
                    Change::Grown { index: 0, offset, text } => (ms, offset, text),
                    other => panic!("{other:?}"),
                });
            }
        }
        emitted
    }

    #[test]
    fn deltas_are_merged_to_thirty_a_second_with_utf16_offsets() {
        fn check(pieces: &[(u64, &str)], expected: &[(u64, u32, &str)]) {
            let emitted = emitted(pieces, 200);
            let emitted: Vec<_> =
                emitted.iter().map(|(ms, offset, text)| (*ms, *offset, text.as_str())).collect();
            assert_eq!(emitted, expected, "for {pieces:?}");
        }
        check(&[], &[]);
        check(&[(0, "")], &[]);
        check(&[(5, "a")], &[(5, 0, "a")]);
        check(&[(0, "a"), (10, "b"), (20, "c")], &[(0, 0, "a"), (33, 1, "bc")]);
        check(&[(0, "a"), (33, "b"), (66, "c")], &[(0, 0, "a"), (33, 1, "b"), (66, 2, "c")]);
        check(&[(0, "a"), (100, "b")], &[(0, 0, "a"), (100, 1, "b")]);
        // One unit for é and 語, two for the emoji.
        check(
            &[(0, "é"), (40, "語"), (80, "🪨"), (120, "x")],
            &[(0, 0, "é"), (40, 1, "語"), (80, 2, "🪨"), (120, 4, "x")],
        );
    }

    #[test]
    fn fast_answers_stay_within_thirty_deltas_a_second() {
        let pieces: Vec<(u64, &str)> = (0..1000).map(|ms| (ms, "x")).collect();
        let emitted = emitted(&pieces, 1000);
        assert!(emitted.len() <= 31, "{} deltas", emitted.len());
        // The last delta was emitted at most an interval before the end.
        assert!(emitted.iter().map(|(_, _, text)| text.len()).sum::<usize>() > 1000 - 33);
    }

    #[test]
    fn text_is_saved_each_second_or_sixty_four_tokens() {
        fn check(num_tokens: usize, text: &str, after_ms: u64, expected: bool) {
            let start = Instant::now();
            let mut progress = Progress::new(start);
            for _ in 0..num_tokens {
                progress.says(text, start);
            }
            let now = start + Duration::from_millis(after_ms);
            assert_eq!(
                progress.wants_save(now),
                expected,
                "{num_tokens} tokens of {text:?} after {after_ms} ms"
            );
            progress.mark_saved(now);
            assert!(!progress.wants_save(now + Duration::from_secs(60)), "nothing new to save");
        }
        check(0, "", 5000, false);
        check(1, "a", 999, false);
        check(1, "a", 1000, true);
        check(63, "a", 10, false);
        check(64, "a", 10, true);
        // Tokens that have not completed a character yet.
        check(64, "", 2000, false);
    }

    #[test]
    fn the_next_due_time_is_the_earlier_of_emitting_and_saving() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut progress = Progress::new(start);
        assert_eq!(progress.next_due(at(0), false), None);
        progress.prefill(Prefill { processed: 1, total: 2, cached: 0 });
        assert_eq!(progress.next_due(at(0), false), Some(at(0)));
        assert!(progress.take_prefill(at(0)).is_some());
        assert_eq!(progress.next_due(at(1), false), None);
        progress.says("a", at(1));
        assert_eq!(progress.next_due(at(1), false), Some(at(33)));
        assert!(progress.take_changes(at(32)).is_empty());
        assert!(!progress.take_changes(at(33)).is_empty());
        assert_eq!(progress.next_due(at(34), false), Some(at(1000)));
        assert_eq!(progress.next_due(at(2000), true), None);
        progress.mark_saved(at(1000));
        assert_eq!(progress.next_due(at(1000), false), None);
    }

    #[test]
    fn of_several_prefill_reports_the_newest_is_emitted_and_none_after_text() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let report = |processed| Prefill { processed, total: 9, cached: 0 };
        let mut progress = Progress::new(start);
        progress.prefill(report(1));
        assert_eq!(progress.take_prefill(at(0)), Some(report(1)));
        progress.prefill(report(2));
        progress.prefill(report(3));
        assert_eq!(progress.take_prefill(at(10)), None);
        assert_eq!(progress.take_prefill(at(40)), Some(report(3)));
        progress.prefill(report(9));
        progress.says("a", at(40));
        assert_eq!(progress.take_prefill(at(100)), None);
    }
}
