//! Direct calls of MLX's C interface, for what mlx-rs does not offer or only less directly. No
//! other file of this crate has unsafe code, which is why this one has several subjects:
//!
//! ```text
//! slice … cut                           views of arrays, and copies with a part replaced
//! array_from_bytes … array_bytes        the bytes of arrays
//! upload, PartsFile                     bytes in a device's own memory
//! quantized_matmul … quantize           products with quantized rows, and the rows themselves
//! is_available … computes_on_cuda       the device
//! CudaKernel                            a kernel in CUDA C++, which MLX compiles
//! trace_without_fusing, Compiled        a function that MLX traces once and replays
//! graph_operations, depends             the graph of what is not computed yet
//! list_of, arrays_of, finish            what they hand to MLX and get back
//! ```
//!
//! mlx-c's default error handler ends the process; mlx-rs replaces it when it makes its first
//! array. Every function here therefore takes an array or stream that mlx-rs made, or makes one
//! first.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::error::{Exception, Result};
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype, Stream};

use crate::config::Quantization;
use crate::device::ComputeDevice;
use crate::device_kernels::QuantizedRows;
use crate::dtype::item_size;

/// `array[start..stop]` on every axis with stride 1, as a view.
///
/// Panics when the lengths of `start` and `stop` differ from the array's number of axes: MLX would
/// read past them.
pub fn slice(array: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    let strides = unit_strides(array, start, stop);
    let stream = Stream::thread_local_or_default();
    // SAFETY: the pointers are live for the call and hold as many numbers as their lengths say;
    // `result` is an empty handle that MLX fills.
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

/// A copy of `array` with `update` written at `start..stop`; in place if nothing else holds it when
/// the result is evaluated.
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

/// `array` with `update` in place of what stands from `start` (i32 `[1]`) on along `axis`.
pub fn slice_update_at(array: &Array, update: &Array, start: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: all handles are live; the axis is read during the call only.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_slice_update_dynamic(
            &mut result,
            array.as_ptr(),
            update.as_ptr(),
            start.as_ptr(),
            &axis,
            1,
            stream.as_ptr(),
        );
        finish(result, status, "slice_update_dynamic")
    }
}

/// The parts of `array` between `ends` along `axis` and behind the last of them, as views.
///
/// MLX 0.32.2's own split would be one graph node, but on a CUDA device its outputs do not keep the
/// memory alive that they share: they were seen to change, and to be read after it was freed.
pub fn cut(array: &Array, ends: &[i32], axis: usize) -> Result<Vec<Array>> {
    let (mut start, mut stop) = (vec![0; array.ndim()], array.shape().to_vec());
    let last = stop[axis];
    let mut part = |end: &i32| {
        stop[axis] = *end;
        let part = slice(array, &start, &stop);
        start[axis] = *end;
        part
    };
    ends.iter().chain([&last]).map(&mut part).collect()
}

/// A stride of 1 for each axis. Panics unless `start` and `stop` have a number for each axis.
fn unit_strides(array: &Array, start: &[i32], stop: &[i32]) -> &'static [i32] {
    const ONES: [i32; 16] = [1; 16];
    assert!(
        start.len() == array.ndim() && stop.len() == array.ndim(),
        "one start and stop per axis"
    );
    &ONES[..array.ndim()]
}

/// An array that copies `bytes`, which hold `shape` elements of `dtype` in row-major, native order.
pub fn array_from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Array> {
    let num_elements: usize = shape.iter().map(|&length| length.max(0) as usize).product();
    if num_elements * item_size(dtype) != bytes.len() {
        return Err(Exception::custom(format!(
            "{} bytes cannot hold {shape:?} of {dtype:?}",
            bytes.len()
        )));
    }
    // SAFETY: the length was checked against shape and dtype; MLX copies the bytes before the call
    // returns and asks for no alignment.
    Ok(unsafe { Array::from_raw_data(bytes.as_ptr().cast(), shape, dtype) })
}

/// An array under construction: its bytes are filled on the host before the array is used.
#[derive(Debug)]
pub struct ArrayBuffer(Filling);

#[derive(Debug)]
enum Filling {
    /// Evaluated and row-major; this is the only handle.
    Array(Array),
    /// For devices without shared memory: copied to the device when complete.
    Bytes(Vec<u8>, Vec<i32>, Dtype),
}

