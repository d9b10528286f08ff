//! The commands and their flags, with mlx-lm's names and defaults where it has them.

mod flags;
mod mlx_lm;
mod serve;
mod speculation;

use std::path::PathBuf;

use cairn_app::wire::ChatFileFormat;
use cairn_chat::Thinking;
use cairn_engine::PromptFileLayout;
use cairn_formats::gguf::RoundTo;
use cairn_hub::{RepoId, Revision};
use cairn_lm::{FloatType, MixedRecipe, QuantizationMode};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};

use serde_json::{Map, Value};

pub use flags::{
    CacheFlags, DEFAULT_MAX_TOKENS, KvFlags, ModelFlags, PrefillFlags, SamplingFlags, SnapKvFlags,
    StopFlags, token_limit,
};
use flags::{
    at_least_one, boolean, chat_formats, float_types, forms, json_object, layouts, not_blank,
    quantization_modes, recipes, sample_limit, thinking, token_id, whole,
};
pub use mlx_lm::parse;
pub use serve::Serve;
pub use speculation::SpeculationFlags;

/// The data set that mlx_lm.perplexity reads by default. It is on the hub, where Cairn finds models
/// only.
const DEFAULT_DATA_SET: &str = "allenai/tulu-3-sft-mixture";

#[derive(Parser)]
#[command(
    name = "cairn",
    version,
    about = "Local language models on MLX",
    propagate_version = true,
    args_override_self = true
)]
#[command(
    after_help = "CAIRN_HOME names the folder of conversations, prompt caches and imported models."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Generate text from a prompt
    Generate(Box<Generate>),
    /// Generate text for many prompts of a file at once
    Batch(Batch),
    /// Chat in the terminal; the conversation is not saved
    Chat(Chat),
    /// Compute a prompt's KV cache and save it to a file
    CachePrompt(CachePrompt),
    /// List, show, export, import, delete and repair the stored prompt caches
    #[command(subcommand)]
    Cache(Cache),
    /// List, export and import the chats of the app
    #[command(subcommand)]
    Chats(Chats),
    /// Compute the log-probability of each token of a text, and of the next token
    Score(Score),
    /// Answer each line of a file with one token or one of several labels
    Classify(Classify),
    /// List, search, download, import, delete and inspect models
    #[command(subcommand)]
    Models(Models),
    /// Convert a model to MLX's layout, quantized or not, as mlx_lm.convert does
    Convert(Convert),
    /// Measure the perplexity of a model on a data set, as mlx_lm.perplexity does
    Perplexity(Perplexity),
    /// Measure the speed of prefill and generation, as mlx_lm.benchmark does
    #[command(alias = "benchmark")]
    Bench(Bench),
    /// Serve the app over HTTP on this machine
    #[command(alias = "server")]
    Serve(Box<Serve>),
}

