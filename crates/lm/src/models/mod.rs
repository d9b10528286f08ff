//! The architectures: one file each, named after config.json's `model_type`.

mod cohere;
mod cohere2;
mod decoder;
mod deepseek_v2;
mod deepseek_v3;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3_text;
mod gemma4_text;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod helium;
mod internlm3;
mod jamba;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4;
mod llama4_text;
mod mamba2;
mod mimo;
mod minicpm;
mod ministral3;
mod mistral3;
mod mixtral;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmoe;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
#[cfg(feature = "scripted")]
mod scripted;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod traced_step;

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt::Debug;
use std::path::Path;
use std::rc::Rc;

use mlx_rs::{Array, Dtype, ops};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cache::{CacheSpec, LayerCache};
use crate::chosen_kernels::chosen_kernels;
use crate::load_progress::OnPart;
use crate::pass_costs::PassCosts;
use crate::published::ModelTensors;
use crate::published_numbers::PublishedNumbers;
use crate::tensor_list::TensorList;
use crate::weights::{LoadOptions, LoadedWeights, Weights};
use crate::{LmError, config, ffi};
use decoder::{DecoderModel, Family};
use traced_step::TracedSteps;

pub(crate) use qwen3_next::{MTP_SIGNS, mtp_file};

/// All architectures, by the values of config.json's `model_type`, with the models that people know
/// them by.
const ARCHITECTURES: &[Registered] = &[
    described::<cohere::ModelArgs>("cohere", "Command R, Aya"),
    described::<cohere2::ModelArgs>("cohere2", "Command R7B, Command A"),
    described::<deepseek_v2::ModelArgs>("deepseek_v2", "DeepSeek-V2, DeepSeek-Coder-V2"),
    described::<deepseek_v3::ModelArgs>("deepseek_v3", "DeepSeek-V3, DeepSeek-R1, Moonlight"),
    described::<ernie4_5::ModelArgs>("ernie4_5", "ERNIE 4.5"),
    described::<ernie4_5_moe::ModelArgs>("ernie4_5_moe", "ERNIE 4.5 with experts"),
    described::<exaone4::ModelArgs>("exaone4", "EXAONE 4.0"),
    described::<falcon_h1::ModelArgs>("falcon_h1", "Falcon-H1"),
    described::<gemma::ModelArgs>("gemma", "Gemma"),
    described::<gemma2::ModelArgs>("gemma2", "Gemma 2"),
    described::<gemma3_text::ModelArgs>("gemma3", "Gemma 3 (text part)"),
    described::<gemma3_text::ModelArgs>("gemma3_text", "Gemma 3 (text)"),
    registered::<gemma4_text::Model>("gemma4", "Gemma 4 (text part)"),
    registered::<gemma4_text::Model>("gemma4_text", "Gemma 4 (text)"),
    registered::<gemma4_text::Model>("gemma4_unified", "Gemma 4 without encoders (text part)"),
    described::<glm::ModelArgs>("glm", "GLM-4 9B, GLM-Edge"),
    described::<glm4::ModelArgs>("glm4", "GLM-4-0414"),
    described::<glm4_moe::ModelArgs>("glm4_moe", "GLM-4.5, GLM-4.6, GLM-4.7"),
    described::<glm4_moe_lite::ModelArgs>("glm4_moe_lite", "GLM-4.7-Flash"),
    described::<gpt_oss::ModelArgs>("gpt_oss", "gpt-oss"),
    described::<granite::ModelArgs>("granite", "Granite 3"),
    described::<granitemoe::ModelArgs>("granitemoe", "Granite 3 with experts"),
    described::<granitemoehybrid::ModelArgs>("granitemoehybrid", "Granite 4"),
    described::<helium::ModelArgs>("helium", "Helium"),
    described::<internlm3::ModelArgs>("internlm3", "InternLM3"),
    described::<llama::ModelArgs>("iquestcoder", "IQuest-Coder"),
    described::<jamba::ModelArgs>("jamba", "Jamba"),
    described::<deepseek_v3::ModelArgs>("joyai_llm_flash", "JoyAI-LLM Flash"),
    described::<deepseek_v3::ModelArgs>("kimi_k2", "Kimi K2"),
    described::<deepseek_v3::ModelArgs>("kimi_k25", "Kimi K2.5 (text part)"),
    described::<deepseek_v3::ModelArgs>("kimi_vl", "Kimi-VL (text part)"),
    described::<lfm2::ModelArgs>("lfm2", "LFM2"),
    described::<lfm2_moe::ModelArgs>("lfm2_moe", "LFM2 with experts"),
    described::<llama::ModelArgs>("llama", "Llama 2 and 3, SmolLM2"),
    described::<llama4::ModelArgs>("llama4", "Llama 4 (text part)"),
    described::<llama4_text::ModelArgs>("llama4_text", "MobileLLM-R1"),
    described::<mamba2::ModelArgs>("mamba2", "Mamba-2, Codestral Mamba"),
    described::<mimo::ModelArgs>("mimo", "MiMo"),
    described::<minicpm::ModelArgs>("minicpm", "MiniCPM"),
    described::<ministral3::ModelArgs>("ministral3", "Ministral 3 (text)"),
    described::<llama::ModelArgs>("mistral", "Mistral"),
    described::<mistral3::ModelArgs>("mistral3", "Mistral Small 3, Devstral (text part)"),
    described::<mixtral::ModelArgs>("mixtral", "Mixtral"),
    described::<nemotron_h::ModelArgs>("nemotron_h", "Nemotron-H, Nemotron 3"),
    described::<olmo2::ModelArgs>("olmo2", "OLMo 2"),
    described::<olmo3::ModelArgs>("olmo3", "OLMo 3"),
    described::<olmoe::ModelArgs>("olmoe", "OLMoE"),
    described::<phi3::ModelArgs>("phi3", "Phi-3, Phi-3.5, Phi-4"),
    described::<phimoe::ModelArgs>("phimoe", "Phi-3.5 with experts"),
    described::<qwen2::ModelArgs>("qwen2", "Qwen2, Qwen2.5"),
    described::<qwen2_moe::ModelArgs>("qwen2_moe", "Qwen1.5 and Qwen2 with experts"),
    described::<qwen3::ModelArgs>("qwen3", "Qwen3"),
    registered::<qwen3_next::Model<qwen3_5::ModelArgs>>("qwen3_5", "Qwen3.5, Qwen3.6, Qwen3.8"),
    registered::<qwen3_next::Model<qwen3_5::ModelArgs>>(
        "qwen3_5_moe",
        "Qwen3.5 and Qwen3.6 with experts",
    ),
    described::<qwen3_moe::ModelArgs>("qwen3_moe", "Qwen3 with experts"),
    registered::<qwen3_next::Model<qwen3_next::ModelArgs>>("qwen3_next", "Qwen3-Next"),
    described::<seed_oss::ModelArgs>("seed_oss", "Seed-OSS"),
    described::<smollm3::ModelArgs>("smollm3", "SmolLM3"),
    described::<stablelm::ModelArgs>("stablelm", "StableLM 2"),
    described::<starcoder2::ModelArgs>("starcoder2", "StarCoder2"),
    described::<llama::ModelArgs>("xverse", "XVERSE"),
];