impl ArrayBuffer {
    /// Zeros of `shape`.
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Result<Self> {
        if computes_on_cuda() {
            let num_elements: usize = shape.iter().map(|&length| length.max(0) as usize).product();
            return Ok(ArrayBuffer(Filling::Bytes(
                vec![0; num_elements * item_size(dtype)],
                shape.to_vec(),
                dtype,
            )));
        }
        let array = mlx_rs::ops::zeros_dtype(shape, dtype)?;
        // Evaluates the array and checks that it is row-major.
        array_bytes(&array)?;
        Ok(ArrayBuffer(Filling::Array(array)))
    }

    /// The bytes, row-major in native order.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: `zeros` evaluated the array and found it row-major, so the pointer is good
            // for `nbytes` as long as it lives. No other handle to the array exists before
            // `into_array`, so nobody reads or writes the bytes meanwhile; devices other than CUDA
            // share the host's memory, and nothing that uses the array has been launched.
            Filling::Array(array) => unsafe {
                let data = mlx_sys::mlx_array_data_uint8(array.as_ptr()).cast_mut();
                std::slice::from_raw_parts_mut(data, array.nbytes())
            },
            Filling::Bytes(bytes, ..) => bytes,
        }
    }

    /// The finished array.
    pub fn into_array(self) -> Result<Array> {
        match self.0 {
            Filling::Array(array) => Ok(array),
            Filling::Bytes(bytes, shape, dtype) => array_from_bytes(&bytes, &shape, dtype),
        }
    }
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
    // SAFETY: the array is evaluated and contiguous, so the pointer (checked against null) is good
    // for `nbytes` as long as it lives. The untyped accessor is the one for u8; it does not look at
    // the array's dtype.
    unsafe {
        let data = mlx_sys::mlx_array_data_uint8(array.as_ptr());
        if data.is_null() {
            return Err(Exception::custom("the array has no data".to_owned()));
        }
        Ok(std::slice::from_raw_parts(data, array.nbytes()))
    }
}

/// Where a part of an [`upload`] may begin: at a multiple of so many bytes, which suits numbers of every
/// type.
const UPLOAD_ALIGNMENT: usize = 16;

/// The `parts`, one behind the other, in an array of u8, and where in it each begins. The bytes between
/// them are undefined. Fails for 2 GiB and more.
///
/// Arrays made of bytes lie in memory that a CUDA device shares with the host: the host's first write to
/// a page of it and the device's first read each wait for a fault. Only MLX's loader copies bytes
/// to the device's own memory, so this hands it the parts as if they were a file.
pub fn upload(parts: &[&[u8]]) -> Result<(Array, Vec<usize>)> {
    let mut num_bytes = 0_usize;
    let starts: Vec<usize> = parts
        .iter()
        .map(|part| {
            let start = num_bytes.next_multiple_of(UPLOAD_ALIGNMENT);
            num_bytes = start + part.len();
            start
        })
        .collect();
    if i32::try_from(num_bytes).is_err() {
        return Err(Exception::custom(format!("{num_bytes} bytes are too many for one array")));
    }
    Ok((load(parts, &starts, num_bytes)?, starts))
}

/// An array of `num_bytes` with each of the `parts` from its start on. No one reads the parts after it has returned.
fn load(parts: &[&[u8]], starts: &[usize], num_bytes: usize) -> Result<Array> {
    let file = Arc::new(PartsFile::new(parts, starts, num_bytes));
    // On a Mac only the host's streams load.
    let stream = if computes_on_cuda() { Stream::thread_local_or_default() } else { Stream::cpu() };
    // SAFETY: the functions of the table take the pointer that is given with it, to a file that MLX has
    // a reference of, until `free`; the reader's handle is freed once, and what needs the reader
    // longer has a reference of its own.
    let array = unsafe {
        let given = Arc::into_raw(Arc::clone(&file)).cast_mut().cast();
        let reader = mlx_sys::mlx_io_reader_new(given, PartsFile::TABLE);
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_load_reader(&mut result, reader, stream.as_ptr());
        mlx_sys::mlx_io_reader_free(reader);
        finish(result, status, "load_reader")
    };
    let loaded = array.and_then(|array| {
        async_eval([&array])?;
        if file.parts().is_some() {
            // A CUDA device's loader has read them by now, another one reads on a thread of its own.
            array.eval()?;
        }
        Ok(array)
    });
    // Whatever has failed, the borrow ends.
    *file.parts() = None;
    loaded
}

/// An array of u8 in NumPy's format, in memory. MLX reads its header at once, and the numbers, which
/// are those of several parts, once.
struct PartsFile {
    header: Vec<u8>,
    num_bytes: usize,
    /// Where the next byte is read that nobody says the place of.
    position: AtomicUsize,
    /// None once they have been read, or may not be any more.
    parts: Mutex<Option<Vec<Part>>>,
}

