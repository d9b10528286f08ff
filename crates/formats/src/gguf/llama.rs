//! The llama architecture in GGUF: its keys become a `config.json`, and each of its tensors gets its
//! MLX name. A tensor that gets none is an error.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::affine::{GROUP_SIZE, affine_bits, f16_to_f32};
use super::tensors::{GgmlType, TensorInfo};
use super::tokenizer::SpecialIds;
use super::{GgufFile, GgufProblem};
use crate::excerpt::excerpt;

const ROPE_FREQS: &str = "rope_freqs.weight";

/// Sizes and constants of one model, read from the file's keys and checked against its tensors.
#[derive(Debug)]
pub struct Llama {
    hidden_size: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    /// Rows of the embedding.
    pub vocab_size: usize,
    rope_theta: f64,
    rope_scaling: Option<Value>,
    /// Tokens that the model can attend to.
    pub max_position_embeddings: usize,
    tie_word_embeddings: bool,
}

/// One tensor of the file, and what it becomes.
#[derive(Debug)]
pub struct PlannedTensor<'a> {
    /// The tensor in the GGUF file.
    pub source: &'a TensorInfo,
    /// The MLX module, without `.weight`.
    pub module: String,
    /// Rows per head where the row order must be undone.
    pub unpermute: Option<usize>,
}

