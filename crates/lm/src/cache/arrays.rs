//! The state of a recurrent layer: a fixed number of arrays, such as a convolution's last inputs
//! and a linear attention's state.

use std::fmt;

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype, ops};

use super::chunk_state::{ChunkForm, StateTensorSize};
use super::kind::{CacheKind, KindSpec};
use super::prompt_file::{CacheClass, FileForm, FileReading, FileTensors, LayerState};
use super::rows::row_indices;
use super::{LayerCache, LayerCacheSpec, StateSize};
use crate::LmError;

/// Arrays that each step replaces. They hold no positions, so tokens cannot be trimmed from them.
///
/// A batch has the same arrays with one entry of the first axis per row. Between
/// [`ArraysCache::prepare`] and [`ArraysCache::finalize`] rows may be padded on the right: the
/// layer ignores tokens that [`ArraysCache::mask`] hides, so that a row's state is that after its
/// own last token.
#[derive(Debug, Clone)]
pub struct ArraysCache {
    slots: Vec<Option<Array>>, // each [B, ...]
    offsets: Vec<usize>,
    lengths: Option<Vec<i32>>,
}

impl ArraysCache {
    /// An empty cache of `num_slots` slots, for one row.
    pub fn new(num_slots: usize) -> Self {
        ArraysCache { slots: vec![None; num_slots], offsets: vec![0], lengths: None }
    }

    /// A cache of these slots with an offset of 0.
    pub(super) fn from_slots(slots: Vec<Option<Array>>) -> Self {
        ArraysCache { slots, offsets: vec![0], lengths: None }
    }

    /// How many slots there are.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// The array in slot `index`, `[B, ...]`; `None` before the first step.
    pub fn get(&self, index: usize) -> Option<&Array> {
        self.slots.get(index)?.as_ref()
    }

    /// Replaces the array in slot `index`.
    ///
    /// Panics if there is no such slot: their number is fixed when the cache is made.
    pub fn set(&mut self, index: usize, array: Array) {
        self.slots[index] = Some(array);
    }

    /// Advances each row's offset by `length`, or by the row's own tokens where it is padded.
    pub fn advance(&mut self, length: usize) {
        for (row, offset) in self.offsets.iter_mut().enumerate() {
            match &mut self.lengths {
                Some(lengths) => {
                    let own = lengths[row].clamp(0, length as i32);
                    lengths[row] -= own;
                    *offset += own as usize;
                }
                None => *offset += length,
            }
        }
    }

    /// How many tokens the longest row has read.
    pub fn offset(&self) -> usize {
        self.offsets.iter().copied().max().unwrap_or(0)
    }

    /// How many rows there are.
    pub fn num_rows(&self) -> usize {
        self.offsets.len()
    }

    /// How many tokens of the coming steps belong to each row; `None` outside of
    /// [`ArraysCache::prepare`] and [`ArraysCache::finalize`].
    pub fn lengths(&self) -> Option<&[i32]> {
        self.lengths.as_deref()
    }

    /// bool `[B, length]`: which of the next `length` tokens belong to their row; `None` if all do.
    pub fn mask(&self, length: i32) -> Option<Array> {
        let lengths = self.lengths.as_ref()?;
        let belongs: Vec<bool> =
            lengths.iter().flat_map(|&own| (0..length).map(move |column| column < own)).collect();
        (!belongs.iter().all(|&belongs| belongs))
            .then(|| Array::from_slice(&belongs, &[lengths.len() as i32, length]))
    }

    /// Announces how many tokens of the coming steps belong to each row; the remaining columns are
    /// right padding.
    pub fn prepare(&mut self, lengths: &[i32]) {
        self.lengths = Some(lengths.to_vec());
    }

    /// Ends the steps that [`ArraysCache::prepare`] announced.
    pub fn finalize(&mut self) {
        self.lengths = None;
    }

