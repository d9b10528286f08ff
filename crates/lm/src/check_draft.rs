//! Whether a model can propose tokens for another, before either is loaded.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::LmError;
use crate::config::ConfigFile;
use crate::tokenizer::{tokenizer_config, tokenizer_json, tokenizer_path};

/// Fails unless the model in `draft` can be the draft model of the one in `folder`: both need the
/// same tokens under the same ids, and as many rows for them. Reads config.json and tokenizer.json of
/// both.
pub fn check_draft_model(folder: &Path, draft: &Path) -> Result<(), LmError> {
    let [vocab_size, draft_vocab_size] = [vocab_size(folder)?, vocab_size(draft)?];
    if vocab_size != draft_vocab_size {
        return Err(LmError::DraftVocabulary { vocab_size, draft_vocab_size });
    }
    if tokens(folder)? != tokens(draft)? {
        return Err(LmError::DraftTokenizer);
    }
    Ok(())
}

fn vocab_size(folder: &Path) -> Result<usize, LmError> {
    let config = ConfigFile::read(folder)?.value;
    let size = config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0);
    Ok(usize::try_from(size).unwrap_or(usize::MAX))
}

/// What decides which id a piece of text gets: the vocabulary, and the tokens that were added to it.
fn tokens(folder: &Path) -> Result<(Value, BTreeMap<u64, String>), LmError> {
    let mut json = tokenizer_json(&tokenizer_path(folder), &tokenizer_config(folder)?)?;
    let vocabulary = json.pointer_mut("/model/vocab").map(Value::take).unwrap_or_default();
    let added = json.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let token = |token: &Value| {
        Some((token.get("id")?.as_u64()?, token.get("content")?.as_str()?.to_owned()))
    };
    Ok((vocabulary, added.filter_map(token).collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_tiny_models::{copy_tiny_model, tiny_model};

    use super::*;

    #[test]
    fn a_draft_model_needs_the_same_tokens() {
        let chat = tiny_model("llama/tiny-chat");
        check_draft_model(&chat, &chat).unwrap();
        let smaller = check_draft_model(&chat, &tiny_model("qwen3/dense"));
        assert!(
            matches!(
                smaller,
                Err(LmError::DraftVocabulary { vocab_size: 259, draft_vocab_size: 128 })
            ),
            "{smaller:?}"
        );
        let other = tempfile::tempdir().unwrap();
        copy_tiny_model("llama/tiny-chat", other.path()).unwrap();
        let path = other.path().join("tokenizer.json");
        let tokenizer = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, tokenizer.replace("<|im_start|>", "<|turn|>")).unwrap();
        let other = check_draft_model(&chat, other.path());
        assert!(matches!(other, Err(LmError::DraftTokenizer)), "{other:?}");
    }
}
