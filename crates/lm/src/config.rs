//! Reading and checking config.json.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::Path;

use cairn_formats::{MAX_CONFIG_BYTES, python_json, read_file};
use serde::Deserialize;

use crate::{LmError, rope_keys, text_part};

/// config.json as it was read.
#[derive(Debug)]
pub struct ConfigFile {
    /// Its bytes, from which hashes are computed.
    pub bytes: Vec<u8>,
    /// The parsed bytes; of a model with several parts, what they say of its text part.
    pub value: serde_json::Value,
    /// Whether the file has two rotations, and earlier versions computed by the other one.
    has_other_rope: bool,
}

impl ConfigFile {
    /// Reads config.json in `folder`.
    pub fn read(folder: &Path) -> Result<Self, LmError> {
        let path = folder.join("config.json");
        let bytes = read_file(&path, MAX_CONFIG_BYTES)?;
        let value = python_json(&bytes).map_err(|source| LmError::Json { path, source })?;
        let unified = rope_keys::unify(text_part::as_stored(value));
        Ok(ConfigFile { bytes, value: unified.config, has_other_rope: unified.is_changed })
    }

    /// The bytes that identify the model: the bytes of the file, with a mark if earlier versions
    /// computed otherwise by the same file, so that their prompt caches are not used.
    pub fn identifying_bytes(&self) -> Cow<'_, [u8]> {
        match self.has_other_rope {
            false => Cow::Borrowed(&self.bytes),
            true => Cow::Owned([self.bytes.as_slice(), b"\nrope_parameters"].concat()),
        }
    }
}

/// Deserializes config.json into an architecture's arguments; an error names the file.
pub fn arguments<T: serde::de::DeserializeOwned>(
    folder: &Path,
    config: &serde_json::Value,
) -> Result<T, LmError> {
    T::deserialize(config)
        .map_err(|source| LmError::Json { path: folder.join("config.json"), source })
}

/// A number in config.json that a size is computed from, and what every architecture accepts of it,
/// so that products of sizes fit 64 bits.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    name: &'static str,
    min: i64,
    max: i64,
}

impl Size {
    pub const HIDDEN: Size = Size::new("hidden_size", 1, 1 << 17);
    pub const INTERMEDIATE: Size = Size::new("intermediate_size", 1, 1 << 20);
    pub const LAYERS: Size = Size::new("num_hidden_layers", 1, 1024);
    pub const HEADS: Size = Size::new("num_attention_heads", 1, 1024);
    pub const KV_HEADS: Size = Size::new("num_key_value_heads", 1, 1024);
    pub const HEAD_DIM: Size = Size::new("head_dim", 2, 4096);
    pub const VOCAB: Size = Size::new("vocab_size", 1, 1 << 22);
    pub const CONTEXT: Size = Size::new("max_position_embeddings", 1, 1 << 26);
    pub const WINDOW: Size = Size::new("sliding_window", 1, 1 << 26);
    pub const EXPERTS: Size = Size::new("num_experts", 0, 1 << 14);
    pub const EXPERT_INTERMEDIATE: Size = Size::new("moe_intermediate_size", 1, 1 << 20);

    /// The number at the key `name`, from `min` to `max`.
    pub const fn new(name: &'static str, min: i64, max: i64) -> Size {
        Size { name, min, max }
    }

    /// Fails if `value` is not accepted; the error names the key.
    pub fn check(self, value: i64) -> Result<i32, LmError> {
        check_range(self.name, value, self.min..=self.max)
    }
}

/// Fails if `value` is outside `range`; the error names the key.
pub fn check_range(
    name: &'static str,
    value: i64,
    range: std::ops::RangeInclusive<i64>,
) -> Result<i32, LmError> {
    if !range.contains(&value) {
        let allowed = format!("it must be between {} and {}", range.start(), range.end());
        return Err(LmError::Config { name, value: value.to_string(), allowed });
    }
    i32::try_from(value).map_err(|_| LmError::Config {
        name,
        value: value.to_string(),
        allowed: "it must fit 32 bits".to_owned(),
    })
}

