//! Reading one tool call while it arrives: a reader for each form, which announces the name as soon
//! as it is certain and hands on the arguments.

use super::brackets::BracketedCall;
use super::call::{Fed, Surroundings};
use super::events::Events;
use super::named::NamedCall;
use super::object::ObjectCall;
use super::tags::TaggedCall;

/// A call that is being read.
#[derive(Debug, Clone)]
pub(super) enum CallReader {
    Object(ObjectCall),
    Named(NamedCall),
    Tagged(TaggedCall),
    Bracketed(BracketedCall),
}

impl CallReader {
    pub(super) fn feed(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        match self {
            CallReader::Object(call) => call.feed(text, around, events),
            CallReader::Named(call) => call.feed(text, around, events),
            CallReader::Tagged(call) => call.feed(text, around, events),
            CallReader::Bracketed(call) => call.feed(text, around, events),
        }
    }
}