/// Bytes that [`load`] has borrowed, and where they belong.
struct Part {
    start: usize,
    bytes: *const [u8],
}

// SAFETY: the bytes are read only under the lock of `PartsFile::parts`, and `load` empties that before its
// borrow ends.
unsafe impl Send for Part {}

impl PartsFile {
    const TABLE: mlx_sys::mlx_io_vtable = mlx_sys::mlx_io_vtable {
        is_open: Some(PartsFile::is_good),
        good: Some(PartsFile::is_good),
        tell: Some(PartsFile::tell),
        seek: Some(PartsFile::seek),
        read: Some(PartsFile::read),
        read_at_offset: Some(PartsFile::read_at),
        write: None,
        label: Some(PartsFile::label),
        free: Some(PartsFile::free),
    };

    fn new(parts: &[&[u8]], starts: &[usize], num_bytes: usize) -> Self {
        // MLX finds the order of the axes by its place in the text.
        let text =
            format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({num_bytes},), }}\n");
        let mut header = b"\x93NUMPY\x01\x00".to_vec();
        header.extend((text.len() as u16).to_le_bytes()); // a line
        header.extend(text.as_bytes());
        let parts = parts.iter().zip(starts).map(|(&bytes, &start)| Part { start, bytes });
        let parts = Mutex::new(Some(parts.collect()));
        PartsFile { header, num_bytes, position: AtomicUsize::new(0), parts }
    }

    fn parts(&self) -> MutexGuard<'_, Option<Vec<Part>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// Called by MLX, as those below, with what [`load`] gave it.
    unsafe extern "C" fn is_good(_file: *mut c_void) -> bool {
        true
    }

    unsafe extern "C" fn tell(file: *mut c_void) -> usize {
        // SAFETY: as `is_good` says.
        unsafe { &*file.cast::<PartsFile>() }.position.load(Ordering::Relaxed)
    }

    unsafe extern "C" fn seek(file: *mut c_void, offset: i64, whence: i32) -> i32 {
        // SAFETY: as `is_good` says.
        let file = unsafe { &*file.cast::<PartsFile>() };
        // As <stdio.h> numbers them.
        let base = match whence {
            0 => 0,
            1 => file.position.load(Ordering::Relaxed),
            _ => file.header.len() + file.num_bytes,
        };
        match usize::try_from(base as i64 + offset) {
            Ok(position) => {
                file.position.store(position, Ordering::Relaxed);
                0
            }
            Err(_) => -1,
        }
    }

    /// Reads of the header.
    unsafe extern "C" fn read(file: *mut c_void, data: *mut c_char, length: usize) -> usize {
        // SAFETY: as `is_good` says.
        let file = unsafe { &*file.cast::<PartsFile>() };
        let position = file.position.fetch_add(length, Ordering::Relaxed);
        match file.header.get(position..position + length) {
            Some(bytes) => {
                // SAFETY: MLX has room for `length` bytes there.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), length) };
                length
            }
            None => 0,
        }
    }

    /// Reads all numbers.
    unsafe extern "C" fn read_at(
        file: *mut c_void,
        data: *mut c_char,
        length: usize,
        offset: usize,
    ) -> usize {
        // SAFETY: as `is_good` says.
        let file = unsafe { &*file.cast::<PartsFile>() };
        if (offset, length) != (file.header.len(), file.num_bytes) {
            return 0;
        }
        // `load` waits for this lock before it lets the bytes go.
        let mut parts = file.parts();
        let Some(unread) = parts.take() else { return 0 };
        for Part { start, bytes } in unread {
            // SAFETY: `load`, which has them borrowed, has not returned; MLX has room for `length`
            // bytes, in which each part has its place.
            unsafe {
                let target = data.cast::<u8>().add(start);
                std::ptr::copy_nonoverlapping(bytes.cast::<u8>(), target, bytes.len());
            }
        }
        length
    }

    unsafe extern "C" fn label(_file: *mut c_void) -> *const c_char {
        c"parts in memory".as_ptr()
    }

    unsafe extern "C" fn free(file: *mut c_void) {
        // SAFETY: MLX gives back the reference that it was given, once.
        drop(unsafe { Arc::from_raw(file.cast_const().cast::<PartsFile>()) });
    }
}

/// `x` `[..., K]` times the rows of a quantized matrix: `[..., N]`.
pub fn quantized_matmul(x: &Array, rows: QuantizedRows<'_>) -> Result<Array> {
    quantized_product(x, rows, true)
}

