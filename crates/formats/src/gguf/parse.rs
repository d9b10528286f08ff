//! Reads the header of a GGUF file; every length, count and offset is checked against the file
//! before it is used.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::GgufError;

/// Vocabulary and merges of the largest models take 20 MB.
const MAX_HEADER_BYTES: u64 = 64 << 20;
const MAX_KEYS: u64 = 4096;
const MAX_TENSORS: u64 = 65_536;
const MAX_NAME_BYTES: u64 = 1024;
const MAX_ARRAY_DEPTH: u32 = 3;
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;

/// How a tensor's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q8_0,
    /// A format that is not imported, by ggml's number for it.
    Other(u32),
}

impl Stored {
    fn from_id(id: u32) -> Stored {
        match id {
            0 => Stored::F32,
            1 => Stored::F16,
            2 => Stored::Q4_0,
            3 => Stored::Q4_1,
            8 => Stored::Q8_0,
            other => Stored::Other(other),
        }
    }

    /// ggml's name for the format.
    pub fn name(self) -> String {
        let name = match self {
            Stored::F32 => "F32",
            Stored::F16 => "F16",
            Stored::Q4_0 => "Q4_0",
            Stored::Q4_1 => "Q4_1",
            Stored::Q8_0 => "Q8_0",
            Stored::Other(id) => match id {
                6 => "Q5_0",
                7 => "Q5_1",
                9 => "Q8_1",
                10 => "Q2_K",
                11 => "Q3_K",
                12 => "Q4_K",
                13 => "Q5_K",
                14 => "Q6_K",
                15 => "Q8_K",
                16 => "IQ2_XXS",
                17 => "IQ2_XS",
                18 => "IQ3_XXS",
                19 => "IQ1_S",
                20 => "IQ4_NL",
                21 => "IQ3_S",
                22 => "IQ2_S",
                23 => "IQ4_XS",
                24 => "I8",
                25 => "I16",
                26 => "I32",
                27 => "I64",
                28 => "F64",
                29 => "IQ1_M",
                30 => "BF16",
                34 => "TQ1_0",
                35 => "TQ2_0",
                39 => "MXFP4",
                unknown => return format!("type number {unknown}"),
            },
        };
        name.into()
    }

    /// Elements and bytes of one block; `None` for what is not imported.
    pub fn block(self) -> Option<(usize, usize)> {
        match self {
            Stored::F32 => Some((1, 4)),
            Stored::F16 => Some((1, 2)),
            Stored::Q4_0 => Some((32, 18)),
            Stored::Q4_1 => Some((32, 20)),
            Stored::Q8_0 => Some((32, 34)),
            Stored::Other(_) => None,
        }
    }
}

/// One tensor of the file.
#[derive(Debug, Clone)]
pub(super) struct TensorInfo {
    pub name: String,
    /// Row-major: the reverse of the order in the file. Each dimension is from 1 to `i32::MAX`.
    pub shape: Vec<usize>,
    pub stored: Stored,
    /// Where the values lie in the file. For a format that is not imported only the start is known;
    /// the range is empty.
    pub bytes: Range<u64>,
}

/// A metadata value; arrays stay undecoded, so that a hostile one costs no more memory than the
/// file.
enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(Range<usize>),
    Array { element: u32, bytes: Range<usize>, count: u64 },
}

/// A checked header, and the open file it was read from.
pub(super) struct Gguf {
    path: PathBuf,
    file: File,
    header: Vec<u8>,
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    position: HashMap<String, usize>,
}

