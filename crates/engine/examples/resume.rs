//! Measures what a stored prompt cache saves, and costs:
//! `cargo run --release -p cairn-engine --example resume -- [--parts] [--smaller] MODEL_FOLDER
//! [HISTORY_TOKENS]...`
//!
//! `--smaller` writes coded files. `--parts` prints, to standard error, what each restore took: `read`, `check`
//! and `decode`, summed over the reader threads; `wait` (for them) and `add` (into the caches) of the
//! engine's thread, on a CUDA device until it is asked to; and `total`, until the first pass.
//!
//! Prints one JSON object for each length of history: milliseconds to the first token, medians of
//! several runs.
//! - `cold` computes the history.
//! - `disk_1` and `disk_24` read it from disk in a new engine, as after a restart, and compute 1 or
//!   24 new tokens. `unread_1` is `disk_1` after the system has dropped the files from its page
//!   cache, where GNU dd can have it do so.
//! - `memory_1` continues a conversation that is resident beside another one.
//! - `evicted_1` restores it from disk after it has left memory.
//! - `ram_24` computes 24 tokens on caches that are still materialized.
//! - `read_copy` is the time in which one thread reads those files and copies their bytes once.
//! - `bytes_per_token` is the size on disk, `kv_bytes_per_token` that of the keys and values.
//!
//! Then one object about writing: `writing_over_idle` is the decode speed of an answer while the
//! chunks of another conversation are written, divided by the speed of the same answer alone.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cairn_engine::{
    CacheOptions, Engine, EngineOptions, FileCoding, FinishedGeneration, GenerateEvent,
    GenerateRequest, PromptInput,
};
use cairn_prompt_cache::{CacheChange, ChunkRecord};
use safetensors::tensor::{Dtype, SafeTensors};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing_subscriber::EnvFilter;

const RUNS: usize = 5;
const BUDGET_BYTES: u64 = 64 << 30;
const WRITING_PAIRS: usize = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq("--parts").is_some() {
        let restores = EnvFilter::new("cairn_engine::prompt_cache::restore=debug");
        tracing_subscriber::fmt().with_env_filter(restores).with_writer(std::io::stderr).init();
    }
    let is_smaller = arguments.next_if_eq("--smaller").is_some();
    let coding = if is_smaller { FileCoding::BytePlanes } else { FileCoding::Plain };
    let model = arguments
        .next()
        .context("usage: resume [--parts] [--smaller] MODEL_FOLDER [HISTORY_TOKENS]...")?;
    let model = PathBuf::from(model);
    let mut lengths = arguments.map(|text| Ok(text.parse()?)).collect::<Result<Vec<u32>>>()?;
    if lengths.is_empty() {
        lengths.push(1000);
    }
    for &length in &lengths {
        resume(&model, length, coding).await?;
    }
    decode_while_writing(&model, coding).await
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|index| index * 7919 % 40_000 + 20).collect()
}

async fn resume(model: &Path, history: u32, coding: FileCoding) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (cold, records) = time_cold(model, folder.path(), history, coding).await?;
    let [disk_1, disk_24, unread_1] =
        time_from_disk(model, folder.path(), history, &records).await?;
    let [memory_1, evicted_1, ram_24] =
        time_from_memory(model, folder.path(), history, &records).await?;
    let read_copy =
        (0..RUNS).map(|_| read_and_copy(folder.path(), &records)).collect::<Result<Vec<f64>>>()?;
    let read_copy = median(read_copy);
    let file_bytes: u64 = records.iter().map(ChunkRecord::num_file_bytes).sum();
    let num_tokens: usize = records.iter().map(|record| record.num_tokens()).sum();
    println!(
        "{{\"history_tokens\": {history}, \"cold\": {cold:.1}, \"disk_1\": {disk_1:.1}, \"disk_24\": {disk_24:.1}, \"unread_1\": {unread_1:.1}, \
         \"memory_1\": {memory_1:.1}, \"evicted_1\": {evicted_1:.1}, \"ram_24\": {ram_24:.1}, \"read_copy\": {read_copy:.1}, \"cold_over_disk_1\": {:.1}, \"cold_over_memory_1\": {:.1}, \
         \"disk_24_over_ram_24\": {:.3}, \"bytes_per_token\": {:.0}, \"kv_bytes_per_token\": {}}}",
        cold / disk_1,
        cold / memory_1,
        disk_24 / ram_24,
        file_bytes as f64 / num_tokens as f64,
        kv_bytes_per_token(folder.path(), &records)?,
    );
    Ok(())
}

