//! The decode step of a llama on a CUDA device: five kernel launches per layer, in functions that
//! MLX traces only once.
//!
//! ```text
//! segment 0        segment 1                                                               …  last segment
//! norm, q/k/v ── attention ── output, residual ── norm, gate/up ── down, residual ── norm, q/k/v ── …  norm
//! ```
//! Between two attentions no shape depends on the number of tokens, so each segment is traced with
//! the first token and replayed for all others.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{Embedding, Linear, RmsNorm, Shape, TransformerBlock};
use crate::cache::{KvCache, LayerCache};
use crate::ffi::Compiled;
use crate::nn::cuda::{AttentionShape, Fusion, Kernels, QuantizedRows};

/// The compiled step.
#[derive(Debug)]
pub(super) struct CudaStep {
    kernels: Rc<Kernels>,
    segments: Vec<Compiled>,
    /// Compiled for one capacity of the caches' buffers and one number of splits, which seldom
    /// change.
    attention: RefCell<Option<((i32, i32), Compiled)>>,
    attention_shape: AttentionShape,
    angles: Array,
}

impl CudaStep {
    /// The step for these layers; `None` on other devices, and if the kernels do not support the
    /// layers' format.
    pub(super) fn new(
        shape: &Shape,
        layers: &[Rc<TransformerBlock>],
        norm: &Rc<RmsNorm>,
    ) -> Option<Self> {
        let is_readable = |layer: &Rc<TransformerBlock>| layer.quantized().is_some();
        if !matches!(shape.head_dim, 64 | 128 | 256) || !layers.iter().all(is_readable) {
            return None;
        }
        let kernels = Rc::new(Kernels::load()?);
        let attention = &layers.first()?.self_attn;
        let (angles, traditional) = attention.rope.angles().ok()?;
        let segments = (0..=layers.len()).map(|index| {
            let before = index.checked_sub(1).and_then(|index| layers.get(index)).cloned();
            let (after, norm, kernels) =
                (layers.get(index).cloned(), norm.clone(), kernels.clone());
            Compiled::new(Box::new(move |inputs| {
                let [mut h, attended]: [Array; 2] = inputs
                    .try_into()
                    .map_err(|_| Exception::custom("a segment takes two arrays".to_owned()))?;
                if let Some(layer) = &before {
                    h = finish(layer, &kernels, &h, &attended)?;
                }
                match &after {
                    Some(layer) => begin(layer, &kernels, h),
                    None => Ok(vec![norm.forward(&h)?]),
                }
            }))
        });
        Some(CudaStep {
            segments: segments.collect::<Result<_, _>>().ok()?,
            kernels,
            attention: RefCell::new(None),
            attention_shape: AttentionShape {
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                scale: attention.scale,
                traditional,
                splits: 1,
            },
            angles,
        })
    }

    /// Whether it supports this pass: one token of one row, with plain, non-empty bfloat16 caches.
    pub(super) fn applies(&self, embeddings: &Array, caches: &[LayerCache]) -> bool {
        let is_bfloat16 = |array: &Array| array.dtype() == Dtype::Bfloat16;
        let is_plain = |cache: &LayerCache| matches!(cache, LayerCache::Kv(cache) if !cache.is_empty() && cache.arrays().into_iter().all(is_bfloat16));
        embeddings.shape()[..2] == [1, 1] && is_bfloat16(embeddings) && caches.iter().all(is_plain)
    }

    /// As `Architecture::forward`, for passes that [`CudaStep::applies`] to.
    pub(super) fn forward(
        &self,
        embeddings: Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, Exception> {
        let mut sizes = None; // the same in every layer
        let (mut h, mut attended) = (embeddings.clone(), embeddings);
        for (index, segment) in self.segments.iter().enumerate() {
            let inputs = [&h, &attended];
            match caches.get_mut(index) {
                Some(LayerCache::Kv(cache)) => {
                    let [next, qkv] = segment.call(&inputs)?;
                    h = next;
                    attended = self.attend(qkv, cache, &mut sizes)?;
                }
                _ => [h] = segment.call(&inputs)?,
            }
        }
        Ok(h)
    }

    /// Hidden state `[1, 1, D]` to logits `[1, 1, V]`; `None` if the kernel does not support the
    /// output layer or the pass.
    pub(super) fn logits(
        &self,
        hidden: &Array,
        lm_head: Option<&Linear>,
        embed_tokens: &Embedding,
    ) -> Result<Option<Array>, Exception> {
        let rows = lm_head
            .map_or_else(|| embed_tokens.quantized(), Linear::quantized)
            .filter(QuantizedRows::are_readable);
        match rows {
            Some(rows) if hidden.shape()[..2] == [1, 1] && hidden.dtype() == Dtype::Bfloat16 => {
                self.kernels.product(hidden, rows, Fusion::default()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn attend(
        &self,
        qkv: Array,
        cache: &mut KvCache,
        sizes: &mut Option<Array>,
    ) -> Result<Array, Exception> {
        let offset = cache.offset() as i32;
        let Some((keys, values, tail)) = cache.with_tail_room()? else {
            return Err(Exception::custom(
                "the CUDA decode step needs a cache with tokens".to_owned(),
            ));
        };
        let sizes = sizes
            .get_or_insert_with(|| Array::from_slice(&[offset - tail.count, tail.count], &[2]));
        let splits = Kernels::num_splits(offset);
        let key = (keys.dim(2), splits);
        let mut attention = self.attention.borrow_mut();
        let compiled = match &mut *attention {
            Some((known, compiled)) if *known == key => compiled,
            other => {
                let (kernels, shape) =
                    (self.kernels.clone(), AttentionShape { splits, ..self.attention_shape });
                let compiled = Compiled::new(Box::new(move |inputs| {
                    let inputs = inputs.try_into().map_err(|_| {
                        Exception::custom("attention takes seven arrays".to_owned())
                    })?;
                    Ok(kernels.attention(&inputs, shape)?.to_vec())
                }))?;
                &mut other.insert((key, compiled)).1
            }
        };
        let [attended, keys, values] =
            compiled.call(&[&qkv, keys, values, &tail.keys, &tail.values, sizes, &self.angles])?;
        cache.replace_tail(keys, values);
        Ok(attended)
    }
}

/// A layer's matrices, all in the format of the kernels.
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
        self.quantized().ok_or_else(|| {
            Exception::custom("the CUDA kernels do not support this layer's format".to_owned())
        })
    }
}

/// A layer up to its attention: returns the residual stream `[1, 1, D]`, and queries, keys and
/// values of all heads concatenated.
fn begin(layer: &TransformerBlock, kernels: &Kernels, h: Array) -> Result<Vec<Array>, Exception> {
    let fusion = Fusion { norm: Some(layer.input_layernorm.parts()), ..Fusion::default() };
    let qkv = kernels.product(&h, layer.matrices()?.qkv, fusion)?;
    Ok(vec![h, qkv])
}

/// A layer from its attention's output on: returns the new residual stream `[1, 1, D]`.
fn finish(
    layer: &TransformerBlock,
    kernels: &Kernels,
    h: &Array,
    attended: &Array,
) -> Result<Array, Exception> {
    let matrices = layer.matrices()?;
    let h = kernels.product(
        attended,
        matrices.output,
        Fusion { residual: Some(h), ..Fusion::default() },
    )?;
    let fusion =
        Fusion { norm: Some(layer.post_attention_layernorm.parts()), gated: true, residual: None };
    let activated = kernels.product(&h, matrices.gate_up, fusion)?;
    kernels.product(&activated, matrices.down, Fusion { residual: Some(&h), ..Fusion::default() })
}
