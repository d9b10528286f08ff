//! Measures how fast several long prompts are read and answered under different rules for what comes
//! first, reading or writing.
//!
//! ```text
//! cargo run --release -p cairn-engine --example scheduling -- <model folder> [requests] [prompt tokens]
//!     [answer tokens] [rounds]
//! ```
//! Every rule gets the same requests, once all of them together and once each when the one before it
//! has written its first token, and the rules take turns. It prints two tables of medians:
//!
//! - all: the answers' tokens over the time from the first request to the last token;
//! - writing: the same from the first token of any answer on, which is what mlx-lm's users call
//!   aggregate decode;
//! - slowest: the tokens a second of the slowest answer, from its own first to its last token;
//! - longest gap between two tokens of one answer.
//!
//! mlx-lm's rules run on the batch generator itself, without the engine's thread, text and events:
//!
//! - `0.30.4`: whole prompts, as many as `prefill_batch_size` at once and only where so many
//!   places are free; writing stands still meanwhile. With its default sizes, 32 and 8.
//! - `0.30.4, one batch`: the same where no more answers than the requests may be written at once:
//!   whoever comes later waits until all before it are done.
//! - `0.32`: a token of each answer, then a step of up to 2,048 tokens of each prompt.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_engine::{Engine, EngineOptions, GenerateEvent, GenerateRequest, PromptInput};
use cairn_lm::batch::{BatchGenerator, BatchOptions, BatchRequest, BatchStep, RequestId};
use cairn_lm::models::Model;
use cairn_lm::{LoadOptions, memory};
use tokio::sync::mpsc;

const DEFAULT_ROUNDS: usize = 3;

/// What is asked, of every rule alike.
#[derive(Debug, Clone, Copy)]
struct Load {
    num_requests: usize,
    prompt_tokens: usize,
    answer_tokens: usize,
    arrival: Arrival,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arrival {
    Together,
    /// Each request comes when the one before it has written its first token.
    OneByOne,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    MlxLm0304 { completion_batch_size: usize, prefill_batch_size: usize },
    MlxLm032,
    PreferPrefill,
    Adaptive,
}

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Rule::MlxLm0304 { completion_batch_size: 32, .. } => "0.30.4",
            Rule::MlxLm0304 { .. } => "0.30.4, one batch",
            Rule::MlxLm032 => "0.32",
            Rule::PreferPrefill => "prefer_prefill_when_pending",
            Rule::Adaptive => "adaptive",
        }
    }
}

/// When each token of each answer came.
#[derive(Debug)]
struct Times {
    began: Instant,
    answers: Vec<Vec<Instant>>,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    all: f64,
    writing: f64,
    slowest: f64,
    gap_ms: f64,
    first_ms: f64,
}

impl Times {
    fn figures(&self) -> Figures {
        let tokens = || self.answers.iter().flatten().copied();
        let (first, last) = (tokens().min(), tokens().max());
        let (first, last) = (first.unwrap_or(self.began), last.unwrap_or(self.began));
        let num_tokens = tokens().count() as f64;
        let per_second = |num: f64, time: Duration| num / time.as_secs_f64().max(1e-9);
        let speed = |answer: &Vec<Instant>| match answer[..] {
            [first, .., last] => per_second(answer.len() as f64 - 1.0, last - first),
            _ => f64::INFINITY,
        };
        let gaps = self.answers.iter().flat_map(|answer| answer.windows(2));
        let gap = gaps.map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        Figures {
            all: per_second(num_tokens, last - self.began),
            writing: per_second(num_tokens, last - first),
            slowest: self.answers.iter().map(speed).fold(f64::INFINITY, f64::min),
            gap_ms: gap.as_secs_f64() * 1e3,
            first_ms: (first - self.began).as_secs_f64() * 1e3,
        }
    }
}

/// Prompts of different tokens, so that nothing can be shared.
fn prompt(index: usize, num_tokens: usize, vocab_size: usize) -> Vec<u32> {
    let token = |at: usize| (at * 31 + index * 977 + 7) % vocab_size.saturating_sub(1).max(1);
    (0..num_tokens).map(|at| token(at) as u32).collect()
}

