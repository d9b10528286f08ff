//! What kernels of attention are given: on a CPU, one that computes with MLX's operations what
//! `cuda/attention.cu` and `cuda/row_attention.cu` do, in models of several families.

use std::cell::Cell;
use std::rc::Rc;

use cairn_tiny_models::tiny_model;
use mlx_rs::error::Exception;
use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use mlx_rs::{Array, ops};

use super::*;
use crate::cache::batch;
use crate::chosen_kernels::with_kernels;
use crate::device_kernels::{
    DeviceKernels, Experts, Fusion, HeadShape, Kernel, MOST_TOKENS, MatrixRows, Rotation,
};
use crate::ffi;

/// Attention alone has a kernel.
#[derive(Debug, Default)]
struct WithAttention {
    num_calls: Rc<Cell<usize>>,
}

impl DeviceKernels for WithAttention {
    fn product(&self, _: MatrixRows<'_>, _: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        None
    }

    fn norm_residual(&self, _: &Array, _: f32) -> Option<Box<dyn Kernel>> {
        None
    }

    fn attention(&self, heads: &HeadShape, rotation: Rotation<'_>) -> Option<Box<dyn Kernel>> {
        Some(Box::new(Attention::new(*heads, rotation, self.num_calls.clone())))
    }

    fn experts(&self, _: Experts<'_>) -> Option<Box<dyn Kernel>> {
        None
    }
}

#[derive(Debug)]
pub(super) struct Attention {
    heads: HeadShape,
    norms: Option<([Array; 2], f32)>,
    angles: Array,
    traditional: bool,
    num_calls: Rc<Cell<usize>>,
}

/// The slot mapping of a row, as kernels read it.
struct SlotMapping {
    position: i32,
    num_older: i32,
    num_newest: i32,
    column: i32,
    first: i32,
    oldest: i32,
    is_ring: bool,
}

impl SlotMapping {
    /// Those of `num_rows` rows.
    fn read(mapping: &Array, num_rows: i32) -> Vec<Self> {
        mapping.eval().unwrap();
        mapping.as_slice::<i32>()[..4 * num_rows as usize].chunks(4).map(Self::of_row).collect()
    }

    fn of_row(numbers: &[i32]) -> Self {
        let &[position, columns, first, oldest] = numbers else { panic!("four numbers") };
        let is_ring = columns < 0;
        let (num_older, num_newest) = match is_ring {
            true => (0, columns & 0xffff),
            false => (columns & 0xff_ffff, columns >> 24),
        };
        let column = if is_ring { columns >> 16 & 0x7fff } else { num_newest };
        SlotMapping { position, num_older, num_newest, column, first, oldest, is_ring }
    }
}

/// The columns `start..stop` of `[1, H, T, D]`.
fn columns(array: &Array, start: i32, stop: i32) -> Result<Array, Exception> {
    ffi::slice(array, &[0, 0, start, 0], &[1, array.dim(1), stop, array.dim(3)])
}

impl Attention {
    /// Counts its calls in `num_calls`.
    pub(super) fn new(
        heads: HeadShape,
        rotation: Rotation<'_>,
        num_calls: Rc<Cell<usize>>,
    ) -> Self {
        let Rotation { norms, angles, traditional } = rotation;
        let norms = norms.map(|(weights, eps)| (weights.map(Array::clone), eps));
        Attention { heads, norms, angles: angles.clone(), traditional, num_calls }
    }

