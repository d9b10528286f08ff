//! Finds schemas of which every value would hold another one of the same schema, without end: no
//! answer could ever be complete, and a grammar of one may allow no first token.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::grammar::{AnswerForm, TextForm};

/// After so many schemas the search gives up. The largest ones of public collections have some
/// thousands.
const MAX_VISITS: usize = 1 << 20;

impl AnswerForm {
    /// What of the form can never end, as the reason why it is refused; none if nothing is found.
    pub fn endless(&self) -> Option<String> {
        let why = |what: &str, place: &str| {
            format!(
                "no value of {what} is ever complete, because `{place}` always contains another \
                 `{place}`"
            )
        };
        if let TextForm::Json(schema) = &self.text
            && let Some(place) = Search::new(schema).endless()
        {
            return Some(why("its schema", place));
        }
        self.calls.iter().find_map(|call| {
            let place = Search::new(&call.arguments).endless()?;
            Some(why(&format!("the schema of the tool {}", call.name), place))
        })
    }
}

/// A search through the schemas that others refer to.
struct Search<'a> {
    root: &'a Value,
    /// References in the order in which they were found, the whole schema as the first.
    found: Vec<&'a str>,
    /// For each of them, whether some value of it is known to end.
    ends: HashMap<&'a str, bool>,
    num_visits: usize,
}

impl<'a> Search<'a> {
    fn new(root: &'a Value) -> Self {
        let ends = HashMap::from([("#", false)]);
        Search { root, found: vec!["#"], ends, num_visits: 0 }
    }

