//! Wire types of models: those on this machine, those of the hub, and downloads.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::failures::Failure;

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Model {
    /// `owner/name`, or the folder's name.
    pub name: String,
    /// Another name that a person has given it; no other model has the same.
    pub alias: Option<String>,
    /// It stays in memory until a person unloads it.
    pub is_pinned: bool,
    /// The folder with its files.
    pub path: String,
    /// config.json's `model_type`.
    pub model_type: String,
    #[ts(type = "number")]
    pub bytes: u64,
    pub source: ModelSource,
    /// Cairn may delete it. Others belong to other programs.
    pub can_delete: bool,
    /// Why this model cannot be loaded; none when it can.
    pub problem: Option<ModelProblem>,
    /// None until its files have been opened once, and of a model with a problem.
    pub facts: Option<ModelFacts>,
    /// Its files are being opened for the first time.
    pub is_being_checked: bool,
    /// While none is loaded, this one answers the chats that have no model of their own: it is loaded when
    /// one of them asks.
    pub is_proposed: bool,
    /// It is not loaded because Cairn quit unexpectedly twice while it was at work; `UseModelAnyway` ends
    /// that.
    pub is_set_aside: bool,
    /// What rounding costs it is being measured, or will be while nothing else is computed.
    pub is_being_measured: bool,
}

/// Where a model was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ModelSource {
    /// Imported into Cairn's own folder.
    Imported,
    /// In the cache that Hugging Face's tools share.
    HubCache,
    /// In LM Studio's folder, which Cairn only reads.
    LmStudio,
    /// In a folder that was added, which Cairn only reads.
    Added,
}

/// Why a model cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ModelProblem {
    pub kind: ModelProblemKind,
    /// What exactly, in a form that the interface says in its own language; none where only the reader of a
    /// file has said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub what: Option<ModelProblemWhat>,
    /// The same as a clause in English: "tokenizer.json is missing".
    pub detail: String,
}

/// What exactly is wrong with a model. `reason` is in English, of the system or a file's reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ModelProblemWhat {
    /// Its download did not finish.
    NoSnapshot,
    /// A file that it needs is not there.
    FileMissing { file: String },
    /// It has no weight file.
    NoWeights,
    /// A file cannot be read.
    FileUnreadable { file: String, reason: String },
    /// Its folder cannot be read.
    FolderUnreadable { reason: String },
    /// Nothing says what architecture it is of.
    NoModelType,
    /// Of an architecture that this version does not have, and the one with the nearest name, if one
    /// is near.
    Architecture { model_type: String, nearest: Option<String> },
    /// Opening its files takes more memory than this.
    TooMuchMemory {
        #[ts(type = "number")]
        limit_bytes: u64,
    },
    /// Opening its files takes longer than this.
    TooSlow {
        #[ts(type = "number")]
        seconds: u64,
    },
    /// The process that opened its files ended like this.
    Crashed { status: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ModelProblemKind {
    /// Files are missing: downloading the model again fetches the rest.
    Incomplete,
    /// No architecture of this version.
    Unsupported,
    /// A file does not contain what it should.
    Broken,
    /// Its folder or a file cannot be opened now, and may be whole.
    Unreadable,
    /// Opening its files took too much memory or time, so they are not opened again.
    Unsafe,
}

/// What the headers of a model say, before anything is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelFacts {
    #[ts(type = "number")]
    pub parameters: u64,
    /// None: its weights are not quantized.
    pub quantization_bits: Option<u32>,
    /// The most tokens of one conversation.
    pub context_length: u32,
    pub memory: MemoryNeed,
    /// Whether its chat template shows tools to it; otherwise the API tells it of them in a generic
    /// form. None: not known, as of a model that is not here.
    pub takes_tools: Option<bool>,
    /// How far its weights are from those of the file that it was imported from; none: they are the
    /// same, or it was not imported.
    pub rounded_weights: Option<RoundedWeights>,
}

