//! Conversions between domain types and wire types, written by hand.

use cairn_chat::{CacheMiss, FinishReason, GenerationStats, Role, SamplingParams};
use cairn_engine::{
    AnswerToken, EngineError, KvCacheOptions, KvQuantization, LoadProgress, LoadedModelStatus,
    PromptFileLayout, PromptKind, SnapKv, Speculation,
};
use cairn_formats::gguf::RoundedWeights;
use cairn_hub::{DownloadError, HubError, ImportedModel, ModelFolder, ModelSource};
use cairn_prompt_cache::{ChunkKind, ChunkProblem, KvFormat, LossReason, Miss, MissReason};
use cairn_store::{DocumentKind, MessageStatus, NamedCacheKind, StoreError};

use crate::chat::segments::{AnswerSegment, Outcome};
use crate::models::catalog;
use crate::platform::ProcessMemory;
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire;

impl wire::Failure {
    pub(crate) fn new(code: wire::FailureCode, message: impl Into<String>) -> Self {
        wire::Failure { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(wire::FailureCode::Invalid, message)
    }
}

impl From<StoreError> for wire::Failure {
    fn from(error: StoreError) -> Self {
        use wire::FailureCode::{Invalid, NotFound, Storage};
        match error {
            StoreError::NoConversation { .. } => {
                Self::new(NotFound, "This conversation no longer exists.")
            }
            StoreError::NoMessage { .. } => Self::new(NotFound, "This message no longer exists."),
            StoreError::AlreadyStreaming { .. } => Self::new(
                Invalid,
                "This conversation is still being answered: wait or stop the answer first.",
            ),
            StoreError::NothingToAnswer { .. } => {
                Self::new(Invalid, "There is no message to answer yet.")
            }
            StoreError::NotAQuestion { .. } => {
                Self::new(Invalid, "Only a message of yours can be edited.")
            }
            StoreError::NotTheLastAnswer { .. } => {
                Self::new(Invalid, "Only the last answer of a conversation can go on.")
            }
            StoreError::NoDeletion { .. } => {
                Self::new(NotFound, "These messages can no longer be brought back.")
            }
            StoreError::NoDocument { .. } => Self::new(NotFound, "This document no longer exists."),
            StoreError::NoNamedCache { .. } => {
                Self::new(NotFound, "This starting point no longer exists.")
            }
            StoreError::NameInUse { name } => Self::new(
                Invalid,
                format!("There is already a starting point with the name “{name}”."),
            ),
            StoreError::NoJob { .. } => {
                Self::new(NotFound, "This job, or this row of it, no longer exists.")
            }
            StoreError::NoFolder { .. } => Self::new(NotFound, "This folder no longer exists."),
            StoreError::NoPreset { .. } => Self::new(NotFound, "This preset no longer exists."),
            StoreError::NoPersona { .. } => Self::new(NotFound, "This persona no longer exists."),
            StoreError::NoApiKey { .. } => Self::new(NotFound, "This key no longer exists."),
            StoreError::KeyNameInUse { name } => {
                Self::new(Invalid, format!("There is already a key with the name “{name}”."))
            }
            other => Self::new(Storage, sentence(other)),
        }
    }
}

impl From<EngineError> for wire::Failure {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::NoModel => wire::FailureCode::NoModel,
            _ => wire::FailureCode::Engine,
        };
        Self::new(code, sentence(error))
    }
}

impl From<HubError> for wire::Failure {
    fn from(error: HubError) -> Self {
        let code = match error {
            HubError::NotFound { .. } => wire::FailureCode::NotFound,
            HubError::BadName { .. }
            | HubError::Exists { .. }
            | HubError::LinkOut { .. }
            | HubError::ReadOnly { .. }
            | HubError::NoModelFile { .. }
            | HubError::Gguf { .. }
            | HubError::Cancelled
            | HubError::Downloading { .. } => wire::FailureCode::Invalid,
            HubError::Copy { .. } | HubError::Delete { .. } => wire::FailureCode::Storage,
            HubError::Unusable { .. } => wire::FailureCode::Engine,
        };
        Self::new(code, sentence(error))
    }
}

/// An error as an interface shows it. Errors are written to follow a colon; shown alone they begin
/// and end as sentences. A model's, a file's or a host's name at the beginning stays as it is.
pub(crate) fn sentence(error: impl ToString) -> String {
    let text = error.to_string();
    let first = text.split_whitespace().next().unwrap_or_default();
    let is_name = first.trim_end_matches(['.', ',', ':']).contains(['/', '.', ':', '_']);
    let mut rest = text.chars();
    let mut sentence: String = match is_name {
        true => rest.collect(),
        false => rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect(),
    };
    if !sentence.ends_with(['.', '!', '?', '…']) {
        sentence.push('.');
    }
    sentence
}

