//! What a grammar must add to the formats of strings, where llguidance allows more than validators do:
//! 29 February in any year, and a leap second in any minute.

use serde_json::{Map, Value, json};

use super::inner::each_inner_mut;

/// A date that exists, at the beginning of a text.
const DATE: &str = concat!(
    "^(?:[0-9]{4}-(?:0[13-9]|1[0-2])|[0-9]{4}-02-(?:[01][0-9]|2[0-8])|",
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);
/// Seconds without the leap second, at the beginning of a text or behind a date.
const SECONDS: &str = "^[^:]*:[0-9]{2}:[0-5]";

/// Adds to a schema and those in it what its formats need.
pub(super) fn tighten(schema: &mut Value) {
    let Value::Object(fields) = schema else { return };
    each_inner_mut(fields, tighten);
    let patterns: &[&str] = match fields.get("format").and_then(Value::as_str) {
        Some("date") => &[DATE],
        Some("time") => &[SECONDS],
        Some("date-time") => &[DATE, SECONDS],
        _ => return,
    };
    patterns.iter().for_each(|pattern| add_pattern(fields, pattern));
}

fn add_pattern(fields: &mut Map<String, Value>, pattern: &str) {
    if !fields.contains_key("pattern") {
        fields.insert("pattern".to_owned(), pattern.into());
        return;
    }
    let all = fields.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.push(json!({ "pattern": pattern }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_get_their_patterns_wherever_schemas_stand() {
        let date = json!({ "format": "date" });
        let tight = json!({ "format": "date", "pattern": DATE });
        let schema = |date: &Value| {
            json!({
                "properties": { "format": date, "at": { "anyOf": [date, { "type": "null" }] } },
                "$defs": { "d": { "items": date } }, "prefixItems": [date],
                "enum": [{ "format": "date" }], "const": { "items": { "format": "date" } },
            })
        };
        let mut tightened = schema(&date);
        tighten(&mut tightened);
        assert_eq!(tightened, schema(&tight));
    }

    #[test]
    fn a_pattern_of_its_own_stays() {
        let mut schema = json!({ "format": "time", "pattern": "^1" });
        tighten(&mut schema);
        let expected =
            json!({ "format": "time", "pattern": "^1", "allOf": [{ "pattern": SECONDS }] });
        assert_eq!(schema, expected);
    }
}
