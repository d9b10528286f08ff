//! A call with tags around its name and each argument, and the JSON that an argument's text means.

use serde_json::Value;

use super::OfferedTool;
use super::call::{Fed, Status, Surroundings, header_overflow, is_name};
use super::events::Events;
use super::family::Tags;
use super::markers::{Begins, Markers, Scan, begins};

/// A name and arguments between tags. An argument is handed on when it is whole.
#[derive(Debug, Clone)]
pub(super) struct TaggedCall {
    tags: &'static Tags,
    part: Part,
    /// The part's text so far.
    text: String,
    name: String,
    key: String,
    num_arguments: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Name,
    Between,
    Key,
    BeforeValue,
    Value,
}

impl TaggedCall {
    /// A call whose function tag has been read.
    pub(super) fn new(tags: &'static Tags) -> TaggedCall {
        TaggedCall {
            tags,
            part: Part::Name,
            text: String::new(),
            name: String::new(),
            key: String::new(),
            num_arguments: 0,
        }
    }

    pub(super) fn feed(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        let mut used = 0;
        loop {
            let part = self.part;
            let fed = match part {
                Part::Name => self.feed_name(&text[used..], around, events),
                Part::Between => self.feed_between(&text[used..], around, events),
                Part::Key => self.feed_key(&text[used..], around),
                Part::BeforeValue => self.feed_before_value(&text[used..], around),
                Part::Value => self.feed_value(&text[used..], around, events),
            };
            used += fed.used;
            if fed.status != Status::More || self.part == part {
                return Fed { used, ..fed };
            }
        }
    }

    /// Reads on to the first of `ends`: how far, and its length if it was found. A `header` that
    /// becomes too long is an error: where.
    fn read_to(
        &mut self,
        ends: &[&str],
        is_header: bool,
        text: &str,
        around: &Surroundings,
    ) -> Result<(usize, usize), usize> {
        let (end, length) = match Markers::new(ends.iter().copied()).scan(text, around.is_last) {
            Scan::Found { at, length, .. } => (at, length),
            Scan::Hold { at } => (at, 0),
            Scan::Nothing => (text.len(), 0),
        };
        if is_header && let Some(overflow) = header_overflow(self.text.len(), text, end) {
            return Err(overflow);
        }
        self.text.push_str(&text[..end]);
        Ok((end, length))
    }

    fn feed_name(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        let tags = self.tags;
        let read = match tags.name_end {
            "" => self.read_to(&[tags.key, tags.end], true, text, around),
            name_end => self.read_to(&[name_end], true, text, around),
        };
        let (end, length) = match read {
            Ok(read) => read,
            Err(overflow) => return Fed::malformed(overflow),
        };
        if length == 0 {
            return Fed::more(end);
        }
        self.name = std::mem::take(&mut self.text).trim().to_owned();
        if !is_name(&self.name) {
            return Fed::malformed(end);
        }
        events.start_call(self.name.clone(), None);
        self.part = Part::Between;
        Fed::more(if tags.name_end.is_empty() { end } else { end + length })
    }

    fn feed_between(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        let rest = text.trim_ascii_start();
        let space = text.len() - rest.len();
        if rest.is_empty() {
            return Fed::more(space);
        }
        let key = begins(rest, self.tags.key, around.is_last);
        let end = begins(rest, self.tags.end, around.is_last);
        // An answer that is cut within the last tag has all of the call.
        let is_cut_end =
            around.is_last && self.tags.end.starts_with(rest) && !self.tags.key.starts_with(rest);
        if key == Begins::With {
            self.part = Part::Key;
            Fed::more(space + self.tags.key.len())
        } else if end == Begins::With || is_cut_end {
            events.arguments(if self.num_arguments == 0 { "{}" } else { "}" });
            Fed::complete(space + rest.len().min(self.tags.end.len()))
        } else if key == Begins::Unclear || end == Begins::Unclear {
            Fed::more(space)
        } else {
            Fed::malformed(space)
        }
    }