impl From<DownloadError> for wire::Failure {
    fn from(error: DownloadError) -> Self {
        use wire::FailureCode::{Gated, Hub, Invalid, NeedsToken, NoSpace, NotFound, Offline};
        use wire::FailureCode::{Storage, Unauthorized};
        let code = match error {
            DownloadError::Offline { .. } => Offline,
            DownloadError::Gated { .. } => Gated,
            DownloadError::Unauthorized { has_token: false, .. } => NeedsToken,
            DownloadError::Unauthorized { .. } | DownloadError::Forbidden { .. } => Unauthorized,
            DownloadError::NoSpace { .. } => NoSpace,
            DownloadError::NoCacheFolder | DownloadError::CacheFolder { .. } => Storage,
            DownloadError::NotFound { .. } | DownloadError::RevisionNotFound { .. } => NotFound,
            DownloadError::BadRepo { .. }
            | DownloadError::BadRevision { .. }
            | DownloadError::BadEndpoint { .. }
            | DownloadError::BadProxy { .. }
            | DownloadError::BadToken => Invalid,
            _ => Hub,
        };
        Self::new(code, sentence(error))
    }
}

/// A model's row by what its folder lists; of what its files contain nothing is known yet.
pub(crate) fn model(folder: ModelFolder) -> wire::Model {
    let problem = folder.problem.map(|problem| wire::ModelProblem {
        kind: match problem.kind() {
            cairn_hub::ModelProblemKind::Incomplete => wire::ModelProblemKind::Incomplete,
            cairn_hub::ModelProblemKind::Broken => wire::ModelProblemKind::Broken,
        },
        detail: problem.to_string(),
    });
    let unsupported = folder.model_type.as_deref().and_then(catalog::unsupported);
    wire::Model {
        name: folder.name,
        alias: None,
        is_pinned: false,
        path: folder.path.to_string_lossy().into_owned(),
        model_type: folder.model_type.unwrap_or_default(),
        bytes: folder.bytes,
        source: match folder.source {
            ModelSource::Imported => wire::ModelSource::Imported,
            ModelSource::HubCache => wire::ModelSource::HubCache,
            ModelSource::LmStudio => wire::ModelSource::LmStudio,
            ModelSource::Added => wire::ModelSource::Added,
        },
        can_delete: folder.source.is_deletable(),
        problem: problem.or(unsupported),
        facts: None,
        is_being_checked: false,
    }
}

pub(crate) fn imported_model(model: ImportedModel) -> wire::ImportedModel {
    // Imported models come first in the list, so its folder's name is its own.
    let name = model.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    wire::ImportedModel { name, rounded_weights: model.rounded_weights.map(rounded_weights) }
}

pub(crate) fn rounded_weights(rounded: RoundedWeights) -> wire::RoundedWeights {
    let RoundedWeights { num_tensors, relative_error } = rounded;
    let num_tensors = u32::try_from(num_tensors).unwrap_or(u32::MAX);
    wire::RoundedWeights { num_tensors, relative_error }
}

pub(crate) fn conversation(
    row: cairn_store::Conversation,
    is_streaming: bool,
    cache: Option<wire::ConversationCache>,
) -> wire::Conversation {
    wire::Conversation {
        id: row.id,
        title: row.title,
        system_prompt: row.system_prompt,
        created_at_ms: row.created_at_ms,
        updated_at_ms: row.updated_at_ms,
        is_streaming,
        is_private: false,
        is_pinned: row.is_pinned,
        is_archived: row.archived_at_ms.is_some(),
        folder_id: row.folder_id,
        persona_id: row.persona_id,
        cache,
        prefix: row.prefix.map(|prefix| wire::ConversationPrefix {
            name: prefix.name,
            tokens: u32::try_from(prefix.num_tokens).unwrap_or(0),
            start_text: prefix.start_text,
            end_text: prefix.end_text,
            is_imported: prefix.is_imported,
        }),
    }
}

/// A message for the interface, without its versions; none for a system message, which the interface
/// does not show.
pub(crate) fn message(row: cairn_store::Message) -> Option<wire::Message> {
    let can_continue = row_can_continue(&row);
    let role = match row.role {
        Role::User => wire::Role::User,
        Role::Assistant => wire::Role::Assistant,
        Role::System => return None,
    };
    let (text, segments) = match role {
        wire::Role::User => (row.text, Vec::new()),
        wire::Role::Assistant => {
            let stored = AnswerSegment::stored(row.segments.as_deref(), &row.text);
            let segments: Vec<_> = stored.into_iter().map(segment).collect();
            (readable(&segments), segments)
        }
    };
    Some(wire::Message {
        id: row.id,
        conversation_id: row.conversation_id,
        parent_id: row.parent_id,
        role,
        status: message_status(row.status),
        text,
        segments,
        documents: Vec::new(),
        is_held: false,
        error: row.error,
        created_at_ms: row.created_at_ms,
        stats: row.stats.map(message_stats),
        model: row.model,
        versions: Vec::new(),
        can_continue,
        cut: None,
    })
}

