//! The settings, as one table: `table.rs` has a row for each, from which the struct, the checks,
//! the TypeScript twin and the window's rows follow.

mod row;
mod settings_macro;
mod table;

use cairn_store::Store;
use serde_json::Value;

use crate::platform;
pub use row::{SettingKind, SettingRow, SettingScope, SettingSection};
use table::Machine;
pub use table::{Settings, TABLE};

const KEY: &str = "settings";

/// Refuses settings with a value that is not allowed, in one sentence.
pub(crate) fn validate(settings: &Settings) -> Result<(), String> {
    let values = serde_json::to_value(settings).map_err(|error| error.to_string())?;
    TABLE.iter().try_for_each(|row| row.check(&values[row.key]))
}

/// The saved values over `defaults`. A value that is missing, out of range or unreadable leaves its
/// default, and no other.
pub(crate) fn parse(saved: &str, defaults: &Settings) -> Settings {
    let mut settings = defaults.clone();
    match serde_json::from_str(saved) {
        Ok(Value::Object(values)) => {
            for (key, value) in &values {
                if let Err(why) = settings.set(key, value) {
                    tracing::warn!("a saved setting is not used: {why}");
                }
            }
        }
        Ok(_) => tracing::warn!("the saved settings are not used: they are not a JSON object"),
        Err(error) => tracing::warn!("the saved settings are not used: {error}"),
    }
    settings
}

/// Reads the settings from the database. Where that fails the defaults hold, because the program
/// must start. `disk_bytes` is what [`Machine`] has under this name.
pub(crate) async fn load(store: &Store, disk_bytes: u64) -> Settings {
    let machine = Machine { disk_bytes, memory_bytes: platform::memory_bytes() };
    let defaults = Settings::defaults(&machine);
    match store.setting(KEY).await {
        Ok(Some(saved)) => parse(&saved, &defaults),
        Ok(None) => defaults,
        Err(error) => {
            tracing::warn!("the saved settings cannot be read: {error}");
            defaults
        }
    }
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
    use crate::wire::Appearance;

    const MACHINE: Machine = Machine { disk_bytes: 0, memory_bytes: 16 << 30 };

    #[test]
    fn each_saved_value_stands_over_its_default_unless_it_is_not_allowed() {
        fn check(saved: &str, expected: impl Fn(&mut Settings)) {
            let defaults = Settings::defaults(&MACHINE);
            let mut settings = defaults.clone();
            expected(&mut settings);
            assert_eq!(parse(saved, &defaults), settings, "for {saved:?}");
        }
        check("{}", |_| ());
        check("not json", |_| ());
        check("[1]", |_| ());
        check(r#"{"temperature": 0.25, "unknown": 1}"#, |s| s.temperature = 0.25);
        check(r#"{"temperature": 9, "top_p": 0.5}"#, |s| s.top_p = 0.5);
        check(r#"{"temperature": "warm", "top_p": 0.5}"#, |s| s.top_p = 0.5);
        check(r#"{"seed": 7, "appearance": "dark"}"#, |s| {
            (s.seed, s.appearance) = (Some(7), Appearance::Dark)
        });
    }
}
