//! Places of a schema at which very much may come next: objects with hundreds of optional properties,
//! and choices among hundreds. The parser limits how many rules it follows at one place, and reaches the
//! limit only when an answer gets there. So each such place is compiled by itself before the first token.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::grammar::{AnswerForm, TextForm, json_rule};
use super::inner::{Inner, inner};

/// Parser items an optional property takes: 499 properties stay below its limit of 2,000 items.
const ITEMS_PER_PROPERTY: usize = 4;
/// Less than half of the parser's limit, which leaves room for what stands around the place.
const MANY_ITEMS: usize = 800;
/// Each place takes up to a second to compile.
const MAX_PLACES: usize = 32;
/// Bound for schemas that refer to each other again and again. A schema of a megabyte has fewer parts.
const MAX_VISITS: usize = 1 << 20;

/// A place of a schema at which very much may come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrowdedPlace {
    /// Names the place, and says that more may come there than can be enforced.
    pub refusal: String,
    /// Grammar of the place alone.
    pub grammar: String,
}

impl AnswerForm {
    /// Places of the form at which very much may come next. Fails with a reason if they are too many to be
    /// looked at.
    pub fn crowded(&self) -> Result<Vec<CrowdedPlace>, String> {
        let mut found = Vec::new();
        if let TextForm::Json(schema) = &self.text {
            Search::new(schema, "its schema", true).run(&mut found)?;
        }
        for call in &self.calls {
            let what = format!("the schema of the tool {}", call.name);
            Search::new(&call.arguments, &what, call.is_strict).run(&mut found)?;
        }
        Ok(found)
    }
}

/// Counts of what may come next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Crowd {
    num_optional: usize,
    num_alternatives: usize,
}

impl Crowd {
    fn num_items(self) -> usize {
        ITEMS_PER_PROPERTY * self.num_optional + self.num_alternatives
    }
}

struct Search<'a> {
    root: &'a Value,
    /// Names the schema in a sentence.
    name: &'a str,
    is_strict: bool,
    num_visits: usize,
}

impl<'a> Search<'a> {
    fn new(root: &'a Value, name: &'a str, is_strict: bool) -> Self {
        Search { root, name, is_strict, num_visits: 0 }
    }

    fn run(mut self, found: &mut Vec<CrowdedPlace>) -> Result<(), String> {
        self.visit(self.root, String::new(), false, found);
        if found.len() > MAX_PLACES || self.num_visits > MAX_VISITS {
            return Err(format!("{} is too complex to be enforced", self.name));
        }
        Ok(())
    }

    /// Visits a schema and all inside it. A choice of another schema (`is_choice`) was counted with that
    /// one.
    fn visit(
        &mut self,
        schema: &'a Value,
        pointer: String,
        is_choice: bool,
        found: &mut Vec<CrowdedPlace>,
    ) {
        self.num_visits += 1;
        let Some(fields) = schema.as_object() else { return };
        if found.len() > MAX_PLACES || self.num_visits > MAX_VISITS {
            return;
        }
        let mut crowd = Crowd::default();
        self.add(schema, &mut HashSet::new(), &mut crowd);
        let is_crowded = crowd.num_items() >= MANY_ITEMS;
        if is_crowded && !is_choice {
            found.push(self.place(&pointer, crowd));
        }
        for Inner { keyword, is_listed, pointer: place, schema } in inner(fields) {
            let is_choice = is_crowded && is_listed && keyword != "prefixItems";
            self.visit(schema, format!("{pointer}{place}"), is_choice, found);
        }
    }

    /// Adds what may come next at the beginning of a value, or after its first brace.
    fn add(&mut self, schema: &'a Value, passed: &mut HashSet<&'a str>, crowd: &mut Crowd) {
        self.num_visits += 1;
        let Some(fields) = schema.as_object().filter(|_| self.num_visits <= MAX_VISITS) else {
            return;
        };
        if let Some(reference) = fields.get("$ref").and_then(Value::as_str)
            && passed.insert(reference)
            && let Some(referred) = reference.strip_prefix('#').and_then(|at| self.root.pointer(at))
        {
            self.add(referred, passed, crowd);
        }
        let required = fields.get("required").and_then(Value::as_array);
        let is_required = |name: &str| {
            required.is_some_and(|required| required.iter().any(|other| *other == name))
        };
        if let Some(properties) = fields.get("properties").and_then(Value::as_object) {
            let num_required = required.map_or(0, Vec::len);
            // A long list is not searched for each property: all that it names are properties, mostly.
            crowd.num_optional += if num_required > 64 {
                properties.len().saturating_sub(num_required)
            } else {
                properties.keys().filter(|name| !is_required(name)).count()
            };
        }
        let choices = fields.get("enum").and_then(Value::as_array);
        crowd.num_alternatives += choices.map_or(0, Vec::len);
        for name in ["anyOf", "oneOf", "allOf"] {
            let schemas = fields.get(name).and_then(Value::as_array);
            for schema in schemas.into_iter().flatten() {
                crowd.num_alternatives += usize::from(name != "allOf");
                self.add(schema, passed, crowd);
            }
        }
    }

