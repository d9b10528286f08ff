//! How many graph nodes a decode step evaluates: what a token costs the host.
//!
//! The graph is built as for a GPU, and not evaluated: in bfloat16, with formulas compiled
//! (`nn/elementwise.rs`) and each of MLX's fused operations as one node (`nn/fused.rs`), which a CPU's
//! backend writes out as many.

use std::rc::Rc;

use cairn_tiny_models::tiny_model;
use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::*;
use crate::chosen_kernels::with_kernels;
use crate::device::as_on_gpu;
use crate::device_kernels::{
    Activation, DeviceKernels, Experts, Fusion, HeadShape, Kernel, Kernels, LayerParts, MatrixRows,
    Rotation,
};
use crate::ffi::{depends, graph_operations};

/// How many nodes a graph has.
fn num_nodes(outputs: &[&Array]) -> usize {
    graph_operations(outputs).unwrap().len()
}

/// Kernels of one node each, which compute nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OneNode {
    /// Layers are computed by their parts, as where not enough blocks run at once.
    Parts,
    /// Whole layers have a kernel too.
    Layers,
}

#[derive(Debug)]
struct Placeholder(fn(&[&Array], i32) -> Result<Vec<Array>, Exception>, i32);

impl Kernel for Placeholder {
    fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
        let is_token = matches!(inputs[0].shape(), [1, 1, _]);
        is_token.then(|| (self.0)(inputs, self.1)).transpose()
    }
}

/// Of the type that the model computes in: another would be converted.
fn zeros(shape: &[i32], like: &Array) -> Array {
    let zeros = mlx_rs::ops::zeros_dtype(shape, like.dtype()).unwrap();
    zeros.eval().unwrap();
    zeros
}

fn vector(inputs: &[&Array], width: i32) -> Result<Vec<Array>, Exception> {
    depends(&[&zeros(&[1, 1, width], inputs[0])], inputs)
}

impl DeviceKernels for OneNode {
    fn product(&self, rows: MatrixRows<'_>, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        // As those of CUDA.
        if fusion.activation == Some(Activation::Gelu) {
            return None;
        }
        let num_rows = match rows {
            MatrixRows::Dense(rows) => rows.dim(0),
            MatrixRows::Quantized(rows) => rows.num_rows(),
        };
        let halves = if fusion.activation.is_some() { 2 } else { 1 };
        Some(Box::new(Placeholder(vector, num_rows / halves)))
    }

    fn norm_residual(&self, weight: &Array, _: f32) -> Option<Box<dyn Kernel>> {
        Some(Box::new(Placeholder(vector, weight.dim(0))))
    }

    fn attention(&self, heads: &HeadShape, _: Rotation<'_>) -> Option<Box<dyn Kernel>> {
        if heads.softcap.is_some() {
            return None;
        }
        let attend = |inputs: &[&Array], width: i32| {
            let outputs =
                [vec![1, 1, width], inputs[3].shape().to_vec(), inputs[4].shape().to_vec()]
                    .map(|shape| zeros(&shape, inputs[0]));
            depends(&outputs.each_ref(), inputs)
        };
        Some(Box::new(Placeholder(attend, heads.heads * heads.head_dim)))
    }

    /// Routing, the first products of the chosen experts, and the rest are a node each.
    fn experts(&self, experts: Experts<'_>) -> Option<Box<dyn Kernel>> {
        let blend = |inputs: &[&Array], width: i32| {
            let [x, logits, residual] = *inputs else { panic!("three inputs") };
            let routed = depends(&[&zeros(&[1], x)], &[logits])?;
            let activated = depends(&[&zeros(&[1], x)], &[x, &routed[0]])?;
            vector(&[&activated[0], &routed[0], residual], width)
        };
        Some(Box::new(Placeholder(blend, experts.down.num_rows())))
    }

