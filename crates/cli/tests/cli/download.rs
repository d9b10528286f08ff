//! `cairn models search|download|delete`, and `--model` with a model that has to be downloaded.

use std::process::{Command, Stdio};

use cairn_fake_hub::{Asked, FakeFile, FakeHub, FakeRepo, Fault, Misdeed};
use cairn_tiny_models::tiny_model;
use serde_json::{Value, json};

use crate::program::{Output, Program};

const REPO: &str = "ann/tiny-chat";
const WEIGHTS: Asked = Asked::Bytes("model.safetensors");

/// A program, and a hub with the tiny model and a file that is never fetched.
struct Setting {
    program: Program,
    hub: FakeHub,
}

impl Setting {
    async fn new() -> Setting {
        let mut files = vec![FakeFile::small("modeling.py", "import os")];
        for entry in std::fs::read_dir(tiny_model("llama/tiny-chat")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let bytes = std::fs::read(&path).unwrap();
            files.push(match String::from_utf8(bytes) {
                Ok(text) => FakeFile::small(&name, &text),
                Err(error) => FakeFile::lfs_bytes(&name, error.into_bytes()),
            });
        }
        let hub = FakeHub::start(vec![FakeRepo::new(REPO, files)]);
        Setting { program: Program::new().await, hub }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program.command(arguments);
        command.env("HF_ENDPOINT", self.hub.endpoint()).env_remove("HF_TOKEN");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Output::of(self.command(arguments).output().unwrap())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let Output { code, stdout, stderr } = self.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        serde_json::from_str(&stdout).unwrap()
    }

