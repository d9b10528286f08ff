//! Llama, one token at a time on a CUDA device: five launches a layer besides the cache's, in functions that MLX traces only once.
//!
//! ```text
//! segment 0        segment 1                                                             …  last segment
//! norm, q/k/v ─┬─ attention ── output, residual ── norm, gate/up ── down, residual ── norm, q/k/v ─┬─ …  norm
//!            cache                                                                              cache
//! ```
//! Between two attentions nothing depends on how many tokens there are, so each segment is traced with its first token and replayed
//! for all others.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use super::{Embedding, Linear, RmsNorm, Shape, TransformerBlock};
use crate::cache::{LayerCache, RopeOffset};
use crate::ffi::{self, Compiled};
use crate::nn::cuda::{Around, Kernels, QuantizedRows};

/// The compiled step.
#[derive(Debug)]
pub(super) struct CudaStep {
    kernels: Rc<Kernels>,
    segments: Vec<Compiled>,
    /// For one capacity of the caches' buffers and one number of splits: those change seldom.
    attention: RefCell<Option<((i32, i32), Compiled)>>,
    heads: i32,
    kv_heads: i32,
    scale: f32,
}

impl CudaStep {
    /// The step for these layers; none on another device and for layers that its kernels cannot read.
    pub(super) fn new(shape: &Shape, layers: &[Rc<TransformerBlock>], norm: &Rc<RmsNorm>) -> Option<Self> {
        let is_readable = |layer: &Rc<TransformerBlock>| layer.quantized().is_some();
        if !matches!(shape.head_dim, 64 | 128 | 256) || !layers.iter().all(is_readable) {
            return None;
        }
        let kernels = Rc::new(Kernels::load()?);
        let segments = (0..=layers.len()).map(|index| {
            let before = index.checked_sub(1).and_then(|index| layers.get(index)).cloned();
            let (after, norm, kernels) = (layers.get(index).cloned(), norm.clone(), kernels.clone());
            Compiled::new(Box::new(move |inputs| {
                let [mut h, attended, offsets]: [Array; 3] =
                    inputs.try_into().map_err(|_| Exception::custom("a segment takes three arrays".to_owned()))?;
                if let Some(layer) = &before {
                    h = finish(layer, &kernels, &h, &attended)?;
                }
                match &after {
                    Some(layer) => begin(layer, &kernels, h, offsets),
                    None => Ok(vec![norm.forward(&h)?]),
                }
            }))
        });
        Some(CudaStep {
            segments: segments.collect::<Result<_, _>>().ok()?,
            kernels,
            attention: RefCell::new(None),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            scale: layers.first()?.self_attn.scale,
        })
    }

    /// Whether it can run this pass: one token of one row, over plain caches.
    pub(super) fn applies(&self, embeddings: &Array, caches: &[LayerCache]) -> bool {
        let is_plain = |cache: &LayerCache| matches!(cache, LayerCache::Kv(cache) if cache.arrays().iter().all(|array| array.dtype() == Dtype::Bfloat16));
        embeddings.shape()[..2] == [1, 1] && embeddings.dtype() == Dtype::Bfloat16 && caches.iter().all(is_plain)
    }

    /// As `Architecture::forward`, for what [`CudaStep::applies`] to.
    pub(super) fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, Exception> {
        let position = caches[0].offset() as i32;
        // Queries, keys and values turn in one go: values by no angle at all.
        let mut offsets = vec![position; (self.heads + self.kv_heads) as usize];
        offsets.resize((self.heads + 2 * self.kv_heads) as usize, 0);
        let offsets = Array::from_slice(&offsets, &[offsets.len() as i32]);
        let bounds = Array::from_slice(&[0, position + 1], &[1, 2]);
        let (mut h, mut attended) = (embeddings.clone(), embeddings);
        for (index, segment) in self.segments.iter().enumerate() {
            let outputs = segment.call(&[&h, &attended, &offsets])?;
            match (<[Array; 4]>::try_from(outputs), caches.get_mut(index)) {
                (Ok([next, queries, keys, values]), Some(LayerCache::Kv(cache))) => {
                    h = next;
                    let (keys, values) = cache.append(&keys, &values)?;
                    attended = self.attend(&queries, &keys, &values, &bounds, position + 1)?;
                }
                (Err(outputs), None) => h = outputs.into_iter().next().unwrap_or(h),
                _ => return Err(Exception::custom("this model has another number of layers than there are caches".to_owned())),
            }
        }
        Ok(h)
    }

