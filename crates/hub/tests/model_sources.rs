//! Models of other programs and in folders that were added: what is listed, under which names, and
//! what may be deleted.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cairn_hub::ModelSource::{Added, HubCache, Imported, LmStudio};
use cairn_hub::{
    CacheVariables, HubError, ModelFolder, ModelFolders, ModelProblem, ModelProblemKind,
    ModelSource,
};
use tempfile::TempDir;

struct Home {
    folder: TempDir,
    folders: ModelFolders,
}

impl Home {
    fn new() -> Home {
        let folder = tempfile::tempdir().unwrap();
        let variables = CacheVariables {
            home: Some(folder.path().to_owned()),
            hf_hub_cache: Some(folder.path().join("hub")),
            ..CacheVariables::default()
        };
        let folders = ModelFolders::new(folder.path(), &variables);
        Home { folder, folders }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A complete model in a folder.
    fn model(&self, folder: &str) {
        self.write(&format!("{folder}/config.json"), r#"{"model_type": "llama"}"#);
        self.write(&format!("{folder}/model.safetensors"), "1234");
        self.write(&format!("{folder}/tokenizer.json"), "{}");
    }

    fn add(&self, folders: &[&str]) {
        self.folders.set_added(folders.iter().map(|folder| self.path(folder)).collect());
    }

    /// Checks names, folders and sources of the list; folders are given below the home folder.
    fn check(&self, expected: &[(&str, &str, ModelSource)]) {
        let listed = self.folders.list();
        let listed: Vec<_> = listed
            .iter()
            .map(|model| {
                let path = model.path.strip_prefix(self.folder.path()).unwrap();
                (model.name.as_str(), path.to_str().unwrap(), model.source)
            })
            .collect();
        assert_eq!(listed, expected);
    }
}

#[test]
fn lm_studios_models_are_listed_without_its_gguf_files() {
    let home = Home::new();
    home.model(".lmstudio/models/ann/one");
    home.model(".cache/lm-studio/models/ann/two");
    // The same name in both: the newer folder's comes first.
    home.model(".lmstudio/models/ann/both");
    home.model(".cache/lm-studio/models/ann/both");
    home.write(".lmstudio/models/ann/partial/config.json", "{}");
    home.write(".lmstudio/models/ann/weights/model.safetensors", "");
    home.write(".lmstudio/models/ann/gguf/model.gguf", "");
    home.write(".lmstudio/models/ann/gguf/config.json", "{}");
    home.write(".lmstudio/models/ann/empty/readme.md", "");
    home.write(".lmstudio/models/ann/disk/._model.safetensors", "");
    home.write(".lmstudio/models/stray/config.json", "{}");
    home.write(".lmstudio/models/.hidden/x/config.json", "{}");
    fs::create_dir_all(home.path(".lmstudio/models/bob")).unwrap();
    symlink("nowhere", home.path(".lmstudio/models/bob/gone")).unwrap();
    symlink("bob", home.path(".lmstudio/models/bob/loop")).unwrap();
    symlink(home.path("elsewhere"), home.path(".lmstudio/models/bob/linked")).unwrap();
    home.model("elsewhere");
    let second = ".cache/lm-studio/models/ann/both";
    let second_name = format!("ann/both ({})", home.path(second).display());
    home.check(&[
        ("ann/both", ".lmstudio/models/ann/both", LmStudio),
        (&second_name, second, LmStudio),
        ("ann/one", ".lmstudio/models/ann/one", LmStudio),
        ("ann/partial", ".lmstudio/models/ann/partial", LmStudio),
        ("ann/two", ".cache/lm-studio/models/ann/two", LmStudio),
        ("ann/weights", ".lmstudio/models/ann/weights", LmStudio),
        ("bob/linked", ".lmstudio/models/bob/linked", LmStudio),
    ]);
    assert_eq!(home.folders.resolve("ann/one"), Ok(home.path(".lmstudio/models/ann/one")));
    assert_eq!(home.folders.resolve(&second_name), Ok(home.path(second)));
    let absent = home.folders.resolve("ann/gguf").unwrap_err();
    assert!(absent.to_string().contains("/.lmstudio/models"), "{absent}");
}

#[test]
fn lists_a_given_folder_under_one_name() {
    let home = Home::new();
    for folder in ["elsewhere/m", "other/m"] {
        home.model(folder);
    }
    let give = |folder: &str| home.folders.give(&home.path(folder));
    let first = Some(("m".to_owned(), home.path("elsewhere/m")));
    assert_eq!(give("elsewhere/m"), first);
    assert_eq!(give("elsewhere/../elsewhere/m"), first, "listed already");
    let (second, path) = give("other/m").expect("a model");
    assert_eq!((second, path.clone()), (format!("m ({})", path.display()), home.path("other/m")));
    assert_eq!(give("elsewhere"), None, "no model");
    assert_eq!(home.folders.list().len(), 2);
    home.folders.set_added(Vec::new());
    assert_eq!(home.folders.list().len(), 2, "the settings do not name it");
}

#[test]
fn an_added_folder_is_a_model_or_has_some_or_has_publishers() {
    let home = Home::new();
    home.model("disk/alone");
    home.model("many/one");
    home.model("many/ann/two");
    home.model("many/one/inside");
    home.model("many/ann/deep/three");
    home.write("many/notes.txt", "");
    home.check(&[]);
    home.add(&["disk/alone", "many", "gone", "many/notes.txt"]);
    let expected = [
        ("alone", "disk/alone", Added),
        ("ann/two", "many/ann/two", Added),
        ("one", "many/one", Added),
    ];
    home.check(&expected);
    // A clone has the same folders.
    assert_eq!(home.folders.clone().list(), home.folders.list());
    assert_eq!(home.folders.clone().added().len(), 4);
    // A disk that comes back is there again; one that is not added is not.
    fs::rename(home.path("many"), home.path("away")).unwrap();
    home.check(&expected[..1]);
    fs::rename(home.path("away"), home.path("many")).unwrap();
    home.check(&expected);
    home.add(&[]);
    home.check(&[]);
}

#[test]
fn each_name_is_there_once_and_each_folder_that_is_only_read_too() {
    let home = Home::new();
    home.model("models/one");
    home.model("hub/models--ann--two/snapshots/1");
    home.model("hub/models--one/snapshots/1");
    home.model(".lmstudio/models/ann/two");
    home.model("disk/one");
    home.model("disk/three");
    home.model("disk2/three");
    symlink(home.path("models/one"), home.path("disk/again")).unwrap();
    symlink("three", home.path("disk/z-link")).unwrap();
    // Of the shared cache both names stay, as other programs know them.
    symlink(home.path("hub/models--ann--two/snapshots/1"), home.path("models/link")).unwrap();
    home.add(&["disk", "disk2", "disk", ".lmstudio/models", ".lmstudio/models/ann", "models"]);
    let named = |name: &str, path: &str| format!("{name} ({})", home.path(path).display());
    let (lm, hub) = (named("ann/two", ".lmstudio/models/ann/two"), named("one", "hub/models--one"));
    let (one, three) = (named("one", "disk/one"), named("three", "disk2/three"));
    let mut expected = [
        ("ann/two", "hub/models--ann--two/snapshots/1", HubCache),
        (lm.as_str(), ".lmstudio/models/ann/two", LmStudio),
        ("link", "models/link", Imported),
        ("one", "models/one", Imported),
        (one.as_str(), "disk/one", Added),
        (hub.as_str(), "hub/models--one/snapshots/1", HubCache),
        (three.as_str(), "disk2/three", Added),
        ("three", "disk/three", Added),
    ];
    expected.sort();
    home.check(&expected);
    assert_eq!(home.folders.deletion(&hub).unwrap().folder, home.path("hub/models--one"));
}

#[test]
fn only_cairns_models_and_the_shared_caches_are_deleted() {
    let home = Home::new();
    home.model(".lmstudio/models/ann/one");
    home.model("disk/two");
    home.model("models/mine");
    home.model("hub/models--ann--three/snapshots/1");
    home.add(&["disk"]);
    for (name, folder) in [("ann/one", ".lmstudio/models/ann/one"), ("two", "disk/two")] {
        let refused = home.folders.deletion(name).unwrap_err();
        assert_eq!(refused, HubError::ReadOnly { name: name.to_owned(), path: home.path(folder) });
        assert!(refused.to_string().contains("Cairn only reads"), "{refused}");
    }
    for name in ["mine", "ann/three"] {
        home.folders.delete(&home.folders.deletion(name).unwrap()).unwrap();
    }
    home.check(&[("ann/one", ".lmstudio/models/ann/one", LmStudio), ("two", "disk/two", Added)]);
}

#[test]
fn problems_are_missing_files_or_broken_ones() {
    let check = |files: &[(&str, &str)], expected: ModelProblemKind| {
        let home = Home::new();
        fs::create_dir_all(home.path("models/m")).unwrap();
        for (name, text) in files {
            home.write(&format!("models/m/{name}"), text);
        }
        let problem = only(&home.folders).problem.unwrap();
        assert_eq!(problem.kind(), expected, "{problem}");
    };
    use ModelProblemKind::{Broken, Incomplete};
    let config = ("config.json", r#"{"model_type": "llama"}"#);
    let weights = ("model.safetensors", "");
    check(&[], Incomplete);
    check(&[config], Incomplete);
    check(&[config, ("model-00001-of-00002.safetensors", "")], Incomplete);
    check(&[config, weights], Incomplete);
    check(&[("config.json", "{"), weights], Broken);
    check(&[("config.json", "{}"), weights], Broken);
    check(&[config, weights, ("model.safetensors.index.json", "{}")], Broken);
    assert_eq!(ModelProblem::NoSnapshot.kind(), Incomplete);
}

fn only(folders: &ModelFolders) -> ModelFolder {
    let [model] = folders.list().try_into().unwrap();
    model
}

/// Writes a file in its place, with the time that it had.
fn overwrite(path: &Path, text: &str) {
    let before = fs::metadata(path).unwrap();
    assert_eq!(before.len(), text.len() as u64);
    fs::write(path, text).unwrap();
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(before.modified().unwrap())
        .unwrap();
}

#[test]
fn small_files_are_read_once_until_the_identity_changes() {
    let home = Home::new();
    home.model("models/m");
    let config = home.path("models/m/config.json");
    let first = only(&home.folders);
    assert_eq!((first.model_type.as_deref(), &first.problem), (Some("llama"), &None));
    // A change that leaves no trace in the identity is not seen: the file was not opened.
    overwrite(&config, r#"{"model_type": "qwen3"}"#);
    assert_eq!(only(&home.folders), first);
    assert_eq!(only(&home.folders.clone()), first, "a clone remembers too");
    // Whatever changes the identity makes it be read again.
    home.write("models/m/extra.json", "{}");
    let second = only(&home.folders);
    assert_eq!(second.model_type.as_deref(), Some("qwen3"));
    assert_ne!(second.identity, first.identity);
    assert_eq!(second.bytes, first.bytes + 2);
    fs::remove_file(home.path("models/m/tokenizer.json")).unwrap();
    assert_eq!(only(&home.folders).problem, Some(ModelProblem::TokenizerMissing));
    // What was gone from the list is read anew.
    home.write("models/m/tokenizer.json", "{}");
    let before = only(&home.folders);
    fs::rename(home.path("models/m"), home.path("m")).unwrap();
    assert!(home.folders.list().is_empty());
    overwrite(&config_at(&home, "m"), r#"{"model_type": "llama"}"#);
    fs::rename(home.path("m"), home.path("models/m")).unwrap();
    let after = only(&home.folders);
    assert_eq!((after.identity, after.model_type), (before.identity, Some("llama".to_owned())));
}

fn config_at(home: &Home, folder: &str) -> PathBuf {
    home.path(folder).join("config.json")
}

#[test]
fn a_model_without_a_snapshot_has_no_identity() {
    let home = Home::new();
    home.write("hub/models--ann--half/refs/main", "1");
    let model = only(&home.folders);
    assert_eq!((model.identity, model.problem), (None, Some(ModelProblem::NoSnapshot)));
}
