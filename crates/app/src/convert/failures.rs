//! Failures for interfaces: a code, a sentence, and the kind by which a window says it in its own
//! language.

use std::path::Path;

use cairn_engine::{EngineError, LmError, NeedsMemory};
use cairn_formats::NoDiskSpace;
use cairn_hub::{DownloadError, HubError, ModelProblemKind};
use cairn_store::StoreError;

use crate::wire::{self, FailureKind, Gone, MemoryUser};

impl wire::Failure {
    /// A failure that the interface says as it stands here.
    pub fn new(code: wire::FailureCode, message: impl Into<String>) -> Self {
        wire::Failure { code, message: message.into(), kind: None }
    }

    /// A fault in Cairn that ended something.
    pub(crate) fn fault(message: impl Into<String>) -> Self {
        Self::new(wire::FailureCode::Engine, message).of_kind(FailureKind::Fault)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(wire::FailureCode::Invalid, message)
    }

    /// A file at `path` cannot be written, for this reason.
    pub fn not_writable(path: &Path, why: String) -> Self {
        let path = path.display().to_string();
        let message = format!("{path} cannot be written: {why}.");
        Self::new(wire::FailureCode::Storage, message)
            .of_kind(FailureKind::NotWritable { path, detail: Some(sentence(why)) })
    }

    /// The same, which the interface says in its own language.
    pub fn of_kind(self, kind: FailureKind) -> Self {
        Self { kind: Some(Box::new(kind)), ..self }
    }

    pub(crate) fn gone(what: Gone, message: &str) -> Self {
        Self::new(wire::FailureCode::NotFound, message).of_kind(FailureKind::Gone { what })
    }
}

impl From<StoreError> for wire::Failure {
    fn from(error: StoreError) -> Self {
        if let Some((what, message)) = gone(&error) {
            return Self::gone(what, message);
        }
        if let Some((kind, message)) = refused(&error) {
            return Self::invalid(message).of_kind(kind);
        }
        let kind = match &error {
            StoreError::Full { .. } => FailureKind::DiskFull,
            StoreError::NotWritable { path } => {
                FailureKind::NotWritable { path: path.display().to_string(), detail: None }
            }
            StoreError::Closed { .. } => FailureKind::Closing,
            other => FailureKind::Database { detail: sentence(other) },
        };
        Self::new(wire::FailureCode::Storage, sentence(error)).of_kind(kind)
    }
}

/// What the store no longer has.
fn gone(error: &StoreError) -> Option<(Gone, &'static str)> {
    Some(match error {
        StoreError::NoConversation { .. } => (Gone::Chat, "This conversation no longer exists."),
        StoreError::NoMessage { .. } => (Gone::Message, "This message no longer exists."),
        StoreError::NoDeletion { .. } => {
            (Gone::Deletion, "These messages can no longer be brought back.")
        }
        StoreError::NoDocument { .. } => (Gone::Document, "This document no longer exists."),
        StoreError::NoNamedCache { .. } => {
            (Gone::StartingPoint, "This starting point no longer exists.")
        }
        StoreError::NoJob { .. } => (Gone::Job, "This job, or this row of it, no longer exists."),
        StoreError::NoFolder { .. } => (Gone::Folder, "This folder no longer exists."),
        StoreError::NoPreset { .. } => (Gone::Preset, "This preset no longer exists."),
        StoreError::NoPersona { .. } => (Gone::Persona, "This persona no longer exists."),
        StoreError::NoApiKey { .. } => (Gone::Key, "This key no longer exists."),
        _ => return None,
    })
}

/// What the store does not do as things are.
fn refused(error: &StoreError) -> Option<(FailureKind, String)> {
    let taken = |what: &str, name: &str| {
        let message = format!("There is already a {what} with the name “{name}”.");
        (FailureKind::NameTaken { name: name.to_owned() }, message)
    };
    let worded = |kind, message: &str| (kind, message.to_owned());
    Some(match error {
        StoreError::NameInUse { name } => taken("starting point", name),
        StoreError::KeyNameInUse { name } => taken("key", name),
        StoreError::AlreadyStreaming { .. } => worded(
            FailureKind::StillAnswering,
            "This conversation is still being answered: wait or stop the answer first.",
        ),
        StoreError::NothingToAnswer { .. } => {
            worded(FailureKind::NothingToAnswer, "There is no message to answer yet.")
        }
        StoreError::NotAQuestion { .. } => {
            worded(FailureKind::NotYourMessage, "Only a message of yours can be edited.")
        }
        StoreError::NotTheLastAnswer { .. } => {
            worded(FailureKind::CannotGoOn, "Only the last answer of a conversation can go on.")
        }
        _ => return None,
    })
}

impl From<EngineError> for wire::Failure {
    fn from(error: EngineError) -> Self {
        let code = match error {
            EngineError::NoModel => wire::FailureCode::NoModel,
            _ => wire::FailureCode::Engine,
        };
        let kind = engine_kind(&error);
        Self::new(code, sentence(error)).of_kind(kind)
    }
}

