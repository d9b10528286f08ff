//! A GGUF file whose header was checked: every length, count and offset in it, before it is used. A
//! model may be split: the first file has the keys, and each has tensors.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::tensors::{TensorInfo, read_tensors};
use super::values::{Cursor, MAX_HEADER_BYTES, Value, check_bound, kind, read_value, read_values};
use super::{GgufError, GgufProblem};
use crate::excerpt::excerpt;
use crate::file::{FileError, open_regular};

const MAX_KEYS: u64 = 4096;
const MAX_TENSORS: u64 = 65_536;
const DEFAULT_ALIGNMENT: u64 = 32;

/// A GGUF file whose header was checked, still open.
///
/// - Every tensor of a known type lies inside the file, and none over another.
/// - Names are unique, among keys as among tensors.
/// - Values are decoded when they are asked for, since the header keeps them as bytes.
/// - Of a model in several files it is the first, with the tensors of all.
pub struct GgufFile {
    path: PathBuf,
    /// All parts of the model, in order.
    files: Vec<File>,
    header: Vec<u8>,
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    /// Where each name is in `tensors`.
    index: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens and checks `path`, and where it is the first part of a split model, the others beside
    /// it; reads the headers only. Fails on another part than the first, where one is missing or says
    /// that it is another, and where all have more tensors than one file may.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let problem = |problem| GgufError::Contents { path: path.into(), problem };
        let mut whole = GgufFile::open_one(path)?;
        for path in other_parts(&whole).map_err(problem)? {
            let part = GgufFile::open_one(&path)?;
            check_part(&part, &whole)
                .map_err(|problem| GgufError::Contents { path: path.clone(), problem })?;
            check_num_tensors((whole.tensors.len() + part.tensors.len()) as u64)
                .map_err(problem)?;
            let GgufFile { files, tensors, .. } = part;
            for mut tensor in tensors {
                tensor.file = whole.files.len();
                if whole.index.insert(tensor.name.clone(), whole.tensors.len()).is_some() {
                    let name = excerpt(&tensor.name);
                    return Err(problem(GgufProblem::DuplicateName { name }));
                }
                whole.tensors.push(tensor);
            }
            whole.files.extend(files);
        }
        let promised = whole.count(NUM_TENSORS).map_err(problem)?.filter(|_| whole.files.len() > 1);
        match promised.filter(|promised| *promised != whole.tensors.len()) {
            Some(expected) => {
                let found = whole.tensors.len();
                Err(problem(GgufProblem::OtherParts { found, expected }))
            }
            None => Ok(whole),
        }
    }

    fn open_one(path: &Path) -> Result<GgufFile, GgufError> {
        let (file, file_bytes) = open_regular(path)?;
        let mut header = Vec::new();
        (&file)
            .take(MAX_HEADER_BYTES)
            .read_to_end(&mut header)
            .map_err(|source| FileError::Io { path: path.into(), source })?;
        let Header { values, tensors, num_bytes } = read_header(&header, file_bytes)
            .map_err(|problem| GgufError::Contents { path: path.into(), problem })?;
        header.truncate(num_bytes);
        header.shrink_to_fit();
        let index = tensors.iter().enumerate();
        let index = index.map(|(index, tensor)| (tensor.name.clone(), index)).collect();
        Ok(GgufFile { path: path.into(), files: vec![file], header, values, tensors, index })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors in the order of the header.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|index| &self.tensors[*index])
    }

    /// Fills `bytes` from the byte `offset` of a tensor of this file on.
    pub fn read_at(
        &self,
        tensor: &TensorInfo,
        bytes: &mut [u8],
        offset: u64,
    ) -> Result<(), GgufProblem> {
        Ok(self.files[tensor.file].read_exact_at(bytes, tensor.bytes.start + offset)?)
    }

    /// Whether there is a value at `key`.
    pub fn has_key(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The string at `key`.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => utf8(key, &self.header[range.clone()]).map(Some),
            Some(_) => Err(GgufProblem::WrongKind { key: key.into(), wanted: "a string" }),
        }
    }

    /// The boolean at `key`.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(GgufProblem::WrongKind { key: key.into(), wanted: "a boolean" }),
        }
    }

    /// The count, size or id at `key`: an integer from 0 to `i32::MAX`.
    pub fn count(&self, key: &str) -> Result<Option<usize>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Integer(found)) if (0..=i32::MAX as i128).contains(found) => {
                Ok(Some(*found as usize))
            }
            Some(Value::Integer(found)) => {
                let allowed = format!("values from 0 to {}", i32::MAX);
                Err(GgufProblem::UnsupportedValue {
                    key: key.into(),
                    found: found.to_string(),
                    allowed,
                })
            }
            Some(_) => Err(GgufProblem::WrongKind { key: key.into(), wanted: "an integer" }),
        }
    }

    /// The finite number at `key`. One stored as f32 comes back as the shortest decimal that means
    /// the same f32 (1e-5, not 9.99999974…e-6).
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(found)) if found.is_finite() => Ok(Some(*found)),
            Some(Value::Float(found)) => Err(GgufProblem::UnsupportedValue {
                key: key.into(),
                found: found.to_string(),
                allowed: "finite numbers".into(),
            }),
            Some(Value::Integer(found)) => Ok(Some(*found as f64)),
            Some(_) => Err(GgufProblem::WrongKind { key: key.into(), wanted: "a number" }),
        }
    }

    /// The array of strings at `key`.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufProblem> {
        let (bytes, count) = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Array { element: kind::TEXT, bytes, count }) => (bytes.clone(), *count),
            Some(_) => {
                return Err(GgufProblem::WrongKind {
                    key: key.into(),
                    wanted: "an array of strings",
                });
            }
        };
        let mut cursor = self.cursor(bytes);
        let mut texts = Vec::new();
        for _ in 0..count {
            let range = cursor.text("a text", u64::MAX)?;
            texts.push(utf8(key, &cursor.bytes[range])?);
        }
        Ok(Some(texts))
    }

    /// The array of integers at `key`.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufProblem> {
        let wrong = || GgufProblem::WrongKind { key: key.into(), wanted: "an array of integers" };
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

    /// The array of bytes at `key`.
    pub fn bytes(&self, key: &str) -> Result<Option<&[u8]>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array { element: kind::U8 | kind::I8, bytes, .. }) => {
                Ok(Some(&self.header[bytes.clone()]))
            }
            Some(_) => Err(GgufProblem::WrongKind { key: key.into(), wanted: "an array of bytes" }),
        }
    }

    /// The array of booleans at `key`.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufProblem> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array { element: kind::BOOL, bytes, .. }) => {
                Ok(Some(self.header[bytes.clone()].iter().map(|byte| *byte != 0).collect()))
            }
            Some(_) => {
                Err(GgufProblem::WrongKind { key: key.into(), wanted: "an array of booleans" })
            }
        }
    }

    /// The array of numbers at `key`, each as [`GgufFile::number`] gives it.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, GgufProblem> {
        let wrong = || GgufProblem::WrongKind { key: key.into(), wanted: "an array of numbers" };
        let (element, bytes, count) = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Array { element, bytes, count }) => (*element, bytes.clone(), *count),
            Some(_) => return Err(wrong()),
        };
        let mut cursor = self.cursor(bytes);
        let mut numbers = Vec::new();
        for _ in 0..count {
            match read_value(&mut cursor, key, element, 0)? {
                Value::Float(number) if number.is_finite() => numbers.push(number),
                Value::Integer(integer) => numbers.push(integer as f64),
                _ => return Err(wrong()),
            }
        }
        Ok(Some(numbers))
    }

    fn cursor(&self, range: Range<usize>) -> Cursor<'_> {
        let bytes = &self.header[range];
        Cursor { bytes, position: 0, file_bytes: bytes.len() as u64 }
    }
}