impl Gguf {
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let io_error = |source| GgufError::Io { path: path.into(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io_error)?.is_file() {
            return Err(GgufError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(io_error)?;
        let file_bytes = file.metadata().map_err(io_error)?.len();
        let mut header = Vec::new();
        (&file).take(MAX_HEADER_BYTES).read_to_end(&mut header).map_err(io_error)?;

        let mut cursor = Cursor { path, bytes: &header, at: 0, file_bytes };
        let (key_count, tensor_count) = read_preamble(&mut cursor)?;
        let values = read_values(&mut cursor, key_count)?;
        let alignment = match values.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Integer(found)) => {
                let found = u64::try_from(*found).unwrap_or(0);
                cursor.bound(
                    "general.alignment",
                    found,
                    found.is_power_of_two() && (8..=1 << 20).contains(&found),
                    "a power of two from 8",
                )?;
                found
            }
            Some(_) => {
                return Err(GgufError::WrongKind {
                    key: "general.alignment".into(),
                    wanted: "an integer",
                });
            }
        };
        let tensors = read_tensors(&mut cursor, tensor_count, alignment)?;
        let header_bytes = cursor.at;
        let mut position = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if position.insert(tensor.name.clone(), i).is_some() {
                return Err(GgufError::DuplicateName {
                    path: path.into(),
                    name: tensor.name.clone(),
                });
            }
        }
        header.truncate(header_bytes);
        header.shrink_to_fit();
        Ok(Gguf { path: path.into(), file, header, values, tensors, position })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.position.get(name).map(|i| &self.tensors[*i])
    }

    /// Reads part of the file into `buffer`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), GgufError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| GgufError::Io { path: self.path.clone(), source })
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => self.utf8(key, &self.header[range.clone()]).map(Some),
            Some(_) => Err(GgufError::WrongKind { key: key.into(), wanted: "a text" }),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(GgufError::WrongKind { key: key.into(), wanted: "a flag" }),
        }
    }

    /// A count, size or id: an integer from 0 to `i32::MAX`.
    pub fn count(&self, key: &str) -> Result<Option<usize>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Integer(found)) if (0..=i32::MAX as i128).contains(found) => {
                Ok(Some(*found as usize))
            }
            Some(Value::Integer(found)) => {
                let allowed = format!("values from 0 to {}", i32::MAX);
                Err(GgufError::UnsupportedValue {
                    key: key.into(),
                    found: found.to_string(),
                    allowed,
                })
            }
            Some(_) => Err(GgufError::WrongKind { key: key.into(), wanted: "an integer" }),
        }
    }

    /// A finite number. One stored as f32 comes back as the shortest decimal that means the same
    /// f32 (1e-5, not 9.99999974…e-6).
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(found)) if found.is_finite() => Ok(Some(*found)),
            Some(Value::Float(found)) => Err(GgufError::UnsupportedValue {
                key: key.into(),
                found: found.to_string(),
                allowed: "finite numbers".into(),
            }),
            Some(Value::Integer(found)) => Ok(Some(*found as f64)),
            Some(_) => Err(GgufError::WrongKind { key: key.into(), wanted: "a number" }),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        let (bytes, count) = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Array { element: kind::TEXT, bytes, count }) => (bytes.clone(), *count),
            Some(_) => {
                return Err(GgufError::WrongKind { key: key.into(), wanted: "an array of texts" });
            }
        };
        let mut cursor = self.cursor(bytes);
        let mut texts = Vec::new();
        for _ in 0..count {
            let range = cursor.text("a text", u64::MAX)?;
            texts.push(self.utf8(key, &cursor.bytes[range])?);
        }
        Ok(Some(texts))
    }

    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let wrong = || GgufError::WrongKind { key: key.into(), wanted: "an array of integers" };
        let (element, bytes, count) = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Array { element, bytes, count }) => (*element, bytes.clone(), *count),
            Some(_) => return Err(wrong()),
        };
        let mut cursor = self.cursor(bytes);
        let mut integers = Vec::new();
        for _ in 0..count {
            match read_value(&mut cursor, key, element, 0)? {
                Value::Integer(integer) => {
                    integers.push(i64::try_from(integer).map_err(|_| wrong())?)
                }
                _ => return Err(wrong()),
            }
        }
        Ok(Some(integers))
    }

    fn cursor(&self, range: Range<usize>) -> Cursor<'_> {
        let bytes = &self.header[range];
        Cursor { path: &self.path, bytes, at: 0, file_bytes: bytes.len() as u64 }
    }

    fn utf8<'a>(&self, what: &str, bytes: &'a [u8]) -> Result<&'a str, GgufError> {
        std::str::from_utf8(bytes)
            .map_err(|_| GgufError::NotUtf8 { path: self.path.clone(), what: what.into() })
    }
}

/// ggml's numbers for kinds of metadata values.
mod kind {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const TEXT: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;

    /// Bytes of a value of fixed size.
    pub fn size(kind: u32) -> Option<u64> {
        match kind {
            U8 | I8 | BOOL => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            _ => None,
        }
    }
}

