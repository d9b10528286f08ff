//! Converts a model as `mlx_lm.convert` does: into a folder in MLX's layout, quantized or not. Reference:
//! mlx-lm's convert.py and utils.py.
//!
//! ```text
//! config.json ─▶ TensorList ─▶ plan: a Part for each matrix   ◀── choices: mlx-lm's for its family
//! weight files ─▶ rows ──┐      │
//!                        ▼      ▼
//!               weight_files: a few rows at a time ─▶ folder ─▶ OUT, when all of it is on the disk
//! ```
//! A model of any size can be converted: at most one matrix is in memory at a time, mostly a few rows of it.

mod choices;
mod error;
mod folder;
mod new_config;
mod plan;
mod rows;
mod weight_files;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_formats::{MAX_CONFIG_BYTES, python_json, read_file};
use mlx_rs::Dtype;
use serde_json::Value;

use crate::config::{PublishedMethod, Quantization, QuantizationConfig};
use crate::load_progress::PART_BYTES;
use crate::model_memory::is_ignored;
use crate::models::{self, Outline, listed_type};
use crate::published::ModelTensors;
use crate::published_numbers::{MatrixFactor, PublishedNumbers};
use crate::{LmError, text_part};

use choices::Choices;
use new_config::Settings;
use plan::{Part, Planner};
use rows::Tensors;
use weight_files::{Form, Planned, Progress};

pub use choices::MixedRecipe;
pub use error::ConvertError;
use folder::{NewFolder, write_json};

/// What a model is converted to.
#[derive(Debug, Clone, Default)]
pub struct ConvertOptions {
    /// What becomes of its matrices.
    pub to: ConvertTo,
    /// What floating-point numbers become that are not quantized. By default what config.json calls
    /// `torch_dtype`, and without that they stay what they are.
    pub dtype: Option<FloatType>,
    /// The model's name on the hub, for the new model's card.
    pub hub_name: Option<String>,
}

/// What becomes of a model's matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConvertTo {
    /// They stay dense or packed.
    #[default]
    Same,
    /// Those that are dense are packed.
    Quantized {
        /// How.
        settings: Quantization,
        /// Which have other bits, in place of what their family asks for.
        recipe: Option<MixedRecipe>,
    },
    /// Those that are packed become dense.
    Dequantized,
}

/// A type of floating-point numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each variant is its own name
pub enum FloatType {
    Float16,
    Bfloat16,
    Float32,
}

impl FloatType {
    /// All of them.
    pub const ALL: [FloatType; 3] = [FloatType::Float16, FloatType::Bfloat16, FloatType::Float32];

    /// The name that config.json and mlx-lm have for it.
    pub fn name(self) -> &'static str {
        match self {
            FloatType::Float16 => "float16",
            FloatType::Bfloat16 => "bfloat16",
            FloatType::Float32 => "float32",
        }
    }

    /// What config.json asks for, if it does.
    fn of_config(config: &Value) -> Option<Self> {
        let asked_for = config.get("torch_dtype").filter(|name| !name.is_null());
        let asked_for = asked_for.or_else(|| config.get("text_config")?.get("dtype"))?.as_str()?;
        FloatType::ALL.into_iter().find(|known| known.name() == asked_for)
    }

    fn dtype(self) -> Dtype {
        match self {
            FloatType::Float16 => Dtype::Float16,
            FloatType::Bfloat16 => Dtype::Bfloat16,
            FloatType::Float32 => Dtype::Float32,
        }
    }
}

/// How far a conversion has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConvertProgress {
    /// Bytes of tensors that have been written.
    pub bytes_written: u64,
    /// Bytes of all tensors of the new model.
    pub total_bytes: u64,
}

/// A model that was converted.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedModel {
    /// Its folder.
    pub folder: PathBuf,
    /// Bytes of its tensors.
    pub num_bytes: u64,
    /// How many bits each of its numbers takes on average.
    pub bits_per_weight: f64,
}

