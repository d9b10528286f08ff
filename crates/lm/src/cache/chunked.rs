//! A cache of the last chunk or two: for attention that looks back only to the start of its own
//! chunk (Llama 4).

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::buffer::{append, token_range};
use super::{AttentionStep, Mask, RopeOffset};

/// At most `chunk_size` tokens before a step, and the step's own. As mlx-lm's ChunkedKVCache.
///
/// Each step first drops the tokens that no later one can attend to, by advancing `start`. They
/// leave the buffer only when it has to grow, so that most steps write in place: slot 0 holds the
/// token at position `base`, and `base <= start <= offset`.
#[derive(Debug, Clone)]
pub struct ChunkedKvCache {
    keys: Option<Array>,   // [B, H, capacity, D]
    values: Option<Array>, // [B, H, capacity, D]
    chunk_size: i32,
    base: i32,
    start: i32,
    offset: i32,
}

impl ChunkedKvCache {
    /// An empty cache.
    ///
    /// Panics unless `chunk_size` is above 0.
    pub fn new(chunk_size: i32) -> Self {
        assert!(chunk_size > 0, "a chunk has at least one token");
        ChunkedKvCache { keys: None, values: None, chunk_size, base: 0, start: 0, offset: 0 }
    }

    /// A cache that holds the tokens `start..offset` in `keys` and `values` `[B, H, capacity, D]`.
    pub(super) fn from_buffers(
        chunk_size: i32,
        keys: Array,
        values: Array,
        start: i32,
        offset: i32,
    ) -> Self {
        ChunkedKvCache {
            keys: Some(keys),
            values: Some(values),
            base: start,
            start,
            offset,
            ..ChunkedKvCache::new(chunk_size)
        }
    }