/// Encoders that many embedding models are: each token sees those after it too.
const ENCODERS: &[&str] = &[
    "albert",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "eurobert",
    "mobilebert",
    "modernbert",
    "mpnet",
    "new",
    "nomic_bert",
    "roberta",
    "t5",
    "xlm-roberta",
];

/// Other values of `model_type` for these architectures: of text parts that are stored alone, and
/// what other programs call them.
const ALIASES: &[(&str, &str)] = &[
    ("qwen3_5_moe_text", "qwen3_5_moe"),
    ("qwen3_5_text", "qwen3_5"),
    ("qwen3_8", "qwen3_5"),
    ("qwen3_8_moe", "qwen3_5_moe"),
    ("qwen3_8_moe_text", "qwen3_5_moe"),
    ("qwen3_8_text", "qwen3_5"),
];

/// The value of `model_type` by which an architecture is listed, for this one or one of its
/// aliases.
pub(crate) fn listed_type(model_type: &str) -> &str {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == model_type);
    alias.map_or(model_type, |(_, listed)| listed)
}

const SUPPORTED_MODELS: [SupportedModel; ARCHITECTURES.len()] = {
    let mut models = [SupportedModel { model_type: "", models: "" }; ARCHITECTURES.len()];
    let mut index = 0;
    while index < models.len() {
        models[index] = ARCHITECTURES[index].name;
        index += 1;
    }
    models
};