/// Checks how many experts a layer has and how many of them a token uses, each with its key, and
/// returns both numbers.
pub fn check_experts(
    (count_key, count): (&'static str, i64),
    (chosen_key, num_chosen): (&'static str, i64),
) -> Result<(i32, i32), LmError> {
    let count = check_range(count_key, count, 1..=1 << 14)?;
    Ok((count, check_range(chosen_key, num_chosen, 1..=i64::from(count))?))
}

/// Checks the numbers of query heads and key/value heads and returns them. Fails unless the second
/// divides the first.
pub fn check_heads(
    num_attention_heads: i64,
    num_key_value_heads: i64,
) -> Result<(i32, i32), LmError> {
    let heads = Size::HEADS.check(num_attention_heads)?;
    let kv_heads = Size::KV_HEADS.check(num_key_value_heads)?;
    if heads % kv_heads != 0 {
        let allowed = format!("it must divide num_attention_heads = {heads}");
        return Err(LmError::Config {
            name: "num_key_value_heads",
            value: kv_heads.to_string(),
            allowed,
        });
    }
    Ok((heads, kv_heads))
}

/// Converts a number to f32, in which it is used. Fails unless the result is finite and above 0;
/// the error names the key.
pub fn check_positive(name: &'static str, value: f64) -> Result<f32, LmError> {
    let number = value as f32;
    if number.is_finite() && number > 0.0 {
        return Ok(number);
    }
    let allowed = "it must be a number above 0 that single precision can hold".to_owned();
    Err(LmError::Config { name, value: format!("{value:?}"), allowed })
}

/// A number that may be infinite, as Python's tools write it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Bound {
    Number(f64),
    /// `Infinity`, which JSON has no form for.
    Word(BoundWord),
    /// The same in newer configs.
    Tagged {
        #[serde(rename = "__float__")]
        word: BoundWord,
    },
}

/// The word for a number without an end.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub enum BoundWord {
    Infinity,
}

/// Converts two bounds to f32, in which they are used. Fails unless the first is 0 or more and at most
/// the second; the error names the key.
pub fn check_bounds(name: &'static str, bounds: [Bound; 2]) -> Result<[f32; 2], LmError> {
    let [least, most] = bounds.map(|bound| match bound {
        Bound::Number(number) => number as f32,
        Bound::Word(BoundWord::Infinity) | Bound::Tagged { word: BoundWord::Infinity } => {
            f32::INFINITY
        }
    });
    if 0.0 <= least && least.is_finite() && least <= most {
        return Ok([least, most]);
    }
    let allowed = "it must be two numbers, the first from 0 up to the second".to_owned();
    Err(LmError::Config { name, value: format!("[{least:?}, {most:?}]"), allowed })
}

/// Checks config.json's `layer_types` for an architecture without sliding windows and recurrent
/// layers. Fails on the first type other than `full_attention`; a config without the key passes.
pub fn check_full_attention(layer_types: Option<&[String]>) -> Result<(), LmError> {
    let Some(other) = layer_types.into_iter().flatten().find(|kind| *kind != "full_attention")
    else {
        return Ok(());
    };
    Err(LmError::Config {
        name: "layer_types",
        value: other.clone(),
        allowed: "only layers of the type full_attention are supported for this architecture"
            .to_owned(),
    })
}

/// Fails unless `kinds`, the key `name` of config.json, names one of the `known` types for each of so
/// many layers.
pub fn check_layer_types(
    name: &'static str,
    kinds: &[String],
    num_layers: usize,
    known: &[&str],
) -> Result<(), LmError> {
    let refused = |value, allowed| Err(LmError::Config { name, value, allowed });
    if kinds.len() != num_layers {
        let allowed = format!("it must name the type of each of the {num_layers} layers");
        return refused(format!("a list of {}", kinds.len()), allowed);
    }
    match kinds.iter().find(|kind| !known.contains(&kind.as_str())) {
        Some(other) => {
            refused(other.clone(), format!("for this architecture it is {}", known.join(" or ")))
        }
        None => Ok(()),
    }
}

