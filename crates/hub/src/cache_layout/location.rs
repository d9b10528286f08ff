//! The cache that Hugging Face's tools share: its location, and the names of its folders.
//!
//! ```text
//! <cache>/models--owner--name/
//!   refs/main              the commit of the branch `main` at the last download
//!   snapshots/<commit>/    the files of that commit, links into blobs/
//!   blobs/
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use cairn_formats::read_file;

use crate::hub_api::DownloadError;
use crate::unique_name::unique_name;

/// A commit's name has 40 characters; a longer file is something else.
pub(crate) const MAX_REF_BYTES: u64 = 128;

/// The environment variables that name the shared cache; an empty one counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheVariables {
    /// `HF_HUB_CACHE`: the cache itself.
    pub hf_hub_cache: Option<PathBuf>,
    /// `HUGGINGFACE_HUB_CACHE`: its older name.
    pub huggingface_hub_cache: Option<PathBuf>,
    /// `HF_HOME`: the parent of the cache, which is named `hub` there.
    pub hf_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`: the folder of all applications' caches.
    pub xdg_cache_home: Option<PathBuf>,
    /// `HOME`: the user's home folder.
    pub home: Option<PathBuf>,
}

impl CacheVariables {
    /// Asks for each variable by name; a program passes `std::env::var_os`.
    pub fn from_lookup(lookup: impl Fn(&'static str) -> Option<OsString>) -> CacheVariables {
        let path = |name| lookup(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        CacheVariables {
            hf_hub_cache: path("HF_HUB_CACHE"),
            huggingface_hub_cache: path("HUGGINGFACE_HUB_CACHE"),
            hf_home: path("HF_HOME"),
            xdg_cache_home: path("XDG_CACHE_HOME"),
            home: path("HOME"),
        }
    }

    /// The folder of the shared cache; none where not even the home folder is known.
    pub fn hub_cache(&self) -> Option<PathBuf> {
        let cache = self.hf_hub_cache.clone().or_else(|| self.huggingface_hub_cache.clone());
        match cache {
            Some(cache) => Some(self.without_tilde(cache)),
            None => Some(self.hf_home()?.join("hub")),
        }
    }

    /// The folders that LM Studio has kept models in, the newer one first; they need not exist.
    pub(crate) fn lm_studio(&self) -> Vec<PathBuf> {
        let folders = [".lmstudio/models", ".cache/lm-studio/models"];
        self.home.iter().flat_map(|home| folders.map(|folder| home.join(folder))).collect()
    }

    /// The folder of Hugging Face's tools, with the cache and the token.
    pub(crate) fn hf_home(&self) -> Option<PathBuf> {
        let home = self.hf_home.clone();
        let home = home.or_else(|| Some(self.xdg_cache_home.as_ref()?.join("huggingface")));
        let home = home.or_else(|| Some(self.home.as_ref()?.join(".cache/huggingface")))?;
        Some(self.without_tilde(home))
    }

    /// As in Python's tools, a leading tilde is the home folder: outside of a shell nothing else
    /// expands it.
    fn without_tilde(&self, path: PathBuf) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path,
        }
    }
}

/// Fails unless models can be downloaded to this folder, which is created where it is missing. A
/// relative path is refused, because it would be another folder at each start.
pub fn check_cache_folder(folder: &Path) -> Result<(), DownloadError> {
    if !folder.is_absolute() {
        let reason = "a folder is named from the root of the disk on, as in /Volumes/Disk/models";
        let (path, reason) = (folder.to_owned(), reason.to_owned());
        return Err(DownloadError::CacheFolder { path, reason });
    }
    let probe = folder.join(format!(".cairn-{}", unique_name()));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, []));
    let removed = written.and_then(|()| fs::remove_file(&probe));
    removed.map_err(|error| DownloadError::cache(folder, &error))
}

/// `owner/name` for a folder of the cache; none for a folder that is not a model's.
pub(crate) fn model_name(folder_name: &str) -> Option<String> {
    let name = folder_name.strip_prefix("models--")?;
    (!name.is_empty()).then(|| name.replacen("--", "/", 1))
}

/// The folder of the commit that `refs/main` names. Without that reference the only snapshot counts,
/// which is what a download of one tag or commit leaves.
pub(crate) fn main_snapshot(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let reference = repository.join("refs/main");
    let Ok(metadata) = reference.metadata() else {
        let mut entries = fs::read_dir(snapshots).ok()?.flatten();
        let only = entries.next()?.path();
        return (entries.next().is_none() && only.is_dir()).then_some(only);
    };
    if metadata.len() > MAX_REF_BYTES {
        return None;
    }
    let text = String::from_utf8(read_file(&reference, MAX_REF_BYTES).ok()?).ok()?;
    let commit = Path::new(text.trim());
    // Any other path than a plain name could lead out of the folder.
    let mut parts = commit.components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return None;
    }
    Some(snapshots.join(commit)).filter(|snapshot| snapshot.is_dir())
}
