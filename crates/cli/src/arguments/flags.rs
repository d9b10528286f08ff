//! Groups of flags that several commands share, and the parsers of their values.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use cairn_app::wire::ChatFileFormat;
use cairn_chat::{SamplingParams, Thinking};
use cairn_engine::{KvCacheOptions, KvQuantization, PromptFileLayout, SnapKv};
use cairn_formats::gguf::RoundTo;
use cairn_lm::{FloatType, MixedRecipe, QuantizationMode};
use clap::Args;
use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use serde_json::{Map, Value};

/// The maximum number of tokens to generate where none is given.
pub const DEFAULT_MAX_TOKENS: usize = 256;

/// Which model to load, and how.
#[derive(Args)]
pub struct ModelFlags {
    /// A model folder, or the name of a model (see `cairn models list`); one that is not on this
    /// machine is downloaded after asking
    #[arg(long)]
    pub model: String,
    /// Download a missing model without asking
    #[arg(long)]
    pub yes: bool,
    /// Compute on quantized weights on a CPU too, instead of dequantizing them at load
    #[arg(long)]
    pub keep_quantized: bool,
    /// Hold the state of gated delta layers (Qwen3-Next, Qwen3.5) in bf16 instead of f32: half its
    /// memory, and answers that are nearly the same (see `cairn models compare-state`)
    #[arg(long)]
    pub bf16_state: bool,
    /// Trace decode steps with MLX's compile and replay them, where all layers attend: a trial for
    /// Macs, of which no gain has been shown yet
    #[arg(long)]
    pub trace_steps: bool,
}

/// How the next token is sampled.
#[derive(Args)]
pub struct SamplingFlags {
    /// Sampling temperature; 0 always takes the most likely token
    #[arg(long, default_value_t = 0.0, value_parser = not_negative, allow_negative_numbers = true)]
    pub temp: f32,
    /// Sample from the smallest set of tokens with this probability mass; 1 keeps all tokens
    #[arg(long, default_value_t = 1.0, value_parser = fraction, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the most likely token's probability
    #[arg(long, default_value_t = 0.0, value_parser = fraction, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Number of most likely tokens that --min-p never drops
    #[arg(long, default_value_t = 1, value_parser = at_least_one, allow_negative_numbers = true)]
    pub min_tokens_to_keep: u32,
    /// Sample from this many of the most likely tokens; 0 keeps all tokens
    #[arg(long, default_value_t = 0, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub top_k: usize,
    /// Probability with which XTC drops all tokens above --xtc-threshold but the least likely one
    #[arg(long, default_value_t = 0.0, value_parser = fraction, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// Probability above which XTC may drop a token
    #[arg(long, default_value_t = 0.1, value_parser = up_to_half, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Make recent tokens less likely by this factor; 1 changes nothing
    #[arg(long, value_parser = not_negative, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Number of recent tokens that --repetition-penalty applies to; 0 means all
    #[arg(long, default_value_t = 20, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub repetition_context_size: usize,
    /// Subtract this from the logit of each recent token, once
    #[arg(long, value_parser = finite, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Number of recent tokens that --presence-penalty applies to; 0 means all
    #[arg(long, default_value_t = 20, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub presence_context_size: usize,
    /// Subtract this from the logit of each recent token, for each time it occurs
    #[arg(long, value_parser = finite, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Number of recent tokens that --frequency-penalty applies to; 0 means all
    #[arg(long, default_value_t = 20, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub frequency_context_size: usize,
    /// Values to add to the logits of single tokens
    #[arg(
        long,
        value_name = "ID:V,...",
        value_delimiter = ',',
        value_parser = bias,
        allow_negative_numbers = true
    )]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; the same seed gives the same tokens
    #[arg(long, value_parser = whole::<u64>, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

impl SamplingFlags {
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
            presence_context_size: self.presence_context_size,
            frequency_penalty: self.frequency_penalty,
            frequency_context_size: self.frequency_context_size,
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
            ..SamplingParams::default()
        }
    }
}

/// How a prompt is read.
#[derive(Args)]
pub struct PrefillFlags {
    /// Number of prompt tokens to process at a time
    #[arg(
        long = "prefill-step-size",
        value_name = "PREFILL_STEP_SIZE",
        default_value_t = 2048,
        value_parser = at_least_one,
        allow_negative_numbers = true
    )]
    pub step_size: u32,
}

/// What ends generation before the maximum number of tokens.
#[derive(Args)]
pub struct StopFlags {
    /// Stop before this text; may be given several times
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        allow_hyphen_values = true
    )]
    pub stop: Vec<String>,
    /// Another token of the vocabulary that ends generation; takes several, and may be given
    /// several times
    #[arg(
        long,
        value_name = "TOKEN",
        value_parser = NonEmptyStringValueParser::new(),
        allow_hyphen_values = true
    )]
    pub extra_eos_token: Vec<String>,
}

