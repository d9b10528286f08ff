//! A cache of the last `max_size` tokens: for sliding-window attention, and for `max_kv_size`.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::buffer::{STEP, front, joined, room, token_range, write};
use super::{AttentionStep, DecodeSlot, Mask, RopeOffset, causal_mask};

/// The last `max_size` tokens; the first `keep` of the sequence are never overwritten. As mlx-lm's
/// RotatingKVCache.
///
/// - Single tokens go into a ring: once it holds `max_size` tokens, each overwrites the oldest.
/// - Several tokens at once are appended in temporal order to the last `max_size - 1`, so that each
///   of them sees `max_size` tokens; the buffer then exceeds `max_size` until the next single
///   token.
/// - While `offset < max_size` no token has been dropped: `index == offset`, and tokens can be
///   trimmed.
/// - Otherwise the buffer has at least `max_size` tokens, and either `index` is its length
///   (temporal order), or the buffer is a ring of exactly `max_size` tokens whose newest one stands
///   before `index`.
#[derive(Debug, Clone)]
pub struct RotatingKvCache {
    keys: Option<Array>,   // [B, H, capacity, D]
    values: Option<Array>, // [B, H, capacity, D]
    max_size: i32,
    keep: i32,
    offset: i32,
    index: i32,
}

impl RotatingKvCache {
    /// An empty cache.
    ///
    /// Panics unless `0 <= keep < max_size`: a ring needs at least one slot to overwrite.
    pub fn new(max_size: i32, keep: i32) -> Self {
        assert!((0..max_size).contains(&keep), "a ring of {max_size} tokens cannot keep {keep}");
        RotatingKvCache { keys: None, values: None, max_size, keep, offset: 0, index: 0 }
    }

    /// A cache after `offset` tokens, of which it holds the last T in temporal order: keys and
    /// values `[B, H, T, D]`.
    pub fn from_temporal(
        max_size: i32,
        keep: i32,
        keys: Array,
        values: Array,
        offset: i32,
    ) -> Self {
        RotatingKvCache {
            index: keys.dim(2),
            keys: Some(keys),
            values: Some(values),
            offset,
            ..RotatingKvCache::new(max_size, keep)
        }
    }

    /// A cache in any of the states that [`RotatingKvCache`] lists; cuts the buffers to the tokens
    /// in use.
    pub(super) fn from_buffers(
        max_size: i32,
        keep: i32,
        keys: Array,
        values: Array,
        offset: i32,
        index: i32,
    ) -> Result<Self> {
        // A file from another program may hold more spare capacity than the ring's size.
        let in_use = if offset < max_size { offset } else { keys.dim(2) };
        if in_use == 0 {
            return Ok(RotatingKvCache::new(max_size, keep));
        }
        let (keys, values) = (Some(front(&keys, in_use)?), Some(front(&values, in_use)?));
        Ok(RotatingKvCache { keys, values, max_size, keep, offset, index })
    }