    fn feed_key(&mut self, text: &str, around: &Surroundings) -> Fed {
        let (end, length) = match self.read_to(&[self.tags.key_end], true, text, around) {
            Ok(read) => read,
            Err(overflow) => return Fed::malformed(overflow),
        };
        if length > 0 {
            self.key = std::mem::take(&mut self.text).trim().to_owned();
            let is_plain = self.tags.value.is_empty();
            self.part = if is_plain { Part::Value } else { Part::BeforeValue };
        }
        Fed::more(end + length)
    }

    fn feed_before_value(&mut self, text: &str, around: &Surroundings) -> Fed {
        let rest = text.trim_ascii_start();
        let space = text.len() - rest.len();
        match begins(rest, self.tags.value, around.is_last) {
            Begins::With => {
                self.part = Part::Value;
                Fed::more(space + self.tags.value.len())
            }
            Begins::Unclear => Fed::more(space),
            Begins::Otherwise if rest.is_empty() => Fed::more(space),
            Begins::Otherwise => Fed::malformed(space),
        }
    }

    fn feed_value(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        let (end, length) = match self.read_to(&[self.tags.value_end], false, text, around) {
            Ok(read) => read,
            Err(overflow) => return Fed::malformed(overflow),
        };
        if length > 0 {
            let text = std::mem::take(&mut self.text);
            let mut value = text.as_str();
            if self.tags.has_lines {
                value = value.strip_prefix('\n').unwrap_or(value);
                value = value.strip_suffix('\n').unwrap_or(value);
            }
            let value = json_of_text(value, around.tools, &self.name, &self.key);
            let before = if self.num_arguments == 0 { "{" } else { ", " };
            events.arguments(&format!("{before}{}: {value}", json_string(&self.key)));
            self.num_arguments += 1;
            self.part = Part::Between;
        }
        Fed::more(end + length)
    }
}

/// The JSON of an argument that a model wrote as text.
///
/// The tool's schema decides: a text stays a text if a string is declared; if something else is,
/// the text is taken as JSON where it is of that type. Without a declaration only objects and lists
/// are read, because a number may be a postal code.
fn json_of_text(text: &str, tools: &[OfferedTool], tool: &str, key: &str) -> String {
    let tool = tools.iter().find(|offered| offered.name == tool);
    let schema = tool.and_then(|tool| tool.parameters.get("properties")?.get(key));
    let mut types = Vec::new();
    if let Some(schema) = schema {
        declared_types(schema, &mut types);
    }
    let trimmed = text.trim();
    let is_type = |value: &Value| match value {
        Value::Null => types.contains(&"null"),
        Value::Bool(_) => types.contains(&"boolean"),
        Value::Number(_) => types.contains(&"number") || types.contains(&"integer"),
        Value::String(_) => false,
        Value::Array(_) => types.is_empty() || types.contains(&"array"),
        Value::Object(_) => types.is_empty() || types.contains(&"object"),
    };
    if serde_json::from_str(trimmed).is_ok_and(|value| is_type(&value)) {
        return trimmed.to_owned();
    }
    // Python's words, which some models write.
    let word = match trimmed {
        "True" if types.contains(&"boolean") => "true",
        "False" if types.contains(&"boolean") => "false",
        "None" if types.contains(&"null") => "null",
        _ => return json_string(text),
    };
    word.to_owned()
}

/// A text as a JSON string.
fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// The types that a schema allows, as far as it says so at its top.
fn declared_types<'a>(schema: &'a Value, types: &mut Vec<&'a str>) {
    match schema.get("type") {
        Some(Value::String(name)) => types.push(name),
        Some(Value::Array(names)) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    for alternatives in ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)?.as_array()) {
        for alternative in alternatives {
            if let Some(Value::String(name)) = alternative.get("type") {
                types.push(name);
            }
        }
    }
}