    /// Hidden state `[1, 1, D]` to logits `[1, 1, V]`; none where the output layer is of another kind.
    pub(super) fn logits(&self, hidden: &Array, lm_head: Option<&Linear>, embed_tokens: &Embedding) -> Result<Option<Array>, Exception> {
        let rows = lm_head.map_or_else(|| embed_tokens.quantized(), Linear::quantized).filter(QuantizedRows::are_readable);
        match rows {
            Some(rows) if hidden.shape()[..2] == [1, 1] && hidden.dtype() == Dtype::Bfloat16 => {
                self.kernels.product(hidden, rows, Around::default()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn attend(&self, queries: &Array, keys: &Array, values: &Array, bounds: &Array, num_keys: i32) -> Result<Array, Exception> {
        let splits = Kernels::num_splits(num_keys);
        let key = (keys.dim(2), splits);
        let mut attention = self.attention.borrow_mut();
        let compiled = match &mut *attention {
            Some((known, compiled)) if *known == key => compiled,
            other => {
                let (kernels, scale) = (self.kernels.clone(), self.scale);
                let compiled = Compiled::new(Box::new(move |inputs| {
                    let [queries, keys, values, bounds] = inputs.as_slice() else {
                        return Err(Exception::custom("attention takes four arrays".to_owned()));
                    };
                    Ok(vec![kernels.attention(queries, (keys, values), bounds, scale, splits)?])
                }))?;
                &mut other.insert((key, compiled)).1
            }
        };
        let output = compiled.call(&[queries, keys, values, bounds])?.pop();
        output.ok_or_else(|| Exception::custom("attention returned nothing".to_owned()))
    }
}

/// A layer's matrices, all of a kind that the kernels read.
#[derive(Debug)]
pub(super) struct Matrices<'a> {
    qkv: QuantizedRows<'a>,
    output: QuantizedRows<'a>,
    gate_up: QuantizedRows<'a>,
    down: QuantizedRows<'a>,
}

impl TransformerBlock {
    fn quantized(&self) -> Option<Matrices<'_>> {
        let matrices = Matrices {
            qkv: self.self_attn.qkv_proj.quantized()?,
            output: self.self_attn.o_proj.quantized()?,
            gate_up: self.mlp.gate_up_proj.quantized()?,
            down: self.mlp.down_proj.quantized()?,
        };
        let all = [matrices.qkv, matrices.output, matrices.gate_up, matrices.down];
        all.iter().all(QuantizedRows::are_readable).then_some(matrices)
    }

    fn matrices(&self) -> Result<Matrices<'_>, Exception> {
        self.quantized().ok_or_else(|| Exception::custom("a layer is not quantized as its kernels ask".to_owned()))
    }
}

/// A layer up to its attention: the residual stream, and queries, keys and values `[1, H, 1, D]`.
fn begin(layer: &TransformerBlock, kernels: &Kernels, h: Array, offsets: Array) -> Result<Vec<Array>, Exception> {
    let attention = &layer.self_attn;
    let (heads, kv_heads, head_dim) = (attention.heads, attention.kv_heads, attention.head_dim);
    let all = heads + 2 * kv_heads;
    let around = Around { norm: Some(layer.input_layernorm.parts()), ..Around::default() };
    let qkv = kernels.product(&h, layer.matrices()?.qkv, around)?;
    let rotated = attention.rope.forward(&ops::reshape(&qkv, &[all, 1, 1, head_dim])?, &RopeOffset::PerRow(offsets))?;
    let rotated = ops::reshape(rotated, &[1, all, 1, head_dim])?;
    let part = |from: i32, to: i32| ffi::slice(&rotated, &[0, from, 0, 0], &[1, to, 1, head_dim]);
    Ok(vec![h, part(0, heads)?, part(heads, heads + kv_heads)?, part(heads + kv_heads, all)?])
}

/// A layer from its attention's result on.
fn finish(layer: &TransformerBlock, kernels: &Kernels, h: &Array, attended: &Array) -> Result<Array, Exception> {
    let matrices = layer.matrices()?;
    let h = kernels.product(attended, matrices.output, Around { residual: Some(h), ..Around::default() })?;
    let around = Around { norm: Some(layer.post_attention_layernorm.parts()), gated: true, residual: None };
    let activated = kernels.product(&h, matrices.gate_up, around)?;
    kernels.product(&activated, matrices.down, Around { residual: Some(&h), ..Around::default() })
}