/// `cold`, and the records of the chunks that the first run wrote to the folder.
async fn time_cold(
    model: &Path,
    folder: &Path,
    history: u32,
    coding: FileCoding,
) -> Result<(f64, Vec<ChunkRecord>)> {
    // A long history takes minutes, and its time varies little.
    let num_runs = if history > 2000 { 1 } else { 3 };
    let (mut cold, mut records) = (Vec::new(), Vec::new());
    for run in 0..num_runs {
        let (engine, mut events) = start((run == 0).then_some(folder), 0, Vec::new());
        set_coding(&engine, coding);
        engine.load("model", model).await?;
        warm_up(&engine).await?;
        cold.push(answer(&engine, tokens(history + 1), 0).await?);
        engine.flush_cache().await;
        engine.shutdown().await;
        records.extend(written(&mut events));
    }
    Ok((median(cold), records))
}

/// `disk_1`, `disk_24` and `unread_1`.
async fn time_from_disk(
    model: &Path,
    folder: &Path,
    history: u32,
    records: &[ChunkRecord],
) -> Result<[f64; 3]> {
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..RUNS {
        for (times, (new, is_cached)) in times.iter_mut().zip([(1, true), (24, true), (1, false)]) {
            let (engine, _events) = start(Some(folder), 0, records.to_vec());
            engine.load("model", model).await?;
            warm_up(&engine).await?;
            if !is_cached {
                drop_from_page_cache(folder, records)?;
            }
            times.push(answer(&engine, tokens(history + new), history).await?);
            engine.shutdown().await;
        }
    }
    Ok(times.map(median))
}

/// `memory_1`, `evicted_1` and `ram_24`.
async fn time_from_memory(
    model: &Path,
    folder: &Path,
    history: u32,
    records: &[ChunkRecord],
) -> Result<[f64; 3]> {
    let mut times = [const { Vec::new() }; 3];
    let (engine, _events) = start(Some(folder), BUDGET_BYTES, records.to_vec());
    engine.load("model", model).await?;
    // Another conversation, of other tokens.
    let mut other = tokens(history + 24);
    other[0] = 7;
    answer(&engine, other.clone(), 0).await?;
    for _ in 0..RUNS {
        answer(&engine, tokens(history + 1), history).await?;
        times[0].push(answer(&engine, other[..history as usize + 1].to_vec(), history).await?);
        engine.forget_conversations().await;
        times[1].push(answer(&engine, other[..history as usize + 1].to_vec(), history).await?);
        answer(&engine, other[..history as usize].to_vec(), 0).await?;
        // Tokens that no run before has computed.
        other[history as usize] += 1;
        times[2].push(answer(&engine, other.clone(), history).await?);
    }
    engine.shutdown().await;
    Ok(times.map(median))
}

/// Decodes alone and while chunks of another conversation are written, in turns.
async fn decode_while_writing(model: &Path, coding: FileCoding) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (engine, _events) = start(Some(folder.path()), 0, Vec::new());
    set_coding(&engine, coding);
    engine.load("model", model).await?;
    warm_up(&engine).await?;
    let mut ratios = Vec::new();
    for pair in 0..WRITING_PAIRS as u32 {
        let mut speeds = [0.0; 2];
        for (speed, writes) in speeds.iter_mut().zip([false, true]) {
            let mut long = tokens(600);
            long[0] = 100 + pair;
            let mut before = GenerateRequest::new(PromptInput::Tokens(long));
            (before.max_tokens, before.use_prompt_cache) = (1, writes);
            drain(&engine, before).await?;
            let mut request = GenerateRequest::new(PromptInput::Tokens(tokens(16)));
            (request.max_tokens, request.ignore_eos, request.use_prompt_cache) = (48, true, false);
            *speed = drain(&engine, request).await?.stats.generation_tps;
            engine.flush_cache().await;
        }
        ratios.push(speeds[1] / speeds[0]);
    }
    engine.shutdown().await;
    println!("{{\"writing_over_idle\": {:.3}}}", median(ratios));
    Ok(())
}

