//! The prompt cache: what is restored and from which tier; no damage to it changes an answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_chat::{Message, Role};
use cairn_engine::{CacheOptions, Engine, EngineOptions, GenerateRequest, PromptInput};
use cairn_prompt_cache::{
    CacheChange, ChunkFile, ChunkKey, ChunkProblem, ChunkRecord, LossReason, Miss, MissReason,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::client::{Answer, finish, request};
use crate::scripted::{Scripted, models, text_ids};

pub(crate) type Rows = BTreeMap<ChunkKey, ChunkRecord>;

pub(crate) const ROOMY: u64 = 1 << 30;

/// An engine with a prompt cache on disk, and the rows of its caller; budget and folder are
/// compared with the rows at every event.
pub(crate) struct App {
    pub(crate) engine: Engine,
    events: UnboundedReceiver<CacheChange>,
    rows: Rows,
    /// The keys of removed chunks in order, with the reason.
    removed: Vec<(ChunkKey, LossReason)>,
    folder: PathBuf,
    budget_bytes: u64,
}

impl App {
    pub(crate) async fn start(model: &Path, folder: &Path, budget_bytes: u64, rows: Rows) -> App {
        let cache = CacheOptions {
            folder: folder.to_owned(),
            disk_budget_bytes: budget_bytes,
            // No memory tier: everything but the conversation that ran last comes from disk.
            memory_budget_bytes: 0,
            chunks: rows.values().cloned().collect(),
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: Some(tempfile::tempfile().expect("a file")),
        };
        let (engine, events) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        engine.load("model", model).await.expect("loads");
        App { engine, events, rows, removed: Vec::new(), folder: folder.to_owned(), budget_bytes }
    }

    /// Waits for the writer, applies all events to the rows and compares them with the folder.
    pub(crate) async fn settle(&mut self) {
        self.engine.flush_cache().await;
        while let Ok(event) = self.events.try_recv() {
            self.apply(event);
        }
        self.check_folder();
        assert_eq!(
            self.engine.status().borrow().cache_disk_bytes,
            self.num_bytes(),
            "the status counts what is stored"
        );
    }

    pub(crate) async fn close(mut self) -> Rows {
        self.engine.shutdown().await;
        while let Some(event) = self.events.recv().await {
            self.apply(event);
        }
        self.check_folder();
        self.rows
    }

    fn apply(&mut self, change: CacheChange) {
        match change {
            CacheChange::Written(record) => {
                assert!(
                    record.parent.is_none_or(|parent| self.rows.contains_key(&parent)),
                    "a chunk without its beginning"
                );
                self.rows.insert(record.key, record);
                // Only a write adds bytes, and the evictions for it are emitted before it.
                assert!(
                    self.num_bytes() <= self.budget_bytes,
                    "{} bytes are stored, {} allowed",
                    self.num_bytes(),
                    self.budget_bytes
                );
            }
            CacheChange::Removed { chunks, reason } => {
                for ChunkRecord { key, .. } in chunks {
                    assert!(
                        self.rows.remove(&key).is_some(),
                        "{key} was removed, but was never written"
                    );
                    self.removed.push((key, reason.clone()));
                }
            }
            CacheChange::Used { keys, at_ms } => {
                for key in keys {
                    // The record of a chunk that is still being written already counts this use.
                    if let Some(row) = self.rows.get_mut(&key) {
                        (row.last_used_at_ms, row.hits) = (at_ms, row.hits + 1);
                    }
                }
            }
            change => panic!("nobody owns these conversations: {change:?}"),
        }
    }

    fn num_bytes(&self) -> u64 {
        self.rows.values().map(ChunkRecord::num_file_bytes).sum()
    }

    /// Checks that the folder contains exactly the files of the rows.
    fn check_folder(&self) {
        let expected: BTreeMap<PathBuf, u64> =
            self.rows.values().map(|row| (file(&self.folder, row), row.num_file_bytes())).collect();
        assert_eq!(files(&self.folder), expected);
        assert!(expected.values().sum::<u64>() <= self.budget_bytes);
    }

    pub(crate) async fn answer(&self, request: GenerateRequest) -> Answer {
        finish(&mut self.engine.generate(request)).await.expect("an answer")
    }

    /// Asks the conversation's next question.
    async fn turn(&self, conversation: &mut Conversation, words: &str) -> Turn {
        let mut messages = conversation.0.clone();
        messages.push(message(Role::User, words, None));
        let ask = |use_prompt_cache| {
            let prompt = PromptInput::Messages(messages.clone());
            GenerateRequest {
                max_tokens: 12,
                prefill_step_size: 64,
                use_prompt_cache,
                ..GenerateRequest::new(prompt)
            }
        };
        let cold = self.answer(ask(false)).await;
        let Answer { text, finished, .. } = self.answer(ask(true)).await;
        assert_eq!(finished.token_ids, cold.finished.token_ids, "an answer from an empty cache");
        assert_eq!((cold.finished.stats.num_cached_tokens, &cold.finished.miss), (0, &None));

        let mut prompt: Vec<u32> = conversation
            .0
            .iter()
            .filter_map(|message| message.token_ids.clone())
            .flatten()
            .collect();
        prompt.extend(&finished.new_prompt_ids);
        assert_eq!(
            prompt.len(),
            finished.stats.num_prompt_tokens,
            "stored ids are used (an answer without words has none that could be)"
        );
        conversation.0.push(message(Role::User, words, Some(finished.new_prompt_ids)));
        conversation.0.push(message(Role::Assistant, &text, Some(finished.token_ids.clone())));
        // The last token under a limit is sampled and not run.
        let num_in_caches = prompt.len() + finished.token_ids.len().min(11);
        let (num_cached, miss) = (finished.stats.num_cached_tokens, finished.miss);
        Turn {
            tokens: prompt.iter().chain(&finished.token_ids).copied().collect(),
            num_prompt: prompt.len(),
            num_in_caches,
            num_cached,
            miss,
        }
    }
}

#[derive(Clone)]
struct Conversation(Vec<Message>);

impl Conversation {
    fn new() -> Self {
        Conversation(vec![message(Role::System, "You answer briefly and always politely.", None)])
    }
}

#[derive(Debug)]
struct Turn {
    /// The prompt and the answer.
    tokens: Vec<u32>,
    num_prompt: usize,
    /// The number of tokens in the caches at the end.
    num_in_caches: usize,
    num_cached: usize,
    miss: Option<Miss>,
}

fn message(role: Role, content: &str, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content: content.to_owned(), token_ids }
}