    fn place(&self, pointer: &str, crowd: Crowd) -> CrowdedPlace {
        let Crowd { num_optional, num_alternatives } = crowd;
        let at = if pointer.is_empty() { String::new() } else { format!(" at `#{pointer}`") };
        let much = if ITEMS_PER_PROPERTY * num_optional >= num_alternatives {
            format!("{num_optional} optional properties")
        } else {
            format!("{num_alternatives} alternatives")
        };
        let refusal = format!("{}{at} has {much}, more than can be enforced", self.name);
        CrowdedPlace { refusal, grammar: json_rule("start", &self.alone(pointer), self.is_strict) }
    }

    /// The schema of a place alone. The whole schema moves below `$defs`, for the references in it.
    fn alone(&self, pointer: &str) -> Value {
        if pointer.is_empty() {
            return self.root.clone();
        }
        const MOVED: &str = "#/$defs/whole";
        let mut whole = self.root.clone();
        move_references(&mut whole, MOVED);
        json!({ "$ref": format!("{MOVED}{pointer}"), "$defs": { "whole": whole } })
    }
}

fn move_references(value: &mut Value, to: &str) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| move_references(value, to)),
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(at) = reference.strip_prefix('#')
            {
                *reference = format!("{to}{}", at.trim_end_matches('/'));
            }
            fields.values_mut().for_each(|value| move_references(value, to));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn object(num_optional: usize) -> Value {
        let properties: Map<String, Value> =
            (0..num_optional).map(|n| (format!("p{n}"), json!({ "type": "null" }))).collect();
        json!({ "type": "object", "properties": properties })
    }

    fn check(schema: Value, expected: &[&str]) {
        let form = AnswerForm { text: TextForm::Json(schema), calls: Vec::new() };
        let found: Vec<String> =
            form.crowded().unwrap().into_iter().map(|place| place.refusal).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn finds_places_where_much_may_come() {
        let many =
            |at: &str, much: &str| format!("its schema{at} has {much}, more than can be enforced");
        check(object(199), &[]);
        check(object(300), &[&many("", "300 optional properties")]);
        let nested = json!({ "type": "object", "properties": { "a/b": { "items": object(300) } } });
        check(nested, &[&many(" at `#/properties/a~1b/items`", "300 optional properties")]);
        let choices = json!({ "anyOf": [object(100), object(200)] });
        check(choices, &[&many("", "300 optional properties")]);
        let values: Vec<usize> = (0..900).collect();
        check(json!({ "enum": values }), &[&many("", "900 alternatives")]);
        let referred = json!({ "$ref": "#/$defs/a", "$defs": { "a": object(300) } });
        let much = "300 optional properties";
        check(referred, &[&many("", much), &many(" at `#/$defs/a`", much)]);
        let mut required = object(300);
        let names: Vec<String> = (0..200).map(|n| format!("p{n}")).collect();
        required["required"] = json!(names);
        check(required, &[]);
    }

    #[test]
    fn refuses_more_places_than_it_looks_at() {
        let crowded = |num_places: usize| {
            let places: Map<String, Value> =
                (0..num_places).map(|n| (format!("p{n}"), object(200))).collect();
            let schema = json!({ "type": "object", "properties": places, "required":
                places.keys().collect::<Vec<_>>() });
            AnswerForm { text: TextForm::Json(schema), calls: Vec::new() }.crowded()
        };
        assert_eq!(crowded(MAX_PLACES).unwrap().len(), MAX_PLACES);
        assert_eq!(
            crowded(MAX_PLACES + 1).unwrap_err(),
            "its schema is too complex to be enforced"
        );
    }

    #[test]
    fn moves_references_of_schema_alone() {
        let root = json!({ "properties": { "a": object(300), "b": { "$ref": "#/properties/a" } } });
        let alone = Search::new(&root, "its schema", true).alone("/properties/a");
        assert_eq!(alone["$ref"], "#/$defs/whole/properties/a");
        let moved = &alone["$defs"]["whole"]["properties"]["b"]["$ref"];
        assert_eq!(moved, "#/$defs/whole/properties/a");
    }
}
