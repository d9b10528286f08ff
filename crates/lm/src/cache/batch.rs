//! Conversion between the caches of single requests and caches with one row per request.
//!
//! Every function takes the caches of all layers. A forward pass over prompts of different lengths
//! pads the shorter rows on the right: call [`prepare`] with the true lengths before it and
//! [`finalize`] after it. [`extract`] returns one row's own tokens at any time.

use super::{CacheSpec, LayerCache};
use crate::LmError;

/// What the caches of one request are, if they can be rows of a batch. Fails with
/// [`LmError::NotBatchable`] for a kind of cache that has no batched form.
pub fn batch_spec(caches: &[LayerCache]) -> Result<CacheSpec, LmError> {
    let spec = CacheSpec::of(caches).ok_or(LmError::MixedCaches)?;
    spec.check_batch()?;
    Ok(spec)
}

/// Makes one set of caches with a row for each request, in order. Shorter rows are padded on the
/// left, so that all rows end at the same column.
///
/// Fails if a kind has no batched form, and with [`LmError::MixedCaches`] if the rows are of
/// different kinds.
pub fn merge(rows: Vec<Vec<LayerCache>>) -> Result<Vec<LayerCache>, LmError> {
    let mut layers: Vec<Vec<LayerCache>> = Vec::new();
    for row in rows {
        if layers.is_empty() {
            layers = row.into_iter().map(|cache| vec![cache]).collect();
            continue;
        }
        if row.len() != layers.len() {
            return Err(LmError::MixedCaches);
        }
        for (layer, cache) in layers.iter_mut().zip(row) {
            layer.push(cache);
        }
    }
    layers.into_iter().map(merge_layer).collect()
}

fn merge_layer(rows: Vec<LayerCache>) -> Result<LayerCache, LmError> {
    let specs: Option<Vec<_>> = rows.iter().map(LayerCache::spec).collect();
    let specs = specs.ok_or(LmError::MixedCaches)?;
    let first = specs.first().ok_or(LmError::MixedCaches)?;
    specs.iter().try_for_each(|spec| spec.as_kind().check_batch())?;
    if specs.iter().any(|spec| !spec.is_same_kind(first)) {
        return Err(LmError::MixedCaches);
    }
    first.as_kind().merge(rows)
}

/// Appends the rows of `other`, a batch of the same kinds, to `caches`.
pub fn extend(caches: &mut [LayerCache], other: Vec<LayerCache>) -> Result<(), LmError> {
    if caches.len() != other.len() {
        return Err(LmError::MixedCaches);
    }
    caches.iter_mut().zip(other).try_for_each(|(cache, other)| cache.as_kind_mut().extend(other))
}

/// Keeps only the rows `kept`, in that order.
pub fn filter(caches: &mut [LayerCache], kept: &[usize]) -> Result<(), LmError> {
    caches.iter_mut().try_for_each(|cache| cache.as_kind_mut().filter(kept))
}

/// The caches of one row, as if the request had run without a batch.
pub fn extract(caches: &[LayerCache], row: usize) -> Result<Vec<LayerCache>, LmError> {
    caches.iter().map(|cache| cache.as_kind().extract(row)).collect()
}

/// Caches of `num_rows` rows that continue the one row of `caches` and share its keys and values.
///
/// For forward passes in which shorter rows are padded on the right, and of which only the results
/// of the rows' own tokens are used; [`prepare`] is not needed. Fails with
/// [`LmError::NotBatchable`] for a kind that cannot be shared.
pub fn continued_by_rows(
    caches: &[LayerCache],
    num_rows: usize,
) -> Result<Vec<LayerCache>, LmError> {
    caches.iter().map(|cache| cache.as_kind().continued_by_rows(num_rows)).collect()
}

/// Announces how many tokens of the coming forward passes belong to each row (at least one); the
/// remaining columns of a row are right padding.
pub fn prepare(caches: &mut [LayerCache], lengths: &[i32]) -> Result<(), LmError> {
    caches.iter_mut().try_for_each(|cache| cache.as_kind_mut().prepare(lengths))
}

/// Ends the passes that [`prepare`] announced: moves each row's right padding to the left.
pub fn finalize(caches: &mut [LayerCache]) -> Result<(), LmError> {
    caches.iter_mut().try_for_each(|cache| cache.as_kind_mut().finalize())
}

