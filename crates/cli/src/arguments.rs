//! The command line: what can be asked, with mlx-lm's names and defaults.

use std::net::IpAddr;
use std::path::PathBuf;

use cairn_chat::SamplingParams;
use cairn_engine::{KvCacheOptions, KvQuantization};
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "cairn",
    version,
    about = "Local language models on MLX",
    propagate_version = true,
    args_override_self = true
)]
#[command(
    after_help = "Conversations, stored prompt caches and imported models lie in the folder that CAIRN_HOME names."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Continue a prompt
    Generate(Box<Generate>),
    /// Answer many prompts of a file at once
    Batch(Batch),
    /// Chat in the terminal; what is said is not kept
    Chat(Chat),
    /// Read a prompt once and keep its keys and values in a file
    CachePrompt(CachePrompt),
    /// List, look into, export, import and delete the stored prompt caches
    #[command(subcommand)]
    Cache(Cache),
    /// Log-probability of each token of a text, and of the next
    Score(Score),
    /// List, import and look into models
    #[command(subcommand)]
    Models(Models),
    /// Measure prompt reading and generation, as mlx_lm.benchmark does
    Bench(Bench),
    /// Serve the app on this machine, to a browser or a program
    Serve(Serve),
}

/// A model folder or a name, and how its weights are computed with.
#[derive(Args)]
pub struct ModelChoice {
    /// A model folder, or the name of a model on this machine (see `cairn models list`)
    #[arg(short, long)]
    pub model: String,
    /// On a CPU device compute on quantized weights instead of dequantizing them at load
    #[arg(long)]
    pub keep_quantized: bool,
}

/// How tokens are chosen.
#[derive(Args)]
pub struct Sampling {
    /// Sampling temperature; 0 takes the most likely token
    #[arg(long, default_value_t = 0.0, value_parser = not_negative, allow_negative_numbers = true)]
    pub temp: f32,
    /// Keep the smallest set of tokens with this probability mass; 1 keeps all
    #[arg(long, default_value_t = 1.0, value_parser = share, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Drop tokens less likely than this share of the likeliest one's probability; 0 keeps all
    #[arg(long, default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Tokens that --min-p keeps in any case
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub min_tokens_to_keep: u32,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub top_k: usize,
    /// How often to drop the likeliest tokens but the last above --xtc-threshold
    #[arg(long, default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// The probability from which XTC drops tokens
    #[arg(long, default_value_t = 0.1, value_parser = to_half, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Make tokens less likely that came before; 1 changes nothing
    #[arg(long, value_parser = not_negative, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// How many of the last tokens the penalties look at
    #[arg(long, default_value_t = 20, allow_negative_numbers = true)]
    pub repetition_context_size: usize,
    /// Subtract this from tokens that came before
    #[arg(long, value_parser = finite, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Subtract this from tokens for each time that they came before
    #[arg(long, value_parser = finite, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Add to the logits of single tokens
    #[arg(long, value_name = "ID:V,...", value_delimiter = ',', value_parser = bias, allow_negative_numbers = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Make sampling repeatable
    #[arg(long, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

impl Sampling {
    pub fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temp,
            top_p: self.top_p,
            min_p: self.min_p,
            min_tokens_to_keep: self.min_tokens_to_keep as usize,
            top_k: self.top_k,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repetition_penalty: self.repetition_penalty,
            repetition_context_size: self.repetition_context_size,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
            ..SamplingParams::default()
        }
    }
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |value| value.is_finite() && value >= 0.0, "a number from 0 on")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

fn to_half(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=0.5).contains(&value), "a number from 0 to 0.5")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, f32::is_finite, "a number")
}

fn number(text: &str, is_allowed: impl Fn(f32) -> bool, allowed: &str) -> Result<f32, String> {
    text.parse().ok().filter(|&value| is_allowed(value)).ok_or_else(|| format!("give {allowed}"))
}

