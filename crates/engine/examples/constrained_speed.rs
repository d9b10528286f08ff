//! Measures what a JSON schema costs while an answer is written: the same answers with and without
//! one, in turns.
//!
//! ```text
//! cargo run --release -p cairn-engine --example constrained_speed -- <model folder> [answers]
//! ```
//! Prints a JSON line for one answer and, if more are asked for, lines for that many at once: all of
//! them without a schema, half of them with one, and all. The schema's arrays are long enough that no
//! answer ends by itself.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cairn_chat::{AnswerForm, TextForm};
use cairn_engine::{
    Engine, EngineOptions, GenerateEvent, GenerateRequest, Generation, PromptInput,
};
use serde_json::{Value, json};

const PROMPT_TOKENS: usize = 64;
const ANSWER_TOKENS: usize = 256;
const TRIALS: usize = 5;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a model folder")?;
    let num_answers: usize = arguments.next().map_or(Ok(1), |number| number.parse())?;
    let (engine, _) = Engine::start(EngineOptions::default());
    let vocab_size = engine.load("model", Path::new(&folder)).await?.vocab_size;
    let load = Load { engine: &engine, vocab_size };
    // Allocations, kernels and the grammar's vocabulary are not measured.
    load.tokens_per_second(1, 1).await?;
    load.compare(1, 1).await?;
    if num_answers > 1 {
        load.compare(num_answers, num_answers / 2).await?;
        load.compare(num_answers, num_answers).await?;
    }
    engine.shutdown().await;
    Ok(())
}

struct Load<'a> {
    engine: &'a Engine,
    vocab_size: usize,
}

impl Load<'_> {
    /// Prints the medians of trials that take turns, and the median of their ratios.
    async fn compare(&self, num_answers: usize, num_constrained: usize) -> Result<()> {
        let (mut free, mut constrained, mut costs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TRIALS {
            let alone = self.tokens_per_second(num_answers, 0).await?;
            let masked = self.tokens_per_second(num_answers, num_constrained).await?;
            free.push(alone);
            constrained.push(masked);
            costs.push(alone / masked);
        }
        println!(
            "{{\"answers\": {num_answers}, \"with_a_schema\": {num_constrained}, \"free_tps\": {:.1}, \
             \"constrained_tps\": {:.1}, \"a_token_takes\": {:.3}}}",
            median(free),
            median(constrained),
            median(costs)
        );
        Ok(())
    }

    /// The speed of answers that are written at once, from when each has its first token.
    async fn tokens_per_second(&self, num_answers: usize, num_constrained: usize) -> Result<f64> {
        let ask = |index| self.engine.generate(self.request(index, index < num_constrained));
        let mut answers: Vec<Generation> = (0..num_answers).map(ask).collect();
        for answer in &mut answers {
            first_token(answer).await?;
        }
        let began = Instant::now();
        let mut num_tokens = 0;
        for answer in &mut answers {
            num_tokens += rest(answer).await?;
        }
        Ok(num_tokens as f64 / began.elapsed().as_secs_f64())
    }

    fn request(&self, index: usize, is_constrained: bool) -> GenerateRequest {
        let token = |position| (3 + (position + index * 97) * 31 % (self.vocab_size - 3)) as u32;
        let form = AnswerForm { text: TextForm::Json(orders()), calls: Vec::new() };
        GenerateRequest {
            max_tokens: ANSWER_TOKENS,
            ignore_eos: !is_constrained,
            use_prompt_cache: false,
            form: is_constrained.then_some(form),
            ..GenerateRequest::new(PromptInput::Tokens((0..PROMPT_TOKENS).map(token).collect()))
        }
    }
}

async fn first_token(answer: &mut Generation) -> Result<()> {
    loop {
        match answer.recv().await.context("the engine has ended")? {
            GenerateEvent::Delta { .. } => return Ok(()),
            GenerateEvent::Failed(error) => bail!(error),
            GenerateEvent::Finished(_) => bail!("an answer without a token"),
            GenerateEvent::Prefill { .. } | GenerateEvent::SoFar(_) => {}
        }
    }
}

/// How many tokens follow.
async fn rest(answer: &mut Generation) -> Result<usize> {
    let mut num_tokens = 0;
    loop {
        match answer.recv().await.context("the engine has ended")? {
            GenerateEvent::Delta { .. } => num_tokens += 1,
            GenerateEvent::Failed(error) => bail!(error),
            GenerateEvent::Finished(_) => return Ok(num_tokens),
            GenerateEvent::Prefill { .. } | GenerateEvent::SoFar(_) => {}
        }
    }
}

fn orders() -> Value {
    let customer = json!({ "type": "object", "properties": {
        "name": { "type": "string", "maxLength": 40 },
        "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        "email": { "type": ["string", "null"], "maxLength": 40 },
    }, "required": ["name", "age", "email"], "additionalProperties": false });
    let order = json!({ "type": "object", "properties": {
        "id": { "type": "string", "format": "uuid" },
        "date": { "type": "string", "format": "date" },
        "customer": customer,
        "status": { "enum": ["open", "paid", "sent", "returned"] },
        "price": { "type": "number", "minimum": 0, "maximum": 100_000 },
    }, "required": ["id", "date", "customer", "status", "price"], "additionalProperties": false });
    json!({ "type": "array", "minItems": 100, "maxItems": 200, "items": order })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
