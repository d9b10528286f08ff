//! The table of settings. A setting is a row here, its text in the interface's catalogue
//! (`ui/src/text/en.ts`, under `settings.rows`), and the code that reads it.
//! `docs/adding-a-setting.md` leads through an example.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ts_rs::TS;

use super::row::SettingKind::{Bytes, Choice, Count, Lines, Number, OptionalCount, Switch, Text};
use super::row::SettingScope::{App, Chat, GenerationConfig, Model, Persona, Request};
use super::row::SettingSection::{Advanced, General, Generation, Hub, Models, Server, Storage};
use super::row::{MAX_SAFE_INTEGER, SettingRow, SettingScope};
use super::settings_macro::settings;
use crate::wire::setting_values::{Appearance, AtOverflow, IdleUnload, KvBits, Speed, Thinking};

const GIB: u64 = 1 << 30;

/// One value for the whole app.
const APP: &[SettingScope] = &[App];
/// A value of its own for each model.
const MODEL: &[SettingScope] = &[Model];
/// A value for the whole app, and others for some models.
const APP_AND_MODEL: &[SettingScope] = &[App, Model];
/// What can differ from answer to answer.
const ANSWER: &[SettingScope] = &[App, Model, Persona, Chat, Request];
/// What can differ from answer to answer of chats; other programs say it themselves.
const CHATS_ANSWER: &[SettingScope] = &[App, Model, Persona, Chat];
/// What can differ from chat to chat, and concerns no other program.
const CHAT: &[SettingScope] = &[App, Model, Chat];
/// What a model's publisher may recommend besides.
const SAMPLING: &[SettingScope] = &[GenerationConfig, App, Model, Persona, Chat, Request];

