//! Reading and writing prompt-cache files: those of mlx-lm, our own, and damaged ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_formats::safetensors::{Limits, SafetensorsFile};
use mlx_rs::Array;
use serde_json::json;

use super::{PromptFileLayout, load_prompt_cache, save_prompt_cache};
use crate::cache::{KeysValues, LayerCache, QuantizedArray};
use crate::dtype::mlx_dtype;
use crate::ffi;

/// The cases of tests/goldens/caches.py.
const CASES: [&str; 12] = [
    "kv",
    "rotating",
    "quantized",
    "arrays",
    "chunked",
    "list",
    "mixed",
    "old-kv",
    "old-rotating",
    "old-quantized",
    "old-arrays",
    "old-chunked",
];
const HEADS: i32 = 2;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/caches").join(name)
}

fn metadata() -> BTreeMap<String, String> {
    let entries =
        [("model", "some/model"), ("tokenizer_config", "{}"), ("note", "Grüße"), ("unknown", "1")];
    entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Keys and values of the tokens `start..stop`, as the script numbers them.
fn token(start: i32, stop: i32, dim: i32) -> (Array, Array) {
    let mut keys = Vec::new();
    for head in 0..HEADS {
        for position in start..stop {
            keys.extend((0..dim).map(|channel| {
                ((7 * position + 3 * channel + 5 * head) % 11 - 5) as f32 + position as f32 / 64.0
            }));
        }
    }
    let shape = [1, HEADS, stop - start, dim];
    let values: Vec<f32> = keys.iter().map(|key| -key).collect();
    (Array::from_slice(&keys, &shape), Array::from_slice(&values, &shape))
}

/// What the cache returns for steps of 1, 3 and 1 tokens, by the script's names.
fn continue_from(cache: &mut LayerCache, name: &str, found: &mut BTreeMap<String, Array>) {
    match cache {
        LayerCache::List(list) => {
            for (index, entry) in list.entries_mut().iter_mut().enumerate() {
                continue_from(entry, &format!("{name}.{index}"), found);
            }
        }
        LayerCache::Arrays(cache) => {
            for slot in 0..cache.num_slots() {
                found
                    .extend(cache.get(slot).map(|array| (format!("{name}.{slot}"), array.clone())));
            }
        }
        LayerCache::Kv(_)
        | LayerCache::Rotating(_)
        | LayerCache::Quantized(_)
        | LayerCache::Chunked(_) => {
            let dim = if let LayerCache::Quantized(cache) = cache { cache.group_size() } else { 2 };
            for (step, length) in [1, 3, 1].into_iter().enumerate() {
                let offset = cache.offset() as i32;
                let (keys, values) = token(offset, offset + length, dim);
                let returned = match cache.update_and_fetch(keys, values).unwrap() {
                    KeysValues::Dense { keys, values } => vec![keys, values],
                    KeysValues::Quantized { keys, values, .. } => [keys, values]
                        .into_iter()
                        .flat_map(|QuantizedArray { packed, scales, biases }| {
                            [packed, scales, biases]
                        })
                        .collect(),
                    KeysValues::AfterPrefix { .. } => panic!("{cache:?} has one row"),
                };
                found.extend(
                    returned
                        .into_iter()
                        .enumerate()
                        .map(|(index, array)| (format!("{name}.{step}.{index}"), array)),
                );
            }
        }
        LayerCache::BatchKv(_)
        | LayerCache::BatchChunked(_)
        | LayerCache::BatchRotating(_)
        | LayerCache::SharedPrefix(_)
        | LayerCache::Traced(_) => {
            panic!("no file holds a {}", cache.kind())
        }
    }
}

fn check_continues(caches: &mut [LayerCache], expected: &SafetensorsFile, what: &str) {
    let mut found = BTreeMap::new();
    for (layer, cache) in caches.iter_mut().enumerate() {
        continue_from(cache, &layer.to_string(), &mut found);
    }
    let names: Vec<_> = found.keys().map(String::as_str).collect();
    let mut expected_names: Vec<_> =
        expected.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    expected_names.sort_unstable();
    assert_eq!(names, expected_names, "{what}");
    for tensor in expected.tensors() {
        let array = found[&tensor.name].contiguous().unwrap();
        let shape: Vec<usize> = array.shape().iter().map(|&length| length as usize).collect();
        assert_eq!(
            (shape, array.dtype()),
            (tensor.shape.clone(), mlx_dtype(tensor.dtype)),
            "{what}, {}",
            tensor.name
        );
        assert!(
            ffi::array_bytes(&array).unwrap() == expected.read_tensor(&tensor.name).unwrap(),
            "{what}: {} differs",
            tensor.name
        );
    }
}

#[test]
fn caches_of_both_layouts_continue_as_in_mlx_lm_also_after_they_are_saved_again() {
    let folder = tempfile::tempdir().unwrap();
    for case in CASES {
        let expected =
            SafetensorsFile::open(&golden(&format!("{case}.expected.safetensors")), Limits::CACHE)
                .unwrap();
        let (mut caches, user) =
            load_prompt_cache(&golden(&format!("{case}.safetensors"))).unwrap();
        assert_eq!(user, metadata(), "{case}");
        let path = folder.path().join(format!("{case}.safetensors"));
        save_prompt_cache(&path, &caches, &user, PromptFileLayout::V0_32).unwrap();
        check_continues(&mut caches, &expected, case);
        for round in ["saved", "saved over itself"] {
            let (mut again, user) = load_prompt_cache(&path).unwrap();
            assert_eq!(user, metadata(), "{case}, {round}");
            save_prompt_cache(&path, &again, &user, PromptFileLayout::V0_32).unwrap();
            check_continues(&mut again, &expected, &format!("{case}, {round}"));
        }
    }
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), CASES.len(), "temporary files were not removed: {files:?}");
}

