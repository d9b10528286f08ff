//! Checks a safetensors file before anything else reads it, and reads tensors from the very file
//! that was checked.
//!
//! The format's own rules (tensors lie end to end and fill the file) are applied together with
//! stricter ones that MLX needs: every dimension between 1 (0 in prompt caches) and `i32::MAX`,
//! unique names, a closed list of dtypes, a bounded header. Links no MLX.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::file::{FileError, open_regular, read_file};

/// The bytes before the header: its length as a little-endian u64.
const LENGTH_BYTES: u64 = 8;
/// No model has more dimensions; a shape of a million ones is an attack.
const MAX_RANK: usize = 16;

/// How much of a file may be header; parsing a hostile one costs about 15 times its size in memory.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest accepted header, in bytes.
    pub header_bytes: u64,
    /// The least length of a dimension. MLX takes no empty tensors from us, but mlx-lm's prompt
    /// caches name absent arrays by them.
    pub least_dimension: u64,
}

impl Limits {
    /// For model weights: 64 MiB.
    pub const MODEL: Limits = Limits { header_bytes: 64 << 20, least_dimension: 1 };
    /// For prompt caches: 8 MiB.
    pub const CACHE: Limits = Limits { header_bytes: 8 << 20, least_dimension: 0 };
}

/// Why a safetensors file, or a folder of them, was refused.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It cannot be opened or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file ends before what its header promises.
    #[error("{path} is incomplete: it has {found_bytes} bytes, but should have at least {expected_bytes}; download or import it again", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What its header promises.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// Bytes follow the last tensor.
    #[error("{path} is damaged: it has {found_bytes} bytes, but its last tensor ends at {expected_bytes}; download or import it again", path = path.display())]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// Where the last tensor ends.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// The header is longer than the limit.
    #[error("{path} is damaged or no safetensors file: its header claims {found_bytes} bytes, at most {allowed_bytes} are allowed; download or import it again", path = path.display())]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// What it claims.
        found_bytes: u64,
        /// The limit.
        allowed_bytes: u64,
    },
    /// The header (or the index beside the shards) is not the JSON it should be.
    #[error("{path} has an unreadable header: {source}; download or import it again", path = path.display(), source = brief(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A tensor name or metadata key occurs twice in one file.
    #[error("{path}: the name {name:?} occurs twice; download or import it again", path = path.display())]
    DuplicateName {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A tensor occurs in two files of one model.
    #[error("tensor {name:?} is in {first} and in {second}", first = first.display(), second = second.display())]
    DuplicateTensor {
        /// The tensor.
        name: String,
        /// The file that has it.
        first: PathBuf,
        /// The file that has it again.
        second: PathBuf,
    },
    /// A dtype outside the list.
    #[error("{path}: tensor {name:?} has dtype {found:?}; allowed are {allowed}; download or import it again", path = path.display(), allowed = Dtype::names())]
    UnknownDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The dtype found.
        found: String,
    },
    /// A dimension is zero or beyond `i32::MAX`, there are too many, or their product overflows.
    #[error("{path}: tensor {name:?} has shape {shape:?}; each dimension must be from {least} to {max}, with {MAX_RANK} dimensions at most; download or import it again", path = path.display(), max = i32::MAX)]
    BadShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shape, cut after the allowed number of dimensions.
        shape: Vec<u64>,
        /// The least length of a dimension.
        least: u64,
    },
    /// The offsets do not continue where the tensor before ended, or do not fit the shape.
    #[error("{path}: tensor {name:?} lies at bytes {found:?}, expected {expected:?}; download or import it again", path = path.display())]
    BadOffsets {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The offsets found, counted from the end of the header.
        found: (u64, u64),
        /// The offsets that fit.
        expected: (u64, u64),
    },
    /// No tensor has this name.
    #[error("{path} has no tensor {name:?}", path = path.display())]
    NoSuchTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// A model folder without weights.
    #[error("{folder} has no model.safetensors or model*.safetensors", folder = folder.display())]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// The index names a file that is not in the folder, or not a plain file name.
    #[error("{index} names {file:?}, which is not in the folder; download or import the model again", index = index.display())]
    MissingShard {
        /// The index file.
        index: PathBuf,
        /// The name in it.
        file: String,
    },
}