    /// How many tokens a step can look back to.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size as usize
    }

    /// How many tokens were appended, dropped ones included.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// The position of the first token that has not been dropped.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Whether no token was ever appended.
    pub fn is_empty(&self) -> bool {
        self.keys.is_none()
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns the tokens that the step can look
    /// back to, followed by its own.
    pub fn update_and_fetch(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let (start, stop) = (self.next_start(), self.offset + keys.dim(2));
        let is_full = self.keys.as_ref().is_some_and(|keys| stop - self.base > keys.dim(2));
        let base = if is_full { start } else { self.base };
        let appended = |buffer: &Option<Array>, update: &Array| match buffer {
            Some(buffer) if is_full => append(
                Some(&token_range(buffer, start - self.base, self.offset - self.base)?),
                update,
                self.offset - base,
            ),
            buffer => append(buffer.as_ref(), update, self.offset - base),
        };
        let (all_keys, all_values) = (appended(&self.keys, keys)?, appended(&self.values, values)?);
        (self.base, self.start, self.offset) = (base, start, stop);
        let views = (
            token_range(&all_keys, start - base, stop - base)?,
            token_range(&all_values, start - base, stop - base)?,
        );
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// Position and mask of the next `length` tokens, which attend to the tokens before them in
    /// their own chunk.
    pub fn attention_step(&self, length: i32) -> Result<AttentionStep> {
        let (start, stop) = (self.next_start(), self.offset + length);
        let chunk_of = |position: i32| position / self.chunk_size * self.chunk_size;
        let is_one_chunk =
            start >= chunk_of(self.offset) && chunk_of(self.offset) == chunk_of(stop - 1);
        let mask = if !is_one_chunk {
            let chunks: Vec<i32> = (self.offset..stop).map(chunk_of).collect();
            let chunks = Array::from_slice(&chunks, &[length, 1]);
            let queries = ops::reshape(ops::arange::<_, i32>(self.offset, stop, 1)?, &[length, 1])?;
            let keys = ops::arange::<_, i32>(start, stop, 1)?;
            Mask::Array(queries.ge(&keys)?.logical_and(chunks.le(&keys)?)?)
        } else if length == 1 {
            Mask::None
        } else {
            Mask::Causal
        };
        Ok(AttentionStep::new(RopeOffset::Same(self.offset), mask))
    }

    /// Whether tokens can be removed from the end: not once tokens have been dropped at the front.
    /// mlx-lm still trims then, but the tokens before the new end may lack the start of their
    /// chunk.
    pub fn is_trimmable(&self) -> bool {
        self.start == 0
    }

    /// Removes the last `num_tokens` and returns how many it removed: 0 if it cannot.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        trimmed
    }

    /// The keys and values in use, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        let held = |buffer| token_range(buffer, self.start - self.base, self.offset - self.base);
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if self.start < self.offset => {
                Ok(Some((held(keys)?, held(values)?)))
            }
            _ => Ok(None),
        }
    }

    /// The arrays that the cache consists of, capacity included.
    pub fn arrays(&self) -> Vec<&Array> {
        self.keys.iter().chain(&self.values).collect()
    }

    fn next_start(&self) -> i32 {
        self.start.max(self.offset - self.chunk_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(from: i32, to: i32) -> Array {
        let numbers: Vec<f32> = (from..to).map(|token| token as f32).collect();
        Array::from_slice(&numbers, &[1, 1, to - from, 1])
    }

    /// Appends steps of the given lengths (trims where negative) and compares which positions the
    /// last one returned and its mask.
    fn check(
        chunk_size: i32,
        steps: &[i32],
        expected: std::ops::Range<i32>,
        seen: Option<&[&str]>,
    ) {
        let mut cache = ChunkedKvCache::new(chunk_size);
        let mut last = (Vec::new(), None);
        for &step in steps {
            let offset = cache.offset() as i32;
            if step < 0 {
                let expected = if cache.start == 0 { (-step).min(offset) } else { 0 };
                assert_eq!(cache.trim(-step as usize) as i32, expected, "trim in {steps:?}");
                continue;
            }
            let mask = cache.attention_step(step).expect("step").mask;
            let new = tokens(offset, offset + step);
            let (keys, values) = cache.update_and_fetch(&new, &new).expect("update");
            let keys = keys.contiguous().expect("contiguous").as_slice::<f32>().to_vec();
            assert_eq!(values.contiguous().expect("contiguous").as_slice::<f32>(), keys);
            let rows = match mask {
                Mask::Array(mask) => {
                    let row_of = |row: &[bool]| {
                        row.iter().map(|&seen| if seen { 'T' } else { 'F' }).collect::<String>()
                    };
                    Some(
                        mask.as_slice::<bool>()
                            .chunks(mask.dim(-1) as usize)
                            .map(row_of)
                            .collect::<Vec<_>>(),
                    )
                }
                Mask::None | Mask::Causal => None,
            };
            last = (keys, rows);
        }
        assert_eq!(
            last.0,
            tokens(expected.start, expected.end).as_slice::<f32>(),
            "chunks of {chunk_size} after {steps:?}"
        );
        assert_eq!(
            last.1,
            seen.map(|rows| rows.iter().map(|row| (*row).to_owned()).collect()),
            "chunks of {chunk_size} after {steps:?}"
        );
    }

    #[test]
    fn a_step_sees_its_own_chunk() {
        check(4, &[3], 0..3, None);
        check(4, &[3, 1], 0..4, None);
        check(4, &[4, 1], 0..5, Some(&["FFFFT"]));
        check(4, &[4, 1, 1], 1..6, Some(&["FFFTT"]));
        check(4, &[2, 4], 0..6, Some(&["TTTFFF", "TTTTFF", "FFFFTF", "FFFFTT"]));
        check(4, &[9, 2], 5..11, Some(&["FFFTTF", "FFFTTT"]));
        check(4, &[9, -2, 1], 3..8, Some(&["FTTTT"]));
        check(4, &[9, 1, -2, 1], 6..11, Some(&["FFTTT"]));
        check(300, &[250, 2, 2, 2, 2, 2], 0..260, None);
        check(300, &[290, 290, 1], 280..581, Some(&[&("F".repeat(20) + &"T".repeat(281))]));
    }
}
