//! SIGKILL while an answer is written and while its prompt cache is written: whatever was
//! acknowledged is there afterwards, whole.
//!
//! A victim process works on a data folder; see `crash_victim.rs` for what it prints. It is killed
//! at an event, never at a time: at a line that it has printed, a row or a file that has appeared.
//! Which event comes from a fixed sequence of pseudo-random numbers. The folder is kept from kill
//! to kill, so that each one meets what the ones before have left. `steps.rs` kills at each single
//! system call of writing instead.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

#[cfg(target_os = "linux")]
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cairn_app::wire::{self, Event, Message, MessageStatus, Reply, Settings};
use cairn_app::{App, CacheVariables, DataFolder, Options};
use cairn_store::{ChunkRow, Store};
use cairn_sweeps::sweep;
use safetensors::SafeTensors;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

/// On one data folder, so that each kill meets what the ones before have left.
const NUM_KILLS: u64 = 12;
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn an_answer_that_is_killed_loses_nothing_that_was_acknowledged() {
    for seed in sweep("an answer is killed", 1) {
        check_kills_while_answering(seed);
    }
}

fn check_kills_while_answering(seed: u64) {
    let desk = Desk::new();
    let mut random = Random((0x5eed_0001 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut facts = Facts::default();
    let mut conversation = "new".to_owned();
    let mut num_interrupted_with_text = 0;
    for round in 0..NUM_KILLS {
        if round % 4 == 0 {
            conversation = "new".to_owned();
        }
        let victim =
            Victim::start(desk.home(), "answer", &conversation, 500, "Tell me about stones.");
        let Some(Line::Conversation(id)) = victim.next() else {
            panic!("the victim names its conversation")
        };
        conversation = id;
        let turns = facts.0.entry(conversation.clone()).or_default();
        let mut listen = || {
            let line = victim.next().expect("the victim goes on");
            Turn::note(turns, &line);
            line
        };
        match random.below(4) {
            0 => until(&mut listen, |line| matches!(line, Line::Sent { .. })),
            1 => {
                let mut left = 1 + random.below(12);
                until(&mut listen, |line| {
                    left -= u64::from(matches!(line, Line::Delta(..)));
                    left == 0
                });
            }
            2 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
            // What another reader has seen in the database is there for good.
            _ => until(&mut listen, |line| match line {
                Line::Delta(id, _) => !desk.saved_text(id).is_empty(),
                _ => false,
            }),
        }
        let seen =
            turns.last().map(|turn| (turn.answer_id.clone(), desk.saved_text(&turn.answer_id)));
        for line in victim.kill() {
            Turn::note(turns, &line);
        }
        if let (Some((id, text)), Some(turn)) = (seen, turns.last_mut())
            && id == turn.answer_id
        {
            turn.seen_saved = text;
        }

        desk.run(async {
            let app = desk.open().await;
            assert_eq!(desk.integrity().await, "ok", "kill {round}");
            num_interrupted_with_text += facts.check(&app).await;
            let turn = next_turn(&app, &conversation).await.0;
            facts.0.get_mut(&conversation).unwrap().push(turn);
            app.close().await;
        });
    }
    assert!(
        num_interrupted_with_text >= 2,
        "only {num_interrupted_with_text} answers were met halfway"
    );
}

#[test]
fn a_kill_while_chunks_are_written_leaves_whole_files_and_true_rows() {
    for seed in sweep("a writer is killed", 1) {
        check_kills_while_writing(seed);
    }
}

fn check_kills_while_writing(seed: u64) {
    let desk = Desk::new();
    let mut random = Random((0x5eed_0002 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut facts = Facts::default();
    let mut known = BTreeSet::new();
    let mut num_left_behind = 0;
    for round in 0..NUM_KILLS {
        // Nine chunks and more, none of them known: the conversations differ from their first word
        // on.
        let question = format!("{round}: {}", "granite, basalt, slate and marble; ".repeat(60));
        let event = random.below(4);
        let victim = Victim::start(
            desk.home(),
            if event == 1 { "rows" } else { "once" },
            "new",
            16,
            &question,
        );
        let Some(Line::Conversation(conversation)) = victim.next() else {
            panic!("the victim names its conversation")
        };
        let turns = facts.0.entry(conversation.clone()).or_default();
        let mut listen = || {
            let line = victim.next().expect("the victim goes on");
            Turn::note(turns, &line);
            line
        };
        let num_more = 1 + random.below(7) as usize;
        let num_enough = known.len() + num_more;
        match event {
            0 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
            1 => {
                until(&mut listen, |line| matches!(line, Line::Rows(count) if *count >= num_enough))
            }
            2 => {
                until(&mut listen, |line| matches!(line, Line::Sent { .. }));
                until(&mut || desk.chunk_files(), |files| files.whole.len() >= num_enough);
            }
            _ => {
                until(&mut listen, |line| matches!(line, Line::Sent { .. }));
                // One that is just being written, after some others; should none be met, the last
                // ones will do.
                until(&mut || desk.chunk_files(), |files| {
                    (files.whole.len() >= num_enough && !files.temporary.is_empty())
                        || files.whole.len() >= known.len() + 9
                });
            }
        }
        for line in victim.kill() {
            Turn::note(turns, &line);
        }

        num_left_behind += check_what_is_left(
            &desk,
            &mut facts,
            &conversation,
            &question,
            &mut known,
            &format!("kill {round}"),
        );
    }
    assert!(num_left_behind >= 2, "only {num_left_behind} files were met without their row");
}

/// Whatever a kill met while chunks were written: files under their final names are whole, rows are
/// true, the next start gives files without a row their row back, nothing of any conversation is
/// lost, and the one that asked `question` continues from what was stored.
///
/// `known` are the chunks from before; those of now come back in it. Returns how many files were
/// left without a row.
fn check_what_is_left(
    desk: &Desk,
    facts: &mut Facts,
    conversation: &str,
    question: &str,
    known: &mut BTreeSet<String>,
    kill: &str,
) -> usize {
    let left = desk.chunk_files();
    for file in &left.whole {
        check_name(file);
    }
    desk.run(async {
        let store = Store::open(&desk.data_folder().database()).await.unwrap();
        let (rows, refs) = (store.chunks().await.unwrap(), store.cache_refs().await.unwrap());
        store.close().await.unwrap();
        rows.iter().for_each(|row| check_row(desk, row));
        for key in refs.iter().filter_map(|cache_ref| cache_ref.chunk_key.as_ref()) {
            assert!(
                rows.iter().any(|row| row.key == *key),
                "{kill}: a conversation's place is behind a chunk without a row"
            );
        }
        let end = |row: &ChunkRow| row.start as usize + row.token_ids.len();
        let num_stored =
            rows.iter().filter(|row| !known.contains(&row.key)).map(end).max().unwrap_or(0);

        let app = desk.open().await;
        assert_eq!(desk.integrity().await, "ok", "{kill}");
        facts.check(&app).await;
        app.close().await;
        // Nothing was asked, so the start was all that happened: files without a row have got it
        // back, or have gone.
        let store = Store::open(&desk.data_folder().database()).await.unwrap();
        let rebuilt = store.chunks().await.unwrap();
        store.close().await.unwrap();
        rebuilt.iter().for_each(|row| check_row(desk, row));
        let named: BTreeSet<PathBuf> = rebuilt.iter().map(|row| desk.chunk_file(row)).collect();
        let files = desk.chunk_files();
        let odd: Vec<&PathBuf> =
            files.whole.union(&files.temporary).filter(|file| !named.contains(*file)).collect();
        assert!(
            odd.is_empty() && files.whole.len() == named.len(),
            "{kill}: the next start leaves {odd:?} without a row"
        );

        let app = desk.open().await;
        let (turn, num_cached) = next_turn(&app, conversation).await;
        facts.0.get_mut(conversation).unwrap().push(turn);
        // A byte is a token. Of the answer, which may be half a character at the end, nothing is
        // asked.
        let expected = num_stored.min(question.len());
        assert!(
            num_cached >= expected,
            "{kill}: {num_cached} tokens were read back, {expected} stand in files with rows"
        );
        app.close().await;

        let store = Store::open(&desk.data_folder().database()).await.unwrap();
        *known = store.chunks().await.unwrap().into_iter().map(|row| row.key).collect();
        store.close().await.unwrap();
        left.temporary.len() + left.whole.len() - rows.len()
    })
}

/// Pulls until something is as wanted; a victim that never gets there fails the test.
fn until<T>(pull: &mut impl FnMut() -> T, mut is_wanted: impl FnMut(&T) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_wanted(&pull()) {
        assert!(Instant::now() < deadline, "what is waited for never comes");
    }
}

/// xorshift64* (Vigna 2016): the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }
}

/// A line of the victim.
enum Line {
    Conversation(String),
    Sent { question_id: String, question: String, answer_id: String },
    Delta(String, String),
    Complete(String, String),
    Rows(usize),
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let mut words = serde_json::from_str::<Vec<String>>(text).ok()?.into_iter();
        let mut word = || words.next();
        Some(match word()?.as_str() {
            "conversation" => Line::Conversation(word()?),
            "sent" => Line::Sent { question_id: word()?, question: word()?, answer_id: word()? },
            "delta" => Line::Delta(word()?, word()?),
            "complete" => Line::Complete(word()?, word()?),
            "rows" => Line::Rows(word()?.parse().ok()?),
            _ => return None,
        })
    }
}

/// The victim's process, gone with this at the latest.
struct Victim {
    child: Child,
    lines: Receiver<Line>,
}

impl Victim {
    fn start(
        home: &Path,
        work: &str,
        conversation: &str,
        max_tokens: u32,
        question: &str,
    ) -> Victim {
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash_victim"))
            .arg(home)
            .args([work, conversation, &max_tokens.to_string(), question])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        // What a process has written into the pipe is read also after its death.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Only a line that the kill has cut is no line.
                let Some(line) = Line::parse(&line) else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Victim { child, lines }
    }

    fn next(&self) -> Option<Line> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the victim does nothing"),
        }
    }

    /// Lets a victim begin that waits for it.
    fn begin(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    /// Kills it; the lines that it had written and nobody has read yet.
    fn kill(mut self) -> Vec<Line> {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "the victim was alive when it was killed");
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is known about a question and its answer.
struct Turn {
    question_id: String,
    question: String,
    answer_id: String,
    /// The deltas together.
    told: String,
    /// What another process read in the database before the kill.
    seen_saved: String,
    /// The text of the answer, once it was acknowledged.
    complete: Option<String>,
}

impl Turn {
    fn new(question_id: String, question: String, answer_id: String) -> Turn {
        Turn {
            question_id,
            question,
            answer_id,
            told: String::new(),
            seen_saved: String::new(),
            complete: None,
        }
    }

    fn note(turns: &mut Vec<Turn>, line: &Line) {
        match line {
            Line::Sent { question_id, question, answer_id } => {
                turns.push(Turn::new(question_id.clone(), question.clone(), answer_id.clone()));
            }
            Line::Delta(id, text) => Turn::last(turns, id).told.push_str(text),
            Line::Complete(id, text) => Turn::last(turns, id).complete = Some(text.clone()),
            Line::Conversation(_) | Line::Rows(_) => {}
        }
    }

    fn last<'a>(turns: &'a mut [Turn], answer_id: &str) -> &'a mut Turn {
        turns
            .last_mut()
            .filter(|turn| turn.answer_id == answer_id)
            .expect("an answer that was sent")
    }

    /// Whether the answer was met halfway, with text.
    fn check(&self, messages: &BTreeMap<String, Message>) -> bool {
        let message = |id: &String| {
            messages
                .get(id)
                .unwrap_or_else(|| panic!("the message {id} was acknowledged and is gone"))
        };
        let (question, answer) = (message(&self.question_id), message(&self.answer_id));
        assert_eq!((question.status, &question.text), (MessageStatus::Complete, &self.question));
        let text = &answer.text;
        match (&self.complete, answer.status) {
            (Some(complete), status) => {
                assert_eq!((status, text), (MessageStatus::Complete, complete))
            }
            // It was saved; the kill came before the line.
            (None, MessageStatus::Complete) => {
                assert!(text.starts_with(&self.told), "{text:?} is not {:?}", self.told)
            }
            // Saving and telling run side by side, so either may be ahead.
            (None, MessageStatus::Interrupted) => {
                assert!(
                    text.starts_with(&self.told) || self.told.starts_with(text),
                    "{text:?} is not {:?}",
                    self.told
                );
                assert!(text.starts_with(&self.seen_saved), "{text:?} was {:?}", self.seen_saved);
                return !text.is_empty();
            }
            (None, status) => panic!("an answer that was killed is {status:?}"),
        }
        false
    }
}

