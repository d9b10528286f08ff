//! Random schedules of everything that the engine can be asked for: every sequence answers as it
//! does alone, the memory limit holds, and memory returns to its start. In a process of its own,
//! because MLX's counters cover all threads.

#[path = "engine/client.rs"]
#[allow(dead_code)] // used by the tests of the engine
mod client;
#[path = "engine/scripted.rs"]
#[allow(dead_code)] // used by the tests of the engine
mod scripted;
#[path = "engine/test_engine.rs"]
#[allow(dead_code)] // used by the tests of the engine
mod test_engine;

use std::time::Duration;

use cairn_engine::{
    CacheOptions, Engine, EngineError, EngineOptions, GenerateRequest, Generation, KvCacheOptions,
    KvQuantization, MemoryPressure, PromptInput, Speculation,
};
use cairn_lm::memory;
use cairn_prompt_cache::Owner;
use serde_json::json;

use client::{finish, request};
use scripted::{Scripted, text_ids};
use test_engine::{Random, fresh_folder};

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(120);

/// The position at which one of the models panics.
const PANICS_AT: usize = 120;

/// What each model claims to take, and what all may: two and a half models.
const MODEL_BYTES: u64 = 1 << 30;
const LIMIT_BYTES: u64 = 5 << 29;

/// A request that runs, and what it must answer.
struct Running {
    generation: Generation,
    expected: Vec<u32>,
    panics: bool,
    is_stopped: bool,
}

struct Schedule {
    engine: Engine,
    models: Vec<(String, Scripted)>,
    /// A draft model for each: it says nearly the same.
    drafts: Vec<Scripted>,
    random: Random,
    running: Vec<Running>,
    num_answered: usize,
    /// How many of these continued what was stored or resident.
    num_restored: usize,
}

impl Schedule {
    fn new(seed: u64, folder: &std::path::Path) -> Self {
        let cache = CacheOptions {
            folder: folder.to_owned(),
            disk_budget_bytes: 1 << 30,
            memory_budget_bytes: 1 << 20,
            chunks: Vec::new(),
            refs: Vec::new(),
            old_folders: Vec::new(),
            cleanup_lock: None,
        };
        let (engine, _) = Engine::start(EngineOptions {
            cache: Some(cache),
            memory_limit_bytes: Some(LIMIT_BYTES),
            completion_batch_size: 4,
            prefill_batch_size: 2,
            ..EngineOptions::default()
        });
        let model = |name: &str, script: &str| {
            let fields = json!({
                "declared_weight_bytes": MODEL_BYTES,
                "panic_at": PANICS_AT,
                "max_position_embeddings": 4096,
                "head_errs_every": 3,
            });
            (name.to_owned(), Scripted::with(&text_ids(script), fields))
        };
        let models =
            vec![model("a", "abcdefg hij"), model("b", "klmnopq"), model("c", "rstuvwxyz, ab.")];
        let drafts = ["abcdefg hix", "klmnopx", "rstuvwxyz, ax."].map(|script| {
            let length = json!({ "max_position_embeddings": 4096 });
            Scripted::with(&text_ids(script), length)
        });
        let drafts = drafts.into();
        let (random, running) = (Random::new(seed), Vec::new());
        Schedule { engine, models, drafts, random, running, num_answered: 0, num_restored: 0 }
    }

    /// One random request or change.
    async fn step(&mut self) {
        match self.random.below(24) {
            0..=8 => self.insert(),
            9 | 10 => self.stop(),
            11 | 12 => self.load().await,
            13 => drop(tokio::spawn({
                let engine = self.engine.clone();
                async move { engine.unload().await }
            })),
            14 => {
                let memory = [0, 1 << 16, 1 << 22][self.random.below(3)];
                self.engine.set_cache_budgets([0, 1 << 20, 1 << 30][self.random.below(3)], memory);
            }
            15 => self.restore().await,
            16 => self.evict(),
            17 => self.engine.relieve_memory(match self.random.below(2) {
                0 => MemoryPressure::Warning,
                _ => MemoryPressure::Critical,
            }),
            18 => self.score().await,
            19 | 20 => self.load_draft().await,
            _ => self.end_one().await,
        }
        let models = self.engine.status().borrow().models.clone();
        let bytes: u64 = models.iter().map(|model| model.weight_bytes).sum();
        assert!(bytes <= LIMIT_BYTES, "{models:?}");
    }

