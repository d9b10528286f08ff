//! Steps of tokens that attend only within their own chunk of the sequence (Llama 4): positions 0 to
//! C - 1, C to 2 C - 1, and so on.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::{AttentionStep, LayerCache, Mask, RopeOffset, causal_mask};

impl LayerCache {
    /// As [`LayerCache::attention_step`], of tokens that attend to those before them in their own
    /// chunk of `chunk` tokens. Fails beyond the first chunk for a cache that drops tokens.
    pub fn attention_step_in_chunks(&self, length: i32, chunk: i32) -> Result<AttentionStep> {
        let kind = self.as_kind();
        let step = kind.attention_step(length, None)?;
        if self.offset() as i32 + length <= chunk {
            return Ok(step);
        }
        let Some([num_shared, num_own]) = kind.columns() else {
            return Err(kind.is_not_for("attention in chunks"));
        };
        let next = match &step.offset {
            RopeOffset::Same(offset) => Array::from_int(*offset),
            RopeOffset::PerRow(offsets) => offsets.reshape(&[-1, 1, 1, 1])?,
        };
        let ahead = ops::arange::<_, i32>(0, length, 1)?.reshape(&[length, 1])?;
        let size = Array::from_int(chunk);
        // The position of the first token in each query's chunk.
        let first = ops::floor_divide(ops::add(&next, ahead)?, &size)?;
        let first = ops::multiply(first, size)?;
        // Rows end at the same column, so a column is as far from each row's next token.
        let positions = ops::add(&next, ops::arange::<_, i32>(-num_own, length, 1)?)?;
        let own = positions.ge(&first)?;
        let own = match &step.mask {
            Mask::None => own,
            Mask::Causal => own.logical_and(causal_mask(length, num_own, None)?)?,
            Mask::Array(mask) => own.logical_and(mask)?,
        };
        if num_shared == 0 {
            return Ok(AttentionStep::new(step.offset, Mask::Array(own)));
        }
        let shared = ops::arange::<_, i32>(0, num_shared, 1)?.ge(&first)?;
        let mut shape = own.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = num_shared;
        }
        let all = ops::concatenate(&[&ops::broadcast_to(&shared, &shape)?, &own], -1)?;
        Ok(AttentionStep::new(step.offset, Mask::Array(all)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::cache::{BatchKvCache, KvCache};

    /// Keys of `num_rows` rows.
    fn tokens(num_rows: i32, length: i32) -> Array {
        ops::zeros::<f32>(&[num_rows, 1, length, 2]).unwrap()
    }

    fn kv(length: i32) -> KvCache {
        let mut cache = KvCache::new();
        cache.update_and_fetch(tokens(1, length), tokens(1, length)).unwrap();
        cache
    }

    /// Which columns the queries of the next `length` tokens see, row by row; none for all before
    /// them.
    fn check(cache: &LayerCache, length: i32, chunk: i32, expected: Option<&[&str]>) {
        let mask = match cache.attention_step_in_chunks(length, chunk).unwrap().mask {
            Mask::Array(mask) => mask.contiguous().unwrap(),
            Mask::None | Mask::Causal => {
                return assert_eq!(None, expected, "chunks of {chunk}");
            }
        };
        let letters = |row: &[bool]| -> String {
            row.iter().map(|&is_seen| if is_seen { 'T' } else { 'F' }).collect()
        };
        let found: Vec<String> =
            mask.as_slice::<bool>().chunks(mask.dim(-1) as usize).map(letters).collect();
        assert_eq!(found, expected.unwrap_or_default(), "chunks of {chunk}");
    }

    #[test]
    fn a_token_sees_its_own_chunk() {
        let cache = LayerCache::Kv(kv(5));
        check(&cache, 1, 6, None);
        check(&cache, 3, 8, None);
        check(&cache, 1, 4, Some(&["FFFFTT"]));
        check(&cache, 1, 5, Some(&["FFFFFT"]));
        check(&cache, 3, 6, Some(&["TTTTTTFF", "FFFFFFTF", "FFFFFFTT"]));
        check(&cache, 2, 4, Some(&["FFFFTTF", "FFFFTTT"]));
    }

    #[test]
    fn rows_of_several_lengths_have_chunks_of_their_own() {
        let rows = [kv(2), kv(5)];
        let cache = LayerCache::BatchKv(BatchKvCache::merge(&rows).unwrap());
        check(&cache, 1, 4, Some(&["FFFTTT", "FFFFTT"]));
        check(&cache, 2, 3, Some(&["FFFTTTF", "FFFFFFT", "FFFTTTF", "FFFFFFT"]));
    }

    #[test]
    fn behind_a_shared_prefix_a_chunk_may_begin_within_it() {
        let mut cache = LayerCache::Kv(kv(6)).as_kind().continued_by_rows(2).unwrap();
        check(&cache, 2, 4, Some(&["FFFFTTTF", "FFFFTTTT"]));
        cache.update_and_fetch(tokens(2, 2), tokens(2, 2)).unwrap();
        check(&cache, 1, 4, Some(&["FFFFFFFFT"]));
    }

    #[test]
    fn a_cache_that_drops_tokens_ends_with_the_first_chunk() {
        let cache = LayerCache::Rotating(crate::cache::RotatingKvCache::new(8, 0));
        assert!(cache.attention_step_in_chunks(4, 4).is_ok());
        assert!(cache.attention_step_in_chunks(5, 4).is_err());
    }
}
