//! What is asked before a download: searches, and files that are read and not kept.

use cairn_fake_hub::{Asked, Content, FakeFile, FakeRepo, Fault, Misdeed, Side};
use cairn_hub::{Commit, DownloadError, FoundModel, Hub, SearchQuery, Token};

use crate::support::{MODEL, Setting, names};

#[test]
fn models_are_found_by_words_and_remote_text_is_plain() {
    let setting = Setting::new();
    let hub = Hub::new(setting.options()).unwrap();
    let query =
        |text: &str| SearchQuery { text: text.to_owned(), tags: vec!["mlx".to_owned()], limit: 10 };
    let found = setting.runtime.block_on(hub.search(&query("name"))).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].repo.as_str(), found[0].num_downloads), (MODEL, 1000));
    assert_eq!((found[0].num_parameters, found[0].is_gated), (Some(600_000_000), false));
    assert_eq!(found[0].model_type.as_deref(), Some("llama"));
    assert_eq!(found[0].updated_at_ms, Some(1_795_348_800_000));
    assert_eq!(found[0].tags, ["mlx", "safetensors"], "one has an escape sequence");
    assert!(setting.runtime.block_on(hub.search(&query("other"))).unwrap().is_empty());
    let asked = &setting.hub.requests()[0].target;
    assert!(asked.contains("filter=mlx") && asked.contains("limit=10"), "{asked}");
}

#[test]
fn models_for_mlx_are_found_first_and_others_fill_the_rest() {
    let setting = Setting::new();
    let repo = |name: &str, tags: &[&str]| {
        let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
        FakeRepo { tags, ..FakeRepo::model(name, 10) }
    };
    setting.hub.change(|repos| {
        *repos = vec![
            repo("a/original", &["safetensors"]),
            repo("mlx/model-4bit", &["mlx", "safetensors", "4-bit"]),
            repo("b/other", &["safetensors"]),
            repo("c/gguf-only", &["gguf"]),
            repo("mlx/old", &["mlx"]),
        ];
    });
    let hub = Hub::new(setting.options()).unwrap();
    let search = |text: &str, limit| -> Vec<FoundModel> {
        setting.hub.forget_requests();
        setting.runtime.block_on(hub.search_models(text, limit)).unwrap()
    };
    let found = search("", 10);
    let names = |found: &[FoundModel]| -> Vec<String> {
        found.iter().map(|model| model.repo.to_string()).collect()
    };
    assert_eq!(names(&found), ["mlx/model-4bit", "mlx/old", "a/original", "b/other"]);
    let facts: Vec<_> = found.iter().map(|one| (one.is_mlx, one.quantization_bits)).collect();
    assert_eq!(facts, [(true, Some(4)), (true, None), (false, None), (false, None)]);
    assert_eq!(names(&search("", 3)), ["mlx/model-4bit", "mlx/old", "a/original"]);
    assert_eq!(names(&search("", 2)), ["mlx/model-4bit", "mlx/old"]);
    assert_eq!(setting.hub.requests().len(), 1, "there is no place for others");
    assert!(search("", 0).is_empty() && setting.hub.requests().is_empty());
    assert_eq!(names(&search("other", 10)), ["b/other"]);

    let failing = Fault::always(Asked::Search, Misdeed::Status(500, Vec::new()));
    setting.hub.add_fault(failing);
    let refused = setting.runtime.block_on(hub.search_models("", 10)).unwrap_err();
    assert!(matches!(refused, DownloadError::HubFailed { .. }), "{refused}");
}

/// The result of reading a file of the model, which may not be longer than 100 bytes.
fn read(setting: &Setting, hub: &Hub, path: &str) -> Result<Option<String>, DownloadError> {
    let commit = Commit::parse(&"c0ffee00".repeat(5)).unwrap();
    setting.runtime.block_on(hub.text_file(&MODEL.parse().unwrap(), &commit, path, 100))
}