/// A value of config.json's `model_type` that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedModel {
    /// The value.
    pub model_type: &'static str,
    /// The models that people know it by.
    pub models: &'static str,
}

/// What can be loaded, by `model_type`.
pub const SUPPORTED: &[SupportedModel] = &SUPPORTED_MODELS;

/// Whether there is a file for this `model_type`.
pub fn is_supported(model_type: &str) -> bool {
    let listed = listed_type(model_type);
    SUPPORTED.iter().any(|known| known.model_type == listed)
}

/// Whether models of this `model_type` are encoders, which make embeddings and do not run here.
pub fn is_encoder(model_type: &str) -> bool {
    ENCODERS.contains(&model_type)
}

/// The supported `model_type` that is spelt most like this one; none where even that is spelt quite
/// otherwise.
pub fn nearest(model_type: &str) -> Option<&'static str> {
    let asked = simple_name(model_type);
    let spelling = |known: &SupportedModel| {
        let known = simple_name(known.model_type);
        // A family's name begins its members' names: "gemma5_text" is nearer to gemma's than to
        // others of the same length.
        let common = known.iter().zip(&asked).take_while(|(one, other)| one == other).count();
        (edits(&known, &asked), common, known.len())
    };
    let known = SUPPORTED.iter().map(|known| (known.model_type, spelling(known)));
    let (nearest, (edits, common, _)) = known
        .min_by_key(|(_, (edits, common, length))| (*edits as i64 - 2 * *common as i64, *length))?;
    // Two letters in common say nothing, and in a short name few remain.
    let is_near = common >= 3 || 3 * edits <= asked.len();
    (is_near && !asked.is_empty()).then_some(nearest)
}

/// Letters and digits in lower case; not more than any known name has.
fn simple_name(name: &str) -> Vec<char> {
    let letters = name.chars().filter(|letter| letter.is_alphanumeric()).take(40);
    letters.flat_map(char::to_lowercase).collect()
}

/// How many letters have to be put in, taken out or replaced to make one of the other (Levenshtein
/// 1966).
fn edits(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, known) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != known);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// What every architecture implements. The rows of a batch (B) are independent of each other.
pub(crate) trait Architecture: Debug {
    /// Token ids `[B, L]` to embeddings `[B, L, D]`.
    fn embed(&self, tokens: &Array) -> Result<Array, LmError>;

    /// Runs all layers over `embeddings` `[B, L, D]`, which follow the tokens in `caches`, and
    /// returns normalized hidden states of the same shape.
    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError>;

    /// As [`Architecture::forward`], of token ids `[B, L]`.
    fn forward_tokens(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        self.forward(self.embed(tokens)?, caches)
    }

    /// Hidden states `[B, L, D]` to logits `[B, L, V]`.
    fn logits(&self, hidden: &Array) -> Result<Array, LmError>;

    /// The head that predicts the token after the next.
    fn mtp_head(&self) -> Result<&dyn MtpHead, &NoMtpHead> {
        Err(&NoMtpHead::Absent)
    }

    /// What its caches are. All that depends on the kinds of caches follows from it.
    fn cache_spec(&self) -> CacheSpec;

    /// The revision of the architecture's numerics, which is part of a model's fingerprint. It has to
    /// be increased with every change after which keys, values or states differ by more than
    /// rounding, so that caches from before the change are not reused.
    fn numerics_revision(&self) -> u32;

    /// The size of the vocabulary: token ids are smaller.
    fn vocab_size(&self) -> usize;

