//! Conversions between domain types and wire types, written by hand.

use cairn_chat::{FinishReason, GenerationStats, Role, SamplingParams};
use cairn_engine::SUPPORTED_MODEL_TYPES;
use cairn_engine::{
    CacheRef, ChunkKind, ChunkRecord, EngineError, Loss, Namespace, PromptFileLayout, PromptKind,
};
use cairn_hub::{HubError, ModelFolder};
use cairn_store::{CacheRefRow, ChunkRow, MessageStatus, NamedCacheKind, StoreError};

use crate::platform::ProcessMemory;
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
            StoreError::NoNamedCache { .. } => {
                Self::new(NotFound, "This starting point no longer exists.")
            }
            StoreError::NameInUse { name } => Self::new(
                Invalid,
                format!("There is already a starting point with the name “{name}”."),
            ),
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
            HubError::BadName { .. } | HubError::Exists { .. } | HubError::LinkOut { .. } => {
                wire::FailureCode::Invalid
            }
            HubError::Copy { .. } => wire::FailureCode::Storage,
            HubError::Unusable { .. } => wire::FailureCode::Engine,
        };
        Self::new(code, sentence(error))
    }
}

/// An error as an interface shows it. Errors are written to follow a colon; shown alone they begin
/// and end as sentences.
pub(crate) fn sentence(error: impl ToString) -> String {
    let text = error.to_string();
    let mut rest = text.chars();
    let mut sentence: String =
        rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect();
    if !sentence.ends_with(['.', '!', '?', '…']) {
        sentence.push('.');
    }
    sentence
}