/// Converts the model in `source` into the new folder `target`.
///
/// `on_part` is called before each matrix and after each piece of one; if it breaks, the conversion ends
/// with [`LmError::Cancelled`]. After an error nothing is left behind. Fails if `target` exists, if
/// the model cannot be loaded, and on what [`ConvertError`] names.
pub fn convert(
    source: &Path,
    target: &Path,
    options: &ConvertOptions,
    on_part: &mut dyn FnMut(ConvertProgress) -> ControlFlow<()>,
) -> Result<ConvertedModel, LmError> {
    convert_in_parts(source, target, options, PART_BYTES, on_part)
}

/// As [`convert`], with so many bytes in memory at once where that is possible.
fn convert_in_parts(
    source: &Path,
    target: &Path,
    options: &ConvertOptions,
    part_bytes: usize,
    on_part: &mut dyn FnMut(ConvertProgress) -> ControlFlow<()>,
) -> Result<ConvertedModel, LmError> {
    folder::check_is_new(target)?;
    let old = Old::open(source)?;
    let planned = old.planned(options)?;
    let num_bytes: u64 = planned.iter().map(Planned::num_bytes).sum();
    let num_numbers: usize = planned.iter().map(|planned| planned.part.num_numbers()).sum();
    let settings = old.new_settings(options, &planned);
    let generation = folder::generation_config(source)?;
    let config = new_config::new_config(old.config, generation.as_ref(), settings);

    let new = NewFolder::make(target, num_bytes)?;
    let state = ConvertProgress { bytes_written: 0, total_bytes: num_bytes };
    let mut progress = Progress { state, part_bytes, on_part };
    // What can fail early fails before hours of work.
    write_json(&new.path().join("config.json"), &config)?;
    folder::copy_files(source, new.path())?;
    folder::write_card(source, new.path(), options.hub_name.as_deref())?;
    weight_files::write(new.path(), &old.tensors, &planned, &mut progress)?;
    progress.report()?;
    new.finish()?;
    let bits_per_weight = num_bytes as f64 * 8.0 / num_numbers.max(1) as f64;
    Ok(ConvertedModel { folder: target.to_owned(), num_bytes, bits_per_weight })
}

/// The model that is converted.
struct Old {
    folder: PathBuf,
    /// config.json as it was read.
    config: Value,
    model_type: String,
    quantization: QuantizationConfig,
    outline: Outline,
    tensors: Tensors,
}

impl Old {
    /// Reads the config and the headers of a model, and checks them as loading does.
    fn open(folder: &Path) -> Result<Self, LmError> {
        let path = folder.join("config.json");
        let bytes = read_file(&path, MAX_CONFIG_BYTES)?;
        let config = python_json(&bytes).map_err(|source| LmError::Json { path, source })?;
        let text = text_part::config(config.clone());
        let model_type = text.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let outline = models::outline(folder, &text)?;
        let tensors = ModelTensors::open(folder, &text)?;
        let outline = outline.with_tensors(&tensors);
        let quantization = QuantizationConfig::parse(&text)?;
        outline.tensors.check(folder, model_type, tensors.entries(), &quantization, |name| {
            is_ignored(name, &outline)
        })?;
        Ok(Old {
            folder: folder.to_owned(),
            model_type: model_type.to_owned(),
            config,
            quantization,
            outline,
            tensors: Tensors::new(tensors),
        })
    }