/// Saves a case in the layout of mlx-lm 0.30 and expects the metadata of the golden file `golden`,
/// which that version wrote, or the error that names `refused`.
fn check_v0_30(case: &str, expected: Result<&str, &str>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.safetensors");
    let (caches, user) = load_prompt_cache(&golden(&format!("{case}.safetensors"))).unwrap();
    let saved = save_prompt_cache(&path, &caches, &user, PromptFileLayout::V0_30);
    let old = match expected {
        Ok(old) => old,
        Err(refused) => {
            let error = saved.unwrap_err().to_string();
            assert!(error.contains(refused), "{case}: {error}");
            return;
        }
    };
    saved.unwrap();
    let expected =
        SafetensorsFile::open(&golden(&format!("{old}.expected.safetensors")), Limits::CACHE)
            .unwrap();
    let (mut again, user) = load_prompt_cache(&path).unwrap();
    assert_eq!(user, metadata(), "{case}");
    check_continues(&mut again, &expected, &format!("{case} in the old layout"));
    let parts = |path: &Path| {
        let file = SafetensorsFile::open(path, Limits::CACHE).unwrap();
        let mut tensors: Vec<_> = file
            .tensors()
            .iter()
            .map(|tensor| {
                let bytes = file.read_tensor(&tensor.name).unwrap();
                (tensor.name.clone(), tensor.dtype.name(), tensor.shape.clone(), bytes)
            })
            .collect();
        tensors.sort();
        (file.metadata().clone(), tensors)
    };
    let ((found_metadata, found), (mlx_lm_metadata, mlx_lm)) =
        (parts(&path), parts(&golden(&format!("{old}.safetensors"))));
    assert_eq!(found_metadata, mlx_lm_metadata, "{case}");
    assert!(found == mlx_lm, "{case}: the tensors differ from those of mlx-lm");
}

#[test]
fn files_in_the_old_layout_are_those_of_mlx_lm() {
    for case in ["old-kv", "old-rotating", "old-quantized", "old-arrays", "old-chunked"] {
        check_v0_30(case, Ok(case));
    }
    check_v0_30("list", Err("does not record the kinds of its entries"));
    check_v0_30("kv", Err("no empty caches"));
    check_v0_30("chunked", Err("does not record which tokens were dropped"));
}