    fn check_fails(&self, arguments: &[&str], code: i32, expected: &str) {
        let output = self.run(arguments);
        let stderr = &output.stderr;
        assert_eq!((output.code, output.stdout.as_str()), (Some(code), ""), "{stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(code != 1 || stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn a_model_is_searched_downloaded_used_and_deleted() {
    let setting = Setting::new().await;
    let found = setting.json(&["models", "search", "tiny", "--json"]);
    let expected = json!({
        "name": REPO, "downloads": 1000, "likes": 0, "gated": false,
        "last_modified": "2026-11-22T12:00:00.000Z", "parameters": 600_000_000,
    });
    assert_eq!(found, json!([expected]));
    assert!(setting.run(&["models", "search", "tiny"]).stdout.contains("ann/tiny-chat\t1000"));

    let downloaded = setting.json(&["models", "download", REPO, "--json"]);
    let path = downloaded["path"].as_str().unwrap();
    assert_eq!(
        (&downloaded["name"], &downloaded["revision"]),
        (&json!(REPO), &json!("c0ffee00".repeat(5)))
    );
    assert!(
        path.ends_with(&"c0ffee00".repeat(5))
            && !std::fs::exists(format!("{path}/modeling.py")).unwrap()
    );
    let files = std::fs::read_dir(path).unwrap().count();
    assert_eq!(downloaded["files"], json!(files));

    let generate = ["generate", "--model", REPO, "--prompt", "Hi", "--max-tokens", "2", "--json"];
    assert_eq!(setting.json(&generate)["generation_tokens"], 2);

    let delete = ["models", "delete", REPO];
    setting.check_fails(&delete, 1, "--yes deletes it without asking");
    setting.check_fails(&[&delete[..], &["--json"]].concat(), 2, "--yes");
    let deleted = setting.json(&[&delete[..], &["--yes", "--json"]].concat());
    assert_eq!(deleted["name"], REPO);
    assert!(!std::fs::exists(path).unwrap());
    setting.check_fails(&[&delete[..], &["--yes"]].concat(), 1, "there is no model");
}

#[tokio::test]
async fn a_missing_model_is_downloaded_and_converted_and_named_in_the_card() {
    let setting = Setting::new().await;
    let out = setting.program.file("numbers");
    let convert = ["convert", "--hf-path", REPO, "--mlx-path", &out, "--dequantize"];
    setting.check_fails(&convert, 1, "with --yes it is downloaded");
    assert!(!std::fs::exists(&out).unwrap());
    let output = setting.run(&[&convert[..], &["--yes"]].concat());
    assert_eq!((output.code, output.stdout.trim_end()), (Some(0), out.as_str()));
    let card = std::fs::read_to_string(format!("{out}/README.md")).unwrap();
    assert!(card.contains("base_model: ann/tiny-chat\n"), "{card}");
    let generate = ["generate", "--model", &out, "--prompt", "Hi", "--max-tokens", "2", "--json"];
    assert_eq!(setting.json(&generate)["generation_tokens"], 2);
}

#[tokio::test]
async fn a_missing_model_is_downloaded_only_with_consent() {
    let setting = Setting::new().await;
    let generate = ["generate", "--model", REPO, "--prompt", "Hi", "--max-tokens", "1"];
    setting.check_fails(&generate, 1, "with --yes it is downloaded");
    setting.check_fails(&[&generate[..], &["--json"]].concat(), 1, "with --yes it is downloaded");
    assert!(setting.hub.requests().is_empty(), "nobody is asked before the person was");
    let generated = setting.json(&[&generate[..], &["--json", "--yes"]].concat());
    assert_eq!(generated["generation_tokens"], 1);

    // What is missing of a model is downloaded in the same way.
    let listed = setting.json(&["models", "list", "--json"]);
    let is_it = |model: &&Value| model["name"] == REPO;
    let folder = listed.as_array().unwrap().iter().find(is_it).unwrap()["path"].clone();
    std::fs::remove_file(format!("{}/tokenizer.json", folder.as_str().unwrap())).unwrap();
    setting.check_fails(&generate, 1, "tokenizer.json is missing");
    setting.json(&[&generate[..], &["--json", "--yes"]].concat());

    for absent in ["bob/other", "nothing"] {
        let flags = ["score", "--model", absent, "--prompt", "Hi"];
        setting.check_fails(&flags, 1, "there is no model");
    }
    let flags = ["bench", "--model", "bob/other", "--yes"];
    setting.check_fails(&flags, 1, "cannot download bob/other: there is no model bob/other");
}

#[tokio::test]
async fn ctrl_c_keeps_what_has_come_and_says_so() {
    let setting = Setting::new().await;
    setting.hub.add_fault(Fault::always(WEIGHTS, Misdeed::StallAfter(1000)));
    let mut command = setting.command(&["models", "download", REPO]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    setting.hub.wait_for_stall(|| child.try_wait().unwrap().is_some());
    let partial = || {
        let blobs = setting.program.file("hub/models--ann--tiny-chat/blobs");
        let entries = std::fs::read_dir(blobs).into_iter().flatten().flatten();
        let is_partial = |name: &str| name.ends_with(".cairn.incomplete");
        let mut found = entries.filter(|entry| is_partial(entry.file_name().to_str().unwrap()));
        found.find_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len())
    };
    while partial() != Some(1000) && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    let output = Output::of(child.wait_with_output().unwrap());
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("the same command continues"), "{}", output.stderr);
    assert_eq!(partial(), Some(1000));

    setting.hub.clear_faults();
    setting.hub.forget_requests();
    setting.json(&["models", "download", REPO, "--json"]);
    let requests = setting.hub.requests();
    let ranges: Vec<_> = requests.iter().filter_map(|asked| asked.header("range")).collect();
    assert_eq!(ranges, ["bytes=1000-", "bytes=1000-"], "the hub, then the other host");
}

#[tokio::test]
async fn what_cannot_be_downloaded_is_said_in_one_line() {
    let setting = Setting::new().await;
    setting.check_fails(&["models", "download", "../etc"], 2, "write OWNER/NAME");
    setting.check_fails(
        &["models", "download", REPO, "--revision", "../x"],
        2,
        "is not a revision",
    );
    let tag = ["models", "download", REPO, "--revision", "v9"];
    setting.check_fails(&tag, 1, "has no revision \"v9\"");
    setting.hub.add_fault(Fault::always(
        Asked::File("config.json"),
        Misdeed::Status(403, vec![("X-Error-Code", "GatedRepo".to_owned())]),
    ));
    setting.check_fails(&["models", "download", REPO], 1, "accept them at http://127.0.0.1");
    let mut offline = setting.command(&["models", "download", REPO]);
    let output = Output::of(offline.env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(output.stderr.contains("HF_HUB_OFFLINE is set"), "{}", output.stderr);
    let mut secret = setting.command(&["models", "download", REPO]);
    let output = Output::of(secret.env("HF_TOKEN", "hf_canary token").output().unwrap());
    assert!(output.stderr.contains("copy it again") && !output.stderr.contains("canary"));
}
