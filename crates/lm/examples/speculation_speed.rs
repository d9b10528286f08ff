//! Measures prompt lookup against plain decoding, over how often a proposed token is right, and what the
//! choice that measures for itself costs on open text.
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] [--accept 0,0.3,1]
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] --open
//! ```
//!
//! With `--open` the model answers questions greedily, by turns plain and with whatever pays. Otherwise the
//! sampler gives an answer of random tokens, which repeats nothing and has no near ties.
//! What the look-up finds is made from it: for each place the eight tokens before it, and behind them
//! tokens of which each is the answer's with the given probability. So every place has a match, and the
//! share of right ones is forced. Each answer is timed between two plain ones, three times; the figures
//! are the medians.

use std::cell::Cell;
use std::error::Error;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use cairn_lm::models::Model;
use cairn_lm::{
    Acceptance, GenerateOptions, Input, LoadOptions, LoadedModel, OwnDrafter, PromptLookup,
    Sampler, generate_step, speculative_generate_step,
};
use mlx_rs::{Array, Dtype};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHARES: [f64; 5] = [0.0, 0.3, 0.6, 0.8, 1.0];
/// What is asked with `--open`; nothing in it is to be repeated.
const QUESTIONS: [&str; 4] = [
    "Tell me a story about a lighthouse keeper who finds a letter.",
    "Why is the sky blue, and why are sunsets red?",
    "Describe a walk through an old town in the rain.",
    "How does a bill become a law? Explain it to a child.",
];
/// How often each question is answered.
const ROUNDS: usize = 3;
/// Tokens before a place, as many as the longest match has, and tokens behind it.
const CONTEXT: usize = 8;
const FOLLOWING: usize = 16;

fn main() -> Result<()> {
    let Arguments { folder, num_tokens, shares, is_open } = Arguments::read()?;
    if is_open {
        return open_text(&folder, num_tokens);
    }
    let (model, _) = Model::load(Path::new(&folder), LoadOptions { keep_quantized: true })?;
    let vocab_size = model.vocab_size() as u32;
    let mut draw = Draw(1);
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count).map(|_| (draw.next() * f64::from(vocab_size)) as u32).collect()
    };
    let forced = Forced { model, prompt: tokens(512), answer: tokens(num_tokens) };

    println!("| right | look-up | accepted | tokens/s | plain | ratio |");
    println!("|---|---|---|---|---|---|");
    for share in shares {
        let seen = seen(&forced.prompt, &forced.answer, share, vocab_size);
        for lookup in [PromptLookup::Always(5), PromptLookup::WhereItPays] {
            // Kernels are compiled and buffers allocated in the first runs.
            forced.plain()?;
            forced.looked_up(&seen, lookup)?;
            let (mut speeds, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            let mut acceptance = Acceptance::default();
            for _ in 0..3 {
                let before = forced.plain()?;
                let (took, of_run) = forced.looked_up(&seen, lookup)?;
                let beside = (before + forced.plain()?) / 2.0;
                speeds.push(num_tokens as f64 / took);
                plain.push(num_tokens as f64 / beside);
                ratios.push(beside / took);
                acceptance = of_run;
            }
            let Acceptance { num_drafted, num_accepted } = acceptance;
            let name = match lookup {
                PromptLookup::Always(number) => format!("always {number}"),
                PromptLookup::WhereItPays => "where it pays".to_owned(),
            };
            println!(
                "| {share:.1} | {name} | {num_accepted} of {num_drafted} | {:.1} | {:.1} | {:.2} |",
                median(speeds),
                median(plain),
                median(ratios),
            );
        }
    }
    Ok(())
}

struct Arguments {
    folder: String,
    num_tokens: usize,
    shares: Vec<f64>,
    is_open: bool,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut all = std::env::args().skip(1);
        let usage = "usage: speculation_speed MODEL [NUM_TOKENS] [--accept SHARE,... | --open]";
        let folder = all.next().ok_or(usage)?;
        let mut read =
            Arguments { folder, num_tokens: 256, shares: SHARES.to_vec(), is_open: false };
        while let Some(argument) = all.next() {
            match argument.as_str() {
                "--open" => read.is_open = true,
                "--accept" => {
                    let shares = all.next().ok_or(usage)?;
                    let shares = shares.split(',').map(str::parse);
                    read.shares = shares.collect::<std::result::Result<_, _>>()?;
                }
                number => read.num_tokens = number.parse().map_err(|_| usage)?,
            }
        }
        Ok(read)
    }
}

