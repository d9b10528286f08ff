//! From chunk states to caches.

use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype, ops};

use super::{ChunkForm, StateTensorSize, TokenTensor, entry_path, state_name};
use crate::cache::buffer;
use crate::cache::{CacheList, CacheSpec, LayerCache, LayerCacheSpec, MAX_TOKENS};
use crate::dtype::item_size;
use crate::{LmError, ffi};

/// A tensor of a chunk state, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSlice<'a> {
    /// Its type.
    pub dtype: Dtype,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Its contents, `shape` numbers of `dtype`.
    pub bytes: &'a [u8],
}

/// Builds caches of a given number of tokens from chunk states, which may be added in any order.
#[derive(Debug)]
pub struct CacheAssembler {
    num_tokens: usize,
    layers: Vec<LayerAssembly>,
}

/// Where the buffers of keys and values are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filling {
    /// By the host, in memory that the device shares.
    OnHost,
    /// By the device, in memory of its own: each chunk is uploaded as a whole, while others are read.
    OnDevice,
}

#[derive(Debug)]
struct LayerAssembly {
    spec: LayerCacheSpec,
    parts: Parts,
}

#[derive(Debug)]
enum Parts {
    Tokens(TokenAssembly),
    State { sizes: Vec<Option<StateTensorSize>>, slots: Vec<Option<Array>> },
    List(Vec<LayerAssembly>),
}

/// Keys and values of the tokens from `first` on, in one buffer for each of `tensors`.
#[derive(Debug)]
struct TokenAssembly {
    tensors: Vec<TokenTensor>,
    buffers: Vec<Option<RowBuffer>>,
    first: usize,
    capacity: usize,
    filling: Filling,
}

/// The range of tokens that a chunk state belongs to.
#[derive(Debug, Clone, Copy)]
struct ChunkRange {
    start: usize,
    stop: usize,
}

/// A buffer `[1, heads, capacity, width]` and how many of its tokens have been filled.
#[derive(Debug)]
struct RowBuffer {
    rows: Rows,
    dtype: Dtype,
    heads: usize,
    capacity: usize,
    width: usize,
    num_filled: usize,
}

#[derive(Debug)]
enum Rows {
    OnHost(ffi::ArrayBuffer),
    OnDevice(Array),
}

/// Tokens of a chunk on their way into a buffer.
struct Part<'a, 'b> {
    buffer: &'b mut RowBuffer,
    source: TensorSlice<'a>,
    /// The first of them in `source`.
    from: usize,
    /// Its place in the buffer.
    at: usize,
    num_tokens: usize,
}

impl CacheAssembler {
    /// An assembler of the caches `spec` for `num_tokens` tokens. Chunks must have the sizes and
    /// types that `spec` names; where it names none, those of the first chunk. Fails for a spec
    /// whose caches are not stored in chunks, and for more tokens than a cache can hold.
    pub fn new(spec: &CacheSpec, num_tokens: usize) -> Result<CacheAssembler, LmError> {
        // What a CUDA device shares with the host is slow for both.
        let filling = match ffi::computes_on_cuda() {
            true => Filling::OnDevice,
            false => Filling::OnHost,
        };
        CacheAssembler::filling(filling, spec, num_tokens)
    }

    /// As [`CacheAssembler::new`], with buffers that are filled there.
    pub(super) fn filling(
        filling: Filling,
        spec: &CacheSpec,
        num_tokens: usize,
    ) -> Result<CacheAssembler, LmError> {
        if num_tokens > MAX_TOKENS as usize {
            return Err(refused(format!("{num_tokens} tokens are too many")));
        }
        let layers = spec.layers().iter();
        let layers = layers.map(|layer| LayerAssembly::new(layer, num_tokens, filling));
        Ok(CacheAssembler { num_tokens, layers: layers.collect::<Result<_, _>>()? })
    }

