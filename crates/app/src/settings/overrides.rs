//! The values that one scope sets, and what holds when several do.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{SettingScope, Settings, table};
use crate::wire::{Failure, FailureKind, ResolvedSettings};

/// The values that one scope sets; any other setting falls through to a weaker scope.
///
/// Every value passed the check of its row, and its row allows the scope.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SettingOverrides {
    scope: SettingScope,
    values: BTreeMap<&'static str, Value>,
}

/// Why a value is not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SettingError {
    /// The setting cannot have it.
    #[error("{message}")]
    Refused { key: &'static str, message: String },
    /// No interface asks for it.
    #[error("{0}")]
    Other(String),
}

impl From<SettingError> for Failure {
    fn from(error: SettingError) -> Failure {
        let failure = Failure::invalid(error.to_string());
        match error {
            SettingError::Refused { key, message } => failure
                .of_kind(FailureKind::SettingRefused { key: key.to_owned(), detail: message }),
            SettingError::Other(_) => failure,
        }
    }
}

impl SettingOverrides {
    /// A scope that sets nothing.
    pub(crate) fn none(scope: SettingScope) -> SettingOverrides {
        SettingOverrides { scope, values: BTreeMap::new() }
    }

    /// The values of a JSON object that was saved. One that is not allowed is logged and falls
    /// through, and no other does.
    pub(crate) fn parse(scope: SettingScope, saved: Option<&str>) -> SettingOverrides {
        match saved.map(serde_json::from_str).transpose() {
            Ok(None) => SettingOverrides::none(scope),
            Ok(Some(Value::Object(values))) => SettingOverrides::of_values(scope, values),
            Ok(Some(_)) => {
                tracing::warn!("the saved settings ({scope:?}) are not used: not a JSON object");
                SettingOverrides::none(scope)
            }
            Err(error) => {
                tracing::warn!("the saved settings ({scope:?}) are not used: {error}");
                SettingOverrides::none(scope)
            }
        }
    }

    /// The allowed ones of these values; the others are logged.
    pub(crate) fn of_values(scope: SettingScope, values: Map<String, Value>) -> SettingOverrides {
        let mut overrides = SettingOverrides::none(scope);
        for (key, value) in values {
            if let Err(why) = overrides.set(&key, value) {
                tracing::warn!("a setting ({scope:?}) is not used: {why}");
            }
        }
        overrides
    }

    /// Sets one value; null clears it.
    pub(crate) fn set(&mut self, key: &str, value: Value) -> Result<(), SettingError> {
        let row = table::row(key).map_err(SettingError::Other)?;
        if !row.scopes.contains(&self.scope) {
            let is_for_all = row.scopes.contains(&SettingScope::App);
            let scope = if is_for_all { "all chats" } else { "a model" };
            let why = format!("{key} cannot be set here, but for {scope}.");
            return Err(SettingError::Other(why));
        }
        if value.is_null() {
            self.values.remove(key);
            return Ok(());
        }
        row.check(&value).map_err(|message| SettingError::Refused { key: row.key, message })?;
        self.values.insert(row.key, value);
        Ok(())
    }

