//! Answers with markers around reasoning and before calls: all families but OpenAI's.

use super::Progress;
use super::brackets::{BracketedCall, Dialect};
use super::call::{Status, Surroundings};
use super::events::{CallOutcome, Events};
use super::family::{AnswerFormat, CallForm, CallMarkers, Tags};
use super::markers::{Begins, Markers, Scan, begins};
use super::named::NamedCall;
use super::object::ObjectCall;
use super::reader::CallReader;
use super::tags::TaggedCall;

/// So many line ends before a marker belong to it.
const MAX_LINE_ENDS: usize = 8;
/// A fence that may contain calls, and its end.
const OPEN_FENCE: &str = "```json";
const CLOSE_FENCE: &str = "```";

#[derive(Debug, Clone)]
pub(super) struct MarkerParser {
    format: AnswerFormat,
    /// All markers; in text each of them counts.
    markers: Vec<(String, Role)>,
    in_text: Markers,
    /// Markers that count in reasoning, by their index in `markers`. Calls do if there are tools.
    reasoning_markers: Vec<usize>,
    in_reasoning: Markers,
    /// What ends a malformed call.
    in_malformed: Markers,
    state: State,
    /// Whether line ends that come next belong to the marker before.
    trims_lines: bool,
    /// Whether a call may come next without a marker: only where the text begins.
    may_begin_bare: bool,
    has_tools: bool,
    /// Whether nothing but line ends has followed a call.
    is_after_call: bool,
    trial: Option<Trial>,
    /// Next bytes in which no trial begins, because one has failed there.
    num_plain: usize,
}

/// Calls that count only if the answer ends as it must. Until then their events are held.
#[derive(Debug, Clone)]
struct Trial {
    place: TrialPlace,
    /// All text since the trial began.
    text: String,
    has_call: bool,
    has_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialPlace {
    /// Calls in reasoning count if the reasoning is never closed.
    Reasoning,
    /// Calls in a code fence count if the answer ends with the fence.
    Fence,
}

/// What a marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    OpenReasoning,
    CloseReasoning,
    OpenCall,
    /// The tag before a function's name, without the call's marker.
    OpenFunction(&'static Tags),
    /// A code fence that may contain calls.
    OpenFence,
    /// Structure, with the line ends around it.
    Structure,
    /// A special token, removed alone.
    Token,
}

#[derive(Debug, Clone)]
enum State {
    Text,
    Reasoning {
        is_fresh: bool,
    },
    /// Behind a marker that opens calls, or in a list of them.
    Opened {
        in_list: bool,
    },
    Call {
        reader: Box<CallReader>,
        in_list: bool,
    },
    /// Behind a call.
    After {
        in_list: bool,
    },
    /// In a malformed call, up to the next marker.
    Malformed,
    /// After a code fence that contained calls.
    AfterFence,
}

impl MarkerParser {
    pub(super) fn new(format: AnswerFormat) -> MarkerParser {
        let mut parser = MarkerParser {
            format,
            markers: Vec::new(),
            in_text: Markers::new([]),
            reasoning_markers: Vec::new(),
            in_reasoning: Markers::new([]),
            in_malformed: Markers::new([]),
            state: State::Text,
            trims_lines: false,
            may_begin_bare: false,
            has_tools: false,
            is_after_call: false,
            trial: None,
            num_plain: 0,
        };
        if let Some(row) = format.reasoning {
            parser.add(row.open, Role::OpenReasoning);
            parser.add(row.close, Role::CloseReasoning);
        }
        if let Some(row) = format.calls {
            parser.add(row.open, Role::OpenCall);
            if let CallForm::Tagged(tags) = row.form
                && !tags.function.is_empty()
            {
                parser.add(tags.function, Role::OpenFunction(tags));
            }
            for other in row.others {
                parser.add(other, Role::Structure);
            }
        }
        parser.collect_markers();
        parser
    }

    fn add(&mut self, text: &str, role: Role) {
        if !self.markers.iter().any(|(known, _)| known == text) {
            self.markers.push((text.to_owned(), role));
        }
    }

