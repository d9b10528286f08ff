//! Array operations on the rows of a batch that batched KV caches share.
//!
//! Rows of different lengths end at the same column, so that a step appends to all of them at once.
//! The columns before a row's first token are its left padding, which a mask hides. Lengths and
//! padding are kept as numbers on the host and become arrays once per forward pass.

use std::ops::Range;

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use super::RopeOffset;
use super::buffer::{front, shape, token_range};
use crate::ffi;

/// Rows whose tokens occupy the same columns of one buffer; no buffer stands for empty rows.
pub(super) struct Block<'a> {
    pub(super) buffer: Option<&'a Array>, // [num_rows, H, capacity, D]
    pub(super) num_rows: usize,
    pub(super) columns: Range<i32>,
}

impl<'a> Block<'a> {
    /// All rows of a buffer.
    pub(super) fn of((buffer, rows): (Option<&'a Array>, &RowColumns)) -> Self {
        Block { buffer, num_rows: rows.num_rows(), columns: 0..rows.stop }
    }
}

/// Copies all `blocks` into one buffer of `capacity` columns, in which each ends at column `stop`;
/// `None` if all are empty.
pub(super) fn stacked(blocks: &[Block], stop: i32, capacity: i32) -> Result<Option<Array>> {
    let Some(first) = blocks.iter().find_map(|block| block.buffer) else { return Ok(None) };
    let [_, heads, _, dimensions] = shape(first)?;
    let num_rows: usize = blocks.iter().map(|block| block.num_rows).sum();
    let mut all = ops::zeros_dtype(&[num_rows as i32, heads, capacity, dimensions], first.dtype())?;
    let mut row = 0;
    for block in blocks {
        let next = row + block.num_rows as i32;
        let length = block.columns.end - block.columns.start;
        if let Some(buffer) = block.buffer.filter(|_| length > 0) {
            let part = token_range(buffer, block.columns.start, block.columns.end)?;
            // Nothing else holds `all`, so each update writes in place and copies only its tokens.
            all = ffi::slice_update(
                &all,
                &part,
                &[row, 0, stop - length, 0],
                &[next, heads, stop, dimensions],
            )?;
        }
        row = next;
    }
    Ok(Some(all))
}

/// The rows `kept` of `buffer`, cut to `columns`.
pub(super) fn kept_rows(buffer: &Array, kept: &[usize], columns: Range<i32>) -> Result<Array> {
    token_range(buffer, columns.start, columns.end)?.take_axis(row_indices(kept), 0)
}

/// The row numbers as an i32 array `[kept]`, for `take_axis`.
pub(crate) fn row_indices(kept: &[usize]) -> Array {
    let kept: Vec<i32> = kept.iter().map(|&row| row as i32).collect();
    Array::from_slice(&kept, &[kept.len() as i32])
}

/// The tokens of one row, a view `[1, H, columns, D]`.
pub(super) fn row_tokens(buffer: &Array, row: usize, columns: Range<i32>) -> Result<Array> {
    let [_, heads, _, dimensions] = shape(buffer)?;
    let row = row as i32;
    ffi::slice(buffer, &[row, 0, columns.start, 0], &[row + 1, heads, columns.end, dimensions])
}

/// The first `num_columns` of `buffer` with each row rotated right by its own shift.
pub(super) fn rolled(buffer: &Array, shifts: &[i32], num_columns: i32) -> Result<Array> {
    let sources: Vec<i32> = shifts
        .iter()
        .flat_map(|shift| {
            (0..num_columns).map(move |column| (column - shift).rem_euclid(num_columns))
        })
        .collect();
    let sources = Array::from_slice(&sources, &[shifts.len() as i32, 1, num_columns, 1]);
    front(buffer, num_columns)?.take_along_axis(sources, 2)
}

/// The position of each row's next token.
pub(super) fn rope_offset(offsets: &[i32]) -> RopeOffset {
    match offsets {
        [first, rest @ ..] if rest.iter().all(|offset| offset == first) => RopeOffset::Same(*first),
        _ => RopeOffset::PerRow(Array::from_slice(offsets, &[offsets.len() as i32])),
    }
}

/// bool `[B, 1, 1, T]`: true where `columns` (i32 `[T]`) is at least the first column that the row
/// sees.
pub(super) fn from_first(columns: &Array, first: &[i32]) -> Result<Array> {
    columns.ge(Array::from_slice(first, &[first.len() as i32, 1, 1, 1]))
}

/// For a step of `length` columns: how many of them are padding in each row, given how many tokens
/// the row has `remaining`. Subtracts the step from `remaining`.
pub(super) fn take_lengths(remaining: &mut Option<Vec<i32>>, length: i32) -> Option<Vec<i32>> {
    let remaining = remaining.as_mut()?;
    let padding = remaining.iter().map(|&left| (length - left).max(0)).collect();
    for left in remaining.iter_mut() {
        *left = (*left - length).max(0);
    }
    Some(padding)
}

/// Which columns of a buffer hold each row's tokens.
///
/// - Every row ends at column `stop`; its first `left_padding` columns are padding.
/// - Between [`RowColumns::prepare`] and [`RowColumns::finalize`] rows may be padded on the right.
///   `left_padding` already counts that padding as moved to the left; `pending_shifts` says by how
///   many columns each row still has to be moved right.
#[derive(Debug, Clone)]
pub(super) struct RowColumns {
    pub(super) stop: i32,
    pub(super) left_padding: Vec<i32>,
    remaining: Option<Vec<i32>>,
    pending_shifts: Option<Vec<i32>>,
}

impl RowColumns {
    /// Rows that end at `stop`.
    pub(super) fn new(left_padding: Vec<i32>, stop: i32) -> Self {
        RowColumns { stop, left_padding, remaining: None, pending_shifts: None }
    }

