//! The segments of an answer: text, reasoning and tool calls, told apart while the answer arrives.
//!
//! A model writes everything into one stream, with markers that its family was trained on.
//! [`AnswerFormat::of`] recognizes the family by the chat template; [`SegmentParser`] cuts the
//! stream:
//!
//! ```text
//! text with       SegmentParser
//! special tokens ─▶ push, finish ─▶ SegmentEvent ─▶ (a stream of the API)
//!                                        └─ Segment::collect ─▶ Segment (a whole answer)
//! ```
//!
//! The stream must contain special tokens as text, because many markers are such tokens. Others,
//! such as the end of a turn, are removed from the text by [`SegmentParser::without_tokens`].
//!
//! # Example
//!
//! ```
//! use cairn_chat::{AnswerFormat, SegmentEvent, SegmentParser};
//!
//! let template = "… <think> … <tool_call> …";
//! let mut parser = SegmentParser::new(AnswerFormat::of(template, |_| false));
//! assert_eq!(parser.push("<think>\nLook it u"), [
//!     SegmentEvent::Markup("<think>\n".to_owned()),
//!     SegmentEvent::Reasoning("Look it u".to_owned()),
//! ]);
//! assert_eq!(parser.push("p.\n</thi"), [SegmentEvent::Reasoning("p.".to_owned())]);
//! parser.push("nk>\n\n<tool_call>\n{\"name\": \"search\", \"argum");
//! assert_eq!(parser.push("ents\": {\"query\": \"ca"), [
//!     SegmentEvent::CallStarted { index: 0, name: "search".to_owned(), id: None },
//!     SegmentEvent::CallArguments { index: 0, json: "{\"query\": \"ca".to_owned() },
//! ]);
//! parser.push("irn\"}}\n</tool_call>");
//! assert_eq!(parser.finish(), [SegmentEvent::Ended { num_complete_calls: 1 }]);
//! ```

mod brackets;
mod call;
mod channels;
mod crowded;
mod endless;
mod events;
mod family;
mod formats;
mod grammar;
mod inner;
mod json;
mod keywords;
mod marked;
mod markers;
mod named;
mod object;
mod reader;
mod tags;

use call::Surroundings;
use channels::ChannelParser;
use events::Events;
use marked::MarkerParser;

pub use crowded::CrowdedPlace;
pub use events::{CallOutcome, Segment, SegmentEvent, ToolCall};
pub use family::AnswerFormat;
pub use grammar::{AnswerForm, CallSchema, TextForm};

/// A tool that the model was offered.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments, which says what text means where a family writes arguments
    /// as text.
    pub parameters: serde_json::Value,
}

/// Cuts an answer into segments.
///
/// 1. What comes out does not depend on how the stream was cut.
/// 2. Nothing is lost: the raw texts of all segments, joined, are the stream. What was held back as
///    the possible start of a marker is given out when it is clear, or when the answer ends.
/// 3. No marker of the family is left in a `Text` segment.
/// 4. Nothing is invented: a call that breaks off or is malformed says so and carries its raw text.
/// 5. The time is linear in the stream. Held back are at most a marker, eight line ends before it,
///    512 bytes that may become a call without a marker, what a call writes before its name, and
///    where a form is not JSON, one argument or (Gemma, Python) one call.
/// 6. With tools, two kinds of calls depend on how the answer ends, and are held until then. Whole
///    calls of offered tools in reasoning count if the reasoning is never closed. Such calls in a
///    code fence (`` ```json ``) count if the answer ends with the fence.
/// 7. Models forget to escape. Line ends, tabs and lone backslashes in the JSON strings of a call
///    are escaped in its arguments.
#[derive(Debug, Clone)]
pub struct SegmentParser {
    format: AnswerFormat,
    machine: Machine,
    tools: Vec<OfferedTool>,
    events: Events,
    /// Text that is too short to be understood.
    held: String,
}

#[derive(Debug, Clone)]
enum Machine {
    Markers(Box<MarkerParser>),
    Channels(ChannelParser),
}

