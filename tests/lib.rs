//! Where the tests of behaviour across crates find their models.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cairn_formats::gguf::{GgufError, import_gguf};

/// A tiny checkpoint made by `goldens/make_llama.py`.
pub fn golden(case: &str) -> PathBuf {
    goldens().join("llama").join(case)
}

/// The folder of goldens.
pub fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens")
}

/// The starter model's GGUF file. Panics where it has not been fetched.
pub fn starter_gguf() -> PathBuf {
    let file = starter_folder().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        file.exists(),
        "the starter model is not there: run `cargo xtask starter` first, it fetches {}",
        file.display()
    );
    file
}

/// The starter model as a model folder: imported by whoever asks first, and kept for later runs.
pub fn starter_model() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let gguf = starter_gguf();
        let models = starter_folder().join("models");
        let folder = models.join("SmolLM2-135M-Instruct");
        if folder.exists() {
            return folder;
        }
        match import_gguf(&gguf, &models, Some("SmolLM2-135M-Instruct"), &mut |_, _| {}) {
            // Tests of another process were faster.
            Ok(_) | Err(GgufError::AlreadyExists { .. }) => folder,
            Err(error) => panic!("the starter model cannot be imported: {error}"),
        }
    })
}

fn starter_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/starter")
}

/// Copies what makes a tiny checkpoint a model folder, and not what it is tested with, to a folder
/// that is made.
pub fn copy_model(case: &str, folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(golden(case).join(name), folder.join(name))?;
    }
    Ok(())
}

/// Copies any golden, `model_type/case`, to a folder that is there, with a tokenizer that is not
/// its own: ids below 128 are bytes.
pub fn copy_with_tokenizer(case: &str, folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(goldens().join(case))? {
        let entry = entry?;
        if entry.file_name() != "expected.safetensors" {
            std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden("tiny-chat").join(file), folder.join(file))?;
    }
    Ok(())
}
