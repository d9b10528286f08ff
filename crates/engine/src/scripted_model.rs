//! A worker with a scripted model, for tests.

use std::path::Path;

use cairn_lm::{LoadOptions, LoadedModel};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::EngineStatus;
use crate::model_pool::ModelFiles;
use crate::prompt_cache::{PromptCache, StoredCache};
use crate::request::ModelOptions;
use crate::worker::Worker;

/// Writes the folder of a scripted model: see `cairn_lm::models::scripted`.
pub(crate) fn write_scripted(folder: &Path, fields: &str) {
    let mut config = json!({ "model_type": "scripted", "vocab_size": 259 });
    let fields: Value = serde_json::from_str(fields).expect("JSON");
    for (name, value) in fields.as_object().expect("an object") {
        config[name] = value.clone();
    }
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    let tokenizer = cairn_tiny_models::tiny_model("llama/tiny-chat");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(file), folder.join(file)).expect(file);
    }
}

/// A worker whose current model is scripted, with these fields in its config.json.
pub(crate) fn worker_with(fields: &str) -> Worker {
    let folder = tempfile::tempdir().expect("a folder");
    write_scripted(folder.path(), fields);
    worker_of(folder.path())
}

/// A worker whose current model is in this folder.
pub(crate) fn worker_of(folder: &Path) -> Worker {
    let options = LoadOptions::new().keep_quantized(true);
    let model = LoadedModel::load(folder, options).expect("loads");
    let (status, _) = watch::channel(EngineStatus::default());
    let (_, closing) = watch::channel(false);
    let cache = PromptCache::new(StoredCache::none());
    let mut worker = Worker::new(cache, true, None, status, closing);
    let files = ModelFiles::list(folder, ModelOptions::default());
    worker.models.insert("scripted".to_owned(), model, files, None);
    worker.models.select("scripted");
    worker
}
