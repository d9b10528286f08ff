//! How the settings have an answer sampled.

use cairn_chat::SamplingParams;

use super::Settings;

/// How an answer is sampled. The settings are within range, and single precision is what models
/// are sampled with.
pub(crate) fn sampling(settings: &Settings) -> SamplingParams {
    SamplingParams {
        temperature: settings.temperature as f32,
        top_p: settings.top_p as f32,
        top_k: settings.top_k as usize,
        min_p: settings.min_p as f32,
        repetition_penalty: Some(settings.repetition_penalty as f32),
        presence_penalty: Some(settings.presence_penalty as f32),
        frequency_penalty: Some(settings.frequency_penalty as f32),
        xtc_probability: settings.xtc_probability as f32,
        xtc_threshold: settings.xtc_threshold as f32,
        seed: settings.seed,
        ..SamplingParams::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::settings::SettingKind::{Count, Number};
    use crate::settings::SettingScope::GenerationConfig;
    use crate::settings::table::{Machine, TABLE, row};

    const MACHINE: Machine = Machine { disk_bytes: 400 << 30, memory_bytes: 16 << 30 };

    #[test]
    fn sampling_accepts_exactly_what_the_table_allows() {
        /// mlx-lm has no upper bound for these, and scripts may use that; people get one.
        const ENDLESS: [&str; 2] = ["temperature", "repetition_penalty"];
        let is_sampled = |key: &str, value: &Value| {
            let mut settings = serde_json::to_value(Settings::defaults(&MACHINE)).unwrap();
            settings[key] = value.clone();
            let settings: Settings = serde_json::from_value(settings).unwrap();
            sampling(&settings).validate().is_ok()
        };
        for row in TABLE.iter().filter(|row| row.scopes.contains(&GenerationConfig)) {
            let (within, below, above) = match row.kind {
                Number { min, max, step } => (
                    [json!(min), json!(max)],
                    Some(json!(min - step)),
                    Some(json!(max + step)).filter(|_| !ENDLESS.contains(&row.key)),
                ),
                Count { min, max } => ([json!(min), json!(max)], None, None),
                _ => panic!("{row:?} is not for sampling"),
            };
            for value in within {
                assert_eq!(row.check(&value), Ok(()));
                assert!(is_sampled(row.key, &value), "{} {value}", row.key);
            }
            for value in below.into_iter().chain(above) {
                assert!(row.check(&value).is_err(), "{} {value}", row.key);
                assert!(!is_sampled(row.key, &value), "{} {value}", row.key);
            }
        }
    }

    #[test]
    fn penalties_and_xtc_are_sampled_within_their_bounds() {
        for key in ["presence_penalty", "frequency_penalty", "xtc_probability", "xtc_threshold"] {
            let Number { min, max, .. } = row(key).unwrap().kind else { panic!("{key}") };
            for bound in [min, max] {
                let mut settings = Settings::defaults(&MACHINE);
                settings.set(key, &json!(bound)).unwrap();
                let sampling = sampling(&settings);
                assert_eq!(sampling.validate(), Ok(()), "{key} {bound}");
                let sampled = [
                    sampling.presence_penalty.unwrap(),
                    sampling.frequency_penalty.unwrap(),
                    sampling.xtc_probability,
                    sampling.xtc_threshold,
                ];
                assert!(sampled.contains(&(bound as f32)), "{key} {bound} reaches the sampler");
            }
        }
    }
}