#[test]
fn a_recurrent_state_has_read_what_the_other_layers_have() {
    let (caches, _) = load_prompt_cache(&golden("mixed.safetensors")).unwrap();
    assert_eq!(caches.iter().map(LayerCache::offset).collect::<Vec<_>>(), [7; 4]);
}

/// A file in parts, to be damaged: metadata, and tensors with name, dtype, shape and bytes.
struct Parts {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, &'static str, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn read(case: &str) -> Parts {
        let file =
            SafetensorsFile::open(&golden(&format!("{case}.safetensors")), Limits::CACHE).unwrap();
        let tensors = file.tensors().iter().map(|tensor| {
            (
                tensor.name.clone(),
                tensor.dtype.name(),
                tensor.shape.clone(),
                file.read_tensor(&tensor.name).unwrap(),
            )
        });
        Parts { metadata: file.metadata().clone(), tensors: tensors.collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        header.insert("__metadata__".to_owned(), json!(self.metadata));
        for (name, dtype, shape, bytes) in &self.tensors {
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [data.len(), data.len() + bytes.len()] }));
            data.extend(bytes);
        }
        let header = serde_json::Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    fn tensor(&mut self, name: &str) -> &mut (String, &'static str, Vec<usize>, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }

    fn number(&mut self, name: &str, number: i32) {
        self.tensor(name).3 = number.to_le_bytes().into();
    }

    /// An array of zeros.
    fn zeros(&mut self, name: &str, dtype: &'static str, shape: &[usize]) {
        let item_bytes = if matches!(dtype, "F32" | "U32") { 4 } else { 2 };
        let tensor = self.tensor(name);
        (tensor.1, tensor.2, tensor.3) =
            (dtype, shape.into(), vec![0; shape.iter().product::<usize>() * item_bytes]);
    }
}

/// Damages a golden file and checks the error.
fn refused(case: &str, spoil: impl FnOnce(&mut Parts), expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spoilt.safetensors");
    let mut parts = Parts::read(case);
    spoil(&mut parts);
    std::fs::write(&path, parts.bytes()).unwrap();
    let found =
        load_prompt_cache(&path).err().map_or("no refusal".to_owned(), |error| error.to_string());
    assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    assert!(found.contains("spoilt.safetensors"), "{found:?} names no file");
}

#[test]
fn offsets_outside_the_buffers_are_refused() {
    refused(
        "kv",
        |file| file.number("0.2", 257),
        "layer 0 has offset = 257, but it must be from 0 to 256",
    );
    refused("kv", |file| file.number("0.2", -1), "layer 0 has offset = -1, but");
    refused(
        "kv",
        |file| file.number("2.2", 1),
        "layer 2 has offset = 1, but it must be from 0 to 0",
    );
    refused(
        "kv",
        |file| file.zeros("0.2", "F32", &[]),
        "tensor \"0.2\" is no whole number, but its layer needs one there",
    );
    refused("kv", |file| file.tensor("0.2").2 = vec![1], "tensor \"0.2\" is no whole number");
}

#[test]
fn rings_in_an_impossible_state_are_refused() {
    refused(
        "rotating",
        |file| file.number("0.4", 0),
        "layer 0 has max_size = 0, but it must be from 1 to",
    );
    refused("rotating", |file| file.number("0.4", i32::MAX), "layer 0 has max_size = 2147483647");
    refused(
        "rotating",
        |file| file.number("0.3", 8),
        "layer 0 has keep = 8, but it must be from 0 to 7",
    );
    // Layer 2 is a ring with its newest token before slot 4.
    refused(
        "rotating",
        |file| file.number("2.5", 9),
        "layer 2 has index = 9, but it must be from 0 to 8",
    );
    refused("rotating", |file| file.number("2.5", -1), "layer 2 has index = -1");
    refused(
        "rotating",
        |file| file.number("2.5", 2),
        "layer 2 is a ring of 8 tokens, 8 of them held, with index 2 after 12, but no sequence",
    );
    refused("rotating", |file| file.number("2.2", 7), "8 of them held, with index 4 after 7");
    refused(
        "rotating",
        |file| file.number("2.4", 9),
        "layer 2 is a ring of 9 tokens, 8 of them held",
    );
    refused(
        "rotating",
        |file| file.number("4.2", 1),
        "layer 4 has offset = 1, but it must be from 0 to 0",
    );
}

