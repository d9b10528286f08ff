//! Loading a model folder: weights, tokenizer, chat template, end-of-sequence tokens, and the
//! hashes that identify them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use cairn_chat::AnswerFormat;
use cairn_formats::safetensors::SafetensorsFile;
use cairn_formats::{FileError, read_file};

use crate::config::ConfigFile;
use crate::device::ComputeDevice;
use crate::embedding::EmbeddingSettings;
use crate::error::read_json;
use crate::grammar::GrammarCompiler;
use crate::load_progress::{LoadProgress, OnPart};
use crate::models::Model;
use crate::tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer, tokenizer_path};
use crate::weights::LoadOptions;
use crate::{LmError, chat_templates};

/// A loaded model folder.
#[derive(Debug)]
pub struct LoadedModel {
    /// The network.
    pub model: Model,
    /// Its tokenizer and chat template.
    pub tokenizer: Arc<Tokenizer>,
    /// End-of-sequence tokens: those of config.json, generation_config.json and the tokenizer.
    pub eos_token_ids: BTreeSet<u32>,
    /// How its answers mark reasoning and tool calls.
    pub answer_format: AnswerFormat,
    /// config.json's `model_type`.
    pub model_type: String,
    /// Bytes of the weight files.
    pub weight_bytes: u64,
    /// Identifies all that KV caches depend on: configuration, weights, and how they are computed.
    /// Valid on this computer only.
    pub fingerprint: String,
    /// Hashes of the parts, to compare with files from other computers.
    pub identity: ModelIdentity,
    /// How its texts become vectors, or why they cannot.
    pub embedding: Result<EmbeddingSettings, String>,
    pub(crate) grammar_compiler: GrammarCompiler,
}

/// Identifies a model independently of its folder: a hash (hex) of each part, so that an error can
/// name the part that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Hash of config.json.
    pub config: String,
    /// Hash of the weights: every tensor's name, type and shape, and samples of its numbers.
    /// Different hashes prove different weights; equal hashes do not prove equal weights.
    pub weights: String,
    /// Hash of tokenizer.json.
    pub tokenizer: String,
    /// Hash of the files with the chat templates; of no bytes if there is none.
    pub template: String,
    /// The type that is computed in, such as "float32"; "as stored" for the weights' own type.
    pub precision: String,
}

impl LoadedModel {
    /// Loads the model in `folder`. Fails if a file is missing, invalid, or does not fit the
    /// others.
    pub fn load(folder: &Path, options: LoadOptions) -> Result<Self, LmError> {
        LoadedModel::load_with_progress(folder, options, |_| ControlFlow::Continue(()))
    }

    /// As [`LoadedModel::load`], but calls `on_part` before each tensor, and before each part of a
    /// large one. Where it breaks, the load ends with [`LmError::Cancelled`], and what was loaded by
    /// then is dropped.
    pub fn load_with_progress(
        folder: &Path,
        options: LoadOptions,
        on_part: impl Fn(LoadProgress) -> ControlFlow<()> + 'static,
    ) -> Result<Self, LmError> {
        let on_part = OnPart::new(on_part);
        // Small files first, so that a broken tokenizer is reported before gigabytes are read.
        let config = ConfigFile::read(folder)?;
        let tokenizer = Arc::new(Tokenizer::load(folder)?);
        let eos_token_ids = eos_token_ids(folder, &config.value, &tokenizer)?;
        let (model, weights) = Model::load_with(folder, &config.value, options, on_part)?;
        // A setting without effect leaves the model what it is.
        let bf16_state = options.bf16_state && model.cache_spec().has_bf16_state();
        let options = options.bf16_state(bf16_state);
        let model_type = config.value.get("model_type").and_then(|name| name.as_str());
        let model_type = model_type.unwrap_or_default().to_owned();
        let revision = model.numerics_revision();
        let grammar_compiler = GrammarCompiler::new(&tokenizer, model.vocab_size(), &eos_token_ids);
        Ok(LoadedModel {
            fingerprint: fingerprint(
                &config.identifying_bytes(),
                options,
                revision,
                &weights.files,
            )?,
            identity: identity(folder, &config.bytes, options, &weights.files)?,
            answer_format: answer_format(&tokenizer),
            embedding: EmbeddingSettings::read(folder, &config.value),
            model,
            tokenizer,
            eos_token_ids,
            grammar_compiler,
            model_type,
            weight_bytes: weights.num_bytes,
        })
    }

