//! Keys and values in buffers that grow, and the newest of them in a tail.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::buffer::{append, front, joined};
use super::decode_slot::{Counters, DecodeSlot, SlotColumns};
use super::rows::row_tokens;
use super::slot_mapping::LastSlotMapping;
use super::tail::Tail;

/// The keys and values of one layer, of one row or several whose newest tokens stand in the same
/// columns.
///
/// How many columns are in use is known to the cache that has the buffers. The last of them may stand in
/// the tail; without it, the buffers hold all.
#[derive(Debug, Clone, Default)]
pub(super) struct KvBuffers {
    /// Both `[B, H, capacity, D]`; `None` before the first token.
    buffers: Option<[Array; 2]>,
    tail: Option<Tail>,
    counters: Counters,
    last_mapping: LastSlotMapping,
}

impl KvBuffers {
    /// Buffers that hold all tokens.
    pub(super) fn new(keys: Array, values: Array) -> Self {
        KvBuffers::of(Some([keys, values]))
    }

    /// As [`KvBuffers::new`]; `None` before the first token.
    pub(super) fn of(buffers: Option<[Array; 2]>) -> Self {
        KvBuffers { buffers, ..KvBuffers::default() }
    }

    /// Both buffers, without the tail; `None` before the first token.
    pub(super) fn stored(&self) -> Option<&[Array; 2]> {
        self.buffers.as_ref()
    }

    /// The slot mapping that was last made for them.
    pub(super) fn last_mapping(&self) -> &LastSlotMapping {
        &self.last_mapping
    }

    /// How many tokens stand in the tail.
    pub(super) fn tail_len(&self) -> i32 {
        self.tail.as_ref().map_or(0, |tail| tail.count)
    }

    /// All arrays.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tail = self.tail.iter().flat_map(|tail| &tail.buffers);
        self.buffers.iter().flatten().chain(tail)
    }

    /// Both buffers with the tail written into them, so that it ends at `num_columns`; `None` before the
    /// first token.
    pub(super) fn materialized(&self, num_columns: i32) -> Result<Option<[Array; 2]>> {
        let Some([keys, values]) = &self.buffers else { return Ok(None) };
        match &self.tail {
            Some(tail) if tail.count > 0 => {
                let [newest_keys, newest_values] = tail.in_use()?;
                let with = |buffer: &Array, newest: &Array| {
                    append(Some(buffer), newest, num_columns - tail.count)
                };
                Ok(Some([with(keys, &newest_keys)?, with(values, &newest_values)?]))
            }
            _ => Ok(Some([keys.clone(), values.clone()])),
        }
    }

    /// Keys and values in these `columns` of a row, contiguous, where `num_columns` are in use. They are
    /// taken from the buffers and from the tail: to write the one into the other would copy all rows.
    pub(super) fn of_row(
        &self,
        row: usize,
        columns: Range<i32>,
        num_columns: i32,
    ) -> Result<Option<[Array; 2]>> {
        let Some(buffers) = &self.buffers else { return Ok(None) };
        let num_stored = num_columns - self.tail_len();
        let stored = columns.start..columns.end.min(num_stored);
        let newest = (columns.start - num_stored).max(0)..columns.end - num_stored;
        let of = |index: usize| -> Result<Array> {
            let mut parts = Vec::new();
            if !stored.is_empty() {
                parts.push(row_tokens(&buffers[index], row, stored.clone())?);
            }
            if let Some(tail) = self.tail.as_ref().filter(|_| !newest.is_empty()) {
                parts.push(row_tokens(&tail.buffers[index], row, newest.clone())?);
            }
            joined(&parts)?.contiguous()
        };
        Ok(Some([of(0)?, of(1)?]))
    }

    /// Writes the tail into the buffers for good.
    pub(super) fn materialize(&mut self, num_columns: i32) -> Result<()> {
        if self.tail.as_ref().is_some_and(|tail| tail.count == 0) {
            // The launch that wrote the tail may not have run, and nothing will wait for it now.
            self.counters = Counters::default();
        }
        if self.tail.is_some() {
            (self.buffers, self.tail) = (self.materialized(num_columns)?, None);
        }
        Ok(())
    }

    /// Appends `keys` and `values` `[B, H, L, D]` behind `num_columns` and returns those of all columns,
    /// `[B, H, num_columns + L, D]`.
    pub(super) fn append(
        &mut self,
        keys: &Array,
        values: &Array,
        num_columns: i32,
    ) -> Result<[Array; 2]> {
        self.materialize(num_columns)?;
        let [old_keys, old_values] = match &self.buffers {
            Some(buffers) => buffers.each_ref().map(Some),
            None => [None, None],
        };
        let keys = (append(old_keys, keys, num_columns)?, num_columns + keys.dim(2));
        let values = (append(old_values, values, num_columns)?, num_columns + values.dim(2));
        let views = [front(&keys.0, keys.1)?, front(&values.0, values.1)?];
        self.buffers = Some([keys.0, values.0]);
        Ok(views)
    }

    /// The slot behind `num_columns` for `length` tokens with these `positions`, one for each row; `None`
    /// before the first token and for more tokens than the tail holds.
    pub(super) fn slot(
        &mut self,
        positions: Vec<i32>,
        num_columns: i32,
        length: i32,
    ) -> Result<Option<DecodeSlot>> {
        if length > Tail::CAPACITY || num_columns > DecodeSlot::MOST_OLDER {
            return Ok(None);
        }
        if self.tail_len() + length > Tail::CAPACITY {
            self.materialize(num_columns)?;
        }
        let Some(buffers) = &self.buffers else { return Ok(None) };
        let tail = match self.tail.take() {
            Some(tail) => tail,
            None => Tail::behind(buffers, Tail::CAPACITY)?,
        };
        let Tail { buffers: [newest_keys, newest_values], count } = self.tail.insert(tail).clone();
        let [keys, values] = buffers.clone();
        Ok(Some(DecodeSlot {
            keys,
            values,
            newest_keys,
            newest_values,
            counters: self.counters.array()?,
            positions,
            columns: SlotColumns::Behind { num_older: num_columns - count, num_newest: count },
        }))
    }

    /// Takes what was made of the slot's newest tokens and `length` more.
    pub(super) fn fill_slot(&mut self, keys: Array, values: Array, length: i32) {
        let count = self.tail_len() + length;
        self.tail = Some(Tail { buffers: [keys, values], count });
    }

    /// The last `num_tokens` are no longer in use.
    pub(super) fn trimmed(&mut self, num_tokens: i32) {
        if let Some(tail) = &mut self.tail {
            tail.count = (tail.count - num_tokens).max(0);
        }
    }
}