    /// The values by key.
    pub(crate) fn into_values(self) -> BTreeMap<String, Value> {
        self.values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Replaces what presets and personas have, the parameters of answers, by these values. Other keys
    /// among them are refused.
    pub(crate) fn replace_parameters(
        &mut self,
        values: BTreeMap<String, Value>,
    ) -> Result<(), SettingError> {
        let is_parameter = |key: &str| {
            table::row(key).is_ok_and(|row| row.scopes.contains(&SettingScope::Persona))
        };
        let mut replaced = self.clone();
        replaced.values.retain(|key, _| !is_parameter(key));
        for (key, value) in values {
            if !is_parameter(&key) {
                let why = format!("{key} is not a parameter of answers.");
                return Err(SettingError::Other(why));
            }
            replaced.set(&key, value)?;
        }
        *self = replaced;
        Ok(())
    }

    /// The JSON object to save; none where nothing is set.
    pub(crate) fn to_json(&self) -> Option<String> {
        // Texts as keys and plain values always serialize.
        let json = || serde_json::to_string(&self.values).unwrap_or_default();
        (!self.values.is_empty()).then(json)
    }
}

/// What holds for an answer: for each setting the value of the strongest scope that sets it, else
/// its default.
pub(crate) fn resolve(defaults: &Settings, layers: &[SettingOverrides]) -> ResolvedSettings {
    let mut weakest_first: Vec<&SettingOverrides> = layers.iter().collect();
    weakest_first.sort_by_key(|layer| layer.scope);
    let mut settings = defaults.clone();
    let mut from = BTreeMap::new();
    for layer in weakest_first {
        for (&key, value) in &layer.values {
            match settings.set(key, value) {
                Ok(()) => {
                    from.insert(key.to_owned(), layer.scope);
                }
                // Only where a row allows what its field's type cannot hold, which a test excludes.
                Err(why) => tracing::error!("{why}"),
            }
        }
    }
    ResolvedSettings { settings, from, thinking: None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::SettingScope::{App, Chat, GenerationConfig, Model, Persona, Request};
    use super::*;
    use crate::settings::table::Machine;
    use serde_json::json;

    fn defaults() -> Settings {
        Settings::defaults(&Machine { disk_bytes: 0, memory_bytes: 16 << 30 })
    }

    #[test]
    fn parameters_are_replaced_together_and_nothing_else_is() {
        let mut overrides = SettingOverrides::none(Chat);
        overrides.set("temperature", json!(0.2)).unwrap();
        overrides.set("holds_loops", json!(false)).unwrap();
        let values = |json: Value| serde_json::from_value::<BTreeMap<_, _>>(json).unwrap();
        overrides.replace_parameters(values(json!({ "top_k": 5 }))).unwrap();
        let expected = r#"{"holds_loops":false,"top_k":5}"#;
        assert_eq!(overrides.to_json().unwrap(), expected);
        for (refused, named) in [
            (json!({ "top_k": 7, "top_p": 2 }), "top_p"),
            (json!({ "holds_loops": true }), "holds_loops"),
            (json!({ "no_setting": 1 }), "no_setting"),
        ] {
            let why = overrides.replace_parameters(values(refused)).unwrap_err();
            assert!(why.to_string().starts_with(named), "{why:?} should name {named}");
            assert_eq!(overrides.to_json().unwrap(), expected, "all of it or nothing");
        }
        overrides.replace_parameters(BTreeMap::new()).unwrap();
        assert_eq!(overrides.to_json().unwrap(), r#"{"holds_loops":false}"#);
    }

    #[test]
    fn the_strongest_scope_that_sets_a_value_wins() {
        /// Scopes that set the temperature, with what they set, and which of them wins.
        fn check(layers: &[(SettingScope, f64)], expected: Option<SettingScope>) {
            let overrides: Vec<SettingOverrides> = layers
                .iter()
                .map(|(scope, temperature)| {
                    let saved = json!({ "temperature": temperature }).to_string();
                    SettingOverrides::parse(*scope, Some(&saved))
                })
                .collect();
            let resolved = resolve(&defaults(), &overrides);
            let winner = layers.iter().find(|(scope, _)| Some(*scope) == expected);
            let temperature = winner.map_or(defaults().temperature, |(_, value)| *value);
            assert_eq!(resolved.settings, Settings { temperature, ..defaults() }, "{layers:?}");
            assert_eq!(resolved.from.get("temperature").copied(), expected, "{layers:?}");
        }
        check(&[], None);
        check(&[(GenerationConfig, 0.1)], Some(GenerationConfig));
        check(&[(GenerationConfig, 0.1), (App, 0.2)], Some(App));
        check(&[(App, 0.2), (Model, 0.3)], Some(Model));
        check(&[(Model, 0.3), (Persona, 0.4)], Some(Persona));
        check(&[(Persona, 0.4), (Chat, 0.5)], Some(Chat));
        check(&[(Chat, 0.5), (Request, 0.6)], Some(Request));
        // Whatever the order in which they are given.
        check(&[(Chat, 0.5), (App, 0.2), (GenerationConfig, 0.1)], Some(Chat));
        check(&[(Request, 0.6), (Model, 0.3)], Some(Request));
        // The default itself, set by a person, is stronger than what the model's publisher says.
        check(&[(GenerationConfig, 0.1), (App, 0.7)], Some(App));
    }

    #[test]
    fn each_value_falls_through_by_itself() {
        let layers = [
            SettingOverrides::parse(GenerationConfig, Some(r#"{"temperature": 0.6, "top_k": 20}"#)),
            SettingOverrides::parse(App, Some(r#"{"max_tokens": 9, "top_p": 2}"#)),
            SettingOverrides::parse(Chat, Some(r#"{"temperature": 0.2, "seed": null}"#)),
        ];
        let ResolvedSettings { settings, from, .. } = resolve(&defaults(), &layers);
        let expected = Settings { temperature: 0.2, top_k: 20, max_tokens: 9, ..defaults() };
        assert_eq!(settings, expected);
        let from: Vec<_> = from.iter().map(|(key, scope)| (key.as_str(), *scope)).collect();
        assert_eq!(from, [("max_tokens", App), ("temperature", Chat), ("top_k", GenerationConfig)]);
    }

    #[test]
    fn a_saved_value_that_is_not_allowed_falls_through_alone() {
        fn check(scope: SettingScope, saved: &str, expected: &str) {
            let overrides = SettingOverrides::parse(scope, Some(saved));
            assert_eq!(overrides.to_json().unwrap_or_default(), expected, "{scope:?} {saved}");
        }
        check(App, r#"{"temperature": 9, "top_p": 0.5}"#, r#"{"top_p":0.5}"#);
        check(App, r#"{"temperature": "warm", "seed": null}"#, "");
        check(App, r#"{"unknown": 1, "appearance": "dark"}"#, r#"{"appearance":"dark"}"#);
        check(Chat, r#"{"appearance": "dark", "seed": 7}"#, r#"{"seed":7}"#);
        check(GenerationConfig, r#"{"max_tokens": 5, "min_p": 0.1}"#, r#"{"min_p":0.1}"#);
        check(App, "[1]", "");
        check(App, "not json", "");
    }

    #[test]
    fn settings_that_were_saved_all_at_once_load_unchanged() {
        let saved = json!({
            "default_model": "owner/model", "temperature": 0.25, "top_p": 0.5, "max_tokens": 8,
            "seed": null, "cache_budget_bytes": 3 << 20, "cache_ram_budget_bytes": 0,
            "appearance": "dark",
        });
        let layer = SettingOverrides::parse(App, Some(&saved.to_string()));
        let loaded = serde_json::to_value(resolve(&defaults(), &[layer]).settings).unwrap();
        for (key, value) in saved.as_object().unwrap() {
            assert_eq!(&loaded[key], value, "{key}");
        }
    }

    #[test]
    fn what_is_set_is_cleared_by_null() {
        let mut overrides = SettingOverrides::none(Chat);
        assert_eq!(overrides.to_json(), None);
        overrides.set("top_p", json!(0.5)).unwrap();
        overrides.set("seed", json!(7)).unwrap();
        assert_eq!(overrides.to_json().as_deref(), Some(r#"{"seed":7,"top_p":0.5}"#));
        overrides.set("top_p", Value::Null).unwrap();
        assert_eq!(overrides.to_json().as_deref(), Some(r#"{"seed":7}"#));
        assert!(
            overrides
                .set("appearance", json!("dark"))
                .unwrap_err()
                .to_string()
                .starts_with("appearance")
        );
        assert!(
            overrides.set("nothing", Value::Null).unwrap_err().to_string().starts_with("nothing")
        );
    }
}