/// As [`quantized_matmul`]; without `transpose`, `x` `[..., N]` weights the rows: `[..., K]`. Leading
/// axes of `x` are broadcast to those of `rows`, a matrix for each.
pub fn quantized_product(x: &Array, rows: QuantizedRows<'_>, transpose: bool) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let Quantization { mode, group_size, bits } = rows.settings;
    // SAFETY: all handles and the mode's name are live for the call; an empty handle stands for
    // biases that there are not; `result` is an empty handle that MLX fills.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_quantized_matmul(
            &mut result,
            x.as_ptr(),
            rows.packed.as_ptr(),
            rows.scales.as_ptr(),
            handle(rows.biases),
            transpose,
            some(group_size),
            some(bits),
            mode.name().as_ptr(),
            stream.as_ptr(),
        );
        finish(result, status, "quantized_matmul")
    }
}

/// As [`quantized_matmul`] with the matrices `indices` of several, which are stacked along a first
/// axis: `x` `[..., 1, K]` to `[..., 1, N]`. Without `vectors`, which say which of x each matrix takes,
/// the leading axes of x are broadcast to those of `indices`.
pub fn gather_qmm(
    x: &Array,
    rows: QuantizedRows<'_>,
    vectors: Option<&Array>,
    indices: &Array,
    are_sorted: bool,
) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let Quantization { mode, group_size, bits } = rows.settings;
    // SAFETY: as in `quantized_matmul`; x is taken as it is where no vectors are chosen.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_gather_qmm(
            &mut result,
            x.as_ptr(),
            rows.packed.as_ptr(),
            rows.scales.as_ptr(),
            handle(rows.biases),
            handle(vectors),
            indices.as_ptr(),
            true,
            some(group_size),
            some(bits),
            mode.name().as_ptr(),
            are_sorted,
            stream.as_ptr(),
        );
        finish(result, status, "gather_qmm")
    }
}

/// The numbers of quantized rows, in the type that [`QuantizedRows::dtype`] says.
pub fn dequantize(rows: QuantizedRows<'_>) -> Result<Array> {
    let stream = Stream::thread_local_or_default();
    let Quantization { mode, group_size, bits } = rows.settings;
    // Scales with a type of their own give it to the numbers.
    let value = rows.dtype() as mlx_sys::mlx_dtype;
    let dtype = mlx_sys::mlx_optional_dtype { value, has_value: !mode.has_biases() };
    // SAFETY: as in `quantized_matmul`; an empty handle stands for no further scale.
    unsafe {
        let mut result = mlx_sys::mlx_array_new();
        let status = mlx_sys::mlx_dequantize(
            &mut result,
            rows.packed.as_ptr(),
            rows.scales.as_ptr(),
            handle(rows.biases),
            some(group_size),
            some(bits),
            mode.name().as_ptr(),
            mlx_sys::mlx_array_new(),
            dtype,
            stream.as_ptr(),
        );
        finish(result, status, "dequantize")
    }
}

/// The packed numbers, the scales and the biases, if the mode has any, of the quantized `weight`.
pub(crate) fn quantize(
    weight: &Array,
    settings: Quantization,
) -> Result<(Array, Array, Option<Array>)> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: as in `dequantize`; the list is freed once.
    unsafe {
        let mut results = mlx_sys::mlx_vector_array_new();
        let status = mlx_sys::mlx_quantize(
            &mut results,
            weight.as_ptr(),
            some(settings.group_size),
            some(settings.bits),
            settings.mode.name().as_ptr(),
            mlx_sys::mlx_array_new(),
            stream.as_ptr(),
        );
        let mut arrays = arrays_of(results).into_iter();
        mlx_sys::mlx_vector_array_free(results);
        match (status, arrays.next(), arrays.next()) {
            (0, Some(packed), Some(scales)) => Ok((packed, scales, arrays.next())),
            _ => Err(Exception::custom("quantize was refused")),
        }
    }
}

/// The array's handle, or an empty one, which owns nothing.
fn handle(array: Option<&Array>) -> mlx_sys::mlx_array {
    // SAFETY: the call only makes an empty handle.
    array.map_or_else(|| unsafe { mlx_sys::mlx_array_new() }, Array::as_ptr)
}

fn some(value: i32) -> mlx_sys::mlx_optional_int {
    mlx_sys::mlx_optional_int { value, has_value: true }
}

/// Whether an evaluated array is computed; does not wait. `false` for one that nobody evaluates.
pub fn is_available(array: &Array) -> bool {
    let mut available = false;
    // SAFETY: both pointers are live for the call, which only asks the array's event.
    let status = unsafe { mlx_sys::_mlx_array_is_available(&mut available, array.as_ptr()) };
    status == 0 && available
}

