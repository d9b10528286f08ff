//! Writes a complete MLX model folder from a GGUF file; the folder appears whole or not at all.
//!
//! ```text
//! <models_dir>/<name>/
//!   config.json  generation_config.json  tokenizer.json  tokenizer_config.json
//!   model.safetensors      metadata {"format": "mlx"}; tensors in the order of the layers
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::affine::{
    Form, GROUP_SIZE, NotFinite, RoundTo, Rounding, all_finite, less_one, round_to_affine,
    round_to_bfloat16, to_affine, to_f32, to_mxfp4, unpermute_heads,
};
use super::model::{Change, Model, PlannedTensor};
use super::rounded_weights::RoundedWeights;
use super::tensors::TensorInfo;
use super::tokenizer::TokenizerFiles;
use super::{GgufError, GgufFile, GgufProblem, model_name};
use crate::{
    NoDiskSpace, RESERVE_BYTES, free_disk_bytes, is_model_name, make_locked_folder, sync_folder,
    write_new_json,
};

/// Bytes of the file converted at once; whole rows, so a little more or less.
const CHUNK_BYTES: usize = 8 << 20;
const MAX_NAME_CHARS: usize = 96;
/// Precedes [`NUM_RANDOM_CHARS`] letters and digits in the name of a folder that a model is being
/// written to, which is locked for that time: one that is not is what a crash has left.
pub const PARTIAL_PREFIX: &str = ".importing-gguf-";
/// See [`PARTIAL_PREFIX`].
pub const NUM_RANDOM_CHARS: usize = 12;

/// How a file is imported.
#[derive(Debug, Clone, Copy, Default)]
pub struct GgufImport<'a> {
    /// The name of the model, see [`is_model_name`]. Without one it is the [`folder_name`] of the
    /// model's own (`general.name`), else of the file's.
    pub name: Option<&'a str>,
    /// What weights become that have no exact form.
    pub round_to: RoundTo,
}

/// A model that was imported.
#[derive(Debug)]
pub struct ImportedGguf {
    /// Its folder.
    pub folder: PathBuf,
    /// By how much weights were changed.
    pub rounding: Rounding,
}