/// Runs one of mlx-lm's rules on the batch generator.
fn run_on_generator(model: &Model, load: Load, rule: Rule) -> Result<Times> {
    let mut queue: VecDeque<usize> = VecDeque::new();
    let mut times = Times { began: Instant::now(), answers: vec![Vec::new(); load.num_requests] };
    let (gate, options) = match rule {
        Rule::MlxLm0304 { completion_batch_size, prefill_batch_size } => (
            Some((completion_batch_size, prefill_batch_size)),
            BatchOptions {
                completion_batch_size,
                prefill_batch_size,
                prefer_prefill_when_pending: true,
                ..BatchOptions::default()
            },
        ),
        _ => (None, BatchOptions::default()),
    };
    let mut generator = BatchGenerator::new(model.clone(), options);
    let mut ids: Vec<RequestId> = Vec::new();
    let mut order: Vec<usize> = Vec::new();
    let mut num_arrived = 0;
    let mut note = |step: BatchStep, ids: &[RequestId], order: &[usize]| -> Result<usize> {
        let now = Instant::now();
        if let Some((_, error)) = step.failed.into_iter().next() {
            bail!(error);
        }
        for token in step.tokens {
            let at = ids.iter().position(|&id| id == token.id).context("an unknown request")?;
            times.answers[order[at]].push(now);
        }
        Ok(times.answers.iter().filter(|answer| !answer.is_empty()).count())
    };
    let mut num_begun = 0;
    loop {
        let due = match load.arrival {
            Arrival::Together => load.num_requests,
            Arrival::OneByOne => (num_begun + 1).min(load.num_requests),
        };
        while num_arrived < due {
            queue.push_back(num_arrived);
            num_arrived += 1;
        }
        let places = match gate {
            // Only where a whole group has room.
            Some((most, group)) if most - generator.num_decoding() >= group => group,
            Some(_) => 0,
            None => queue.len(),
        };
        for index in queue.drain(..places.min(queue.len())) {
            let prompt = prompt(index, load.prompt_tokens, model.vocab_size());
            ids.push(generator.insert(BatchRequest::new(prompt, load.answer_tokens))?);
            order.push(index);
        }
        if !generator.has_work() {
            break;
        }
        num_begun = note(generator.next()?, &ids, &order)?;
    }
    generator.close();
    Ok(times)
}

/// Runs one of the engine's rules.
async fn run_on_engine(engine: &Engine, vocab_size: usize, load: Load) -> Result<Times> {
    let request = |index: usize| GenerateRequest {
        max_tokens: load.answer_tokens,
        ignore_eos: true,
        use_prompt_cache: false,
        ..GenerateRequest::new(PromptInput::Tokens(prompt(index, load.prompt_tokens, vocab_size)))
    };
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let start = |index: usize| {
        let (mut generation, sender) = (engine.generate(request(index)), sender.clone());
        tokio::spawn(async move {
            while let Some(event) = generation.recv().await {
                let is_over =
                    matches!(event, GenerateEvent::Finished { .. } | GenerateEvent::Failed(_));
                if sender.send((index, event, Instant::now())).is_err() || is_over {
                    break;
                }
            }
        });
    };
    let mut times = Times { began: Instant::now(), answers: vec![Vec::new(); load.num_requests] };
    let (mut num_started, mut num_over) = (0, 0);
    let at_once = match load.arrival {
        Arrival::Together => load.num_requests,
        Arrival::OneByOne => 1,
    };
    while num_started < at_once {
        start(num_started);
        num_started += 1;
    }
    while num_over < load.num_requests {
        let (index, event, at) = receiver.recv().await.context("the engine has ended")?;
        match event {
            GenerateEvent::Delta { .. } => {
                times.answers[index].push(at);
                if index + 1 == num_started && num_started < load.num_requests {
                    start(num_started);
                    num_started += 1;
                }
            }
            GenerateEvent::Failed(error) => bail!(error),
            GenerateEvent::Finished { .. } => num_over += 1,
            _ => {}
        }
    }
    Ok(times)
}

/// Two engines, which differ in the rule alone.
struct Engines {
    prefer: Engine,
    adaptive: Engine,
}

impl Engines {
    async fn start(folder: &Path) -> Result<Self> {
        let start = async |prefer_prefill_when_pending| -> Result<Engine> {
            let (engine, _) = Engine::start(EngineOptions {
                prefer_prefill_when_pending,
                keep_quantized: true,
                ..EngineOptions::default()
            });
            engine.load("model", folder).await?;
            Ok(engine)
        };
        Ok(Engines { prefer: start(true).await?, adaptive: start(false).await? })
    }