    /// The most tokens that the model can attend to.
    fn context_length(&self) -> usize;
}

/// A head that predicts the token after the next (multi-token prediction).
pub(crate) trait MtpHead: Debug {
    /// Reads hidden states of tokens, as [`Architecture::forward`] returns them, with the embeddings of
    /// the token behind each; both `[B, L, D]`. Returns hidden states of the same shape, of which
    /// [`Architecture::logits`] makes those of the token after that. The caches hold the pairs
    /// before.
    fn forward(
        &self,
        embeddings: &Array,
        hidden: &Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError>;

    /// What its caches are. They trim to any earlier length.
    fn cache_spec(&self) -> &CacheSpec;
}

/// Why a model has no head that predicts further tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoMtpHead {
    /// Its files hold none, or its architecture knows none.
    Absent,
    /// It could not be loaded, because of this.
    Unusable(String),
}

/// How an architecture comes from a model folder.
pub(crate) trait FromConfig: Architecture + Sized + 'static {
    /// The fields of config.json.
    type Args: DeserializeOwned;

    /// What follows from config.json alone. Fails on what the architecture does not support.
    fn outline(args: &Self::Args) -> Result<Outline, LmError>;

    /// Takes the tensors that `args` ask for.
    fn load(args: Self::Args, weights: &mut Weights) -> Result<Self, LmError>;
}

/// What a model is before its weights are read.
#[derive(Debug, Clone)]
pub(crate) struct Outline {
    /// What its caches are; the types that only weights tell are unknown.
    pub(crate) cache: CacheSpec,
    /// The same with [`LoadOptions::bf16_state`]; `None` if that changes nothing.
    pub(crate) bf16_state_cache: Option<CacheSpec>,
    /// The most tokens that it can attend to.
    pub(crate) context_length: usize,
    /// Whether an output layer in the files is not used, because the embeddings are.
    pub(crate) is_tied: bool,
    /// What a forward pass holds besides weights and caches.
    pub(crate) scratch: Scratch,
    /// What it takes from the weight files.
    pub(crate) tensors: TensorList,
    /// In which form published files hold its numbers.
    pub(crate) published_numbers: PublishedNumbers,
    /// Whether it takes a head that predicts further tokens too, where files hold one.
    pub(crate) takes_mtp_head: bool,
}

impl Outline {
    /// What the model is when it is loaded with `options`.
    pub(crate) fn with_options(self, options: LoadOptions) -> Self {
        let bf16_state_cache = self.bf16_state_cache.clone();
        let cache = bf16_state_cache.filter(|_| options.bf16_state).unwrap_or(self.cache);
        Outline { cache, ..self }
    }

    /// The outline of a model with these tensors: some are saved without an output layer.
    pub(crate) fn with_tensors(mut self, tensors: &ModelTensors) -> Self {
        if tensors.lacks_output_layer() {
            ["lm_head", "lm_head.bias"].into_iter().for_each(|path| self.tensors.remove(path));
        }
        self
    }
}

/// What a forward pass holds besides weights and caches, in numbers of the compute type.
///
/// An architecture counts how many results of each width live at once. The counts are measured, with
/// the example `memory`, on a CPU: MLX allocates there up to ten operations ahead of the one that
/// runs, so more lives than the formulas need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Numbers of one token in all intermediate results that live at once in a layer that attends,
    /// without attention scores.
    pub(crate) numbers_per_token: u64,
    /// The same in a recurrent layer; 0 if there is none.
    pub(crate) recurrent_per_token: u64,
    /// Numbers that are made of each token that is attended to, where caches hold what keys and
    /// values are made of.
    pub(crate) numbers_per_key: u64,
    /// Numbers that live whatever the number of tokens is.
    pub(crate) fixed_numbers: u64,
    /// Heads that attend: where attention scores are stored, each has one for a pair of tokens.
    pub(crate) heads: u64,
    /// Arrays of stored scores that live at once.
    pub(crate) score_arrays: u64,
    /// Tokens in the vocabulary, of which each row has logits.
    pub(crate) vocab: u64,
    /// Whether attention scores are stored on every device: `nn::has_kernel` of dense keys and values
    /// says no.
    pub(crate) stores_scores: bool,
}

