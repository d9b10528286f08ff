//! Rows of matrices, read from the files of a model in the order in which MLX has them, a few at a time.

use std::collections::HashMap;
use std::ops::Range;

use cairn_formats::safetensors::{SafetensorsFile, TensorEntry};
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::config::Quantization;
use crate::device_kernels::QuantizedRows;
use crate::dtype::{is_float, item_size, mlx_dtype};
use crate::ffi;
use crate::published::{Converted, ModelTensors};
use crate::tensor_list::check_groups;

use super::error::ConvertError;

/// The tensors of a model's files.
#[derive(Debug)]
pub(super) struct Tensors {
    files: Vec<SafetensorsFile>,
    /// The file that holds each as it is stored.
    stored: HashMap<String, usize>,
    /// Those that are computed from another program's, by name.
    made: HashMap<String, Converted>,
}

impl Tensors {
    pub(super) fn new(tensors: ModelTensors) -> Self {
        let (files, stored, made) = tensors.into_parts();
        let made = made.into_iter().map(|made| (made.tensor.name.clone(), made)).collect();
        Tensors { files, stored: stored.into_iter().collect(), made }
    }

    fn entry(&self, name: &str) -> Option<&TensorEntry> {
        match self.stored.get(name) {
            Some(&file) => self.files[file].tensor(name),
            None => self.made.get(name).map(|made| &made.tensor),
        }
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entry(name).map(|entry| entry.shape.as_slice())
    }

    /// The type of a tensor; headers were checked before, so that it is there.
    fn dtype(&self, name: &str) -> Dtype {
        self.entry(name).map_or(Dtype::Float32, |entry| mlx_dtype(entry.dtype))
    }

    /// Some rows `[rows, columns]` of a tensor, whose bytes are taken for rows of so many numbers.
    fn read(
        &self,
        name: &str,
        columns: usize,
        dtype: Dtype,
        rows: Range<usize>,
    ) -> Result<Array, LmError> {
        let shape = [rows.len() as i32, columns as i32];
        if let Some(made) = self.made.get(name) {
            let all = made.read(&self.files)?.reshape(&[-1, columns as i32])?;
            let (first, stop) = (rows.start as i32, rows.end as i32);
            return as_floats(ffi::slice(&all, &[first, 0], &[stop, columns as i32])?, dtype);
        }
        let file = self.stored.get(name).map(|&file| &self.files[file]);
        let Some((file, entry)) = file.and_then(|file| Some((file, file.tensor(name)?))) else {
            let folder = self.files.first().and_then(|file| file.path().parent());
            let folder = folder.unwrap_or("".as_ref()).to_owned();
            return Err(LmError::MissingWeight { folder, name: name.to_owned() });
        };
        // The tensors of experts may be of several floating-point types. Others are bytes taken for words.
        let stored = mlx_dtype(entry.dtype);
        let read_as = if is_float(dtype) && is_float(stored) { stored } else { dtype };
        let row_bytes = columns * item_size(read_as);
        let stop = entry.bytes.start + (rows.end * row_bytes) as u64;
        if stop > entry.bytes.end {
            return Err(ConvertError::OtherType { name: name.to_owned() }.into());
        }
        let mut bytes = vec![0; rows.len() * row_bytes];
        file.read_at(&mut bytes, entry.bytes.start + (rows.start * row_bytes) as u64)?;
        as_floats(ffi::array_from_bytes(&bytes, &shape, read_as)?, dtype)
    }
}

/// Floating-point numbers in this type, if it is one.
fn as_floats(numbers: Array, dtype: Dtype) -> Result<Array, LmError> {
    let is_other = is_float(dtype) && is_float(numbers.dtype()) && numbers.dtype() != dtype;
    Ok(if is_other { numbers.as_dtype(dtype)? } else { numbers })
}

/// Where the rows of one matrix for each of several experts are; other matrices are those of one.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// In one tensor, one expert behind the other.
    Whole(String),
    /// In a tensor for each expert.
    Singles(Vec<String>),
    /// In one tensor, of which each expert's rows are the first half or the second.
    Half { tensor: String, second: bool },
    /// The same, row by row in turn.
    Interleaved { tensor: String, second: bool },
    /// In one tensor `[inputs, rows]`, from this row on.
    Transposed { tensor: String, all: usize, first: usize },
}

