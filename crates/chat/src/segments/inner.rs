//! The schemas in a schema.

use serde_json::{Map, Value};

/// Keywords whose value is a schema, a list of schemas, or an object of schemas by name.
const OF_SCHEMA: [&str; 3] = ["items", "additionalProperties", "additionalItems"];
const OF_LIST: [&str; 5] = ["anyOf", "oneOf", "allOf", "prefixItems", "items"];
const OF_NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// A schema in another one.
pub(super) struct Inner<'a> {
    /// The keyword of the outer one that has it.
    pub(super) keyword: &'a str,
    /// Whether it is one of a list.
    pub(super) is_listed: bool,
    /// Its place in the outer one, as a JSON pointer.
    pub(super) pointer: String,
    pub(super) schema: &'a Value,
}

/// The schemas right in this one.
pub(super) fn inner(fields: &Map<String, Value>) -> Vec<Inner<'_>> {
    let mut found = Vec::new();
    for (keyword, value) in fields {
        let mut add = |is_listed, steps: &[&str], schema| {
            let pointer = steps.iter().map(|step| format!("/{}", escaped(step))).collect();
            found.push(Inner { keyword, is_listed, pointer, schema });
        };
        match value {
            Value::Object(_) if OF_SCHEMA.contains(&keyword.as_str()) => {
                add(false, &[keyword], value);
            }
            Value::Array(schemas) if OF_LIST.contains(&keyword.as_str()) => {
                for (index, schema) in schemas.iter().enumerate() {
                    add(true, &[keyword, &index.to_string()], schema);
                }
            }
            Value::Object(schemas) if OF_NAMES.contains(&keyword.as_str()) => {
                for (name, schema) in schemas {
                    add(false, &[keyword, name], schema);
                }
            }
            _ => {}
        }
    }
    found
}

/// Changes the schemas right in this one.
pub(super) fn each_inner_mut(fields: &mut Map<String, Value>, change: fn(&mut Value)) {
    for (keyword, value) in fields {
        match value {
            Value::Object(_) if OF_SCHEMA.contains(&keyword.as_str()) => change(value),
            Value::Array(schemas) if OF_LIST.contains(&keyword.as_str()) => {
                schemas.iter_mut().for_each(change);
            }
            Value::Object(schemas) if OF_NAMES.contains(&keyword.as_str()) => {
                schemas.values_mut().for_each(change);
            }
            _ => {}
        }
    }
}

/// A name in a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
