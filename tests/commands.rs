//! Every command of the app answers while another conversation is answered without end, and while a
//! model is loaded without end.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

#[path = "engine/scripted.rs"]
#[allow(dead_code)] // used by the tests of the engine
mod scripted;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{
    CacheFileLayout, CacheSource, Command, CompareColumn, ContextOf, DocumentKind, DocumentsOf,
    EngineState, Event, FailureCode, JobQuestion, JobQuestionKind, JobRowOrder, JobSource,
    JobState, JobTexts, Message, MessageStatus, NewDocument, Persona, Probabilities, Reply,
    RoundingForm, SettingTarget, TextFormat,
};
use cairn_app::{App, DataFolder, Options};
use cairn_fake_hub::{FakeHub, FakeRepo};
use cairn_hub::HubOptions;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use scripted::{Scripted, text_ids};

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

/// More parts than a load could read in years.
const ENDLESSLY: u64 = 1 << 52;

/// Adds a model that answers from a script, as if it had been imported.
fn add_model(home: &Path, name: &str, model: &Scripted) {
    let folder = home.join("models").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for entry in std::fs::read_dir(model.folder()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    // A folder without weights is no model.
    std::fs::write(folder.join("model.safetensors"), "").unwrap();
}

fn home_with_models() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let script = text_ids("abcdefghijklmnopq rstuvwxyz,.");
    let context = json!({ "max_position_embeddings": 10_000_000 });
    add_model(home.path(), "writer", &Scripted::with(&script, context));
    add_model(home.path(), "another", &Scripted::new(&script));
    let endless = json!({ "load_parts": ENDLESSLY });
    add_model(home.path(), "endless", &Scripted::with(&script, endless));
    home
}

/// The app, and which commands it was sent.
struct Caller {
    app: Arc<App>,
    called: BTreeSet<String>,
}

/// A model that a hub on loopback has.
const ON_HUB: &str = "tiny/chat";

impl Caller {
    async fn open(home: &TempDir) -> Caller {
        Caller::open_with(Options::new(DataFolder::new(home.path()))).await
    }

    async fn open_with(options: Options) -> Caller {
        let mut caller = Caller { app: App::open(options).await.unwrap(), called: BTreeSet::new() };
        caller.call(Command::set_for_all("temperature", 0.0)).await;
        caller.call(Command::set_for_all("max_tokens", 1_000_000)).await;
        // A script repeats itself.
        caller.call(Command::set_for_all("holds_loops", false)).await;
        // A disk limit that nothing here reaches, whatever is free on this disk.
        caller.call(Command::set_for_all("cache_budget_bytes", 1_u64 << 30)).await;
        caller
    }

    /// The answer to a command, which comes soon.
    async fn call(&mut self, command: Command) -> Reply {
        let shown = format!("{command:?}");
        let name = serde_json::to_value(&command).unwrap()["type"].as_str().unwrap().to_owned();
        self.called.insert(name);
        let answer = tokio::time::timeout(SOON, self.app.call(command)).await;
        let answer = answer.unwrap_or_else(|_| panic!("{shown} waits"));
        answer.unwrap_or_else(|failure| panic!("{shown}: {failure:?}"))
    }

    async fn new_conversation(&mut self, command: Command) -> String {
        match self.call(command).await {
            Reply::Conversation { conversation, .. } => conversation.id,
            other => panic!("{other:?}"),
        }
    }

