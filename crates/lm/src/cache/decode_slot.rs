//! The slot of new tokens in a cache, for kernels that attend and append in one launch.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::LayerCache;

/// What the next tokens attend to, and where their keys and values go.
///
/// A cache keeps its newest tokens in arrays of their own, which every step replaces: MLX copies a
/// buffer that is written while an earlier step still reads it, which would copy the whole cache
/// for every token when the host runs ahead of the device.
#[derive(Debug)]
pub struct DecodeSlot {
    /// `[B, H, capacity, D]`: the older tokens.
    pub keys: Array,
    /// `[B, H, capacity, D]`
    pub values: Array,
    /// `[B, H, C, D]`: the newest tokens.
    pub newest_keys: Array,
    /// `[B, H, C, D]`
    pub newest_values: Array,
    /// i32 [`DecodeSlot::NUM_COUNTERS`], all zero: with them the blocks of one launch count how many
    /// have finished. Whoever counts leaves them at zero. They belong to the cache of one layer: each
    /// of its launches reads what the one before has written, and so waits for it. Those of two
    /// layers may run at once, if several passes are launched, and those of two sequences too.
    pub counters: Array,
    /// The position of the first of the next tokens, in each row.
    pub(super) positions: Vec<i32>,
    pub(super) columns: SlotColumns,
}

/// Which columns of a [`DecodeSlot`] are in use, and which are for the next tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotColumns {
    /// The next tokens follow the newest, which follow the older ones.
    Behind { num_older: i32, num_newest: i32 },
    /// The newest tokens are all that there are, and the next token has this column among them. It
    /// may be in use: a ring overwrites its oldest token.
    Ring { num_in_use: i32, column: i32 },
    /// The next token follows the newest, which follow the columns of a ring. The oldest of these stands
    /// at `oldest`, and the first follows the last. `num_dropped` of them, counted from the oldest, are
    /// overwritten once the newest and the next token are in the ring.
    BehindRing { num_older: i32, num_newest: i32, oldest: i32, num_dropped: i32 },
}

impl DecodeSlot {
    /// How many counters there are: one for each head of each token of a launch.
    pub const NUM_COUNTERS: i32 = 2048;

    /// The most older tokens, of which [`DecodeSlot::mapping`] writes 24 bits.
    pub(super) const MOST_OLDER: i32 = (1 << 24) - 1;

    /// The most tokens of a ring, of which [`DecodeSlot::mapping`] writes 15 bits.
    pub(super) const MOST_IN_RING: i32 = i16::MAX as i32;

    /// Whether the next tokens of another layer have the same columns, in arrays of the same shapes: then
    /// both layers' kernels read one slot mapping.
    pub(crate) fn is_like(&self, other: &DecodeSlot) -> bool {
        let mut arrays = std::iter::zip(self.arrays(), other.arrays());
        self.positions == other.positions
            && self.columns == other.columns
            && arrays.all(|(own, of_other)| own.shape() == of_other.shape())
    }

    /// Older and newest keys and values, as kernels take them.
    pub(crate) fn arrays(&self) -> [&Array; 4] {
        [&self.keys, &self.values, &self.newest_keys, &self.newest_values]
    }

    /// The slot mapping, four numbers of each row as kernels read them:
    ///
    /// 1. its position;
    /// 2. from the lowest bit, 24 bits of how many older tokens there are and 7 of how many newest;
    /// 3. the first column that the row sees: of `first_columns` or, without any, the first that is not
    ///    dropped;
    /// 4. the column at which the older ones begin, of which the first follows the last.
    ///
    /// For the ring of one row, which has all tokens among the newest, the highest bit of the second is set,
    /// and there are 16 bits of how many tokens are in use and 15 of the column.
    pub(super) fn mapping(&self, first_columns: &[i32]) -> Vec<i32> {
        let (columns, num_dropped, oldest) = match self.columns {
            SlotColumns::Behind { num_older, num_newest } => (num_older | num_newest << 24, 0, 0),
            SlotColumns::Ring { num_in_use, column } => {
                (num_in_use | column << 16 | i32::MIN, 0, 0)
            }
            SlotColumns::BehindRing { num_older, num_newest, oldest, num_dropped } => {
                (num_older | num_newest << 24, num_dropped, oldest)
            }
        };
        let first = |row: usize| num_dropped + first_columns.get(row).copied().unwrap_or(0);
        let rows = self.positions.iter().enumerate();
        rows.flat_map(|(row, &position)| [position, columns, first(row), oldest]).collect()
    }
}

