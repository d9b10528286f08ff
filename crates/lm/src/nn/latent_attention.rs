//! Multi-head latent attention (DeepSeek-AI 2024): keys and values of all heads come from one short
//! vector for each token, and a few rotated numbers that all heads' keys share. Reference: mlx-lm's
//! deepseek_v2.py and deepseek_v3.py.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::fast::ScaledDotProductAttentionMask;
use mlx_rs::{Array, ops};

use crate::LmError;
use crate::cache::{AttentionStep, KeysValues, KvSizes, LayerCache, Mask, QuantizedArray};
use crate::device_kernels::HeadShape;
use crate::ffi;
use crate::nn::fused::scaled_dot_product_attention;
use crate::nn::scalar::{constant, least};
use crate::nn::{
    Elementwise, HeadMatrices, Linear, Norm, NormProjections, Projected, RmsNorm, Rope, attention,
};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// The sizes of a [`LatentAttention`], beside those of its heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentSizes {
    /// The numbers of the vector that queries come from; `None` if they come from the input itself.
    pub query_rank: Option<i32>,
    /// The numbers of the vector that keys and values come from.
    pub rank: i32,
    /// How many numbers of a key are not rotated: the first.
    pub plain_dim: i32,
    /// How many are rotated.
    pub rotated_dim: i32,
    pub value_dim: i32,
    /// Whether the matrices of the two short vectors have biases.
    pub has_bias: bool,
    /// The epsilon of their norms.
    pub norm_eps: f32,
    pub cached: CachedForm,
}

/// What a cache holds of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedForm {
    /// Keys and values of all heads.
    Heads,
    /// The vector that they come from, as keys of one head, and the rotated numbers as its values.
    Latents,
}

impl LatentSizes {
    /// What a cache holds of a token in a layer with these heads.
    pub fn cache_sizes(&self, heads: i32) -> KvSizes {
        let (heads, key_dim, value_dim) = match self.cached {
            CachedForm::Heads => (heads, self.plain_dim + self.rotated_dim, self.value_dim),
            CachedForm::Latents => (1, self.rank, self.rotated_dim),
        };
        KvSizes { heads, key_dim, value_dim, types: None }
    }

    /// Adds what [`LatentAttention::load`] takes at `path` to `list`.
    pub(crate) fn list(&self, list: &mut TensorList, path: &str, hidden: i32, heads: i32) {
        let &LatentSizes { query_rank, rank, plain_dim, rotated_dim, value_dim, has_bias, .. } =
            self;
        let queries = heads * (plain_dim + rotated_dim);
        match query_rank {
            None => list.matrix(format!("{path}.q_proj"), hidden, queries),
            Some(query_rank) => {
                list.matrix(format!("{path}.q_a_proj"), hidden, query_rank);
                list.plain(format!("{path}.q_a_layernorm.weight"), &[query_rank]);
                list.matrix(format!("{path}.q_b_proj"), query_rank, queries);
                if has_bias {
                    list.plain(format!("{path}.q_a_proj.bias"), &[query_rank]);
                }
            }
        }
        list.matrix(format!("{path}.kv_a_proj_with_mqa"), hidden, rank + rotated_dim);
        if has_bias {
            list.plain(format!("{path}.kv_a_proj_with_mqa.bias"), &[rank + rotated_dim]);
        }
        list.plain(format!("{path}.kv_a_layernorm.weight"), &[rank]);
        match self.cached {
            CachedForm::Heads => {
                list.matrix(format!("{path}.kv_b_proj"), rank, heads * (plain_dim + value_dim));
            }
            CachedForm::Latents => list.latent_heads(path, heads, rank, [plain_dim, value_dim]),
        }
    }
}

/// The attention of a layer, its norm included.
#[derive(Debug)]
pub struct LatentAttention {
    /// What queries come from, and what keys and values come from.
    projections: NormProjections<2>,
    /// The queries of all heads from their short vector, if they have one.
    queries: Option<NormProjections<1>>,
    /// The width of what queries come from.
    num_query_numbers: i32,
    heads: HeadShape,
    sizes: LatentSizes,
    /// Of what is rotated.
    rope: Rope,
    keys_values: KeysAndValues,
}

/// How keys and values come from their short vector.
#[derive(Debug)]
enum KeysAndValues {
    /// As one product, before they are cached.
    Heads {
        product: NormProjections<1>,
        /// Of whole queries.
        query_rope: Rope,
    },
    /// When they are attended to.
    Latent(LatentParts),
}

