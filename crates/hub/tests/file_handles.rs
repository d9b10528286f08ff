//! Listing models when the process can open few files, or none. The limit is the process's, so this
//! program has one test.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use cairn_hub::{CacheVariables, HubError, ModelFolders, ModelProblem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn without_file_handles_nothing_is_found_and_nothing_wrong_is_remembered() {
    let home = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        let folder = home.path().join("models").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
        fs::write(folder.join("model.safetensors"), "1234").unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    }
    let folders = ModelFolders::new(home.path(), &CacheVariables::default());
    let before = getrlimit(Resource::Nofile);
    let limit = |current: u64| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..before }).unwrap();
    };
    let next = File::open(home.path()).unwrap().as_raw_fd() as u64;

    limit(next);
    let (none, refused) = (folders.list(), folders.resolve(home.path().to_str().unwrap()));
    // One at a time is enough.
    limit(next + 1);
    let few = folders.list();
    setrlimit(Resource::Nofile, before).unwrap();

    assert!(none.is_empty());
    let is_unreadable =
        |problem: &ModelProblem| matches!(problem, ModelProblem::FolderUnreadable { .. });
    let refused = refused.unwrap_err();
    assert!(
        matches!(&refused, HubError::Unusable { problem, .. } if is_unreadable(problem)),
        "{refused}"
    );
    // What helps is not to fetch again what may be whole.
    let said = refused.to_string();
    assert!(said.contains("cannot be loaded now: its folder cannot be read: "), "{said}");
    assert!(!said.contains("download or import it again"), "{said}");
    let whole = folders.list();
    assert_eq!(few, whole);
    assert_eq!(whole.len(), 3);
    assert!(whole.iter().all(|model| model.problem.is_none() && model.identity.is_some()));
}
