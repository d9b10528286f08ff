//! Measures the decode speed of llama shapes with random 4-bit weights and prints JSON lines, which
//! `xtask/bench/gpu.sh` compares with mlx-lm.
//!
//! ```text
//! usage: decode_speed [SHAPE]...     shapes: smollm2-135m, llama-3.2-1b, llama-3.1-8b; default: all
//! ```
//! The weights are written to a model folder and loaded from there, so that the measured path is
//! that of every model. Before anything is timed, the logits of tokens read one at a time are
//! compared with those of the same tokens read at once and of several rows read together: on a CUDA
//! device the three ways use different kernels.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use cairn_lm::batch::{BatchGenerator, BatchOptions, BatchRequest};
use cairn_lm::cache::batch::merge;
use cairn_lm::cache::{LayerCache, trim_prompt_cache};
use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LoadOptions, Sampler, generate_step, memory};
use mlx_rs::{Array, Dtype, ops};
use serde_json::json;

const PROMPT_TOKENS: usize = 512;
const ANSWER_TOKENS: usize = 256;
/// Batch sizes, for models with a hidden size below [`BATCH_MAX_HIDDEN`]; each row generates
/// [`BATCH_ANSWER_TOKENS`].
const BATCHES: [usize; 2] = [8, 32];
const BATCH_ANSWER_TOKENS: usize = 128;
const BATCH_MAX_HIDDEN: usize = 4096;
/// Batch sizes that each use another variant of the product kernel.
const CHECKED_ROWS: [usize; 3] = [3, 12, 40];
const RUNS: usize = 3;
const GROUP_SIZE: usize = 64;
const BITS: usize = 4;

struct Shape {
    name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    intermediate: usize,
    vocab: usize,
    head_dim: usize,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "smollm2-135m",
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        intermediate: 1536,
        vocab: 49_152,
        head_dim: 64,
    },
    Shape {
        name: "llama-3.2-1b",
        hidden: 2048,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        intermediate: 8192,
        vocab: 128_256,
        head_dim: 64,
    },
    Shape {
        name: "llama-3.1-8b",
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        intermediate: 14_336,
        vocab: 128_256,
        head_dim: 128,
    },
];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for shape in SHAPES
        .iter()
        .filter(|shape| wanted.is_empty() || wanted.iter().any(|name| name == shape.name))
    {
        let folder = tempfile::tempdir()?;
        let bytes = write_model(folder.path(), shape)?;
        let (model, _) = Model::load(folder.path(), LoadOptions { keep_quantized: true })?;
        // The second length is long enough for keys to be split over several blocks.
        for length in [PROMPT_TOKENS, 2200] {
            check(shape, &model, length)?;
        }
        for num_rows in CHECKED_ROWS {
            check_batch(shape, &model, num_rows)?;
        }
        println!("{}", measure_stream(shape, &model, bytes)?);
        for batch in BATCHES.into_iter().filter(|_| shape.hidden < BATCH_MAX_HIDDEN) {
            println!("{}", measure_batch(shape, &model, batch)?);
        }
    }
    Ok(())
}

fn random_prompt(shape: &Shape, seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..length).map(|_| (random.next() % shape.vocab as u64) as u32).collect()
}

/// Fails unless a prompt's logits are the same, except for rounding, when its last tokens are read
/// one at a time, some of them twice.
fn check(shape: &Shape, model: &Model, length: usize) -> Result<(), Failure> {
    const SINGLE_TOKENS: usize = 80; // more than a tail buffer holds
    const TRIMMED: usize = 8;
    let prompt = random_prompt(shape, 3, length);
    let (mut at_once, mut one_by_one) = (model.make_cache(), model.make_cache());
    let expected = model.logits(&model.forward(&tokens(&prompt), &mut at_once)?)?;
    let (most, singles) = prompt.split_at(length - SINGLE_TOKENS);
    model.forward(&tokens(most), &mut one_by_one)?;
    let mut found = Vec::new();
    for token in &singles[..SINGLE_TOKENS / 2] {
        found.push(next_logits(model, &[*token], &mut one_by_one)?);
    }
    trim_prompt_cache(&mut one_by_one, TRIMMED);
    found.truncate(SINGLE_TOKENS / 2 - TRIMMED);
    for token in &singles[found.len()..] {
        found.push(next_logits(model, &[*token], &mut one_by_one)?);
    }
    let wanted: Vec<i32> = (most.len() as i32..length as i32).collect();
    let expected = expected.take_axis(Array::from_slice(&wanted, &[SINGLE_TOKENS as i32]), 1)?;
    compare(
        shape,
        &format!("single tokens and all {length} at once"),
        &ops::concatenate(&found, 1)?,
        &expected,
    )
}