/// An architecture in [`ARCHITECTURES`].
struct Registered {
    name: SupportedModel,
    outline: fn(&Path, &Value) -> Result<Outline, LmError>,
    load: fn(Folder<'_>) -> Result<(Model, LoadedWeights), LmError>,
}

/// A model folder whose config.json has been read.
struct Folder<'a> {
    path: &'a Path,
    config: &'a Value,
    options: LoadOptions,
    on_part: OnPart,
}

const fn registered<A: FromConfig>(model_type: &'static str, models: &'static str) -> Registered {
    let name = SupportedModel { model_type, models };
    Registered { name, outline: outline_of::<A>, load: load::<A> }
}

/// A decoder whose file describes it.
const fn described<F: Family>(model_type: &'static str, models: &'static str) -> Registered {
    registered::<DecoderModel<F>>(model_type, models)
}

fn outline_of<A: FromConfig>(folder: &Path, config: &Value) -> Result<Outline, LmError> {
    A::outline(&config::arguments(folder, config)?)
}

/// Deserializes config.json into the architecture's arguments and builds its network from the
/// weight files.
fn load<A: FromConfig>(folder: Folder<'_>) -> Result<(Model, LoadedWeights), LmError> {
    let Folder { path, config, options, on_part } = folder;
    let args = config::arguments(path, config)?;
    let mut weights = Weights::open(path, config, options, on_part)?;
    weights.kernels = chosen_kernels();
    let traces_steps = options.traces_steps && weights.kernels.is_none();
    let network = A::load(args, &mut weights)?;
    let weights = weights.finish(model_type(config))?;
    let traced_steps = traces_steps.then(TracedSteps::new);
    Ok((Model::new(path, network, traced_steps), weights))
}

fn model_type(config: &Value) -> &str {
    config.get("model_type").and_then(Value::as_str).unwrap_or_default()
}

fn find(config: &Value) -> Result<&'static Registered, LmError> {
    let model_type = model_type(config);
    let listed = listed_type(model_type);
    let found = ARCHITECTURES.iter().find(|known| known.name.model_type == listed);
    found.ok_or_else(|| match is_encoder(model_type) {
        true => LmError::Encoder { model_type: model_type.to_owned() },
        false => LmError::UnknownModelType {
            model_type: model_type.to_owned(),
            nearest: nearest(model_type),
            count: SUPPORTED.len(),
        },
    })
}

/// What follows from the config.json in `folder`, which has been read.
pub(crate) fn outline(folder: &Path, config: &Value) -> Result<Outline, LmError> {
    #[cfg(feature = "scripted")]
    if model_type(config) == "scripted" {
        return Ok(scripted::outline(&config::arguments(folder, config)?));
    }
    (find(config)?.outline)(folder, config)
}

/// A loaded model of any architecture. A clone is another handle to the same model.
#[derive(Debug, Clone)]
pub struct Model(Rc<LoadedNetwork>);

#[derive(Debug)]
struct LoadedNetwork {
    /// Its folder's name.
    name: String,
    /// Whether logits have been seen that are numbers.
    has_numbers: Cell<bool>,
    network: Box<dyn Architecture>,
    cache_spec: CacheSpec,
    typed_cache_spec: OnceCell<CacheSpec>,
    /// The traces of decode steps, where they were asked for.
    traced_steps: Option<TracedSteps>,
    /// What tokens that are proposed cost, as far as it was measured.
    pass_costs: Rc<RefCell<PassCosts>>,
}

impl Model {
    fn new(
        folder: &Path,
        network: impl Architecture + 'static,
        traced_steps: Option<TracedSteps>,
    ) -> Self {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cache_spec = network.cache_spec();
        let network = Box::new(network);
        let (typed_cache_spec, pass_costs) = (OnceCell::new(), Rc::default());
        Model(Rc::new(LoadedNetwork {
            name,
            has_numbers: Cell::new(false),
            network,
            cache_spec,
            typed_cache_spec,
            traced_steps,
            pass_costs,
        }))
    }

