//! Checks the kernels of the device against the plain forms, and measures decode and prefill with
//! random weights, for `xtask/bench/gpu.sh` to compare with mlx-lm.
//!
//! ```text
//! usage: decode_speed check [SHAPE]...           small models of some families, the limits of the kernels;
//!                                             `attention` is what MLX's own attention stores,
//!                                             `choice` the likeliest token
//!        decode_speed check-folder NAME FOLDER [ROUNDING]   the same of another small model
//!        decode_speed write SHAPE FOLDER         a model folder; the shapes are in shapes.rs
//!        decode_speed measure NAME FOLDER [ROUNDING]        prints JSON lines
//!        decode_speed stream NAME FOLDER         one stream only, for two builds that take turns
//!        decode_speed stream NAME FOLDER --layers-by-parts   also without kernels of whole layers
//!        decode_speed passes NAME FOLDER [LENGTH]...   what a pass takes that verifies several tokens
//!        decode_speed contexts NAME FOLDER [CONTEXT]...     tokens a second behind long contexts
//! ```
//! `xtask/bench/random_model.py` writes folders of all other architectures.
//!
//! The measured path is that of every model. Before a model is timed, the logits of tokens read one
//! at a time are compared with those of the same tokens read at once and of several rows read
//! together: on a CUDA device the three ways use different kernels. They may differ by rounding: by
//! a tenth, or half as much again as ROUNDING, which is what mlx-lm's own logits differ by
//! (`gpu_mlx_lm.py --rounding`).

mod attention_memory;
mod contexts;
mod model_folder;
mod shapes;
mod subject;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use cairn_lm::batch::{BatchGenerator, BatchOptions, BatchRequest};
use cairn_lm::cache::batch::merge;
use cairn_lm::cache::{LayerCache, can_trim_prompt_cache, trim_prompt_cache};
use cairn_lm::models::Model;
use cairn_lm::{
    GenerateOptions, LoadOptions, Sampler, ffi, generate_step, memory, num_kernel_failures,
    with_layers_by_parts, without_kernels,
};
use mlx_rs::{Array, Dtype, ops};
use serde_json::json;

use model_folder::Random;
use subject::Subject;

const PROMPT_TOKENS: usize = 512;
const ANSWER_TOKENS: usize = 256;
/// Batch sizes, for models with a hidden size below [`BATCH_MAX_HIDDEN`]; each row generates
/// [`BATCH_ANSWER_TOKENS`].
const BATCHES: [usize; 2] = [8, 32];
const BATCH_ANSWER_TOKENS: usize = 128;
const BATCH_MAX_HIDDEN: usize = 4096;
/// Tokens of the passes that are measured if none are named.
const PASS_LENGTHS: [usize; 9] = [1, 2, 4, 6, 8, 16, 24, 32, 64];
/// Batch sizes that each use another variant of the product kernel.
const CHECKED_ROWS: [usize; 3] = [3, 12, 40];
/// Prompts of rows that decode together. Rings of 48 and of 512 tokens are half-filled, filled by the
/// steps that follow, and wrapped around before them, with rows in them that have fewer tokens.
const RAGGED_ROWS: [[usize; 4]; 3] = [[5, 40, 17, 30], [470, 5, 300, 48], [700, 512, 40, 505]];
const RUNS: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let shape = |name: &str| {
        let mut shapes = shapes::MEASURED.iter().chain(&shapes::CHECKED);
        let known = shapes.find(|shape| shape.name == name);
        known.ok_or_else(|| format!("there is no shape '{name}'"))
    };
    match arguments[..] {
        ["check", ref names @ ..] => check_kernels(names)?,
        ["write", name, folder] => {
            model_folder::write(Path::new(folder), shape(name)?)?;
        }
        ["check-folder", name, folder] => check_folder(name, Path::new(folder), 0.0)?,
        ["check-folder", name, folder, rounding] => {
            check_folder(name, Path::new(folder), rounding.parse()?)?;
        }
        ["measure", name, folder] => measure(name, Path::new(folder), 0.0)?,
        ["measure", name, folder, rounding] => {
            measure(name, Path::new(folder), rounding.parse()?)?;
        }
        ["stream", name, folder] => {
            let (subject, model) = open(name, Path::new(folder), 0.0)?;
            println!("{}", measure_stream(&subject, &model, "kernels")?);
        }
        ["stream", name, folder, "--layers-by-parts"] => {
            measure_by_parts(name, Path::new(folder))?;
        }
        ["passes", name, folder, ref lengths @ ..] => {
            let lengths: Vec<usize> =
                lengths.iter().map(|length| length.parse()).collect::<Result<_, _>>()?;
            let lengths = if lengths.is_empty() { &PASS_LENGTHS } else { &lengths[..] };
            let (subject, model) = open(name, Path::new(folder), 0.0)?;
            measure_passes(&subject, &model, lengths)?;
        }
        ["contexts", name, folder, ref given @ ..] => {
            let given: Vec<i32> =
                given.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
            let all = if given.is_empty() { &contexts::CONTEXTS } else { &given[..] };
            contexts::measure(name, Path::new(folder), all)?;
        }
        _ => {
            return Err(
                "usage: decode_speed check [SHAPE]... | check-folder NAME FOLDER [ROUNDING] \
                 | write SHAPE FOLDER | measure NAME FOLDER [ROUNDING] \
                 | stream NAME FOLDER [--layers-by-parts] | passes NAME FOLDER [LENGTH]... \
                 | contexts NAME FOLDER [CONTEXT]..."
                    .into(),
            );
        }
    }
    match num_kernel_failures() {
        0 => Ok(()),
        count => Err(format!("{count} calls of kernels failed").into()),
    }
}

