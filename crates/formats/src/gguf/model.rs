//! A model in GGUF, checked: what its config.json says, and which tensor becomes which MLX tensor. A
//! tensor that becomes none is an error.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use super::affine::{Form, RoundTo};
use super::architecture::{
    Architecture, Dim, Gating, Layers, Norms, Output, Presence, Rotation, Tensor,
};
use super::architectures::{ARCHITECTURES, architecture_names};
use super::error::{quoted, unsupported};
use super::rope::{FACTORS, rope_scaling};
use super::settings::add_settings;
use super::sizes::{Keys, LatentSizes, Sizes};
use super::tensors::TensorInfo;
use super::tokenizer::SpecialIds;
use super::{GgufFile, GgufProblem};
use crate::excerpt::excerpt;

/// Keys that change what a model computes. An architecture reads them, or they say that nothing is
/// changed.
const CHANGING: [&str; 18] = [
    "attention.sliding_window",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "expert_gating_func",
    "expert_group_count",
    "expert_weights_scale",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
];

/// A model whose keys and tensors were checked against each other.
#[derive(Debug)]
pub struct Model<'a> {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Tokens that the model can attend to.
    pub max_position_embeddings: usize,
    /// Every tensor, in the order in which they are written.
    pub tensors: Vec<PlannedTensor<'a>>,
    /// All of config.json that no tokenizer says, but for the names of the model.
    config: Map<String, Value>,
    architecture: &'static Architecture,
}

/// One tensor of the file, and what it becomes.
#[derive(Debug)]
pub struct PlannedTensor<'a> {
    /// The tensor in the GGUF file.
    pub source: &'a TensorInfo,
    /// A further tensor that becomes part of the same.
    pub second: Option<&'a TensorInfo>,
    /// The name of the MLX tensor or, with `.weight` behind it, of the first of its parts.
    pub name: String,
    /// The shape there.
    pub shape: Vec<usize>,
    pub(super) form: Form,
    pub(super) change: Change,
}

/// What is done to a tensor's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The order of rows is undone within heads of so many.
    Unpermuted(usize),
    /// One is subtracted.
    LessOne,
    /// Of each head the matrix is turned, and that of the second tensor follows.
    Joined,
}

impl PlannedTensor<'_> {
    /// The MLX module, without `.weight`.
    fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// Not of vectors, nor of the biases of many matrices.
    fn is_matrix(&self) -> bool {
        self.shape.len() > 1 && !self.name.ends_with(".bias")
    }
}

impl Model<'_> {
    /// Reads the keys and plans every tensor.
    pub fn read(gguf: &GgufFile, round_to: RoundTo) -> Result<Model<'_>, GgufProblem> {
        let architecture = architecture(gguf)?;
        let keys = Keys { gguf, prefix: architecture.name };
        check_unread(&keys, architecture)?;
        let embedding = required(gguf, "token_embd.weight")?;
        let vocab_size = embedding.shape[0];
        let sizes = Sizes::read(&keys, architecture, vocab_size)?;

        let mut config = Map::new();
        let theta = keys.positive_or("rope.freq_base", 10_000.0)?;
        add_sizes(&sizes, vocab_size, &mut config);
        add_rotation(&keys, &sizes, theta, &mut config)?;
        const RMS_EPS: &str = "attention.layer_norm_rms_epsilon";
        let (key, name) = match architecture.norms {
            Norms::Rms | Norms::RmsLessOne => ("rms_norm_eps", RMS_EPS),
            // Whose writers name it as the checkpoints do.
            Norms::Layer { key: key @ "rms_norm_eps", .. } => (key, RMS_EPS),
            Norms::Layer { key, .. } => (key, "attention.layer_norm_epsilon"),
        };
        config.insert(key.into(), json!(keys.positive(name)?));

        let mut plan = Plan { gguf, architecture, sizes: &sizes, round_to, tensors: Vec::new() };
        plan.all(vocab_size, &mut config)?;
        let tensors = plan.tensors;
        // Behind the plan: lists of layers are no longer than the file has tensors for.
        add_settings(architecture, &keys, &sizes, &mut config)?;
        check_all_used(gguf, &tensors)?;
        let max_position_embeddings = sizes.context;
        Ok(Model { vocab_size, max_position_embeddings, tensors, config, architecture })
    }

    /// The `config.json`.
    pub fn config(&self, special: &SpecialIds) -> Value {
        let mut config = self.named_config();
        let mut set = |key: &str, value: Value| drop(config.insert(key.into(), value));
        if let Some(bos) = special.bos {
            set("bos_token_id", json!(bos));
        }
        if let Some(eos) = special.eos_value() {
            set("eos_token_id", eos);
        }
        if let Some(quantization) = quantization(&self.tensors) {
            set("quantization", quantization);
        }
        let matrices = || self.tensors.iter().filter(|planned| planned.is_matrix());
        let are_all = |name| matrices().all(|planned| planned.form == Form::Dense(name));
        let dtype = match (are_all("F16"), are_all("BF16")) {
            (true, _) => "float16",
            (_, true) => "bfloat16",
            _ => "float32",
        };
        set("torch_dtype", json!(dtype));
        Value::Object(config)
    }

    /// The keys with the names of the model, or those of a text part in a section of their own.
    fn named_config(&self) -> Map<String, Value> {
        let Architecture { class, model_type, text_type, .. } = self.architecture;
        let named = |mut config: Map<String, Value>, model_type: &str| {
            config.entry("model_type").or_insert(json!(model_type));
            config
        };
        let mut config = match text_type {
            None => named(self.config.clone(), model_type),
            Some(text_type) => {
                let text = named(self.config.clone(), text_type);
                named(Map::from_iter([("text_config".into(), text.into())]), model_type)
            }
        };
        config.entry("architectures").or_insert(json!([class]));
        config
    }
}

