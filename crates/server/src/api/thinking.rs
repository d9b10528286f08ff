//! How much a program wants the model to think, in each vendor's words. It is a hint: what cannot be
//! read says nothing, and the model's chat template does the nearest that it can.

use cairn_app::completion::Thinking;
use serde_json::{Map, Value};

/// Reads the fields of a request of any route; `None` if it leaves the choice to Cairn.
///
/// ```text
/// OpenAI     reasoning_effort · reasoning.effort
/// Anthropic  output_config.effort · thinking {type, budget_tokens}
/// others     enable_thinking · thinking_budget · reasoning {enabled, max_tokens}
/// ```
pub(super) fn wanted(fields: &Map<String, Value>) -> Option<Thinking> {
    let is_off = switch(fields) == Some(false);
    if is_off {
        return Some(Thinking::Off);
    }
    let wanted = effort(fields).or_else(|| budget(fields).map(Thinking::from_budget));
    let wanted = wanted.or_else(|| (switch(fields) == Some(true)).then_some(Thinking::On));
    wanted.filter(|level| *level != Thinking::Automatic)
}

fn effort(fields: &Map<String, Value>) -> Option<Thinking> {
    let of_object = |name: &str| fields.get(name)?.get("effort");
    let names =
        [fields.get("reasoning_effort"), of_object("reasoning"), of_object("output_config")];
    names.into_iter().flatten().find_map(|name| Thinking::from_name(name.as_str()?))
}

fn budget(fields: &Map<String, Value>) -> Option<u64> {
    let of_object = |name: &str, field: &str| fields.get(name)?.get(field)?.as_u64();
    of_object("thinking", "budget_tokens")
        .or_else(|| of_object("reasoning", "max_tokens"))
        .or_else(|| fields.get("thinking_budget")?.as_u64())
}

fn switch(fields: &Map<String, Value>) -> Option<bool> {
    let of_type = match fields.get("thinking").and_then(|thinking| thinking.get("type")?.as_str()) {
        Some("enabled") => Some(true),
        Some("disabled") => Some(false),
        _ => None,
    };
    of_type
        .or_else(|| fields.get("enable_thinking")?.as_bool())
        .or_else(|| fields.get("reasoning")?.get("enabled")?.as_bool())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_every_vendors_words() {
        fn check(fields: Value, expected: Option<Thinking>) {
            assert_eq!(wanted(fields.as_object().unwrap()), expected, "{fields}");
        }
        check(json!({}), None);
        check(json!({ "reasoning_effort": "minimal" }), Some(Thinking::Minimal));
        check(json!({ "reasoning_effort": "none" }), Some(Thinking::Off));
        check(
            json!({ "reasoning": { "effort": "xhigh", "summary": "auto" } }),
            Some(Thinking::Xhigh),
        );
        check(json!({ "reasoning": { "summary": "auto" } }), None);
        check(json!({ "thinking": { "type": "disabled" } }), Some(Thinking::Off));
        check(json!({ "thinking": { "type": "adaptive" } }), None);
        check(json!({ "thinking": { "type": "enabled" } }), Some(Thinking::On));
        let enabled = json!({ "type": "enabled", "budget_tokens": 2048 });
        check(json!({ "thinking": enabled }), Some(Thinking::Low));
        let effort = json!({ "effort": "high" });
        check(json!({ "thinking": enabled, "output_config": effort }), Some(Thinking::High));
        check(
            json!({ "thinking": { "type": "disabled" }, "output_config": effort }),
            Some(Thinking::Off),
        );
        check(json!({ "enable_thinking": false }), Some(Thinking::Off));
        check(json!({ "thinking_budget": 0 }), Some(Thinking::Off));
        // Values that cannot be followed.
        check(json!({ "reasoning_effort": 7, "thinking": "yes", "reasoning": [] }), None);
        check(json!({ "reasoning_effort": "auto" }), None);
        check(json!({ "reasoning_effort": "enormous" }), None);
    }
}