fn load(folder: &Path) -> Result<Model, Failure> {
    Ok(Model::load(folder, LoadOptions::new().keep_quantized(true))?.0)
}

fn open(name: &str, folder: &Path, rounding: f32) -> Result<(Subject, Model), Failure> {
    Ok((Subject::new(name, folder, rounding)?, load(folder)?))
}

/// Checks small models of all shapes, or of some, and what MLX's own attention stores.
fn check_kernels(names: &[&str]) -> Result<(), Failure> {
    let is_wanted = |shape: &&shapes::Shape| names.is_empty() || names.contains(&shape.name);
    let results = shapes::CHECKED.iter().filter(is_wanted).map(|shape| {
        let folder = tempfile::tempdir()?;
        model_folder::write(folder.path(), shape)?;
        check_folder(shape.name, folder.path(), 0.0)
    });
    // All of them are checked before the first failure is told.
    let mut results: Vec<Result<(), Failure>> = results.collect();
    if names.is_empty() || names.contains(&attention_memory::NAME) {
        results.push(attention_memory::check());
    }
    if names.is_empty() || names.contains(&"choice") {
        results.push(check_choice());
    }
    results.into_iter().collect()
}

/// Fails unless the likeliest token is the one that MLX finds, also of several that are equal, and where
/// none is possible.
fn check_choice() -> Result<(), Failure> {
    const ROWS: i32 = 4;
    let mut random = Random(7);
    for vocab in [8192, 20_000, 128_256] {
        let mut numbers: Vec<f32> =
            (0..ROWS * vocab).map(|_| (random.next() % 100) as f32 - 120.0).collect();
        numbers[..vocab as usize].fill(f32::NEG_INFINITY);
        numbers[2 * vocab as usize - 1] = 7.0;
        let logits = Array::from_slice(&numbers, &[ROWS, vocab]).as_dtype(Dtype::Bfloat16)?;
        let found = Sampler::Greedy.sample(&logits)?;
        let expected = ops::indexing::argmax_axis(&logits, -1, false)?;
        if found.as_slice::<u32>() != expected.as_slice::<u32>() {
            return Err(
                format!("of {vocab} tokens {expected:?} are likeliest, not {found:?}").into()
            );
        }
    }
    Ok(())
}

/// Compares kernels and plain forms of a small model, at contexts around the limits of the kernels.
fn check_folder(name: &str, folder: &Path, rounding: f32) -> Result<(), Failure> {
    /// Less than a ring, about two rings of different sizes, and a context whose keys are split over
    /// more blocks in the midst of it.
    const PREFILLED: [usize; 4] = [5, 47, 500, 3800];
    let (subject, model) = open(name, folder, rounding)?;
    let by_parts = with_layers_by_parts(|| load(folder))?;
    let plain = without_kernels(|| load(folder))?;
    let [nodes, nodes_by_parts, plain_nodes] =
        [&model, &by_parts, &plain].map(|model| nodes_per_token(model, &subject));
    eprintln!(
        "{name}: {} graph nodes, {} with layers by parts, {} without kernels",
        nodes?, nodes_by_parts?, plain_nodes?
    );
    let forms = Forms { model: &model, by_parts: &by_parts, plain: &plain };
    let lengths = PREFILLED.map(|length| check_against_plain(&subject, forms, length));
    let rows = CHECKED_ROWS.map(|num_rows| check_batch(&subject, &model, num_rows));
    let ragged = RAGGED_ROWS.map(|lengths| check_ragged_rows(&subject, forms, &lengths));
    lengths.into_iter().chain(rows).chain(ragged).collect()
}

