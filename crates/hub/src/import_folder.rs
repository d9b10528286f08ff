//! Bringing a model folder in MLX or Hugging Face layout into Cairn's own models, by copying it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::{HubError, ModelFolders};

/// What a model is made of. Everything else stays behind: no pickle, no Python.
const EXTENSIONS: &[&str] = &["json", "safetensors", "jinja", "model", "txt", "md"];
const COPY_BYTES: usize = 1 << 20;

impl ModelFolders {
    /// Copies the model in `source` to the imported models, as `name` or under its folder's name;
    /// returns where it lies now.
    ///
    /// It appears whole or not at all: the copy is made under a hidden name, written through to the
    /// disk and then renamed. `progress` is told the bytes copied and to copy.
    pub fn import_folder(
        &self,
        source: &Path,
        name: Option<&str>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<PathBuf, HubError> {
        let source = self.resolve(&source.to_string_lossy())?;
        let name = match name {
            Some(name) => name.to_owned(),
            // A relative path such as "." has no name of its own.
            None => fs::canonicalize(&source)
                .unwrap_or_else(|_| source.clone())
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
        };
        if name.is_empty()
            || name.starts_with('.')
            || name.contains(['/', '\\'])
            || name.contains(char::is_control)
        {
            return Err(HubError::BadName { name });
        }
        let target = self.imported().join(&name);
        if target.exists() {
            return Err(HubError::Exists { path: target });
        }
        let copying = |error| HubError::Copy { path: target.clone(), reason: error_text(&error) };
        let files = model_files(&source).map_err(copying)?;
        let total = files.iter().map(|(_, bytes)| bytes).sum();
        let partial = self.imported().join(format!(".importing-{name}"));
        let result = (|| {
            let _ = fs::remove_dir_all(&partial);
            fs::create_dir_all(&partial)?;
            let mut done = 0;
            for (file, _) in &files {
                copy(file, &partial.join(file.file_name().unwrap_or_default()), &mut |bytes| {
                    done += bytes;
                    progress(done, total);
                })?;
            }
            File::open(&partial)?.sync_all()?;
            fs::rename(&partial, &target)?;
            File::open(self.imported())?.sync_all()
        })();
        if let Err(error) = result {
            let _ = fs::remove_dir_all(&partial);
            return Err(copying(error));
        }
        Ok(target)
    }
}

fn model_files(folder: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_wanted = path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| EXTENSIONS.contains(&extension));
        // Following links: in the shared cache every file is one.
        if is_wanted
            && let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            files.push((path, metadata.len()));
        }
    }
    files.sort();
    Ok(files)
}

fn copy(from: &Path, to: &Path, on_bytes: &mut dyn FnMut(u64)) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create_new(to)?);
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return to.sync_all();
        }
        to.write_all(&buffer[..length])?;
        on_bytes(length as u64);
    }
}

fn error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheVariables;

    fn model(folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        fs::write(folder.join("model.safetensors"), [0; 100]).unwrap();
        fs::write(folder.join("modeling.py"), "import os").unwrap();
    }

    #[test]
    fn a_folder_is_copied_without_its_programs_and_found_by_name() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let mut seen = Vec::new();
        let target = folders
            .import_folder(&source, None, &mut |done, total| seen.push((done, total)))
            .unwrap();
        assert_eq!(folders.resolve("tiny").unwrap(), target);
        assert!(target.join("model.safetensors").exists());
        assert!(!target.join("modeling.py").exists());
        assert_eq!(seen.last().map(|(done, total)| done == total), Some(true));
        assert!(matches!(
            folders.import_folder(&source, None, &mut |_, _| {}),
            Err(HubError::Exists { .. })
        ));
        assert!(folders.import_folder(&source, Some("another"), &mut |_, _| {}).is_ok());
    }

    #[test]
    fn names_that_lead_elsewhere_and_incomplete_folders_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("tiny");
        model(&source);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        for name in ["", "../up", ".hidden", "a/b", "a\\b", "a\nb"] {
            assert!(
                matches!(
                    folders.import_folder(&source, Some(name), &mut |_, _| {}),
                    Err(HubError::BadName { .. })
                ),
                "{name}"
            );
        }
        fs::remove_file(source.join("model.safetensors")).unwrap();
        assert!(matches!(
            folders.import_folder(&source, None, &mut |_, _| {}),
            Err(HubError::Unusable { .. })
        ));
    }
}