fn engine_kind(error: &EngineError) -> FailureKind {
    match error {
        EngineError::NoModel => FailureKind::NoModel,
        EngineError::NotLoaded { model } => FailureKind::NotLoaded { model: model.clone() },
        EngineError::DoesNotFit { what, shortage } => FailureKind::NotEnoughMemory {
            what: match what {
                NeedsMemory::Model(model) => MemoryUser::Model(model.clone()),
                NeedsMemory::Answer => MemoryUser::Answer,
                NeedsMemory::Texts => MemoryUser::Texts,
            },
            needed_bytes: shortage.needed_bytes,
            free_bytes: shortage.free_bytes,
            limit_bytes: shortage.limit_bytes,
            in_use: shortage.would_have_to_go.clone(),
            pinned: shortage.pinned.clone(),
        },
        EngineError::LoadCancelled { model } => FailureKind::LoadCancelled { model: model.clone() },
        EngineError::Refused(LmError::PromptTooLong { num_tokens, context_length }) => {
            FailureKind::ContextFull {
                tokens: *num_tokens as u64,
                context_length: *context_length as u64,
            }
        }
        EngineError::Interrupted => FailureKind::Interrupted,
        EngineError::Panicked { .. } | EngineError::Stopped { .. } => FailureKind::EngineFault,
        EngineError::Closed => FailureKind::Closing,
        EngineError::NotStarted(error) => engine_kind(error),
        EngineError::Load { name, source } => {
            FailureKind::LoadFailed { model: name.clone(), detail: sentence(source) }
        }
        EngineError::Device { message } => FailureKind::NoDevice { detail: sentence(message) },
        EngineError::OtherVocabulary => FailureKind::OtherModel { model: None },
        EngineError::BeginningLost => FailureKind::BeginningLost,
        other => FailureKind::Engine { detail: sentence(other) },
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
            HubError::NoSpace(_) => wire::FailureCode::NoSpace,
            HubError::Unusable { .. } => wire::FailureCode::Engine,
        };
        let kind = hub_kind(&error);
        Self::new(code, sentence(error)).of_kind(kind)
    }
}

fn hub_kind(error: &HubError) -> FailureKind {
    let path = |path: &Path| path.display().to_string();
    match error {
        HubError::NotFound { wanted, .. } => FailureKind::NoSuchModel { model: wanted.clone() },
        HubError::Unusable { path: folder, problem } => {
            let (path, detail) = (path(folder), sentence(problem));
            match problem.kind() {
                ModelProblemKind::Incomplete | ModelProblemKind::Broken => {
                    FailureKind::IncompleteModel { path, detail }
                }
                ModelProblemKind::Unreadable => FailureKind::UnreadableModel { path, detail },
            }
        }
        HubError::BadName { name } => FailureKind::BadModelName { name: name.clone() },
        HubError::Exists { path: folder } => FailureKind::ModelExists { path: path(folder) },
        HubError::LinkOut { path: link } => FailureKind::LinkOut { path: path(link) },
        HubError::Downloading { name } => FailureKind::Downloading { model: name.clone() },
        HubError::ReadOnly { name, path: folder } => {
            FailureKind::ReadOnlyModel { model: name.clone(), path: path(folder) }
        }
        HubError::NoModelFile { name } => FailureKind::NoModelFile { name: name.clone() },
        HubError::Gguf { reason } => FailureKind::BadGguf { detail: sentence(reason) },
        HubError::Cancelled => FailureKind::ImportCancelled,
        HubError::Delete { path: folder, reason } => {
            FailureKind::NotDeleted { path: path(folder), detail: sentence(reason) }
        }
        HubError::NoSpace(error) => no_room(error),
        HubError::Copy { path: folder, reason } => {
            FailureKind::NotCopied { path: path(folder), detail: sentence(reason) }
        }
    }
}

impl From<NoDiskSpace> for wire::Failure {
    fn from(error: NoDiskSpace) -> Self {
        let kind = no_room(&error);
        Self::new(wire::FailureCode::NoSpace, sentence(error)).of_kind(kind)
    }
}

fn no_room(error: &NoDiskSpace) -> FailureKind {
    let NoDiskSpace { folder, needed_bytes, free_bytes } = error;
    FailureKind::NoRoom {
        folder: folder.display().to_string(),
        needed_bytes: *needed_bytes,
        free_bytes: *free_bytes,
    }
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
        let kind = download_kind(&error);
        Self::new(code, sentence(error)).of_kind(kind)
    }
}