    fn collect_markers(&mut self) {
        let texts = || self.markers.iter().map(|(text, _)| text.as_str());
        self.in_text = Markers::new(texts());
        let close = match self.format.calls.map(|row| &row.form) {
            Some(CallForm::Python { close, .. }) => Some(*close),
            _ => None,
        };
        self.in_malformed = Markers::new(self.call_markers().chain(close));
        let counts = |role| match role {
            Role::OpenReasoning | Role::CloseReasoning | Role::Token => true,
            Role::OpenCall | Role::OpenFunction(_) => self.has_tools,
            Role::OpenFence | Role::Structure => false,
        };
        let within = self.markers.iter().enumerate().filter(|(_, (_, role))| counts(*role));
        self.reasoning_markers = within.map(|(index, _)| index).collect();
        let texts = self.reasoning_markers.iter().map(|&index| self.markers[index].0.as_str());
        self.in_reasoning = Markers::new(texts);
    }

    /// The markers that may stand around calls.
    fn call_markers(&self) -> impl Iterator<Item = &str> {
        let markers = self.markers.iter().filter(|(_, role)| *role != Role::OpenFence);
        markers.map(|(text, _)| text.as_str())
    }

    pub(super) fn drop_tokens<'a>(&mut self, tokens: impl Iterator<Item = &'a str>) {
        for token in tokens {
            self.add(token, Role::Token);
        }
        self.collect_markers();
    }

    pub(super) fn open_reasoning(&mut self) {
        self.state = State::Reasoning { is_fresh: true };
    }

    /// Finds calls of tools also where no marker says so.
    pub(super) fn expect_calls(&mut self) {
        let Some(row) = self.format.calls else { return };
        self.may_begin_bare = row.may_be_bare;
        self.has_tools = true;
        self.add(OPEN_FENCE, Role::OpenFence);
        self.collect_markers();
    }

    /// Reads on in a text that is not empty.
    pub(super) fn step(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        let is_on_trial = self.trial.is_some();
        let progress = self.advance(text, around, events);
        let used = progress.used();
        let Some(trial) = self.trial.as_mut().filter(|_| is_on_trial) else {
            self.num_plain = self.num_plain.saturating_sub(used);
            return progress;
        };
        trial.text.push_str(&text[..used]);
        let is_unknown = events.completed_name().is_some_and(|name| {
            trial.has_call = true;
            around.tools.iter().all(|tool| tool.name != name)
        });
        let is_malformed = matches!(self.state, State::Malformed);
        let comes_again = matches!(progress, Progress::Again(..));
        if trial.has_failed || is_unknown || is_malformed || comes_again {
            Progress::Again(used, self.end_trial(events))
        } else {
            progress
        }
    }

    /// Begins a trial with its first text, which is markup if the trial succeeds.
    fn begin_trial(&mut self, place: TrialPlace, text: &str, events: &mut Events) {
        let text = text.to_owned();
        self.trial = Some(Trial { place, text, has_call: false, has_failed: false });
        events.begin_trial();
    }

    fn fail_trial(&mut self) {
        if let Some(trial) = &mut self.trial {
            trial.has_failed = true;
        }
    }

