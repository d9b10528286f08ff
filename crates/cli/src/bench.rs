//! `cairn bench`: prompt reading and generation on random tokens, measured as mlx_lm.benchmark does.

use std::io::{BufRead, Write};

use anyhow::{Result, bail};
use cairn_engine::{GenerateEvent, GenerateRequest, PromptInput};
use serde_json::{Value, json};

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
    let session = Session::open(&arguments.model).await?;
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
            eprintln!("trial {number}: prompt {:.1} tokens/s, generation {:.1} tokens/s", trial.prompt_tps, trial.generation_tps);
        }
        trials.push(trial);
    }
    session.engine.shutdown().await;
    let mean = |figure: fn(&Trial) -> f64| trials.iter().map(figure).sum::<f64>() / trials.len() as f64;
    let (prompt_tps, generation_tps) = (mean(|trial| trial.prompt_tps), mean(|trial| trial.generation_tps));
    let peak_memory_gb = trials.iter().map(|trial| trial.peak_memory_gb).fold(0.0, f64::max);
    if arguments.json {
        let trials: Vec<Value> = trials.into_iter().map(Trial::json).collect();
        let result =
            json!({"prompt_tps": prompt_tps, "generation_tps": generation_tps, "peak_memory_gb": peak_memory_gb, "trials": trials});
        output::line(format_args!("{result}"))?;
    } else {
        output::line(format_args!(
            "prompt_tps\t{prompt_tps:.2}\ngeneration_tps\t{generation_tps:.2}\npeak_memory_gb\t{peak_memory_gb:.3}"
        ))?;
    }
    Ok(())
}

async fn trial(session: &Session, arguments: &Bench) -> Result<Trial> {
    // Any tokens do; these are spread over the vocabulary by a fixed rule, so that every run reads the same prompt.
    let vocab_size = session.model.vocab_size as u64;
    let tokens = (0..u64::from(arguments.prompt_tokens)).map(|index| (index * 2_654_435_761 % vocab_size) as u32).collect();
    let mut request = GenerateRequest::new(PromptInput::Tokens(tokens));
    request.max_tokens = arguments.generation_tokens as usize;
    request.prefill_step_size = arguments.prefill_step_size as usize;
    request.use_prompt_cache = false;
    request.ignore_eos = true;
    let mut generation = session.engine.generate(request);
    while let Some(event) = generation.recv().await {
        match event {
            GenerateEvent::Finished(finished) => {
                return Ok(Trial {
                    prompt_tps: finished.stats.prompt_tps,
                    generation_tps: finished.stats.generation_tps,
                    peak_memory_gb: finished.stats.mlx_peak_bytes as f64 / 1e9,
                });
            }
            GenerateEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    bail!("the engine ended without an answer")
}