macro_rules! dtypes {
    ($($variant:ident $name:literal $bytes:literal),+ $(,)?) => {
        /// The element types that a file may hold.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // each variant is its own name
        pub enum Dtype { $($variant),+ }

        impl Dtype {
            /// Every dtype with its name in the file.
            pub const ALL: &[(Dtype, &'static str)] = &[$((Dtype::$variant, $name)),+];

            /// The name in the file.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),+ }
            }

            /// Bytes of one element.
            pub fn size_bytes(self) -> u64 {
                match self { $(Dtype::$variant => $bytes),+ }
            }
        }
    };
}

dtypes! {
    F32 "F32" 4, F16 "F16" 2, Bf16 "BF16" 2,
    U32 "U32" 4, I32 "I32" 4, U8 "U8" 1, I8 "I8" 1, U16 "U16" 2, I16 "I16" 2, I64 "I64" 8, U64 "U64" 8,
    Bool "BOOL" 1,
}

impl Dtype {
    fn parse(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
    }

    fn names() -> String {
        Dtype::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
    }
}

/// One tensor of a checked file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The name, unique in the file.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// Row-major; empty for a scalar; every dimension is from 1 (0 in prompt caches) to `i32::MAX`.
    pub shape: Vec<usize>,
    /// Where the values lie, counted from the start of the file.
    pub bytes: Range<u64>,
}

/// A file that passed the check, still open: what is read later comes from the same inode, even if
/// the path was replaced.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    tensors: Vec<TensorEntry>,
    position: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens and checks `path`; reads the header only.
    pub fn open(path: &Path, limits: Limits) -> Result<SafetensorsFile, CheckError> {
        let (file, file_bytes) = open_regular(path)?;
        let header = read_header(path, &file, file_bytes, limits)?;
        let data_start = LENGTH_BYTES + header.len() as u64;
        let parsed: Header = serde_json::from_slice(&header)
            .map_err(|source| CheckError::Json { path: path.into(), source })?;
        if let Some(name) = parsed.duplicate {
            return Err(CheckError::DuplicateName { path: path.into(), name: brief(name) });
        }
        let tensors = check_tensors(path, parsed.tensors, data_start, limits.least_dimension)?;
        let expected_bytes = tensors.last().map_or(data_start, |last| last.bytes.end);
        if file_bytes < expected_bytes {
            return Err(CheckError::Truncated {
                path: path.into(),
                expected_bytes,
                found_bytes: file_bytes,
            });
        }
        if file_bytes > expected_bytes {
            return Err(CheckError::TrailingBytes {
                path: path.into(),
                expected_bytes,
                found_bytes: file_bytes,
            });
        }
        let mut position = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if position.insert(tensor.name.clone(), i).is_some() {
                return Err(CheckError::DuplicateName {
                    path: path.into(),
                    name: brief(&tensor.name),
                });
            }
        }
        Ok(SafetensorsFile {
            path: path.into(),
            file,
            tensors,
            position,
            metadata: parsed.metadata,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for a reader that must see the bytes that were checked.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// All tensors in the order of their bytes.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.position.get(name).map(|i| &self.tensors[*i])
    }

    /// The `__metadata__` map; empty if the file has none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Bytes of all tensors together.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum()
    }

    /// The little-endian bytes of one tensor.
    pub fn read_tensor(&self, name: &str) -> Result<Vec<u8>, CheckError> {
        let entry = self.tensor(name).ok_or_else(|| CheckError::NoSuchTensor {
            path: self.path.clone(),
            name: name.into(),
        })?;
        // The length was checked against the file's size, so this allocates no more than the file
        // holds.
        let mut bytes = vec![0; (entry.bytes.end - entry.bytes.start) as usize];
        self.read_at(&mut bytes, entry.bytes.start)?;
        Ok(bytes)
    }

    /// Fills `bytes` from the file's byte `position` on.
    pub fn read_at(&self, bytes: &mut [u8], position: u64) -> Result<(), CheckError> {
        self.file
            .read_exact_at(bytes, position)
            .map_err(|source| FileError::Io { path: self.path.clone(), source }.into())
    }
}

