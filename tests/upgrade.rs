//! A data folder of an earlier version, opened by this one. The folder is in
//! `fixtures/data-folder-e4d04ec`.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_app::wire::{
    Appearance, Command, Conversation, Event, Message, MessageStatus, NamedCache, Reply, Role,
    Settings,
};
use cairn_app::{App, DataFolder, Options};
use tempfile::TempDir;

const MODEL: &str = "tiny-chat";
const REASON: &str = "saved by an earlier version";
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A copy of the old data folder.
fn old_home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/data-folder-e4d04ec").join("home");
    copy_folder(&fixture, home.path());
    home
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn old_prompt_cache(home: &TempDir) -> PathBuf {
    home.path().join("prompt-cache-v1")
}

/// The folder of the only model in the old prompt cache.
fn old_model_folder(home: &TempDir) -> PathBuf {
    let entries = fs::read_dir(old_prompt_cache(home)).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.is_dir()).unwrap()
}

/// Adds a model with the tokenizer of the one that the old conversations were held with.
fn add_model(home: &TempDir) {
    let folder = home.path().join("models").join(MODEL);
    cairn_tests::copy_tiny_model("llama/tiny-chat", &folder).unwrap();
}

async fn open(home: &TempDir) -> Arc<App> {
    App::open(Options::new(DataFolder::new(home.path()))).await.unwrap()
}

async fn call(app: &Arc<App>, command: Command) -> Reply {
    app.call(command).await.unwrap_or_else(|failure| panic!("{failure:?}"))
}

async fn bootstrap(app: &Arc<App>) -> (Vec<Conversation>, Vec<NamedCache>, Settings) {
    match call(app, Command::Bootstrap).await {
        Reply::Bootstrap { conversations, named, settings, .. } => {
            (conversations, named, *settings)
        }
        other => panic!("{other:?}"),
    }
}

async fn messages(app: &Arc<App>, id: &str) -> Vec<Message> {
    match call(app, Command::GetConversation { id: id.to_owned() }).await {
        Reply::Conversation { messages, .. } => messages,
        other => panic!("{other:?}"),
    }
}