/// "5:-1.5" as token 5 and -1.5.
fn bias(text: &str) -> Result<(u32, f32), String> {
    // Minus infinity forbids a token.
    let number = |text: &str| text.trim().parse().ok().filter(|&value: &f32| value < f32::INFINITY);
    text.split_once(':')
        .and_then(|(id, value)| Some((id.trim().parse().ok()?, number(value)?)))
        .ok_or_else(|| "give a token id and a number, such as 5:-1.5".to_owned())
}

/// What ends an answer beside its length.
#[derive(Args)]
pub struct Stops {
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// A token of the vocabulary that ends an answer too; may be given several times
    #[arg(long, value_name = "TOKEN", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub extra_eos_token: Vec<String>,
}

/// How keys and values are kept.
#[derive(Args)]
pub struct KvFlags {
    /// Keep only so many tokens' keys and values: the first four and the latest
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..), allow_negative_numbers = true)]
    pub max_kv_size: Option<u32>,
    /// Quantize keys and values to this many bits
    #[arg(long, value_parser = one_of(["2", "3", "4", "6", "8"]), allow_negative_numbers = true)]
    pub kv_bits: Option<i32>,
    /// Numbers that share a scale
    #[arg(long, default_value_t = 64, value_parser = one_of(["32", "64", "128"]), allow_negative_numbers = true)]
    pub kv_group_size: i32,
    /// Quantize from this many tokens on
    #[arg(long, default_value_t = 5000, allow_negative_numbers = true)]
    pub quantized_kv_start: usize,
}

/// A number out of a few, which the help lists.
fn one_of<const N: usize>(allowed: [&'static str; N]) -> impl TypedValueParser<Value = i32> {
    PossibleValuesParser::new(allowed).try_map(|text| text.parse::<i32>())
}

impl KvFlags {
    pub fn options(&self) -> KvCacheOptions {
        let quantization = self.kv_bits.map(|bits| KvQuantization {
            bits,
            group_size: self.kv_group_size,
            start: self.quantized_kv_start,
        });
        KvCacheOptions { max_size: self.max_kv_size.map(|size| size as usize), quantization }
    }
}

#[derive(Args)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelChoice,
    /// The prompt; `-` reads it from stdin
    #[arg(
        short,
        long,
        required_unless_present = "prompt_tokens",
        conflicts_with = "prompt_tokens",
        allow_hyphen_values = true
    )]
    pub prompt: Option<String>,
    /// Token ids to continue as they stand, separated by commas
    #[arg(long, value_delimiter = ',', num_args = 1)]
    pub prompt_tokens: Option<Vec<u32>>,
    /// Instructions that stand before the prompt
    #[arg(long, conflicts_with_all = ["prompt_tokens", "ignore_chat_template", "prompt_cache_file"], allow_hyphen_values = true)]
    pub system_prompt: Option<String>,
    /// Encode the prompt as plain text
    #[arg(long)]
    pub ignore_chat_template: bool,
    /// The longest answer, in tokens
    #[arg(long, default_value_t = 256, allow_negative_numbers = true)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub sampling: Sampling,
    #[command(flatten)]
    pub stops: Stops,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub prefill_step_size: u32,
    #[command(flatten)]
    pub kv: KvFlags,
    /// Continue what this prompt-cache file holds; it is not changed
    #[arg(long, value_name = "FILE", conflicts_with = "max_kv_size")]
    pub prompt_cache_file: Option<PathBuf>,
    /// An image for the prompt; may be given several times
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// A smaller model of the same vocabulary that proposes tokens
    #[arg(long, value_name = "MODEL")]
    pub draft_model: Option<String>,
    /// Tokens proposed at once
    #[arg(long, default_value_t = 3, requires = "draft_model", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub num_draft_tokens: u32,
    /// With --json: log-probabilities, with this many alternatives for each token
    #[arg(long, requires = "json", allow_negative_numbers = true)]
    pub logprobs: Option<usize>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Batch {
    #[command(flatten)]
    pub model: ModelChoice,
    /// A file of one request a line; `-` reads stdin: {"prompt_tokens": [...] | "messages": [...] |
    /// "prompt": "...", "max_tokens", "temp", "top_p", ...}
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: PathBuf,
    /// Answers written at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub completion_batch_size: u32,
    /// Prompts read at once
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub prefill_batch_size: u32,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub prefill_step_size: u32,
    /// Read waiting prompts before the answers under way go on
    #[arg(long)]
    pub prefer_prefill_when_pending: bool,
    /// Print one JSON object a line, in the order of the input, instead of the texts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CachePrompt {
    #[command(flatten)]
    pub model: ModelChoice,
    /// The prompt; `-` reads it from stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub prompt: String,
    /// Where to write the keys and values
    #[arg(long, value_name = "OUT.safetensors")]
    pub prompt_cache_file: PathBuf,
    /// Encode the prompt as plain text
    #[arg(long)]
    pub ignore_chat_template: bool,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub prefill_step_size: u32,
    #[command(flatten)]
    pub kv: KvFlags,
}