/// Fails unless rows of several lengths have the same logits, except for rounding, in a batch and
/// unbatched.
fn check_batch(shape: &Shape, model: &Model, num_rows: usize) -> Result<(), Failure> {
    const UNBATCHED: usize = 2; // tokens that each row decodes before the rows are merged
    const STEPS: usize = 2;
    let (mut caches, mut inputs, mut expected) =
        (Vec::new(), vec![Vec::new(); STEPS], vec![Vec::new(); STEPS]);
    for row in 0..num_rows {
        let prompt = &random_prompt(shape, row as u64 + 1, PROMPT_TOKENS)[..64 + row % 8];
        let (before, last) = prompt.split_at(prompt.len() - STEPS);
        let (prefilled, decoded) = before.split_at(before.len() - UNBATCHED);
        let mut own = model.make_cache();
        model.forward(&tokens(prefilled), &mut own)?;
        for token in decoded {
            next_logits(model, &[*token], &mut own)?.eval()?;
        }
        caches.push(own.clone());
        for (step, &token) in last.iter().enumerate() {
            inputs[step].push(token);
            expected[step].push(next_logits(model, &[token], &mut own)?);
        }
    }
    let mut caches = merge(caches)?;
    for (inputs, expected) in inputs.iter().zip(&expected) {
        let found = next_logits(model, inputs, &mut caches)?;
        compare(
            shape,
            &format!("{num_rows} rows batched and unbatched"),
            &found,
            &ops::concatenate(expected, 0)?,
        )?;
    }
    Ok(())
}

/// The logits `[B, 1, V]` after one token of each row.
fn next_logits(model: &Model, inputs: &[u32], caches: &mut [LayerCache]) -> Result<Array, Failure> {
    Ok(model
        .logits(&model.forward(&Array::from_slice(inputs, &[inputs.len() as i32, 1]), caches)?)?)
}

fn tokens(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32])
}

fn compare(shape: &Shape, ways: &str, found: &Array, expected: &Array) -> Result<(), Failure> {
    let norm = |array: &Array| {
        Ok::<f32, Failure>(
            array
                .square()?
                .sum(None)?
                .sqrt()?
                .try_item_exact::<f32>()
                .map_err(|error| error.to_string())?,
        )
    };
    let (found, expected) = (found.as_dtype(Dtype::Float32)?, expected.as_dtype(Dtype::Float32)?);
    let off = norm(&ops::subtract(&found, &expected)?)? / norm(&expected)?;
    eprintln!("{}: {off:.4} between logits of {ways}", shape.name);
    // bfloat16 has eight bits of precision, and rounding adds up over dozens of layers. A wrong
    // position, mask or scale changes logits by about one.
    if off < 0.1 {
        Ok(())
    } else {
        Err(format!("{}: logits of {ways} are off by {off}", shape.name).into())
    }
}

/// The best decode rate of a few runs, with that run's time to first token. The first run compiles
/// kernels and is not counted.
fn measure_stream(
    shape: &Shape,
    model: &Model,
    weight_bytes: u64,
) -> Result<serde_json::Value, Failure> {
    let prompt = random_prompt(shape, 1, PROMPT_TOKENS);
    let (mut best_rate, mut best_first) = (0.0, 0.0);
    memory::reset_peak();
    for run in 0..=RUNS {
        let options = GenerateOptions { max_tokens: ANSWER_TOKENS, ..GenerateOptions::default() };
        let mut caches = model.make_cache();
        let start = Instant::now();
        let mut stream =
            generate_step(model, &prompt, &mut caches, Sampler::Greedy, options, &mut |_, _| {
                ControlFlow::Continue(())
            })?;
        let (mut first, mut count) = (None, 0);
        while stream.next_token()?.is_some() {
            first.get_or_insert_with(Instant::now);
            count += 1;
        }
        let first = first.ok_or("no token was sampled")?;
        let rate = f64::from(count - 1) / first.elapsed().as_secs_f64();
        if run > 0 && rate > best_rate {
            (best_rate, best_first) = (rate, (first - start).as_secs_f64() * 1e3);
        }
        stream.into_caches()?;
    }
    let (rate, first) = (rounded(best_rate, 10.0), rounded(best_first, 100.0));
    let (weights, peak) = (weight_bytes as f64 / 1e9, gigabytes(memory::peak_bytes()));
    Ok(
        json!({ "model": shape.name, "bits": BITS, "decode_tps": rate, "ttft_ms": first, "peak_gb": peak, "weight_gb": weights }),
    )
}