    /// Loads the model in `folder` and returns it with the number of bytes of its weights.
    pub fn load(folder: &Path, options: LoadOptions) -> Result<(Self, u64), LmError> {
        let config = config::ConfigFile::read(folder)?;
        let (model, weights) = Model::load_with(folder, &config.value, options, OnPart::none())?;
        Ok((model, weights.num_bytes))
    }

    /// Loads the model in `folder`, whose config.json has been read. Ends with
    /// [`LmError::Cancelled`] before the part at which `on_part` first breaks.
    pub(crate) fn load_with(
        folder: &Path,
        config: &Value,
        options: LoadOptions,
        on_part: OnPart,
    ) -> Result<(Self, LoadedWeights), LmError> {
        #[cfg(feature = "scripted")]
        if model_type(config) == "scripted" {
            let model = scripted::Model::load(config::arguments(folder, config)?, &on_part)?;
            let traced_steps = options.traces_steps.then(TracedSteps::new);
            return Ok((Model::new(folder, model, traced_steps), LoadedWeights::default()));
        }
        (find(config)?.load)(Folder { path: folder, config, options, on_part })
    }

    /// Runs the model over `tokens` `[B, L]`, which follow the tokens in `caches`, and returns
    /// their hidden states `[B, L, D]`.
    pub fn forward(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        if let Some(traced_steps) = &self.0.traced_steps
            && let Some(hidden) = traced_steps.forward(&self.0, tokens, caches)
        {
            return Ok(hidden);
        }
        self.0.network.forward_tokens(tokens, caches)
    }

    /// How many decode steps came from a trace, or why the model cannot be traced; `None` where that was
    /// not asked for ([`LoadOptions::traces_steps`]), or where kernels of our own run instead.
    pub fn num_traced_steps(&self) -> Option<Result<usize, String>> {
        self.0.traced_steps.as_ref().map(TracedSteps::num_steps)
    }

    /// Why steps that were to be traced are not, once that has happened. The first call returns it, and
    /// those behind it none.
    pub fn take_tracing_problem(&self) -> Option<String> {
        self.0.traced_steps.as_ref()?.take_problem()
    }

