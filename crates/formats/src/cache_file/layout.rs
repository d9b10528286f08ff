//! The two layouts of prompt-cache files: where each keeps its classes, user metadata and scalars.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::class::{CacheClass, known_class};
use super::error::{CacheFileError, no_array, refusal};
use crate::excerpt::excerpt;
use crate::safetensors::{Dtype, SafetensorsFile, TensorEntry};

/// More than any model has.
const MAX_LAYERS: usize = 1024;

/// The version of mlx-lm that a file's layout comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// 0.32.0
    V0_32,
    /// 0.30.4
    V0_30,
}

/// Reads tensors by name, in the form that the file's layout gives them.
pub struct LayoutReader<'a> {
    pub file: &'a SafetensorsFile,
    pub layout: Layout,
    /// What a tensor encodes, where it is no array: "scalar", "string" or "none".
    encodings: HashMap<&'a str, &'a str>,
    /// Tensors that were asked for; any other is an error.
    used: RefCell<HashSet<&'a str>>,
}

impl<'a> LayoutReader<'a> {
    /// Recognises the layout of `file`.
    pub fn new(file: &'a SafetensorsFile) -> LayoutReader<'a> {
        let metadata = file.metadata();
        // 0.32.0 begins its list of scalars with an empty one, where 0.30.4 has the first layer's
        // class.
        let layout = if metadata.get("2.0").is_some_and(|first| first.is_empty()) {
            Layout::V0_32
        } else {
            Layout::V0_30
        };
        let mut encodings = HashMap::new();
        if layout == Layout::V0_32 {
            for index in 1.. {
                let entry = |part: &str| metadata.get(&format!("2.{index}.{part}"));
                let (Some(name), Some(encoding)) = (entry("0"), entry("1")) else { break };
                encodings.insert(name.as_str(), encoding.as_str());
            }
        }
        LayoutReader { file, layout, encodings, used: RefCell::default() }
    }

    /// The class of each layer.
    pub fn classes(&self) -> Result<Vec<CacheClass>, CacheFileError> {
        let prefix = match self.layout {
            Layout::V0_32 => "1.",
            Layout::V0_30 => "2.",
        };
        let metadata = self.file.metadata();
        let num_layers = metadata.keys().filter(|key| key.starts_with(prefix)).count();
        if !(1..=MAX_LAYERS).contains(&num_layers) {
            return Err(refusal(
                format!("it names {num_layers} layers"),
                &format!("there must be from 1 to {MAX_LAYERS}"),
            ));
        }
        let class = |layer: usize| {
            let name = metadata.get(&format!("{prefix}{layer}"));
            known_class(layer, name.map_or("nothing", String::as_str))
        };
        (0..num_layers).map(class).collect()
    }

    /// What the user stored beside the caches.
    pub fn user_metadata(&self) -> BTreeMap<String, String> {
        let prefix = match self.layout {
            Layout::V0_32 => "0.",
            Layout::V0_30 => "1.",
        };
        let entries = self.file.metadata().iter();
        entries
            .filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), value.clone())))
            .collect()
    }

    /// Fails if the file has a tensor that was never asked for.
    pub fn check_all_used(&self) -> Result<(), CacheFileError> {
        let used = self.used.borrow();
        match self.file.tensors().iter().find(|tensor| !used.contains(tensor.name.as_str())) {
            Some(tensor) => Err(refusal(
                format!("no layer uses its tensor {:?}", excerpt(&tensor.name)),
                "every tensor must be part of a layer",
            )),
            None => Ok(()),
        }
    }

    /// The tensor `name` if it is there, and what it encodes.
    pub fn find(&self, name: &str) -> Option<(&'a TensorEntry, Option<&'a str>)> {
        let tensor = self.file.tensor(name)?;
        self.used.borrow_mut().insert(&tensor.name);
        Some((tensor, self.encodings.get(name).copied()))
    }

    fn get(&self, name: &str) -> Result<(&'a TensorEntry, Option<&'a str>), CacheFileError> {
        self.find(name)
            .ok_or_else(|| refusal(format!("it lacks the tensor {name:?}"), "its layer needs it"))
    }

    /// The array `name`; `None` where the file says that there is none.
    pub fn array(&self, name: &str) -> Result<Option<&'a TensorEntry>, CacheFileError> {
        let (tensor, encoding) = self.get(name)?;
        match encoding {
            Some("none") => Ok(None),
            None if !tensor.shape.contains(&0) => Ok(Some(tensor)),
            _ => Err(no_array(name)),
        }
    }

    /// The integer that the tensor `name` encodes.
    pub fn scalar(&self, name: &str) -> Result<i64, CacheFileError> {
        let (tensor, encoding) = self.get(name)?;
        let bytes = if encoding == Some("scalar") && tensor.shape.is_empty() {
            self.file.read_tensor(name)?
        } else {
            Vec::new()
        };
        let number = match tensor.dtype {
            Dtype::I32 => bytes.try_into().ok().map(|bytes| i64::from(i32::from_le_bytes(bytes))),
            Dtype::I64 => bytes.try_into().ok().map(i64::from_le_bytes),
            _ => None,
        };
        number.ok_or_else(|| {
            refusal(format!("tensor {name:?} is no whole number"), "its layer needs one there")
        })
    }

    /// The short string that the tensor `name` encodes.
    pub fn text(&self, name: &str) -> Result<String, CacheFileError> {
        let (tensor, encoding) = self.get(name)?;
        let is_text = encoding == Some("string")
            && tensor.dtype == Dtype::I32
            && matches!(tensor.shape[..], [1..=64]);
        let bytes = if is_text { self.file.read_tensor(name)? } else { Vec::new() };
        let (code_points, _) = bytes.as_chunks::<4>();
        let text: Option<String> =
            code_points.iter().map(|bytes| char::from_u32(u32::from_le_bytes(*bytes))).collect();
        text.filter(|text| !text.is_empty()).ok_or_else(|| {
            refusal(format!("tensor {name:?} is no text"), "its layer needs one there")
        })
    }
}
