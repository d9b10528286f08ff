//! What a download will fetch: one commit, its files, and whether there is space for them.

use std::path::Path;

use cairn_formats::{NoDiskSpace, free_disk_bytes, is_pooling_folder};

use super::RepoFolder;
use crate::hub_api::{Commit, DownloadError, Hub, RepoFile, RepoId, Revision};

/// The part of a download that is known before a byte of a model is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadPlan {
    /// The model.
    pub repo: RepoId,
    /// The branch, tag or commit that was asked for.
    pub revision: Revision,
    /// The commit that it was when the plan was made.
    pub commit: Commit,
    /// The licence's short name, where the hub knows one.
    pub licence: Option<String>,
    /// Whether terms have to be accepted before files can be fetched.
    pub is_gated: bool,
    /// The files, small ones first.
    pub files: Vec<RepoFile>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that are not on the disk yet, as far as lengths tell.
    pub bytes_missing: u64,
}

/// Whether a file of a repository belongs to what Cairn and mlx-lm load, prediction heads and
/// settings of embeddings included. Code and pickled weights never do.
pub fn is_model_file(path: &str) -> bool {
    let name = match path.split_once('/') {
        None => path,
        Some(("additional_chat_templates", name)) => return name.ends_with(".jinja"),
        Some((folder, "config.json")) => return is_pooling_folder(folder),
        Some(_) => return false,
    };
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "json" | "jinja" | "tiktoken" | "txt" => true,
        "model" => ["tokenizer.model", "spiece.model", "tiktoken.model"].contains(&name),
        "safetensors" => is_weights(name) || name.contains("mtp"),
        _ => false,
    }
}

fn is_weights(name: &str) -> bool {
    name.starts_with("model") && name.ends_with(".safetensors")
}

impl Hub {
    /// Asks what a revision is and which files of it are to be fetched. Changes nothing.
    pub async fn plan(
        &self,
        repo: &RepoId,
        revision: &Revision,
    ) -> Result<DownloadPlan, DownloadError> {
        let page = self.model_page(repo, revision).await?;
        let mut files = self.files(repo, &page.commit, is_model_file).await?;
        if !files.iter().any(|file| is_weights(&file.path)) {
            return Err(DownloadError::NoWeights { repo: repo.clone() });
        }
        files.sort_by_key(|file| file.bytes);
        let folder = RepoFolder::new(self.cache(), repo);
        let sum = |bytes: &dyn Fn(&RepoFile) -> u64| {
            files.iter().map(bytes).try_fold(0_u64, u64::checked_add)
        };
        let problem = || "its files are longer than any disk".to_owned();
        let too_long = || DownloadError::HostileListing { repo: repo.clone(), problem: problem() };
        let bytes = sum(&|file| file.bytes).ok_or_else(too_long)?;
        let bytes_here = sum(&|file| folder.bytes_here(file)).unwrap_or(0);
        Ok(DownloadPlan {
            repo: repo.clone(),
            revision: revision.clone(),
            commit: page.commit,
            licence: page.licence,
            is_gated: page.is_gated,
            bytes,
            bytes_missing: bytes.saturating_sub(bytes_here),
            files,
        })
    }
}

/// Fails unless the cache's disk has space for what is missing, five percent of it, and a reserve.
pub(super) fn check_space(
    cache: &Path,
    bytes_missing: u64,
    reserve_bytes: u64,
) -> Result<(), DownloadError> {
    if bytes_missing == 0 {
        return Ok(());
    }
    let num_bytes = bytes_missing.saturating_add(bytes_missing / 20);
    let checked = NoDiskSpace::check(cache, num_bytes, reserve_bytes, free_disk_bytes(cache));
    checked.map_err(|NoDiskSpace { folder, needed_bytes, free_bytes }| DownloadError::NoSpace {
        folder,
        needed: needed_bytes,
        available: free_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_is_loaded_from_is_wanted() {
        for wanted in ["config.json", "model.safetensors", "model-00001-of-00002.safetensors"]
            .into_iter()
            .chain(["model.safetensors.index.json", "tokenizer.json", "tokenizer.model"])
            .chain([
                "merges.txt",
                "qwen.tiktoken",
                "tiktoken.model",
                "chat_template.jinja",
                "spiece.model",
            ])
            .chain(["additional_chat_templates/tool_use.jinja", "mtp.safetensors"])
            .chain(["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"])
            .chain(["config_sentence_transformers.json"])
        {
            assert!(is_model_file(wanted), "{wanted}");
        }
        for unwanted in ["pytorch_model.bin", "model.pt", "model.pkl", "modeling.py", "x.gguf"]
            .into_iter()
            .chain(["consolidated.safetensors", "adapter_model.safetensors", "README.md", "json"])
            .chain([
                "onnx/config.json",
                "original/model.safetensors",
                "evil.model",
                ".gitattributes",
            ])
            .chain(["additional_chat_templates/x.py", "additional_chat_templates/a/b.json"])
            .chain([
                "1_Pooling/pytorch_model.bin",
                "x_Pooling/config.json",
                "a/1_Pooling/config.json",
            ])
        {
            assert!(!is_model_file(unwanted), "{unwanted}");
        }
    }

    #[test]
    fn a_download_needs_a_twentieth_more_and_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let available = free_disk_bytes(folder.path()).unwrap();
        assert_eq!(check_space(folder.path(), 100, 0), Ok(()));
        assert_eq!(check_space(folder.path(), 0, u64::MAX), Ok(()), "nothing is to be written");
        let refused = check_space(folder.path(), 100, u64::MAX / 2).unwrap_err();
        assert!(refused.to_string().contains("make space"), "{refused}");
        let later = folder.path().join("a folder/that is made later");
        assert!(check_space(&later, 100, u64::MAX / 2).is_err());
        assert!(check_space(folder.path(), available, 0).is_err());
        assert!(check_space(folder.path(), u64::MAX, u64::MAX).is_err());
    }
}
