//! Answers in OpenAI's harmony format: messages, each with a header that names its channel and, if
//! it is a tool call, its recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>reasoning<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json
//!     <|message|>{…}<|call|>
//! <|start|>assistant<|channel|>final<|message|>text<|return|>
//! ```
//! `commentary` without a recipient is written for the reader, before a call. The recipient may
//! also stand before the channel. `<|return|>` and `<|call|>` usually end the answer as tokens.

use super::Progress;
use super::call::{self, MAX_HEADER_BYTES, Status, Surroundings, is_name};
use super::events::{CallOutcome, Events};
use super::markers::{Markers, Scan};

pub(super) const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
const END: &str = "<|end|>";
const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

pub(super) const MARKERS: [&str; 7] = [START, CHANNEL, MESSAGE, CONSTRAIN, END, RETURN, CALL];

#[derive(Debug, Clone)]
pub(super) struct ChannelParser {
    texts: Vec<String>,
    markers: Markers,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Header(Header),
    Text,
    Reasoning,
    /// Before the arguments of a call.
    Opened,
    Arguments(call::Arguments),
    /// Behind a call.
    After,
    Malformed,
}

/// A header so far, with its markers.
#[derive(Debug, Clone, Default)]
struct Header {
    text: String,
    /// How much of it the prompt gave.
    num_given: usize,
    /// Whether `<|start|>` stands before it.
    follows_start: bool,
}

impl Header {
    fn written(&self) -> &str {
        &self.text[self.num_given..]
    }

    /// Whether it is the beginning of a header, not the text of a model that writes none.
    fn is_certain(&self) -> bool {
        let names_role = self.follows_start && self.num_given == 0;
        names_role || self.text.contains(CHANNEL) || self.written().trim_start().starts_with("to=")
    }
}

impl ChannelParser {
    /// A parser for an answer that begins within a header, as the prompt leaves it.
    pub(super) fn new() -> ChannelParser {
        let texts: Vec<String> = MARKERS.map(str::to_owned).to_vec();
        let markers = Markers::new(MARKERS);
        ChannelParser { texts, markers, state: State::Header(Header::default()) }
    }

