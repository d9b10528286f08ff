//! The new folder, which appears complete or not at all, and the files in it beside the weights.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cairn_formats::{
    check_disk_space, is_pooling_folder, read_file, sync_folder, write_new_file, write_new_json,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::LmError;
use crate::error::read_json;

use super::error::ConvertError;

/// The most bytes of a model's card that are read.
const MAX_CARD_BYTES: u64 = 1 << 20;

/// Fails if anything is at `target`.
pub(super) fn check_is_new(target: &Path) -> Result<(), ConvertError> {
    match target.symlink_metadata() {
        Ok(_) => Err(ConvertError::Exists { path: target.to_owned() }),
        Err(_) => Ok(()),
    }
}

/// A folder beside the one that it becomes. Dropped, it is removed.
pub(super) struct NewFolder {
    folder: TempDir,
    target: PathBuf,
    made_parents: MadeParents,
}

/// Folders that were made for the new one; removed unless that stays.
struct MadeParents(Vec<PathBuf>);

impl Drop for MadeParents {
    fn drop(&mut self) {
        for folder in &self.0 {
            // One that is not empty any more is somebody's.
            let _ = fs::remove_dir(folder);
        }
    }
}

impl NewFolder {
    /// Makes the folder that is to be `target`. Fails where its disk has not so many bytes.
    pub(super) fn make(target: &Path, num_bytes: u64) -> Result<Self, ConvertError> {
        let parent = parent(target);
        check_disk_space(parent, num_bytes)?;
        let missing = parent
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        let made_parents = MadeParents(missing.map(Path::to_owned).collect());
        fs::create_dir_all(parent).map_err(ConvertError::at(parent))?;
        let folder = tempfile::Builder::new()
            .prefix(".converting-")
            .permissions(Permissions::from_mode(0o777))
            .tempdir_in(parent)
            .map_err(ConvertError::at(target))?;
        Ok(NewFolder { folder, target: target.to_owned(), made_parents })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its name, unless that is taken meanwhile.
    pub(super) fn finish(mut self) -> Result<(), ConvertError> {
        let _ = sync_folder(self.folder.path());
        check_is_new(&self.target)?;
        fs::rename(self.folder.path(), &self.target).map_err(ConvertError::at(&self.target))?;
        let _ = self.folder.keep();
        self.made_parents.0.clear();
        let _ = sync_folder(parent(&self.target));
        Ok(())
    }
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Writes a new file and waits until it is on the disk.
fn write(path: &Path, contents: &[u8]) -> Result<(), ConvertError> {
    write_new_file(path, contents).map_err(ConvertError::at(path))
}

pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), LmError> {
    Ok(write_new_json(path, value).map_err(ConvertError::at(path))?)
}

/// What a model's folder says of generating, if it says something.
pub(super) fn generation_config(source: &Path) -> Result<Option<Value>, LmError> {
    let path = source.join("generation_config.json");
    if path.exists() { read_json(&path, 1 << 20).map(Some) } else { Ok(None) }
}

/// Copies the tokenizer, the chat templates, generation_config.json, licences, and what says how
/// texts become vectors.
pub(super) fn copy_files(source: &Path, target: &Path) -> Result<(), LmError> {
    const TEMPLATES: &str = "additional_chat_templates";
    copy_those(source, target, is_copied)?;
    let templates = source.join(TEMPLATES);
    if templates.is_dir() {
        let target = target.join(TEMPLATES);
        fs::create_dir(&target).map_err(ConvertError::at(&target))?;
        copy_those(&templates, &target, |name| name.ends_with(".jinja"))?;
        let _ = sync_folder(&target);
    }
    for name in pooling_folders(source) {
        let target = target.join(&name);
        fs::create_dir(&target).map_err(ConvertError::at(&target))?;
        copy_those(&source.join(&name), &target, |name| name == "config.json")?;
        let _ = sync_folder(&target);
    }
    Ok(())
}

/// The names of the folders that say how hidden states are pooled.
fn pooling_folders(source: &Path) -> Vec<String> {
    let entries = fs::read_dir(source).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let names = folders.filter_map(|folder| folder.file_name().into_string().ok());
    names.filter(|name| is_pooling_folder(name)).collect()
}

fn copy_those(
    source: &Path,
    target: &Path,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), LmError> {
    let unreadable =
        |source_of| cairn_formats::FileError::Io { path: source.to_owned(), source: source_of };
    for entry in fs::read_dir(source).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_wanted(&name) && entry.path().is_file() {
            let contents = read_file(&entry.path(), crate::tokenizer::MAX_TOKENIZER_BYTES)?;
            write(&target.join(&name), &contents)?;
        }
    }
    Ok(())
}

