//! Conversions between domain types and wire types, written by hand.

mod failures;
mod misses;
mod numbers;

use std::path::Path;

use cairn_chat::{FinishReason, GenerationStats, Role, Thinking, ThinkingChoices};
use cairn_engine::{
    AnswerToken, FileCoding, KvCacheOptions, KvQuantization, LoadProgress, LoadedModelStatus,
    PromptFileLayout, PromptKind, SnapKv, Speculation, is_encoder, is_supported, is_tight,
    nearest_model_type,
};
use cairn_formats::gguf::{PerplexityChange, RoundedWeights};
use cairn_hub::{ImportedModel, ModelFolder, ModelSource};
use cairn_prompt_cache::ChunkKind;
use cairn_store::{DocumentKind, MessageStatus, NamedCacheKind};

use crate::answer_segment::{AnswerSegment, Outcome};
use crate::monitor::speed::SpeedOf;
use crate::platform::ProcessMemory;
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire::{self, FailureKind};

pub(crate) use failures::sentence;
pub(crate) use misses::{cache_miss, cache_note, cut_miss, cut_note, loss_reason, stored_miss};
pub(crate) use numbers::{figure, tokens};

/// How a file or folder is written on the wire.
pub(crate) fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A model's row by what its folder lists; of what its files contain nothing is known yet.
pub(crate) fn model(folder: ModelFolder) -> wire::Model {
    let problem = folder.problem.map(model_problem);
    let unsupported = folder.model_type.as_deref().and_then(unsupported_architecture);
    wire::Model {
        name: folder.name,
        alias: None,
        is_pinned: false,
        path: path(&folder.path),
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
        is_proposed: false,
        is_set_aside: false,
        is_being_measured: false,
    }
}

fn model_problem(problem: cairn_hub::ModelProblem) -> wire::ModelProblem {
    use cairn_hub::ModelProblem as Problem;
    use wire::ModelProblemWhat as What;
    let kind = match problem.kind() {
        cairn_hub::ModelProblemKind::Incomplete => wire::ModelProblemKind::Incomplete,
        cairn_hub::ModelProblemKind::Broken => wire::ModelProblemKind::Broken,
        cairn_hub::ModelProblemKind::Unreadable => wire::ModelProblemKind::Unreadable,
    };
    let (detail, file) = (problem.to_string(), problem.file().unwrap_or_default().to_owned());
    let what = match problem {
        Problem::NoSnapshot => What::NoSnapshot,
        Problem::NoWeights => What::NoWeights,
        Problem::NoModelType => What::NoModelType,
        Problem::FolderUnreadable { reason } => What::FolderUnreadable { reason },
        Problem::ConfigMissing | Problem::ShardMissing { .. } | Problem::TokenizerMissing => {
            What::FileMissing { file }
        }
        Problem::Unreadable { reason, .. }
        | Problem::ConfigBroken { reason }
        | Problem::IndexBroken { reason } => What::FileUnreadable { file, reason },
    };
    wire::ModelProblem { kind, what: Some(what), detail }
}

/// The problem of a model whose architecture this version does not have.
pub(crate) fn unsupported_architecture(model_type: &str) -> Option<wire::ModelProblem> {
    (!is_supported(model_type)).then(|| {
        let nearest = nearest_model_type(model_type).map(str::to_owned);
        let hint = nearest.as_ref().map(|nearest| format!(" (the nearest that is: {nearest})"));
        let detail = match is_encoder(model_type) {
            true => format!("it is an encoder ({model_type}), and Cairn runs only decoders"),
            false => {
                let hint = hint.unwrap_or_default();
                format!("its architecture {model_type:?} is not supported{hint}")
            }
        };
        wire::ModelProblem {
            kind: wire::ModelProblemKind::Unsupported,
            detail,
            what: Some(wire::ModelProblemWhat::Architecture {
                model_type: model_type.to_owned(),
                nearest,
            }),
        }
    })
}

pub(crate) fn imported_model(model: ImportedModel, has_chat_template: bool) -> wire::ImportedModel {
    wire::ImportedModel {
        name: imported_name(&model),
        rounded_weights: model.rounded_weights.map(rounded_weights),
        has_chat_template,
    }
}

