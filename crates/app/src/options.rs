//! How the app is opened.

use std::path::PathBuf;
use std::time::Duration;

use cairn_engine::{GenerateRequest, KvQuantization, SnapKv, Speculation, use_metal_library};
use cairn_hub::{CacheVariables, HubOptions};
use serde_json::{Map, Value};

use crate::data_folder::DataFolder;
use crate::error::OpenError;
use crate::settings::Settings;

/// How long closing may take: a system that shuts down does not wait much longer.
const CLOSING_LIMIT: Duration = Duration::from_millis(1900);

/// How to open the app.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder.
    pub data_folder: DataFolder,
    /// The variables that locate the cache of downloaded models.
    pub hub_variables: CacheVariables,
    /// The hub that models are downloaded from; none: nothing is downloaded.
    pub hub: Option<HubOptions>,
    /// Whether the hub's access token is kept in the system's keychain.
    pub uses_keychain: bool,
    /// The program that opens the files of a new model for the first time, with the arguments of
    /// [`crate::run_child_if_asked`]; none: models are not checked before they are loaded.
    pub check_program: Option<PathBuf>,
    /// How long the engine has computed nothing before what rounding costs a model is measured.
    pub measures_after: Duration,
    /// Whether to load the default model at once, in the background.
    pub autoload: bool,
    /// How long [`crate::App::close`] may take; none: as long as it needs.
    pub closing_limit: Option<Duration>,
    /// The most bytes of models and answers together; none: what the device's memory leaves.
    pub memory_limit_bytes: Option<u64>,
    /// What proposes tokens for every answer; none: what each model's settings say.
    pub speculation: Option<ForcedSpeculation>,
    /// What every answer keeps of a long prompt, whatever a model's settings say; none: what they say.
    pub snapkv: Option<SnapKv>,
    /// How every answer quantizes its keys and values, whatever a model's settings say; none: what
    /// they say.
    pub kv_quantization: Option<ForcedKvQuantization>,
    /// The defaults of programs' answers, for requests that say nothing.
    pub answer_defaults: AnswerDefaults,
    /// Answers of one model that are decoded at once; none: as many as mlx-lm.
    pub completion_batch_size: Option<usize>,
    /// Prompts that are prefilled at once; none: as many as mlx-lm.
    pub prefill_batch_size: Option<usize>,
    /// Limits of saved context, which count before the settings.
    pub saved_context: SavedContextOptions,
    /// Whether saved context is coded, without loss, to take less of the disk, whatever the settings
    /// say.
    pub compresses_cache: bool,
    /// Why this machine cannot compute anything, as one sentence. The app then opens, but loads no
    /// model.
    pub device_failure: Option<String>,
}

/// How keys and values of every answer are quantized, whatever the settings say: from the first
/// token on, so that they can be saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForcedKvQuantization {
    /// Bits of a number: 2, 3, 4, 6 or 8.
    pub bits: i32,
    /// Numbers that share a scale: 32, 64 or 128; none: 64 where the model's heads allow it, or
    /// else 32.
    pub group_size: Option<i32>,
}

impl ForcedKvQuantization {
    /// The quantization for a model whose heads allow groups of this size; none if they allow none.
    pub(crate) fn for_model(self, own_group_size: Option<i32>) -> Option<KvQuantization> {
        let group_size = self.group_size.unwrap_or(own_group_size?);
        Some(KvQuantization { bits: self.bits, group_size, start: 0 })
    }
}

/// The defaults of the answers that programs ask for. A field that is none follows the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerDefaults {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// From 0 to 1; 1 turns it off.
    pub top_p: Option<f32>,
    /// How many of the likeliest tokens are kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// From 0 to 1; 0 turns it off.
    pub min_p: Option<f32>,
    /// The longest answer, in tokens.
    pub max_tokens: Option<usize>,
    /// Variables of the chat template.
    pub template_variables: Map<String, Value>,
    /// How many prompt tokens are read at once; at least 1.
    pub prefill_step_size: Option<usize>,
}

impl AnswerDefaults {
    /// Changes a request that was made with the settings.
    pub(crate) fn apply(&self, request: &mut GenerateRequest) {
        let sampling = &mut request.sampling;
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_p = self.top_p.unwrap_or(sampling.top_p);
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.min_p = self.min_p.unwrap_or(sampling.min_p);
        request.max_tokens = self.max_tokens.unwrap_or(request.max_tokens);
        request.template_variables.extend(self.template_variables.clone());
        request.prefill_step_size = self.prefill_step_size.unwrap_or(request.prefill_step_size);
    }
}