/// A model as it is loaded for the device, without kernels of whole layers, and without kernels.
#[derive(Clone, Copy)]
struct Forms<'a> {
    model: &'a Model,
    by_parts: &'a Model,
    plain: &'a Model,
}

/// Fails unless single tokens after a prompt have the same logits, except for rounding, with kernels,
/// without, and when all are read at once.
fn check_against_plain(subject: &Subject, forms: Forms<'_>, length: usize) -> Result<(), Failure> {
    const SINGLE_TOKENS: usize = 80; // more than a tail buffer holds
    const TOGETHER: [usize; 3] = [2, 6, 16]; // as a sequence that speculates reads them
    let Forms { model, by_parts, plain } = forms;
    let prompt = random_prompt(subject, 7, length + SINGLE_TOKENS);
    let (prefilled, singles) = prompt.split_at(length);
    let at_once = plain.logits(&plain.forward(&tokens(&prompt), &mut plain.make_cache())?)?;
    let wanted: Vec<i32> = (length as i32..prompt.len() as i32).collect();
    let at_once = at_once.take_axis(Array::from_slice(&wanted, &[SINGLE_TOKENS as i32]), 1)?;
    let logits = |model: &Model, together: usize| {
        let mut caches = model.make_cache();
        model.forward(&tokens(prefilled), &mut caches)?;
        let steps = singles.chunks(together).map(|read| {
            Ok::<_, Failure>(model.logits(&model.forward(&tokens(read), &mut caches)?)?)
        });
        Ok::<_, Failure>(ops::concatenate(&steps.collect::<Result<Vec<_>, _>>()?, 1)?)
    };
    let (with, without) = (logits(model, 1)?, logits(plain, 1)?);
    let after = |ways: &str| format!("{ways} after {length} tokens");
    let mut results = vec![
        compare(subject, &after("plain single tokens and all at once"), &without, &at_once),
        compare(subject, &after("kernels and all at once"), &with, &at_once),
        compare(subject, &after("kernels and plain forms"), &with, &without),
        compare(subject, &after("layers by parts and whole"), &logits(by_parts, 1)?, &with),
    ];
    for together in TOGETHER {
        let ways = after(&format!("{together} at a time with kernels and plain forms"));
        results.push(compare(subject, &ways, &logits(model, together)?, &without));
    }
    results.into_iter().collect()
}

fn measure(name: &str, folder: &Path, rounding: f32) -> Result<(), Failure> {
    let (subject, model) = open(name, folder, rounding)?;
    let subject = &subject;
    let weight_bytes = std::fs::metadata(folder.join("model.safetensors"))?.len();
    let is_small = subject.hidden < BATCH_MAX_HIDDEN && weight_bytes < 2 << 30;
    // The second length is long enough for keys to be split over more blocks.
    for length in [PROMPT_TOKENS, 4200] {
        check(subject, &model, length, || without_kernels(|| load(folder)))?;
    }
    for num_rows in CHECKED_ROWS.into_iter().filter(|_| is_small) {
        check_batch(subject, &model, num_rows)?;
    }
    println!("{}", measure_stream(subject, &model, "kernels")?);
    for batch in BATCHES.into_iter().filter(|_| is_small) {
        println!("{}", measure_batch(subject, &model, batch)?);
    }
    drop(model);
    if is_small {
        let plain = without_kernels(|| load(folder))?;
        println!("{}", measure_stream(subject, &plain, "plain")?);
    }
    Ok(())
}

/// The operations that MLX runs for one token after a short prompt.
fn nodes_per_token(model: &Model, subject: &Subject) -> Result<usize, Failure> {
    let mut caches = model.make_cache();
    for _ in 0..2 {
        model.forward(&tokens(&random_prompt(subject, 5, 4)), &mut caches)?.eval()?;
        next_logits(model, &[1], &mut caches)?.eval()?;
    }
    mlx_rs::transforms::eval(caches.iter().flat_map(LayerCache::arrays))?;
    let token = Array::from_slice(&[1u32], &[1, 1]);
    let logits = model.logits(&model.forward(&token, &mut caches)?)?;
    Ok(ffi::graph_operations(&[&logits])?.len())
}