impl Llama {
    /// Reads the keys and plans every tensor, in the order in which they are written.
    pub fn read(gguf: &GgufFile) -> Result<(Llama, Vec<PlannedTensor<'_>>), GgufProblem> {
        check_architecture(gguf)?;
        let embedding = required(gguf, "token_embd.weight")?;
        let hidden_size = size(gguf, "llama.embedding_length")?;
        let num_attention_heads = size(gguf, "llama.attention.head_count")?;
        let num_key_value_heads =
            gguf.count("llama.attention.head_count_kv")?.unwrap_or(num_attention_heads);
        let head_dim = head_dim(gguf, hidden_size, num_attention_heads)?;
        if num_key_value_heads == 0 || !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let allowed = format!("divisors of {num_attention_heads}");
            return Err(unsupported(
                "llama.attention.head_count_kv",
                num_key_value_heads,
                &allowed,
            ));
        }
        let rope_theta = gguf.number("llama.rope.freq_base")?.unwrap_or(10_000.0);
        let rms_norm_eps = number(gguf, "llama.attention.layer_norm_rms_epsilon")?;
        for (key, value) in [
            ("llama.rope.freq_base", rope_theta),
            ("llama.attention.layer_norm_rms_epsilon", rms_norm_eps),
        ] {
            if value <= 0.0 {
                return Err(unsupported(key, value, "positive numbers"));
            }
        }
        let llama = Llama {
            hidden_size,
            num_hidden_layers: size(gguf, "llama.block_count")?,
            intermediate_size: size(gguf, "llama.feed_forward_length")?,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            rms_norm_eps,
            vocab_size: embedding.shape[0],
            rope_theta,
            rope_scaling: rope_scaling(gguf, rope_theta, head_dim)?,
            max_position_embeddings: size(gguf, "llama.context_length")?,
            tie_word_embeddings: gguf.tensor("output.weight").is_none(),
        };
        let plan = llama.plan(gguf)?;
        Ok((llama, plan))
    }

    fn plan<'a>(&self, gguf: &'a GgufFile) -> Result<Vec<PlannedTensor<'a>>, GgufProblem> {
        let (hidden, inner, vocab, head_dim) =
            (self.hidden_size, self.intermediate_size, self.vocab_size, self.head_dim);
        // Both products are bounded: head counts and head_dim come from i32 values, and the shapes
        // below must equal them.
        let (queries, keys) =
            (self.num_attention_heads * head_dim, self.num_key_value_heads * head_dim);
        let mut plan = Vec::new();
        let mut add =
            |source: String, module: String, shape: &[usize], unpermute: Option<usize>| {
                let source = checked_tensor(gguf, source, shape)?;
                plan.push(PlannedTensor { source, module, unpermute });
                Ok::<_, GgufProblem>(())
            };
        add("token_embd.weight".into(), "model.embed_tokens".into(), &[vocab, hidden], None)?;
        for layer in 0..self.num_hidden_layers {
            let parts: [(&str, &str, &[usize], Option<usize>); 9] = [
                ("attn_norm", "input_layernorm", &[hidden], None),
                ("attn_q", "self_attn.q_proj", &[queries, hidden], Some(head_dim)),
                ("attn_k", "self_attn.k_proj", &[keys, hidden], Some(head_dim)),
                ("attn_v", "self_attn.v_proj", &[keys, hidden], None),
                ("attn_output", "self_attn.o_proj", &[hidden, queries], None),
                ("ffn_norm", "post_attention_layernorm", &[hidden], None),
                ("ffn_gate", "mlp.gate_proj", &[inner, hidden], None),
                ("ffn_up", "mlp.up_proj", &[inner, hidden], None),
                ("ffn_down", "mlp.down_proj", &[hidden, inner], None),
            ];
            for (source, module, shape, unpermute) in parts {
                add(
                    format!("blk.{layer}.{source}.weight"),
                    format!("model.layers.{layer}.{module}"),
                    shape,
                    unpermute,
                )?;
            }
        }
        add("output_norm.weight".into(), "model.norm".into(), &[hidden], None)?;
        if !self.tie_word_embeddings {
            add("output.weight".into(), "lm_head".into(), &[vocab, hidden], None)?;
        }

        let used: HashSet<&str> =
            plan.iter().map(|planned| planned.source.name.as_str()).chain([ROPE_FREQS]).collect();
        if let Some(unknown) =
            gguf.tensors().iter().find(|tensor| !used.contains(tensor.name.as_str()))
        {
            return Err(GgufProblem::UnexpectedTensor { tensor: excerpt(&unknown.name) });
        }
        Ok(plan)
    }

    /// The `config.json`.
    pub fn config(&self, plan: &[PlannedTensor], special: &SpecialIds) -> Value {
        let mut config = Map::new();
        let mut set = |key: &str, value: Value| {
            config.insert(key.into(), value);
        };
        set("architectures", json!(["LlamaForCausalLM"]));
        set("attention_bias", json!(false));
        if let Some(bos) = special.bos {
            set("bos_token_id", json!(bos));
        }
        if let Some(eos) = special.eos_value() {
            set("eos_token_id", eos);
        }
        set("head_dim", json!(self.head_dim));
        set("hidden_act", json!("silu"));
        set("hidden_size", json!(self.hidden_size));
        set("intermediate_size", json!(self.intermediate_size));
        set("max_position_embeddings", json!(self.max_position_embeddings));
        set("mlp_bias", json!(false));
        set("model_type", json!("llama"));
        set("num_attention_heads", json!(self.num_attention_heads));
        set("num_hidden_layers", json!(self.num_hidden_layers));
        set("num_key_value_heads", json!(self.num_key_value_heads));
        if let Some(quantization) = quantization(plan) {
            set("quantization", quantization);
        }
        set("rms_norm_eps", json!(self.rms_norm_eps));
        if let Some(scaling) = &self.rope_scaling {
            set("rope_scaling", scaling.clone());
        }
        set("rope_theta", json!(self.rope_theta));
        set("tie_word_embeddings", json!(self.tie_word_embeddings));
        let is_half = plan.iter().all(|planned| {
            planned.source.shape.len() == 1 || planned.source.ggml_type == GgmlType::F16
        });
        set("torch_dtype", json!(if is_half { "float16" } else { "float32" }));
        set("vocab_size", json!(self.vocab_size));
        Value::Object(config)
    }
}

