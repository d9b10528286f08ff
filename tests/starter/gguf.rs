//! A second reader of GGUF, written from the format's description to check the first: version 3;
//! F32, Q4_1 and Q8_0.

use std::collections::BTreeMap;
use std::path::Path;

/// The file, and where its tensors lie in it.
pub struct Gguf {
    bytes: Vec<u8>,
    tensors: BTreeMap<String, Tensor>,
}

struct Tensor {
    columns: usize,
    num_elements: usize,
    type_id: u32,
    start: usize,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl Cursor<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes[self.position..self.position + N].try_into().expect("N bytes");
        self.position += N;
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn size(&mut self) -> usize {
        u64::from_le_bytes(self.take()) as usize
    }

    fn text(&mut self) -> String {
        let length = self.size();
        self.position += length;
        String::from_utf8_lossy(&self.bytes[self.position - length..self.position]).into_owned()
    }

    fn skip_value(&mut self, type_id: u32) {
        match type_id {
            0 | 1 | 7 => self.position += 1,
            2 | 3 => self.position += 2,
            4..=6 => self.position += 4,
            8 => drop(self.text()),
            9 => {
                let (element, count) = (self.u32(), self.size());
                (0..count).for_each(|_| self.skip_value(element));
            }
            10..=12 => self.position += 8,
            other => panic!("no value has the type {other}"),
        }
    }
}

impl Gguf {
    pub fn open(path: &Path) -> Gguf {
        let bytes = std::fs::read(path).expect("the file");
        let mut cursor = Cursor { bytes: &bytes, position: 0 };
        assert_eq!((&cursor.take(), cursor.u32()), (b"GGUF", 3));
        let (num_tensors, num_keys) = (cursor.size(), cursor.size());
        for _ in 0..num_keys {
            let key = cursor.text();
            assert_ne!(key, "general.alignment", "32 is assumed below");
            let type_id = cursor.u32();
            cursor.skip_value(type_id);
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..num_tensors {
            let name = cursor.text();
            // Innermost first.
            let shape: Vec<usize> = (0..cursor.u32()).map(|_| cursor.size()).collect();
            let (type_id, start) = (cursor.u32(), cursor.size());
            tensors.insert(
                name,
                Tensor { columns: shape[0], num_elements: shape.iter().product(), type_id, start },
            );
        }
        let data = cursor.position.next_multiple_of(32);
        for tensor in tensors.values_mut() {
            tensor.start += data;
        }
        Gguf { tensors, bytes }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The length of a row.
    pub fn columns(&self, name: &str) -> usize {
        self.tensors[name].columns
    }

    /// ggml's name of a tensor's format.
    pub fn format(&self, name: &str) -> &'static str {
        match self.tensors[name].type_id {
            0 => "F32",
            3 => "Q4_1",
            8 => "Q8_0",
            other => panic!("{name} has the type {other}"),
        }
    }

    /// The weights as f32, computed as ggml does.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let Tensor { num_elements, start, .. } = self.tensors[name];
        let blocks = |block_bytes: usize, block_elements: usize| {
            self.bytes[start..start + num_elements / block_elements * block_bytes]
                .chunks_exact(block_bytes)
        };
        let mut values = Vec::with_capacity(num_elements);
        match self.format(name) {
            "Q4_1" => {
                for block in blocks(20, 32) {
                    let (d, m, halves) = (half(&block[..2]), half(&block[2..4]), &block[4..]);
                    values.extend(halves.iter().map(|byte| d * f32::from(byte & 15) + m));
                    values.extend(halves.iter().map(|byte| d * f32::from(byte >> 4) + m));
                }
            }
            "Q8_0" => {
                for block in blocks(34, 32) {
                    let d = half(&block[..2]);
                    values.extend(block[2..].iter().map(|&byte| d * f32::from(byte as i8)));
                }
            }
            _ => values.extend(
                blocks(4, 1).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))),
            ),
        }
        values
    }
}

/// An IEEE half: (-1)^s * 2^(e - 15) * 1.m, or 2^-14 * 0.m where e is 0.
fn half(bytes: &[u8]) -> f32 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    assert_ne!(exponent, 31, "not finite");
    let magnitude = if exponent == 0 {
        mantissa * 2f32.powi(-24)
    } else {
        (1024.0 + mantissa) * 2f32.powi(exponent - 25)
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}
