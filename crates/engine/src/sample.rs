//! Whether keys and values from elsewhere are those of their tokens: some positions are computed again and compared.

use cairn_lm::cache::LayerCache;
use cairn_lm::cache::span::HeldLayers;
use cairn_lm::models::Model;
use mlx_rs::Array;

/// Positions that are looked at, spread over all of them. What was altered before one of them shows in it too, because it attends to all.
const NUM_SAMPLES: usize = 8;
/// How far two computations of the same number may be apart, of the largest there: kernels for one and for many tokens add in other orders.
const TOLERANCE: f32 = 0.02;

/// Computes the keys and values of some of `tokens` again, each from what `caches` hold of the tokens before it. Fails in words where they
/// differ.
///
/// Caches that cannot go back are computed from the beginning, and compared at their end.
pub(crate) fn check(model: &Model, tokens: &[u32], caches: &[LayerCache]) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("its sample positions could not be computed ({error})");
    let held = HeldLayers::of(caches).map_err(|error| failed(&error))?;
    let can_go_back = caches.iter().all(LayerCache::is_trimmable);
    let last = tokens.len() - 1;
    let positions: Vec<usize> = match can_go_back {
        true => (1..=NUM_SAMPLES).map(|sample| last * sample / NUM_SAMPLES).collect(),
        false => vec![last],
    };
    for position in positions {
        let (start, mut again) = match can_go_back {
            true => {
                let mut before = caches.to_vec();
                let surplus = tokens.len() - position;
                for cache in &mut before {
                    cache.trim(surplus);
                }
                (position, before)
            }
            false => (0, model.make_cache()),
        };
        // Whole steps at a time, as a prompt is read.
        for step in tokens[start..=position].chunks(512) {
            let input = Array::from_slice(step, &[1, step.len() as i32]);
            model.forward(&input, &mut again).map_err(|error| failed(&error))?;
        }
        let again = HeldLayers::of(&again).map_err(|error| failed(&error))?;
        let expected = again.cut(&[], position, position + 1).map_err(|error| failed(&error))?;
        let found = held.cut(&[], position, position + 1).map_err(|error| failed(&error))?;
        if !found.is_close_to(&expected, TOLERANCE).map_err(|error| failed(&error))? {
            return Err(format!("its contents are not what the model computes from its tokens (token {position} differs)"));
        }
    }
    Ok(())
}
