//! What the hub says about one model: its commit, its terms, its files.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value as Json;

use super::error::{DownloadError, Subject};
use super::names::{Commit, ContentHash, RepoFile, RepoId, Revision};
use super::request::unexpected;
use super::{Hub, is_plain_path};

/// The most files of a repository that are listed.
const MAX_FILES: usize = 100_000;

/// What the hub says about a revision of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPage {
    /// The model.
    pub repo: RepoId,
    /// The commit that the revision is now.
    pub commit: Commit,
    /// Whether terms have to be accepted before files can be fetched.
    pub is_gated: bool,
    /// The licence's short name, such as `apache-2.0`.
    pub licence: Option<String>,
}

#[derive(Deserialize)]
struct InfoAnswer {
    sha: String,
    #[serde(default)]
    gated: Json,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LfsEntry>,
}

#[derive(Deserialize)]
struct LfsEntry {
    oid: String,
    size: u64,
}

impl Hub {
    /// Asks what a revision is now.
    pub async fn model_page(
        &self,
        repo: &RepoId,
        revision: &Revision,
    ) -> Result<ModelPage, DownloadError> {
        let parts = ["api", "models"].into_iter().chain(repo.parts());
        let url = self.address(parts.chain(["revision", revision.as_str()]));
        let subject = Subject { hub: self, repo, revision: Some(revision), file: None };
        let (info, _): (InfoAnswer, _) = self.get_json(url.clone(), Some(subject)).await?;
        let host = url.host_str().unwrap_or_default();
        let commit = Commit::parse(&info.sha)
            .ok_or_else(|| unexpected(host, "a commit that is none").error)?;
        if Commit::parse(revision.as_str()).is_some_and(|asked| asked != commit) {
            return Err(unexpected(host, "another commit than the one asked for").error);
        }
        let licence = info.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
        Ok(ModelPage {
            repo: repo.clone(),
            commit,
            is_gated: is_gated(&info.gated),
            licence: licence.filter(|licence| is_tag(licence)).map(str::to_owned),
        })
    }

    /// The files of a commit that satisfy `is_wanted`, in the hub's order. A list that names a path
    /// which leads elsewhere is refused as a whole.
    pub(crate) async fn files(
        &self,
        repo: &RepoId,
        commit: &Commit,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<RepoFile>, DownloadError> {
        let parts = ["api", "models"].into_iter().chain(repo.parts());
        let mut url = self.address(parts.chain(["tree", commit.as_str()]));
        url.set_query(Some("recursive=true"));
        let subject = Subject { hub: self, repo, revision: None, file: None };
        let (mut files, mut num_entries, mut next) = (Vec::new(), 0, Some(url));
        while let Some(url) = next {
            let entries: Vec<TreeEntry>;
            let host = url.host_str().unwrap_or_default().to_owned();
            (entries, next) = self.get_json(url, Some(subject)).await?;
            num_entries += entries.len();
            if num_entries > MAX_FILES || (entries.is_empty() && next.is_some()) {
                return Err(unexpected(&host, "a list of files without end").error);
            }
            for entry in entries {
                let wanted = checked_entry(entry, &is_wanted);
                files.extend(wanted.map_err(|problem| DownloadError::HostileListing {
                    repo: repo.clone(),
                    problem,
                })?);
            }
        }
        match clash(&files) {
            Some(problem) => Err(DownloadError::HostileListing { repo: repo.clone(), problem }),
            None => Ok(files),
        }
    }
}

/// The file that an entry describes, if it is one and wanted; else what is wrong with it.
fn checked_entry(
    entry: TreeEntry,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Option<RepoFile>, String> {
    let path = entry.path;
    let leads_elsewhere = path.split('/').any(|name| matches!(name, "" | "." | ".."))
        || path.contains('\\')
        || path.contains(char::is_control);
    if leads_elsewhere {
        return Err(format!("it names a path that leads elsewhere, {path:.80?}"));
    }
    if entry.kind != "file" || !is_wanted(&path) {
        return Ok(None);
    }
    if !is_plain_path(&path) {
        return Err(format!("it names a file that not every disk can hold, {path:.80?}"));
    }
    let (hash, bytes) = match entry.lfs {
        Some(lfs) => (ContentHash::sha256(&lfs.oid), lfs.size),
        None => (ContentHash::git_sha1(&entry.oid), entry.size),
    };
    let hash = hash.ok_or_else(|| format!("{path:?} has a hash that is none"))?;
    Ok(Some(RepoFile { path, bytes, hash }))
}

/// Two files that would be one on a disk that ignores case, or one hash with two lengths.
fn clash(files: &[RepoFile]) -> Option<String> {
    let mut seen = BTreeSet::new();
    let twice = files.iter().find(|file| !seen.insert(file.path.to_lowercase()));
    twice.map(|file| format!("{:?} is in it twice", file.path))
}

/// `false`, or how access is granted.
pub(super) fn is_gated(value: &Json) -> bool {
    !matches!(value, Json::Null | Json::Bool(false))
}

/// Whether a text from the hub is a short word that can be shown anywhere.
pub(super) fn is_tag(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+:/ ".contains(c);
    (1..=80).contains(&text.len()) && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entry: &str, expected: Result<Option<(&str, u64)>, &str>) {
        let entry = serde_json::from_str(entry).unwrap();
        let found = checked_entry(entry, |path| path.ends_with(".json"));
        match (found, expected) {
            (Ok(file), Ok(expected)) => {
                let file = file.as_ref().map(|file| (file.path.as_str(), file.bytes));
                assert_eq!(file, expected);
            }
            (Err(problem), Err(expected)) => assert!(problem.contains(expected), "{problem}"),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn entries_of_a_file_list_become_files_or_are_refused() {
        let (sha1, sha256) = ("a".repeat(40), "b".repeat(64));
        let entry = |path: &str, oid: &str| {
            serde_json::json!({ "type": "file", "path": path, "oid": oid, "size": 7 }).to_string()
        };
        check(&entry("a.json", &sha1), Ok(Some(("a.json", 7))));
        check(&entry("a.py", "whatever"), Ok(None));
        check(r#"{"type": "directory", "path": "a.json"}"#, Ok(None));
        check(
            &format!(
                r#"{{"type": "file", "path": "a.json", "oid": "{sha1}", "size": 130,
                     "lfs": {{"oid": "{sha256}", "size": 5000000000}}}}"#
            ),
            Ok(Some(("a.json", 5_000_000_000))),
        );
        for path in
            ["../x.json", "a/../../x.py", "/etc/x.json", "a//b.json", "a\\b.json", "a\nb.py"]
        {
            check(&entry(path, &sha1), Err("leads elsewhere"));
        }
        check(&entry("C:x.json", &sha1), Err("not every disk"));
        check(&entry("a.json", "../../../../etc/passwd"), Err("hash that is none"));
        check(&entry("a.json", &sha256), Err("hash that is none"));
        for broken in [
            r#"{"type": "file", "path": "a.json", "size": -1}"#,
            r#"{"type": "file", "path": 7}"#,
            r#"{"type": "file", "path": "a.json", "size": 1e30}"#,
        ] {
            assert!(serde_json::from_str::<TreeEntry>(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn paths_that_differ_in_case_only_clash() {
        let file = |path: &str| RepoFile {
            path: path.to_owned(),
            bytes: 1,
            hash: ContentHash::git_sha1(&"a".repeat(40)).unwrap(),
        };
        assert_eq!(clash(&[file("a.json"), file("b.json")]), None);
        assert!(clash(&[file("a.json"), file("A.json")]).is_some());
        assert!(clash(&[file("a.json"), file("a.json")]).is_some());
    }
}
