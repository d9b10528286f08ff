//! The cache that Hugging Face's tools share: its location, and the names of its folders.
//!
//! ```text
//! <cache>/models--owner--name/
//!   refs/main              the commit of the branch `main` at the last download
//!   snapshots/<commit>/    the files of that commit, links into blobs/
//!   blobs/
//! ```

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// A commit's name has 40 characters; a longer file is something else.
const MAX_REF_BYTES: u64 = 128;

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
        let cache = cache.or_else(|| Some(self.hf_home.as_ref()?.join("hub")));
        let cache = cache.or_else(|| Some(self.xdg_cache_home.as_ref()?.join("huggingface/hub")));
        let cache = cache.or_else(|| Some(self.home.as_ref()?.join(".cache/huggingface/hub")))?;
        // As in Python's tools, a leading tilde is the home folder: outside of a shell nothing else
        // expands it.
        match (cache.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(cache),
        }
    }
}

/// `owner/name` for a folder of the cache; none for a folder that is not a model's.
pub(crate) fn model_name(folder_name: &str) -> Option<String> {
    let name = folder_name.strip_prefix("models--")?;
    (!name.is_empty()).then(|| name.replacen("--", "/", 1))
}

/// The folder of the commit that `refs/main` names; none if the reference is missing or names no
/// folder.
pub(crate) fn main_snapshot(repository: &Path) -> Option<PathBuf> {
    let reference = repository.join("refs/main");
    if reference.metadata().ok()?.len() > MAX_REF_BYTES {
        return None;
    }
    let text = std::fs::read_to_string(reference).ok()?;
    let commit = Path::new(text.trim());
    // Any other path than a plain name could lead out of the folder.
    let mut parts = commit.components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
        return None;
    }
    Some(repository.join("snapshots").join(commit)).filter(|snapshot| snapshot.is_dir())
}
