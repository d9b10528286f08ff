//! Writes the weight files of a new model: headers first, then each matrix a few rows at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cairn_formats::safetensors::Dtype as FileDtype;
use mlx_rs::{Array, Dtype, ops};
use serde_json::{Map, Value, json};

use crate::LmError;
use crate::config::Quantization;
use crate::dtype::{is_float, item_size, mlx_dtype};
use crate::ffi;
use crate::published_numbers::MatrixFactor;

use super::ConvertProgress;
use super::error::ConvertError;
use super::plan::Part;
use super::rows::{PackedArrays, Read, Tensors};

/// The most bytes of tensors in one file, as mlx-lm counts them; a matrix alone may have more.
const MAX_FILE_BYTES: u64 = 5 << 30;

/// A part with what becomes of it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) part: Part,
    pub(super) form: Form,
    /// What floating-point numbers become; `None` leaves them as they are.
    pub(super) dtype: Option<Dtype>,
    /// What it is multiplied by.
    pub(super) factor: Option<MatrixFactor>,
    /// Whether it is stored less one.
    pub(super) is_less_one: bool,
}

/// How the new model holds a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// As numbers, or packed as it was.
    Same,
    Packed(Quantization),
    /// As numbers that were packed, of this type if their scales have none.
    Unpacked(Option<Dtype>),
}

/// A tensor of the new model.
struct NewTensor {
    name: String,
    dtype: Dtype,
    /// The axes before the last are the part's.
    columns: usize,
}

impl Planned {
    /// How it is packed in the new model.
    pub(super) fn packed_in(&self) -> Option<Quantization> {
        match self.form {
            Form::Same => self.part.source.packed_in(),
            Form::Packed(settings) => Some(settings),
            Form::Unpacked(_) => None,
        }
    }

    /// The type of its floating-point numbers.
    fn float_dtype(&self) -> Dtype {
        let stored = self.part.source.dtype();
        match self.dtype {
            Some(dtype) if is_float(stored) => dtype,
            _ => stored,
        }
    }

    /// Its tensors in the order in which they are written.
    fn tensors(&self) -> Vec<NewTensor> {
        let Part { path, columns, is_matrix, .. } = &self.part;
        let tensor = |ending: &str, dtype, columns| {
            let name = if *is_matrix { format!("{path}{ending}") } else { path.clone() };
            NewTensor { name, dtype, columns }
        };
        let Some(Quantization { mode, group_size, bits }) = self.packed_in() else {
            let dtype = match (self.form, self.part.source.packed_in()) {
                (Form::Unpacked(asked_for), Some(packed)) if !packed.mode.has_biases() => {
                    asked_for.unwrap_or(Dtype::Bfloat16)
                }
                _ => self.float_dtype(),
            };
            return vec![tensor(".weight", dtype, *columns)];
        };
        let (words, groups) = (columns * bits as usize / 32, columns / group_size as usize);
        let words = tensor(".weight", Dtype::Uint32, words);
        match mode.has_biases() {
            true => {
                let floats = self.float_dtype();
                vec![words, tensor(".scales", floats, groups), tensor(".biases", floats, groups)]
            }
            false => vec![words, tensor(".scales", Dtype::Uint8, groups)],
        }
    }

    fn num_rows(&self) -> usize {
        self.part.lead.iter().product()
    }

    pub(super) fn num_bytes(&self) -> u64 {
        let row_bytes = |tensor: &NewTensor| tensor.columns * item_size(tensor.dtype);
        (self.num_rows() * self.tensors().iter().map(row_bytes).sum::<usize>()) as u64
    }

    /// The contents of its tensors in some of its rows.
    fn converted(&self, read: Read) -> Result<Vec<Array>, LmError> {
        let packed = match (read, self.form) {
            (Read::Dense(dense), Form::Packed(settings)) => {
                PackedArrays::of(&self.number(dense)?.contiguous()?, settings)?
            }
            (Read::Dense(dense), _) => return Ok(vec![self.number(dense)?]),
            (Read::Packed(packed), _) => PackedArrays {
                scales: self.number(packed.scales)?,
                biases: packed.biases.map(|biases| self.number(biases)).transpose()?,
                ..packed
            },
        };
        match self.form {
            Form::Unpacked(asked_for) => Ok(vec![packed.dense(asked_for)?]),
            _ => Ok(packed.into_arrays()),
        }
    }

    /// Floating-point numbers in MLX's form, and in the type that was asked for.
    fn number(&self, stored: Array) -> Result<Array, LmError> {
        if !is_float(stored.dtype()) {
            return Ok(stored);
        }
        let mut numbers = stored;
        if let Some(factor) = &self.factor {
            numbers = factor.times(&numbers)?;
        }
        if self.is_less_one {
            numbers = ops::add(&numbers, Array::from_f32(1.0).as_dtype(numbers.dtype())?)?;
        }
        match self.dtype {
            Some(dtype) if dtype != numbers.dtype() => Ok(numbers.as_dtype(dtype)?),
            _ => Ok(numbers),
        }
    }

    /// How many rows are converted at once, if so many bytes may be.
    fn rows_at_once(&self, part_bytes: usize) -> usize {
        // Factors of rows are those of all.
        if self.factor.as_ref().is_some_and(|factor| !factor.of_rows.is_empty()) {
            return usize::MAX;
        }
        // Computed in 32 bits, whatever it is stored in.
        part_bytes / (4 * self.part.columns).max(1)
    }
}