pub(crate) fn model(folder: ModelFolder) -> wire::Model {
    let is_supported =
        folder.model_type.as_deref().is_none_or(|name| SUPPORTED_MODEL_TYPES.contains(&name));
    let unsupported = (!is_supported)
        .then(|| format!("the architecture is none of {}", SUPPORTED_MODEL_TYPES.join(", ")));
    wire::Model {
        name: folder.name,
        path: folder.path.to_string_lossy().into_owned(),
        model_type: folder.model_type.unwrap_or_default(),
        bytes: folder.bytes,
        problem: folder.problem.map(|problem| problem.to_string()).or(unsupported),
    }
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

/// A message for the interface; none for a system message, which the interface does not show.
pub(crate) fn message(row: cairn_store::Message) -> Option<wire::Message> {
    let role = match row.role {
        Role::User => wire::Role::User,
        Role::Assistant => wire::Role::Assistant,
        Role::System => return None,
    };
    Some(wire::Message {
        id: row.id,
        conversation_id: row.conversation_id,
        parent_id: row.parent_id,
        role,
        status: message_status(row.status),
        text: row.text,
        error: row.error,
        created_at_ms: row.created_at_ms,
        stats: row.stats.map(message_stats),
    })
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
            FinishReason::Cancelled => "cancelled",
        }
        .to_owned(),
        prompt_tokens: tokens(stats.num_prompt_tokens),
        cached_tokens: tokens(stats.num_cached_tokens),
        cache_note: stats.cache_note,
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
        From::Loading { model } => To::Loading { model },
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

/// The namespace that a row names; none if it is invalid.
pub(crate) fn namespace(model: String, kv_format: &str, provenance: &str) -> Option<Namespace> {
    Some(Namespace {
        model,
        kv_format: kv_format.parse().ok()?,
        provenance: provenance.parse().ok()?,
    })
}

/// The engine's record of a row; none if its numbers are impossible (another program has changed
/// the file).
pub(crate) fn chunk_record(row: ChunkRow) -> Option<ChunkRecord> {
    Some(ChunkRecord {
        key: row.key,
        parent_key: row.parent_key,
        namespace: namespace(row.fingerprint, &row.kv_format, &row.provenance)?,
        kind: match row.kind {
            cairn_store::ChunkKind::System => ChunkKind::System,
            cairn_store::ChunkKind::User => ChunkKind::User,
            cairn_store::ChunkKind::Assistant => ChunkKind::Assistant,
        },
        start: usize::try_from(row.start).ok()?,
        token_ids: row.token_ids,
        held_from: usize::try_from(row.held_from).ok()?,
        has_state: row.has_state,
        bytes: u64::try_from(row.bytes).ok()?,
        file_hash: row.file_hash,
        hits: u64::try_from(row.hits).ok()?,
        last_used_at_ms: row.last_used_at_ms,
    })
}

/// The engine's record of a row; none if its numbers are impossible.
pub(crate) fn cache_ref(row: CacheRefRow) -> Option<CacheRef> {
    let lost_tokens = usize::try_from(row.lost_tokens).ok()?;
    Some(CacheRef {
        owner: row.owner,
        namespace: namespace(row.fingerprint, &row.kv_format, &row.provenance)?,
        model: row.model,
        chunk_key: row.chunk_key,
        num_tokens: usize::try_from(row.num_tokens).ok()?,
        is_pinned: row.is_pinned,
        loss: row.lost_reason.map(|reason| Loss {
            num_tokens: lost_tokens,
            reason,
            at_ms: row.lost_at_ms.unwrap_or_default(),
        }),
    })
}

pub(crate) fn cache_ref_row(cache_ref: CacheRef) -> CacheRefRow {
    let (lost_tokens, loss) =
        cache_ref.loss.map_or((0, None), |loss| (loss.num_tokens, Some((loss.reason, loss.at_ms))));
    let (lost_reason, lost_at_ms) = loss.unzip();
    CacheRefRow {
        owner: cache_ref.owner,
        fingerprint: cache_ref.namespace.model,
        kv_format: cache_ref.namespace.kv_format.to_string(),
        provenance: cache_ref.namespace.provenance.to_string(),
        model: cache_ref.model,
        chunk_key: cache_ref.chunk_key,
        num_tokens: number(cache_ref.num_tokens),
        is_pinned: cache_ref.is_pinned,
        lost_tokens: number(lost_tokens),
        lost_reason,
        lost_at_ms,
    }
}

/// The engine's kind for how a starting point ends.
pub(crate) fn prompt_kind(kind: NamedCacheKind) -> PromptKind {
    match kind {
        NamedCacheKind::Prompt => PromptKind::Prompt,
        NamedCacheKind::Conversation => PromptKind::Conversation,
    }
}

/// A count as a column stores it.
fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(crate) fn chunk_row(record: ChunkRecord, now_ms: i64) -> ChunkRow {
    ChunkRow {
        key: record.key,
        parent_key: record.parent_key,
        fingerprint: record.namespace.model,
        kv_format: record.namespace.kv_format.to_string(),
        provenance: record.namespace.provenance.to_string(),
        kind: match record.kind {
            ChunkKind::System => cairn_store::ChunkKind::System,
            ChunkKind::User => cairn_store::ChunkKind::User,
            ChunkKind::Assistant => cairn_store::ChunkKind::Assistant,
        },
        start: number(record.start),
        token_ids: record.token_ids,
        held_from: number(record.held_from),
        has_state: record.has_state,
        bytes: i64::try_from(record.bytes).unwrap_or(i64::MAX),
        file_hash: record.file_hash,
        hits: i64::try_from(record.hits).unwrap_or(i64::MAX),
        created_at_ms: now_ms,
        last_used_at_ms: record.last_used_at_ms,
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
        seed: settings.seed,
        ..SamplingParams::default()
    }
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
    use cairn_engine::KvFormat;
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

    #[test]
    fn a_chunk_survives_the_way_to_its_row_and_back() {
        let record = ChunkRecord {
            key: "b".to_owned(),
            parent_key: Some("a".to_owned()),
            namespace: Namespace::computed("f", KvFormat::Quantized { bits: 8, group_size: 64 }),
            kind: ChunkKind::User,
            start: 256,
            token_ids: vec![1, 2, 3],
            held_from: 200,
            has_state: true,
            bytes: 4096,
            file_hash: "h".to_owned(),
            hits: 6,
            last_used_at_ms: 5,
        };
        let row = chunk_row(record.clone(), 7);
        assert_eq!(row.created_at_ms, 7);
        assert_eq!(chunk_record(row.clone()), Some(record));
        assert_eq!(chunk_record(ChunkRow { start: -1, ..row }), None);
    }
}