    /// Queries (0) or keys (1) `[1, H, L, D]`, normalized and rotated.
    fn prepared(&self, x: Array, index: usize, position: i32) -> Result<Array, Exception> {
        let x = match &self.norms {
            Some((weights, eps)) => fast::rms_norm(x, Some(&weights[index]), *eps)?,
            None => x,
        };
        let (heads, length, width) = (x.dim(1), x.dim(2), x.dim(3));
        let pairs = self.angles.dim(0);
        let positions = ops::arange::<_, f32>(position, position + length, 1)?;
        let angles = ops::multiply(positions.reshape(&[length, 1])?, &self.angles)?;
        let (cosine, sine) = (ops::cos(&angles)?, ops::sin(&angles)?);
        let from = |start, stop| ffi::slice(&x, &[0, 0, 0, start], &[1, heads, length, stop]);
        let rotated = from(0, 2 * pairs)?;
        let (shape, axis) = match self.traditional {
            true => ([1, heads, length, pairs, 2], 4),
            false => ([1, heads, length, 2, pairs], 3),
        };
        let parts = ffi::cut(&rotated.reshape(&shape)?, &[1], axis)?;
        let [low, high] = [0, 1].map(|part| parts[part].squeeze_axes(&[axis as i32]));
        let (low, high) = (low?, high?);
        let turned = |a: &Array, b: &Array| ops::multiply(a, b);
        let new_low = ops::subtract(turned(&low, &cosine)?, turned(&high, &sine)?)?;
        let new_high = ops::add(turned(&low, &sine)?, turned(&high, &cosine)?)?;
        let both = ops::stack(&[new_low, new_high], axis as i32)?;
        let both = both.reshape(&[1, heads, length, 2 * pairs])?;
        ops::concatenate(&[both, from(2 * pairs, width)?], 3)
    }
}

impl Kernel for Attention {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let (&[mapping, counters], arrays) = (&inputs[5..], &inputs[..5]) else {
            panic!("seven inputs, got {}", inputs.len())
        };
        counters.eval()?;
        assert!(counters.as_slice::<i32>().iter().all(|&count| count == 0));
        self.num_calls.set(self.num_calls.get() + 1);
        let mut outputs: [Vec<Array>; 3] = Default::default();
        for (row, mapping) in SlotMapping::read(mapping, arrays[0].dim(0)).into_iter().enumerate() {
            let of_row =
                |array: &&Array| array.take_axis(Array::from_slice(&[row as i32], &[1]), 0);
            let arrays = arrays.iter().map(of_row).collect::<Result<Vec<_>, _>>()?;
            for (all, output) in outputs.iter_mut().zip(self.attended(&arrays, mapping)?) {
                all.push(output);
            }
        }
        let joined = outputs.iter().map(|rows| ops::concatenate(rows, 0));
        Ok(Some(joined.collect::<Result<Vec<_>, _>>()?))
    }
}

impl Attention {
    /// The outputs of the kernel for one row.
    fn attended(&self, inputs: &[Array], mapping: SlotMapping) -> Result<[Array; 3], Exception> {
        let [joined, keys, values, newest_keys, newest_values] = inputs else {
            panic!("five arrays, got {}", inputs.len())
        };
        let SlotMapping { position, num_older, num_newest, column, first, oldest, is_ring } =
            mapping;
        let HeadShape { heads, kv_heads, head_dim, scale, .. } = self.heads;
        let length = joined.dim(1);
        let by_head = joined.reshape(&[1, length, heads + 2 * kv_heads, head_dim])?;
        let by_head = by_head.transpose_axes(&[0, 2, 1, 3])?;
        let [queries, new_keys, new_values]: [Array; 3] =
            ffi::cut(&by_head, &[heads, heads + kv_heads], 1)?.try_into().unwrap();
        let queries = self.prepared(queries, 0, position)?;
        let new_keys = self.prepared(new_keys, 1, position)?;
        let next = |newest: &Array, new: &Array| {
            let (start, mut stop) = ([0, 0, column, 0], newest.shape().to_vec());
            stop[2] = column + length;
            ffi::slice_update(newest, new, &start, &stop)
        };
        let (next_keys, next_values) =
            (next(newest_keys, &new_keys)?, next(newest_values, &new_values)?);
        let seen = |older: &Array, newest: &Array| {
            let num_newest = num_newest.max(column + length);
            let newest = columns(newest, 0, num_newest)?;
            let [from_oldest, to_oldest] =
                [columns(older, oldest, num_older)?, columns(older, 0, oldest)?];
            let all = ops::concatenate(&[from_oldest, to_oldest, newest], 2)?;
            columns(&all, first, all.dim(2))
        };
        let mask = (!is_ring).then_some(ScaledDotProductAttentionMask::Causal);
        let (keys, values) = (seen(keys, &next_keys)?, seen(values, &next_values)?);
        let attended =
            fast::scaled_dot_product_attention(queries, keys, values, scale, mask, None)?;
        let attended = attended.transpose_axes(&[0, 2, 1, 3])?;
        let attended = attended.reshape(&[1, length, heads * head_dim])?;
        Ok([attended, next_keys, next_values])
    }
}

