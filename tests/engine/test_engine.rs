//! Engines with a prompt cache, the rows that their caller stores for it, and tiny real models with
//! chat templates.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_chat::{Message, Role};
use cairn_engine::{
    CacheHandle, CacheOptions, Engine, EngineOptions, GenerateRequest, PromptInput,
};
use cairn_formats::python_json;
use cairn_prompt_cache::{
    CacheChange, CacheRef, ChunkKey, ChunkRecord, LossReason, Owner, RefName,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::client::{Answer, finish};

/// The most bytes on disk and in memory.
#[derive(Debug, Clone, Copy)]
pub struct Budgets {
    pub disk: u64,
    pub memory: u64,
}

/// More than any test stores.
pub const ROOMY: u64 = 1 << 30;
pub const ON_DISK: Budgets = Budgets { disk: ROOMY, memory: 0 };
pub const IN_MEMORY: Budgets = Budgets { disk: 0, memory: ROOMY };
pub const BOTH: Budgets = Budgets { disk: ROOMY, memory: ROOMY };

/// The rows that an app has of the prompt cache between two starts.
#[derive(Debug, Default, Clone)]
pub struct CacheRows {
    pub chunks: BTreeMap<ChunkKey, ChunkRecord>,
    pub refs: BTreeMap<RefName, CacheRef>,
}

impl CacheRows {
    /// The reference of an owner that is not stale.
    pub fn ref_of(&self, owner: &Owner) -> &CacheRef {
        &self.refs[&RefName::from(owner.clone())]
    }

    /// The bytes of all files.
    pub fn num_bytes(&self) -> u64 {
        self.chunks.values().map(ChunkRecord::num_file_bytes).sum()
    }
}

/// The owner of this text.
pub fn owner(text: &str) -> Owner {
    text.parse().expect("an owner")
}

/// An engine that saves conversations for their owners, with the rows of its caller.
pub struct TestEngine {
    pub engine: Engine,
    events: UnboundedReceiver<CacheChange>,
    pub rows: CacheRows,
    /// The most bytes of all rows at any time.
    pub most_bytes: u64,
    /// The reasons of removals, in the order of the changes.
    pub reasons: Vec<LossReason>,
}

impl TestEngine {
    pub async fn start(
        model: &Path,
        folder: &Path,
        budgets: Budgets,
        rows: CacheRows,
    ) -> TestEngine {
        let cache = CacheOptions {
            folder: folder.to_owned(),
            disk_budget_bytes: budgets.disk,
            memory_budget_bytes: budgets.memory,
            chunks: rows.chunks.values().cloned().collect(),
            refs: rows.refs.values().cloned().collect(),
            old_folders: Vec::new(),
            cleanup_lock: Some(tempfile::tempfile().expect("a file")),
        };
        let (engine, events) =
            Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() });
        engine.load("model", model).await.expect("loads");
        TestEngine { engine, events, rows, most_bytes: 0, reasons: Vec::new() }
    }

    pub async fn close(mut self) -> CacheRows {
        self.engine.shutdown().await;
        while let Some(event) = self.events.recv().await {
            self.apply(event);
        }
        self.rows
    }

    /// Waits for the writer and applies all events to the rows.
    pub async fn settle(&mut self) {
        self.engine.flush_cache().await;
        while let Ok(event) = self.events.try_recv() {
            self.apply(event);
        }
    }

    fn apply(&mut self, change: CacheChange) {
        match change {
            CacheChange::Written(record) => {
                let has_parent =
                    record.parent.is_none_or(|parent| self.rows.chunks.contains_key(&parent));
                assert!(has_parent, "a chunk without its beginning");
                self.rows.chunks.insert(record.key, record);
                self.most_bytes = self.most_bytes.max(self.rows.num_bytes());
            }
            CacheChange::Removed { chunks, reason } => {
                chunks.iter().for_each(|record| drop(self.rows.chunks.remove(&record.key)));
                self.reasons.push(reason);
            }
            CacheChange::Used { keys, at_ms } => {
                for key in keys {
                    if let Some(row) = self.rows.chunks.get_mut(&key) {
                        row.last_used_at_ms = at_ms;
                    }
                }
            }
            CacheChange::RefSet(cache_ref) => {
                drop(self.rows.refs.insert(cache_ref.name.clone(), cache_ref))
            }
            CacheChange::RefRemoved(name) => drop(self.rows.refs.remove(&name)),
        }
    }

    pub fn handle(&self) -> &CacheHandle {
        self.engine.cache().expect("prompt caches are stored")
    }

    pub async fn answer(&self, request: GenerateRequest) -> Answer {
        finish(&mut self.engine.generate(request)).await.expect("an answer")
    }

    /// Drops the resident conversations from memory, so that the next turn is restored from chunks.
    pub async fn drop_residents(&self) {
        self.engine.forget_conversations().await;
    }
}

