//! The tiny model in a data folder of its own, and the commands that most tests send.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{
    AnswerSegment, CacheOverview, Command, Conversation, Event, Failure, FailureCode, Message,
    MessageStatus, Model, NamedCache, Reply, Settings,
};
use cairn_app::{App, DataFolder, Options};
use cairn_tiny_models::copy_tiny_model;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

pub const MODEL: &str = "tiny-chat";
/// Longer than anything here takes; only a failing test waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A data folder of its own, with the tiny model among the imported ones.
pub fn home_with_model() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    copy_tiny_model("llama/tiny-chat", &home.path().join("models").join(MODEL)).unwrap();
    home
}

pub fn options(home: &Path) -> Options {
    Options::new(DataFolder::new(home))
}

pub async fn open(home: &TempDir) -> Arc<App> {
    App::open(options(home.path())).await.unwrap()
}

/// The app with greedy, short answers, so that they are the same every time.
pub async fn open_greedy(home: &TempDir, max_tokens: u32) -> Arc<App> {
    let app = open(home).await;
    set_for_all(&app, "temperature", 0.0).await;
    set_for_all(&app, "max_tokens", max_tokens).await;
    // The tiny model repeats itself.
    set_for_all(&app, "holds_loops", false).await;
    set_for_all(&app, "cache_budget_bytes", 1_u64 << 30).await;
    app
}

pub async fn set_for_all(app: &Arc<App>, key: &str, value: impl Into<Value>) {
    app.call(Command::set_for_all(key, value)).await.unwrap();
}

pub async fn bootstrap(app: &Arc<App>) -> (Vec<Conversation>, Settings, Vec<Model>) {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { conversations, settings, models, .. } => {
            (conversations, *settings, models)
        }
        other => panic!("{other:?}"),
    }
}

pub async fn new_conversation(app: &Arc<App>) -> String {
    match app.call(Command::NewConversation).await.unwrap() {
        Reply::Conversation { conversation, messages } if messages.is_empty() => conversation.id,
        other => panic!("{other:?}"),
    }
}

pub async fn conversation(app: &Arc<App>, id: &str) -> Conversation {
    match app.call(Command::GetConversation { id: id.to_owned() }).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation,
        other => panic!("{other:?}"),
    }
}

/// Lets a chat be answered by a model, or takes that back.
pub async fn choose_model(app: &Arc<App>, id: &str, model: Option<&str>) {
    let (id, model) = (id.to_owned(), model.map(str::to_owned));
    app.call(Command::ChooseModel { id, model }).await.unwrap();
}

pub async fn messages(app: &Arc<App>, id: &str) -> Vec<Message> {
    match app.call(Command::GetConversation { id: id.to_owned() }).await.unwrap() {
        Reply::Conversation { messages, .. } => messages,
        other => panic!("{other:?}"),
    }
}