/// Checks a RoPE entry that an architecture needs. Fails if it is missing or not above 0.
pub fn check_rope_entry(name: &'static str, value: Option<f64>) -> Result<f32, LmError> {
    let allowed = "this architecture needs it, there or in rope_parameters".to_owned();
    let missing = LmError::Config { name, value: "nothing".to_owned(), allowed };
    check_positive(name, value.ok_or(missing)?)
}

/// How the numbers of a quantized matrix are stored, in MLX's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizationMode {
    /// Integers with a floating-point scale and bias per group.
    Affine,
    /// Floating-point numbers of 4 bits (E2M1) with a power of two per group of 32.
    Mxfp4,
    /// Floating-point numbers of 8 bits (E4M3) with a power of two per group of 32.
    Mxfp8,
    /// Floating-point numbers of 4 bits (E2M1) with a scale of 8 bits (E4M3) per group of 16.
    Nvfp4,
}

impl QuantizationMode {
    /// All of them.
    pub const ALL: [QuantizationMode; 4] = [
        QuantizationMode::Affine,
        QuantizationMode::Mxfp4,
        QuantizationMode::Mxfp8,
        QuantizationMode::Nvfp4,
    ];

    /// The mode that MLX calls so.
    pub fn of_name(name: &str) -> Option<Self> {
        QuantizationMode::ALL.into_iter().find(|mode| mode.name().to_bytes() == name.as_bytes())
    }

    /// MLX's name of the mode.
    pub fn name(self) -> &'static CStr {
        match self {
            QuantizationMode::Affine => c"affine",
            QuantizationMode::Mxfp4 => c"mxfp4",
            QuantizationMode::Mxfp8 => c"mxfp8",
            QuantizationMode::Nvfp4 => c"nvfp4",
        }
    }

    /// Whether each group has a bias beside its scale. Then both are floating-point numbers of the
    /// checkpoint's type; otherwise a scale is one byte.
    pub fn has_biases(self) -> bool {
        self == QuantizationMode::Affine
    }

    /// The group size and bits of a config that names none.
    pub fn usual(self) -> (i64, i64) {
        match self {
            QuantizationMode::Affine => (64, 4),
            QuantizationMode::Mxfp4 => (32, 4),
            QuantizationMode::Mxfp8 => (32, 8),
            QuantizationMode::Nvfp4 => (16, 4),
        }
    }
}

/// The settings of a quantized matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantization {
    /// How its numbers are stored.
    pub mode: QuantizationMode,
    /// How many elements share a scale: 32, 64 or 128 in affine mode, else the mode's only size.
    pub group_size: i32,
    /// Bits per element: 2, 3, 4, 5, 6 or 8 in affine mode, else the mode's only number.
    pub bits: i32,
}

impl Quantization {
    /// Settings in this mode, with its usual group size and bits where none are given. Fails on what
    /// MLX has no format for, and says which it has.
    pub fn new(
        mode: QuantizationMode,
        group_size: Option<i64>,
        bits: Option<i64>,
    ) -> Result<Self, String> {
        let (usual_group_size, usual_bits) = mode.usual();
        let settings = (group_size.unwrap_or(usual_group_size), bits.unwrap_or(usual_bits));
        let is_format = match mode {
            QuantizationMode::Affine => {
                matches!(settings, (32 | 64 | 128, 2 | 3 | 4 | 5 | 6 | 8))
            }
            _ => settings == mode.usual(),
        };
        let (group_size, bits) = (settings.0 as i32, settings.1 as i32);
        match mode {
            _ if is_format => Ok(Quantization { mode, group_size, bits }),
            QuantizationMode::Affine => {
                Err("group_size must be 32, 64 or 128 and bits 2, 3, 4, 5, 6 or 8".to_owned())
            }
            _ => Err(format!(
                "group_size must be {usual_group_size} and bits {usual_bits} in this mode"
            )),
        }
    }

    /// Settings in affine mode.
    pub fn affine(group_size: i32, bits: i32) -> Self {
        Quantization { mode: QuantizationMode::Affine, group_size, bits }
    }
}

/// The `quantization` (or `quantization_config`) section of config.json: default settings, and
/// overrides for single layers.
#[derive(Debug, Clone, Default)]
pub struct QuantizationConfig {
    default: Option<Quantization>,
    layers: BTreeMap<String, Option<Quantization>>,
    /// Paths of dense modules with all that is in them, where `*` stands for any part.
    dense: Vec<String>,
    /// How another program than MLX has quantized the weights.
    pub(crate) published: Option<PublishedMethod>,
}