    /// Whether the chat template shows tools to the model. Otherwise texts tell of them.
    pub fn takes_tools(&self) -> bool {
        self.tokenizer.chat_template().is_some_and(|template| template.takes_tools())
    }
}

fn answer_format(tokenizer: &Tokenizer) -> AnswerFormat {
    let template = tokenizer.chat_template().map(|template| template.all_sources());
    AnswerFormat::of(&template.unwrap_or_default(), |token| tokenizer.token_to_id(token).is_some())
}

/// The end-of-sequence tokens that the config, generation_config.json and the tokenizer name.
pub(crate) fn eos_token_ids(
    folder: &Path,
    config: &serde_json::Value,
    tokenizer: &Tokenizer,
) -> Result<BTreeSet<u32>, LmError> {
    let path = folder.join("generation_config.json");
    let generation: serde_json::Value =
        if path.exists() { read_json(&path, 1 << 20)? } else { serde_json::Value::Null };
    let mut ids = BTreeSet::new();
    for source in [config, &generation] {
        match source.get("eos_token_id") {
            Some(serde_json::Value::Array(list)) => ids.extend(list.iter().filter_map(as_id)),
            Some(value) => ids.extend(as_id(value)),
            None => {}
        }
    }
    ids.extend(tokenizer.eos_token().and_then(|token| tokenizer.token_to_id(token)));
    Ok(ids)
}

