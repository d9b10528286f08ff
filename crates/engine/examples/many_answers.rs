//! Measures answers that are asked for at once and begin with the same tokens, as the clients of a
//! server do.
//!
//! ```text
//! cargo run --release -p cairn-engine --example many_answers -- \
//!     MODEL_FOLDER [ANSWERS] [SHARED_TOKENS] [OWN_TOKENS] [ANSWER_TOKENS]
//! ```
//! Prints a JSON line a trial, for four loads: without a prompt cache, with one in memory, with one
//! on disk, and with one on disk where the prompts differ in length by up to a tenth.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_engine::{
    CacheOptions, Engine, EngineOptions, GenerateEvent, GenerateRequest, Generation, PromptInput,
};

const TRIALS: usize = 3;

#[derive(Clone, Copy)]
struct Load {
    num_answers: usize,
    shared_tokens: usize,
    own_tokens: usize,
    answer_tokens: usize,
}

/// Where prompts are cached, and whether their lengths differ.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    is_cached: bool,
    is_on_disk: bool,
    differs: bool,
}

const NO_CACHE: Variant =
    Variant { name: "no cache", is_cached: false, is_on_disk: false, differs: false };
const VARIANTS: [Variant; 4] = [
    NO_CACHE,
    Variant { name: "in memory", is_cached: true, ..NO_CACHE },
    Variant { name: "on disk", is_cached: true, is_on_disk: true, ..NO_CACHE },
    Variant { name: "on disk, lengths differ", is_cached: true, is_on_disk: true, differs: true },
];

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a model folder")?;
    let mut number = |default: usize| match arguments.next() {
        Some(text) => text.parse().context("a number"),
        None => Ok(default),
    };
    let load = Load {
        num_answers: number(32)?,
        shared_tokens: number(400)?,
        own_tokens: number(112)?,
        answer_tokens: number(128)?,
    };
    for variant in VARIANTS {
        measure(Path::new(&folder), load, variant).await?;
    }
    Ok(())
}

async fn measure(model: &Path, load: Load, variant: Variant) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cache = variant.is_on_disk.then(|| CacheOptions {
        folder: folder.path().to_owned(),
        disk_budget_bytes: 64 << 30,
        memory_budget_bytes: 4 << 30,
        chunks: Vec::new(),
        refs: Vec::new(),
        old_folders: Vec::new(),
        cleanup_lock: None,
    });
    let (engine, _changes) = Engine::start(EngineOptions { cache, ..EngineOptions::default() });
    let vocab_size = engine.load("model", model).await?.vocab_size;
    let requests = Requests { load, variant, vocab_size };
    // The first answers allocate.
    together(&engine, (0..2).map(|index| requests.request(0, index)).collect()).await?;
    for trial in 1..=TRIALS {
        let all = (0..load.num_answers).map(|index| requests.request(trial, index)).collect();
        let began = Instant::now();
        let mut first = together(&engine, all).await?;
        let seconds = began.elapsed().as_secs_f64();
        first.sort();
        let at = |share: f64| {
            let index = ((first.len() - 1) as f64 * share) as usize;
            first[index].as_secs_f64() * 1e3
        };
        println!(
            "{{\"prompts\": \"{}\", \"answers\": {}, \"tokens_per_second\": {:.1}, \
             \"first_token_p50_ms\": {:.0}, \"first_token_p95_ms\": {:.0}}}",
            variant.name,
            load.num_answers,
            (load.num_answers * load.answer_tokens) as f64 / seconds,
            at(0.5),
            at(0.95),
        );
    }
    engine.shutdown().await;
    Ok(())
}

struct Requests {
    load: Load,
    variant: Variant,
    vocab_size: usize,
}

impl Requests {
    fn request(&self, trial: usize, index: usize) -> GenerateRequest {
        let Load { shared_tokens, own_tokens, answer_tokens, .. } = self.load;
        let token = |number: usize| (3 + number * 7919 % (self.vocab_size - 3)) as u32;
        let shorter = if self.variant.differs { index * 7 % (own_tokens / 10).max(1) } else { 0 };
        let own = (0..own_tokens - shorter)
            .map(|position| token(100_003 * (1 + trial * 1000 + index) + position * 31));
        GenerateRequest {
            max_tokens: answer_tokens,
            ignore_eos: true,
            use_prompt_cache: self.variant.is_cached,
            ..GenerateRequest::new(PromptInput::Tokens(
                (0..shared_tokens).map(token).chain(own).collect(),
            ))
        }
    }
}

/// Waits for all answers, and returns when each had its first token.
async fn together(engine: &Engine, requests: Vec<GenerateRequest>) -> Result<Vec<Duration>> {
    let began = Instant::now();
    let answers: Vec<Generation> =
        requests.into_iter().map(|request| engine.generate(request)).collect();
    let running: Vec<_> =
        answers.into_iter().map(|answer| tokio::spawn(whole(answer, began))).collect();
    let mut first = Vec::new();
    for answer in running {
        first.push(answer.await??);
    }
    Ok(first)
}

async fn whole(mut answer: Generation, began: Instant) -> Result<Duration> {
    let mut first = None;
    loop {
        match answer.recv().await.context("the engine has ended")? {
            GenerateEvent::Delta { .. } => drop(first.get_or_insert_with(|| began.elapsed())),
            GenerateEvent::Failed(error) => bail!(error),
            GenerateEvent::Finished(_) => return first.context("an answer without a token"),
            GenerateEvent::Prefill { .. } | GenerateEvent::SoFar(_) => {}
        }
    }
}
