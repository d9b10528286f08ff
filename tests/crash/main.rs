//! SIGKILL while an answer is written and while its prompt cache is written: whatever was
//! acknowledged is there afterwards, whole.
//!
//! A victim process works on a data folder and prints what has happened (see `crash_victim.rs`). It
//! is killed at an event, never at a time: when it has printed a certain line, or when a certain
//! row or file has appeared. A fixed sequence of pseudo-random numbers chooses the event. All kills
//! of a test share one data folder, so that each one meets the state that the earlier ones left
//! behind. The tests in `steps.rs` kill at each single system call of writing instead.
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

use cairn_app::wire::{self, Event, Message, MessageStatus, Reply};
use cairn_app::{App, CacheVariables, DataFolder, Options};
use cairn_prompt_cache::{ChunkFile, ChunkKey, ChunkRecord};
use cairn_store::Store;
use cairn_sweeps::sweep;
use safetensors::SafeTensors;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

/// How many times a test kills its victim.
const NUM_KILLS: u64 = 12;
/// Longer than anything here takes; only a failing test waits for it.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn an_answer_that_is_killed_loses_nothing_that_was_acknowledged() {
    for seed in sweep("an answer is killed", 1) {
        check_kills_while_answering(seed);
    }
}

fn check_kills_while_answering(seed: u64) {
    let home = TestHome::new();
    let mut random = Random((0x5eed_0001 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut acknowledged = Acknowledged::default();
    let mut conversation = "new".to_owned();
    let mut num_interrupted_with_text = 0;
    for round in 0..NUM_KILLS {
        if round % 4 == 0 {
            conversation = "new".to_owned();
        }
        let victim =
            Victim::start(home.path(), "answer", &conversation, 500, "Tell me about stones.");
        conversation = victim.conversation();
        let turns = acknowledged.turns.entry(conversation.clone()).or_default();
        kill_while_answering(victim, &home, turns, &mut random);

        home.run(async {
            let app = home.open().await;
            assert_eq!(home.integrity().await, "ok", "kill {round}");
            num_interrupted_with_text += acknowledged.check(&app).await;
            let turn = next_turn(&app, &conversation).await.0;
            acknowledged.turns.get_mut(&conversation).unwrap().push(turn);
            app.close().await;
        });
    }
    assert!(
        num_interrupted_with_text >= 2,
        "only {num_interrupted_with_text} answers were interrupted with text"
    );
}

/// Kills a victim at a random event of its answers. Adds what it acknowledged to `turns`.
fn kill_while_answering(
    victim: Victim,
    home: &TestHome,
    turns: &mut Vec<Turn>,
    random: &mut Random,
) {
    let mut listen = || {
        let line = victim.next().expect("the victim prints another line");
        Turn::note(turns, &line);
        line
    };
    match random.below(4) {
        0 => until(&mut listen, |line| matches!(line, Line::Sent { .. })),
        1 => {
            let mut num_deltas = 1 + random.below(12);
            until(&mut listen, |line| {
                num_deltas -= u64::from(matches!(line, Line::Delta(..)));
                num_deltas == 0
            });
        }
        2 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
        _ => until(&mut listen, |line| match line {
            Line::Delta(id, _) => !home.saved_text(id).is_empty(),
            _ => false,
        }),
    }
    // What another process has read in the database must survive the kill.
    let seen = turns.last().map(|turn| (turn.answer_id.clone(), home.saved_text(&turn.answer_id)));
    for line in victim.kill() {
        Turn::note(turns, &line);
    }
    if let (Some((id, text)), Some(turn)) = (seen, turns.last_mut())
        && id == turn.answer_id
    {
        turn.seen_saved = text;
    }
}

#[test]
fn a_kill_while_chunks_are_written_leaves_whole_files_and_true_rows() {
    for seed in sweep("a writer is killed", 1) {
        check_kills_while_writing(seed);
    }
}

fn check_kills_while_writing(seed: u64) {
    let home = TestHome::new();
    let mut random = Random((0x5eed_0002 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut acknowledged = Acknowledged::default();
    let mut known = BTreeSet::new();
    let mut num_without_row = 0;
    for round in 0..NUM_KILLS {
        // Nine chunks or more, all of them new: the conversations differ from their first word on.
        let question = format!("{round}: {}", "granite, basalt, slate and marble; ".repeat(60));
        let event = random.below(4);
        let work = if event == 1 { "rows" } else { "once" };
        let victim = Victim::start(home.path(), work, "new", 16, &question);
        let conversation = victim.conversation();
        let turns = acknowledged.turns.entry(conversation.clone()).or_default();
        let num_new_chunks = 1 + random.below(7) as usize;
        kill_while_writing(victim, &home, turns, event, known.len(), num_new_chunks);

        num_without_row += check_after_kill(
            &home,
            &mut acknowledged,
            &conversation,
            &question,
            &mut known,
            &format!("kill {round}"),
        );
    }
    assert!(num_without_row >= 2, "only {num_without_row} files were found without their row");
}

/// Kills a victim at one of four events after `num_new_chunks` chunks, beyond the `num_known` from
/// before, were written. Adds what it acknowledged to `turns`.
fn kill_while_writing(
    victim: Victim,
    home: &TestHome,
    turns: &mut Vec<Turn>,
    event: u64,
    num_known: usize,
    num_new_chunks: usize,
) {
    let num_wanted = num_known + num_new_chunks;
    let mut listen = || {
        let line = victim.next().expect("the victim prints another line");
        Turn::note(turns, &line);
        line
    };
    match event {
        0 => until(&mut listen, |line| matches!(line, Line::Complete(..))),
        1 => until(&mut listen, |line| matches!(line, Line::Rows(count) if *count >= num_wanted)),
        2 => {
            until(&mut listen, |line| matches!(line, Line::Sent { .. }));
            until(&mut || home.chunk_files(), |files| files.whole.len() >= num_wanted);
        }
        _ => {
            until(&mut listen, |line| matches!(line, Line::Sent { .. }));
            // While a file is being written; if that is never seen, when the last one is whole.
            until(&mut || home.chunk_files(), |files| {
                (files.whole.len() >= num_wanted && !files.temporary.is_empty())
                    || files.whole.len() >= num_known + 9
            });
        }
    }
    for line in victim.kill() {
        Turn::note(turns, &line);
    }
}

/// Checks the state after a kill while chunks were written: files with final names are whole, rows
/// are true, the next start rebuilds the rows of files without one, no conversation lost anything,
/// and the one that asked `question` continues from its stored chunks.
///
/// `known` are the keys of the chunks from before; it is replaced by those of now. Returns how many
/// files had no row.
fn check_after_kill(
    home: &TestHome,
    acknowledged: &mut Acknowledged,
    conversation: &str,
    question: &str,
    known: &mut BTreeSet<ChunkKey>,
    kill: &str,
) -> usize {
    let files = home.chunk_files();
    for file in &files.whole {
        check_name(file);
    }
    home.run(async {
        let rows = check_rows(home, kill).await;
        let num_stored =
            rows.iter().filter(|row| !known.contains(&row.key)).map(ChunkRecord::stop).max().unwrap_or(0);

        let app = home.open().await;
        assert_eq!(home.integrity().await, "ok", "{kill}");
        acknowledged.check(&app).await;
        app.close().await;
        check_every_file_has_a_row(home, kill).await;

        let app = home.open().await;
        let (turn, num_cached) = next_turn(&app, conversation).await;
        acknowledged.turns.get_mut(conversation).unwrap().push(turn);
        // A byte is a token. Only the question's tokens are required: the answer may end within a
        // character, and then encodes differently.
        let expected = num_stored.min(question.len());
        assert!(
            num_cached >= expected,
            "{kill}: {num_cached} tokens were read from the cache, but {expected} are in files with rows"
        );
        app.close().await;

        *known = home.rows().await.into_iter().map(|row| row.key).collect();
        files.temporary.len() + files.whole.len() - rows.len()
    })
}

/// Every row names a file that is there and unchanged, and every reference a chunk that has a row.
async fn check_rows(home: &TestHome, kill: &str) -> Vec<ChunkRecord> {
    let store = Store::open(&home.data_folder().database()).await.unwrap();
    let (rows, refs) = (store.chunks().await.unwrap(), store.cache_refs().await.unwrap());
    store.close().await.unwrap();
    rows.iter().for_each(|row| check_row(home, row));
    for key in refs.iter().filter_map(|cache_ref| cache_ref.target) {
        assert!(
            rows.iter().any(|row| row.key == key),
            "{kill}: a conversation refers to a chunk without a row"
        );
    }
    rows
}

/// After a start at which nothing was asked, files without a row have got it back or are gone.
async fn check_every_file_has_a_row(home: &TestHome, kill: &str) {
    let rows = home.rows().await;
    rows.iter().for_each(|row| check_row(home, row));
    let expected: BTreeSet<PathBuf> = rows.iter().map(|row| home.chunk_file(row)).collect();
    let ChunkFiles { whole, temporary } = home.chunk_files();
    let found: BTreeSet<PathBuf> = whole.union(&temporary).cloned().collect();
    assert_eq!(found, expected, "{kill}: files, and files with rows, after the next start");
}

/// Calls `pull` until `is_wanted` holds for its result. Panics after [`TIMEOUT`].
fn until<T>(pull: &mut impl FnMut() -> T, mut is_wanted: impl FnMut(&T) -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_wanted(&pull()) {
        assert!(Instant::now() < deadline, "the expected event does not come");
    }
}

/// Pseudo-random numbers, the same in every run (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % limit
    }
}

/// A line that the victim prints.
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

/// The victim's process, which is killed when this is dropped.
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
        // A pipe can still be read after the process that wrote to it has died.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Only a line that the kill has cut short does not parse.
                let Some(line) = Line::parse(&line) else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Victim { child, lines }
    }

    fn next(&self) -> Option<Line> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the victim prints nothing"),
        }
    }

    /// The conversation that the victim names in its first line.
    fn conversation(&self) -> String {
        match self.next() {
            Some(Line::Conversation(id)) => id,
            _ => panic!("the victim does not name its conversation"),
        }
    }

    /// Lets a victim begin that waits for a line on stdin.
    fn begin(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    /// Kills the process and returns the lines that it had printed and that were not read yet.
    fn kill(mut self) -> Vec<Line> {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), None, "the victim ended before it was killed");
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the victim acknowledged of a question and its answer.
struct Turn {
    question_id: String,
    question: String,
    answer_id: String,
    /// The texts of all deltas.
    streamed: String,
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
            streamed: String::new(),
            seen_saved: String::new(),
            complete: None,
        }
    }

    fn note(turns: &mut Vec<Turn>, line: &Line) {
        match line {
            Line::Sent { question_id, question, answer_id } => {
                turns.push(Turn::new(question_id.clone(), question.clone(), answer_id.clone()));
            }
            Line::Delta(id, text) => Turn::last(turns, id).streamed.push_str(text),
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

    /// Checks the stored messages; returns whether the answer was interrupted after some text.
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
            // The answer was saved, but the kill came before its line was printed.
            (None, MessageStatus::Complete) => {
                assert!(text.starts_with(&self.streamed), "{text:?} is not {:?}", self.streamed)
            }
            // Text is saved and printed independently, so either may be ahead.
            (None, MessageStatus::Interrupted) => {
                assert!(
                    text.starts_with(&self.streamed) || self.streamed.starts_with(text),
                    "{text:?} is not {:?}",
                    self.streamed
                );
                assert!(text.starts_with(&self.seen_saved), "{text:?} was {:?}", self.seen_saved);
                return !text.is_empty();
            }
            (None, status) => panic!("an answer that was killed is {status:?}"),
        }
        false
    }
}

