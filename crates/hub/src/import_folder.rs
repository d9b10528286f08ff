//! Imports a model folder in MLX or Hugging Face layout by copying it to Cairn's own models.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_formats::gguf::{
    self, GgufError, GgufImport, ImportedGguf, RoundTo, RoundedWeights, RoundingChoice, import_gguf,
};
use cairn_formats::{
    check_disk_space, is_model_name, is_pooling_folder, make_locked_folder, open_regular,
    sync_folder,
};
use uuid::Uuid;

use crate::unique_name::unique_name;
use crate::{HubError, ModelFolders};

/// The extensions of the files that are copied. Pickled weights and Python code are not.
const EXTENSIONS: &[&str] = &["json", "safetensors", "jinja", "model", "tiktoken", "txt", "md"];
/// The folder of named chat templates, which are copied too.
const TEMPLATES: &str = "additional_chat_templates";
const COPY_BYTES: usize = 1 << 20;
/// Precedes the UUID in the name of a folder that a model is being copied to.
pub(crate) const PARTIAL_PREFIX: &str = ".importing-";

/// A model that was imported.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedModel {
    /// Its folder.
    pub folder: PathBuf,
    /// By how much weights were changed; none: they are the source's.
    pub rounded_weights: Option<RoundedWeights>,
}

