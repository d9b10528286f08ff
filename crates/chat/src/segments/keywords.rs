//! Keywords of schemas that llguidance does not know, as zod and pydantic write them. They become
//! keywords that it does know; what cannot be enforced so says something to readers and nothing to the
//! grammar. No schema changes its place, because others may refer to it.

use serde_json::{Map, Value, json};

use super::inner::{each_inner_mut, inner};

/// Formats of strings that llguidance has a pattern for.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Rewrites the keywords of a schema and of those in it.
pub(super) fn translate(root: &mut Value) {
    for (pointer, tag) in tags(root) {
        if let Some(Value::Object(branch)) = root.pointer_mut(&pointer) {
            require(branch, &tag);
        }
    }
    translate_each(root);
}

fn translate_each(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    each_inner_mut(fields, translate_each);
    let is_unknown = |format: &str| !FORMATS.contains(&format);
    if fields.get("format").and_then(Value::as_str).is_some_and(is_unknown) {
        fields.remove("format");
    }
    fields.remove("uniqueItems");
    if let Some(names) = fields.remove("propertyNames") {
        name_properties(fields, &names);
    }
}

/// Allows only properties with these names, where the schema of names is a pattern or a list.
fn name_properties(fields: &mut Map<String, Value>, names: &Value) {
    if fields.contains_key("patternProperties") {
        return;
    }
    let others = || fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    if let Some(listed) = names.get("enum").and_then(Value::as_array) {
        let others = others();
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            for name in listed.iter().filter_map(Value::as_str) {
                properties.entry(name).or_insert_with(|| others.clone());
            }
        }
    } else if let Some(pattern) = names.get("pattern").and_then(Value::as_str) {
        let named = Map::from_iter([(pattern.to_owned(), others())]);
        fields.insert("patternProperties".to_owned(), named.into());
    } else {
        return;
    }
    fields.insert("additionalProperties".to_owned(), false.into());
}

/// Objects of which exactly one may hold (`oneOf`), by their places, with the property whose value tells
/// them apart. Where it may be left out, more than one of them would hold.
fn tags(root: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    find_tags(root, root, "", &mut found);
    found
}

fn find_tags(root: &Value, schema: &Value, at: &str, found: &mut Vec<(String, String)>) {
    let Value::Object(fields) = schema else { return };
    if let Some(Value::Array(branches)) = fields.get("oneOf") {
        let place = |(index, branch): (usize, &Value)| match branch["$ref"].as_str() {
            Some(target) => target.strip_prefix('#').map(str::to_owned),
            None => Some(format!("{at}/oneOf/{index}")),
        };
        let places: Vec<String> = branches.iter().enumerate().filter_map(place).collect();
        let objects: Vec<&Value> = places.iter().filter_map(|at| root.pointer(at)).collect();
        if objects.len() == branches.len()
            && let Some(tag) = tag(&objects)
        {
            found.extend(places.into_iter().map(|place| (place, tag.clone())));
        }
    }
    for place in inner(fields) {
        find_tags(root, place.schema, &format!("{at}{}", place.pointer), found);
    }
}

/// The first property that each of these objects gives another constant.
fn tag(objects: &[&Value]) -> Option<String> {
    let constant = |object: &Value, name: &str| {
        object.get("properties")?.get(name)?.get("const").map(Value::to_string)
    };
    let differ = |name: &&String| {
        let constants: Option<Vec<String>> =
            objects.iter().map(|object| constant(object, name)).collect();
        constants.is_some_and(|mut constants| {
            constants.sort();
            constants.windows(2).all(|pair| pair[0] != pair[1])
        })
    };
    objects.first()?.get("properties")?.as_object()?.keys().find(differ).cloned()
}

fn require(branch: &mut Map<String, Value>, name: &str) {
    let required = branch.entry("required").or_insert_with(|| json!([]));
    if let Value::Array(required) = required
        && !required.iter().any(|other| other == name)
    {
        required.push(name.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut schema: Value, expected: Value) {
        translate(&mut schema);
        assert_eq!(schema, expected);
    }

    #[test]
    fn what_is_not_known_becomes_an_annotation() {
        check(json!({ "format": "nanoid", "pattern": "^a" }), json!({ "pattern": "^a" }));
        check(json!({ "format": "uuid" }), json!({ "format": "uuid" }));
        let list = |more: Value| json!({ "items": more, "properties": { "format": more } });
        check(list(json!({ "uniqueItems": true, "format": "path" })), list(json!({})));
        // No schemas.
        let values = json!({ "const": { "format": "path" }, "enum": [{ "uniqueItems": true }] });
        check(values.clone(), values);
    }

    #[test]
    fn names_of_properties_are_enforced_where_a_grammar_can() {
        let number = json!({ "type": "number" });
        let record =
            |names: Value| json!({ "propertyNames": names, "additionalProperties": number });
        check(record(json!({ "type": "string" })), json!({ "additionalProperties": number }));
        check(
            record(json!({ "pattern": "^a" })),
            json!({ "patternProperties": { "^a": number }, "additionalProperties": false }),
        );
        check(
            record(json!({ "enum": ["a", "b"] })),
            json!({ "properties": { "a": number, "b": number }, "additionalProperties": false }),
        );
    }

    #[test]
    fn what_tells_objects_apart_is_required() {
        let object = |kind: &str| json!({ "properties": { "kind": { "const": kind }, "a": {} } });
        let required = |kind: &str| json!({ "properties": { "kind": { "const": kind }, "a": {} }, "required": ["kind"] });
        let choice =
            |of: &dyn Fn(&str) -> Value| json!({ "items": { "oneOf": [of("x"), of("y")] } });
        check(choice(&object), choice(&required));
        check(choice(&required), choice(&required));
        let defined = |of: &dyn Fn(&str) -> Value| {
            let branches = json!([{ "$ref": "#/$defs/a~1b" }, { "$ref": "#/$defs/c" }]);
            json!({ "$defs": { "a/b": of("x"), "c": of("y") }, "oneOf": branches })
        };
        check(defined(&object), defined(&required));
        // Nothing tells these apart.
        let same = json!({ "oneOf": [object("x"), object("x"), { "$ref": "#/$defs/none" }] });
        check(same.clone(), same);
    }
}
