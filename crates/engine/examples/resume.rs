//! Measures what a stored prompt cache saves: `cargo run --release -p cairn-engine --example resume -- MODEL_FOLDER [HISTORY_TOKENS]`.
//!
//! Prints one JSON object of milliseconds to the first token, the median of several runs each:
//! `cold` computes the whole history; `restored_1` and `restored_24` read it from disk in a fresh engine (as after a restart) and compute
//! 1 or 24 new tokens; `ram_24` computes the same 24 tokens with the keys and values still in memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cairn_engine::{CacheEvent, CacheOptions, ChunkRecord, Engine, EngineOptions, GenerateEvent, GenerateRequest, PromptInput};

const RUNS: usize = 5;
const BUDGET_BYTES: u64 = 8 << 30;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = PathBuf::from(arguments.next().context("usage: resume MODEL_FOLDER [HISTORY_TOKENS]")?);
    let history: u32 = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let tokens = |count: u32| (0..count).map(|index| index * 7919 % 40_000 + 20).collect::<Vec<u32>>();

    let mut cold = Vec::new();
    for _ in 0..3 {
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &model).await?;
        first_token_ms(&engine, tokens(20), 0).await?; // warms up what is only done once
        cold.push(first_token_ms(&engine, tokens(history + 1), 0).await?);
        engine.shutdown().await;
    }

    // One engine files the history and is shut down.
    let (engine, mut events) = start(folder.path(), Vec::new());
    engine.load("model", &model).await?;
    first_token_ms(&engine, tokens(history), 0).await?;
    engine.flush_cache().await;
    engine.shutdown().await;
    let mut records = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let CacheEvent::Filed(record) = event {
            records.push(record);
        }
    }

    let (mut restored_1, mut restored_24, mut ram_24) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        restored_1.push(restored(folder.path(), &records, &model, tokens(history + 1), history).await?);
        restored_24.push(restored(folder.path(), &records, &model, tokens(history + 24), history).await?);
        let (engine, _) = Engine::start(EngineOptions::default());
        engine.load("model", &model).await?;
        first_token_ms(&engine, tokens(history), 0).await?;
        ram_24.push(first_token_ms(&engine, tokens(history + 24), history).await?);
        engine.shutdown().await;
    }
    let (cold, restored_1, restored_24, ram_24) = (median(cold), median(restored_1), median(restored_24), median(ram_24));
    println!(
        "{{\"history_tokens\": {history}, \"cold\": {cold:.1}, \"restored_1\": {restored_1:.1}, \"restored_24\": {restored_24:.1}, \
         \"ram_24\": {ram_24:.1}, \"cold_over_restored_1\": {:.1}, \"restored_24_over_ram_24\": {:.3}}}",
        cold / restored_1,
        restored_24 / ram_24
    );
    Ok(())
}

fn start(folder: &Path, chunks: Vec<ChunkRecord>) -> (Engine, tokio::sync::mpsc::UnboundedReceiver<CacheEvent>) {
    let cache = CacheOptions {
        folder: folder.to_owned(),
        disk_budget_bytes: BUDGET_BYTES,
        memory_budget_bytes: 0,
        chunks,
        anchors: Vec::new(),
        sweep_lock: None,
    };
    Engine::start(EngineOptions { cache: Some(cache), ..EngineOptions::default() })
}

async fn restored(folder: &Path, records: &[ChunkRecord], model: &Path, prompt: Vec<u32>, history: u32) -> Result<f64> {
    // A copy of the index only: what this run files itself is not offered to the next one.
    let (engine, _events) = start(folder, records.to_vec());
    engine.load("model", model).await?;
    let mut warm_up = GenerateRequest::new(PromptInput::Tokens((0..20).collect()));
    warm_up.max_tokens = 1;
    warm_up.use_prompt_cache = false;
    drain(&engine, warm_up).await?;
    let milliseconds = first_token_ms(&engine, prompt, history).await?;
    engine.shutdown().await;
    Ok(milliseconds)
}

/// Milliseconds to the first token; fails unless at least `expected_cached` prompt tokens (less the one that must be run) came from cache.
async fn first_token_ms(engine: &Engine, tokens: Vec<u32>, expected_cached: u32) -> Result<f64> {
    let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
    request.max_tokens = 1;
    request.ignore_eos = true;
    let (milliseconds, num_cached) = drain(engine, request).await?;
    if num_cached + 1 < expected_cached as usize {
        bail!("only {num_cached} tokens came from cache, expected {expected_cached}");
    }
    Ok(milliseconds)
}

async fn drain(engine: &Engine, request: GenerateRequest) -> Result<(f64, usize)> {
    let mut generation = engine.generate(request);
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Finished(finished) => return Ok((finished.stats.time_to_first_token_ms, finished.stats.num_cached_tokens)),
            GenerateEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    bail!("the engine ended without an answer")
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
