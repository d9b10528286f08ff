//! The interface between the app and a user interface: one closed set of commands, replies and
//! events, as plain data. What they carry is beside this file, by subject.
//!
//! These are wire types, not domain types: `commands.rs` converts by hand. The TypeScript twin in
//! `ui/src/platform/wire.ts` is generated from these files (`cargo xtask bindings`) and a test keeps
//! the two equal. Ids are UUID v7 strings, times are milliseconds since the Unix epoch, sizes are
//! bytes. All numbers stay below 2^53, so they are plain `number`s in TypeScript.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ts_rs::TS;

mod answers;
mod api;
mod cache;
mod chat;
mod documents;
mod failures;
mod finding;
mod jobs;
mod misses;
mod models;
mod monitor;
mod probabilities;
pub(crate) mod setting_values;
mod settings;
mod status;

pub use crate::settings::{SettingScope, Settings};
pub use answers::*;
pub use api::*;
pub use cache::*;
pub use chat::*;
pub use documents::*;
pub use failures::*;
pub use finding::*;
pub use jobs::*;
pub use misses::*;
pub use models::*;
pub use monitor::*;
pub use probabilities::*;
pub use setting_values::*;
pub use settings::*;
pub use status::*;

/// The most bytes of a command as JSON: enough for a job's texts, a hundred thousand of a few lines
/// each.
pub const MAX_COMMAND_BYTES: usize = 64 << 20;