pub(crate) fn document(row: cairn_store::Document) -> wire::Document {
    wire::Document {
        id: row.id,
        name: row.name,
        kind: match row.kind {
            DocumentKind::Text => wire::DocumentKind::Text,
            DocumentKind::Code => wire::DocumentKind::Code,
            DocumentKind::Markdown => wire::DocumentKind::Markdown,
            DocumentKind::Csv => wire::DocumentKind::Csv,
            DocumentKind::Html => wire::DocumentKind::Html,
            DocumentKind::Pdf => wire::DocumentKind::Pdf,
        },
        num_bytes: u64::try_from(row.num_bytes).unwrap_or(0),
        tokens: row.counted.and_then(|(count, _)| u32::try_from(count).ok()),
    }
}

pub(crate) fn document_kind_of_wire(kind: wire::DocumentKind) -> DocumentKind {
    match kind {
        wire::DocumentKind::Text => DocumentKind::Text,
        wire::DocumentKind::Code => DocumentKind::Code,
        wire::DocumentKind::Markdown => DocumentKind::Markdown,
        wire::DocumentKind::Csv => DocumentKind::Csv,
        wire::DocumentKind::Html => DocumentKind::Html,
        wire::DocumentKind::Pdf => DocumentKind::Pdf,
    }
}

/// Whether a stored message is an answer that can go on.
pub(crate) fn row_can_continue(row: &cairn_store::Message) -> bool {
    let (token_ids, model) = (row.token_ids.as_deref(), row.model.as_deref());
    row.role == Role::Assistant && can_continue(row.status, token_ids, row.stats.as_ref(), model)
}

/// Whether an answer can go on: it broke off, and its tokens and the model that they are of are known.
pub(crate) fn can_continue(
    status: MessageStatus,
    token_ids: Option<&[u32]>,
    stats: Option<&GenerationStats>,
    model: Option<&str>,
) -> bool {
    let has_broken_off = match status {
        MessageStatus::Stopped | MessageStatus::Interrupted | MessageStatus::Failed => true,
        MessageStatus::Complete => {
            stats.is_some_and(|stats| stats.finish_reason == FinishReason::Length)
        }
        MessageStatus::Streaming => false,
    };
    has_broken_off && model.is_some() && token_ids.is_some_and(|ids| !ids.is_empty())
}

/// A token of an answer with what could stand in its place. A token that ends an answer has no text to
/// show.
pub(crate) fn token_probability(token: AnswerToken) -> wire::TokenProbability {
    let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
    let probability = |logprob: f32| finite(f64::from(logprob).exp().min(1.0));
    let text = |text: String, ends: bool| if ends { String::new() } else { text };
    let likeliest = token.top.into_iter().map(|top| wire::LikelyToken {
        token: top.token,
        text: text(top.text, top.ends),
        probability: probability(top.logprob),
        ends_answer: top.ends,
    });
    wire::TokenProbability {
        token: token.token,
        probability: probability(token.logprob),
        rank: tokens(token.rank),
        entropy_bits: finite(token.entropy_bits.into()).max(0.0),
        likeliest: likeliest.collect(),
        text: text(token.text, token.ends),
        ends_answer: token.ends,
    }
}

/// What a person reads of an answer, without reasoning and tool calls.
pub(crate) fn readable(segments: &[wire::AnswerSegment]) -> String {
    let texts = segments.iter().filter_map(|segment| match segment {
        wire::AnswerSegment::Text { text } => Some(text.as_str()),
        wire::AnswerSegment::Reasoning { .. } | wire::AnswerSegment::ToolCall { .. } => None,
    });
    texts.collect::<Vec<_>>().join("\n\n")
}

pub(crate) fn folder(row: cairn_store::Folder) -> wire::Folder {
    let cairn_store::Folder { id, name, system_prompt, model, .. } = row;
    wire::Folder { id, name, system_prompt, model }
}

pub(crate) fn preset(row: cairn_store::Preset) -> wire::Preset {
    let values = settings_of(Some(&row.setting_overrides));
    wire::Preset { id: row.id, name: row.name, values }
}

pub(crate) fn persona(row: cairn_store::Persona) -> wire::Persona {
    let values = settings_of(row.setting_overrides.as_deref());
    let cairn_store::Persona { id, name, system_prompt, model, .. } = row;
    wire::Persona { id, name, system_prompt, model, values }
}

/// Saved values of settings, without those that are not allowed any more.
fn settings_of(saved: Option<&str>) -> wire::SettingValues {
    SettingOverrides::parse(SettingScope::Persona, saved).into_values()
}