/// The tensor `name`, if it has `shape` and a type that can be imported.
fn checked_tensor<'a>(
    gguf: &'a GgufFile,
    name: String,
    shape: &[usize],
) -> Result<&'a TensorInfo, GgufProblem> {
    let info = required(gguf, &name)?;
    let found = || info.ggml_type.name();
    if info.shape != shape {
        let (found, expected) = (info.shape.clone(), shape.into());
        Err(GgufProblem::WrongShape { tensor: name, found, expected })
    } else if let GgmlType::Other(_) = info.ggml_type {
        Err(GgufProblem::UnsupportedTensorType { tensor: name, found: found() })
    } else if shape.len() == 1 && affine_bits(info.ggml_type).is_some() {
        Err(GgufProblem::QuantizedVector { tensor: name, found: found() })
    } else {
        Ok(info)
    }
}

/// mlx-lm's `quantization`: the commonest number of bits for all, then each module that differs;
/// `None` if nothing is quantized.
fn quantization(plan: &[PlannedTensor]) -> Option<Value> {
    let matrices = || plan.iter().filter(|planned| planned.source.shape.len() == 2);
    let mut modules_of_bits: BTreeMap<usize, usize> = BTreeMap::new();
    for bits in matrices().filter_map(|planned| affine_bits(planned.source.ggml_type)) {
        *modules_of_bits.entry(bits).or_default() += 1;
    }
    let (&common, _) = modules_of_bits.iter().rev().max_by_key(|(_, modules)| **modules)?;
    let mut quantization = Map::new();
    quantization.insert("group_size".into(), json!(GROUP_SIZE));
    quantization.insert("bits".into(), json!(common));
    for planned in matrices() {
        match affine_bits(planned.source.ggml_type) {
            Some(bits) if bits == common => {}
            Some(bits) => {
                drop(quantization.insert(
                    planned.module.clone(),
                    json!({"group_size": GROUP_SIZE, "bits": bits}),
                ))
            }
            None => drop(quantization.insert(planned.module.clone(), json!(false))),
        }
    }
    Some(Value::Object(quantization))
}

fn check_architecture(gguf: &GgufFile) -> Result<(), GgufProblem> {
    let architecture = gguf
        .text("general.architecture")?
        .ok_or_else(|| GgufProblem::MissingKey { key: "general.architecture".into() })?;
    if architecture != "llama" {
        return Err(unsupported("general.architecture", quoted(architecture), "llama"));
    }
    // Keys of relatives of llama that change what the model computes.
    for key in ["llama.expert_count", "llama.attention.sliding_window"] {
        if let Some(found) = gguf.count(key)?.filter(|count| *count != 0) {
            return Err(unsupported(key, found, "models without it"));
        }
    }
    for key in [
        "llama.logit_scale",
        "llama.embedding_scale",
        "llama.residual_scale",
        "llama.rope.scaling.attn_factor",
    ] {
        if let Some(found) = gguf.number(key)?.filter(|factor| *factor != 1.0 && *factor != 0.0) {
            return Err(unsupported(key, found, "models without it"));
        }
    }
    if let Some(parts) = gguf.count("split.count")?.filter(|parts| *parts > 1) {
        return Err(unsupported("split.count", parts, "models in one file"));
    }
    Ok(())
}

/// Rows per head; every way of saying it must agree, since MLX rotates and weighs whole heads.
fn head_dim(gguf: &GgufFile, hidden_size: usize, heads: usize) -> Result<usize, GgufProblem> {
    let head_dim = match gguf.count("llama.attention.key_length")? {
        Some(length) => length,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(unsupported(
                "llama.attention.head_count",
                heads,
                &format!("divisors of {hidden_size}"),
            ));
        }
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(unsupported("llama.attention.key_length", head_dim, "even head sizes"));
    }
    for key in ["llama.attention.value_length", "llama.rope.dimension_count"] {
        if let Some(found) = gguf.count(key)?.filter(|length| *length != head_dim) {
            return Err(unsupported(key, found, &format!("the head size, {head_dim}")));
        }
    }
    Ok(head_dim)
}

