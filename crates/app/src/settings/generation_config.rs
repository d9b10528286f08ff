//! The sampling defaults that a model's publisher recommends in `generation_config.json`. Its keys
//! are those of the table.

use std::io;
use std::path::Path;

use cairn_formats::{FileError, read_file};
use serde_json::Value;

use super::{SettingOverrides, SettingScope, TABLE};

/// Far more than any such file has.
const MAX_BYTES: u64 = 1 << 20;

/// What the file of this model sets; nothing where there is no file or it cannot be used.
pub(crate) fn read(model_folder: &Path) -> SettingOverrides {
    let path = model_folder.join("generation_config.json");
    match read_file(&path, MAX_BYTES).map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(Value::Object(mut values))) => {
            // Most of its keys are not for sampling.
            values.retain(|key, _| TABLE.iter().any(|row| row.key == key && is_read(row.scopes)));
            SettingOverrides::of_values(SettingScope::GenerationConfig, values)
        }
        Ok(Ok(_)) => unusable(&path, "it is not a JSON object"),
        Ok(Err(error)) => unusable(&path, &error.to_string()),
        Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => nothing(),
        Err(error) => unusable(&path, &error.to_string()),
    }
}

fn is_read(scopes: &[SettingScope]) -> bool {
    scopes.contains(&SettingScope::GenerationConfig)
}

fn nothing() -> SettingOverrides {
    SettingOverrides::none(SettingScope::GenerationConfig)
}

fn unusable(path: &Path, why: &str) -> SettingOverrides {
    tracing::warn!("the sampling defaults in {} are not used: {why}", path.display());
    nothing()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn sampling_defaults_are_read_and_nothing_else() {
        fn check(file: &str, expected: &str) {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("generation_config.json"), file).unwrap();
            assert_eq!(read(folder.path()).to_json().unwrap_or_default(), expected, "{file}");
        }
        check(
            r#"{"do_sample": true, "eos_token_id": [1, 2], "repetition_penalty": 1.05,
                "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "max_new_tokens": 9}"#,
            r#"{"min_p":0,"repetition_penalty":1.05,"temperature":0.6,"top_k":20,"top_p":0.95}"#,
        );
        check(r#"{"temperature": null, "top_p": 7, "top_k": 50}"#, r#"{"top_k":50}"#);
        check(r#"{"max_tokens": 5, "appearance": "dark"}"#, "");
        check(r#"{"temperature": "#, "");
        check("[]", "");
        assert_eq!(read(Path::new("/no/such/folder")).to_json(), None);
    }
}