    async fn run(&self, model: &Model, load: Load, rule: Rule) -> Result<Figures> {
        memory::clear_cache();
        let times = match rule {
            Rule::PreferPrefill => run_on_engine(&self.prefer, model.vocab_size(), load).await?,
            Rule::Adaptive => run_on_engine(&self.adaptive, model.vocab_size(), load).await?,
            _ => run_on_generator(model, load, rule)?,
        };
        let is_whole = |answer: &Vec<Instant>| answer.len() == load.answer_tokens;
        if !times.answers.iter().all(is_whole) {
            bail!("an answer under {} is not of the length that was asked for", rule.name());
        }
        Ok(times.figures())
    }
}

fn median(figures: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    let mut numbers: Vec<f64> = figures.iter().map(of).collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn print_table(load: Load, rows: &[(Rule, Vec<Figures>)]) {
    let how = match load.arrival {
        Arrival::Together => "all together",
        Arrival::OneByOne => "each when the one before it writes",
    };
    println!(
        "\n{} × {} tokens, {} tokens each, {how}:\n",
        load.num_requests, load.prompt_tokens, load.answer_tokens
    );
    println!(
        "| rule | all, tokens/s | writing, tokens/s | slowest, tokens/s | longest gap, ms | first token, ms |"
    );
    println!("|---|---|---|---|---|---|");
    for (rule, figures) in rows {
        println!(
            "| {} | {:.1} | {:.1} | {:.1} | {:.0} | {:.0} |",
            rule.name(),
            median(figures, |figures| figures.all),
            median(figures, |figures| figures.writing),
            median(figures, |figures| figures.slowest),
            median(figures, |figures| figures.gap_ms),
            median(figures, |figures| figures.first_ms),
        );
    }
    println!("\n| ratio | all | writing | slowest |\n|---|---|---|---|");
    let is_prefer = |&&(rule, _): &&(Rule, _)| rule == Rule::PreferPrefill;
    let is_adaptive = |&&(rule, _): &&(Rule, _)| rule == Rule::Adaptive;
    let (Some(prefer), Some(adaptive)) =
        (rows.iter().find(is_prefer), rows.iter().find(is_adaptive))
    else {
        return;
    };
    // Ratios of each round, so that what else the machine does falls on both sides.
    let ratio = |above: &[Figures], below: &[Figures], of: fn(&Figures) -> f64| {
        let mut ratios: Vec<f64> =
            above.iter().zip(below).map(|(above, below)| of(above) / of(below)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    for (name, above) in [("prefer", &prefer.1), ("adaptive", &adaptive.1)] {
        for (rule, below) in rows.iter().filter(|(rule, _)| rule.name() != above_name(name)) {
            println!(
                "| {name} to {} | {:.2} | {:.2} | {:.2} |",
                rule.name(),
                ratio(above, below, |figures| figures.all),
                ratio(above, below, |figures| figures.writing),
                ratio(above, below, |figures| figures.slowest),
            );
        }
    }
}

/// The rule that a ratio is of.
fn above_name(name: &str) -> &'static str {
    match name {
        "prefer" => Rule::PreferPrefill.name(),
        _ => Rule::Adaptive.name(),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().context("name a model folder")?;
    let mut number = |default: usize| -> Result<usize> {
        Ok(arguments.next().map_or(Ok(default), |number| number.parse())?)
    };
    let load = Load {
        num_requests: number(3)?.max(1),
        prompt_tokens: number(8192)?.max(2),
        answer_tokens: number(256)?.max(2),
        arrival: Arrival::Together,
    };
    let num_rounds = number(DEFAULT_ROUNDS)?.max(1);
    let folder = Path::new(&folder);
    let engines = Engines::start(folder).await?;
    let (model, _) = Model::load(folder, LoadOptions::new().keep_quantized(true))?;
    let rules = [
        Rule::MlxLm0304 { completion_batch_size: 32, prefill_batch_size: 8 },
        Rule::MlxLm0304 {
            completion_batch_size: load.num_requests,
            prefill_batch_size: load.num_requests,
        },
        Rule::MlxLm032,
        Rule::PreferPrefill,
        Rule::Adaptive,
    ];
    for arrival in [Arrival::Together, Arrival::OneByOne] {
        let load = Load { arrival, ..load };
        let mut rows: Vec<(Rule, Vec<Figures>)> =
            rules.iter().map(|&rule| (rule, Vec::new())).collect();
        // The first round is not counted: kernels are built in it and buffers grow.
        for round in 0..=num_rounds {
            for (rule, figures) in &mut rows {
                let found = engines.run(&model, load, *rule).await?;
                if round > 0 {
                    figures.push(found);
                }
            }
        }
        print_table(load, &rows);
    }
    engines.prefer.shutdown().await;
    engines.adaptive.shutdown().await;
    Ok(())
}
