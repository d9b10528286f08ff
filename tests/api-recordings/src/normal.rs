//! Answers without what differs from run to run: ids, times, and what a random model says.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Reply;

/// How much of an answer is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All but ids, times and messages of errors.
    Values,
    /// Keys, types and the words that name a form.
    Shape,
}

/// A normalized reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its content type.
    pub content_type: String,
    /// When to come back, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<String>,
    /// Its body, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// Its events: one for each run of the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<EventShape>>,
    /// Whether the client closed the connection before its end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_cut: bool,
}

/// A normalized event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventShape {
    /// Its name; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub event: String,
    /// Its data: JSON, or a text as it was.
    pub data: Value,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What stands for a text that differs.
const TEXT: &str = "…";
/// The keys of ids, of which what comes before the first `_` or `-` is kept.
const IDS: [&str; 3] = ["id", "item_id", "call_id"];
/// The keys by which a request repeats ids of answers.
const REPEATED_IDS: [&str; 4] = ["id", "call_id", "tool_call_id", "tool_use_id"];
/// The keys of words that name a form, not what is said in it.
const WORDS: [&str; 10] =
    ["object", "type", "role", "status", "model", "code", "param", "name", "event", "owned_by"];
/// The keys of numbers that are places.
const PLACES: [&str; 3] = ["index", "output_index", "content_index"];
/// The keys of numbers and times that depend on the clock, on how fast the machine is, or on what
/// was asked before.
const CHANGING: [&str; 8] = [
    "created",
    "created_at",
    "cached_tokens",
    "input_tokens",
    "cache_read_input_tokens",
    "sequence_number",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
];

impl Reply {
    /// The reply without what differs from run to run. Events have their shape only, and a run of
    /// the same shape counts once, because tokens fall into events as they come.
    pub fn normalized(&self, detail: Detail) -> Answer {
        let header = |name: &str| self.header(name).map(str::to_owned);
        let events = self.events();
        let body = self.json().filter(|_| events.is_none()).map(|mut body| {
            normalize(&mut body, "", detail);
            body
        });
        Answer {
            status: self.status,
            content_type: header("content-type").unwrap_or_default(),
            retry_after: header("retry-after"),
            body,
            events: events.map(|events| {
                let shapes = events.into_iter().map(|event| EventShape::of(event.name, event.data));
                // How many pings come depends on how fast a prompt is read.
                let mut shapes: Vec<_> = shapes.filter(|shape| shape.event != "ping").collect();
                shapes.dedup();
                shapes
            }),
            is_cut: !self.is_whole,
        }
    }
}

impl Answer {
    /// Whether this is the answer that was recorded; of one that was cut, its beginning.
    pub fn matches(&self, recorded: &Answer) -> bool {
        if !recorded.is_cut {
            return self == recorded;
        }
        let (events, expected) = (self.events.as_deref(), recorded.events.as_deref());
        (self.status, &self.content_type) == (recorded.status, &recorded.content_type)
            && events.unwrap_or_default().starts_with(expected.unwrap_or_default())
    }
}

impl EventShape {
    fn of(event: String, data: String) -> Self {
        let data = match serde_json::from_str(&data) {
            Ok(mut data) => {
                normalize(&mut data, "", Detail::Shape);
                data
            }
            Err(_) => Value::String(data),
        };
        EventShape { event, data }
    }
}

/// A request with numbers for the ids that it repeats from answers. Equal ids have equal numbers.
pub(crate) fn with_numbered_ids(mut body: Value) -> Value {
    number_ids(&mut body, "", &mut Vec::new());
    body
}

fn number_ids(value: &mut Value, key: &str, known: &mut Vec<String>) {
    match value {
        Value::String(id) if REPEATED_IDS.contains(&key) => {
            let index = known.iter().position(|other| other == id).unwrap_or_else(|| {
                known.push(id.clone());
                known.len() - 1
            });
            let kept = id.find(['_', '-']).map_or("id_", |end| &id[..=end]);
            *id = format!("{kept}{}", index + 1);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| number_ids(item, key, known)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(key, field)| number_ids(field, key, known));
        }
        _ => {}
    }
}

