//! GGUF files: what is accepted becomes a model folder whose weights pass the check that every
//! model folder must pass. What is refused is refused in one readable sentence and leaves nothing
//! behind.
#![no_main]

use std::ops::ControlFlow;
use std::sync::LazyLock;

use cairn_formats::gguf::{GgufImport, ImportedGguf, import_gguf};
use cairn_formats::safetensors::check_weight_files;
use cairn_fuzz::{ScratchFile, check_sentence, scratch_folder};
use libfuzzer_sys::fuzz_target;

static SCRATCH: LazyLock<ScratchFile> = LazyLock::new(|| ScratchFile::new(".gguf"));

fuzz_target!(|input: &[u8]| {
    let path = SCRATCH.holding(input);
    let models = tempfile::tempdir_in(scratch_folder()).expect("a folder");
    let mut on_progress = |done, total| {
        assert!(done <= total);
        ControlFlow::Continue(())
    };
    match import_gguf(path, models.path(), GgufImport::default(), &mut on_progress) {
        Ok(ImportedGguf { folder, .. }) => {
            let files = check_weight_files(&folder).expect("the imported weights are accepted");
            assert_eq!(files.len(), 1);
            for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
                let text = std::fs::read(folder.join(name)).expect("the file is there");
                serde_json::from_slice::<serde_json::Value>(&text).expect("the file is JSON");
            }
        }
        Err(refusal) => {
            check_sentence(&refusal.to_string());
            let left = std::fs::read_dir(models.path()).expect("the folder is there").count();
            assert_eq!(left, 0, "{refusal} left {left} files behind");
        }
    }
});
