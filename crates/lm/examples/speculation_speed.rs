//! Measures prompt lookup against plain decoding, over how often a proposed token is right, and what the
//! choice that measures for itself costs on open text.
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] [--accept 0,0.3,1]
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] --draft [--accept 0,0.3,1]
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] --open
//! $ cargo run --release -p cairn-lm --example speculation_speed -- MODEL [NUM_TOKENS] --rollback
//! ```
//!
//! With `--rollback` it says what part of a pass over one token it takes to remember the caches, and to restore
//! them after a pass over three. With `--open` the model answers questions greedily, by turns plain and with whatever pays. Otherwise the
//! sampler gives an answer of random tokens, which repeats nothing and has no near ties.
//! What the look-up finds is made from it: for each place the eight tokens before it, and behind them
//! tokens of which each is the answer's with the given probability. So every place has a match, and the
//! share of right ones is forced. With `--draft` a draft model of two small layers and random weights reads
//! and draws, and the sampler puts its draws in place of what the model drew, of which the given share is
//! right. Each answer is timed between two plain ones, three times; the figures
//! are the medians.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_lm::{
    Acceptance, Draft, Drafter, GenerateOptions, Input, LoadOptions, LoadedModel, OwnDrafter,
    PromptLookup, Sampler, generate_step, speculative_generate_step,
};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, ops, random};
use nix::sys::resource::{UsageWho, getrusage};

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
/// The least log-probability of a token: below this with the random draft model, above with any real one.
const MARKED: f32 = -500.0;

fn main() -> Result<()> {
    let Arguments { folder, num_tokens, shares, is_open, is_draft, is_rollback } =
        Arguments::read()?;
    if is_open {
        return open_text(&folder, num_tokens);
    }
    let (model, _) = Model::load(Path::new(&folder), LoadOptions::new().keep_quantized(true))?;
    if is_rollback {
        return rollback(&model, num_tokens);
    }
    let vocab_size = model.vocab_size() as u32;
    let mut draw = Draw(1);
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count).map(|_| (draw.next() * f64::from(vocab_size)) as u32).collect()
    };
    let forced =
        Forced { model, prompt: tokens(num_tokens.clamp(32, 512)), answer: tokens(num_tokens) };
    let draft = if is_draft { Some(random_draft(vocab_size)?) } else { None };
    let ways: [Way<'_>; 2] = match &draft {
        Some(draft) => [Way::Draft(draft, None), Way::Draft(draft, Some(2))],
        None => [Way::LookUp(PromptLookup::Always(5)), Way::LookUp(PromptLookup::WhereItPays)],
    };

    println!("| right | proposes | accepted | tokens/s | plain | ratio | of CPU time |");
    println!("|---|---|---|---|---|---|---|");
    // Kernels are compiled and buffers allocated in the first runs.
    forced.plain()?;
    for way in &ways {
        forced.proposed(way, 1.0)?;
    }
    for share in shares {
        for way in &ways {
            let (mut speeds, mut plain) = (Vec::new(), Vec::new());
            let (mut ratios, mut of_cpu) = (Vec::new(), Vec::new());
            let mut acceptance = Acceptance::default();
            for _ in 0..3 {
                let before = forced.plain()?;
                let (took, of_run) = forced.proposed(way, share)?;
                let beside = Took::between(before, forced.plain()?);
                speeds.push(1.0 / took.wall);
                plain.push(1.0 / beside.wall);
                ratios.push(beside.wall / took.wall);
                of_cpu.push(beside.cpu / took.cpu);
                acceptance = of_run;
            }
            println!(
                "| {share:.1} | {way} | {} of {} | {:.1} | {:.1} | {:.2} | {:.2} |",
                acceptance.num_accepted,
                acceptance.num_drafted,
                median(speeds),
                median(plain),
                median(ratios),
                median(of_cpu),
            );
        }
    }
    Ok(())
}

