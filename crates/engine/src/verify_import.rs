//! Whether keys and values from elsewhere are those of their tokens: they are computed again and
//! compared, all of them or samples.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{ControlFlow, Range};

use cairn_lm::LmError;
use cairn_lm::cache::{Difference, LayerCache, first_difference};
use cairn_lm::models::Model;
use mlx_rs::Array;
use mlx_rs::transforms::eval;

/// Up to this many tokens everything is computed again: it takes as long as reading them.
const MAX_WHOLE_TOKENS: usize = 2048;
/// Beyond it, as many spans of so many tokens are, spread over all of them. What was altered before
/// a span shows in it too, as far as its tokens attend to that.
const NUM_SPANS: usize = 8;
const SPAN_TOKENS: usize = 64;
/// Tokens run at once: on a CPU a second or two, for which whoever stops it waits.
const STEP_TOKENS: usize = 256;

/// Computes keys, values and states of `tokens` again and compares them with what `caches` hold;
/// returns where they differ first, in words. `on_progress(processed, total)` counts the tokens
/// that are computed; breaking is [`LmError::Cancelled`].
///
/// Rings and recurrent states cannot go back to the middle: with them everything is computed again.
pub(crate) fn check(
    model: &Model,
    tokens: &[u32],
    caches: &[LayerCache],
    mut on_progress: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Option<String>, LmError> {
    let is_whole = tokens.len() <= MAX_WHOLE_TOKENS || !caches.iter().all(LayerCache::is_trimmable);
    let spans: Vec<Range<usize>> = if is_whole {
        std::iter::once(0..tokens.len()).collect()
    } else {
        sample_spans(tokens.len())
    };
    let total = spans.iter().map(ExactSizeIterator::len).sum();
    let mut processed = 0;
    for span in spans {
        let mut again = match span.start {
            0 => model.make_cache(),
            start => trimmed(caches, tokens.len() - start),
        };
        for step in tokens[span.clone()].chunks(STEP_TOKENS) {
            if on_progress(processed, total).is_break() {
                return Err(LmError::Cancelled);
            }
            let input = Array::from_slice(step, &[1, step.len() as i32]);
            model.forward(&input, &mut again)?;
            // Step by step, as a prompt is read: all of them at once would take their activations
            // at once.
            eval(again.iter().flat_map(LayerCache::arrays))?;
            processed += step.len();
        }
        if let Some(Difference { layer, token }) = first_difference(caches, &again, span)? {
            let at = token.map_or_else(String::new, |token| format!("token {token}, "));
            return Ok(Some(format!(
                "its contents are not what the model computes from its tokens ({at}layer {layer}): do not use it"
            )));
        }
    }
    // Nothing is imported for someone who has gone.
    if on_progress(total, total).is_break() { Err(LmError::Cancelled) } else { Ok(None) }
}

fn trimmed(caches: &[LayerCache], surplus: usize) -> Vec<LayerCache> {
    let mut caches = caches.to_vec();
    for cache in &mut caches {
        cache.trim(surplus);
    }
    caches
}

/// One span in each part of equal length, at a place that whoever made the file cannot know, and
/// the last tokens.
fn sample_spans(num_tokens: usize) -> Vec<Range<usize>> {
    let part = num_tokens / NUM_SPANS;
    let random = |index: usize| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_usize(index);
        hasher.finish() as usize
    };
    let starts = (0..NUM_SPANS).map(|index| index * part + random(index) % (part - SPAN_TOKENS));
    starts.chain([num_tokens - SPAN_TOKENS]).map(|start| start..start + SPAN_TOKENS).collect()
}