/// The name of an imported model in the list. Imported models come first there, so its folder's name is
/// its own.
pub(crate) fn imported_name(model: &ImportedModel) -> String {
    model.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn rounded_weights(rounded: RoundedWeights) -> wire::RoundedWeights {
    let RoundedWeights { num_tensors, relative_error, perplexity } = rounded;
    let num_tensors = u32::try_from(num_tensors).unwrap_or(u32::MAX);
    let perplexity = perplexity
        .map(|PerplexityChange { before, after }| wire::PerplexityChange { before, after });
    wire::RoundedWeights { num_tensors, relative_error, perplexity }
}

pub(crate) fn conversation(
    row: cairn_store::Conversation,
    model: wire::ChatModel,
    is_streaming: bool,
    cache: Option<wire::ConversationCache>,
) -> wire::Conversation {
    wire::Conversation {
        id: row.id,
        title: row.title,
        has_messages: row.leaf_message_id.is_some(),
        system_prompt: row.system_prompt,
        created_at_ms: row.created_at_ms,
        updated_at_ms: row.updated_at_ms,
        is_streaming,
        is_private: false,
        is_pinned: row.is_pinned,
        is_archived: row.archived_at_ms.is_some(),
        folder_id: row.folder_id,
        persona_id: row.persona_id,
        branch_of: row.branch_of,
        model,
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

/// As it was stored; none where a newer version stored one that this one does not know.
pub(crate) fn error_kind(stored: Option<&str>) -> Option<Box<FailureKind>> {
    serde_json::from_str(stored?).ok()
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
        error_kind: error_kind(row.error_kind.as_deref()),
        created_at_ms: row.created_at_ms,
        stats: row.stats.map(message_stats),
        model: row.model,
        versions: Vec::new(),
        can_continue,
        cut: None,
    })
}

pub(crate) fn document(row: cairn_store::Document) -> wire::Document {
    let (tokens, counted_by) = row.counted.unzip();
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
        tokens: tokens.and_then(|tokens| u32::try_from(tokens).ok()),
        counted_by,
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
    let num_read = stats.num_prompt_tokens.saturating_sub(stats.num_cached_tokens);
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
        cached_from: stats.cached_from.map(|from| wire::CachedFrom {
            in_memory: tokens(from.num_in_memory),
            restored: tokens(from.num_restored),
            shared: tokens(from.num_shared),
            read_ahead: tokens(from.num_read_ahead),
        }),
        kept_tokens: stats.num_kept_tokens.map(tokens),
        cache_note: stats.cache_note,
        miss: stats.miss.and_then(stored_miss),
        saved_ms: stats.saved_ms.map(figure),
        generation_tokens: tokens(stats.num_generation_tokens),
        guesses: stats.guesses.map(|guesses| wire::Guesses {
            proposed: tokens(guesses.num_proposed),
            accepted: tokens(guesses.num_accepted),
            checked: tokens(guesses.num_checked),
        }),
        queue_ms: figure(stats.queue_ms),
        prompt_tps: SpeedOf::Reading.of_answer(num_read, stats.prompt_tps),
        generation_tps: SpeedOf::Writing
            .of_answer(stats.num_generation_tokens, stats.generation_tps),
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
    wired_bytes: Option<u64>,
) -> wire::Status {
    let models: Vec<_> = engine.models.into_iter().map(loaded_model).collect();
    wire::Status {
        engine: engine_state(engine.state),
        model_fingerprint: engine.model_fingerprint,
        device: device.to_owned(),
        process_bytes: memory.now,
        process_peak_bytes: memory.peak,
        mlx_active_bytes: engine.mlx_active_bytes,
        mlx_peak_bytes: engine.mlx_peak_bytes,
        mlx_cache_bytes: engine.mlx_cache_bytes,
        cache_disk_bytes: engine.cache_disk_bytes,
        cache_ram_bytes: engine.cache_memory_bytes,
        wired_memory: wired_bytes.map(|bytes| wired_memory(bytes, &models)),
        models,
    }
}

/// What there is to say of loaded models where the GPU can keep so many bytes wired.
fn wired_memory(recommended_bytes: u64, models: &[wire::LoadedModel]) -> wire::WiredMemory {
    let largest = models.iter().max_by_key(|model| model.bytes);
    let tight_model = largest.filter(|model| is_tight(model.bytes, recommended_bytes)).cloned();
    wire::WiredMemory { recommended_bytes, tight_model }
}

fn loaded_model(model: cairn_engine::LoadedModelStatus) -> wire::LoadedModel {
    let LoadedModelStatus { name, fingerprint, weight_bytes, draft, .. } = model;
    wire::LoadedModel { name, fingerprint, bytes: weight_bytes, draft }
}

/// Converts how much a model is to think, for its chat template.
pub(crate) fn thinking(thinking: wire::Thinking) -> Thinking {
    match thinking {
        wire::Thinking::Automatic => Thinking::Automatic,
        wire::Thinking::Off => Thinking::Off,
        wire::Thinking::On => Thinking::On,
        wire::Thinking::Minimal => Thinking::Minimal,
        wire::Thinking::Low => Thinking::Low,
        wire::Thinking::Medium => Thinking::Medium,
        wire::Thinking::High => Thinking::High,
        wire::Thinking::Xhigh => Thinking::Xhigh,
        wire::Thinking::Max => Thinking::Max,
    }
}

/// Converts the levels that a chat template has.
pub(crate) fn thinking_choices(choices: &ThinkingChoices) -> wire::ThinkingChoices {
    let level = |level| match level {
        Thinking::Automatic => wire::Thinking::Automatic,
        Thinking::Off => wire::Thinking::Off,
        Thinking::On => wire::Thinking::On,
        Thinking::Minimal => wire::Thinking::Minimal,
        Thinking::Low => wire::Thinking::Low,
        Thinking::Medium => wire::Thinking::Medium,
        Thinking::High => wire::Thinking::High,
        Thinking::Xhigh => wire::Thinking::Xhigh,
        Thinking::Max => wire::Thinking::Max,
    };
    wire::ThinkingChoices {
        levels: choices.levels().map(level).collect(),
        automatic: choices.allowed(Thinking::Automatic).map(level),
    }
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

/// How saved context is written.
pub(crate) fn file_coding(is_smaller: bool) -> FileCoding {
    if is_smaller { FileCoding::BytePlanes } else { FileCoding::Plain }
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

pub(crate) fn context_cut(cut: cairn_store::ContextCut) -> wire::ContextCut {
    wire::ContextCut { summary: cut.summary }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_model_has_its_kind_and_names_the_file() {
        use cairn_hub::ModelProblem as Problem;
        use wire::ModelProblemKind::{Broken, Incomplete, Unreadable};
        use wire::ModelProblemWhat as What;
        fn check(problem: Problem, kind: wire::ModelProblemKind, what: What) {
            let said = model_problem(problem);
            assert_eq!((said.kind, said.what), (kind, Some(what)));
        }
        let missing = |file: &str| What::FileMissing { file: file.to_owned() };
        let unreadable = |file: &str| {
            let reason = "EOF".to_owned();
            What::FileUnreadable { file: file.to_owned(), reason }
        };
        let shard = || "model-2.safetensors".to_owned();
        let reason = || "EOF".to_owned();
        check(Problem::NoSnapshot, Incomplete, What::NoSnapshot);
        check(Problem::ConfigMissing, Incomplete, missing("config.json"));
        check(Problem::NoWeights, Incomplete, What::NoWeights);
        check(Problem::TokenizerMissing, Incomplete, missing("tokenizer.json"));
        check(Problem::ShardMissing { file: shard() }, Incomplete, missing(&shard()));
        check(Problem::NoModelType, Broken, What::NoModelType);
        check(Problem::ConfigBroken { reason: reason() }, Broken, unreadable("config.json"));
        let index = unreadable("model.safetensors.index.json");
        check(Problem::IndexBroken { reason: reason() }, Broken, index);
        let closed = Problem::Unreadable { file: shard(), reason: reason() };
        check(closed, Unreadable, unreadable(&shard()));
        let folder = What::FolderUnreadable { reason: reason() };
        check(Problem::FolderUnreadable { reason: reason() }, Unreadable, folder);
    }

    #[test]
    fn what_is_wrong_with_a_model_is_a_clause_in_english_too() {
        let said = model_problem(cairn_hub::ModelProblem::TokenizerMissing);
        assert_eq!(said.detail, "tokenizer.json is missing");
    }
}
