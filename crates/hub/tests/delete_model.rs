//! Deleting models: everything of one goes, nothing of another.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use cairn_hub::{CacheVariables, HubError, ModelFolders};
use tempfile::TempDir;

struct Home {
    folder: TempDir,
    folders: ModelFolders,
}

impl Home {
    fn new() -> Home {
        let folder = tempfile::tempdir().unwrap();
        let variables = CacheVariables {
            hf_hub_cache: Some(folder.path().join("cache")),
            ..CacheVariables::default()
        };
        let folders = ModelFolders::new(folder.path(), &variables);
        Home { folder, folders }
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn names(&self) -> Vec<String> {
        self.folders.list().into_iter().map(|model| model.name).collect()
    }
}

#[test]
fn an_imported_model_goes_whole() {
    let home = Home::new();
    home.write("models/mine/config.json", "1234");
    home.write("models/other/config.json", "1234");
    let outside = home.write("outside.json", "stays");
    symlink(&outside, home.folder.path().join("models/mine/link.json")).unwrap();
    let deletion = home.folders.deletion("mine").unwrap();
    assert_eq!((deletion.bytes, deletion.is_shared, deletion.num_revisions), (4, false, 1));
    home.folders.delete(&deletion).unwrap();
    assert_eq!(home.names(), ["other"]);
    assert!(outside.exists());
    let left = fs::read_dir(home.folders.imported()).unwrap().count();
    assert_eq!(left, 1, "no hidden folder stays");
    assert!(matches!(home.folders.deletion("mine"), Err(HubError::NotFound { .. })));
}

#[test]
fn a_shared_model_goes_with_its_revisions_and_never_during_a_download() {
    let home = Home::new();
    home.write("cache/models--a--b/blobs/x", "123456");
    home.write("cache/models--a--b/refs/main", "1");
    for revision in ["1", "2"] {
        let link = format!("cache/models--a--b/snapshots/{revision}");
        let snapshot = home.folder.path().join(link);
        fs::create_dir_all(&snapshot).unwrap();
        symlink("../../blobs/x", snapshot.join("config.json")).unwrap();
    }
    home.write("cache/models--c--d/refs/main", "1");
    let lock = home.write("cache/.locks/models--a--b/x.lock", "");
    let deletion = home.folders.deletion("a/b").unwrap();
    assert_eq!((deletion.is_shared, deletion.num_revisions), (true, 2));
    assert_eq!(deletion.bytes, 6 + 1, "links count nothing");

    let held = File::open(&lock).unwrap();
    held.lock().unwrap();
    let refused = home.folders.delete(&deletion).unwrap_err();
    assert!(matches!(refused, HubError::Downloading { .. }), "{refused}");
    assert_eq!(home.names(), ["a/b", "c/d"]);
    drop(held);
    home.folders.delete(&deletion).unwrap();
    assert_eq!(home.names(), ["c/d"]);
    assert!(!deletion.folder.exists());
}

#[test]
fn only_names_of_models_are_deleted() {
    let home = Home::new();
    let file = home.write("elsewhere/config.json", "{}");
    let path = file.parent().unwrap().to_str().unwrap();
    for wanted in [path, "", ".", "..", "../elsewhere", "models--a--b"] {
        assert!(home.folders.deletion(wanted).is_err(), "{wanted}");
    }
    assert!(file.exists());
}
