//! The keys of config.json that say how heads rotate, in the form of older configs.
//!
//! Newer configs have them in `rope_parameters`, older ones at the top level and in `rope_scaling`.
//! Programs that convert configs leave both. As in transformers, `rope_parameters` wins.

use serde_json::{Map, Value};

/// Keys that stand at the top level or in `rope_parameters`.
const NUMBERS: [&str; 3] =
    ["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"];

/// A config whose rotation is complete at the top level.
pub(crate) struct UnifiedRope {
    pub config: Value,
    /// Whether a key at the top level had another value, by which earlier versions computed.
    pub is_changed: bool,
}

/// Copies the keys of `rope_parameters` to the top level, and its scaling to `rope_scaling`.
///
/// `rope_parameters` stays: some architectures have keys of their own in it. Where it has a
/// rotation for each type of layer and these differ, nothing is copied.
pub(crate) fn unify(config: Value) -> UnifiedRope {
    let nested = config.get("rope_parameters").and_then(only_rotation).cloned();
    let (Value::Object(mut config), Some(nested)) = (config.clone(), nested) else {
        return UnifiedRope { config, is_changed: false };
    };
    let mut is_changed = false;
    let mut set = |name: &str, value: Value| {
        let before = config.insert(name.to_owned(), value.clone());
        is_changed |= before.is_some_and(|before| !before.is_null() && !is_same(&before, &value));
    };
    for name in NUMBERS {
        if let Some(value) = nested.get(name).filter(|value| !value.is_null()) {
            set(name, value.clone());
        }
    }
    let nested = Value::Object(nested);
    if is_named(&nested) {
        let top = config.get("rope_scaling").filter(|scaling| !scaling.is_null());
        let chosen = scaling(top, Some(&nested)).cloned();
        is_changed |= top.is_some() && chosen.as_ref() != top;
        config.insert("rope_scaling".to_owned(), chosen.unwrap_or_default());
    }
    UnifiedRope { config: Value::Object(config), is_changed }
}

/// Returns the scaling of positions: `rope_parameters` if it names one, else `rope_scaling`.
pub(crate) fn scaling<'a>(
    rope_scaling: Option<&'a Value>,
    rope_parameters: Option<&'a Value>,
) -> Option<&'a Value> {
    let rope_scaling = rope_scaling.filter(|scaling| !scaling.is_null());
    let nested = rope_parameters.filter(|keys| is_named(keys));
    match nested {
        Some(keys) if kind(keys) != Some("default") => nested,
        _ => rope_scaling.or(nested),
    }
}

/// Whether `rope_parameters` has different rotations for the types of layers.
pub(crate) fn differs_by_layer(rope_parameters: &Value) -> bool {
    rope_parameters.is_object() && only_rotation(rope_parameters).is_none()
}

/// The rotation of all layers, also where it is repeated for each type of layer.
fn only_rotation(rope_parameters: &Value) -> Option<&Map<String, Value>> {
    let keys = rope_parameters.as_object()?;
    let mut each = keys.values().filter_map(Value::as_object);
    let Some(first) = each.next() else { return Some(keys) };
    each.all(|other| other == first).then_some(first)
}

fn is_named(keys: &Value) -> bool {
    ["rope_type", "type"].iter().any(|name| keys.get(name).is_some())
}

fn kind(keys: &Value) -> Option<&str> {
    keys.get("rope_type").or_else(|| keys.get("type")).and_then(Value::as_str)
}

/// Whether two values are the same number, as 10000 and 10000.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(config: Value, expected: Value, is_changed: bool) {
        let mut found = unify(config.clone());
        found.config.as_object_mut().expect("an object").remove("rope_parameters");
        assert_eq!(found.config, expected, "{config}");
        assert_eq!(found.is_changed, is_changed, "{config}");
    }

    #[test]
    fn rope_parameters_win_over_the_top_level() {
        let nested = json!({"rope_type": "default", "rope_theta": 1e6});
        let top = json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5});
        check(top.clone(), top, false);
        check(
            json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_parameters": nested}),
            json!({"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": nested}),
            true,
        );
        let factor = json!({"partial_rotary_factor": 0.25, "original_max_position_embeddings": 8});
        check(
            json!({"rope_theta": null, "partial_rotary_factor": 0.5, "rope_parameters": factor}),
            json!({"rope_theta": null, "partial_rotary_factor": 0.25,
                   "original_max_position_embeddings": 8}),
            true,
        );
    }

    #[test]
    fn equal_numbers_are_no_change() {
        let nested = json!({"rope_theta": 10000.0, "partial_rotary_factor": null});
        check(
            json!({"rope_theta": 10000, "rope_parameters": nested}),
            json!({"rope_theta": 10000.0}),
            false,
        );
    }

    #[test]
    fn scaling_is_the_one_that_scales() {
        let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor});
        let plain = json!({"rope_type": "default"});
        for (top, nested, expected, is_changed) in [
            (json!(null), linear(2.0), linear(2.0), false),
            (linear(4.0), linear(2.0), linear(2.0), true),
            (linear(4.0), plain.clone(), linear(4.0), false),
            (linear(2.0), json!({"factor": 3.0}), linear(2.0), false),
            (json!(null), plain.clone(), plain, false),
        ] {
            check(
                json!({"rope_scaling": top, "rope_parameters": nested}),
                json!({"rope_scaling": expected}),
                is_changed,
            );
        }
    }

    #[test]
    fn rotations_by_layer_are_copied_only_if_all_are_equal() {
        let one = json!({"rope_type": "default", "rope_theta": 1e6});
        check(
            json!({"rope_theta": 1e4, "rope_parameters": {"full_attention": one}}),
            json!({"rope_theta": 1e6, "rope_scaling": one}),
            true,
        );
        let other = json!({"rope_type": "default", "rope_theta": 1e4});
        let both = json!({"full_attention": one, "sliding_attention": other});
        assert!(differs_by_layer(&both) && !differs_by_layer(&one));
        check(
            json!({"rope_theta": 1e4, "rope_parameters": both}),
            json!({"rope_theta": 1e4}),
            false,
        );
    }
}