fn file(folder: &Path, row: &ChunkRecord) -> PathBuf {
    folder.join(row.namespace.model.as_str()).join(format!("{}.safetensors", row.key))
}

/// The files in the folders of a folder, with their lengths.
fn files(folder: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = |folder: &Path| {
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("an entry").path())
    };
    let files = entries(folder).flat_map(|model| entries(&model).collect::<Vec<_>>());
    files.map(|path| (path.clone(), path.metadata().expect("a file").len())).collect()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[tokio::test]
async fn the_second_turn_reuses_the_first_from_memory_or_disk() {
    async fn check(model: &Path, words: &str, restarts: bool) {
        let folder = folder();
        let mut app = App::start(model, folder.path(), ROOMY, Rows::new()).await;
        let mut conversation = Conversation::new();
        let mut before = app.turn(&mut conversation, words).await;
        assert_eq!((before.num_cached, &before.miss), (0, &None));
        for question in ["And then?", "Why?", words] {
            if restarts {
                app = App::start(model, folder.path(), ROOMY, app.close().await).await;
            }
            let turn = app.turn(&mut conversation, question).await;
            assert_eq!(
                (turn.num_cached, &turn.miss),
                (before.num_in_caches, &None),
                "{model:?}, restarts: {restarts}"
            );
            assert_eq!(
                common_prefix(&turn.tokens, &before.tokens),
                before.tokens.len(),
                "stored ids are continued"
            );
            app.settle().await;
            before = turn;
        }
    }
    let (_models, folders) = models();
    for model in folders {
        for restarts in [false, true] {
            check(&model, "Hello!", restarts).await;
            // More than a chunk, and more than the caches' first allocation.
            check(&model, &"several words ".repeat(60), restarts).await;
        }
    }
}

