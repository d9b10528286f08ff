//! A call in brackets, as Gemma and Python write it: it is understood when the bracket is closed.

use serde_json::{Map, Number, Value};

use super::call::{Fed, MAX_HEADER_BYTES, Surroundings, is_name};
use super::events::Events;
use super::markers::{Begins, begins};

/// Values nested deeper are refused.
const MAX_DEPTH: usize = 64;

/// A call in brackets that is understood when it is closed.
#[derive(Debug, Clone)]
pub(super) struct BracketedCall {
    dialect: Dialect,
    text: String,
    depth: usize,
    /// The quote that ends the string that is read; empty outside.
    quote: &'static str,
    is_escaped: bool,
}

impl BracketedCall {
    pub(super) fn new(dialect: Dialect) -> BracketedCall {
        BracketedCall { dialect, text: String::new(), depth: 0, quote: "", is_escaped: false }
    }

    pub(super) fn feed(&mut self, text: &str, around: &Surroundings, events: &mut Events) -> Fed {
        let mut used = 0;
        while let Some(char) = text[used..].chars().next() {
            let Some(length) = self.step(&text[used..], char, around) else {
                self.text.push_str(&text[..used]);
                return Fed::more(used);
            };
            used += length;
            let is_header = self.depth == 0 && !matches!(char, '}' | ')' | ']');
            let num_before = self.text.len() + used;
            if is_header && (num_before > MAX_HEADER_BYTES || !is_header_char(char)) {
                return Fed::malformed(used - length);
            }
            if self.depth == 0 && !is_header {
                self.text.push_str(&text[..used]);
                let Some((name, arguments)) = read_call(&self.text, self.dialect) else {
                    return Fed::malformed(used);
                };
                events.start_call(name, None);
                events.arguments(&arguments);
                return Fed::complete(used);
            }
        }
        self.text.push_str(text);
        Fed::more(used)
    }

    /// Takes the next character, or the next quote: its length, or none if it is incomplete.
    fn step(&mut self, text: &str, char: char, around: &Surroundings) -> Option<usize> {
        let quotes: &[&'static str] = match &self.dialect {
            Dialect::Braced { quote } => std::slice::from_ref(quote),
            Dialect::Python => &["'", "\""],
        };
        if self.is_escaped {
            self.is_escaped = false;
            return Some(char.len_utf8());
        }
        for quote in quotes.iter().filter(|quote| ["", **quote].contains(&self.quote)) {
            match begins(text, quote, around.is_last) {
                Begins::With => {
                    self.quote = if self.quote.is_empty() { quote } else { "" };
                    return Some(quote.len());
                }
                Begins::Unclear => return None,
                Begins::Otherwise => {}
            }
        }
        match char {
            '\\' if !self.quote.is_empty() => self.is_escaped = self.dialect == Dialect::Python,
            _ if !self.quote.is_empty() => {}
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        Some(char.len_utf8())
    }
}

/// Whether a character can stand before the bracket.
fn is_header_char(char: char) -> bool {
    char.is_alphanumeric() || "_-.:/".contains(char)
}

/// How a call in brackets is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Gemma's `call:name{key:value}`, with this quote around strings.
    Braced { quote: &'static str },
    /// Python's `name(key=value)`.
    Python,
}

/// The name and the arguments of a call in brackets; none if it is malformed.
fn read_call(text: &str, dialect: Dialect) -> Option<(String, String)> {
    let (open, close, equals) = match dialect {
        Dialect::Braced { .. } => ('{', '}', ':'),
        Dialect::Python => ('(', ')', '='),
    };
    let (name, rest) = text.split_once(open)?;
    let name = name.trim();
    let name = match dialect {
        Dialect::Braced { .. } => name.strip_prefix("call:")?,
        Dialect::Python => name,
    };
    let mut reader = Reader { rest, dialect };
    let arguments = reader.entries(close, equals, MAX_DEPTH)?;
    let is_whole = reader.rest.is_empty() && is_name(name);
    is_whole.then(|| (name.to_owned(), Value::Object(arguments).to_string()))
}

struct Reader<'a> {
    rest: &'a str,
    dialect: Dialect,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Entries behind an opening bracket, up to `close`.
    fn entries(&mut self, close: char, equals: char, depth: usize) -> Option<Map<String, Value>> {
        let mut entries = Map::new();
        let close = close.to_string();
        while !self.take(&close) {
            if !entries.is_empty() && !self.take(",") {
                return None;
            }
            // A comma behind the last entry is Python too.
            if self.take(&close) {
                break;
            }
            let key = match self.string() {
                Some(key) => key?,
                None => self.word()?.to_owned(),
            };
            if !self.take(&equals.to_string()) {
                return None;
            }
            entries.insert(key, self.value(depth)?);
        }
        Some(entries)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        if let Some(text) = self.string() {
            return text.map(Value::from);
        }
        if self.take("{") {
            return self.entries('}', ':', depth).map(Value::Object);
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                if !items.is_empty() && !self.take(",") {
                    return None;
                }
                if self.take("]") {
                    break;
                }
                items.push(self.value(depth)?);
            }
            return Some(Value::Array(items));
        }
        match self.word()? {
            "true" | "True" => Some(Value::Bool(true)),
            "false" | "False" => Some(Value::Bool(false)),
            "null" | "None" => Some(Value::Null),
            number => serde_json::from_str::<Number>(number).ok().map(Value::Number),
        }
    }

    /// A run of letters, digits and what numbers are made of.
    fn word(&mut self) -> Option<&str> {
        self.skip_space();
        let is_part = |char: char| char.is_alphanumeric() || "_-+.".contains(char);
        let end = self.rest.find(|char| !is_part(char)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// A string, if one begins here: its text, or none if it is malformed.
    fn string(&mut self) -> Option<Option<String>> {
        self.skip_space();
        if let Dialect::Braced { quote } = self.dialect {
            let rest = self.rest.strip_prefix(quote)?;
            let (text, rest) = rest.split_once(quote)?;
            self.rest = rest;
            return Some(Some(text.to_owned()));
        }
        let mut text = None;
        // Adjacent strings are one.
        while let Some(quote) = self.rest.chars().next().filter(|char| "'\"".contains(*char)) {
            self.rest = &self.rest[1..];
            match self.quoted(quote) {
                Some(part) => *text.get_or_insert_with(String::new) += &part,
                None => return Some(None),
            }
            self.skip_space();
        }
        text.map(Some)
    }

    /// The text of a Python string behind its first quote.
    fn quoted(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        loop {
            let char = self.next()?;
            match char {
                '\\' => match self.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'x' => text.push(self.hexadecimal(2)?),
                    'u' => text.push(self.hexadecimal(4)?),
                    '\n' => {}
                    escaped @ ('\\' | '\'' | '"') => text.push(escaped),
                    // Python keeps a backslash that escapes nothing.
                    other => text.extend(['\\', other]),
                },
                _ if char == quote => return Some(text),
                _ => text.push(char),
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let char = self.rest.chars().next()?;
        self.rest = &self.rest[char.len_utf8()..];
        Some(char)
    }

    fn hexadecimal(&mut self, digits: usize) -> Option<char> {
        let number = u32::from_str_radix(self.rest.get(..digits)?, 16).ok()?;
        self.rest = &self.rest[digits..];
        char::from_u32(number)
    }
}
