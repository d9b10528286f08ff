//! `cairn bench`: measures prefill and generation on random tokens, as mlx_lm.benchmark does.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cairn_chat::GenerationStats;
use cairn_engine::{EngineOptions, GenerateEvent, GenerateRequest, Generation, PromptInput};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::download::Questions;
use crate::output::{self, note};
use crate::session::Session;

/// One measurement.
#[derive(Clone, Copy)]
struct Trial {
    prompt_tps: f64,
    generation_tps: f64,
    peak_memory_gb: f64,
}

impl Trial {
    fn json(self) -> Value {
        json!({
            "prompt_tps": self.prompt_tps,
            "generation_tps": self.generation_tps,
            "peak_memory_gb": self.peak_memory_gb,
        })
    }
}

pub async fn run(arguments: Bench) -> Result<()> {
    let options = EngineOptions {
        completion_batch_size: arguments.batch_size as usize,
        ..EngineOptions::default()
    };
    let questions = Questions::unless(arguments.json);
    let session = Session::open_with(&arguments.model, questions, options).await?;
    // The first trial warms up and is not counted.
    trial(&session, &arguments).await?;
    if arguments.interactive {
        output::line(json!({"ready": true}))?;
        for line in std::io::stdin().lock().lines() {
            line?;
            output::line(trial(&session, &arguments).await?.json())?;
            std::io::stdout().flush()?;
        }
        session.engine.shutdown().await;
        return Ok(());
    }
    let mut trials = Vec::new();
    for number in 1..=arguments.num_trials {
        tokio::time::sleep(Duration::from_secs(arguments.delay)).await;
        let trial = trial(&session, &arguments).await?;
        if !arguments.json {
            note!(
                "trial {number}: prompt {:.1} tokens/s, generation {:.1} tokens/s",
                trial.prompt_tps,
                trial.generation_tps
            );
        }
        trials.push(trial);
    }
    session.engine.shutdown().await;
    let mean =
        |figure: fn(&Trial) -> f64| trials.iter().map(figure).sum::<f64>() / trials.len() as f64;
    let (prompt_tps, generation_tps) =
        (mean(|trial| trial.prompt_tps), mean(|trial| trial.generation_tps));
    let peak_memory_gb = trials.iter().map(|trial| trial.peak_memory_gb).fold(0.0, f64::max);
    if arguments.json {
        let trials: Vec<Value> = trials.into_iter().map(Trial::json).collect();
        let mut result = Trial { prompt_tps, generation_tps, peak_memory_gb }.json();
        result["trials"] = trials.into();
        output::line(result)?;
    } else {
        output::line(format_args!(
            "prompt_tps\t{prompt_tps:.2}\ngeneration_tps\t{generation_tps:.2}\n\
             peak_memory_gb\t{peak_memory_gb:.3}"
        ))?;
    }
    Ok(())
}

/// Runs `batch_size` sequences at once. Generation is measured from when all of them have their
/// first token.
async fn trial(session: &Session, arguments: &Bench) -> Result<Trial> {
    let began = Instant::now();
    let rows = 0..u64::from(arguments.batch_size);
    let mut running: JoinSet<_> = rows
        .map(|row| run_to_end(session.engine.generate(request(session, arguments, row))))
        .collect();
    let mut sequences = Vec::new();
    while let Some(sequence) = running.join_next().await {
        sequences.push(sequence??);
    }
    let prompt_tokens = f64::from(arguments.prompt_tokens) * f64::from(arguments.batch_size);
    let peak_memory_gb = sequences
        .iter()
        .map(|sequence| sequence.stats.mlx_peak_bytes as f64 / 1e9)
        .fold(0.0, f64::max);
    if let [sequence] = sequences.as_slice() {
        // The engine measures without the time that events take to arrive here.
        let GenerationStats { prompt_tps, generation_tps, .. } = sequence.stats;
        return Ok(Trial { prompt_tps, generation_tps, peak_memory_gb });
    }
    let first_tokens = sequences.iter().filter_map(|sequence| sequence.token_times.first());
    let last_tokens = sequences.iter().filter_map(|sequence| sequence.token_times.last());
    let all_began = first_tokens.max().copied().unwrap_or(began);
    let ended = last_tokens.max().copied().unwrap_or(began);
    let token_times = sequences.iter().flat_map(|sequence| &sequence.token_times);
    let generated = token_times.filter(|&&time| time > all_began).count();
    Ok(Trial {
        prompt_tps: prompt_tokens / (all_began - began).as_secs_f64(),
        generation_tps: generated as f64 / (ended - all_began).as_secs_f64(),
        peak_memory_gb,
    })
}

fn request(session: &Session, arguments: &Bench, row: u64) -> GenerateRequest {
    // Which tokens does not matter. A fixed rule spreads them over the vocabulary, so that every
    // run has the same prompts.
    let vocab_size = session.model.vocab_size as u64;
    let length = u64::from(arguments.prompt_tokens);
    let tokens = (row * length..(row + 1) * length)
        .map(|index| (index * 2_654_435_761 % vocab_size) as u32)
        .collect();
    let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
    request.max_tokens = arguments.generation_tokens as usize;
    request.prefill_step_size = arguments.prefill.step_size as usize;
    request.use_prompt_cache = false;
    request.ignore_eos = true;
    request
}

/// A finished sequence, and when each of its tokens arrived.
struct TimedSequence {
    stats: GenerationStats,
    token_times: Vec<Instant>,
}

async fn run_to_end(mut generation: Generation) -> Result<TimedSequence> {
    let mut token_times = Vec::new();
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Delta { .. } => token_times.push(Instant::now()),
            GenerateEvent::Finished(finished) => {
                return Ok(TimedSequence { stats: finished.stats, token_times });
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => {}
        }
    }
    bail!("the engine stopped before generation finished")
}