settings! {
    |machine|

    /// Light or dark, or what the system has.
    appearance: Appearance = Appearance::System => {
        kind: Choice { values: &["system", "light", "dark"] },
        section: General, scopes: APP, rereads: false,
    }

    /// Whether the model writes the title of a chat, in place of the first line, while nothing else is
    /// to do.
    titles_by_model: bool = false => {
        kind: Switch,
        section: General, scopes: APP, rereads: false,
    }

    /// The model loaded at start and for new conversations; empty: the last one used, or the
    /// starter.
    default_model: String = String::new() => {
        kind: Text { max_chars: 1024 },
        section: Models, scopes: APP, rereads: false,
    }

    /// 0 is greedy.
    temperature: f64 = 0.7 => {
        kind: Number { min: 0.0, max: 2.0, step: 0.05 },
        section: Generation, scopes: SAMPLING, rereads: false,
    }

    /// The longest answer, in tokens.
    max_tokens: u32 = 4096 => {
        kind: Count { min: 1, max: 1_000_000 },
        section: Generation, scopes: ANSWER, rereads: false,
    }

    /// How much the model thinks before it answers, or the nearest that its chat template allows.
    thinking: Thinking = Thinking::Automatic => {
        kind: Choice {
            values: &[
                "automatic", "off", "on", "minimal", "low", "medium", "high", "xhigh", "max",
            ],
        },
        section: Generation, scopes: ANSWER, rereads: false,
    }

    /// Whether an answer that repeats itself waits for a choice.
    holds_loops: bool = true => {
        kind: Switch,
        section: Generation, scopes: CHAT, rereads: false,
    }

    /// What becomes of a chat that has outgrown the model's context.
    at_overflow: AtOverflow = AtOverflow::Stop => {
        kind: Choice { values: &["stop", "forget", "summarize"] },
        section: Generation, scopes: CHAT, rereads: false,
    }

    /// 0 and 1 turn it off.
    top_p: f64 = 0.95 => {
        kind: Number { min: 0.0, max: 1.0, step: 0.05 },
        section: Advanced, scopes: SAMPLING, rereads: false,
    }

    /// How many of the likeliest tokens are kept; 0 keeps all.
    top_k: u32 = 0 => {
        // A model refuses more than its vocabulary has, and the smallest have thousands.
        kind: Count { min: 0, max: 1000 },
        section: Advanced, scopes: SAMPLING, rereads: false,
    }

    /// Keeps tokens at least this many times as likely as the likeliest; 0 turns it off.
    min_p: f64 = 0.0 => {
        kind: Number { min: 0.0, max: 1.0, step: 0.05 },
        section: Advanced, scopes: SAMPLING, rereads: false,
    }

    /// Makes the tokens of the last words less likely; 0 and 1 turn it off.
    repetition_penalty: f64 = 1.0 => {
        kind: Number { min: 0.0, max: 2.0, step: 0.05 },
        section: Advanced, scopes: SAMPLING, rereads: false,
    }

    /// Taken off the logit of each token of the last words, once; 0 turns it off.
    presence_penalty: f64 = 0.0 => {
        kind: Number { min: -2.0, max: 2.0, step: 0.1 },
        section: Advanced, scopes: ANSWER, rereads: false,
    }

    /// Taken off the logit of each token of the last words, for each time it occurs; 0 turns it off.
    frequency_penalty: f64 = 0.0 => {
        kind: Number { min: -2.0, max: 2.0, step: 0.1 },
        section: Advanced, scopes: ANSWER, rereads: false,
    }

    /// How often XTC removes all likely tokens but the least likely of them; 0 turns it off.
    xtc_probability: f64 = 0.0 => {
        kind: Number { min: 0.0, max: 1.0, step: 0.05 },
        section: Advanced, scopes: ANSWER, rereads: false,
    }

    /// The probability above which XTC calls a token likely.
    xtc_threshold: f64 = 0.1 => {
        kind: Number { min: 0.0, max: 0.5, step: 0.05 },
        section: Advanced, scopes: ANSWER, rereads: false,
    }

    /// Texts that end an answer, which stops before them: one a line (`stop_strings`).
    stop: String = String::new() => {
        kind: Lines { max_chars: 1000 },
        section: Advanced, scopes: CHATS_ANSWER, rereads: false,
    }

    /// A fixed seed makes sampled answers repeat; none: a new one every time.
    #[ts(type = "number | null")]
    seed: Option<u64> = None => {
        kind: OptionalCount { min: 0, max: MAX_SAFE_INTEGER },
        section: Advanced, scopes: ANSWER, rereads: false,
    }

    /// Another name for a model, which commands accept too; empty: none.
    alias: String = String::new() => {
        kind: Text { max_chars: 64 },
        section: Models, scopes: MODEL, rereads: false,
    }

    /// A pinned model stays in memory until a person unloads it.
    is_pinned: bool = false => {
        kind: Switch,
        section: Models, scopes: MODEL, rereads: false,
    }

    /// After what time without use a model leaves memory.
    idle_unload: IdleUnload = IdleUnload::Never => {
        kind: Choice {
            values: &["never", "five_minutes", "fifteen_minutes", "one_hour", "four_hours"],
        },
        section: Models, scopes: APP_AND_MODEL, rereads: false,
    }

    /// The system prompt of new conversations with a model.
    system_prompt: String = String::new() => {
        kind: Lines { max_chars: 100_000 },
        section: Models, scopes: MODEL, rereads: false,
    }

    /// The most tokens of a conversation with a model; none: as many as it can read.
    #[ts(type = "number | null")]
    context_length: Option<u32> = None => {
        kind: OptionalCount { min: 256, max: 1 << 26 },
        section: Models, scopes: MODEL, rereads: false,
    }

    /// How keys and values of a model's conversations are stored.
    kv_bits: KvBits = KvBits::Plain => {
        kind: Choice { values: &["plain", "eight_bits", "four_bits"] },
        section: Models, scopes: MODEL, rereads: true,
    }

    /// How many tokens of a longer prompt a model keeps once it has read all; none: all.
    #[ts(type = "number | null")]
    keep_tokens: Option<u32> = None => {
        kind: OptionalCount { min: 256, max: 1 << 20 },
        section: Models, scopes: MODEL, rereads: true,
    }

    /// Whether a model's recurrent state is held in bf16, where it has one that can be.
    bf16_state: bool = false => {
        kind: Switch,
        section: Models, scopes: MODEL, rereads: true,
    }

    /// Whether answers are sped up by what followed the same words before, or by the model's head for
    /// further tokens; a draft model is used instead, if there is one.
    speed: Speed = Speed::Automatic => {
        kind: Choice { values: &["automatic", "plain"] },
        section: Models, scopes: MODEL, rereads: false,
    }

    /// The name of a smaller model that proposes tokens, which the model checks; empty: none.
    draft_model: String = String::new() => {
        kind: Text { max_chars: 1024 },
        section: Models, scopes: MODEL, rereads: false,
    }

    /// Whether a Mac never swaps loaded models out (wired memory).
    wires_memory: bool = false => {
        kind: Switch,
        section: Models, scopes: APP, rereads: false,
    }

    /// The limit for saved context on disk.
    #[ts(type = "number")]
    cache_budget_bytes: u64 = quarter_of_disk(machine.disk_bytes) => {
        kind: Bytes { max: MAX_SAFE_INTEGER },
        section: Storage, scopes: APP, rereads: false,
    }

    /// The limit for saved context in memory.
    #[ts(type = "number")]
    cache_ram_budget_bytes: u64 = (machine.memory_bytes / 16).min(4 * GIB) => {
        kind: Bytes { max: MAX_SAFE_INTEGER },
        section: Storage, scopes: APP, rereads: false,
    }

    /// Whether saved context is coded, without loss, so that it takes less of the disk.
    compresses_cache: bool = false => {
        kind: Switch,
        section: Storage, scopes: APP, rereads: false,
    }

    /// The address of the hub that models come from; empty: the environment's, or Hugging Face.
    hub_endpoint: String = String::new() => {
        kind: Text { max_chars: 1024 },
        section: Hub, scopes: APP, rereads: false,
    }

    /// The folder that models are downloaded to; empty: the environment's, or that of Hugging Face's
    /// tools.
    download_folder: String = String::new() => {
        kind: Text { max_chars: 4096 },
        section: Hub, scopes: APP, rereads: false,
    }

    /// The proxy through which the hub is asked; empty: the environment's or the system's, if there
    /// is one.
    hub_proxy: String = String::new() => {
        kind: Text { max_chars: 1024 },
        section: Hub, scopes: APP, rereads: false,
    }

    /// Whether the app serves the API to other programs on this machine.
    api_is_on: bool = false => {
        kind: Switch,
        section: Server, scopes: APP, rereads: false,
    }

    /// The port on which it does; those below are for the system.
    api_port: u32 = 11435 => {
        kind: Count { min: 1024, max: 65_535 },
        section: Server, scopes: APP, rereads: false,
    }
}