impl Place {
    /// The same place with another ending of all names.
    pub(super) fn ending(&self, ending: &str) -> Place {
        let with = |name: &String| format!("{name}{ending}");
        match self {
            Place::Whole(name) => Place::Whole(with(name)),
            Place::Singles(names) => Place::Singles(names.iter().map(with).collect()),
            Place::Half { tensor, second } => Place::Half { tensor: with(tensor), second: *second },
            Place::Interleaved { tensor, second } => {
                Place::Interleaved { tensor: with(tensor), second: *second }
            }
            Place::Transposed { tensor, all, first } => {
                Place::Transposed { tensor: with(tensor), all: *all, first: *first }
            }
        }
    }

    /// One of its tensors.
    fn first(&self) -> &str {
        match self {
            Place::Singles(names) => names.first().map_or("", String::as_str),
            Place::Whole(tensor)
            | Place::Half { tensor, .. }
            | Place::Interleaved { tensor, .. }
            | Place::Transposed { tensor, .. } => tensor,
        }
    }
}

/// The rows of the matrices of all experts, each with so many columns.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    place: Place,
    pub(super) num_experts: usize,
    /// Rows of one expert.
    pub(super) each: usize,
    pub(super) columns: usize,
    pub(super) dtype: Dtype,
    /// Whether some of an expert's rows can be read without the others.
    can_be_cut: bool,
}

impl Rows {
    pub(super) fn new(
        tensors: &Tensors,
        place: Place,
        [num_experts, each, columns]: [usize; 3],
    ) -> Self {
        let dtype = tensors.dtype(place.first());
        let is_stored = tensors.stored.contains_key(place.first());
        let is_cut = !matches!(place, Place::Transposed { .. });
        Rows { can_be_cut: is_stored && is_cut, place, num_experts, each, columns, dtype }
    }

    /// The bytes of the tensors taken for numbers of another type, of which there are fewer in a row.
    fn viewed_as(self, dtype: Dtype) -> Self {
        let columns = self.columns * item_size(self.dtype) / item_size(dtype);
        Rows { columns, dtype, ..self }
    }

    /// Some rows of one expert: `[rows, columns]`.
    fn read(&self, tensors: &Tensors, rows: &Range<usize>) -> Result<Array, LmError> {
        let &Rows { each, columns, dtype, .. } = self;
        let (expert, row) = (rows.start / each, rows.start % each);
        let from = |name: &str, first: usize| {
            tensors.read(name, columns, dtype, first..first + rows.len())
        };
        match &self.place {
            Place::Whole(name) => from(name, rows.start),
            Place::Singles(names) => from(&names[expert], row),
            Place::Half { tensor, second } => {
                from(tensor, (2 * expert + usize::from(*second)) * each + row)
            }
            Place::Interleaved { tensor, second } => {
                let both = tensors.read(
                    tensor,
                    2 * columns,
                    dtype,
                    expert * each + row..expert * each + row + rows.len(),
                )?;
                let first = if *second { columns as i32 } else { 0 };
                let stop = [rows.len() as i32, first + columns as i32];
                Ok(ffi::slice(&both, &[0, first], &stop)?)
            }
            Place::Transposed { tensor, all, first } => {
                let inputs = expert * columns..(expert + 1) * columns;
                let transposed = tensors.read(tensor, *all, dtype, inputs)?;
                let (first, stop) = ((first + row) as i32, (first + row + rows.len()) as i32);
                let part = ffi::slice(&transposed, &[0, first], &[columns as i32, stop])?;
                Ok(ops::swap_axes(part, 0, 1)?)
            }
        }
    }
}

/// Rows that are packed.
#[derive(Debug, Clone)]
pub(super) struct PackedRows {
    pub(super) settings: Quantization,
    words: Rows,
    pub(super) scales: Rows,
    biases: Option<Rows>, // in affine mode
}

impl PackedRows {
    /// Matrices at `place`, whose tensors' names end with `.weight`, `.scales` and `.biases`.
    pub(super) fn new(
        tensors: &Tensors,
        place: &Place,
        [num_experts, each, inputs]: [usize; 3],
        settings: Quantization,
    ) -> Result<Self, LmError> {
        check_groups(place.first(), inputs as i32, settings.group_size)?;
        let (words, groups) =
            (inputs * settings.bits as usize / 32, inputs / settings.group_size as usize);
        let rows = |ending, columns| {
            Rows::new(tensors, place.ending(ending), [num_experts, each, columns])
        };
        let (words, scales) = (rows(".weight", words), rows(".scales", groups));
        // Both have one type in the new model.
        let biases = || Rows { dtype: scales.dtype, ..rows(".biases", groups) };
        let biases = settings.mode.has_biases().then(biases);
        Ok(PackedRows { settings, words, scales, biases })
    }