/// Compares the logits of one sequence with the kernel and without; `num_calls` is how often the
/// kernel answers.
fn check(name: &str, steps: &[i32], num_calls: usize) {
    let kernels = WithAttention::default();
    let calls = kernels.num_calls.clone();
    compare_with_plain(name, steps, Rc::new(kernels));
    assert_eq!(calls.get(), num_calls, "{name}: calls of the kernel in {steps:?}");
    assert_eq!(crate::num_kernel_failures(), 0, "{name}");
}

/// Fails unless the logits of one sequence are the same with kernels and without. It is read in these
/// steps, and trimmed where they are negative.
pub(super) fn compare_with_plain(name: &str, steps: &[i32], kernels: Rc<dyn DeviceKernels>) {
    let options = LoadOptions::new().keep_quantized(true);
    let load = |kernels| with_kernels(kernels, || Model::load(&tiny_model(name), options)).unwrap();
    let ((with, _), (without, _)) = (load(Some(kernels)), load(None));
    let [mut caches, mut plain_caches] = [with.make_cache(), without.make_cache()];
    let mut position = 0;
    for &length in steps {
        if length < 0 {
            for cache in caches.iter_mut().chain(&mut plain_caches) {
                assert_eq!(cache.trim(-length as usize), -length as usize, "{name}");
            }
            position += length;
            continue;
        }
        let tokens: Vec<u32> =
            (position..position + length).map(|at| (at * 7 % 50) as u32).collect();
        let tokens = Array::from_slice(&tokens, &[1, length]);
        let logits = |model: &Model, caches: &mut [LayerCache]| {
            let logits = model.logits(&model.forward(&tokens, caches).unwrap()).unwrap();
            logits.as_dtype(mlx_rs::Dtype::Float32).unwrap()
        };
        let expected = logits(&without, &mut plain_caches);
        let found = logits(&with, &mut caches);
        let off = ops::subtract(&found, &expected).unwrap().abs().unwrap().max(None).unwrap();
        let most = expected.abs().unwrap().max(None).unwrap().item_exact::<f32>();
        let off = off.item_exact::<f32>();
        assert!(off <= 1e-4 * most, "{name}, {length} after {position} of {steps:?}: off by {off}");
        position += length;
    }
}

/// More than the newest tokens of a cache hold, one and several at a time; the first finds no slot.
const MANY: [i32; 11] = [5, 1, 1, MOST_TOKENS, 3, 1, MOST_TOKENS, MOST_TOKENS, MOST_TOKENS, 1, 2];

#[test]
fn tokens_attend_to_the_same_with_a_kernel() {
    check("llama/quant4-tied", &MANY, 2 * 10);
    check("llama/quant4-tied", &[5, MOST_TOKENS, -15, 6, -5, 1, -8, 2, 1], 2 * 5);
    check("qwen3/quant4-tied", &MANY, 2 * 10);
    check("smollm3/quant4", &MANY, 4 * 10);
    // Norms that the kernel does not compute.
    check("olmo2/quant4", &MANY, 2 * 10);
    check("cohere/normed-quant", &MANY, 2 * 10);
    // Pairs of neighbours, in a part of a head.
    check("glm4/quant4", &MANY, 2 * 10);
}

