//! The names in a hub's addresses and answers, checked once: from here on they can be parts of a
//! path.

use std::fmt;
use std::str::FromStr;

use super::DownloadError;

/// The longest owner, name or branch that the hub allows, and a little more.
const MAX_NAME_BYTES: usize = 200;

/// A model's repository: `owner/name`, or a name alone for the oldest ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

impl RepoId {
    /// `owner/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts between slashes: one or two.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }
}

impl FromStr for RepoId {
    type Err = DownloadError;

    fn from_str(text: &str) -> Result<RepoId, DownloadError> {
        let is_part = |part: &str| {
            // In the cache's folder names `--` stands for the slash.
            !part.is_empty()
                && part.len() <= MAX_NAME_BYTES
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
                && !part.contains("--")
                && !part.contains("..")
        };
        if text.split('/').count() <= 2 && text.split('/').all(is_part) {
            Ok(RepoId(text.to_owned()))
        } else {
            Err(DownloadError::BadRepo { name: text.to_owned() })
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A branch, a tag or a commit of a repository, as a person names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Revision {
    /// The branch `main`.
    fn default() -> Revision {
        Revision("main".to_owned())
    }
}

impl FromStr for Revision {
    type Err = DownloadError;

    /// It becomes a path below `refs/`, so it is held to what such a path may be.
    fn from_str(text: &str) -> Result<Revision, DownloadError> {
        let is_part = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+@#=,".contains(c))
        };
        if text.len() <= MAX_NAME_BYTES && text.split('/').all(is_part) {
            Ok(Revision(text.to_owned()))
        } else {
            Err(DownloadError::BadRevision { revision: text.to_owned() })
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A commit: 40 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Commit(String);

impl Commit {
    /// None if the text is not 40 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Commit> {
        is_hex(text, 40).then(|| Commit(text.to_owned()))
    }

    /// The 40 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a file's content hashes to. In hexadecimal it is also the name of the file's blob in the
/// shared cache, and its ETag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentHash {
    /// SHA-256 of the content, for files that the hub keeps in LFS: 64 digits.
    Sha256(String),
    /// SHA-1 of git's header and the content, for small files: 40 digits.
    GitSha1(String),
}

impl ContentHash {
    /// None if the text is not 64 lower-case hexadecimal digits.
    pub fn sha256(text: &str) -> Option<ContentHash> {
        is_hex(text, 64).then(|| ContentHash::Sha256(text.to_owned()))
    }

    /// None if the text is not 40 lower-case hexadecimal digits.
    pub fn git_sha1(text: &str) -> Option<ContentHash> {
        is_hex(text, 40).then(|| ContentHash::GitSha1(text.to_owned()))
    }

    /// In lower-case hexadecimal.
    pub fn as_str(&self) -> &str {
        match self {
            ContentHash::Sha256(digits) | ContentHash::GitSha1(digits) => digits,
        }
    }
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A file of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoFile {
    /// Its path in the repository: one or more plain names between slashes.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// What its content hashes to.
    pub hash: ContentHash,
}

/// Whether a path from a file list can be used below a folder: plain names between slashes, which
/// every file system keeps as they are.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let is_plain_name = |name: &str| {
        !name.is_empty()
            && name.len() <= MAX_NAME_BYTES
            && !name.starts_with('.')
            && name.chars().all(|c| c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric())
            && !name.contains(['\\', ':', '*', '?', '"', '<', '>', '|'])
            && !name.ends_with([' ', '.'])
    };
    path.split('/').count() <= 4 && path.split('/').all(is_plain_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_and_revisions_are_names_that_lead_nowhere_else() {
        for good in ["gpt2", "mlx-community/Qwen3-0.6B-4bit", "a/b_c.d", "0/1"] {
            assert_eq!(good.parse::<RepoId>().unwrap().as_str(), good);
        }
        let long = "x".repeat(201);
        for bad in ["", "/", "a/", "/b", "a/b/c", "..", "a/..", "a--b/c", "-a", "a.", "a b", "ä/b"]
            .into_iter()
            .chain([long.as_str(), "a\\b", "a/b?c", "a/%2e%2e", "https://x/y"])
        {
            assert!(bad.parse::<RepoId>().is_err(), "{bad}");
        }
        for good in ["main", "v1.0", "refs/pr/3", "0123456789abcdef0123456789abcdef01234567"] {
            assert_eq!(good.parse::<Revision>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "a/../b", "/a", "a/", "a//b", "a\\b", "a b", "a\n", ".hidden"] {
            assert!(bad.parse::<Revision>().is_err(), "{bad}");
        }
    }

    #[test]
    fn commits_and_hashes_are_hexadecimal_digits_of_one_length() {
        let digits = "0123456789abcdef".repeat(4);
        assert!(Commit::parse(&digits[..40]).is_some());
        assert!(ContentHash::sha256(&digits).is_some());
        assert!(ContentHash::git_sha1(&digits[..40]).is_some());
        for bad in ["", "main", &digits[..39], &digits[..41], &digits[..40].to_uppercase()] {
            assert!(Commit::parse(bad).is_none() && ContentHash::git_sha1(bad).is_none(), "{bad}");
        }
        let escape = format!("../../{}", &digits[..58]);
        for bad in [&digits[..63], &digits[..40], &escape] {
            assert!(ContentHash::sha256(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn paths_are_plain_names_between_slashes() {
        for good in ["config.json", "a/b/model 1.safetensors", "größe.txt", "tokenizer.model"] {
            assert!(is_plain_path(good), "{good}");
        }
        let long = format!("{}.json", "x".repeat(300));
        for bad in ["", "../x.json", "a/../x.json", "/etc/x.json", "a//x.json", "./x.json", "a/"]
            .into_iter()
            .chain(["C:\\x.json", "a\\x.json", "C:x.json", ".x.json", "x.json\0", "x\n.json", "x."])
            .chain([long.as_str(), "a/b/c/d/e.json", "x\u{202e}nosj.json", "x\u{feff}.json"])
        {
            assert!(!is_plain_path(bad), "{bad:?}");
        }
    }
}
