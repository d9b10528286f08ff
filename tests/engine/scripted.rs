//! Folders with scripted models, and the answers that these models must give.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

/// `<|im_end|>` of the tokenizer: it ends an answer. Ids below 256 are bytes.
pub const EOS: u32 = 258;

/// See `cairn_lm::models::scripted`: the next token depends on the sum of all before it.
pub struct Scripted {
    folder: TempDir,
    script: Vec<u32>,
}

impl Scripted {
    pub fn new(script: &[u32]) -> Self {
        Scripted::with(script, json!({}))
    }

    /// `fields` are added to config.json.
    pub fn with(script: &[u32], fields: Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = json!({ "model_type": "scripted", "vocab_size": 259, "script": script });
        for (name, value) in fields.as_object().expect("an object") {
            config[name] = value.clone();
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).expect("config.json");
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(
                cairn_tests::tiny_model("llama/tiny-chat").join(file),
                folder.path().join(file),
            )
            .expect(file);
        }
        Scripted { folder, script: script.to_vec() }
    }

    /// A script that never ends an answer.
    pub fn endless() -> Self {
        Scripted::with(
            &text_ids("abcdefghijklmnopq rstuvwxyz,."),
            json!({ "max_position_embeddings": 10_000_000 }),
        )
    }

    /// A model that answers `prompt` with these tokens and then an end-of-sequence token. The sums
    /// of all tokens so far only grow, so a script that is longer has a place for each.
    pub fn saying(prompt: &[u32], answer: &[u32]) -> Self {
        let mut sum: u32 = prompt.iter().sum();
        let num_sums = sum + answer.iter().sum::<u32>() + EOS + 1;
        let mut script = vec![EOS; num_sums as usize];
        for &token in answer {
            script[sum as usize] = token;
            sum += token;
        }
        Scripted::new(&script)
    }

    /// Gives the model this chat template.
    pub fn with_template(self, template: &str) -> Self {
        Scripted::set_template(self.folder(), template);
        self
    }

    /// Gives the model of a folder this chat template.
    pub fn set_template(folder: &Path, template: &str) {
        let path = folder.join("tokenizer_config.json");
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        config["chat_template"] = template.into();
        std::fs::write(path, config.to_string()).expect("tokenizer_config.json");
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The tokens that the model samples after `prompt`.
    pub fn answer(&self, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
        let mut sum: u32 = prompt.iter().sum();
        let mut sampled = Vec::new();
        while sampled.len() < max_tokens && sampled.last() != Some(&EOS) {
            let next = self.script[sum as usize % self.script.len()];
            sampled.push(next);
            sum += next;
        }
        sampled
    }
}

/// Two scripted models, of which one ends its answers and the other runs to the limit; and the
/// folders of these and of a network of two layers.
pub fn models() -> ([Scripted; 2], Vec<PathBuf>) {
    let script: Vec<u32> = text_ids("abcdefghijklmnop").into_iter().chain([EOS]).collect();
    let models = [Scripted::new(&script), Scripted::endless()];
    let folders = models
        .iter()
        .map(|model| model.folder().to_owned())
        .chain([cairn_tests::tiny_model("llama/tiny-chat")])
        .collect();
    (models, folders)
}

/// The ids of a text: a byte is a token.
pub fn text_ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// What ids decode to: special tokens are no text, and broken characters become U+FFFD.
pub fn text_of(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
