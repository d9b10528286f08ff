//! From chunk states to caches.

use mlx_rs::{Array, Dtype};

use super::{CacheLayout, LayerLayout, PLAIN, QUANTIZED, entry_path, state_name};
use crate::cache::buffer::round_up;
use crate::cache::{
    ArraysCache, CacheList, KvCache, LayerCache, MAX_TOKENS, QuantizedArray, QuantizedKvCache,
    RotatingKvCache,
};
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

#[derive(Debug)]
enum LayerAssembly {
    Tokens(TokenAssembly),
    State(Vec<Option<Array>>),
    List(Vec<LayerAssembly>),
}

/// Keys and values of the tokens from `first` on, in one buffer for each of `names`.
#[derive(Debug)]
struct TokenAssembly {
    names: &'static [&'static str],
    buffers: Vec<Option<RowBuffer>>,
    kind: TokenKind,
    first: usize,
}

#[derive(Debug, Clone, Copy)]
enum TokenKind {
    Kv,
    Rotating { max_size: usize },
    Quantized { group_size: i32, bits: i32 },
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
    buffer: ffi::ArrayBuffer,
    dtype: Dtype,
    heads: usize,
    capacity: usize,
    width: usize,
    num_filled: usize,
}

impl CacheAssembler {
    /// An assembler of caches for `num_tokens` tokens. Buffers are allocated when the first chunk
    /// shows their shapes.
    pub fn new(layout: &CacheLayout, num_tokens: usize) -> CacheAssembler {
        CacheAssembler {
            num_tokens,
            layers: layout
                .layers()
                .iter()
                .map(|layer| LayerAssembly::new(layer, num_tokens))
                .collect(),
        }
    }

    /// Adds the state of the tokens `start..stop`; tokens that the caches do not need are ignored.
    /// `tensor` finds the chunk's tensors by name.
    ///
    /// Fails with [`LmError::ChunkState`] if a tensor is missing, or has another shape than the
    /// layout and the other chunks ask for.
    pub fn add<'a>(
        &mut self,
        start: usize,
        stop: usize,
        tensor: impl Fn(&str) -> Option<TensorSlice<'a>>,
    ) -> Result<(), LmError> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let range = ChunkRange { start, stop };
            layer.add(&index.to_string(), self.num_tokens, range, &tensor)?;
        }
        Ok(())
    }

    /// The caches, one per layer. Fails if chunks are missing.
    pub fn finish(self) -> Result<Vec<LayerCache>, LmError> {
        let num_tokens =
            i32::try_from(self.num_tokens).ok().filter(|&num_tokens| num_tokens <= MAX_TOKENS);
        let num_tokens = num_tokens
            .ok_or_else(|| refused(format!("{} tokens are too many", self.num_tokens)))?;
        self.layers.into_iter().map(|layer| layer.finish(num_tokens)).collect()
    }
}