/// Writes the files and their index into `folder`, which holds no weights yet.
pub(super) fn write(
    folder: &Path,
    tensors: &Tensors,
    planned: &[Planned],
    progress: &mut Progress,
) -> Result<(), LmError> {
    let sizes: Vec<u64> = planned.iter().map(Planned::num_bytes).collect();
    let files = in_files(&sizes, MAX_FILE_BYTES);
    let mut weight_map = BTreeMap::new();
    for (index, parts) in files.iter().enumerate() {
        let parts = &planned[parts.clone()];
        let name = match files.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        write_file(&folder.join(&name), tensors, parts, progress)?;
        for tensor in parts.iter().flat_map(Planned::tensors) {
            weight_map.insert(tensor.name, name.clone());
        }
    }
    let total_size: u64 = sizes.iter().sum();
    let total_parameters: usize = planned.iter().map(|planned| planned.part.num_numbers()).sum();
    let index = json!({
        "metadata": { "total_size": total_size, "total_parameters": total_parameters },
        "weight_map": weight_map,
    });
    super::write_json(&folder.join("model.safetensors.index.json"), &index)
}

/// Which parts of these sizes each file holds: as many as fit, and at least one.
fn in_files(sizes: &[u64], most: u64) -> Vec<Range<usize>> {
    let mut files = Vec::new();
    let (mut first, mut file_bytes) = (0, 0);
    for (index, num_bytes) in sizes.iter().enumerate() {
        if index > first && file_bytes + num_bytes > most {
            files.push(first..index);
            (first, file_bytes) = (index, 0);
        }
        file_bytes += num_bytes;
    }
    files.push(first..sizes.len());
    files
}

/// How far a conversion has come, and who wants to know.
pub(super) struct Progress<'a> {
    pub(super) state: ConvertProgress,
    /// The most bytes that are converted between two reports, where rows can be.
    pub(super) part_bytes: usize,
    pub(super) on_part: &'a mut dyn FnMut(ConvertProgress) -> ControlFlow<()>,
}

impl Progress<'_> {
    /// Fails if the conversion is to end here.
    pub(super) fn report(&mut self) -> Result<(), LmError> {
        match (self.on_part)(self.state) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LmError::Cancelled),
        }
    }
}

fn write_file(
    path: &Path,
    tensors: &Tensors,
    parts: &[Planned],
    progress: &mut Progress,
) -> Result<(), LmError> {
    let header = header(parts);
    let write = || -> std::io::Result<File> {
        let mut file = File::create_new(path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        Ok(file)
    };
    let file = write().map_err(ConvertError::at(path))?;
    let mut start = 8 + header.len() as u64;
    for planned in parts {
        progress.report()?;
        write_part(&file, path, tensors, planned, start, progress)?;
        start += planned.num_bytes();
    }
    file.sync_all().map_err(ConvertError::at(path))?;
    Ok(())
}

/// Writes the tensors of one part from the byte `start` on.
fn write_part(
    file: &File,
    path: &Path,
    tensors: &Tensors,
    planned: &Planned,
    start: u64,
    progress: &mut Progress,
) -> Result<(), LmError> {
    let mut at = start;
    let mut starts = Vec::new();
    for tensor in planned.tensors() {
        starts.push(at);
        at += (planned.num_rows() * tensor.columns * item_size(tensor.dtype)) as u64;
    }
    for rows in planned.part.source.pieces(planned.rows_at_once(progress.part_bytes)) {
        let read = planned.part.source.read(tensors, &rows)?;
        for (array, at) in planned.converted(read)?.into_iter().zip(&mut starts) {
            let array = array.contiguous()?;
            let bytes = ffi::array_bytes(&array)?;
            file.write_all_at(bytes, *at).map_err(ConvertError::at(path))?;
            *at += bytes.len() as u64;
            progress.state.bytes_written += bytes.len() as u64;
        }
        progress.report()?;
    }
    Ok(())
}

fn header(parts: &[Planned]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
    let mut end = 0;
    for planned in parts {
        for NewTensor { name, dtype, columns } in planned.tensors() {
            let start = end;
            end += planned.num_rows() * columns * item_size(dtype);
            let shape = [planned.part.lead.as_slice(), &[columns]].concat();
            let dtype = file_dtype(dtype);
            let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
            header.insert(name, entry);
        }
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // The format asks that values begin at a multiple of eight, padded with spaces.
    header.resize(header.len().next_multiple_of(8), b' ');
    header
}

/// The name of a type in files.
fn file_dtype(dtype: Dtype) -> &'static str {
    let is_it =
        |(known, _): &&(FileDtype, &str)| mlx_dtype(*known) == dtype && *known != FileDtype::F8E4m3;
    FileDtype::ALL.iter().find(is_it).map_or("F32", |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_as_many_parts_as_fit_and_a_large_one_alone() {
        assert_eq!(in_files(&[2, 3, 1, 4, 9, 1], 6), [0..3, 3..4, 4..5, 5..6]);
        assert_eq!(in_files(&[7, 7], 6), [0..1, 1..2]);
    }
}