/// Collects the tensors of a model.
struct Plan<'a, 's> {
    gguf: &'a GgufFile,
    architecture: &'static Architecture,
    sizes: &'s Sizes,
    round_to: RoundTo,
    tensors: Vec<PlannedTensor<'a>>,
}

impl Plan<'_, '_> {
    fn all(
        &mut self,
        vocab_size: usize,
        config: &mut Map<String, Value>,
    ) -> Result<(), GgufProblem> {
        let embeddings = [vocab_size, self.sizes.hidden];
        self.add("token_embd.weight", "model.embed_tokens.weight", &embeddings)?;
        let tensors: Vec<&Tensor> = self.architecture.layer.iter().copied().flatten().collect();
        for (tensor, is_bias) in tensors.iter().flat_map(|tensor| [(tensor, false), (tensor, true)])
        {
            let presence = if is_bias { tensor.bias } else { tensor.weight };
            if let Some((key, is_said)) = self.says(presence, &tensors) {
                config.insert(key.into(), json!(is_said));
            }
        }
        for layer in 0..self.sizes.num_layers + self.sizes.num_mtp_layers {
            for tensor in &tensors {
                self.add_of_layer(layer, tensor, &tensors)?;
            }
        }
        let hidden = [self.sizes.hidden];
        self.add("output_norm.weight", "model.norm.weight", &hidden)?;
        if matches!(self.architecture.norms, Norms::Layer { has_bias: true, .. }) {
            self.add("output_norm.bias", "model.norm.bias", &hidden)?;
        }
        let is_tied = match self.architecture.output {
            Output::Tied => true,
            Output::Own | Output::Biased => false,
            Output::IfStored => self.gguf.tensor("output.weight").is_none(),
        };
        config.insert("tie_word_embeddings".into(), json!(is_tied));
        if !is_tied {
            self.add("output.weight", "lm_head.weight", &embeddings)?;
        }
        if self.architecture.output == Output::Biased {
            self.add("output.bias", "lm_head.bias", &embeddings[..1])?;
        }
        Ok(())
    }

