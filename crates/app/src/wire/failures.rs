//! What can go wrong for a person, in a form that the interface says in its own language.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// The answer to a command that failed: a code, and one sentence to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Failure {
    pub code: FailureCode,
    pub message: String,
    /// What the sentence says, for interfaces in other languages; none where only a program can cause it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub kind: Option<Box<FailureKind>>,
}

/// Why a command failed, as far as the interface reacts to it in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// No model is loaded and none can be: the interface shows the model chooser.
    NoModel,
    /// The conversation, message, model or starting point does not exist, or no longer.
    NotFound,
    /// The request itself is invalid: an empty title, an empty message, a second question while
    /// the first is being answered.
    Invalid,
    /// The data folder cannot be written or is full.
    Storage,
    /// The model could not be loaded, or generation failed.
    Engine,
    /// The model is set aside: the interface offers to use it anyway.
    SetAside,
    /// The hub cannot be reached.
    Offline,
    /// The model's terms have to be accepted on its page first, by the owner of the token.
    Gated,
    /// The hub wants a token, and none is sent: the model is private or does not exist.
    NeedsToken,
    /// The hub wants another token than the one that is sent.
    Unauthorized,
    /// The disk has no room for what was to be written.
    NoSpace,
    /// The hub answered, but not with what was asked for.
    Hub,
}