impl ModelFolders {
    /// Imports what a person chose: a GGUF file, which is converted, or a model's folder. The model
    /// is named like the file, `file_name` for one that has another name on the disk. Weights of a GGUF
    /// file that have no exact form are rounded to `round_to`.
    pub fn import(
        &self,
        source: &Path,
        file_name: &str,
        round_to: RoundTo,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ImportedModel, HubError> {
        if source.is_dir() {
            let folder = self.import_folder(source, None, on_progress)?;
            // A folder that was made from a GGUF file says so wherever it is copied.
            let rounded_weights = RoundedWeights::read(&folder);
            return Ok(ImportedModel { folder, rounded_weights });
        }
        let options = GgufImport { name: Some(&gguf_name(file_name)?), round_to };
        let ImportedGguf { folder, rounding } =
            import_gguf(source, self.imported(), options, on_progress)
                .map_err(|error| import_error(error, file_name))?;
        Ok(ImportedModel { folder, rounded_weights: rounding.recorded() })
    }

    /// What the weights that have no exact form can be rounded to when this is imported; nothing where
    /// all have one. What is refused is refused by [`ModelFolders::import`] too.
    pub fn rounding_choices(
        &self,
        source: &Path,
        file_name: &str,
    ) -> Result<Vec<RoundingChoice>, HubError> {
        if source.is_dir() {
            return Ok(Vec::new());
        }
        RoundingChoice::all(source, self.imported(), Some(&gguf_name(file_name)?))
            .map_err(|error| import_error(error, file_name))
    }

    /// Copies the model in `source` to the imported models, as `name` or under its folder's name;
    /// returns the new folder.
    ///
    /// The copy appears complete or not at all: it is made under a hidden name, synced and then
    /// renamed. Links are followed within the folder, and within the model's part of the shared
    /// cache; a link that leads elsewhere is refused. `on_progress(copied, total)` counts bytes; where
    /// it breaks, the copy ends and nothing of it is left.
    pub fn import_folder(
        &self,
        source: &Path,
        name: Option<&str>,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<PathBuf, HubError> {
        let source = self.resolve(&source.to_string_lossy())?;
        let target = self.imported().join(checked_name(name, &source)?);
        if target.exists() {
            return Err(HubError::Exists { path: target });
        }
        let copying = |error| HubError::Copy { path: target.clone(), reason: error_text(&error) };
        let files = model_files(&source, &copying)?;
        let total = files.iter().fold(0, |total: u64, file| total.saturating_add(file.bytes));
        check_disk_space(self.imported(), total)?;
        let partial = PartialCopy::make(self.imported()).map_err(copying)?;
        let (mut done, mut goes_on) = (0, ControlFlow::Continue(()));
        for file in &files {
            let target = partial.path.join(&file.name);
            fs::create_dir_all(target.parent().unwrap_or(&partial.path)).map_err(copying)?;
            let copied = copy(&file.path, &target, &mut |bytes| {
                done += bytes;
                goes_on = on_progress(done, total);
                goes_on
            });
            copied.map_err(copying)?;
            if goes_on.is_break() {
                return Err(HubError::Cancelled);
            }
        }
        partial.finish(&target).map_err(|error| match error.kind() {
            // Another import has taken the name meanwhile.
            io::ErrorKind::DirectoryNotEmpty => HubError::Exists { path: target.clone() },
            _ => copying(error),
        })?;
        Ok(target)
    }

    /// Removes the unfinished copies of processes that have ended. Folders that this crate cannot
    /// have made stay, and so does a copy that is still being made.
    pub fn remove_leftovers(&self) {
        let Ok(entries) = fs::read_dir(self.imported()) else { return };
        for entry in entries.flatten() {
            let is_ours = entry.file_name().to_str().is_some_and(is_partial_name)
                && entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Held until the folder is gone: an import that has just made it makes another then.
            if is_ours && let Some(_lock) = lock(&entry.path()) {
                // If this fails, the next start tries again.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// The name to import a model under: the given one, or that of its folder.
fn checked_name(name: Option<&str>, source: &Path) -> Result<String, HubError> {
    let name = match name {
        Some(name) => name.to_owned(),
        // A relative path such as "." has no name of its own.
        None => fs::canonicalize(source)
            .unwrap_or_else(|_| source.to_owned())
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    };
    if is_model_name(&name) { Ok(name) } else { Err(HubError::BadName { name }) }
}

/// A folder that a model is being copied to: locked for that time, and removed unless the copy is
/// completed.
struct PartialCopy {
    path: PathBuf,
    _lock: Option<File>,
}

impl PartialCopy {
    fn make(imported: &Path) -> io::Result<PartialCopy> {
        fs::create_dir_all(imported)?;
        let (path, _lock) = make_locked_folder(|| {
            let path = imported.join(format!("{PARTIAL_PREFIX}{}", unique_name()));
            fs::create_dir(&path).map(|()| path)
        })?;
        Ok(PartialCopy { path, _lock })
    }

    fn finish(self, target: &Path) -> io::Result<()> {
        sync_folder(&self.path)?;
        fs::rename(&self.path, target)?;
        sync_folder(target.parent().unwrap_or(target))
    }
}

impl Drop for PartialCopy {
    fn drop(&mut self) {
        // After `finish` there is no folder of this name.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn is_partial_name(name: &str) -> bool {
    let is_copy = name.strip_prefix(PARTIAL_PREFIX).is_some_and(|id| Uuid::parse_str(id).is_ok());
    let is_conversion = name.strip_prefix(gguf::PARTIAL_PREFIX).is_some_and(|id| {
        id.len() == gguf::NUM_RANDOM_CHARS && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    is_copy || is_conversion
}

/// The lock that says that a model is being copied to a folder; none if another process has it.
fn lock(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.try_lock().is_ok().then_some(folder)
}

/// A file to copy.
struct ModelFile {
    /// Its path in the model's folder.
    name: String,
    /// Its path without any link.
    path: PathBuf,
    bytes: u64,
}

fn model_files(
    folder: &Path,
    copying: &impl Fn(io::Error) -> HubError,
) -> Result<Vec<ModelFile>, HubError> {
    let root = link_root(&fs::canonicalize(folder).map_err(copying)?);
    let mut files = files_in(folder, &root, EXTENSIONS, copying)?;
    let templates = folder.join(TEMPLATES);
    if templates.is_dir() {
        let named = files_in(&templates, &root, &["jinja"], copying)?;
        let below =
            |file: ModelFile| ModelFile { name: format!("{TEMPLATES}/{}", file.name), ..file };
        files.extend(named.into_iter().map(below));
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// The files in `folder` with one of these extensions. Fails on a link that leads out of `root`.
fn files_in(
    folder: &Path,
    root: &Path,
    extensions: &[&str],
    copying: &impl Fn(io::Error) -> HubError,
) -> Result<Vec<ModelFile>, HubError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(copying)? {
        let entry = entry.map_err(copying)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = if is_pooling_folder(&name) { format!("{name}/config.json") } else { name };
        let is_wanted =
            name.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension));
        // Links without a target are skipped; whether a file is missing was checked before.
        let Ok(path) = fs::canonicalize(folder.join(&name)) else { continue };
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if !is_wanted || !metadata.is_file() {
            continue;
        }
        if !path.starts_with(root) {
            return Err(HubError::LinkOut { path: folder.join(&name) });
        }
        files.push(ModelFile { name, path, bytes: metadata.len() });
    }
    Ok(files)
}

/// The folder that links of the model in `folder` may lead to: in the shared cache the model's whole
/// repository, because every file there is a link into `blobs`.
fn link_root(folder: &Path) -> PathBuf {
    let is_named = |folder: &Path, is_it: fn(&str) -> bool| {
        folder.file_name().and_then(|name| name.to_str()).is_some_and(is_it)
    };
    let snapshots = folder.parent().filter(|parent| is_named(parent, |name| name == "snapshots"));
    let repository = snapshots.and_then(Path::parent);
    repository
        .filter(|repository| is_named(repository, |name| name.starts_with("models--")))
        .unwrap_or(folder)
        .to_owned()
}

/// Copies a file, or the part of it before `on_bytes` breaks.
fn copy(
    from: &Path,
    to: &Path,
    on_bytes: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<()> {
    let (mut from, _) = open_regular(from).map_err(io::Error::other)?;
    let mut to = File::create_new(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return to.sync_all();
        }
        to.write_all(&buffer[..length])?;
        if on_bytes(length as u64).is_break() {
            return Ok(());
        }
    }
}

/// The name of the model in a GGUF file of this name.
fn gguf_name(file_name: &str) -> Result<String, HubError> {
    let is_gguf = |(_, extension): &(&str, &str)| extension.eq_ignore_ascii_case("gguf");
    let Some((stem, _)) = file_name.rsplit_once('.').filter(is_gguf) else {
        return Err(HubError::NoModelFile { name: file_name.to_owned() });
    };
    match gguf::folder_name(gguf::model_name(stem)) {
        name if name.is_empty() => Err(HubError::BadName { name: stem.to_owned() }),
        name => Ok(name),
    }
}

fn import_error(error: GgufError, file_name: &str) -> HubError {
    match error {
        GgufError::Cancelled { .. } => HubError::Cancelled,
        GgufError::AlreadyExists { path } => HubError::Exists { path },
        GgufError::NoSpace(error) => error.into(),
        GgufError::Write { path, source } => HubError::Copy { path, reason: error_text(&source) },
        // A file that was received has a path that nobody knows.
        GgufError::Contents { problem, .. } => {
            HubError::Gguf { reason: format!("{file_name} cannot be imported: {problem}") }
        }
        error => HubError::Gguf { reason: error.to_string() },
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
            .import_folder(&source, None, &mut |done, total| {
                seen.push((done, total));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(folders.resolve("tiny").unwrap(), target);
        assert!(target.join("model.safetensors").exists());
        assert!(!target.join("modeling.py").exists());
        assert_eq!(seen.last().map(|(done, total)| done == total), Some(true));
        assert!(matches!(
            folders.import_folder(&source, None, &mut |_, _| ControlFlow::Continue(())),
            Err(HubError::Exists { .. })
        ));
        assert!(
            folders
                .import_folder(&source, Some("another"), &mut |_, _| ControlFlow::Continue(()))
                .is_ok()
        );
    }

    #[test]
    fn import_keeps_pooling_files() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        fs::create_dir(source.join("1_Pooling")).unwrap();
        for name in ["modules.json", "1_Pooling/config.json", "1_Pooling/pooling.py"] {
            fs::write(source.join(name), "[]").unwrap();
        }
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let target = folders.import_folder(&source, None, &mut |_, _| ControlFlow::Continue(()));
        let target = target.unwrap();
        assert!(target.join("modules.json").exists());
        assert!(target.join("1_Pooling/config.json").exists());
        assert!(!target.join("1_Pooling/pooling.py").exists());
    }

    #[test]
    fn named_chat_templates_are_copied() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        fs::create_dir(source.join(TEMPLATES)).unwrap();
        for name in ["tool_use.jinja", "code.py"] {
            fs::write(source.join(TEMPLATES).join(name), "text").unwrap();
        }
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let mut on_progress = |_, _| ControlFlow::Continue(());
        let target = folders.import_folder(&source, None, &mut on_progress).unwrap();
        assert_eq!(fs::read(target.join(TEMPLATES).join("tool_use.jinja")).unwrap(), b"text");
        assert!(!target.join(TEMPLATES).join("code.py").exists());
    }

    #[test]
    fn a_folder_whose_weights_were_rounded_says_so_when_it_is_imported_again() {
        let home = tempfile::tempdir().unwrap();
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let import = |name: &str, config: &str| {
            let source = home.path().join("elsewhere").join(name);
            model(&source);
            fs::write(source.join("config.json"), config).unwrap();
            let imported = folders
                .import(&source, name, RoundTo::default(), &mut |_, _| ControlFlow::Continue(()));
            imported.unwrap().rounded_weights
        };
        let rounded = import(
            "rounded",
            r#"{
                "model_type": "llama",
                "cairn_rounded_weights": {"num_tensors": 3, "relative_error": 0.01}
            }"#,
        );
        assert_eq!(
            rounded,
            Some(RoundedWeights { num_tensors: 3, relative_error: 0.01, perplexity: None })
        );
        assert_eq!(import("exact", r#"{"model_type": "llama"}"#), None);
    }

    #[test]
    fn refuses_a_folder_larger_than_the_disk() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        // They have lengths, and no blocks.
        for name in ["a.json", "b.json", "c.json", "d.json"] {
            File::create(source.join(name)).unwrap().set_len(15 << 40).unwrap();
        }
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let refused = folders.import_folder(&source, None, &mut |_, _| panic!("it copies"));
        let Err(HubError::NoSpace(refused)) = refused else { panic!("{refused:?}") };
        assert!(refused.needed_bytes > 60 << 40 && refused.free_bytes < 60 << 40, "{refused}");
        assert!(!folders.imported().exists());
    }

    #[test]
    fn a_cancelled_import_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let cancelled =
            folders.import(&source, "tiny", RoundTo::default(), &mut |_, _| ControlFlow::Break(()));
        assert_eq!(cancelled, Err(HubError::Cancelled));
        assert_eq!(fs::read_dir(folders.imported()).unwrap().count(), 0);
        fs::write(home.path().join("notes.txt"), "x").unwrap();
        let refused = folders.import(
            &home.path().join("notes.txt"),
            "notes.txt",
            RoundTo::default(),
            &mut |_, _| ControlFlow::Continue(()),
        );
        assert!(matches!(refused, Err(HubError::NoModelFile { .. })), "{refused:?}");
    }

    #[test]
    fn imports_of_one_name_do_not_collide_and_only_leftovers_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("elsewhere/tiny");
        model(&source);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let models = folders.imported().to_owned();
        let make = |name: &str| fs::create_dir_all(models.join(name)).unwrap();
        let leftover = format!("{PARTIAL_PREFIX}{}", unique_name());
        make(&leftover);
        let of_gguf = |letter: &str| {
            format!("{}{}", gguf::PARTIAL_PREFIX, letter.repeat(gguf::NUM_RANDOM_CHARS))
        };
        let (left_by_gguf, being_written) = (of_gguf("a"), of_gguf("b"));
        make(&left_by_gguf);
        make(&being_written);
        let _lock = lock(&models.join(&being_written)).unwrap();
        make(".importing-gguf-tiny");
        make(".importing-tiny");
        make(".importing-");
        fs::write(models.join(format!("{PARTIAL_PREFIX}{}", unique_name())), "a file").unwrap();
        let names = || {
            let mut names: Vec<String> = fs::read_dir(&models)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let num_before = names().len();

        // During an import a second one of the same name begins, and another start removes
        // leftovers.
        let mut second = None;
        let first = folders.import_folder(&source, None, &mut |_, _| {
            if second.is_none() {
                folders.remove_leftovers();
                let mut go_on = |_, _| ControlFlow::Continue(());
                second = Some(folders.import_folder(&source, None, &mut go_on));
            }
            ControlFlow::Continue(())
        });
        assert!(second.unwrap().is_ok());
        // The first finds the name taken when it is done, and does not replace that model.
        assert!(matches!(first, Err(HubError::Exists { .. })), "{first:?}");
        assert_eq!(fs::read(models.join("tiny/model.safetensors")).unwrap(), [0; 100]);
        let after = names();
        assert!(!after.contains(&leftover) && !after.contains(&left_by_gguf), "{after:?}");
        assert!(after.contains(&being_written), "{after:?}");
        // Two leftovers went, and the model came.
        assert_eq!(after.len(), num_before - 1, "{after:?}");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_within_a_model_and_refused_where_they_lead_out_of_it() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let outside = home.path().join("outside.json");
        fs::write(&outside, "secret").unwrap();

        let source = home.path().join("elsewhere/tiny");
        model(&source);
        fs::rename(source.join("tokenizer.json"), source.join("real")).unwrap();
        symlink("real", source.join("tokenizer.json")).unwrap();
        assert!(
            folders
                .import_folder(&source, Some("within"), &mut |_, _| ControlFlow::Continue(()))
                .is_ok()
        );
        symlink(&outside, source.join("extra.json")).unwrap();
        let refused =
            folders.import_folder(&source, Some("out"), &mut |_, _| ControlFlow::Continue(()));
        assert_eq!(refused, Err(HubError::LinkOut { path: source.join("extra.json") }));
        assert!(!folders.imported().join("out").exists());

        // As the shared cache has them.
        let repository = home.path().join("hub/models--ann--tiny");
        let snapshot = repository.join("snapshots/abc");
        fs::create_dir_all(repository.join("blobs")).unwrap();
        model(&snapshot);
        fs::rename(snapshot.join("config.json"), repository.join("blobs/1")).unwrap();
        symlink("../../blobs/1", snapshot.join("config.json")).unwrap();
        assert!(
            folders
                .import_folder(&snapshot, Some("cached"), &mut |_, _| ControlFlow::Continue(()))
                .is_ok()
        );
        symlink(&outside, snapshot.join("extra.json")).unwrap();
        let refused =
            folders.import_folder(&snapshot, Some("out"), &mut |_, _| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(HubError::LinkOut { .. })), "{refused:?}");
    }

    #[test]
    fn names_that_lead_elsewhere_and_incomplete_folders_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("tiny");
        model(&source);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let long = "n".repeat(300);
        for name in ["", "../up", ".hidden", "a/b", "a\\b", "a\nb", &long] {
            assert!(
                matches!(
                    folders
                        .import_folder(&source, Some(name), &mut |_, _| ControlFlow::Continue(())),
                    Err(HubError::BadName { .. })
                ),
                "{name}"
            );
        }
        fs::remove_file(source.join("model.safetensors")).unwrap();
        assert!(matches!(
            folders.import_folder(&source, None, &mut |_, _| ControlFlow::Continue(())),
            Err(HubError::Unusable { .. })
        ));
    }
}
