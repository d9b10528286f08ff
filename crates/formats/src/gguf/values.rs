//! The metadata of a GGUF file: keys with values of thirteen kinds, read through a cursor that never
//! passes the end of the header.

use std::collections::HashMap;
use std::ops::Range;

use super::GgufProblem;
use crate::excerpt::excerpt;

/// Vocabulary and merges of the largest models take 20 MB.
pub const MAX_HEADER_BYTES: u64 = 64 << 20;
const MAX_NAME_BYTES: u64 = 1024;
const MAX_ARRAY_DEPTH: u32 = 3;

/// A metadata value; arrays stay undecoded, so that a hostile one costs no more memory than the
/// file.
pub enum Value {
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(Range<usize>),
    Array { element: u32, bytes: Range<usize>, count: u64 },
}

/// ggml's numbers for kinds of metadata values.
pub mod kind {
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
pub struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub position: usize,
    /// The length of the file, for the error where the header promises more.
    pub file_bytes: u64,
}

impl Cursor<'_> {
    /// The next `count` bytes.
    pub fn take(&mut self, count: u64) -> Result<Range<usize>, GgufProblem> {
        let start = self.position;
        let left = (self.bytes.len() - start) as u64;
        if count <= left {
            self.position += count as usize;
            return Ok(start..self.position);
        }
        let expected_bytes = (start as u64).saturating_add(count);
        if expected_bytes > self.file_bytes {
            return Err(GgufProblem::Truncated { expected_bytes, found_bytes: self.file_bytes });
        }
        Err(GgufProblem::OutOfBounds {
            what: "the header's size".into(),
            found: expected_bytes,
            allowed: format!("at most {MAX_HEADER_BYTES} bytes"),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufProblem> {
        let range = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    /// The next four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, GgufProblem> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, GgufProblem> {
        self.array().map(u64::from_le_bytes)
    }

    /// The bytes of a string with its length before it.
    pub fn text(&mut self, what: &str, max_bytes: u64) -> Result<Range<usize>, GgufProblem> {
        let length = self.u64()?;
        check_bound(what, length, length <= max_bytes, &format!("at most {max_bytes} bytes"))?;
        self.take(length)
    }

    /// A key or the name of a tensor.
    pub fn name(&mut self, what: &str) -> Result<String, GgufProblem> {
        let range = self.text(&format!("the length of {what}"), MAX_NAME_BYTES)?;
        String::from_utf8(self.bytes[range].to_vec())
            .map_err(|_| GgufProblem::NotUtf8 { what: what.into() })
    }
}

/// Fails unless `holds`, naming the number and the rule.
pub fn check_bound(what: &str, found: u64, holds: bool, allowed: &str) -> Result<(), GgufProblem> {
    if holds {
        return Ok(());
    }
    Err(GgufProblem::OutOfBounds { what: what.into(), found, allowed: allowed.into() })
}

/// Reads `count` keys with their values.
pub fn read_values(cursor: &mut Cursor, count: u64) -> Result<HashMap<String, Value>, GgufProblem> {
    let mut values = HashMap::new();
    for _ in 0..count {
        let key = cursor.name("a key")?;
        let kind = cursor.u32()?;
        let value = read_value(cursor, &key, kind, 0)?;
        if values.contains_key(&key) {
            return Err(GgufProblem::DuplicateName { name: excerpt(key) });
        }
        values.insert(key, value);
    }
    Ok(values)
}

/// Reads one value of that kind; `depth` counts the arrays around it.
pub fn read_value(
    cursor: &mut Cursor,
    key: &str,
    kind: u32,
    depth: u32,
) -> Result<Value, GgufProblem> {
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
            check_bound(
                &format!("{:?}", excerpt(key)),
                byte.into(),
                byte <= 1,
                "0 or 1 for a boolean",
            )?;
            Value::Bool(byte == 1)
        }
        kind::TEXT => Value::Text(cursor.text(key, u64::MAX)?),
        kind::ARRAY => {
            let element = cursor.u32()?;
            let count = cursor.u64()?;
            let start = cursor.position;
            skip_elements(cursor, key, element, count, depth)?;
            Value::Array { element, bytes: start..cursor.position, count }
        }
        unknown => return Err(unknown_kind(key, unknown)),
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
) -> Result<(), GgufProblem> {
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
            check_bound(
                &format!("the nesting of {:?}", excerpt(key)),
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
        unknown => Err(unknown_kind(key, unknown)),
    }
}

fn unknown_kind(key: &str, found: u32) -> GgufProblem {
    let what = format!("the kind of {:?}", excerpt(key));
    GgufProblem::OutOfBounds { what, found: found.into(), allowed: "0 to 12".into() }
}

/// The f64 whose decimal form is the shortest that reads back as this f32.
fn shortest(value: f32) -> f64 {
    // Display of a float always parses; the fallback is the same number with more digits.
    format!("{value:e}").parse().unwrap_or(f64::from(value))
}