    fn choices(&self) -> Choices<'_> {
        Choices(listed_type(&self.model_type))
    }

    /// Every part of the new model with what becomes of it. Fails if nothing would become of any that
    /// was asked for.
    fn planned(&self, options: &ConvertOptions) -> Result<Vec<Planned>, LmError> {
        let planner = Planner {
            tensors: &self.tensors,
            quantization: &self.quantization,
            choices: self.choices(),
        };
        let needed = self.outline.tensors.needed();
        let parts: Result<Vec<Part>, LmError> =
            needed.iter().filter_map(|needed| planner.parts(needed).transpose()).collect();
        let mut parts = parts?;
        if self.outline.is_tied && self.choices().keeps_unused_output() {
            let shape = parts.first().and_then(|part| Some((*part.lead.first()?, part.columns)));
            parts.extend(shape.map(|shape| planner.output(shape)).transpose()?.flatten());
        }
        let is_packed = parts.iter().any(|part| part.source.packed_in().is_some());
        self.check_recipe(options, &parts)?;
        let (factors, adds_one) = self.missing_numbers();
        let dtype = options.dtype.or_else(|| FloatType::of_config(&self.config));
        let planned: Result<Vec<Planned>, LmError> = parts
            .into_iter()
            .map(|part| {
                let keeps_type = self.choices().keeps_type(&part.text_name);
                Ok(Planned {
                    form: self.form(&part, options)?,
                    dtype: dtype.filter(|_| !keeps_type).map(FloatType::dtype),
                    factor: MatrixFactor::of(factors, &part.text_name).cloned(),
                    is_less_one: adds_one && is_norm_less_one(&part),
                    part,
                })
            })
            .collect();
        let planned = planned?;
        self.check_purpose(options, &planned, is_packed)?;
        Ok(planned)
    }

    /// What matrices are multiplied by in MLX's form, and whether norms are stored less one.
    fn missing_numbers(&self) -> (&[MatrixFactor], bool) {
        let shape_of = |name: &str| self.tensors.shape(name);
        match &self.outline.published_numbers {
            PublishedNumbers::Same => (&[], false),
            PublishedNumbers::WithoutFactors(published) => (published.missing(shape_of), false),
            PublishedNumbers::NormsLessOne(signs) => {
                (&[], signs.iter().any(|sign| sign.is_in(shape_of)))
            }
        }
    }

    fn form(&self, part: &Part, options: &ConvertOptions) -> Result<Form, LmError> {
        let is_packed = part.source.packed_in().is_some();
        let (settings, recipe) = match options.to {
            ConvertTo::Dequantized if is_packed => {
                return Ok(Form::Unpacked(options.dtype.map(FloatType::dtype)));
            }
            ConvertTo::Quantized { settings, recipe } if !is_packed => (settings, recipe),
            _ => return Ok(Form::Same),
        };
        let is_whole = |group_size: i32| part.columns.is_multiple_of(group_size as usize);
        let can_be_packed = part.is_matrix && self.choices().can_be_packed(&part.path);
        if !can_be_packed || !is_whole(settings.group_size) {
            return Ok(Form::Same);
        }
        let chosen = self.own_settings(&part.path, settings, recipe).unwrap_or(settings);
        if !is_whole(chosen.group_size) {
            let (path, inputs, group_size) = (part.path.clone(), part.columns, chosen.group_size);
            return Err(ConvertError::OwnGroups { path, inputs, group_size }.into());
        }
        Ok(Form::Packed(chosen))
    }

    /// The settings of a matrix by a recipe, or without one by what its family asks for.
    fn own_settings(
        &self,
        path: &str,
        settings: Quantization,
        recipe: Option<MixedRecipe>,
    ) -> Option<Quantization> {
        match recipe {
            Some(recipe) => {
                let num_layers = self.outline.tensors.num_layers();
                Some(recipe.settings(path, num_layers, settings.group_size))
            }
            None => self.choices().own_settings(path),
        }
    }

    fn check_recipe(&self, options: &ConvertOptions, parts: &[Part]) -> Result<(), LmError> {
        match options.to {
            ConvertTo::Quantized { recipe: Some(recipe), .. }
                if !parts.iter().any(|part| part.path.contains("down_proj")) =>
            {
                let (folder, recipe) = (self.folder.clone(), recipe.name());
                Err(ConvertError::NoRecipe { folder, recipe }.into())
            }
            _ => Ok(()),
        }
    }

    /// Fails if nothing would be quantized or dequantized that was to be.
    fn check_purpose(
        &self,
        options: &ConvertOptions,
        planned: &[Planned],
        is_packed: bool,
    ) -> Result<(), LmError> {
        let folder = self.folder.clone();
        // Numbers of eight bits were made dense when they were read.
        let is_fp8 = matches!(self.quantization.published, Some(PublishedMethod::Fp8 { .. }));
        let is_any_packed =
            || planned.iter().any(|planned| matches!(planned.form, Form::Packed(_)));
        match options.to {
            ConvertTo::Dequantized if !is_packed && !is_fp8 => {
                Err(ConvertError::NotQuantized { folder }.into())
            }
            ConvertTo::Quantized { .. } if is_packed && !is_any_packed() => {
                Err(ConvertError::AlreadyQuantized { folder }.into())
            }
            ConvertTo::Quantized { settings, .. } if !is_any_packed() => {
                let group_size = settings.group_size;
                Err(ConvertError::NothingFits { folder, group_size }.into())
            }
            _ => Ok(()),
        }
    }

    /// The settings for the new config.json; none for a model that is not quantized.
    fn new_settings(&self, options: &ConvertOptions, planned: &[Planned]) -> Option<Settings> {
        let of_old = match options.to {
            ConvertTo::Dequantized => return None,
            _ => self.old_settings(),
        };
        let ConvertTo::Quantized { settings, recipe } = options.to else {
            return of_old.map(|common| Settings { common: Some(common), own: Vec::new() });
        };
        let was_quantized = of_old.is_some();
        let own = planned.iter().filter_map(|planned| {
            let path = &planned.part.path;
            let Form::Packed(chosen) = planned.form else { return None };
            let is_own = self.own_settings(path, settings, recipe).is_some();
            let with_mode = !is_own || recipe.is_some();
            (is_own || was_quantized).then(|| (path.clone(), new_config::entry(chosen, with_mode)))
        });
        let common = of_old.unwrap_or_else(|| new_config::entry(settings, true));
        Some(Settings { own: own.collect(), common: Some(common) })
    }

    /// The settings of matrices that are packed already: MLX's own section, or what another program's
    /// says in MLX's terms.
    fn old_settings(&self) -> Option<Value> {
        let section = |config: &Value| {
            let sections = ["quantization", "quantization_config"].into_iter();
            sections.filter_map(|name| config.get(name)).find(|section| !section.is_null()).cloned()
        };
        let section = section(&self.config).or_else(|| section(self.config.get("text_config")?))?;
        match section.get("quant_method") {
            None => Some(section),
            Some(_) => self.quantization.common().map(|common| {
                let is_mode_known = self.quantization.published.is_none();
                new_config::entry(common, is_mode_known)
            }),
        }
    }
}

