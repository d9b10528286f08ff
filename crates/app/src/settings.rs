//! The settings: their defaults, their ranges, and their one row in the database.

use cairn_store::Store;
use serde_json::Value;

use crate::platform;
use crate::wire::{Appearance, Settings};

const KEY: &str = "settings";
const GIB: u64 = 1 << 30;
/// The largest whole number that a plain `number` in TypeScript holds exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// The settings of a new user. `disk_bytes` is the most that the prompt cache could take: the free
/// disk space and the size of its files. It may take a quarter of that, or nothing if the disk is
/// nearly full, and a sixteenth of the machine's memory.
pub(crate) fn defaults(disk_bytes: u64) -> Settings {
    Settings {
        default_model: String::new(),
        temperature: 0.7,
        top_p: 0.95,
        max_tokens: 4096,
        seed: None,
        cache_budget_bytes: if disk_bytes < 10 * GIB { 0 } else { disk_bytes / 4 },
        cache_ram_budget_bytes: (platform::memory_bytes() / 16).min(4 * GIB),
        appearance: Appearance::System,
    }
}

/// Refuses values out of range, in one sentence that names the field and what is allowed.
pub(crate) fn validate(settings: &Settings) -> Result<(), String> {
    let Settings {
        default_model,
        temperature,
        top_p,
        max_tokens,
        seed,
        cache_budget_bytes,
        cache_ram_budget_bytes,
        appearance: _,
    } = settings;
    if default_model.len() > 1024 || default_model.chars().any(char::is_control) {
        return Err("default_model must be a model's name, or empty.".to_owned());
    }
    if !(0.0..=2.0).contains(temperature) {
        return Err(format!("temperature must be from 0 to 2; {temperature} is not."));
    }
    if !(*top_p > 0.0 && *top_p <= 1.0) {
        return Err(format!("top_p must be more than 0 and at most 1; {top_p} is not."));
    }
    if !(1..=1_000_000).contains(max_tokens) {
        return Err(format!("max_tokens must be from 1 to 1,000,000; {max_tokens} is not."));
    }
    let sizes = [
        ("cache_budget_bytes", *cache_budget_bytes),
        ("cache_ram_budget_bytes", *cache_ram_budget_bytes),
    ];
    for (name, value) in [("seed", seed.unwrap_or(0))].into_iter().chain(sizes) {
        if value > MAX_SAFE_INTEGER {
            return Err(format!("{name} must be at most {MAX_SAFE_INTEGER}; {value} is not."));
        }
    }
    Ok(())
}

/// The saved settings. Fields that are not saved, because an earlier version of Cairn did not have
/// them, are taken from `defaults`; so are all fields if one is unreadable or out of range.
pub(crate) fn parse(saved: Option<&str>, defaults: &Settings) -> Settings {
    let Some(saved) = saved else { return defaults.clone() };
    read(saved, defaults).unwrap_or_else(|why| {
        tracing::warn!("the saved settings are not used: {why}");
        defaults.clone()
    })
}

fn read(saved: &str, defaults: &Settings) -> Result<Settings, String> {
    let reason = |error: serde_json::Error| error.to_string();
    let mut merged = serde_json::to_value(defaults).map_err(reason)?;
    let saved: Value = serde_json::from_str(saved).map_err(reason)?;
    let (Value::Object(merged_fields), Value::Object(saved_fields)) = (&mut merged, saved) else {
        return Err("they are not a JSON object".to_owned());
    };
    merged_fields.extend(saved_fields);
    let settings: Settings = serde_json::from_value(merged).map_err(reason)?;
    validate(&settings)?;
    Ok(settings)
}

/// Reads the settings from the database. Cairn must start in any case, so an error gives the
/// defaults.
pub(crate) async fn load(store: &Store, disk_bytes: u64) -> Settings {
    let saved = store.setting(KEY).await.unwrap_or_else(|error| {
        tracing::warn!("the saved settings cannot be read: {error}");
        None
    });
    parse(saved.as_deref(), &defaults(disk_bytes))
}

/// Writes the settings to the database.
pub(crate) async fn save(
    store: &Store,
    settings: &Settings,
) -> Result<(), cairn_store::StoreError> {
    // Numbers, texts and an enum always serialize.
    let value = serde_json::to_string(settings).unwrap_or_default();
    store.set_setting(KEY, &value).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        fn check(change: impl Fn(&mut Settings), named: Option<&str>) {
            let mut settings = defaults(0);
            change(&mut settings);
            match (validate(&settings), named) {
                (Ok(()), None) => {}
                (Err(why), Some(field)) => {
                    assert!(why.starts_with(field), "{why:?} should name {field}")
                }
                (result, _) => panic!("{settings:?} gave {result:?}, expected {named:?}"),
            }
        }
        check(|_| (), None);
        check(|s| s.temperature = 0.0, None);
        check(|s| s.temperature = 2.0, None);
        check(|s| s.temperature = 2.1, Some("temperature"));
        check(|s| s.temperature = -0.1, Some("temperature"));
        check(|s| s.temperature = f64::NAN, Some("temperature"));
        check(|s| s.top_p = 1.0, None);
        check(|s| s.top_p = 0.0, Some("top_p"));
        check(|s| s.top_p = 1.1, Some("top_p"));
        check(|s| s.top_p = f64::NAN, Some("top_p"));
        check(|s| s.max_tokens = 0, Some("max_tokens"));
        check(|s| s.max_tokens = 1_000_000, None);
        check(|s| s.max_tokens = 1_000_001, Some("max_tokens"));
        check(|s| s.seed = Some(MAX_SAFE_INTEGER), None);
        check(|s| s.seed = Some(1 << 53), Some("seed"));
        check(|s| s.cache_budget_bytes = 1 << 53, Some("cache_budget_bytes"));
        check(|s| s.default_model = "a/b".to_owned(), None);
        check(|s| s.default_model = "a\nb".to_owned(), Some("default_model"));
    }

    #[test]
    fn the_cache_may_have_a_quarter_of_the_disk_unless_it_is_nearly_full() {
        fn check(disk_gib: u64, expected_gib: u64) {
            assert_eq!(
                defaults(disk_gib * GIB).cache_budget_bytes,
                expected_gib * GIB,
                "with {disk_gib} GiB"
            );
        }
        check(0, 0);
        check(9, 0);
        check(12, 3);
        check(400, 100);
    }

    #[test]
    fn saved_settings_replace_the_defaults() {
        fn check(saved: Option<&str>, expected: impl Fn(&mut Settings)) {
            let defaults = defaults(0);
            let mut settings = defaults.clone();
            expected(&mut settings);
            assert_eq!(parse(saved, &defaults), settings, "for {saved:?}");
        }
        check(None, |_| ());
        check(Some("{}"), |_| ());
        check(Some("not json"), |_| ());
        check(Some("[1]"), |_| ());
        check(Some(r#"{"temperature": 0.25, "unknown": 1}"#), |s| s.temperature = 0.25);
        check(Some(r#"{"temperature": 9, "top_p": 0.5}"#), |_| ());
        check(Some(r#"{"seed": 7, "appearance": "dark"}"#), |s| {
            (s.seed, s.appearance) = (Some(7), Appearance::Dark)
        });
    }
}