/// How the KV cache is stored.
#[derive(Args)]
pub struct KvFlags {
    /// Maximum size of the KV cache in tokens; beyond it the oldest but the first four are dropped
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..), allow_negative_numbers = true)]
    pub max_kv_size: Option<u32>,
    /// Number of bits to quantize the KV cache to; without it the cache is not quantized
    #[arg(long, value_parser = one_of(["2", "3", "4", "6", "8"]), allow_negative_numbers = true)]
    pub kv_bits: Option<i32>,
    /// Group size of the KV cache's quantization [default: 64]
    #[arg(long, value_parser = one_of(["32", "64", "128"]), allow_negative_numbers = true)]
    pub kv_group_size: Option<i32>,
    /// With --kv-bits: number of tokens from which the KV cache is quantized
    #[arg(
        long,
        default_value_t = 5000,
        value_parser = whole::<usize>,
        allow_negative_numbers = true
    )]
    pub quantized_kv_start: usize,
}

/// How many tokens of a long prompt are kept.
#[derive(Args)]
pub struct SnapKvFlags {
    /// Keep this many tokens of each long prompt once it has been read: the first, the last, and
    /// those that its end attends to most
    #[arg(
        long,
        value_name = "KEEP_TOKENS",
        value_parser = clap::value_parser!(u32).range(16..),
        allow_negative_numbers = true,
        conflicts_with = "draft_model"
    )]
    pub snapkv: Option<u32>,
    /// With --snapkv: keep shorter prompts whole
    #[arg(
        long,
        default_value_t = 49_152,
        requires = "snapkv",
        value_parser = whole::<usize>,
        allow_negative_numbers = true
    )]
    pub snapkv_min_context: usize,
}

impl SnapKvFlags {
    pub fn snapkv(&self) -> Option<SnapKv> {
        let min_context = self.snapkv_min_context;
        self.snapkv.map(|keep| SnapKv { keep_tokens: keep as usize, min_context })
    }
}

/// How the KV cache is stored, or what of it is kept.
#[derive(Args)]
#[command(mut_arg("snapkv", |flag| flag.conflicts_with_all(["kv_bits", "max_kv_size"])))]
pub struct CacheFlags {
    #[command(flatten)]
    pub kv: KvFlags,
    #[command(flatten)]
    pub snapkv: SnapKvFlags,
}

impl CacheFlags {
    pub fn options(&self) -> KvCacheOptions {
        KvCacheOptions { snapkv: self.snapkv.snapkv(), ..self.kv.options() }
    }
}

impl KvFlags {
    pub fn options(&self) -> KvCacheOptions {
        let quantization = self.kv_bits.map(|bits| KvQuantization {
            bits,
            group_size: self.kv_group_size.unwrap_or(64),
            start: self.quantized_kv_start,
        });
        let max_size = self.max_kv_size.map(|size| size as usize);
        KvCacheOptions { max_size, quantization, snapkv: None }
    }
}

/// Parses an integer from 0 on.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "give a whole number from 0 on".to_owned())
}

/// Parses an integer from 1 on.
pub fn at_least_one(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|&number| number >= 1);
    number.ok_or_else(|| "give a whole number from 1 on".to_owned())
}

/// Parses one of several token ids.
pub fn token_id(text: &str) -> Result<u32, String> {
    let id = text.trim().parse();
    id.map_err(|_| "give token ids separated by commas, such as 1,2,3".to_owned())
}

/// One of a few integers, which the help lists.
pub fn one_of<const N: usize>(allowed: [&'static str; N]) -> impl TypedValueParser<Value = i32> {
    PossibleValuesParser::new(allowed).try_map(|text| text.parse::<i32>())
}

/// Parses a maximum number of tokens. As in mlx-lm -1 means no limit; the context still ends
/// generation.
pub fn token_limit(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(usize::MAX),
        Ok(limit) => usize::try_from(limit).map_err(|_| TOKEN_LIMITS.to_owned()),
        Err(_) => Err(TOKEN_LIMITS.to_owned()),
    }
}

/// Parses a maximum number of samples; -1 means no limit, as in mlx-lm.
pub fn sample_limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(-1) => Ok(usize::MAX),
        Ok(1_i64..) => text.parse().map_err(|_| SAMPLE_LIMITS.to_owned()),
        _ => Err(SAMPLE_LIMITS.to_owned()),
    }
}

const SAMPLE_LIMITS: &str = "give a number of samples from 1 on, or -1 for all";

const TOKEN_LIMITS: &str = "give a number of tokens, or -1 for no limit but the context";