/// What is between hidden vectors and heads.
#[derive(Debug)]
struct LatentParts {
    norm: RmsNorm,
    embed_q: HeadMatrices,     // [H, rank, plain_dim]
    unembed_out: HeadMatrices, // [H, value_dim, rank]
    /// What is rotated of queries times the scale of scores.
    scaled: Elementwise<1>,
}

impl LatentAttention {
    /// Takes all but the output matrix from `layer`, for vectors of `hidden` numbers that `norm`
    /// returns. `heads` have `plain_dim + rotated_dim` numbers.
    pub fn load(
        layer: &mut Layer,
        norm: Norm,
        hidden: i32,
        heads: HeadShape,
        sizes: LatentSizes,
        rope: Rope,
    ) -> Result<Self, LmError> {
        let LatentSizes { query_rank, rank, plain_dim, rotated_dim, value_dim, has_bias, .. } =
            sizes;
        let mut linear = |name, inputs, outputs, has_bias| {
            Linear::load(&mut layer.layer(name), inputs, outputs, has_bias)
        };
        let num_queries = heads.heads * heads.head_dim;
        let (first, second) = match query_rank {
            None => (linear("q_proj", hidden, num_queries, false)?, None),
            Some(query_rank) => (
                linear("q_a_proj", hidden, query_rank, has_bias)?,
                Some((query_rank, linear("q_b_proj", query_rank, num_queries, false)?)),
            ),
        };
        let latent = linear("kv_a_proj_with_mqa", hidden, rank + rotated_dim, has_bias)?;
        let mut norm_of =
            |name, dimensions| RmsNorm::load(&mut layer.layer(name), dimensions, sizes.norm_eps);
        let queries = match second {
            Some((query_rank, product)) => {
                Some(NormProjections::new(norm_of("q_a_layernorm", query_rank)?, [product])?)
            }
            None => None,
        };
        let norm_of_latent = norm_of("kv_a_layernorm", rank)?;
        let parts = [plain_dim, value_dim];
        let keys_values = match sizes.cached {
            CachedForm::Heads => {
                let outputs = heads.heads * (plain_dim + value_dim);
                let product = Linear::load(&mut layer.layer("kv_b_proj"), rank, outputs, false)?;
                let product = NormProjections::new(norm_of_latent, [product])?;
                let query_rope = rope.after_unrotated(plain_dim).ok_or_else(|| {
                    Exception::custom("queries have whole pairs of unrotated numbers".to_owned())
                })?;
                KeysAndValues::Heads { product, query_rope }
            }
            CachedForm::Latents => {
                let [embed_q, unembed_out] = head_matrices(layer, heads.heads, rank, parts)?;
                let scale = heads.scale;
                let scaled =
                    Elementwise::new(move |[x]| ops::multiply(x, constant(scale, x.dtype())?));
                KeysAndValues::Latent(LatentParts {
                    norm: norm_of_latent,
                    embed_q,
                    unembed_out,
                    scaled,
                })
            }
        };
        let num_query_numbers = first.num_outputs();
        let projections = NormProjections::new(norm, [first, latent])?;
        Ok(LatentAttention {
            projections,
            queries,
            num_query_numbers,
            heads,
            sizes,
            rope,
            keys_values,
        })
    }

