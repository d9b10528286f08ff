//! Measures `AsyncLm` on what programs that score and sample by themselves do.
//!
//! ```text
//! cargo run --release -p cairn-engine --example async_lm_speed -- <model folder> [batch size]
//! ```
//! Prints a JSON line for each of four workloads: prompts of their own, suffixes of one prefix,
//! particles that go on by one token, and particles that are resampled before each step, each in the
//! second of two rounds. Without a batch size all queries that come together share a batch, as in
//! genlm-backend 0.3.1.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use cairn_engine::{AsyncLm, AsyncLmOptions, Engine, EngineOptions};
use serde_json::json;

/// Random numbers, the same in every run.
struct Draw {
    state: u64,
    vocab_size: usize,
}

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) as usize % limit
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| 3 + self.below(self.vocab_size - 3) as u32).collect()
    }

    /// Each row with one more token, after the rows have been drawn again if they are `resampled`.
    fn next(&mut self, rows: &[Vec<u32>], resampled: bool) -> Vec<Vec<u32>> {
        let next = (0..rows.len()).map(|row| {
            let from = if resampled { self.below(rows.len()) } else { row };
            [rows[from].clone(), self.tokens(1)].concat()
        });
        next.collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    First,
    Counts,
}

fn report(name: &str, num_queries: usize, start: Instant, round: Round) {
    if round == Round::First {
        return;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rounded = |number: f64, digits: i32| {
        let factor = 10f64.powi(digits);
        (number * factor).round() / factor
    };
    let line = json!({
        "workload": name,
        "queries": num_queries,
        "seconds": rounded(seconds, 3),
        "queries_per_second": rounded(num_queries as f64 / seconds, 2),
    });
    println!("{line}");
}

async fn prompts(lm: &AsyncLm, draw: &mut Draw, round: Round) -> Result<()> {
    let prompts: Vec<Vec<u32>> = (0..64).map(|_| draw.tokens(40)).collect();
    let start = Instant::now();
    lm.batch_next_token_logprobs(&prompts).await?;
    report("64 prompts of 40 tokens", 64, start, round);
    Ok(())
}

async fn suffixes(lm: &AsyncLm, draw: &mut Draw, prefix: &[u32], round: Round) -> Result<()> {
    lm.clear_cache().await?;
    lm.cache_kv(prefix).await?;
    let prompts: Vec<Vec<u32>> = (0..64).map(|_| [prefix, &draw.tokens(12)].concat()).collect();
    let start = Instant::now();
    lm.batch_next_token_logprobs(&prompts).await?;
    report("64 suffixes of 12 tokens on a prefix of 300 seen before", 64, start, round);
    Ok(())
}

async fn particles(lm: &AsyncLm, draw: &mut Draw, prefix: &[u32], round: Round) -> Result<()> {
    lm.clear_cache().await?;
    let mut rows: Vec<Vec<u32>> = (0..16).map(|row| [&prefix[..64], &[row + 3]].concat()).collect();
    let start = Instant::now();
    for _ in 0..16 {
        lm.batch_next_token_logprobs(&rows).await?;
        rows = draw.next(&rows, false);
    }
    report("16 particles, 16 steps of one token", 256, start, round);
    rows = draw.next(&rows, true);
    let start = Instant::now();
    for _ in 0..8 {
        lm.batch_next_token_logprobs(&rows).await?;
        rows = draw.next(&rows, true);
    }
    report("16 particles, resampled at each of 8 steps", 128, start, round);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a model folder")?;
    let batch_size = arguments.next().map_or(Ok(64), |size| size.parse())?;
    let (engine, _changes) = Engine::start(EngineOptions::default());
    let vocab_size = engine.load("model", Path::new(&folder)).await?.vocab_size;
    let options = AsyncLmOptions { batch_size, ..AsyncLmOptions::default() };
    let lm = AsyncLm::of_engine(&engine, "model", options);
    // On a GPU each number of rows has kernels of its own, which the first pass compiles.
    for round in [Round::First, Round::Counts] {
        let mut draw = Draw { state: round as u64, vocab_size };
        prompts(&lm, &mut draw, round).await?;
        let prefix = draw.tokens(300);
        suffixes(&lm, &mut draw, &prefix, round).await?;
        particles(&lm, &mut draw, &prefix, round).await?;
        lm.clear_cache().await?;
    }
    eprintln!("{:?}", lm.counts().await?);
    engine.shutdown().await;
    Ok(())
}