    /// Adds the state of the tokens `start..stop`; tokens that the caches do not need are ignored.
    /// `tensor` finds the chunk's tensors by name.
    ///
    /// Fails with [`LmError::ChunkState`] if a tensor is missing, or has another shape or type than
    /// the spec and the other chunks ask for.
    pub fn add<'a>(
        &mut self,
        start: usize,
        stop: usize,
        tensor: impl Fn(&str) -> Option<TensorSlice<'a>>,
    ) -> Result<(), LmError> {
        let mut parts = Vec::new();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let range = ChunkRange { start, stop };
            layer.add(&index.to_string(), self.num_tokens, range, &tensor, &mut parts)?;
        }
        fill(parts)
    }

    /// The caches, one per layer. Fails if chunks are missing.
    pub fn finish(self) -> Result<Vec<LayerCache>, LmError> {
        // As `new` has checked, the number fits.
        self.layers.into_iter().map(|layer| layer.finish(self.num_tokens as i32)).collect()
    }
}

impl LayerAssembly {
    fn new(
        spec: &LayerCacheSpec,
        num_tokens: usize,
        filling: Filling,
    ) -> Result<LayerAssembly, LmError> {
        let kind = spec.as_kind();
        let parts = match kind.chunk_form(num_tokens).ok_or_else(|| kind.is_not_in_chunks())? {
            ChunkForm::Tokens { tensors, first, capacity } => {
                let buffers = tensors.iter().map(|_| None).collect();
                Parts::Tokens(TokenAssembly { tensors, buffers, first, capacity, filling })
            }
            ChunkForm::State(sizes) => Parts::State { slots: vec![None; sizes.len()], sizes },
            ChunkForm::Entries(entries) => {
                let entries = entries.iter();
                let entries = entries.map(|entry| LayerAssembly::new(entry, num_tokens, filling));
                Parts::List(entries.collect::<Result<_, _>>()?)
            }
        };
        Ok(LayerAssembly { spec: spec.clone(), parts })
    }

