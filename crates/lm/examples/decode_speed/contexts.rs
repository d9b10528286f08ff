//! What decoding behind long contexts takes: of one row, and of rows that began at different tokens.

use std::path::Path;
use std::time::Instant;

use cairn_lm::cache::batch::merge;
use cairn_lm::cache::{KvCache, LayerCache, LayerCacheSpec};
use cairn_lm::models::Model;
use cairn_lm::{with_layers_by_parts, without_kernels};
use mlx_rs::transforms::{async_eval, eval};
use mlx_rs::{Dtype, ops, random};
use serde_json::json;

use super::subject::Subject;
use super::{Failure, load, rounded, tokens};

/// The contexts that are measured if none are named.
pub const CONTEXTS: [i32; 4] = [512, 4096, 8192, 32_768];
/// Rows of a batch. Each has a sixteenth of the context less than the one before it.
const ROWS: [i32; 2] = [1, 3];
const STEPS: usize = 128;

/// Prints the tokens a second of all rows together, behind contexts of random keys and values: with
/// kernels of whole layers, with layers by parts, and with MLX's own operations.
pub fn measure(name: &str, folder: &Path, contexts: &[i32]) -> Result<(), Failure> {
    let subject = Subject::new(name, folder, 0.0)?;
    let models = [
        ("whole layers", load(folder)?),
        ("layers by parts", with_layers_by_parts(|| load(folder))?),
        ("plain", without_kernels(|| load(folder))?),
    ];
    for &context in contexts {
        for rows in ROWS {
            for (form, model) in &models {
                let rate = rate(model, context, rows)?;
                let figures = json!({
                    "model": subject.name, "form": form, "context": context, "rows": rows,
                    "tokens_per_s": rounded(rate, 10.0),
                });
                println!("{figures}");
            }
        }
    }
    Ok(())
}

fn rate(model: &Model, context: i32, rows: i32) -> Result<f64, Failure> {
    let lengths = (0..rows).map(|row| context - row * (context / 16));
    let mut each = lengths.map(|length| filled(model, length)).collect::<Result<Vec<_>, _>>()?;
    let mut caches = if rows == 1 { each.remove(0) } else { merge(each)? };
    eval(caches.iter().flat_map(LayerCache::arrays))?;
    let mut input = ops::broadcast_to(tokens(&[7]), &[rows, 1])?;
    let mut began = Instant::now();
    for step in 0..2 * STEPS {
        // The first half compiles kernels.
        if step == STEPS {
            input.eval()?;
            began = Instant::now();
        }
        let logits = model.logits(&model.forward(&input, &mut caches)?)?;
        let next = ops::indexing::argmax_axis(&logits, -1, false)?;
        async_eval([&next])?;
        input.eval()?;
        input = next;
    }
    input.eval()?;
    Ok((rows as usize * STEPS) as f64 / began.elapsed().as_secs_f64())
}

/// Caches of so many tokens of one row, of random numbers.
fn filled(model: &Model, num_tokens: i32) -> Result<Vec<LayerCache>, Failure> {
    let layer = |spec: &LayerCacheSpec| -> Result<LayerCache, Failure> {
        let LayerCacheSpec::Kv(kv) = spec else { return Err("a model of plain caches".into()) };
        let sizes = kv.sizes.ok_or("sizes are known")?;
        let numbers = |dim: i32| {
            let shape = [1, sizes.heads, num_tokens, dim];
            random::normal::<f32>(&shape, None, None, None)?.as_dtype(Dtype::Bfloat16)
        };
        let (keys, values) = (numbers(sizes.key_dim)?, numbers(sizes.value_dim)?);
        let cache = LayerCache::Kv(KvCache::from_parts(&[keys], &[values])?);
        // One by one: the numbers take twice as much before they are rounded.
        eval(cache.arrays())?;
        Ok(cache)
    };
    model.typed_cache_spec()?.layers().iter().map(layer).collect()
}
