//! What is known about one setting, and whether a value is allowed for it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ts_rs::TS;

/// The largest whole number that a plain `number` in TypeScript holds exactly.
pub(crate) const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
pub struct SettingRow {
    /// Name of the field in `Settings`, on disk and on the wire.
    #[ts(type = "keyof Settings")]
    pub key: &'static str,
    /// Type and range.
    pub kind: SettingKind,
    /// Where the interface's catalogue has label and note.
    pub text_key: &'static str,
    /// Under which heading it is shown.
    pub section: SettingSection,
    /// Where it may be set.
    #[ts(type = "readonly SettingScope[]")]
    pub scopes: &'static [SettingScope],
    /// Whether a change makes chats prefill again: a KV format does, a temperature does not.
    pub rereads: bool,
}

/// Type and range of a setting; both bounds are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum SettingKind {
    /// One line.
    Text {
        /// Its greatest length, in Unicode scalar values.
        max_chars: usize,
    },
    /// Several lines.
    Lines {
        /// Its greatest length, in Unicode scalar values.
        max_chars: usize,
    },
    /// True or false.
    Switch,
    /// One of a closed set.
    Choice {
        /// All of them.
        #[ts(type = "readonly string[]")]
        values: &'static [&'static str],
    },
    /// A number with a fraction.
    Number {
        /// The smallest that is allowed.
        min: f64,
        /// The largest that is allowed.
        max: f64,
        /// How far one press of an arrow key goes.
        step: f64,
    },
    /// A whole number.
    Count {
        /// The smallest that is allowed.
        #[ts(type = "number")]
        min: u64,
        /// The largest that is allowed.
        #[ts(type = "number")]
        max: u64,
    },
    /// A whole number, or null.
    OptionalCount {
        /// The smallest that is allowed.
        #[ts(type = "number")]
        min: u64,
        /// The largest that is allowed.
        #[ts(type = "number")]
        max: u64,
    },
    /// A size in bytes, shown in gigabytes.
    Bytes {
        /// The largest that is allowed.
        #[ts(type = "number")]
        max: u64,
    },
}

/// Under which heading a setting is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SettingSection {
    /// How the window looks and behaves.
    General,
    /// Which model is loaded.
    Models,
    /// How answers are written.
    Generation,
    /// The part of Generation that few people change.
    Advanced,
    /// Disk and memory.
    Storage,
    /// Where models come from and go to.
    Hub,
    /// The API for other programs.
    Server,
}

/// Where a value is set, from the weakest to the strongest. A value that is set nowhere is the
/// default, which is weaker than all of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SettingScope {
    /// The model's own `generation_config.json`.
    GenerationConfig,
    /// All chats.
    App,
    /// All chats that this model answers.
    Model,
    /// All chats with this persona.
    Persona,
    /// One chat.
    Chat,
    /// One answer.
    Request,
}

impl SettingRow {
    /// Refuses a value that is not allowed, in one sentence that names the setting and what is.
    pub(crate) fn check(&self, value: &Value) -> Result<(), String> {
        let SettingRow { key, kind, .. } = self;
        match kind.allows(value) {
            true => Ok(()),
            false => Err(format!("{key} must be {}; {value} is not.", kind.allowed())),
        }
    }
}

impl SettingKind {
    fn allows(&self, value: &Value) -> bool {
        let is_whole = |min, max| value.as_u64().is_some_and(|count| (min..=max).contains(&count));
        match *self {
            SettingKind::Text { max_chars } => value.as_str().is_some_and(|text| {
                text.chars().count() <= max_chars && !text.chars().any(char::is_control)
            }),
            SettingKind::Lines { max_chars } => value.as_str().is_some_and(|text| {
                let is_text = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
                text.chars().count() <= max_chars && text.chars().all(is_text)
            }),
            SettingKind::Switch => value.is_boolean(),
            SettingKind::Choice { values } => {
                value.as_str().is_some_and(|choice| values.contains(&choice))
            }
            SettingKind::Number { min, max, step: _ } => {
                value.as_f64().is_some_and(|number| (min..=max).contains(&number))
            }
            SettingKind::Count { min, max } => is_whole(min, max),
            SettingKind::OptionalCount { min, max } => value.is_null() || is_whole(min, max),
            SettingKind::Bytes { max } => is_whole(0, max),
        }
    }

    fn allowed(&self) -> String {
        match *self {
            SettingKind::Text { max_chars } => {
                format!("one line of at most {max_chars} characters")
            }
            SettingKind::Lines { max_chars } => {
                format!("a text of at most {max_chars} characters")
            }
            SettingKind::Switch => "true or false".to_owned(),
            SettingKind::Choice { values } => format!("one of {}", values.join(", ")),
            SettingKind::Number { min, max, step: _ } => format!("from {min} to {max}"),
            SettingKind::Count { min, max } => format!("a whole number from {min} to {max}"),
            SettingKind::OptionalCount { min, max } => {
                format!("a whole number from {min} to {max}, or null")
            }
            SettingKind::Bytes { max } => format!("a whole number from 0 to {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_kind_allows_its_bounds_and_nothing_beyond() {
        fn check(kind: SettingKind, allowed: &[Value], refused: &[Value]) {
            for value in allowed {
                assert!(kind.allows(value), "{kind:?} must allow {value}");
            }
            for value in refused {
                assert!(!kind.allows(value), "{kind:?} must refuse {value}");
            }
        }
        check(
            SettingKind::Text { max_chars: 2 },
            &[json!(""), json!("äö")],
            &[json!("abc"), json!("a\n"), json!(1), Value::Null],
        );
        check(
            SettingKind::Lines { max_chars: 3 },
            &[json!(""), json!("ä\nö")],
            &[json!("abcd"), json!("a\0"), json!(1), Value::Null],
        );
        check(SettingKind::Switch, &[json!(true), json!(false)], &[json!(1), Value::Null]);
        check(
            SettingKind::Choice { values: &["a", "b"] },
            &[json!("a"), json!("b")],
            &[json!("c"), json!(""), Value::Null],
        );
        check(
            SettingKind::Number { min: 0.5, max: 2.0, step: 0.1 },
            &[json!(0.5), json!(1), json!(2.0)],
            &[json!(0.4), json!(2.1), json!("1"), Value::Null, json!(f64::NAN)],
        );
        check(
            SettingKind::Count { min: 1, max: 9 },
            &[json!(1), json!(9)],
            &[json!(0), json!(10), json!(1.5), json!(-1), Value::Null],
        );
        check(
            SettingKind::OptionalCount { min: 0, max: MAX_SAFE_INTEGER },
            &[Value::Null, json!(0), json!(MAX_SAFE_INTEGER)],
            &[json!(MAX_SAFE_INTEGER + 1), json!("")],
        );
        check(
            SettingKind::Bytes { max: 1 << 40 },
            &[json!(0), json!(1_u64 << 40)],
            &[json!((1_u64 << 40) + 1), json!(-1), Value::Null],
        );
    }

    #[test]
    fn a_refused_value_is_named_with_what_is_allowed() {
        let row = SettingRow {
            key: "top_p",
            kind: SettingKind::Number { min: 0.0, max: 1.0, step: 0.05 },
            text_key: "settings.rows.top_p",
            section: SettingSection::Generation,
            scopes: &[],
            rereads: false,
        };
        assert_eq!(row.check(&json!(1)), Ok(()));
        assert_eq!(
            row.check(&json!(1.5)),
            Err("top_p must be from 0 to 1; 1.5 is not.".to_owned())
        );
    }
}