/// The [`DecodeSlot::counters`] of a cache, made when the first slot is asked for. A copy of the cache
/// gets its own.
#[derive(Debug, Default)]
pub(super) struct Counters(Option<Array>);

impl Clone for Counters {
    fn clone(&self) -> Self {
        Counters::default()
    }
}

impl Counters {
    /// i32 [`DecodeSlot::NUM_COUNTERS`], the same array every time.
    pub(super) fn array(&mut self) -> Result<Array> {
        let zeros = match self.0.take() {
            Some(zeros) => zeros,
            None => ops::zeros::<i32>(&[DecodeSlot::NUM_COUNTERS])?,
        };
        Ok(self.0.insert(zeros).clone())
    }
}

impl LayerCache {
    /// The slot of the next `length` tokens; `None` for an empty cache, for kinds whose tokens only
    /// MLX's own operations read, for a ring that is asked for the slot of several tokens, and for
    /// more than the newest tokens have room for.
    pub fn decode_slot(&mut self, length: i32) -> Result<Option<DecodeSlot>> {
        self.as_kind_mut().decode_slot(length)
    }

    /// Appends the `length` tokens whose keys and values were written into the newest tokens of
    /// [`LayerCache::decode_slot`]; does nothing for kinds that have none.
    pub fn fill_decode_slot(&mut self, newest_keys: Array, newest_values: Array, length: i32) {
        self.as_kind_mut().fill_decode_slot(newest_keys, newest_values, length);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::super::{KvCache, RotatingKvCache};
    use super::*;

    /// `length` tokens, each with this number in its key and value.
    fn tokens(length: i32, number: f32) -> Array {
        ops::full::<f32>(&[1, 1, length, 2], Array::from_f32(number)).unwrap()
    }

    fn filled(mut cache: LayerCache, length: i32) -> LayerCache {
        cache.update_and_fetch(tokens(length, 1.0), tokens(length, 1.0)).unwrap();
        cache
    }

    fn kv(length: i32) -> LayerCache {
        filled(LayerCache::Kv(KvCache::new()), length)
    }

    fn ring(length: i32) -> LayerCache {
        filled(LayerCache::Rotating(RotatingKvCache::new(8, 0)), length)
    }

    /// Fills slots of these lengths and returns the mapping of one more token.
    fn mapping_after(cache: &mut LayerCache, lengths: &[i32]) -> [i32; 2] {
        for &length in lengths {
            let slot = cache.decode_slot(length).unwrap().unwrap();
            cache.fill_decode_slot(slot.newest_keys, slot.newest_values, length);
        }
        match cache.decode_slot(1).unwrap().unwrap().mapping(&[])[..] {
            [position, columns, 0, 0] => [position, columns],
            ref other => panic!("{other:?} of one row"),
        }
    }

    #[test]
    fn a_token_is_mapped_behind_all_others() {
        assert_eq!(mapping_after(&mut kv(300), &[]), [300, 300]);
        assert_eq!(mapping_after(&mut kv(300), &[1, 16, 1]), [318, 300 | 18 << 24]);
        // With two more tokens than there is room for, those before them become older ones.
        assert_eq!(mapping_after(&mut kv(300), &[16, 16, 16, 14, 3]), [365, 362 | 3 << 24]);
        let mut trimmed = kv(300);
        assert_eq!(mapping_after(&mut trimmed, &[5]), [305, 300 | 5 << 24]);
        trimmed.trim(3);
        assert_eq!(mapping_after(&mut trimmed, &[]), [302, 300 | 2 << 24]);
        trimmed.trim(10);
        assert_eq!(mapping_after(&mut trimmed, &[]), [292, 292]);
        // The position counts tokens that have been dropped too.
        let LayerCache::Kv(mut compressed) = kv(300) else { panic!("another kind") };
        let kept = ops::arange::<_, i32>(200, 300, 1).unwrap().reshape(&[1, 1, 100, 1]).unwrap();
        compressed.keep(&kept, 10).unwrap();
        assert_eq!(mapping_after(&mut LayerCache::Kv(compressed), &[2]), [302, 100 | 2 << 24]);
    }

    #[test]
    fn layers_of_a_step_read_one_array_of_their_mapping() {
        let mut cache = kv(300);
        let step = cache.attention_step(1, None).unwrap();
        let slot = cache.decode_slot(1).unwrap().unwrap();
        let array = step.slot_mapping(&slot).unwrap();
        assert!(array.nbytes() > 8, "a device reads smaller ones from the host");
        array.eval().unwrap();
        assert_eq!(array.as_slice::<i32>(), [300, 300, 0, 0].repeat(16));
        let again = step.slot_mapping(&slot).unwrap();
        assert_eq!(again.as_slice::<i32>().as_ptr(), array.as_slice::<i32>().as_ptr());
    }

    #[test]
    fn a_token_is_mapped_to_the_oldest_of_a_ring() {
        assert_eq!(mapping_after(&mut ring(5), &[1]), [6, 6 | 6 << 16 | i32::MIN]);
        assert_eq!(mapping_after(&mut ring(5), &[1, 1, 1]), [8, 8 | i32::MIN]);
        assert_eq!(mapping_after(&mut ring(5), &[1; 5]), [10, 8 | 2 << 16 | i32::MIN]);
    }

    #[test]
    fn each_row_of_a_batch_has_its_mapping() {
        let rows = [300, 5].map(|length| vec![kv(length)]);
        let mut caches = super::super::batch::merge(rows.to_vec()).unwrap();
        let cache = &mut caches[0];
        let mapping = |cache: &mut LayerCache, window| {
            let step = cache.attention_step(1, window).unwrap();
            assert!(step.sees_all_before(1));
            let slot = cache.decode_slot(1).unwrap().unwrap();
            let array = step.slot_mapping(&slot).unwrap();
            cache.fill_decode_slot(slot.newest_keys, slot.newest_values, 1);
            array.eval().unwrap();
            array.as_slice::<i32>()[..8].to_vec()
        };
        assert_eq!(mapping(cache, None), [300, 300, 0, 0, 5, 300, 295, 0]);
        let columns = 300 | 1 << 24;
        assert_eq!(mapping(cache, None), [301, columns, 0, 0, 6, columns, 295, 0]);
        let columns = 300 | 2 << 24;
        assert_eq!(
            mapping(cache, Some(100)),
            [302, columns, 203, 0, 7, columns, 295, 0],
            "a window"
        );
        cache.trim(2);
        let columns = 300 | 1 << 24;
        assert_eq!(mapping(cache, None), [301, columns, 0, 0, 6, columns, 295, 0]);
    }

    #[test]
    fn what_has_no_slot_is_for_other_operations() {
        assert!(LayerCache::Kv(KvCache::new()).decode_slot(1).unwrap().is_none(), "empty");
        assert!(kv(5).decode_slot(64).unwrap().is_some());
        assert!(kv(5).decode_slot(65).unwrap().is_none(), "more than the newest tokens");
        assert!(ring(5).decode_slot(2).unwrap().is_none(), "several in a ring");
        let large = LayerCache::Rotating(RotatingKvCache::new(1 << 15, 0));
        assert!(filled(large, 5).decode_slot(1).unwrap().is_none(), "a large ring");
    }

    #[test]
    fn each_cache_counts_with_counters_of_its_own() {
        for mut cache in [kv(5), ring(5)] {
            let counters = |cache: &mut LayerCache| {
                let slot = cache.decode_slot(1).unwrap().unwrap();
                slot.counters.eval().unwrap();
                assert_eq!(slot.counters.shape(), [DecodeSlot::NUM_COUNTERS]);
                assert!(slot.counters.as_slice::<i32>().iter().all(|&count| count == 0));
                cache.fill_decode_slot(slot.newest_keys, slot.newest_values, 1);
                slot.counters.as_slice::<i32>().as_ptr()
            };
            let first = counters(&mut cache);
            assert_eq!(counters(&mut cache), first);
            assert_ne!(counters(&mut cache.clone()), first);
            assert_eq!(counters(&mut cache), first, "the original keeps its own");
        }
    }

    #[test]
    fn a_cache_that_waits_for_no_launch_counts_anew() {
        let mut cache = kv(5);
        let first = cache.decode_slot(3).unwrap().unwrap();
        first.counters.eval().unwrap();
        cache.fill_decode_slot(first.newest_keys, first.newest_values, 3);
        cache.trim(3);
        cache.materialize().unwrap();
        let second = cache.decode_slot(1).unwrap().unwrap();
        second.counters.eval().unwrap();
        let address = |counters: &Array| counters.as_slice::<i32>().as_ptr();
        assert_ne!(address(&second.counters), address(&first.counters));
    }
}