/// Milliseconds to read all files and copy their bytes.
fn read_and_copy(folder: &Path, records: &[ChunkRecord]) -> Result<f64> {
    let start = std::time::Instant::now();
    let mut copies = Vec::new();
    for record in records {
        copies.push(std::hint::black_box(std::fs::read(path(folder, record))?).clone());
    }
    std::hint::black_box(&copies);
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Size of the keys and values of one token, from the header of a chunk file.
fn kv_bytes_per_token(folder: &Path, records: &[ChunkRecord]) -> Result<u64> {
    let record =
        records.iter().max_by_key(|record| record.num_tokens()).context("no chunk was written")?;
    let bytes = std::fs::read(path(folder, record))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes)?;
    let text = metadata.metadata().as_ref().context("a chunk describes itself")?;
    // What coded tensors are stands there; plain ones are named by the header.
    let tensors: Vec<(String, Dtype, Vec<usize>)> = match text.get("tensors") {
        Some(described) => serde_json::from_str(described)?,
        None => metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.dtype, info.shape.clone()))
            .collect(),
    };
    let sizes = tensors
        .iter()
        .map(|(_, dtype, shape)| shape.iter().product::<usize>() * dtype.bitsize() / 8);
    Ok((sizes.sum::<usize>() / record.num_tokens()) as u64)
}

fn path(folder: &Path, record: &ChunkRecord) -> PathBuf {
    folder.join(record.namespace.model.as_str()).join(format!("{}.safetensors", record.key))
}

/// Has the next reader of the files wait for the disk, if GNU dd is here to tell the system so.
fn drop_from_page_cache(folder: &Path, records: &[ChunkRecord]) -> Result<()> {
    for record in records {
        let mut file = OsString::from("of=");
        file.push(path(folder, record));
        let mut dd = Command::new("dd");
        dd.arg(file).args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0"]);
        if !dd.stderr(Stdio::null()).status()?.success() {
            eprintln!("unread_1 is disk_1 here: dd does not drop files from the page cache");
            break;
        }
    }
    Ok(())
}

fn set_coding(engine: &Engine, coding: FileCoding) {
    if let Some(cache) = engine.cache() {
        cache.set_file_coding(coding);
    }
}

fn start(
    folder: Option<&Path>,
    memory_budget_bytes: u64,
    chunks: Vec<ChunkRecord>,
) -> (Engine, UnboundedReceiver<CacheChange>) {
    let cache = folder.map(|folder| CacheOptions {
        folder: folder.to_owned(),
        disk_budget_bytes: BUDGET_BYTES,
        memory_budget_bytes,
        chunks,
        refs: Vec::new(),
        old_folders: Vec::new(),
        cleanup_lock: None,
    });
    Engine::start(EngineOptions { cache, ..EngineOptions::default() })
}

fn written(events: &mut UnboundedReceiver<CacheChange>) -> Vec<ChunkRecord> {
    let mut records = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let CacheChange::Written(record) = event {
            records.push(record);
        }
    }
    records
}

/// Runs a short prompt, so that what happens only once is not measured.
async fn warm_up(engine: &Engine) -> Result<()> {
    let mut request = GenerateRequest::new(PromptInput::Tokens((0..20).collect()));
    (request.max_tokens, request.use_prompt_cache) = (1, false);
    drain(engine, request).await.map(drop)
}

/// Milliseconds to the first token; fails unless at least `expected_cached` prompt tokens (less the
/// one that must be run) came from cache.
async fn answer(engine: &Engine, tokens: Vec<u32>, expected_cached: u32) -> Result<f64> {
    let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
    (request.max_tokens, request.ignore_eos) = (1, true);
    let stats = drain(engine, request).await?.stats;
    if stats.num_cached_tokens + 1 < expected_cached as usize {
        bail!(
            "only {} tokens came from cache, expected {expected_cached}",
            stats.num_cached_tokens
        );
    }
    Ok(stats.time_to_first_token_ms)
}

async fn drain(engine: &Engine, request: GenerateRequest) -> Result<FinishedGeneration> {
    let mut generation = engine.generate(request);
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Finished(finished) => return Ok(*finished),
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
