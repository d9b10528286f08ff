//! Bad input and bad luck, met through the app: one clear sentence each, nothing lost, and the app
//! goes on.
//!
//! A full disk is a small tmpfs that the test mounts, which takes the rights to mount; where they
//! are missing, those tests say so and leave the matter to the store's own tests, which limit the
//! pages of the database.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cairn_app::wire::{
    Command, Event, Failure, FailureCode, Message, MessageStatus, NoticeLevel, Reply, Settings,
};
use cairn_app::{App, CacheVariables, DataFolder, Options};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

const GOOD: &str = "tiny-chat";
const TINY_MODEL: &str = "llama/tiny-chat";
const BROKEN: &str = "broken";
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(home: &Path) -> Options {
    Options {
        data_folder: DataFolder::new(home),
        hub_variables: CacheVariables::default(),
        autoload: false,
    }
}

fn model_folder(home: &Path, name: &str) -> PathBuf {
    home.join("models").join(name)
}

fn home_with_model() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    cairn_tests::copy_tiny_model(TINY_MODEL, &model_folder(home.path(), GOOD)).unwrap();
    home
}

/// An open app with greedy answers, and a conversation in it.
struct Desk {
    app: Arc<App>,
    conversation: String,
}

impl Desk {
    async fn new(home: &Path, max_tokens: u32) -> Desk {
        let app = App::open(options(home)).await.unwrap();
        let mut desk = Desk { app, conversation: String::new() };
        desk.set_max_tokens(max_tokens).await;
        desk.new_conversation().await;
        desk
    }

    async fn call(&self, command: Command) -> Reply {
        self.app.call(command).await.unwrap_or_else(|failure| panic!("{failure:?}"))
    }

    async fn refusal(&self, command: Command) -> Failure {
        match self.app.call(command).await {
            Err(failure) => failure,
            Ok(reply) => panic!("it is not refused: {reply:?}"),
        }
    }

    async fn set_max_tokens(&self, max_tokens: u32) {
        let Reply::Bootstrap { settings, .. } = self.call(Command::Bootstrap).await else {
            panic!("no settings")
        };
        let settings =
            Settings { temperature: 0.0, max_tokens, cache_budget_bytes: 1 << 30, ..settings };
        self.call(Command::UpdateSettings { settings }).await;
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

    /// Asks, and returns the id of the answer that has begun.
    async fn ask(&self, text: &str) -> String {
        let Reply::Sent { messages, .. } = self.call(self.send(text)).await else {
            panic!("nothing was sent")
        };
        messages.last().unwrap().id.clone()
    }

    /// Asks and waits for the answer's end.
    async fn answer(&self, text: &str) -> Message {
        let mut events = self.app.subscribe();
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
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event should come").unwrap()
}

/// Listens until the answer has ended; collects the notices on the way.
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
            Event::Notice { level, text } => notices.push((level, text)),
            _ => {}
        }
    }
}

/// What a person is shown: one sentence that names the thing, without the words of a programmer.
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

