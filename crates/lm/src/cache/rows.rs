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
