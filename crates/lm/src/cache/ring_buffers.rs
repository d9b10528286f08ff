//! Keys and values in a ring of columns.

use std::cmp::Ordering;
use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::buffer::{front, joined, room, round_up, token_range, write};
use super::decode_slot::{Counters, DecodeSlot, SlotColumns};
use super::rows::row_tokens;
use super::slot_mapping::LastSlotMapping;
use super::tail::Tail;

/// The keys and values of one layer, of several rows whose tokens stand in the same columns: once there
/// are `max_size`, each new one overwrites the oldest.
///
/// - The oldest column stands at `oldest`, the others follow it and wrap around; `oldest` is above 0
///   only in a full ring of `max_size`.
/// - Several columns at once are appended to the last `max_size - 1`, so that each sees `max_size`; the
///   next single one drops those beyond `max_size`.
/// - The newest columns may stand in the tail, and then overwrite none until they are written into the
///   buffers. They count as if they were there.
#[derive(Debug, Clone)]
pub(super) struct RingBuffers {
    /// Both `[B, H, capacity, D]`; `None` before the first token.
    buffers: Option<[Array; 2]>,
    max_size: i32,
    num_stored: i32, // without the tail
    oldest: i32,     // of those without the tail
    tail: Option<Tail>,
    counters: Counters,
    last_mapping: LastSlotMapping,
}

impl RingBuffers {
    /// Buffers with `num_columns` in use, of which the first is the oldest.
    pub(super) fn new(buffers: Option<[Array; 2]>, num_columns: i32, max_size: i32) -> Self {
        RingBuffers {
            buffers,
            max_size,
            num_stored: num_columns,
            oldest: 0,
            tail: None,
            counters: Counters::default(),
            last_mapping: LastSlotMapping::default(),
        }
    }

    /// The most columns that a single one sees.
    pub(super) fn max_size(&self) -> i32 {
        self.max_size
    }

    /// How many columns are in use.
    pub(super) fn num_columns(&self) -> i32 {
        self.num_stored + self.tail_len() - self.num_overwritten()
    }

    /// How many of the stored columns those of the tail overwrite.
    fn num_overwritten(&self) -> i32 {
        match self.tail_len() {
            0 => 0,
            count => (self.num_stored + count - self.max_size).max(0),
        }
    }

    fn tail_len(&self) -> i32 {
        self.tail.as_ref().map_or(0, |tail| tail.count)
    }

    /// How many of the oldest columns the next token drops.
    pub(super) fn num_dropped(&self) -> i32 {
        (self.num_columns() - (self.max_size - 1)).max(0)
    }

    /// The slot mapping that was last made for them.
    pub(super) fn last_mapping(&self) -> &LastSlotMapping {
        &self.last_mapping
    }

    /// Keys and values without the tail, capacity included.
    pub(super) fn stored(&self) -> Option<&[Array; 2]> {
        self.buffers.as_ref()
    }