/// Writes the weights anew, with the tensors changed.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_used_is_refused_and_another_one_answers() {
    let home = home_with_model();
    let desk = Desk::new(home.path(), 4).await;
    let folder = model_folder(home.path(), BROKEN);
    let mut num_messages = 0;
    /// Breaks a copy of the model, and what the sentence names.
    type Case<'a> = (Box<dyn FnOnce(&Path)>, &'a [&'a str]);
    let remove = |name: &'static str| {
        Box::new(move |folder: &Path| fs::remove_file(folder.join(name)).unwrap())
    };
    let write = |name: &'static str, text: &str| {
        let text = text.to_owned();
        Box::new(move |folder: &Path| fs::write(folder.join(name), text).unwrap())
    };
    let cut = |length: u64| {
        Box::new(move |folder: &Path| {
            let file = File::options().write(true).open(folder.join("model.safetensors")).unwrap();
            file.set_len(length).unwrap();
        })
    };
    let config =
        |fields: Value| Box::new(move |folder: &Path| set(&folder.join("config.json"), &fields));
    let deep = format!(
        r#"{{"model_type": "llama", "x": {}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let size =
        fs::metadata(cairn_tests::tiny_model(TINY_MODEL).join("model.safetensors")).unwrap().len();
    let [shorter_size, whole_size, longer_size] =
        [size - 1, size, size + 1].map(|size| size.to_string());
    let shorter = [BROKEN, "model.safetensors", "incomplete", &shorter_size, &whole_size, "again"];
    let longer = [BROKEN, "model.safetensors", &longer_size, &whole_size, "again"];
    let padded = format!(r#"{{"model_type": "llama", "x": "{}"}}"#, "x".repeat(2 << 20));
    let cases: Vec<Case> = vec![
        // Files that are missing or cut.
        (remove("model.safetensors"), &[BROKEN, ".safetensors", "again"]),
        (remove("config.json"), &[BROKEN, "config.json", "again"]),
        (remove("tokenizer.json"), &[BROKEN, "tokenizer.json", "again"]),
        (cut(0), &[BROKEN, "model.safetensors", "incomplete", "0", "again"]),
        (cut(7), &[BROKEN, "model.safetensors", "incomplete", "again"]),
        (cut(8), &[BROKEN, "model.safetensors", "incomplete", "again"]),
        (cut(500), &[BROKEN, "model.safetensors", "incomplete", "again"]),
        (cut(50_000), &[BROKEN, "model.safetensors", "incomplete", "50000", "again"]),
        (cut(size - 1), &shorter),
        (cut(size + 1), &longer),
        (
            write("model.safetensors", "<!DOCTYPE html><html>not found</html>"),
            &[BROKEN, "model.safetensors", "again"],
        ),
        // Tensors of another model.
        (
            Box::new(|folder| {
                change_tensors(folder, |tensors| {
                    tensors.iter_mut().for_each(|tensor| tensor.2.reverse())
                })
            }),
            &[BROKEN, "shape", "model.embed_tokens", "config.json"],
        ),
        (
            Box::new(|folder| {
                change_tensors(folder, |tensors| {
                    tensors.retain(|tensor| !tensor.0.starts_with("model.layers.1.mlp.up"))
                })
            }),
            &[BROKEN, "model.layers.1.mlp.up_proj", "again"],
        ),
        (
            Box::new(|folder| {
                let stranger = |name: &str| (name.to_owned(), Dtype::F32, vec![1], vec![0; 4]);
                change_tensors(folder, |tensors| {
                    tensors.extend([stranger("model.layers.0.moe.gate"), stranger("vision.w")])
                });
            }),
            &[BROKEN, "2 tensors", "model.layers.0.moe.gate", "llama"],
        ),
        (config(json!({ "num_hidden_layers": 1 })), &[BROKEN, "model.layers.1."]),
        (config(json!({ "num_hidden_layers": 3 })), &[BROKEN, "model.layers.2."]),
        // A config.json that makes no sense.
        (config(json!({ "model_type": "mamba9" })), &[BROKEN, "mamba9", "llama"]),
        (config(json!({ "model_type": null })), &[BROKEN, "model_type"]),
        (
            config(json!({ "hidden_size": 1_000_000_000 })),
            &[BROKEN, "config.json", "hidden_size", "1000000000"],
        ),
        (
            config(json!({ "num_hidden_layers": -1 })),
            &[BROKEN, "config.json", "num_hidden_layers", "-1"],
        ),
        (
            config(json!({ "num_attention_heads": 0 })),
            &[BROKEN, "config.json", "num_attention_heads"],
        ),
        (
            config(json!({ "num_key_value_heads": 3 })),
            &[BROKEN, "config.json", "num_key_value_heads"],
        ),
        (config(json!({ "vocab_size": i64::MAX })), &[BROKEN, "config.json", "vocab_size"]),
        (config(json!({ "vocab_size": 1e300 })), &[BROKEN, "config.json", "again"]),
        (config(json!({ "intermediate_size": u64::MAX })), &[BROKEN, "config.json", "again"]),
        (config(json!({ "rms_norm_eps": "NaN" })), &[BROKEN, "config.json", "NaN"]),
        (config(json!({ "rms_norm_eps": 1e300 })), &[BROKEN, "config.json", "rms_norm_eps"]),
        (config(json!({ "rms_norm_eps": null })), &[BROKEN, "config.json"]),
        (config(json!({ "rope_theta": 1e300 })), &[BROKEN, "config.json", "rope_theta"]),
        (config(json!({ "rope_theta": -1 })), &[BROKEN, "config.json", "rope_theta"]),
        (
            config(json!({ "max_position_embeddings": 0 })),
            &[BROKEN, "config.json", "max_position_embeddings"],
        ),
        (
            config(json!({ "quantization": { "group_size": 7, "bits": 99 } })),
            &[BROKEN, "config.json", "quantization", "group_size"],
        ),
        (
            config(json!({ "rope_scaling": { "type": "yarn" } })),
            &[BROKEN, "config.json", "rope_scaling"],
        ),
        (
            write("config.json", r#"{"model_type": "llama", "rms_norm_eps": NaN}"#),
            &[BROKEN, "config.json", "again"],
        ),
        (write("config.json", r#"{"model_type": "llama", "#), &[BROKEN, "config.json", "again"]),
        (write("config.json", "[]"), &[BROKEN, "config.json", "again"]),
        (write("config.json", ""), &[BROKEN, "config.json", "again"]),
        (write("config.json", &deep), &[BROKEN, "config.json", "again"]),
        (write("config.json", &padded), &[BROKEN, "config.json", "1048576"]),
        // The files beside it.
        (write("tokenizer.json", "{"), &[BROKEN, "tokenizer.json", "again"]),
        (
            write("tokenizer.json", r#"{"model": {"type": "BPE"}}"#),
            &[BROKEN, "tokenizer.json", "again"],
        ),
        (write("tokenizer_config.json", "{]"), &[BROKEN, "tokenizer_config.json", "again"]),
        (
            write("generation_config.json", r#"{"eos_token_id": "#),
            &[BROKEN, "generation_config.json", "again"],
        ),
        (
            write("chat_template.jinja", "{% for message in messages %}{{ message.content "),
            &[BROKEN, "chat template:1"],
        ),
        (
            write("chat_template.jinja", "{{ messages | no_such_filter }"),
            &[BROKEN, "chat template"],
        ),
        (
            Box::new(|folder| {
                set(&folder.join("tokenizer_config.json"), &json!({ "chat_template": "{% if %}" }))
            }),
            &[BROKEN, "chat template"],
        ),
    ];
    for (damage, named) in cases {
        cairn_tests::copy_tiny_model(TINY_MODEL, &folder).unwrap();
        damage(&folder);
        let failure = desk.refusal(Command::LoadModel { name: BROKEN.to_owned() }).await;
        assert_eq!(failure.code, FailureCode::Engine, "{failure:?}");
        check_sentence(&failure.message, named);
        fs::remove_dir_all(&folder).unwrap();

        desk.call(Command::LoadModel { name: GOOD.to_owned() }).await;
        desk.complete_answer("Hi").await;
        num_messages += 2;
        assert_eq!(desk.messages().await.len(), num_messages, "nothing is lost");
    }
    desk.app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_made_says_why_and_the_next_one_comes() {
    let home = home_with_model();
    let folder = model_folder(home.path(), BROKEN);
    let mut desk = Desk::new(home.path(), 4).await;
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
        desk.call(Command::LoadModel { name: BROKEN.to_owned() }).await;
        desk.new_conversation().await;
        let failed = desk.answer(&question).await;
        assert_eq!(failed.status, MessageStatus::Failed, "{failed:?}");
        check_sentence(failed.error.as_deref().unwrap(), named);
        let messages = desk.messages().await;
        assert_eq!(
            (messages[0].text.as_str(), &messages[1]),
            (question.as_str(), &failed),
            "the question is kept"
        );
        fs::remove_dir_all(&folder).unwrap();

        desk.call(Command::LoadModel { name: GOOD.to_owned() }).await;
        desk.new_conversation().await;
        desk.complete_answer("Hi").await;
    }
    desk.app.close().await;
}

/// A disk of a few megabytes, and what fills it.
struct SmallDisk {
    folder: PathBuf,
    filler: PathBuf,
}

impl SmallDisk {
    /// Mounted over a folder that exists; none where this process may not mount.
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
        // At once from the tree, and for good when nothing uses it any more.
        let _ = Process::new("umount").arg("-l").arg(&self.folder).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_keeps_no_answer_back_and_what_was_not_saved_is_saved_later() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(home.path(), 8 << 20) else { return };
    cairn_tests::copy_tiny_model(TINY_MODEL, &model_folder(home.path(), GOOD)).unwrap();
    let desk = Desk::new(home.path(), 2_000).await;
    let mut events = desk.app.subscribe();
    let id = desk.ask("Tell me everything").await;
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
    assert_eq!(desk.messages().await[1], answer, "what was told is shown");
    let failure = desk.refusal(desk.send("More")).await;
    assert_eq!(failure.code, FailureCode::Storage);
    check_sentence(&failure.message, &["saved", "room", "disk"]);
    let failure = desk.refusal(Command::NewConversation).await;
    assert_eq!(failure.code, FailureCode::Storage);
    check_sentence(&failure.message, &["no room", "cairn.db"]);

    disk.make_room();
    loop {
        if let Event::Notice { level, text } = next(&mut events).await {
            assert_eq!(level, NoticeLevel::Info, "{text}");
            check_sentence(&text, &["saved"]);
            break;
        }
    }
    desk.set_max_tokens(8).await;
    desk.complete_answer("More").await;
    let before = desk.messages().await;
    assert_eq!(before[1], answer);
    let conversation = desk.conversation.clone();
    desk.app.close().await;
    drop(desk);

    // Opening on a full disk is refused, and works once there is room.
    disk.fill();
    let error = App::open(options(home.path())).await.map(|_| ()).unwrap_err().to_string();
    check_sentence(&error, &["no room", "cairn.db"]);
    disk.make_room();
    let desk = Desk { app: App::open(options(home.path())).await.unwrap(), conversation };
    assert_eq!(desk.messages().await, before);
    desk.app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_cache_without_room_costs_time_and_nothing_else() {
    let home = home_with_model();
    let data_folder = DataFolder::new(home.path());
    fs::create_dir(data_folder.prompt_cache()).unwrap();
    let Some(disk) = SmallDisk::mount(&data_folder.prompt_cache(), 1 << 20) else { return };
    disk.fill();
    let desk = Desk::new(home.path(), 8).await;
    desk.complete_answer(&"Tell me about stones. ".repeat(40)).await;
    // What is in memory needs no disk.
    let second = desk.complete_answer("And?").await;
    assert!(second.stats.unwrap().cached_tokens > 800);
    let before = desk.messages().await;
    let conversation = desk.conversation.clone();
    desk.app.close().await;
    let left: Vec<PathBuf> = fs::read_dir(data_folder.prompt_cache())
        .unwrap()
        .flat_map(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
            } else {
                vec![path]
            }
        })
        .collect();
    let left: Vec<_> = left.into_iter().filter(|path| !path.ends_with(".lock")).collect();
    assert_eq!(left, [data_folder.prompt_cache().join("filler")], "no part of a chunk is left");

    disk.make_room();
    let mut cached = Vec::new();
    for _ in 0..2 {
        let desk = Desk {
            app: App::open(options(home.path())).await.unwrap(),
            conversation: conversation.clone(),
        };
        assert_eq!(desk.messages().await[..before.len()], before);
        let stats = desk.complete_answer("And?").await.stats.unwrap();
        cached.push((stats.cached_tokens > 800, stats.cache_note));
        desk.app.close().await;
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
    check(&file, &["CAIRN_HOME", "a file stands in its place"]).await;
    check(&file.join("below"), &["CAIRN_HOME"]).await;
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    // Something else stands where the folder has its own things.
    let blocked = folder.path().join("blocked");
    fs::create_dir_all(&blocked).unwrap();
    fs::write(blocked.join("prompt-cache-v2"), "mine").unwrap();
    check(&blocked, &["CAIRN_HOME", "prompt-cache-v2"]).await;
    let blocked = folder.path().join("blocked database");
    fs::create_dir_all(blocked.join("cairn.db")).unwrap();
    check(&blocked, &["cairn.db"]).await;

    // A disk that became read-only: permissions would not keep root out.
    let home = folder.path().join("read-only");
    fs::create_dir(&home).unwrap();
    let Some(disk) = SmallDisk::mount(&home, 8 << 20) else { return };
    Desk::new(&home, 4).await.app.close().await;
    disk.make_read_only();
    check(&home, &["CAIRN_HOME"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_database_is_set_aside_and_what_can_be_read_is_told() {
    let home = home_with_model();
    let desk = Desk::new(home.path(), 8).await;
    desk.complete_answer(&"q".repeat(3_000)).await;
    let before = desk.messages().await;
    let conversation = desk.conversation.clone();
    desk.app.close().await;
    drop(desk);
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
    check(&|bytes| *bytes = b"Dear diary, today I met a stone.".repeat(300)).await;

    fs::write(&database, &good).unwrap();
    let desk = Desk { app: App::open(options(home.path())).await.unwrap(), conversation };
    assert_eq!(desk.messages().await, before);
    desk.app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_is_sent_to_the_first_which_goes_on() {
    let home = home_with_model();
    let desk = Desk::new(home.path(), 4).await;
    let error = App::open(options(home.path())).await.map(|_| ()).unwrap_err().to_string();
    check_sentence(&error, &["already running", home.path().to_str().unwrap(), "CAIRN_HOME"]);
    desk.complete_answer("Hi").await;
    desk.app.close().await;
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
        // The owner holds the folder until nobody can say anything to it any more.
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
