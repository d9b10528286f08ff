//! Measures decode steps that are traced beside those that are not.
//!
//! ```text
//! cargo run --release -p cairn-lm --example traced_speed -- <model folder> [context] [tokens] [rounds]
//! ```
//! Both decode the same tokens behind the same context, in turns; the table has the medians of the
//! speeds, of their ratios, and of the time that the host takes to build the graph of a step, which a
//! device waits for where it is faster.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_lm::{LoadOptions, ffi, memory};
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What one run of a model took.
struct Run {
    tokens: Vec<u32>,
    seconds: f64,
    building: Duration,
    /// The graph's nodes of one step.
    num_nodes: usize,
}

/// Decodes as an answer is written: the next step is launched before a token is read.
fn decode(model: &Model, context: &[u32], num_tokens: usize) -> Result<Run> {
    memory::clear_cache();
    let mut caches = model.make_cache();
    let prompt = Array::from_slice(context, &[1, context.len() as i32]);
    let mut token = Array::from_slice(&[context[0]], &[1, 1]);
    model.forward(&prompt, &mut caches)?.eval()?;
    let (mut tokens, mut building) = (Vec::new(), Duration::ZERO);
    let mut step = |token: &Array, caches: &mut [LayerCache]| -> Result<Array> {
        let began = Instant::now();
        let hidden = model.forward(token, caches)?;
        let next = argmax_axis(&model.logits(&hidden)?, -1, false)?.as_dtype(Dtype::Uint32)?;
        building += began.elapsed();
        async_eval([&next])?;
        Ok(next)
    };
    // The first step is traced.
    token = step(&token, &mut caches)?;
    token.eval()?;
    let hidden = model.forward(&token, &mut caches.clone())?;
    let num_nodes = ffi::graph_operations(&[&model.logits(&hidden)?])?.len();
    let began = Instant::now();
    for _ in 0..num_tokens {
        let next = step(&token, &mut caches)?;
        tokens.push(token.try_item_exact::<u32>()?);
        token = next;
    }
    token.eval()?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Run { tokens, seconds, building, num_nodes })
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("name a model folder")?;
    let mut number = |default: usize| -> Result<usize> {
        Ok(arguments.next().map_or(Ok(default), |number| number.parse())?.max(1))
    };
    let (context, num_tokens, rounds) = (number(500)?, number(64)?, number(5)?);
    let options = LoadOptions::new().keep_quantized(true);
    let load = |options| Model::load(Path::new(&folder), options);
    let (plain, traced) = (load(options)?.0, load(options.traces_steps(true))?.0);
    let vocab_size = plain.vocab_size();
    let prompt: Vec<u32> = (0..context).map(|at| ((at * 31 + 7) % vocab_size) as u32).collect();
    let mut num_nodes = [0; 2];
    let (mut speeds, mut building, mut ratios) = ([vec![], vec![]], [vec![], vec![]], vec![]);
    for _ in 0..rounds {
        let runs = [decode(&plain, &prompt, num_tokens)?, decode(&traced, &prompt, num_tokens)?];
        if runs[0].tokens != runs[1].tokens {
            return Err("the two answer differently".into());
        }
        for (index, run) in runs.iter().enumerate() {
            num_nodes[index] = run.num_nodes;
            speeds[index].push(num_tokens as f64 / run.seconds);
            building[index].push(run.building.as_secs_f64() * 1e6 / (num_tokens + 1) as f64);
        }
        ratios.push(runs[0].seconds / runs[1].seconds);
    }
    match traced.num_traced_steps() {
        Some(Ok(count)) if count > 0 => {}
        other => return Err(format!("no step was traced: {other:?}").into()),
    }
    println!(
        "| context | plain, tokens/s | traced, tokens/s | ratio | building, µs | of a trace, µs | nodes | of a trace |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let ([plain_speed, traced_speed], [plain_building, traced_building]) =
        (speeds.map(median), building.map(median));
    println!(
        "| {context} | {plain_speed:.1} | {traced_speed:.1} | {:.2} | {plain_building:.0} | {traced_building:.0} | {} | {} |",
        median(ratios),
        num_nodes[0],
        num_nodes[1],
    );
    Ok(())
}