/// A position in the header that never passes its end.
struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
    file_bytes: u64,
}

impl Cursor<'_> {
    fn take(&mut self, count: u64) -> Result<Range<usize>, GgufError> {
        let start = self.at;
        let left = (self.bytes.len() - start) as u64;
        if count <= left {
            self.at += count as usize;
            return Ok(start..self.at);
        }
        let expected_bytes = (start as u64).saturating_add(count);
        if expected_bytes > self.file_bytes {
            Err(GgufError::Truncated {
                path: self.path.into(),
                expected_bytes,
                found_bytes: self.file_bytes,
            })
        } else {
            self.bound(
                "the header's size",
                expected_bytes,
                false,
                &format!("at most {MAX_HEADER_BYTES}"),
            )
            .map(|()| start..start)
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let range = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, what: &str, max_bytes: u64) -> Result<Range<usize>, GgufError> {
        let length = self.u64()?;
        self.bound(what, length, length <= max_bytes, &format!("at most {max_bytes} bytes"))?;
        self.take(length)
    }

    fn name(&mut self, what: &str) -> Result<String, GgufError> {
        let range = self.text(&format!("the length of {what}"), MAX_NAME_BYTES)?;
        String::from_utf8(self.bytes[range].to_vec())
            .map_err(|_| GgufError::NotUtf8 { path: self.path.into(), what: what.into() })
    }

    fn bound(&self, what: &str, found: u64, holds: bool, allowed: &str) -> Result<(), GgufError> {
        if holds {
            return Ok(());
        }
        Err(GgufError::OutOfBounds {
            path: self.path.into(),
            what: what.into(),
            found,
            allowed: allowed.into(),
        })
    }
}

/// Magic, version and the two counts: (keys, tensors).
fn read_preamble(cursor: &mut Cursor) -> Result<(u64, u64), GgufError> {
    let magic = cursor.bytes.get(..4);
    if magic.is_some_and(|magic| magic != b"GGUF") {
        return Err(GgufError::NotGguf { path: cursor.path.into() });
    }
    cursor.take(4)?;
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::UnsupportedVersion { path: cursor.path.into(), found: version });
    }
    let tensor_count = cursor.u64()?;
    let key_count = cursor.u64()?;
    cursor.bound(
        "the number of tensors",
        tensor_count,
        tensor_count <= MAX_TENSORS,
        &format!("at most {MAX_TENSORS}"),
    )?;
    cursor.bound(
        "the number of keys",
        key_count,
        key_count <= MAX_KEYS,
        &format!("at most {MAX_KEYS}"),
    )?;
    Ok((key_count, tensor_count))
}

fn read_values(cursor: &mut Cursor, count: u64) -> Result<HashMap<String, Value>, GgufError> {
    let mut values = HashMap::new();
    for _ in 0..count {
        let key = cursor.name("a key")?;
        let kind = cursor.u32()?;
        let value = read_value(cursor, &key, kind, 0)?;
        if values.contains_key(&key) {
            return Err(GgufError::DuplicateName { path: cursor.path.into(), name: key });
        }
        values.insert(key, value);
    }
    Ok(values)
}

fn read_value(cursor: &mut Cursor, key: &str, kind: u32, depth: u32) -> Result<Value, GgufError> {
    Ok(match kind {
        kind::U8 => Value::Integer(u8::from_le_bytes(cursor.array()?).into()),
        kind::I8 => Value::Integer(i8::from_le_bytes(cursor.array()?).into()),
        kind::U16 => Value::Integer(u16::from_le_bytes(cursor.array()?).into()),
        kind::I16 => Value::Integer(i16::from_le_bytes(cursor.array()?).into()),
        kind::U32 => Value::Integer(cursor.u32()?.into()),
        kind::I32 => Value::Integer(i32::from_le_bytes(cursor.array()?).into()),
        kind::U64 => Value::Integer(cursor.u64()?.into()),
        kind::I64 => Value::Integer(i64::from_le_bytes(cursor.array()?).into()),
        kind::F32 => Value::Float(shortest(f32::from_le_bytes(cursor.array()?))),
        kind::F64 => Value::Float(f64::from_le_bytes(cursor.array()?)),
        kind::BOOL => {
            let [byte] = cursor.array()?;
            cursor.bound(key, byte.into(), byte <= 1, "0 or 1 for a flag")?;
            Value::Bool(byte == 1)
        }
        kind::TEXT => Value::Text(cursor.text(key, u64::MAX)?),
        kind::ARRAY => {
            let element = cursor.u32()?;
            let count = cursor.u64()?;
            let start = cursor.at;
            skip_elements(cursor, key, element, count, depth)?;
            Value::Array { element, bytes: start..cursor.at, count }
        }
        unknown => return Err(unknown_kind(cursor, key, unknown)),
    })
}