    /// Adds a tensor of a layer with its bias, where the file's first layer has them.
    fn add_of_layer(
        &mut self,
        layer: usize,
        tensor: &Tensor,
        all: &[&Tensor],
    ) -> Result<(), GgufProblem> {
        let is_mtp = layer >= self.sizes.num_layers;
        let has_experts = is_mtp || self.sizes.has_experts(layer);
        let is_of_layer = match tensor.layers {
            Layers::All => true,
            Layers::WithExperts => has_experts,
            Layers::Dense => !has_experts,
            Layers::Mtp => is_mtp,
        };
        if !is_of_layer {
            return Ok(());
        }
        let shape: Vec<usize> = tensor.shape.iter().map(|dim| self.sizes.of(*dim)).collect();
        for (presence, suffix) in [(tensor.weight, "weight"), (tensor.bias, "bias")] {
            let source = format!("blk.{layer}.{}.{suffix}", tensor.source);
            let has_key =
                |name: &str| self.gguf.has_key(&format!("{}.{name}", self.architecture.name));
            let is_there = match presence {
                Presence::Never => false,
                Presence::Always => true,
                Presence::Says(_) => self.says(presence, all).is_some_and(|(_, is_said)| is_said),
                Presence::Denies(_) => {
                    self.says(presence, all).is_some_and(|(_, is_said)| !is_said)
                }
                Presence::Maybe => self.gguf.tensor(&source).is_some(),
                Presence::With(key) => has_key(key),
                Presence::Without(key) => !has_key(key),
            };
            if !is_there {
                continue;
            }
            // Biases have one number for each row.
            let num_dims = if suffix == "bias" { shape.len().max(2) - 1 } else { shape.len() };
            let shape = &shape[..num_dims];
            let module = format!("model.layers.{layer}.{}", tensor.module);
            let name = if tensor.is_bare { module } else { format!("{module}.{suffix}") };
            match tensor.joined {
                None => self.add_changed(source, name, shape, self.change_of(tensor))?,
                Some(second) => {
                    self.add_joined(source, format!("blk.{layer}.{second}.{suffix}"), name)?
                }
            }
        }
        Ok(())
    }

    /// The key that says whether tensors are there, and what it says: whether the first layer has any
    /// of those with the same key.
    fn says(&self, presence: Presence, all: &[&Tensor]) -> Option<(&'static str, bool)> {
        let (key, says_stored) = match presence {
            Presence::Says(key) => (key, true),
            Presence::Denies(key) => (key, false),
            _ => return None,
        };
        let is_stored = all.iter().any(|tensor| {
            let has = |suffix: &str| {
                self.gguf.tensor(&format!("blk.0.{}.{suffix}", tensor.source)).is_some()
            };
            tensor.weight == presence && has("weight") || tensor.bias == presence && has("bias")
        });
        Some((key, is_stored == says_stored))
    }

    fn change_of(&self, tensor: &Tensor) -> Change {
        let is_rotated = ["attn_q", "attn_k"].contains(&tensor.source);
        match (self.architecture.rotation, self.architecture.norms) {
            (Rotation::Interleaved, _) if is_rotated => Change::Unpermuted(self.sizes.head_dim),
            (_, Norms::RmsLessOne) if tensor.source.ends_with("norm") => Change::LessOne,
            _ => Change::None,
        }
    }

    fn add(&mut self, source: &str, name: &str, shape: &[usize]) -> Result<(), GgufProblem> {
        let is_norm = source == "output_norm.weight";
        let change = match self.architecture.norms {
            Norms::RmsLessOne if is_norm => Change::LessOne,
            _ => Change::None,
        };
        self.add_changed(source.into(), name.into(), shape, change)
    }

    /// Adds the matrix of keys and values of all heads, `[heads * (plain + value), rank]`, that is
    /// stored as two: `[heads, rank, plain]` and `[heads, value, rank]`. Their numbers stay the same,
    /// but none of them quantized, as a turned matrix has other groups.
    fn add_joined(
        &mut self,
        source: String,
        second: String,
        name: String,
    ) -> Result<(), GgufProblem> {
        let heads = self.sizes.num_heads;
        let LatentSizes { rank, plain, value, .. } = self.sizes.latent;
        self.add_changed(source, name, &[heads, rank, plain], Change::Joined)?;
        self.add_changed(second, String::new(), &[heads, value, rank], Change::None)?;
        let second = self.tensors.pop();
        if let (Some(joined), Some(second)) = (self.tensors.last_mut(), second) {
            joined.form = match (joined.form, second.form) {
                (Form::Dense(name), Form::Dense(other)) if name == other => Form::Dense(name),
                _ => Form::Dense("F32"),
            };
            joined.second = Some(second.source);
            joined.shape = vec![self.sizes.of(Dim::PlainAndValues), rank];
        }
        Ok(())
    }

