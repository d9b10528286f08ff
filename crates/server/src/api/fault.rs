//! What is wrong with a request that cannot be read, in words for whoever wrote it: the OpenAPI
//! document says of every field what it may hold.

use serde_json::{Map, Value};

/// A field that holds what it may not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// As `messages[0].content`.
    pub(super) path: String,
    /// A sentence that names it.
    pub(super) message: String,
}

/// The first fault of a value that a schema of this name describes; none that the document knows
/// of.
pub(super) fn find(document: &Value, schema: &str, value: &Value) -> Option<Fault> {
    let place = format!("/components/schemas/{schema}");
    Search { document }.in_value(document.pointer(&place)?, value, "")
}

struct Search<'a> {
    document: &'a Value,
}

impl<'a> Search<'a> {
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
        target.and_then(|target| self.document.pointer(target)).unwrap_or(schema)
    }

    fn in_value(&self, schema: &'a Value, value: &Value, path: &str) -> Option<Fault> {
        let schema = self.resolved(schema);
        if let Some(choices) = self.choices(schema) {
            return self.in_choice(&choices, value, path);
        }
        if !is_of_kind(schema, value) {
            return Some(wrong(path, &self.described(schema), value));
        }
        match value {
            Value::Object(fields) => self.in_object(schema, fields, path),
            Value::Array(items) => {
                let item = |(index, item)| {
                    self.in_value(&schema["items"], item, &format!("{path}[{index}]"))
                };
                items.iter().enumerate().find_map(item)
            }
            _ => None,
        }
    }

    fn in_object(
        &self,
        schema: &'a Value,
        fields: &Map<String, Value>,
        path: &str,
    ) -> Option<Fault> {
        let inner = |name: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        let known = schema["properties"].as_object();
        let of_field = |(name, value): (&String, &Value)| {
            self.in_value(known?.get(name)?, value, &inner(name))
        };
        let missing = || {
            let required = schema["required"].as_array()?.iter().filter_map(Value::as_str);
            let path = inner(required.into_iter().find(|name| !fields.contains_key(*name))?);
            let message = format!("`{path}` is missing.");
            Some(Fault { path, message })
        };
        // Where only some fields of a request are looked at, others are not missing.
        fields.iter().find_map(of_field).or_else(missing)
    }

    /// The schemas of which one holds, without choices in them.
    fn choices(&self, schema: &'a Value) -> Option<Vec<&'a Value>> {
        let choices = schema["anyOf"].as_array().or(schema["oneOf"].as_array())?;
        let of_choice = |choice| {
            let choice = self.resolved(choice);
            self.choices(choice).unwrap_or_else(|| vec![choice])
        };
        Some(choices.iter().flat_map(of_choice).collect())
    }

    /// The fault in what the value seems meant to be.
    fn in_choice(&self, choices: &[&'a Value], value: &Value, path: &str) -> Option<Fault> {
        let of_kind = choices.iter().copied().filter(|choice| is_of_kind(choice, value));
        let of_kind: Vec<&Value> = of_kind.collect();
        if of_kind.is_empty() {
            let mut kinds: Vec<String> =
                choices.iter().map(|choice| self.described(choice)).collect();
            kinds.retain(|kind| !kind.is_empty());
            kinds.dedup();
            return Some(wrong(path, &kinds.join(" or "), value));
        }
        // Of objects, `type` or `role` says which one is meant.
        for name in ["type", "role"] {
            let tags = |choice: &&Value| tags(&choice["properties"][name]);
            let all: Vec<Value> = of_kind.iter().flat_map(tags).collect();
            let Some(tag) = value.get(name).filter(|_| !all.is_empty()) else { continue };
            let is_meant = |choice: &&&Value| tags(choice).contains(tag);
            if !of_kind.iter().any(|choice| is_meant(&choice)) {
                return Some(wrong(&format!("{path}.{name}"), &one_of(&all), tag));
            }
            let meant = of_kind.iter().filter(is_meant);
            return first_unless_none(meant.map(|choice| self.in_value(choice, value, path)));
        }
        first_unless_none(of_kind.iter().map(|choice| self.in_value(choice, value, path)))
    }

    fn described(&self, schema: &Value) -> String {
        let values = tags(schema);
        if !values.is_empty() {
            return one_of(&values);
        }
        let kinds = kinds(schema).into_iter().filter(|kind| *kind != "null");
        let kinds: Vec<String> = kinds
            .map(|kind| match kind {
                "string" => "a text".to_owned(),
                "array" => "a list".to_owned(),
                "object" => "an object".to_owned(),
                "boolean" => "true or false".to_owned(),
                "integer" => format!("a whole number{}", range(schema)),
                _ => format!("a number{}", range(schema)),
            })
            .collect();
        kinds.join(" or ")
    }
}

/// The first fault, if all of these have one.
fn first_unless_none(faults: impl Iterator<Item = Option<Fault>>) -> Option<Fault> {
    let faults: Option<Vec<Fault>> = faults.collect();
    faults?.into_iter().next()
}

fn wrong(path: &str, allowed: &str, value: &Value) -> Fault {
    let message = match path {
        "" => "The body is not a JSON object.".to_owned(),
        path => format!("`{path}` must be {allowed}, not {}.", shown(value)),
    };
    Fault { path: path.to_owned(), message }
}

/// A value in a sentence: as it is where that is short.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.len() <= 30 => value.to_string(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn one_of(values: &[Value]) -> String {
    let mut values: Vec<String> = values.iter().map(Value::to_string).collect();
    values.dedup();
    match values.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => values.concat(),
    }
}

fn range(schema: &Value) -> String {
    match (&schema["minimum"], &schema["maximum"]) {
        (Value::Number(from), Value::Number(to)) => format!(" from {from} to {to}"),
        _ => String::new(),
    }
}

/// The only values that a field may have, null aside.
fn tags(schema: &Value) -> Vec<Value> {
    let only = schema.get("const").into_iter();
    let listed = schema["enum"].as_array().into_iter().flatten();
    let of_choices = schema["anyOf"].as_array().into_iter().flatten().flat_map(tags);
    only.chain(listed).cloned().chain(of_choices).filter(|value| !value.is_null()).collect()
}

fn kinds(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Whether a value is what a schema without choices allows, what is in it aside.
fn is_of_kind(schema: &Value, value: &Value) -> bool {
    let tags = tags(schema);
    if !tags.is_empty() {
        return tags.contains(value) || value.is_null();
    }
    let kinds = kinds(schema);
    let is_in_range = || {
        let bound = |name: &str, unbounded| schema[name].as_f64().unwrap_or(unbounded);
        let number = value.as_f64().unwrap_or_default();
        (bound("minimum", f64::NEG_INFINITY)..=bound("maximum", f64::INFINITY)).contains(&number)
    };
    // As floats the largest i64 and what follows it are the same number.
    let is_beyond_i64 = || schema["maximum"].as_i64() == Some(i64::MAX) && !value.is_i64();
    let is_of = |kind: &&str| match *kind {
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "boolean" => value.is_boolean(),
        "integer" => (value.is_u64() || value.is_i64()) && is_in_range() && !is_beyond_i64(),
        "number" => value.is_number() && is_in_range(),
        _ => value.is_null(),
    };
    kinds.is_empty() || kinds.iter().any(is_of)
}
