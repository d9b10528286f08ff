//! Measures what reading a prompt takes beside weights and caches, for the constants in
//! `crates/lm/src/models/` that estimates of memory are made of.
//!
//! ```text
//! cargo run --release -p cairn-lm --example memory -- FOLDER... [--tokens 1024,8192] [--step 512]
//! ```
//! A folder may also be the name of a tiny model, such as `llama/dense-tied`; `decode_speed write`
//! makes wider ones. Each line names MLX's peak while a prompt is read in steps and two tokens are
//! sampled, the estimate, and what both have beside weights and caches, in numbers for each token of a
//! step. One process measures one thing at a time: MLX's counters cover all threads.

use std::path::{Path, PathBuf};

use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LmError, LoadOptions, ModelMemory, PromptReader, Sampler, memory};

type Failure = Box<dyn std::error::Error>;

const OPTIONS: LoadOptions = LoadOptions::new();

struct Arguments {
    folders: Vec<PathBuf>,
    tokens: Vec<usize>,
    steps: Vec<usize>,
}

fn main() -> Result<(), Failure> {
    let Arguments { folders, tokens, steps } = arguments()?;
    println!("model\ttokens\tstep\tpeak MB\testimate MB\testimate/peak\tbeside\testimated beside");
    for folder in folders {
        let (model, _) = Model::load(&folder, OPTIONS)?;
        let estimate = ModelMemory::read(&folder, OPTIONS)?;
        for &num_tokens in &tokens {
            for &step in &steps {
                measure(&folder, &model, &estimate, num_tokens, step)?;
            }
        }
    }
    Ok(())
}

fn measure(
    folder: &Path,
    model: &Model,
    estimate: &ModelMemory,
    num_tokens: usize,
    step: usize,
) -> Result<(), LmError> {
    let peak = peak_of_reading(model, num_tokens, step)?;
    let estimated = estimate.peak_bytes(num_tokens, 1, step);
    let known = estimate.weight_bytes + estimate.kv_bytes(num_tokens);
    let per_token = |bytes: u64| {
        let numbers = (bytes as f64 - known as f64) / 4.0;
        numbers / step.min(num_tokens) as f64
    };
    println!(
        "{}\t{num_tokens}\t{step}\t{:.2}\t{:.2}\t{:.3}\t{:.0}\t{:.0}",
        folder.display(),
        peak as f64 / 1e6,
        estimated as f64 / 1e6,
        estimated as f64 / peak as f64,
        per_token(peak),
        per_token(estimated),
    );
    Ok(())
}

/// MLX's peak while `num_tokens` are read, the last two of them one by one.
fn peak_of_reading(model: &Model, num_tokens: usize, step: usize) -> Result<u64, LmError> {
    let vocab_size = model.vocab_size();
    let prompt = (0..num_tokens - 1).map(|token| (token * 31 % vocab_size) as u32).collect();
    let options =
        GenerateOptions { max_tokens: 2, prefill_step_size: step, ..GenerateOptions::default() };
    memory::clear_cache();
    memory::reset_peak();
    let sampler = Sampler::Greedy;
    let reader = PromptReader::new(model, prompt, &[], Vec::new(), sampler, options)?;
    let mut stream = reader.start()?;
    while stream.next_token()?.is_some() {}
    Ok(memory::peak_bytes())
}

fn arguments() -> Result<Arguments, Failure> {
    let mut arguments =
        Arguments { folders: Vec::new(), tokens: vec![1024, 8192], steps: vec![512] };
    let mut given = std::env::args().skip(1);
    let numbers = |value: Option<String>| -> Result<Vec<usize>, Failure> {
        let value = value.ok_or("numbers are missing")?;
        Ok(value.split(',').map(str::parse).collect::<Result<_, _>>()?)
    };
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--tokens" => arguments.tokens = numbers(given.next())?,
            "--step" => arguments.steps = numbers(given.next())?,
            name => {
                let folder = PathBuf::from(name);
                let is_tiny = !folder.exists();
                arguments.folders.push(if is_tiny {
                    cairn_tiny_models::tiny_model(name)
                } else {
                    folder
                });
            }
        }
    }
    if arguments.folders.is_empty() {
        return Err("which model folders?".into());
    }
    Ok(arguments)
}