/// Tokens per second of all rows together, with prefill in the time: the better of two runs after a
/// warm-up.
fn measure_batch(shape: &Shape, model: &Model, batch: usize) -> Result<serde_json::Value, Failure> {
    let mut best = f64::INFINITY;
    memory::reset_peak();
    for run in 0..=2 {
        let options = BatchOptions { completion_batch_size: batch, ..BatchOptions::default() };
        let mut generator = BatchGenerator::new(model.clone(), options);
        let start = Instant::now();
        for seed in 0..batch {
            generator.insert(BatchRequest::new(
                random_prompt(shape, seed as u64 + 1, PROMPT_TOKENS),
                BATCH_ANSWER_TOKENS,
            ))?;
        }
        while generator.has_work() {
            if let Some((_, error)) = generator.next()?.failed.into_iter().next() {
                return Err(error.into());
            }
        }
        if run > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
        generator.close();
    }
    let rate = rounded((batch * BATCH_ANSWER_TOKENS) as f64 / best, 10.0);
    Ok(
        json!({ "model": shape.name, "bits": BITS, "batch": batch, "aggregate_tps": rate, "peak_gb": gigabytes(memory::peak_bytes()) }),
    )
}

fn gigabytes(bytes: u64) -> f64 {
    rounded(bytes as f64 / 1e9, 1000.0)
}

fn rounded(number: f64, scale: f64) -> f64 {
    (number * scale).round() / scale
}

/// Writes config.json and model.safetensors; returns the bytes of the tensors.
fn write_model(folder: &Path, shape: &Shape) -> Result<u64, Failure> {
    let config = json!({
        "model_type": "llama", "hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "rms_norm_eps": 1e-5,
        "vocab_size": shape.vocab, "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "tie_word_embeddings": true,
        "quantization": { "group_size": GROUP_SIZE, "bits": BITS },
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;

    let mut tensors = Tensors::default();
    tensors.matrix("model.embed_tokens", shape.vocab, shape.hidden);
    for layer in 0..shape.layers {
        let path = |part: &str| format!("model.layers.{layer}.{part}");
        tensors.vector(&path("input_layernorm"), shape.hidden);
        tensors.matrix(&path("self_attn.q_proj"), shape.heads * shape.head_dim, shape.hidden);
        tensors.matrix(&path("self_attn.k_proj"), shape.kv_heads * shape.head_dim, shape.hidden);
        tensors.matrix(&path("self_attn.v_proj"), shape.kv_heads * shape.head_dim, shape.hidden);
        tensors.matrix(&path("self_attn.o_proj"), shape.hidden, shape.heads * shape.head_dim);
        tensors.vector(&path("post_attention_layernorm"), shape.hidden);
        tensors.matrix(&path("mlp.gate_proj"), shape.intermediate, shape.hidden);
        tensors.matrix(&path("mlp.up_proj"), shape.intermediate, shape.hidden);
        tensors.matrix(&path("mlp.down_proj"), shape.hidden, shape.intermediate);
    }
    tensors.vector("model.norm", shape.hidden);
    tensors.write(&folder.join("model.safetensors"))
}

/// The contents of a tensor.
enum Fill {
    /// Uniformly distributed 4-bit numbers.
    Packed,
    /// bf16 numbers around the given one.
    Near(f32),
}

#[derive(Default)]
struct Tensors {
    header: serde_json::Map<String, serde_json::Value>,
    fills: Vec<(Fill, usize)>, // with bytes
    end: usize,
}

impl Tensors {
    fn add(&mut self, name: String, dtype: &str, shape: &[usize], fill: Fill) {
        let bytes = shape.iter().product::<usize>() * if dtype == "U32" { 4 } else { 2 };
        self.header.insert(
            name,
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.end, self.end + bytes] }),
        );
        self.end += bytes;
        self.fills.push((fill, bytes));
    }

    fn vector(&mut self, name: &str, length: usize) {
        self.add(format!("{name}.weight"), "BF16", &[length], Fill::Near(1.0));
    }

    /// Weights spread evenly around zero, with the variance that keeps activations near one.
    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) {
        let scale = 1.0 / (4.6 * (inputs as f32).sqrt());
        self.add(format!("{name}.weight"), "U32", &[outputs, inputs * BITS / 32], Fill::Packed);
        self.add(
            format!("{name}.scales"),
            "BF16",
            &[outputs, inputs / GROUP_SIZE],
            Fill::Near(scale),
        );
        self.add(
            format!("{name}.biases"),
            "BF16",
            &[outputs, inputs / GROUP_SIZE],
            Fill::Near(-7.5 * scale),
        );
    }

    fn write(self, path: &Path) -> Result<u64, Failure> {
        let mut header = serde_json::Value::Object(self.header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        let mut random = Random(2);
        for (fill, bytes) in self.fills {
            for _ in 0..bytes / 4 {
                let word = match fill {
                    Fill::Packed => random.next() as u32,
                    Fill::Near(value) => random.near(value) | random.near(value) << 16,
                };
                file.write_all(&word.to_le_bytes())?;
            }
        }
        file.flush()?;
        Ok(self.end as u64)
    }
}

/// Xorshift (Marsaglia 2003): the same weights on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// The bits of a bf16 within an eighth of `value`.
    fn near(&mut self, value: f32) -> u32 {
        let factor = 1.0 + (self.next() % 1024) as f32 / 4096.0 - 0.125;
        (value * factor).to_bits() >> 16
    }
}