/// Checks all weight files of a model folder: `model*.safetensors` and whatever
/// `model.safetensors.index.json` names.
///
/// A shard that the index names and the folder lacks, or a tensor that two files hold, is an error.
pub fn check_weight_files(folder: &Path) -> Result<Vec<SafetensorsFile>, CheckError> {
    let mut names = BTreeSet::new();
    let entries = std::fs::read_dir(folder)
        .map_err(|source| FileError::Io { path: folder.into(), source })?;
    for entry in entries {
        let entry = entry.map_err(|source| FileError::Io { path: folder.into(), source })?;
        if let Ok(name) = entry.file_name().into_string()
            && name.starts_with("model")
            && name.ends_with(".safetensors")
        {
            names.insert(name);
        }
    }
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        for file in shards_in_index(&index)? {
            let is_plain = !file.contains(['/', '\\', '\0']) && file.ends_with(".safetensors");
            if !is_plain || !folder.join(&file).is_file() {
                return Err(CheckError::MissingShard { index, file: brief(file) });
            }
            names.insert(file);
        }
    }
    if names.is_empty() {
        return Err(CheckError::NoWeights { folder: folder.into() });
    }

    let mut files: Vec<SafetensorsFile> = Vec::with_capacity(names.len());
    let mut holder: HashMap<String, PathBuf> = HashMap::new();
    for name in names {
        let file = SafetensorsFile::open(&folder.join(name), Limits::MODEL)?;
        for tensor in file.tensors() {
            if let Some(first) = holder.insert(tensor.name.clone(), file.path.clone()) {
                return Err(CheckError::DuplicateTensor {
                    name: brief(&tensor.name),
                    first,
                    second: file.path,
                });
            }
        }
        files.push(file);
    }
    Ok(files)
}

fn shards_in_index(index: &Path) -> Result<BTreeSet<String>, CheckError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let text = read_file(index, Limits::MODEL.header_bytes)?;
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|source| CheckError::Json { path: index.into(), source })?;
    Ok(parsed.weight_map.into_values().collect())
}

fn read_header(
    path: &Path,
    file: &File,
    file_bytes: u64,
    limits: Limits,
) -> Result<Vec<u8>, CheckError> {
    let truncated = |expected_bytes| CheckError::Truncated {
        path: path.into(),
        expected_bytes,
        found_bytes: file_bytes,
    };
    let io_error = |source| FileError::Io { path: path.into(), source };
    if file_bytes < LENGTH_BYTES {
        return Err(truncated(LENGTH_BYTES));
    }
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact_at(&mut length, 0).map_err(io_error)?;
    let header_bytes = u64::from_le_bytes(length);
    if header_bytes > limits.header_bytes {
        return Err(CheckError::HeaderTooLarge {
            path: path.into(),
            found_bytes: header_bytes,
            allowed_bytes: limits.header_bytes,
        });
    }
    if file_bytes - LENGTH_BYTES < header_bytes {
        return Err(truncated(LENGTH_BYTES + header_bytes));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact_at(&mut header, LENGTH_BYTES).map_err(io_error)?;
    Ok(header)
}

/// Applies the rules to each tensor, in the order of their bytes: each must begin where the one
/// before ended.
fn check_tensors(
    path: &Path,
    mut raw: Vec<(String, RawTensor)>,
    data_start: u64,
    least_dimension: u64,
) -> Result<Vec<TensorEntry>, CheckError> {
    raw.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let mut end = 0_u64;
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, tensor) in raw {
        let Some(dtype) = Dtype::parse(&tensor.dtype) else {
            return Err(CheckError::UnknownDtype {
                path: path.into(),
                name: brief(name),
                found: brief(tensor.dtype),
            });
        };
        // The file's offsets are added to `data_start` below; what fits an i64 cannot overflow
        // there.
        let size_bytes = size_of_shape(&tensor.shape, least_dimension)
            .and_then(|elements| elements.checked_mul(dtype.size_bytes()))
            .filter(|size| end.checked_add(*size).is_some_and(|end| end <= i64::MAX as u64 / 2));
        let Some(size_bytes) = size_bytes else {
            let shape = tensor.shape.into_iter().take(MAX_RANK + 1).collect();
            return Err(CheckError::BadShape {
                path: path.into(),
                name: brief(name),
                shape,
                least: least_dimension,
            });
        };
        let expected = (end, end + size_bytes);
        if tensor.data_offsets != expected {
            return Err(CheckError::BadOffsets {
                path: path.into(),
                name: brief(name),
                found: tensor.data_offsets,
                expected,
            });
        }
        end = expected.1;
        let shape = tensor.shape.into_iter().map(|dim| dim as usize).collect();
        tensors.push(TensorEntry {
            name,
            dtype,
            shape,
            bytes: data_start + expected.0..data_start + expected.1,
        });
    }
    Ok(tensors)
}