/// Waits until all work launched on this thread's default stream is done.
pub fn synchronize() -> Result<()> {
    let stream = Stream::thread_local_or_default();
    // SAFETY: the stream is alive; the call only waits.
    match unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Exception::custom("cannot wait for the device".to_owned())),
    }
}

/// Whether MLX computes on a CUDA device.
pub fn computes_on_cuda() -> bool {
    let mut is_available = false;
    // SAFETY: the call writes one bool. `current` has made mlx-rs install its error handler.
    ComputeDevice::current() == ComputeDevice::Gpu
        && unsafe { mlx_sys::mlx_cuda_is_available(&mut is_available) } == 0
        && is_available
}

/// A kernel in CUDA C++. MLX compiles it on first use and caches it by name and constants.
pub(crate) struct CudaKernel(mlx_sys::mlx_fast_cuda_kernel);

/// The launch configuration of a [`CudaKernel`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch<'a> {
    /// Template constants that the source is compiled with.
    pub(crate) constants: &'a [(&'a CStr, i32)],
    /// Blocks in the grid's three dimensions.
    pub(crate) blocks: [i32; 3],
    /// Threads in a block.
    pub(crate) threads: i32,
    /// Shape and type of each output.
    pub(crate) outputs: &'a [(&'a [i32], Dtype)],
}

/// The source of a [`CudaKernel`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelSource<'a> {
    /// Types and functions that the body uses.
    pub(crate) head: &'a str,
    /// The body of the kernel. Its arguments have the names of the inputs and outputs.
    pub(crate) body: &'a str,
    /// The most threads of a block: a thread gets no more registers than leave as many for all of them.
    /// Without it, a kernel that uses many cannot be launched.
    pub(crate) most_threads: Option<i32>,
}

impl CudaKernel {
    /// A kernel with the arguments `inputs` and then `outputs`. Fails on names and sources with a zero
    /// byte, and where MLX was built without CUDA.
    pub(crate) fn new(
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        source: KernelSource<'_>,
    ) -> Result<Self> {
        // MLX writes the kernel's declaration, to which nothing can be added otherwise.
        let bounds = source.most_threads.map(|threads| {
            format!(
                "#undef __global__\n\
                 #define __global__ __attribute__((global)) __launch_bounds__({threads})\n"
            )
        });
        let header =
            format!("#include <cuda_bf16.h>\n{}\n{}", source.head, bounds.unwrap_or_default());
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                Exception::custom(format!("the kernel '{name}' has a zero byte in it"))
            })
        };
        let (name_text, source, header) = (text(name)?, text(source.body)?, text(&header)?);
        let texts =
            |names: &[&str]| names.iter().map(|name| text(name)).collect::<Result<Vec<_>>>();
        let (inputs, outputs) = (texts(inputs)?, texts(outputs)?);
        let _handler = Array::from_int(0);
        // SAFETY: MLX copies all strings before the call returns, and the two lists are freed after
        // it.
        unsafe {
            let list = |names: &[CString]| {
                let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
                mlx_sys::mlx_vector_string_new_data(pointers.as_mut_ptr(), pointers.len())
            };
            let (inputs, outputs) = (list(&inputs), list(&outputs));
            let kernel = mlx_sys::mlx_fast_cuda_kernel_new(
                name_text.as_ptr(),
                inputs,
                outputs,
                source.as_ptr(),
                header.as_ptr(),
                true,
                0,
            );
            mlx_sys::mlx_vector_string_free(inputs);
            mlx_sys::mlx_vector_string_free(outputs);
            if kernel.ctx.is_null() {
                return Err(Exception::custom(format!("MLX refused the kernel '{name}'")));
            }
            Ok(CudaKernel(kernel))
        }
    }

    /// The kernel's N outputs for `inputs`, as [`CudaKernel::apply_all`].
    pub(crate) fn apply<const N: usize>(
        &self,
        inputs: &[&Array],
        launch: Launch<'_>,
    ) -> Result<[Array; N]> {
        <[Array; N]>::try_from(self.apply_all(inputs, launch)?).map_err(|outputs| {
            Exception::custom(format!("a CUDA kernel has {} outputs, not {N}", outputs.len()))
        })
    }

    /// The kernel's outputs for `inputs`, which MLX makes contiguous.
    ///
    /// Nothing checks what the kernel reads and writes. The caller, which also wrote the source,
    /// must pass inputs of the shapes and types that the source expects for the constants, a grid
    /// that covers no more than these, and outputs of the shapes that the source fills. That is why
    /// kernels are private to this crate.
    pub(crate) fn apply_all(&self, inputs: &[&Array], launch: Launch<'_>) -> Result<Vec<Array>> {
        let stream = Stream::thread_local_or_default();
        let [x, y, z] = launch.blocks;
        // SAFETY: all handles are live for the calls; configuration and lists are freed once.
        unsafe {
            let config = mlx_sys::mlx_fast_cuda_kernel_config_new();
            for &(shape, dtype) in launch.outputs {
                mlx_sys::mlx_fast_cuda_kernel_config_add_output_arg(
                    config,
                    shape.as_ptr(),
                    shape.len(),
                    dtype as mlx_sys::mlx_dtype,
                );
            }
            // MLX counts the grid in threads.
            mlx_sys::mlx_fast_cuda_kernel_config_set_grid(config, x * launch.threads, y, z);
            mlx_sys::mlx_fast_cuda_kernel_config_set_thread_group(config, launch.threads, 1, 1);
            for (name, value) in launch.constants {
                mlx_sys::mlx_fast_cuda_kernel_config_add_template_arg_int(
                    config,
                    name.as_ptr(),
                    *value,
                );
            }
            let inputs = list_of(inputs);
            let mut outputs = mlx_sys::mlx_vector_array_new();
            let status = mlx_sys::mlx_fast_cuda_kernel_apply(
                &mut outputs,
                self.0,
                inputs,
                config,
                stream.as_ptr(),
            );
            mlx_sys::mlx_vector_array_free(inputs);
            mlx_sys::mlx_fast_cuda_kernel_config_free(config);
            let arrays = arrays_of(outputs);
            mlx_sys::mlx_vector_array_free(outputs);
            match status == 0 && arrays.len() == launch.outputs.len() {
                true => Ok(arrays),
                false => Err(Exception::custom("MLX refused to start a CUDA kernel".to_owned())),
            }
        }
    }
}