/// Limits of saved context, which count before the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SavedContextOptions {
    /// Saves nothing and uses nothing that was saved. What is on disk stays.
    pub is_off: bool,
    /// The limit on disk, in bytes; none: the setting.
    pub disk_budget_bytes: Option<u64>,
    /// The limit in memory, in bytes; none: the setting.
    pub memory_budget_bytes: Option<u64>,
}

impl SavedContextOptions {
    /// The limits on disk and in memory with these settings, in bytes.
    pub(crate) fn budgets(&self, settings: &Settings) -> (u64, u64) {
        let disk_bytes = self.disk_budget_bytes.unwrap_or(settings.cache_budget_bytes);
        let memory_bytes = self.memory_budget_bytes.unwrap_or(settings.cache_ram_budget_bytes);
        (disk_bytes, memory_bytes)
    }
}

/// What proposes tokens for every answer, whatever the settings say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForcedSpeculation {
    /// Nothing does.
    Off,
    /// As [`Speculation::Lookup`].
    Lookup {
        /// At least 1.
        num_tokens: usize,
    },
    /// As [`Speculation::Mtp`]; nothing for a model without a head.
    Mtp {
        /// At least 1.
        num_tokens: usize,
    },
    /// The draft model of all models, see [`crate::App::check_forced_draft`]; nothing for one that cannot use it.
    /// All of a long prompt is kept.
    Draft {
        /// Its name.
        model: String,
        /// At least 1.
        num_tokens: usize,
    },
    /// As [`Speculation::Auto`].
    Auto {
        /// The draft model of all models, if there is one.
        draft_model: Option<String>,
    },
}

impl ForcedSpeculation {
    /// The draft model of all models.
    pub fn draft_model(&self) -> Option<&str> {
        match self {
            ForcedSpeculation::Draft { model, .. } => Some(model),
            ForcedSpeculation::Auto { draft_model } => draft_model.as_deref(),
            ForcedSpeculation::Off
            | ForcedSpeculation::Lookup { .. }
            | ForcedSpeculation::Mtp { .. } => None,
        }
    }

    /// What proposes for a model with or without a draft model and a head.
    pub fn speculation(&self, has_draft: bool, has_head: bool) -> Speculation {
        match *self {
            ForcedSpeculation::Lookup { num_tokens } => Speculation::Lookup { num_tokens },
            ForcedSpeculation::Mtp { num_tokens } if has_head => Speculation::Mtp { num_tokens },
            ForcedSpeculation::Draft { num_tokens, .. } if has_draft => {
                Speculation::Draft { num_tokens }
            }
            ForcedSpeculation::Auto { .. } => Speculation::Auto,
            ForcedSpeculation::Off
            | ForcedSpeculation::Mtp { .. }
            | ForcedSpeculation::Draft { .. } => Speculation::Off,
        }
    }
}

impl Options {
    /// A data folder without anything beside it: no hub, no keychain, no shared cache.
    pub fn new(data_folder: DataFolder) -> Options {
        Options {
            data_folder,
            hub_variables: CacheVariables::default(),
            hub: None,
            uses_keychain: false,
            check_program: None,
            measures_after: Duration::from_secs(5),
            autoload: false,
            closing_limit: None,
            memory_limit_bytes: None,
            speculation: None,
            snapkv: None,
            kv_quantization: None,
            answer_defaults: AnswerDefaults::default(),
            completion_batch_size: None,
            prefill_batch_size: None,
            saved_context: SavedContextOptions::default(),
            compresses_cache: false,
            device_failure: None,
        }
    }

    /// The options that the environment sets, with a model loaded at once. Tells MLX where its
    /// Metal library is, so call it before anything else that uses MLX.
    pub fn from_environment() -> Result<Options, OpenError> {
        // A hub that cannot be used is no reason not to open: its commands say what is wrong.
        let hub = HubOptions::from_lookup(std::env::var_os)
            .inspect_err(|error| tracing::warn!("models cannot be downloaded: {error}"));
        let device_failure = use_metal_library().err().map(|error| error.to_string());
        Ok(Options {
            device_failure,
            hub_variables: CacheVariables::from_lookup(std::env::var_os),
            hub: hub.ok(),
            uses_keychain: true,
            check_program: std::env::current_exe().ok(),
            autoload: true,
            closing_limit: Some(CLOSING_LIMIT),
            ..Options::new(DataFolder::from_environment()?)
        })
    }
}