/// The texts that end an answer: the lines of the setting `stop` that are not empty, in which `\n` is a
/// line break, `\t` a tab, and `\\` a backslash.
pub(crate) fn stop_strings(setting: &str) -> Vec<String> {
    let unescaped = |line: &str| {
        let mut text = String::with_capacity(line.len());
        let mut rest = line.chars();
        while let Some(next) = rest.next() {
            match (next, rest.clone().next()) {
                ('\\', Some(escaped @ ('n' | 't' | '\\'))) => {
                    rest.next();
                    text.push(match escaped {
                        'n' => '\n',
                        't' => '\t',
                        other => other,
                    });
                }
                _ => text.push(next),
            }
        }
        text
    };
    setting.lines().filter(|line| !line.is_empty()).map(unescaped).collect()
}

/// What defaults may depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// What the prompt cache could occupy at most: free disk space, and what it occupies already.
    pub(crate) disk_bytes: u64,
    pub(crate) memory_bytes: u64,
}

/// What the prompt cache leaves free of a nearly full disk, for chats and for everything else.
const LEFT_FREE_BYTES: u64 = 2 * GIB;

/// A quarter of what there is, and less where the disk is nearly full. It is computed at each start, so it
/// must not fall at once: what exceeds it is deleted then.
fn quarter_of_disk(disk_bytes: u64) -> u64 {
    (disk_bytes / 4).min(disk_bytes.saturating_sub(LEFT_FREE_BYTES))
}