    fn layers(&self, layers: &[LayerParts<'_>]) -> Option<Box<dyn Kernel>> {
        let run = |inputs: &[&Array], width: i32| {
            let [x, slots @ .., _] = inputs else { panic!("no slot mapping") };
            let newest = slots.chunks(4).flat_map(|slot| [slot[2], slot[3]]);
            let newest: Vec<_> = newest.map(|newest| zeros(newest.shape(), x)).collect();
            let output = zeros(&[1, 1, width], x);
            depends(&[&output].into_iter().chain(&newest).collect::<Vec<_>>(), inputs)
        };
        let width = layers.last()?.down.num_rows();
        (*self == OneNode::Layers).then(|| Box::new(Placeholder(run, width)) as _)
    }
}

/// The nodes of the layers in a decode step on a GPU, without those of the slot mapping, which layers
/// share however many they are.
fn count(name: &str, kernels: Kernels) -> usize {
    let options = LoadOptions::new().keep_quantized(true);
    let load = || with_kernels(kernels, || Model::load(&tiny_model(name), options));
    let (model, _) = as_on_gpu(load).unwrap();
    let mut caches = model.make_cache();
    let tokens = |tokens: &[u32]| Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let evaluate = |output: &Array, caches: &[LayerCache]| {
        let arrays = caches.iter().flat_map(LayerCache::arrays).chain([output]);
        mlx_rs::transforms::eval(arrays).unwrap();
    };
    for prompt in [&[1, 2, 3, 4][..], &[5]] {
        let hidden = model.forward(&tokens(prompt), &mut caches).unwrap();
        evaluate(&hidden, &caches);
    }
    as_on_gpu(|| {
        let embedding = num_nodes(&[&model.embed(&tokens(&[6])).unwrap()]);
        let hidden = model.forward(&tokens(&[6]), &mut caches).unwrap();
        let operations = graph_operations(&[&hidden]).unwrap();
        // Each mapping is broadcast and then copied; nothing else is.
        let num_mappings = operations.iter().filter(|name| *name == "Contiguous").count();
        // Without the norm after the last layer.
        operations.len() - 2 * num_mappings - embedding - 1
    })
}

/// The nodes of the layers in mlx-lm, as tests/goldens/node_counts.py counted them.
fn of_mlx_lm(name: &str) -> usize {
    let counts: serde_json::Value =
        serde_json::from_str(include_str!("../../../../tests/goldens/node_counts.json")).unwrap();
    counts[name]["in_layers"].as_u64().unwrap() as usize
}

#[test]
fn with_kernels_a_dense_layer_is_at_most_eight_nodes() {
    let check = |name: &str, num_layers: usize, per_layer: usize| {
        let found = count(name, Some(Rc::new(OneNode::Parts)));
        eprintln!("{name}: {found}");
        assert!(found <= num_layers * per_layer, "{name}: {found} in {num_layers} layers");
    };
    check("llama/quant4-tied", 2, 5);
    check("llama/dense-bf16", 2, 5);
    check("qwen2/dense-bf16", 2, 5);
    check("gemma3_text/dense-bf16", 6, 8);
    check("qwen3/quant4-tied", 2, 5);
    check("gemma3_text/quant4", 3, 8);
    check("qwen3_moe/quant4", 2, 8);
    // mlx-lm's have 27 or more.
    check("ernie4_5/quant4", 2, 5);
    check("exaone4/quant4", 3, 8);
    check("glm/quant4", 2, 5);
    check("glm4/quant4", 2, 8);
    check("internlm3/quant4", 2, 5);
    check("mixtral/quant4", 2, 8);
    check("phi3/quant4", 2, 5);
    check("seed_oss/quant4", 2, 5);
    check("smollm3/quant4", 4, 5);
}

#[test]
fn with_kernels_of_whole_layers_dense_layers_that_are_alike_are_one_node() {
    for (name, num_runs) in [
        ("llama/quant4-tied", 1),
        ("qwen3/quant4-tied", 1),
        ("ernie4_5/quant4", 1),
        ("phi3/quant4", 1),
        // The last of four layers does not rotate.
        ("smollm3/quant4", 2),
    ] {
        assert_eq!(count(name, Some(Rc::new(OneNode::Layers))), num_runs, "{name}");
    }
}

/// At most so much of mlx-lm's nodes without kernels, and with those that CUDA has.
#[test]
fn a_step_takes_fewer_nodes_than_in_mlx_lm() {
    let mut seen = Vec::new();
    let mut check = |name: &str, plain: f64, with_kernels: f64| {
        let of_mlx_lm = of_mlx_lm(name) as f64;
        for (form, kernels, most) in
            [("plain", None, plain), ("kernels", Some(Rc::new(OneNode::Parts) as _), with_kernels)]
        {
            let found = count(name, kernels) as f64;
            eprintln!("{name}, {form}: {found} of {of_mlx_lm}: {:.3}", found / of_mlx_lm);
            assert!(found / of_mlx_lm <= most, "{name}, {form}: {found}, {of_mlx_lm} in mlx-lm");
        }
        assert!(with_kernels <= 0.6, "{name} is to be at most 0.6");
        seen.push(name.to_owned());
    };
    check("cohere/quant4", 0.85, 0.24);
    check("cohere2/quant4", 0.86, 0.24);
    check("deepseek_v2/quant4", 0.72, 0.59);
    check("deepseek_v3/quant4", 0.72, 0.60);
    check("ernie4_5/quant4", 0.86, 0.19);
    check("ernie4_5_moe/quant4", 0.70, 0.32);
    check("exaone4/quant4", 0.86, 0.25);
    check("falcon_h1/quant4", 0.50, 0.30);
    check("gemma/quant4", 0.71, 0.30);
    check("gemma2/quant4", 0.67, 0.55);
    check("gemma3_text/quant4", 0.60, 0.17);
    check("gemma4_text/quant-experts", 0.68, 0.57);
    check("gemma4_text/quant4", 0.77, 0.58);
    check("glm/quant4", 0.76, 0.16);
    check("glm4/quant4", 0.87, 0.25);
    check("glm4_moe/quant4", 0.68, 0.26);
    check("glm4_moe_lite/quant4", 0.72, 0.60);
    check("gpt_oss/quant4", 0.60, 0.54);
    check("granite/quant4", 0.75, 0.25);
    check("granitemoe/quant4", 0.60, 0.39);
    check("granitemoehybrid/quant4", 0.53, 0.43);
    check("helium/quant4", 0.86, 0.19);
    check("internlm3/quant4", 0.86, 0.19);
    check("jamba/quant4", 0.70, 0.46);
    check("lfm2/quant4", 1.07, 0.50);
    check("lfm2_moe/quant4", 0.65, 0.46);
    check("llama/quant4-tied", 0.86, 0.19);
    check("llama4/quant4", 0.64, 0.51);
    check("llama4_text/quant4", 0.84, 0.59);
    check("mamba2/quant4", 0.36, 0.33);
    check("mimo/quant4", 0.76, 0.16);
    check("minicpm/quant4", 0.75, 0.25);
    check("ministral3/quant4", 0.62, 0.43);
    check("mistral3/ministral-quant4", 0.62, 0.43);
    check("mixtral/quant4", 0.64, 0.16);
    check("nemotron_h/quant4", 0.45, 0.36);
    check("olmo2/quant4", 0.94, 0.45);
    check("olmo3/quant4", 0.92, 0.53);
    check("olmoe/quant4", 0.63, 0.26);
    check("phi3/quant4", 0.89, 0.20);
    check("phimoe/quant4", 0.5, 0.46);
    check("qwen2/quant4", 0.76, 0.16);
    check("qwen2_moe/quant4", 0.60, 0.19);
    check("qwen3/quant4-tied", 0.87, 0.18);
    check("qwen3_5/quant4", 0.83, 0.52);
    check("qwen3_5_moe/quant4", 0.67, 0.38);
    check("qwen3_moe/quant4", 0.63, 0.15);
    check("qwen3_next/quant4", 0.63, 0.36);
    check("seed_oss/quant4", 0.76, 0.16);
    check("smollm3/quant4", 0.86, 0.19);
    check("stablelm/parallel-quant", 0.70, 0.47);
    check("stablelm/quant4", 0.70, 0.20);
    check("starcoder2/quant4", 0.77, 0.32);
    let counted: serde_json::Value =
        serde_json::from_str(include_str!("../../../../tests/goldens/node_counts.json")).unwrap();
    let missing: Vec<_> =
        counted.as_object().unwrap().keys().filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "of {missing:?} mlx-lm's nodes are known");
}