    fn is_on_trial_in(&self, place: TrialPlace) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.place == place)
    }

    /// Ends a trial that has failed. Returns its text, which comes again.
    fn end_trial(&mut self, events: &mut Events) -> String {
        let Some(trial) = self.trial.take() else { return String::new() };
        events.drop_trial();
        self.num_plain = trial.text.len();
        self.state = match trial.place {
            TrialPlace::Reasoning => State::Reasoning { is_fresh: false },
            TrialPlace::Fence => State::Text,
        };
        (self.trims_lines, self.is_after_call) = (false, false);
        trial.text
    }

    fn advance(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Progress {
        match &mut self.state {
            State::Text => self.read_text(text, around, events),
            State::Reasoning { is_fresh } => {
                let is_fresh = *is_fresh;
                self.read_reasoning(text, is_fresh, around, events)
            }
            State::Opened { in_list } => {
                let in_list = *in_list;
                self.read_opened(text, in_list, around, events)
            }
            State::Call { reader, in_list } => {
                let (fed, in_list) = (reader.feed(text, around, events), *in_list);
                events.raw(&text[..fed.used]);
                match fed.status {
                    Status::More if fed.used < text.len() => return Progress::Wait(fed.used),
                    Status::More => {}
                    Status::Complete => {
                        events.end_call(CallOutcome::Complete);
                        self.state = State::After { in_list };
                    }
                    Status::Malformed if is_text_after_all(reader) => {
                        self.state = State::Text;
                        self.may_begin_bare = false;
                        return Progress::Again(fed.used, events.take_back());
                    }
                    Status::Malformed => self.state = State::Malformed,
                }
                Progress::Used(fed.used)
            }
            State::After { in_list } => {
                let in_list = *in_list;
                self.read_after(text, in_list, around, events)
            }
            State::Malformed => self.read_malformed(text, around, events),
            State::AfterFence => self.read_after_fence(text, around, events),
        }
    }

    fn read_text(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Progress {
        if self.trims_lines || self.may_begin_bare {
            let lines = text.len() - text.trim_start_matches('\n').len();
            if lines > 0 {
                events.markup(&text[..lines]);
                return Progress::Used(lines);
            }
            self.trims_lines = false;
        }
        if self.is_after_call && self.is_cut_end(text, around) {
            events.markup(text);
            return Progress::Used(text.len());
        }
        if self.may_begin_bare && text.starts_with('{') {
            self.start(CallReader::Object(ObjectCall::new(true)), false);
            return Progress::Used(0);
        }
        let found = self.in_text.scan(text, around.is_last);
        let (Scan::Found { at, .. } | Scan::Hold { at }) = found else {
            (self.may_begin_bare, self.is_after_call) = (false, false);
            return give_text(text, text.len(), around, events, Events::text);
        };
        self.may_begin_bare &= at == 0;
        self.is_after_call &= at == 0;
        let Scan::Found { length, index, .. } = found else {
            return give_text(text, at, around, events, Events::text);
        };
        let role = self.markers[index].1;
        let end = at + length;
        self.is_after_call = false;
        if role == Role::OpenFence && (self.trial.is_some() || at < self.num_plain) {
            self.may_begin_bare = false;
            events.text(&text[..end]);
            return Progress::Used(end);
        }
        let is_reasoning = matches!(role, Role::OpenReasoning | Role::CloseReasoning);
        if is_reasoning && self.trial.is_some() {
            self.fail_trial();
            return Progress::Used(at);
        }
        let body = if role == Role::Token { at } else { without_lines(&text[..at]) };
        let marker = if matches!(role, Role::OpenFunction(_)) { at } else { end };
        events.text(&text[..body]);
        if role == Role::OpenFence {
            self.begin_trial(TrialPlace::Fence, &text[body..end], events);
        }
        events.markup(&text[body..marker]);
        events.raw(&text[marker..end]);
        self.trims_lines = role != Role::Token;
        self.take_marker(role);
        Progress::Used(end)
    }

    /// Goes to the state after a marker in text.
    fn take_marker(&mut self, role: Role) {
        match role {
            Role::OpenReasoning => self.state = State::Reasoning { is_fresh: true },
            Role::OpenCall | Role::OpenFence => self.state = State::Opened { in_list: false },
            Role::OpenFunction(tags) => {
                self.start(CallReader::Tagged(TaggedCall::new(tags)), false);
            }
            Role::CloseReasoning | Role::Structure | Role::Token => {}
        }
    }

    /// Whether the answer is cut within a marker that may follow a call.
    fn is_cut_end(&self, text: &str, around: &Surroundings) -> bool {
        let row = self.format.calls;
        let close = match row.map(|row| &row.form) {
            Some(CallForm::Python { close, .. }) => Some(*close),
            _ => None,
        };
        let fence = self.is_on_trial_in(TrialPlace::Fence).then_some(CLOSE_FENCE);
        let others = row.map_or(&[][..], |row| row.others);
        let mut ends = others.iter().copied().chain(close).chain(fence);
        around.is_last && ends.any(|end| end.len() > text.len() && end.starts_with(text))
    }

    fn read_reasoning(
        &mut self,
        text: &str,
        is_fresh: bool,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        if is_fresh {
            let lines = text.len() - text.trim_start_matches('\n').len();
            if lines > 0 {
                events.markup(&text[..lines]);
                return Progress::Used(lines);
            }
        }
        let found = self.in_reasoning.scan(text, around.is_last);
        let (Scan::Found { at, .. } | Scan::Hold { at }) = found else {
            self.state = State::Reasoning { is_fresh: false };
            return give_text(text, text.len(), around, events, Events::reasoning);
        };
        let is_fresh = is_fresh && at == 0;
        self.state = State::Reasoning { is_fresh };
        let Scan::Found { length, index, .. } = found else {
            return give_text(text, at, around, events, Events::reasoning);
        };
        let end = at + length;
        let role = self.markers[self.reasoning_markers[index]].1;
        match role {
            Role::OpenCall | Role::OpenFunction(_) if at < self.num_plain => {
                events.reasoning(&text[..end]);
            }
            Role::OpenCall | Role::OpenFunction(_) => {
                let body = without_lines(&text[..at]);
                let marker = if role == Role::OpenCall { end } else { at };
                events.reasoning(&text[..body]);
                self.begin_trial(TrialPlace::Reasoning, &text[body..end], events);
                events.markup(&text[body..marker]);
                events.raw(&text[marker..end]);
                self.take_marker(role);
            }
            Role::CloseReasoning => {
                let body = without_lines(&text[..at]);
                events.reasoning(&text[..body]);
                events.markup(&text[body..end]);
                self.state = State::Text;
                self.trims_lines = true;
            }
            // A model may repeat the marker that its prompt ends with; later it writes about it.
            Role::OpenReasoning if !is_fresh => {
                events.reasoning(&text[..end]);
            }
            _ => {
                events.reasoning(&text[..at]);
                events.markup(&text[at..end]);
            }
        }
        Progress::Used(end)
    }

    fn start(&mut self, reader: CallReader, in_list: bool) {
        self.state = State::Call { reader: Box::new(reader), in_list };
    }

    fn read_opened(
        &mut self,
        text: &str,
        in_list: bool,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        if let Some(used) = skip_space(text, events) {
            return used;
        }
        match text.as_bytes()[0] {
            b'[' if !in_list && self.may_list() => {
                events.markup("[");
                self.state = State::Opened { in_list: true };
                Progress::Used(1)
            }
            b']' if in_list => {
                events.markup("]");
                self.state = State::After { in_list: false };
                Progress::Used(1)
            }
            _ => self.open_call(text, in_list, around, events),
        }
    }

    /// Whether calls may be in a list.
    fn may_list(&self) -> bool {
        let form = self.format.calls.map(|row| &row.form);
        !matches!(form, Some(CallForm::Braced { .. })) || self.is_on_trial_in(TrialPlace::Fence)
    }

    /// Chooses the reader for a call that begins with `text`.
    fn open_call(
        &mut self,
        text: &str,
        in_list: bool,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        let is_object = text.starts_with('{');
        let is_fenced = self.is_on_trial_in(TrialPlace::Fence);
        let reader = match self.format.calls.map(|row| &row.form) {
            // JSON in a fence is a call only if it has all that a call needs.
            _ if is_fenced && is_object => CallReader::Object(ObjectCall::new(true)),
            _ if is_fenced => return self.reject(),
            Some(CallForm::Braced { quote }) => {
                CallReader::Bracketed(BracketedCall::new(Dialect::Braced { quote }))
            }
            _ if is_object => CallReader::Object(ObjectCall::new(false)),
            Some(CallForm::Python { .. }) => {
                CallReader::Bracketed(BracketedCall::new(Dialect::Python))
            }
            Some(CallForm::Named { separator, id }) if !in_list => {
                CallReader::Named(NamedCall::new(separator, *id, self.call_markers()))
            }
            Some(CallForm::Tagged(tags)) if !in_list => {
                match begins(text, tags.function, around.is_last) {
                    Begins::With => {
                        events.raw(tags.function);
                        self.start(CallReader::Tagged(TaggedCall::new(tags)), false);
                        return Progress::Used(tags.function.len());
                    }
                    Begins::Unclear => return Progress::Wait(0),
                    Begins::Otherwise => return self.reject(),
                }
            }
            _ => return self.reject(),
        };
        self.start(reader, in_list);
        Progress::Used(0)
    }

    /// What comes next is no call.
    fn reject(&mut self) -> Progress {
        self.state = State::Malformed;
        Progress::Used(0)
    }

    fn read_after(
        &mut self,
        text: &str,
        in_list: bool,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        let space = text.len() - text.trim_ascii_start().len();
        let first = text.as_bytes()[0];
        let row = self.format.calls;
        if space > 0 {
            events.markup(&text[..space]);
            return Progress::Used(space);
        }
        if self.is_cut_end(text, around) {
            events.markup(text);
            return Progress::Used(text.len());
        }
        if self.is_on_trial_in(TrialPlace::Fence) && !in_list {
            return self.read_fence_end(text, around, events);
        }
        if let Some(CallMarkers { form: CallForm::Python { close, in_lines }, .. }) = row {
            match begins(text, close, around.is_last) {
                Begins::With => {
                    events.markup(close);
                    (self.state, self.trims_lines) = (State::Text, true);
                    return Progress::Used(close.len());
                }
                Begins::Unclear => return Progress::Wait(0),
                Begins::Otherwise if *in_lines && !in_list && is_name_start(first) => {
                    self.state = State::Opened { in_list };
                    return Progress::Used(0);
                }
                Begins::Otherwise => {}
            }
        }
        let may_be_bare = row.is_some_and(|row| row.may_be_bare);
        let is_json = row.is_some_and(|row| row.form == CallForm::Json);
        let separator = match first {
            b',' if in_list => Some(State::Opened { in_list }),
            b']' if in_list => Some(State::After { in_list: false }),
            b';' if !in_list && may_be_bare => Some(State::After { in_list }),
            _ => None,
        };
        if let Some(state) = separator {
            events.markup(&text[..1]);
            self.state = state;
            return Progress::Used(1);
        }
        if !in_list && first == b'{' && (is_json || may_be_bare) {
            self.start(CallReader::Object(ObjectCall::new(may_be_bare)), false);
        } else {
            (self.state, self.trims_lines) = (State::Text, true);
            self.is_after_call = true;
        }
        Progress::Used(0)
    }

    /// Reads on after a call in a code fence.
    fn read_fence_end(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        if text.starts_with('{') {
            self.state = State::Opened { in_list: false };
            return Progress::Used(0);
        }
        match begins(text, CLOSE_FENCE, around.is_last) {
            Begins::With => {
                events.markup(CLOSE_FENCE);
                self.state = State::AfterFence;
                Progress::Used(CLOSE_FENCE.len())
            }
            Begins::Unclear => Progress::Wait(0),
            Begins::Otherwise => {
                self.fail_trial();
                Progress::Used(0)
            }
        }
    }

    /// Reads on after a code fence with calls, where nothing but special tokens may follow.
    fn read_after_fence(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        if let Some(used) = skip_space(text, events) {
            return used;
        }
        match self.in_text.scan(text, around.is_last) {
            Scan::Found { at: 0, length, index } if self.markers[index].1 == Role::Token => {
                events.markup(&text[..length]);
                Progress::Used(length)
            }
            Scan::Hold { at: 0 } => Progress::Wait(0),
            _ => {
                self.fail_trial();
                Progress::Used(0)
            }
        }
    }

    fn read_malformed(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        match self.in_malformed.scan(text, around.is_last) {
            Scan::Found { at, .. } => {
                events.raw(&text[..at]);
                events.end_call(CallOutcome::Malformed);
                self.state = State::After { in_list: false };
                Progress::Used(at)
            }
            Scan::Hold { at } => {
                events.raw(&text[..at]);
                Progress::Wait(at)
            }
            Scan::Nothing => {
                events.raw(text);
                Progress::Used(text.len())
            }
        }
    }

    /// Ends what is open. Returns text that may have been a call, and is none.
    pub(super) fn finish(&mut self, events: &mut Events) -> Option<String> {
        if let Some(trial) = &self.trial {
            let has_ended = match trial.place {
                TrialPlace::Reasoning => true,
                TrialPlace::Fence => {
                    matches!(self.state, State::After { in_list: false } | State::AfterFence)
                }
            };
            if !trial.has_call || !has_ended {
                return Some(self.end_trial(events));
            }
            self.trial = None;
            events.keep_trial();
        }
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call { reader, .. } if is_text_after_all(&reader) => {
                self.may_begin_bare = false;
                return Some(events.take_back());
            }
            State::Opened { .. } | State::Call { .. } => {
                events.end_call(CallOutcome::Unfinished);
            }
            State::Malformed => events.end_call(CallOutcome::Malformed),
            State::Text | State::Reasoning { .. } | State::After { .. } | State::AfterFence => {}
        }
        None
    }
}

/// Whether a name can begin with this byte.
fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// Gives the space before the next text out as markup; `None` if there is none.
fn skip_space(text: &str, events: &mut Events) -> Option<Progress> {
    let space = text.len() - text.trim_ascii_start().len();
    (space > 0).then(|| {
        events.markup(&text[..space]);
        Progress::Used(space)
    })
}

fn is_text_after_all(reader: &CallReader) -> bool {
    matches!(reader, CallReader::Object(call) if call.may_be_text())
}

/// Gives out text before `end`, but for line ends that may belong to a marker behind it.
fn give_text(
    text: &str,
    end: usize,
    around: &Surroundings,
    events: &mut Events,
    give: impl Fn(&mut Events, &str),
) -> Progress {
    let end = if around.is_last { end } else { without_lines(&text[..end]) };
    give(events, &text[..end]);
    if end < text.len() { Progress::Wait(end) } else { Progress::Used(end) }
}

/// The length of a text without its last line ends, of which so many are counted.
fn without_lines(text: &str) -> usize {
    let lines = text.bytes().rev().take(MAX_LINE_ENDS).take_while(|byte| *byte == b'\n');
    text.len() - lines.count()
}
