//! Damaged models and data folders, full disks, and second instances, as a user of the app meets
//! them: each is reported in one clear sentence, nothing is lost, and the app continues to work.
//!
//! A full disk is a small tmpfs that the test mounts. Where the process may not mount, the test says
//! so and ends; the store's own tests cover a full database by limiting its pages.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{
    Command, Event, Failure, FailureCode, Message, MessageStatus, NoticeLevel, Reply,
};
use cairn_app::{App, DataFolder, Options};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

const GOOD: &str = "tiny-chat";
const TINY_MODEL: &str = "llama/tiny-chat";
const BROKEN: &str = "broken";
/// Longer than anything here takes; only a failing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

fn options(home: &Path) -> Options {
    Options::new(DataFolder::new(home))
}

fn model_folder(home: &Path, name: &str) -> PathBuf {
    home.join("models").join(name)
}

fn home_with_model() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    cairn_tests::copy_tiny_model(TINY_MODEL, &model_folder(home.path(), GOOD)).unwrap();
    home
}

/// An open app that answers greedily, and the conversation in which it is asked.
struct TestApp {
    inner: Arc<App>,
    conversation: String,
}

impl TestApp {
    async fn new(home: &Path, max_tokens: u32) -> TestApp {
        let inner = App::open(options(home)).await.unwrap();
        let mut app = TestApp { inner, conversation: String::new() };
        app.set_max_tokens(max_tokens).await;
        app.new_conversation().await;
        app
    }

    async fn reopen(home: &Path, conversation: String) -> TestApp {
        TestApp { inner: App::open(options(home)).await.unwrap(), conversation }
    }

    async fn call(&self, command: Command) -> Reply {
        self.inner.call(command).await.unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    async fn refusal(&self, command: Command) -> Failure {
        match self.inner.call(command).await {
            Err(failure) => failure,
            Ok(reply) => panic!("it is not refused: {reply:?}"),
        }
    }

    async fn set_max_tokens(&self, max_tokens: u32) {
        self.call(Command::set_for_all("temperature", 0.0)).await;
        self.call(Command::set_for_all("holds_loops", false)).await;
        self.call(Command::set_for_all("max_tokens", max_tokens)).await;
        self.call(Command::set_for_all("cache_budget_bytes", 1_u64 << 30)).await;
    }

    async fn new_conversation(&mut self) {
        let Reply::Conversation { conversation, .. } = self.call(Command::NewConversation).await
        else {
            panic!("no conversation")
        };
        self.conversation = conversation.id;
    }

    async fn messages(&self) -> Vec<Message> {
        let Reply::Conversation { messages, .. } =
            self.call(Command::GetConversation { id: self.conversation.clone() }).await
        else {
            panic!("no conversation")
        };
        messages
    }

    fn send(&self, text: &str) -> Command {
        Command::SendMessage { conversation_id: self.conversation.clone(), text: text.to_owned() }
    }

    /// Sends a question; returns the id of the answer that has begun.
    async fn ask(&self, text: &str) -> String {
        let Reply::Sent { messages, .. } = self.call(self.send(text)).await else {
            panic!("nothing was sent")
        };
        messages.last().unwrap().id.clone()
    }

    /// Sends a question and waits until its answer has ended.
    async fn answer(&self, text: &str) -> Message {
        let mut events = self.inner.subscribe();
        let id = self.ask(text).await;
        ended(&mut events, &id, &mut Vec::new()).await
    }

    async fn complete_answer(&self, text: &str) -> Message {
        let answer = self.answer(text).await;
        assert_eq!(answer.status, MessageStatus::Complete, "{answer:?}");
        answer
    }
}

async fn next(events: &mut Receiver<Event>) -> Event {
    tokio::time::timeout(TIMEOUT, events.recv()).await.expect("an event should come").unwrap()
}

/// Receives events until the answer has ended; adds the notices among them to `notices`.
async fn ended(
    events: &mut Receiver<Event>,
    id: &str,
    notices: &mut Vec<(NoticeLevel, String)>,
) -> Message {
    loop {
        match next(events).await {
            Event::Message { message }
                if message.id == id && message.status != MessageStatus::Streaming =>
            {
                return message;
            }
            Event::Notice { level, text, .. } => notices.push((level, text)),
            _ => {}
        }
    }
}

/// Checks a message for the user: one sentence that contains `named`, without terms of programming.
fn check_sentence(message: &str, named: &[&str]) {
    println!("{message}");
    for name in named {
        assert!(message.contains(name), "{message:?} should name {name:?}");
    }
    assert!(message.len() <= 420, "{message:?} is long");
    assert!(
        !message.contains('\n') && !message.contains(". "),
        "{message:?} is more than one sentence"
    );
    for word in [
        "Error",
        "error returned",
        "panic",
        "bug",
        "unwrap",
        "Some(",
        "None",
        "Err(",
        "sqlx",
        "serde",
    ] {
        assert!(!message.contains(word), "{message:?} speaks of {word:?}");
    }
}

/// Replaces fields of a JSON file.
fn set(path: &Path, fields: &Value) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        json[name] = value.clone();
    }
    fs::write(path, json.to_string()).unwrap();
}