fn normalize(value: &mut Value, key: &str, detail: Detail) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::String(text) if IDS.contains(&key) => {
            let kept = text.find(['_', '-']).map_or(0, |end| end + 1);
            *text = format!("{}{TEXT}", &text[..kept]);
        }
        Value::String(text) => {
            let is_value = detail == Detail::Values && key != "message" && !CHANGING.contains(&key);
            let is_kept = WORDS.contains(&key) || is_value;
            if !is_kept {
                *text = TEXT.to_owned();
            }
        }
        Value::Number(number) => {
            let is_exact = detail == Detail::Values && number.is_u64() && !CHANGING.contains(&key);
            if !is_exact && !PLACES.contains(&key) {
                *value = 0.into();
            }
        }
        // A token that is a part of a character has none.
        Value::Array(_) if key == "bytes" && detail == Detail::Shape => *value = Value::Null,
        Value::Array(items) => {
            items.iter_mut().for_each(|item| normalize(item, key, detail));
            if detail == Detail::Shape {
                items.dedup();
            }
        }
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(key, field)| normalize(field, key, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn normal(mut value: Value, detail: Detail) -> Value {
        normalize(&mut value, "", detail);
        value
    }

    #[test]
    fn what_differs_is_left_out_and_the_form_is_kept() {
        let answer = json!({
            "id": "chatcmpl-1f", "created": 17, "object": "x", "n": 2, "logprob": -0.5,
            "text": "said", "end": null, "is": true, "list": [{ "text": "a" }, { "text": "b" }],
            "accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1,
        });
        let values = json!({
            "id": "chatcmpl-…", "created": 0, "object": "x", "n": 2, "logprob": 0, "text": "said",
            "end": null, "is": true, "list": [{ "text": "a" }, { "text": "b" }],
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        });
        assert_eq!(normal(answer.clone(), Detail::Values), values);
        let shape = json!({
            "id": "chatcmpl-…", "created": 0, "object": "x", "n": 0, "logprob": 0, "text": "…",
            "end": null, "is": true, "list": [{ "text": "…" }],
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        });
        assert_eq!(normal(answer, Detail::Shape), shape);
    }

    #[test]
    fn ids_that_a_request_repeats_are_numbered() {
        let request = json!({ "model": "m", "input": [
            { "id": "rs_9f", "type": "reasoning" },
            { "id": "fc_3", "call_id": "xq71", "type": "function_call" },
            { "call_id": "xq71", "output": "there" },
        ] });
        let numbered = json!({ "model": "m", "input": [
            { "id": "rs_1", "type": "reasoning" },
            { "id": "fc_2", "call_id": "id_3", "type": "function_call" },
            { "call_id": "id_3", "output": "there" },
        ] });
        assert_eq!(with_numbered_ids(request), numbered);
    }

    #[test]
    fn another_form_is_another_answer() {
        fn check(one: Value, other: Value) {
            let [one, other] = [one, other].map(|value| normal(value, Detail::Shape));
            assert_ne!(one, other);
        }
        check(json!({ "a": 1 }), json!({ "a": "1" }));
        check(json!({ "a": 1 }), json!({ "a": null }));
        check(json!({ "a": 1 }), json!({ "b": 1 }));
        check(json!({ "type": "a" }), json!({ "type": "b" }));
        check(json!({ "index": 0 }), json!({ "index": 1 }));
        check(json!({ "a": [] }), json!({ "a": [1] }));
    }

    fn streamed(blocks: &[&str]) -> Answer {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
        let text = format!("{head}\r\n{}", blocks.concat());
        Reply::parse(text.as_bytes()).expect("a reply").normalized(Detail::Shape)
    }

    #[test]
    fn runs_of_events_count_once_and_their_order_counts() {
        let [a, b] = ["event: a\ndata: {\"x\":1}\n\n", "event: b\ndata: {\"x\":1}\n\n"];
        assert_eq!(streamed(&[a, a, b]), streamed(&[a, b, b]));
        assert_eq!(streamed(&["event: ping\ndata: {}\n\n", a]), streamed(&[a]));
        assert_ne!(streamed(&[a, b]), streamed(&[b, a]));
        let cut = Answer { is_cut: true, ..streamed(&[a]) };
        assert!(streamed(&[a, b]).matches(&cut) && !streamed(&[b]).matches(&cut));
        assert!(!streamed(&[a, b]).matches(&streamed(&[a])));
    }
}
