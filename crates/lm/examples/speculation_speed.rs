//! Measures prompt lookup against plain decoding, over how often a proposed token is right.
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS]
//! ```
//!
//! The sampler gives an answer of random tokens, which repeats nothing and has no near ties.
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
    Acceptance, GenerateOptions, Input, LoadOptions, PromptLookup, Sampler, generate_step,
    speculative_generate_step,
};
use mlx_rs::{Array, Dtype};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SHARES: [f64; 5] = [0.0, 0.3, 0.6, 0.8, 1.0];
/// Tokens before a place, as many as the longest match has, and tokens behind it.
const CONTEXT: usize = 8;
const FOLLOWING: usize = 16;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: speculation_speed MODEL [NUM_TOKENS]")?;
    let num_tokens = arguments.next().map_or(Ok(256), |number| number.parse())?;
    let (model, _) = Model::load(Path::new(&folder), LoadOptions { keep_quantized: true })?;
    let vocab_size = model.vocab_size() as u32;
    let mut draw = Draw(1);
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count).map(|_| (draw.next() * f64::from(vocab_size)) as u32).collect()
    };
    let forced = Forced { model, prompt: tokens(512), answer: tokens(num_tokens) };

    println!("| right | look-up | accepted | tokens/s | plain | ratio |");
    println!("|---|---|---|---|---|---|");
    for share in SHARES {
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