/// `rope_scaling` as config.json writes it, from the scaling keys or from the factors that a Llama
/// 3 file carries as a tensor.
fn rope_scaling(
    gguf: &GgufFile,
    rope_theta: f64,
    head_dim: usize,
) -> Result<Option<Value>, GgufProblem> {
    let kind = gguf.text("llama.rope.scaling.type")?;
    let factor =
        gguf.number("llama.rope.scaling.factor")?.or(gguf.number("llama.rope.scale_linear")?);
    let linear = match kind {
        Some("none") => None,
        Some("linear") | None => factor.filter(|factor| *factor != 0.0 && *factor != 1.0),
        Some(other) => {
            return Err(unsupported("llama.rope.scaling.type", quoted(other), "none and linear"));
        }
    };
    let factors = gguf.tensor(ROPE_FREQS);
    match (linear, factors) {
        (None, None) => Ok(None),
        (Some(factor), None) if factor > 0.0 => {
            Ok(Some(json!({"type": "linear", "rope_type": "linear", "factor": factor})))
        }
        (Some(factor), None) => {
            Err(unsupported("llama.rope.scaling.factor", factor, "positive numbers"))
        }
        (Some(_), Some(_)) => Err(GgufProblem::UnknownRopeFactors),
        (None, Some(tensor)) => llama3_scaling(gguf, tensor, rope_theta, head_dim).map(Some),
    }
}

/// Finds the Llama 3 parameters behind a table of factors: the largest is `factor`, the rest are
/// the same in every such model.
fn llama3_scaling(
    gguf: &GgufFile,
    tensor: &TensorInfo,
    rope_theta: f64,
    head_dim: usize,
) -> Result<Value, GgufProblem> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const ORIGINAL_CONTEXT: f64 = 8192.0;
    if tensor.shape != [head_dim / 2] {
        return Err(GgufProblem::WrongShape {
            tensor: tensor.name.clone(),
            found: tensor.shape.clone(),
            expected: vec![head_dim / 2],
        });
    }
    let mut bytes = vec![0; (tensor.bytes.end - tensor.bytes.start) as usize];
    gguf.read_at(&mut bytes, tensor.bytes.start)?;
    let factors: Vec<f64> = match tensor.ggml_type {
        GgmlType::F32 => bytes
            .chunks_exact(4)
            .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]).into())
            .collect(),
        GgmlType::F16 => {
            bytes.chunks_exact(2).map(|value| f16_to_f32([value[0], value[1]]).into()).collect()
        }
        _ => {
            return Err(GgufProblem::UnsupportedTensorType {
                tensor: tensor.name.clone(),
                found: tensor.ggml_type.name(),
            });
        }
    };
    let factor = factors.iter().copied().fold(1.0, f64::max);
    let is_llama3 = factors.iter().enumerate().all(|(i, &found)| {
        let wavelength =
            2.0 * std::f64::consts::PI * rope_theta.powf(2.0 * i as f64 / head_dim as f64);
        let expected = if wavelength < ORIGINAL_CONTEXT / HIGH {
            1.0
        } else if wavelength > ORIGINAL_CONTEXT / LOW {
            factor
        } else {
            let smooth = (ORIGINAL_CONTEXT / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        };
        // The writer computed in f32, or rounded to f16.
        (found - expected).abs() <= expected * 2e-3
    });
    if !is_llama3 || !factor.is_finite() {
        return Err(GgufProblem::UnknownRopeFactors);
    }
    Ok(json!({
        "factor": factor, "high_freq_factor": HIGH, "low_freq_factor": LOW,
        "original_max_position_embeddings": ORIGINAL_CONTEXT as u64, "rope_type": "llama3",
    }))
}

fn required<'a>(gguf: &'a GgufFile, tensor: &str) -> Result<&'a TensorInfo, GgufProblem> {
    gguf.tensor(tensor).ok_or_else(|| GgufProblem::MissingTensor { tensor: tensor.into() })
}

fn size(gguf: &GgufFile, key: &str) -> Result<usize, GgufProblem> {
    match gguf.count(key)? {
        Some(0) => Err(unsupported(key, 0, "values from 1")),
        Some(size) => Ok(size),
        None => Err(GgufProblem::MissingKey { key: key.into() }),
    }
}

fn number(gguf: &GgufFile, key: &str) -> Result<f64, GgufProblem> {
    gguf.number(key)?.ok_or_else(|| GgufProblem::MissingKey { key: key.into() })
}