/// How far a machine got with a text.
#[derive(Debug)]
enum Progress {
    /// It has used so many bytes, and goes on.
    Used(usize),
    /// It has used so many, and needs more for the rest.
    Wait(usize),
    /// It has used so many; before the rest, this text comes again, as what it is.
    Again(usize, String),
}

impl Progress {
    fn used(&self) -> usize {
        match self {
            Progress::Used(used) | Progress::Wait(used) | Progress::Again(used, _) => *used,
        }
    }
}

impl SegmentParser {
    /// A parser for one answer. Without [`with_tools`](Self::with_tools), JSON without a marker is
    /// text.
    pub fn new(format: AnswerFormat) -> SegmentParser {
        let machine = if format.channels {
            Machine::Channels(ChannelParser::new())
        } else {
            Machine::Markers(Box::new(MarkerParser::new(format)))
        };
        let (tools, events) = (Vec::new(), Events::default());
        SegmentParser { format, machine, tools, events, held: String::new() }
    }

    /// Names the tools that the model was offered.
    pub fn with_tools(mut self, tools: Vec<OfferedTool>) -> SegmentParser {
        if let Machine::Markers(machine) = &mut self.machine
            && !tools.is_empty()
        {
            machine.expect_calls();
        }
        self.tools = tools;
        self
    }

    /// Begins where the rendered prompt ends: a template may have opened the reasoning.
    ///
    /// If the prompt ends with the beginning of an answer, leave that out and
    /// [`push`](Self::push) it first, without its events.
    pub fn after_prompt(mut self, prompt: &str) -> SegmentParser {
        match &mut self.machine {
            Machine::Markers(machine) => {
                if self.format.is_opened_by(prompt) {
                    machine.open_reasoning();
                }
            }
            Machine::Channels(_) => {
                let start = prompt.rfind(channels::START).unwrap_or(prompt.len());
                self.push(&prompt[start..]);
            }
        }
        if let Machine::Channels(machine) = &mut self.machine {
            machine.end_prompt();
            (self.events, self.held) = (Events::default(), String::new());
        }
        self
    }

    /// Names special tokens that are no text, wherever they stand outside of calls.
    pub fn without_tokens<'a>(
        mut self,
        tokens: impl IntoIterator<Item = &'a str>,
    ) -> SegmentParser {
        let tokens = tokens.into_iter().filter(|token| !token.is_empty());
        match &mut self.machine {
            Machine::Markers(machine) => machine.drop_tokens(tokens),
            Machine::Channels(machine) => machine.drop_tokens(tokens),
        }
        self
    }

    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &str) -> Vec<SegmentEvent> {
        self.held.push_str(piece);
        self.run(false);
        self.events.take()
    }

    /// Ends the answer: gives out what was held, and [`SegmentEvent::Ended`].
    pub fn finish(mut self) -> Vec<SegmentEvent> {
        self.run(true);
        // What may have been a call is text, so it cannot be one again.
        while let Machine::Markers(machine) = &mut self.machine
            && let Some(text) = machine.finish(&mut self.events)
        {
            self.held = text;
            self.run(true);
        }
        if let Machine::Channels(machine) = &mut self.machine {
            machine.finish(&mut self.events);
        }
        self.events.end();
        self.events.take()
    }

    fn run(&mut self, is_last: bool) {
        let mut text = std::mem::take(&mut self.held);
        let around = Surroundings { tools: &self.tools, is_last };
        let mut at = 0;
        while at < text.len() {
            let rest = &text[at..];
            let progress = match &mut self.machine {
                Machine::Markers(machine) => machine.step(rest, &around, &mut self.events),
                Machine::Channels(machine) => machine.step(rest, &around, &mut self.events),
            };
            match progress {
                Progress::Used(used) => at += used,
                Progress::Wait(used) => {
                    at += used;
                    break;
                }
                Progress::Again(used, mut again) => {
                    again.push_str(&rest[used..]);
                    (text, at) = (again, 0);
                }
            }
        }
        text.drain(..at);
        self.held = text;
    }
}