fn download_kind(error: &DownloadError) -> FailureKind {
    use DownloadError as E;
    use FailureKind as K;
    match error {
        E::Offline { host, reason } => K::Offline { host: host.clone(), detail: sentence(reason) },
        E::RateLimited { host, wait } => {
            K::TooManyRequests { host: host.clone(), seconds: wait.as_secs() }
        }
        E::NoSpace { folder, needed, available } => K::NoRoom {
            folder: folder.display().to_string(),
            needed_bytes: *needed,
            free_bytes: *available,
        },
        E::CacheFolder { path, reason } => {
            K::NotWritable { path: path.display().to_string(), detail: Some(sentence(reason)) }
        }
        E::BadRepo { name } => K::BadRepo { name: name.clone() },
        E::BadRevision { revision } => K::BadRevision { revision: revision.clone() },
        E::BadEndpoint { endpoint, reason } => {
            K::BadEndpoint { endpoint: endpoint.clone(), detail: sentence(reason) }
        }
        E::BadProxy { reason } => K::BadProxy { detail: sentence(reason) },
        E::BadToken => K::BadToken,
        E::NoCacheFolder => K::NoModelFolder,
        E::NoTls { reason } => K::NoTls { detail: sentence(reason) },
        E::Stalled { host } | E::Cut { host } => K::Stalled { host: host.clone() },
        E::HubFailed { host, status } => K::HubFailed { host: host.clone(), status: *status },
        E::UnexpectedAnswer { host, problem } => {
            K::UnexpectedAnswer { host: host.clone(), detail: sentence(problem) }
        }
        E::NotFound { repo } => K::NotOnHub { model: repo.to_string() },
        E::RevisionNotFound { repo, revision } => {
            K::NoRevision { model: repo.to_string(), revision: revision.clone() }
        }
        E::FileGone { repo, file } | E::ChangedOnHub { repo, file } => {
            K::ChangedOnHub { model: repo.to_string(), file: file.clone() }
        }
        E::Unauthorized { repo, has_token } => {
            K::Unauthorized { model: repo.to_string(), has_token: *has_token }
        }
        E::Gated { repo, page } => K::Gated { model: repo.to_string(), page: page.clone() },
        E::Forbidden { repo } => K::Forbidden { model: repo.to_string() },
        E::HostileListing { repo, problem } => {
            K::HostileListing { model: repo.to_string(), detail: sentence(problem) }
        }
        E::NoWeights { repo } => K::NoWeights { model: repo.to_string() },
        E::Corrupt { repo, file } => K::DamagedFile { model: repo.to_string(), file: file.clone() },
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

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_engine::MemoryShortage;
    use cairn_hub::ModelProblem;
    use std::path::PathBuf;
    use std::time::Duration;

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
    fn what_a_hub_refuses_keeps_its_facts() {
        fn check(error: DownloadError, kind: FailureKind) {
            let text = error.to_string();
            assert_eq!(wire::Failure::from(error).kind.map(|kind| *kind), Some(kind), "for {text}");
        }
        let host = || "hub.example".to_owned();
        let reason = || "no route".to_owned();
        check(
            DownloadError::Offline { host: host(), reason: reason() },
            FailureKind::Offline { host: host(), detail: sentence(reason()) },
        );
        check(
            DownloadError::RateLimited { host: host(), wait: Duration::from_secs(90) },
            FailureKind::TooManyRequests { host: host(), seconds: 90 },
        );
        // It was reached, and its sentence says that a download goes on where it stopped.
        check(DownloadError::Stalled { host: host() }, FailureKind::Stalled { host: host() });
    }

    #[test]
    fn a_model_that_only_cannot_be_opened_is_not_called_incomplete() {
        let check = |problem: ModelProblem, kind: fn(String, String) -> FailureKind| {
            let detail = sentence(&problem);
            let error = HubError::Unusable { path: PathBuf::from("/m"), problem };
            let found = wire::Failure::from(error).kind.map(|kind| *kind);
            assert_eq!(found, Some(kind("/m".to_owned(), detail)));
        };
        let incomplete = |path, detail| FailureKind::IncompleteModel { path, detail };
        let unreadable = |path, detail| FailureKind::UnreadableModel { path, detail };
        let reason = || "Permission denied".to_owned();
        check(ModelProblem::NoWeights, incomplete);
        check(ModelProblem::ConfigBroken { reason: reason() }, incomplete);
        check(ModelProblem::FolderUnreadable { reason: reason() }, unreadable);
        let file = "config.json".to_owned();
        check(ModelProblem::Unreadable { file, reason: reason() }, unreadable);
    }

    #[test]
    fn what_has_no_memory_is_a_model_an_answer_or_several_texts() {
        fn check(what: NeedsMemory, expected: MemoryUser) {
            let shortage = MemoryShortage {
                needed_bytes: 9,
                free_bytes: 3,
                limit_bytes: 12,
                would_have_to_go: Vec::new(),
                pinned: Vec::new(),
            };
            let error = EngineError::DoesNotFit { what, shortage };
            let kind = wire::Failure::from(error).kind.map(|kind| *kind);
            let Some(FailureKind::NotEnoughMemory { what, .. }) = kind else { panic!("{kind:?}") };
            assert_eq!(what, expected);
        }
        check(NeedsMemory::Model("m".to_owned()), MemoryUser::Model("m".to_owned()));
        check(NeedsMemory::Answer, MemoryUser::Answer);
        check(NeedsMemory::Texts, MemoryUser::Texts);
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
}