    fn insert(&mut self) {
        let random = &mut self.random;
        let (name, model) = &self.models[random.below(self.models.len())];
        let panics = random.below(5) == 0;
        // Few different beginnings, so that the caches of one are found by another.
        let first = random.below(3) as u32;
        let length = if panics { PANICS_AT - random.below(20) } else { 1 + random.below(70) };
        let prompt: Vec<u32> = (0..length as u32).map(|index| (first + index) % 200).collect();
        let max_tokens = if panics { 60 } else { 1 + random.below(40) };
        let mut asked = GenerateRequest {
            model: Some(name.clone()),
            owner: (random.below(2) == 0).then(|| Owner::Conversation(first.to_string())),
            use_prompt_cache: random.below(4) > 0,
            ..request(&prompt, max_tokens)
        };
        asked.kv_cache = match random.below(4) {
            0 => KvCacheOptions { max_size: Some(400), quantization: None, snapkv: None },
            1 => {
                // From a point that is not reached, because the script cannot read quantized ids.
                let quantization = KvQuantization { bits: 8, group_size: 32, start: 5000 };
                KvCacheOptions { max_size: None, quantization: Some(quantization), snapkv: None }
            }
            _ => KvCacheOptions::default(),
        };
        asked.speculation = match random.below(7) {
            0 => Speculation::Auto,
            1 => Speculation::Lookup { num_tokens: 1 + random.below(6) },
            2 => Speculation::Mtp { num_tokens: 1 + random.below(3) },
            3 => Speculation::Draft { num_tokens: 1 + random.below(4) },
            _ => Speculation::Off,
        };
        let expected = model.answer(&prompt, max_tokens);
        let generation = self.engine.generate(asked);
        self.running.push(Running { generation, expected, panics, is_stopped: false });
    }

    /// Conversations leave memory, and one that may be stored continues.
    async fn restore(&mut self) {
        self.engine.forget_conversations().await;
        self.insert();
    }

    /// Stored chunks are removed: those of a conversation, or all.
    fn evict(&mut self) {
        let cache = self.engine.cache().expect("prompt caches are stored");
        match self.random.below(4) {
            0 => cache.clear(),
            owner => cache.purge(&Owner::Conversation((owner - 1).to_string())),
        };
    }

    fn stop(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let index = self.random.below(self.running.len());
        match self.random.below(2) {
            0 => drop(self.running.swap_remove(index)),
            _ => {
                self.running[index].generation.stop();
                self.running[index].is_stopped = true;
            }
        }
    }

    async fn load(&mut self) {
        let (name, model) = &self.models[self.random.below(self.models.len())];
        let load = self.engine.load(name, model.folder());
        if self.random.below(5) == 0 {
            // Cancelled, at once or on its way.
            let _ = tokio::time::timeout(Duration::ZERO, load).await;
            return;
        }
        match tokio::time::timeout(SOON, load).await.expect("is loaded or refused") {
            Ok(info) => assert_eq!(&info.name, name),
            Err(EngineError::DoesNotFit { shortage, .. }) => {
                let in_use = shortage.would_have_to_go;
                assert!(!in_use.is_empty() && !in_use.contains(name));
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The model that was loaded last gets a draft model, or loses it.
    async fn load_draft(&mut self) {
        if self.random.below(4) == 0 {
            return drop(
                tokio::time::timeout(SOON, self.engine.unload_draft()).await.expect("ends"),
            );
        }
        let draft = &self.drafts[self.random.below(self.drafts.len())];
        let load = self.engine.load_draft("draft", draft.folder());
        match tokio::time::timeout(SOON, load).await.expect("is loaded or refused") {
            Ok(()) | Err(EngineError::NoModel | EngineError::DoesNotFit { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn score(&mut self) {
        let tokens = PromptInput::Tokens(vec![7; 1 + self.random.below(PANICS_AT - 1)]);
        let score = tokio::time::timeout(SOON, self.engine.score(tokens, 1)).await.expect("ends");
        assert!(matches!(score, Ok(_) | Err(EngineError::NoModel)), "{score:?}");
    }

    async fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let index = self.random.below(self.running.len());
        let mut running = self.running.swap_remove(index);
        match tokio::time::timeout(SOON, finish(&mut running.generation)).await.expect("ends") {
            Ok(answer) => {
                let found = &answer.finished.token_ids;
                assert!(running.expected.starts_with(found), "{found:?} is another answer");
                let is_whole = found.len() == running.expected.len();
                assert!(is_whole || running.is_stopped, "{found:?} is cut off");
                self.num_answered += 1;
                self.num_restored += usize::from(answer.finished.stats.num_cached_tokens > 0);
            }
            Err(failure) => {
                let is_fault = failure.message.starts_with("the engine hit a bug while");
                let is_absent = failure.message.contains("is not loaded")
                    || failure.message.contains("needs a draft model");
                assert!(is_absent || (is_fault && running.panics), "{failure:?}");
            }
        }
    }
}

async fn run(seed: u64) -> (usize, usize) {
    let folder = fresh_folder();
    let mut schedule = Schedule::new(seed, folder.path());
    for _ in 0..40 {
        schedule.step().await;
    }
    while !schedule.running.is_empty() {
        schedule.end_one().await;
    }
    schedule.engine.shutdown().await;
    (schedule.num_answered, schedule.num_restored)
}

#[tokio::test]
async fn whatever_the_schedule_every_answer_is_that_of_a_lone_run() {
    // What MLX sets up once stays.
    run(0).await;
    let start = memory::active_bytes();
    let (mut num_answered, mut num_restored) = (0, 0);
    // MLX keeps a thread for every engine that was ever started, so thousands of schedules take
    // several processes, each with its own `CAIRN_SEED`.
    for seed in cairn_sweeps::sweep("schedules", 50) {
        let (answered, restored) = run(seed).await;
        (num_answered, num_restored) = (num_answered + answered, num_restored + restored);
        assert_eq!(memory::active_bytes(), start, "memory after the schedule");
    }
    println!("{num_answered} answers, {num_restored} of them continued");
    assert!(num_restored > 0 && num_answered > num_restored);
}
