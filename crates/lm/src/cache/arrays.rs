//! State of a fixed number of arrays per layer, such as a convolution's last inputs and a recurrent state.

use mlx_rs::Array;

/// What a recurrent layer remembers: arrays that each step replaces. They hold no positions, so nothing can be trimmed from them.
#[derive(Debug, Clone)]
pub struct ArraysCache {
    slots: Vec<Option<Array>>, // each [B, ...]
    offset: usize,
}

impl ArraysCache {
    /// `num_slots` empty slots.
    pub fn new(num_slots: usize) -> Self {
        ArraysCache { slots: vec![None; num_slots], offset: 0 }
    }

    /// These slots, before any token is counted as read.
    pub(super) fn from_slots(slots: Vec<Option<Array>>) -> Self {
        ArraysCache { slots, offset: 0 }
    }

    /// How many slots there are.
    pub fn num_slots(&self) -> usize {
        self.slots.len()
    }

    /// What slot `index` holds; none before the first step.
    pub fn get(&self, index: usize) -> Option<&Array> {
        self.slots.get(index)?.as_ref()
    }

    /// Replaces what slot `index` holds.
    ///
    /// Panics if there is no such slot: a layer's slots are fixed when its cache is made.
    pub fn set(&mut self, index: usize, array: Array) {
        self.slots[index] = Some(array);
    }

    /// Counts `length` more tokens as read.
    pub fn advance(&mut self, length: usize) {
        self.offset += length;
    }

    /// Tokens read.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many tokens of the coming steps belong to each row, where some are padded on the right.
    pub fn lengths(&self) -> Option<&[i32]> {
        None
    }

    /// bool `[B, length]`: which of the next `length` tokens belong to their row; none where all do.
    pub fn mask(&self, _length: i32) -> Option<Array> {
        None
    }

    /// The arrays behind it.
    pub fn arrays(&self) -> Vec<&Array> {
        self.slots.iter().flatten().collect()
    }
}