    /// Token ids `[B, L]` to embeddings `[B, L, D]`.
    pub fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        self.0.network.embed(tokens)
    }

    /// As [`Model::forward`], from embeddings `[B, L, D]` instead of token ids.
    pub fn forward_embeddings(
        &self,
        embeddings: Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        self.0.network.forward(embeddings, caches)
    }

    /// Hidden states `[B, L, D]` to logits `[B, L, V]`. [`LmError::NoNumbers`] if the weights are
    /// damaged: the first call waits for the logits of the first token and looks at them.
    pub fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let logits = self.0.network.logits(hidden)?;
        if !self.0.has_numbers.get() {
            self.check_numbers(&logits)?;
            self.0.has_numbers.set(true);
        }
        Ok(logits)
    }

    /// Fails if a logit of the first token is NaN, or positive infinity, which gives no
    /// probability. Negative infinity is fine: it rules a token out.
    ///
    /// The first token of the first row is never padding. Damaged weights show in any token.
    fn check_numbers(&self, logits: &Array) -> Result<(), LmError> {
        let first = ffi::slice(logits, &[0, 0, 0], &[1, 1, logits.dim(2)])?; // [1, 1, V]
        let first = ops::reshape(first.as_dtype(Dtype::Float32)?, &[-1])?;
        // A comparison with NaN is false.
        if first.try_as_slice::<f32>()?.iter().all(|logit| *logit < f32::INFINITY) {
            Ok(())
        } else {
            Err(self.no_numbers())
        }
    }

    /// Fails unless the model has a head that predicts the token after the next.
    pub fn check_mtp_head(&self) -> Result<(), LmError> {
        self.mtp_head().map(drop)
    }

    /// Its head, see [`Model::check_mtp_head`].
    pub(crate) fn mtp_head(&self) -> Result<&dyn MtpHead, LmError> {
        self.0.network.mtp_head().map_err(|why| match why {
            NoMtpHead::Absent => LmError::NoMtpHead,
            NoMtpHead::Unusable(why) => LmError::UnusableMtpHead(why.clone()),
        })
    }

    /// Runs the head over hidden states `[B, L, D]` of tokens and the tokens `[B, L]` behind each, after
    /// the pairs in `caches`, and returns hidden states `[B, L, D]` of what follows. Fails without a
    /// head.
    pub fn forward_mtp(
        &self,
        tokens: &Array,
        hidden: &Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        self.mtp_head()?.forward(&self.embed(tokens)?, hidden, caches)
    }

    /// Empty caches of the head. Fails without a head.
    pub fn make_mtp_cache(&self) -> Result<Vec<LayerCache>, LmError> {
        Ok(self.mtp_head()?.cache_spec().make())
    }

    /// What tokens that are proposed have cost so far.
    pub(crate) fn pass_costs(&self) -> Rc<RefCell<PassCosts>> {
        Rc::clone(&self.0.pass_costs)
    }

    /// Empty caches, one per layer.
    pub fn make_cache(&self) -> Vec<LayerCache> {
        self.0.cache_spec.make()
    }

    /// What its caches are; the types that follow from the weights are unknown.
    pub fn cache_spec(&self) -> &CacheSpec {
        &self.0.cache_spec
    }

    /// What its caches are, with the types of all arrays. The first call builds the graph of one
    /// token, which is not evaluated.
    pub fn typed_cache_spec(&self) -> Result<&CacheSpec, LmError> {
        let LoadedNetwork { cache_spec, typed_cache_spec, .. } = &*self.0;
        if cache_spec.is_typed() {
            return Ok(cache_spec);
        }
        if let Some(known) = typed_cache_spec.get() {
            return Ok(known);
        }
        let mut caches = cache_spec.make();
        self.forward(&Array::from_slice(&[0u32], &[1, 1]), &mut caches)?;
        let typed = CacheSpec::of(&caches).ok_or(LmError::MixedCaches)?;
        Ok(typed_cache_spec.get_or_init(|| typed))
    }

    /// The revision of the architecture's numerics: caches of another revision must not be reused.
    pub fn numerics_revision(&self) -> u32 {
        self.0.network.numerics_revision()
    }

    /// The size of the vocabulary: token ids are smaller.
    pub fn vocab_size(&self) -> usize {
        self.0.network.vocab_size()
    }

    /// The most tokens that the model can attend to.
    pub fn context_length(&self) -> usize {
        self.0.network.context_length()
    }

    /// The length of a hidden vector. It follows from a graph that is not evaluated.
    pub fn hidden_size(&self) -> Result<usize, LmError> {
        Ok(self.embed(&Array::from_slice(&[0u32], &[1, 1]))?.dim(2) as usize)
    }

    /// The error of a model that computes no numbers.
    pub(crate) fn no_numbers(&self) -> LmError {
        LmError::NoNumbers { model: self.0.name.clone() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod attention_kernel_tests;

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod layer_kernel_tests;

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod node_count_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_of_the_same_family() {
        for (asked, expected) in [
            ("gemma3n_text", "gemma3_text"),
            ("Qwen2", "qwen2"),
            ("qwen3_vl_moe", "qwen3_moe"),
            ("granitemoe2", "granitemoe"),
            ("mamba", "mamba2"),
            ("phi4", "phi3"),
            ("smollm", "smollm3"),
            ("llama3", "llama"),
        ] {
            assert_eq!(nearest(asked), Some(expected), "{asked}");
        }
        for asked in ["", "zzz", "bert", "t5", "rwkv7", &"x".repeat(100_000)] {
            assert_eq!(nearest(asked), None, "{asked}");
        }
    }

    #[test]
    fn the_registry_is_in_order() {
        assert!(SUPPORTED.is_sorted_by_key(|known| known.model_type));
        for (alias, listed) in ALIASES {
            assert!(is_supported(alias) && is_supported(listed), "{alias}");
            assert!(SUPPORTED.iter().all(|known| known.model_type != *alias), "{alias}");
        }
    }
}