    /// `x` `[B, L, D]` to the heads' outputs, `[B, L, H value_dim]`.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut LayerCache,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let LatentSizes { rank, plain_dim, rotated_dim, .. } = self.sizes;
        let (batch, length) = (x.dim(0), x.dim(1));
        let (queries, with_latent) = self.project(x)?;
        let queries = self.by_head(&queries, self.heads.head_dim)?;
        let end = with_latent.dim(2);
        let [latent, rotated_key] =
            [end - rotated_dim - rank..end - rotated_dim, end - rotated_dim..end];
        match &self.keys_values {
            KeysAndValues::Heads { product, query_rope } => {
                let latent = numbers(&with_latent, latent)?;
                let rotated_key = numbers(&with_latent, rotated_key)?;
                let rotated_key = rotated_key.reshape(&[batch, 1, length, rotated_dim])?;
                let joined = one(product.forward_split(&latent)?);
                let [plain_keys, values] = cut(&self.by_head(&joined, -1)?, plain_dim)?;
                let rotated_key = self.rope.forward(&rotated_key, &step.offset)?;
                let keys = self.with_rotated(plain_keys, &rotated_key)?;
                let queries = query_rope.forward(&queries, &step.offset)?;
                let keys_values = cache.update_and_fetch(keys, values)?;
                cache.observe(&queries, self.heads)?;
                attention(&queries, &keys_values, self.heads, &step.mask)
            }
            KeysAndValues::Latent(parts) => {
                // One head: the axes of heads and tokens are in either order.
                let with_latent = with_latent.reshape(&[batch, 1, length, end])?;
                let latent = parts.norm.forward(&numbers(&with_latent, latent)?)?;
                let rotated_key = numbers(&with_latent, rotated_key)?;
                let rotated_key = self.rope.forward(&rotated_key, &step.offset)?;
                let [plain, rotated] = cut(&queries, plain_dim)?;
                let rotated = self.rope.forward(&rotated, &step.offset)?;
                let keys_values = cache.update_and_fetch(latent, rotated_key)?;
                if cache.is_observed() {
                    let both = [&parts.embed_q.forward(&plain)?, &rotated];
                    cache.observe(&ops::concatenate(&both, -1)?, self.heads)?;
                }
                let queries = [plain, rotated];
                match &keys_values {
                    KeysValues::Dense { keys, values } if length == 1 => {
                        self.decode(queries, [keys, values], parts, step)
                    }
                    KeysValues::Dense { keys, values } => {
                        self.prefill(queries, [keys, values], parts, step)
                    }
                    other => self.attend_joined(queries, &joined(other)?, parts, step),
                }
            }
        }
    }

    /// `x` `[B, L, D]` to the queries of all heads, `[B, L, H head_dim]`, and an array whose last axis
    /// ends in the short vector of keys and values and what is rotated of keys.
    fn project(&self, x: &Array) -> Result<(Array, Array), Exception> {
        // The parts of a joined product are views. A single token's are read as they are; those of longer
        // inputs would be copied.
        let projected = match x.dim(1) {
            1 => self.projections.forward(x)?,
            _ => Projected::Parts(self.projections.forward_split(x)?),
        };
        let (queries, with_latent) = match projected {
            Projected::Parts([queries, latent]) => (queries, latent),
            Projected::Joined(joined) => (numbers(&joined, 0..self.num_query_numbers)?, joined),
        };
        match &self.queries {
            Some(product) => Ok((one(product.forward_split(&queries)?), with_latent)),
            None => Ok((queries, with_latent)),
        }
    }

    /// Attention of one token over latent vectors `[B, 1, T, rank]` and rotated numbers
    /// `[B, 1, T, rotated_dim]`, to `[B, 1, H value_dim]`: queries become as long as the vectors, and
    /// the scores of what is rotated are added as a mask.
    fn decode(
        &self,
        [plain, rotated]: [Array; 2],
        [latents, rotated_keys]: [&Array; 2],
        parts: &LatentParts,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let (scale, dtype) = (self.heads.scale, plain.dtype());
        let rotated = parts.scaled.call([&rotated])?;
        let mut scores = ops::matmul(rotated, ops::swap_axes(rotated_keys, 2, 3)?)?; // [B, H, 1, T]
        if let Mask::Array(mask) = &step.mask {
            scores = ops::select(mask, scores, constant(least(dtype), dtype)?)?;
        }
        let queries = parts.embed_q.forward(&plain)?;
        let mask = Some(ScaledDotProductAttentionMask::Array(&scores));
        let sums = scaled_dot_product_attention(queries, latents, latents, scale, mask, None)?;
        by_token(parts.unembed_out.forward(&sums)?)
    }

    /// As [`LatentAttention::decode`], of several tokens: keys and values of all heads are made, as
    /// their products are shorter.
    fn prefill(
        &self,
        queries: [Array; 2],
        [latents, rotated_keys]: [&Array; 2],
        parts: &LatentParts,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let queries = ops::concatenate(&queries, -1)?;
        let keys = self.with_rotated(parts.embed_q.transposed(latents)?, rotated_keys)?;
        let values = parts.unembed_out.forward(latents)?;
        attention(&queries, &KeysValues::Dense { keys, values }, self.heads, &step.mask)
    }

    /// As [`LatentAttention::decode`], over what [`joined`] returns, of any number of tokens.
    fn attend_joined(
        &self,
        [plain, rotated]: [Array; 2],
        keys_values: &KeysValues,
        parts: &LatentParts,
        step: &AttentionStep,
    ) -> Result<Array, Exception> {
        let queries = ops::concatenate(&[parts.embed_q.forward(&plain)?, rotated], -1)?;
        let sums = attention(&queries, keys_values, self.heads, &step.mask)?;
        by_token(parts.unembed_out.forward(&self.by_head(&sums, self.sizes.rank)?)?)
    }

    /// Keys `[B, H, T, plain_dim + rotated_dim]`, of which all heads share what is rotated.
    fn with_rotated(&self, plain: Array, rotated: &Array) -> Result<Array, Exception> {
        let shape = [plain.dim(0), plain.dim(1), plain.dim(2), rotated.dim(3)];
        ops::concatenate(&[plain, ops::broadcast_to(rotated, &shape)?], -1)
    }

    /// `[B, L, H width]` to `[B, H, L, width]`.
    fn by_head(&self, x: &Array, width: i32) -> Result<Array, Exception> {
        let (batch, length, heads) = (x.dim(0), x.dim(1), self.heads.heads);
        match length {
            // For a single token the heads are adjacent already.
            1 => x.reshape(&[batch, heads, 1, width]),
            _ => x.reshape(&[batch, length, heads, width])?.transpose_axes(&[0, 2, 1, 3]),
        }
    }
}

