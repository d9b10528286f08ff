//! Keys and values in a ring of columns.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::error::Result;

use super::buffer::{front, joined, room, round_up, token_range, write};
use super::rows::row_tokens;

/// The keys and values of one layer, of several rows whose tokens stand in the same columns: once there
/// are `max_size`, each new one overwrites the oldest.
///
/// - The oldest column stands at `oldest`, the others follow it and wrap around; `oldest` is above 0
///   only in a full ring of `max_size`.
/// - Several columns at once are appended to the last `max_size - 1`, so that each sees `max_size`; the
///   next single one drops those beyond `max_size`.
#[derive(Debug, Clone)]
pub(super) struct RingBuffers {
    /// Both `[B, H, capacity, D]`; `None` before the first token.
    buffers: Option<[Array; 2]>,
    max_size: i32,
    num_columns: i32,
    oldest: i32,
}

impl RingBuffers {
    /// Buffers with `num_columns` in use, of which the first is the oldest.
    pub(super) fn new(buffers: Option<[Array; 2]>, num_columns: i32, max_size: i32) -> Self {
        RingBuffers { buffers, max_size, num_columns, oldest: 0 }
    }

    /// The most columns that a single one sees.
    pub(super) fn max_size(&self) -> i32 {
        self.max_size
    }

    /// How many columns are in use.
    pub(super) fn num_columns(&self) -> i32 {
        self.num_columns
    }

    /// How many columns are dropped when the next ones come.
    pub(super) fn num_dropped(&self) -> i32 {
        (self.num_columns() - (self.max_size - 1)).max(0)
    }

    /// Keys and values, capacity included.
    pub(super) fn stored(&self) -> Option<&[Array; 2]> {
        self.buffers.as_ref()
    }

    /// All arrays.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.buffers.iter().flatten()
    }

    /// Makes the buffers into others, given how many columns are in use.
    pub(super) fn replace(&mut self, with: impl Fn(&Array, i32) -> Result<Array>) -> Result<()> {
        for buffer in self.buffers.iter_mut().flatten() {
            *buffer = with(buffer, self.num_columns)?;
        }
        Ok(())
    }

    /// Brings the columns into temporal order and drops all but the last `kept`; says how many.
    pub(super) fn keep_last(&mut self, kept: i32) -> Result<i32> {
        let surplus = (self.num_columns - kept).max(0);
        if self.oldest == 0 && surplus == 0 {
            return Ok(0);
        }
        let spans = self.spans(surplus..self.num_columns);
        self.replace(|buffer, _| {
            of_spans(&spans, |span| token_range(buffer, span.start, span.end))
        })?;
        self.oldest = 0;
        self.num_columns -= surplus;
        Ok(surplus)
    }

    /// Appends `keys` and `values` `[B, H, L, D]` and returns all that the step attends to: in the
    /// ring's order for L = 1, otherwise in temporal order.
    pub(super) fn append(&mut self, keys: Array, values: Array) -> Result<[Array; 2]> {
        let length = keys.dim(2);
        if length > 1 {
            return self.append_several([keys, values]);
        }
        if self.num_columns > self.max_size {
            self.keep_last(self.max_size)?;
        }
        let all = self.write([&keys, &values])?;
        Ok([front(&all[0], self.num_columns)?, front(&all[1], self.num_columns)?])
    }

    fn append_several(&mut self, new: [Array; 2]) -> Result<[Array; 2]> {
        self.keep_last(self.max_size - 1)?;
        let length = new[0].dim(2);
        let all = match &self.buffers {
            Some([keys, values]) if self.num_columns > 0 => {
                let [new_keys, new_values] = new;
                let old = |buffer| front(buffer, self.num_columns);
                [joined(&[old(keys)?, new_keys])?, joined(&[old(values)?, new_values])?]
            }
            _ => new,
        };
        self.num_columns += length;
        Ok(self.buffers.insert(all).clone())
    }

    /// Writes columns where the ring takes them next, and returns the buffers.
    fn write(&mut self, new: [&Array; 2]) -> Result<[Array; 2]> {
        let is_full = self.num_columns == self.max_size;
        let at = if is_full { self.oldest } else { self.num_columns };
        let stop = at + new[0].dim(2);
        let max_size = self.max_size;
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
        match is_full {
            true => self.oldest = stop % max_size,
            false => self.num_columns = stop,
        }
        Ok(self.buffers.insert(all).clone())
    }

    /// i32 `[T]`: what the ring holds after one more token has been written, as the number that each
    /// column has counted from the oldest.
    pub(super) fn ages_after_one(&self) -> Array {
        // A buffer longer than the ring is brought into order first and overwritten from its start.
        let oldest = match self.num_columns {
            columns if columns < self.max_size => 0,
            columns if columns == self.max_size => (self.oldest + 1) % self.max_size,
            _ => 1 % self.max_size,
        };
        let total = self.num_columns - self.num_dropped() + 1;
        let ages: Vec<i32> = (0..total).map(|column| (column - oldest).rem_euclid(total)).collect();
        Array::from_slice(&ages, &[total])
    }

    /// Keys and values of a row in these columns, counted from the oldest; contiguous. `None` before
    /// the first token.
    pub(super) fn of_row(&self, row: usize, columns: Range<i32>) -> Result<Option<[Array; 2]>> {
        let Some([keys, values]) = &self.buffers else { return Ok(None) };
        let spans = self.spans(columns);
        let of =
            |buffer: &Array| of_spans(&spans, |span| row_tokens(buffer, row, span))?.contiguous();
        Ok(Some([of(keys)?, of(values)?]))
    }

    /// Where these columns stand that are counted from the oldest.
    fn spans(&self, columns: Range<i32>) -> Vec<Range<i32>> {
        let (start, stop) = (columns.start + self.oldest, columns.end + self.oldest);
        let end = self.num_columns;
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