#[test]
fn chunk_and_quantization_settings_that_no_cache_has_are_refused() {
    refused("chunked", |file| file.number("1.3", 0), "layer 1 has chunk_size = 0");
    refused(
        "chunked",
        |file| file.number("1.4", 9),
        "layer 1 has offset = 8, but it must be from 9 to",
    );
    refused(
        "quantized",
        |file| file.number("0.4", 5),
        "in layer 0, kv_bits = 5, but it must be one of [2, 3, 4, 6, 8], which MLX has",
    );
    refused(
        "quantized",
        |file| file.number("0.3", 16),
        "in layer 0, kv_group_size = 16, but it must be one of [32, 64, 128]",
    );
    refused(
        "quantized",
        |file| file.number("0.4", 8),
        "but they must be those of one array, quantized in groups of 32 to 8 bits",
    );
    refused(
        "quantized",
        |file| file.number("0.2", 300),
        "layer 0 has offset = 300, but it must be from 0 to 256",
    );
}

#[test]
fn numbers_of_the_old_layout_are_checked_too() {
    refused(
        "old-rotating",
        |file| drop(file.metadata.insert("0.2.3".into(), "9".into())),
        "layer 2 has index = 9",
    );
    refused(
        "old-rotating",
        |file| drop(file.metadata.insert("0.2.3".into(), "x".into())),
        "has no number at \"0.2.3\", but its layer needs its index",
    );
    refused(
        "old-rotating",
        |file| drop(file.metadata.remove("0.2.0")),
        "has no number at \"0.2.0\", but its layer needs its keep",
    );
    refused(
        "old-chunked",
        |file| drop(file.metadata.insert("0.0.1".into(), "3".into())),
        "layer 0 has start_position = 3",
    );
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let shapes = "but both need four axes, the first three of the same lengths";
    refused("kv", |file| file.zeros("0.0", "F32", &[1, 2, 255, 2]), shapes);
    refused("kv", |file| file.zeros("0.0", "F32", &[2, 256, 2]), shapes);
    refused(
        "kv",
        |file| file.zeros("0.0", "F16", &[1, 2, 256, 2]),
        "keys of F16 and values of F32, but both must be of one",
    );
    refused("kv", |file| file.zeros("0.0", "U32", &[1, 2, 256, 2]), "keys of U32");
    refused(
        "kv",
        |file| file.zeros("0.0", "F32", &[1, 2, 0, 2]),
        "tensor \"0.0\" is no array, but its layer needs one there",
    );
    refused(
        "kv",
        |file| file.tensors.retain(|tensor| tensor.0 != "0.1"),
        "it lacks the tensor \"0.1\", but its layer needs it",
    );
    refused("kv", |file| file.tensor("0.1").0 = "7.1".into(), "it lacks the tensor \"0.1\"");
    refused(
        "kv",
        |file| file.tensors.push(("9.0".into(), "U8", vec![1], vec![0])),
        "no layer uses its tensor \"9.0\"",
    );
    refused(
        "kv",
        |file| {
            file.zeros("1.0", "F32", &[2, 2, 256, 2]);
            file.zeros("1.1", "F32", &[2, 2, 256, 2])
        },
        "different numbers of rows",
    );
    let quantized = "but they must be those of one array, quantized";
    refused("quantized", |file| file.zeros("0.0.0", "U32", &[1, 2, 256, 5]), quantized);
    refused("quantized", |file| file.zeros("0.0.1", "F32", &[1, 2, 255, 1]), quantized);
    refused("quantized", |file| file.zeros("0.0.2", "F16", &[1, 2, 256, 1]), quantized);
    refused("quantized", |file| file.zeros("0.0.0", "F32", &[1, 2, 256, 4]), quantized);
    refused("arrays", |file| file.zeros("0.0.0", "F32", &[]), "different numbers of rows");
    refused(
        "arrays",
        |file| file.tensors.retain(|tensor| !tensor.0.starts_with("0.0.")),
        "layer 0 has no arrays",
    );
    refused(
        "old-arrays",
        |file| file.tensor("1.0").0 = "0.2".into(),
        "it lacks the tensor \"1.0\"",
    );
}