#[tokio::test]
async fn conversations_with_the_same_system_prompt_share_it() {
    let (_models, folders) = models();
    for model in folders {
        let folder = folder();
        let mut app = App::start(&model, folder.path(), ROOMY, Rows::new()).await;
        let first = app.turn(&mut Conversation::new(), "Tell me about stones.").await;
        app.settle().await;
        let num_shared =
            app.rows.values().find(|row| row.start == 0).map_or(0, |row| row.num_tokens());
        // Another conversation runs last.
        app.answer(request(&[7; 40], 3)).await;
        let second = app.turn(&mut Conversation::new(), "And cairns?").await;
        assert_eq!(
            (second.num_cached, second.miss),
            (common_prefix(&first.tokens, &second.tokens), None)
        );
        assert!(num_shared > 0 && second.num_cached >= num_shared);
        app.settle().await;
        let beginnings = app
            .rows
            .values()
            .filter(|row| row.start == 0 && row.tokens.known_ids() == &first.tokens[..num_shared])
            .count();
        assert_eq!(beginnings, 1, "the shared part is stored once");
        app.close().await;
    }
}

#[tokio::test]
async fn an_edited_conversation_is_computed_again_from_the_edit() {
    let (_models, folders) = models();
    for model in folders {
        for restarts in [false, true] {
            let folder = folder();
            let mut app = App::start(&model, folder.path(), ROOMY, Rows::new()).await;
            let mut conversation = Conversation::new();
            app.turn(&mut conversation, "What is a cairn?").await;
            let mut edited = conversation.clone();
            let before = app.turn(&mut conversation, "Who builds them?").await;
            if restarts {
                app = App::start(&model, folder.path(), ROOMY, app.close().await).await;
            }
            let turn = app.turn(&mut edited, "Who loves them?").await;
            assert_eq!(
                (turn.num_cached, &turn.miss),
                (common_prefix(&before.tokens, &turn.tokens), &None),
                "{model:?}, {restarts}"
            );
            assert!(turn.num_cached < turn.num_prompt - 1);
            app.settle().await;
            // Both branches are stored.
            let mut app = App::start(&model, folder.path(), ROOMY, app.close().await).await;
            for (conversation, turn) in [(&mut conversation, &before), (&mut edited, &turn)] {
                assert_eq!(app.turn(conversation, "Thanks.").await.num_cached, turn.num_in_caches);
            }
            app.settle().await;
        }
    }
}

/// Damages the file of a chunk, or its row.
type Damage = fn(&Path, &mut ChunkRecord);

fn flip_a_byte(path: &Path, _: &mut ChunkRecord) {
    let mut bytes = std::fs::read(path).expect("the chunk");
    *bytes.last_mut().expect("a byte") ^= 1;
    std::fs::write(path, bytes).expect("written");
}

fn cut(path: &Path, _: &mut ChunkRecord) {
    let bytes = std::fs::read(path).expect("the chunk");
    std::fs::write(path, &bytes[..bytes.len() / 2]).expect("written");
}

fn empty(path: &Path, _: &mut ChunkRecord) {
    std::fs::write(path, []).expect("written");
}

fn delete(path: &Path, _: &mut ChunkRecord) {
    std::fs::remove_file(path).expect("removed");
}

/// The row's size and hash match the file, but it is no chunk file.
fn replace_by_text(path: &Path, row: &mut ChunkRecord) {
    replace(path, row, b"no tensors at all");
}

/// A file without a tensor of the model's first layer.
fn take_a_tensor(path: &Path, row: &mut ChunkRecord) {
    use mlx_rs::Array;
    let mut tensors = Array::load_safetensors(path).expect("the chunk");
    let keys = tensors.remove("keys.0").expect("keys");
    tensors.insert("keys.1".to_owned(), keys);
    let other = path.with_extension("other.safetensors");
    Array::save_safetensors(&tensors, None, &other).expect("saved");
    let bytes = std::fs::read(&other).expect("read");
    std::fs::remove_file(&other).expect("removed");
    replace(path, row, &bytes);
}