/// What victims have acknowledged.
#[derive(Default)]
struct Acknowledged {
    /// By conversation.
    turns: BTreeMap<String, Vec<Turn>>,
}

impl Acknowledged {
    /// Checks that the app has everything; returns how many of the newest answers were interrupted
    /// after some text.
    async fn check(&self, app: &Arc<App>) -> usize {
        let mut num_interrupted = 0;
        for (id, turns) in &self.turns {
            let Reply::Conversation { messages, .. } =
                call(app, wire::Command::GetConversation { id: id.clone() }).await
            else {
                panic!("no conversation")
            };
            let messages: BTreeMap<String, Message> =
                messages.into_iter().map(|message| (message.id.clone(), message)).collect();
            assert!(
                messages.values().all(|message| message.status != MessageStatus::Streaming),
                "no answer is being written: {messages:?}"
            );
            let interrupted: Vec<bool> = turns.iter().map(|turn| turn.check(&messages)).collect();
            num_interrupted += usize::from(interrupted.last() == Some(&true));
        }
        num_interrupted
    }
}

/// Asks a short question in this process; returns the turn, and how many tokens of its prompt were
/// read from the cache.
async fn next_turn(app: &Arc<App>, conversation: &str) -> (Turn, usize) {
    call(app, wire::Command::set_for_all("max_tokens", 8)).await;
    let mut events = app.subscribe();
    let send = wire::Command::SendMessage {
        conversation_id: conversation.to_owned(),
        text: "Go on.".to_owned(),
    };
    let Reply::Sent { messages, .. } = call(app, send).await else { panic!("nothing was sent") };
    let [question, answer] = &messages[..] else { panic!("{messages:?}") };
    let ended = loop {
        match tokio::time::timeout(TIMEOUT, events.recv()).await.expect("an event").unwrap() {
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

/// A data folder with a tiny model.
struct TestHome {
    folder: TempDir,
    runtime: tokio::runtime::Runtime,
}

/// The files in the prompt cache.
struct ChunkFiles {
    /// With a final name.
    whole: BTreeSet<PathBuf>,
    /// Being written, or left by a kill.
    temporary: BTreeSet<PathBuf>,
}

impl TestHome {
    fn new() -> TestHome {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("models").join("tiny-chat");
        cairn_tests::copy_tiny_model("llama/tiny-chat", &model).unwrap();
        // Conversations grow with every kill.
        let config = fs::read_to_string(model.join("config.json")).unwrap();
        let with_long_context = config
            .replace(r#""max_position_embeddings": 4096"#, r#""max_position_embeddings": 1000000"#);
        assert_ne!(with_long_context, config);
        fs::write(model.join("config.json"), with_long_context).unwrap();
        TestHome { folder, runtime: tokio::runtime::Runtime::new().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn data_folder(&self) -> DataFolder {
        DataFolder::new(self.path())
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
        // Closed before the next kill: the next program recovers the database only if nobody has it
        // open.
        connection.close().await.unwrap();
        found
    }

    /// The text of an answer in the database at this moment; empty if it has none.
    fn saved_text(&self, message_id: &str) -> String {
        self.run(self.query("select text from messages where id = ?", message_id))
            .unwrap_or_default()
    }

    async fn integrity(&self) -> String {
        self.query("select group_concat(integrity_check, '; ') from pragma_integrity_check where ?1 is not null", "").await.unwrap()
    }

    async fn rows(&self) -> Vec<ChunkRecord> {
        let store = Store::open(&self.data_folder().database()).await.unwrap();
        let rows = store.chunks().await.unwrap();
        store.close().await.unwrap();
        rows
    }

    fn chunk_file(&self, row: &ChunkRecord) -> PathBuf {
        self.data_folder()
            .prompt_cache()
            .join(row.namespace.model.as_str())
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

/// A file with a final name holds a whole chunk, which is the one that the name says.
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

/// The file of a row is there and has the size, hash and number of tokens of the row.
fn check_row(home: &TestHome, row: &ChunkRecord) {
    let path = home.chunk_file(row);
    let bytes =
        fs::read(&path).unwrap_or_else(|error| panic!("a row names {}: {error}", path.display()));
    let hash = blake3::hash(&bytes).to_hex().as_str().into();
    let file = ChunkFile { num_bytes: bytes.len() as u64, hash };
    assert_eq!(row.file.as_ref(), Some(&file), "{}", path.display());
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in tensors.tensors() {
        assert_eq!(tensor.shape()[2], row.num_tokens(), "{} in {}", name, path.display());
    }
}