/// Walks over an array without keeping it; each element takes at least a byte, so the walk ends
/// with the file.
fn skip_elements(
    cursor: &mut Cursor,
    key: &str,
    element: u32,
    count: u64,
    depth: u32,
) -> Result<(), GgufError> {
    if let Some(size) = kind::size(element) {
        // A product beyond u64 is beyond any file too.
        cursor.take(count.saturating_mul(size))?;
        return Ok(());
    }
    match element {
        kind::TEXT => {
            for _ in 0..count {
                cursor.text(key, u64::MAX)?;
            }
            Ok(())
        }
        kind::ARRAY => {
            cursor.bound(
                &format!("the nesting of {key}"),
                depth.into(),
                depth < MAX_ARRAY_DEPTH,
                &format!("at most {MAX_ARRAY_DEPTH}"),
            )?;
            for _ in 0..count {
                let element = cursor.u32()?;
                let count = cursor.u64()?;
                skip_elements(cursor, key, element, count, depth + 1)?;
            }
            Ok(())
        }
        unknown => Err(unknown_kind(cursor, key, unknown)),
    }
}

fn unknown_kind(cursor: &Cursor, key: &str, found: u32) -> GgufError {
    let what = format!("the kind of {key}");
    GgufError::OutOfBounds {
        path: cursor.path.into(),
        what,
        found: found.into(),
        allowed: "0 to 12".into(),
    }
}

/// The f64 whose decimal form is the shortest that reads back as this f32.
fn shortest(value: f32) -> f64 {
    // Display of a float always parses; the fallback is the same number with more digits.
    format!("{value:e}").parse().unwrap_or(f64::from(value))
}

fn read_tensors(
    cursor: &mut Cursor,
    count: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, GgufError> {
    let mut tensors = Vec::new();
    for _ in 0..count {
        let name = cursor.name("a tensor name")?;
        let dims = cursor.u32()?;
        cursor.bound(
            &format!("the rank of {name}"),
            dims.into(),
            (1..=MAX_DIMS).contains(&dims),
            &format!("1 to {MAX_DIMS}"),
        )?;
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = cursor.u64()?;
            let what = format!("a dimension of {name}");
            cursor.bound(
                &what,
                dim,
                (1..=i32::MAX as u64).contains(&dim),
                &format!("1 to {}", i32::MAX),
            )?;
            shape.push(dim as usize);
        }
        shape.reverse();
        let stored = Stored::from_id(cursor.u32()?);
        let offset = cursor.u64()?;
        let what = format!("the offset of {name}");
        cursor.bound(
            &what,
            offset,
            offset.is_multiple_of(alignment),
            &format!("a multiple of {alignment}"),
        )?;
        let size = match stored.block() {
            Some(block) => size_bytes(cursor, &name, &shape, block)?,
            None => 0,
        };
        tensors.push(TensorInfo {
            name,
            shape,
            stored,
            bytes: offset..offset.saturating_add(size),
        });
    }
    place_tensors(cursor, &mut tensors, alignment)?;
    Ok(tensors)
}

fn size_bytes(
    cursor: &Cursor,
    name: &str,
    shape: &[usize],
    (elements, bytes): (usize, usize),
) -> Result<u64, GgufError> {
    let columns = shape.last().copied().unwrap_or(1);
    cursor.bound(
        &format!("the row length of {name}"),
        columns as u64,
        columns.is_multiple_of(elements),
        &format!("a multiple of {elements}"),
    )?;
    let blocks = shape
        .iter()
        .try_fold(1_u64, |product, dim| product.checked_mul(*dim as u64))
        .map(|product| product / elements as u64);
    let size = blocks.and_then(|blocks| blocks.checked_mul(bytes as u64));
    size.ok_or_else(|| GgufError::Truncated {
        path: cursor.path.into(),
        expected_bytes: u64::MAX,
        found_bytes: cursor.file_bytes,
    })
}