fn replace(path: &Path, row: &mut ChunkRecord, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("written");
    let hash = blake3::hash(bytes).to_hex().as_str().into();
    row.file = Some(ChunkFile { num_bytes: bytes.len() as u64, hash });
}

#[tokio::test]
async fn a_chunk_that_cannot_be_used_is_a_miss_with_its_reason_and_is_stored_again() {
    async fn check(damage: Damage, index: usize, is_expected: impl Fn(&ChunkProblem) -> bool) {
        let ([model, _], _) = models();
        let folder = folder();
        let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
        let mut conversation = Conversation::new();
        app.turn(&mut conversation, "What is a cairn?").await;
        let mut rows = app.close().await;

        let mut keys: Vec<(usize, ChunkKey)> =
            rows.values().map(|row| (row.start, row.key)).collect();
        keys.sort();
        assert_eq!(keys.len(), 3, "system prompt, question, answer");
        let (start, key) = keys[index];
        damage(&file(folder.path(), &rows[&key]), rows.get_mut(&key).expect("a row"));

        let mut app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
        let turn = app.turn(&mut conversation.clone(), "Who builds them?").await;
        let Some(Miss { num_tokens, reason: MissReason::Unusable(problem) }) = turn.miss else {
            panic!("chunk {index}: {turn:?}");
        };
        assert!(is_expected(&problem), "chunk {index}: {problem:?}");
        let what = format!("{problem:?}, chunk {index}");
        assert_eq!((turn.num_cached, num_tokens), (start, turn.num_prompt - start), "{what}");
        app.settle().await;
        let mut removed: Vec<&ChunkKey> = app.removed.iter().map(|(key, _)| key).collect();
        let mut expected: Vec<&ChunkKey> = keys[index..].iter().map(|(_, key)| key).collect();
        removed.sort();
        expected.sort();
        assert_eq!(removed, expected, "the chunk and what continues it");
        let loss = match problem {
            ChunkProblem::Missing => LossReason::FileMissing,
            _ => LossReason::FileDamaged,
        };
        assert!(app.removed.iter().all(|(_, why)| *why == loss), "{what}: {:?}", app.removed);

        let app = App::start(model.folder(), folder.path(), ROOMY, app.close().await).await;
        let again = app.turn(&mut conversation, "Who builds them?").await;
        assert_eq!(
            (again.num_cached, again.miss),
            (again.num_prompt - 1, None),
            "everything is stored again"
        );
        app.close().await;
    }
    fn has_changed(problem: &ChunkProblem) -> bool {
        *problem == ChunkProblem::Damaged(None)
    }
    fn is_missing(problem: &ChunkProblem) -> bool {
        *problem == ChunkProblem::Missing
    }
    fn is_no_chunk(problem: &ChunkProblem) -> bool {
        matches!(problem, ChunkProblem::Damaged(Some(_)))
    }
    fn lacks_keys(problem: &ChunkProblem) -> bool {
        matches!(problem, ChunkProblem::NotRestorable(why) if why.ends_with("it lacks keys.0"))
    }
    type IsExpected = fn(&ChunkProblem) -> bool;
    let damages: [(Damage, IsExpected); 6] = [
        (flip_a_byte, has_changed),
        (cut, has_changed),
        (empty, has_changed),
        (delete, is_missing),
        (replace_by_text, is_no_chunk),
        (take_a_tensor, lacks_keys),
    ];
    for (damage, is_expected) in damages {
        for index in 0..3 {
            check(damage, index, is_expected).await;
        }
    }
}

#[tokio::test]
async fn a_chunk_that_cannot_be_read_for_now_costs_only_its_own_tokens_and_stays() {
    let ([model, _], _) = models();
    let folder = folder();
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    let mut conversation = Conversation::new();
    app.turn(&mut conversation, "What is a cairn?").await;
    let rows = app.close().await;
    let answer = rows.values().max_by_key(|row| row.start).expect("an answer").clone();
    let path = file(folder.path(), &answer);
    let bytes = std::fs::read(&path).expect("the chunk");
    // A link to itself stands for a disk that refuses to read: permissions do not stop root.
    std::fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink(&path, &path).expect("a link");

    let app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
    let turn = app.turn(&mut conversation.clone(), "Who builds them?").await;
    assert_eq!(turn.num_cached, answer.start, "the chunks before it are used");
    let Some(Miss { num_tokens, reason: MissReason::Unusable(problem) }) = turn.miss else {
        panic!("{turn:?}");
    };
    assert_eq!(num_tokens, turn.num_prompt - answer.start);
    assert!(matches!(problem, ChunkProblem::Unreadable(_)), "{problem:?}");

    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&path, bytes).expect("written");
    let app = App::start(model.folder(), folder.path(), ROOMY, app.close().await).await;
    let again = app.turn(&mut conversation, "Who builds them?").await;
    assert_eq!((again.num_cached, again.miss), (again.num_prompt - 1, None));
    app.close().await;
}