    pub(super) fn num_rows(&self) -> usize {
        self.left_padding.len()
    }

    /// How many tokens each row holds.
    pub(super) fn lengths(&self) -> Vec<i32> {
        self.left_padding.iter().map(|padding| self.stop - padding).collect()
    }

    /// How many tokens the longest row holds.
    pub(super) fn longest(&self) -> i32 {
        self.lengths().into_iter().max().unwrap_or(0)
    }

    /// How many tokens the shortest row holds.
    pub(super) fn shortest(&self) -> i32 {
        self.lengths().into_iter().min().unwrap_or(0)
    }

    pub(super) fn is_padded(&self) -> bool {
        self.left_padding.iter().any(|&padding| padding > 0)
    }

    /// Whether rows end with padding.
    pub(super) fn is_moving(&self) -> bool {
        self.pending_shifts.is_some()
    }

    /// Whether it was announced how many tokens of the coming steps belong to each row.
    pub(super) fn is_prepared(&self) -> bool {
        self.remaining.is_some()
    }

    /// Announces how many tokens of the coming steps belong to each row; the remaining columns of a
    /// row are right padding.
    pub(super) fn prepare(&mut self, lengths: &[i32]) {
        self.remaining = Some(lengths.to_vec());
    }

    /// Ends the steps that [`RowColumns::prepare`] announced.
    pub(super) fn finalize(&mut self) {
        self.remaining = None;
    }

    /// By how many columns the caller has to rotate each row right, so that its padding is on the
    /// left, where it is counted already; `None` if that is done.
    pub(super) fn take_shifts(&mut self) -> Option<Vec<i32>> {
        self.pending_shifts.take()
    }

    /// Counts a step of `length` columns.
    pub(super) fn appended(&mut self, length: i32) {
        self.stop += length;
        self.pending_shifts = take_lengths(&mut self.remaining, length)
            .filter(|padding| padding.iter().any(|&columns| columns > 0));
        for (left, right) in self.left_padding.iter_mut().zip(self.pending_shifts.iter().flatten())
        {
            *left += right;
        }
    }

    /// Keeps only the rows `kept`, in that order, and returns how many columns of left padding they
    /// share, which the caller has to cut.
    pub(super) fn keep(&mut self, kept: &[usize]) -> i32 {
        let left_padding: Vec<i32> = kept.iter().map(|&row| self.left_padding[row]).collect();
        let shared = left_padding.iter().copied().min().unwrap_or(0);
        self.stop -= shared;
        self.left_padding = left_padding.iter().map(|padding| padding - shared).collect();
        if let Some(remaining) = &mut self.remaining {
            *remaining = kept.iter().map(|&row| remaining[row]).collect();
        }
        shared
    }

    /// Cuts the first `num_columns` off, with the tokens in them; says how many tokens each row loses.
    pub(super) fn cut(&mut self, num_columns: i32) -> Vec<i32> {
        self.stop -= num_columns;
        let lost = |padding: &mut i32| {
            let lost = (num_columns - *padding).max(0);
            *padding = (*padding - num_columns).max(0);
            lost
        };
        self.left_padding.iter_mut().map(lost).collect()
    }

    /// The columns that hold a row's tokens.
    pub(super) fn of_row(&self, row: usize) -> Range<i32> {
        let shift = self.pending_shifts.as_ref().map_or(0, |shifts| shifts[row]);
        self.left_padding[row] - shift..self.stop - shift
    }

    /// Both sets of rows, ending at the same column.
    pub(super) fn joined(&self, other: &RowColumns) -> RowColumns {
        let stop = self.stop.max(other.stop);
        let padding = |rows: &RowColumns| {
            let more = stop - rows.stop;
            rows.left_padding.iter().map(|padding| padding + more).collect::<Vec<_>>()
        };
        RowColumns::new([padding(self), padding(other)].concat(), stop)
    }

    /// How many tokens were cut off the end of every row: at most as many as the shortest has.
    pub(super) fn trim(&mut self, num_tokens: usize) -> usize {
        let trimmed = num_tokens.min(self.shortest() as usize);
        self.stop -= trimmed as i32;
        trimmed
    }
}