/// The turns of each conversation.
#[derive(Default)]
struct Facts(BTreeMap<String, Vec<Turn>>);

impl Facts {
    /// Finds everything in the app; returns how many of the newest answers were met halfway, with
    /// text.
    async fn check(&self, app: &Arc<App>) -> usize {
        let mut num_halfway = 0;
        for (id, turns) in &self.0 {
            let Reply::Conversation { messages, .. } =
                call(app, wire::Command::GetConversation { id: id.clone() }).await
            else {
                panic!("no conversation")
            };
            let messages: BTreeMap<String, Message> =
                messages.into_iter().map(|message| (message.id.clone(), message)).collect();
            assert!(
                messages.values().all(|message| message.status != MessageStatus::Streaming),
                "nobody writes any more: {messages:?}"
            );
            let halfway: Vec<bool> = turns.iter().map(|turn| turn.check(&messages)).collect();
            num_halfway += usize::from(halfway.last() == Some(&true));
        }
        num_halfway
    }
}

/// A short question and its answer in this process, and how much of the prompt was read from the
/// cache.
async fn next_turn(app: &Arc<App>, conversation: &str) -> (Turn, usize) {
    let Reply::Bootstrap { settings, .. } = call(app, wire::Command::Bootstrap).await else {
        panic!("no settings")
    };
    call(app, wire::Command::UpdateSettings { settings: Settings { max_tokens: 8, ..settings } })
        .await;
    let mut events = app.subscribe();
    let send = wire::Command::SendMessage {
        conversation_id: conversation.to_owned(),
        text: "Go on.".to_owned(),
    };
    let Reply::Sent { messages, .. } = call(app, send).await else { panic!("nothing was sent") };
    let [question, answer] = &messages[..] else { panic!("{messages:?}") };
    let ended = loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event").unwrap() {
            Event::Message { message }
                if message.id == answer.id && message.status != MessageStatus::Streaming =>
            {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(ended.status, MessageStatus::Complete, "{ended:?}");
    let mut turn = Turn::new(question.id.clone(), question.text.clone(), answer.id.clone());
    turn.complete = Some(ended.text);
    (turn, ended.stats.unwrap().cached_tokens as usize)
}

async fn call(app: &Arc<App>, command: wire::Command) -> Reply {
    app.call(command).await.unwrap_or_else(|failure| panic!("{failure:?}"))
}

/// A data folder with the tiny model, and this process's view of it.
struct Desk {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
}

/// The files below the folder of the prompt cache.
struct ChunkFiles {
    /// Those with a final name.
    whole: BTreeSet<PathBuf>,
    temporary: BTreeSet<PathBuf>,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models").join("tiny-chat");
        cairn_tests::copy_tiny_model("llama/tiny-chat", &model).unwrap();
        // Conversations grow from kill to kill.
        let config = fs::read_to_string(model.join("config.json")).unwrap();
        let roomy = config
            .replace(r#""max_position_embeddings": 4096"#, r#""max_position_embeddings": 1000000"#);
        assert_ne!(roomy, config);
        fs::write(model.join("config.json"), roomy).unwrap();
        Desk { folder, runtime: tokio::runtime::Runtime::new().unwrap() }
    }

    fn home(&self) -> &Path {
        self.folder.path()
    }

    fn data_folder(&self) -> DataFolder {
        DataFolder::new(self.home())
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    async fn open(&self) -> Arc<App> {
        App::open(Options {
            data_folder: self.data_folder(),
            hub_variables: CacheVariables::default(),
            autoload: false,
        })
        .await
        .unwrap()
    }

    async fn query(&self, statement: &'static str, id: &str) -> Option<String> {
        let options =
            SqliteConnectOptions::new().filename(self.data_folder().database()).read_only(true);
        let mut connection = options.connect().await.unwrap();
        let found =
            sqlx::query_scalar(statement).bind(id).fetch_optional(&mut connection).await.unwrap();
        // Closed before the next kill: a reader that stays open would spare the next program its
        // recovery.
        connection.close().await.unwrap();
        found
    }

    /// What the database holds of an answer at this moment.
    fn saved_text(&self, message_id: &str) -> String {
        self.run(self.query("select text from messages where id = ?", message_id))
            .unwrap_or_default()
    }

    async fn integrity(&self) -> String {
        self.query("select group_concat(integrity_check, '; ') from pragma_integrity_check where ?1 is not null", "").await.unwrap()
    }

    fn chunk_file(&self, row: &ChunkRow) -> PathBuf {
        self.data_folder()
            .prompt_cache()
            .join(&row.fingerprint)
            .join(format!("{}.safetensors", row.key))
    }

    fn chunk_files(&self) -> ChunkFiles {
        let paths = |folder: &Path| {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .collect::<Vec<_>>()
        };
        let files =
            paths(&self.data_folder().prompt_cache()).into_iter().flat_map(|model| paths(&model));
        let (whole, temporary) = files
            .partition(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
        ChunkFiles { whole, temporary }
    }
}

/// A file under a final name holds a whole chunk, and the one that its name says.
fn check_name(path: &Path) {
    let bytes = fs::read(path).unwrap();
    let whole = SafeTensors::deserialize(&bytes).and_then(|_| SafeTensors::read_metadata(&bytes));
    let (_, header) = whole.unwrap_or_else(|error| panic!("{} is torn: {error}", path.display()));
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!(metadata["key"], path.file_stem().unwrap().to_str().unwrap());
    assert_eq!(
        metadata["fingerprint"],
        path.parent().unwrap().file_name().unwrap().to_str().unwrap()
    );
}

/// The file of a row is there and is the one that was written.
fn check_row(desk: &Desk, row: &ChunkRow) {
    let path = desk.chunk_file(row);
    let bytes =
        fs::read(&path).unwrap_or_else(|error| panic!("a row names {}: {error}", path.display()));
    assert_eq!(
        (bytes.len() as i64, blake3::hash(&bytes).to_hex().as_str()),
        (row.bytes, row.file_hash.as_str()),
        "{}",
        path.display()
    );
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in tensors.tensors() {
        assert_eq!(tensor.shape()[2], row.token_ids.len(), "{} in {}", name, path.display());
    }
}