#[tokio::test]
async fn an_unusable_chunk_is_removed_with_its_descendants_files() {
    let ([model, _], _) = models();
    let folder = folder();
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.turn(&mut Conversation::new(), "What is a cairn?").await;
    let rows = app.close().await;
    for row in rows.clone().values_mut().filter(|row| row.start > 0) {
        flip_a_byte(&file(folder.path(), row), row);
    }
    // Another question finds the damage in the shared beginning, and does not store the old
    // question and its answer again.
    let mut app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
    app.turn(&mut Conversation::new(), "What is a stone?").await;
    app.settle().await;
    assert_eq!(app.removed.len(), 2, "the old question and its answer");
}

#[tokio::test]
async fn a_damaged_chunk_on_disk_does_not_affect_resident_conversations() {
    let ([model, _], _) = models();
    let folder = folder();
    let mut app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    let mut conversation = Conversation::new();
    let first = app.turn(&mut conversation, "What is a cairn?").await;
    app.settle().await;
    for row in app.rows.clone().values_mut().filter(|row| row.start > 0) {
        flip_a_byte(&file(folder.path(), row), row);
    }
    // A prompt that shares less with the resident conversation than the disk promises.
    app.answer(request(&first.tokens[..first.num_prompt - 2], 1)).await;
    let turn = app.turn(&mut conversation, "Who builds them?").await;
    assert_eq!(turn.num_cached, first.num_prompt - 2);
    let reason = turn.miss.map(|miss| miss.reason);
    assert_eq!(reason, Some(MissReason::Unusable(ChunkProblem::Damaged(None))));
    app.settle().await;
}

#[tokio::test]
async fn a_cache_of_another_model_is_not_used() {
    let folder = folder();
    let (one, other) = (Scripted::new(&text_ids("abcdefg")), Scripted::new(&text_ids("gfedcba")));
    let app = App::start(one.folder(), folder.path(), ROOMY, Rows::new()).await;
    let mut conversation = Conversation::new();
    let first = app.turn(&mut conversation, "What is a cairn?").await;
    app.engine.load("other", other.folder()).await.expect("loads");
    let turn = app.turn(&mut conversation.clone(), "Who builds them?").await;
    let expected = Miss { num_tokens: turn.num_prompt, reason: MissReason::NotStored };
    assert_eq!((turn.num_cached, turn.miss), (0, Some(expected)));
    app.engine.load("one", one.folder()).await.expect("loads");
    assert_eq!(
        app.turn(&mut conversation, "Who builds them?").await.num_cached,
        first.num_in_caches
    );
    app.close().await;
}

#[tokio::test]
async fn the_disk_budget_holds_for_every_size_of_chunk() {
    async fn check(budget_bytes: u64, expects_chunks: bool) {
        let model = Scripted::endless();
        let folder = folder();
        let mut app = App::start(model.folder(), folder.path(), budget_bytes, Rows::new()).await;
        for first in 0..12 {
            app.answer(request(&vec![first; 100 + 70 * first as usize], 5)).await;
            app.settle().await;
        }
        assert_eq!(!app.rows.is_empty(), expects_chunks, "{budget_bytes} bytes");
        // A smaller budget from now on: `settle` compares with the folder.
        for budget_bytes in [budget_bytes / 2, budget_bytes / 3, 0] {
            app.budget_bytes = budget_bytes;
            app.engine.set_cache_budgets(budget_bytes, 0);
            app.settle().await;
        }
        assert!(app.removed.iter().all(|(_, reason)| *reason == LossReason::DiskBudget));
    }
    // A chunk of 256 tokens takes 65,536 bytes and a header.
    for (budget_bytes, expects_chunks) in
        [(0, false), (100, false), (70_000, true), (150_000, true), (500_000, true), (ROOMY, true)]
    {
        check(budget_bytes, expects_chunks).await;
    }
}