const NUM_PARTS: &str = "split.count";
const NUMBER_OF_PART: &str = "split.no";
const NUM_TENSORS: &str = "split.tensors.count";
/// Each stays open.
const MAX_PARTS: usize = 256;

/// The files beside a model's first part that have the rest of it.
fn other_parts(first: &GgufFile) -> Result<Vec<PathBuf>, GgufProblem> {
    let count = first.count(NUM_PARTS)?.unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    check_bound(NUM_PARTS, count as u64, count <= MAX_PARTS, &format!("at most {MAX_PARTS}"))?;
    let number = first.count(NUMBER_OF_PART)?.unwrap_or(0).saturating_add(1);
    let name = first.path.file_stem().unwrap_or_default().to_string_lossy();
    let end = |number: usize| format!("-{number:05}-of-{count:05}");
    let Some(model) = name.strip_suffix(&end(number)) else {
        return Err(GgufProblem::PartWithoutName { count, name: format!("NAME{}.gguf", end(1)) });
    };
    let name_of = |number| format!("{model}{}.gguf", end(number));
    if number != 1 {
        return Err(GgufProblem::NotTheFirst { number, count, first: name_of(1) });
    }
    let others: Vec<PathBuf> =
        (2..=count).map(|number| first.path.with_file_name(name_of(number))).collect();
    match others.iter().find(|part| !part.exists()) {
        Some(missing) => {
            let name = missing.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(GgufProblem::MissingPart { name, count })
        }
        None => Ok(others),
    }
}

