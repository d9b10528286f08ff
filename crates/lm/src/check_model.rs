//! Whether a model can be used, from its small files and the headers of its weights: no weight is
//! read and no MLX array is made.

use std::path::Path;

use cairn_chat::{ChatError, ChatTemplate, Message, Role};
use cairn_formats::FileError;
use cairn_formats::safetensors::{HeaderProblem, SafetensorsError};

use crate::config::{ConfigFile, QuantizationConfig};
use crate::load::eos_token_ids;
use crate::model_memory::{is_ignored, is_scripted};
use crate::published::ModelTensors;
use crate::{LmError, LoadOptions, ModelMemory, Tokenizer, models};

/// What a model that can be used is.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCheck {
    /// What it takes in memory.
    pub memory: ModelMemory,
    /// Whether it can be asked in conversations; base models cannot.
    pub has_chat_template: bool,
    /// Whether its chat template shows tools to it. If not, a text in the prompt describes them.
    pub takes_tools: bool,
}

/// A text that tokenizers encode, and the message that templates render.
const PROBE: &str = "Hello! What is 2 + 2, and what is a banana in Greek?\n";

/// Opens what loading the model in `folder` opens, except for the weights themselves: config.json,
/// the headers of the weight files, whose names and shapes must be those that the architecture
/// takes, the tokenizer, which encodes a sentence, the chat template, which renders a message, and
/// generation_config.json.
///
/// Files from the internet may make a parser take all memory or time: call it in a process of its
/// own, with limits.
pub fn check_model(folder: &Path) -> Result<ModelCheck, LmError> {
    let config = ConfigFile::read(folder)?.value;
    let outline = models::outline(folder, &config)?;
    let options = LoadOptions::new();
    let memory = match is_scripted(&config) {
        true => ModelMemory::read(folder, options)?,
        false => {
            let tensors = ModelTensors::open(folder, &config)?;
            let outline = outline.with_tensors(&tensors);
            let quantization = QuantizationConfig::parse(&config)?;
            outline.tensors.check(
                folder,
                config.get("model_type").and_then(|name| name.as_str()).unwrap_or_default(),
                tensors.entries(),
                &quantization,
                |name| is_ignored(name, &outline),
            )?;
            ModelMemory::of_tensors(folder, &config, outline, &tensors, options)?
        }
    };
    let tokenizer = Tokenizer::load(folder)?;
    tokenizer.encode_prompt(PROBE)?;
    let template = tokenizer.chat_template();
    if let Some(template) = template {
        render(folder, template)?;
    }
    eos_token_ids(folder, &config, &tokenizer)?;
    Ok(ModelCheck {
        memory,
        has_chat_template: template.is_some(),
        takes_tools: template.is_some_and(ChatTemplate::takes_tools),
    })
}

fn render(folder: &Path, template: &ChatTemplate) -> Result<(), LmError> {
    let message = Message { role: Role::User, content: PROBE.to_owned(), token_ids: None };
    match template.render(&[message], true) {
        // A template may have rules of its own for conversations, and say so.
        Ok(_) | Err(ChatError::TemplateRefused { .. }) => Ok(()),
        Err(source) => Err(LmError::Template { folder: folder.to_owned(), source }),
    }
}

/// What is to be done about a model that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// Files are missing or end too early: downloading the model again fetches the rest.
    Incomplete,
    /// This version cannot run such a model.
    Unsupported,
    /// A file does not contain what it should.
    Broken,
}

impl LmError {
    /// What kind of problem this is of a model that was checked, and what exactly as a clause,
    /// without the folder's path: "tokenizer.json is missing".
    pub fn as_model_problem(&self) -> (ProblemKind, String) {
        use ProblemKind::{Broken, Unsupported};

        match self {
            LmError::File(error) => of_file(error),
            LmError::Weights(error) => of_weights(error),
            LmError::Json { path, source } => {
                (Broken, format!("{} is not valid: {source}", file_name(path)))
            }
            LmError::UnknownModelType { model_type, .. } if model_type.is_empty() => {
                (Unsupported, "config.json has no model_type".to_owned())
            }
            LmError::UnknownModelType { model_type, nearest, .. } => {
                let model_type: String = model_type.chars().take(MAX_NAME_CHARS).collect();
                let hint = nearest.map(|nearest| format!(" (the nearest that is: {nearest})"));
                let hint = hint.unwrap_or_default();
                (Unsupported, format!("the architecture “{model_type}” is not supported{hint}"))
            }
            LmError::Config { .. } | LmError::Encoder { .. } => (Unsupported, self.to_string()),
            LmError::MissingWeight { name, .. } => {
                (Broken, format!("the weight files lack the tensor “{name}”"))
            }
            LmError::Tokenizer { path, reason } => {
                (Broken, format!("{} is not a usable tokenizer: {reason}", file_name(path)))
            }
            LmError::Encoding { file, reason, .. } => {
                (Broken, format!("{file} cannot handle a short text: {reason}"))
            }
            LmError::Template { source, .. } => (Broken, source.to_string()),
            LmError::NotText { path } => (Broken, format!("{} is not UTF-8 text", file_name(path))),
            other => (Broken, other.to_string()),
        }
    }
}

