//! Finding models in folders as other programs leave them.
#![allow(clippy::unwrap_used)]

use cairn_formats::MAX_CONFIG_BYTES;
use cairn_hub::{CacheVariables, HubError, ModelFolders, ModelProblem};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Files by path and content; a content that begins with `->` is a link to what follows, one that
/// ends in `/` is a folder.
fn lay_out(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content.strip_prefix("->") {
            Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
            None => fs::write(path, content).unwrap(),
        }
    }
}

const CONFIG: (&str, &str) = ("config.json", r#"{"model_type": "llama"}"#);
const TOKENIZER: (&str, &str) = ("tokenizer.json", "{}");
const WEIGHTS: (&str, &str) = ("model.safetensors", "12345678");

#[test]
fn a_folder_says_what_is_wrong_with_it() {
    let check = |files: &[(&str, &str)], expected: Option<ModelProblem>| {
        let home = TempDir::new().unwrap();
        fs::create_dir_all(home.path().join("models/m")).unwrap();
        lay_out(&home.path().join("models/m"), files);
        let folders = ModelFolders::new(home.path(), &CacheVariables::default());
        let [model] = folders.list().try_into().unwrap();
        assert_eq!((model.name.as_str(), &model.path), ("m", &home.path().join("models/m")));
        assert_eq!(model.problem, expected, "{files:?}");
        let resolved = folders.resolve("m");
        assert_eq!(resolved, folders.resolve(model.path.to_str().unwrap()), "by name as by path");
        match expected {
            None => assert_eq!(resolved, Ok(model.path)),
            Some(problem) => {
                assert_eq!(resolved, Err(HubError::Unusable { path: model.path, problem }))
            }
        }
    };
    let broken = |reason: &str| Some(ModelProblem::ConfigBroken { reason: reason.to_owned() });
    let shard_missing = |file: &str| Some(ModelProblem::ShardMissing { file: file.to_owned() });
    let index = "model.safetensors.index.json";
    check(&[CONFIG, TOKENIZER, WEIGHTS], None);
    check(&[], Some(ModelProblem::ConfigMissing));
    check(&[("config.json", "->nowhere"), TOKENIZER, WEIGHTS], Some(ModelProblem::ConfigMissing));
    check(&[("config.json/x", ""), TOKENIZER, WEIGHTS], Some(ModelProblem::ConfigMissing));
    check(
        &[("config.json", "{"), TOKENIZER, WEIGHTS],
        broken("EOF while parsing an object at line 1 column 1"),
    );
    check(&[("config.json", "[]"), TOKENIZER, WEIGHTS], broken("it is not an object"));
    check(
        &[("config.json", &"[".repeat(200_000)), TOKENIZER, WEIGHTS],
        broken("recursion limit exceeded at line 1 column 128"),
    );
    check(
        &[("config.json", &" ".repeat(MAX_CONFIG_BYTES as usize + 1)), TOKENIZER, WEIGHTS],
        broken("it has more than 1048576 bytes, the most that are read of it"),
    );
    check(
        &[("config.json", r#"{"model_type": 7}"#), TOKENIZER, WEIGHTS],
        Some(ModelProblem::NoModelType),
    );
    check(&[CONFIG, TOKENIZER], Some(ModelProblem::NoWeights));
    check(&[CONFIG, TOKENIZER, ("pytorch_model.bin", "x")], Some(ModelProblem::NoWeights));
    check(
        &[CONFIG, TOKENIZER, ("model.safetensors", "->nowhere")],
        shard_missing("model.safetensors"),
    );
    let part = |number: u32| format!("model-0000{number}-of-00003.safetensors");
    check(
        &[CONFIG, TOKENIZER, (&part(1), "1"), (&part(3), "3")],
        shard_missing("model-00002-of-00003.safetensors"),
    );
    check(&[CONFIG, TOKENIZER, (&part(1), "1"), (&part(2), "2"), (&part(3), "3")], None);
    check(&[CONFIG, WEIGHTS], Some(ModelProblem::TokenizerMissing));
    check(
        &[CONFIG, TOKENIZER, WEIGHTS, (index, r#"{"weight_map": {"a": "model.safetensors"}}"#)],
        None,
    );
    check(
        &[
            CONFIG,
            TOKENIZER,
            WEIGHTS,
            (index, r#"{"weight_map": {"a": "model.safetensors", "b": "2.safetensors"}}"#),
        ],
        shard_missing("2.safetensors"),
    );
    check(
        &[
            CONFIG,
            TOKENIZER,
            WEIGHTS,
            (index, r#"{"weight_map": {"a": "../m/x.safetensors", "b": "model.safetensors"}}"#),
        ],
        shard_missing("../m/x.safetensors"),
    );
    let of_other_weights = r#"{"weight_map": {"a": "model-00001-of-00009.safetensors"}}"#;
    check(&[CONFIG, TOKENIZER, WEIGHTS, (index, of_other_weights)], None);
    check(
        &[CONFIG, TOKENIZER, (&part(1), "1"), (&part(3), "3"), (index, of_other_weights)],
        shard_missing("model-00001-of-00009.safetensors"),
    );
    check(&[CONFIG, TOKENIZER, WEIGHTS, (index, r#"{"weight_map": {}}"#)], None);
    let no_map =
        Some(ModelProblem::IndexBroken { reason: "missing field `weight_map`".to_owned() });
    check(&[CONFIG, TOKENIZER, WEIGHTS, (index, "{}")], no_map);
}

#[test]
fn imported_models_and_the_shared_cache_are_listed_together() {
    let home = TempDir::new().unwrap();
    let complete = |folder: &str| {
        [CONFIG, TOKENIZER, WEIGHTS].map(|(file, content)| (format!("{folder}/{file}"), content))
    };
    let in_cache = "cache/models--owner--name/snapshots/0123abcd";
    for (path, content) in [
        complete("models/mine"),
        complete("models/.unfinished"),
        complete("cache/datasets--owner--data/snapshots/1"),
    ]
    .concat()
    {
        lay_out(home.path(), &[(&path, content)]);
    }
    lay_out(
        home.path(),
        &[
            ("models/readme.txt", "not a folder"),
            ("models/gone", "->nowhere"),
            ("cache/models--owner--name/blobs/b1", r#"{"model_type": "qwen3"}"#),
            ("cache/models--owner--name/blobs/b2", "123456"),
            ("cache/models--owner--name/refs/main", "0123abcd"),
            (&format!("{in_cache}/config.json"), "->../../blobs/b1"),
            (&format!("{in_cache}/model.safetensors"), "->../../blobs/b2"),
            (&format!("{in_cache}/tokenizer.json"), "->../../blobs/b1"),
            (&format!("{in_cache}/extra/notes.txt"), "12"),
            (&format!("{in_cache}/vocab.json"), "->../../blobs/removed"),
            ("cache/models--gpt2/refs/main", "cafe\n"),
            ("cache/models--gpt2/snapshots/cafe/config.json", r#"{"model_type": "gpt2"}"#),
            ("cache/models--owner--half/refs/main", "0456"),
            ("cache/models--owner--half/blobs/b.incomplete", "x"),
            ("cache/models--owner--away/refs/main", "../../../models/mine"),
            ("cache/models--owner--noref/snapshots/1/config.json", "{}"),
            ("cache/models--owner--noref2/snapshots/1/config.json", "{}"),
            ("cache/models--owner--noref2/snapshots/2/config.json", "{}"),
            ("cache/.locks/models--owner--name/x.lock", ""),
            ("cache/version.txt", "1"),
        ],
    );
    let variables = CacheVariables {
        hf_hub_cache: Some(home.path().join("cache")),
        ..CacheVariables::default()
    };
    let folders = ModelFolders::new(home.path(), &variables);
    let listed: Vec<_> = folders
        .list()
        .into_iter()
        .map(|model| (model.name, model.path, model.model_type, model.bytes, model.problem))
        .collect();
    let row = |name: &str,
               path: &str,
               model_type: Option<&str>,
               bytes: u64,
               problem: Option<ModelProblem>| {
        (name.to_owned(), home.path().join(path), model_type.map(str::to_owned), bytes, problem)
    };
    let expected = [
        row(
            "gpt2",
            "cache/models--gpt2/snapshots/cafe",
            Some("gpt2"),
            22,
            Some(ModelProblem::NoWeights),
        ),
        row("mine", "models/mine", Some("llama"), 23 + 2 + 8, None),
        row("owner/away", "cache/models--owner--away", None, 0, Some(ModelProblem::NoSnapshot)),
        row("owner/half", "cache/models--owner--half", None, 0, Some(ModelProblem::NoSnapshot)),
        row("owner/name", in_cache, Some("qwen3"), 23 + 6 + 23 + 2, None),
        row(
            "owner/noref",
            "cache/models--owner--noref/snapshots/1",
            None,
            2,
            Some(ModelProblem::NoModelType),
        ),
        row("owner/noref2", "cache/models--owner--noref2", None, 0, Some(ModelProblem::NoSnapshot)),
    ];
    assert_eq!(listed, expected);

    let check = |wanted: &str, expected: Result<&str, HubError>| {
        assert_eq!(
            folders.resolve(wanted),
            expected.map(|path| home.path().join(path)),
            "{wanted}"
        );
    };
    check("owner/name", Ok(in_cache));
    check("mine", Ok("models/mine"));
    check(home.path().join("models/mine").to_str().unwrap(), Ok("models/mine"));
    let path = home.path().join("cache/models--owner--half");
    check("owner/half", Err(HubError::Unusable { path, problem: ModelProblem::NoSnapshot }));
    let searched = vec![home.path().join("models"), home.path().join("cache")];
    for absent in
        ["name", "owner/other", "", "../models/mine", "/no/such/folder", "models--owner--name"]
    {
        check(
            absent,
            Err(HubError::NotFound { wanted: absent.to_owned(), searched: searched.clone() }),
        );
    }
    let message = folders.resolve("owner/other").unwrap_err().to_string();
    assert!(
        message.starts_with(
            r#"there is no model "owner/other": it is not a folder, and it is not in "#
        ),
        "{message}"
    );
    assert!(
        message.contains(&format!(
            "{}/models or {}/cache;",
            home.path().display(),
            home.path().display()
        )),
        "{message}"
    );
    assert!(message.contains("cairn models import"), "{message}");
}

#[test]
fn places_that_do_not_exist_hold_no_models() {
    let home = TempDir::new().unwrap();
    let variables =
        CacheVariables { home: Some(home.path().join("absent")), ..CacheVariables::default() };
    let folders = ModelFolders::new(&home.path().join("absent"), &variables);
    assert_eq!(folders.list(), []);
    assert!(folders.resolve("m").is_err());
}

#[test]
fn the_shared_cache_lies_where_the_environment_says() {
    let check = |variables: &[(&str, &str)], expected: Option<&str>| {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        assert_eq!(
            CacheVariables::from_lookup(lookup).hub_cache(),
            expected.map(PathBuf::from),
            "{variables:?}"
        );
    };
    let (home, xdg, hf_home) = (("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f"));
    let (old, new) = (("HUGGINGFACE_HUB_CACHE", "/o"), ("HF_HUB_CACHE", "/n"));
    check(&[], None);
    check(&[home], Some("/h/.cache/huggingface/hub"));
    check(&[home, xdg], Some("/x/huggingface/hub"));
    check(&[home, xdg, hf_home], Some("/f/hub"));
    check(&[home, xdg, hf_home, old], Some("/o"));
    check(&[home, xdg, hf_home, old, new], Some("/n"));
    check(&[home, ("HF_HOME", "")], Some("/h/.cache/huggingface/hub"));
    check(&[home, ("HF_HOME", "~/models")], Some("/h/models/hub"));
    check(&[("HF_HUB_CACHE", "~/models")], Some("~/models"));
}