/// Whether published files hold this less one, where they do that.
fn is_norm_less_one(part: &Part) -> bool {
    const NAMES: [&str; 5] = [
        ".input_layernorm.weight",
        ".post_attention_layernorm.weight",
        "model.norm.weight",
        ".q_norm.weight",
        ".k_norm.weight",
    ];
    !part.is_matrix && NAMES.iter().any(|name| part.text_name.ends_with(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_tiny_models::tiny_model;

    use super::*;

    #[test]
    fn a_model_is_the_same_whatever_is_converted_at_once() {
        let settings = Quantization::affine(32, 4);
        let quantized = ConvertTo::Quantized { settings, recipe: None };
        for (model, to) in [
            ("llama/dense-tied", quantized),
            ("llama/mxfp4-mixed", ConvertTo::Dequantized),
            ("gpt_oss/published", quantized),
            ("deepseek_v3/published", quantized),
            ("falcon_h1/published", ConvertTo::Same),
            ("llama4/published", ConvertTo::Same),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let options = ConvertOptions { to, ..ConvertOptions::default() };
            let files = [1 << 30, 700, 1].map(|part_bytes| {
                let target = folder.path().join(part_bytes.to_string());
                let mut calls = Vec::new();
                convert_in_parts(&tiny_model(model), &target, &options, part_bytes, &mut |state| {
                    calls.push(state.bytes_written);
                    ControlFlow::Continue(())
                })
                .unwrap_or_else(|error| panic!("{model}: {error}"));
                assert!(calls.is_sorted(), "{model}: {calls:?}");
                (calls.len(), std::fs::read(target.join("model.safetensors")).unwrap())
            });
            assert!(files.iter().all(|(_, file)| *file == files[0].1), "{model}");
            assert!(files[0].0 < files[1].0 && files[1].0 <= files[2].0, "{model}");
        }
    }
}
