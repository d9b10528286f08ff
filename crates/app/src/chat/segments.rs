//! What a person is shown of an answer: its segments without markers, while they grow and as they
//! are stored.

use std::time::{Duration, Instant};

use cairn_chat::{CallOutcome, SegmentEvent};

use crate::answer_segment::{AnswerSegment, Outcome};
use crate::clock::now_ms;

/// What stands for bytes that are no character; a person is never shown one.
const REPLACEMENT: char = '\u{FFFD}';

/// The present on both clocks: one measures durations, the other is the interface's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub(crate) at: Instant,
    pub(crate) ms: i64,
}

impl Now {
    pub(crate) fn read() -> Self {
        Now { at: Instant::now(), ms: now_ms() }
    }
}

/// A change of a segment that an interface is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The segment began, or changed otherwise than by growing.
    Whole { index: usize, segment: AnswerSegment },
    /// Text, or text of a call's arguments, to append at an offset in UTF-16 code units.
    Grown { index: usize, offset: u32, text: String },
}

/// The segments of an answer that is being written.
///
/// - Of those that were given out only the last one changes.
/// - A text segment has at least one letter that is no white space.
#[derive(Debug, Default)]
pub(crate) struct AnswerSegments {
    segments: Vec<AnswerSegment>,
    /// White space that begins a text segment if letters follow.
    held_space: String,
    /// Where the open reasoning began; none while there is none, or while the answer is held.
    thinks_since: Option<Instant>,
    /// The last segment is reasoning whose clock stands still.
    is_paused: bool,
    num_given: usize,
    /// How much of the last given segment's text was given: in bytes and in UTF-16 code units.
    given_bytes: usize,
    given_utf16: u32,
    /// The last given segment is to be given as a whole again.
    has_changed: bool,
}

impl AnswerSegments {
    /// Those of a stored answer, which interfaces have.
    pub(crate) fn of_stored(segments: Option<&str>, text: &str) -> Self {
        let segments = AnswerSegment::stored(segments, text);
        let mut stored = AnswerSegments { segments, ..AnswerSegments::default() };
        stored.take_changes();
        stored
    }

    /// Takes over how long was thought, from the stored form of the same segments.
    pub(crate) fn take_times(&mut self, stored: &AnswerSegments, now: Now) {
        let last = self.segments.len().saturating_sub(1);
        for (index, (mine, before)) in self.segments.iter_mut().zip(&stored.segments).enumerate() {
            let (
                AnswerSegment::Reasoning { began_at_ms, duration_ms, .. },
                AnswerSegment::Reasoning { began_at_ms: began, duration_ms: thought, .. },
            ) = (mine, before)
            else {
                continue;
            };
            let thought = thought.unwrap_or(0);
            if index == last && self.thinks_since.is_some() {
                // It thinks on, as after a pause.
                *began_at_ms = now.ms - i64::from(thought);
                self.thinks_since =
                    now.at.checked_sub(Duration::from_millis(thought.into())).or(self.thinks_since);
            } else {
                (*began_at_ms, *duration_ms) = (*began, Some(thought));
            }
        }
    }

    /// Takes what the engine has made clear.
    pub(crate) fn push(&mut self, event: &SegmentEvent, now: Now) {
        match event {
            SegmentEvent::Text(text) => self.text(text, now.at),
            SegmentEvent::Reasoning(text) => self.reasoning(text, now),
            SegmentEvent::CallStarted { name, .. } => self.call(Some(name.clone()), now.at),
            SegmentEvent::CallArguments { json, .. } => {
                if let Some(AnswerSegment::ToolCall { arguments, .. }) = self.segments.last_mut() {
                    arguments.push_str(json);
                }
            }
            SegmentEvent::CallEnded { index, outcome, raw } => {
                if index.is_none() {
                    self.call(None, now.at);
                }
                self.end_call(*outcome, raw);
            }
            SegmentEvent::Markup(_) => {}
            SegmentEvent::Ended { .. } => self.end_reasoning(now.at),
        }
    }