impl Drop for CudaKernel {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { mlx_sys::mlx_fast_cuda_kernel_free(self.0) }
    }
}

impl Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CudaKernel")
    }
}

/// From now on functions are traced and simplified, but nothing in them is fused.
pub fn trace_without_fusing() -> Result<()> {
    // SAFETY: sets a flag of MLX's.
    let mode = mlx_sys::mlx_compile_mode__MLX_COMPILE_MODE_NO_FUSE;
    match unsafe { mlx_sys::mlx_set_compile_mode(mode) } {
        0 => Ok(()),
        _ => Err(Exception::custom("MLX refused a mode of compiling".to_owned())),
    }
}

/// A function from arrays to arrays.
pub type ArrayFunction = Box<dyn Fn(Vec<Array>) -> Result<Vec<Array>>>;

/// A function that MLX traces once per combination of input shapes and then replays.
///
/// On the CPU backend a fused trace starts a C++ compiler, so use it on GPUs only.
pub struct Compiled {
    closure: mlx_sys::mlx_closure,
    traced: *mut Traced,
}

struct Traced {
    function: ArrayFunction,
    /// The first error. It is kept, because MLX replays a failed function as one without outputs.
    error: RefCell<Option<String>>,
}

impl Compiled {
    /// Compiles `function`. Its outputs may depend only on its inputs and on arrays that never
    /// change.
    pub fn new(function: ArrayFunction) -> Result<Self> {
        Self::compile(function, false)
    }

    /// As [`Compiled::new`], for elementwise operations: traced once for all shapes.
    pub fn elementwise(function: ArrayFunction) -> Result<Self> {
        Self::compile(function, true)
    }

    fn compile(function: ArrayFunction, shapeless: bool) -> Result<Self> {
        let _handler = Array::from_int(0);
        let traced = Box::into_raw(Box::new(Traced { function, error: RefCell::new(None) }));
        // SAFETY: the payload is freed by `drop`, after the closure.
        unsafe {
            let plain = mlx_sys::mlx_closure_new_func_payload(Some(trace), traced.cast(), None);
            let mut closure = mlx_sys::mlx_closure_new();
            let status = mlx_sys::mlx_compile(&mut closure, plain, shapeless);
            mlx_sys::mlx_closure_free(plain);
            let compiled = Compiled { closure, traced };
            if status == 0 {
                Ok(compiled)
            } else {
                Err(Exception::custom("a function was not compiled".to_owned()))
            }
        }
    }

    /// The function's N outputs for `inputs`. Fails with the function's own error (also on every
    /// call after it), and if it has another number of outputs.
    pub fn call<const N: usize>(&self, inputs: &[&Array]) -> Result<[Array; N]> {
        <[Array; N]>::try_from(self.call_all(inputs)?)
            .map_err(|_| Exception::custom("a compiled function failed".to_owned()))
    }

