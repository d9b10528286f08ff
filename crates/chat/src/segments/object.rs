//! A call as one JSON object, with the name among its keys.

use super::call::{Fed, MAX_HEADER_BYTES, Surroundings};
use super::events::Events;
use super::json::{Mender, NoJson, Scanner, Step, is_object};

/// `{"name": …, "arguments": {…}}`, also with `parameters`, or with Cohere's `tool_name`.
#[derive(Debug, Clone)]
pub(super) struct ObjectCall {
    scanner: Scanner,
    /// The key of the value that comes next, or is read.
    field: Field,
    /// The bytes of a string that is read.
    captured: Option<Vec<u8>>,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    early: String,
    has_arguments: bool,
    in_arguments: bool,
    mender: Mender,
    is_announced: bool,
    /// Whether the text may turn out to be no call, because no marker said so.
    pub(super) is_tentative: bool,
    num_read: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Other,
    Name,
    Id,
    Arguments,
}

impl ObjectCall {
    pub(super) fn new(is_tentative: bool) -> ObjectCall {
        ObjectCall {
            scanner: Scanner::new(),
            field: Field::Other,
            captured: None,
            name: None,
            id: None,
            early: String::new(),
            has_arguments: false,
            in_arguments: false,
            mender: Mender::default(),
            is_announced: false,
            is_tentative,
            num_read: 0,
        }
    }

    pub(super) fn feed(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        // Where the arguments in this piece begin.
        let mut start = 0;
        for (at, byte) in text.bytes().enumerate() {
            let was_in_arguments = self.in_arguments;
            let step = self.scanner.push(byte).and_then(|step| self.take(step, byte, around));
            self.num_read += 1;
            let is_too_long = self.may_be_text()
                && self.num_read > 2 * MAX_HEADER_BYTES
                && text.is_char_boundary(at);
            if step.is_err() || is_too_long {
                if was_in_arguments {
                    self.hand_on(&text[start..at], events);
                }
                return Fed::malformed(at);
            }
            match (was_in_arguments, self.in_arguments) {
                (false, true) => {
                    start = at;
                    self.announce(events);
                }
                (true, false) => self.hand_on(&text[start..=at], events),
                _ => {}
            }
            if self.scanner.is_closed() {
                return self.end(at, events);
            }
        }
        if self.in_arguments {
            self.hand_on(&text[start..], events);
        }
        Fed::more(text.len())
    }

    fn take(&mut self, step: Step, byte: u8, around: &Surroundings) -> Result<(), NoJson> {
        let depth = self.scanner.depth();
        if let Some(captured) = &mut self.captured {
            captured.push(byte);
        }
        match step {
            Step::StringStart if depth == 1 => {
                let is_wanted = self.scanner.is_key() || self.field != Field::Other;
                self.captured = is_wanted.then(|| vec![byte]);
            }
            Step::StringEnd => {
                if let Some(captured) = self.captured.take() {
                    let string = String::from_utf8(captured).map_err(|_| NoJson)?;
                    let string = Mender::default().push(&string);
                    let text = serde_json::from_str(&string).map_err(|_| NoJson)?;
                    if self.scanner.is_key() {
                        self.take_key(text)?;
                    } else {
                        self.take_text(text, around)?;
                    }
                }
            }
            Step::Open if depth == 2 => match self.field {
                Field::Arguments if byte == b'{' && !(self.is_tentative && self.name.is_none()) => {
                    self.in_arguments = true;
                }
                Field::Name | Field::Arguments => return Err(NoJson),
                Field::Other | Field::Id => {}
            },
            Step::Close if depth == 1 => self.in_arguments = false,
            // No arguments may be written as null.
            Step::Scalar if depth == 1 => match self.field {
                Field::Arguments if byte == b'n' => {}
                Field::Name | Field::Arguments => return Err(NoJson),
                Field::Other | Field::Id => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn take_key(&mut self, key: String) -> Result<(), NoJson> {
        self.field = match key.as_str() {
            "name" | "tool_name" if self.name.is_none() => Field::Name,
            "arguments" | "parameters" if !self.has_arguments => Field::Arguments,
            // One call has one name.
            "name" | "tool_name" | "arguments" | "parameters" => return Err(NoJson),
            "id" | "tool_call_id" => Field::Id,
            "type" => Field::Other,
            _ if self.is_tentative && !self.is_announced => return Err(NoJson),
            _ => Field::Other,
        };
        self.has_arguments |= self.field == Field::Arguments;
        Ok(())
    }

    fn take_text(&mut self, text: String, around: &Surroundings) -> Result<(), NoJson> {
        match self.field {
            Field::Name => {
                let is_offered = around.tools.iter().any(|tool| tool.name == text);
                if text.is_empty() || self.is_tentative && !is_offered {
                    return Err(NoJson);
                }
                self.name = Some(text);
            }
            Field::Id => self.id = Some(text),
            // The arguments as OpenAI's API writes them: a text that contains JSON.
            Field::Arguments if is_object(&text) => self.early = Mender::default().push(&text),
            Field::Arguments => return Err(NoJson),
            Field::Other => {}
        }
        Ok(())
    }

    fn announce(&mut self, events: &mut Events) {
        if let Some(name) = &self.name
            && !self.is_announced
        {
            events.start_call(name.clone(), self.id.take());
            self.is_announced = true;
        }
    }

    fn hand_on(&mut self, json: &str, events: &mut Events) {
        let json = self.mender.push(json);
        if self.is_announced {
            events.arguments(&json);
        } else {
            self.early.push_str(&json);
        }
    }

    fn end(&mut self, at: usize, events: &mut Events) -> Fed {
        if self.name.is_none() || self.is_tentative && !self.has_arguments {
            return Fed::malformed(at + 1);
        }
        if !self.is_announced {
            self.announce(events);
            let is_empty = self.early.is_empty();
            events.arguments(if is_empty { "{}" } else { self.early.as_str() });
        }
        Fed::complete(at + 1)
    }

    /// Whether nothing was announced of a text that may be no call.
    pub(super) fn may_be_text(&self) -> bool {
        self.is_tentative && !self.is_announced
    }
}