    fn text(&mut self, text: &str, now: Instant) {
        let text = text.replace(REPLACEMENT, "");
        if let Some(AnswerSegment::Text { text: last }) = self.segments.last_mut() {
            return last.push_str(&text);
        }
        self.held_space.push_str(&text);
        if self.held_space.trim().is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.held_space);
        self.begin(AnswerSegment::Text { text }, now);
    }

    fn reasoning(&mut self, text: &str, now: Now) {
        let text = text.replace(REPLACEMENT, "");
        match self.segments.last_mut() {
            Some(AnswerSegment::Reasoning { text: last, .. }) => last.push_str(&text),
            _ => {
                let began_at_ms = now.ms;
                let open = AnswerSegment::Reasoning { text, began_at_ms, duration_ms: None };
                self.begin(open, now.at);
                self.thinks_since = Some(now.at);
            }
        }
    }

    fn call(&mut self, name: Option<String>, now: Instant) {
        let (arguments, raw) = (String::new(), String::new());
        self.begin(AnswerSegment::ToolCall { name, arguments, outcome: None, raw }, now);
    }

    fn end_call(&mut self, ended: CallOutcome, text: &str) {
        let Some(AnswerSegment::ToolCall { outcome, raw, .. }) = self.segments.last_mut() else {
            return;
        };
        *outcome = Some(match ended {
            CallOutcome::Complete => Outcome::Complete,
            CallOutcome::Unfinished => Outcome::Unfinished,
            CallOutcome::Malformed => Outcome::Malformed,
        });
        *raw = text.replace(REPLACEMENT, "");
        self.has_changed = true;
    }

    fn begin(&mut self, segment: AnswerSegment, now: Instant) {
        self.end_reasoning(now);
        self.held_space.clear();
        self.segments.push(segment);
    }

    fn end_reasoning(&mut self, now: Instant) {
        let Some(since) = self.thinks_since.take() else { return };
        if let Some(AnswerSegment::Reasoning { duration_ms, .. }) = self.segments.last_mut() {
            *duration_ms = Some(milliseconds(since, now));
            self.has_changed = true;
        }
    }

    /// What has changed since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(index) = self.num_given.checked_sub(1) {
            changes.extend(self.change_of(index));
        }
        for index in self.num_given..self.segments.len() {
            changes.push(Change::Whole { index, segment: self.segments[index].clone() });
        }
        self.num_given = self.segments.len();
        self.has_changed = false;
        let last = self.segments.last().map_or("", AnswerSegment::growing);
        (self.given_bytes, self.given_utf16) = (last.len(), utf16_length(last));
        changes
    }

    fn change_of(&self, index: usize) -> Option<Change> {
        let segment = &self.segments[index];
        // What changed may also be a later one; then this one is given again in vain.
        if self.has_changed && !matches!(segment, AnswerSegment::Text { .. }) {
            return Some(Change::Whole { index, segment: segment.clone() });
        }
        let text = segment.growing().get(self.given_bytes..).filter(|text| !text.is_empty())?;
        Some(Change::Grown { index, offset: self.given_utf16, text: text.to_owned() })
    }

    /// Whether [`Self::take_changes`] has some.
    pub(crate) fn has_changes(&self) -> bool {
        self.has_changed
            || self.segments.len() > self.num_given
            || self.segments.last().is_some_and(|last| last.growing().len() > self.given_bytes)
    }

    /// Ends what goes on, because the answer has ended.
    pub(crate) fn end(&mut self, now: Instant) {
        self.end_reasoning(now);
        if let Some(AnswerSegment::ToolCall { outcome: outcome @ None, .. }) =
            self.segments.last_mut()
        {
            *outcome = Some(Outcome::Unfinished);
            self.has_changed = true;
        }
    }

    /// Whether the last segment is reasoning that goes on.
    pub(crate) fn is_thinking(&self) -> bool {
        self.thinks_since.is_some()
    }

    /// Stops the clock of open reasoning.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.is_paused = self.thinks_since.is_some();
        self.end_reasoning(now);
    }

    /// Lets reasoning that was paused go on.
    pub(crate) fn resume(&mut self, now: Now) {
        if std::mem::take(&mut self.is_paused)
            && let Some(AnswerSegment::Reasoning { duration_ms, began_at_ms, .. }) =
                self.segments.last_mut()
        {
            let duration = duration_ms.take().unwrap_or_default();
            *began_at_ms = now.ms - i64::from(duration);
            let duration = Duration::from_millis(duration.into());
            self.thinks_since = Some(now.at.checked_sub(duration).unwrap_or(now.at));
            self.has_changed = true;
        }
    }

    /// The segments as they are stored: nothing goes on. None if they are `text` and nothing else.
    pub(crate) fn to_stored(&self, text: &str, now: Instant) -> Option<String> {
        let (segments, thinks_since) = (self.segments.clone(), self.thinks_since);
        let mut ended = AnswerSegments { segments, thinks_since, ..AnswerSegments::default() };
        ended.end(now);
        match ended.segments.as_slice() {
            [] if text.trim().is_empty() => None,
            [AnswerSegment::Text { text: only }] if only == text => None,
            // Plain texts and numbers always serialize.
            segments => serde_json::to_string(segments).ok(),
        }
    }
}

fn milliseconds(since: Instant, now: Instant) -> u32 {
    u32::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u32::MAX)
}