/// Prints what a rollback takes beside a pass over one token, the medians of `num_passes`.
fn rollback(model: &Model, num_passes: usize) -> Result<()> {
    let mut caches = model.make_cache();
    let read = |tokens: &[u32], caches: &mut [LayerCache]| -> Result<f64> {
        let start = Instant::now();
        let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
        let hidden = model.forward(&tokens, caches)?;
        eval(
            [&model.logits(&hidden)?].into_iter().chain(caches.iter().flat_map(LayerCache::arrays)),
        )?;
        Ok(start.elapsed().as_secs_f64())
    };
    read(&[5; 256], &mut caches)?;
    let (mut passes, mut rollbacks) = (Vec::new(), Vec::new());
    for _ in 0..num_passes {
        passes.push(read(&[6], &mut caches)?);
        let start = Instant::now();
        let snapshots: Vec<_> = caches.iter().map(LayerCache::snap).collect();
        let took = start.elapsed();
        read(&[7, 8, 9], &mut caches)?;
        let start = Instant::now();
        for (cache, snapshot) in caches.iter_mut().zip(snapshots) {
            cache.restore(snapshot)?;
        }
        eval(caches.iter().flat_map(LayerCache::arrays))?;
        rollbacks.push((took + start.elapsed()).as_secs_f64());
    }
    let (pass, rollback) = (median(passes), median(rollbacks));
    println!(
        "a pass {:.3} ms, a rollback {:.4} ms: {:.2} %",
        pass * 1e3,
        rollback * 1e3,
        100.0 * rollback / pass
    );
    Ok(())
}

/// What proposes.
enum Way<'a> {
    LookUp(PromptLookup),
    /// A draft model, so many tokens at a time, or as many as pay.
    Draft(&'a Model, Option<usize>),
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::LookUp(PromptLookup::Always(number)) | Way::Draft(_, Some(number)) => {
                write!(formatter, "always {number}")
            }
            Way::LookUp(PromptLookup::WhereItPays) | Way::Draft(_, None) => {
                formatter.write_str("where it pays")
            }
        }
    }
}

/// Loads a draft model with random weights. Its logits are so large that a sampler can tell them from a
/// model's on the device, see [`MARKED`].
fn random_draft(vocab_size: u32) -> Result<Model> {
    let folder = tempfile::tempdir()?;
    let (width, hidden) = (64, 128);
    let config = format!(
        "{{\"model_type\": \"llama\", \"hidden_size\": {width}, \"num_hidden_layers\": 2, \
          \"intermediate_size\": {hidden}, \"num_attention_heads\": 2, \"rms_norm_eps\": 1e-5, \
          \"num_key_value_heads\": 2, \"vocab_size\": {vocab_size}, \"rope_theta\": 10000.0, \
          \"max_position_embeddings\": 8192, \"tie_word_embeddings\": true}}"
    );
    std::fs::write(folder.path().join("config.json"), config)?;
    let mut weights = vec![("model.norm.weight".to_owned(), Array::ones::<f32>(&[width])?)];
    let mut add = |name: String, shape: &[i32], scale: f32| -> Result<()> {
        let weight = random::normal::<f32>(shape, None, Some(scale), None)?;
        weights.push((name, weight));
        Ok(())
    };
    add("model.embed_tokens.weight".to_owned(), &[vocab_size as i32, width], 200.0)?;
    for layer in 0..2 {
        let prefix = format!("model.layers.{layer}");
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(format!("{prefix}.self_attn.{name}.weight"), &[width, width], 0.1)?;
        }
        add(format!("{prefix}.mlp.gate_proj.weight"), &[hidden, width], 0.1)?;
        add(format!("{prefix}.mlp.up_proj.weight"), &[hidden, width], 0.1)?;
        add(format!("{prefix}.mlp.down_proj.weight"), &[width, hidden], 0.1)?;
        add(format!("{prefix}.input_layernorm.weight"), &[width], 1.0)?;
        add(format!("{prefix}.post_attention_layernorm.weight"), &[width], 1.0)?;
    }
    let named = weights.iter().map(|(name, weight)| (name.as_str(), weight));
    Array::save_safetensors(named, None, folder.path().join("model.safetensors"))?;
    Ok(Model::load(folder.path(), LoadOptions::new().keep_quantized(true))?.0)
}

