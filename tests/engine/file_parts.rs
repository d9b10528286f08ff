//! A prompt-cache file in parts, to be damaged and reassembled.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_formats::safetensors::{Limits, SafetensorsFile};
use serde_json::{Map, Value, json};

/// The metadata of the file, and its tensors in order.
#[derive(Clone)]
pub struct Parts {
    pub metadata: BTreeMap<String, String>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Parts {
    pub fn read(path: &Path) -> Parts {
        let file = SafetensorsFile::open(path, Limits::CACHE).expect("a sound file");
        let tensors = file.tensors().iter().map(|tensor| Tensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.iter().map(|&length| length as u64).collect(),
            bytes: file.read_tensor(&tensor.name).expect("its bytes"),
        });
        Parts { metadata: file.metadata().clone(), tensors: tensors.collect() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        header.insert("__metadata__".to_owned(), json!(self.metadata));
        for Tensor { name, dtype, shape, bytes } in &self.tensors {
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [data.len(), data.len() + bytes.len()] }));
            data.extend(bytes);
        }
        with_header(&Value::Object(header).to_string(), &data)
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).expect("written");
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of this name")
    }

    /// Sets an integer tensor.
    pub fn set_scalar(&mut self, name: &str, number: i32) {
        self.tensor(name).bytes = number.to_le_bytes().into();
    }

    /// Sets an entry of the user metadata.
    pub fn set_metadata(&mut self, key: &str, value: impl Into<String>) {
        self.metadata.insert(format!("0.{key}"), value.into());
    }

    /// Removes Cairn's own metadata.
    pub fn remove_cairn_metadata(&mut self) {
        self.metadata.retain(|key, _| !key.starts_with("0.cairn_"));
    }
}

impl Tensor {
    /// Edits its numbers, if they are f32.
    pub fn edit(&mut self, edit: impl FnOnce(&mut [f32])) {
        assert_eq!(self.dtype, "F32", "{}", self.name);
        let mut numbers: Vec<f32> =
            self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        edit(&mut numbers);
        self.bytes = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    }

    /// Copies the entries of one token over those of another; `[1, H, T, D]`.
    pub fn copy_token(&mut self, from: usize, to: usize) {
        let (num_tokens, width) =
            (self.shape[2] as usize, self.bytes.len() / (self.shape[1] * self.shape[2]) as usize);
        for head in self.bytes.chunks_mut(num_tokens * width) {
            head.copy_within(from * width..(from + 1) * width, to * width);
        }
    }

    /// Replaces the contents by zeros of another type or shape.
    pub fn zeros(&mut self, dtype: &str, shape: &[u64]) {
        let item_bytes = if matches!(dtype, "F32" | "U32" | "I32") { 4 } else { 2 };
        self.dtype = dtype.to_owned();
        self.shape = shape.to_vec();
        self.bytes = vec![0; shape.iter().product::<u64>() as usize * item_bytes];
    }
}

pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}