    /// Adds a tensor that has `shape` and a type that can be imported.
    fn add_changed(
        &mut self,
        source: String,
        name: String,
        shape: &[usize],
        change: Change,
    ) -> Result<(), GgufProblem> {
        let info = required(self.gguf, &source)?;
        let found = || info.ggml_type.name();
        // A matrix of one row is stored as a vector.
        let is_row = shape.len() == 2 && shape[0] == 1 && info.shape == shape[1..];
        if info.shape != shape && !is_row {
            let (found, expected) = (info.shape.clone(), shape.into());
            return Err(GgufProblem::WrongShape { tensor: source, found, expected });
        }
        let Some(form) = Form::of(info.ggml_type, self.round_to) else {
            return Err(GgufProblem::UnsupportedTensorType { tensor: source, found: found() });
        };
        if info.ggml_type.block().is_some_and(|(weights, _)| weights > 1)
            && (shape.len() == 1 || name.ends_with(".bias") || change == Change::LessOne)
        {
            return Err(GgufProblem::QuantizedVector { tensor: source, found: found() });
        }
        // One less is written in more digits than it was read in.
        let form = if change == Change::LessOne { Form::Dense("F32") } else { form };
        let root = if self.architecture.text_type.is_some() { "language_model." } else { "" };
        self.tensors.push(PlannedTensor {
            source: info,
            second: None,
            name: format!("{root}{name}"),
            shape: shape.into(),
            form,
            change,
        });
        Ok(())
    }
}

fn add_sizes(sizes: &Sizes, vocab_size: usize, config: &mut Map<String, Value>) {
    for (key, value) in [
        ("head_dim", sizes.head_dim),
        ("hidden_size", sizes.hidden),
        ("intermediate_size", sizes.inner),
        ("max_position_embeddings", sizes.context),
        ("num_attention_heads", sizes.num_heads),
        ("num_hidden_layers", sizes.num_layers),
        ("num_key_value_heads", sizes.num_kv_heads),
        ("vocab_size", vocab_size),
    ] {
        config.insert(key.into(), json!(value));
    }
}

fn add_rotation(
    keys: &Keys,
    sizes: &Sizes,
    theta: f64,
    config: &mut Map<String, Value>,
) -> Result<(), GgufProblem> {
    config.insert("rope_theta".into(), json!(theta));
    if let Some(scaling) = rope_scaling(keys, sizes, theta)? {
        config.insert("rope_scaling".into(), scaling);
    }
    if sizes.rotated_dim != sizes.head_dim {
        let part = sizes.rotated_dim as f64 / sizes.head_dim as f64;
        config.insert("partial_rotary_factor".into(), json!(part));
    }
    Ok(())
}

/// mlx-lm's `quantization`: the commonest form for all, then each module that differs; `None` if
/// nothing is quantized.
fn quantization(tensors: &[PlannedTensor]) -> Option<Value> {
    let matrices = || tensors.iter().filter(|planned| planned.is_matrix());
    // Of affine groups by their bits, and before them those of another mode.
    let mut modules_of_form: BTreeMap<usize, (usize, Value)> = BTreeMap::new();
    for form in matrices().map(|planned| planned.form) {
        if let Some(settings) = form.settings() {
            modules_of_form.entry(form.bits().unwrap_or(0)).or_insert((0, settings)).0 += 1;
        }
    }
    let (_, (_, common)) = modules_of_form.iter().rev().max_by_key(|(_, (count, _))| *count)?;
    let mut quantization = common.clone();
    for planned in matrices() {
        match planned.form.settings() {
            Some(settings) if settings == *common => {}
            settings => quantization[planned.module()] = settings.unwrap_or(json!(false)),
        }
    }
    Some(quantization)
}

/// The architecture of a file. Fails if none of its name has experts as the file does.
fn architecture(gguf: &GgufFile) -> Result<&'static Architecture, GgufProblem> {
    const KEY: &str = "general.architecture";
    let name = gguf.text(KEY)?.ok_or_else(|| GgufProblem::MissingKey { key: KEY.into() })?;
    let mut named = ARCHITECTURES.iter().filter(|known| known.name == name).peekable();
    if named.peek().is_none() {
        return Err(unsupported(KEY, quoted(name), &architecture_names().join(", ")));
    }
    let key = format!("{name}.expert_count");
    let num_experts = gguf.count(&key)?.unwrap_or(0);
    let gating = match gguf.count(&format!("{name}.expert_gating_func"))? {
        Some(2) => Gating::Sigmoid,
        _ => Gating::Softmax,
    };
    let mut suitable = named
        .filter(|known| known.has_experts == (num_experts > 0))
        .filter(|known| known.gating.is_none_or(|known| known == gating));
    suitable.next().ok_or_else(|| unsupported(&key, num_experts, "other numbers of experts"))
}