/// A file's own words, short enough to be repeated in an error: a hostile name can be megabytes
/// long.
fn brief(text: impl fmt::Display) -> String {
    const MAX_CHARS: usize = 120;
    let text = text.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The number of elements, if every dimension is allowed and the product fits.
fn size_of_shape(shape: &[u64], least: u64) -> Option<u64> {
    if shape.len() > MAX_RANK {
        return None;
    }
    shape.iter().try_fold(1_u64, |elements, &dim| {
        if (least..=i32::MAX as u64).contains(&dim) { elements.checked_mul(dim) } else { None }
    })
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header as written, with the first name that occurs twice: a map type would keep the last
/// entry and say nothing.
#[derive(Default)]
struct Header {
    tensors: Vec<(String, RawTensor)>,
    metadata: BTreeMap<String, String>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        header.tensors.push((name, map.next_value()?));
                    } else if has_metadata {
                        header.duplicate.get_or_insert(name);
                        map.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        has_metadata = true;
                        // MLX writes null where there is nothing to say.
                        let Texts { entries, duplicate } =
                            map.next_value::<Option<Texts>>()?.unwrap_or_default();
                        header.metadata = entries;
                        header.duplicate = header.duplicate.or(duplicate);
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// The metadata map, with the first key that occurs twice.
#[derive(Default)]
struct Texts {
    entries: BTreeMap<String, String>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        struct TextsVisitor;
        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = Texts::default();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    match texts.entries.entry(key) {
                        Entry::Vacant(place) => {
                            place.insert(value);
                        }
                        Entry::Occupied(first) => {
                            texts.duplicate.get_or_insert_with(|| first.key().clone());
                        }
                    }
                }
                Ok(texts)
            }
        }
        deserializer.deserialize_map(TextsVisitor)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// A file of this header and this many bytes of values.
    fn file_of(header: &str, data_bytes: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data_bytes]].concat()
    }

    fn open(bytes: &[u8], limits: Limits) -> Result<SafetensorsFile, CheckError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        SafetensorsFile::open(&path, limits)
    }

    fn refused(bytes: &[u8], expected: &str) {
        let found =
            open(bytes, Limits::MODEL).err().map_or("no refusal".into(), |error| error.to_string());
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
        assert!(found.contains("model.safetensors"), "{found:?} names no file");
    }

    fn tensor(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
        format!(r#"{name:?}:{{"dtype":{dtype:?},"shape":{shape},"data_offsets":{offsets}}}"#)
    }

    /// One tensor `w` of two bytes a value, claimed to fill the bytes that its offsets say.
    fn one(shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
        file_of(&format!("{{{}}}", tensor("w", "F16", shape, offsets)), data_bytes)
    }

    #[test]
    fn a_file_is_read_as_the_crate_wrote_it() {
        let values: Vec<u8> = (0..24).collect();
        let view = |shape: &[usize], data: &'static [u8]| {
            safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape.into(), data)
        };
        let long: &'static [u8] = values.clone().leak();
        let tensors = [
            ("b", view(&[2, 6], long).unwrap()),
            ("a", view(&[], &[1, 2]).unwrap()),
            ("c", view(&[1], &[3, 4]).unwrap()),
        ];
        let metadata = HashMap::from([("format".to_string(), "mlx".to_string())]);
        let file =
            open(&safetensors::serialize(tensors, Some(metadata)).unwrap(), Limits::CACHE).unwrap();
        assert_eq!(file.metadata().get("format").unwrap(), "mlx");
        let found: Vec<_> = file
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice()))
            .collect();
        assert_eq!(found, [("a", &[][..]), ("b", &[2, 6]), ("c", &[1])]);
        assert_eq!((file.tensor("b").unwrap().dtype, file.data_bytes()), (Dtype::Bf16, 28));
        assert_eq!(file.read_tensor("a").unwrap(), [1, 2]);
        assert_eq!(file.read_tensor("b").unwrap(), values);
        assert!(matches!(file.read_tensor("d"), Err(CheckError::NoSuchTensor { .. })));
    }

    #[test]
    fn every_allowed_dtype_has_the_size_that_the_format_gives_it() {
        for (dtype, name) in Dtype::ALL {
            let known: safetensors::Dtype = serde_json::from_str(&format!("{name:?}")).unwrap();
            assert_eq!(known.bitsize() as u64, 8 * dtype.size_bytes(), "{name}");
            assert_eq!(dtype.name(), *name);
        }
        for name in ["F64", "C64", "F8_E4M3", "F4", "f32", ""] {
            let header = format!("{{{}}}", tensor("w", name, "[2]", "[0,16]"));
            refused(
                &file_of(&header, 16),
                &format!("tensor \"w\" has dtype {name:?}; allowed are F32, F16, BF16"),
            );
        }
    }

    #[test]
    fn lies_about_the_header_are_refused() {
        refused(b"", "it has 0 bytes, but should have at least 8; download or import it again");
        refused(b"1234567", "it has 7 bytes, but should have at least 8");
        refused(
            &u64::MAX.to_le_bytes(),
            "its header claims 18446744073709551615 bytes, at most 67108864 are allowed",
        );
        refused(&(64_u64 << 20).to_le_bytes(), "it has 8 bytes, but should have at least 67108872");
        refused(
            &[&99_u64.to_le_bytes()[..], b"{}"].concat(),
            "it has 10 bytes, but should have at least 107",
        );
        refused(&file_of("", 0), "unreadable header");
        refused(&file_of("[]", 0), "unreadable header");
        refused(&file_of("{} {}", 0), "unreadable header");
        refused(
            &file_of(&format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)), 0),
            "unreadable header",
        );
        refused(&file_of(r#"{"__metadata__":{"a":1}}"#, 0), "unreadable header");
        refused(
            &[&4_u64.to_le_bytes()[..], &[b'{', 0xff, b'"', b'}']].concat(),
            "unreadable header",
        );
        let long = format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "x".repeat(9 << 20));
        assert!(matches!(
            open(&file_of(&long, 0), Limits::CACHE),
            Err(CheckError::HeaderTooLarge { .. })
        ));
        assert!(open(&file_of(&long, 0), Limits::MODEL).is_ok());
    }

    #[test]
    fn shapes_are_positive_and_bounded() {
        refused(
            &one("[0]", "[0,0]", 0),
            r#"tensor "w" has shape [0]; each dimension must be from 1 to 2147483647"#,
        );
        refused(&one("[0,4611686018427387904]", "[0,0]", 0), "has shape [0, 4611686018427387904]");
        refused(&one("[1,0,1]", "[0,0]", 0), "has shape [1, 0, 1]");
        refused(&one("[4294967297]", "[0,8589934594]", 0), "has shape [4294967297]");
        refused(&one("[2147483647,2147483647,2147483647]", "[0,2]", 2), "has shape [2147483647");
        refused(
            &one("[2147483647,2147483647]", "[0,9223372028264841218]", 2),
            "has shape [2147483647",
        );
        refused(&one("[-1]", "[0,2]", 2), "unreadable header");
        refused(&one("[1.5]", "[0,2]", 2), "unreadable header");
        refused(&one(&format!("{:?}", [1; 17]), "[0,2]", 2), "with 16 dimensions at most");
        assert!(open(&one("[]", "[0,2]", 2), Limits::CACHE).is_ok());
        assert!(open(&one("[0]", "[0,0]", 0), Limits::CACHE).is_ok());
        assert!(
            open(&file_of(r#"{"__metadata__":null}"#, 0), Limits::MODEL)
                .unwrap()
                .metadata()
                .is_empty()
        );
        assert!(open(&one("[0,4294967296]", "[0,0]", 0), Limits::CACHE).is_err());
        assert!(open(&one(&format!("{:?}", [1; 16]), "[0,2]", 2), Limits::CACHE).is_ok());
    }

    #[test]
    fn tensors_fill_the_file_end_to_end() {
        refused(
            &one("[2]", "[0,4]", 3),
            "it has 65 bytes, but should have at least 66; download or import it again",
        );
        refused(&one("[2]", "[0,4]", 5), "67 bytes, but its last tensor ends at 66");
        refused(&one("[2]", "[0,5]", 5), "lies at bytes (0, 5), expected (0, 4)");
        refused(&one("[2]", "[1,5]", 5), "lies at bytes (1, 5), expected (0, 4)");
        refused(&one("[2]", "[4,0]", 4), "lies at bytes (4, 0)");
        refused(
            &one("[2]", "[18446744073709551612,18446744073709551615]", 4),
            "lies at bytes (18446744073709551612",
        );
        let overlapping = format!(
            "{{{},{}}}",
            tensor("a", "U8", "[4]", "[0,4]"),
            tensor("b", "U8", "[4]", "[2,6]")
        );
        refused(&file_of(&overlapping, 6), r#"tensor "b" lies at bytes (2, 6), expected (4, 8)"#);
        refused(&file_of("{}", 1), "11 bytes, but its last tensor ends at 10");
    }

    #[test]
    fn names_occur_once() {
        let twice = format!(
            "{{{},{}}}",
            tensor("w", "U8", "[4]", "[0,4]"),
            tensor("w", "U8", "[4]", "[4,8]")
        );
        refused(&file_of(&twice, 8), r#"the name "w" occurs twice"#);
        refused(
            &file_of(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0),
            r#"the name "k" occurs twice"#,
        );
        refused(
            &file_of(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
            r#"the name "__metadata__" occurs twice"#,
        );
    }

    #[test]
    fn a_truncated_or_altered_file_is_refused_without_a_panic() {
        let header = format!(
            "{{{},{}}}",
            tensor("a", "F32", "[4,4]", "[0,64]"),
            tensor("b", "U8", "[64]", "[64,128]")
        );
        let mut bytes = file_of(&header, 128);
        for part in 0..64 {
            let end = bytes.len() * part / 64;
            assert!(
                matches!(open(&bytes[..end], Limits::MODEL), Err(CheckError::Truncated { .. })),
                "at {end}"
            );
        }
        for at in 0..bytes.len() - 128 {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                // What is still accepted must be accepted by the format's own reader too.
                if open(&bytes, Limits::MODEL).is_ok() {
                    assert!(
                        safetensors::SafeTensors::deserialize(&bytes).is_ok(),
                        "byte {at}, bit {bit}"
                    );
                }
                bytes[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn tensors_come_from_the_file_that_was_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, one("[1]", "[0,2]", 2)).unwrap();
        let file = SafetensorsFile::open(&path, Limits::MODEL).unwrap();
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        std::fs::write(&path, "another file").unwrap();
        assert_eq!(file.read_tensor("w").unwrap(), [0, 0]);
        assert!(matches!(
            SafetensorsFile::open(folder.path(), Limits::MODEL),
            Err(CheckError::File(FileError::NotAFile { .. }))
        ));
    }

    /// Writes a folder of (file, contents) and checks its weights: the number of files, or the
    /// sentence of the refusal.
    fn check_folder(contents: &[(&str, Vec<u8>)], expected: Result<usize, &str>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in contents {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        match (check_weight_files(folder.path()), expected) {
            (Ok(files), Ok(count)) => assert_eq!(files.len(), count),
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "expected {part:?}, found {error}")
            }
            (found, expected) => panic!("expected {expected:?}, found {found:?}"),
        }
    }

    #[test]
    fn a_models_files_are_found_and_must_agree() {
        let shard = |name: &str| file_of(&format!("{{{}}}", tensor(name, "U8", "[4]", "[0,4]")), 4);
        let index = |file: &str| {
            (
                "model.safetensors.index.json",
                format!(r#"{{"metadata":{{}},"weight_map":{{"a":{file:?}}}}}"#).into_bytes(),
            )
        };
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        check_folder(&[], Err("has no model.safetensors or model*.safetensors"));
        check_folder(&[("adapters.safetensors", shard("a"))], Err("has no model.safetensors"));
        check_folder(
            &[("model.safetensors", shard("a")), ("adapters.safetensors", b"not read".to_vec())],
            Ok(1),
        );
        check_folder(&[(one, shard("a")), (two, shard("b"))], Ok(2));
        check_folder(&[(one, shard("a")), (two, shard("b")), index(one)], Ok(2));
        check_folder(&[("weights.safetensors", shard("a")), index("weights.safetensors")], Ok(1));
        check_folder(&[(one, shard("a")), (two, shard("a"))], Err(r#"tensor "a" is in "#));
        check_folder(
            &[(one, shard("a")), index(two)],
            Err(r#"names "model-00002-of-00002.safetensors", which is not in the folder"#),
        );
        check_folder(
            &[(one, shard("a")), index("../model.safetensors")],
            Err(r#"names "../model.safetensors""#),
        );
        check_folder(&[(one, shard("a")), index("model.bin")], Err(r#"names "model.bin""#));
        check_folder(
            &[(one, shard("a")), ("model.safetensors.index.json", b"{}".to_vec())],
            Err("unreadable header"),
        );
        check_folder(
            &[(one, shard("a")), (two, b"12".to_vec())],
            Err("model-00002-of-00002.safetensors is incomplete: it has 2 bytes"),
        );
    }
}