pub(crate) fn found(found: cairn_store::FoundConversation) -> wire::FoundMessage {
    let piece = |(text, is_match)| wire::ExcerptPiece { text, is_match };
    wire::FoundMessage {
        conversation_id: found.conversation_id,
        message_id: found.message_id,
        role: match found.role {
            Role::Assistant => wire::Role::Assistant,
            Role::User | Role::System => wire::Role::User,
        },
        created_at_ms: found.created_at_ms,
        num_messages: found.num_messages,
        excerpt: found.excerpt.into_iter().map(piece).collect(),
        document: found.document.map(|found| wire::FoundDocument {
            document: document(found.document),
            at_utf16: found.at_utf16,
        }),
    }
}

pub(crate) fn segment(segment: AnswerSegment) -> wire::AnswerSegment {
    match segment {
        AnswerSegment::Text { text } => wire::AnswerSegment::Text { text },
        AnswerSegment::Reasoning { text, began_at_ms, duration_ms } => {
            wire::AnswerSegment::Reasoning { text, began_at_ms, duration_ms }
        }
        AnswerSegment::ToolCall { name, arguments, outcome, raw } => {
            let outcome = outcome.map(|outcome| match outcome {
                Outcome::Complete => wire::CallOutcome::Complete,
                Outcome::Unfinished => wire::CallOutcome::Unfinished,
                Outcome::Malformed => wire::CallOutcome::Malformed,
            });
            wire::AnswerSegment::ToolCall { name, arguments, outcome, raw }
        }
    }
}

pub(crate) fn message_status(status: MessageStatus) -> wire::MessageStatus {
    match status {
        MessageStatus::Streaming => wire::MessageStatus::Streaming,
        MessageStatus::Complete => wire::MessageStatus::Complete,
        MessageStatus::Stopped => wire::MessageStatus::Stopped,
        MessageStatus::Interrupted => wire::MessageStatus::Interrupted,
        MessageStatus::Failed => wire::MessageStatus::Failed,
    }
}

pub(crate) fn message_stats(stats: GenerationStats) -> wire::MessageStats {
    wire::MessageStats {
        model: stats.model,
        finish_reason: match stats.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        }
        .to_owned(),
        prompt_tokens: tokens(stats.num_prompt_tokens),
        cached_tokens: tokens(stats.num_cached_tokens),
        kept_tokens: stats.num_kept_tokens.map(tokens),
        cache_note: stats.cache_note,
        miss: stats.miss.and_then(stored_miss),
        saved_ms: stats.saved_ms.map(figure),
        generation_tokens: tokens(stats.num_generation_tokens),
        queue_ms: figure(stats.queue_ms),
        prompt_tps: figure(stats.prompt_tps),
        generation_tps: figure(stats.generation_tps),
        time_to_first_token_ms: figure(stats.time_to_first_token_ms),
        process_bytes: stats.process_bytes,
        process_peak_bytes: stats.process_peak_bytes,
        mlx_active_bytes: stats.mlx_active_bytes,
        mlx_peak_bytes: stats.mlx_peak_bytes,
    }
}

pub(crate) fn engine_state(state: cairn_engine::EngineState) -> wire::EngineState {
    use cairn_engine::EngineState as From;
    use wire::EngineState as To;
    match state {
        From::Empty => To::Empty,
        From::Loading { model, progress: LoadProgress { bytes_read, total_bytes } } => {
            To::Loading { model, bytes_read, total_bytes }
        }
        From::Ready { model } => To::Ready { model },
        From::Prefilling { model, processed_tokens, total_tokens } => To::Prefilling {
            model,
            processed_tokens: tokens(processed_tokens),
            total_tokens: tokens(total_tokens),
        },
        From::Generating { model, generation_tokens, generation_tps } => To::Generating {
            model,
            generation_tokens: tokens(generation_tokens),
            generation_tps: figure(generation_tps),
        },
        From::Failed { model, message } => To::Failed { model, message: sentence(message) },
    }
}

pub(crate) fn status(
    engine: cairn_engine::EngineStatus,
    device: &str,
    memory: ProcessMemory,
) -> wire::Status {
    wire::Status {
        engine: engine_state(engine.state),
        model_fingerprint: engine.model_fingerprint,
        models: engine.models.into_iter().map(loaded_model).collect(),
        device: device.to_owned(),
        process_bytes: memory.now,
        process_peak_bytes: memory.peak,
        mlx_active_bytes: engine.mlx_active_bytes,
        mlx_peak_bytes: engine.mlx_peak_bytes,
        mlx_cache_bytes: engine.mlx_cache_bytes,
        cache_disk_bytes: engine.cache_disk_bytes,
        cache_ram_bytes: engine.cache_memory_bytes,
    }
}

fn loaded_model(model: cairn_engine::LoadedModelStatus) -> wire::LoadedModel {
    let LoadedModelStatus { name, weight_bytes, draft, .. } = model;
    wire::LoadedModel { name, bytes: weight_bytes, draft }
}