impl QuantizationConfig {
    /// Reads the section; without one, or with null in its place, the model is not quantized.
    pub fn parse(config: &serde_json::Value) -> Result<Self, LmError> {
        let section = |name| config.get(name).filter(|section| !section.is_null());
        let Some(section) = section("quantization").or_else(|| section("quantization_config"))
        else {
            return Ok(QuantizationConfig::default());
        };
        let Some(entries) = section.as_object() else {
            return Err(invalid(section, "it must be an object with group_size and bits"));
        };
        match entries.get("quant_method").map(serde_json::Value::as_str) {
            None => {}
            Some(Some("mxfp4")) => return Ok(QuantizationConfig::of_published_mxfp4(section)),
            Some(method) => {
                let (published, default) = published(method.unwrap_or_default(), section)?;
                let published = Some(published);
                return Ok(QuantizationConfig { default, published, ..Default::default() });
            }
        }
        let mut layers = BTreeMap::new();
        for (name, entry) in entries {
            match entry {
                serde_json::Value::Object(_) => layers.insert(name.clone(), Some(settings(entry)?)),
                serde_json::Value::Bool(false) => layers.insert(name.clone(), None),
                _ => None,
            };
        }
        Ok(QuantizationConfig { default: Some(settings(section)?), layers, ..Default::default() })
    }

    /// The section of a model that was published in `mxfp4`, with the modules that are not.
    fn of_published_mxfp4(section: &serde_json::Value) -> Self {
        let dense = section.get("modules_to_not_convert").and_then(|list| list.as_array());
        let dense = dense.into_iter().flatten().filter_map(|path| path.as_str());
        let (mode, (group_size, bits)) = (QuantizationMode::Mxfp4, QuantizationMode::Mxfp4.usual());
        QuantizationConfig {
            default: Some(Quantization { mode, group_size: group_size as i32, bits: bits as i32 }),
            layers: BTreeMap::new(),
            dense: dense.map(str::to_owned).collect(),
            published: None,
        }
    }

    /// The settings of layers without their own; `None` if the model is not quantized.
    pub fn common(&self) -> Option<Quantization> {
        self.default
    }

    /// The settings of the layer at `path`, for example "model.layers.0.self_attn.q_proj"; `None`
    /// if it is dense.
    pub fn layer(&self, path: &str) -> Option<Quantization> {
        let is_in = |module: &String| {
            let mut parts = path.split('.');
            module.split('.').all(|part| parts.next().is_some_and(|own| part == "*" || part == own))
        };
        if self.dense.iter().any(is_in) {
            return None;
        }
        self.layers.get(path).copied().unwrap_or(self.default)
    }

    /// The settings of the layer at `path`, which the weight files hold packed. Fails if there are
    /// none.
    pub fn of_packed(&self, path: &str) -> Result<Quantization, LmError> {
        self.layer(path).ok_or_else(|| LmError::Config {
            name: "quantization",
            value: "none".to_owned(),
            allowed: format!(
                "the weight files hold '{path}.scales', so it must give this layer's group_size and bits"
            ),
        })
    }
}

/// How other programs quantize, of what can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PublishedMethod {
    /// AutoAWQ's `gemm`, of four bits.
    Awq,
    /// GPTQ's, of four bits. What is stored of zeros is less so much.
    Gptq { zero_offset: u8 },
    /// Symmetric integers of compressed-tensors, of four or eight bits.
    Packed { bits: usize },
    /// E4M3 with a scale for each block, each row or each matrix.
    Fp8 { block: Option<[usize; 2]> },
}