struct Arguments {
    folder: String,
    num_tokens: usize,
    shares: Vec<f64>,
    is_open: bool,
    is_draft: bool,
    is_rollback: bool,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut all = std::env::args().skip(1);
        let usage = "usage: speculation_speed MODEL [NUM_TOKENS] [--draft] [--accept SHARE,...]\n\
                     \x20      speculation_speed MODEL [NUM_TOKENS] --open | --rollback";
        let folder = all.next().ok_or(usage)?;
        let mut read = Arguments {
            folder,
            num_tokens: 256,
            shares: SHARES.to_vec(),
            is_open: false,
            is_draft: false,
            is_rollback: false,
        };
        while let Some(argument) = all.next() {
            match argument.as_str() {
                "--open" => read.is_open = true,
                "--draft" => read.is_draft = true,
                "--rollback" => read.is_rollback = true,
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
/// than the plain answers before and behind it: by the clock, and by what the process has computed, which
/// other programs on the machine change less.
fn open_text(folder: &str, num_tokens: usize) -> Result<()> {
    let loaded = LoadedModel::load(Path::new(folder), LoadOptions::new().keep_quantized(true))?;
    println!("| question | proposed | accepted | tokens/s | plain | ratio | of CPU time |");
    println!("|---|---|---|---|---|---|---|");
    let (mut all, mut all_of_cpu) = (Vec::new(), Vec::new());
    for (index, question) in QUESTIONS.into_iter().enumerate() {
        let prompt = prompt(&loaded, question)?;
        let plain =
            || Ok::<_, Box<dyn Error>>(open_answer(&loaded.model, &prompt, num_tokens, None)?.0);
        let what_pays =
            || open_answer(&loaded.model, &prompt, num_tokens, Some(OwnDrafter::WhereItPays));
        plain()?;
        what_pays()?;
        let (mut speeds, mut plain_speeds) = (Vec::new(), Vec::new());
        let (mut ratios, mut of_cpu) = (Vec::new(), Vec::new());
        let mut acceptance = Acceptance::default();
        for _ in 0..ROUNDS {
            let before = plain()?;
            let (took, of_answer) = what_pays()?;
            let behind = plain()?;
            let beside = Took::between(before, behind);
            speeds.push(1.0 / took.wall);
            plain_speeds.push(1.0 / beside.wall);
            ratios.push(beside.wall / took.wall);
            of_cpu.push(beside.cpu / took.cpu);
            acceptance = of_answer;
        }
        all.extend(&ratios);
        all_of_cpu.extend(&of_cpu);
        println!(
            "| {} | {} | {} | {:.1} | {:.1} | {:.3} | {:.3} |",
            index + 1,
            acceptance.num_drafted,
            acceptance.num_accepted,
            median(speeds),
            median(plain_speeds),
            median(ratios),
            median(of_cpu),
        );
    }
    println!("median of all: {:.3}, of CPU time: {:.3}", median(all), median(all_of_cpu));
    Ok(())
}

/// Seconds for a token.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    /// Of all threads.
    cpu: f64,
}

impl Took {
    fn between(before: Took, behind: Took) -> Took {
        Took { wall: (before.wall + behind.wall) / 2.0, cpu: (before.cpu + behind.cpu) / 2.0 }
    }
}

/// Seconds that all threads of this process have computed for itself.
fn cpu_seconds() -> Result<f64> {
    let time = getrusage(UsageWho::RUSAGE_SELF)?.user_time();
    Ok(time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
}

fn prompt(loaded: &LoadedModel, question: &str) -> Result<Vec<u32>> {
    let text = format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n");
    Ok(loaded.tokenizer.encode_prompt(&text)?)
}

/// What each token after the first takes, and what was proposed.
fn open_answer(
    model: &Model,
    prompt: &[u32],
    num_tokens: usize,
    drafter: Option<OwnDrafter>,
) -> Result<(Took, Acceptance)> {
    let options = GenerateOptions { max_tokens: num_tokens, ..GenerateOptions::default() };
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let (caches, sampler) = (&mut Vec::new(), Sampler::Greedy);
    let took = |next: &mut dyn FnMut() -> Result<bool>| -> Result<Took> {
        next()?;
        let (start, cpu) = (Instant::now(), cpu_seconds()?);
        let mut count = 0;
        while next()? {
            count += 1;
        }
        let count = f64::from(count.max(1));
        let cpu = (cpu_seconds()? - cpu) / count;
        Ok(Took { wall: start.elapsed().as_secs_f64() / count, cpu })
    };
    match drafter {
        None => {
            let mut stream = generate_step(model, prompt, caches, sampler, options, &mut go_on)?;
            let took = took(&mut || Ok(stream.next_token()?.is_some()))?;
            Ok((took, Acceptance::default()))
        }
        Some(drafter) => {
            let mut stream = speculative_generate_step(
                model, drafter, prompt, caches, sampler, options, &mut go_on,
            )?;
            let took = took(&mut || Ok(stream.next_token()?.is_some()))?;
            Ok((took, stream.acceptance()))
        }
    }
}

/// A model that answers a prompt with given tokens.
struct Forced {
    model: Model,
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Forced {
    fn options(&self, num_draft_tokens: usize) -> GenerateOptions {
        let max_tokens = self.answer.len();
        GenerateOptions { max_tokens, num_draft_tokens, ..GenerateOptions::default() }
    }

    /// Chooses the tokens of the answer, and `drawn` where a draft model draws. Behind a pass over one token
    /// the next place is known; behind one with proposals it is how many tokens have been returned, which
    /// `num_returned` tells.
    fn sampler(&self, drawn: Vec<u32>, num_returned: &Rc<Cell<usize>>) -> Sampler {
        let (answer, num_returned) = (self.answer.clone(), num_returned.clone());
        let is_drawing = !drawn.is_empty();
        let mut next = None;
        Sampler::Custom(Box::new(move |logprobs| {
            let rows = logprobs.dim(0) as usize;
            let expected = next.filter(|_| rows == 1 || !is_drawing);
            let place = expected.unwrap_or(num_returned.get());
            next = (rows == 1).then_some(place + 1);
            let tokens = |of: &[u32]| -> Array {
                let tokens = place..place + rows;
                let tokens = tokens.map(|place| of.get(place).copied().unwrap_or(0));
                Array::from_slice(&tokens.collect::<Vec<u32>>(), &[rows as i32])
            };
            // The device computes what a real sampler needs.
            let least = logprobs.min_axis(-1, None)?;
            let zero = least.multiply(Array::from_f32(0.0))?.as_dtype(Dtype::Uint32)?;
            let mut chosen = tokens(&answer);
            if is_drawing {
                let is_draft = least.lt(Array::from_f32(MARKED))?;
                chosen = ops::select(&is_draft, tokens(&drawn), &chosen)?;
            }
            Ok(chosen.add(zero)?)
        }))
    }

    /// What a token takes after the first.
    fn plain(&self) -> Result<Took> {
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let num_returned = Rc::default();
        let (caches, sampler) = (&mut Vec::new(), self.sampler(Vec::new(), &num_returned));
        let prompt = &self.prompt;
        let mut stream =
            generate_step(&self.model, prompt, caches, sampler, self.options(3), &mut go_on)?;
        self.time(&num_returned, || Ok(stream.next_token()?.map(|sampled| sampled.token)))
    }

    /// The same with proposals, of which `share` are right, and how many there were.
    fn proposed(&self, way: &Way<'_>, share: f64) -> Result<(Took, Acceptance)> {
        let vocab_size = self.model.vocab_size() as u32;
        let (mut draft_caches, mut number) = (Vec::new(), 3);
        let (drafter, seen, drawn): (Drafter<'_>, _, _) = match *way {
            Way::LookUp(lookup) => {
                let seen = seen(&self.prompt, &self.answer, share, vocab_size);
                (lookup.into(), seen, Vec::new())
            }
            Way::Draft(model, num_tokens) => {
                let draft = Draft { model, caches: &mut draft_caches };
                let drafter = match num_tokens {
                    Some(num_tokens) => {
                        number = num_tokens;
                        Drafter::Model(draft)
                    }
                    None => Drafter::ModelWhereItPays(draft),
                };
                (drafter, Vec::new(), drawn(&self.answer, share, vocab_size))
            }
        };
        let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
        let input = Input { tokens: &self.prompt, embeddings: None, cached_tokens: &seen };
        let num_returned = Rc::default();
        let sampler = self.sampler(drawn, &num_returned);
        let (caches, options) = (&mut Vec::new(), self.options(number));
        let mut stream = speculative_generate_step(
            &self.model,
            drafter,
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
    ) -> Result<Took> {
        let mut tokens = vec![next()?.ok_or("no token")?];
        num_returned.set(1);
        let (start, cpu) = (Instant::now(), cpu_seconds()?);
        while let Some(token) = next()? {
            tokens.push(token);
            num_returned.set(tokens.len());
        }
        let count = tokens.len().max(2) as f64 - 1.0;
        let cpu = (cpu_seconds()? - cpu) / count;
        let took = Took { wall: start.elapsed().as_secs_f64() / count, cpu };
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

/// What a draft model draws at each place: right with a probability of `share`.
fn drawn(answer: &[u32], share: f64, vocab_size: u32) -> Vec<u32> {
    let mut draw = Draw(3);
    let tokens = answer
        .iter()
        .map(|&token| if draw.next() < share { token } else { (token + 1) % vocab_size });
    tokens.collect()
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
