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

#[derive(Debug, Clone)]
pub(super) struct MarkerParser {
    format: AnswerFormat,
    /// All markers; in text each of them counts.
    markers: Vec<(String, Role)>,
    in_text: Markers,
    /// Those that count in reasoning, by their index in `markers`.
    reasoning_markers: Vec<usize>,
    in_reasoning: Markers,
    /// What ends a malformed call.
    in_malformed: Markers,
    state: State,
    /// Whether line ends that come next belong to the marker before.
    trims_lines: bool,
    /// Whether a call may come next without a marker: only where the text begins.
    may_begin_bare: bool,
}

/// What a marker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    OpenReasoning,
    CloseReasoning,
    OpenCall,
    /// The tag before a function's name, without the call's marker.
    OpenFunction(&'static Tags),
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
        self.in_malformed = Markers::new(texts().chain(close));
        let counts =
            |role| matches!(role, Role::OpenReasoning | Role::CloseReasoning | Role::Token);
        let within = self.markers.iter().enumerate().filter(|(_, (_, role))| counts(*role));
        self.reasoning_markers = within.map(|(index, _)| index).collect();
        let texts = self.reasoning_markers.iter().map(|&index| self.markers[index].0.as_str());
        self.in_reasoning = Markers::new(texts);
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

    pub(super) fn expect_bare_calls(&mut self, has_tools: bool) {
        self.may_begin_bare = has_tools && self.format.calls.is_some_and(|row| row.may_be_bare);
    }

    /// Reads on in a text that is not empty.
    pub(super) fn step(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
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
        if self.may_begin_bare && text.starts_with('{') {
            self.start(CallReader::Object(ObjectCall::new(true)), false);
            return Progress::Used(0);
        }
        let found = self.in_text.scan(text, around.is_last);
        let (Scan::Found { at, .. } | Scan::Hold { at }) = found else {
            self.may_begin_bare = false;
            return give_text(text, text.len(), around, events, Events::text);
        };
        self.may_begin_bare &= at == 0;
        let Scan::Found { length, index, .. } = found else {
            return give_text(text, at, around, events, Events::text);
        };
        let role = self.markers[index].1;
        let end = at + length;
        let body = if role == Role::Token { at } else { without_lines(&text[..at]) };
        let marker = if matches!(role, Role::OpenFunction(_)) { at } else { end };
        events.text(&text[..body]);
        events.markup(&text[body..marker]);
        events.raw(&text[marker..end]);
        self.trims_lines = role != Role::Token;
        match role {
            Role::OpenReasoning => self.state = State::Reasoning { is_fresh: true },
            Role::OpenCall => self.state = State::Opened { in_list: false },
            Role::OpenFunction(tags) => {
                self.start(CallReader::Tagged(TaggedCall::new(tags)), false);
            }
            Role::CloseReasoning | Role::Structure | Role::Token => {}
        }
        Progress::Used(end)
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
        match self.markers[self.reasoning_markers[index]].1 {
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
        let space = text.len() - text.trim_ascii_start().len();
        if space > 0 {
            events.markup(&text[..space]);
            return Progress::Used(space);
        }
        match text.as_bytes()[0] {
            b'[' if !in_list && !self.is_braced() => {
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

    fn is_braced(&self) -> bool {
        self.format.calls.is_some_and(|row| matches!(row.form, CallForm::Braced { .. }))
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
        let reader = match self.format.calls.map(|row| &row.form) {
            Some(CallForm::Braced { quote }) => {
                CallReader::Bracketed(BracketedCall::new(Dialect::Braced { quote }))
            }
            _ if is_object => CallReader::Object(ObjectCall::new(false)),
            Some(CallForm::Python { .. }) => {
                CallReader::Bracketed(BracketedCall::new(Dialect::Python))
            }
            Some(CallForm::Named { separator, id }) if !in_list => {
                let markers = self.markers.iter().map(|(text, _)| text.as_str());
                CallReader::Named(NamedCall::new(separator, *id, markers))
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
        }
        Progress::Used(0)
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
        match std::mem::replace(&mut self.state, State::Text) {
            State::Call { reader, .. } if is_text_after_all(&reader) => {
                self.may_begin_bare = false;
                return Some(events.take_back());
            }
            State::Opened { .. } | State::Call { .. } => {
                events.end_call(CallOutcome::Unfinished);
            }
            State::Malformed => events.end_call(CallOutcome::Malformed),
            State::Text | State::Reasoning { .. } | State::After { .. } => {}
        }
        None
    }
}

/// Whether a name can begin with this byte.
fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
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
