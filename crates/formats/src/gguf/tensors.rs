//! The tensors of a GGUF file: types, shapes and where their values lie.

use std::collections::HashSet;
use std::ops::Range;

use super::GgufProblem;
use super::values::{Cursor, check_bound};
use crate::excerpt::excerpt;

const MAX_RANK: u32 = 4;

/// How a tensor's values are stored, by ggml's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // ggml's names
pub enum GgmlType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    /// A type that is not imported, by ggml's number for it.
    Other(u32),
}

impl GgmlType {
    /// The types that are imported, with ggml's number and name, and the weights and bytes of a block.
    const IMPORTED: [(GgmlType, u32, &str, (usize, usize)); 16] = [
        (GgmlType::F32, 0, "F32", (1, 4)),
        (GgmlType::F16, 1, "F16", (1, 2)),
        (GgmlType::Bf16, 30, "BF16", (1, 2)),
        (GgmlType::Q4_0, 2, "Q4_0", (32, 18)),
        (GgmlType::Q4_1, 3, "Q4_1", (32, 20)),
        (GgmlType::Q5_0, 6, "Q5_0", (32, 22)),
        (GgmlType::Q5_1, 7, "Q5_1", (32, 24)),
        (GgmlType::Q8_0, 8, "Q8_0", (32, 34)),
        (GgmlType::Q2K, 10, "Q2_K", (256, 84)),
        (GgmlType::Q3K, 11, "Q3_K", (256, 110)),
        (GgmlType::Q4K, 12, "Q4_K", (256, 144)),
        (GgmlType::Q5K, 13, "Q5_K", (256, 176)),
        (GgmlType::Q6K, 14, "Q6_K", (256, 210)),
        (GgmlType::Iq4Nl, 20, "IQ4_NL", (32, 18)),
        (GgmlType::Iq4Xs, 23, "IQ4_XS", (256, 136)),
        (GgmlType::Mxfp4, 39, "MXFP4", (32, 17)),
    ];

    /// The type with ggml's number `id`.
    pub fn from_id(id: u32) -> GgmlType {
        let known = GgmlType::IMPORTED.iter().find(|(_, known, ..)| *known == id);
        known.map_or(GgmlType::Other(id), |(ggml_type, ..)| *ggml_type)
    }

    /// ggml's number for the type.
    pub fn id(self) -> u32 {
        match (self, self.imported()) {
            (GgmlType::Other(id), _) => id,
            (_, found) => found.map_or(0, |(_, id, ..)| id),
        }
    }

    /// ggml's name for the type.
    pub fn name(self) -> String {
        if let Some((_, _, name, _)) = self.imported() {
            return name.into();
        }
        let name = match self.id() {
            9 => "Q8_1",
            15 => "Q8_K",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            24 => "I8",
            25 => "I16",
            26 => "I32",
            27 => "I64",
            28 => "F64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            unknown => return format!("type number {unknown}"),
        };
        name.into()
    }

    /// Weights and bytes of one block; `None` for what is not imported.
    pub fn block(self) -> Option<(usize, usize)> {
        self.imported().map(|(_, _, _, block)| block)
    }

    fn imported(self) -> Option<(GgmlType, u32, &'static str, (usize, usize))> {
        GgmlType::IMPORTED.into_iter().find(|(ggml_type, ..)| *ggml_type == self)
    }
}

/// One tensor of the file.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// The name, unique in the file.
    pub name: String,
    /// Row-major: the reverse of the order in the file. Each dimension is from 1 to `i32::MAX`.
    pub shape: Vec<usize>,
    /// How the values are stored.
    pub ggml_type: GgmlType,
    /// In which part of the model the values lie, from 0.
    pub file: usize,
    /// Where the values lie in the file. For a type that is not imported only the start is known and
    /// the range is empty.
    pub bytes: Range<u64>,
}

/// Reads `count` descriptions of tensors; their values follow the header, aligned.
pub fn read_tensors(
    cursor: &mut Cursor,
    count: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, GgufProblem> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..count {
        let tensor = read_tensor(cursor, alignment)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufProblem::DuplicateName { name: excerpt(tensor.name) });
        }
        tensors.push(tensor);
    }
    locate_tensors(cursor, &mut tensors, alignment)?;
    Ok(tensors)
}

/// Reads one description; its bytes are still counted from the end of the header.
fn read_tensor(cursor: &mut Cursor, alignment: u64) -> Result<TensorInfo, GgufProblem> {
    let name = cursor.name("a tensor name")?;
    let bound = |what: &str, found: u64, holds: bool, allowed: String| {
        check_bound(&format!("{what} of {:?}", excerpt(&name)), found, holds, &allowed)
    };
    let rank = cursor.u32()?;
    let is_allowed = (1..=MAX_RANK).contains(&rank);
    bound("the rank", rank.into(), is_allowed, format!("1 to {MAX_RANK}"))?;
    let mut shape = Vec::new();
    for _ in 0..rank {
        let dim = cursor.u64()?;
        let is_allowed = (1..=i32::MAX as u64).contains(&dim);
        bound("a dimension", dim, is_allowed, format!("1 to {}", i32::MAX))?;
        shape.push(dim as usize);
    }
    shape.reverse();
    let ggml_type = GgmlType::from_id(cursor.u32()?);
    let start = cursor.u64()?;
    let is_aligned = start.is_multiple_of(alignment);
    bound("the offset", start, is_aligned, format!("a multiple of {alignment}"))?;

    let Some((block_elements, block_bytes)) = ggml_type.block() else {
        return Ok(TensorInfo { name, shape, ggml_type, file: 0, bytes: start..start });
    };
    let columns = shape.last().copied().unwrap_or(1);
    let is_whole = columns.is_multiple_of(block_elements);
    bound("the row length", columns as u64, is_whole, format!("a multiple of {block_elements}"))?;
    let num_bytes = shape
        .iter()
        .try_fold(1_u64, |product, dim| product.checked_mul(*dim as u64))
        .map(|elements| elements / block_elements as u64)
        .and_then(|blocks| blocks.checked_mul(block_bytes as u64))
        // Beyond u64 is beyond any file too.
        .unwrap_or(u64::MAX);
    let bytes = start..start.saturating_add(num_bytes);
    Ok(TensorInfo { name, shape, ggml_type, file: 0, bytes })
}

/// Turns offsets into positions in the file, all inside it and none over another.
fn locate_tensors(
    cursor: &Cursor,
    tensors: &mut [TensorInfo],
    alignment: u64,
) -> Result<(), GgufProblem> {
    let data_start = (cursor.position as u64).next_multiple_of(alignment);
    let mut expected_bytes = data_start;
    for tensor in tensors.iter_mut() {
        tensor.bytes = data_start.saturating_add(tensor.bytes.start)
            ..data_start.saturating_add(tensor.bytes.end);
        expected_bytes = expected_bytes.max(tensor.bytes.end);
    }
    if !tensors.is_empty() && expected_bytes > cursor.file_bytes {
        return Err(GgufProblem::Truncated { expected_bytes, found_bytes: cursor.file_bytes });
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    for pair in order.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            return Err(GgufProblem::OverlappingTensors {
                first: excerpt(&pair[0].name),
                second: excerpt(&pair[1].name),
            });
        }
    }
    Ok(())
}