/// A model that was imported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ImportedModel {
    /// Its name in the list.
    pub name: String,
    /// None: its weights are those of the file.
    pub rounded_weights: Option<RoundedWeights>,
    /// Without one it continues texts, and answers no chats.
    pub has_chat_template: bool,
}

/// Weights of types that have no exact form here, so that an import rounded them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, TS)]
pub struct RoundedWeights {
    /// How many tensors were rounded.
    pub num_tensors: u32,
    /// The root mean square of the changes, as a share of that of the weights.
    pub relative_error: f64,
    /// What that costs; none before it was measured.
    pub perplexity: Option<PerplexityChange>,
}

/// The perplexity of a short text with a file's own weights and with the rounded ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, TS)]
pub struct PerplexityChange {
    pub before: f64,
    pub after: f64,
}

/// Memory that a model takes with an ordinary chat and with its longest one, and whether this
/// machine has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct MemoryNeed {
    /// The length of the ordinary chat: 8192, or what the model reads at most if that is less.
    pub context_tokens: u32,
    #[ts(type = "number")]
    pub weight_bytes: u64,
    /// The keys and values of the ordinary chat.
    #[ts(type = "number")]
    pub kv_bytes: u64,
    /// All of it at most, with what a step needs besides.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// The length of the longest chat: the model's own limit, or the one that was set for it.
    pub longest_tokens: u32,
    /// The same as `total_bytes` with the longest chat.
    #[ts(type = "number")]
    pub longest_bytes: u64,
    /// What models may take on this machine.
    #[ts(type = "number")]
    pub budget_bytes: u64,
    /// Whether the ordinary chat fits.
    pub fit: Fit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    Well,
    /// It leaves less than a fifth of the budget.
    Tight,
    TooLarge,
}

/// A model in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct LoadedModel {
    pub name: String,
    /// Identifies its weights under any name.
    pub fingerprint: String,
    /// Of its weights, with those of its draft model.
    #[ts(type = "number")]
    pub bytes: u64,
    /// The name of its draft model.
    pub draft: Option<String>,
}

/// What deleting a model deletes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelDeletion {
    pub name: String,
    #[ts(type = "number")]
    pub bytes: u64,
    /// Other programs use its folder too.
    pub is_shared: bool,
    pub num_revisions: u32,
}

/// A model of which the hub has a newer version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelUpdate {
    pub name: String,
    /// What there is to download.
    #[ts(type = "number")]
    pub bytes: u64,
}

/// The versions of a model that were used before, as far as nothing else names them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct OldRevisions {
    pub name: String,
    pub count: u32,
    /// What removing them frees.
    #[ts(type = "number")]
    pub bytes: u64,
}

/// A model that is being copied into Cairn's own folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct ModelImport {
    pub file_name: String,
    #[ts(type = "number")]
    pub bytes: u64,
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// What its weights without an exact form can be rounded to, the smallest first: it waits for
    /// [`Command::ChooseRounding`](super::Command::ChooseRounding). Empty: it waits for nothing.
    pub choices: Vec<RoundingChoice>,
}

/// One way to import a file some of whose weights have no exact form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct RoundingChoice {
    pub form: RoundingForm,
    /// Of one import there is one that is proposed.
    pub is_proposed: bool,
    /// Of the model's weights on the disk.
    #[ts(type = "number")]
    pub bytes: u64,
    /// None: no architecture of this version.
    pub memory: Option<MemoryNeed>,
    /// The root mean square of the changes, as a share of that of the weights, estimated from a part
    /// of the weights.
    pub relative_error: f64,
}

/// What weights can be rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum RoundingForm {
    Bits4,
    Bits8,
    Bfloat16,
    /// Nothing is rounded.
    Float32,
}