/// Everything a user interface can ask for.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Command {
    /// The state to draw first: conversations, models, settings, status, starting points.
    Bootstrap,
    /// Sends every [`Event`] from now on, until the caller disconnects. Answers [`Reply::Done`]
    /// first, and once more whenever a slow caller has missed events; the caller then asks for
    /// everything again.
    Subscribe,
    /// One conversation with the messages of its current branch.
    GetConversation { id: String },
    /// Sends [`Event::Conversation`] with the row as it is now. Whoever shows what a conversation's
    /// saved context is shared with asks for it: another conversation begins or ceases to share it, or
    /// gets another title, without an event for this one.
    RefreshConversation { id: String },
    /// What the next turn of a conversation would find saved, with the conversation's model. Answers
    /// [`Reply::Outlook`].
    GetOutlook { id: String },
    /// An empty conversation without a title; the first message names it.
    NewConversation,
    /// An empty conversation that exists only in memory: nothing of it is written anywhere, and it
    /// is gone when the app closes.
    NewPrivateConversation,
    /// An empty conversation in a folder, with the system prompt of that.
    NewConversationIn { folder_id: String },
    /// An empty conversation with the system prompt and the parameters of a persona.
    NewConversationAs { persona_id: String },
    /// Measures how much of its model's context a conversation takes, or a new one begins with.
    /// Counts documents again that were counted for another model. Answers [`Reply::Context`].
    GetContext { of: ContextOf },
    /// Lets a conversation be read again from its beginning, or from an earlier cut: takes away
    /// [`Message::cut`].
    ReadAgain { conversation_id: String, message_id: String },
    /// Sets the title; an empty one is refused.
    RenameConversation { id: String, title: String },
    /// Sets the system prompt of a conversation; an empty one removes it.
    SetSystemPrompt { id: String, system_prompt: String },
    /// Sets the model that answers a conversation from now on; with none, the last answer's does. Loads
    /// nothing: that is done by the next question, or by `LoadModel`.
    ChooseModel { id: String, model: Option<String> },
    /// Hides conversations, all or none; `RestoreConversations` brings them back for ten minutes, or
    /// until the app is closed. Then they and their saved context are deleted. Those that no longer exist
    /// are passed over, here and in the commands beside it that take many; fails if none does.
    DeleteConversations { ids: Vec<String> },
    /// Undoes `DeleteConversations`, for all of them or for some.
    RestoreConversations { ids: Vec<String> },
    /// What the next message of a conversation will be sent with, or what the conversations of a folder
    /// begin with. Answers [`Reply::Documents`].
    GetDocuments { of: DocumentsOf },
    /// Adds documents behind those that are there, and begins to read them; see
    /// [`Event::DocumentsReading`]. Answers [`Reply::Documents`].
    AttachDocuments { of: DocumentsOf, documents: Vec<NewDocument> },
    /// Takes a document away; `RestoreDocument` brings it back until the app is closed. Conversations
    /// that have begun with one of a folder keep it. Answers [`Reply::Documents`].
    RemoveDocument { of: DocumentsOf, document_id: String },
    /// Undoes `RemoveDocument`. Answers [`Reply::Documents`].
    RestoreDocument { of: DocumentsOf, document_id: String },
    /// A document of a message, a draft, a folder or a beginning with its text. Answers
    /// [`Reply::DocumentText`].
    GetDocument { of: DocumentsOf, document_id: String },
    /// Reads the documents ahead, if that was stopped or has failed.
    ReadDocuments { of: DocumentsOf },
    /// Stops reading them ahead; what has been read stays saved.
    StopReadingDocuments { of: DocumentsOf },
    /// Appends a user message, behind the documents of the draft, and starts the answer. Replies when
    /// both rows are saved; the text comes as events.
    SendMessage { conversation_id: String, text: String },
    /// As `SendMessage`, behind these documents of the draft. The others stay in the draft.
    SendMessageWith { conversation_id: String, text: String, document_ids: Vec<String> },
    /// Sends another version of a user message and starts its answer. The earlier version stays, with
    /// all that follows it. It has the documents of the earlier version, or those that are named: of
    /// any message of the conversation, or of its draft, which the others stay in. Replies as
    /// `SendMessage` does.
    EditMessage {
        conversation_id: String,
        message_id: String,
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional)]
        document_ids: Option<Vec<String>>,
    },
    /// Answers again, beside the earlier answer (a sibling in the message tree): to a user message, or
    /// beside an answer; with neither, to the last user message. With a model that one is loaded and
    /// answers.
    Regenerate { conversation_id: String, message_id: Option<String>, model: Option<String> },
    /// Lets the last answer go on behind its own tokens, with the model that wrote them; see
    /// [`Message::can_continue`].
    ContinueAnswer { conversation_id: String, message_id: String },
    /// How likely the tokens of an answer were, and which others could have stood in their places, by
    /// the model that wrote it; with `loads_model` that one is loaded first. `read_id` is any text that no
    /// other read has: progress comes as [`Event::ProbabilitiesRead`]. Answers [`Reply::Probabilities`].
    GetProbabilities {
        conversation_id: String,
        message_id: String,
        read_id: String,
        loads_model: bool,
    },
    /// Ends a `GetProbabilities`, which then answers that it was stopped.
    StopProbabilities { read_id: String },
    /// Writes another version of an answer: its tokens before `position`, then `token`, and on from
    /// there with the model that wrote them. Replies as `Regenerate` does.
    WriteFromToken { conversation_id: String, message_id: String, position: u32, token: u32 },
    /// Puts the branch with a message on screen, up to where it was last.
    ShowVersion { conversation_id: String, message_id: String },
    /// A new conversation with the messages up to one, which continues their saved context. Answers
    /// [`Reply::Conversation`].
    BranchConversation { conversation_id: String, message_id: String, title: String },
    /// Hides a message, with all that follows it or alone; `RestoreMessages` brings it back until the
    /// app is closed. Answers [`Reply::MessagesDeleted`].
    DeleteMessage { conversation_id: String, message_id: String, with_following: bool },
    /// Undoes `DeleteMessage`, and shows what it had hidden.
    RestoreMessages { conversation_id: String, deletion_id: String },
    /// Stops the running answer; the text written so far stays.
    Stop { conversation_id: String },
    /// Answers one question twice, beside each other: a new one with `text`, or else the one of a
    /// message, or with neither the last one. Both run together where their models fit into memory
    /// together, else one after the other. The first is the branch on screen; what happens to the second
    /// comes as [`Event::Beside`]. Answers [`Reply::Compared`].
    Compare {
        conversation_id: String,
        message_id: Option<String>,
        text: Option<String>,
        columns: Vec<CompareColumn>,
    },
    /// Asks the same next question behind both of two answers that were compared, each on its own branch,
    /// and answers it there with the same column. Otherwise as `Compare`, with the first one's question.
    AskBoth {
        conversation_id: String,
        message_ids: Vec<String>,
        text: String,
        columns: Vec<CompareColumn>,
    },
    /// Stops one of two answers that are compared; the text written so far stays.
    StopAnswer { conversation_id: String, message_id: String },
    /// Messages of any branch, as they are now. Answers [`Reply::Versions`].
    GetVersions { conversation_id: String, message_ids: Vec<String> },
    /// Goes on with one of two answers that are compared: its branch is put on screen, and its model
    /// answers next. The other one is stopped if it is still written, and stays as a version.
    ChooseAnswer { conversation_id: String, message_id: String },
    /// Lets the running answer go on if it is held because it repeats itself.
    GoOn { conversation_id: String },
    /// Ends the thoughts of a running answer, which stay, and has it answer. Does nothing while it does not
    /// think.
    AnswerNow { conversation_id: String, message_id: String },
    /// Lists the model folders again.
    ListModels,
    /// Loads a listed model by its name or alias, never by a path, and unloads models that it
    /// leaves no room for. Progress comes as `Status`.
    LoadModel { name: String },
    /// Ends the load under way, whose command or answer then fails with a sentence that says so; the
    /// model before it stays. Does nothing while no model is being loaded.
    StopLoading,
    /// Removes the loaded model from memory; one that writes goes when its answers have ended.
    UnloadModel,
    /// What a model takes in memory with a conversation as long as its settings allow. Answers
    /// [`Reply::ModelMemory`].
    GetModelMemory { name: String },
    /// What deleting a model would delete. Answers [`Reply::ModelDeletion`].
    GetModelDeletion { name: String },
    /// Hides a model; `RestoreModel` brings it back for half a minute, or until the app is closed.
    /// Then its files are deleted.
    DeleteModel { name: String },
    /// Undoes `DeleteModel`.
    RestoreModel { name: String },
    /// Opens the files of a model once more to see whether it can be used.
    CheckModel { name: String },
    /// Lists the models of one more folder, which Cairn never writes to. A page needs a person's consent.
    AddModelFolder { path: String },
    /// The folders that were added. Answers [`Reply::ModelFolders`].
    GetModelFolders,
    /// Forgets a folder that was added; its files stay.
    RemoveModelFolder { path: String },
    /// Says what an import that waits for it rounds weights to; of one that does not wait nothing.
    ChooseRounding { form: RoundingForm },
    /// Ends the import of a model that is under way and removes its copy.
    CancelModelImport,
    /// Ends the measurement of what rounding costs a model.
    CancelModelMeasurement { name: String },
    /// Uses a model again that is set aside because Cairn quit unexpectedly while it was at work.
    UseModelAnyway { name: String },
    /// Lets a quiet start, see [`NoticeKind::StartedQuietly`], load and resume what an ordinary one does.
    EndQuietStart,
    /// The models that Cairn recommends, without asking the hub. Answers
    /// [`Reply::RecommendedModels`].
    GetRecommendedModels,
    /// Looks for models on the hub, those for MLX first. Answers [`Reply::FoundModels`].
    SearchModels { text: String },
    /// What the hub says about a model. Answers [`Reply::HubModel`].
    GetHubModel { name: String },
    /// What a model of the hub takes, from its config.json and its list of files. Answers
    /// [`Reply::ModelFacts`].
    GetModelFacts { name: String },
    /// Downloads a model from the hub, or lets its download go on.
    DownloadModel { name: String },
    /// Stops a download and keeps what has come.
    PauseDownload { name: String },
    /// Takes a download from the list. What has come of an unfinished one is removed.
    CancelDownload { name: String },
    /// Asks the hub at once for the downloads that wait because it could not be reached.
    RetryDownloads,
    /// Of which models the hub has a newer version; each hub is asked only about models that came from
    /// it. Answers [`Reply::ModelUpdates`], also without a connection. `DownloadModel` downloads it; the one that is here is used until the
    /// newer one has passed its check.
    GetModelUpdates,
    /// The older versions of a model. Answers [`Reply::OldRevisions`].
    GetOldRevisions { name: String },
    /// Takes the older versions of a model out of sight; `RestoreOldRevisions` brings them back for
    /// half a minute, or until the app is closed. Then their files are deleted, except those that
    /// other versions use.
    RemoveOldRevisions { name: String },
    /// Undoes `RemoveOldRevisions`.
    RestoreOldRevisions { name: String },
    /// Which hub is asked, and with what token. Answers [`Reply::HubAccess`].
    GetHubAccess,
    /// Stores the hub's access token in the system's keychain; an empty one removes it. Answers
    /// [`Reply::HubAccess`].
    SetHubToken { token: String },
    /// Whether the API is served, its keys, and what was asked last. Answers [`Reply::Api`].
    GetApi,
    /// Makes a key for programs that use the API. Answers [`Reply::ApiKeyMade`], the only place
    /// where the key itself stands.
    MakeApiKey { name: String },
    /// Revokes a key; its answers end. With `deletes_saved` the saved context that only its
    /// programs use is deleted, otherwise it stays until it is evicted.
    RevokeApiKey { id: String, deletes_saved: bool },
    /// What holds for all chats, a model or a chat, and where each value was set. Answers
    /// [`Reply::Settings`].
    GetSettings { scope: SettingTarget },
    /// Sets a value for all chats, a model or a chat; null clears it, so that a weaker scope's
    /// holds. Answers [`Reply::Settings`].
    SetSetting {
        scope: SettingTarget,
        #[ts(type = "keyof Settings")]
        key: String,
        #[ts(type = "Settings[keyof Settings] | null")]
        value: Value,
    },
    /// Replaces all parameters of answers that a conversation sets itself by these, as a preset has
    /// them. Answers [`Reply::Settings`].
    SetParameters {
        conversation_id: String,
        #[ts(type = "Partial<Settings>")]
        values: SettingValues,
    },
    /// Makes a preset of these parameters.
    CreatePreset {
        name: String,
        #[ts(type = "Partial<Settings>")]
        values: SettingValues,
    },
    /// Sets the name of a preset.
    RenamePreset { id: String, name: String },
    /// Deletes a preset; `RestorePreset` brings it back until the app is closed.
    DeletePreset { id: String },
    /// Undoes `DeletePreset`.
    RestorePreset { id: String },
    /// Makes a persona. Answers [`Reply::Persona`].
    CreatePersona {
        name: String,
        system_prompt: String,
        model: Option<String>,
        #[ts(type = "Partial<Settings>")]
        values: SettingValues,
    },
    /// Sets the name, the system prompt and the model of a persona; `SetSetting` its parameters. The
    /// system prompt of conversations that were begun with it stays.
    ChangePersona { id: String, name: String, system_prompt: String, model: Option<String> },
    /// Deletes a persona; its conversations stay. `RestorePersona` brings it back until the app is
    /// closed.
    DeletePersona { id: String },
    /// Undoes `DeletePersona`.
    RestorePersona { id: String },
    /// The status now (the same as the `Status` event).
    GetStatus,
    /// Figures of the last minutes, with those of this moment: the points behind the one with the number
    /// `after`; 0 asks for all. Answers [`Reply::MonitorNow`].
    GetMonitorNow { after: u32 },
    /// Figures of the last day. Answers [`Reply::MonitorDay`].
    GetMonitorDay,
    /// The facts that a bug report needs, as one text without secrets and without texts of
    /// conversations. Answers [`Reply::Diagnostics`].
    GetDiagnostics,
    /// The content of the saved-context page. Answers [`Reply::Cache`].
    GetCache,
    /// Deletes all saved context except that of pinned conversations and starting points.
    ClearCache,
    /// Pins a conversation, so that it stands above the others and its saved context is never evicted,
    /// or unpins it.
    PinConversation { id: String, is_pinned: bool },
    /// Deletes the saved context that only this conversation uses; its messages stay.
    PurgeConversation { id: String },
    /// Saves the context of a conversation as a starting point for other conversations. Answers
    /// [`Reply::Named`].
    SaveNamedCache { conversation_id: String, name: String },
    /// Renames a starting point.
    RenameNamedCache { id: String, name: String },
    /// Deletes a starting point; `RestoreNamedCache` brings it back until the app is closed.
    DeleteNamedCache { id: String },
    /// Undoes `DeleteNamedCache`.
    RestoreNamedCache { id: String },
    /// A conversation that begins with a starting point. Answers [`Reply::Conversation`].
    NewConversationFrom { named_id: String },
    /// Imports the file of a preview as a starting point. `check` first computes sample positions
    /// again and compares them. Answers [`Reply::Named`].
    ConfirmImport { token: String, name: String, check: bool },
    /// Discards a preview and Cairn's copy of its file.
    CancelImport { token: String },
    /// The conversations that have all words of a text in their title or in one message; with an empty
    /// text all that have a message. Answers [`Reply::FoundConversations`].
    SearchConversations { text: String },
    /// The conversations that have all words of a text in one message of any branch, the best first,
    /// at most 30. The last word may be a beginning unless white space follows it; words in quotation
    /// marks stand beside each other. Private conversations are not searched. Answers
    /// [`Reply::FoundMessages`].
    SearchMessages { text: String },
    /// Makes the branch with a message the one on screen. Answers [`Reply::Conversation`].
    ShowMessage { conversation_id: String, message_id: String },
    /// Takes conversations out of the list, or brings them back. They are still found.
    ArchiveConversations { ids: Vec<String>, is_archived: bool },
    /// Puts conversations into a folder, or into none. Their system prompts stay.
    MoveConversations { ids: Vec<String>, folder_id: Option<String> },
    /// Makes a folder. Answers [`Reply::Folder`].
    CreateFolder { name: String },
    /// Sets the name of a folder, and what conversations that are begun in it begin with.
    ChangeFolder { id: String, name: String, system_prompt: String, model: Option<String> },
    /// Deletes a folder; its conversations stay. `RestoreFolder` brings it back with them until the app
    /// is closed.
    DeleteFolder { id: String },
    /// Undoes `DeleteFolder`.
    RestoreFolder { id: String },
    /// All jobs, the newest first. Answers [`Reply::Jobs`].
    ListJobs,
    /// What a job would ask first, and about how many texts. Answers [`Reply::JobPreview`].
    PreviewJob { question: JobQuestion, source: JobSource },
    /// Asks a question about each of many texts; without a model the one that a new conversation
    /// would be with. Answers [`Reply::Job`] when all rows are saved; answers come as
    /// [`Event::Job`].
    CreateJob { name: String, model: Option<String>, question: JobQuestion, source: JobSource },
    /// Rows of a job, at most 500. Answers [`Reply::JobRows`].
    GetJobRows { id: String, order: JobRowOrder, offset: u32, limit: u32 },
    /// How certain a job's answers are, and how often they are correct. Answers
    /// [`Reply::JobCharts`].
    GetJobCharts { id: String },
    /// Says which option is the correct one for a row; null takes that back.
    CorrectJobRow { id: String, position: u32, option: Option<u32> },
    /// Fits the temperature of a job to the rows that were corrected, at least ten.
    CalibrateJob { id: String },
    /// Takes the probabilities as the model has them again.
    UncalibrateJob { id: String },
    /// Lets a job wait. The rows that are being asked are asked again later.
    PauseJob { id: String },
    /// Continues a job, and asks the rows again that could not be answered. If the job or its model
    /// was set aside, it no longer is.
    ContinueJob { id: String },
    /// Sets the name of a job; an empty one is refused.
    RenameJob { id: String, name: String },
    /// Hides a job, which waits meanwhile; `RestoreJob` brings it back for ten minutes, or until the
    /// app is closed.
    DeleteJob { id: String },
    /// Undoes `DeleteJob`.
    RestoreJob { id: String },
    /// The rows of a job as the text of a CSV file, for interfaces that save it themselves. Answers [`Reply::Csv`].
    ExportJob { id: String },
}