/// A layout of prompt-cache files, by a version of mlx-lm that reads it.
pub fn layouts() -> impl TypedValueParser<Value = PromptFileLayout> {
    let named = |layout: PromptFileLayout| {
        PossibleValue::new(layout.as_str()).aliases(other_versions(layout))
    };
    PossibleValuesParser::new(PromptFileLayout::ALL.map(named)).map(|text| {
        let is_of = |layout: &PromptFileLayout| {
            layout.as_str() == text || other_versions(*layout).contains(&text.as_str())
        };
        PromptFileLayout::ALL.into_iter().find(is_of).unwrap_or_default()
    })
}

/// The form of a file of chats.
pub fn chat_formats() -> impl TypedValueParser<Value = ChatFileFormat> {
    PossibleValuesParser::new(["json", "markdown", "openai"]).map(|name| match name.as_str() {
        "markdown" => ChatFileFormat::Markdown,
        "openai" => ChatFileFormat::Openai,
        _ => ChatFileFormat::Json,
    })
}

/// What weights become that have no exact form.
pub fn forms() -> impl TypedValueParser<Value = RoundTo> {
    PossibleValuesParser::new(["4", "8", "bf16", "f32"]).map(|name| match name.as_str() {
        "4" => RoundTo::Bits4,
        "bf16" => RoundTo::Bfloat16,
        "f32" => RoundTo::Float32,
        _ => RoundTo::Bits8,
    })
}

/// A mode of quantization, by MLX's name.
pub fn quantization_modes() -> impl TypedValueParser<Value = QuantizationMode> {
    let names = QuantizationMode::ALL.map(|mode| mode.name().to_str().unwrap_or_default());
    PossibleValuesParser::new(names)
        .map(|name| QuantizationMode::of_name(&name).unwrap_or(QuantizationMode::Affine))
}

/// A recipe of mixed bits, by mlx-lm's name.
pub fn recipes() -> impl TypedValueParser<Value = MixedRecipe> {
    PossibleValuesParser::new(MixedRecipe::ALL.map(MixedRecipe::name)).map(|name| {
        let named = MixedRecipe::ALL.into_iter().find(|recipe| recipe.name() == name);
        named.unwrap_or(MixedRecipe::Mixed4And6)
    })
}

/// A type of floating-point numbers, by config.json's name.
pub fn float_types() -> impl TypedValueParser<Value = FloatType> {
    PossibleValuesParser::new(FloatType::ALL.map(FloatType::name)).map(|name| {
        let named = FloatType::ALL.into_iter().find(|kind| kind.name() == name);
        named.unwrap_or(FloatType::Float32)
    })
}

/// The versions of mlx-lm that a layout has no name of its own for.
fn other_versions(layout: PromptFileLayout) -> &'static [&'static str] {
    match layout {
        PromptFileLayout::V0_32 => &[],
        PromptFileLayout::V0_30 => &["0.31"],
    }
}

/// Parses an address to listen on: an IP address, or `localhost`.
pub fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text
            .parse()
            .map_err(|_| "give an IP address such as 127.0.0.1, or localhost".to_owned()),
    }
}

/// Parses a name: a text without the spaces around it, which is not empty.
pub fn not_blank(text: &str) -> Result<String, String> {
    let name = text.trim();
    if name.is_empty() { Err("give a name".to_owned()) } else { Ok(name.to_owned()) }
}

/// Parses mlx-lm's True, T, False and F, in upper or lower case.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" => Ok(true),
        "false" | "f" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

/// Parses how much a model thinks.
pub fn thinking(text: &str) -> Result<Thinking, String> {
    Thinking::from_name(text).ok_or_else(|| {
        "give off, on, minimal, low, medium, high, xhigh or max, as the model allows".to_owned()
    })
}

/// Parses a JSON object, such as `{"enable_thinking": false}`.
pub fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text)
        .map_err(|_| r#"give a JSON object, such as {"enable_thinking": false}"#.to_owned())
}

pub fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |value| value.is_finite() && value >= 0.0, "a number from 0 on")
}

pub fn fraction(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

fn up_to_half(text: &str) -> Result<f32, String> {
    number(text, |value| (0.0..=0.5).contains(&value), "a number from 0 to 0.5")
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, f32::is_finite, "a number")
}

fn number(text: &str, is_allowed: impl Fn(f32) -> bool, allowed: &str) -> Result<f32, String> {
    text.parse().ok().filter(|&value| is_allowed(value)).ok_or_else(|| format!("give {allowed}"))
}

/// Parses `5:-1.5` as token 5 and -1.5. Minus infinity is allowed: it forbids a token.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let number = |text: &str| text.trim().parse().ok().filter(|&value: &f32| value < f32::INFINITY);
    text.split_once(':')
        .and_then(|(id, value)| Some((id.trim().parse().ok()?, number(value)?)))
        .ok_or_else(|| "give a token id and a number, such as 5:-1.5".to_owned())
}