    /// Adds a recurrent state, and to `parts` the tokens that go into this layer's buffers.
    fn add<'a, 'b>(
        &'b mut self,
        path: &str,
        num_tokens: usize,
        range: ChunkRange,
        tensor: &impl Fn(&str) -> Option<TensorSlice<'a>>,
        parts: &mut Vec<Part<'a, 'b>>,
    ) -> Result<(), LmError> {
        match &mut self.parts {
            Parts::Tokens(tokens) => tokens.add(path, num_tokens, range, tensor, parts)?,
            // A recurrent state is valid only at the position where generation continues.
            Parts::State { sizes, slots } if range.stop == num_tokens => {
                for (slot, (size, state)) in sizes.iter().zip(slots).enumerate() {
                    let name = state_name(slot, path);
                    let part = tensor(&name).ok_or_else(|| refused(format!("it lacks {name}")))?;
                    if let Some(size) = size {
                        check_size(&name, &part, &size.shape, size.dtype)?;
                    }
                    let shape: Vec<i32> = part.shape.iter().map(|&length| length as i32).collect();
                    *state = Some(ffi::array_from_bytes(part.bytes, &shape, part.dtype)?);
                }
            }
            Parts::State { .. } => {}
            Parts::List(entries) => {
                for (index, entry) in entries.iter_mut().enumerate() {
                    entry.add(&entry_path(path, index), num_tokens, range, tensor, parts)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self, num_tokens: i32) -> Result<LayerCache, LmError> {
        let arrays = match self.parts {
            Parts::Tokens(tokens) => tokens.finish(num_tokens)?,
            Parts::State { slots, .. } => slots
                .into_iter()
                .collect::<Option<_>>()
                .ok_or_else(|| refused("it lacks a recurrent state".to_owned()))?,
            Parts::List(entries) => {
                let entries = entries.into_iter().map(|entry| entry.finish(num_tokens));
                return Ok(LayerCache::List(CacheList::new(entries.collect::<Result<_, _>>()?)));
            }
        };
        self.spec.as_kind().join_chunks(arrays, num_tokens)
    }
}

impl TokenAssembly {
    fn add<'a, 'b>(
        &'b mut self,
        path: &str,
        num_tokens: usize,
        range: ChunkRange,
        tensor: &impl Fn(&str) -> Option<TensorSlice<'a>>,
        parts: &mut Vec<Part<'a, 'b>>,
    ) -> Result<(), LmError> {
        // The tokens of this chunk that the layer needs.
        let needed =
            ChunkRange { start: range.start.max(self.first), stop: range.stop.min(num_tokens) };
        if needed.start >= needed.stop {
            return Ok(());
        }
        for (expected, buffer) in self.tensors.iter().zip(&mut self.buffers) {
            let name = format!("{}.{path}", expected.name);
            let part = tensor(&name).ok_or_else(|| refused(format!("it lacks {name}")))?;
            // Scales and biases follow each packed tensor.
            if (expected.dtype == Some(Dtype::Uint32)) != (part.dtype == Dtype::Uint32) {
                return Err(refused(format!("{name} holds {:?} numbers", part.dtype)));
            }
            let held_from = check_part(&name, &part, range, needed)?;
            if let Some([heads, width]) = expected.size {
                let shape = [1, heads, part.shape[2], width];
                check_size(&name, &part, &shape, expected.dtype)?;
            }
            let buffer = match buffer {
                Some(buffer) => buffer,
                None => buffer.insert(RowBuffer::for_part(&part, self.capacity, self.filling)?),
            };
            if (buffer.heads, buffer.width, buffer.dtype)
                != (part.shape[1], part.shape[3], part.dtype)
            {
                return Err(refused(format!("{name} is not of the shape that it has elsewhere")));
            }
            parts.push(Part {
                buffer,
                source: part,
                from: needed.start - held_from,
                at: needed.start - self.first,
                num_tokens: needed.stop - needed.start,
            });
        }
        Ok(())
    }

    /// One array for each tensor.
    fn finish(self, num_tokens: i32) -> Result<Vec<Array>, LmError> {
        let num_wanted = num_tokens as usize - self.first;
        let array = |(tensor, buffer): (&TokenTensor, Option<RowBuffer>)| {
            let filled = buffer.filter(|buffer| buffer.num_filled == num_wanted);
            match filled.map(|buffer| buffer.rows) {
                Some(Rows::OnHost(rows)) => rows.into_array().map_err(LmError::from),
                Some(Rows::OnDevice(rows)) => Ok(rows),
                None => Err(refused(format!("not all of its {} are there", tensor.name))),
            }
        };
        self.tensors.iter().zip(self.buffers).map(array).collect()
    }
}

/// Checks that `part` has the shape and, where it is known, the type of the model's own caches. A
/// chunk file may be forged: its hash says only that it was not changed since.
fn check_size(
    name: &str,
    part: &TensorSlice<'_>,
    shape: &[usize],
    dtype: Option<Dtype>,
) -> Result<(), LmError> {
    if part.shape == shape && dtype.is_none_or(|dtype| dtype == part.dtype) {
        return Ok(());
    }
    let dtype = dtype.map_or(String::new(), |dtype| format!(" of {dtype:?}"));
    let found = format!("{:?} of {:?}", part.shape, part.dtype);
    Err(refused(format!("{name} is {found}, and this model's is {shape:?}{dtype}")))
}

/// Checks that `part` is `[1, heads, tokens, width]`, has as many bytes, and holds the tokens
/// `needed`. Returns the first token that it holds: a ring may have overwritten the first ones of
/// the chunk, and the part ends with the chunk's last one.
fn check_part(
    name: &str,
    part: &TensorSlice<'_>,
    chunk: ChunkRange,
    needed: ChunkRange,
) -> Result<usize, LmError> {
    let [1, heads, held, width] = *part.shape else {
        return Err(refused(format!(
            "{name} is {:?}, and not one row of keys or values",
            part.shape
        )));
    };
    let held_from = chunk
        .stop
        .checked_sub(held)
        .filter(|&held_from| (chunk.start..=needed.start).contains(&held_from));
    let Some(held_from) = held_from else {
        let ChunkRange { start, stop } = chunk;
        return Err(refused(format!("{name} holds {held} tokens of {start} to {stop}")));
    };
    let num_bytes = part.bytes.len();
    if num_bytes != heads * held * width * item_size(part.dtype) || num_bytes == 0 {
        return Err(refused(format!("{name} has {num_bytes} bytes for {:?}", part.shape)));
    }
    Ok(held_from)
}

/// Copies a chunk's parts into their buffers. Those of a device are uploaded together, because the host
/// waits for each upload.
fn fill(parts: Vec<Part<'_, '_>>) -> Result<(), LmError> {
    let mut on_device = Vec::new();
    for mut part in parts {
        part.buffer.num_filled += part.num_tokens;
        match part.buffer.rows {
            Rows::OnHost(_) => part.copy_on_host(),
            Rows::OnDevice(_) => on_device.push(part),
        }
    }
    if on_device.is_empty() {
        return Ok(());
    }
    let bytes: Vec<&[u8]> = on_device.iter().map(|part| part.source.bytes).collect();
    let (uploaded, starts) = ffi::upload(&bytes)?;
    // What wrote the chunk before keeps the buffers until it is over: they would be copied.
    ffi::synchronize()?;
    for (part, start) in on_device.iter_mut().zip(starts) {
        part.write_on_device(&uploaded, start)?;
    }
    async_eval(on_device.iter().filter_map(|part| part.buffer.on_device()))?;
    Ok(())
}

impl Part<'_, '_> {
    /// Copies the tokens into a buffer of the host.
    fn copy_on_host(&mut self) {
        let Part { buffer, source, from, at, num_tokens } = self;
        let (heads, capacity) = (buffer.heads, buffer.capacity);
        let token_bytes = buffer.width * item_size(buffer.dtype);
        let length = *num_tokens * token_bytes;
        let Rows::OnHost(rows) = &mut buffer.rows else { return };
        let bytes = rows.bytes_mut();
        for head in 0..heads {
            let source_start = (head * source.shape[2] + *from) * token_bytes;
            let target_start = (head * capacity + *at) * token_bytes;
            bytes[target_start..target_start + length]
                .copy_from_slice(&source.bytes[source_start..source_start + length]);
        }
    }

    /// Has the device write the tokens into its buffer; the source's bytes begin at `start` in `uploaded`.
    fn write_on_device(&mut self, uploaded: &Array, start: usize) -> Result<(), LmError> {
        let Rows::OnDevice(rows) = &mut self.buffer.rows else { return Ok(()) };
        // An upload has less than 2 GiB.
        let [start, stop] = [start, start + self.source.bytes.len()].map(|byte| byte as i32);
        let shape: Vec<i32> = self.source.shape.iter().map(|&length| length as i32).collect();
        let source = ffi::slice(uploaded, &[start], &[stop])?;
        let source = source.view_dtype(self.source.dtype)?.reshape(&shape)?;
        let [from, at, stop] =
            [self.from, self.at, self.from + self.num_tokens].map(|column| column as i32);
        // The old handle is dropped, so that the device writes in place.
        *rows = buffer::write(rows, &buffer::token_range(&source, from, stop)?, at)?;
        Ok(())
    }
}

impl RowBuffer {
    /// A buffer of `capacity` tokens with the heads, width and type of `part` `[1, heads, _, width]`.
    fn for_part(
        part: &TensorSlice<'_>,
        capacity: usize,
        filling: Filling,
    ) -> Result<RowBuffer, LmError> {
        let (heads, width) = (part.shape[1], part.shape[3]);
        let shape = [1, heads as i32, capacity as i32, width as i32];
        let rows = match filling {
            Filling::OnHost => Rows::OnHost(ffi::ArrayBuffer::zeros(&shape, part.dtype)?),
            Filling::OnDevice => Rows::OnDevice(ops::zeros_dtype(&shape, part.dtype)?),
        };
        Ok(RowBuffer { rows, dtype: part.dtype, heads, capacity, width, num_filled: 0 })
    }

    fn on_device(&self) -> Option<&Array> {
        match &self.rows {
            Rows::OnDevice(rows) => Some(rows),
            Rows::OnHost(_) => None,
        }
    }
}

fn refused(what: String) -> LmError {
    LmError::ChunkState { what }
}