/// Turns offsets into places in the file, all inside it and none over another.
fn place_tensors(
    cursor: &Cursor,
    tensors: &mut [TensorInfo],
    alignment: u64,
) -> Result<(), GgufError> {
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    let mut expected_bytes = data_start;
    for tensor in tensors.iter_mut() {
        tensor.bytes = data_start.saturating_add(tensor.bytes.start)
            ..data_start.saturating_add(tensor.bytes.end);
        expected_bytes = expected_bytes.max(tensor.bytes.end);
    }
    if !tensors.is_empty() && expected_bytes > cursor.file_bytes {
        return Err(GgufError::Truncated {
            path: cursor.path.into(),
            expected_bytes,
            found_bytes: cursor.file_bytes,
        });
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.bytes.start, tensor.bytes.end));
    for pair in order.windows(2) {
        if pair[1].bytes.start < pair[0].bytes.end {
            return Err(GgufError::OverlappingTensors {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::super::test_files::{Sample, file_with, text};
    use super::*;

    /// Opens a spoiled sample and compares the sentence of the refusal, which follows the path.
    fn check(spoil: impl FnOnce(&mut Sample), expected: &str) {
        let mut sample = Sample::tiny();
        spoil(&mut sample);
        check_bytes(&sample.bytes(), expected);
    }

    fn check_bytes(bytes: &[u8], expected: &str) {
        let (_folder, path) = file_with(bytes);
        let found = Gguf::open(&path).err().map_or("no refusal".into(), |error| error.to_string());
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    }

    #[test]
    fn values_are_read_by_kind() {
        let mut sample = Sample::tiny();
        sample.version = 2;
        sample.set("a.signed", 11, (-5_i64).to_le_bytes().into());
        sample.set("a.big", 10, u64::MAX.to_le_bytes().into());
        sample.set_array(
            "a.nested",
            9,
            1,
            [&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &9_u32.to_le_bytes()].concat(),
        );
        let (_folder, path) = file_with(&sample.bytes());
        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(gguf.text("general.architecture").unwrap(), Some("llama"));
        assert_eq!(gguf.text("general.absent").unwrap(), None);
        assert_eq!(gguf.count("llama.embedding_length").unwrap(), Some(32));
        assert_eq!(gguf.number("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-5));
        assert_eq!(gguf.texts("tokenizer.ggml.merges").unwrap().unwrap()[2], "he ll");
        assert_eq!(gguf.integers("tokenizer.ggml.token_type").unwrap().unwrap().len(), 263);
        for key in ["a.signed", "a.big", "a.nested", "general.architecture"] {
            assert!(gguf.count(key).is_err(), "{key} is not a count");
        }
        assert!(gguf.texts("a.nested").is_err() && gguf.integers("tokenizer.ggml.tokens").is_err());
        let down = gguf.tensor("blk.0.ffn_down.weight").unwrap();
        assert_eq!((down.shape.as_slice(), down.stored), (&[32, 64][..], Stored::Q4_1));
        assert_eq!(down.bytes.end - down.bytes.start, 32 * 2 * 20);
    }

    #[test]
    fn what_is_no_gguf_is_named() {
        check_bytes(b"", "expected at least 4 bytes, found 0");
        check_bytes(b"GGU", "expected at least 4 bytes");
        check_bytes(b"GGML and more", "is not a GGUF file");
        check(
            |sample| sample.version = 1,
            "GGUF version 1; Cairn imports little-endian versions 2 and 3",
        );
        check(|sample| sample.version = 3_u32.swap_bytes(), "GGUF version 50331648");
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Gguf::open(folder.path()), Err(GgufError::NotAFile { .. })));
    }

    #[test]
    fn lying_counts_and_lengths_are_refused_before_anything_is_reserved() {
        const HUGE: usize = usize::MAX;
        let preamble = |tensors: u64, keys: u64| {
            [b"GGUF\x03\0\0\0".to_vec(), tensors.to_le_bytes().into(), keys.to_le_bytes().into()]
                .concat()
        };
        check_bytes(
            &preamble(u64::MAX, 0),
            "the number of tensors is 18446744073709551615; allowed is at most 65536",
        );
        check_bytes(&preamble(0, u64::MAX), "the number of keys is 18446744073709551615");
        check_bytes(&preamble(65_536, 4_096), "expected at least 32 bytes, found 24");
        check_bytes(&preamble(65_536, 0), "expected at least 32 bytes, found 24");
        check(|sample| sample.set_array("a", 8, HUGE, vec![]), "expected at least");
        check(
            |sample| sample.set_array("a", 4, HUGE, vec![]),
            "expected at least 18446744073709551615 bytes",
        );
        check(
            |sample| sample.set_array("a", 0, HUGE, vec![]),
            "expected at least 18446744073709551615 bytes",
        );
        check(
            |sample| sample.set_array("a", 9, HUGE, vec![]),
            "the kind of a is 17; allowed is 0 to 12",
        );
        check(|sample| sample.set_array("a", 77, 1, vec![]), "the kind of a is 77");
        check(|sample| sample.set("a", 13, vec![]), "the kind of a is 13; allowed is 0 to 12");
        check(
            |sample| sample.set("a", 8, u64::MAX.to_le_bytes().into()),
            "expected at least 18446744073709551615 bytes",
        );
        check(|sample| sample.set("a", 7, vec![2]), "a is 2; allowed is 0 or 1 for a flag");
        check(
            |sample| sample.set_text(&"k".repeat(1025), ""),
            "the length of a key is 1025; allowed is at most 1024 bytes",
        );
        let nested = (0..8)
            .flat_map(|_| [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat())
            .collect();
        check(
            move |sample| sample.set_array("a", 9, 1, nested),
            "the nesting of a is 3; allowed is at most 3",
        );
    }

    #[test]
    fn names_are_texts_that_occur_once() {
        check(
            |sample| sample.keys.push(("general.name".into(), 8, text("again"))),
            r#"the name "general.name" occurs twice"#,
        );
        check(
            |sample| sample.tensors[2].name = "token_embd.weight".into(),
            r#"the name "token_embd.weight" occurs twice"#,
        );
        let mut bytes = Sample::tiny().bytes();
        let at = bytes.windows(12).position(|window| window == b"general.name").unwrap();
        bytes[at] = 0xff;
        check_bytes(&bytes, "a key is not UTF-8");
    }

    #[test]
    fn tensors_lie_inside_the_file_apart_from_each_other() {
        let q = "blk.0.attn_q.weight";
        check(
            |sample| sample.tensor(q).shape = vec![],
            "the rank of blk.0.attn_q.weight is 0; allowed is 1 to 4",
        );
        check(|sample| sample.tensor(q).shape = vec![1; 5], "the rank of blk.0.attn_q.weight is 5");
        check(
            |sample| sample.tensor(q).shape = vec![0, 32],
            "a dimension of blk.0.attn_q.weight is 0; allowed is 1 to 2147483647",
        );
        check(
            |sample| sample.tensor(q).shape = vec![1 << 31, 32],
            "a dimension of blk.0.attn_q.weight is 2147483648",
        );
        check(
            |sample| sample.tensor(q).shape = vec![1 << 30; 4],
            "expected at least 18446744073709551615 bytes",
        );
        check(
            |sample| sample.tensor(q).shape = vec![32, 33],
            "the row length of blk.0.attn_q.weight is 33; allowed is a multiple of 32",
        );
        check(
            |sample| sample.tensor("output_norm.weight").shape = vec![1 << 20],
            "expected at least",
        );
        check(
            |sample| sample.tensor(q).shape = vec![64, 32],
            r#"tensors "blk.0.attn_q.weight" and "blk.0.attn_k.weight" overlap"#,
        );
        check(
            |sample| sample.set_u32("general.alignment", 3),
            "general.alignment is 3; allowed is a power of two from 8",
        );
        check(|sample| sample.set_u32("general.alignment", 0), "general.alignment is 0");
        check(
            |sample| sample.set_u32("general.alignment", 512),
            "is 8960; allowed is a multiple of 512",
        );
        check(
            |sample| sample.set_text("general.alignment", "32"),
            "general.alignment is not an integer",
        );
    }
}