#[derive(Subcommand)]
pub enum Cache {
    /// What is kept under names and of conversations
    List {
        /// Print an array of {"kind", "name" | "title", "id", "tokens", "bytes", "model",
        /// "last_used_at_ms", ...}
        #[arg(long)]
        json: bool,
    },
    /// The chunks of one of them
    Show {
        /// A name, an id, or the key of a chunk
        key: String,
    },
    /// Write one of them to a file that mlx-lm reads too
    Export {
        /// A name, or the id of a conversation
        source: String,
        /// Where to write it
        #[arg(value_name = "OUT.safetensors")]
        file: PathBuf,
    },
    /// Keep a prompt-cache file under a name, after a look at what it holds
    Import(ImportCache),
    /// Remove some of them, files included
    Delete {
        /// Names, ids, or keys of chunks
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

#[derive(Args)]
pub struct ImportCache {
    /// A file of `cairn cache export`, `cairn cache-prompt` or mlx_lm.cache_prompt
    pub file: PathBuf,
    /// The model that it was made with; without it the one that the file names
    #[arg(short, long)]
    pub model: Option<String>,
    /// The name to keep it under; without it that of the file
    #[arg(long)]
    pub name: Option<String>,
    /// Import without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Compute sample positions again first, and compare
    #[arg(long)]
    pub check: bool,
}

#[derive(Args)]
pub struct Chat {
    #[command(flatten)]
    pub model: ModelChoice,
    /// Instructions that stand before the conversation
    #[arg(long, allow_hyphen_values = true)]
    pub system_prompt: Option<String>,
    /// The longest answer, in tokens
    #[arg(long, default_value_t = 256, allow_negative_numbers = true)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub sampling: Sampling,
}

#[derive(Args)]
pub struct Score {
    #[command(flatten)]
    pub model: ModelChoice,
    /// Token ids, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        num_args = 1,
        required_unless_present = "prompt",
        conflicts_with = "prompt"
    )]
    pub tokens: Option<Vec<u32>>,
    /// Text to encode and score; `-` reads it from stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// How many of the likeliest next tokens to print
    #[arg(long, default_value_t = 10, allow_negative_numbers = true)]
    pub top: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Models {
    /// The models on this machine
    List {
        /// Print an array of {"name", "path", "model_type", "bytes"}
        #[arg(long)]
        json: bool,
    },
    /// Bring a GGUF file or a model folder into Cairn's models
    Import {
        /// A .gguf file, or a folder in MLX or Hugging Face layout
        file: PathBuf,
        /// The model's name; without it the file's own
        #[arg(long)]
        name: Option<String>,
    },
    /// What is known about a model
    Info {
        /// A model folder or name
        model: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub model: ModelChoice,
    /// Length of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=10_000_000), allow_negative_numbers = true)]
    pub prompt_tokens: u32,
    /// Tokens to generate
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub generation_tokens: u32,
    /// How many times, after one to warm up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub num_trials: u32,
    /// Answers generated at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true)]
    pub batch_size: u32,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub prefill_step_size: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Run one trial for each line read from stdin, so that another program can be measured in
    /// turns
    #[arg(long, hide = true)]
    pub interactive: bool,
}

#[derive(Args)]
pub struct Serve {
    /// Serve the app's interface too, not only its commands
    #[arg(long)]
    pub ui: bool,
    /// Address to listen on; another than loopback needs a token
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 11435, allow_negative_numbers = true)]
    pub port: u16,
    /// The model to load at start
    #[arg(long)]
    pub model: Option<String>,
    /// The token that callers must give; without it a random one is made
    #[arg(long, conflicts_with = "token_file")]
    pub token: Option<String>,
    /// A file that holds the token
    #[arg(long)]
    pub token_file: Option<PathBuf>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Command, String> {
        let parsed = Arguments::try_parse_from(["cairn"].iter().chain(line));
        parsed.map(|arguments| arguments.command).map_err(|error| error.to_string())
    }

