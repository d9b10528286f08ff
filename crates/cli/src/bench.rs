//! `cairn bench`: prompt reading and generation on random tokens, measured as mlx_lm.benchmark
//! does.

use std::io::{BufRead, Write};
use std::time::Instant;

use anyhow::{Result, bail};
use cairn_chat::GenerationStats;
use cairn_engine::{EngineOptions, GenerateEvent, GenerateRequest, Generation, PromptInput};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::arguments::Bench;
use crate::output;
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
        json!({"prompt_tps": self.prompt_tps, "generation_tps": self.generation_tps, "peak_memory_gb": self.peak_memory_gb})
    }
}

pub async fn run(arguments: Bench) -> Result<()> {
    let options = EngineOptions {
        completion_batch_size: arguments.batch_size as usize,
        ..EngineOptions::default()
    };
    let session = Session::open_with(&arguments.model, options).await?;
    // The first run pays for what is only done once.
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
        let trial = trial(&session, &arguments).await?;
        if !arguments.json {
            eprintln!(
                "trial {number}: prompt {:.1} tokens/s, generation {:.1} tokens/s",
                trial.prompt_tps, trial.generation_tps
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
        let result = json!({"prompt_tps": prompt_tps, "generation_tps": generation_tps, "peak_memory_gb": peak_memory_gb, "trials": trials});
        output::line(format_args!("{result}"))?;
    } else {
        output::line(format_args!(
            "prompt_tps\t{prompt_tps:.2}\ngeneration_tps\t{generation_tps:.2}\npeak_memory_gb\t{peak_memory_gb:.3}"
        ))?;
    }
    Ok(())
}

/// Answers `batch_size` prompts at once. Generation is measured while all of them are being
/// written.
async fn trial(session: &Session, arguments: &Bench) -> Result<Trial> {
    let began = Instant::now();
    let rows = 0..u64::from(arguments.batch_size);
    let mut running: JoinSet<_> =
        rows.map(|row| follow(session.engine.generate(request(session, arguments, row)))).collect();
    let mut answers = Vec::new();
    while let Some(answer) = running.join_next().await {
        answers.push(answer??);
    }
    let prompt_tokens = f64::from(arguments.prompt_tokens) * f64::from(arguments.batch_size);
    let peak_memory_gb =
        answers.iter().map(|answer| answer.stats.mlx_peak_bytes as f64 / 1e9).fold(0.0, f64::max);
    if let [answer] = answers.as_slice() {
        // The engine's own clock leaves out the way to this program.
        let GenerationStats { prompt_tps, generation_tps, .. } = answer.stats;
        return Ok(Trial { prompt_tps, generation_tps, peak_memory_gb });
    }
    let all_began =
        answers.iter().filter_map(|answer| answer.tokens.first()).max().copied().unwrap_or(began);
    let ended =
        answers.iter().filter_map(|answer| answer.tokens.last()).max().copied().unwrap_or(began);
    let generated =
        answers.iter().flat_map(|answer| &answer.tokens).filter(|&&at| at > all_began).count();
    Ok(Trial {
        prompt_tps: prompt_tokens / (all_began - began).as_secs_f64(),
        generation_tps: generated as f64 / (ended - all_began).as_secs_f64(),
        peak_memory_gb,
    })
}

fn request(session: &Session, arguments: &Bench, row: u64) -> GenerateRequest {
    // Any tokens do; these are spread over the vocabulary by a fixed rule, so that every run reads
    // the same prompts.
    let vocab_size = session.model.vocab_size as u64;
    let length = u64::from(arguments.prompt_tokens);
    let tokens = (row * length..(row + 1) * length)
        .map(|index| (index * 2_654_435_761 % vocab_size) as u32)
        .collect();
    let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
    request.max_tokens = arguments.generation_tokens as usize;
    request.prefill_step_size = arguments.prefill_step_size as usize;
    request.use_prompt_cache = false;
    request.ignore_eos = true;
    request
}

/// An answer's figures, and when its tokens came.
struct Followed {
    stats: GenerationStats,
    tokens: Vec<Instant>,
}

async fn follow(mut generation: Generation) -> Result<Followed> {
    let mut tokens = Vec::new();
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Delta { .. } => tokens.push(Instant::now()),
            GenerateEvent::Finished(finished) => {
                return Ok(Followed { stats: finished.stats, tokens });
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            GenerateEvent::Prefill { .. } => {}
        }
    }
    bail!("the engine ended without an answer")
}