    /// The keys and values in use, in the buffer's order, as views; `None` for an empty cache.
    pub(super) fn tokens_in_use(&self) -> Result<Option<(Array, Array)>> {
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) if self.offset > 0 => {
                let in_use = self.offset.min(keys.dim(2));
                Ok(Some((front(keys, in_use)?, front(values, in_use)?)))
            }
            _ => Ok(None),
        }
    }

    /// The slot after the newest token.
    pub(super) fn index(&self) -> i32 {
        self.index
    }

    /// The most tokens that a single one attends to.
    pub fn max_size(&self) -> usize {
        self.max_size as usize
    }

    /// How many of the sequence's first tokens are never overwritten.
    pub fn keep(&self) -> usize {
        self.keep as usize
    }

    /// How many tokens were appended, those that have been overwritten included.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Whether no token was ever appended.
    pub fn is_empty(&self) -> bool {
        self.keys.is_none()
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, since attention does not depend on the order of keys, otherwise in
    /// temporal order.
    pub fn update_and_fetch(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        if keys.dim(2) == 1 {
            self.replace_oldest(&keys, &values)
        } else {
            self.append(keys, values)
        }
    }

    fn append(&mut self, keys: Array, values: Array) -> Result<(Array, Array)> {
        let length = keys.dim(2);
        let (all_keys, all_values) = match (&self.keys, &self.values) {
            (Some(old_keys), Some(old_values)) => {
                let mut held = self.temporal_ranges(old_keys.dim(2)).to_vec();
                let num_held: i32 = held.iter().map(|span| span.end - span.start).sum();
                let surplus = num_held - (self.max_size - 1);
                if surplus > 0 {
                    held = without(&held, self.keep..self.keep + surplus);
                }
                (gathered(old_keys, &held, Some(keys))?, gathered(old_values, &held, Some(values))?)
            }
            _ => (keys, values),
        };
        self.offset += length;
        self.index = all_keys.dim(2);
        self.keys = Some(all_keys.clone());
        self.values = Some(all_values.clone());
        Ok((all_keys, all_values))
    }

    fn replace_oldest(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)> {
        let (old_keys, old_values, index) = self.with_free_slot(keys, values)?;
        let all_keys = write(&old_keys, keys, index)?;
        let all_values = write(&old_values, values, index)?;
        self.offset += 1;
        self.index = index + 1;
        let held = self.offset.min(all_keys.dim(2));
        let views = (front(&all_keys, held)?, front(&all_values, held)?);
        self.keys = Some(all_keys);
        self.values = Some(all_values);
        Ok(views)
    }

    /// Keys, values and the index at which the next single token is written: of at most `max_size`
    /// tokens, with room for it. `new_keys` and `new_values` `[B, H, .., D]` give the shape of an
    /// empty cache.
    fn with_free_slot(&self, new_keys: &Array, new_values: &Array) -> Result<(Array, Array, i32)> {
        let capacity = self.keys.as_ref().map_or(0, |keys| keys.dim(2));
        let prepare = |held: &Option<Array>, new: &Array| match held {
            None => room(new, STEP.min(self.max_size)),
            Some(held) if self.offset >= capacity && capacity < self.max_size => {
                joined(&[held.clone(), room(new, STEP.min(self.max_size - self.offset))?])
            }
            Some(held) if capacity > self.max_size => gathered(
                held,
                &[0..self.keep, capacity - self.max_size + self.keep..capacity],
                None,
            ),
            Some(held) => Ok(held.clone()),
        };
        let index = if self.index >= self.max_size { self.keep } else { self.index };
        Ok((prepare(&self.keys, new_keys)?, prepare(&self.values, new_values)?, index))
    }

    /// The place of the next token: the ring is small, and every step may replace it. `None` for an
    /// empty cache.
    pub(super) fn decode_slot(&mut self) -> Result<Option<DecodeSlot>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        let (keys, values, index) = self.with_free_slot(keys, values)?;
        let in_use = self.offset.min(keys.dim(2));
        Ok(Some(DecodeSlot {
            keys: keys.clone(),
            values: values.clone(),
            newest_keys: keys,
            newest_values: values,
            sizes: [0, in_use, index, self.offset],
        }))
    }

    /// Replaces the ring of [`RotatingKvCache::decode_slot`] by one into which the next token was
    /// written.
    pub(super) fn replace_ring(&mut self, keys: Array, values: Array) {
        self.index = if self.index >= self.max_size { self.keep } else { self.index } + 1;
        self.offset += 1;
        (self.keys, self.values) = (Some(keys), Some(values));
    }

    /// Position and mask of the next `length` tokens, which attend to the last `window` tokens, at
    /// most `max_size`.
    pub fn attention_step(&self, length: i32, window: Option<i32>) -> Result<AttentionStep> {
        let mask = if length == 1 {
            match window {
                // Only a window narrower than the ring hides a slot.
                Some(window) if self.offset >= window && self.max_size > window => {
                    Mask::Array(self.single_mask(window))
                }
                _ => Mask::None,
            }
        } else {
            let window = window.unwrap_or(self.max_size);
            let offset = self.offset.min(self.max_size - 1);
            if offset + length > window {
                Mask::Array(causal_mask(length, offset, Some(window))?)
            } else {
                Mask::Causal
            }
        };
        Ok(AttentionStep::new(RopeOffset::Same(self.offset), mask))
    }

    /// bool `[T]`: which slots the next single token sees after it has been written, its own
    /// included.
    fn single_mask(&self, window: i32) -> Array {
        let num_slots = self.max_size.min(self.offset + 1);
        let slot = if self.index >= self.max_size { self.keep } else { self.index };
        let seen: Vec<bool> = (0..num_slots)
            .map(|other| {
                let age = if self.offset < self.max_size || other < self.keep {
                    self.offset - other
                } else {
                    (slot - other).rem_euclid(self.max_size - self.keep)
                };
                age < window
            })
            .collect();
        Array::from_slice(&seen, &[num_slots])
    }

    /// Whether tokens can be removed from the end: not once they have overwritten older ones.
    pub fn is_trimmable(&self) -> bool {
        self.offset < self.max_size
    }

    /// Removes the last `num_tokens` and returns how many it removed: 0 if it cannot.
    pub fn trim(&mut self, num_tokens: usize) -> usize {
        if !self.is_trimmable() {
            return 0;
        }
        let trimmed = num_tokens.min(self.offset as usize);
        self.offset -= trimmed as i32;
        self.index -= trimmed as i32;
        trimmed
    }

    /// Keys and values of the tokens in the cache, oldest first, `[B, H, T, D]`; `None` for an
    /// empty cache. T exceeds `max_size` after several tokens at once.
    pub fn temporal(&self) -> Result<Option<(Array, Array)>> {
        let (Some(keys), Some(values)) = (&self.keys, &self.values) else { return Ok(None) };
        let held = self.temporal_ranges(keys.dim(2));
        Ok(Some((gathered(keys, &held, None)?, gathered(values, &held, None)?)))
    }

    /// The position in the sequence of the first token that [`RotatingKvCache::temporal`] returns,
    /// by counting back from the newest. With `keep > 0` and after an overwrite, the first `keep`
    /// entries are the sequence's first tokens instead of those at that position.
    pub fn first_held(&self) -> usize {
        let capacity = self.keys.as_ref().map_or(0, |keys| keys.dim(2));
        let num_held: i32 =
            self.temporal_ranges(capacity).iter().map(|span| span.end - span.start).sum();
        (self.offset - num_held).max(0) as usize
    }

    /// The arrays that the cache consists of, capacity included.
    pub fn arrays(&self) -> Vec<&Array> {
        self.keys.iter().chain(&self.values).collect()
    }

    /// The parts of the buffer that hold tokens, oldest first.
    fn temporal_ranges(&self, capacity: i32) -> [Range<i32>; 3] {
        if self.index < self.offset && self.index < capacity {
            [0..self.keep, self.index..capacity, self.keep..self.index]
        } else {
            [0..self.index, 0..0, 0..0]
        }
    }
}