/// Imports `file` as a folder in `models_dir`, with the parts beside it where it is the first of several.
///
/// `progress` is called with (bytes done, bytes in all), at least for each 8 MiB but in few tensors;
/// where it breaks, the import ends. After an error nothing is left behind.
pub fn import_gguf(
    file: &Path,
    models_dir: &Path,
    options: GgufImport,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ImportedGguf, GgufError> {
    import_to_disk(file, models_dir, options, free_disk_bytes(models_dir), progress)
}

/// As [`import_gguf`], on a disk with `free_bytes`.
fn import_to_disk(
    file: &Path,
    models_dir: &Path,
    options: GgufImport,
    free_bytes: Option<u64>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ImportedGguf, GgufError> {
    let gguf = GgufFile::open(file)?;
    let model = Model::read(&gguf, options.round_to).map_err(problem_of(&gguf))?;
    let tokenizer = TokenizerFiles::read(&gguf, model.vocab_size, model.max_position_embeddings)
        .map_err(problem_of(&gguf))?;
    let target = new_folder(&gguf, models_dir, options.name)?;
    let new_bytes = model.tensors.iter().map(num_bytes).sum();
    NoDiskSpace::check(models_dir, new_bytes, RESERVE_BYTES, free_bytes)?;

    fs::create_dir_all(models_dir).map_err(at(models_dir))?;
    let (folder, _lock) =
        make_locked_folder(|| partial_folder(models_dir)).map_err(at(models_dir))?;
    let path = folder.path().join("model.safetensors");
    let rounding = write_weights(&gguf, &model.tensors, &path, progress)?;
    let mut config = model.config(&tokenizer.special);
    if let Some(rounded) = rounding.recorded() {
        config[RoundedWeights::KEY] = json!(rounded);
    }
    for (file, contents) in [
        ("config.json", config),
        ("generation_config.json", tokenizer.generation_config),
        ("tokenizer_config.json", tokenizer.tokenizer_config),
        ("tokenizer.json", tokenizer.tokenizer),
    ] {
        let path = folder.path().join(file);
        write_new_json(&path, &contents).map_err(at(&path))?;
    }
    publish(folder, &target)?;
    sync_folder(models_dir).map_err(at(models_dir))?;
    Ok(ImportedGguf { folder: target, rounding })
}

/// A sibling of the models, so that the rename stays on one file system; dropping it removes it. Its
/// mode is the default, not tempfile's 0700.
fn partial_folder(models_dir: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(PARTIAL_PREFIX)
        .rand_bytes(NUM_RANDOM_CHARS)
        .permissions(Permissions::from_mode(0o777))
        .tempdir_in(models_dir)
}

/// Gives a complete folder its name, unless another import has taken that meanwhile.
fn publish(folder: TempDir, target: &Path) -> Result<(), GgufError> {
    sync_folder(folder.path()).map_err(at(folder.path()))?;
    match fs::rename(folder.path(), target) {
        Ok(()) => {
            drop(folder.keep());
            Ok(())
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::DirectoryNotEmpty
                    | io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Err(GgufError::AlreadyExists { path: target.to_owned() })
        }
        Err(source) => Err(GgufError::Write { path: target.to_owned(), source }),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> GgufError {
    let path = path.to_path_buf();
    move |source| GgufError::Write { path, source }
}

pub(super) fn problem_of(gguf: &GgufFile) -> impl Fn(GgufProblem) -> GgufError {
    |problem| GgufError::Contents { path: gguf.path().into(), problem }
}

/// The folder that a file becomes, where nothing may be.
pub(super) fn new_folder(
    gguf: &GgufFile,
    models_dir: &Path,
    name: Option<&str>,
) -> Result<PathBuf, GgufError> {
    let target = models_dir.join(chosen_name(gguf, name)?);
    match target.symlink_metadata() {
        Ok(_) => Err(GgufError::AlreadyExists { path: target }),
        Err(_) => Ok(target),
    }
}

fn chosen_name(gguf: &GgufFile, given: Option<&str>) -> Result<String, GgufError> {
    if let Some(name) = given {
        let name = name.to_owned();
        return if is_model_name(&name) { Ok(name) } else { Err(GgufError::BadGivenName { name }) };
    }
    let stem =
        gguf.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let own = gguf.text("general.name").map_err(problem_of(gguf))?.map(str::trim);
    let wanted = own.filter(|name| !name.is_empty()).unwrap_or(model_name(&stem));
    let folder = folder_name(wanted);
    if folder.is_empty() {
        Err(GgufError::BadName { name: wanted.chars().take(MAX_NAME_CHARS).collect() })
    } else {
        Ok(folder)
    }
}

/// A plain name for the folder of a model that has this name: characters other than letters, digits,
/// `.`, `_` and `-` become `-`. It is empty where nothing remains.
pub fn folder_name(wanted: &str) -> String {
    let mut folder = String::new();
    for letter in wanted.chars().take(MAX_NAME_CHARS) {
        let kept = if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-') {
            letter
        } else {
            '-'
        };
        if !(kept == '-' && folder.ends_with('-')) {
            folder.push(kept);
        }
    }
    // A leading dot would hide the folder, or name its parent.
    folder.trim_matches(['.', '-']).to_string()
}

/// One part of a planned tensor in the new file.
struct Part {
    dtype: &'static str,
    name: String,
    shape: Vec<usize>,
    row_bytes: usize,
}

/// The parts a tensor is written as, in the order in which they lie in the file.
fn parts(planned: &PlannedTensor) -> Vec<Part> {
    let shape = &planned.shape;
    let columns = shape.iter().product::<usize>() / row_count(planned);
    let part = |dtype, suffix, row_bytes: usize, columns: usize| {
        let name = format!("{}.{suffix}", planned.name.trim_end_matches(".weight"));
        let shape = [&shape[..shape.len() - 1], &[columns]].concat();
        Part { dtype, name, shape, row_bytes }
    };
    let (groups, num_bytes) = (columns / GROUP_SIZE, |bits| columns * bits / 8);
    if planned.form == Form::Mxfp4 {
        let words = part("U32", "weight", num_bytes(4), num_bytes(4) / 4);
        return vec![words, part("U8", "scales", groups, groups)];
    }
    let Some(bits) = planned.form.bits() else {
        let (dtype, size) = planned.form.dense();
        let row_bytes = columns * size;
        return vec![Part { dtype, name: planned.name.clone(), shape: shape.clone(), row_bytes }];
    };
    vec![
        part("U32", "weight", num_bytes(bits), num_bytes(bits) / 4),
        part("F32", "scales", groups * 4, groups),
        part("F32", "biases", groups * 4, groups),
    ]
}

/// Of a vector it is one, of stacked matrices those of all, and each number is one that changes its
/// place.
pub(super) fn row_count(planned: &PlannedTensor) -> usize {
    match (planned.change, planned.shape.as_slice()) {
        (Change::Unpermuted(_), [numbers]) => *numbers,
        (_, shape) => shape.iter().rev().skip(1).product(),
    }
}

/// Rows that change places within a head must be read together.
pub(super) fn unit_rows(planned: &PlannedTensor) -> usize {
    match planned.change {
        Change::Unpermuted(head_dim) => head_dim,
        Change::None | Change::LessOne | Change::Joined => 1,
    }
}

/// Of all its parts in the new file.
pub(super) fn num_bytes(planned: &PlannedTensor) -> u64 {
    let rows = row_count(planned);
    parts(planned).iter().map(|part| (rows * part.row_bytes) as u64).sum()
}

fn write_weights(
    gguf: &GgufFile,
    plan: &[PlannedTensor],
    path: &Path,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Rounding, GgufError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut end = 0_u64;
    for planned in plan {
        for part in parts(planned) {
            let start = end;
            end += (row_count(planned) * part.row_bytes) as u64;
            header.insert(
                part.name,
                json!({"dtype": part.dtype, "shape": part.shape, "data_offsets": [start, end]}),
            );
        }
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The format asks that values begin at a multiple of eight, padded with spaces.
    header.resize(header.len().next_multiple_of(8), b' ');

    let failed = |source| GgufError::Write { path: path.into(), source };
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
    file.write_all(&header).map_err(failed)?;

    let sources = plan.iter().flat_map(|planned| [Some(planned.source), planned.second]);
    let total: u64 = sources.flatten().map(|source| source.bytes.end - source.bytes.start).sum();
    let mut done = 0;
    let mut start = 8 + header.len() as u64;
    let mut advance = |bytes| {
        done += bytes;
        match progress(done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(GgufError::Cancelled { path: gguf.path().into() }),
        }
    };
    advance(0)?;
    let mut rounding = Rounding::default();
    for planned in plan {
        start = match planned.second {
            Some(second) => write_joined(gguf, planned, second, &file, path, start, &mut advance)?,
            None => write_tensor(gguf, planned, &mut rounding, &file, path, start, &mut advance)?,
        };
    }
    file.sync_all().map_err(failed)?;
    Ok(rounding)
}

/// Converts one tensor, a few rows at a time, into its parts from `start` on; returns where they
/// end.
fn write_tensor(
    gguf: &GgufFile,
    planned: &PlannedTensor,
    rounding: &mut Rounding,
    file: &File,
    path: &Path,
    start: u64,
    advance: &mut dyn FnMut(u64) -> Result<(), GgufError>,
) -> Result<u64, GgufError> {
    let source = planned.source;
    let rows = row_count(planned);
    let row_bytes = ((source.bytes.end - source.bytes.start) / rows as u64) as usize;
    let parts = parts(planned);
    let mut part_starts = Vec::with_capacity(parts.len());
    let mut end = start;
    for part in &parts {
        part_starts.push(end);
        end += (rows * part.row_bytes) as u64;
    }

    let unit = unit_rows(planned);
    let rows_at_once = (CHUNK_BYTES / (row_bytes * unit)).max(1) * unit;
    let mut chunk = Vec::new();
    for first in (0..rows).step_by(rows_at_once) {
        let count = rows_at_once.min(rows - first);
        chunk.resize(count * row_bytes, 0);
        gguf.read_at(source, &mut chunk, (first * row_bytes) as u64).map_err(problem_of(gguf))?;
        advance(chunk.len() as u64)?;
        let contents = convert(planned, &mut chunk, row_bytes, rounding).map_err(|NotFinite| {
            problem_of(gguf)(GgufProblem::NotFinite { tensor: source.name.clone() })
        })?;
        for ((part, part_start), bytes) in parts.iter().zip(&part_starts).zip(contents) {
            file.write_all_at(&bytes, part_start + (first * part.row_bytes) as u64)
                .map_err(at(path))?;
        }
    }
    rounding.num_tensors += usize::from(!planned.form.is_exact());
    Ok(end)
}

/// Writes a matrix that is stored as two of each head, of which the first is turned.
fn write_joined(
    gguf: &GgufFile,
    planned: &PlannedTensor,
    second: &TensorInfo,
    file: &File,
    path: &Path,
    start: u64,
    advance: &mut dyn FnMut(u64) -> Result<(), GgufError>,
) -> Result<u64, GgufError> {
    let (_, size) = planned.form.dense();
    let mut read = |source: &TensorInfo| {
        let mut bytes = vec![0; (source.bytes.end - source.bytes.start) as usize];
        gguf.read_at(source, &mut bytes, 0).map_err(problem_of(gguf))?;
        advance(bytes.len() as u64)?;
        let numbers = match planned.form {
            _ if !all_finite(source.ggml_type, &bytes) => Err(NotFinite),
            Form::Dense("F32") => to_f32(source.ggml_type, &bytes),
            _ => Ok(bytes),
        };
        numbers.map_err(|NotFinite| {
            problem_of(gguf)(GgufProblem::NotFinite { tensor: source.name.clone() })
        })
    };
    let (turned, rest) = (read(planned.source)?, read(second)?);
    // Of one head `[rank, plain]`, which becomes `[plain, rank]`.
    let (heads, rank) = (planned.source.shape[0], planned.source.shape[1]);
    let (head_bytes, rest_bytes) = (turned.len() / heads, rest.len() / heads);
    let plain = planned.source.shape[2];
    let mut joined = Vec::with_capacity(turned.len() + rest.len());
    for (turned, rest) in turned.chunks_exact(head_bytes).zip(rest.chunks_exact(rest_bytes)) {
        for (row, column) in (0..plain).flat_map(|row| (0..rank).map(move |column| (row, column))) {
            joined.extend_from_slice(&turned[(column * plain + row) * size..][..size]);
        }
        joined.extend_from_slice(rest);
    }
    file.write_all_at(&joined, start).map_err(at(path))?;
    Ok(start + joined.len() as u64)
}

/// What some rows of a tensor are in each of its parts.
pub(super) fn convert(
    planned: &PlannedTensor,
    chunk: &mut Vec<u8>,
    row_bytes: usize,
    rounding: &mut Rounding,
) -> Result<Vec<Vec<u8>>, NotFinite> {
    let ggml_type = planned.source.ggml_type;
    if !all_finite(ggml_type, chunk) {
        return Err(NotFinite);
    }
    if let Change::Unpermuted(head_dim) = planned.change {
        *chunk = unpermute_heads(chunk, row_bytes, head_dim);
    }
    let affine = match planned.form {
        Form::Dense(_) if planned.change == Change::LessOne => {
            return Ok(vec![less_one(ggml_type, chunk)]);
        }
        Form::Dense(_) => return Ok(vec![std::mem::take(chunk)]),
        Form::Rounded => return Ok(vec![round_to_bfloat16(ggml_type, chunk, rounding)?]),
        Form::Unpacked => return Ok(vec![to_f32(ggml_type, chunk)?]),
        Form::Mxfp4 => return Ok(to_mxfp4(chunk)?.into()),
        Form::Affine { bits, is_exact: true } => to_affine(ggml_type, bits, chunk)?,
        Form::Affine { bits, is_exact: false } => {
            round_to_affine(ggml_type, bits, chunk, rounding)?
        }
    };
    Ok(vec![affine.words, affine.scales, affine.biases])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::super::blocks::f16_to_f32;
    use super::*;
    use crate::safetensors::{SafetensorsFile, check_weight_files};
    use crate::test_files::gguf::{HEAD_DIM, Random, TestGguf, TestTensor, file_with};

    fn import(bytes: &[u8], models_dir: &Path, name: Option<&str>) -> Result<PathBuf, GgufError> {
        let (_folder, file) = file_with(bytes);
        let options = GgufImport { name, ..GgufImport::default() };
        import_gguf(&file, models_dir, options, &mut |_, _| ControlFlow::Continue(()))
            .map(|imported| imported.folder)
    }

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_folder_is_locked_while_it_is_written() {
        let models = tempfile::tempdir().unwrap();
        let (_folder, file) = file_with(&TestGguf::tiny().bytes());
        let mut num_seen = 0;
        import_gguf(&file, models.path(), GgufImport::default(), &mut |_, _| {
            let names = names_in(models.path());
            let random = names[0].strip_prefix(PARTIAL_PREFIX).unwrap();
            assert_eq!((names.len(), random.len()), (1, NUM_RANDOM_CHARS));
            let other = File::open(models.path().join(&names[0])).unwrap();
            assert!(other.try_lock().is_err(), "another process could remove it");
            num_seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(num_seen > 0);
    }

    /// The weights that a GGUF reader computes, in f32, written from the description of the
    /// formats.
    fn gguf_values(tensor: &TestTensor) -> Vec<f32> {
        let half = |bytes: &[u8]| f16_to_f32([bytes[0], bytes[1]]);
        let nibbles = |bytes: &[u8]| -> Vec<f32> {
            bytes
                .iter()
                .map(|byte| f32::from(byte & 15))
                .chain(bytes.iter().map(|byte| f32::from(byte >> 4)))
                .collect()
        };
        let data = &tensor.data;
        match tensor.type_id {
            0 => {
                data.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
            }
            1 => data.chunks(2).map(half).collect(),
            2 => data
                .chunks(18)
                .flat_map(|block| nibbles(&block[2..]).into_iter().map(|q| (q - 8.0) * half(block)))
                .collect(),
            3 => data
                .chunks(20)
                .flat_map(|block| {
                    nibbles(&block[4..]).into_iter().map(|q| q * half(block) + half(&block[2..]))
                })
                .collect(),
            8 => data
                .chunks(34)
                .flat_map(|block| block[2..].iter().map(|q| f32::from(*q as i8) * half(block)))
                .collect(),
            other => panic!("the sample has no format {other}"),
        }
    }

    /// The weights that MLX computes from the imported file.
    fn mlx_values(file: &SafetensorsFile, module: &str, bits: usize) -> Vec<f32> {
        let floats = |part: &str| -> Vec<f32> {
            let bytes = file.read_tensor(&format!("{module}.{part}")).unwrap();
            bytes.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
        };
        match bits {
            32 => return floats("weight"),
            16 => {
                return file
                    .read_tensor(&format!("{module}.weight"))
                    .unwrap()
                    .chunks(2)
                    .map(|value| f16_to_f32([value[0], value[1]]))
                    .collect();
            }
            _ => {}
        }
        let words = file.read_tensor(&format!("{module}.weight")).unwrap();
        let (scales, biases) = (floats("scales"), floats("biases"));
        let number = |i: usize| {
            let word = u32::from_le_bytes(words[i * bits / 32 * 4..][..4].try_into().unwrap());
            word >> (i * bits % 32) & ((1 << bits) - 1)
        };
        (0..words.len() * 8 / bits)
            .map(|i| scales[i / 32] * number(i) as f32 + biases[i / 32])
            .collect()
    }

    #[test]
    fn every_weight_arrives_bit_for_bit() {
        let mut sample = TestGguf::tiny();
        let models = tempfile::tempdir().unwrap();
        let folder = import(&sample.bytes(), models.path(), Some("tiny")).unwrap();
        let files = check_weight_files(&folder).unwrap();
        let file = &files[0];
        assert_eq!(file.metadata().get("format").map(String::as_str), Some("mlx"));
        assert_eq!(file.tensors().len(), 11 + 2 * 6);

        let mut check = |source: &str, module: &str, bits: usize| {
            let tensor = sample.tensor(&format!("{source}.weight"));
            let mut expected = gguf_values(tensor);
            if ["blk.0.attn_q", "blk.0.attn_k"].contains(&source) {
                // Row 2j + p of a head in the file is row p * D/2 + j of the checkpoint.
                let columns = tensor.shape[1];
                let interleaved = expected.clone();
                for row in 0..tensor.shape[0] {
                    let (head, half, j) =
                        (row / HEAD_DIM, row % HEAD_DIM / (HEAD_DIM / 2), row % (HEAD_DIM / 2));
                    let from = head * HEAD_DIM + 2 * j + half;
                    expected[row * columns..][..columns]
                        .copy_from_slice(&interleaved[from * columns..][..columns]);
                }
            }
            let found = mlx_values(file, module, bits);
            let bits_of = |values: &[f32]| {
                values.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits_of(&found), bits_of(&expected), "{module}");
        };
        check("token_embd", "model.embed_tokens", 8);
        check("blk.0.attn_norm", "model.layers.0.input_layernorm", 32);
        check("blk.0.attn_q", "model.layers.0.self_attn.q_proj", 4);
        check("blk.0.attn_k", "model.layers.0.self_attn.k_proj", 4);
        check("blk.0.attn_v", "model.layers.0.self_attn.v_proj", 16);
        check("blk.0.attn_output", "model.layers.0.self_attn.o_proj", 4);
        check("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm", 32);
        check("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj", 4);
        check("blk.0.ffn_up", "model.layers.0.mlp.up_proj", 32);
        check("blk.0.ffn_down", "model.layers.0.mlp.down_proj", 4);
        check("output_norm", "model.norm", 32);
    }

    #[test]
    fn the_folder_is_complete_and_progress_reaches_the_end() {
        let models = tempfile::tempdir().unwrap();
        let (_folder, file) = file_with(&TestGguf::tiny().bytes());
        let mut calls = Vec::new();
        let target =
            import_gguf(&file, models.path(), GgufImport::default(), &mut |done, total| {
                calls.push((done, total));
                ControlFlow::Continue(())
            })
            .unwrap()
            .folder;
        assert_eq!(
            names_in(&target),
            [
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json"
            ]
        );
        assert_eq!(names_in(models.path()), ["Tiny-Llama-1-layer"]);
        let (done, total) = *calls.last().unwrap();
        assert_eq!((calls[0].0, done), (0, total));
        assert!(calls.is_sorted(), "progress went backwards: {calls:?}");
        let config: Value =
            serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&json!(261), &json!(262)));
    }

    #[test]
    fn a_cancelled_import_ends_within_a_tensor_and_leaves_nothing() {
        let models = tempfile::tempdir().unwrap();
        let mut file = TestGguf::tiny();
        file.widen(4 * CHUNK_BYTES);
        let (_folder, file) = file_with(&file.bytes());
        let (mut before, mut was_cancelled) = (0, false);
        let cancelled = import_gguf(&file, models.path(), GgufImport::default(), &mut |done, _| {
            assert!(!was_cancelled, "it goes on");
            // The first part of a tensor of four.
            was_cancelled = done >= before + CHUNK_BYTES as u64 / 2;
            before = done;
            if was_cancelled { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(cancelled, Err(GgufError::Cancelled { .. })), "{cancelled:?}");
        assert!(was_cancelled && names_in(models.path()).is_empty());
    }

    #[test]
    fn refuses_a_model_that_fills_the_disk() {
        let (models, mut sample) = (tempfile::tempdir().unwrap(), TestGguf::tiny());
        sample.widen(1 << 20);
        let (_folder, file) = file_with(&sample.bytes());
        let import = |free_bytes, models: &Path| {
            let options = GgufImport::default();
            let goes_on = &mut |_, _| ControlFlow::Continue(());
            import_to_disk(&file, models, options, Some(free_bytes), goes_on)
        };
        // Three matrices of this size, and small ones.
        let refused = import(RESERVE_BYTES + (3 << 20), &models.path().join("new"));
        let Err(GgufError::NoSpace(refused)) = refused else { panic!("{refused:?}") };
        assert!(refused.needed_bytes > RESERVE_BYTES + (3 << 20), "{refused}");
        assert_eq!(names_in(models.path()), Vec::<String>::new());
        import(RESERVE_BYTES + (4 << 20), models.path()).unwrap();
    }

    #[test]
    fn folders_are_named_safely() {
        let check =
            |general_name: Option<&str>, name: Option<&str>, expected: Result<&str, &str>| {
                let mut sample = TestGguf::tiny();
                sample.remove("general.name");
                if let Some(general_name) = general_name {
                    sample.set_text("general.name", general_name);
                }
                let models = tempfile::tempdir().unwrap();
                let found =
                    import(&sample.bytes(), models.path(), name).map_err(|error| error.to_string());
                let found = found.map(|folder| {
                    folder.strip_prefix(models.path()).unwrap().to_str().unwrap().to_string()
                });
                assert_eq!(found, expected.map(String::from).map_err(String::from));
            };
        check(Some("A/b"), Some("Chosen.v2"), Ok("Chosen.v2"));
        check(Some("../../etc/passwd"), None, Ok("etc-passwd"));
        check(Some("  "), None, Ok("file-stem"));
        check(None, None, Ok("file-stem"));
        check(Some(&"n".repeat(500)), None, Ok(&"n".repeat(96)));
        check(
            Some(".."),
            None,
            Err(r#"".." cannot name a model folder: choose a name with letters or digits"#),
        );
    }

    #[test]
    fn a_name_that_was_given_is_taken_as_it_is_or_refused() {
        let models = tempfile::tempdir().unwrap();
        let import = |name: &str| import(&TestGguf::tiny().bytes(), models.path(), Some(name));
        assert_eq!(import("Ein Modell (2)").unwrap(), models.path().join("Ein Modell (2)"));
        let long = "n".repeat(300);
        for name in ["", "..", "../x", ".hidden", "owner/name", "a\\b", "x\0y", &long] {
            let error = import(name).unwrap_err();
            assert!(matches!(&error, GgufError::BadGivenName { name: given } if given == name));
            let refused = format!("a model cannot be named {name:?}: use a plain name");
            assert!(error.to_string().starts_with(&refused), "{error}");
        }
        assert_eq!(names_in(models.path()), ["Ein Modell (2)"]);
    }

    #[test]
    fn an_existing_folder_is_kept() {
        let models = tempfile::tempdir().unwrap();
        let target = models.path().join("tiny");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("mine"), "kept").unwrap();
        let error = import(&TestGguf::tiny().bytes(), models.path(), Some("tiny")).unwrap_err();
        assert!(matches!(&error, GgufError::AlreadyExists { path } if *path == target), "{error}");
        assert_eq!(
            (names_in(models.path()), names_in(&target)),
            (vec!["tiny".to_string()], vec!["mine".to_string()])
        );
    }

    #[test]
    fn a_failure_half_way_leaves_nothing() {
        let mut sample = TestGguf::tiny();
        let data = &mut sample.tensor("output_norm.weight").data;
        data[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        let models = tempfile::tempdir().unwrap();
        let error = import(&sample.bytes(), models.path(), None).unwrap_err();
        assert!(
            error.to_string().ends_with(
                "tensor output_norm.weight holds a value that is not finite; download the file again"
            ),
            "{error}"
        );
        assert_eq!(names_in(models.path()), Vec::<String>::new());
    }

    #[test]
    fn a_truncated_file_is_refused_wherever_it_ends() {
        let bytes = TestGguf::tiny().bytes();
        let models = tempfile::tempdir().unwrap();
        let ends = (0..64).map(|part| bytes.len() * part / 64).chain([bytes.len() - 1]);
        for end in ends {
            let error = import(&bytes[..end], models.path(), Some("tiny")).unwrap_err();
            assert!(
                matches!(error, GgufError::Contents { problem: GgufProblem::Truncated { .. }, .. }),
                "at {end} of {}: {error}",
                bytes.len()
            );
        }
        assert_eq!(names_in(models.path()), Vec::<String>::new());
    }

    #[test]
    fn altered_headers_never_panic() {
        let mut bytes = TestGguf::tiny().bytes();
        let header_bytes = bytes.len()
            - TestGguf::tiny().tensors.iter().map(|tensor| tensor.data.len()).sum::<usize>();
        let mut random = Random(3);
        let mut refused = 0;
        for _ in 0..800 {
            let at = random.next_bits() as usize % header_bytes;
            let before = bytes[at];
            bytes[at] =
                if random.next_bits().is_multiple_of(2) { 0xff } else { random.next_bits() as u8 };
            let (_folder, path) = file_with(&bytes);
            let read = |gguf: &GgufFile| -> Result<Value, GgufProblem> {
                let model = Model::read(gguf, RoundTo::default())?;
                let files =
                    TokenizerFiles::read(gguf, model.vocab_size, model.max_position_embeddings)?;
                Ok(model.config(&files.special))
            };
            let is_read = GgufFile::open(&path).is_ok_and(|gguf| read(&gguf).is_ok());
            refused += usize::from(!is_read);
            bytes[at] = before;
        }
        assert!(refused > 200, "only {refused} of 800 were refused");
    }
}
