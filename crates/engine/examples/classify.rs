//! Times rows behind a shared prefix: with the prefix read once, and with each row read whole.
//!
//! usage: classify MODEL_FOLDER [NUM_ROWS] [ROW_TOKENS] [PREFIX_TOKENS] [BATCH_SIZE]
//!
//! Prints one line of JSON for each way. The token ids are those of a linear congruential generator,
//! so that another program can make the same prompts.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cairn_engine::{
    ClassifyEvent, ClassifyRequest, ClassifyRow, Engine, EngineOptions, PromptInput,
};

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(run())
}

async fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("usage: classify MODEL_FOLDER …")?;
    let mut number = |default: usize| match arguments.next() {
        Some(text) => text.parse().context("a number"),
        None => Ok(default),
    };
    let (num_rows, row_tokens) = (number(100)?, number(30)?);
    let (prefix_tokens, batch_size) = (number(1500)?, number(32)?);
    let (engine, _) = Engine::start(EngineOptions::default());
    let model = engine.load("model", Path::new(&folder)).await?;
    let mut ids = Ids { state: 1, vocab_size: model.vocab_size as u64 };
    let prefix = ids.take(prefix_tokens);
    let rows: Vec<ClassifyRow> = (0..num_rows)
        .map(|_| ClassifyRow {
            prompt: PromptInput::Tokens([prefix.as_slice(), &ids.take(row_tokens)].concat()),
            options: Arc::from([]),
        })
        .collect();
    // The first pass allocates, and compiles a GPU's kernels for so many rows.
    let shared = Some(PromptInput::Tokens(prefix));
    time(&engine, rows[..batch_size.min(num_rows)].to_vec(), shared.clone(), batch_size).await?;
    let (seconds, read) = time(&engine, rows, shared, batch_size).await?;
    println!(
        "{{\"rows\": {num_rows}, \"prefix_s\": {read:.3}, \"rows_s\": {:.3}, \"rows_per_second\": {:.2}, \"peak_memory_gb\": {:.3}}}",
        seconds - read,
        num_rows as f64 / (seconds - read),
        engine.status().borrow().mlx_peak_bytes as f64 / 1e9,
    );
    engine.shutdown().await;
    Ok(())
}

/// How long all rows take, and after what time the prefix was read.
async fn time(
    engine: &Engine,
    rows: Vec<ClassifyRow>,
    prefix: Option<PromptInput>,
    batch_size: usize,
) -> Result<(f64, f64)> {
    let start = Instant::now();
    let mut running =
        engine.classify(ClassifyRequest { prefix, batch_size, ..ClassifyRequest::new(rows) });
    let mut read = 0.0;
    while let Some(event) = running.recv().await {
        match event {
            ClassifyEvent::Prefix { .. } => read = start.elapsed().as_secs_f64(),
            ClassifyEvent::Row { answer, .. } => drop(answer?),
            ClassifyEvent::Finished => {}
            ClassifyEvent::Failed(error) => bail!(error),
        }
    }
    Ok((start.elapsed().as_secs_f64(), read))
}

struct Ids {
    state: u64,
    vocab_size: u64,
}

impl Ids {
    fn take(&mut self, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| {
                self.state = self
                    .state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                3 + ((self.state >> 33) % (self.vocab_size - 3)) as u32
            })
            .collect()
    }
}
