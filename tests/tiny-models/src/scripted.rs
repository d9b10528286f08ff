//! Models for tests of the API: one that says what it is told to, and random ones that take tools.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::copy_tiny_model;

/// A template that shows nothing: the prompt is one token, whatever is asked.
pub const SHOWS_NOTHING: &str = "Q{# tools <think> <tool_call> #}";
/// The same, of a model that does not reason.
const TAKES_TOOLS: &str = "Q{# tools <tool_call> #}";

const EOS: u32 = 258;
/// Longer than any answer of a test.
const LONG_CONTEXT: u32 = 2_000_000;

/// What the scripted model of [`copy_api_models`] says: it thinks, says something, and calls two
/// tools.
pub const ANSWER: &str = "<think>\nWhere?\n</think>\n\nI look.\n\
    <tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"é\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"go\", \"arguments\": {}}\n</tool_call>";

/// The models that clients of the API are recorded with, in a folder of models: `tiny-chat` as it
/// is, `tiny-tools` with a long context and tools, and `scripted`, which gives [`ANSWER`].
pub fn copy_api_models(models: &Path) -> io::Result<()> {
    copy_tiny_model("llama/tiny-chat", &models.join("tiny-chat"))?;
    let tools = models.join("tiny-tools");
    copy_tiny_model("llama/tiny-chat", &tools)?;
    set_template(&tools, TAKES_TOOLS)?;
    set_context(&tools)?;
    copy_scripted_model(&models.join("scripted"), "Q", ANSWER, SHOWS_NOTHING)
}

/// A model that answers one prompt, which its template makes of what it is asked, with one text.
pub fn copy_scripted_model(
    folder: &Path,
    prompt: &str,
    answer: &str,
    template: &str,
) -> io::Result<()> {
    copy_tiny_model("llama/tiny-chat", folder)?;
    set_template(folder, template)?;
    // The next token depends on the sum of all before it, which only grows.
    let sum_of = |text: &str| text.bytes().map(usize::from).sum::<usize>();
    let mut sum = sum_of(prompt);
    let mut script = vec![EOS; sum + sum_of(answer) + EOS as usize + 1];
    for byte in answer.bytes() {
        script[sum] = u32::from(byte);
        sum += usize::from(byte);
    }
    let config = json!({ "model_type": "scripted", "vocab_size": 259, "script": script });
    fs::write(folder.join("config.json"), config.to_string())
}

/// Gives a model's folder another chat template.
pub fn set_template(folder: &Path, template: &str) -> io::Result<()> {
    change(&folder.join("tokenizer_config.json"), |config| {
        config["chat_template"] = template.into();
    })
}

/// Gives a model's folder a context that is longer than any answer.
pub fn set_context(folder: &Path) -> io::Result<()> {
    change(&folder.join("config.json"), |config| {
        config["max_position_embeddings"] = LONG_CONTEXT.into();
    })
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) -> io::Result<()> {
    let mut value: Value = serde_json::from_slice(&fs::read(file)?)?;
    change(&mut value);
    fs::write(file, value.to_string())
}
