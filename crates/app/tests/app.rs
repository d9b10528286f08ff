//! The app through its interface: commands in, replies and events out, with a real store and a tiny
//! real model.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{
    CacheOverview, CacheSource, Command, Conversation, Event, Failure, FailureCode, Message,
    MessageStatus, Model, NamedCache, Reply, Role, Settings,
};
use cairn_app::{App, CacheVariables, DataFolder, OfflineCaches, OpenError, Options};
use cairn_tiny_models::copy_tiny_model;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

const MODEL: &str = "tiny-chat";
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A data folder of its own, with the tiny model among the imported ones.
fn home_with_model() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    copy_tiny_model("llama/tiny-chat", &home.path().join("models").join(MODEL)).unwrap();
    home
}

fn options(home: &Path) -> Options {
    Options {
        data_folder: DataFolder::new(home),
        hub_variables: CacheVariables::default(),
        autoload: false,
    }
}

async fn open(home: &TempDir) -> Arc<App> {
    App::open(options(home.path())).await.unwrap()
}

/// The app with greedy, short answers, so that they are the same every time.
async fn open_greedy(home: &TempDir, max_tokens: u32) -> Arc<App> {
    let app = open(home).await;
    let settings = Settings {
        temperature: 0.0,
        max_tokens,
        cache_budget_bytes: 1 << 30,
        ..bootstrap(&app).await.1
    };
    app.call(Command::UpdateSettings { settings }).await.unwrap();
    app
}

async fn bootstrap(app: &Arc<App>) -> (Vec<Conversation>, Settings, Vec<Model>) {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { conversations, settings, models, .. } => {
            (conversations, settings, models)
        }
        other => panic!("{other:?}"),
    }
}

async fn new_conversation(app: &Arc<App>) -> String {
    match app.call(Command::NewConversation).await.unwrap() {
        Reply::Conversation { conversation, messages } if messages.is_empty() => conversation.id,
        other => panic!("{other:?}"),
    }
}

async fn messages(app: &Arc<App>, id: &str) -> Vec<Message> {
    match app.call(Command::GetConversation { id: id.to_owned() }).await.unwrap() {
        Reply::Conversation { messages, .. } => messages,
        other => panic!("{other:?}"),
    }
}

