//! The grammar of answers in a form that a request asks for, for what masks tokens while they are
//! sampled. It is written in llguidance's dialect of Lark.
//!
//! An answer may begin with reasoning, as its family marks it. A call is written as JSON behind the
//! family's marker, which every family's reader understands but those that write no JSON at all.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::AnswerFormat;
use super::family::{CallForm, CallMarkers};
use super::formats::tighten;
use super::keywords::translate;

/// What an answer may consist of, behind its reasoning: this text or these calls.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerForm {
    /// Its text.
    pub text: TextForm,
    /// The calls that it may make.
    pub calls: Vec<CallSchema>,
}

/// What the text of an answer may be.
#[derive(Debug, Clone, PartialEq)]
pub enum TextForm {
    /// Any text, also before calls.
    Free,
    /// JSON of this schema.
    Json(Value),
    /// None: the answer is a call.
    None,
}

/// A tool that may be called.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSchema {
    /// Its name.
    pub name: String,
    /// The JSON Schema of its arguments.
    pub arguments: Value,
    /// Whether all of the schema is enforced. Otherwise what no grammar can enforce says nothing.
    pub is_strict: bool,
}

/// The rules of a grammar, line by line.
struct Rules<'a> {
    lines: String,
    special_tokens: &'a [(String, u32)],
    /// The marker that free text must not contain, because it would begin reasoning.
    reserved: Option<&'static str>,
}

/// Any text without special tokens.
const ANY: &str = "/(?s:.*)/";
/// A blank in JSON, at most one between two tokens: small models write as many as they may.
const BLANKS: &str = "[ \\n]";

impl AnswerFormat {
    /// The grammar of answers of this form to a rendered prompt. None if the family writes its
    /// calls in a form that no grammar is known for. `special_tokens` are not spelled, but named.
    pub fn grammar(
        &self,
        form: &AnswerForm,
        prompt: &str,
        special_tokens: &[(String, u32)],
    ) -> Option<String> {
        let mut rules = Rules { lines: String::new(), special_tokens, reserved: None };
        match self.channels {
            true => rules.channels(form),
            false => rules.marked(self, form, prompt)?,
        }
        Some(rules.lines)
    }

    /// The markers of calls that a grammar can be written for.
    fn json_calls(&self) -> Option<&'static CallMarkers> {
        self.calls.filter(|row| !matches!(row.form, CallForm::Braced { .. }))
    }
}

impl CallMarkers {
    /// What follows a call; nothing where the marker before it is enough.
    fn close(&self) -> &'static str {
        let closes = |text: &&&str| ["/", "end", "END"].iter().any(|sign| text.contains(sign));
        self.others.iter().find(closes).copied().unwrap_or_default()
    }

    /// Behind its marker and before what closes it, as templates write it.
    fn line_end(&self) -> &'static str {
        if self.close().starts_with("</") { "\n" } else { "" }
    }
}

