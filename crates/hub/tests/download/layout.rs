//! What a download leaves in the shared cache, and what it does with what others left there.

use std::fs::{self, File};
use std::os::unix::fs::symlink;

use cairn_fake_hub::{Content, FakeFile, FakeRepo, Side};
use cairn_hub::{CacheVariables, DownloadError, Hub, HubOptions, ModelFolders};

use crate::support::{MODEL, Setting, WEIGHTS, names, options};

#[test]
fn a_model_is_laid_out_as_other_tools_expect_it() {
    let repo = FakeRepo { page_length: 2, ..FakeRepo::model(MODEL, 5000) };
    let setting = Setting::with(repo.clone());
    let plan = setting.plan().unwrap();
    assert_eq!((plan.licence.as_deref(), plan.files.len()), (Some("apache-2.0"), 3));
    assert_eq!((plan.bytes, plan.bytes_missing), (5000 + 23 + 2, 5000 + 23 + 2));
    let model = setting.download().unwrap();
    setting.check_whole(&repo);

    let folder = setting.repo_folder();
    assert_eq!(model.folder, folder.join("snapshots").join(&repo.commit));
    assert_eq!((model.bytes, model.num_files), (plan.bytes, 3));
    let expected = ["blobs", "refs", "snapshots"].map(str::to_owned).into();
    assert_eq!(names(&folder), expected);
    let expected: Vec<&str> = vec![".locks", "CACHEDIR.TAG", "models--owner--name"];
    assert_eq!(names(&setting.cache()).iter().collect::<Vec<_>>(), expected);
    for file in &plan.files {
        let link = fs::read_link(model.folder.join(&file.path)).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("../../blobs/{}", file.hash.as_str()));
        let lock = format!(".locks/models--owner--name/{}.lock", file.hash.as_str());
        assert!(setting.cache().join(lock).is_file());
    }
    assert_eq!(names(&folder.join("blobs")).len(), 3);

    // The crate's own list finds it.
    let variables =
        CacheVariables { hf_hub_cache: Some(setting.cache()), ..CacheVariables::default() };
    let folders = ModelFolders::new(setting.folder.path(), &variables);
    assert_eq!(folders.list()[0].path, model.folder);
}