    async fn message(&mut self, command: Command) -> Message {
        match self.call(command).await {
            Reply::Sent { messages, .. } => messages.into_iter().next_back().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn messages(&mut self, id: &str) -> Vec<Message> {
        match self.call(Command::GetConversation { id: id.to_owned() }).await {
            Reply::Conversation { messages, .. } => messages,
            other => panic!("{other:?}"),
        }
    }

    async fn engine(&mut self) -> EngineState {
        match self.call(Command::GetStatus).await {
            Reply::Status { status } => status.engine,
            other => panic!("{other:?}"),
        }
    }
}

async fn next(events: &mut Receiver<Event>) -> Event {
    tokio::time::timeout(SOON, events.recv()).await.expect("an event should come").unwrap()
}

/// The whole message, once it has ended.
async fn ended(events: &mut Receiver<Event>, message_id: &str) -> Message {
    loop {
        match next(events).await {
            Event::Message { message }
                if message.id == message_id && message.status != MessageStatus::Streaming =>
            {
                return message;
            }
            _ => {}
        }
    }
}

/// The names in the type `Command` of the interface.
fn all_commands() -> BTreeSet<String> {
    let types = cairn_app::typescript();
    let start = types.find("export type Command").unwrap();
    let length = types[start..].find("export type Reply").unwrap();
    let names = types[start..start + length].split("\"type\": \"").skip(1);
    names.map(|name| name.split('"').next().unwrap().to_owned()).collect()
}

fn ask(conversation_id: &str, text: &str) -> Command {
    Command::SendMessage { conversation_id: conversation_id.to_owned(), text: text.to_owned() }
}

/// The commands of the pages about models.
async fn manage_models(caller: &mut Caller, home: &Path) {
    let here = || "another".to_owned();
    caller.call(Command::CheckModel { name: here() }).await;
    caller.call(Command::GetModelDeletion { name: here() }).await;
    caller.call(Command::DeleteModel { name: here() }).await;
    caller.call(Command::RestoreModel { name: here() }).await;
    caller.call(Command::GetModelMemory { name: here() }).await;
    caller.call(Command::GetModelUpdates).await;
    caller.call(Command::GetOldRevisions { name: here() }).await;
    caller.call(Command::RemoveOldRevisions { name: here() }).await;
    caller.call(Command::RestoreOldRevisions { name: here() }).await;
    let path = home.to_str().unwrap().to_owned();
    caller.call(Command::AddModelFolder { path: path.clone() }).await;
    caller.call(Command::GetModelFolders).await;
    caller.call(Command::RemoveModelFolder { path }).await;
    caller.call(Command::ChooseRounding { form: RoundingForm::Bits8 }).await;
    caller.call(Command::CancelModelImport).await;
    caller.call(Command::CancelModelMeasurement { name: here() }).await;
    caller.call(Command::UseModelAnyway { name: here() }).await;
    caller.call(Command::EndQuietStart).await;

    let name = || ON_HUB.to_owned();
    caller.call(Command::GetRecommendedModels).await;
    caller.call(Command::SearchModels { text: name() }).await;
    caller.call(Command::GetHubModel { name: name() }).await;
    caller.call(Command::GetModelFacts { name: name() }).await;
    caller.call(Command::GetHubAccess).await;
    caller.call(Command::SetHubToken { token: String::new() }).await;
    caller.call(Command::DownloadModel { name: name() }).await;
    caller.call(Command::RetryDownloads).await;
    caller.call(Command::PauseDownload { name: name() }).await;
    caller.call(Command::CancelDownload { name: name() }).await;
}

/// The commands about search, folders and the archive.
async fn find_and_sort(caller: &mut Caller, id: &str) {
    caller.call(Command::SearchMessages { text: "One".to_owned() }).await;
    let message_id = caller.messages(id).await[0].id.clone();
    let conversation_id = id.to_owned();
    caller.call(Command::ShowMessage { conversation_id, message_id }).await;
    let made = caller.call(Command::CreateFolder { name: "Letters".to_owned() }).await;
    let Reply::Folder { folder } = made else { panic!("{made:?}") };
    let (folder_id, name) = (folder.id.clone(), folder.name.clone());
    let system_prompt = "Be formal.".to_owned();
    let change = Command::ChangeFolder { id: folder_id.clone(), name, system_prompt, model: None };
    caller.call(change).await;
    let begin = Command::NewConversationIn { folder_id: folder_id.clone() };
    caller.new_conversation(begin).await;
    let into = Some(folder_id.clone());
    caller.call(Command::MoveConversations { ids: vec![id.to_owned()], folder_id: into }).await;
    caller.call(Command::DeleteFolder { id: folder_id.clone() }).await;
    caller.call(Command::RestoreFolder { id: folder_id }).await;
    for is_archived in [true, false] {
        caller.call(Command::ArchiveConversations { ids: vec![id.to_owned()], is_archived }).await;
    }
}

/// The commands about presets, personas and the context of a chat.
async fn set_up_chats(caller: &mut Caller, id: &str) {
    let values = || [("top_k".to_owned(), 5.into())].into();
    let conversation_id = || id.to_owned();
    let name = "Exact".to_owned();
    caller.call(Command::CreatePreset { name, values: values() }).await;
    let preset = match caller.call(Command::Bootstrap).await {
        Reply::Bootstrap { presets, .. } => presets[0].id.clone(),
        other => panic!("{other:?}"),
    };
    let apply = Command::SetParameters { conversation_id: conversation_id(), values: values() };
    caller.call(apply).await;
    let name = "Careful".to_owned();
    caller.call(Command::RenamePreset { id: preset.clone(), name }).await;
    caller.call(Command::DeletePreset { id: preset.clone() }).await;
    caller.call(Command::RestorePreset { id: preset }).await;

    let (name, system_prompt) = ("Stone".to_owned(), "Be brief.".to_owned());
    let create = Command::CreatePersona { name, system_prompt, model: None, values: values() };
    let made = caller.call(create).await;
    let Reply::Persona { persona } = made else { panic!("{made:?}") };
    let Persona { id: persona_id, name, system_prompt, model, .. } = persona;
    let change = Command::ChangePersona { id: persona_id.clone(), name, system_prompt, model };
    caller.call(change).await;
    caller.new_conversation(Command::NewConversationAs { persona_id: persona_id.clone() }).await;
    caller.call(Command::DeletePersona { id: persona_id.clone() }).await;
    caller.call(Command::RestorePersona { id: persona_id }).await;

    let of = ContextOf::Conversation { id: conversation_id() };
    caller.call(Command::GetContext { of }).await;
    let message_id = caller.messages(id).await[0].id.clone();
    let conversation_id = conversation_id();
    caller.call(Command::ReadAgain { conversation_id, message_id }).await;
}

/// The commands about the API.
async fn manage_keys(caller: &mut Caller) {
    let made = caller.call(Command::MakeApiKey { name: "Editor".to_owned() }).await;
    let Reply::ApiKeyMade { key, .. } = made else { panic!("{made:?}") };
    caller.call(Command::GetApi).await;
    caller.call(Command::RevokeApiKey { id: key.id, deletes_saved: true }).await;
}

/// The commands about a question that is asked about many texts.
async fn ask_many(caller: &mut Caller, events: &mut Receiver<Event>) {
    let kind = JobQuestionKind::Predicate;
    let instructions = "Is it a stone?".to_owned();
    let question = JobQuestion { instructions, kind, options: Vec::new() };
    let content = (0..30).map(|number| format!("text {number}")).collect::<Vec<_>>().join("\n");
    caller.call(Command::SearchConversations { text: String::new() }).await;
    let source = JobTexts { format: TextFormat::Lines, content, column: None };
    let source = JobSource::Written(source);
    let preview = Command::PreviewJob { question: question.clone(), source: source.clone() };
    caller.call(preview).await;
    let (name, model) = ("Stones".to_owned(), Some("writer".to_owned()));
    let made = caller.call(Command::CreateJob { name, model, question, source }).await;
    let Reply::Job { job } = made else { panic!("{made:?}") };
    let id = || job.id.clone();
    caller.call(Command::PauseJob { id: id() }).await;
    caller.call(Command::ContinueJob { id: id() }).await;
    loop {
        let Reply::Jobs { jobs } = caller.call(Command::ListJobs).await else { panic!() };
        if jobs.iter().any(|job| job.state == JobState::Done) {
            break;
        }
        while !matches!(next(events).await, Event::Job { .. }) {}
    }
    let order = JobRowOrder::Certainty;
    caller.call(Command::GetJobRows { id: id(), order, offset: 0, limit: 30 }).await;
    for position in 0..30 {
        let option = Some(position % 2);
        caller.call(Command::CorrectJobRow { id: id(), position, option }).await;
    }
    caller.call(Command::CalibrateJob { id: id() }).await;
    caller.call(Command::GetJobCharts { id: id() }).await;
    caller.call(Command::UncalibrateJob { id: id() }).await;
    caller.call(Command::ExportJob { id: id() }).await;
    caller.call(Command::RenameJob { id: id(), name: "Pebbles".to_owned() }).await;
    caller.call(Command::DeleteJob { id: id() }).await;
    caller.call(Command::RestoreJob { id: id() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_waits_for_the_answer_of_another_conversation() {
    let home = home_with_models();
    let hub = FakeHub::start(vec![FakeRepo::model(ON_HUB, 5 << 20)]);
    let hub_options =
        HubOptions { endpoint: hub.endpoint(), ..HubOptions::new(home.path().join("hub")) };
    let options = Options::new(DataFolder::new(home.path()));
    let mut caller = Caller::open_with(Options { hub: Some(hub_options), ..options }).await;
    let mut events = caller.app.subscribe();
    caller.call(Command::LoadModel { name: "writer".to_owned() }).await;
    let busy = caller.new_conversation(Command::NewConversation).await;
    let endless = caller.message(ask(&busy, "Tell me everything")).await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}

    caller.call(Command::Bootstrap).await;
    caller.call(Command::Subscribe).await;
    caller.call(Command::RefreshConversation { id: busy.clone() }).await;
    caller.call(Command::GetOutlook { id: busy.clone() }).await;
    let id = caller.new_conversation(Command::NewConversation).await;
    converse(&mut caller, &mut events, &id).await;
    find_and_sort(&mut caller, &id).await;
    set_up_chats(&mut caller, &id).await;
    save_context(&mut caller, &mut events, &id, home.path()).await;
    let private = caller.new_conversation(Command::NewPrivateConversation).await;
    let answer = caller.message(ask(&private, "Three")).await;
    caller.call(Command::GoOn { conversation_id: private.clone() }).await;
    let (conversation_id, message_id) = (private.clone(), answer.id.clone());
    caller.call(Command::AnswerNow { conversation_id, message_id }).await;
    caller.call(Command::Stop { conversation_id: private }).await;
    assert_eq!(ended(&mut events, &answer.id).await.status, MessageStatus::Stopped);

    caller.call(Command::ListModels).await;
    manage_keys(&mut caller).await;
    ask_many(&mut caller, &mut events).await;
    caller.call(Command::LoadModel { name: "another".to_owned() }).await;
    // The endless answer is another model's than the one that answers next.
    let loaded = loop {
        if let EngineState::Generating { model, .. } = caller.engine().await {
            break model;
        }
    };
    assert_eq!(loaded, "another");
    caller.call(Command::StopLoading).await;
    caller.call(Command::UnloadModel).await;
    manage_models(&mut caller, home.path()).await;
    caller.call(Command::GetDiagnostics).await;
    caller.call(Command::GetMonitorNow { after: 0 }).await;
    caller.call(Command::GetMonitorDay).await;
    caller.engine().await;
    caller.call(Command::ClearCache).await;
    caller.call(Command::DeleteConversations { ids: vec![id.clone()] }).await;
    caller.call(Command::RestoreConversations { ids: vec![id] }).await;
    // Nothing has stopped the endless answer.
    let before = caller.messages(&busy).await.pop().unwrap();
    assert_eq!((&before.id, before.status), (&endless.id, MessageStatus::Streaming));
    while caller.messages(&busy).await.pop().unwrap().text.len() <= before.text.len() {}
    caller.call(Command::Stop { conversation_id: busy }).await;
    ended(&mut events, &endless.id).await;
    assert_eq!(caller.called, all_commands(), "every command is sent");
    caller.app.close().await;
}

/// Sends the commands about one conversation, with short answers.
async fn converse(caller: &mut Caller, events: &mut Receiver<Event>, id: &str) {
    let target = || SettingTarget::Chat { id: id.to_owned() };
    caller.call(Command::GetSettings { scope: target() }).await;
    let key = "max_tokens".to_owned();
    caller.call(Command::SetSetting { scope: target(), key, value: json!(4) }).await;
    let title = "Stones".to_owned();
    caller.call(Command::RenameConversation { id: id.to_owned(), title }).await;
    let system_prompt = "Be brief.".to_owned();
    caller.call(Command::SetSystemPrompt { id: id.to_owned(), system_prompt }).await;
    caller.call(Command::ChooseModel { id: id.to_owned(), model: None }).await;
    let document_ids = vec![attach(caller, id).await];
    let (conversation_id, text) = (id.to_owned(), "One".to_owned());
    let with = Command::SendMessageWith { conversation_id, text, document_ids };
    let answer = caller.message(with).await;
    assert_eq!(ended(events, &answer.id).await.status, MessageStatus::Complete);
    let again = caller.message(Command::regenerate(id)).await;
    assert_eq!(ended(events, &again.id).await.status, MessageStatus::Complete);
    branch(caller, events, id, [&answer, &again]).await;
    caller.call(Command::Stop { conversation_id: id.to_owned() }).await;
}

/// Sends the commands about documents, of which one stays in the draft.
async fn attach(caller: &mut Caller, id: &str) -> String {
    let of = || DocumentsOf::conversation(id);
    let document = |name: &str| NewDocument {
        name: name.to_owned(),
        kind: DocumentKind::Text,
        text: "Stone on stone.".to_owned(),
    };
    let documents = vec![document("a.txt"), document("b.txt")];
    let attach = Command::AttachDocuments { of: of(), documents };
    let Reply::Documents { attached } = caller.call(attach).await else { panic!("no documents") };
    let document_id = || attached.documents[0].id.clone();
    let (remove, restore, get) = (
        Command::RemoveDocument { of: of(), document_id: document_id() },
        Command::RestoreDocument { of: of(), document_id: document_id() },
        Command::GetDocument { of: of(), document_id: document_id() },
    );
    for command in [remove, restore, get] {
        caller.call(command).await;
    }
    caller.call(Command::StopReadingDocuments { of: of() }).await;
    caller.call(Command::ReadDocuments { of: of() }).await;
    caller.call(Command::GetDocuments { of: of() }).await;
    document_id()
}

/// Sends the commands about the branches of a conversation with two answers to one question.
async fn branch(
    caller: &mut Caller,
    events: &mut Receiver<Event>,
    id: &str,
    [first, second]: [&Message; 2],
) {
    let (conversation_id, message_id) = (|| id.to_owned(), || second.id.clone());
    // It has reached the limit of the settings.
    let more =
        Command::ContinueAnswer { conversation_id: conversation_id(), message_id: message_id() };
    let more = caller.message(more).await;
    assert_eq!(ended(events, &more.id).await.id, second.id);
    let read = Command::GetProbabilities {
        conversation_id: conversation_id(),
        message_id: more.id.clone(),
        read_id: "a read".to_owned(),
        loads_model: false,
    };
    let Reply::Probabilities { probabilities: Probabilities::Read { tokens, .. } } =
        caller.call(read).await
    else {
        panic!("its model is loaded")
    };
    caller.call(Command::StopProbabilities { read_id: "a read".to_owned() }).await;
    let other = Command::WriteFromToken {
        conversation_id: conversation_id(),
        message_id: more.id.clone(),
        position: 1,
        token: tokens[1].likeliest[1].token,
    };
    let other = caller.message(other).await;
    ended(events, &other.id).await;
    let show =
        Command::ShowVersion { conversation_id: conversation_id(), message_id: first.id.clone() };
    caller.call(show).await;
    let question = first.parent_id.clone().unwrap();
    let text = "One and a half".to_owned();
    let edit = Command::EditMessage {
        conversation_id: conversation_id(),
        message_id: question,
        text,
        document_ids: None,
    };
    let edited = caller.message(edit).await;
    ended(events, &edited.id).await;
    let delete = Command::DeleteMessage {
        conversation_id: conversation_id(),
        message_id: edited.id.clone(),
        with_following: true,
    };
    let Reply::MessagesDeleted { deletion_id, .. } = caller.call(delete).await else { panic!() };
    caller.call(Command::RestoreMessages { conversation_id: conversation_id(), deletion_id }).await;
    let title = "Aside".to_owned();
    let (conversation_id, message_id) = (conversation_id(), edited.id);
    caller.call(Command::BranchConversation { conversation_id, message_id, title }).await;
    compare(caller, events, id).await;
}

/// Sends the commands about two answers that are compared.
async fn compare(caller: &mut Caller, events: &mut Receiver<Event>, id: &str) {
    let conversation_id = || id.to_owned();
    let hot = CompareColumn { temperature: Some(1.5), ..CompareColumn::default() };
    let begin = Command::Compare {
        conversation_id: conversation_id(),
        message_id: None,
        text: None,
        columns: vec![CompareColumn::default(), hot],
    };
    let Reply::Compared { messages, .. } = caller.call(begin).await else { panic!() };
    let [first, second] = &messages[..] else { panic!("{messages:?}") };
    let stop =
        Command::StopAnswer { conversation_id: conversation_id(), message_id: first.id.clone() };
    caller.call(stop).await;
    ended(events, &first.id).await;
    let message_ids = vec![first.id.clone(), second.id.clone()];
    caller.call(Command::GetVersions { conversation_id: conversation_id(), message_ids }).await;
    loop {
        if let Event::Beside { event } = next(events).await
            && let Event::Message { message } = *event
            && message.status != MessageStatus::Streaming
        {
            assert_eq!(message.id, second.id);
            break;
        }
    }
    let both = Command::AskBoth {
        conversation_id: conversation_id(),
        // The first was stopped, perhaps before it had a word.
        message_ids: vec![second.id.clone(), second.id.clone()],
        text: "And then?".to_owned(),
        columns: vec![CompareColumn::default(), CompareColumn::default()],
    };
    let Reply::Compared { messages, .. } = caller.call(both).await else { panic!() };
    let [_, first, second] = &messages[..] else { panic!("{messages:?}") };
    let mut are_written = vec![first.id.clone(), second.id.clone()];
    while !are_written.is_empty() {
        let event = match next(events).await {
            Event::Beside { event } => *event,
            event => event,
        };
        if let Event::Message { message } = event
            && message.status != MessageStatus::Streaming
        {
            are_written.retain(|id| *id != message.id);
        }
    }
    let message_id = first.id.clone();
    caller.call(Command::ChooseAnswer { conversation_id: conversation_id(), message_id }).await;
}

/// Sends the commands about a conversation's saved context.
async fn save_context(caller: &mut Caller, events: &mut Receiver<Event>, id: &str, home: &Path) {
    caller.call(Command::GetCache).await;
    caller.call(Command::PinConversation { id: id.to_owned(), is_pinned: true }).await;
    let save = Command::SaveNamedCache { conversation_id: id.to_owned(), name: "Notes".to_owned() };
    let Reply::Named { named } = caller.call(save).await else { panic!("no starting point") };
    let name = "My notes".to_owned();
    caller.call(Command::RenameNamedCache { id: named.id.clone(), name }).await;
    let begin = Command::NewConversationFrom { named_id: named.id.clone() };
    let begun = caller.new_conversation(begin).await;
    let target = SettingTarget::Chat { id: begun.clone() };
    let key = "max_tokens".to_owned();
    caller.call(Command::SetSetting { scope: target, key, value: json!(4) }).await;
    let answer = caller.message(ask(&begun, "Two")).await;
    let stats = ended(events, &answer.id).await.stats.unwrap();
    assert_eq!((stats.cached_tokens, stats.cache_note), (named.tokens, None));

    let source = CacheSource::Named { id: named.id.clone() };
    for (name, check) in [("Checked", true), ("Unchecked", false)] {
        let file = home.join(format!("{name}.safetensors"));
        let export = caller.app.export_cache(&source, CacheFileLayout::V0_32, &file);
        tokio::time::timeout(SOON, export).await.expect("waits for nobody").unwrap();
        let preview = caller.app.preview_import(file);
        let preview = tokio::time::timeout(SOON, preview).await.expect("waits for nobody");
        let (token, name) = (preview.token, name.to_owned());
        caller.call(Command::ConfirmImport { token, name, check }).await;
    }
    let token = caller.app.preview_import(home.join("Checked.safetensors")).await.token;
    caller.call(Command::CancelImport { token }).await;
    caller.call(Command::DeleteNamedCache { id: named.id.clone() }).await;
    caller.call(Command::RestoreNamedCache { id: named.id }).await;
    caller.call(Command::PurgeConversation { id: begun }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_reports_its_progress_and_can_be_stopped() {
    let home = home_with_models();
    let mut caller = Caller::open(&home).await;
    // Without a load there is nothing to stop.
    caller.call(Command::StopLoading).await;
    caller.call(Command::LoadModel { name: "writer".to_owned() }).await;
    let app = caller.app.clone();
    let load = async move { app.call(Command::LoadModel { name: "endless".to_owned() }).await };
    let loading = tokio::spawn(load);
    let mut seen = 0;
    while seen < 3 {
        if let EngineState::Loading { model, bytes_read, total_bytes } = caller.engine().await {
            // Nothing is known before the first part.
            assert!(total_bytes == ENDLESSLY || (total_bytes, bytes_read) == (0, 0));
            assert!(model == "endless" && bytes_read >= seen);
            seen = bytes_read.max(seen);
        }
    }
    // Nothing that needs no model waits for the load.
    let id = caller.new_conversation(Command::NewConversation).await;
    caller.call(Command::Bootstrap).await;
    let waiting = caller.message(ask(&id, "One")).await;
    caller.call(Command::StopLoading).await;
    let failure = tokio::time::timeout(SOON, loading).await.expect("ends").unwrap().unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (FailureCode::Engine, "Loading endless was cancelled.")
    );
    // The model before it answers.
    let mut messages = caller.messages(&id).await;
    while messages.last().unwrap().text.is_empty() {
        assert_eq!(messages.last().unwrap().status, MessageStatus::Streaming, "{messages:?}");
        messages = caller.messages(&id).await;
    }
    assert_eq!(messages.last().unwrap().id, waiting.id);
    caller.app.close().await;
}
