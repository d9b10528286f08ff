//! Measures what a reader of a long prompt and a writer lose to each other.
//!
//! ```text
//! cargo run --release -p cairn-engine --example turns -- <model folder> [prompt tokens]
//! ```
//! Prints both speeds alone and together, their ratios, and the writer's longest gap.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_engine::{
    Engine, EngineOptions, GenerateEvent, GenerateRequest, Generation, PromptInput,
};

/// How long the writer runs alone, once before the reader and once after it: the longer its answer,
/// the longer each token takes, and it goes on while the reader reads.
const ALONE: Duration = Duration::from_secs(5);

fn request(num_tokens: usize, max_tokens: usize) -> GenerateRequest {
    let tokens = (0..num_tokens).map(|index| 1000 + (index as u32 * 31) % 5000).collect();
    GenerateRequest {
        max_tokens,
        ignore_eos: true,
        use_prompt_cache: false,
        ..GenerateRequest::new(PromptInput::Tokens(tokens))
    }
}

/// Waits for the first token and returns how long that took.
async fn first_token(generation: &mut Generation) -> Result<Duration> {
    let start = Instant::now();
    loop {
        match generation.recv().await.context("the engine has ended")? {
            GenerateEvent::Delta { .. } => return Ok(start.elapsed()),
            GenerateEvent::Failed(error) => bail!(error),
            _ => {}
        }
    }
}

/// The times of the writer's tokens until `end` is done, and what that returns.
async fn tokens_until<T>(
    writer: &mut Generation,
    end: impl Future<Output = T>,
) -> Result<(Vec<Instant>, T)> {
    let (mut times, mut end) = (vec![Instant::now()], std::pin::pin!(end));
    loop {
        tokio::select! {
            biased;
            event = writer.recv() => match event.context("the engine has ended")? {
                GenerateEvent::Delta { .. } => times.push(Instant::now()),
                GenerateEvent::Failed(error) => bail!(error),
                event => bail!("{event:?} while the writer goes on"),
            },
            result = &mut end => return Ok((times, result)),
        }
    }
}

fn speed(times: &[Instant]) -> f64 {
    let seconds = times.last().map_or(0.0, |last| (*last - times[0]).as_secs_f64());
    (times.len() - 1) as f64 / seconds.max(1e-9)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a model folder")?;
    let num_tokens = arguments.next().map_or(Ok(5000), |number| number.parse())?;
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", Path::new(&folder)).await?;
    // Allocations and kernels of the first run are not measured.
    first_token(&mut engine.generate(request(600, 2))).await?;

    let read_alone = first_token(&mut engine.generate(request(num_tokens, 1))).await?;
    let mut writer = engine.generate(request(8, 1_000_000));
    first_token(&mut writer).await?;
    let (before, ()) = tokens_until(&mut writer, tokio::time::sleep(ALONE)).await?;
    let mut reader = engine.generate(request(num_tokens, 1));
    let (together, read) = tokens_until(&mut writer, first_token(&mut reader)).await?;
    let read_together = read?;
    drop(reader);
    let (after, ()) = tokens_until(&mut writer, tokio::time::sleep(ALONE)).await?;

    let write_alone = 2.0 / (1.0 / speed(&before) + 1.0 / speed(&after));
    let write_together = speed(&together);
    let gaps: Vec<Duration> = together.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let longest = |gaps: &[Duration]| gaps.iter().max().map_or(0.0, Duration::as_secs_f64) * 1e3;
    // The reader joins the writer between the last two tokens before its own first one.
    let (reading_gaps, joining_gaps) = gaps.split_at(gaps.len().saturating_sub(2));
    let reading = read_alone.as_secs_f64() / read_together.as_secs_f64();
    let writing = write_together / write_alone;
    println!("reading alone       {:8.1} tokens/s", num_tokens as f64 / read_alone.as_secs_f64());
    println!(
        "reading together    {:8.1} tokens/s",
        num_tokens as f64 / read_together.as_secs_f64()
    );
    println!("writing alone       {write_alone:8.1} tokens/s");
    println!("writing together    {write_together:8.1} tokens/s");
    println!("relative speeds     {reading:.2} + {writing:.2} = {:.2}", reading + writing);
    println!("longest gap         {:8.0} ms while it is read", longest(reading_gaps));
    println!("                    {:8.0} ms when the reader joins", longest(joining_gaps));
    engine.shutdown().await;
    Ok(())
}
