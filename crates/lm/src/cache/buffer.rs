//! Array operations on KV buffers `[B, H, capacity, D]`, whose third axis counts tokens.

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, ops};

use crate::ffi;

/// Buffers grow by this many tokens, so that most steps write in place.
pub(super) const STEP: i32 = 256;

/// Tokens `start..stop` of `buffer`, as a view.
pub(super) fn token_range(buffer: &Array, start: i32, stop: i32) -> Result<Array> {
    let (mut from, mut to) = ([0; 4], shape(buffer)?);
    from[2] = start;
    to[2] = stop;
    ffi::slice(buffer, &from, &to)
}

/// The first `stop` tokens of `buffer`, as a view; `buffer` itself if those are all.
pub(super) fn front(buffer: &Array, stop: i32) -> Result<Array> {
    if stop == buffer.dim(2) { Ok(buffer.clone()) } else { token_range(buffer, 0, stop) }
}

/// `buffer` with `update` written from token `start` on. MLX writes in place if no other handle to
/// `buffer` exists when the result is evaluated.
pub(super) fn write(buffer: &Array, update: &Array, start: i32) -> Result<Array> {
    let (mut from, mut to) = ([0; 4], shape(buffer)?);
    from[2] = start;
    to[2] = start + update.dim(2);
    ffi::slice_update(buffer, update, &from, &to)
}

/// `buffer` with `update` written from token `start` on, grown by whole steps if it is too short;
/// `None` is an empty buffer.
pub(super) fn append(buffer: Option<&Array>, update: &Array, start: i32) -> Result<Array> {
    append_in_steps(buffer, update, start, STEP)
}

/// As [`append`], in steps of `step` tokens.
pub(super) fn append_in_steps(
    buffer: Option<&Array>,
    update: &Array,
    start: i32,
    step: i32,
) -> Result<Array> {
    let stop = start + update.dim(2);
    let capacity = round_up_to(step, stop);
    match buffer {
        Some(buffer) if stop <= buffer.dim(2) => write(buffer, update, start),
        // The capacity after `start` holds only trimmed tokens or zeros, so it is not copied.
        Some(buffer) => write(
            &joined(&[front(buffer, start)?, room(update, capacity - start)?])?,
            update,
            start,
        ),
        // MLX takes an update of a whole buffer for the buffer, which may be a transposed view: then
        // every kernel that reads contiguous arrays would copy it first.
        None if update.dim(2) == capacity => update.contiguous(),
        None => write(&room(update, capacity)?, update, start),
    }
}

/// Zeros for `length` tokens, with the type and the other axes of `array`.
pub(super) fn room(array: &Array, length: i32) -> Result<Array> {
    let mut shape = shape(array)?;
    shape[2] = length;
    ops::zeros_dtype(&shape, array.dtype())
}

/// The tokens of all `parts`, concatenated.
pub(super) fn joined(parts: &[Array]) -> Result<Array> {
    ops::concatenate(parts, 2)
}

pub(super) fn shape(array: &Array) -> Result<[i32; 4]> {
    let shape = array.shape();
    shape
        .try_into()
        .map_err(|_| Exception::custom(format!("keys and values have four axes, got {shape:?}")))
}

pub(super) fn round_up(length: i32) -> i32 {
    round_up_to(STEP, length)
}

/// The least multiple of `step` that is not below `length`.
pub(super) fn round_up_to(step: i32, length: i32) -> i32 {
    (length + step - 1) / step * step
}
