//! `cairn chats`: list, export, import.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::Command;

use serde_json::Value;

use crate::program::Program;

const SHARED: &str = r#"[{"id":"1","conversations":[{"from":"human","value":"Name a stone."},{"from":"gpt","value":"Granite."}]}]"#;

#[tokio::test]
async fn chats_go_out_and_in() {
    let program = Program::new().await;
    let file = program.file("shared.json");
    fs::write(&file, SHARED).unwrap();
    let done = program.json(&["chats", "import", &file, "--json"]);
    assert_eq!((&done["num_added"], &done["num_refused"]), (&1.into(), &0.into()));
    let again = program.stdout_of(&["chats", "import", &file]);
    assert_eq!(again, "imported\t0\nhere already\t1\nrefused\t0\n");
    let list = program.json(&["chats", "list", "--json"]);
    assert_eq!(list[0]["title"], "Name a stone.");
    let id = list[0]["id"].as_str().unwrap();
    assert_eq!(program.stdout_of(&["chats", "list"]), format!("{id}\tName a stone.\n"));

    let out = program.file("out.json");
    assert_eq!(program.stdout_of(&["chats", "export", id, &out]).trim(), out);
    let written: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(written["conversations"][0]["id"], id);
    program.check_fails(&["chats", "export", id, &out], 1, "it exists: add --force");
    let markdown = ["chats", "export", "--all", "--format", "markdown", "--force", &out];
    program.stdout_of(&markdown);
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(text, "# Name a stone.\n\n## You\n\nName a stone.\n\n## Assistant\n\nGranite.\n");
}

#[tokio::test]
async fn a_mistake_is_named() {
    let program = Program::new().await;
    let out = program.file("out.json");
    program.check_fails(&["chats", "export", &out], 2, "name the chats to export");
    program.check_fails(&["chats", "export", "--all", "an-id", &out], 2, "--all needs no ids");
    program.check_fails(&["chats", "export", "nope", &out], 1, "no chat with the id “nope”");
    program.check_fails(&["chats", "export", "--all", "-"], 2, "- is not stdout here");
    assert!(!fs::exists(&out).unwrap());
    let bad = program.file("bad.json");
    fs::write(&bad, "hello").unwrap();
    program.check_fails(&["chats", "import", &bad], 1, "not valid JSON");
}

#[tokio::test]
async fn an_export_replaces_nothing_but_a_regular_file() {
    let program = Program::new().await;
    let (pipe, dangling) = (program.file("pipe"), program.file("dangling"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink(program.file("missing"), &dangling).unwrap();
    for (path, expected) in [
        (&pipe, "not a regular file"),
        (&dangling, "a link to a missing file"),
        (&program.file(""), "it is a folder"),
    ] {
        for force in [&[][..], &["--force"]] {
            let export = [&["chats", "export", "--all", path][..], force].concat();
            program.check_fails(&export, 1, expected);
        }
    }
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(&dangling).unwrap().is_symlink());

    let (link, behind) = (program.file("link"), program.file("behind"));
    fs::write(&behind, "older").unwrap();
    symlink(&behind, &link).unwrap();
    program.stdout_of(&["chats", "export", "--all", &link, "--force"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&behind).unwrap().contains("cairn-chats"));
}

#[tokio::test]
async fn no_chats_make_a_file_that_can_be_imported() {
    let program = Program::new().await;
    let out = program.file("none.json");
    let exported = program.run(&["chats", "export", "--all", &out]);
    assert_eq!((exported.code, exported.stdout), (Some(0), format!("{out}\n")));
    assert!(exported.stderr.contains("no chats"), "{}", exported.stderr);
    let written: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(written["conversations"], Value::Array(Vec::new()));
    let imported = program.run(&["chats", "import", &out]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert_eq!(imported.stdout, "imported\t0\nhere already\t0\nrefused\t0\n");
    assert_eq!(imported.stderr, format!("{out} has no chats.\n"));

    let markdown = program.file("none.md");
    let export = ["chats", "export", "--all", "--format", "markdown", &markdown];
    program.check_fails(&export, 1, "there are no chats");
    assert!(!fs::exists(&markdown).unwrap());
}

/// Writes a file of chats, imports it with and without --json, and checks both exit statuses.
fn check_import(program: &Program, content: &str, code: i32, expected: &str) -> (String, Value) {
    let file = program.file("chats.json");
    fs::write(&file, content).unwrap();
    let runs = [&[][..], &["--json"]].map(|json| {
        let run = program.run(&[&["chats", "import", &file][..], json].concat());
        assert_eq!(run.code, Some(code), "{content}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{content}: {}", run.stderr);
        run.stdout
    });
    let [plain, json] = runs;
    (plain, serde_json::from_str(&json).unwrap())
}

#[tokio::test]
async fn the_exit_status_says_whether_an_import_is_whole() {
    let program = Program::new().await;
    let cut = &SHARED[..SHARED.len() - 1];
    let (plain, json) = check_import(&program, cut, 1, "cannot be read: EOF");
    assert!(plain.starts_with("imported\t1\n"), "{plain}");
    assert_eq!(json["num_here"], 1);
    let all_refused = r#"[{"messages":[]},{"title":"Stones","messages":[]}]"#;
    let (plain, json) = check_import(&program, all_refused, 1, "none of its chats");
    let refused = "refused\tchat 1\t\"\"\tIt has no messages.\nrefused\tchat 2\t\"Stones\"\tIt";
    assert!(plain.contains(refused), "{plain}");
    assert_eq!((&json["refused"][1]["number"], &json["num_refused"]), (&2.into(), &2.into()));
    let some_refused = format!("{},{}", &all_refused[..16], &SHARED[1..]);
    check_import(&program, &some_refused, 0, "");
}
