//! A model that says what it is told to, in a data folder of its own.

use std::path::Path;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::Command;
use cairn_tiny_models::copy_tiny_model;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::open_greedy;

pub const MODEL: &str = "scripted";
/// `<|im_start|>`, a special token that no family uses as a marker of segments.
pub const START: u32 = 257;
const EOS: u32 = 258;
/// Special tokens of the models that [`Script::with_special_markers`] makes.
pub const THINK: u32 = 259;
pub const END_THINK: u32 = 260;

/// Shows questions behind a Q and answers behind an A, and strips reasoning as many templates do.
pub const STRIPS: &str = "{% for turn in messages %}{% if turn.role == 'user' %}Q{{ turn.content }}\
    {% else %}A{{ turn.content.split('</think>') | last }}{% endif %}{% endfor %}A\
    {# <think> <tool_call> #}";
/// The same without stripping.
pub const SHOWS: &str = "{% for turn in messages %}{% if turn.role == 'user' %}Q{{ turn.content }}\
    {% else %}A{{ turn.content }}{% endif %}{% endfor %}A{# <think> <tool_call> #}";

/// The ids of a text: a byte is a token.
pub fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// What a model says after which prompts. See `cairn_lm::models::scripted`: its next token depends on
/// the sum of all before it, which only grows.
pub struct Script {
    template: &'static str,
    tokens: Vec<u32>,
    has_special_markers: bool,
}

impl Script {
    pub fn new(template: &'static str) -> Script {
        Script { template, tokens: Vec::new(), has_special_markers: false }
    }

    /// Repeats these tokens in some order, and never ends.
    pub fn endless(text: &str) -> Script {
        Script { tokens: ids(text), ..Script::new(STRIPS) }
    }

    /// The markers of reasoning are special tokens.
    pub fn with_special_markers(self) -> Script {
        Script { has_special_markers: true, ..self }
    }

    /// After `prompt` the model says `answer` and ends. A later prompt has a larger sum.
    pub fn then(mut self, prompt: &[u32], answer: &[u32]) -> Script {
        let mut sum = prompt.iter().sum::<u32>() as usize;
        assert!(sum >= self.tokens.len(), "the prompt is too short to come later");
        for &token in answer.iter().chain(&[EOS]) {
            self.tokens.resize(self.tokens.len().max(sum + 1), EOS);
            self.tokens[sum] = token;
            sum += token as usize;
        }
        // Nothing wraps around before the next prompt.
        self.tokens.resize(self.tokens.len().max(sum + 1), EOS);
        self
    }

    pub fn home(&self) -> TempDir {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("models").join(MODEL);
        copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        change(&folder.join("tokenizer_config.json"), |config| {
            config["chat_template"] = self.template.into();
        });
        if self.has_special_markers {
            change(&folder.join("tokenizer.json"), |tokenizer| {
                let tokens = tokenizer["added_tokens"].as_array_mut().unwrap();
                for (id, text) in [(THINK, "<think>"), (END_THINK, "</think>")] {
                    let mut token = tokens[0].clone();
                    token["id"] = id.into();
                    token["content"] = text.into();
                    tokens.push(token);
                }
            });
        }
        let config = json!({
            "model_type": "scripted", "vocab_size": 261, "script": self.tokens,
            "max_position_embeddings": 1_000_000,
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        home
    }
}

/// Adds another scripted model with the same words, and lets both take so many bytes.
pub fn add_claiming(home: &TempDir, name: &str, bytes: u64) {
    let models = home.path().join("models");
    std::fs::create_dir_all(models.join(name)).unwrap();
    for entry in std::fs::read_dir(models.join(MODEL)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), models.join(name).join(entry.file_name())).unwrap();
    }
    for (name, context) in [(MODEL, 1_000_000), (name, 900_000)] {
        change(&models.join(name).join("config.json"), |config| {
            config["declared_weight_bytes"] = bytes.into();
            config["max_position_embeddings"] = context.into();
        });
    }
}

/// The app with greedy answers, and the scripted model loaded: nothing chooses it by itself.
pub async fn open_scripted(home: &TempDir, max_tokens: u32) -> Arc<App> {
    let app = open_greedy(home, max_tokens).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    app
}

fn change(path: &Path, change: impl Fn(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}