impl Rules<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines, "{name}: {body}");
    }

    /// A text as elements of a rule: special tokens by their ids, the rest spelled.
    fn literal(&self, text: &str) -> String {
        let (mut elements, mut spelled, mut rest) = (Vec::new(), String::new(), text);
        while let Some(first) = rest.chars().next() {
            let at_start = self.special_tokens.iter().filter(|(token, _)| rest.starts_with(token));
            match at_start.max_by_key(|(token, _)| token.len()) {
                Some((token, id)) if !token.is_empty() => {
                    if !spelled.is_empty() {
                        elements.push(quoted(&std::mem::take(&mut spelled)));
                    }
                    elements.push(format!("<[{id}]>"));
                    rest = &rest[token.len()..];
                }
                _ => {
                    spelled.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        if !spelled.is_empty() {
            elements.push(quoted(&spelled));
        }
        elements.join(" ")
    }

    fn is_special(&self, marker: &str) -> bool {
        self.special_tokens.iter().any(|(token, _)| !token.is_empty() && marker.starts_with(token))
    }

    /// What a rule of text adds to exclude the reserved marker.
    fn reserve(&self) -> String {
        let reserved = self.reserved.filter(|marker| !self.is_special(marker));
        let exclude = |marker| format!(" & ~/(?s:.*){}(?s:.*)/", escaped(marker));
        reserved.map_or(String::new(), exclude)
    }

    /// A rule for JSON of a schema.
    fn json(&mut self, name: &str, schema: &Value) {
        self.lines += &json_rule(name, schema, true);
    }

    /// A rule for the arguments of a call.
    fn arguments(&mut self, name: &str, call: &CallSchema) {
        self.lines += &json_rule(name, &call.arguments, call.is_strict);
    }

    /// Elements for any text up to the first `marker`, which is part of it.
    fn up_to(&mut self, name: &str, marker: &str) -> String {
        let reserve = self.reserve();
        if self.is_special(marker) {
            self.rule(name, &format!("{ANY}{reserve}"));
            return format!("{name}? {}", self.literal(marker));
        }
        let marker = escaped(marker);
        self.rule(name, &format!("/(?s:.*){marker}/ & ~/(?s:.*){marker}(?s:.+)/{reserve}"));
        name.to_owned()
    }

    /// Elements for any text without `marker`.
    fn without(&mut self, name: &str, marker: &str) -> String {
        let (marker, reserve) = (escaped(marker), self.reserve());
        self.rule(name, &format!("{ANY} & ~/(?s:.*){marker}(?s:.*)/{reserve}"));
        format!("{name}?")
    }

    /// The calls without what is around them, one rule for each; returns their names.
    fn objects(&mut self, calls: &[CallSchema], key: &str) -> String {
        let mut names = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let before = format!("{{\"name\": {}, \"{key}\": ", Value::from(call.name.as_str()));
            let (name, arguments) = (format!("object_{index}"), format!("arguments_{index}"));
            self.arguments(&arguments, call);
            self.rule(&name, &format!("{} {arguments} \"}}\"", quoted(&before)));
            names.push(name);
        }
        format!("({})", names.join(" | "))
    }

    fn marked(&mut self, format: &AnswerFormat, form: &AnswerForm, prompt: &str) -> Option<()> {
        let mut start = String::new();
        if let Some(row) = format.reasoning {
            let closed = self.up_to("REASONING", row.close);
            self.rule("reasoning", &format!("{closed} /\\n*/"));
            start = match format.is_opened_by(prompt) {
                true => "reasoning ".to_owned(),
                false => format!("({} reasoning)? ", self.literal(row.open)),
            };
            self.reserved = Some(row.open);
        }
        let mut bodies = Vec::new();
        if let TextForm::Json(schema) = &form.text {
            self.json("json", schema);
            bodies.push("json".to_owned());
        }
        if !form.calls.is_empty() {
            let row = format.json_calls()?;
            bodies.push(self.calls(row, form));
        } else if form.text == TextForm::Free {
            self.rule("TEXT", &format!("{ANY}{}", self.reserve()));
            bodies.push("TEXT?".to_owned());
        }
        self.rule("start", &format!("{start}body"));
        self.rule("body", &bodies.join(" | "));
        Some(())
    }

    /// Calls, with free text before, between and behind them where that is allowed.
    fn calls(&mut self, row: &CallMarkers, form: &AnswerForm) -> String {
        let is_free = form.text == TextForm::Free;
        if row.may_be_bare {
            let objects = self.objects(&form.calls, "parameters");
            let calls = format!("{objects} (\"; \" {objects})*");
            if is_free {
                let reserve = self.reserve();
                self.rule("TEXT", &format!("/[^\\n{{](?s:.*)/{reserve}"));
                return format!("{calls} | TEXT?");
            }
            return calls;
        }
        let objects = self.objects(&form.calls, "arguments");
        let behind = format!("{}{}", row.line_end(), row.close());
        let line_end = quoted(row.line_end());
        let rest = format!("{line_end} {objects} {}", self.literal(&behind));
        self.rule("rest_of_call", &rest);
        if is_free {
            let before = self.up_to("BEFORE", row.open);
            let tail = self.without("TAIL", row.open);
            return format!("({before} rest_of_call)* {tail}");
        }
        let open = self.literal(row.open);
        format!("{open} rest_of_call ({line_end} {open} rest_of_call)*")
    }

    /// OpenAI's channels: the prompt ends before the first.
    fn channels(&mut self, form: &AnswerForm) {
        let thought = self.up_to("THOUGHT", "<|end|>");
        let channel = |name: &str| format!("<|channel|>{name}<|message|>");
        let before = self.literal(&channel("analysis"));
        let next = self.literal("<|start|>assistant");
        self.rule("reasoning", &format!("{before} {thought} {next}"));
        let mut bodies = Vec::new();
        let last = self.literal(&channel("final"));
        match &form.text {
            TextForm::Free => {
                self.rule("TEXT", ANY);
                bodies.push(format!("{last} TEXT?"));
            }
            TextForm::Json(schema) => {
                self.json("json", schema);
                bodies.push(format!("{last} json"));
            }
            TextForm::None => {}
        }
        for (index, call) in form.calls.iter().enumerate() {
            let arguments = format!("arguments_{index}");
            self.arguments(&arguments, call);
            let recipient = format!("commentary to=functions.{} <|constrain|>json", call.name);
            bodies.push(format!("{} {arguments}", self.literal(&channel(&recipient))));
        }
        self.rule("start", "reasoning* body");
        self.rule("body", &bodies.join(" | "));
    }
}

/// A line with a rule for JSON of a schema.
pub(super) fn json_rule(name: &str, schema: &Value, is_strict: bool) -> String {
    let options = json!({
        "whitespace_pattern": BLANKS,
        // One of several is any of them, where nothing tells them apart.
        "coerce_one_of": true,
        "lenient": !is_strict,
    });
    let mut schema = schema.clone();
    translate(&mut schema);
    tighten(&mut schema);
    let mut schema = match schema {
        Value::Object(schema) => schema,
        schema => Map::from_iter([("allOf".to_owned(), json!([schema]))]),
    };
    schema.insert("x-guidance".to_owned(), options);
    format!("{name}: %json {}\n", Value::Object(schema))
}

/// A text in a rule.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A text in a regular expression.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for char in text.chars() {
        match char.is_alphanumeric() {
            true => escaped.push(char),
            // `\<` would be the beginning of a word.
            false => {
                let _ = write!(escaped, "\\x{{{:x}}}", u32::from(char));
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallOutcome, OfferedTool, Segment, SegmentParser};

    /// What the grammar lets the model write for a call is read as one, in every family.
    #[test]
    fn a_call_in_the_grammars_form_is_read() {
        let mut num_read = 0;
        for format in AnswerFormat::all().filter(|format| format.reasoning.is_none()) {
            let Some(row) = format.json_calls() else { continue };
            let object = |key: &str| format!("{{\"name\": \"look\", \"{key}\": {{\"at\": 1}}}}");
            let (end, open, close) = (row.line_end(), row.open, row.close());
            let text = match row.may_be_bare {
                true => object("parameters"),
                false => format!("{open}{end}{}{end}{close}", object("arguments")),
            };
            let parameters = json!({ "type": "object" });
            let tools = vec![OfferedTool { name: "look".to_owned(), parameters }];
            let mut parser = SegmentParser::new(format).with_tools(tools);
            let mut events = parser.push(&text);
            events.extend(parser.finish());
            let segments = Segment::collect(events);
            let is_call = |segment: &Segment| match segment {
                Segment::ToolCall(call) => {
                    call.outcome == CallOutcome::Complete && call.arguments == "{\"at\": 1}"
                }
                _ => false,
            };
            assert!(segments.iter().any(is_call), "{:?}: {text}: {segments:?}", format.names());
            num_read += 1;
        }
        assert!(num_read > 10, "{num_read}");
    }

    #[test]
    fn a_marker_is_spelled_unless_it_is_a_special_token() {
        let format = AnswerFormat::named("<think>", "hermes");
        let calls = vec![CallSchema {
            name: "look".to_owned(),
            arguments: json!({ "type": "object" }),
            is_strict: true,
        }];
        let form = AnswerForm { text: TextForm::None, calls };
        let spelled = format.grammar(&form, "", &[]).unwrap_or_default();
        assert!(spelled.contains("\"<tool_call>\" rest_of_call"), "{spelled}");
        assert!(spelled.contains("start: (\"<think>\" reasoning)? body"), "{spelled}");
        let opened = format.grammar(&form, "Hi<think>\n", &[]).unwrap_or_default();
        assert!(opened.contains("start: reasoning body"), "{opened}");
        let special = [("<tool_call>".to_owned(), 7)];
        let named = format.grammar(&form, "", &special).unwrap_or_default();
        assert!(named.contains("<[7]> rest_of_call"), "{named}");
        let braced = AnswerFormat::named("", "gemma4");
        assert_eq!(braced.grammar(&form, "", &[]), None);
    }
}