impl LayerAssembly {
    fn new(layout: &LayerLayout, num_tokens: usize) -> LayerAssembly {
        let tokens = |names: &'static [&'static str], kind, first| {
            let buffers = names.iter().map(|_| None).collect();
            LayerAssembly::Tokens(TokenAssembly { names, buffers, kind, first })
        };
        match *layout {
            LayerLayout::Kv => tokens(&PLAIN, TokenKind::Kv, 0),
            LayerLayout::Rotating { max_size } => tokens(
                &PLAIN,
                TokenKind::Rotating { max_size },
                num_tokens.saturating_sub(max_size),
            ),
            LayerLayout::Quantized { group_size, bits } => {
                tokens(&QUANTIZED, TokenKind::Quantized { group_size, bits }, 0)
            }
            LayerLayout::Arrays { num_slots } => LayerAssembly::State(vec![None; num_slots]),
            LayerLayout::List(ref entries) => LayerAssembly::List(
                entries.iter().map(|entry| LayerAssembly::new(entry, num_tokens)).collect(),
            ),
        }
    }

    fn add<'a>(
        &mut self,
        path: &str,
        num_tokens: usize,
        range: ChunkRange,
        tensor: &impl Fn(&str) -> Option<TensorSlice<'a>>,
    ) -> Result<(), LmError> {
        match self {
            LayerAssembly::Tokens(tokens) => tokens.add(path, num_tokens, range, tensor)?,
            // A recurrent state is valid only at the position where generation continues.
            LayerAssembly::State(slots) if range.stop == num_tokens => {
                for (slot, state) in slots.iter_mut().enumerate() {
                    let name = state_name(slot, path);
                    let part = tensor(&name).ok_or_else(|| refused(format!("it lacks {name}")))?;
                    let shape: Vec<i32> = part.shape.iter().map(|&length| length as i32).collect();
                    *state = Some(ffi::array_from_bytes(part.bytes, &shape, part.dtype)?);
                }
            }
            LayerAssembly::State(_) => {}
            LayerAssembly::List(entries) => {
                for (index, entry) in entries.iter_mut().enumerate() {
                    entry.add(&entry_path(path, index), num_tokens, range, tensor)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self, num_tokens: i32) -> Result<LayerCache, LmError> {
        Ok(match self {
            LayerAssembly::Tokens(tokens) => tokens.finish(num_tokens)?,
            LayerAssembly::State(slots) => {
                if slots.iter().any(Option::is_none) {
                    return Err(refused("it lacks a recurrent state".to_owned()));
                }
                let mut cache = ArraysCache::from_slots(slots);
                cache.advance(num_tokens as usize);
                LayerCache::Arrays(cache)
            }
            LayerAssembly::List(entries) => {
                let entries = entries.into_iter().map(|entry| entry.finish(num_tokens));
                LayerCache::List(CacheList::new(entries.collect::<Result<_, _>>()?))
            }
        })
    }
}

impl TokenAssembly {
    fn add<'a>(
        &mut self,
        path: &str,
        num_tokens: usize,
        range: ChunkRange,
        tensor: &impl Fn(&str) -> Option<TensorSlice<'a>>,
    ) -> Result<(), LmError> {
        // The tokens of this chunk that the layer needs.
        let needed =
            ChunkRange { start: range.start.max(self.first), stop: range.stop.min(num_tokens) };
        if needed.start >= needed.stop {
            return Ok(());
        }
        let capacity = match self.kind {
            TokenKind::Kv | TokenKind::Quantized { .. } => round_up(num_tokens as i32 + 1) as usize,
            TokenKind::Rotating { .. } => num_tokens - self.first,
        };
        for (index, (name, buffer)) in self.names.iter().zip(&mut self.buffers).enumerate() {
            let name = format!("{name}.{path}");
            let part = tensor(&name).ok_or_else(|| refused(format!("it lacks {name}")))?;
            // Scales and biases follow each packed tensor.
            let is_packed = matches!(self.kind, TokenKind::Quantized { .. }) && index % 3 == 0;
            if is_packed != (part.dtype == Dtype::Uint32) {
                return Err(refused(format!("{name} holds {:?} numbers", part.dtype)));
            }
            let held_from = check_part(&name, &part, range, needed)?;
            let buffer = match buffer {
                Some(buffer) => buffer,
                None => buffer.insert(RowBuffer::for_part(&part, capacity)?),
            };
            if (buffer.heads, buffer.width, buffer.dtype)
                != (part.shape[1], part.shape[3], part.dtype)
            {
                return Err(refused(format!("{name} is not of the shape that it has elsewhere")));
            }
            buffer.fill(&part, held_from, needed, self.first);
        }
        Ok(())
    }

    fn finish(self, num_tokens: i32) -> Result<LayerCache, LmError> {
        let num_wanted = num_tokens as usize - self.first;
        let mut arrays = Vec::with_capacity(self.buffers.len());
        for (name, buffer) in self.names.iter().zip(self.buffers) {
            let buffer = buffer
                .filter(|buffer| buffer.num_filled == num_wanted)
                .ok_or_else(|| refused(format!("not all of its {name} are there")))?;
            arrays.push(buffer.buffer.into_array()?);
        }
        let mut arrays = arrays.into_iter();
        let mut next =
            || arrays.next().ok_or_else(|| refused("a layer has too few tensors".to_owned()));
        Ok(match self.kind {
            TokenKind::Kv => LayerCache::Kv(KvCache::from_buffers(next()?, next()?, num_tokens)),
            TokenKind::Rotating { max_size } => {
                let (keys, values) = (next()?, next()?);
                LayerCache::Rotating(RotatingKvCache::from_temporal(
                    max_size as i32,
                    0,
                    keys,
                    values,
                    num_tokens,
                ))
            }
            TokenKind::Quantized { group_size, bits } => {
                let mut quantized = || {
                    Ok::<_, LmError>(QuantizedArray {
                        packed: next()?,
                        scales: next()?,
                        biases: next()?,
                    })
                };
                let (keys, values) = (quantized()?, quantized()?);
                let cache = QuantizedKvCache::new(group_size, bits)?;
                LayerCache::Quantized(cache.with_contents(keys, values, num_tokens))
            }
        })
    }
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
    if num_bytes != heads * held * width * ffi::item_size(part.dtype) || num_bytes == 0 {
        return Err(refused(format!("{name} has {num_bytes} bytes for {:?}", part.shape)));
    }
    Ok(held_from)
}

impl RowBuffer {
    /// A buffer of `capacity` tokens with the heads, width and type of `part` `[1, heads, _, width]`.
    fn for_part(part: &TensorSlice<'_>, capacity: usize) -> Result<RowBuffer, LmError> {
        let (heads, width) = (part.shape[1], part.shape[3]);
        let shape = [1, heads as i32, capacity as i32, width as i32];
        let buffer = ffi::ArrayBuffer::zeros(&shape, part.dtype)?;
        Ok(RowBuffer { buffer, dtype: part.dtype, heads, capacity, width, num_filled: 0 })
    }

    /// Copies the tokens `needed` of `part`, whose first token is `held_from`, into this buffer,
    /// whose first token is `first`.
    fn fill(&mut self, part: &TensorSlice<'_>, held_from: usize, needed: ChunkRange, first: usize) {
        let held = part.shape[2];
        let num_tokens = needed.stop - needed.start;
        let token_bytes = self.width * ffi::item_size(self.dtype);
        let length = num_tokens * token_bytes;
        let bytes = self.buffer.bytes_mut();
        for head in 0..self.heads {
            let source = (head * held + needed.start - held_from) * token_bytes;
            let target = (head * self.capacity + needed.start - first) * token_bytes;
            bytes[target..target + length].copy_from_slice(&part.bytes[source..source + length]);
        }
        self.num_filled += num_tokens;
    }
}

fn refused(what: String) -> LmError {
    LmError::ChunkState { what }
}