    /// Concatenates the rows of all `caches`. Where only some caches have a state, the rows of the
    /// others are zeros.
    ///
    /// Panics unless all have the same number of slots.
    pub fn merge(caches: &[ArraysCache]) -> Result<Self> {
        let num_slots = caches.first().map_or(0, |cache| cache.slots.len());
        let stacked = |index: usize| {
            let Some(first) = caches.iter().find_map(|cache| cache.slots[index].as_ref()) else {
                return Ok(None);
            };
            let part = |cache: &ArraysCache| match &cache.slots[index] {
                Some(array) => Ok(array.clone()),
                None => {
                    let mut shape = first.shape().to_vec();
                    shape[0] = cache.num_rows() as i32;
                    ops::zeros_dtype(&shape, first.dtype())
                }
            };
            ops::concatenate(&caches.iter().map(part).collect::<Result<Vec<_>>>()?, 0).map(Some)
        };
        let slots = (0..num_slots).map(stacked).collect::<Result<_>>()?;
        Ok(ArraysCache {
            slots,
            offsets: caches.iter().flat_map(|cache| cache.offsets.clone()).collect(),
            lengths: None,
        })
    }

    /// Keeps only the rows `kept`, in that order.
    pub fn filter(&mut self, kept: &[usize]) -> Result<()> {
        for slot in self.slots.iter_mut().flatten() {
            *slot = slot.take_axis(row_indices(kept), 0)?;
        }
        self.offsets = kept.iter().map(|&row| self.offsets[row]).collect();
        if let Some(lengths) = &mut self.lengths {
            *lengths = kept.iter().map(|&row| lengths[row]).collect();
        }
        Ok(())
    }

    /// Appends the rows of `other`.
    pub fn extend(&mut self, other: ArraysCache) -> Result<()> {
        *self = ArraysCache::merge(&[self.clone(), other])?;
        Ok(())
    }

    /// A copy of one row as a cache of its own.
    pub fn extract(&self, row: usize) -> Result<ArraysCache> {
        let own = |slot: &Option<Array>| {
            slot.as_ref().map(|array| array.take_axis(row_indices(&[row]), 0)).transpose()
        };
        Ok(ArraysCache {
            slots: self.slots.iter().map(own).collect::<Result<_>>()?,
            offsets: vec![self.offsets[row]],
            lengths: None,
        })
    }
}

const NAME: &str = CacheClass::Arrays.kind();

impl CacheKind for ArraysCache {
    fn name(&self) -> &'static str {
        NAME
    }

    fn spec(&self) -> Option<LayerCacheSpec> {
        let slots = self.slots.iter().map(|slot| slot.as_ref().map(StateSize::of_array));
        let spec = || LayerCacheSpec::Arrays(ArraysSpec { slots: slots.collect() });
        (self.num_rows() == 1).then(spec)
    }

    fn offset(&self) -> usize {
        self.offset()
    }

    fn arrays(&self) -> Vec<&Array> {
        self.slots.iter().flatten().collect()
    }

    fn state(&self) -> Option<&ArraysCache> {
        Some(self)
    }

    fn extend(&mut self, other: LayerCache) -> std::result::Result<(), LmError> {
        match other {
            LayerCache::Arrays(other) if other.num_slots() == self.num_slots() => {
                Ok(self.extend(other)?)
            }
            _ => Err(LmError::MixedCaches),
        }
    }

    fn filter(&mut self, kept: &[usize]) -> std::result::Result<(), LmError> {
        Ok(self.filter(kept)?)
    }

    fn extract(&self, row: usize) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::Arrays(self.extract(row)?))
    }

    /// Each row has a copy of the state, whose size does not grow with the number of tokens.
    fn continued_by_rows(&self, num_rows: usize) -> std::result::Result<LayerCache, LmError> {
        let mut rows = self.clone();
        rows.filter(&vec![0; num_rows])?;
        Ok(LayerCache::Arrays(rows))
    }

    fn prepare(&mut self, lengths: &[i32]) -> std::result::Result<(), LmError> {
        self.prepare(lengths);
        Ok(())
    }

    fn finalize(&mut self) -> std::result::Result<(), LmError> {
        self.finalize();
        Ok(())
    }

    fn to_file(&self) -> Result<FileForm> {
        Ok(FileForm {
            class: CacheClass::Arrays,
            tensors: FileTensors::Slots(self.slots.clone()),
            numbers: Vec::new(),
            numbers_v0_30: Ok(Vec::new()),
        })
    }

    fn count_as_read(&mut self, num_tokens: usize) {
        self.advance(num_tokens);
    }
}

