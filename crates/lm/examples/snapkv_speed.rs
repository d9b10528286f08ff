//! Measures decoding behind a long context, whole and with the tokens that SnapKV keeps.
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example decode_speed -- write llama-3.2-1b FOLDER
//! $ cargo run --release -p cairn-lm --example snapkv_speed -- FOLDER [KEEP_TOKENS [CONTEXT]...]
//! ```
//!
//! Without numbers it keeps 4,096 of 32,768, 97,280 and 131,072 tokens. The contexts are random
//! keys and values, because reading them would take most of the time; a prompt behind them is read, and
//! its queries choose. Whole and compressed take turns, three times; the figures are the medians.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use cairn_lm::cache::{CacheSpec, KvCache, LayerCache, LayerCacheSpec, NUM_OBSERVED, SnapKv};
use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LoadOptions, Sampler, generate_step, memory};
use mlx_rs::transforms::eval;
use mlx_rs::{Dtype, random};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CONTEXTS: [usize; 3] = [32_768, 97_280, 131_072];
const NUM_WARM_UP: usize = 16;
const NUM_TOKENS: usize = 48;
const RUNS: usize = 3;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: snapkv_speed MODEL [KEEP_TOKENS [CONTEXT]...]")?;
    let numbers: Vec<usize> =
        arguments.map(|number| number.parse()).collect::<std::result::Result<_, _>>()?;
    let (keep_tokens, contexts) = match *numbers {
        [] => (4096, &CONTEXTS[..]),
        [keep_tokens] => (keep_tokens, &CONTEXTS[..]),
        [keep_tokens, ref contexts @ ..] => (keep_tokens, contexts),
    };
    let (model, _) = Model::load(Path::new(&folder), LoadOptions::new().keep_quantized(true))?;
    let snapkv = SnapKv { keep_tokens, min_context: 0 };
    println!(
        "| context | kept | whole, tokens/s | kept, tokens/s | ratio | whole, MB | kept, MB | choice, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &context in contexts {
        let (mut whole, mut kept) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            whole.push(Run::new(&model, context, None)?);
            kept.push(Run::new(&model, context, Some(snapkv))?);
        }
        let median = |runs: &[Run], figure: fn(&Run) -> f64| {
            let mut figures: Vec<f64> = runs.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let speeds = [&whole, &kept].map(|runs| median(runs, |run| run.tokens_per_second));
        let bytes = [&whole, &kept].map(|runs| median(runs, |run| run.num_bytes as f64 / 1e6));
        let [read, read_and_chosen] = [&whole, &kept].map(|runs| median(runs, |run| run.prompt_ms));
        println!(
            "| {context} | {keep_tokens} | {:.1} | {:.1} | {:.2} | {:.0} | {:.0} | {:.0} |",
            speeds[0],
            speeds[1],
            speeds[1] / speeds[0],
            bytes[0],
            bytes[1],
            read_and_chosen - read,
        );
    }
    Ok(())
}

struct Run {
    tokens_per_second: f64,
    /// To read the prompt behind the context, and to choose.
    prompt_ms: f64,
    num_bytes: usize,
}

impl Run {
    fn new(model: &Model, context: usize, snapkv: Option<SnapKv>) -> Result<Run> {
        let mut caches = filled(model.typed_cache_spec()?, context - NUM_OBSERVED)?;
        let prompt: Vec<u32> = (0..NUM_OBSERVED as u32 + 1).map(|id| id * 37 % 1000).collect();
        let max_tokens = NUM_WARM_UP + NUM_TOKENS + 1;
        let options = GenerateOptions { max_tokens, snapkv, ..GenerateOptions::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let began = Instant::now();
        let mut stream =
            generate_step(model, &prompt, &mut caches, Sampler::Greedy, options, &mut go_on)?;
        let prompt_ms = began.elapsed().as_secs_f64() * 1e3;
        for _ in 0..NUM_WARM_UP {
            stream.next_token()?;
        }
        let began = Instant::now();
        for _ in 0..NUM_TOKENS {
            stream.next_token()?;
        }
        let tokens_per_second = NUM_TOKENS as f64 / began.elapsed().as_secs_f64();
        let num_bytes = stream.into_caches()?.iter().map(LayerCache::nbytes).sum();
        memory::clear_cache();
        Ok(Run { tokens_per_second, prompt_ms, num_bytes })
    }
}

/// Caches of so many tokens, of random numbers.
fn filled(spec: &CacheSpec, num_tokens: usize) -> Result<Vec<LayerCache>> {
    let layer = |spec: &LayerCacheSpec| -> Result<LayerCache> {
        let LayerCacheSpec::Kv(kv) = spec else { return Err("a model of plain caches".into()) };
        let sizes = kv.sizes.ok_or("sizes are known")?;
        let numbers = |dim: i32, dtype: Option<Dtype>| {
            let shape = [1, sizes.heads, num_tokens as i32, dim];
            random::normal::<f32>(&shape, None, None, None)?
                .as_dtype(dtype.unwrap_or(Dtype::Float32))
        };
        let types = sizes.types.map(|types| types.map(Some)).unwrap_or([None; 2]);
        let keys = numbers(sizes.key_dim, types[0])?;
        let values = numbers(sizes.value_dim, types[1])?;
        let cache = LayerCache::Kv(KvCache::from_parts(&[keys], &[values])?);
        eval(cache.arrays())?;
        Ok(cache)
    };
    spec.layers().iter().map(layer).collect()
}