#[cfg(test)]
mod tests {
    use mlx_rs::Array;

    use super::super::{
        ArraysCache, AttentionStep, ChunkedKvCache, DecodeSlot, KeysValues, KvCache, Mask,
        RopeOffset, RotatingKvCache,
    };
    use super::*;
    use crate::cache::buffer;
    use crate::cache::kind::CacheKind;

    /// Numbers that are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: i32) -> i32 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % limit as u64) as i32
        }
    }

    /// A batch under test and its rows' lengths, from which follows what each token should see.
    #[derive(Clone)]
    struct Rows {
        caches: Vec<LayerCache>,
        names: Vec<i32>,
        lengths: Vec<i32>,
        seen: Seen,
    }

    /// Which tokens of its row a token sees.
    #[derive(Debug, Clone, Copy)]
    enum Seen {
        All,
        /// The last ones.
        Window(i32),
        /// Those of its own chunk.
        Chunk(i32),
    }

    impl Seen {
        fn first(self, position: i32) -> i32 {
            match self {
                Seen::All => 0,
                Seen::Window(window) => (position + 1 - window).max(0),
                Seen::Chunk(size) => position / size * size,
            }
        }

        fn window(self) -> Option<i32> {
            if let Seen::Window(window) = self { Some(window) } else { None }
        }
    }

    /// Keys that encode their row and position as row * 1000 + position; right padding is negative.
    fn keys(names: &[i32], starts: &[i32], lengths: &[i32]) -> Array {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut numbers = Vec::new();
        for ((name, start), length) in names.iter().zip(starts).zip(lengths) {
            numbers.extend((0..longest).map(|step| {
                if step < *length { (name * 1000 + start + step) as f32 } else { -1.0 }
            }));
        }
        Array::from_slice(&numbers, &[names.len() as i32, 1, longest, 1])
    }

    /// The numbers of an array `[B, 1, T, 1]`, of each row.
    fn numbers_of_rows(array: &Array) -> Vec<Vec<i32>> {
        let array = array.contiguous().expect("contiguous");
        let rows = array.as_slice::<f32>().chunks(array.dim(2) as usize);
        rows.map(|row| row.iter().map(|&number| number as i32).collect()).collect()
    }

    /// The keys of each row that a kernel attends to before the new one, and where that goes among the
    /// newest: as it reads the slot mapping.
    fn before_in_slot(step: &AttentionStep, slot: &DecodeSlot) -> (Vec<Vec<i32>>, i32) {
        let mapping = step.slot_mapping(slot).expect("mapping");
        mapping.eval().expect("computed");
        let (older, newest) = (numbers_of_rows(&slot.keys), numbers_of_rows(&slot.newest_keys));
        let mut column = 0;
        let of_row = |(row, numbers): (usize, &[i32])| {
            let &[position, columns, first, oldest] = numbers else { panic!("four numbers") };
            assert_eq!(position, slot.positions[row]);
            let (num_older, num_newest) = (columns & 0xff_ffff, columns >> 24);
            column = num_newest;
            let key = |at: i32| match at < num_older {
                true => older[row][((at + oldest) % num_older) as usize],
                false => newest[row][(at - num_older) as usize],
            };
            (first..num_older + num_newest).map(key).collect()
        };
        let mapping = &mapping.as_slice::<i32>()[..4 * older.len()];
        let before = mapping.chunks(4).enumerate().map(of_row).collect();
        (before, column)
    }

    impl Rows {
        fn new(kind: &LayerCache, name: i32, seen: Seen) -> Self {
            Rows {
                caches: merge(vec![vec![kind.clone()]]).expect("merge"),
                names: vec![name],
                lengths: vec![0],
                seen,
            }
        }

        /// Appends `new[row]` tokens to each row and checks what each of them sees.
        fn append(&mut self, new: &[i32]) {
            let longest = new.iter().copied().max().unwrap_or(0);
            if new.iter().any(|&length| length < longest) {
                prepare(&mut self.caches, new).expect("prepare");
            }
            let cache = &mut self.caches[0];
            let AttentionStep { offset, mask, .. } =
                cache.attention_step(longest, self.seen.window()).expect("step");
            let offsets = match offset {
                RopeOffset::Same(offset) => vec![offset; new.len()],
                RopeOffset::PerRow(offsets) => offsets.as_slice::<i32>().to_vec(),
            };
            assert_eq!(offsets, self.lengths, "offsets");
            if longest == 1 && self.lengths[0] % 2 == 0 {
                // As where a kernel refuses the slot: the step still holds.
                cache.decode_slot(1).expect("slot");
            }
            let new_keys = keys(&self.names, &self.lengths, new);
            let KeysValues::Dense { keys, values } =
                cache.update_and_fetch(new_keys.clone(), new_keys).expect("update")
            else {
                panic!("keys are dense");
            };
            let keys = keys.contiguous().expect("contiguous");
            assert_eq!(
                keys.as_slice::<f32>(),
                values.contiguous().expect("contiguous").as_slice::<f32>()
            );
            let total = keys.dim(2);
            let seen = match mask {
                Mask::None | Mask::Causal => {
                    let rows = (0..longest).flat_map(|query| {
                        (0..total).map(move |key| longest == 1 || key <= total - longest + query)
                    });
                    let rows: Vec<bool> = rows.collect();
                    rows.repeat(new.len())
                }
                Mask::Array(mask) => {
                    let all =
                        mlx_rs::ops::broadcast_to(mask, &[new.len() as i32, 1, longest, total])
                            .expect("mask");
                    all.contiguous().expect("contiguous").as_slice::<bool>().to_vec()
                }
            };
            for row in 0..new.len() {
                for query in 0..new[row] {
                    let from = (row * longest as usize + query as usize) * total as usize;
                    let held = &keys.as_slice::<f32>()[row * total as usize..][..total as usize];
                    let mut found: Vec<i32> = held
                        .iter()
                        .zip(&seen[from..])
                        .filter(|(_, seen)| **seen)
                        .map(|(key, _)| *key as i32)
                        .collect();
                    found.sort_unstable();
                    let position = self.lengths[row] + query;
                    let first = self.seen.first(position);
                    let expected: Vec<i32> = (first..=position)
                        .map(|position| self.names[row] * 1000 + position)
                        .collect();
                    assert_eq!(
                        found, expected,
                        "row {row}, query {query} of {new:?} after {:?}",
                        self.lengths
                    );
                }
            }
            for (length, new) in self.lengths.iter_mut().zip(new) {
                *length += new;
            }
        }

        /// Appends a token to each row in the slot that the cache has for them, and checks what each of
        /// them sees; false, with nothing appended, if it has none.
        fn append_in_slot(&mut self) -> bool {
            let cache = &mut self.caches[0];
            let step = cache.attention_step(1, self.seen.window()).expect("step");
            let Some(slot) = cache.decode_slot(1).expect("slot") else { return false };
            assert!(step.sees_all_before(1), "{:?}", step.mask);
            assert_eq!(slot.positions, self.lengths);
            let (before, column) = before_in_slot(&step, &slot);
            for (row, mut found) in before.into_iter().enumerate() {
                found.sort_unstable();
                let position = self.lengths[row];
                let expected = self.seen.first(position)..position;
                let expected: Vec<i32> =
                    expected.map(|position| self.names[row] * 1000 + position).collect();
                assert_eq!(found, expected, "row {row} after {:?}", self.lengths);
            }
            let new = keys(&self.names, &self.lengths, &vec![1; self.names.len()]);
            let newest = buffer::write(&slot.newest_keys, &new, column).expect("write");
            cache.fill_decode_slot(newest.clone(), newest, 1);
            self.lengths.iter_mut().for_each(|length| *length += 1);
            true
        }

        fn filter(&mut self, kept: &[usize]) {
            filter(&mut self.caches, kept).expect("filter");
            self.names = kept.iter().map(|&row| self.names[row]).collect();
            self.lengths = kept.iter().map(|&row| self.lengths[row]).collect();
        }

        fn extend(&mut self, other: Rows) {
            extend(&mut self.caches, other.caches).expect("extend");
            self.names.extend(other.names);
            self.lengths.extend(other.lengths);
        }

        /// Extracts every row and merges them again.
        fn remerge(&mut self) {
            let rows = (0..self.names.len())
                .map(|row| extract(&self.caches, row).expect("extract"))
                .collect();
            self.caches = merge(rows).expect("merge");
        }
    }

    /// Random steps, joins, leaves and rebuilds: every token sees exactly the tokens of its row
    /// that it should.
    fn check(kind: &LayerCache, seen: Seen, seed: u64) {
        let mut numbers = Numbers(seed);
        let mut rows = Rows::new(kind, 0, seen);
        rows.append(&[1 + numbers.below(12)]);
        for name in 1..60 {
            match numbers.below(8) {
                0 | 1 if rows.names.len() < 5 => {
                    let mut other = Rows::new(kind, name, seen);
                    if numbers.below(4) > 0 {
                        other.append(&[1 + numbers.below(20)]);
                    }
                    rows.extend(other);
                }
                2 if rows.names.len() > 1 => {
                    let gone = numbers.below(rows.names.len() as i32) as usize;
                    let kept: Vec<usize> =
                        (0..rows.names.len()).filter(|&row| row != gone).collect();
                    rows.filter(&kept);
                }
                3 => rows.remerge(),
                4 => {
                    let new: Vec<i32> = rows.names.iter().map(|_| 1 + numbers.below(9)).collect();
                    rows.append(&new);
                    if numbers.below(2) == 0 {
                        finalize(&mut rows.caches).expect("finalize");
                    }
                }
                _ => {}
            }
            // Single tokens belong to every row, so right padding has to be moved before them.
            for cache in &mut rows.caches {
                match cache {
                    LayerCache::BatchKv(cache) => cache.finalize().expect("finalize"),
                    LayerCache::BatchRotating(cache) => cache.finalize().expect("finalize"),
                    LayerCache::BatchChunked(cache) => {
                        CacheKind::finalize(cache).expect("finalize");
                    }
                    _ => {}
                }
            }
            for _ in 0..numbers.below(4) {
                if numbers.below(2) == 0 || !rows.append_in_slot() {
                    rows.append(&vec![1; rows.names.len()]);
                }
            }
        }
    }

    #[test]
    fn rows_see_their_own_tokens_and_no_others() {
        for seed in cairn_sweeps::sweep("rows join and leave", 5) {
            check(&LayerCache::Kv(KvCache::new()), Seen::All, seed);
            check(&LayerCache::Kv(KvCache::new()), Seen::Window(7), seed);
        }
    }

    #[test]
    fn rows_see_their_own_chunks() {
        for seed in cairn_sweeps::sweep("rows of chunks join and leave", 5) {
            for size in [4, 9, 300] {
                let kind = LayerCache::Chunked(ChunkedKvCache::new(size));
                check(&kind, Seen::Chunk(size), seed);
            }
        }
    }

    #[test]
    fn rows_know_their_position_where_a_chunk_ends() {
        let kind = LayerCache::Chunked(ChunkedKvCache::new(256));
        let mut rows = Rows::new(&kind, 0, Seen::Chunk(256));
        rows.append(&[256]);
        rows.remerge();
        rows.append(&[1]);
    }

    #[test]
    fn rows_of_chunks_drop_what_none_sees() {
        const SIZE: i32 = 8;
        let mut rows =
            Rows::new(&LayerCache::Chunked(ChunkedKvCache::new(SIZE)), 0, Seen::Chunk(SIZE));
        rows.append(&[3]);
        let mut other =
            Rows::new(&LayerCache::Chunked(ChunkedKvCache::new(SIZE)), 1, Seen::Chunk(SIZE));
        other.append(&[290]);
        rows.extend(other);
        for _ in 0..600 {
            rows.append(&[1, 1]);
        }
        let columns = rows.caches[0].arrays()[0].dim(2);
        assert!(columns <= 3 * KvCache::STEP, "{columns} columns of 890 tokens");
        rows.remerge();
        rows.append(&[1, 1]);
    }

    #[test]
    fn rows_of_a_ring_see_the_last_tokens_of_their_own() {
        for seed in cairn_sweeps::sweep("rows of a ring join and leave", 5) {
            check(&LayerCache::Rotating(RotatingKvCache::new(8, 0)), Seen::Window(8), seed);
            check(&LayerCache::Rotating(RotatingKvCache::new(8, 0)), Seen::Window(5), seed);
            check(&LayerCache::Rotating(RotatingKvCache::new(3, 0)), Seen::Window(3), seed);
            check(&LayerCache::Rotating(RotatingKvCache::new(300, 0)), Seen::Window(300), seed);
        }
    }

    #[test]
    fn rows_of_a_ring_wrap_around_with_their_newest_tokens_apart() {
        let ring = |size| LayerCache::Rotating(RotatingKvCache::new(size, 0));
        // Less than the newest tokens that stand apart, more, and many more, with windows as wide and
        // narrower; in rows that have more tokens than the ring, as many, and fewer.
        for (size, window) in [(3, 3), (40, 40), (64, 50), (100, 100), (100, 70), (300, 300)] {
            for lengths in [[1, 2, 3], [5, size, 30], [size - 1, size + 20, 1]] {
                let mut rows = Rows::new(&ring(size), 0, Seen::Window(window));
                rows.append(&lengths[..1]);
                for (name, &length) in (1..).zip(&lengths[1..]) {
                    let mut other = Rows::new(&ring(size), name, Seen::Window(window));
                    other.append(&[length]);
                    rows.extend(other);
                }
                for _ in 0..2 * size + 70 {
                    assert!(rows.append_in_slot());
                }
                // What the slots left is what other operations find.
                let mut copy = rows.clone();
                copy.append(&[1; 3]);
                copy.append(&[4, 1, 2]);
                rows.remerge();
                rows.append(&[1; 3]);
                assert!(rows.append_in_slot());
            }
        }
    }

    #[test]
    fn states_of_rows_merge_and_part() {
        let state = |numbers: &[f32]| {
            let mut cache = ArraysCache::new(2);
            cache.set(0, Array::from_slice(numbers, &[1, numbers.len() as i32]));
            cache.advance(numbers.len());
            cache
        };
        let mut batch =
            ArraysCache::merge(&[state(&[1.0, 2.0]), ArraysCache::new(2), state(&[3.0, 4.0])])
                .expect("merge");
        let slot = |cache: &ArraysCache| {
            cache
                .get(0)
                .expect("state")
                .contiguous()
                .expect("contiguous")
                .as_slice::<f32>()
                .to_vec()
        };
        assert_eq!(slot(&batch), [1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
        assert!(batch.get(1).is_none());
        batch.prepare(&[3, 1, 2]);
        let mask = batch.mask(3).expect("mask");
        assert_eq!(
            mask.as_slice::<bool>(),
            [true, true, true, true, false, false, true, true, false]
        );
        batch.advance(3);
        batch.finalize();
        assert!(batch.mask(3).is_none());
        batch.filter(&[2, 1]).expect("filter");
        assert_eq!((batch.num_rows(), slot(&batch)), (2, vec![3.0, 4.0, 0.0, 0.0]));
        let row = batch.extract(0).expect("extract");
        assert_eq!((row.offset(), slot(&row)), (4, vec![3.0, 4.0]));
        assert_eq!(batch.extract(1).expect("extract").offset(), 1);
    }

    #[test]
    fn what_cannot_be_a_row_is_named() {
        let kept = LayerCache::Rotating(RotatingKvCache::new(8, 4));
        let error = merge(vec![vec![kept]]).expect_err("no batched form");
        assert_eq!(
            error.to_string(),
            "a rotating cache that keeps its first tokens has no batched form: run its requests one after another"
        );
        let quantized =
            LayerCache::Quantized(super::super::QuantizedKvCache::new(64, 8).expect("settings"));
        assert!(matches!(
            merge(vec![vec![quantized]]),
            Err(LmError::NotBatchable { kind: "quantized cache" })
        ));
        let rings = [8, 9].map(|size| vec![LayerCache::Rotating(RotatingKvCache::new(size, 0))]);
        assert!(matches!(merge(rings.to_vec()), Err(LmError::MixedCaches)));
        let mixed = vec![
            vec![LayerCache::Kv(KvCache::new())],
            vec![LayerCache::Arrays(ArraysCache::new(2))],
        ];
        assert!(matches!(merge(mixed), Err(LmError::MixedCaches)));
    }
}
