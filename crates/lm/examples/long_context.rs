//! Measures the memory of a step behind a very long context, with quantized keys and values:
//!
//! ```console
//! $ cargo run --release -p cairn-lm --example decode_speed -- write llama-3.2-1b FOLDER
//! $ cargo run --release -p cairn-lm --example long_context -- FOLDER [CONTEXT [STEP]]
//! ```
//!
//! The context (131,072 tokens without a number) is random keys and values in 8 bits, because reading it
//! would take most of the time. Behind it STEP tokens (512) are read, then one is decoded.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use cairn_lm::cache::{CacheSpec, KvCache, KvQuantization, LayerCache, LayerCacheSpec};
use cairn_lm::models::Model;
use cairn_lm::{LoadOptions, memory};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, random};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const QUANTIZATION: KvQuantization = KvQuantization { bits: 8, group_size: 64, start: 0 };

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: long_context MODEL [CONTEXT [STEP]]")?;
    let mut number = |default: i32| arguments.next().map_or(Ok(default), |text| text.parse());
    let (context, step) = (number(131_072)?, number(512)?);
    let (model, _) = Model::load(Path::new(&folder), LoadOptions::new())?;
    let mut caches = filled(model.typed_cache_spec()?, context)?;
    memory::clear_cache();
    let context_bytes: usize = caches.iter().map(LayerCache::nbytes).sum();
    println!("| tokens behind {context} | peak over what was there, MB | seconds |");
    println!("|---|---|---|");
    for length in [step, 1] {
        memory::reset_peak();
        let (before, began) = (memory::active_bytes(), Instant::now());
        let tokens: Vec<u32> = (0..length as u32).map(|id| id * 37 % 1000).collect();
        let hidden = model.forward(&Array::from_slice(&tokens, &[1, length]), &mut caches)?;
        eval([&hidden])?;
        let seconds = began.elapsed().as_secs_f64();
        let took = memory::peak_bytes().saturating_sub(before) as f64 / 1e6;
        println!("| {length} | {took:.0} | {seconds:.2} |");
    }
    println!("\nThe context takes {:.0} MB.", context_bytes as f64 / 1e6);
    Ok(())
}

/// Quantized caches of so many tokens, of random numbers.
fn filled(spec: &CacheSpec, num_tokens: i32) -> Result<Vec<LayerCache>> {
    let layer = |spec: &LayerCacheSpec| -> Result<LayerCache> {
        let LayerCacheSpec::Kv(kv) = spec else { return Err("a model of plain caches".into()) };
        let sizes = kv.sizes.ok_or("sizes are known")?;
        let numbers =
            |dim: i32| random::normal::<f32>(&[1, sizes.heads, num_tokens, dim], None, None, None);
        let (keys, values) = (numbers(sizes.key_dim)?, numbers(sizes.value_dim)?);
        let mut layer = [LayerCache::Kv(KvCache::from_parts(&[keys], &[values])?)];
        QUANTIZATION.apply(&mut layer)?;
        let [cache] = layer;
        // One by one: unquantized they take four times as much.
        eval(cache.arrays())?;
        memory::clear_cache();
        Ok(cache)
    };
    spec.layers().iter().map(layer).collect()
}
