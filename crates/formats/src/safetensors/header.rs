//! The header of a safetensors file: its JSON is parsed, then every rule of the format is applied
//! to it. Knows the file's length but not the file.

use std::collections::{BTreeMap, HashMap, btree_map, hash_map};
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::{Dtype, HeaderProblem, Limits, TensorEntry};
use crate::excerpt::excerpt;

/// The bytes before the header: its length as a little-endian u64.
pub(super) const LENGTH_BYTES: u64 = 8;
/// No model has more dimensions; a shape of a million ones is an attack.
pub(super) const MAX_RANK: usize = 16;
/// Models of a thousand experts in each layer have that many in all their files together.
pub(super) const MAX_TENSORS: usize = 1 << 17;

/// A header that follows the rules.
pub(super) struct Header {
    /// In the order of their bytes, end to end, the last one ending with the file.
    pub tensors: Vec<TensorEntry>,
    pub metadata: BTreeMap<String, String>,
}

/// The header's length in bytes, from the file's first eight.
pub(super) fn header_bytes(
    length: [u8; LENGTH_BYTES as usize],
    file_bytes: u64,
    limits: Limits,
) -> Result<usize, HeaderProblem> {
    let found_bytes = u64::from_le_bytes(length);
    if found_bytes > limits.header_bytes {
        let allowed_bytes = limits.header_bytes;
        return Err(HeaderProblem::TooLong { found_bytes, allowed_bytes });
    }
    let expected_bytes = LENGTH_BYTES + found_bytes;
    if file_bytes < expected_bytes {
        return Err(HeaderProblem::Truncated { expected_bytes, found_bytes: file_bytes });
    }
    Ok(found_bytes as usize)
}

impl Header {
    /// Parses the JSON of a file that is `file_bytes` long.
    pub fn parse(json: &[u8], file_bytes: u64, limits: Limits) -> Result<Header, HeaderProblem> {
        let RawHeader { tensors, metadata, has_too_many } =
            serde_json::from_slice(json).map_err(|source| HeaderProblem::Json { source })?;
        if has_too_many {
            return Err(HeaderProblem::TooManyTensors);
        }
        let data_start = LENGTH_BYTES + json.len() as u64;
        let tensors = check_tensors(tensors, data_start, limits.least_dimension)?;
        let expected_bytes = tensors.last().map_or(data_start, |last| last.bytes.end);
        let found_bytes = file_bytes;
        if found_bytes < expected_bytes {
            return Err(HeaderProblem::Truncated { expected_bytes, found_bytes });
        }
        if found_bytes > expected_bytes {
            return Err(HeaderProblem::TrailingBytes { expected_bytes, found_bytes });
        }
        Ok(Header { tensors, metadata })
    }
}

/// Applies the rules to each tensor, in the order of their bytes: each must begin where the one
/// before ended.
fn check_tensors(
    raw: HashMap<String, RawTensor>,
    data_start: u64,
    least_dimension: u64,
) -> Result<Vec<TensorEntry>, HeaderProblem> {
    let mut raw: Vec<(String, RawTensor)> = raw.into_iter().collect();
    // By name too, so that which of two empty tensors comes first does not depend on chance.
    raw.sort_by(|(a_name, a), (b_name, b)| {
        a.data_offsets.cmp(&b.data_offsets).then_with(|| a_name.cmp(b_name))
    });
    let mut end = 0_u64;
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, tensor) in raw {
        let Some(dtype) = Dtype::parse(&tensor.dtype) else {
            let (name, found) = (excerpt(name), excerpt(tensor.dtype));
            return Err(HeaderProblem::UnknownDtype { name, found });
        };
        // `data_start` is added to the offsets below; half of an i64 leaves room for that.
        let size_bytes = num_elements(&tensor.shape, least_dimension)
            .and_then(|elements| elements.checked_mul(dtype.size_bytes()))
            .filter(|size| end.checked_add(*size).is_some_and(|end| end <= i64::MAX as u64 / 2));
        let Some(size_bytes) = size_bytes else {
            let shape = tensor.shape.into_iter().take(MAX_RANK + 1).collect();
            let (name, least) = (excerpt(name), least_dimension);
            return Err(HeaderProblem::BadShape { name, shape, least });
        };
        let expected = (end, end + size_bytes);
        if tensor.data_offsets != expected {
            let (name, found) = (excerpt(name), tensor.data_offsets);
            return Err(HeaderProblem::BadOffsets { name, found, expected });
        }
        end = expected.1;
        let shape = tensor.shape.into_iter().map(|dim| dim as usize).collect();
        let bytes = data_start + expected.0..data_start + expected.1;
        tensors.push(TensorEntry { name, dtype, shape, bytes });
    }
    Ok(tensors)
}

/// The number of elements, if every dimension is allowed and the product fits.
fn num_elements(shape: &[u64], least: u64) -> Option<u64> {
    if shape.len() > MAX_RANK {
        return None;
    }
    shape.iter().try_fold(1_u64, |elements, &dim| {
        if (least..=i32::MAX as u64).contains(&dim) { elements.checked_mul(dim) } else { None }
    })
}

#[derive(serde::Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header as written. A name that occurs twice is an error, where serde's own maps would keep
/// the last entry.
#[derive(Default)]
struct RawHeader {
    tensors: HashMap<String, RawTensor>,
    metadata: BTreeMap<String, String>,
    /// There are more tensors than [`MAX_TENSORS`], which are not kept.
    has_too_many: bool,
}

fn occurs_twice<E: Error>(name: &str) -> E {
    E::custom(format_args!("the name {:?} occurs twice", excerpt(name)))
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawHeader, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(occurs_twice(&name));
                        }
                        // MLX writes null where there is nothing to say.
                        let metadata = map.next_value::<Option<Metadata>>()?;
                        header.metadata = metadata.unwrap_or_default().0;
                        continue;
                    }
                    if header.tensors.len() == MAX_TENSORS {
                        header.has_too_many = true;
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    match header.tensors.entry(name) {
                        hash_map::Entry::Vacant(entry) => drop(entry.insert(map.next_value()?)),
                        hash_map::Entry::Occupied(entry) => return Err(occurs_twice(entry.key())),
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

/// The metadata map, of keys that occur once.
#[derive(Default)]
struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut metadata = Metadata::default();
                while let Some(key) = map.next_key::<String>()? {
                    match metadata.0.entry(key) {
                        btree_map::Entry::Vacant(entry) => drop(entry.insert(map.next_value()?)),
                        btree_map::Entry::Occupied(entry) => return Err(occurs_twice(entry.key())),
                    }
                }
                Ok(metadata)
            }
        }
        deserializer.deserialize_map(MetadataVisitor)
    }
}