/// An engine with a prompt cache in `folder` and no memory tier, for tests that do not look at the
/// rows.
pub fn engine_with_disk_cache(folder: &Path) -> Engine {
    let cache = CacheOptions {
        folder: folder.to_owned(),
        disk_budget_bytes: ROOMY,
        memory_budget_bytes: 0,
        chunks: Vec::new(),
        refs: Vec::new(),
        old_folders: Vec::new(),
        cleanup_lock: None,
    };
    Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() }).0
}

/// A conversation as an app stores it.
#[derive(Debug, Clone)]
pub struct Talk(pub Vec<Message>);

impl Talk {
    pub fn new(system: &str) -> Talk {
        Talk(vec![message(Role::System, system, None)])
    }

    /// The messages with one more question.
    pub fn asking(&self, words: &str) -> Vec<Message> {
        let mut messages = self.0.clone();
        messages.push(message(Role::User, words, None));
        messages
    }

    /// Adds a question and its answer with their token ids.
    pub fn add(&mut self, words: &str, answer: &Answer) {
        self.0.push(message(Role::User, words, Some(answer.finished.new_prompt_ids.clone())));
        self.0.push(message(
            Role::Assistant,
            &answer.text,
            Some(answer.finished.token_ids.clone()),
        ));
    }
}

fn message(role: Role, content: &str, token_ids: Option<Vec<u32>>) -> Message {
    Message { role, content: content.to_owned(), token_ids }
}

/// The token limit of answers to [`ask`].
const MAX_TOKENS: usize = 8;

/// A greedy answer of a few tokens for an owner.
pub fn ask(messages: Vec<Message>, owner: &Owner) -> GenerateRequest {
    let prompt = PromptInput::Messages(messages);
    GenerateRequest {
        max_tokens: MAX_TOKENS,
        prefill_step_size: 128,
        owner: Some(owner.clone()),
        ..GenerateRequest::new(prompt)
    }
}

/// The number of tokens in the caches after an answer to [`ask`]: the last token before the limit
/// is sampled and not run.
pub fn num_in_caches(answer: &Answer) -> usize {
    answer.finished.stats.num_prompt_tokens + answer.finished.token_ids.len().min(MAX_TOKENS - 1)
}

/// A temporary folder, in memory where the system has such a file system.
pub fn fresh_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a folder")
}

/// The model `model_type/case` of the goldens with a byte tokenizer and a chat template within its
/// few token ids. Messages must be within them too: the capitals A to O, digits and blanks are in
/// every vocabulary.
pub fn chat_model(case: &str) -> TempDir {
    chat_model_with_window(case, None)
}

/// As [`chat_model`], with another sliding window.
pub fn chat_model_with_window(case: &str, window: Option<usize>) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    cairn_tests::copy_tiny_model(case, folder.path()).expect("copies");
    let file = folder.path().join("config.json");
    let mut config: serde_json::Value =
        python_json(&std::fs::read(&file).expect("config.json")).expect("JSON");
    if let Some(window) = window {
        config["sliding_window"] = json!(window);
        std::fs::write(&file, config.to_string()).expect("config.json");
    }
    // An answer ends with a control character, as a turn does in the template.
    let end = char::from_u32(config["eos_token_id"].as_u64().expect("an id") as u32)
        .expect("a character");
    let turn = format!("{{{{ names[turn['role']] + ':' + turn['content'] + '{end}\\n' }}}}");
    let names = "{%- set names = {'system': '0', 'user': '1', 'assistant': '2'} -%}";
    let template = format!(
        "{names}{{%- for turn in messages -%}}{turn}{{%- endfor -%}}{{%- if add_generation_prompt -%}}2:{{%- endif -%}}"
    );
    let tokenizer =
        json!({ "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), tokenizer.to_string())
        .expect("tokenizer_config.json");
    folder
}

/// Pseudo-random numbers, equal in every run (Steele and Vigna's SplitMix).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