/// What failed. The interface has a sentence for each kind. `detail` is in English, of the system, the
/// engine or a file's reader, and stands behind that sentence. What only a program can do wrong has no
/// kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FailureKind {
    /// There is no model to answer with.
    NoModel,
    /// A model that is named is not loaded.
    NotLoaded { model: String },
    /// Something needs more memory than there may be.
    NotEnoughMemory {
        what: MemoryUser,
        #[ts(type = "number")]
        needed_bytes: u64,
        #[ts(type = "number")]
        free_bytes: u64,
        /// What all models and answers may take.
        #[ts(type = "number")]
        limit_bytes: u64,
        /// The models in use, which would have to go.
        in_use: Vec<String>,
        /// The pinned models that are not in use.
        pinned: Vec<String>,
    },
    /// The load of a model was cancelled.
    LoadCancelled { model: String },
    /// The prompt is longer than what the model can read.
    ContextFull {
        #[ts(type = "number")]
        tokens: u64,
        #[ts(type = "number")]
        context_length: u64,
    },
    /// Another answer failed, and this one with it.
    Interrupted,
    /// A fault in the engine.
    EngineFault,
    /// Cairn is closing.
    Closing,
    /// The hub cannot be reached.
    Offline { host: String, detail: String },
    /// The hub asks to be left alone for a while.
    TooManyRequests {
        host: String,
        /// After how long it can be asked again.
        #[ts(type = "number")]
        seconds: u64,
    },
    /// The disk is full.
    DiskFull,
    /// The disk has no room for what was to be written.
    NoRoom {
        /// Where it was to be.
        folder: String,
        #[ts(type = "number")]
        needed_bytes: u64,
        #[ts(type = "number")]
        free_bytes: u64,
    },
    /// A file or folder cannot be written; `detail` is what the system says of that, where it is known.
    NotWritable { path: String, detail: Option<String> },
    /// A file cannot be read.
    NotReadable { name: String },
    /// A file is not one of chats.
    NoChats { name: String },
    /// The chat is still being answered.
    StillAnswering,
    /// What a command is about does not exist, or no longer.
    Gone { what: Gone },
    /// A name is taken already.
    NameTaken { name: String },
    /// A name or title has no letters.
    NoName,
    /// A message has no text.
    EmptyMessage,
    /// Nothing of a chat is saved yet.
    NothingSaved,
    /// A fault in Cairn ended what was being done.
    Fault,
    /// The database could not be read or written; `detail` is its own sentence.
    Database { detail: String },
    /// The model or what it was asked failed; `detail` is the engine’s sentence.
    Engine { detail: String },
    /// The device of this machine cannot compute anything, so no model can be loaded.
    NoDevice { detail: String },
    /// The person was asked whether something may be changed, and said no.
    Declined,
    /// A page in a browser cannot change this. `cairn serve` takes it from an environment variable.
    OnlyInApp { variable: Option<String> },
    /// A model could not be loaded.
    LoadFailed { model: String, detail: String },
    /// A model cannot be used.
    ModelUnusable { model: String, detail: String },
    /// A model is set aside because Cairn quit unexpectedly twice while it was at work.
    ModelSetAside { model: String },
    /// The chat begins with saved context of another model, of this name if that is known.
    OtherModel { model: Option<String> },
    /// The chat begins with an imported file whose context is no longer saved.
    BeginningLost,
    /// There is no model of this name.
    NoSuchModel { model: String },
    /// A model is there already.
    ModelExists { path: String },
    /// A model cannot have this name.
    BadModelName { name: String },
    /// A file of a model is a link to a file outside of its folder.
    LinkOut { path: String },
    /// Cairn only reads the folder that a model is in.
    ReadOnlyModel { model: String, path: String },
    /// A file is no model.
    NoModelFile { name: String },
    /// A GGUF file cannot be imported.
    BadGguf { detail: String },
    /// A model could not be deleted, or not all of it.
    NotDeleted { path: String, detail: String },
    /// A model could not be copied.
    NotCopied { path: String, detail: String },
    /// A folder is no whole model.
    IncompleteModel { path: String, detail: String },
    /// The folder of a model, or a file in it, cannot be opened now; it may be whole.
    UnreadableModel { path: String, detail: String },
    /// The import was cancelled.
    ImportCancelled,
    /// Another model is being imported.
    AnotherImport,
    /// The model is being downloaded.
    Downloading { model: String },
    /// The model is not being downloaded.
    NotDownloading { model: String },
    /// A path is not a folder.
    NotAFolder { path: String },
    /// The files of a model are deleted: it cannot be brought back.
    ModelDeleted { model: String },
    /// The older versions of a model cannot be brought back.
    VersionsDeleted { model: String },
    /// The hub’s token is the environment’s.
    TokenFromEnvironment,
    /// The hub’s token was neither saved nor removed.
    TokenNotChanged { detail: String },
    /// The folder for models is not known.
    NoModelFolder,
    /// A text is not the name of a model on the hub.
    BadRepo { name: String },
    /// A text is no revision.
    BadRevision { revision: String },
    /// An address cannot be the hub’s.
    BadEndpoint { endpoint: String, detail: String },
    /// An address cannot be a proxy’s.
    BadProxy { detail: String },
    /// A token is not one line of plain characters.
    BadToken,
    /// Secure connections cannot be set up.
    NoTls { detail: String },
    /// A host stopped sending, or cut the connection again and again.
    Stalled { host: String },
    /// A host answers with an error.
    HubFailed { host: String, status: u16 },
    /// A host gave an answer that cannot be right.
    UnexpectedAnswer { host: String, detail: String },
    /// The hub has no such model, or it is private.
    NotOnHub { model: String },
    /// The model has no such revision.
    NoRevision { model: String, revision: String },
    /// The model’s terms have to be accepted.
    Gated { model: String, page: String },
    /// The hub wants a token, or another one.
    Unauthorized { model: String, has_token: bool },
    /// The token does not allow it.
    Forbidden { model: String },
    /// The list of files has what no honest repository has.
    HostileListing { model: String, detail: String },
    /// The repository has no files that Cairn could load.
    NoWeights { model: String },
    /// A file changed or went during the download.
    ChangedOnHub { model: String, file: String },
    /// A file arrived damaged twice.
    DamagedFile { model: String, file: String },
    /// A name or title has more characters than it may, or several lines.
    NameTooLong { most: u32 },
    /// A message or a folder has as many documents as it may.
    TooManyDocuments { most: u32 },
    /// A document has no text.
    EmptyDocument { name: String },
    /// A document has more text than it may.
    DocumentTooLong {
        name: String,
        #[ts(type = "number")]
        bytes: u64,
        #[ts(type = "number")]
        most_bytes: u64,
    },
    /// An answer cannot go on.
    CannotGoOn,
    /// There is no message that could be answered.
    NothingToAnswer,
    /// Only questions can be edited.
    NotYourMessage,
    /// The last answer is not saved yet.
    AnswerUnsaved,
    /// The summary of earlier messages was not written.
    SummaryFailed { detail: String },
    /// The chat begins with a starting point, and has no system prompt of its own.
    HasStartingPoint,
    /// Context is only in memory; none: because the disk limit is 0.
    OnlyInMemory { detail: Option<String> },
    /// No context is saved in this run.
    CacheOff { detail: String },
    /// The other answer of a comparison has not stopped yet.
    OtherAnswerStopping,
    /// Nothing of a private chat is saved.
    PrivateChat,
    /// A preset would have no values.
    EmptyPreset,
    /// The setting cannot have this value; `detail` says why.
    SettingRefused { key: String, detail: String },
    /// The context length is more than a model reads.
    ContextTooLong { model: String, most: u32 },
    /// The keys and values of a model cannot be quantized.
    KvNotQuantizable { model: String },
    /// Prompts can be shortened only while the context is kept exact.
    NeedsExactContext { model: String },
    /// With a draft model all of a prompt is needed.
    DraftNeedsAll { model: String },
    /// An alias begins or ends with a space.
    AliasSpaces,
    /// An alias names another model.
    AliasTaken { name: String, model: String },
    /// A model cannot be its own draft model.
    OwnDraft,
    /// A draft model has another tokenizer.
    DraftDiffers { draft: String, model: String },
    /// Instructions have no text.
    EmptyQuestion,
    /// A placeholder is misspelt.
    BadPlaceholder { word: String, meant: String },
    /// An option has no name.
    EmptyOption,
    /// There are fewer than two options or levels, or too many.
    OptionCount { most: u32, count: u32 },
    /// An option is there twice.
    OptionTwice { label: String },
    /// Too few rows are checked for a calibration.
    TooFewChecked { least: u32, count: u32 },
    /// There is no text in a file.
    NoTexts,
    /// There are more texts than a job may have.
    TooManyTexts { most: u32 },
    /// A line is not of its form, as “CSV”.
    BadLine {
        #[ts(type = "number")]
        line: u64,
        form: String,
        detail: String,
    },
    /// The table has no such column.
    NoColumn { column: String, columns: Vec<String> },
    /// A line has no field for its text.
    NoTextInLine {
        #[ts(type = "number")]
        line: u64,
    },
    /// A file of chats is not valid JSON.
    NotJson {
        name: String,
        #[ts(type = "number")]
        line: u64,
        #[ts(type = "number")]
        column: u64,
    },
    /// A file of chats is an archive.
    ArchiveFile { name: String },
    /// A file of chats was written by a newer Cairn.
    NewerFile { name: String },
    /// A file is too large to be imported.
    UploadTooLarge {
        #[ts(type = "number")]
        most_bytes: u64,
    },
}

