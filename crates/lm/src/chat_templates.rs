//! Where a model folder has its chat templates.
//!
//! ```text
//! default    chat_template.jinja, additional_chat_templates/default.jinja, chat_template.json,
//!            tokenizer_config.json: the first that has one
//! tool_use   additional_chat_templates/tool_use.jinja, or the JSON file that has the default
//! ```

use std::path::Path;

use cairn_chat::{ChatError, ChatTemplate, SpecialTokens, TemplateSources};
use cairn_formats::read_file;
use serde_json::Value;

use crate::LmError;
use crate::error::read_json;
use crate::tokenizer::{MAX_TOKENIZER_BYTES, tokenizer_config};

const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const NAMED_DEFAULT: &str = "additional_chat_templates/default.jinja";
const NAMED_TOOL_USE: &str = "additional_chat_templates/tool_use.jinja";

/// Reads the chat template of the model in `folder`; `None` if it has none. `config` is the value
/// of its tokenizer_config.json.
pub(crate) fn read(
    folder: &Path,
    config: &Value,
    special: SpecialTokens,
) -> Result<Option<ChatTemplate>, LmError> {
    match sources(folder, config)?.parse(special) {
        Err(ChatError::NoTemplate) => Ok(None),
        template => template.map(Some).map_err(|source| failed(folder, source)),
    }
}

/// Whether the model in `folder` has a chat template, which may be broken. Without one it continues
/// texts, and answers no chat.
pub fn has_chat_template(folder: &Path) -> Result<bool, LmError> {
    Ok(sources(folder, &tokenizer_config(folder)?)?.default.is_some())
}

fn sources(folder: &Path, config: &Value) -> Result<TemplateSources, LmError> {
    let default = match text(folder, JINJA)? {
        None => text(folder, NAMED_DEFAULT)?,
        found => found,
    };
    let mut sources = match default {
        Some(default) => TemplateSources { default: Some(default), tool_use: None },
        None => in_json(folder, config)?,
    };
    if let Some(tool_use) = text(folder, NAMED_TOOL_USE)? {
        sources.tool_use = Some(tool_use);
    }
    Ok(sources)
}

fn failed(folder: &Path, source: ChatError) -> LmError {
    LmError::Template { folder: folder.to_owned(), source }
}

/// The sources in chat_template.json, as processors have it, or in tokenizer_config.json.
fn in_json(folder: &Path, config: &Value) -> Result<TemplateSources, LmError> {
    let sources = |file: &Value, name| {
        let value = file.get("chat_template").unwrap_or(&Value::Null);
        TemplateSources::from_value(value, name).map_err(|source| failed(folder, source))
    };
    let path = folder.join(JSON);
    if path.exists() {
        let found = sources(&read_json(&path, MAX_TOKENIZER_BYTES)?, JSON)?;
        if found.default.is_some() {
            return Ok(found);
        }
    }
    sources(config, TOKENIZER_CONFIG)
}

fn text(folder: &Path, name: &str) -> Result<Option<String>, LmError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(None);
    }
    let source = String::from_utf8(read_file(&path, MAX_TOKENIZER_BYTES)?);
    source.map(Some).map_err(|_| LmError::NotText { path })
}

/// The bytes of the files that [`read`] takes templates from; none if the folder has none.
pub(crate) fn identifying_bytes(folder: &Path) -> Result<Vec<u8>, LmError> {
    let bytes = |name: &str| match folder.join(name) {
        path if path.exists() => read_file(&path, MAX_TOKENIZER_BYTES),
        _ => Ok(Vec::new()),
    };
    let mut found = Vec::new();
    for name in [JINJA, NAMED_DEFAULT, JSON, TOKENIZER_CONFIG] {
        found.extend(bytes(name)?);
        // chat_template.json may have no template; then tokenizer_config.json has it.
        if !found.is_empty() && name != JSON {
            break;
        }
    }
    found.extend(bytes(NAMED_TOOL_USE)?);
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares what the template of a folder with these files renders without and with tools.
    fn check(files: &[(&str, &str)], expected: Option<(&str, &str)>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        for (name, contents) in files {
            std::fs::write(folder.path().join(name), contents).unwrap();
        }
        let config = tokenizer_config(folder.path()).unwrap();
        let template = read(folder.path(), &config, SpecialTokens::default()).unwrap();
        let rendered = template.map(|template| {
            let render = |tools: &[Value]| template.render_json(&[], tools).unwrap();
            (render(&[]), render(&[json!({"type": "function"})]))
        });
        let rendered = rendered.as_ref().map(|(plain, tools)| (plain.as_str(), tools.as_str()));
        assert_eq!(rendered, expected, "{files:?}");
        assert_eq!(has_chat_template(folder.path()).unwrap(), expected.is_some(), "{files:?}");
        assert_eq!(identifying_bytes(folder.path()).unwrap().is_empty(), files.is_empty());
    }

    #[test]
    fn templates_are_found_in_every_place() {
        let named = r#"{"chat_template": [{"name": "default", "template": "list"},
            {"name": "tool_use", "template": "list tools"}]}"#;
        check(&[], None);
        check(&[(TOKENIZER_CONFIG, r#"{"chat_template": "config"}"#)], Some(("config", "config")));
        check(&[(TOKENIZER_CONFIG, named)], Some(("list", "list tools")));
        check(&[(TOKENIZER_CONFIG, "{}")], None);
        let json = (JSON, r#"{"chat_template": "json"}"#);
        check(&[json], Some(("json", "json")));
        check(&[json, (TOKENIZER_CONFIG, named)], Some(("json", "json")));
        check(&[(JSON, named)], Some(("list", "list tools")));
        check(&[(JSON, "{}"), (TOKENIZER_CONFIG, named)], Some(("list", "list tools")));
        check(&[(JINJA, "jinja"), json, (TOKENIZER_CONFIG, named)], Some(("jinja", "jinja")));
        let tools = (NAMED_TOOL_USE, "tools");
        check(&[(JINJA, "jinja"), tools], Some(("jinja", "tools")));
        check(&[json, tools], Some(("json", "tools")));
        check(&[(NAMED_DEFAULT, "named"), json, tools], Some(("named", "tools")));
        check(&[tools], None);
    }

    #[test]
    fn identifies_template_where_json_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |template: &str| {
            let config = json!({ "chat_template": template }).to_string();
            std::fs::write(folder.path().join(TOKENIZER_CONFIG), config).unwrap();
            identifying_bytes(folder.path()).unwrap()
        };
        std::fs::write(folder.path().join(JSON), "{}").unwrap();
        assert_ne!(bytes("one"), bytes("two"));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(JSON), r#"{"chat_template": 7}"#).unwrap();
        let found = read(folder.path(), &Value::Null, SpecialTokens::default());
        let found = found.unwrap_err();
        let source = std::error::Error::source(&found).unwrap().to_string();
        assert!(source.contains("chat_template in chat_template.json is neither"), "{source}");
    }
}