/// The spec of an [`ArraysCache`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArraysSpec {
    /// Its arrays; `None` for an empty slot.
    pub slots: Vec<Option<StateSize>>,
}

impl KindSpec for ArraysSpec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> LayerCache {
        LayerCache::Arrays(ArraysCache::new(self.slots.len()))
    }

    fn num_bytes(&self, num_tokens: u64, float_bytes: u64) -> u64 {
        match num_tokens {
            0 => 0,
            _ => self.slots.iter().flatten().map(|slot| slot.num_bytes(float_bytes)).sum(),
        }
    }

    fn num_keys_while_reading(&self, _num_tokens: u64, _length: u64) -> u64 {
        0
    }

    fn num_bytes_per_token(&self, _float_bytes: u64) -> u64 {
        0
    }

    fn has_state(&self) -> bool {
        true
    }

    fn merge(&self, rows: Vec<LayerCache>) -> std::result::Result<LayerCache, LmError> {
        let own = |row| if let LayerCache::Arrays(cache) = row { Some(cache) } else { None };
        let rows: Option<Vec<ArraysCache>> = rows.into_iter().map(own).collect();
        Ok(LayerCache::Arrays(ArraysCache::merge(&rows.ok_or(LmError::MixedCaches)?)?))
    }

    fn check_batch(&self) -> std::result::Result<(), LmError> {
        Ok(())
    }

    fn without_sizes(&self) -> LayerCacheSpec {
        LayerCacheSpec::Arrays(ArraysSpec { slots: vec![None; self.slots.len()] })
    }

    fn types(&self) -> Vec<Option<Dtype>> {
        self.slots.iter().map(|slot| slot.as_ref().and_then(|slot| slot.dtype)).collect()
    }

    fn admits(&self, given: &LayerCacheSpec) -> bool {
        let LayerCacheSpec::Arrays(given) = given else { return false };
        let fits = |(own, given): (&Option<StateSize>, &Option<StateSize>)| match (own, given) {
            (Some(own), Some(given)) => {
                own.shape == given.shape && given.dtype.is_none_or(|dtype| dtype.is_float())
            }
            (None, Some(_)) => false,
            (_, None) => true,
        };
        let is_empty = given.slots.iter().all(Option::is_none);
        let is_full = given.slots.iter().all(Option::is_some);
        is_empty
            || (is_full
                && self.slots.len() == given.slots.len()
                && self.slots.iter().zip(&given.slots).all(fits))
    }

    fn chunk_form(&self, _num_tokens: usize) -> Option<ChunkForm> {
        let size = |slot: &Option<StateSize>| {
            slot.as_ref().map(|slot| {
                let shape = slot.shape.iter().map(|&length| length as usize);
                StateTensorSize { shape: [1].into_iter().chain(shape).collect(), dtype: slot.dtype }
            })
        };
        Some(ChunkForm::State(self.slots.iter().map(size).collect()))
    }

    fn join_chunks(
        &self,
        arrays: Vec<Array>,
        num_tokens: i32,
    ) -> std::result::Result<LayerCache, LmError> {
        let mut cache = ArraysCache::from_slots(arrays.into_iter().map(Some).collect());
        cache.advance(num_tokens as usize);
        Ok(LayerCache::Arrays(cache))
    }

    fn read_from_file(
        &self,
        state: &LayerState,
        reading: &mut FileReading<'_>,
    ) -> std::result::Result<LayerCache, LmError> {
        Ok(LayerCache::Arrays(ArraysCache::from_slots(reading.slots(state)?)))
    }

    fn describe(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes: Vec<&Vec<i32>> = self.slots.iter().flatten().map(|slot| &slot.shape).collect();
        if shapes.is_empty() { Ok(()) } else { write!(out, " of {shapes:?}") }
    }
}