fn random_prompt(subject: &Subject, seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..length).map(|_| (random.next() % subject.vocab as u64) as u32).collect()
}

/// Fails unless a prompt's logits are the same, except for rounding, when its last tokens are read
/// one at a time. A random router chooses other experts after a rounding; then the logits may differ
/// half as much again as those of the `plain` forms.
fn check(
    subject: &Subject,
    model: &Model,
    length: usize,
    plain: impl FnOnce() -> Result<Model, Failure>,
) -> Result<(), Failure> {
    let ways = format!("single tokens and all {length} at once");
    let [found, expected] = singles_and_at_once(subject, model, length)?;
    if !subject.chooses_experts {
        return compare(subject, &ways, &found, &expected);
    }
    let off = difference(&found, &expected)?;
    let [found, expected] = singles_and_at_once(subject, &plain()?, length)?;
    let plain_off = difference(&found, &expected)?;
    eprintln!(
        "{}: {off:.2e} between logits of {ways}, {plain_off:.2e} without kernels",
        subject.name
    );
    if off < (1.5 * plain_off.max(subject.rounding)).max(ROUNDING) {
        Ok(())
    } else {
        Err(format!("{}: logits of {ways} are off by {off}", subject.name).into())
    }
}

/// The logits of a prompt's last tokens, read one at a time, some of them twice, and of the same
/// tokens read with the whole prompt.
fn singles_and_at_once(
    subject: &Subject,
    model: &Model,
    length: usize,
) -> Result<[Array; 2], Failure> {
    const SINGLE_TOKENS: usize = 80; // more than a tail buffer holds
    const TRIMMED: usize = 8;
    let prompt = random_prompt(subject, 3, length);
    let (mut at_once, mut one_by_one) = (model.make_cache(), model.make_cache());
    let expected = model.logits(&model.forward(&tokens(&prompt), &mut at_once)?)?;
    let (most, singles) = prompt.split_at(length - SINGLE_TOKENS);
    model.forward(&tokens(most), &mut one_by_one)?;
    let mut found = Vec::new();
    for token in &singles[..SINGLE_TOKENS / 2] {
        found.push(next_logits(model, &[*token], &mut one_by_one)?);
    }
    if can_trim_prompt_cache(&one_by_one) {
        trim_prompt_cache(&mut one_by_one, TRIMMED);
        found.truncate(SINGLE_TOKENS / 2 - TRIMMED);
    }
    for token in &singles[found.len()..] {
        found.push(next_logits(model, &[*token], &mut one_by_one)?);
    }
    let wanted: Vec<i32> = (most.len() as i32..length as i32).collect();
    let expected = expected.take_axis(Array::from_slice(&wanted, &[SINGLE_TOKENS as i32]), 1)?;
    Ok([ops::concatenate(&found, 1)?, expected])
}

/// Fails unless rows of several lengths have the same logits, except for rounding, in a batch and
/// unbatched.
fn check_batch(subject: &Subject, model: &Model, num_rows: usize) -> Result<(), Failure> {
    const UNBATCHED: usize = 2; // tokens that each row decodes before the rows are merged
    const STEPS: usize = 2;
    let (mut caches, mut inputs, mut expected) =
        (Vec::new(), vec![Vec::new(); STEPS], vec![Vec::new(); STEPS]);
    for row in 0..num_rows {
        let prompt = &random_prompt(subject, row as u64 + 1, PROMPT_TOKENS)[..64 + row % 8];
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
            subject,
            &format!("{num_rows} rows batched and unbatched"),
            &found,
            &ops::concatenate(expected, 0)?,
        )?;
    }
    Ok(())
}