#[test]
fn what_is_there_and_right_is_not_fetched_again() {
    let setting = Setting::new();
    setting.download().unwrap();
    let count = |side| setting.hub.requests().iter().filter(|asked| asked.side == side).count();
    assert_eq!(count(Side::Bytes), 1, "one large file");
    setting.download().unwrap();
    assert_eq!((count(Side::Bytes), setting.plan().unwrap().bytes_missing), (1, 0));

    // A new commit with the same weights fetches what changed.
    let mut repo = FakeRepo::model(MODEL, crate::support::WEIGHT_BYTES);
    repo.commit = "beef0000".repeat(5);
    repo.files[2] = FakeFile::small("config.json", r#"{"model_type": "qwen3"}"#);
    setting.hub.change(|repos| repos[0] = repo.clone());
    setting.download().unwrap();
    setting.check_whole(&repo);
    assert_eq!(count(Side::Bytes), 1);
    assert_eq!(names(&setting.repo_folder().join("snapshots")).len(), 2);
}

#[test]
fn a_blob_that_another_program_left_is_believed_only_if_its_hash_is_right() {
    let repo = FakeRepo::model(MODEL, 5000);
    let weights = repo.file(WEIGHTS).unwrap();
    for (left, is_fetched) in [
        (weights.content.bytes(), false),
        (b"403 Forbidden".to_vec(), true),
        (vec![7; 5000], true),
        (Vec::new(), true),
    ] {
        let setting = Setting::with(repo.clone());
        fs::create_dir_all(setting.repo_folder().join("blobs")).unwrap();
        fs::write(setting.blob(weights), &left).unwrap();
        setting.download().unwrap();
        setting.check_whole(&repo);
        setting.check_blobs();
        let was_asked = setting.hub.requests().iter().any(|asked| asked.side == Side::Bytes);
        assert_eq!(was_asked, is_fetched);
    }
}

#[test]
fn a_snapshot_that_another_program_began_is_completed() {
    let repo = FakeRepo::model(MODEL, 5000);
    let setting = Setting::with(repo.clone());
    let snapshot = setting.repo_folder().join("snapshots").join(&repo.commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("README.md"), "# A model").unwrap();
    fs::write(snapshot.join("tokenizer.json"), "left by a disk without links").unwrap();
    symlink("../../blobs/gone", snapshot.join("config.json")).unwrap();
    fs::remove_file(snapshot.join("README.md")).unwrap();
    setting.download().unwrap();
    setting.check_whole(&repo);
}

#[test]
fn our_leftovers_go_and_those_of_others_stay() {
    let setting = Setting::new();
    let blobs = setting.repo_folder().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let stale = format!("{}.cairn.incomplete", "a".repeat(64));
    let held = format!("{}.cairn.incomplete", "b".repeat(64));
    let others = format!("{}.1234abcd.incomplete", "a".repeat(64));
    for name in [&stale, &held, &others] {
        fs::write(blobs.join(name), "beginning").unwrap();
    }
    fs::write(blobs.join("notes.cairn.incomplete"), "not a hash").unwrap();
    let locks = setting.cache().join(".locks/models--owner--name");
    fs::create_dir_all(&locks).unwrap();
    let lock = File::create(locks.join(format!("{}.lock", "b".repeat(64)))).unwrap();
    lock.lock().unwrap();
    setting.download().unwrap();
    let left = names(&blobs);
    assert!(!left.contains(&stale), "{left:?}");
    assert!(left.contains(&held) && left.contains(&others), "{left:?}");
    assert!(left.contains("notes.cairn.incomplete"), "{left:?}");
}

#[test]
fn a_branch_a_tag_and_a_commit_can_be_asked_for() {
    let mut repo = FakeRepo::model(MODEL, 5000);
    repo.revisions.extend(["v1.0".to_owned(), "refs/pr/3".to_owned()]);
    let setting = Setting::with(repo.clone());
    for revision in ["v1.0", "refs/pr/3", &repo.commit] {
        let plan = setting.plan_of(revision).unwrap();
        let hub = Hub::new(setting.options()).unwrap();
        let progress = tokio::sync::watch::Sender::default();
        setting.runtime.block_on(hub.download(&plan, &progress)).unwrap();
    }
    let refs = setting.repo_folder().join("refs");
    assert_eq!(names(&refs).iter().collect::<Vec<_>>(), ["refs", "v1.0"]);
    assert_eq!(fs::read_to_string(refs.join("refs/pr/3")).unwrap(), repo.commit);
    assert!(matches!(
        setting.plan_of("v2"),
        Err(DownloadError::RevisionNotFound { revision, .. }) if revision == "v2"
    ));
}

#[test]
fn several_files_come_at_once_and_never_over_more_than_eight_connections() {
    let mut files = vec![FakeFile::small("config.json", r#"{"model_type": "llama"}"#)];
    for index in 1..=20 {
        let length = 50_000 + index;
        let path = format!("model-{index:05}-of-00020.safetensors");
        files.push(FakeFile::lfs(&path, Content::MadeUp { length }));
    }
    // Two files of one content share a blob.
    files.push(FakeFile::small("merges.txt", "same"));
    files.push(FakeFile::small("vocab.txt", "same"));
    let repo = FakeRepo::new(MODEL, files);
    let setting = Setting::with(repo.clone());
    setting.download().unwrap();
    setting.check_whole(&repo);
    assert!(setting.hub.most_connections() <= 8, "{}", setting.hub.most_connections());
}

#[test]
fn too_little_space_and_no_weights_are_said_before_anything_is_fetched() {
    let setting = Setting::new();
    let mut options = setting.options();
    options.limits.reserve_bytes = u64::MAX / 2;
    let refused = setting.download_with(options).unwrap_err();
    let DownloadError::NoSpace { needed, available, .. } = refused else { panic!("{refused}") };
    let missing = format!("{:.2} GB are missing", (needed - available) as f64 / 1e9);
    assert!(refused.to_string().starts_with(&missing), "{refused}");
    assert!(!setting.cache().exists(), "it left a folder behind");
    assert!(setting.hub.requests().iter().all(|asked| asked.target.starts_with("/api/")));

    let files = vec![
        FakeFile::small("config.json", "{}"),
        FakeFile::lfs("pytorch_model.bin", Content::MadeUp { length: 10 }),
        FakeFile::lfs("adapter_model.safetensors", Content::MadeUp { length: 10 }),
    ];
    let refused = Setting::with(FakeRepo::new(MODEL, files)).download().unwrap_err();
    assert!(matches!(refused, DownloadError::NoWeights { .. }), "{refused}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let setting = Setting::new();
    fs::write(setting.cache(), "a file where the folder should be").unwrap();
    let refused = setting.download().unwrap_err();
    assert!(refused.to_string().contains("models--owner--name"), "{refused}");

    let setting = Setting::new();
    let repo = FakeRepo::model(MODEL, crate::support::WEIGHT_BYTES);
    let partial = setting.partial(repo.file(WEIGHTS).unwrap());
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    let elsewhere = setting.folder.path().join("elsewhere");
    fs::write(&elsewhere, "untouched").unwrap();
    symlink(&elsewhere, &partial).unwrap();
    let refused = setting.download().unwrap_err();
    assert!(refused.to_string().contains("left alone"), "{refused}");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
}

#[test]
fn offline_by_choice_asks_nobody() {
    let setting = Setting::new();
    let offline =
        HubOptions { is_offline: true, ..options(&setting.hub.endpoint(), &setting.cache()) };
    let refused = setting.download_with(offline).unwrap_err();
    assert!(matches!(refused, DownloadError::Offline { .. }), "{refused}");
    assert!(setting.hub.requests().is_empty());
}
