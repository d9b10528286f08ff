//! The models that tests of behaviour across crates use: tiny random ones by name, and the starter
//! model.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cairn_formats::gguf::{GgufError, GgufImport, import_gguf};
pub use cairn_tiny_models::{
    checkpoint_digest, copy_tiny_model, goldens, save_decoder_alone, tiny_model, tiny_models,
};

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

/// The starter model as a model folder. The first call imports it; later runs find it there.
pub fn starter_model() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let gguf = starter_gguf();
        let models = starter_folder().join("models");
        let folder = models.join("SmolLM2-135M-Instruct");
        if folder.exists() {
            return folder;
        }
        let mut on_progress = |_, _| ControlFlow::Continue(());
        let options = GgufImport { name: Some("SmolLM2-135M-Instruct"), ..GgufImport::default() };
        match import_gguf(&gguf, &models, options, &mut on_progress) {
            // Tests of another process were faster.
            Ok(_) | Err(GgufError::AlreadyExists { .. }) => folder,
            Err(error) => panic!("the starter model cannot be imported: {error}"),
        }
    })
}

fn starter_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/starter")
}