/// The method of a published model, and the settings of its matrices in MLX's terms. Fails on what
/// is not supported.
fn published(
    method: &str,
    section: &serde_json::Value,
) -> Result<(PublishedMethod, Option<Quantization>), LmError> {
    let refused = |key: &str, allowed: &str| {
        let found = serde_json::json!({ "quant_method": method, key: section.get(key) });
        invalid(&found, allowed)
    };
    let text = |key: &str| section.get(key).and_then(|value| value.as_str());
    match method {
        "awq" | "gptq" if section.get("bits").is_some_and(|bits| bits.as_i64() != Some(4)) => {
            Err(refused("bits", "of AWQ and GPTQ only 4 bits can be loaded"))
        }
        "awq" => match text("version").map(str::to_lowercase).as_deref() {
            None | Some("gemm") => Ok((PublishedMethod::Awq, Some(groups_of(section, 4)?))),
            Some(_) => Err(refused("version", "of AWQ only the version gemm can be loaded")),
        },
        "gptq" => {
            if section.get("desc_act").is_some_and(|flag| flag.as_bool() != Some(false)) {
                let allowed = "of GPTQ only models whose groups are neighbours can be loaded: \
                               desc_act must be false";
                return Err(refused("desc_act", allowed));
            }
            let zero_offset = match text("checkpoint_format") {
                None | Some("gptq") => 1,
                Some("gptq_v2") => 0,
                Some(_) => {
                    let allowed = "only the formats gptq and gptq_v2 can be loaded";
                    return Err(refused("checkpoint_format", allowed));
                }
            };
            Ok((PublishedMethod::Gptq { zero_offset }, Some(groups_of(section, 4)?)))
        }
        "fp8" => {
            let block = block(section.get("weight_block_size"));
            let block = block.map_err(|allowed| refused("weight_block_size", allowed))?;
            Ok((PublishedMethod::Fp8 { block }, None))
        }
        "compressed-tensors" => compressed_tensors(section),
        _ => Err(refused(
            "format",
            "only MLX's own quantization, published mxfp4, AWQ, GPTQ, compressed-tensors and fp8 \
             can be loaded; convert the model with mlx_lm.convert",
        )),
    }
}

/// Affine groups of so many bits, as long as the section says.
fn groups_of(section: &serde_json::Value, bits: i32) -> Result<Quantization, LmError> {
    let size = section.get("group_size").map_or(Some(128), serde_json::Value::as_i64);
    match size {
        Some(size @ (32 | 64 | 128)) => Ok(Quantization::affine(size as i32, bits)),
        _ => Err(invalid(section, "group_size must be 32, 64 or 128")),
    }
}

/// The rows and columns that share a scale, if they are named.
fn block(value: Option<&serde_json::Value>) -> Result<Option<[usize; 2]>, &'static str> {
    const ALLOWED: &str = "it must be two numbers from 1 to 65536";
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let side = |index: usize| value.get(index).and_then(|side| side.as_u64());
    match (side(0), side(1), value.as_array().map(Vec::len)) {
        (Some(rows @ 1..=65_536), Some(columns @ 1..=65_536), Some(2)) => {
            Ok(Some([rows as usize, columns as usize]))
        }
        _ => Err(ALLOWED),
    }
}

/// The method of compressed-tensors, whose groups of layers must all be stored alike.
fn compressed_tensors(
    section: &serde_json::Value,
) -> Result<(PublishedMethod, Option<Quantization>), LmError> {
    let groups = section.get("config_groups").and_then(|groups| groups.as_object());
    let mut weights = groups.into_iter().flatten().map(|(_, group)| group.get("weights"));
    let Some(Some(first)) = weights.next() else {
        return Err(invalid(section, "config_groups must say how weights are stored"));
    };
    if weights.any(|other| other != Some(first)) {
        return Err(invalid(
            section,
            "only models whose layers are all stored alike can be loaded",
        ));
    }
    let format = section.get("format").and_then(|format| format.as_str()).unwrap_or_default();
    let kind = first.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let bits = first.get("num_bits").and_then(|bits| bits.as_i64()).unwrap_or(0);
    let is = |key: &str, expected: bool| first.get(key).and_then(|v| v.as_bool()) == Some(expected);
    match (format, kind, bits) {
        ("pack-quantized", "int", 4 | 8) if is("symmetric", true) => {
            // A scale for each row counts for groups of any length.
            let has_size = first.get("group_size").is_some_and(|size| size.as_i64() > Some(0));
            let groups = match has_size {
                true => groups_of(first, bits as i32)?,
                false => Quantization::affine(64, bits as i32),
            };
            Ok((PublishedMethod::Packed { bits: bits as usize }, Some(groups)))
        }
        ("float-quantized" | "naive-quantized", "float", 8) => {
            let block = block(first.get("block_structure"));
            let block = block.map_err(|allowed| invalid(first, allowed))?;
            Ok((PublishedMethod::Fp8 { block }, None))
        }
        _ => Err(invalid(
            &serde_json::json!({ "format": format, "type": kind, "num_bits": bits }),
            "of compressed-tensors only symmetric pack-quantized integers of 4 or 8 bits and \
             float-quantized numbers of 8 bits can be loaded",
        )),
    }
}