    /// As [`Compiled::call`], with as many outputs as the function has.
    pub fn call_all(&self, inputs: &[&Array]) -> Result<Vec<Array>> {
        // SAFETY: all handles are live for the call; lists are freed once. The payload lives as
        // long as `self`, and nobody changes it.
        unsafe {
            let inputs = list_of(inputs);
            let mut outputs = mlx_sys::mlx_vector_array_new();
            let status = mlx_sys::mlx_closure_apply(&mut outputs, self.closure, inputs);
            mlx_sys::mlx_vector_array_free(inputs);
            let arrays = arrays_of(outputs);
            mlx_sys::mlx_vector_array_free(outputs);
            if let Some(error) = (*self.traced).error.borrow().clone() {
                return Err(Exception::custom(error));
            }
            match status {
                0 => Ok(arrays),
                _ => Err(Exception::custom("a compiled function failed".to_owned())),
            }
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: both were made by `compile` and are freed once; the closure, which points to the
        // payload, first.
        unsafe {
            mlx_sys::mlx_closure_free(self.closure);
            drop(Box::from_raw(self.traced));
        }
    }
}

impl Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compiled")
    }
}

/// # Safety
/// Called by MLX with the payload of [`Compiled::new`] and two lists of its own, the first empty.
unsafe extern "C" fn trace(
    outputs: *mut mlx_sys::mlx_vector_array,
    inputs: mlx_sys::mlx_vector_array,
    payload: *mut c_void,
) -> i32 {
    // SAFETY: by this function's contract.
    unsafe {
        let traced = &*payload.cast::<Traced>();
        let inputs = arrays_of(inputs);
        // A panic must not unwind into MLX, which would end the process.
        let result = catch_unwind(AssertUnwindSafe(|| (traced.function)(inputs)))
            .unwrap_or_else(|panic| Err(Exception::custom(panic_text(panic.as_ref()))));
        match result {
            Ok(arrays) => {
                let handles: Vec<_> = arrays.iter().map(|array| array.as_ptr()).collect();
                mlx_sys::mlx_vector_array_set_data(outputs, handles.as_ptr(), handles.len())
            }
            Err(error) => {
                *traced.error.borrow_mut() = Some(error.what().to_owned());
                1
            }
        }
    }
}

/// The message of a panic in a traced function.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a compiled function panicked: {}", text.unwrap_or("no message"))
}

/// The names of the operations that evaluate `outputs`, each once: their unevaluated graph.
///
/// What a token costs the host is mostly the number of these. MLX's CPU backend writes its fused
/// operations (norms, RoPE, attention) out as many; a GPU has one of each.
pub fn graph_operations(outputs: &[&Array]) -> Result<Vec<String>> {
    let failed = |what: &str| Exception::custom(format!("the graph was not written: {what}"));
    let file = tempfile::NamedTempFile::new().map_err(|error| failed(&error.to_string()))?;
    let path = CString::new(file.path().as_os_str().as_encoded_bytes())
        .map_err(|_| failed("a zero byte in its path"))?;
    // SAFETY: the path and mode are terminated strings; the stream, the namer and the list are
    // live for the calls and freed once.
    let status = unsafe {
        let stream = fopen(path.as_ptr(), c"w".as_ptr());
        if stream.is_null() {
            return Err(failed("its file did not open"));
        }
        let (namer, list) = (mlx_sys::mlx_node_namer_new(), list_of(outputs));
        let status = mlx_sys::mlx_export_to_dot(stream, namer, list);
        mlx_sys::mlx_vector_array_free(list);
        mlx_sys::mlx_node_namer_free(namer);
        fclose(stream);
        status
    };
    if status != 0 {
        return Err(failed("MLX refused"));
    }
    let dot = std::fs::read_to_string(file.path()).map_err(|error| failed(&error.to_string()))?;
    let name = |line: &str| {
        let (_, label) = line.split_once("label =\"")?;
        Some(label.split_once("\", shape=rectangle")?.0.to_owned())
    };
    Ok(dot.lines().filter_map(name).collect())
}

/// Gives the pages of freed memory back to the system, also those between pages in use, which glibc
/// otherwise keeps. Returns whether any went back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_heap() -> bool {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> i32;
    }
    // SAFETY: may be called at any time and from any thread.
    unsafe { malloc_trim(0) != 0 }
}

unsafe extern "C" {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut mlx_sys::FILE;
    fn fclose(stream: *mut mlx_sys::FILE) -> i32;
}

