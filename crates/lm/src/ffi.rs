//! The one file that calls MLX's C interface directly: what mlx-rs lacks or only offers with detours.
//!
//! mlx-c's own error handler ends the process; mlx-rs installs a gentler one with its first array. Every function here therefore takes
//! an array or stream that mlx-rs made, or makes one first.
#![allow(unsafe_code)]

use mlx_rs::error::{Exception, Result};
use mlx_rs::{Array, Dtype, Stream};

/// `array[start..stop]` on every axis with stride 1, as a view.
///
/// Panics when the lengths of `start` and `stop` differ from the array's number of axes: MLX would read past them.
pub fn slice(array: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    let strides = unit_strides(array, start, stop);
    let stream = Stream::thread_local_or_default();
    // SAFETY: the pointers are live for the call and hold as many numbers as their lengths say; `result` is an empty handle that MLX fills.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice(
            &mut result,
            array.as_ptr(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            strides.as_ptr(),
            strides.len(),
            stream.as_ptr(),
        );
        finish(result, status, "slice")
    }
}

/// A copy of `array` with `update` written at `start..stop`; in place if nothing else holds it when the result is evaluated.
///
/// Panics as [`slice()`] does.
pub fn slice_update(array: &Array, update: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    let strides = unit_strides(array, start, stop);
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `slice`.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice_update(
            &mut result,
            array.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            strides.as_ptr(),
            strides.len(),
            stream.as_ptr(),
        );
        finish(result, status, "slice_update")
    }
}

/// A stride of 1 for each axis, once `start` and `stop` have one number for each.
fn unit_strides(array: &Array, start: &[i32], stop: &[i32]) -> &'static [i32] {
    const ONES: [i32; 16] = [1; 16];
    assert!(start.len() == array.ndim() && stop.len() == array.ndim(), "one start and stop per axis");
    &ONES[..array.ndim()]
}

/// An array that copies `bytes`, which hold `shape` elements of `dtype` in row-major, native order.
pub fn array_from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    let num_elements: usize = shape.iter().map(|&length| length.max(0) as usize).product();
    if num_elements * item_size(dtype) != bytes.len() {
        return Err(Exception::custom(format!("{} bytes cannot hold {shape:?} of {dtype:?}", bytes.len())));
    }
    // SAFETY: the length was checked against shape and dtype; MLX copies the bytes before the call returns and asks for no alignment.
    Ok(unsafe { Array::from_raw_data(bytes.as_ptr().cast(), shape, dtype) })
}

/// The bytes of an evaluated, row-major array.
pub fn array_bytes(array: &Array) -> Result<&[u8]> {
    array.eval()?;
    let mut expected = 1usize;
    for (&length, &stride) in array.shape().iter().zip(array.strides()).rev() {
        if length != 1 && stride != expected {
            return Err(Exception::custom("the array is not contiguous".to_owned()));
        }
        expected *= length as usize;
    }
    // SAFETY: the array is evaluated and contiguous, so the pointer (checked against null) is good for `nbytes` as long as it lives.
    // The untyped accessor is the one for u8; it does not look at the array's dtype.
    unsafe {
        let data = mlx_sys::mlx_array_data_uint8(array.as_ptr());
        if data.is_null() {
            return Err(Exception::custom("the array has no data".to_owned()));
        }
        Ok(std::slice::from_raw_parts(data, array.nbytes()))
    }
}

/// Waits until everything launched on this thread's default stream is done.
pub fn synchronize() -> Result<()> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the stream is alive; the call only waits.
    match unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Exception::custom("cannot wait for the device".to_owned())),
    }
}

fn item_size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
        Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
        Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
        Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 | Dtype::Complex64 => 8,
    }
}

/// # Safety
/// `result` is a handle that MLX just filled, and nobody else frees it.
unsafe fn finish(result: mlx_sys::mlx_array, status: i32, operation: &str) -> Result<Array> {
    // SAFETY: by this function's contract; an empty handle may be wrapped and freed too.
    let array = unsafe { Array::from_ptr(result) };
    if status == 0 { Ok(array) } else { Err(Exception::custom(format!("{operation} was refused"))) }
}