    /// Matrices of published blocks, whose bytes are MLX's words.
    pub(super) fn of_blocks(
        tensors: &Tensors,
        place: &Place,
        [num_experts, each, inputs]: [usize; 3],
        settings: Quantization,
    ) -> Self {
        let groups = inputs / settings.group_size as usize;
        let rows = |ending, columns| {
            Rows::new(tensors, place.ending(ending), [num_experts, each, columns])
        };
        let bytes = inputs * settings.bits as usize / 8;
        let words = rows("_blocks", bytes).viewed_as(Dtype::Uint32);
        PackedRows { settings, words, scales: rows("_scales", groups), biases: None }
    }

    /// Some rows of one expert.
    pub(super) fn read(
        &self,
        tensors: &Tensors,
        rows: &Range<usize>,
    ) -> Result<PackedArrays, LmError> {
        Ok(PackedArrays {
            words: self.words.read(tensors, rows)?,
            scales: self.scales.read(tensors, rows)?,
            biases: self.biases.as_ref().map(|biases| biases.read(tensors, rows)).transpose()?,
            settings: self.settings,
        })
    }
}

/// Rows that are packed, as MLX computes with them.
#[derive(Debug)]
pub(super) struct PackedArrays {
    pub(super) words: Array,          // [rows, columns * bits / 32]
    pub(super) scales: Array,         // [rows, columns / group_size]
    pub(super) biases: Option<Array>, // the same; in affine mode
    pub(super) settings: Quantization,
}

impl PackedArrays {
    /// `dense` `[rows, columns]` packed.
    pub(super) fn of(dense: &Array, settings: Quantization) -> Result<Self, LmError> {
        let (words, scales, biases) = ffi::quantize(dense, settings)?;
        Ok(PackedArrays { words, scales, biases, settings })
    }

    /// The numbers; those of scales without a type are bf16, as MLX makes them by itself, or of the
    /// type that is asked for.
    pub(super) fn dense(&self, asked_for: Option<Dtype>) -> Result<Array, LmError> {
        let PackedArrays { words: packed, scales, biases, settings } = self;
        let rows = QuantizedRows { packed, scales, biases: biases.as_ref(), settings: *settings };
        let dense = ffi::dequantize(rows)?;
        match settings.mode.has_biases() {
            true => Ok(dense),
            // Each of these numbers is exact in bf16.
            false => Ok(dense.as_dtype(asked_for.unwrap_or(Dtype::Bfloat16))?),
        }
    }

    /// Words, scales and biases.
    pub(super) fn into_arrays(self) -> Vec<Array> {
        [self.words, self.scales].into_iter().chain(self.biases).collect()
    }
}

/// What the numbers of a matrix, or of a tensor that is none, are made of.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Dense(Rows),
    Packed(PackedRows),
    /// A part of each head's rows, which are an expert's here: the first of so many transposed, or
    /// those behind them.
    DenseHeads {
        from: Rows,
        part: HeadPart,
    },
    PackedHeads {
        from: PackedRows,
        part: HeadPart,
    },
}

/// See [`Source::DenseHeads`].
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadPart {
    pub(super) keys: usize,
    pub(super) are_keys: bool,
}

impl HeadPart {
    /// The part of a head's rows `[keys + values, rank]`.
    pub(super) fn of(self, head: &Array) -> Result<Array, LmError> {
        let (keys, rank) = (self.keys as i32, head.dim(1));
        Ok(match self.are_keys {
            true => ops::swap_axes(ffi::slice(head, &[0, 0], &[keys, rank])?, 0, 1)?,
            false => ffi::slice(head, &[keys, 0], &[head.dim(0), rank])?,
        })
    }
}

impl Source {
    /// How it is packed in the files.
    pub(super) fn packed_in(&self) -> Option<Quantization> {
        match self {
            Source::Dense(_) | Source::DenseHeads { .. } => None,
            Source::Packed(rows) | Source::PackedHeads { from: rows, .. } => Some(rows.settings),
        }
    }

    /// The type of its numbers; of packed ones that of their scales.
    pub(super) fn dtype(&self) -> Dtype {
        match self {
            Source::Dense(rows) | Source::DenseHeads { from: rows, .. } => rows.dtype,
            Source::Packed(rows) | Source::PackedHeads { from: rows, .. } => rows.scales.dtype,
        }
    }