/// The answer to a message, once it is complete.
async fn answered(app: &Arc<App>, id: &str, text: &str) -> Message {
    let mut events = app.subscribe();
    let send = Command::SendMessage { conversation_id: id.to_owned(), text: text.to_owned() };
    let Reply::Sent { messages, .. } = call(app, send).await else { panic!("nothing was sent") };
    let answer_id = messages[1].id.clone();
    loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event").unwrap() {
            Event::Message { message }
                if message.id == answer_id && message.status != MessageStatus::Streaming =>
            {
                assert_eq!(message.status, MessageStatus::Complete, "{message:?}");
                return message;
            }
            _ => {}
        }
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "what is waited for never comes");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_settings_and_starting_points_are_there() {
    let home = old_home();
    let app = open(&home).await;
    let (conversations, named, settings) = bootstrap(&app).await;

    assert_eq!(
        (settings.default_model.as_str(), settings.temperature, settings.top_p),
        (MODEL, 0.0, 0.9)
    );
    assert_eq!((settings.max_tokens, settings.seed), (4, Some(7)));
    assert_eq!((settings.cache_budget_bytes, settings.cache_ram_budget_bytes), (3 << 20, 0));
    assert_eq!(settings.appearance, Appearance::Dark);

    let found: Vec<_> = conversations
        .iter()
        .map(|conversation| (conversation.title.as_str(), conversation.system_prompt.as_str()))
        .collect();
    assert_eq!(
        found,
        [("Begun from Brief", ""), ("With a system prompt", "Be brief."), ("Pinned", "")]
    );
    for (conversation, expected) in
        conversations.iter().zip([["And?", "jfof"], ["Why?", "qjov"], ["Hi", "sjfj"]])
    {
        let messages = messages(&app, &conversation.id).await;
        let texts: Vec<_> =
            messages.iter().map(|message| (message.role, message.text.as_str())).collect();
        assert_eq!(texts, [(Role::User, expected[0]), (Role::Assistant, expected[1])]);
        assert!(messages.iter().all(|message| message.status == MessageStatus::Complete));

        let title = &conversation.title;
        let cache = conversation.cache.as_ref().unwrap();
        assert!(
            cache.loss.as_ref().is_some_and(|loss| loss.ends_with(REASON)),
            "{title}: {cache:?}"
        );
        assert_eq!(
            (cache.cached_tokens, cache.cached_bytes, cache.is_whole),
            (0, 0, false),
            "{title}"
        );
        assert_eq!(cache.is_pinned, title == "Pinned");
        assert_eq!(
            conversation.prefix.as_ref().map(|prefix| (prefix.name.as_str(), prefix.tokens)),
            (title == "Begun from Brief").then_some(("Brief", 45)),
            "{title}"
        );
    }

    let mut starting_points: Vec<_> = named
        .iter()
        .map(|named| (named.name.as_str(), named.tokens, named.imported_from.as_deref()))
        .collect();
    starting_points.sort_unstable();
    assert_eq!(starting_points, [("Brief", 45, None), ("Stones", 13, Some("stones.safetensors"))]);
    for named in &named {
        assert_eq!((named.bytes, named.tier, named.problem.as_ref()), (0, None, None), "{named:?}");
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunk_files_of_the_old_format_are_removed() {
    let home = old_home();
    assert!(fs::read_dir(old_model_folder(&home)).unwrap().count() > 5);
    let app = open(&home).await;
    until(|| !old_prompt_cache(&home).exists()).await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_among_the_old_chunk_files_stay() {
    let home = old_home();
    let model = old_model_folder(&home);
    let foreign = [
        old_prompt_cache(&home).join("notes.txt"),
        model.join("notes.txt"),
        // Named like a chunk, but no file of Cairn's.
        model.join("0123456789abcdef0123456789abcdef.safetensors"),
    ];
    foreign.iter().for_each(|path| fs::write(path, "mine").unwrap());
    let app = open(&home).await;
    // The old chunk files are removed; the two foreign files stay.
    until(|| fs::read_dir(&model).unwrap().count() == 2).await;
    app.close().await;
    for path in foreign {
        assert_eq!(fs::read(&path).unwrap(), b"mine", "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_begins_from_an_old_starting_point_by_reading_it_again() {
    let home = old_home();
    add_model(&home);
    let app = open(&home).await;
    call(&app, Command::LoadModel { name: MODEL.to_owned() }).await;
    for named in bootstrap(&app).await.1 {
        let mut first = None;
        // The second conversation reuses what the first one has read.
        for expected_cached in [0, named.tokens] {
            let begin = Command::NewConversationFrom { named_id: named.id.clone() };
            let Reply::Conversation { conversation, .. } = call(&app, begin).await else {
                panic!("no conversation")
            };
            let answer = answered(&app, &conversation.id, "Go on.").await;
            let stats = answer.stats.unwrap();
            assert!(stats.prompt_tokens > named.tokens, "{}: {stats:?}", named.name);
            assert!(stats.cached_tokens >= expected_cached, "{}: {stats:?}", named.name);
            assert!(expected_cached > 0 || stats.cached_tokens < named.tokens, "{stats:?}");
            assert_eq!(*first.get_or_insert(answer.text.clone()), answer.text, "{}", named.name);
        }
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_of_an_old_conversation_says_why_it_is_read_again() {
    // They share chunks, so each is tested on a copy in which no other has been read again.
    for index in 0..3 {
        let home = old_home();
        add_model(&home);
        let app = open(&home).await;
        call(&app, Command::LoadModel { name: MODEL.to_owned() }).await;
        let conversation = bootstrap(&app).await.0.remove(index);
        let title = &conversation.title;
        let stats = answered(&app, &conversation.id, "More").await.stats.unwrap();
        let note = stats.cache_note.unwrap_or_default();
        assert!(note.contains(REASON), "{title}: {note:?}");
        // The turn after it continues from what this one has saved.
        let stats = answered(&app, &conversation.id, "Again").await.stats.unwrap();
        assert!(stats.cached_tokens > 0 && stats.cache_note.is_none(), "{title}: {stats:?}");
        app.close().await;
    }
}