    /// All arrays.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tail = self.tail.iter().flat_map(|tail| &tail.buffers);
        self.buffers.iter().flatten().chain(tail)
    }

    /// Writes the tail into the buffers.
    pub(super) fn materialize(&mut self) -> Result<()> {
        let Some(tail) = self.tail.take().filter(|tail| tail.count > 0) else { return Ok(()) };
        let [keys, values] = tail.in_use()?;
        let mut written = 0;
        while written < tail.count {
            let until = (written + self.max_size - self.next_column()).min(tail.count);
            let part = |buffer| token_range(buffer, written, until);
            self.write([&part(&keys)?, &part(&values)?])?;
            written = until;
        }
        Ok(())
    }

    /// Replaces each buffer by `with(buffer, columns in use)`.
    pub(super) fn replace(&mut self, with: impl Fn(&Array, i32) -> Result<Array>) -> Result<()> {
        self.materialize()?;
        for buffer in self.buffers.iter_mut().flatten() {
            *buffer = with(buffer, self.num_stored)?;
        }
        Ok(())
    }

    /// Brings the columns into temporal order and drops all but the last `kept`; returns how many it
    /// dropped.
    pub(super) fn keep_last(&mut self, kept: i32) -> Result<i32> {
        self.materialize()?;
        let surplus = (self.num_stored - kept).max(0);
        if self.oldest == 0 && surplus == 0 {
            return Ok(0);
        }
        let spans = self.spans(surplus..self.num_stored);
        self.replace(|buffer, _| {
            of_spans(&spans, |span| token_range(buffer, span.start, span.end))
        })?;
        self.oldest = 0;
        self.num_stored -= surplus;
        Ok(surplus)
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, otherwise in temporal order.
    pub(super) fn append(&mut self, keys: Array, values: Array) -> Result<[Array; 2]> {
        self.materialize()?;
        if keys.dim(2) > 1 {
            return self.append_several([keys, values]);
        }
        if self.num_stored > self.max_size {
            self.keep_last(self.max_size)?;
        }
        let all = self.write([&keys, &values])?;
        Ok([front(&all[0], self.num_stored)?, front(&all[1], self.num_stored)?])
    }

    fn append_several(&mut self, new: [Array; 2]) -> Result<[Array; 2]> {
        self.keep_last(self.max_size - 1)?;
        let length = new[0].dim(2);
        let all = match &self.buffers {
            Some([keys, values]) if self.num_stored > 0 => {
                let [new_keys, new_values] = new;
                let old = |buffer| front(buffer, self.num_stored);
                [joined(&[old(keys)?, new_keys])?, joined(&[old(values)?, new_values])?]
            }
            _ => new,
        };
        self.num_stored += length;
        Ok(self.buffers.insert(all).clone())
    }

    /// The column that the next token is written to; only for a ring of at most `max_size`.
    fn next_column(&self) -> i32 {
        if self.num_stored < self.max_size { self.num_stored } else { self.oldest }
    }

    /// Writes columns where the ring takes them next, no more than up to its end, and returns the
    /// buffers.
    fn write(&mut self, new: [&Array; 2]) -> Result<[Array; 2]> {
        let (at, max_size) = (self.next_column(), self.max_size);
        let stop = at + new[0].dim(2);
        let written = |buffer: Option<&Array>, new: &Array| match buffer {
            Some(buffer) if stop <= buffer.dim(2) => write(buffer, new, at),
            Some(buffer) => {
                let more = room(new, capacity(stop, max_size) - at)?;
                write(&joined(&[front(buffer, at)?, more])?, new, at)
            }
            None => write(&room(new, capacity(stop, max_size))?, new, at),
        };
        let [keys, values] = match &self.buffers {
            Some(buffers) => buffers.each_ref().map(Some),
            None => [None, None],
        };
        let all = [written(keys, new[0])?, written(values, new[1])?];
        match self.num_stored < max_size {
            true => self.num_stored = stop,
            false => self.oldest = stop % max_size,
        }
        Ok(self.buffers.insert(all).clone())
    }

    /// The slot of one more token in each row, which have these `positions`; `None` before the first
    /// token, and while there are more columns than `max_size`.
    pub(super) fn slot(&mut self, positions: Vec<i32>) -> Result<Option<DecodeSlot>> {
        if self.num_stored > self.max_size || self.max_size > DecodeSlot::MOST_OLDER {
            return Ok(None);
        }
        let capacity = Tail::CAPACITY.min(self.max_size);
        if self.tail_len() == capacity {
            self.materialize()?;
        }
        let Some(buffers) = &mut self.buffers else { return Ok(None) };
        let tail = match self.tail.take() {
            Some(tail) => tail,
            None => {
                // What is a part of other buffers would be copied by each launch.
                *buffers = [buffers[0].contiguous()?, buffers[1].contiguous()?];
                Tail::behind(buffers, capacity)?
            }
        };
        let [keys, values] = buffers.clone();
        let Tail { buffers: [newest_keys, newest_values], count } = self.tail.insert(tail).clone();
        let num_dropped = self.num_overwritten() + self.num_dropped();
        Ok(Some(DecodeSlot {
            keys,
            values,
            newest_keys,
            newest_values,
            counters: self.counters.array()?,
            positions,
            columns: SlotColumns::BehindRing {
                num_older: self.num_stored,
                num_newest: count,
                oldest: self.oldest,
                num_dropped,
            },
        }))
    }

    /// Takes what was made of the slot's newest tokens and one more.
    pub(super) fn fill_slot(&mut self, keys: Array, values: Array) {
        let count = self.tail_len() + 1;
        self.tail = Some(Tail { buffers: [keys, values], count });
    }

    /// i32 `[T]`: the age of each stored column after one more token, 0 for the oldest.
    pub(super) fn ages_after_one(&self) -> Array {
        let (num_columns, oldest) = (self.num_columns(), self.oldest + self.num_overwritten());
        // A buffer longer than the ring is brought into order first and overwritten from its start.
        let oldest = match num_columns.cmp(&self.max_size) {
            Ordering::Less => 0,
            Ordering::Equal => (oldest + 1) % self.max_size,
            Ordering::Greater => 1 % self.max_size,
        };
        let total = num_columns - self.num_dropped() + 1;
        let ages: Vec<i32> = (0..total).map(|column| (column - oldest).rem_euclid(total)).collect();
        Array::from_slice(&ages, &[total])
    }

    /// Keys and values of a row in these columns, counted from the oldest; contiguous. `None` before
    /// the first token.
    pub(super) fn of_row(&self, row: usize, columns: Range<i32>) -> Result<Option<[Array; 2]>> {
        let Some(buffers) = &self.buffers else { return Ok(None) };
        let columns = [columns.start, columns.end].map(|column| column + self.num_overwritten());
        let [start, stop] = columns;
        let spans = self.spans(start..stop.min(self.num_stored));
        let newest = (start - self.num_stored).max(0)..stop - self.num_stored;
        let of = |index: usize| -> Result<Array> {
            let in_row = |buffer: &Array, span| row_tokens(buffer, row, span);
            let mut parts = Vec::new();
            for span in &spans {
                parts.push(in_row(&buffers[index], span.clone())?);
            }
            if let Some(tail) = self.tail.as_ref().filter(|_| !newest.is_empty()) {
                parts.push(in_row(&tail.buffers[index], newest.clone())?);
            }
            joined(&parts)?.contiguous()
        };
        Ok(Some([of(0)?, of(1)?]))
    }

    /// Where these of the stored columns stand, which are counted from the oldest.
    fn spans(&self, columns: Range<i32>) -> Vec<Range<i32>> {
        let (start, stop) = (columns.start + self.oldest, columns.end + self.oldest);
        let end = self.num_stored;
        let spans = [start..stop.min(end), (start - end).max(0)..stop - end];
        spans.into_iter().filter(|span| !span.is_empty()).collect()
    }
}

/// The parts of a buffer that `part` takes from it, one behind the other.
fn of_spans(spans: &[Range<i32>], part: impl Fn(Range<i32>) -> Result<Array>) -> Result<Array> {
    match spans {
        [] => part(0..0),
        [span] => part(span.clone()),
        _ => joined(&spans.iter().cloned().map(part).collect::<Result<Vec<_>>>()?),
    }
}

/// The capacity for one more than `num_columns` columns: whole steps, at most `max_size`.
pub(super) fn capacity(num_columns: i32, max_size: i32) -> i32 {
    round_up(num_columns + 1).min(max_size).max(num_columns)
}