fn check_unread(keys: &Keys, architecture: &Architecture) -> Result<(), GgufProblem> {
    let unread = CHANGING.iter().filter(|name| !architecture.reads.contains(name));
    for name in unread {
        // A switch or a list is no number and none of the values that change nothing.
        if let Some(found) = keys.number(name)?.filter(|value| *value != 1.0 && *value != 0.0) {
            return Err(keys.unsupported(name, found, "models without it"));
        }
    }
    let magnitude = "rope.scaling.attn_factor";
    let found = keys.number(magnitude)?.filter(|value| *value != 1.0 && *value != 0.0);
    match found.filter(|_| keys.text("rope.scaling.type").is_ok_and(|kind| kind != Some("yarn"))) {
        Some(found) if !architecture.reads.contains(&magnitude) => {
            Err(keys.unsupported(magnitude, found, "models without it"))
        }
        _ => Ok(()),
    }
}

fn check_all_used(gguf: &GgufFile, tensors: &[PlannedTensor]) -> Result<(), GgufProblem> {
    let used = tensors.iter().flat_map(|planned| [Some(planned.source), planned.second]);
    let used = used.flatten().map(|tensor| tensor.name.as_str());
    let used: HashSet<&str> = used.chain(FACTORS).collect();
    match gguf.tensors().iter().find(|tensor| !used.contains(tensor.name.as_str())) {
        Some(unknown) => Err(GgufProblem::UnexpectedTensor { tensor: excerpt(&unknown.name) }),
        None => Ok(()),
    }
}

fn required<'a>(gguf: &'a GgufFile, tensor: &str) -> Result<&'a TensorInfo, GgufProblem> {
    gguf.tensor(tensor).ok_or_else(|| GgufProblem::MissingTensor { tensor: tensor.into() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::super::tensors::GgmlType;
    use super::*;
    use crate::test_files::gguf::{HEAD_DIM, TestGguf, TestTensor, file_with};

    fn config(change: impl FnOnce(&mut TestGguf)) -> Result<Value, GgufProblem> {
        let mut sample = TestGguf::tiny();
        change(&mut sample);
        let (_folder, path) = file_with(&sample.bytes());
        let gguf = GgufFile::open(&path).unwrap();
        Ok(Model::read(&gguf, RoundTo::default())?.config(&SpecialIds::default()))
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
            "rope_freqs.weight holds a value that is not finite",
        );
        refused(
            with_tensor("rope_freqs.weight", vec![8], vec![f32::INFINITY; 8]),
            "rope_freqs.weight holds a value that is not finite",
        );
        refused(
            with_tensor("rope_freqs.weight", vec![4], vec![1.0; 4]),
            "rope_freqs.weight has shape [4], expected [8]",
        );
        refused(linear("yarn", 4.0), "it has no llama.rope.scaling.original_context_length");
        check(
            Box::new(|sample: &mut TestGguf| {
                linear("yarn", 4.0)(sample);
                sample.set_u32("llama.rope.scaling.original_context_length", 64);
            }),
            json!({
                "type": "yarn", "rope_type": "yarn", "factor": 4.0,
                "original_max_position_embeddings": 64,
            }),
        );
        refused(
            linear("longrope", 4.0),
            r#"llama.rope.scaling.type is "longrope"; Cairn imports none, linear and yarn"#,
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
            |sample| sample.set_text("general.architecture", "bert"),
            r#"general.architecture is "bert"; Cairn imports cohere2, command-r, "#,
        );
        refused(|sample| sample.remove("general.architecture"), "it has no general.architecture");
        refused(
            |sample| sample.set_u32("llama.expert_count", 8),
            "it has no llama.expert_used_count",
        );
        refused(
            |sample| sample.set_u32("llama.attention.sliding_window", 64),
            "llama.attention.sliding_window is 64; Cairn imports models without it",
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
            with_tensor("blk.0.attn_q_norm.weight", vec![16], vec![0.0; 16]),
            r#"tensor "blk.0.attn_q_norm.weight" is not part of such a model"#,
        );
        // All biases of attention are there, or none.
        refused(
            with_tensor("blk.0.attn_q.bias", vec![32], vec![0.0; 32]),
            "it has no tensor blk.0.attn_k.bias",
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
        for (id, name) in [(16, "IQ2_XXS"), (21, "IQ3_S"), (999, "type number 999")] {
            let expected = format!(
                "tensor blk.0.attn_q.weight is stored as {name}; Cairn imports F32, F16, BF16, Q4_0"
            );
            refused(|sample| sample.tensor("blk.0.attn_q.weight").type_id = id, &expected);
        }
    }
}