#[tokio::test]
async fn a_smaller_budget_at_start_evicts_at_once() {
    let model = Scripted::endless();
    let folder = folder();
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    for first in 1..5 {
        app.answer(request(&[first; 300], 5)).await;
    }
    let rows = app.close().await;
    let half = rows.values().map(ChunkRecord::num_file_bytes).sum::<u64>() / 2;
    let mut app = App::start(model.folder(), folder.path(), half, rows).await;
    app.settle().await;
    assert!(!app.rows.is_empty() && !app.removed.is_empty());
}

#[tokio::test]
async fn the_least_recently_used_conversation_is_evicted_first() {
    let model = Scripted::endless();
    let folder = folder();
    let prompts = [[1; 300], [2; 300], [3; 300]];
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    for prompt in &prompts {
        app.answer(request(prompt, 1)).await;
    }
    let mut rows = app.close().await;
    for row in rows.values_mut() {
        row.last_used_at_ms = i64::from(row.tokens.known_ids()[0]);
    }
    let mut app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
    // A use makes the oldest the newest.
    let answer = app.answer(request(&prompts[0], 1)).await;
    assert_eq!(answer.finished.stats.num_cached_tokens, 299);
    app.settle().await;
    let chunk_of: BTreeMap<ChunkKey, (u32, usize)> =
        app.rows.values().map(|row| (row.key, (row.tokens.known_ids()[0], row.start))).collect();
    app.budget_bytes = 0;
    app.engine.set_cache_budgets(0, 0);
    app.settle().await;
    let order: Vec<_> = app.removed.iter().map(|(key, _)| chunk_of[key]).collect();
    assert_eq!(
        order,
        [(2, 256), (2, 0), (3, 256), (3, 0), (1, 256), (1, 0)],
        "ends before the beginnings they need"
    );
}

