//! `cairn score`: the log-probability of each token of a text, and of the next token.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use cairn_engine::{Engine, EngineError, PromptInput, Score};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments;
use crate::download::Questions;
use crate::json_lines;
use crate::output::{self, note};
use crate::session::Session;

/// Rows are scored in this many at a time and printed in the order of the input.
const ROWS_AT_A_TIME: usize = 128;

/// Rows that share a pass.
const BATCH_SIZE: usize = 16;

/// About how much text a token stands for, to compare texts with token ids.
const BYTES_PER_TOKEN: usize = 4;

/// One line of an input file. Its fields are named as the flags are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    tokens: Option<Vec<u32>>,
    prompt: Option<String>,
}

impl Line {
    fn parse(line: &str) -> Result<PromptInput> {
        match json_lines::object(line)? {
            Line { tokens: Some(tokens), prompt: None } => {
                ensure!(!tokens.is_empty(), "tokens is empty");
                Ok(PromptInput::Tokens(tokens))
            }
            Line { tokens: None, prompt: Some(text) } => {
                ensure!(!text.is_empty(), "the prompt is empty");
                Ok(PromptInput::Text(text))
            }
            _ => bail!("give one of tokens and prompt"),
        }
    }
}

pub async fn run(arguments: arguments::Score) -> Result<()> {
    let is_of_file = arguments.input.is_some();
    let prompts = match (arguments.tokens, arguments.input) {
        (Some(tokens), _) => vec![PromptInput::Tokens(tokens)],
        // All lines are checked before the model is loaded.
        (None, Some(input)) => json_lines::read(&input, Line::parse)?,
        (None, None) => {
            let text = arguments.prompt.unwrap_or_default();
            vec![PromptInput::Text(output::text_or_stdin(text)?)]
        }
    };
    let session = Session::open(&arguments.model, Questions::unless(arguments.json)).await?;
    let bar = output::bar(prompts.len() as u64, "scoring {wide_bar} {pos}/{len}  {eta} left");
    let mut num_failed = 0;
    for (window, prompts) in prompts.chunks(ROWS_AT_A_TIME).enumerate() {
        let scores = scores(&session.engine, prompts, arguments.top).await;
        for (place, score) in scores.into_iter().enumerate() {
            let index = is_of_file.then_some(window * ROWS_AT_A_TIME + place);
            bar.suspend(|| match (score, index) {
                (Ok(score), _) if arguments.json => output::line(object(&score, index)),
                (Ok(score), _) => print(&score, index),
                (Err(error), None) => Err(error.into()),
                (Err(error), Some(index)) => {
                    num_failed += 1;
                    note!("cairn: row {}: {error}", index + 1);
                    match arguments.json {
                        true => output::line(json!({"index": index, "error": error.to_string()})),
                        false => Ok(()),
                    }
                }
            })?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    session.engine.shutdown().await;
    ensure!(num_failed == 0, "{num_failed} of {} rows failed", prompts.len());
    Ok(())
}

/// Scores prompts, those of similar length together.
async fn scores(
    engine: &Engine,
    prompts: &[PromptInput],
    num_top: usize,
) -> Vec<Result<Score, EngineError>> {
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    order.sort_by_key(|&index| match &prompts[index] {
        PromptInput::Tokens(tokens) => tokens.len(),
        PromptInput::Text(text) => text.len() / BYTES_PER_TOKEN,
        _ => 0,
    });
    let mut scores = BTreeMap::new();
    for batch in order.chunks(BATCH_SIZE) {
        let rows = batch.iter().map(|&index| prompts[index].clone()).collect();
        match engine.score_all(rows, num_top).await {
            Ok(computed) => {
                scores.extend(batch.iter().copied().zip(computed.into_iter().map(Ok)));
            }
            // One of them fails: alone, each gets its own result.
            Err(_) => {
                for &index in batch {
                    scores.insert(index, engine.score(prompts[index].clone(), num_top).await);
                }
            }
        }
    }
    scores.into_values().collect()
}

/// The object that `--json` prints, for a line of a file with its index.
fn object(score: &Score, index: Option<usize>) -> Value {
    let mut object =
        json!({"tokens": score.tokens, "logprobs": score.logprobs, "next": score.next});
    if let Some(index) = index {
        object["index"] = index.into();
    }
    object
}

fn print(score: &Score, index: Option<usize>) -> Result<()> {
    if let Some(index) = index {
        output::line(format_args!("{}index\t{index}", if index > 0 { "\n" } else { "" }))?;
    }
    output::line(format_args!("token\tlogprob"))?;
    for (token, logprob) in score.tokens.iter().zip(&score.logprobs) {
        match logprob {
            Some(logprob) => output::line(format_args!("{token}\t{logprob:.4}"))?,
            None => output::line(format_args!("{token}\t-"))?,
        }
    }
    output::line(format_args!("\nnext\tlogprob"))?;
    for (token, logprob) in &score.next {
        output::line(format_args!("{token}\t{logprob:.4}"))?;
    }
    Ok(())
}