/// How keys and values are stored with these settings by a model that can quantize them in groups
/// of this size. One that cannot keeps them as they are.
pub(crate) fn kv_cache(settings: &wire::Settings, group_size: Option<i32>) -> KvCacheOptions {
    let snapkv = |keep_tokens| SnapKv { keep_tokens: keep_tokens as usize, min_context: 0 };
    let bits = match settings.kv_bits {
        wire::KvBits::Plain => {
            let snapkv = settings.keep_tokens.map(snapkv);
            return KvCacheOptions { snapkv, ..KvCacheOptions::default() };
        }
        wire::KvBits::EightBits => 8,
        wire::KvBits::FourBits => 4,
    };
    let quantization = group_size.map(|group_size| KvQuantization { bits, group_size, start: 0 });
    KvCacheOptions { quantization, ..KvCacheOptions::default() }
}

/// What proposes tokens with these settings, if no draft model does.
pub(crate) fn speculation(settings: &wire::Settings) -> Speculation {
    match settings.speed {
        wire::Speed::Plain => Speculation::Off,
        wire::Speed::Automatic => Speculation::Auto,
    }
}

pub(crate) fn cache_kind(kind: ChunkKind) -> wire::CacheKind {
    match kind {
        ChunkKind::System => wire::CacheKind::System,
        ChunkKind::User => wire::CacheKind::User,
        ChunkKind::Assistant => wire::CacheKind::Assistant,
    }
}

pub(crate) fn file_layout(layout: wire::CacheFileLayout) -> PromptFileLayout {
    match layout {
        wire::CacheFileLayout::V0_32 => PromptFileLayout::V0_32,
        wire::CacheFileLayout::V0_30 => PromptFileLayout::V0_30,
    }
}

/// The engine's kind for how a starting point ends.
pub(crate) fn prompt_kind(kind: NamedCacheKind) -> PromptKind {
    match kind {
        NamedCacheKind::Prompt => PromptKind::Prompt,
        NamedCacheKind::Conversation => PromptKind::Conversation,
    }
}

/// The parts of a miss, for the interface's own sentence and for what prevents it the next time.
/// Stored with the answer.
pub(crate) fn cache_miss(miss: &Miss) -> CacheMiss {
    let (cause, detail, at_ms) = miss_cause(&miss.reason);
    let cause = cause.name().to_owned();
    CacheMiss { num_tokens: miss.num_tokens, cause, detail, at_ms }
}

/// The cause of a miss, what it names, and when it happened.
fn miss_cause(reason: &MissReason) -> (wire::MissCause, Option<String>, Option<i64>) {
    use wire::MissCause as Cause;
    match reason {
        // Which one it was, the answer's conversation knows.
        MissReason::SystemPromptChanged { .. } => (Cause::SystemPromptChanged, None, None),
        MissReason::MessageChanged { .. } => (Cause::MessageChanged, None, None),
        MissReason::OtherModel { name } => (Cause::OtherModel, Some(name.clone()), None),
        MissReason::OtherRevision => (Cause::OtherRevision, None, None),
        MissReason::OtherKvFormat { before, .. } => {
            (Cause::OtherKvFormat, kv_bits(*before).map(str::to_owned), None)
        }
        MissReason::ImportedAgain => (Cause::ImportedAgain, None, None),
        MissReason::Lost { reason, at_ms } => {
            let (cause, detail) = loss_cause(reason);
            (cause, detail, Some(*at_ms))
        }
        MissReason::Unusable(ChunkProblem::Missing) => (Cause::FileMissing, None, None),
        MissReason::Unusable(ChunkProblem::Unreadable(why)) => {
            (Cause::Unreadable, Some(why.clone()), None)
        }
        MissReason::Unusable(ChunkProblem::Damaged(_)) => (Cause::Damaged, None, None),
        MissReason::Unusable(ChunkProblem::NotRestorable(why)) => {
            (Cause::NotRestorable, Some(why.clone()), None)
        }
        MissReason::NotWritten(why) => (Cause::NotWritten, Some(why.clone()), None),
        MissReason::NotStored => (Cause::NotStored, None, None),
    }
}

fn loss_cause(reason: &LossReason) -> (wire::MissCause, Option<String>) {
    use wire::MissCause as Cause;
    match reason {
        LossReason::DiskBudget => (Cause::DiskLimit, None),
        LossReason::MemoryBudget => (Cause::MemoryLimit, None),
        LossReason::Deleted => (Cause::Deleted, None),
        LossReason::Cleared => (Cause::Cleared, None),
        LossReason::FileMissing => (Cause::FileMissing, None),
        LossReason::FileDamaged | LossReason::RecordDamaged => (Cause::Damaged, None),
        LossReason::RemovedByAnotherProgram => (Cause::RemovedByAnotherProgram, None),
        LossReason::NotWritten(why) => (Cause::NotWritten, Some(why.clone())),
        LossReason::OnlyInMemory => (Cause::OnlyInMemory, None),
        LossReason::EarlierVersion => (Cause::EarlierVersion, None),
        LossReason::Other(text) => (Cause::Other, Some(text.clone())),
    }
}