/// The row of a setting.
pub(crate) fn row(key: &str) -> Result<&'static SettingRow, String> {
    TABLE.iter().find(|row| row.key == key).ok_or_else(|| unknown(key))
}

fn unknown(key: &str) -> String {
    format!("{key} is not a setting.")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use serde_json::json;

    const MACHINE: Machine = Machine { disk_bytes: 400 * GIB, memory_bytes: 16 * GIB };

    #[test]
    fn every_default_passes_the_check_of_its_row() {
        let defaults = serde_json::to_value(Settings::defaults(&MACHINE)).unwrap();
        assert_eq!(defaults.as_object().unwrap().len(), TABLE.len());
        for row in TABLE {
            assert_eq!(row.check(&defaults[row.key]), Ok(()), "{row:?}");
        }
    }

    #[test]
    fn every_value_that_a_row_allows_can_be_set() {
        let bounds = |row: &SettingRow| match row.kind {
            Text { max_chars } | Lines { max_chars } => {
                vec![json!(""), json!("ä".repeat(max_chars))]
            }
            Switch => vec![json!(false), json!(true)],
            Choice { values } => values.iter().map(|value| json!(value)).collect(),
            Number { min, max, step: _ } => vec![json!(min), json!(max)],
            Count { min, max } => vec![json!(min), json!(max)],
            OptionalCount { min, max } => vec![Value::Null, json!(min), json!(max)],
            Bytes { max } => vec![json!(0), json!(max)],
        };
        for row in TABLE {
            for value in bounds(row) {
                let mut settings = Settings::defaults(&MACHINE);
                settings.set(row.key, &value).unwrap();
                assert_eq!(serde_json::to_value(&settings).unwrap()[row.key], value, "{row:?}");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        fn check(key: &str, value: Value) {
            let mut settings = Settings::defaults(&MACHINE);
            let why = settings.set(key, &value).unwrap_err();
            assert!(why.starts_with(key), "{why:?} should name {key}");
            assert_eq!(settings, Settings::defaults(&MACHINE), "after {key} {value}");
        }
        check("temperature", json!(2.05));
        check("temperature", json!(-0.05));
        check("top_p", json!(1.05));
        check("max_tokens", json!(0));
        check("max_tokens", json!(1_000_001));
        check("seed", json!(1_u64 << 53));
        check("cache_budget_bytes", json!(1_u64 << 53));
        check("default_model", json!("a\nb"));
        check("appearance", json!("sepia"));
        check("no_setting", json!(1));
    }

    #[test]
    fn a_line_is_a_text_that_ends_an_answer() {
        fn check(setting: &str, expected: &[&str]) {
            assert_eq!(stop_strings(setting), expected, "{setting:?}");
        }
        check("", &[]);
        check("\n\n", &[]);
        check("END", &["END"]);
        check("You:\n\n  two words \r\n", &["You:", "  two words "]);
        check(r"\n\nYou:", &["\n\nYou:"]);
        check(r"a\tb\\n\x\", &["a\tb\\n\\x\\"]);
    }

    #[test]
    fn the_cache_may_have_a_quarter_of_the_disk_unless_it_is_nearly_full() {
        fn budget(disk_bytes: u64) -> u64 {
            Settings::defaults(&Machine { disk_bytes, ..MACHINE }).cache_budget_bytes
        }
        assert_eq!(budget(0), 0);
        assert_eq!(budget(2 * GIB), 0);
        assert_eq!(budget(8 * GIB), 2 * GIB);
        assert_eq!(budget(400 * GIB), 100 * GIB);

        // A disk that has a little less at the next start costs no more than that of what was saved.
        let step = GIB / 8;
        for disk_bytes in (step..20 * GIB).step_by(step as usize) {
            let lost = budget(disk_bytes) - budget(disk_bytes - step);
            assert!(lost <= step, "with {disk_bytes} bytes");
        }
    }
}