impl Command {
    /// Answers the last user message again.
    pub fn regenerate(conversation_id: &str) -> Command {
        let conversation_id = conversation_id.to_owned();
        Command::Regenerate { conversation_id, message_id: None, model: None }
    }

    /// Sets a value for all chats.
    pub fn set_for_all(key: &str, value: impl Into<Value>) -> Command {
        Command::SetSetting { scope: SettingTarget::App, key: key.to_owned(), value: value.into() }
    }
}

/// The answer to a [`Command`] that worked.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Reply {
    Done,
    Bootstrap {
        conversations: Vec<Conversation>,
        folders: Vec<Folder>,
        presets: Vec<Preset>,
        personas: Vec<Persona>,
        models: Vec<Model>,
        settings: Box<Settings>,
        status: Status,
        named: Vec<NamedCache>,
        downloads: Vec<Download>,
        /// The import of a model that is under way.
        model_import: Option<ModelImport>,
        /// The conversation of the newest answer that the end of the last run interrupted. Only the
        /// first page after a start is told of it.
        interrupted: Option<String>,
    },
    Conversation {
        conversation: Conversation,
        messages: Vec<Message>,
    },
    Documents {
        attached: AttachedDocuments,
    },
    DocumentText {
        document: Document,
        text: String,
    },
    Probabilities {
        probabilities: Probabilities,
    },
    /// The two rows that `SendMessage` and `EditMessage` saved, or the one of `Regenerate`,
    /// `ContinueAnswer` and `WriteFromToken`.
    Sent {
        conversation: Conversation,
        messages: Vec<Message>,
    },
    Outlook {
        /// None while no model is loaded that could read the conversation.
        outlook: Option<ChatOutlook>,
    },
    Compared {
        conversation: Conversation,
        /// The question, if it is a new one, and both answers.
        messages: Vec<Message>,
    },
    Versions {
        messages: Vec<Message>,
    },
    MessagesDeleted {
        /// For `RestoreMessages`.
        deletion_id: String,
        num_messages: u32,
    },
    Api {
        api: ApiOverview,
    },
    ApiKeyMade {
        key: ApiKey,
        /// The key itself.
        secret: String,
    },
    Models {
        models: Vec<Model>,
    },
    ModelFolders {
        paths: Vec<String>,
    },
    ModelMemory {
        memory: MemoryNeed,
        /// Whether the setting `bf16_state` makes a difference to it.
        takes_bf16_state: bool,
    },
    ModelDeletion {
        deletion: ModelDeletion,
    },
    RecommendedModels {
        models: Vec<RecommendedModel>,
        /// Of this machine; 0 where it is not known.
        #[ts(type = "number")]
        memory_bytes: u64,
    },
    /// The answer of `POST /api/models/import`.
    ModelImported {
        /// None: the import was cancelled.
        model: Option<ImportedModel>,
    },
    FoundModels {
        models: Vec<FoundModel>,
    },
    HubModel {
        model: HubModel,
    },
    ModelFacts {
        /// None where its config.json does not say, and of a model that could not be loaded.
        facts: Option<ModelFacts>,
    },
    ModelUpdates {
        updates: Vec<ModelUpdate>,
        /// Why it is not known of all models. An interface says so to a person who has asked.
        failure: Option<Failure>,
    },
    OldRevisions {
        revisions: OldRevisions,
    },
    HubAccess {
        access: HubAccess,
    },
    Settings {
        resolved: Box<ResolvedSettings>,
    },
    Status {
        status: Status,
    },
    MonitorNow {
        /// Memory of the machine; 0 where it is not known.
        #[ts(type = "number")]
        machine_bytes: u64,
        /// The oldest first; at most those of the last five minutes.
        points: Vec<MonitorPoint>,
    },
    MonitorDay {
        day: MonitorDay,
    },
    Diagnostics {
        text: String,
    },
    Cache {
        cache: CacheOverview,
    },
    Named {
        named: NamedCache,
    },
    ImportPreview {
        preview: ImportPreview,
    },
    FoundConversations {
        /// The one with the newest turn first.
        ids: Vec<String>,
    },
    FoundMessages {
        found: Vec<FoundMessage>,
        /// How much of all messages is indexed, from 0 to 1; those of an earlier version are indexed
        /// after the first start of this one.
        indexed_share: f64,
    },
    Folder {
        folder: Folder,
    },
    Context {
        /// None while no model is loaded that could read the conversation.
        context: Option<ChatContext>,
    },
    Persona {
        persona: Persona,
    },
    /// The answer of `POST /api/chats/import`.
    ChatsImported {
        imported: ChatsImported,
    },
    Jobs {
        jobs: Vec<Job>,
    },
    Job {
        job: Job,
    },
    JobPreview {
        preview: JobPreview,
    },
    JobRows {
        rows: Vec<JobRow>,
    },
    JobCharts {
        charts: JobCharts,
    },
    Csv {
        text: String,
    },
}