/// Whether a file of a model's folder belongs to the new model too.
fn is_copied(name: &str) -> bool {
    const JSON: [&str; 9] = [
        "tokenizer",
        "special_tokens_map",
        "added_tokens",
        "vocab",
        "chat_template",
        "generation_config",
        "modules",
        "config_sentence_transformers",
        "sentence_bert_config",
    ];
    let is_licence = |name: &str| {
        let name = name.to_uppercase();
        ["LICENSE", "LICENCE", "NOTICE"].iter().any(|known| name.starts_with(known))
    };
    match name.rsplit_once('.') {
        Some((stem, "json")) => JSON.iter().any(|known| stem.starts_with(known)),
        Some((_, "jinja" | "tiktoken")) => true,
        Some(("tokenizer" | "spiece" | "tiktoken", "model")) => true,
        Some(("merges" | "vocab", "txt")) => true,
        _ => is_licence(name),
    }
}

/// Writes the model's card, with what the old one's says of the licence and the like.
pub(super) fn write_card(
    source: &Path,
    target: &Path,
    hub_name: Option<&str>,
) -> Result<(), LmError> {
    let old = read_file(&source.join("README.md"), MAX_CARD_BYTES).unwrap_or_default();
    let old = String::from_utf8_lossy(&old).replace("\r\n", "\n");
    let card = card(&old, hub_name);
    Ok(write(&target.join("README.md"), card.as_bytes())?)
}

/// A card of entries alone: those of `old`, and that this is a model of text for MLX.
fn card(old: &str, hub_name: Option<&str>) -> String {
    let kept = entries(old).filter(|entry| {
        let name = entry.split(':').next().unwrap_or_default();
        let is_replaced = name == "base_model" && hub_name.is_some();
        !(is_replaced || ["library_name", "pipeline_tag", "tags"].contains(&name))
    });
    let mut card = "---\n".to_owned();
    card.extend(kept);
    if let Some(name) = hub_name {
        card += &format!("base_model: {name}\n");
    }
    card += "library_name: mlx\npipeline_tag: text-generation\ntags:\n";
    let tags = entries(old).find(|entry| entry.starts_with("tags:")).unwrap_or_default();
    let tags: Vec<&str> = tags.lines().skip(1).filter(|line| line.contains('-')).collect();
    tags.iter().for_each(|tag| card += &format!("{tag}\n"));
    if !tags.iter().any(|tag| tag.trim_start_matches(['-', ' ']) == "mlx") {
        card += "- mlx\n";
    }
    card + "---\n"
}

/// The entries at the beginning of a card, each with the lines below it.
fn entries(card: &str) -> impl Iterator<Item = &str> {
    let head = card.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---"));
    let mut rest = head.map_or("", |(head, _)| &card[4..5 + head.len()]);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_next = |(at, _): &(usize, &str)| {
            rest[at + 1..].starts_with(|letter: char| letter.is_ascii_alphabetic())
        };
        let end = rest.match_indices('\n').find(is_next).map_or(rest.len(), |(at, _)| at + 1);
        let (entry, behind) = rest.split_at(end);
        rest = behind;
        Some(entry)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_keeps_the_licence_and_says_what_it_was_made_of() {
        let old = "---\nlicense: other\nlicense_name: own\nlanguage:\n- en\n- de\nlibrary_name: transformers\ntags:\n- chat\nbase_model: a/b\n---\n# A model\n---\n";
        let new = "---\nlicense: other\nlicense_name: own\nlanguage:\n- en\n- de\nbase_model: owner/name\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- chat\n- mlx\n---\n";
        assert_eq!(card(old, Some("owner/name")), new);
        let again = new.replace("owner/name", "c/d");
        assert_eq!(card(new, Some("c/d")), again);
        let bare = "---\nlibrary_name: mlx\npipeline_tag: text-generation\ntags:\n- mlx\n---\n";
        assert_eq!(card("# No entries\n", None), bare);
        assert_eq!(card("", None), bare);
    }

    #[test]
    fn what_a_tokenizer_needs_is_copied_and_nothing_else() {
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "special_tokens_map.json",
            "vocab.json",
            "merges.txt",
            "tokenizer.model",
            "qwen.tiktoken",
            "chat_template.jinja",
            "generation_config.json",
            "modules.json",
            "config_sentence_transformers.json",
            "sentence_bert_config.json",
            "LICENSE",
            "NOTICE.txt",
        ] {
            assert!(is_copied(name), "{name}");
        }
        for name in [
            "config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "modeling.py",
            "preprocessor_config.json",
            "README.md",
            "pytorch_model.bin",
            "evil.model",
        ] {
            assert!(!is_copied(name), "{name}");
        }
    }

    #[test]
    fn a_folder_that_is_not_finished_is_removed_with_those_made_for_it() {
        let home = tempfile::tempdir().expect("a folder");
        let target = home.path().join("a/b/model");
        drop(NewFolder::make(&target, 1).expect("a new folder"));
        assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 0);
        NewFolder::make(&target, 1).expect("a new folder").finish().expect("is renamed");
        assert!(target.is_dir());
        assert!(matches!(check_is_new(&target), Err(ConvertError::Exists { .. })));
        let much = NewFolder::make(&home.path().join("c/model"), u64::MAX / 2);
        assert!(matches!(much, Err(ConvertError::NoSpace { .. })));
        assert!(!home.path().join("c").exists());
    }
}