/// How much of a name from a file is repeated.
const MAX_NAME_CHARS: usize = 80;

fn of_file(error: &FileError) -> (ProblemKind, String) {
    match error {
        FileError::Io { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
            (ProblemKind::Incomplete, format!("{} is missing", file_name(path)))
        }
        FileError::Io { path, source } => {
            (ProblemKind::Broken, format!("{} cannot be read: {source}", file_name(path)))
        }
        FileError::NotAFile { path } => {
            (ProblemKind::Broken, format!("{} is not a regular file", file_name(path)))
        }
        FileError::TooLong { path, limit_bytes } => {
            (ProblemKind::Broken, format!("{} has more than {limit_bytes} bytes", file_name(path)))
        }
    }
}

fn of_weights(error: &SafetensorsError) -> (ProblemKind, String) {
    use ProblemKind::{Broken, Incomplete};

    match error {
        SafetensorsError::File(error) => of_file(error),
        SafetensorsError::NoWeights { .. } => {
            (Incomplete, "it has no .safetensors file".to_owned())
        }
        SafetensorsError::MissingShard { file, .. } => {
            (Incomplete, format!("the weight file {file:?} is missing"))
        }
        SafetensorsError::Header { path, problem: problem @ HeaderProblem::Truncated { .. } } => {
            (Incomplete, format!("{} is incomplete: {problem}", file_name(path)))
        }
        SafetensorsError::Header { path, problem } => {
            (Broken, format!("{} is damaged: {problem}", file_name(path)))
        }
        SafetensorsError::Index { path, source } => {
            (Broken, format!("{} is no index of weight files: {source}", file_name(path)))
        }
        SafetensorsError::DuplicateTensor { name, .. } => {
            (Broken, format!("two weight files hold the tensor {name:?}"))
        }
        SafetensorsError::TooManyTensors { .. } | SafetensorsError::NoSuchTensor { .. } => {
            (Broken, error.to_string())
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_tiny_models::{copy_tiny_model, tiny_model, tiny_models};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_architecture_takes_what_its_list_says() {
        for case in tiny_models() {
            let folder = tiny_model(&case);
            let found = check_model(&folder).unwrap_or_else(|error| panic!("{case}: {error}"));
            let options = LoadOptions::new();
            assert_eq!(found.memory, ModelMemory::read(&folder, options).unwrap(), "{case}");
            assert!(found.has_chat_template, "{case}");
        }
    }

    /// Changes a copy of a tiny model and compares the problem that is found.
    fn check(case: &str, change: impl Fn(&Path), expected: (ProblemKind, &str)) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("model");
        copy_tiny_model(case, &folder).unwrap();
        change(&folder);
        let error = check_model(&folder).expect_err(expected.1);
        let (kind, detail) = error.as_model_problem();
        assert!(
            kind == expected.0 && detail.contains(expected.1),
            "{kind:?} {detail:?} instead of {expected:?}"
        );
        assert!(!detail.contains(&*folder.to_string_lossy()), "names the folder: {detail}");
    }

    fn set(folder: &Path, file: &str, name: &str, value: Value) {
        let path = folder.join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[name] = value;
        std::fs::write(path, json.to_string()).unwrap();
    }

    fn remove(file: &str) -> impl Fn(&Path) {
        move |folder| std::fs::remove_file(folder.join(file)).unwrap()
    }

    fn config(name: &str, value: Value) -> impl Fn(&Path) {
        move |folder| set(folder, "config.json", name, value.clone())
    }

    const TINY: &str = "llama/tiny-chat";

    #[test]
    fn a_missing_file_makes_a_model_incomplete() {
        use ProblemKind::Incomplete;
        for file in ["config.json", "tokenizer.json"] {
            check(TINY, remove(file), (Incomplete, &format!("{file} is missing")));
        }
        check(TINY, remove("model.safetensors"), (Incomplete, "no .safetensors file"));
        let shard = "model-00002-of-00002.safetensors";
        check("llama/sharded", remove(shard), (Incomplete, "is missing"));
        let cut = |folder: &Path| {
            let path = folder.join("model.safetensors");
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        };
        check(TINY, cut, (Incomplete, "model.safetensors is incomplete"));
    }

    #[test]
    fn what_this_version_cannot_run_is_unsupported() {
        use ProblemKind::Unsupported;
        check(TINY, config("model_type", json!("mamba")), (Unsupported, "“mamba”"));
        check(TINY, config("model_type", Value::Null), (Unsupported, "has no model_type"));
        check(TINY, config("num_hidden_layers", json!(0)), (Unsupported, "num_hidden_layers"));
        let yarn = json!({ "rope_type": "spiral", "factor": 4.0 });
        check(TINY, config("rope_scaling", yarn), (Unsupported, "rope_scaling"));
    }

    #[test]
    fn files_that_do_not_fit_each_other_are_broken() {
        use ProblemKind::Broken;
        let missing = "lack the tensor “model.layers.";
        check("qwen3/dense", config("num_hidden_layers", json!(9)), (Broken, missing));
        let unused = config("num_hidden_layers", json!(1));
        check("qwen3/dense", unused, (Broken, "does not use"));
        check("qwen3/dense", config("vocab_size", json!(64)), (Broken, "embed_tokens"));
        check("qwen3_moe/unstacked", config("num_experts", json!(64)), (Broken, "mlp.gate"));
        check("qwen3_next/quant4", config("linear_conv_kernel_dim", json!(5)), (Broken, "conv1d"));
        let write = |file: &'static str, text: &'static str| {
            move |folder: &Path| std::fs::write(folder.join(file), text).unwrap()
        };
        for file in ["config.json", "tokenizer.json", "generation_config.json"] {
            check(TINY, write(file, "{"), (Broken, &format!("{file} is not valid")));
        }
        check(TINY, write("tokenizer.json", "{}"), (Broken, "tokenizer.json is not a usable"));
        let doubled = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        let bomb = json!({ "type": "Sequence", "normalizers": vec![doubled; 24] });
        let expected = "could make a text more than 1000 times as long";
        check(
            TINY,
            |folder| set(folder, "tokenizer.json", "normalizer", bomb.clone()),
            (Broken, expected),
        );
        check(TINY, write("chat_template.jinja", "{% if %}"), (Broken, "chat template"));
        let slow = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        check(TINY, write("chat_template.jinja", slow), (Broken, "was stopped after"));
    }

    #[test]
    fn blames_tokenizer_whose_regex_gives_up() {
        // Takes exponential time on the probe, because all of its letters are in the class.
        let class = "-a-zA-Z0-9 !,?+\\n";
        let pattern = format!("([{class}]+[{class}]+)+[^{class}]");
        let trap = json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": "" });
        let expected = "tokenizer.json cannot handle a short text: Onig: Regex search error";
        let set_trap = |folder: &Path| set(folder, "tokenizer.json", "normalizer", trap.clone());
        check(TINY, set_trap, (ProblemKind::Broken, expected));
    }

    #[test]
    fn says_whether_template_takes_tools() {
        let folder = tempfile::tempdir().unwrap();
        copy_tiny_model(TINY, folder.path()).unwrap();
        let check = |template: &str| {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
            check_model(folder.path()).unwrap().takes_tools
        };
        assert!(!check("{{ messages[0].content }}"));
        assert!(check("{% if tools %}{{ tools }}{% endif %}{{ messages[0].content }}"));
    }

    #[test]
    fn a_template_may_be_missing_or_refuse_a_conversation() {
        let folder = tempfile::tempdir().unwrap();
        copy_tiny_model(TINY, folder.path()).unwrap();
        let refusing = "{{ raise_exception('two messages, please') }}";
        std::fs::write(folder.path().join("chat_template.jinja"), refusing).unwrap();
        assert!(check_model(folder.path()).unwrap().has_chat_template);
        std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
        set(folder.path(), "tokenizer_config.json", "chat_template", Value::Null);
        assert!(!check_model(folder.path()).unwrap().has_chat_template);
    }
}