#[test]
fn a_ring_has_a_kernel_for_single_tokens() {
    const SINGLES: usize = 4;
    check("gemma3_text/quant4", &MANY, 10 + 2 * SINGLES);
    check("cohere2/quant4", &MANY, 10 + 2 * SINGLES);
}

#[test]
fn more_tokens_than_a_kernel_takes_attend_without() {
    check("llama/quant4-tied", &[5, MOST_TOKENS + 1, 1, 40, 1], 2 * 2);
}

/// Compares the logits of rows that began at different tokens with the kernel and without: they are
/// read one by one, decoded together, and one of them leaves while another one comes.
fn check_rows(name: &str, num_layers: usize) {
    const STEPS: usize = 70; // more than the newest tokens of a cache hold
    let options = LoadOptions::new().keep_quantized(true);
    let load =
        |kernels| with_kernels(kernels, || Model::load(&tiny_model(name), options)).unwrap().0;
    let kernels = WithAttention::default();
    let calls = kernels.num_calls.clone();
    let models = [load(Some(Rc::new(kernels) as Rc<dyn DeviceKernels>)), load(None)];
    let token = |row: usize, at: usize| ((row * 11 + at * 7) % 50) as u32;
    let read = |model: &Model, row: usize, length: usize| {
        let mut caches = model.make_cache();
        let tokens: Vec<u32> = (0..length).map(|at| token(row, at)).collect();
        model.forward(&Array::from_slice(&tokens, &[1, length as i32]), &mut caches).unwrap();
        caches
    };
    let mut batches = models.each_ref().map(|model| {
        let rows = [(0, 25), (1, 40), (2, 17)];
        batch::merge(rows.map(|(row, length)| read(model, row, length)).to_vec()).unwrap()
    });
    let mut rows = vec![0, 1, 2];
    calls.set(0);
    for step in 0..STEPS {
        if step == 20 {
            rows = vec![2, 0, 3];
            for (model, caches) in models.iter().zip(&mut batches) {
                batch::filter(caches, &[2, 0]).unwrap();
                let added = batch::merge(vec![read(model, 3, 19)]).unwrap();
                batch::extend(caches, added).unwrap();
            }
        }
        let tokens: Vec<u32> = rows.iter().map(|&row| token(row, 50 + step)).collect();
        let tokens = Array::from_slice(&tokens, &[rows.len() as i32, 1]);
        let logits = |model: &Model, caches: &mut [LayerCache]| {
            let logits = model.logits(&model.forward(&tokens, caches).unwrap()).unwrap();
            logits.as_dtype(mlx_rs::Dtype::Float32).unwrap()
        };
        let [with, without] = &mut batches;
        let (found, expected) = (logits(&models[0], with), logits(&models[1], without));
        let off = ops::subtract(&found, &expected).unwrap().abs().unwrap().max(None).unwrap();
        let most = expected.abs().unwrap().max(None).unwrap().item_exact::<f32>();
        let off = off.item_exact::<f32>();
        assert!(off <= 1e-4 * most, "{name}, step {step}: off by {off}");
    }
    assert_eq!(calls.get(), num_layers * STEPS, "{name}: calls of the kernel");
    assert_eq!(crate::num_kernel_failures(), 0, "{name}");
    for row in 0..rows.len() {
        let [found, expected] = batches.each_ref().map(|caches| {
            let caches = batch::extract(caches, row).unwrap();
            caches.iter().map(LayerCache::offset).collect::<Vec<_>>()
        });
        assert_eq!(found, expected, "{name}, row {row}");
    }
}

#[test]
fn rows_that_began_at_different_tokens_attend_to_the_same_with_a_kernel() {
    check_rows("llama/quant4-tied", 2);
    check_rows("qwen3/quant4-tied", 2);
    // Norms that the kernel does not compute.
    check_rows("olmo2/quant4", 2);
    check_rows("cohere/normed-quant", 2);
}

#[test]
fn rows_of_rings_attend_to_the_same_with_a_kernel() {
    check_rows("gemma3_text/quant4", 3);
    check_rows("cohere2/quant4", 3);
}