/// `spans` without the tokens `removed`, whose numbers count through all spans in order.
fn without(spans: &[Range<i32>], removed: Range<i32>) -> Vec<Range<i32>> {
    let mut rest = Vec::with_capacity(spans.len() + 1);
    let mut counted = 0;
    for span in spans {
        let shift = span.start - counted;
        rest.push(span.start..span.end.min(removed.start + shift));
        rest.push(span.start.max(removed.end + shift)..span.end);
        counted += span.end - span.start;
    }
    rest
}

/// The tokens of `spans`, followed by `more`.
fn gathered(buffer: &Array, spans: &[Range<i32>], more: Option<Array>) -> Result<Array> {
    let mut parts = Vec::with_capacity(spans.len() + 1);
    for part in spans.iter().filter(|part| part.start < part.end) {
        parts.push(if *part == (0..buffer.dim(2)) {
            buffer.clone()
        } else {
            token_range(buffer, part.start, part.end)?
        });
    }
    parts.extend(more);
    // One part needs no copy.
    if parts.len() == 1 { Ok(parts.remove(0)) } else { joined(&parts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(positions: &[i32]) -> Array {
        let numbers: Vec<f32> =
            positions.iter().flat_map(|&token| [token as f32, -token as f32]).collect();
        Array::from_slice(&numbers, &[1, 1, positions.len() as i32, 2])
    }

    fn positions(array: &Array) -> Vec<i32> {
        let array = array.contiguous().expect("contiguous");
        let numbers: &[f32] = array.as_slice();
        numbers.chunks(2).map(|pair| pair[0] as i32).collect()
    }

    /// Appends steps of the given lengths (trims where negative), and compares what the last one
    /// attends to.
    fn check(max_size: i32, keep: i32, steps: &[i32], expected: &[i32]) {
        let mut cache = RotatingKvCache::new(max_size, keep);
        let mut last = Vec::new();
        for &step in steps {
            let offset = cache.offset() as i32;
            if step < 0 {
                assert_eq!(
                    cache.trim(-step as usize) as i32,
                    if offset < max_size { (-step).min(offset) } else { 0 },
                    "trim in {steps:?}"
                );
                continue;
            }
            let new: Vec<i32> = (offset..offset + step).collect();
            let (keys, values) =
                cache.update_and_fetch(tokens(&new), tokens(&new)).expect("update");
            last = positions(&keys);
            assert_eq!(positions(&values), last);
        }
        assert_eq!(last, expected, "ring of {max_size} that keeps {keep}, after {steps:?}");
    }

    #[test]
    fn a_ring_holds_what_the_reference_holds() {
        check(4, 0, &[1, 1, 1], &[0, 1, 2]);
        check(4, 0, &[1, 1, 1, 1, 1], &[4, 1, 2, 3]);
        check(4, 0, &[3, 1, 1, 1], &[4, 5, 2, 3]);
        check(4, 0, &[6], &[0, 1, 2, 3, 4, 5]);
        check(4, 0, &[6, 1], &[6, 3, 4, 5]);
        check(4, 0, &[6, 1, 1, 2], &[5, 6, 7, 8, 9]);
        check(4, 0, &[6, 3], &[3, 4, 5, 6, 7, 8]);
        check(4, 0, &[2, 3, 1], &[5, 2, 3, 4]);
        check(8, 4, &[8, 1, 1], &[0, 1, 2, 3, 8, 9, 6, 7]);
        check(8, 4, &[8, 1, 1, 1, 1, 1], &[0, 1, 2, 3, 12, 9, 10, 11]);
        check(8, 4, &[8, 1, 1, 2], &[0, 1, 2, 3, 7, 8, 9, 10, 11]);
        check(8, 2, &[20, 5], &[0, 1, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]);
        check(8, 2, &[20, 5, 1], &[0, 1, 25, 20, 21, 22, 23, 24]);
        check(300, 0, &[256, 1, 1], &(0..258).collect::<Vec<_>>());
    }

    #[test]
    fn tokens_are_trimmed_until_the_ring_is_full() {
        check(8, 0, &[5, -2, 1, 1], &[0, 1, 2, 3, 4]);
        check(8, 0, &[5, -2, 3], &[0, 1, 2, 3, 4, 5]);
        check(8, 0, &[5, -9, 1], &[0]);
        check(8, 0, &[8, -2, 1], &[8, 1, 2, 3, 4, 5, 6, 7]);
        check(8, 0, &[7, 1, -2, 2], &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
