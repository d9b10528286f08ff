//! Prompt-cache files from anywhere: header, layers and what a file says of itself, as an import
//! reads them before any array is made.
//!
//! ```text
//! cargo install cargo-fuzz && cargo +nightly fuzz run prompt_file fuzz/corpus/prompt_file fuzz/seeds/prompt_file tests/goldens/caches -- -max_len=70000
//! ```
//! An input that begins with `{` is a header, and behind a NUL the bytes of its tensors; offsets
//! and lengths are put right, so that what is mutated reaches the checks behind them. Any other
//! input is a file as it stands.
#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use cairn_formats::cache_file::{CacheFile, CacheFileMetadata, KvBuffer, LayerState, ModelOrigin};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

/// What is made of a header is at most this long.
const MAX_DATA_BYTES: u64 = 1 << 20;
const VOCAB_SIZE: usize = 259;

static FILE: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
    let folder =
        if cfg!(target_os = "linux") { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    let path = folder.join(format!("cairn-fuzz-{}.safetensors", std::process::id()));
    let file = File::create(&path).expect("a file");
    (path, file)
});

fuzz_target!(|data: &[u8]| {
    let (path, file) = &*FILE;
    let made = data.starts_with(b"{").then(|| file_of(data)).flatten();
    let bytes = made.as_deref().unwrap_or(data);
    file.set_len(0).expect("shortens");
    file.write_all_at(bytes, 0).expect("writes");
    match CacheFile::open(path) {
        Ok(checked) => use_all_of(&checked),
        Err(refusal) => check_words(&refusal.to_string()),
    }
});

/// The file of a header and bytes; none where the header is not even JSON.
fn file_of(data: &[u8]) -> Option<Vec<u8>> {
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (header, tail) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let Value::Object(entries) = serde_json::from_slice(header).ok()? else { return None };
    let mut position = 0;
    let entries: Map<String, Value> = entries
        .into_iter()
        .map(|(name, mut entry)| {
            if let (Some(size), Some(fields)) = (size_of(&entry), entry.as_object_mut()) {
                fields.insert("data_offsets".to_owned(), json!([position, position + size]));
                position += size;
            }
            (name, entry)
        })
        .collect();
    let header = Value::Object(entries).to_string();
    let mut bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), tail].concat();
    bytes.resize(8 + header.len() + position.min(MAX_DATA_BYTES) as usize, 0);
    Some(bytes)
}

fn size_of(entry: &Value) -> Option<u64> {
    let item_bytes = match entry.get("dtype")?.as_str()? {
        "F32" | "U32" | "I32" => 4,
        "F16" | "BF16" | "U16" | "I16" => 2,
        "I64" | "U64" => 8,
        _ => 1,
    };
    let shape = entry.get("shape")?.as_array()?;
    let size = shape
        .iter()
        .try_fold(item_bytes, |size: u64, length| size.checked_mul(length.as_u64()?))?;
    Some(size).filter(|size| *size <= MAX_DATA_BYTES)
}

/// Reads all that an import reads.
fn use_all_of(file: &CacheFile) {
    let num_tokens = file.num_tokens();
    for layer in &file.layers {
        read(file, layer);
    }
    match CacheFileMetadata::parse(&file.metadata, num_tokens, VOCAB_SIZE) {
        Ok(metadata) => {
            assert!(
                metadata.token_ids.as_ref().is_none_or(|ids| ids.len() == num_tokens
                    && ids.iter().all(|id| (*id as usize) < VOCAB_SIZE))
            );
            for text in [&metadata.title, &metadata.made_by, &Some(metadata.model.clone())]
                .into_iter()
                .flatten()
            {
                check_words(text);
            }
            // What was read is written, and read alike.
            let again = CacheFileMetadata::parse(&metadata.to_entries(num_tokens), num_tokens, VOCAB_SIZE);
            assert_eq!(again.as_ref(), Ok(&metadata));
        }
        Err(words) => check_words(&words),
    }
    let (origin, model) = CacheFileMetadata::origin_and_model(&file.metadata);
    let loaded = ModelOrigin { fingerprint: "loaded".to_owned(), parts: None };
    if let Some(words) = origin.and_then(|origin| origin.mismatch(&model, &loaded, "org/model")) {
        check_words(&words);
    }
}

fn read(file: &CacheFile, layer: &LayerState) {
    let rows = |rows: &KvBuffer| {
        let shape = rows.shape();
        assert!(rows.num_used >= 1 && rows.num_used <= rows.tensor.shape[2], "{rows:?}");
        match file.read_buffer(rows) {
            Ok(bytes) => assert_eq!(
                bytes.len(),
                shape.iter().product::<usize>() * rows.tensor.dtype.size_bytes() as usize
            ),
            Err(refusal) => check_words(&refusal.to_string()),
        }
    };
    match layer {
        LayerState::Kv { buffers, offset } => {
            assert!(buffers.as_ref().map_or(*offset == 0, |[keys, _]| keys.num_used == *offset));
            buffers.iter().flatten().for_each(rows);
        }
        LayerState::Rotating { buffers, offset, keep, max_size, index } => {
            assert!(keep < max_size && buffers.as_ref().is_none_or(|[keys, _]| keys.num_used <= *offset && index <= &keys.num_used));
            buffers.iter().flatten().for_each(rows);
        }
        LayerState::Chunked { buffers, offset, start, .. } => {
            assert!(start <= offset);
            buffers.iter().flatten().for_each(rows);
        }
        LayerState::Quantized { buffers, .. } => {
            buffers.iter().flat_map(|buffers| buffers.iter()).flatten().for_each(rows)
        }
        LayerState::Arrays(slots) => {
            for tensor in slots.iter().flatten() {
                if let Err(refusal) = file.read(tensor) {
                    check_words(&refusal.to_string());
                }
            }
        }
        LayerState::List(entries) => entries.iter().for_each(|entry| read(file, entry)),
    }
}

/// One line that a person can read.
fn check_words(words: &str) {
    assert!(words.len() < 4000, "{} bytes of words", words.len());
    assert!(!words.chars().any(|char| char.is_control()), "{words:?}");
}