#[derive(Args)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelFlags,
    /// The prompt, in which \n and \t are replaced; `-` reads it verbatim from stdin
    #[arg(
        short,
        long,
        required_unless_present = "prompt_tokens",
        conflicts_with = "prompt_tokens",
        allow_hyphen_values = true
    )]
    pub prompt: Option<String>,
    /// Token ids to use verbatim as the prompt, separated by commas
    #[arg(long, value_delimiter = ',', num_args = 1, value_parser = token_id)]
    pub prompt_tokens: Option<Vec<u32>>,
    /// System prompt for the chat template
    #[arg(
        long,
        conflicts_with_all = ["prompt_tokens", "ignore_chat_template", "prompt_cache_file"],
        allow_hyphen_values = true
    )]
    pub system_prompt: Option<String>,
    /// Use the prompt without the model's chat template
    #[arg(long)]
    pub ignore_chat_template: bool,
    /// Beginning of the response, which the model continues
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with_all = ["prompt_tokens", "ignore_chat_template", "prompt_cache_file"],
        allow_hyphen_values = true
    )]
    pub prefill_response: Option<String>,
    /// More variables for the chat template, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub chat_template_config: Option<Map<String, Value>>,
    /// How much the model thinks before it answers: off, on, minimal, low, medium, high, xhigh or max,
    /// as its chat template allows [default: what the template does by itself]
    #[arg(
        long,
        value_name = "LEVEL",
        value_parser = thinking,
        conflicts_with_all = ["prompt_tokens", "ignore_chat_template"]
    )]
    pub thinking: Option<Thinking>,
    /// Accepted as by mlx-lm, where it has no effect either: there are no default chat templates
    /// any more, and a model without one gets the plain prompt
    #[arg(long)]
    pub use_default_chat_template: bool,
    /// Maximum number of tokens to generate; -1 generates until the context is full
    #[arg(
        short,
        long,
        default_value_t = DEFAULT_MAX_TOKENS,
        value_parser = token_limit,
        allow_negative_numbers = true
    )]
    pub max_tokens: usize,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub stops: StopFlags,
    #[command(flatten)]
    pub prefill: PrefillFlags,
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Continue from the KV cache in this prompt-cache file; the file is not changed
    #[arg(long, value_name = "FILE", conflicts_with = "max_kv_size")]
    pub prompt_cache_file: Option<PathBuf>,
    /// An image to add to the prompt; takes several files, and may be given several times
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    #[command(flatten)]
    pub speculation: SpeculationFlags,
    /// With --json: print log-probabilities, with this many alternatives for each token
    #[arg(
        long,
        requires = "json",
        value_parser = whole::<usize>,
        allow_negative_numbers = true
    )]
    pub logprobs: Option<usize>,
    /// Print speed and memory to stderr [default: only on a terminal and without --json]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        default_missing_value = "true",
        value_parser = boolean
    )]
    pub verbose: Option<bool>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Batch {
    #[command(flatten)]
    pub model: ModelFlags,
    /// A file with one JSON request on each line; `-` reads stdin: {"prompt_tokens": [...] |
    /// "messages": [...] | "prompt": "...", "max_tokens", "temp", "top_p", ...}
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: PathBuf,
    /// Maximum number of sequences to generate at once
    #[arg(long, default_value_t = 32, value_parser = at_least_one, allow_negative_numbers = true)]
    pub completion_batch_size: u32,
    /// Maximum number of prompts to prefill at once
    #[arg(long, default_value_t = 8, value_parser = at_least_one, allow_negative_numbers = true)]
    pub prefill_batch_size: u32,
    #[command(flatten)]
    pub prefill: PrefillFlags,
    /// Prefill pending prompts before running sequences continue
    #[arg(long)]
    pub prefer_prefill_when_pending: bool,
    #[command(flatten)]
    pub cache: CacheFlags,
    #[command(flatten)]
    pub speculation: SpeculationFlags,
    /// Print one JSON object on each line, in the order of the input, instead of the texts
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CachePrompt {
    #[command(flatten)]
    pub model: ModelFlags,
    /// The prompt; `-` reads it from stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub prompt: String,
    /// The prompt-cache file to write; an existing prompt-cache file is replaced
    #[arg(long, value_name = "OUT.safetensors")]
    pub prompt_cache_file: PathBuf,
    /// The version of mlx-lm that is to read the file; 0.31 is another name of 0.30
    #[arg(long, default_value = "0.32", value_parser = layouts())]
    pub layout: PromptFileLayout,
    /// Use the prompt without the model's chat template
    #[arg(long)]
    pub ignore_chat_template: bool,
    #[command(flatten)]
    pub prefill: PrefillFlags,
    #[command(flatten)]
    pub kv: KvFlags,
}

#[derive(Subcommand)]
pub enum Cache {
    /// List the prompt caches of conversations and of programs that use the API, and the starting
    /// points
    List {
        /// Print an array of {"kind", "name" | "title", "id", "tokens", "bytes", "model",
        /// "last_used_at_ms", ...}
        #[arg(long)]
        json: bool,
    },
    /// Show a stored prompt cache and its chunks
    Show {
        /// The name of a starting point or of a program, an id, or the key of a chunk
        key: String,
    },
    /// Write a stored prompt cache to a file that mlx-lm reads too
    Export(ExportCache),
    /// Preview a prompt-cache file and store it as a starting point
    Import(ImportCache),
    /// Check every chunk file, remove the damaged, and rebuild the database's rows from the others
    Repair,
    /// Delete stored prompt caches and their files
    Delete {
        /// Names of starting points or of programs, ids, or keys of chunks
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

#[derive(Args)]
pub struct ExportCache {
    /// The name of a starting point, or the id of a conversation
    pub source: String,
    /// The prompt-cache file to write
    #[arg(value_name = "OUT.safetensors")]
    pub file: PathBuf,
    /// The version of mlx-lm that is to read the file; 0.31 is another name of 0.30
    #[arg(long, default_value = "0.32", value_parser = layouts())]
    pub layout: PromptFileLayout,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct ImportCache {
    /// A file written by `cairn cache export`, `cairn cache-prompt` or mlx_lm.cache_prompt
    pub file: PathBuf,
    /// The model that computed the file [default: the one that the file names]
    #[arg(long)]
    pub model: Option<String>,
    /// The name of the starting point [default: the title in the file, or its file name]
    #[arg(long, value_parser = not_blank)]
    pub name: Option<String>,
    /// Import without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Checks that the file really is what this model computes. Without it, a damaged or forged
    /// file goes unnoticed.
    #[arg(long)]
    pub check: bool,
}

#[derive(Subcommand)]
pub enum Chats {
    /// List the chats, the newest first
    List {
        /// Print an array of {"id", "title", "updated_at_ms"}
        #[arg(long)]
        json: bool,
    },
    /// Write chats to a file, without their saved context
    Export(ExportChats),
    /// Add the chats of a file: Cairn's own, or an export of ChatGPT (conversations.json), Open
    /// WebUI or ShareGPT, or one {"messages": [...]} on each line
    Import {
        /// The file
        file: PathBuf,
        /// Print one object {"num_added", "added_ids", "num_here", "num_extended",
        /// "num_new_messages", "num_refused", "refused", "problem", "first_id"}
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct ExportChats {
    /// Ids of chats, and then the file to write
    #[arg(required = true, value_name = "ID... OUT", num_args = 1..)]
    pub ids_and_file: Vec<String>,
    /// Write all chats
    #[arg(long)]
    pub all: bool,
    /// json has everything and can be imported again; markdown is to be read; openai has a line of
    /// {"messages": [...]} for each chat
    #[arg(long, default_value = "json", value_parser = chat_formats())]
    pub format: ChatFileFormat,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct Chat {
    #[command(flatten)]
    pub model: ModelFlags,
    /// System prompt of the conversation
    #[arg(long, allow_hyphen_values = true)]
    pub system_prompt: Option<String>,
    /// How much the model thinks before it answers: off, on, minimal, low, medium, high, xhigh or max,
    /// as its chat template allows [default: what the template does by itself]
    #[arg(long, value_name = "LEVEL", value_parser = thinking)]
    pub thinking: Option<Thinking>,
    /// Maximum number of tokens to generate; -1 generates until the context is full
    #[arg(
        short,
        long,
        default_value_t = DEFAULT_MAX_TOKENS,
        value_parser = token_limit,
        allow_negative_numbers = true
    )]
    pub max_tokens: usize,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Number of prompt tokens to process at a time [default: 256 on a CPU, else 2048]
    #[arg(long, value_parser = at_least_one, allow_negative_numbers = true)]
    pub prefill_step_size: Option<u32>,
    #[command(flatten)]
    pub cache: CacheFlags,
    #[command(flatten)]
    pub speculation: SpeculationFlags,
}

#[derive(Args)]
#[command(group(ArgGroup::new("text").required(true).args(["prompt", "tokens", "input"])))]
pub struct Score {
    #[command(flatten)]
    pub model: ModelFlags,
    /// Token ids, separated by commas
    #[arg(long, value_delimiter = ',', num_args = 1, value_parser = token_id)]
    pub tokens: Option<Vec<u32>>,
    /// Text to encode and score; `-` reads it from stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with one text on each line, {"tokens": [...]} or {"prompt": "..."}; `-` reads stdin.
    /// With --json it prints one object for each, with its "index"
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: Option<PathBuf>,
    /// Number of most likely next tokens to print
    #[arg(long, default_value_t = 10, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub top: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Classify {
    #[command(flatten)]
    pub model: ModelFlags,
    /// A file with one prompt on each line, {"messages": [...]}, {"prompt": "..."} or
    /// {"prompt_tokens": [...]}; `-` reads stdin
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: PathBuf,
    /// What every prompt begins with: the system prompt of conversations, else the beginning of the
    /// text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prefix: Option<String>,
    /// A file with that text
    #[arg(long, value_name = "FILE", conflicts_with = "prefix")]
    pub prefix_file: Option<PathBuf>,
    /// The labels to choose from, separated by commas; they have to begin with different tokens.
    /// Without labels the answer is the likeliest token
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', num_args = 1)]
    pub labels: Vec<String>,
    /// Maximum number of prompts to compute at once
    #[arg(long, default_value_t = 32, value_parser = at_least_one, allow_negative_numbers = true)]
    pub batch_size: u32,
    /// Number of most likely tokens to print
    #[arg(
        long,
        default_value_t = 0,
        value_parser = whole::<usize>,
        allow_negative_numbers = true
    )]
    pub top: usize,
    /// Write the results to this file instead of stdout, as --json prints them
    #[arg(long, value_name = "OUT.jsonl")]
    pub output: Option<PathBuf>,
    /// Continue after the last result in the output file
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// Print one JSON object on each line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Search {
    /// Words in the models' names
    pub query: String,
    /// The most models to list
    #[arg(long, default_value_t = 20, value_parser = at_least_one, allow_negative_numbers = true)]
    pub limit: u32,
    /// Print an array of {"name", "downloads", "likes", "gated", "last_modified", "parameters"}
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Download {
    /// The model's name on the hub
    #[arg(value_name = "OWNER/NAME")]
    pub repo: RepoId,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main")]
    pub revision: Revision,
    /// Print {"name", "path", "revision", "bytes", "files"} at the end
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Delete {
    /// The model's name (see `cairn models list`)
    pub name: String,
    /// Delete without asking
    #[arg(long)]
    pub yes: bool,
    /// Print {"name", "path", "bytes"}; needs --yes
    #[arg(long, requires = "yes")]
    pub json: bool,
}

#[derive(Args)]
pub struct Import {
    /// A .gguf file, or a folder in MLX or Hugging Face layout
    pub file: PathBuf,
    /// The model's name [default: the file's]
    #[arg(long)]
    pub name: Option<String>,
    /// The bits of weights of a GGUF file that have no exact form here: 4, 8, those of bf16, or
    /// those of f32, which keep them as they are
    #[arg(long, value_name = "FORM", default_value = "8", value_parser = forms())]
    pub round_to: RoundTo,
    /// Say the perplexity of a short text too, before and after weights were rounded: the model
    /// is loaded twice, and first written with those weights in f32
    #[arg(long)]
    pub perplexity: bool,
}

#[derive(Subcommand)]
pub enum Models {
    /// List the models on this machine
    List {
        /// Print an array of {"name", "path", "model_type", "bytes"}
        #[arg(long)]
        json: bool,
    },
    /// Search the hub for models, those for MLX first
    Search(Search),
    /// Download a model into the cache that is shared with Hugging Face's tools
    Download(Download),
    /// Import a GGUF file or a model folder into Cairn's models
    Import(Import),
    /// Delete a model from this machine
    Delete(Delete),
    /// Show a model's size and the memory that it takes
    Info {
        /// A model folder or name
        model: String,
        /// Tokens of the conversation whose memory is shown; by default 8192 or what the model can
        /// read
        #[arg(long, value_name = "TOKENS")]
        context: Option<usize>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Compare what a model with gated delta layers (Qwen3-Next, Qwen3.5) computes when their state
    /// is held in f32 and in bf16 (--bf16-state): it is loaded twice and reads a text token by
    /// token
    CompareState {
        /// A model folder or name
        model: String,
        /// Compute on quantized weights on a CPU too
        #[arg(long)]
        keep_quantized: bool,
        /// A file with the text [default: some 350 tokens about a lighthouse]
        #[arg(long)]
        text: Option<PathBuf>,
        /// Print {"tokens", "same_top", "mean_kl", "max_kl"}
        #[arg(long)]
        json: bool,
    },
    /// Open a model's files, without its weights, to see whether it can be used
    Check {
        /// A model folder or name
        model: String,
        /// Print {"ok": true, "facts"}, or {"ok": false, "kind", "detail"} with exit status 0
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct Convert {
    /// The model to convert: a folder, or a name (see `cairn models list`); one that is not on this
    /// machine is downloaded after asking
    #[arg(long, alias = "model", value_name = "MODEL")]
    pub hf_path: String,
    /// The folder to write, which must not exist
    #[arg(long, value_name = "FOLDER", default_value = "mlx_model")]
    pub mlx_path: PathBuf,
    /// Quantize the weights
    #[arg(short, long)]
    pub quantize: bool,
    /// Numbers that share a scale [default: 64, with mxfp4 and mxfp8 32, with nvfp4 16]
    #[arg(long, value_name = "NUMBERS", requires = "quantize", allow_negative_numbers = true)]
    pub q_group_size: Option<i64>,
    /// Bits of each weight, without a recipe [default: 4, with mxfp8 8]
    #[arg(long, value_name = "BITS", requires = "quantize", allow_negative_numbers = true)]
    pub q_bits: Option<i64>,
    /// How quantized weights are stored [default: affine]
    #[arg(long, value_name = "MODE", requires = "quantize", value_parser = quantization_modes())]
    pub q_mode: Option<QuantizationMode>,
    /// Quantize some matrices with more bits than others
    #[arg(long, value_name = "RECIPE", requires = "quantize", value_parser = recipes())]
    pub quant_predicate: Option<MixedRecipe>,
    /// Type of the numbers that are not quantized [default: config.json's torch_dtype, else the
    /// weights' own]
    #[arg(long, value_name = "TYPE", value_parser = float_types())]
    pub dtype: Option<FloatType>,
    /// Dequantize the weights
    #[arg(short, long, conflicts_with = "quantize")]
    pub dequantize: bool,
    /// Download a missing model without asking
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct Perplexity {
    #[command(flatten)]
    pub model: ModelFlags,
    /// The data: a file with one JSON object on each line, {"text": "..."}, {"messages": [...]} or
    /// {"prompt": "...", "completion": "..."}, a folder that has it as train.jsonl, or one text in
    /// a .txt file
    #[arg(long, value_name = "FILE", default_value = DEFAULT_DATA_SET, hide_default_value = true)]
    pub data_path: PathBuf,
    /// Number of tokens in each sample
    #[arg(
        long,
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(2..),
        allow_negative_numbers = true
    )]
    pub sequence_length: u32,
    /// Number of samples; -1 takes all there are
    #[arg(
        long,
        default_value = "256",
        value_parser = sample_limit,
        allow_negative_numbers = true
    )]
    pub num_samples: usize,
    /// Number of samples to compute at once
    #[arg(long, default_value_t = 8, value_parser = at_least_one, allow_negative_numbers = true)]
    pub batch_size: u32,
    /// Seed of the order in which the data is read, which is mlx_lm.perplexity's
    #[arg(long, default_value_t = 123, value_parser = whole::<u32>, allow_negative_numbers = true)]
    pub seed: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub model: ModelFlags,
    /// Length of the prompt in tokens
    #[arg(
        short = 'p',
        long,
        default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000),
        allow_negative_numbers = true
    )]
    pub prompt_tokens: u32,
    /// Number of tokens to generate
    #[arg(
        short = 'g',
        long,
        default_value_t = 128,
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub generation_tokens: u32,
    /// Number of measured trials, after one warm-up
    #[arg(
        short = 'n',
        long,
        default_value_t = 5,
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub num_trials: u32,
    /// Seconds to wait before each trial
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub delay: u64,
    /// Number of sequences to generate at once
    #[arg(
        short = 'b',
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024),
        allow_negative_numbers = true
    )]
    pub batch_size: u32,
    #[command(flatten)]
    pub prefill: PrefillFlags,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Run one trial for each line read from stdin, so that a script can alternate between two
    /// programs
    #[arg(long, hide = true)]
    pub interactive: bool,
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
        check_refused(&["--max-tokens", "-2"], &["--max-tokens", "-1"]);
        check_refused(&["--snapkv-min-context", "64"], &["--snapkv <KEEP_TOKENS>"]);
        check_refused(&["--snapkv", "64", "--kv-bits", "4"], &["--snapkv", "--kv-bits"]);
        check_refused(&["--snapkv", "64", "--max-kv-size", "99"], &["--snapkv", "--max-kv-size"]);
        check_refused(&["--snapkv", "64", "--draft-model", "d"], &["--snapkv", "--draft-model"]);
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
    fn texts_may_begin_with_a_hyphen_and_the_last_value_of_a_flag_counts() {
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
    }

    #[test]
    fn short_flags_are_those_of_mlx_lm() {
        let found = generate(&["-p", "x", "-m", "7"]).unwrap();
        assert_eq!((found.prompt.as_deref(), found.max_tokens), (Some("x"), 7));
        let Ok(Command::Chat(chat)) = parse(&["chat", "--model", "m", "-m", "7"]) else {
            panic!("chat takes -m")
        };
        assert_eq!(chat.max_tokens, 7);
        let bench = ["bench", "--model", "m", "-p", "1", "-g", "2", "-b", "3", "-n", "4"];
        let Ok(Command::Bench(bench)) = parse(&bench) else { panic!("bench takes -p -g -b -n") };
        assert_eq!((bench.prompt_tokens, bench.generation_tokens), (1, 2));
        assert_eq!((bench.batch_size, bench.num_trials), (3, 4));
    }

    #[test]
    fn each_penalty_has_a_context_size_of_its_own() {
        let sizes = |flags: &[&str]| {
            let params = generate(&[&["-p", "x"], flags].concat()).unwrap().sampling.params();
            let repetition = params.repetition_context_size;
            (repetition, params.presence_context_size, params.frequency_context_size)
        };
        assert_eq!(sizes(&[]), (20, 20, 20));
        assert_eq!(sizes(&["--repetition-context-size", "5"]), (5, 20, 20));
        assert_eq!(sizes(&["--presence-context-size", "6"]), (20, 6, 20));
        assert_eq!(sizes(&["--frequency-context-size", "7"]), (20, 20, 7));
    }

    #[test]
    fn biases_are_pairs() {
        let found = generate(&["-p", "x", "--logit-bias", "5:-1.5,7:2,8:-inf"]).unwrap();
        assert_eq!(found.sampling.logit_bias, [(5, -1.5), (7, 2.0), (8, f32::NEG_INFINITY)]);
    }
}