/// `outputs` as the outputs of one operation that reads `inputs`.
#[cfg(test)]
pub(crate) fn depends(outputs: &[&Array], inputs: &[&Array]) -> Result<Vec<Array>> {
    // SAFETY: the lists are live for the call and freed once.
    unsafe {
        let (outputs, inputs) = (list_of(outputs), list_of(inputs));
        let mut results = mlx_sys::mlx_vector_array_new();
        let status = mlx_sys::mlx_depends(&mut results, outputs, inputs);
        let arrays = arrays_of(results);
        for list in [outputs, inputs, results] {
            mlx_sys::mlx_vector_array_free(list);
        }
        if status == 0 { Ok(arrays) } else { Err(Exception::custom("depends was refused")) }
    }
}

/// # Safety
/// The caller frees the list.
unsafe fn list_of(arrays: &[&Array]) -> mlx_sys::mlx_vector_array {
    let handles: Vec<_> = arrays.iter().map(|array| array.as_ptr()).collect();
    // SAFETY: the list takes references of its own.
    unsafe { mlx_sys::mlx_vector_array_new_data(handles.as_ptr(), handles.len()) }
}

/// # Safety
/// `list` is a list of MLX's, or an empty handle.
unsafe fn arrays_of(list: mlx_sys::mlx_vector_array) -> Vec<Array> {
    if list.ctx.is_null() {
        return Vec::new();
    }
    // SAFETY: indices are below the list's length; each handle is wrapped, and so freed, once.
    unsafe {
        let get = |index| {
            let mut array = mlx_sys::mlx_array_new();
            mlx_sys::mlx_vector_array_get(&mut array, list, index);
            Array::from_ptr(array)
        };
        (0..mlx_sys::mlx_vector_array_size(list)).map(get).collect()
    }
}

/// # Safety
/// `result` is a handle that MLX just filled, and nobody else frees it.
unsafe fn finish(result: mlx_sys::mlx_array, status: i32, operation: &str) -> Result<Array> {
    // SAFETY: by this function's contract; an empty handle may be wrapped and freed too.
    let array = unsafe { Array::from_ptr(result) };
    if status == 0 { Ok(array) } else { Err(Exception::custom(format!("{operation} was refused"))) }
}

#[cfg(test)]
mod tests {
    use mlx_rs::ops;

    use super::*;

    #[test]
    fn a_compiled_function_is_traced_once_for_each_shape_and_gives_its_own_error() {
        let traces = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = traces.clone();
        // One operation alone: fusing several would start a compiler.
        let product = Compiled::new(Box::new(move |inputs| {
            counted.set(counted.get() + 1);
            match inputs.as_slice() {
                [x, y] if x.dim(0) < 4 => Ok(vec![ops::matmul(x, y)?, x.clone()]),
                _ => Err(Exception::custom("four is too many".to_owned())),
            }
        }))
        .expect("compile");
        let square = |size: i32, number: f32| {
            ops::full::<f32>(&[size, size], Array::from_f32(number)).expect("full")
        };
        for (size, number, expected) in
            [(2, 1.0, 2.0), (2, 3.0, 18.0), (3, 1.0, 3.0), (2, 2.0, 8.0)]
        {
            let x = square(size, number);
            let [found, same] = product.call(&[&x, &x]).expect("call");
            assert!(
                found.as_slice::<f32>().iter().all(|&found| found == expected),
                "{size} {number}"
            );
            assert_eq!(same.as_slice::<f32>(), x.as_slice::<f32>());
        }
        assert_eq!(traces.get(), 2);
        let four = square(4, 1.0);
        for _ in 0..2 {
            assert!(
                product
                    .call::<2>(&[&four, &four])
                    .expect_err("refused")
                    .what()
                    .contains("four is too many")
            );
        }
    }

    #[test]
    fn a_panic_in_a_compiled_function_is_its_error() {
        let panicking = Compiled::new(Box::new(|_| panic!("no such shape"))).expect("compile");
        let x = Array::from_int(1);
        for _ in 0..2 {
            let error = panicking.call::<1>(&[&x]).expect_err("panics");
            assert!(error.what().contains("no such shape"), "{}", error.what());
        }
    }

    #[test]
    fn parts_of_any_length_are_uploaded_each_where_it_is_said_to_begin() {
        let bytes: Vec<u8> = (0..=255).collect();
        let parts = [&bytes[3..4], &bytes[..], &bytes[7..40], &bytes[200..]];
        let (array, starts) = upload(&parts).expect("upload");
        assert_eq!((array.dtype(), array.ndim()), (Dtype::Uint8, 1));
        let found = array_bytes(&array).expect("bytes");
        for (part, start) in parts.iter().zip(starts) {
            assert_eq!(start % UPLOAD_ALIGNMENT, 0);
            assert_eq!(&found[start..start + part.len()], *part);
        }
    }
}
