//! The flags of `cairn serve`, with mlx_lm.server's names as aliases.

use std::net::IpAddr;
use std::path::PathBuf;

use cairn_app::{AnswerDefaults, ForcedKvQuantization, LOG_FILTER, SavedContextOptions};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value};

use super::flags::{
    at_least_one, fraction, host, json_object, not_negative, one_of, token_limit, whole,
};
use super::{SnapKvFlags, SpeculationFlags};

#[derive(Args)]
#[command(mut_arg("snapkv", |flag| flag.conflicts_with("kv_bits")))]
pub struct Serve {
    /// Serve the app's interface besides its commands
    #[arg(long)]
    pub ui: bool,
    /// Address to listen on; one other than loopback needs a token
    #[arg(long, default_value = "127.0.0.1", value_parser = host)]
    pub host: IpAddr,
    /// Port to listen on; 0 chooses a free one
    #[arg(long, default_value_t = 11435, allow_negative_numbers = true)]
    pub port: u16,
    /// Model to load at start
    #[arg(long)]
    pub model: Option<String>,
    #[command(flatten)]
    pub answers: AnswerFlags,
    // In place of each model's own settings.
    #[command(flatten)]
    pub speculation: SpeculationFlags,
    #[command(flatten)]
    pub snapkv: SnapKvFlags,
    #[command(flatten)]
    pub kv: ServedKvFlags,
    #[command(flatten)]
    pub batches: BatchFlags,
    #[command(flatten)]
    pub saved_context: SavedContextFlags,
    /// Token that clients must send, of at least 16 characters where other machines can reach the
    /// address [default: a random one]
    #[arg(long, conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File to read the token from
    #[arg(long)]
    pub token_file: Option<PathBuf>,
    /// Name besides this machine's own that requests may come under, as mac.local or proxy:8080.
    /// May be given several times
    #[arg(long = "allowed-host", value_name = "NAME")]
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may call the API with a key, as https://chat.example, or * for any.
    /// Several are separated by commas or spaces, and the flag may be given several times
    #[arg(
        long = "allowed-origin",
        alias = "allowed-origins",
        value_name = "ORIGIN",
        value_delimiter = ','
    )]
    pub allowed_origins: Vec<String>,
    /// Least level of logs to print on stderr [default: CAIRN_LOG, else WARNING]
    #[arg(long, value_name = "LEVEL", value_parser = log_levels())]
    pub log_level: Option<LogLevel>,
}

/// The defaults of the API's answers, for requests that say nothing.
#[derive(Args)]
pub struct AnswerFlags {
    /// Sampling temperature of requests that say none [default: as set for the model]
    #[arg(long, value_parser = not_negative, allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Top-p of requests that say none: sample from the smallest set of tokens with this
    /// probability mass
    #[arg(long, value_parser = fraction, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Top-k of requests that say none: sample from this many of the most likely tokens; 0 keeps
    /// all
    #[arg(long, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Min-p of requests that say none: drop tokens less likely than this fraction of the most
    /// likely token's probability
    #[arg(long, value_parser = fraction, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Maximum number of tokens of requests that say none; -1 lets answers use the whole context
    #[arg(long, value_parser = token_limit, allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    /// More variables for the chat template, as a JSON object; a request may set others
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub chat_template_args: Option<Map<String, Value>>,
    /// Number of prompt tokens to process at a time [default: 256 on a CPU, else 2048]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    pub prefill_step_size: Option<u32>,
}

impl AnswerFlags {
    /// The defaults that they set.
    pub fn defaults(self) -> AnswerDefaults {
        AnswerDefaults {
            temperature: self.temp,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            max_tokens: self.max_tokens,
            template_variables: self.chat_template_args.unwrap_or_default(),
            prefill_step_size: self.prefill_step_size.map(|size| size as usize),
        }
    }
}

/// How keys and values of all answers are kept.
#[derive(Args)]
pub struct ServedKvFlags {
    /// Number of bits to quantize the KV cache to, in place of each model's own setting
    #[arg(long, value_parser = one_of(["2", "3", "4", "6", "8"]), allow_negative_numbers = true)]
    pub kv_bits: Option<i32>,
    /// Group size of the KV cache's quantization [default: 64 where the model's heads allow it,
    /// else 32]
    #[arg(long, value_parser = one_of(["32", "64", "128"]), allow_negative_numbers = true)]
    pub kv_group_size: Option<i32>,
    /// Accepted as by mlx_lm.server, but only 0: saved context is quantized from its first token on
    #[arg(long, value_name = "0", value_parser = only_zero, allow_negative_numbers = true)]
    pub quantized_kv_start: Option<u32>,
}

impl ServedKvFlags {
    /// The quantization that they set; none without `--kv-bits`.
    pub fn quantization(&self) -> Option<ForcedKvQuantization> {
        let group_size = self.kv_group_size;
        self.kv_bits.map(|bits| ForcedKvQuantization { bits, group_size })
    }
}

fn only_zero(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Ok(0),
        _ => Err("saved context is quantized from its first token on, so leave it out".to_owned()),
    }
}

/// How much is computed at once.
#[derive(Args)]
pub struct BatchFlags {
    /// Maximum number of answers to generate at once; more wait [default: 32]
    #[arg(
        long,
        alias = "completion-batch-size",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub decode_concurrency: Option<u32>,
    /// Maximum number of prompts to prefill at once [default: 8]
    #[arg(
        long,
        alias = "prefill-batch-size",
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub prompt_concurrency: Option<u32>,
}