    fn rows(&self) -> &Rows {
        match self {
            Source::Dense(rows) | Source::DenseHeads { from: rows, .. } => rows,
            Source::Packed(rows) | Source::PackedHeads { from: rows, .. } => &rows.words,
        }
    }

    /// All rows in pieces, each of one expert and, where they can be cut, of at most so many rows.
    pub(super) fn pieces(&self, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let &Rows { num_experts, each, can_be_cut, .. } = self.rows();
        let are_heads = matches!(self, Source::DenseHeads { .. } | Source::PackedHeads { .. });
        let whole = each.max(1);
        let most = if can_be_cut && !are_heads { most.clamp(1, whole) } else { whole };
        (0..num_experts).flat_map(move |expert| {
            let (start, stop) = (expert * each, (expert + 1) * each);
            (start..stop).step_by(most).map(move |first| first..stop.min(first + most))
        })
    }

    /// Some rows as they are stored.
    pub(super) fn read(&self, tensors: &Tensors, rows: &Range<usize>) -> Result<Read, LmError> {
        Ok(match self {
            Source::Dense(from) => Read::Dense(from.read(tensors, rows)?),
            Source::DenseHeads { from, part } => Read::Dense(part.of(&from.read(tensors, rows)?)?),
            Source::Packed(from) => Read::Packed(from.read(tensors, rows)?),
            // Packed anew, as the reference does, which rounds the numbers.
            Source::PackedHeads { from, part } => {
                let dense = from.read(tensors, rows)?.dense(None)?;
                Read::Packed(PackedArrays::of(&part.of(&dense)?.contiguous()?, from.settings)?)
            }
        })
    }
}

/// Rows as they were read.
#[derive(Debug)]
pub(super) enum Read {
    Dense(Array), // [rows, columns]
    Packed(PackedArrays),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// A file with these tensors: name, type and bytes.
    fn tensors(folder: &std::path::Path, tensors: &[(&str, &str, usize, Vec<u8>)]) -> Tensors {
        let (mut header, mut contents) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, columns, bytes) in tensors {
            let offsets = [contents.len(), contents.len() + bytes.len()];
            let entry = serde_json::json!({
                "dtype": dtype, "shape": [1, columns], "data_offsets": offsets,
            });
            header.insert((*name).to_owned(), entry);
            contents.extend(bytes);
        }
        let header = serde_json::Value::Object(header).to_string();
        let path = folder.join("model.safetensors");
        let length = (header.len() as u64).to_le_bytes();
        std::fs::write(&path, [&length[..], header.as_bytes(), &contents].concat()).unwrap();
        let stored = tensors.iter().map(|(name, ..)| ((*name).to_owned(), 0)).collect();
        Tensors {
            files: vec![
                SafetensorsFile::open(&path, cairn_formats::safetensors::Limits::CACHE).unwrap(),
            ],
            stored,
            made: HashMap::new(),
        }
    }

    #[test]
    fn experts_of_several_types_are_read_in_that_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let words: Vec<u8> =
            [1.5f32, -2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
        let halves = vec![0x40, 0x40, 0x80, 0xbf]; // 3 and -1 in bfloat16
        let bytes = vec![7, 7];
        let tensors = tensors(
            folder.path(),
            &[("0", "F32", 2, words), ("1", "BF16", 2, halves), ("2", "U8", 2, bytes)],
        );
        let names = ["0", "1", "2"].map(str::to_owned).to_vec();
        let rows = Rows::new(&tensors, Place::Singles(names), [3, 1, 2]);
        let read = |expert: usize| rows.read(&tensors, &(expert..expert + 1));
        assert_eq!(read(0).unwrap().as_slice::<f32>(), [1.5, -2.0]);
        assert_eq!(read(1).unwrap().as_slice::<f32>(), [3.0, -1.0]);
        let refused = read(2).unwrap_err().to_string();
        assert!(refused.starts_with("'2' is stored in another type"), "{refused}");
    }

    #[test]
    fn a_matrix_without_rows_has_no_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = tensors(folder.path(), &[("0", "F32", 1, vec![0; 4])]);
        let rows = Rows::new(&tensors, Place::Whole("0".to_owned()), [1, 0, 1]);
        assert_eq!(Source::Dense(rows).pieces(7).count(), 0);
    }
}