    pub(super) fn drop_tokens<'a>(&mut self, tokens: impl Iterator<Item = &'a str>) {
        self.texts.extend(tokens.map(str::to_owned));
        self.markers = Markers::new(self.texts.iter().map(String::as_str));
    }

    /// Leaves out of the answer what it has read of the prompt.
    pub(super) fn end_prompt(&mut self) {
        if let State::Header(header) = &mut self.state {
            header.num_given = header.text.len();
        }
    }

    /// Reads on in a text that is not empty.
    pub(super) fn step(
        &mut self,
        text: &str,
        around: &Surroundings,
        events: &mut Events,
    ) -> Progress {
        if let State::Arguments(arguments) = &mut self.state {
            let fed = arguments.feed(text, events);
            events.raw(&text[..fed.used]);
            match fed.status {
                Status::More => {}
                Status::Complete => {
                    events.end_call(CallOutcome::Complete);
                    self.state = State::After;
                }
                Status::Malformed => self.state = State::Malformed,
            }
            return Progress::Used(fed.used);
        }
        if matches!(self.state, State::Opened | State::After) {
            return self.read_space(text, events);
        }
        let (end, found) = match self.markers.scan(text, around.is_last) {
            Scan::Found { at, length, .. } => (at, Some(&text[at..at + length])),
            Scan::Hold { at } => (at, None),
            Scan::Nothing => (text.len(), None),
        };
        match &mut self.state {
            State::Header(header) => header.text.push_str(&text[..end]),
            State::Reasoning => events.reasoning(&text[..end]),
            State::Malformed => events.raw(&text[..end]),
            _ => events.text(&text[..end]),
        }
        self.check_header(events);
        match found {
            Some(marker) => {
                self.take_marker(marker, events);
                Progress::Used(end + marker.len())
            }
            None if end < text.len() => Progress::Wait(end),
            None => Progress::Used(end),
        }
    }

    /// A header that is too long is text.
    fn check_header(&mut self, events: &mut Events) {
        if let State::Header(header) = &mut self.state
            && header.text.len() > MAX_HEADER_BYTES
        {
            let header = std::mem::take(header);
            self.state = State::Text;
            self.give_out(header.written(), events);
        }
    }

    /// Gives out a header that is none: its text, and its markers as such.
    fn give_out(&self, mut header: &str, events: &mut Events) {
        while let Scan::Found { at, length, .. } = self.markers.scan(header, true) {
            events.text(&header[..at]);
            events.markup(&header[at..at + length]);
            header = &header[at + length..];
        }
        events.text(header);
    }

    fn take_marker(&mut self, marker: &str, events: &mut Events) {
        let header = match &mut self.state {
            State::Header(header) => Some(std::mem::take(header)),
            State::Malformed => {
                events.end_call(CallOutcome::Malformed);
                self.state = State::Text;
                None
            }
            _ => None,
        };
        match (marker, header) {
            (CHANNEL | CONSTRAIN, Some(mut header)) => {
                header.text.push_str(marker);
                self.state = State::Header(header);
            }
            (MESSAGE, Some(header)) => {
                events.markup(header.written());
                events.markup(marker);
                self.state = open_message(&header.text, events);
            }
            (CHANNEL, None) => {
                let text = marker.to_owned();
                self.state = State::Header(Header { text, ..Header::default() });
            }
            (START, header) => {
                self.give_broken(&header.unwrap_or_default(), events);
                events.markup(marker);
                self.state = State::Header(Header { follows_start: true, ..Header::default() });
            }
            (END | RETURN | CALL, header) => {
                self.give_broken(&header.unwrap_or_default(), events);
                events.markup(marker);
                self.state = State::Text;
            }
            // A marker out of place, or a special token.
            (_, Some(header)) => {
                self.give_broken(&header, events);
                events.markup(marker);
                self.state = State::Text;
            }
            (_, None) => events.markup(marker),
        }
    }

    /// Gives out a header that breaks off.
    fn give_broken(&self, header: &Header, events: &mut Events) {
        if header.is_certain() {
            events.markup(header.written());
        } else {
            self.give_out(header.written(), events);
        }
    }

    fn read_space(&mut self, text: &str, events: &mut Events) -> Progress {
        let space = text.len() - text.trim_ascii_start().len();
        let is_behind = matches!(self.state, State::After);
        if is_behind {
            events.markup(&text[..space]);
        } else {
            events.raw(&text[..space]);
        }
        if space < text.len() {
            self.state = match is_behind {
                true => State::Text,
                false if text[space..].starts_with('{') => State::Arguments(call::Arguments::new()),
                false => State::Malformed,
            };
        }
        Progress::Used(space)
    }

    /// Ends what is open.
    pub(super) fn finish(&mut self, events: &mut Events) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Header(header) => self.give_broken(&header, events),
            State::Opened | State::Arguments(_) => events.end_call(CallOutcome::Unfinished),
            State::Malformed => events.end_call(CallOutcome::Malformed),
            State::Text | State::Reasoning | State::After => {}
        }
    }
}

/// The state behind a header.
fn open_message(header: &str, events: &mut Events) -> State {
    let word = |text: &str| {
        let end = text.find(|char: char| char.is_whitespace() || char == '<');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let recipient = header.split_once("to=").map(|(_, rest)| word(rest));
    let recipient = recipient.filter(|recipient| recipient != "assistant" && is_name(recipient));
    if let Some(recipient) = recipient {
        let name = recipient.strip_prefix("functions.").unwrap_or(&recipient);
        events.start_call(name.to_owned(), None);
        return State::Opened;
    }
    let channel = header.split_once(CHANNEL).map(|(_, rest)| word(rest.trim_start()));
    if channel.as_deref() == Some("analysis") { State::Reasoning } else { State::Text }
}