/// Whether `part` is the next one of `whole`, by what both say.
fn check_part(part: &GgufFile, whole: &GgufFile) -> Result<(), GgufProblem> {
    let number = whole.files.len();
    let count = whole.count(NUM_PARTS)?;
    let expected = [
        (NUMBER_OF_PART, Some(number)),
        (NUM_PARTS, count),
        (NUM_TENSORS, whole.count(NUM_TENSORS)?),
    ];
    for (key, expected) in expected {
        let found = part.count(key)?;
        if found != expected {
            let said = |value: Option<usize>| value.map_or("absent".into(), |n| n.to_string());
            return Err(GgufProblem::WrongPart {
                number: number + 1,
                count: count.unwrap_or(1),
                key,
                found: said(found),
                expected: said(expected),
            });
        }
    }
    Ok(())
}

/// The name of a model in a file's name without its ending: `-00001-of-00003` is no part of it.
pub fn model_name(stem: &str) -> &str {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((rest, count)) = stem.rsplit_once("-of-") else { return stem };
    match rest.rsplit_once('-') {
        Some((name, number)) if is_number(count) && is_number(number) => name,
        _ => stem,
    }
}

fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, GgufProblem> {
    std::str::from_utf8(bytes).map_err(|_| GgufProblem::NotUtf8 { what: what.into() })
}

/// The parts of a header.
struct Header {
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    num_bytes: usize,
}

/// Reads a header from the first bytes of a file that is `file_bytes` long.
fn read_header(bytes: &[u8], file_bytes: u64) -> Result<Header, GgufProblem> {
    let mut cursor = Cursor { bytes, position: 0, file_bytes };
    let (num_keys, num_tensors) = read_preamble(&mut cursor)?;
    let values = read_values(&mut cursor, num_keys)?;
    let alignment = alignment(&values)?;
    let tensors = read_tensors(&mut cursor, num_tensors, alignment)?;
    Ok(Header { values, tensors, num_bytes: cursor.position })
}

/// Tensors begin at multiples of this many bytes.
fn alignment(values: &HashMap<String, Value>) -> Result<u64, GgufProblem> {
    const KEY: &str = "general.alignment";
    match values.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Integer(found)) => {
            let found = u64::try_from(*found).unwrap_or(0);
            let is_usable = found.is_power_of_two() && (8..=1 << 20).contains(&found);
            check_bound(KEY, found, is_usable, "a power of two from 8")?;
            Ok(found)
        }
        Some(_) => Err(GgufProblem::WrongKind { key: KEY.into(), wanted: "an integer" }),
    }
}

/// Of one file as of all parts together.
fn check_num_tensors(count: u64) -> Result<(), GgufProblem> {
    let allowed = format!("at most {MAX_TENSORS}");
    check_bound("the number of tensors", count, count <= MAX_TENSORS, &allowed)
}

/// Magic, version and the two counts: (keys, tensors).
fn read_preamble(cursor: &mut Cursor) -> Result<(u64, u64), GgufProblem> {
    let magic = cursor.bytes.get(..4);
    if magic.is_some_and(|magic| magic != b"GGUF") {
        return Err(GgufProblem::NotGguf);
    }
    cursor.take(4)?;
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(GgufProblem::UnsupportedVersion { found: version });
    }
    let num_tensors = cursor.u64()?;
    let num_keys = cursor.u64()?;
    check_num_tensors(num_tensors)?;
    check_bound(
        "the number of keys",
        num_keys,
        num_keys <= MAX_KEYS,
        &format!("at most {MAX_KEYS}"),
    )?;
    Ok((num_keys, num_tensors))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
#[path = "file_tests.rs"]
mod tests;