#[tokio::test]
async fn rows_are_rebuilt_from_files_at_start() {
    let model = Scripted::endless();
    let folder = folder();
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.answer(request(&[1; 300], 5)).await;
    app.answer(request(&[2; 300], 5)).await;
    let before = app.close().await;
    // As after a crash: the rows of one conversation were not written, and a file was being
    // written.
    let mut rows = before.clone();
    rows.retain(|_, row| row.tokens.known_ids()[0] != 2);
    let fingerprint = rows.values().next().expect("a row").namespace.model.clone();
    let unfinished = folder.path().join(fingerprint.as_str()).join(".writing-x.tmp");
    std::fs::write(&unfinished, "half").expect("written");

    let mut app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
    app.settle().await;
    assert!(!unfinished.exists());
    assert_eq!(app.rows.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for first in [1, 2] {
        let answer = app.answer(request(&[first; 300], 5)).await.finished;
        assert_eq!(answer.stats.num_cached_tokens, 299, "prompt {first}");
    }
    app.settle().await;
}

#[tokio::test]
async fn files_that_are_not_chunks_are_never_touched() {
    let model = Scripted::endless();
    let (folder, elsewhere) = (folder(), folder());
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.answer(request(&[1; 300], 5)).await;
    let rows = app.close().await;
    let row = rows.values().next().expect("a row");
    let own = file(folder.path(), row);
    let models = own.parent().expect("a folder");
    // Files of other programs, some with names of chunks, and symbolic links that lead out of the
    // folder.
    let other_key = "00112233445566778899aabbccddeeff";
    let foreign = [
        folder.path().join("notes.txt"),
        folder.path().join("photos/stray.safetensors"),
        models.join("model.safetensors"),
        models.join("notes.txt"),
        models.join(format!("{other_key}.safetensors")),
        elsewhere.path().join(format!("{other_key}.safetensors")),
        elsewhere.path().join(".writing-x.tmp"),
    ];
    for path in &foreign {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        std::fs::write(path, "mine").expect("written");
    }
    let chunk_elsewhere = elsewhere.path().join(own.file_name().expect("a name"));
    std::fs::copy(&own, &chunk_elsewhere).expect("copied");
    let link_to_folder = folder.path().join("ffeeddccbbaa99887766554433221100");
    let link_to_file = models.join("ffeeddccbbaa99887766554433221100.safetensors");
    std::os::unix::fs::symlink(elsewhere.path(), &link_to_folder).expect("linked");
    std::os::unix::fs::symlink(&chunk_elsewhere, &link_to_file).expect("linked");

    // The database is new: all rows are rebuilt.
    let mut app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.engine.flush_cache().await;
    while let Ok(event) = app.events.try_recv() {
        app.apply(event);
    }
    assert_eq!(app.rows.keys().collect::<Vec<_>>(), rows.keys().collect::<Vec<_>>());
    app.engine.cache().expect("a cache").clear();
    app.engine.flush_cache().await;
    assert!(!own.exists(), "the chunk itself was cleared");
    for path in foreign.iter().chain([&chunk_elsewhere, &link_to_folder, &link_to_file]) {
        assert!(path.symlink_metadata().is_ok(), "{} is gone", path.display());
    }
}

#[tokio::test]
async fn nothing_is_stored_without_a_request_or_a_writable_folder() {
    let model = Scripted::endless();
    let folder = folder();
    let mut app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.answer(GenerateRequest { use_prompt_cache: false, ..request(&[1; 300], 5) }).await;
    app.settle().await;
    assert_eq!(app.rows.len(), 0);

    // A file has the name of the folder.
    let blocked = folder.path().join("blocked");
    std::fs::write(&blocked, "").expect("written");
    let mut app = App::start(model.folder(), &blocked.join("cache"), ROOMY, Rows::new()).await;
    let mut conversation = Conversation::new();
    let first = app.turn(&mut conversation, "What is a cairn?").await;
    let second = app.turn(&mut conversation, "Who builds them?").await;
    assert_eq!(second.num_cached, first.num_in_caches, "memory serves all the same");
    app.settle().await;
    assert_eq!(app.rows.len(), 0);
}

#[tokio::test]
async fn a_failed_request_stores_nothing_and_damages_nothing() {
    let model = Scripted::with(&text_ids("abcdefg"), json!({ "panic_at": 500 }));
    let folder = folder();
    let mut app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    app.answer(request(&[1; 300], 5)).await;
    app.settle().await;
    let rows = app.rows.clone();
    assert!(finish(&mut app.engine.generate(request(&[1; 600], 5))).await.is_err());
    app.settle().await;
    let mut touched = app.rows.clone();
    // It continued from them nevertheless.
    touched.values_mut().for_each(|row| {
        (row.last_used_at_ms, row.hits) = (rows[&row.key].last_used_at_ms, rows[&row.key].hits)
    });
    assert_eq!(touched, rows);
    let answer = app.answer(request(&[1; 300], 5)).await;
    assert_eq!(
        (answer.finished.stats.num_cached_tokens, answer.finished.token_ids),
        (299, model.answer(&[1; 300], 5))
    );
}

#[tokio::test]
async fn the_caches_of_a_cancelled_request_are_stored_too() {
    let model = Scripted::endless();
    let folder = folder();
    let app = App::start(model.folder(), folder.path(), ROOMY, Rows::new()).await;
    let mut generation = app.engine.generate(request(&[1; 300], 5_000_000));
    while !matches!(generation.recv().await, Some(cairn_engine::GenerateEvent::Delta { .. })) {}
    let rows = app.close().await;
    let answer = finish(&mut generation).await.expect("an answer");
    let mut prompt = [vec![1; 300], answer.finished.token_ids].concat();
    let num_computed = prompt.len();
    prompt.extend([5, 6]);
    let app = App::start(model.folder(), folder.path(), ROOMY, rows).await;
    let answer = app.answer(request(&prompt, 3)).await;
    assert_eq!(
        (answer.finished.stats.num_cached_tokens, answer.finished.token_ids),
        (num_computed, model.answer(&prompt, 3))
    );
    app.close().await;
}
