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
    Tokens {
        names: &'static [&'static str],
        rows: Vec<Option<RowBuffer>>,
        kind: TokenKind,
        first: usize,
    },
    State(Vec<Option<Array>>),
    List(Vec<LayerAssembly>),
}

#[derive(Debug, Clone, Copy)]
enum TokenKind {
    Kv,
    Rotating { max_size: usize },
    Quantized { group_size: i32, bits: i32 },
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
            layer.add(&index.to_string(), self.num_tokens, start, stop, &tensor)?;
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
        let tokens = |names: &'static [&'static str], kind, first| LayerAssembly::Tokens {
            names,
            rows: names.iter().map(|_| None).collect(),
            kind,
            first,
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
        start: usize,
        stop: usize,
        tensor: &impl Fn(&str) -> Option<TensorSlice<'a>>,
    ) -> Result<(), LmError> {
        match self {
            LayerAssembly::Tokens { names, rows, kind, first } => {
                // The tokens of this chunk that the layer needs.
                let (from, to) = (start.max(*first), stop.min(num_tokens));
                if from >= to {
                    return Ok(());
                }
                for (index, (name, rows)) in names.iter().zip(rows).enumerate() {
                    let name = format!("{name}.{path}");
                    let part = tensor(&name).ok_or_else(|| refused(format!("it lacks {name}")))?;
                    let [1, heads, held, width] = *part.shape else {
                        return Err(refused(format!(
                            "{name} is {:?}, and not one row of keys or values",
                            part.shape
                        )));
                    };
                    let is_packed = matches!(kind, TokenKind::Quantized { .. }) && index % 3 == 0; // scales and biases follow
                    if is_packed != (part.dtype == Dtype::Uint32) {
                        return Err(refused(format!("{name} holds {:?} numbers", part.dtype)));
                    }
                    // A ring may have overwritten the first tokens of the chunk.
                    let held_from = stop
                        .checked_sub(held)
                        .filter(|&held_from| (start..=from).contains(&held_from));
                    let held_from = held_from.ok_or_else(|| {
                        refused(format!("{name} holds {held} tokens of {start} to {stop}"))
                    })?;
                    if part.bytes.len() != heads * held * width * dtype_bytes(part.dtype)
                        || part.bytes.is_empty()
                    {
                        return Err(refused(format!(
                            "{name} has {} bytes for {:?}",
                            part.bytes.len(),
                            part.shape
                        )));
                    }
                    let rows = match rows {
                        Some(rows) => rows,
                        None => {
                            let capacity = match kind {
                                TokenKind::Kv | TokenKind::Quantized { .. } => {
                                    round_up(num_tokens as i32 + 1) as usize
                                }
                                TokenKind::Rotating { .. } => num_tokens - *first,
                            };
                            let shape = [1, heads as i32, capacity as i32, width as i32];
                            let buffer = ffi::ArrayBuffer::zeros(&shape, part.dtype)?;
                            rows.insert(RowBuffer {
                                buffer,
                                dtype: part.dtype,
                                heads,
                                capacity,
                                width,
                                num_filled: 0,
                            })
                        }
                    };
                    if (rows.heads, rows.width, rows.dtype) != (heads, width, part.dtype) {
                        return Err(refused(format!(
                            "{name} is not of the shape that it has elsewhere"
                        )));
                    }
                    let token_bytes = width * dtype_bytes(part.dtype);
                    let bytes = rows.buffer.bytes_mut();
                    for head in 0..heads {
                        let source = (head * held + from - held_from) * token_bytes;
                        let target = (head * rows.capacity + from - *first) * token_bytes;
                        let length = (to - from) * token_bytes;
                        bytes[target..target + length]
                            .copy_from_slice(&part.bytes[source..source + length]);
                    }
                    rows.num_filled += to - from;
                }
            }
            // A recurrent state is valid only at the position where generation continues.
            LayerAssembly::State(slots) if stop == num_tokens => {
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
                    entry.add(&entry_path(path, index), num_tokens, start, stop, tensor)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self, num_tokens: i32) -> Result<LayerCache, LmError> {
        Ok(match self {
            LayerAssembly::Tokens { names, rows, kind, first } => {
                let wanted = num_tokens as usize - first;
                let mut arrays = Vec::with_capacity(rows.len());
                for (name, rows) in names.iter().zip(rows) {
                    let rows = rows.filter(|rows| rows.num_filled == wanted);
                    arrays.push(
                        rows.ok_or_else(|| refused(format!("not all of its {name} are there")))?
                            .buffer
                            .into_array()?,
                    );
                }
                let mut arrays = arrays.into_iter();
                let mut next = || {
                    arrays.next().ok_or_else(|| refused("a layer has too few tensors".to_owned()))
                };
                match kind {
                    TokenKind::Kv => {
                        LayerCache::Kv(KvCache::from_buffers(next()?, next()?, num_tokens))
                    }
                    TokenKind::Rotating { max_size } => {
                        LayerCache::Rotating(RotatingKvCache::from_temporal(
                            max_size as i32,
                            0,
                            next()?,
                            next()?,
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
                        LayerCache::Quantized(
                            QuantizedKvCache::new(group_size, bits)?
                                .with_contents(keys, values, num_tokens),
                        )
                    }
                }
            }
            LayerAssembly::State(slots) => {
                if slots.iter().any(Option::is_none) {
                    return Err(refused("it lacks a recurrent state".to_owned()));
                }
                let mut cache = ArraysCache::from_slots(slots);
                cache.advance(num_tokens as usize);
                LayerCache::Arrays(cache)
            }
            LayerAssembly::List(entries) => LayerCache::List(CacheList::new(
                entries
                    .into_iter()
                    .map(|entry| entry.finish(num_tokens))
                    .collect::<Result<_, _>>()?,
            )),
        })
    }
}

fn refused(what: String) -> LmError {
    LmError::ChunkState { what }
}

fn dtype_bytes(dtype: Dtype) -> usize {
    ffi::item_size(dtype)
}