fn settings(entry: &serde_json::Value) -> Result<Quantization, LmError> {
    // mlx-lm's recipes leave null where nothing was asked for.
    let number = |name: &str| match entry.get(name).filter(|value| !value.is_null()) {
        None => Some(None),
        Some(value) => value.as_i64().map(Some),
    };
    let mode = match entry.get("mode").and_then(|mode| mode.as_str()) {
        None => QuantizationMode::Affine,
        Some(name) => QuantizationMode::of_name(name).ok_or_else(|| {
            let allowed = "only the modes 'affine', 'mxfp4', 'mxfp8' and 'nvfp4' can be loaded";
            invalid(&serde_json::json!(name), allowed)
        })?,
    };
    let (group_size, bits) = match (number("group_size"), number("bits")) {
        (Some(group_size), Some(bits)) => (group_size, bits),
        // No number is no format.
        _ => (Some(0), Some(0)),
    };
    Quantization::new(mode, group_size, bits).map_err(|allowed| invalid(entry, &allowed))
}

fn invalid(value: &serde_json::Value, allowed: &str) -> LmError {
    LmError::Config {
        name: "quantization",
        value: value.to_string().chars().take(80).collect(),
        allowed: allowed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_mxfp4_names_the_modules_that_are_dense() {
        let section = json!({
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
        });
        let config = json!({ "quantization_config": section });
        let parsed = QuantizationConfig::parse(&config).expect("mxfp4");
        let packed = Quantization { mode: QuantizationMode::Mxfp4, group_size: 32, bits: 4 };
        for (path, expected) in [
            ("model.layers.0.mlp.experts.down_proj", Some(packed)),
            ("model.layers.0.self_attn.q_proj", None),
            ("model.layers.11.self_attn.q_proj", None),
            ("lm_head", None),
            ("lm_head_of_another", Some(packed)),
            ("model.layers", Some(packed)),
        ] {
            assert_eq!(parsed.layer(path), expected, "{path}");
        }
        for method in [json!("hqq"), json!(4)] {
            let config = json!({ "quantization_config": { "quant_method": method } });
            QuantizationConfig::parse(&config).expect_err("another program's");
        }
    }

    #[test]
    fn what_other_programs_quantize_is_known_or_refused_by_name() {
        let parse = |section: serde_json::Value| {
            QuantizationConfig::parse(&json!({ "quantization_config": section }))
        };
        let check = |section: serde_json::Value, published, groups| {
            let parsed = parse(section).expect("supported");
            assert_eq!((parsed.published, parsed.common()), (Some(published), groups));
        };
        let affine = |group_size, bits| Some(Quantization::affine(group_size, bits));
        use PublishedMethod::{Awq, Fp8, Gptq, Packed};
        check(json!({ "quant_method": "awq", "group_size": 64 }), Awq, affine(64, 4));
        let gptq =
            json!({ "quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false });
        check(gptq, Gptq { zero_offset: 1 }, affine(128, 4));
        let fp8 = json!({ "quant_method": "fp8", "weight_block_size": [128, 128] });
        check(fp8, Fp8 { block: Some([128, 128]) }, None);
        let compressed = |format: &str, weights: serde_json::Value| {
            json!({
                "quant_method": "compressed-tensors", "format": format,
                "config_groups": { "group_0": { "targets": ["Linear"], "weights": weights } },
            })
        };
        let int4 = json!({ "type": "int", "num_bits": 4, "group_size": 32, "symmetric": true });
        check(compressed("pack-quantized", int4.clone()), Packed { bits: 4 }, affine(32, 4));
        let float = json!({ "type": "float", "num_bits": 8, "strategy": "channel" });
        check(compressed("float-quantized", float), Fp8 { block: None }, None);

        let mut asymmetric = int4.clone();
        asymmetric["symmetric"] = json!(false);
        for (section, named) in [
            (json!({ "quant_method": "awq", "bits": 3 }), "only 4 bits"),
            (json!({ "quant_method": "awq", "version": "gemv" }), "version gemm"),
            (json!({ "quant_method": "gptq", "desc_act": true }), "desc_act must be false"),
            (json!({ "quant_method": "gptq", "group_size": -1 }), "32, 64 or 128"),
            (json!({ "quant_method": "gptq", "checkpoint_format": "marlin" }), "gptq_v2"),
            (json!({ "quant_method": "fp8", "weight_block_size": [0, 1] }), "from 1 to 65536"),
            (json!({ "quant_method": "compressed-tensors" }), "config_groups"),
            (compressed("pack-quantized", asymmetric), "symmetric"),
            (compressed("int-quantized", int4), "only symmetric pack-quantized"),
            (json!({ "quant_method": "bitsandbytes" }), "bitsandbytes"),
        ] {
            let error = parse(section).expect_err(named).to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    #[test]
    fn a_model_whose_quantization_is_null_is_not_quantized() {
        for config in [json!({}), json!({ "quantization": null, "quantization_config": null })] {
            let parsed = QuantizationConfig::parse(&config).expect("no quantization");
            assert_eq!(parsed.layer("model.layers.0.mlp.up_proj"), None, "{config}");
        }
        let settings = json!({ "group_size": 32, "bits": 8 });
        let config = json!({ "quantization": null, "quantization_config": settings });
        let parsed = QuantizationConfig::parse(&config).expect("a quantization");
        let expected = Some(Quantization::affine(32, 8));
        assert_eq!(parsed.layer("model.layers.0.mlp.up_proj"), expected);
    }

    #[test]
    fn what_a_recipe_left_open_is_usual() {
        let layer = json!({ "group_size": null, "bits": 6, "mode": "affine" });
        let config = json!({ "quantization": { "group_size": 64, "bits": 3, "lm_head": layer } });
        let parsed = QuantizationConfig::parse(&config).expect("a recipe");
        assert_eq!(parsed.layer("lm_head"), Some(Quantization::affine(64, 6)));
    }

    #[test]
    fn each_mode_has_sizes_of_its_own_and_layers_without_a_mode_are_affine() {
        let parse = |settings: serde_json::Value| {
            QuantizationConfig::parse(&json!({ "quantization": settings }))
        };
        let common = |settings| parse(settings).expect("settings").common().expect("quantized");
        use QuantizationMode::{Mxfp4, Mxfp8, Nvfp4};
        for (name, mode, group_size, bits) in
            [("mxfp4", Mxfp4, 32, 4), ("mxfp8", Mxfp8, 32, 8), ("nvfp4", Nvfp4, 16, 4)]
        {
            let expected = Quantization { mode, group_size, bits };
            let all = json!({ "mode": name, "group_size": group_size, "bits": bits });
            assert_eq!(common(all), expected);
            assert_eq!(common(json!({ "mode": name })), expected);
            for spoilt in [
                json!({ "mode": name, "group_size": 64, "bits": bits }),
                json!({ "mode": name, "group_size": group_size, "bits": 6 }),
            ] {
                let error = parse(spoilt).expect_err("no such format").to_string();
                let sizes = format!("group_size must be {group_size} and bits {bits}");
                assert!(error.contains(&sizes), "{error}");
            }
        }
        let error = parse(json!({ "mode": "mxfp6" })).expect_err("unknown").to_string();
        assert!(error.contains("'mxfp4', 'mxfp8' and 'nvfp4'"), "{error}");
        let mixed = parse(json!({ "mode": "mxfp4", "lm_head": { "bits": 8 } })).expect("mixed");
        assert_eq!(mixed.layer("lm_head"), Some(Quantization::affine(64, 8)));
    }
}