/// Length in UTF-16 code units. An answer has far fewer than 2^32 of them.
fn utf16_length(text: &str) -> u32 {
    u32::try_from(text.encode_utf16().count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// Segments, and a clock that is moved by hand.
    struct Writing {
        segments: AnswerSegments,
        start: Instant,
        ms: u64,
    }

    impl Writing {
        fn new() -> Writing {
            Writing { segments: AnswerSegments::default(), start: Instant::now(), ms: 0 }
        }

        fn now(&self) -> Now {
            let (at, ms) = (self.start + Duration::from_millis(self.ms), self.ms as i64);
            Now { at, ms }
        }

        /// Takes an event after so many milliseconds; returns the changes.
        fn after(&mut self, ms: u64, event: SegmentEvent) -> Vec<Change> {
            self.ms += ms;
            let now = self.now();
            self.segments.push(&event, now);
            self.segments.take_changes()
        }
    }

    fn text(text: &str) -> SegmentEvent {
        SegmentEvent::Text(text.to_owned())
    }

    fn thinks(text: &str) -> SegmentEvent {
        SegmentEvent::Reasoning(text.to_owned())
    }

    fn reasoning(text: &str, began_at_ms: i64, duration_ms: Option<u32>) -> AnswerSegment {
        AnswerSegment::Reasoning { text: text.to_owned(), began_at_ms, duration_ms }
    }

    fn whole(index: usize, segment: AnswerSegment) -> Change {
        Change::Whole { index, segment }
    }

    fn grown(index: usize, offset: u32, text: &str) -> Change {
        Change::Grown { index, offset, text: text.to_owned() }
    }

    #[test]
    fn segments_begin_grow_and_end() {
        let mut writing = Writing::new();
        let markup = SegmentEvent::Markup("<think>\n".to_owned());
        assert_eq!(writing.after(5, markup), []);
        assert_eq!(writing.after(10, thinks("H🪨")), [whole(0, reasoning("H🪨", 15, None))]);
        assert_eq!(writing.after(10, thinks("m")), [grown(0, 3, "m")]);
        assert_eq!(writing.after(10, text(" ")), [], "white space alone is nothing to show");
        let said = AnswerSegment::Text { text: " Yes".to_owned() };
        let ended = whole(0, reasoning("H🪨m", 15, Some(30)));
        assert_eq!(writing.after(10, text("Yes")), [ended, whole(1, said)]);
        assert_eq!(writing.after(0, text("\u{FFFD}.")), [grown(1, 4, ".")]);
        assert!(!writing.segments.has_changes());
    }

    #[test]
    fn what_goes_on_is_stored_as_if_it_had_ended() {
        let mut writing = Writing::new();
        writing.after(5, thinks("Hm"));
        let at = writing.now().at + Duration::from_millis(7);
        let stored = writing.segments.to_stored("<think>Hm", at).unwrap();
        let stored = AnswerSegment::stored(Some(&stored), "<think>Hm");
        assert_eq!(stored, [reasoning("Hm", 5, Some(7))]);
        writing.segments.end(at);
        assert_eq!(writing.segments.take_changes(), [whole(0, reasoning("Hm", 5, Some(7)))]);
    }

    #[test]
    fn what_an_answer_says_has_no_reasoning() {
        let mut writing = Writing::new();
        writing.after(0, thinks("Hm"));
        writing.after(0, text("\n\nNo. "));
        let raw = "<think>Hm</think>\n\nNo. ";
        let stored = writing.segments.to_stored(raw, writing.now().at);
        assert_eq!(AnswerSegment::said(stored.as_deref(), raw), "No.");
        assert_eq!(AnswerSegment::said(None, " Yes.\n"), "Yes.");
        assert_eq!(AnswerSegment::said(None, " \n"), "");
    }

    #[test]
    fn a_pause_is_no_time_of_reasoning() {
        let mut writing = Writing::new();
        writing.after(0, thinks("Hm"));
        writing.ms += 20;
        writing.segments.pause(writing.now().at);
        assert_eq!(writing.segments.take_changes(), [whole(0, reasoning("Hm", 0, Some(20)))]);
        writing.ms += 1000;
        writing.segments.resume(writing.now());
        assert_eq!(writing.segments.take_changes(), [whole(0, reasoning("Hm", 1000, None))]);
        let changes = writing.after(5, text("Yes"));
        assert_eq!(changes[0], whole(0, reasoning("Hm", 1000, Some(25))));
        // Reasoning that has ended does not go on after another pause.
        writing.segments.pause(writing.now().at);
        writing.segments.resume(writing.now());
        assert_eq!(writing.segments.take_changes(), []);
    }
}