/// A model that Cairn suggests. The app can load it, and it fits this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct RecommendedModel {
    /// Its name on the hub.
    pub name: String,
    /// As people call it: "Qwen3 4B".
    pub title: String,
    pub maker: String,
    /// "Apache 2.0"
    pub licence: String,
    #[ts(type = "number")]
    pub download_bytes: u64,
    pub facts: ModelFacts,
    /// For what it is offered first on this machine, in this order; a model may be the one for several.
    pub choices: Vec<ModelChoice>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ModelChoice {
    /// To start with.
    Start,
    /// Slower, with better answers.
    Better,
    Code,
}

/// A model that a search on the hub found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct FoundModel {
    pub name: String,
    /// In the last month.
    #[ts(type = "number")]
    pub downloads: u64,
    #[ts(type = "number")]
    pub likes: u64,
    pub is_gated: bool,
    /// Converted for MLX.
    pub is_mlx: bool,
    #[ts(type = "number | null")]
    pub parameters: Option<u64>,
    pub quantization_bits: Option<u32>,
    /// As the hub names it: "qwen3".
    pub model_type: Option<String>,
    #[ts(type = "number | null")]
    pub updated_at_ms: Option<i64>,
}

/// What the hub says about a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct HubModel {
    pub name: String,
    pub commit: String,
    /// The first paragraphs of its description, as plain text.
    pub description: Option<String>,
    /// Its short name: "apache-2.0".
    pub licence: Option<String>,
    pub is_gated: bool,
    /// The address of its page, to open in a browser.
    pub page: String,
    /// What a download fetches.
    pub files: Vec<HubFile>,
    #[ts(type = "number")]
    pub bytes: u64,
    /// Bytes that are not on this machine yet.
    #[ts(type = "number")]
    pub missing_bytes: u64,
    pub model_type: Option<String>,
    /// None where its config.json does not say.
    pub facts: Option<ModelFacts>,
    /// Why it could not be loaded; none if it could.
    pub problem: Option<ModelProblem>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct HubFile {
    pub path: String,
    #[ts(type = "number")]
    pub bytes: u64,
}

/// A download in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Download {
    pub name: String,
    pub state: DownloadState,
    #[ts(type = "number")]
    pub bytes: u64,
    /// 0 until the hub has said.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// None until it has run for a few seconds.
    pub bytes_per_second: Option<f64>,
    /// The time that the rest takes at this rate, rounded up to five seconds.
    pub seconds_left: Option<u32>,
    pub files: Vec<DownloadFile>,
    /// Why it has failed, or why it waits.
    pub failure: Option<Failure>,
    /// The page on which its terms can be accepted.
    pub page: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DownloadState {
    /// Others come first.
    Queued,
    Running,
    /// The hub cannot be reached; it is asked again after a while.
    Offline,
    Paused,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct DownloadFile {
    pub path: String,
    #[ts(type = "number")]
    pub bytes: u64,
    #[ts(type = "number")]
    pub total_bytes: u64,
    pub state: DownloadFileState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum DownloadFileState {
    Waiting,
    /// Another program is downloading the same file.
    Locked,
    /// What is here already is being read and compared.
    Checking,
    Running,
    Done,
}

/// Which hub is asked, and with what token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct HubAccess {
    /// Its address.
    pub endpoint: String,
    /// The folder that models are downloaded to.
    pub folder: String,
    /// The address that counts where the settings name none.
    pub default_endpoint: String,
    /// The folder that counts where the settings name none.
    pub default_folder: String,
    /// Of the token that is sent; none without one.
    pub token_place: Option<TokenPlace>,
    /// The hub that the saved token was entered for, where it is another one: the token is not sent.
    pub other_token_hub: Option<String>,
    /// The environment says that no hub is to be asked.
    pub is_offline: bool,
}

/// Where a token is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum TokenPlace {
    Keychain,
    /// A file in the data folder that only its owner can read, because there is no keychain.
    File,
    /// A variable, or the file of Hugging Face's tools. Cairn cannot remove it.
    Environment,
}