/// Answers each question by turns plainly and with what pays, and prints how much faster the latter is
/// than the plain answers before and behind it.
fn open_text(folder: &str, num_tokens: usize) -> Result<()> {
    let loaded = LoadedModel::load(Path::new(folder), LoadOptions { keep_quantized: true })?;
    println!("| question | proposed | tokens/s | plain | ratio |");
    println!("|---|---|---|---|---|");
    let mut all = Vec::new();
    for (index, question) in QUESTIONS.into_iter().enumerate() {
        let prompt = prompt(&loaded, question)?;
        open_answer(&loaded.model, &prompt, num_tokens, None)?;
        open_answer(&loaded.model, &prompt, num_tokens, Some(OwnDrafter::WhereItPays))?;
        let (mut speeds, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut num_drafted = 0;
        for _ in 0..ROUNDS {
            let (before, _) = open_answer(&loaded.model, &prompt, num_tokens, None)?;
            let drafter = Some(OwnDrafter::WhereItPays);
            let (took, drafted) = open_answer(&loaded.model, &prompt, num_tokens, drafter)?;
            let (behind, _) = open_answer(&loaded.model, &prompt, num_tokens, None)?;
            let beside = (before + behind) / 2.0;
            speeds.push(1.0 / took);
            plain.push(1.0 / beside);
            ratios.push(beside / took);
            num_drafted = drafted;
        }
        all.extend(&ratios);
        println!(
            "| {} | {num_drafted} | {:.1} | {:.1} | {:.3} |",
            index + 1,
            median(speeds),
            median(plain),
            median(ratios),
        );
    }
    println!("median of all: {:.3}", median(all));
    Ok(())
}

fn prompt(loaded: &LoadedModel, question: &str) -> Result<Vec<u32>> {
    let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    Ok(loaded.tokenizer.encode_prompt(&text)?)
}

/// Seconds for each token after the first, and how many tokens were proposed.
fn open_answer(
    model: &Model,
    prompt: &[u32],
    num_tokens: usize,
    drafter: Option<OwnDrafter>,
) -> Result<(f64, usize)> {
    let options = GenerateOptions { max_tokens: num_tokens, ..GenerateOptions::default() };
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let (caches, sampler) = (&mut Vec::new(), Sampler::Greedy);
    let mut num_drafted = 0;
    let took = |next: &mut dyn FnMut() -> Result<bool>| -> Result<f64> {
        next()?;
        let start = Instant::now();
        let mut count = 0;
        while next()? {
            count += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count.max(1)))
    };
    let seconds = match drafter {
        None => {
            let mut stream = generate_step(model, prompt, caches, sampler, options, &mut go_on)?;
            took(&mut || Ok(stream.next_token()?.is_some()))?
        }
        Some(drafter) => {
            let mut stream = speculative_generate_step(
                model, drafter, prompt, caches, sampler, options, &mut go_on,
            )?;
            let seconds = took(&mut || Ok(stream.next_token()?.is_some()))?;
            num_drafted = stream.acceptance().num_drafted;
            seconds
        }
    };
    Ok((seconds, num_drafted))
}

/// A model that answers a prompt with given tokens.
struct Forced {
    model: Model,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Forced {
    fn options(&self) -> GenerateOptions {
        GenerateOptions { max_tokens: self.answer.len(), ..GenerateOptions::default() }
    }

    /// Chooses the tokens of the answer. Behind a pass over one token the next place is known; behind a
    /// pass with proposals it is how many tokens have been returned, which `num_returned` tells.
    fn sampler(&self, num_returned: &Rc<Cell<usize>>) -> Sampler {
        let (answer, num_returned) = (self.answer.clone(), num_returned.clone());
        let mut next = None;
        Sampler::Custom(Box::new(move |logprobs| {
            let place = next.unwrap_or(num_returned.get());
            let rows = logprobs.dim(0) as usize;
            next = (rows == 1).then_some(place + 1);
            let tokens: Vec<u32> = (place..place + rows)
                .map(|place| answer.get(place).copied().unwrap_or(0))
                .collect();
            // The device computes what a real sampler needs.
            let zero = logprobs.max_axis(-1, None)?.multiply(Array::from_f32(0.0))?;
            let tokens = Array::from_slice(&tokens, &[rows as i32]);
            Ok(tokens.add(zero.as_dtype(Dtype::Uint32)?)?)
        }))
    }

    /// The seconds from the first token to the last.
    fn plain(&self) -> Result<f64> {
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let num_returned = Rc::default();
        let (caches, sampler) = (&mut Vec::new(), self.sampler(&num_returned));
        let prompt = &self.prompt;
        let mut stream =
            generate_step(&self.model, prompt, caches, sampler, self.options(), &mut go_on)?;
        self.time(&num_returned, || Ok(stream.next_token()?.map(|sampled| sampled.token)))
    }

    fn looked_up(&self, seen: &[u32], lookup: PromptLookup) -> Result<(f64, Acceptance)> {
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let input = Input { tokens: &self.prompt, embeddings: None, cached_tokens: seen };
        let num_returned = Rc::default();
        let sampler = self.sampler(&num_returned);
        let (caches, options) = (&mut Vec::new(), self.options());
        let mut stream = speculative_generate_step(
            &self.model,
            lookup,
            input,
            caches,
            sampler,
            options,
            &mut go_on,
        )?;
        let next = || Ok(stream.next_token()?.map(|sampled| sampled.token));
        let took = self.time(&num_returned, next)?;
        Ok((took, stream.acceptance()))
    }

    fn time(
        &self,
        num_returned: &Cell<usize>,
        mut next: impl FnMut() -> Result<Option<u32>>,
    ) -> Result<f64> {
        let mut tokens = vec![next()?.ok_or("no token")?];
        num_returned.set(1);
        let start = Instant::now();
        while let Some(token) = next()? {
            tokens.push(token);
            num_returned.set(tokens.len());
        }
        let took = start.elapsed().as_secs_f64();
        if tokens != self.answer {
            return Err("the answer is another one".into());
        }
        Ok(took)
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Numbers from 0 to 1, equal in every run (Knuth's linear congruential generator).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// What is found behind each place: right with a probability of `share`, token by token.
fn seen(prompt: &[u32], answer: &[u32], share: f64, vocab_size: u32) -> Vec<u32> {
    let whole = [prompt, answer].concat();
    let (mut seen, mut draw) = (Vec::new(), Draw(2));
    for place in prompt.len()..whole.len() {
        seen.extend(&whole[place - CONTEXT..place]);
        for &token in whole[place..].iter().take(FOLLOWING) {
            let is_right = draw.next() < share;
            seen.push(if is_right { token } else { (token + 1) % vocab_size });
        }
    }
    seen
}