/// Fails unless rows whose prompts have these lengths have the same logits, except for rounding, when
/// they are decoded together with kernels, together without, and one by one with kernels.
fn check_ragged_rows(
    subject: &Subject,
    forms: Forms<'_>,
    lengths: &[usize],
) -> Result<(), Failure> {
    const STEPS: usize = 150; // the tail buffers are written back twice
    let prompts: Vec<Vec<u32>> = (10..)
        .zip(lengths)
        .map(|(seed, length)| random_prompt(subject, seed, length + STEPS))
        .collect();
    let prefilled = |model: &Model| -> Result<Vec<Vec<LayerCache>>, Failure> {
        let each = std::iter::zip(&prompts, lengths).map(|(prompt, &length)| {
            let mut caches = model.make_cache();
            model.forward(&tokens(&prompt[..length]), &mut caches)?;
            Ok(caches)
        });
        each.collect()
    };
    let together = |model: &Model| -> Result<Array, Failure> {
        let mut caches = merge(prefilled(model)?)?;
        let steps = (0..STEPS).map(|step| {
            let rows = std::iter::zip(&prompts, lengths);
            let inputs: Vec<u32> = rows.map(|(prompt, length)| prompt[length + step]).collect();
            let logits = next_logits(model, &inputs, &mut caches)?;
            logits.eval()?;
            Ok::<_, Failure>(logits)
        });
        Ok(ops::concatenate(&steps.collect::<Result<Vec<_>, _>>()?, 1)?)
    };
    let mut one_by_one = Vec::new();
    for ((prompt, length), mut caches) in
        std::iter::zip(&prompts, lengths).zip(prefilled(forms.model)?)
    {
        let steps = prompt[*length..].iter().map(|token| {
            let logits = next_logits(forms.model, &[*token], &mut caches)?;
            logits.eval()?;
            Ok::<_, Failure>(logits)
        });
        one_by_one.push(ops::concatenate(&steps.collect::<Result<Vec<_>, _>>()?, 1)?);
    }
    let one_by_one = ops::concatenate(&one_by_one, 0)?;
    let (with, without) = (together(forms.model)?, together(forms.plain)?);
    let after = |ways: &str| format!("{ways} after {lengths:?} tokens");
    [
        compare(subject, &after("rows together with kernels and without"), &with, &without),
        compare(subject, &after("rows together and one by one"), &with, &one_by_one),
    ]
    .into_iter()
    .collect()
}

/// The logits `[B, 1, V]` after one token of each row.
fn next_logits(model: &Model, inputs: &[u32], caches: &mut [LayerCache]) -> Result<Array, Failure> {
    Ok(model
        .logits(&model.forward(&Array::from_slice(inputs, &[inputs.len() as i32, 1]), caches)?)?)
}

fn tokens(tokens: &[u32]) -> Array {
    Array::from_slice(tokens, &[1, tokens.len() as i32])
}

/// bfloat16 has eight bits of precision, and rounding adds up over dozens of layers. A wrong position,
/// mask or scale changes logits by about one.
const ROUNDING: f32 = 0.1;

fn compare(subject: &Subject, ways: &str, found: &Array, expected: &Array) -> Result<(), Failure> {
    let off = difference(found, expected)?;
    eprintln!("{}: {off:.2e} between logits of {ways}", subject.name);
    // Other experts after a rounding.
    let most = if subject.chooses_experts { 0.4 } else { ROUNDING };
    if off < most.max(1.5 * subject.rounding) {
        Ok(())
    } else {
        Err(format!("{}: logits of {ways} are off by {off}", subject.name).into())
    }
}

/// The norm of the difference as a part of the expected norm.
fn difference(found: &Array, expected: &Array) -> Result<f32, Failure> {
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
    Ok(norm(&ops::subtract(&found, &expected)?)? / norm(&expected)?)
}

/// Prints what [`measure_stream`] measures with kernels of whole layers and without, in turns.
fn measure_by_parts(name: &str, folder: &Path) -> Result<(), Failure> {
    const TURNS: usize = 2;
    let (subject, model) = open(name, folder, 0.0)?;
    let by_parts = with_layers_by_parts(|| load(folder))?;
    for _ in 0..TURNS {
        println!("{}", measure_stream(&subject, &model, "kernels")?);
        println!("{}", measure_stream(&subject, &by_parts, "layers by parts")?);
    }
    Ok(())
}

/// The best decode rate of a few runs, with that run's time to first token. The first run compiles
/// kernels and is not counted.
fn measure_stream(
    subject: &Subject,
    model: &Model,
    form: &str,
) -> Result<serde_json::Value, Failure> {
    let prompt = random_prompt(subject, 1, PROMPT_TOKENS);
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
    Ok(json!({
        "model": subject.name, "form": form, "decode_tps": rounded(best_rate, 10.0),
        "ttft_ms": rounded(best_first, 100.0), "peak_gb": gigabytes(memory::peak_bytes()),
        "nodes": nodes_per_token(model, subject)?,
    }))
}