/// Rewrites the weight file after `change`.
fn change_tensors(
    folder: &Path,
    change: impl FnOnce(&mut Vec<(String, Dtype, Vec<usize>, Vec<u8>)>),
) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let mut tensors: Vec<_> = SafeTensors::deserialize(&bytes)
        .unwrap()
        .iter()
        .map(|(name, tensor)| {
            (name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
        })
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Damages a model folder, and what the sentence of the refusal names.
type Case = (Box<dyn FnOnce(&Path)>, Vec<String>);

fn case(damage: impl FnOnce(&Path) + 'static, named: &[&str]) -> Case {
    (Box::new(damage), named.iter().map(|name| (*name).to_owned()).collect())
}

/// Loads a damaged model in each case: it is refused, the conversation keeps its messages, and
/// another model answers.
async fn check_models(cases: Vec<Case>) {
    let home = home_with_model();
    let app = TestApp::new(home.path(), 4).await;
    let folder = model_folder(home.path(), BROKEN);
    let mut num_messages = 0;
    for (damage, named) in cases {
        cairn_tests::copy_tiny_model(TINY_MODEL, &folder).unwrap();
        damage(&folder);
        let failure = app.refusal(Command::LoadModel { name: BROKEN.to_owned() }).await;
        assert_eq!(failure.code, FailureCode::Engine, "{failure:?}");
        check_sentence(&failure.message, &[BROKEN]);
        check_sentence(&failure.message, &named.iter().map(String::as_str).collect::<Vec<_>>());
        fs::remove_dir_all(&folder).unwrap();

        app.call(Command::LoadModel { name: GOOD.to_owned() }).await;
        app.complete_answer("Hi").await;
        num_messages += 2;
        assert_eq!(app.messages().await.len(), num_messages, "no message is lost");
    }
    app.inner.close().await;
}

fn write(name: &'static str, text: &str, named: &[&str]) -> Case {
    let text = text.to_owned();
    case(move |folder| fs::write(folder.join(name), text).unwrap(), named)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_missing_or_cut_files_is_refused_and_another_one_answers() {
    const WEIGHTS: &str = "model.safetensors";
    let remove = |name: &'static str, named: &str| {
        case(move |folder| fs::remove_file(folder.join(name)).unwrap(), &[named, "again"])
    };
    let cut = |length: u64, named: &[&str]| {
        let set_length = move |folder: &Path| {
            let file = File::options().write(true).open(folder.join(WEIGHTS)).unwrap();
            file.set_len(length).unwrap();
        };
        case(set_length, &[named, &[WEIGHTS, "again"]].concat())
    };
    let size = fs::metadata(cairn_tests::tiny_model(TINY_MODEL).join(WEIGHTS)).unwrap().len();
    let [shorter, whole, longer] = [size - 1, size, size + 1].map(|size| size.to_string());
    check_models(vec![
        remove(WEIGHTS, ".safetensors"),
        remove("config.json", "config.json"),
        remove("tokenizer.json", "tokenizer.json"),
        cut(0, &["incomplete", "0"]),
        cut(7, &["incomplete"]),
        cut(8, &["incomplete"]),
        cut(500, &["incomplete"]),
        cut(50_000, &["incomplete", "50000"]),
        cut(size - 1, &["incomplete", &shorter, &whole]),
        cut(size + 1, &[&longer, &whole]),
        write(WEIGHTS, "<!DOCTYPE html><html>not found</html>", &[WEIGHTS, "again"]),
        write("tokenizer.json", "{", &["tokenizer.json", "again"]),
        write("tokenizer.json", r#"{"model": {"type": "BPE"}}"#, &["tokenizer.json", "again"]),
        write("tokenizer_config.json", "{]", &["tokenizer_config.json", "again"]),
        write(
            "generation_config.json",
            r#"{"eos_token_id": "#,
            &["generation_config.json", "again"],
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_tensors_of_another_one_is_refused_and_another_one_answers() {
    let transpose = |folder: &Path| {
        change_tensors(folder, |tensors| tensors.iter_mut().for_each(|tensor| tensor.2.reverse()))
    };
    let remove_one = |folder: &Path| {
        change_tensors(folder, |tensors| {
            tensors.retain(|tensor| !tensor.0.starts_with("model.layers.1.mlp.up"))
        })
    };
    let add_two = |folder: &Path| {
        let unknown = |name: &str| (name.to_owned(), Dtype::F32, vec![1], vec![0; 4]);
        change_tensors(folder, |tensors| {
            tensors.extend([unknown("model.layers.0.moe.gate"), unknown("vision.w")])
        });
    };
    check_models(vec![
        case(transpose, &["shape", "model.embed_tokens", "config.json"]),
        case(remove_one, &["model.layers.1.mlp.up_proj", "again"]),
        case(add_two, &["2 tensors", "model.layers.0.moe.gate", "llama"]),
        config(json!({ "num_hidden_layers": 1 }), &["model.layers.1."]),
        config(json!({ "num_hidden_layers": 3 }), &["model.layers.2."]),
    ])
    .await;
}

/// Replaces fields of config.json.
fn config(fields: Value, named: &[&str]) -> Case {
    case(move |folder| set(&folder.join("config.json"), &fields), named)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_a_wrong_config_is_refused_and_another_one_answers() {
    /// A value that cannot be used: the sentence names the file and the key.
    fn value(key: &str, value: Value, named: &[&str]) -> Case {
        config(json!({ key: value }), &[named, &["config.json", key]].concat())
    }
    fn file(text: &str) -> Case {
        write("config.json", text, &["config.json", "again"])
    }
    let deep = ["[".repeat(100_000), "]".repeat(100_000)].concat();
    let padded = format!(r#"{{"model_type": "llama", "x": "{}"}}"#, "x".repeat(2 << 20));
    check_models(vec![
        config(json!({ "model_type": "mamba9" }), &["mamba9", "mamba2"]),
        config(json!({ "model_type": null }), &["model_type"]),
        value("hidden_size", json!(1_000_000_000), &["1000000000"]),
        value("num_hidden_layers", json!(-1), &["-1"]),
        value("num_attention_heads", json!(0), &[]),
        value("num_key_value_heads", json!(3), &[]),
        value("vocab_size", json!(i64::MAX), &[]),
        config(json!({ "vocab_size": 1e300 }), &["config.json", "again"]),
        config(json!({ "intermediate_size": u64::MAX }), &["config.json", "again"]),
        config(json!({ "rms_norm_eps": "NaN" }), &["config.json", "NaN"]),
        value("rms_norm_eps", json!(1e300), &[]),
        config(json!({ "rms_norm_eps": null }), &["config.json"]),
        value("rope_theta", json!(1e300), &[]),
        value("rope_theta", json!(-1), &[]),
        value("max_position_embeddings", json!(0), &[]),
        value("quantization", json!({ "group_size": 7, "bits": 99 }), &["group_size"]),
        value("rope_scaling", json!({ "type": "yarn" }), &[]),
        file(r#"{"model_type": "llama", "rms_norm_eps": NaN}"#),
        file(r#"{"model_type": "llama", "#),
        file("[]"),
        file(""),
        file(&format!(r#"{{"model_type": "llama", "x": {deep}}}"#)),
        write("config.json", &padded, &["config.json", "1048576"]),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_a_broken_chat_template_is_refused_and_another_one_answers() {
    const FILE: &str = "chat_template.jinja";
    let in_config = |folder: &Path| {
        set(&folder.join("tokenizer_config.json"), &json!({ "chat_template": "{% if %}" }))
    };
    check_models(vec![
        write(FILE, "{% for message in messages %}{{ message.content ", &["chat template:1"]),
        write(FILE, "{{ messages | no_such_filter }", &["chat template"]),
        case(in_config, &["chat template"]),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_answer_says_why_and_the_next_one_succeeds() {
    let home = home_with_model();
    let folder = model_folder(home.path(), BROKEN);
    let mut app = TestApp::new(home.path(), 4).await;
    /// Changes a copy of the model, the question, and what the sentence names.
    type Case<'a> = (&'a str, &'a str, String, &'a [&'a str]);
    let cases: [Case; 4] = [
        (
            "generation_config.json",
            "{}",
            "long ".repeat(1_000),
            &["prompt", "4096", "new conversation"],
        ),
        (
            "chat_template.jinja",
            "{{ raise_exception('only poems') }}",
            "Hi".to_owned(),
            &["chat template", "only poems"],
        ),
        ("chat_template.jinja", "{{ messages.nothing.here }}", "Hi".to_owned(), &["chat template"]),
        ("tokenizer_config.json", "{}", "Hi".to_owned(), &["chat template", "another model"]),
    ];
    for (file, contents, question, named) in cases {
        cairn_tests::copy_tiny_model(TINY_MODEL, &folder).unwrap();
        fs::write(folder.join(file), contents).unwrap();
        app.call(Command::LoadModel { name: BROKEN.to_owned() }).await;
        app.new_conversation().await;
        let failed = app.answer(&question).await;
        assert_eq!(failed.status, MessageStatus::Failed, "{failed:?}");
        check_sentence(failed.error.as_deref().unwrap(), named);
        let messages = app.messages().await;
        assert_eq!(
            (messages[0].text.as_str(), &messages[1]),
            (question.as_str(), &failed),
            "the question is kept"
        );
        fs::remove_dir_all(&folder).unwrap();

        app.call(Command::LoadModel { name: GOOD.to_owned() }).await;
        app.new_conversation().await;
        app.complete_answer("Hi").await;
    }
    app.inner.close().await;
}

/// A disk of a few megabytes, and the file that fills it.
struct SmallDisk {
    folder: PathBuf,
    filler: PathBuf,
}

impl SmallDisk {
    /// Mounts a tmpfs over an existing folder; `None` where this process may not mount.
    fn mount(folder: &Path, bytes: u64) -> Option<SmallDisk> {
        let size = format!("size={bytes}");
        let mount = Process::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(folder)
            .stderr(Stdio::null())
            .status();
        if !mount.is_ok_and(|status| status.success()) {
            println!("this process may not mount a tmpfs, so a full disk is not tried here");
            return None;
        }
        Some(SmallDisk { folder: folder.to_owned(), filler: folder.join("filler") })
    }

    fn fill(&self) {
        let mut filler = File::options().create(true).append(true).open(&self.filler).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while filler.write_all(&vec![b'x'; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(&self.filler).unwrap();
    }

    fn make_read_only(&self) {
        let remount =
            Process::new("mount").args(["-o", "remount,ro"]).arg(&self.folder).status().unwrap();
        assert!(remount.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: files on it may still be open.
        let _ = Process::new("umount").arg("-l").arg(&self.folder).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_does_not_stop_an_answer_which_is_saved_when_there_is_room() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), 8 << 20) else { return };
    cairn_tests::copy_tiny_model(TINY_MODEL, &model_folder(home.path(), GOOD)).unwrap();
    let app = TestApp::new(home.path(), 2_000).await;
    let mut events = app.inner.subscribe();
    let id = app.ask("Tell me everything").await;
    disk.fill();

    let mut notices = Vec::new();
    let answer = ended(&mut events, &id, &mut notices).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{answer:?}");
    assert_eq!(answer.stats.as_ref().unwrap().generation_tokens, 2_000);
    let levels: Vec<_> = notices.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [NoticeLevel::Warning, NoticeLevel::Error], "{notices:?}");
    for (_, text) in &notices {
        check_sentence(text, &["no room", "cairn.db", "again"]);
    }
    assert_eq!(
        app.messages().await[1],
        answer,
        "the whole answer is shown, though it is not saved"
    );
    let failure = app.refusal(app.send("More")).await;
    assert_eq!(failure.code, FailureCode::Storage);
    check_sentence(&failure.message, &["saved", "room", "disk"]);
    let failure = app.refusal(Command::NewConversation).await;
    assert_eq!(failure.code, FailureCode::Storage);
    check_sentence(&failure.message, &["no room", "cairn.db"]);

    disk.make_room();
    loop {
        if let Event::Notice { level, text, .. } = next(&mut events).await {
            assert_eq!(level, NoticeLevel::Info, "{text}");
            check_sentence(&text, &["saved"]);
            break;
        }
    }
    app.set_max_tokens(8).await;
    app.complete_answer("More").await;
    let before = app.messages().await;
    assert_eq!(before[1], answer);
    let conversation = app.conversation.clone();
    app.inner.close().await;
    drop(app);

    // Opening on a full disk is refused, and works once there is room.
    disk.fill();
    let error = App::open(options(home.path())).await.map(|_| ()).unwrap_err().to_string();
    check_sentence(&error, &["no room", "cairn.db"]);
    disk.make_room();
    let app = TestApp::reopen(home.path(), conversation).await;
    assert_eq!(app.messages().await, before);
    app.inner.close().await;
}

/// The files in a folder and in its folders, without locks.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let files = entries(folder)
        .into_iter()
        .flat_map(|path| if path.is_dir() { entries(&path) } else { vec![path] });
    files.filter(|path| !path.ends_with(".lock")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_cache_without_room_only_costs_time() {
    let home = home_with_model();
    let data_folder = DataFolder::new(home.path());
    fs::create_dir(data_folder.prompt_cache()).unwrap();
    let Some(disk) = SmallDisk::mount(&data_folder.prompt_cache(), 1 << 20) else { return };
    disk.fill();
    let app = TestApp::new(home.path(), 8).await;
    app.complete_answer(&"Tell me about stones. ".repeat(40)).await;
    // The second turn continues from the caches in memory.
    let second = app.complete_answer("And?").await;
    assert!(second.stats.unwrap().cached_tokens > 800);
    let before = app.messages().await;
    let conversation = app.conversation.clone();
    app.inner.close().await;
    let filler = data_folder.prompt_cache().join("filler");
    assert_eq!(files_below(&data_folder.prompt_cache()), [filler], "unfinished chunks are removed");

    disk.make_room();
    let mut cached = Vec::new();
    for _ in 0..2 {
        let app = TestApp::reopen(home.path(), conversation.clone()).await;
        assert_eq!(app.messages().await[..before.len()], before);
        let stats = app.complete_answer("And?").await.stats.unwrap();
        cached.push((stats.cached_tokens > 800, stats.cache_note));
        app.inner.close().await;
    }
    let [(false, Some(note)), (true, None)] = &cached[..] else { panic!("{cached:?}") };
    check_sentence(note, &["re-read", "not saved"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_folder_that_cannot_be_written_is_refused_by_name() {
    async fn check(home: &Path, named: &[&str]) {
        let error = App::open(options(home)).await.map(|_| ()).unwrap_err().to_string();
        check_sentence(&error, &[&[home.to_str().unwrap()], named].concat());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    check(&file, &["CAIRN_HOME", "it is a file, not a folder"]).await;
    check(&file.join("below"), &["CAIRN_HOME"]).await;
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    // A file stands where the data folder needs a folder, and the other way round.
    let blocked = folder.path().join("blocked");
    fs::create_dir_all(&blocked).unwrap();
    fs::write(blocked.join("prompt-cache-v2"), "mine").unwrap();
    check(&blocked, &["CAIRN_HOME", "prompt-cache-v2"]).await;
    let blocked = folder.path().join("blocked database");
    fs::create_dir_all(blocked.join("cairn.db")).unwrap();
    check(&blocked, &["cairn.db"]).await;

    // A disk that became read-only. (Permissions alone would not stop a test that runs as root.)
    let home = folder.path().join("read-only");
    fs::create_dir(&home).unwrap();
    let Some(disk) = SmallDisk::mount(&home, 8 << 20) else { return };
    TestApp::new(&home, 4).await.inner.close().await;
    disk.make_read_only();
    check(&home, &["CAIRN_HOME"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_set_aside_and_the_recovery_is_reported() {
    let home = home_with_model();
    let app = TestApp::new(home.path(), 8).await;
    app.complete_answer(&"q".repeat(3_000)).await;
    let before = app.messages().await;
    let conversation = app.conversation.clone();
    app.inner.close().await;
    drop(app);
    let database = DataFolder::new(home.path()).database();
    let good = fs::read(&database).unwrap();

    let check = async |damage: &dyn Fn(&mut Vec<u8>)| {
        let mut damaged = good.clone();
        damage(&mut damaged);
        fs::write(&database, &damaged).unwrap();
        let app = App::open(options(home.path())).await.unwrap();
        let mut events = app.subscribe();
        app.call(Command::Bootstrap).await.unwrap();
        let text = loop {
            if let Event::Notice { text, .. } = events.recv().await.unwrap() {
                break text;
            }
        };
        assert!(text.contains("damaged") && text.contains("recovered"), "{text}");
        let (_, aside) = text.trim_end_matches('.').rsplit_once("The damaged file is ").unwrap();
        assert!(fs::read(aside).unwrap() == damaged, "the file was changed");
        app.close().await;
    };
    check(&|bytes| bytes.truncate(bytes.len() / 2)).await;
    check(&|bytes| bytes.truncate(100)).await;
    check(&|bytes| bytes[..16].fill(b'?')).await;
    check(&|bytes| bytes[4096..].fill(0xff)).await;
    check(&|bytes| *bytes = b"This is a text and no database.".repeat(300)).await;

    fs::write(&database, &good).unwrap();
    let app = TestApp::reopen(home.path(), conversation).await;
    assert_eq!(app.messages().await, before);
    app.inner.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_is_refused_and_the_first_continues() {
    let home = home_with_model();
    let app = TestApp::new(home.path(), 4).await;
    let error = App::open(options(home.path())).await.map(|_| ()).unwrap_err().to_string();
    check_sentence(&error, &["already running", home.path().to_str().unwrap(), "CAIRN_HOME"]);
    app.complete_answer("Hi").await;
    app.inner.close().await;
}

#[test]
fn of_twenty_processes_that_start_together_one_owns_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let start = || {
        let mut process = Process::new(env!("CARGO_BIN_EXE_crash_victim"));
        process
            .arg(home.path())
            .arg("own")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..20).map(|_| start()).collect();
    let mut num_owners = 0;
    for child in &mut children {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match &serde_json::from_str::<Vec<String>>(&line).unwrap()[..] {
            [word] if word == "owner" => num_owners += 1,
            [word, sentence] if word == "refused" => {
                check_sentence(sentence, &["already running", home.path().to_str().unwrap()])
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(num_owners, 1);
    for child in &mut children {
        // The owner holds the folder until its stdin ends.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
