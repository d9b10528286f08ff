//! The command line: what can be asked, with mlx-lm's names and defaults.

use std::net::IpAddr;
use std::path::PathBuf;

use cairn_chat::SamplingParams;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cairn", version, about = "Local language models on MLX", propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Continue a prompt
    Generate(Generate),
    /// Chat in the terminal
    Chat(Chat),
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
    #[arg(long)]
    pub model: String,
    /// On a CPU device compute on quantized weights instead of dequantizing them at load
    #[arg(long)]
    pub keep_quantized: bool,
}

#[derive(Args)]
pub struct Sampling {
    /// Sampling temperature; 0 takes the most likely token
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temp: f32,
    /// Keep the smallest set of tokens with this probability mass; 1 keeps all
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Make sampling repeatable
    #[arg(long)]
    pub seed: Option<u64>,
}

impl Sampling {
    pub fn params(&self) -> SamplingParams {
        SamplingParams { temperature: self.temp, top_p: self.top_p, seed: self.seed, ..SamplingParams::default() }
    }
}

#[derive(Args)]
pub struct Generate {
    #[command(flatten)]
    pub model: ModelChoice,
    /// The prompt; `-` reads it from stdin
    #[arg(long, required_unless_present = "prompt_tokens", conflicts_with = "prompt_tokens")]
    pub prompt: Option<String>,
    /// Token ids to continue as they stand, separated by commas
    #[arg(long, value_delimiter = ',', num_args = 1)]
    pub prompt_tokens: Option<Vec<u32>>,
    /// Instructions that stand before the prompt
    #[arg(long, conflicts_with_all = ["prompt_tokens", "ignore_chat_template"])]
    pub system_prompt: Option<String>,
    /// Encode the prompt as plain text
    #[arg(long)]
    pub ignore_chat_template: bool,
    /// The longest answer, in tokens
    #[arg(long, default_value_t = 256, allow_negative_numbers = true)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_step_size: u32,
    /// With --json: log-probabilities, with this many alternatives for each token
    #[arg(long, requires = "json")]
    pub logprobs: Option<usize>,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct Chat {
    #[command(flatten)]
    pub model: ModelChoice,
    /// Instructions that stand before the conversation
    #[arg(long)]
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
    #[arg(long, value_delimiter = ',', num_args = 1, required_unless_present = "prompt", conflicts_with = "prompt")]
    pub tokens: Option<Vec<u32>>,
    /// Text to encode and score; `-` reads it from stdin
    #[arg(long)]
    pub prompt: Option<String>,
    /// How many of the likeliest next tokens to print
    #[arg(long, default_value_t = 10)]
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
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,
    /// Tokens to generate
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub generation_tokens: u32,
    /// How many times, after one to warm up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_trials: u32,
    /// Prompt tokens read at once
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub prefill_step_size: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Run one trial for each line read from stdin, so that another program can be measured in turns
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
    #[arg(long, default_value_t = 11435)]
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