#[test]
fn kinds_that_are_not_known_are_refused() {
    let known = "but only KVCache, RotatingKVCache, QuantizedKVCache, ChunkedKVCache, ArraysCache, CacheList can be read";
    for class in ["BatchKVCache", "BatchRotatingKVCache", "ConcatenateKVCache", "os.system", ""] {
        refused(
            "kv",
            |file| drop(file.metadata.insert("1.0".into(), class.into())),
            &format!("layer 0 is a {class:?}, {known}"),
        );
    }
    refused(
        "old-kv",
        |file| drop(file.metadata.insert("2.0".into(), "CacheList".into())),
        "is a CacheList of mlx-lm before 0.32",
    );
    refused(
        "kv",
        |file| file.metadata.retain(|key, _| !key.starts_with("1.")),
        "it names 0 layers, but there must be from 1 to 1024",
    );
    refused(
        "kv",
        |file| file.metadata.extend((3..2000).map(|n| (format!("1.{n}"), "KVCache".into()))),
        "it names 2000 layers",
    );
    refused("kv", |file| file.metadata.clear(), "it names 0 layers");
    refused("kv", |file| drop(file.metadata.remove("1.1")), "layer 1 is a \"nothing\"");
    refused("list", |file| file.tensor("0.0.1").3.swap(0, 4), "layer 0 is a \"VKCache\"");
    refused("list", |file| file.tensor("0.0.1").3.fill(0xff), "tensor \"0.0.1\" is no text");
    refused(
        "list",
        |file| file.tensor("0.1.1").0 = "0.7.1".into(),
        "no layer uses its tensor \"0.1.",
    );
}