fn unsupported(key: &str, found: impl ToString, allowed: &str) -> GgufProblem {
    GgufProblem::UnsupportedValue {
        key: key.into(),
        found: found.to_string(),
        allowed: allowed.into(),
    }
}

/// A text of the file as an error shows it.
fn quoted(text: &str) -> String {
    format!("{:?}", excerpt(text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::test_files::gguf::{HEAD_DIM, TestGguf, TestTensor, file_with};

    fn config(change: impl FnOnce(&mut TestGguf)) -> Result<Value, GgufProblem> {
        let mut sample = TestGguf::tiny();
        change(&mut sample);
        let (_folder, path) = file_with(&sample.bytes());
        let gguf = GgufFile::open(&path).unwrap();
        let (llama, plan) = Llama::read(&gguf)?;
        Ok(llama.config(&plan, &SpecialIds::default()))
    }

    fn refused(change: impl FnOnce(&mut TestGguf), expected: &str) {
        let found = config(change).err().map_or("no refusal".into(), |error| error.to_string());
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }

    fn with_tensor(name: &str, shape: Vec<usize>, values: Vec<f32>) -> impl FnOnce(&mut TestGguf) {
        let data = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let tensor = TestTensor { name: name.into(), shape, type_id: 0, data };
        move |sample| sample.tensors.push(tensor)
    }

    #[test]
    fn keys_become_the_config() {
        let found = config(|_| {}).unwrap();
        let expected = json!({
            "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 64, "max_position_embeddings": 128, "mlp_bias": false, "model_type": "llama",
            "num_attention_heads": 2, "num_hidden_layers": 1, "num_key_value_heads": 1,
            "quantization": {
                "group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8},
                "model.layers.0.self_attn.v_proj": false, "model.layers.0.mlp.up_proj": false,
            },
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "float32", "vocab_size": 263,
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn an_output_matrix_unties_the_embeddings() {
        let found =
            config(with_tensor("output.weight", vec![263, 32], vec![0.5; 263 * 32])).unwrap();
        assert_eq!(
            (&found["tie_word_embeddings"], &found["quantization"]["lm_head"]),
            (&json!(false), &json!(false))
        );
    }

    #[test]
    fn unquantized_models_say_so() {
        let matrices = [
            "token_embd",
            "blk.0.attn_q",
            "blk.0.attn_k",
            "blk.0.attn_output",
            "blk.0.ffn_gate",
            "blk.0.ffn_up",
            "blk.0.ffn_down",
        ];
        let found = config(|sample| {
            for name in matrices {
                sample.store_as(&format!("{name}.weight"), GgmlType::F16);
            }
        });
        let found = found.unwrap();
        assert_eq!(
            (&found["quantization"], &found["torch_dtype"]),
            (&Value::Null, &json!("float16"))
        );
    }

    /// The factors of a Llama 3 file with this sample's head size and base, computed in f32 as its
    /// writer does.
    fn llama3_factors(factor: f32) -> Vec<f32> {
        let wavelength = |i: usize| {
            2.0 * std::f32::consts::PI * 500_000_f32.powf(2.0 * i as f32 / HEAD_DIM as f32)
        };
        let scaled = |wavelength: f32| {
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            if wavelength < 2048.0 {
                1.0
            } else if wavelength > 8192.0 {
                factor
            } else {
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..HEAD_DIM / 2).map(wavelength).map(scaled).collect()
    }

    #[test]
    fn rope_scaling_is_translated_or_refused() {
        let linear = |kind: &'static str, factor: f32| {
            move |sample: &mut TestGguf| {
                sample.set_text("llama.rope.scaling.type", kind);
                sample.set_f32("llama.rope.scaling.factor", factor);
            }
        };
        let check = |change: Box<dyn FnOnce(&mut TestGguf)>, expected: Value| {
            assert_eq!(config(change).unwrap()["rope_scaling"], expected);
        };
        check(Box::new(linear("none", 4.0)), Value::Null);
        check(Box::new(linear("linear", 1.0)), Value::Null);
        check(
            Box::new(linear("linear", 2.5)),
            json!({"type": "linear", "rope_type": "linear", "factor": 2.5}),
        );
        check(
            Box::new(with_tensor("rope_freqs.weight", vec![8], llama3_factors(32.0))),
            json!({"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
        );
        let mut altered = llama3_factors(32.0);
        altered[0] = 1.5;
        refused(
            with_tensor("rope_freqs.weight", vec![8], altered),
            "rope_freqs.weight holds factors other than Llama 3's",
        );
        refused(
            with_tensor("rope_freqs.weight", vec![8], vec![f32::NAN; 8]),
            "rope_freqs.weight holds factors",
        );
        refused(
            with_tensor("rope_freqs.weight", vec![8], vec![f32::INFINITY; 8]),
            "rope_freqs.weight holds factors",
        );
        refused(
            with_tensor("rope_freqs.weight", vec![4], vec![1.0; 4]),
            "rope_freqs.weight has shape [4], expected [8]",
        );
        refused(
            linear("yarn", 4.0),
            r#"llama.rope.scaling.type is "yarn"; Cairn imports none and linear"#,
        );
        refused(linear("linear", -4.0), "llama.rope.scaling.factor is -4");
        refused(
            linear("linear", f32::NAN),
            "llama.rope.scaling.factor is NaN; Cairn imports finite numbers",
        );
    }

    #[test]
    fn relatives_of_llama_are_refused_by_name() {
        refused(
            |sample| sample.set_text("general.architecture", "qwen2"),
            r#"general.architecture is "qwen2"; Cairn imports llama"#,
        );
        refused(|sample| sample.remove("general.architecture"), "it has no general.architecture");
        refused(|sample| sample.set_u32("llama.expert_count", 8), "llama.expert_count is 8");
        refused(
            |sample| sample.set_u32("split.count", 3),
            "split.count is 3; Cairn imports models in one file",
        );
        refused(
            |sample| sample.set_u32("llama.rope.dimension_count", 8),
            "llama.rope.dimension_count is 8; Cairn imports the head size, 16",
        );
        refused(
            |sample| sample.set_u32("llama.attention.head_count", 3),
            "llama.attention.head_count is 3",
        );
        refused(
            |sample| sample.set_u32("llama.attention.head_count_kv", 0),
            "llama.attention.head_count_kv is 0",
        );
        refused(
            |sample| sample.set_u32("llama.embedding_length", 1 << 31),
            "llama.embedding_length is 2147483648",
        );
        refused(
            |sample| sample.set_f32("llama.rope.freq_base", 0.0),
            "llama.rope.freq_base is 0; Cairn imports positive numbers",
        );
        refused(
            with_tensor("blk.0.attn_q.bias", vec![32], vec![0.0; 32]),
            r#"tensor "blk.0.attn_q.bias" is not part of a llama model"#,
        );
    }

    #[test]
    fn tensors_must_be_those_the_keys_promise() {
        refused(
            |sample| sample.set_u32("llama.block_count", i32::MAX as u32),
            "it has no tensor blk.1.attn_norm.weight",
        );
        refused(
            |sample| sample.set_u32("llama.feed_forward_length", 96),
            "blk.0.ffn_gate.weight has shape [64, 32], expected [96, 32]",
        );
        refused(
            |sample| sample.tensors.retain(|tensor| tensor.name != "token_embd.weight"),
            "it has no tensor token_embd.weight",
        );
        refused(
            |sample| sample.store_as("blk.0.ffn_norm.weight", GgmlType::Q8_0),
            "blk.0.ffn_norm.weight is stored as Q8_0; a vector must be",
        );
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        for (id, name) in
            [(14, "Q6_K"), (12, "Q4_K"), (30, "BF16"), (6, "Q5_0"), (999, "type number 999")]
        {
            let expected = format!(
                "tensor blk.0.attn_q.weight is stored as {name}; Cairn imports F32, F16, Q4_0, Q4_1 and Q8_0"
            );
            refused(|sample| sample.tensor("blk.0.attn_q.weight").type_id = id, &expected);
        }
    }
}