    /// The reference of a schema that always needs itself, if the whole one always needs that.
    fn endless(mut self) -> Option<&'a str> {
        // A schema ends once enough of those do that it refers to. What is found last is looked at
        // first in every second pass: most references lead forward.
        let mut has_changed = true;
        while has_changed {
            has_changed = false;
            let mut next = 0;
            while next < self.found.len() {
                has_changed |= self.look_at(next);
                next += 1;
            }
            for index in (0..self.found.len()).rev() {
                has_changed |= self.look_at(index);
            }
        }
        let mut place = "#";
        let mut passed = HashSet::new();
        while passed.insert(place) {
            place = self.needed_by(self.schema(place)?)?;
        }
        Some(place)
    }

    /// Whether a schema is known to end only now.
    fn look_at(&mut self, index: usize) -> bool {
        let reference = self.found[index];
        if self.ends.get(reference).copied().unwrap_or(true) {
            return false;
        }
        let ends = self.schema(reference).is_none_or(|schema| self.needed_by(schema).is_none());
        self.ends.insert(reference, ends);
        ends
    }

    /// The schema that a reference leads to; none outside this document.
    fn schema(&self, reference: &str) -> Option<&'a Value> {
        match reference.strip_prefix('#')? {
            "" | "/" => Some(self.root),
            pointer => self.root.pointer(pointer),
        }
    }

    /// A reference that every value of this schema needs and that is not known to end.
    fn needed_by(&mut self, schema: &'a Value) -> Option<&'a str> {
        self.num_visits += 1;
        let fields = schema.as_object().filter(|_| self.num_visits <= MAX_VISITS)?;
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str)
            && !self.is_known_to_end(reference)
        {
            return Some(reference);
        }
        if fields.contains_key("const") || fields.contains_key("enum") {
            return None;
        }
        let list = |name: &str| fields.get(name).and_then(Value::as_array);
        if let Some(needed) = self.needed_by_one(list("allOf").into_iter().flatten()) {
            return Some(needed);
        }
        for choices in [list("anyOf"), list("oneOf")].into_iter().flatten() {
            if let Some(needed) = self.needed_by_all(choices) {
                return Some(needed);
            }
        }
        match fields.get("type")? {
            Value::String(kind) if kind == "object" => self.needed_by_properties(fields),
            Value::String(kind) if kind == "array" => self.needed_by_items(fields),
            _ => None,
        }
    }

    fn needed_by_one(&mut self, mut schemas: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
        schemas.find_map(|schema| self.needed_by(schema))
    }

    /// What the first of some choices needs, if none of them is known to end.
    fn needed_by_all(&mut self, choices: &'a [Value]) -> Option<&'a str> {
        let mut first = None;
        for choice in choices {
            let needed = self.needed_by(choice)?;
            first.get_or_insert(needed);
        }
        first
    }

    fn needed_by_properties(&mut self, fields: &'a Map<String, Value>) -> Option<&'a str> {
        let properties = fields.get("properties");
        let others = match fields.contains_key("patternProperties") {
            true => None,
            false => fields.get("additionalProperties"),
        };
        let names = fields.get("required")?.as_array()?.iter().filter_map(Value::as_str);
        let own = |name| properties.and_then(|properties| properties.get(name));
        self.needed_by_one(names.filter_map(|name| own(name).or(others)))
    }

    fn needed_by_items(&mut self, fields: &'a Map<String, Value>) -> Option<&'a str> {
        let min_items = fields.get("minItems")?.as_u64()?;
        let num_needed = usize::try_from(min_items).unwrap_or(usize::MAX);
        let first = fields.get("prefixItems").and_then(Value::as_array);
        let first = first.map_or(&[][..], Vec::as_slice);
        let others = fields.get("items").filter(|_| num_needed > first.len());
        self.needed_by_one(first.iter().take(num_needed).chain(others))
    }

    /// Remembers a reference that is new.
    fn is_known_to_end(&mut self, reference: &'a str) -> bool {
        if let Some(ends) = self.ends.get(reference) {
            return *ends;
        }
        // What leads nowhere is refused by those who compile it, in their words.
        let ends = self.schema(reference).is_none();
        self.ends.insert(reference, ends);
        self.found.push(reference);
        ends
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, expected: Option<&str>) {
        assert_eq!(Search::new(&schema).endless(), expected, "{schema}");
    }

    fn needs(property: Value) -> Value {
        json!({ "type": "object", "properties": { "next": property }, "required": ["next"] })
    }

    #[test]
    fn a_schema_that_always_needs_itself_is_found() {
        check(json!({ "$ref": "#" }), Some("#"));
        let (a, b) = (json!({ "$ref": "#/$defs/a" }), json!({ "$ref": "#/$defs/b" }));
        let defs = json!({ "a": b, "b": a });
        check(json!({ "$ref": "#/$defs/a", "$defs": defs }), Some("#/$defs/a"));
        check(json!({ "allOf": [{}, a], "$defs": defs }), Some("#/$defs/a"));
        check(json!({ "anyOf": [b, a], "$defs": defs }), Some("#/$defs/b"));
        check(needs(json!({ "$ref": "#" })), Some("#"));
        let list = json!({ "type": "array", "minItems": 1, "items": { "$ref": "#" } });
        check(list, Some("#"));
        let mut object = needs(json!({ "oneOf": [a, needs(b.clone())] }));
        object["$defs"] = defs;
        check(object, Some("#/$defs/a"));
        let others = json!({ "type": "object", "required": ["x"],
            "additionalProperties": { "$ref": "#" } });
        check(others, Some("#"));
    }

    #[test]
    fn a_schema_of_which_some_value_ends_is_none() {
        check(json!(true), None);
        check(json!({ "$ref": "https://example.org" }), None);
        check(json!({ "$ref": "#/nowhere" }), None);
        let tree = json!({ "type": "object", "properties": {
            "left": { "$ref": "#" }, "value": { "type": "integer" } }, "required": ["value"] });
        check(tree, None);
        check(needs(json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] })), None);
        check(json!({ "type": "array", "items": { "$ref": "#" } }), None);
        // Another type than an object's may be written.
        check(json!({ "properties": { "next": { "$ref": "#" } }, "required": ["next"] }), None);
        // A long way to what ends, and back.
        let mut defs: Map<String, Value> = (0..2000)
            .map(|at| (format!("d{at}"), json!({ "$ref": format!("#/$defs/d{}", at + 1) })))
            .collect();
        defs.insert("d2000".to_owned(), json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] }));
        check(json!({ "$ref": "#/$defs/d0", "$defs": defs }), None);
    }
}