/// Sends a message and returns the question and the answer as they were saved first.
async fn send(app: &Arc<App>, id: &str, text: &str) -> [Message; 2] {
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

async fn next(events: &mut Receiver<Event>) -> Event {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event should come").unwrap()
}

/// Receives events until the message has ended and its conversation is no longer streaming. Checks
/// the deltas.
async fn ended(events: &mut Receiver<Event>, message_id: &str) -> Message {
    let mut told = String::new();
    let mut last: Option<Message> = None;
    loop {
        match next(events).await {
            Event::Delta { message_id: id, offset, text, .. } if id == message_id => {
                assert_eq!(
                    offset as usize,
                    told.encode_utf16().count(),
                    "each delta continues the text"
                );
                assert!(!text.is_empty());
                told.push_str(&text);
            }
            Event::Message { message }
                if message.id == message_id && message.status != MessageStatus::Streaming =>
            {
                assert_eq!(message.text, told, "the deltas are the text");
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

async fn answered(app: &Arc<App>, id: &str, text: &str) -> Message {
    let mut events = app.subscribe();
    let [_, answer] = send(app, id, text).await;
    ended(&mut events, &answer.id).await
}

async fn check_failure(app: &Arc<App>, command: Command, code: FailureCode, named: &str) {
    let shown = format!("{command:?}");
    match app.call(command).await {
        Err(Failure { code: found, message }) => {
            assert_eq!(found, code, "{shown}: {message}");
            assert!(message.contains(named), "{shown}: {message:?} should name {named:?}");
        }
        Ok(reply) => panic!("{shown} gave {reply:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_emitted_and_saved() {
    let home = home_with_model();
    let app = open_greedy(&home, 24).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [question, answer] = send(&app, &id, "Hello, stones").await;
    assert_eq!(
        (question.role, question.status, question.text.as_str()),
        (Role::User, MessageStatus::Complete, "Hello, stones")
    );
    assert_eq!(
        (answer.role, answer.status, answer.parent_id.as_ref()),
        (Role::Assistant, MessageStatus::Streaming, Some(&question.id))
    );

    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let stats = answer.stats.clone().unwrap();
    assert_eq!(stats.model, MODEL);
    assert!(
        stats.prompt_tokens > 0 && stats.generation_tokens > 0 && stats.generation_tokens <= 24,
        "{stats:?}"
    );
    assert!(stats.process_bytes > 0 && stats.process_peak_bytes > 0, "{stats:?}");
    assert_eq!(messages(&app, &id).await, [question, answer]);
    let conversations = bootstrap(&app).await.0;
    assert_eq!(
        conversations.iter().map(|c| (c.title.as_str(), c.is_streaming)).collect::<Vec<_>>(),
        [("Hello, stones", false)]
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_resumes_from_its_cache_after_a_restart() {
    let home = home_with_model();
    let app = open_greedy(&home, 24).await;
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "One").await;
    let before = messages(&app, &id).await;
    app.close().await;
    drop(app);

    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await, before);
    assert_eq!(bootstrap(&app).await.1.max_tokens, 24, "settings are kept");
    let second = answered(&app, &id, "Two").await;
    assert_eq!(second.status, MessageStatus::Complete, "{:?}", second.error);
    let (first, second) = (first.stats.unwrap(), second.stats.unwrap());
    assert!(second.prompt_tokens > first.prompt_tokens + first.generation_tokens, "{second:?}");
    assert!(second.cached_tokens >= first.prompt_tokens, "{second:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regenerated_answer_is_a_sibling_of_the_first() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "Again").await;
    let mut events = app.subscribe();
    let reply = app.call(Command::Regenerate { conversation_id: id.clone() }).await.unwrap();
    let Reply::Sent { messages: sent, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(sent.len(), 1);
    let second = ended(&mut events, &sent[0].id).await;
    assert_eq!(second.parent_id, first.parent_id);
    assert_eq!(second.text, first.text, "greedy answers repeat");
    let branch: Vec<_> = messages(&app, &id).await.into_iter().map(|message| message.id).collect();
    assert_eq!(branch, [first.parent_id.unwrap(), second.id]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_answer_keeps_its_text_and_the_conversation_continues() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, "Tell me everything").await;
    let mut told = String::new();
    while told.is_empty() {
        if let Event::Delta { text, .. } = next(&mut events).await {
            told = text;
        }
    }
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "more".to_owned() },
        FailureCode::Invalid,
        "still",
    )
    .await;
    check_failure(
        &app,
        Command::Regenerate { conversation_id: id.clone() },
        FailureCode::Invalid,
        "still",
    )
    .await;
    check_failure(
        &app,
        Command::PurgeConversation { id: id.clone() },
        FailureCode::Invalid,
        "still",
    )
    .await;
    let live = messages(&app, &id).await;
    assert_eq!(live[1].status, MessageStatus::Streaming);
    assert!(live[1].text.starts_with(&told));
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    let stopped = loop {
        match next(&mut events).await {
            Event::Message { message }
                if message.id == answer.id && message.status != MessageStatus::Streaming =>
            {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(stopped.status, MessageStatus::Stopped);
    assert!(stopped.text.starts_with(&live[1].text));
    assert_eq!(messages(&app, &id).await[1], stopped);
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();

    let settings = Settings { max_tokens: 4, ..bootstrap(&app).await.1 };
    app.call(Command::UpdateSettings { settings }).await.unwrap();
    assert_eq!(answered(&app, &id, "Go on").await.status, MessageStatus::Complete);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_several_conversations_wait_for_each_other() {
    let home = home_with_model();
    let app = open_greedy(&home, 64).await;
    let ids =
        [new_conversation(&app).await, new_conversation(&app).await, new_conversation(&app).await];
    let mut events = app.subscribe();
    let mut answers = Vec::new();
    // The answer that is to be stopped goes on for as long as the model's context lasts.
    for (id, max_tokens) in ids.iter().zip([64, 1_000_000, 64]) {
        let settings = Settings { max_tokens, ..bootstrap(&app).await.1 };
        app.call(Command::UpdateSettings { settings }).await.unwrap();
        answers.push(send(&app, id, "Hello").await[1].id.clone());
    }
    app.call(Command::Stop { conversation_id: ids[1].clone() }).await.unwrap();
    let mut ended = Vec::new();
    while ended.len() < 3 {
        if let Event::Message { message } = next(&mut events).await
            && message.role == Role::Assistant
            && message.status != MessageStatus::Streaming
        {
            ended.push((message.id, message.status));
        }
    }
    let status_of = |id: &String| ended.iter().find(|(ended, _)| ended == id).unwrap().1;
    assert_eq!(
        answers.iter().map(status_of).collect::<Vec<_>>(),
        [MessageStatus::Complete, MessageStatus::Stopped, MessageStatus::Complete]
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_saves_the_answer_being_written() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "Tell me everything").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    let told = messages(&app, &id).await[1].text.clone();
    tokio::time::timeout(PATIENCE, app.close()).await.unwrap();
    check_failure(&app, Command::GetStatus, FailureCode::Engine, "closing").await;
    drop(app);

    let app = open(&home).await;
    let saved = &messages(&app, &id).await[1];
    assert_eq!(saved.status, MessageStatus::Stopped);
    assert!(saved.text.starts_with(&told));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_stops_the_answer_and_can_be_undone() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "Tell me everything").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    app.call(Command::DeleteConversation { id: id.clone() }).await.unwrap();
    let mut was_ended = false;
    loop {
        match next(&mut events).await {
            Event::Message { message } => was_ended |= message.status == MessageStatus::Stopped,
            Event::ConversationDeleted { id: deleted } => break assert_eq!(deleted, id),
            _ => {}
        }
    }
    assert!(was_ended, "the answer stops before its conversation goes");
    assert!(bootstrap(&app).await.0.is_empty());
    check_failure(
        &app,
        Command::GetConversation { id: id.clone() },
        FailureCode::NotFound,
        "exist",
    )
    .await;
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "x".to_owned() },
        FailureCode::NotFound,
        "exist",
    )
    .await;
    app.call(Command::RestoreConversation { id: id.clone() }).await.unwrap();
    assert_eq!(messages(&app, &id).await.len(), 2);
    assert_eq!(bootstrap(&app).await.0.len(), 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_commands_are_refused_with_a_sentence() {
    let home = home_with_model();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    let settings = bootstrap(&app).await.1;
    let gone = || "01890000-0000-7000-8000-000000000000".to_owned();
    let check = |command, code, named| check_failure(&app, command, code, named);
    check(Command::GetConversation { id: gone() }, FailureCode::NotFound, "conversation").await;
    check(
        Command::RenameConversation { id: gone(), title: "x".to_owned() },
        FailureCode::NotFound,
        "conversation",
    )
    .await;
    check(
        Command::RenameConversation { id: id.clone(), title: " \t".to_owned() },
        FailureCode::Invalid,
        "title",
    )
    .await;
    check(
        Command::RenameConversation { id: id.clone(), title: "a\nb".to_owned() },
        FailureCode::Invalid,
        "title",
    )
    .await;
    check(
        Command::SetSystemPrompt { id: gone(), system_prompt: String::new() },
        FailureCode::NotFound,
        "conversation",
    )
    .await;
    check(Command::DeleteConversation { id: gone() }, FailureCode::NotFound, "conversation").await;
    check(Command::RestoreConversation { id: gone() }, FailureCode::NotFound, "conversation").await;
    check(
        Command::SendMessage { conversation_id: gone(), text: "x".to_owned() },
        FailureCode::NotFound,
        "conversation",
    )
    .await;
    check(
        Command::SendMessage { conversation_id: id.clone(), text: "  \n".to_owned() },
        FailureCode::Invalid,
        "message",
    )
    .await;
    check(Command::Regenerate { conversation_id: id.clone() }, FailureCode::Invalid, "message")
        .await;
    check(
        Command::LoadModel { name: "no/such-model".to_owned() },
        FailureCode::NotFound,
        "no/such-model",
    )
    .await;
    check(
        Command::UpdateSettings { settings: Settings { top_p: 0.0, ..settings } },
        FailureCode::Invalid,
        "top_p",
    )
    .await;
    assert!(messages(&app, &id).await.is_empty(), "nothing was saved");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_model_nothing_is_sent() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    assert!(bootstrap(&app).await.2.is_empty());
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "Hi".to_owned() },
        FailureCode::NoModel,
        "model",
    )
    .await;
    assert!(messages(&app, &id).await.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_fails_the_answer_with_its_reason() {
    let home = home_with_model();
    let weights = home.path().join("models").join(MODEL).join("model.safetensors");
    std::fs::write(weights, b"nonsense").unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    match app
        .call(Command::SendMessage { conversation_id: id.clone(), text: "Hi".to_owned() })
        .await
    {
        // Found while listing the folder.
        Err(failure) => assert_eq!(failure.code, FailureCode::NoModel),
        Ok(Reply::Sent { messages: sent, .. }) => {
            // The end may have been emitted before the subscription, so read the rows.
            let answer = loop {
                let answer = messages(&app, &id).await.pop().unwrap();
                if answer.status != MessageStatus::Streaming {
                    break answer;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(
                (answer.id.as_str(), answer.status),
                (sent[1].id.as_str(), MessageStatus::Failed)
            );
            assert!(answer.error.unwrap().contains(MODEL));
        }
        Ok(other) => panic!("{other:?}"),
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn titles_and_system_prompts_are_saved_and_emitted() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    app.call(Command::RenameConversation {
        id: id.clone(),
        title: "  Granite \u{202e}🪨 ".to_owned(),
    })
    .await
    .unwrap();
    app.call(Command::SetSystemPrompt { id: id.clone(), system_prompt: " Be brief.\n".to_owned() })
        .await
        .unwrap();
    let mut told = Vec::new();
    while told.len() < 2 {
        if let Event::Conversation { conversation } = next(&mut events).await {
            told.push((conversation.title, conversation.system_prompt));
        }
    }
    let title = "Granite \u{202e}🪨".to_owned();
    assert_eq!(told, [(title.clone(), String::new()), (title, " Be brief.\n".to_owned())]);
    app.call(Command::SetSystemPrompt { id, system_prompt: " \n".to_owned() }).await.unwrap();
    assert_eq!(bootstrap(&app).await.0[0].system_prompt, "");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_loaded_and_dropped() {
    let home = home_with_model();
    let app = App::open(Options { autoload: true, ..options(home.path()) }).await.unwrap();
    let mut events = app.subscribe();
    let models = bootstrap(&app).await.2;
    assert_eq!(
        models.iter().map(|m| (m.name.as_str(), m.model_type.as_str())).collect::<Vec<_>>(),
        [(MODEL, "llama")]
    );
    assert_eq!(PathBuf::from(&models[0].path), home.path().join("models").join(MODEL));
    assert!(models[0].bytes > 10_000);
    assert_eq!(models[0].problem, None);
    let engine = |wanted: &'static str| {
        let mut events = events.resubscribe();
        let app = app.clone();
        async move {
            loop {
                let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else {
                    panic!()
                };
                let json = serde_json::to_value(&status.engine).unwrap();
                if json["state"] == wanted {
                    assert!(wanted == "empty" || json["model"] == MODEL, "{json}");
                    return;
                }
                next(&mut events).await;
            }
        }
    };
    engine("ready").await;
    app.call(Command::UnloadModel).await.unwrap();
    engine("empty").await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    engine("ready").await;
    // The status is also emitted as an event.
    while !matches!(next(&mut events).await, Event::Status { .. }) {}
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_app_at_a_time_owns_a_data_folder() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    match App::open(options(home.path())).await {
        Err(OpenError::AlreadyRunning { folder }) => assert_eq!(folder, home.path()),
        other => panic!("{:?}", other.map(|_| ())),
    }
    app.close().await;
    app.close().await;
    open(&home).await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_data_folder_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let blocked = folder.path().join("blocked");
    std::fs::create_dir_all(blocked.join("cairn.db")).unwrap();
    for home in [file.clone(), file.join("below"), blocked] {
        let error = App::open(options(&home)).await.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&home.display().to_string()), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_saved_is_retried_later() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    // A database that accepts new rows but refuses to finish an answer.
    let database =
        sqlx::SqlitePool::connect(&format!("sqlite://{}", home.path().join("cairn.db").display()))
            .await
            .unwrap();
    let refuse = "create trigger refuse before update of status on messages begin select raise(abort, 'refused'); end";
    sqlx::query(refuse).execute(&database).await.unwrap();
    let mut events = app.subscribe();
    let [question, answer] = send(&app, &id, "Hi").await;
    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete);
    assert_eq!(messages(&app, &id).await, [question, answer.clone()], "what was told is shown");
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "x".to_owned() },
        FailureCode::Storage,
        "saved",
    )
    .await;
    sqlx::query("drop trigger refuse").execute(&database).await.unwrap();
    database.close().await;
    app.close().await;
    drop(app);
    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await[1], answer);
    app.close().await;
}

/// Adds the tiny model once more under another name, with one of its files changed.
fn add_model(home: &TempDir, name: &str, changed_file: &str, from: &str, to: &str) {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_starts_from_a_starting_point() {
    let home = home_with_model();
    add_model(&home, "sibling", "config.json", "10000.0", "20000.0");
    add_model(&home, "stranger", "tokenizer.json", "<|im_start|>", "<|im_begin|>");
    let (app, id) = begun(&home).await;
    let save = Command::SaveNamedCache { conversation_id: id.clone(), name: "Notes".to_owned() };
    let Reply::Named { named } = app.call(save).await.unwrap() else { panic!() };
    let begin = Command::NewConversationFrom { named_id: named.id.clone() };
    let Reply::Conversation { conversation, .. } = app.call(begin).await.unwrap() else { panic!() };
    let id = conversation.id;
    check_failure(
        &app,
        Command::SetSystemPrompt { id: id.clone(), system_prompt: "x".to_owned() },
        FailureCode::Invalid,
        "begins with",
    )
    .await;

    let stats = |answer: Message| {
        assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
        answer.stats.unwrap()
    };
    let first = stats(answered(&app, &id, "Two").await);
    assert_eq!((first.cached_tokens, first.cache_note), (named.tokens, None));
    assert!(first.prompt_tokens > named.tokens);
    let second = stats(answered(&app, &id, "Three").await);
    // The last token before the limit is not run.
    assert!(second.cached_tokens >= first.prompt_tokens + 7, "{second:?}");

    // Without the starting point, and after a restart.
    app.call(Command::DeleteNamedCache { id: named.id }).await.unwrap();
    app.close().await;
    drop(app);
    let app = open(&home).await;
    let third = stats(answered(&app, &id, "Four").await);
    assert!(third.cached_tokens >= second.prompt_tokens + 7, "{third:?}");

    // Another model computes its tokens again, if they decode to the same text.
    app.call(Command::LoadModel { name: "sibling".to_owned() }).await.unwrap();
    let fourth = stats(answered(&app, &id, "Five").await);
    assert!(fourth.cached_tokens == 0 && fourth.prompt_tokens > third.prompt_tokens, "{fourth:?}");
    app.call(Command::LoadModel { name: "stranger".to_owned() }).await.unwrap();
    let refused = answered(&app, &id, "Six").await;
    let error = refused.error.unwrap();
    assert_eq!(
        error,
        "This conversation starts from a context of sibling: choose that model to continue."
    );
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    assert_eq!(stats(answered(&app, &id, "Seven").await).model, MODEL);
    app.close().await;
}

/// The app and a conversation of one turn.
async fn begun(home: &TempDir) -> (Arc<App>, String) {
    let app = open_greedy(home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let id = new_conversation(&app).await;
    answered(&app, &id, "One").await;
    (app, id)
}

async fn overview(app: &Arc<App>) -> CacheOverview {
    match app.call(Command::GetCache).await.unwrap() {
        Reply::Cache { cache } => cache,
        other => panic!("{other:?}"),
    }
}

/// Saves a conversation as a starting point.
async fn saved(app: &Arc<App>, id: &str, name: &str) -> NamedCache {
    let save = Command::SaveNamedCache { conversation_id: id.to_owned(), name: name.to_owned() };
    match app.call(save).await.unwrap() {
        Reply::Named { named } => named,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn context_that_is_only_in_memory_cannot_be_saved_as_a_starting_point() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let settings = Settings { cache_budget_bytes: 0, ..bootstrap(&app).await.1 };
    app.call(Command::UpdateSettings { settings }).await.unwrap();
    let id = new_conversation(&app).await;
    answered(&app, &id, "One").await;
    let save = Command::SaveNamedCache { conversation_id: id, name: "Notes".to_owned() };
    check_failure(&app, save, FailureCode::Storage, "only last until Cairn closes").await;
    assert!(overview(&app).await.named.is_empty());
    app.close().await;
}

async fn begun_from(app: &Arc<App>, named_id: &str) -> String {
    match app.call(Command::NewConversationFrom { named_id: named_id.to_owned() }).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

/// The files of chunks.
fn chunk_files(home: &TempDir) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(home.path().join("prompt-cache-v2"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files =
        folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

async fn database(home: &TempDir) -> sqlx::SqlitePool {
    sqlx::SqlitePool::connect(&format!("sqlite://{}", home.path().join("cairn.db").display()))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_context_survives_unreadable_rows() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    saved(&app, &id, "Notes").await;
    app.close().await;
    drop(app);
    let files = chunk_files(&home);
    let change = async |statement: &'static str| {
        let database = database(&home).await;
        sqlx::raw_sql(statement).execute(&database).await.unwrap();
        database.close().await;
    };
    for (damage, repair) in [
        (
            "pragma ignore_check_constraints = on; update chunks set kind = 'x' || kind",
            "update chunks set kind = substr(kind, 2)",
        ),
        (
            "alter table cache_refs rename column model to other",
            "alter table cache_refs rename column other to model",
        ),
    ] {
        change(damage).await;
        let app = open(&home).await;
        check_failure(&app, Command::GetCache, FailureCode::Storage, "cairn.db").await;
        assert_eq!(answered(&app, &id, "Two").await.status, MessageStatus::Complete);
        app.close().await;
        drop(app);
        change(repair).await;
        assert_eq!(chunk_files(&home).len(), files.len(), "after {damage}");
    }
    let app = open(&home).await;
    let named = overview(&app).await.named;
    assert!(named[0].tier.is_some(), "{named:?}");
    assert!(answered(&app, &id, "Three").await.stats.unwrap().cached_tokens > 0);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_name_their_model_before_one_is_loaded() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    saved(&app, &id, "Notes").await;
    app.close().await;
    drop(app);

    let app = open(&home).await;
    let Reply::Bootstrap { conversations, named, status, .. } =
        app.call(Command::Bootstrap).await.unwrap()
    else {
        panic!()
    };
    let cache = conversations[0].cache.clone().unwrap();
    assert!(
        cache.is_whole
            && status.model_fingerprint.is_none()
            && overview(&app).await.nodes[0].text.is_none(),
        "{cache:?}"
    );
    assert_eq!(
        named.iter().map(|named| (named.name.as_str(), &named.fingerprint)).collect::<Vec<_>>(),
        [("Notes", &cache.fingerprint)]
    );
    let mut events = app.subscribe();
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let told = async {
        loop {
            if let Event::Status { status } = next(&mut events).await
                && status.model_fingerprint.is_some()
            {
                return status.model_fingerprint;
            }
        }
    };
    assert_eq!(told.await, Some(cache.fingerprint));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_or_exported_prefix_keeps_its_kind() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    let notes = saved(&app, &id, "Notes").await;
    let file = home.path().join("book\u{1b}[0m.safetensors");
    app.export_cache(&CacheSource::Named { id: notes.id.clone() }, &file).await.unwrap();
    // So that the file's tokens are not known from elsewhere.
    app.call(Command::DeleteConversation { id }).await.unwrap();
    app.call(Command::DeleteNamedCache { id: notes.id }).await.unwrap();

    let preview = app.preview_import(file).await;
    assert_eq!(
        (preview.problem, preview.kind.as_str(), preview.file_name.as_str()),
        (None, "conversation", "book [0m.safetensors")
    );
    let import =
        Command::ConfirmImport { token: preview.token, name: "Book".to_owned(), check: false };
    let Reply::Named { named: book } = app.call(import).await.unwrap() else { panic!() };
    let id = begun_from(&app, &book.id).await;
    let again = saved(&app, &id, "Again").await;
    assert_eq!(
        (again.tokens, again.imported_from.as_deref()),
        (book.tokens, Some("book [0m.safetensors"))
    );
    for source in [CacheSource::Conversation { id }, CacheSource::Named { id: again.id }] {
        let file = home.path().join("again.safetensors");
        app.export_cache(&source, &file).await.unwrap();
        let preview = app.preview_import(file).await;
        assert_eq!(
            (preview.kind.as_str(), preview.tokens),
            ("conversation", book.tokens),
            "{source:?}"
        );
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_starting_point_is_computed_again() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    let notes = saved(&app, &id, "Notes").await;
    app.close().await;
    drop(app);
    for file in chunk_files(&home) {
        std::fs::remove_file(file).unwrap();
    }
    let app = open(&home).await;
    // The damage is found only by reading.
    let begun = begun_from(&app, &notes.id).await;
    answered(&app, &begun, "Two").await;
    let named = &overview(&app).await.named[0];
    assert_eq!((named.tier, named.problem.as_deref(), named.num_conversations), (None, None, 1));
    let begun = begun_from(&app, &notes.id).await;
    let again = answered(&app, &begun, "Two").await;
    assert_eq!(again.status, MessageStatus::Complete, "{:?}", again.error);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_point_deleted_by_another_program_is_released() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    let notes = saved(&app, &id, "Notes").await;
    saved(&app, &id, "Undone").await;
    let undone =
        overview(&app).await.named.into_iter().find(|named| named.name == "Undone").unwrap();
    app.call(Command::DeleteNamedCache { id: undone.id.clone() }).await.unwrap();

    let mut events = app.subscribe();
    let caches = OfflineCaches::open(DataFolder::new(home.path())).await.unwrap();
    let kept = caches.find("Notes").await.unwrap();
    caches.delete(&[kept]).await.unwrap();
    caches.close().await;
    let holders = async || {
        overview(&app).await.nodes.into_iter().flat_map(|node| node.named).collect::<Vec<String>>()
    };
    while holders().await.contains(&notes.id) {
        next(&mut events).await;
    }
    assert_eq!(holders().await, [undone.id], "what can be restored is still held");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_beside_the_app_does_not_evict_chunks_pinned_meanwhile() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let (old, new) = (new_conversation(&app).await, new_conversation(&app).await);
    for (id, text) in [(&old, "One"), (&new, "Two")] {
        answered(&app, id, text).await;
    }
    let file = home.path().join("old.safetensors");
    app.export_cache(&CacheSource::Conversation { id: old.clone() }, &file).await.unwrap();

    let caches = OfflineCaches::open(DataFolder::new(home.path())).await.unwrap();
    let folder = home.path().join("models").join(MODEL);
    let import = caches.begin_import(&file, MODEL, &folder).await.unwrap();
    app.call(Command::PinConversation { id: old.clone(), is_pinned: true }).await.unwrap();
    let is_written = async || caches.list().await.unwrap().iter().any(|kept| kept.is_pinned);
    while !is_written().await {
        tokio::task::yield_now().await;
    }
    let cache_budget_bytes =
        caches.total_bytes().await.unwrap() + std::fs::metadata(&file).unwrap().len() / 2;
    let settings = Settings { cache_budget_bytes, ..bootstrap(&app).await.1 };
    app.call(Command::UpdateSettings { settings }).await.unwrap();
    import.confirm("Copy", false).await.unwrap();
    let loss: Vec<(String, bool)> = caches
        .list()
        .await
        .unwrap()
        .iter()
        .map(|kept| (kept.id().to_owned(), kept.loss.is_some()))
        .collect();
    assert!(loss.contains(&(old, false)) && loss.contains(&(new, true)), "{loss:?}");
    caches.close().await;
    app.close().await;
}

/// Rows and files of the prompt cache.
async fn num_kept(home: &TempDir) -> (i64, i64, usize) {
    let database = database(home).await;
    let count = async |statement: &'static str| {
        sqlx::query_scalar::<_, i64>(statement).fetch_one(&database).await.unwrap()
    };
    let refs = count("select count(*) from cache_refs").await;
    let chunks = count("select count(*) from chunks").await;
    database.close().await;
    (refs, chunks, chunk_files(home).len())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_conversation_that_was_deleted_nothing_stays_when_the_app_has_closed() {
    let home = home_with_model();
    let (app, id) = begun(&home).await;
    app.call(Command::DeleteConversation { id: id.clone() }).await.unwrap();
    app.call(Command::RestoreConversation { id: id.clone() }).await.unwrap();
    app.close().await;
    drop(app);
    assert!(num_kept(&home).await.0 > 0, "a deletion that was undone changes nothing");
    let app = open(&home).await;
    app.call(Command::DeleteConversation { id }).await.unwrap();
    app.close().await;
    drop(app);
    assert_eq!(num_kept(&home).await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_that_died_had_deleted_goes_at_the_next_start() {
    let home = home_with_model();
    let (app, _) = begun(&home).await;
    app.close().await;
    drop(app);
    let database = database(&home).await;
    let delete = "update conversations set deleted_at_ms = 1, deleted_by_run_id = 'one that died'";
    sqlx::query(delete).execute(&database).await.unwrap();
    database.close().await;
    let app = open(&home).await;
    let mut events = app.subscribe();
    while overview(&app).await.num_chunks > 0 {
        next(&mut events).await;
    }
    app.close().await;
    assert_eq!(num_kept(&home).await, (0, 0, 0));
}

async fn new_private_conversation(app: &Arc<App>) -> String {
    match app.call(Command::NewPrivateConversation).await.unwrap() {
        Reply::Conversation { conversation, .. } if conversation.is_private => conversation.id,
        other => panic!("{other:?}"),
    }
}

/// The files below a folder, models left out, that hold any of these byte sequences.
fn files_with(folder: &Path, wanted: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("models") {
                found.extend(files_with(&path, wanted));
            }
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let holds = |wanted: &Vec<u8>| bytes.windows(wanted.len()).any(|part| part == wanted);
        if wanted.iter().any(holds) {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_private_conversation_nothing_is_written() {
    const CANARY: &str = "The heron waits beside nine grey boulders";
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    // The tokens in the middle are the same wherever the text stands.
    let (engine, _events) = cairn_engine::Engine::start(cairn_engine::EngineOptions::default());
    engine.load(MODEL, &home.path().join("models").join(MODEL)).await.unwrap();
    let ids = engine.tokenize(CANARY).await.unwrap();
    engine.shutdown().await;
    let ids: Vec<u8> = ids[3..ids.len() - 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(ids.len() > 16, "{ids:?}");
    let canary = [CANARY.as_bytes().to_vec(), ids];

    let id = new_private_conversation(&app).await;
    let system_prompt = format!("{CANARY}, and the system knows");
    app.call(Command::SetSystemPrompt { id: id.clone(), system_prompt }).await.unwrap();
    let mut answers = Vec::new();
    for text in [CANARY, "And then?"] {
        let answer = answered(&app, &id, text).await;
        assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
        answers.push(answer);
    }
    let mut events = app.subscribe();
    let reply = app.call(Command::Regenerate { conversation_id: id.clone() }).await.unwrap();
    let Reply::Sent { messages: sent, conversation } = reply else { panic!("{reply:?}") };
    assert!(conversation.is_private && conversation.is_streaming);
    ended(&mut events, &sent[0].id).await;
    assert_eq!(messages(&app, &id).await.len(), 4);
    let listed = bootstrap(&app).await.0;
    assert_eq!(
        listed.iter().map(|row| (&row.id, row.is_private)).collect::<Vec<_>>(),
        [(&id, true)]
    );
    for command in [
        Command::PinConversation { id: id.clone(), is_pinned: true },
        Command::SaveNamedCache { conversation_id: id.clone(), name: "Notes".to_owned() },
    ] {
        check_failure(&app, command, FailureCode::Invalid, "private").await;
    }
    app.call(Command::RenameConversation { id: id.clone(), title: CANARY.to_owned() })
        .await
        .unwrap();
    app.call(Command::DeleteConversation { id: id.clone() }).await.unwrap();
    app.call(Command::RestoreConversation { id: id.clone() }).await.unwrap();
    assert_eq!(files_with(home.path(), &canary), Vec::<PathBuf>::new());
    assert_eq!(overview(&app).await.num_chunks, 0);
    app.close().await;
    drop(app);
    assert_eq!(files_with(home.path(), &canary), Vec::<PathBuf>::new());

    // What finds nothing there finds it where it is written.
    let app = open(&home).await;
    assert!(bootstrap(&app).await.0.is_empty());
    let id = new_conversation(&app).await;
    answered(&app, &id, CANARY).await;
    app.close().await;
    for part in &canary {
        assert!(!files_with(home.path(), std::slice::from_ref(part)).is_empty());
    }
}