#[test]
fn a_damaged_file_is_refused_or_read_but_never_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.safetensors");
    for case in ["old-rotating", "old-quantized", "old-arrays"] {
        let bytes = std::fs::read(golden(&format!("{case}.safetensors"))).unwrap();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for position in 0..header_end {
            let mut damaged = bytes.clone();
            damaged[position] = [b'9', b'0', b'-'][position % 3];
            std::fs::write(&path, damaged).unwrap();
            if let Ok((caches, _)) = load_prompt_cache(&path) {
                // An accepted cache may fail to continue, but must not end the process.
                for mut cache in caches {
                    let (keys, values) = token(0, 1, 2);
                    let _ = cache
                        .update_and_fetch(keys, values)
                        .map(|_| cache.arrays().into_iter().try_for_each(Array::eval));
                }
            }
        }
        for end in (0..bytes.len()).step_by(97) {
            std::fs::write(&path, &bytes[..end]).unwrap();
            assert!(load_prompt_cache(&path).is_err(), "{case}, cut at {end}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let (caches, user) = load_prompt_cache(&golden("kv.safetensors")).unwrap();
    let nowhere = folder.path().join("nowhere").join("a.safetensors");
    let error = save_prompt_cache(&nowhere, &caches, &user, PromptFileLayout::V0_32)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot write ") && error.contains("nowhere"), "{error}");
}

/// Pseudo-random numbers, the same in every run.
struct Random(u64);

impl Random {
    /// Below `limit`.
    fn next(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

/// Damages a file's parts in a way that keeps its header readable.
fn mutate(parts: &mut Parts, random: &mut Random) {
    const NUMBERS: [&str; 9] =
        ["0", "1", "-1", "5", "257", "2147483647", "9223372036854775808", "x", ""];
    const CLASSES: [&str; 7] = [
        "KVCache",
        "RotatingKVCache",
        "QuantizedKVCache",
        "ChunkedKVCache",
        "ArraysCache",
        "CacheList",
        "Other",
    ];
    let (key, index) = (random.next(parts.metadata.len()), random.next(parts.tensors.len()));
    let key = parts.metadata.keys().nth(key).cloned().unwrap_or_default();
    match random.next(9) {
        0 => drop(parts.metadata.remove(&key)),
        1 => drop(parts.metadata.insert(key, NUMBERS[random.next(NUMBERS.len())].to_owned())),
        2 => drop(parts.metadata.insert(key, CLASSES[random.next(CLASSES.len())].to_owned())),
        3 => drop(
            parts.metadata.insert(key, ["scalar", "string", "none"][random.next(3)].to_owned()),
        ),
        4 => drop(parts.tensors.remove(index)),
        5 => {
            let tensor = &mut parts.tensors[index];
            let (dtype, axis) = (
                ["F32", "F16", "BF16", "U32", "I32", "I64", "BOOL"][random.next(7)],
                random.next(tensor.2.len()),
            );
            let length = [0, 1, 2, 5, 8, 256, 257][random.next(7)];
            tensor.2.get_mut(axis).into_iter().for_each(|axis| *axis = length);
            let item_bytes = match dtype {
                "BOOL" => 1,
                "F16" | "BF16" => 2,
                "I64" => 8,
                _ => 4,
            };
            (tensor.1, tensor.3) = (
                dtype,
                vec![random.next(256) as u8; tensor.2.iter().product::<usize>() * item_bytes],
            );
        }
        6 => {
            let other = random.next(parts.tensors.len());
            let name = parts.tensors[other].0.clone();
            parts.tensors[other].0 = std::mem::replace(&mut parts.tensors[index].0, name);
        }
        7 => {
            let bytes = &mut parts.tensors[index].3;
            let at = random.next(bytes.len());
            bytes.get_mut(at).into_iter().for_each(|byte| *byte = random.next(256) as u8);
        }
        _ => {
            let last = &mut parts.tensors[index].3;
            last.iter_mut().take(4).for_each(|byte| *byte = [0, 1, 8, 0xff][random.next(4)]);
        }
    }
}

#[test]
fn spoilt_files_are_refused_in_a_sentence_or_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spoilt.safetensors");
    let (mut num_read, mut num_refused) = (0, 0);
    for seed in cairn_sweeps::sweep("a prompt file is spoilt", 600) {
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let case = CASES[seed as usize % CASES.len()];
        let mut parts = Parts::read(case);
        for _ in 0..1 + random.next(3) {
            mutate(&mut parts, &mut random);
            if parts.tensors.is_empty() || parts.metadata.is_empty() {
                break;
            }
        }
        let mut bytes = parts.bytes();
        // Sometimes damage the bytes themselves, mostly those of the header.
        for _ in 0..[0, 0, 0, 2][random.next(4)] {
            let at = random.next(bytes.len().min(2000));
            bytes[at] = random.next(256) as u8;
        }
        std::fs::write(&path, &bytes).unwrap();
        match load_prompt_cache(&path) {
            Ok((caches, _)) => {
                num_read += 1;
                caches.iter().flat_map(LayerCache::arrays).for_each(|array| array.eval().unwrap());
            }
            Err(error) => {
                num_refused += 1;
                let message = error.to_string();
                assert!(
                    message.contains("spoilt.safetensors") && message.len() < 2000,
                    "{case}, seed {seed}: {message:?}"
                );
                assert!(!message.chars().any(char::is_control), "{case}, seed {seed}: {message:?}");
            }
        }
    }
    assert!(
        num_read > 20 && num_refused > 200,
        "{num_read} were read, {num_refused} refused: that tests little"
    );
}