/// What an interface is told of without having asked. It has a sentence for each kind, and one for each
/// failure in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NoticeKind {
    /// An answer could not be saved; it is kept, and saving is tried again.
    AnswerKept { why: Failure },
    /// An answer that goes on is not being saved.
    AnswerNotSaving { why: Failure },
    /// An answer that was kept is saved.
    AnswerSaved,
    /// What became of a job was not saved.
    JobNotSaved { why: Failure },
    /// The newer version of a model is not used.
    UpdateUnused { model: String, why: Failure },
    /// A model answers without its draft model.
    DraftUnused { model: String, draft: String, why: Failure },
    /// The draft model of a model stays in memory.
    DraftStays { model: String, why: Failure },
    /// A model was not loaded anew with a setting that was changed. In memory it is as before, and so is
    /// the setting; else it is with the new setting that it is loaded next.
    NotReloaded { model: String, is_in_memory: bool, why: Failure },
    /// The database was damaged, and what could be read of it is in a new one.
    Recovered {
        conversations: u32,
        /// How many there were, if that is known.
        total_conversations: Option<u32>,
        unreadable_messages: u32,
        /// The backup that it is from.
        backup: Option<String>,
        /// Where the damaged file is.
        damaged: String,
    },
    /// The file of the database was taken away; a copy has all of it, and is used from now on.
    DatabaseSaved {
        path: String,
        /// The next start opens it. Otherwise another file is in its place.
        is_in_place: bool,
    },
    /// The file of the database was taken away, and no copy can be saved yet.
    DatabaseGone { why: Failure },
    /// The run before ended without being closed.
    QuitUnexpectedly { quit: UnexpectedQuit },
    /// Three runs in a row, started within a minute, ended without being closed. Nothing is loaded
    /// or resumed by itself until `EndQuietStart` or the next start.
    StartedQuietly,
    /// Something failed for which nobody waits.
    Failed { why: Failure },
}

/// The work that the run before was doing when it ended without being closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct UnexpectedQuit {
    /// The work that most likely ended it; none if nothing was under way.
    pub during: Option<UnexpectedQuitDuring>,
    pub model: Option<String>,
    /// The job whose texts were asked, and its name.
    pub job_id: Option<String>,
    pub job: Option<String>,
    /// The chat that was answered or read; none if it is private.
    pub conversation_id: Option<String>,
    /// It was not the first time, and the job, or else the model, is set aside.
    pub is_set_aside: bool,
}

/// Work that Cairn did with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum UnexpectedQuitDuring {
    Loading,
    ImportingModel,
    ImportingContext,
    Answering,
    Comparing,
    /// It answered a program over the API.
    Program,
    /// It asked a job's texts.
    Job,
    Probabilities,
    /// It read documents ahead of their question.
    ReadingAhead,
    Title,
    /// It counted the tokens of a chat.
    Counting,
    /// It measured what rounding costs.
    Measuring,
}

/// What needs memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum MemoryUser {
    /// The model of this name.
    Model(String),
    Answer,
    /// Several texts that are read at once.
    Texts,
}

/// What no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Gone {
    Chat,
    Message,
    Deletion,
    Document,
    StartingPoint,
    Folder,
    Preset,
    Persona,
    Key,
    Job,
}