/// `[B, H, L, width]` to `[B, L, H width]`.
fn by_token(x: Array) -> Result<Array, Exception> {
    let (batch, length) = (x.dim(0), x.dim(2));
    // For a single token the heads are adjacent already.
    let by_token = if length == 1 { x } else { x.transpose_axes(&[0, 2, 1, 3])? };
    by_token.reshape(&[batch, length, -1])
}

/// Latent vectors and rotated numbers as keys that have both, and as values.
fn joined(keys_values: &KeysValues) -> Result<KeysValues, Exception> {
    let both = |one: &Array, other: &Array| ops::concatenate(&[one, other], -1);
    Ok(match keys_values {
        KeysValues::Dense { keys, values } => {
            KeysValues::Dense { keys: both(keys, values)?, values: keys.clone() }
        }
        // Groups are whole in both.
        &KeysValues::Quantized { ref keys, ref values, group_size, bits } => {
            let joined = QuantizedArray {
                packed: both(&keys.packed, &values.packed)?,
                scales: both(&keys.scales, &values.scales)?,
                biases: both(&keys.biases, &values.biases)?,
            };
            KeysValues::Quantized { keys: joined, values: keys.clone(), group_size, bits }
        }
        KeysValues::AfterPrefix { prefix, own } => KeysValues::AfterPrefix {
            prefix: Rc::new(joined(prefix)?),
            own: Box::new(joined(own)?),
        },
    })
}

/// The matrices between latent vectors and heads, which older files and those of Hugging Face store
/// as one.
fn head_matrices(
    layer: &mut Layer,
    heads: i32,
    rank: i32,
    parts: [i32; 2],
) -> Result<[HeadMatrices; 2], LmError> {
    if layer.holds("kv_b_proj.weight") {
        return HeadMatrices::load_joined(&mut layer.layer("kv_b_proj"), heads, rank, parts);
    }
    let [plain_dim, value_dim] = parts;
    Ok([
        HeadMatrices::load(&mut layer.layer("embed_q"), heads, plain_dim, rank)?,
        HeadMatrices::load(&mut layer.layer("unembed_out"), heads, rank, value_dim)?,
    ])
}

/// These numbers of the last axis, as a view.
fn numbers(x: &Array, range: Range<i32>) -> Result<Array, Exception> {
    let (mut start, mut stop) = (vec![0; x.ndim()], x.shape().to_vec());
    (start[x.ndim() - 1], stop[x.ndim() - 1]) = (range.start, range.end);
    ffi::slice(x, &start, &stop)
}

/// The first `at` numbers of the last axis, and the others.
fn cut(x: &Array, at: i32) -> Result<[Array; 2], Exception> {
    ffi::cut(x, &[at], x.ndim() - 1)?
        .try_into()
        .map_err(|_| Exception::custom("an array has two parts".to_owned()))
}

fn one([array]: [Array; 1]) -> Array {
    array
}