#[test]
fn a_short_file_is_read_and_nothing_is_written() {
    let mut repo = FakeRepo::model(MODEL, 10);
    let lfs = Content::Given(b"from the other host".as_slice().into());
    repo.files.push(FakeFile::lfs("notes/a b.txt", lfs));
    repo.files.push(FakeFile::small("full.txt", &"x".repeat(100)));
    repo.files.push(FakeFile::small("long.txt", &"x".repeat(101)));
    repo.files.push(FakeFile::lfs_bytes("bytes.txt", vec![0xff, 0xfe]));
    let setting = Setting::with(repo);
    let hub = Hub::new(setting.options()).unwrap();
    let check = |path: &str, expected: Result<Option<&str>, &str>| match (
        read(&setting, &hub, path),
        expected,
    ) {
        (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{path}"),
        (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
        (found, expected) => panic!("{path}: {found:?} is not {expected:?}"),
    };
    check("README.md", Ok(Some("# A model")));
    check("notes/a b.txt", Ok(Some("from the other host")));
    check("full.txt", Ok(Some(&"x".repeat(100))));
    check("long.txt", Err("more than 100 bytes of \"long.txt\""));
    check("bytes.txt", Err("not UTF-8"));
    check("gone.txt", Ok(None));
    setting.hub.forget_requests();
    for path in ["", "../README.md", "/README.md", "a//b", ".hidden", "a?b"] {
        check(path, Ok(None));
    }
    assert!(setting.hub.requests().is_empty(), "nobody is asked for what no list can have");
    assert!(names(&setting.cache()).is_empty());
}

#[test]
fn a_short_file_is_held_to_the_rules_of_all_files() {
    let setting = Setting::new();
    let hub = Hub::new(setting.options()).unwrap();
    let file = || Asked::File("README.md");
    let check = |fault: Fault, expected: Result<Option<&str>, &str>| {
        let shown = format!("{fault:?}");
        setting.hub.add_fault(fault);
        match (read(&setting, &hub, "README.md"), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{shown}"),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (found, expected) => panic!("{shown}: {found:?} is not {expected:?}"),
        }
        setting.hub.clear_faults();
    };
    let whole = Ok(Some("# A model"));
    check(Fault::once(file(), Misdeed::CutBeforeAnswer), whole);
    check(Fault::once(file(), Misdeed::CutAfter(3)), whole);
    check(Fault::once(file(), Misdeed::Status(503, Vec::new())), whole);
    check(Fault::always(file(), Misdeed::NoLength), whole);
    check(Fault::always(file(), Misdeed::Status(500, Vec::new())), Err("error 500"));
    check(Fault::always(file(), Misdeed::Status(204, Vec::new())), Err("status 204"));
    check(Fault::always(file(), Misdeed::Endless), Err("more than 100 bytes"));
    check(Fault::always(file(), Misdeed::Gzip), Err("compressed"));
    let html = Misdeed::Instead("text/html", b"<html>Sign in</html>".to_vec());
    check(Fault::always(file(), html), Err("sign-in page"));
    let elsewhere = Misdeed::Redirect("ftp://hub.example/README.md".to_owned());
    check(Fault::always(file(), elsewhere), Err("without https"));
    let other = Misdeed::Headers(vec![("X-Repo-Commit", "0".repeat(40))]);
    check(Fault::always(file(), other), Err("changed on the hub"));
    let code = |code: &str| vec![("X-Error-Code", code.to_owned())];
    check(Fault::always(file(), Misdeed::Status(404, code("EntryNotFound"))), Ok(None));
    let missing = Misdeed::Status(404, code("RepoNotFound"));
    check(Fault::always(file(), missing), Err("there is no model"));
}

#[test]
fn a_short_file_is_asked_for_with_the_token_of_the_hub_only() {
    let content = Content::Given(b"the terms".as_slice().into());
    let mut repo = FakeRepo { token: Some("hf_right".to_owned()), ..FakeRepo::model(MODEL, 10) };
    repo.files.push(FakeFile::lfs("TERMS.md", content));
    let setting = Setting::with(repo);
    let hub = Hub::new(setting.options()).unwrap();
    let refused = read(&setting, &hub, "TERMS.md").unwrap_err();
    assert!(matches!(refused, DownloadError::Unauthorized { .. }), "{refused}");
    let hub = hub.with_token(Some(Token::new("hf_right").unwrap()));
    setting.hub.forget_requests();
    assert_eq!(read(&setting, &hub, "TERMS.md").unwrap().as_deref(), Some("the terms"));
    for asked in setting.hub.requests() {
        assert_eq!(asked.header("authorization").is_some(), asked.side == Side::Hub);
    }
    let refused = read(&setting, &hub.with_token(None), "TERMS.md").unwrap_err();
    assert!(matches!(refused, DownloadError::Unauthorized { has_token: false, .. }), "{refused}");
}

#[test]
fn a_question_that_a_person_waits_for_is_given_up_soon() {
    let setting = Setting::new();
    let hub = Hub::new(setting.options()).unwrap();
    setting.hub.add_fault(Fault::always(Asked::Search, Misdeed::Status(500, Vec::new())));
    let asked = |hub: &Hub| {
        setting.hub.forget_requests();
        assert!(setting.runtime.block_on(hub.search_models("name", 5)).is_err());
        setting.hub.requests().len()
    };
    assert_eq!(asked(&hub.for_a_person()), 2);
    assert!(asked(&hub) > 2, "what nobody waits for is tried longer");
    assert_eq!(asked(&hub.for_a_person().with_token(None)), 2);
}
