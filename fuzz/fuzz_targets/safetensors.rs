//! Weight files: what is accepted lies in the file end to end, can be read, and is accepted by the
//! format's own reader too. What is refused is refused in one readable sentence.
#![no_main]

use std::sync::LazyLock;

use cairn_formats::safetensors::{Limits, SafetensorsFile};
use cairn_fuzz::{ScratchFile, check_sentence, safetensors_file};
use libfuzzer_sys::fuzz_target;

static SCRATCH: LazyLock<ScratchFile> = LazyLock::new(|| ScratchFile::new(".safetensors"));

fuzz_target!(|input: &[u8]| {
    let bytes = safetensors_file(input);
    let path = SCRATCH.holding(&bytes);
    for limits in [Limits::MODEL, Limits::CACHE] {
        match SafetensorsFile::open(path, limits) {
            Ok(file) => check_file(&file, &bytes),
            Err(refusal) => check_sentence(&refusal.to_string()),
        }
    }
});

fn check_file(file: &SafetensorsFile, bytes: &[u8]) {
    let mut end = file.tensors().first().map_or(bytes.len() as u64, |first| first.bytes.start);
    for tensor in file.tensors() {
        let num_elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.bytes.start, end, "{tensor:?}");
        end = tensor.bytes.end;
        let values = file.read_tensor(&tensor.name).expect("an accepted tensor is read");
        assert_eq!(values.len() as u64, num_elements as u64 * tensor.dtype.size_bytes());
    }
    assert_eq!(end, bytes.len() as u64);
    let theirs = safetensors::SafeTensors::deserialize(bytes).expect("the format's reader accepts");
    assert_eq!(theirs.len(), file.tensors().len());
}