/// A change that the interface is told of without having asked.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Event {
    /// A conversation was created, renamed or restored, or it has a new message.
    Conversation {
        conversation: Conversation,
    },
    /// Several conversations were changed or restored together.
    Conversations {
        conversations: Vec<Conversation>,
    },
    /// Conversations were hidden.
    ConversationsDeleted {
        ids: Vec<String>,
    },
    /// Many conversations have come or changed: the interface asks for everything again.
    ConversationsChanged,
    /// Which model answers next in every conversation: a model has come or is gone, or that of a folder
    /// has changed.
    ChatModels {
        models: Vec<ModelOfChat>,
    },
    /// All folders.
    Folders {
        folders: Vec<Folder>,
    },
    /// All presets.
    Presets {
        presets: Vec<Preset>,
    },
    /// All personas.
    Personas {
        personas: Vec<Persona>,
    },
    /// A message was saved or has changed as a whole: it replaces the interface's copy.
    Message {
        message: Message,
    },
    /// The branch on screen is another one now: behind the message `after`, or from the beginning, it
    /// has these messages and no others.
    Branch {
        conversation_id: String,
        after: Option<String>,
        messages: Vec<Message>,
    },
    /// A segment of a message that is being written: a new one, behind the others, or one that has
    /// changed otherwise than by growing, which replaces the interface's copy.
    Segment {
        conversation_id: String,
        message_id: String,
        index: u32,
        segment: AnswerSegment,
    },
    /// Text to append to a segment of a message that is being written: to its text, or to the
    /// arguments of a call. `offset` is the length in UTF-16 code units of the text before it; after a
    /// gap the interface asks for the conversation again. At most 30 times a second.
    Delta {
        conversation_id: String,
        message_id: String,
        segment: u32,
        offset: u32,
        text: String,
    },
    /// An event about an answer that is written beside the branch on screen, because it is compared
    /// with the one at its end.
    Beside {
        event: Box<Event>,
    },
    /// A conversation or a folder has other documents, or their tokens were counted.
    Documents {
        attached: AttachedDocuments,
    },
    /// How far documents are read ahead. At most ten a second for each conversation and folder.
    DocumentsReading {
        of: DocumentsOf,
        reading: DocumentReading,
    },
    /// How far a `GetProbabilities` has come; what was saved counts as read.
    ProbabilitiesRead {
        read_id: String,
        processed_tokens: u32,
        total_tokens: u32,
    },
    /// The model writes a summary of earlier messages, before it answers. At most ten a second: first
    /// how far it has read them (what was saved counts as read), then how much is written of the most
    /// that it may write.
    Summarizing {
        conversation_id: String,
        message_id: String,
        processed_tokens: u32,
        total_tokens: u32,
        written_tokens: u32,
        limit_tokens: u32,
    },
    /// How far the prompt of a message has been read.
    Prefill {
        conversation_id: String,
        message_id: String,
        processed_tokens: u32,
        total_tokens: u32,
        cached_tokens: u32,
    },
    Models {
        models: Vec<Model>,
    },
    /// All downloads as they are now. At most four a second.
    Downloads {
        downloads: Vec<Download>,
    },
    /// How far the import of a model is; none when it has ended.
    ModelImport {
        import: Option<ModelImport>,
    },
    /// The server of the API was started or has stopped.
    ApiServer {
        server: ApiServer,
    },
    /// All keys of the API as they are now.
    ApiKeys {
        keys: Vec<ApiKey>,
    },
    /// A request of a program has ended.
    ApiRequest {
        request: ApiRequest,
    },
    /// A setting was changed in any scope; these hold for all chats.
    Settings {
        settings: Settings,
    },
    /// At most four a second while something runs, one every two seconds otherwise, none while
    /// nothing changes.
    Status {
        status: Status,
    },
    /// A sentence to show to the user.
    Notice {
        level: NoticeLevel,
        text: String,
        /// What the text says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional)]
        kind: Option<Box<NoticeKind>>,
    },
    /// The saved context has changed; at most one a second.
    CacheChanged,
    /// The current list of starting points.
    NamedCaches {
        named: Vec<NamedCache>,
    },
    /// A job was created or changed, or rows of it were answered.
    Job {
        job: Job,
    },
    /// A job was hidden.
    JobDeleted {
        id: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum NoticeLevel {
    Info,
    Warning,
    Error,
}

/// One line of an HTTP answer (newline-delimited JSON), or one message on the Tauri channel.
#[derive(Debug, Clone, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    Reply(Reply),
    Failure(Failure),
    Event(Event),
}