/// Prints what a pass takes over one token and over several, of which the first is kept: as in a
/// sequence whose proposals are all wrong.
fn measure_passes(subject: &Subject, model: &Model, lengths: &[usize]) -> Result<(), Failure> {
    const PASSES: usize = 60;
    let prompt = random_prompt(subject, 1, PROMPT_TOKENS);
    for &length in lengths {
        let mut caches = model.make_cache();
        model.forward(&tokens(&prompt), &mut caches)?;
        // Made on the device, as sampled tokens are.
        let read = ops::maximum(tokens(&random_prompt(subject, 2, length)), tokens(&[0]))?;
        read.eval()?;
        let mut taken = Vec::with_capacity(PASSES);
        for _ in 0..PASSES {
            let start = Instant::now();
            let before: Vec<_> = caches.iter().map(LayerCache::snap).collect();
            let logits = model.logits(&model.forward(&read, &mut caches)?)?;
            ops::indexing::argmax_axis(&logits, -1, false)?.eval()?;
            if can_trim_prompt_cache(&caches) {
                trim_prompt_cache(&mut caches, length - 1);
            } else if length > 1 {
                for (cache, before) in caches.iter_mut().zip(before) {
                    cache.restore(before)?;
                }
            }
            taken.push(start.elapsed().as_secs_f64() * 1e3);
        }
        // The first passes compile kernels.
        let mut taken = taken.split_off(PASSES / 3);
        taken.sort_by(f64::total_cmp);
        let pass_ms = rounded(taken[taken.len() / 2], 1000.0);
        println!("{}", json!({ "model": subject.name, "tokens": length, "pass_ms": pass_ms }));
    }
    Ok(())
}

/// Tokens per second of all rows together: of their prompts, until each has its first token, and of
/// their answers after that. The best of three runs after a warm-up.
fn measure_batch(
    subject: &Subject,
    model: &Model,
    batch: usize,
) -> Result<serde_json::Value, Failure> {
    let (mut best_prefill, mut best_decode) = (f64::INFINITY, f64::INFINITY);
    memory::reset_peak();
    for run in 0..=RUNS {
        let options = BatchOptions { completion_batch_size: batch, ..BatchOptions::default() };
        let mut generator = BatchGenerator::new(model.clone(), options);
        let start = Instant::now();
        for seed in 0..batch {
            generator.insert(BatchRequest::new(
                random_prompt(subject, seed as u64 + 1, PROMPT_TOKENS),
                BATCH_ANSWER_TOKENS,
            ))?;
        }
        let (mut begun, mut prefill) = (BTreeSet::new(), None);
        while generator.has_work() {
            let step = generator.next()?;
            if let Some((_, error)) = step.failed.into_iter().next() {
                return Err(error.into());
            }
            begun.extend(step.tokens.iter().map(|token| token.id));
            if begun.len() == batch && prefill.is_none() {
                prefill = Some(start.elapsed().as_secs_f64());
            }
        }
        let prefill = prefill.ok_or("a row has no token")?;
        if run > 0 {
            best_prefill = best_prefill.min(prefill);
            best_decode = best_decode.min(start.elapsed().as_secs_f64() - prefill);
        }
        generator.close();
    }
    Ok(json!({
        "model": subject.name, "batch": batch,
        "prefill_tps": rounded((batch * PROMPT_TOKENS) as f64 / best_prefill, 10.0),
        "batch_tps": rounded((batch * (BATCH_ANSWER_TOKENS - 1)) as f64 / best_decode, 10.0),
        "peak_gb": gigabytes(memory::peak_bytes()),
        "forward_tps": rounded(measure_forward(subject, model, batch)?, 10.0),
    }))
}

/// Tokens per second of one pass over `batch` prompts, at most eight, without what batching adds.
fn measure_forward(subject: &Subject, model: &Model, batch: usize) -> Result<f64, Failure> {
    let batch = batch.min(8);
    let prompts: Vec<u32> =
        (0..batch).flat_map(|row| random_prompt(subject, row as u64 + 1, PROMPT_TOKENS)).collect();
    let prompts = Array::from_slice(&prompts, &[batch as i32, PROMPT_TOKENS as i32]);
    let mut best = f64::INFINITY;
    for _ in 0..=RUNS {
        let mut caches = model.make_cache();
        let start = Instant::now();
        model.forward(&prompts, &mut caches)?;
        mlx_rs::transforms::eval(caches.iter().flat_map(LayerCache::arrays))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((batch * PROMPT_TOKENS) as f64 / best)
}

fn gigabytes(bytes: u64) -> f64 {
    rounded(bytes as f64 / 1e9, 1000.0)
}

fn rounded(number: f64, scale: f64) -> f64 {
    (number * scale).round() / scale
}
