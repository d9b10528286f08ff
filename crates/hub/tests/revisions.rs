//! Older revisions: what no branch names goes, and nothing that another revision uses.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use cairn_hub::{CacheVariables, HubError, ModelFolders};
use tempfile::TempDir;

const NAME: &str = "a/b";

/// A repository with the commits of some digits, each with a blob of its own and one that all share.
struct Repository {
    home: TempDir,
    folders: ModelFolders,
}

impl Repository {
    fn new(commits: &[char]) -> Repository {
        let home = tempfile::tempdir().unwrap();
        let variables = CacheVariables {
            hf_hub_cache: Some(home.path().join("cache")),
            ..CacheVariables::default()
        };
        let folders = ModelFolders::new(home.path(), &variables);
        let repository = Repository { home, folders };
        repository.write("blobs/shared", "12345");
        // Of a download that another program has interrupted.
        repository.write("blobs/orphan", "1");
        for commit in commits {
            repository.write(&format!("blobs/own-{commit}"), "1234567");
            let snapshot = repository.snapshot(*commit);
            fs::create_dir_all(snapshot.join("below")).unwrap();
            symlink("../../blobs/shared", snapshot.join("config.json")).unwrap();
            let own = format!("../../../blobs/own-{commit}");
            symlink(own, snapshot.join("below/tokenizer.json")).unwrap();
        }
        repository
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join("cache/models--a--b").join(path)
    }

    fn snapshot(&self, commit: char) -> PathBuf {
        self.path(&format!("snapshots/{}", commit.to_string().repeat(40)))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn name_commit(&self, revision: &str, commit: char) {
        self.write(&format!("refs/{revision}"), &commit.to_string().repeat(40));
    }

    /// The first digits of the commits that are old, and what removing them frees.
    fn old(&self, kept: &[PathBuf]) -> (String, u64) {
        let old = self.folders.old_revisions(NAME, kept).unwrap();
        (old.commits.iter().map(|commit| &commit[..1]).collect(), old.bytes)
    }

    /// Names in a folder of the repository, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn what_no_branch_and_no_tag_names_goes_unless_it_is_kept() {
    let repository = Repository::new(&['1', '2', '3', '4', '5']);
    repository.name_commit("main", '5');
    repository.name_commit("refs/pr/1", '4');
    let kept = [repository.snapshot('3')];
    assert_eq!(repository.old(&kept), ("12".to_owned(), 14));
    let old = repository.folders.old_revisions(NAME, &kept).unwrap();
    repository.folders.remove_old_revisions(&old, &kept).unwrap();
    assert_eq!(repository.old(&kept), (String::new(), 0));
    let digits: String = repository.names("snapshots").iter().map(|name| &name[..1]).collect();
    assert_eq!(digits, "345");
    assert_eq!(repository.names("blobs"), ["orphan", "own-3", "own-4", "own-5", "shared"]);
    assert_eq!(repository.names("."), ["blobs", "refs", "snapshots"]);
    assert_eq!(repository.folders.list()[0].path, repository.snapshot('5'));
}

#[test]
fn what_is_kept_may_be_named_by_another_path() {
    let repository = Repository::new(&['1', '2']);
    repository.name_commit("main", '2');
    let link = repository.home.path().join("link");
    symlink(repository.path("snapshots"), &link).unwrap();
    assert_eq!(repository.old(&[link.join("1".repeat(40))]), (String::new(), 0));
}

#[test]
fn nothing_goes_during_a_download_or_that_nobody_asked_about() {
    let repository = Repository::new(&['1', '2']);
    repository.name_commit("main", '2');
    let old = repository.folders.old_revisions(NAME, &[]).unwrap();
    let lock = repository.home.path().join("cache/.locks/models--a--b/x.lock");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    let refused = repository.folders.remove_old_revisions(&old, &[]).unwrap_err();
    assert!(matches!(refused, HubError::Downloading { .. }), "{refused}");
    drop(held);
    // Another program puts the older one to use again.
    repository.name_commit("main", '1');
    repository.folders.remove_old_revisions(&old, &[]).unwrap();
    assert_eq!(repository.names("snapshots").len(), 2);
    assert_eq!(repository.old(&[]), ("2".to_owned(), 7));
}

#[test]
fn where_it_is_not_clear_which_one_is_used_none_is_old() {
    let repository = Repository::new(&['1', '2']);
    assert_eq!(repository.old(&[]), (String::new(), 0));
    repository.name_commit("main", '9');
    assert_eq!(repository.old(&[]), (String::new(), 0));
}

#[test]
fn a_removal_that_was_killed_is_ended_by_the_next_one() {
    let repository = Repository::new(&['1', '2']);
    repository.name_commit("main", '2');
    let hidden = repository.path(".cairn-deleted-0198c0de-0000-7000-8000-000000000000");
    fs::rename(repository.snapshot('1'), &hidden).unwrap();
    assert_eq!(repository.old(&[]), (String::new(), 7), "it is still offered");
    let old = repository.folders.old_revisions(NAME, &[]).unwrap();
    assert_eq!(old.num_begun, 1);
    repository.folders.remove_old_revisions(&old, &[]).unwrap();
    assert_eq!(repository.names("blobs"), ["orphan", "own-2", "shared"]);
    assert!(!hidden.exists());
}