/// Sends a message and returns the question and the answer as they were saved first.
pub async fn send(app: &Arc<App>, id: &str, text: &str) -> [Message; 2] {
    match app
        .call(Command::SendMessage { conversation_id: id.to_owned(), text: text.to_owned() })
        .await
        .unwrap()
    {
        Reply::Sent { messages, conversation } => {
            assert!(conversation.is_streaming);
            messages.try_into().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

pub async fn next(events: &mut Receiver<Event>) -> Event {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event should come").unwrap()
}

/// Receives events until `wanted` accepts one, and returns its result. Other events may come first:
/// the status, a row of the list or the models are sent at any time on a busy machine.
pub async fn until<T>(
    events: &mut Receiver<Event>,
    mut wanted: impl FnMut(Event) -> Option<T>,
) -> T {
    loop {
        if let Some(found) = wanted(next(events).await) {
            return found;
        }
    }
}

/// Receives events until the answer has ended and its conversation is no longer streaming. Checks
/// that the deltas add up to the text.
pub async fn ended(events: &mut Receiver<Event>, message_id: &str) -> Message {
    let mut received: Vec<AnswerSegment> = Vec::new();
    let mut last: Option<Message> = None;
    loop {
        match next(events).await {
            Event::Segment { message_id: id, index, segment, .. } if id == message_id => {
                let index = index as usize;
                assert!(index + 1 >= received.len(), "only the last segment changes");
                received.truncate(index);
                assert_eq!(index, received.len(), "no segment is left out");
                received.push(segment);
            }
            Event::Delta { message_id: id, segment, offset, text, .. } if id == message_id => {
                assert_eq!(segment as usize + 1, received.len(), "only the last segment grows");
                let growing = growing(&mut received[segment as usize]);
                let length = growing.encode_utf16().count();
                assert_eq!(offset as usize, length, "each delta continues the text");
                assert!(!text.is_empty());
                growing.push_str(&text);
            }
            Event::Message { message }
                if message.id == message_id && message.status != MessageStatus::Streaming =>
            {
                assert_eq!(message.segments, received, "the events are the segments");
                last = Some(message);
            }
            Event::Conversation { conversation } if !conversation.is_streaming => {
                if let Some(message) =
                    last.take_if(|message| message.conversation_id == conversation.id)
                {
                    return message;
                }
            }
            _ => {}
        }
    }
}

fn growing(segment: &mut AnswerSegment) -> &mut String {
    match segment {
        AnswerSegment::Text { text } | AnswerSegment::Reasoning { text, .. } => text,
        AnswerSegment::ToolCall { arguments, .. } => arguments,
    }
}

pub async fn answered(app: &Arc<App>, id: &str, text: &str) -> Message {
    let mut events = app.subscribe();
    let [_, answer] = send(app, id, text).await;
    ended(&mut events, &answer.id).await
}

pub async fn check_failure(app: &Arc<App>, command: Command, code: FailureCode, named: &str) {
    let shown = format!("{command:?}");
    match app.call(command).await {
        Err(Failure { code: found, message, .. }) => {
            assert_eq!(found, code, "{shown}: {message}");
            assert!(message.contains(named), "{shown}: {message:?} should name {named:?}");
        }
        Ok(reply) => panic!("{shown} gave {reply:?}"),
    }
}

/// The app, and a conversation of one turn.
pub async fn open_with_one_turn(home: &TempDir) -> (Arc<App>, String) {
    let app = open_greedy(home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let id = new_conversation(&app).await;
    answered(&app, &id, "One").await;
    (app, id)
}

pub async fn overview(app: &Arc<App>) -> CacheOverview {
    match app.call(Command::GetCache).await.unwrap() {
        Reply::Cache { cache } => cache,
        other => panic!("{other:?}"),
    }
}

/// Saves a conversation as a starting point.
pub async fn save_as(app: &Arc<App>, id: &str, name: &str) -> NamedCache {
    let save = Command::SaveNamedCache { conversation_id: id.to_owned(), name: name.to_owned() };
    match app.call(save).await.unwrap() {
        Reply::Named { named } => named,
        other => panic!("{other:?}"),
    }
}

pub async fn start_from(app: &Arc<App>, named_id: &str) -> String {
    match app.call(Command::NewConversationFrom { named_id: named_id.to_owned() }).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

/// Adds the tiny model once more under another name, with one of its files changed.
pub fn add_model(home: &TempDir, name: &str, changed_file: &str, from: &str, to: &str) {
    let models = home.path().join("models");
    std::fs::create_dir_all(models.join(name)).unwrap();
    for entry in std::fs::read_dir(models.join(MODEL)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), models.join(name).join(entry.file_name())).unwrap();
    }
    // Other weights, judged by the fingerprint.
    for (file, from, to) in [("config.json", "1e-05", "2e-05"), (changed_file, from, to)] {
        let file = models.join(name).join(file);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{from} should be in {file:?}");
        std::fs::write(&file, text.replace(from, to)).unwrap();
    }
}

/// The chunk files of the prompt cache.
pub fn chunk_files(home: &TempDir) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(home.path().join("prompt-cache-v2"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files =
        folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

pub async fn database(home: &TempDir) -> sqlx::SqlitePool {
    sqlx::SqlitePool::connect(&format!("sqlite://{}", home.path().join("cairn.db").display()))
        .await
        .unwrap()
}