fn as_id(value: &serde_json::Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// The fingerprint covers samples of this length, spread over each weight file: hashing gigabytes
/// at every start would take seconds.
const SAMPLE_BYTES: u64 = 64 << 10;
const NUM_SAMPLES: u64 = 64;

/// Hashes config.json, the name, length, modification time and samples of every weight file, and
/// the settings and the revision of the code that change the computed numbers. The files are those
/// that the weights were read from, whatever stands at their paths now.
fn fingerprint(
    config: &[u8],
    options: LoadOptions,
    numerics_revision: u32,
    files: &[SafetensorsFile],
) -> Result<String, LmError> {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(b"cairn model fingerprint 2");
    part(precision(options).as_bytes());
    part(&numerics_revision.to_le_bytes());
    part(config);
    let mut sample = Vec::new();
    for file in files {
        let read = |source| FileError::Io { path: file.path().to_owned(), source };
        let metadata = file.file().metadata().map_err(read)?;
        let length = metadata.len();
        part(file.path().file_name().unwrap_or_default().as_encoded_bytes());
        part(&length.to_le_bytes());
        // Samples can miss an edit in place; the modification time does not.
        part(&unix_nanoseconds(metadata.modified().map_err(read)?).to_le_bytes());
        for index in 0..NUM_SAMPLES {
            let position = length.saturating_sub(SAMPLE_BYTES) / (NUM_SAMPLES - 1).max(1) * index;
            sample.resize(SAMPLE_BYTES.min(length - position) as usize, 0);
            file.read_at(&mut sample, position)?;
            part(&sample);
        }
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Nanoseconds since the Unix epoch; negative before it.
fn unix_nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// The type that is computed in, in words.
fn precision(options: LoadOptions) -> String {
    let numbers = match (ComputeDevice::current().compute_dtype(), options.keep_quantized) {
        (Some(dtype), false) => format!("{dtype:?}").to_lowercase(),
        (Some(dtype), true) => format!("{dtype:?} on quantized weights").to_lowercase(),
        (None, _) => "as stored".to_owned(),
    };
    match options.bf16_state {
        true => format!("{numbers}, states in bfloat16"),
        false => numbers,
    }
}

/// How many bytes are hashed at the start and in the middle of a tensor.
const TENSOR_SAMPLE_BYTES: u64 = 2 << 10;
/// At most this many tensors are sampled; all are hashed by name, type and shape.
const MAX_SAMPLED_TENSORS: usize = 4096;

fn identity(
    folder: &Path,
    config: &[u8],
    options: LoadOptions,
    files: &[SafetensorsFile],
) -> Result<ModelIdentity, LmError> {
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..32].to_owned();
    Ok(ModelIdentity {
        config: hash(config),
        weights: weights_hash(files)?,
        tokenizer: hash(&read_file(&tokenizer_path(folder), MAX_TOKENIZER_BYTES)?),
        template: hash(&chat_templates::identifying_bytes(folder)?),
        precision: precision(options),
    })
}

/// Hashes names, types, shapes and samples of all tensors; the result does not depend on how they
/// are spread over files.
fn weights_hash(files: &[SafetensorsFile]) -> Result<String, LmError> {
    let mut tensors: Vec<_> = files
        .iter()
        .flat_map(|file| file.tensors().iter().map(move |tensor| (file, tensor)))
        .collect();
    tensors.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let stride = tensors.len().div_ceil(MAX_SAMPLED_TENSORS).max(1);
    let mut hasher = blake3::Hasher::new();
    let mut sample = Vec::new();
    for (index, (file, tensor)) in tensors.into_iter().enumerate() {
        hasher.update(
            format!("{:?} {} {:?}\n", tensor.name, tensor.dtype.name(), tensor.shape).as_bytes(),
        );
        if index % stride == 0 {
            let length = tensor.bytes.end - tensor.bytes.start;
            for start in [0, length / 2] {
                sample.resize(TENSOR_SAMPLE_BYTES.min(length - start) as usize, 0);
                file.read_at(&mut sample, tensor.bytes.start + start)?;
                hasher.update(&sample);
            }
        }
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use cairn_formats::safetensors::check_weight_files;

    use super::*;

    const OPTIONS: LoadOptions = LoadOptions::new().keep_quantized(true);

    /// A folder with the weight file of a checkpoint.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = "model.safetensors";
        let golden = cairn_tiny_models::tiny_model("llama/dense-tied").join(file);
        std::fs::copy(golden, folder.path().join(file)).unwrap();
        folder
    }

    #[test]
    fn a_fingerprint_is_that_of_the_files_that_were_read() {
        let (folder, other) = (folder(), folder());
        let path = folder.path().join("model.safetensors");
        let files = check_weight_files(folder.path()).unwrap();
        let before = fingerprint(b"{}", OPTIONS, 1, &files).unwrap();
        std::fs::rename(other.path().join("model.safetensors"), &path).unwrap();
        std::fs::File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH))
            .unwrap();
        assert_eq!(fingerprint(b"{}", OPTIONS, 1, &files).unwrap(), before);
        let replaced = check_weight_files(folder.path()).unwrap();
        assert_ne!(fingerprint(b"{}", OPTIONS, 1, &replaced).unwrap(), before);
    }

    #[test]
    fn all_that_changes_numbers_changes_the_fingerprint() {
        let of = |config: &[u8], keep_quantized, revision| {
            fingerprint(config, LoadOptions::new().keep_quantized(keep_quantized), revision, &[])
                .unwrap()
        };
        let first = of(b"{}", true, 1);
        assert_eq!(of(b"{}", true, 1), first);
        assert_ne!(of(b"{} ", true, 1), first);
        assert_ne!(of(b"{}", true, 2), first);
        if ComputeDevice::current() == ComputeDevice::Cpu {
            assert_ne!(of(b"{}", false, 1), first);
        }
    }

    #[test]
    fn times_are_written_as_numbers() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(unix_nanoseconds(epoch), 0);
        assert_eq!(unix_nanoseconds(epoch + Duration::new(2, 5)), 2_000_000_005);
        assert_eq!(unix_nanoseconds(epoch - Duration::new(1, 1)), -1_000_000_001);
    }

    #[test]
    fn a_load_ends_before_the_part_at_which_it_is_cancelled() {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        let load = |limit: usize| {
            let steps = Rc::new(RefCell::new(Vec::new()));
            let seen = Rc::clone(&steps);
            let loaded = LoadedModel::load_with_progress(&folder, OPTIONS, move |progress| {
                seen.borrow_mut().push(progress);
                match seen.borrow().len() > limit {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            (loaded, steps.take())
        };
        let (loaded, steps) = load(usize::MAX);
        let total_bytes = loaded.unwrap().weight_bytes;
        assert!(steps.len() > 4, "{steps:?}");
        assert_eq!(steps[0], LoadProgress { bytes_read: 0, total_bytes });
        assert!(steps.windows(2).all(|two| two[0].bytes_read < two[1].bytes_read), "{steps:?}");
        assert!(steps.iter().all(|step| step.total_bytes == total_bytes), "{steps:?}");
        for limit in [0, 3, steps.len() - 1] {
            let (cancelled, asked) = load(limit);
            assert!(matches!(cancelled, Err(LmError::Cancelled)), "{cancelled:?}");
            assert_eq!(asked, steps[..=limit], "nothing is read after it");
        }
    }
}