/// The value of the setting with which keys and values are stored like this; none where none does.
fn kv_bits(format: KvFormat) -> Option<&'static str> {
    match format {
        KvFormat::Plain => Some("plain"),
        KvFormat::Quantized { bits: 8, .. } => Some("eight_bits"),
        KvFormat::Quantized { bits: 4, .. } => Some("four_bits"),
        KvFormat::Quantized { .. } | KvFormat::Compressed { .. } => None,
    }
}

/// A stored miss; one of a cause that this version does not know has only its text.
pub(crate) fn stored_miss(miss: CacheMiss) -> Option<wire::CacheMiss> {
    let CacheMiss { num_tokens, cause, detail, at_ms } = miss;
    let cause = wire::MissCause::named(&cause)?;
    Some(wire::CacheMiss { tokens: tokens(num_tokens), cause, detail, at_ms })
}

/// Why less of a prompt was read from the prompt cache than could be expected. Stored with the
/// answer; the interface shows it in its own words.
pub(crate) fn cache_note(miss: &Miss, now_ms: i64) -> String {
    format!("re-read {} tokens: {}", group(miss.num_tokens), miss_reason(&miss.reason, now_ms))
}

/// The same of an answer before which the oldest turns were cut off: everything but what the prompt was
/// found to begin with.
pub(crate) fn cut_note(num_read: usize) -> String {
    format!("re-read {} tokens: the oldest messages are no longer part of it", group(num_read))
}

/// The parts of that.
pub(crate) fn cut_miss(num_read: usize) -> CacheMiss {
    let cause = wire::MissCause::OldestForgotten.name().to_owned();
    CacheMiss { num_tokens: num_read, cause, detail: None, at_ms: None }
}

pub(crate) fn context_cut(cut: cairn_store::ContextCut) -> wire::ContextCut {
    wire::ContextCut { summary: cut.summary }
}

fn miss_reason(reason: &MissReason, now_ms: i64) -> String {
    match reason {
        MissReason::SystemPromptChanged { at_token } => {
            format!("the system prompt changed at token {}", group(*at_token))
        }
        MissReason::MessageChanged { at_token } => {
            format!("an earlier message changed at token {}", group(*at_token))
        }
        MissReason::OtherModel { name } => format!("another model read it before: {name}"),
        MissReason::OtherRevision => "the model's files have changed since it was read".to_owned(),
        MissReason::OtherKvFormat { before, now } => {
            let (before, now) = (stored_as(*before), stored_as(*now));
            format!("it was saved {before} before, and is saved {now} now")
        }
        MissReason::ImportedAgain => {
            "the starting point it continues was imported again".to_owned()
        }
        MissReason::Lost { reason, at_ms } => {
            format!("{}, {}", loss_reason(reason), ago(now_ms.saturating_sub(*at_ms)))
        }
        MissReason::Unusable(problem) => chunk_problem(problem),
        MissReason::NotWritten(problem) => problem.clone(),
        MissReason::NotStored => {
            "this part of the conversation was not saved, or has been evicted".to_owned()
        }
    }
}

