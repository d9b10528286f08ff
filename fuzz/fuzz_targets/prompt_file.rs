//! Prompt-cache files: header, layers and what a file says of itself, as an import reads them before
//! any array is made. Accepted metadata is written and read alike; a refusal is one readable
//! sentence.
#![no_main]

use std::sync::LazyLock;

use cairn_formats::cache_file::{CacheFile, CacheFileMetadata, KvBuffer, LayerState, ModelOrigin};
use cairn_fuzz::{ScratchFile, check_sentence, safetensors_file};
use libfuzzer_sys::fuzz_target;

const VOCAB_SIZE: usize = 259;

static SCRATCH: LazyLock<ScratchFile> = LazyLock::new(|| ScratchFile::new(".safetensors"));

fuzz_target!(|input: &[u8]| {
    match CacheFile::open(SCRATCH.holding(&safetensors_file(input))) {
        Ok(file) => check_file(&file),
        Err(refusal) => check_sentence(&refusal.to_string()),
    }
});

/// Reads all that an import reads.
fn check_file(file: &CacheFile) {
    let num_tokens = file.num_tokens();
    for layer in &file.layers {
        check_layer(file, layer);
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
                check_sentence(text);
            }
            // What was read is written, and read alike.
            let again =
                CacheFileMetadata::parse(&metadata.to_entries(num_tokens), num_tokens, VOCAB_SIZE);
            assert_eq!(again.as_ref(), Ok(&metadata));
        }
        Err(error) => check_sentence(&error.to_string()),
    }
    let (origin, model) = CacheFileMetadata::origin_and_model(&file.metadata);
    let loaded = ModelOrigin { fingerprint: "loaded".to_owned(), parts: None };
    if let Some(mismatch) = origin.and_then(|origin| origin.mismatch(&model, &loaded, "org/model"))
    {
        check_sentence(&mismatch.to_string());
    }
}

fn check_layer(file: &CacheFile, layer: &LayerState) {
    let check_buffer = |buffer: &KvBuffer| {
        let shape = buffer.shape();
        assert!(buffer.num_used >= 1 && buffer.num_used <= buffer.tensor.shape[2], "{buffer:?}");
        match file.read_buffer(buffer) {
            Ok(bytes) => assert_eq!(
                bytes.len(),
                shape.iter().product::<usize>() * buffer.tensor.dtype.size_bytes() as usize
            ),
            Err(refusal) => check_sentence(&refusal.to_string()),
        }
    };
    match layer {
        LayerState::Kv { buffers, offset } => {
            assert!(buffers.as_ref().map_or(*offset == 0, |[keys, _]| keys.num_used == *offset));
            buffers.iter().flatten().for_each(check_buffer);
        }
        LayerState::Rotating { buffers, offset, keep, max_size, index } => {
            assert!(keep < max_size && buffers.as_ref().is_none_or(|[keys, _]| keys.num_used <= *offset && index <= &keys.num_used));
            buffers.iter().flatten().for_each(check_buffer);
        }
        LayerState::Chunked { buffers, offset, start, .. } => {
            assert!(start <= offset);
            buffers.iter().flatten().for_each(check_buffer);
        }
        LayerState::Quantized { buffers, .. } => {
            buffers.iter().flat_map(|buffers| buffers.iter()).flatten().for_each(check_buffer)
        }
        LayerState::Arrays(slots) => {
            for tensor in slots.iter().flatten() {
                if let Err(refusal) = file.read(tensor) {
                    check_sentence(&refusal.to_string());
                }
            }
        }
        LayerState::List(entries) => entries.iter().for_each(|entry| check_layer(file, entry)),
    }
}