/// Limits of saved context, in place of the settings.
#[derive(Args)]
pub struct SavedContextFlags {
    /// The most that saved context may take on disk, such as 20GB; the oldest beyond it is deleted
    /// [default: the setting, a quarter of the disk if none was chosen]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache_budget: Option<u64>,
    /// The most that saved context may take in memory, such as 2GB
    #[arg(long, alias = "prompt-cache-bytes", value_name = "SIZE", value_parser = size)]
    pub cache_memory_budget: Option<u64>,
    /// Save no context, and use none that was saved: only the last conversation continues, from
    /// memory. Files of saved context stay on disk
    #[arg(
        long,
        conflicts_with_all = ["cache_budget", "cache_memory_budget", "compress_cache"]
    )]
    pub no_saved_context: bool,
    /// Keep saved context smaller on disk: without loss, but written a little slower
    #[arg(long)]
    pub compress_cache: bool,
}

impl SavedContextFlags {
    /// The options that they set.
    pub fn options(&self) -> SavedContextOptions {
        SavedContextOptions {
            is_off: self.no_saved_context,
            disk_budget_bytes: self.cache_budget,
            memory_budget_bytes: self.cache_memory_budget,
        }
    }
}

/// Parses a number of bytes with or without a unit, such as `20GB`, as mlx_lm.server does.
fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => Some(1.0),
        "K" | "KB" => Some(1e3),
        "M" | "MB" => Some(1e6),
        "G" | "GB" => Some(1e9),
        "T" | "TB" => Some(1e12),
        _ => None,
    };
    // Settings keep such numbers, and their readers know numbers below 2^53 only.
    let bytes = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    let bytes = bytes.filter(|&bytes| bytes < (1_u64 << 53) as f64);
    bytes.map(|bytes| bytes as u64).ok_or_else(|| "give a size such as 20GB or 500MB".to_owned())
}

/// A level of logs, by Python's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warning,
    Error,
    Critical,
}

impl LogLevel {
    /// The filter of logs. Other crates than Cairn's log warnings at most, because they say much.
    pub fn filter(self) -> String {
        match self {
            LogLevel::Debug => LOG_FILTER.replace("=info", "=debug"),
            LogLevel::Info => LOG_FILTER.to_owned(),
            LogLevel::Warning => "warn".to_owned(),
            LogLevel::Error => "error".to_owned(),
            // No error here ends the program without a line of its own.
            LogLevel::Critical => "off".to_owned(),
        }
    }
}

fn log_levels() -> impl TypedValueParser<Value = LogLevel> {
    let levels = PossibleValuesParser::new(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]);
    levels.map(|level| match level.as_str() {
        "DEBUG" => LogLevel::Debug,
        "INFO" => LogLevel::Info,
        "ERROR" => LogLevel::Error,
        "CRITICAL" => LogLevel::Critical,
        _ => LogLevel::Warning,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::arguments::{Command, parse};

    fn serve(flags: &[&str]) -> Result<Serve, String> {
        let line = ["cairn", "serve"].iter().chain(flags).map(OsString::from);
        match parse(line).map_err(|error| error.to_string())?.command {
            Command::Serve(serve) => Ok(*serve),
            _ => unreachable!("the command is serve"),
        }
    }

    fn check_refused(flags: &[&str], expected: &str) {
        let message = serve(flags).err().unwrap();
        assert!(message.contains(expected), "{flags:?}: {message}");
    }

    #[test]
    fn maps_flags_to_options() {
        let found = serve(&["--temp", "0.5", "--max-tokens", "-1", "--prefill-step-size", "9"]);
        let defaults = AnswerDefaults {
            temperature: Some(0.5),
            max_tokens: Some(usize::MAX),
            prefill_step_size: Some(9),
            ..AnswerDefaults::default()
        };
        assert_eq!(found.unwrap().answers.defaults(), defaults);
        let found = serve(&["--chat-template-args", r#"{"enable_thinking": false}"#]).unwrap();
        assert_eq!(found.answers.defaults().template_variables["enable_thinking"], false);
        let found = serve(&["--kv-bits", "8", "--quantized-kv-start", "0"]).unwrap();
        let quantization = ForcedKvQuantization { bits: 8, group_size: None };
        assert_eq!(found.kv.quantization(), Some(quantization));
        assert_eq!(serve(&["--kv-group-size", "64"]).unwrap().kv.quantization(), None);
        let found = serve(&["--prompt-concurrency", "2", "--decode-concurrency", "3"]).unwrap();
        let BatchFlags { decode_concurrency, prompt_concurrency } = found.batches;
        assert_eq!((decode_concurrency, prompt_concurrency), (Some(3), Some(2)));
    }

    #[test]
    fn reads_sizes_with_units() {
        let budgets = |size: &str| {
            let found = serve(&["--cache-budget", size, "--prompt-cache-bytes", size]).unwrap();
            let options = found.saved_context.options();
            assert_eq!(options.disk_budget_bytes, options.memory_budget_bytes);
            options.disk_budget_bytes.unwrap()
        };
        assert_eq!(budgets("20GB"), 20_000_000_000);
        assert_eq!(budgets("1.5 g"), 1_500_000_000);
        assert_eq!(budgets("500MB"), 500_000_000);
        assert_eq!(budgets("4096"), 4096);
        assert_eq!(budgets("0"), 0);
        for size in ["", "GB", "20 parsecs", "1e9", "10000TB"] {
            check_refused(&["--cache-budget", size], "give a size such as 20GB or 500MB");
        }
    }

    #[test]
    fn refuses_what_it_cannot_serve() {
        check_refused(&["--quantized-kv-start", "5000"], "quantized from its first token on");
        check_refused(&["--kv-bits", "8", "--snapkv", "64"], "cannot be used with");
        check_refused(&["--no-saved-context", "--cache-budget", "1GB"], "cannot be used with");
        check_refused(&["--log-level", "LOUD"], "DEBUG, INFO, WARNING, ERROR, CRITICAL");
    }
}