/// How an answer is sampled. The settings are within range, and single precision is what models
/// are sampled with.
pub(crate) fn sampling(settings: &wire::Settings) -> SamplingParams {
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

/// How keys and values are stored, as part of a sentence.
fn stored_as(format: KvFormat) -> String {
    match format {
        KvFormat::Plain => "as computed".to_owned(),
        KvFormat::Quantized { bits, .. } => format!("in {bits} bits"),
        KvFormat::Compressed { keep_tokens } => {
            format!("with the {} most important tokens", group(keep_tokens as usize))
        }
    }
}

/// What is wrong with a stored chunk, as part of a sentence.
fn chunk_problem(problem: &ChunkProblem) -> String {
    match problem {
        ChunkProblem::Missing => "the file of a saved part is missing".to_owned(),
        ChunkProblem::Unreadable(reason) => format!("a saved part cannot be read ({reason})"),
        ChunkProblem::Damaged(None) => {
            "a saved part is damaged (its contents have changed since it was written)".to_owned()
        }
        ChunkProblem::Damaged(Some(reason)) => format!("a saved part is damaged ({reason})"),
        ChunkProblem::NotRestorable(reason) => {
            format!("a saved part could not be brought back into memory ({reason})")
        }
    }
}

/// Why saved context was lost, as part of a sentence.
pub(crate) fn loss_reason(reason: &LossReason) -> String {
    match reason {
        LossReason::DiskBudget => "evicted to stay within the disk limit".to_owned(),
        LossReason::MemoryBudget => {
            "evicted from memory to stay within the memory limit, and it was not on disk".to_owned()
        }
        LossReason::Deleted => "deleted by hand".to_owned(),
        LossReason::Cleared => "the saved context was deleted".to_owned(),
        LossReason::FileMissing => "its file is missing".to_owned(),
        LossReason::FileDamaged => "its file is damaged".to_owned(),
        LossReason::RecordDamaged => "the database's entry of it was damaged".to_owned(),
        LossReason::RemovedByAnotherProgram => "removed by another program".to_owned(),
        LossReason::NotWritten(problem) => format!("it was not saved, because {problem}"),
        LossReason::OnlyInMemory => "it was not saved on disk, only in memory".to_owned(),
        LossReason::EarlierVersion => "saved by an earlier version".to_owned(),
        LossReason::Other(text) => text.clone(),
    }
}

/// A duration before now, such as "2 hours ago".
fn ago(milliseconds: i64) -> String {
    let minutes = milliseconds / 60_000;
    let (count, unit) = match minutes {
        ..1 => return "a moment ago".to_owned(),
        1..60 => (minutes, "minute"),
        60..1440 => (minutes / 60, "hour"),
        _ => (minutes / 1440, "day"),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} ago")
}

/// 3100 as "3,100".
fn group(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of tokens; no context reaches 2^32.
pub(crate) fn tokens(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A measured figure that JSON can represent: JSON has neither infinity nor NaN, which a division
/// by zero time yields. Rounded, because digits beyond precision may not survive a round trip
/// through text.
pub(crate) fn figure(value: f64) -> f64 {
    if value.is_finite() { (value * 1000.0).round() / 1000.0 } else { 0.0 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn store_errors_become_codes_that_the_interface_acts_on() {
        fn check(error: StoreError, code: wire::FailureCode) {
            let text = error.to_string();
            assert_eq!(wire::Failure::from(error).code, code, "for {text}");
        }
        let id = || "x".to_owned();
        check(StoreError::NoConversation { id: id() }, wire::FailureCode::NotFound);
        check(StoreError::NoMessage { id: id() }, wire::FailureCode::NotFound);
        check(StoreError::AlreadyStreaming { conversation_id: id() }, wire::FailureCode::Invalid);
        check(StoreError::NothingToAnswer { conversation_id: id() }, wire::FailureCode::Invalid);
        check(StoreError::Full { path: PathBuf::from("/d") }, wire::FailureCode::Storage);
        check(StoreError::NotWritable { path: PathBuf::from("/d") }, wire::FailureCode::Storage);
    }

    #[test]
    fn an_error_is_shown_as_a_sentence() {
        fn check(error: &str, expected: &str) {
            assert_eq!(sentence(error), expected);
        }
        check("no model is loaded: choose one first", "No model is loaded: choose one first.");
        check("/data/cairn.db is damaged", "/data/cairn.db is damaged.");
        check("owner/name is private", "owner/name is private.");
        check("notes.gguf cannot be imported", "notes.gguf cannot be imported.");
        check("hub.example cannot be reached", "hub.example cannot be reached.");
        check("Cairn is closing.", "Cairn is closing.");
        check("", ".");
    }

    #[test]
    fn figures_are_rounded_and_those_that_json_cannot_hold_become_zero() {
        fn check(value: f64, expected: f64) {
            assert_eq!(figure(value), expected);
            assert_eq!(
                serde_json::from_str::<f64>(&serde_json::to_string(&figure(value)).unwrap())
                    .unwrap(),
                expected
            );
        }
        check(1.5, 1.5);
        check(1069.603668126722, 1069.604);
        check(f64::NAN, 0.0);
        check(f64::INFINITY, 0.0);
    }

    const DAY_MS: i64 = 86_400_000;

    #[test]
    fn each_miss_is_a_sentence_with_its_reason() {
        fn check(num_tokens: usize, reason: MissReason, expected: &str) {
            assert_eq!(cache_note(&Miss { num_tokens, reason }, 10 * DAY_MS), expected);
        }
        check(
            3_188,
            MissReason::SystemPromptChanged { at_token: 12 },
            "re-read 3,188 tokens: the system prompt changed at token 12",
        );
        check(
            1_700,
            MissReason::MessageChanged { at_token: 1_500 },
            "re-read 1,700 tokens: an earlier message changed at token 1,500",
        );
        check(
            5,
            MissReason::OtherModel { name: "n".to_owned() },
            "re-read 5 tokens: another model read it before: n",
        );
        let before = KvFormat::Quantized { bits: 8, group_size: 64 };
        check(
            5,
            MissReason::OtherKvFormat { before, now: KvFormat::Plain },
            "re-read 5 tokens: it was saved in 8 bits before, and is saved as computed now",
        );
        check(
            1_002_944,
            MissReason::Lost { reason: LossReason::DiskBudget, at_ms: 8 * DAY_MS },
            "re-read 1,002,944 tokens: evicted to stay within the disk limit, 2 days ago",
        );
        check(
            5,
            MissReason::Unusable(ChunkProblem::Damaged(None)),
            "re-read 5 tokens: a saved part is damaged (its contents have changed since it was written)",
        );
    }

    #[test]
    fn each_miss_has_a_cause_that_survives_being_stored() {
        use wire::MissCause as Cause;
        let mut seen = Vec::new();
        let mut check = |reason: MissReason, cause: Cause, detail: Option<&str>| {
            let miss = cache_miss(&Miss { num_tokens: 7, reason });
            // As a row of an answer has it.
            let stored = serde_json::to_string(&miss).unwrap();
            let found = stored_miss(serde_json::from_str(&stored).unwrap()).unwrap();
            let found_detail = found.detail.as_deref();
            assert_eq!((found.tokens, found.cause, found_detail), (7, cause, detail));
            assert_eq!(serde_json::to_value(cause).unwrap(), miss.cause, "the wire has this name");
            seen.push(cause);
        };
        let text = || "why".to_owned();
        check(MissReason::SystemPromptChanged { at_token: 1 }, Cause::SystemPromptChanged, None);
        check(MissReason::MessageChanged { at_token: 1 }, Cause::MessageChanged, None);
        check(MissReason::OtherModel { name: text() }, Cause::OtherModel, Some("why"));
        check(MissReason::OtherRevision, Cause::OtherRevision, None);
        for (before, expected) in [
            (KvFormat::Plain, Some("plain")),
            (KvFormat::Quantized { bits: 8, group_size: 64 }, Some("eight_bits")),
            (KvFormat::Quantized { bits: 4, group_size: 32 }, Some("four_bits")),
            (KvFormat::Quantized { bits: 3, group_size: 64 }, None),
        ] {
            let reason = MissReason::OtherKvFormat { before, now: KvFormat::Plain };
            check(reason, Cause::OtherKvFormat, expected);
        }
        check(MissReason::ImportedAgain, Cause::ImportedAgain, None);
        check(MissReason::NotWritten(text()), Cause::NotWritten, Some("why"));
        check(MissReason::NotStored, Cause::NotStored, None);
        for (problem, cause, detail) in [
            (ChunkProblem::Missing, Cause::FileMissing, None),
            (ChunkProblem::Unreadable(text()), Cause::Unreadable, Some("why")),
            (ChunkProblem::Damaged(None), Cause::Damaged, None),
            (ChunkProblem::Damaged(Some(text())), Cause::Damaged, None),
            (ChunkProblem::NotRestorable(text()), Cause::NotRestorable, Some("why")),
        ] {
            check(MissReason::Unusable(problem), cause, detail);
        }
        for (reason, cause, detail) in [
            (LossReason::DiskBudget, Cause::DiskLimit, None),
            (LossReason::MemoryBudget, Cause::MemoryLimit, None),
            (LossReason::Deleted, Cause::Deleted, None),
            (LossReason::Cleared, Cause::Cleared, None),
            (LossReason::FileMissing, Cause::FileMissing, None),
            (LossReason::FileDamaged, Cause::Damaged, None),
            (LossReason::RecordDamaged, Cause::Damaged, None),
            (LossReason::RemovedByAnotherProgram, Cause::RemovedByAnotherProgram, None),
            (LossReason::NotWritten(text()), Cause::NotWritten, Some("why")),
            (LossReason::OnlyInMemory, Cause::OnlyInMemory, None),
            (LossReason::EarlierVersion, Cause::EarlierVersion, None),
            (LossReason::Other(text()), Cause::Other, Some("why")),
        ] {
            check(MissReason::Lost { reason, at_ms: 5 }, cause, detail);
        }
        let cut = stored_miss(cut_miss(9)).unwrap();
        assert_eq!((cut.tokens, cut.cause), (9, Cause::OldestForgotten));
        seen.push(cut.cause);
        // Of this one the conversation knows: see `savings::name_change`.
        seen.push(Cause::TemplateChanged);
        for cause in Cause::ALL {
            assert!(seen.contains(cause), "nothing leads to {cause:?}");
        }
        let unknown = CacheMiss {
            num_tokens: 1,
            cause: "of a later version".to_owned(),
            detail: None,
            at_ms: None,
        };
        assert_eq!(stored_miss(unknown), None, "its text is shown then");
    }

    #[test]
    fn durations_are_rounded_to_one_unit() {
        for (milliseconds, expected) in [
            (-5, "a moment ago"),
            (59_999, "a moment ago"),
            (60_000, "1 minute ago"),
            (3_599_999, "59 minutes ago"),
            (2 * 3_600_000, "2 hours ago"),
            (DAY_MS, "1 day ago"),
            (9 * DAY_MS, "9 days ago"),
        ] {
            assert_eq!(ago(milliseconds), expected);
        }
    }
}