    fn generate(flags: &[&str]) -> Result<Generate, String> {
        match parse(&[&["generate", "--model", "m"], flags].concat())? {
            Command::Generate(generate) => Ok(*generate),
            _ => unreachable!("the command is generate"),
        }
    }

    fn check_refused(flags: &[&str], expected: &[&str]) {
        let message = generate(&[&["--prompt", "x"], flags].concat()).err().unwrap();
        assert!(expected.iter().all(|expected| message.contains(expected)), "{flags:?}: {message}");
    }

    #[test]
    fn values_out_of_range_name_their_flag() {
        check_refused(&["--temp", "-1"], &["--temp", "a number from 0 on"]);
        check_refused(&["--temp", "nan"], &["--temp"]);
        check_refused(&["--top-p", "1.5"], &["--top-p", "from 0 to 1"]);
        check_refused(&["--xtc-threshold", "0.6"], &["--xtc-threshold", "from 0 to 0.5"]);
        check_refused(&["--presence-penalty", "inf"], &["--presence-penalty"]);
        check_refused(&["--min-tokens-to-keep", "0"], &["--min-tokens-to-keep"]);
        check_refused(&["--top-k", "-1"], &["--top-k"]);
        check_refused(&["--max-tokens", "-1"], &["--max-tokens"]);
        check_refused(&["--kv-bits", "5"], &["--kv-bits", "2, 3, 4, 6, 8"]);
        check_refused(&["--kv-group-size", "16"], &["--kv-group-size", "32, 64, 128"]);
        check_refused(&["--max-kv-size", "-1"], &["--max-kv-size", "-1"]);
        check_refused(&["--prefill-step-size", "-1"], &["--prefill-step-size"]);
        check_refused(&["--stop", ""], &["--stop"]);
        check_refused(&["--logit-bias", "five:1"], &["--logit-bias", "5:-1.5"]);
        check_refused(
            &["--prompt-cache-file", "f", "--system-prompt", "s"],
            &["--system-prompt", "--prompt-cache-file"],
        );
    }

    #[test]
    fn texts_may_begin_with_a_hyphen_and_the_last_of_a_flag_counts() {
        let found = generate(&[
            "--prompt",
            "- an item",
            "--stop",
            "--",
            "--stop",
            "-x",
            "--extra-eos-token",
            "--",
            "--temp",
            "1",
            "--temp",
            "0.5",
        ])
        .unwrap();
        assert_eq!(
            (found.prompt.as_deref(), found.stops.stop),
            (Some("- an item"), vec!["--".to_owned(), "-x".to_owned()])
        );
        assert_eq!(found.sampling.temp, 0.5);
        assert_eq!(generate(&["-p", "x"]).unwrap().prompt.as_deref(), Some("x"));
    }

    #[test]
    fn biases_are_pairs() {
        let found = generate(&["-p", "x", "--logit-bias", "5:-1.5,7:2,8:-inf"]).unwrap();
        assert_eq!(found.sampling.logit_bias, [(5, -1.5), (7, 2.0), (8, f32::NEG_INFINITY)]);
    }
}
