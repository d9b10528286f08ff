//! `cairn cache`: list, show, export, import, delete.

use cairn_app::wire::{self, Reply};
use serde_json::Value;

use crate::program::{MODEL, Program};
use crate::serve::Server;

/// The tokens generated after a prompt-cache file, and how many prompt tokens came from it.
fn continued(program: &Program, file: &str) -> (Value, Value) {
    let flags = ["--prompt", " And then?", "--max-tokens", "12", "--json"];
    let completion = program
        .json(&[&["generate", "--model", MODEL, "--prompt-cache-file", file][..], &flags].concat());
    (completion["tokens"].clone(), completion["cached_tokens"].clone())
}

#[tokio::test]
async fn an_imported_prompt_cache_is_listed_shown_exported_and_continued_with_the_same_tokens() {
    let program = Program::new().await;
    let file =
        program.prompt_file("story.safetensors", &"Once there was a pile of stones. ".repeat(20));
    let expected = continued(&program, &file);

    let report =
        program.stdout_of(&["cache", "import", &file, "--yes", "--check", "--name", "Story"]);
    for expected in [
        "model\ttiny-chat",
        "kind\tprompt",
        "begins\t\"",
        "pile of stones",
        "stored as\tStory",
        "checked\tall of it",
    ] {
        assert!(report.contains(expected), "{report:?} should say {expected:?}");
    }
    let list = program.json(&["cache", "list", "--json"]);
    let [named] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    assert_eq!(
        (&named["kind"], &named["name"], &named["model"]),
        (&"named".into(), &"Story".into(), &MODEL.into())
    );
    assert_eq!(
        (&named["tokens"], &named["imported_from"]),
        (&expected.1, &"story.safetensors".into())
    );
    let (id, bytes) = (named["id"].as_str().unwrap(), named["bytes"].as_u64().unwrap());
    let table = program.stdout_of(&["cache", "list"]);
    assert!(table.contains("Story") && table.contains(id) && table.contains("total\t"), "{table}");

    let shown = program.stdout_of(&["cache", "show", "Story"]);
    assert!(shown.contains(id) && shown.contains(&format!("bytes\t{bytes}")), "{shown}");
    let chunks: Vec<&str> = shown.lines().filter(|line| line.contains("\tsystem\t")).collect();
    assert!(chunks.len() > 1 && chunks[0].starts_with("0..256\t"), "{shown}");
    let key = chunks[0].rsplit('\t').next().unwrap();
    assert_eq!(program.stdout_of(&["cache", "show", key]).lines().collect::<Vec<_>>(), chunks[..1]);

    let again = program.file("again.safetensors");
    for source in ["Story", id] {
        let export = ["cache", "export", source, &again, "--force"];
        assert_eq!(program.stdout_of(&export).trim(), again);
        assert_eq!(continued(&program, &again), expected);
    }
    let output = program.run(&["cache", "import", &again, "--yes"]);
    assert!(output.code == Some(1) && output.stderr.contains("“Story”"), "{}", output.stderr);
    program.check_fails(&["cache", "export", key, &again, "--force"], 1, "chunk");

    // Half of it, then all.
    let last = chunks[chunks.len() - 1].rsplit('\t').next().unwrap();
    program.stdout_of(&["cache", "delete", last]);
    let rest = program.json(&["cache", "list", "--json"])[0].clone();
    assert!(rest["tokens"].as_u64() < expected.1.as_u64() && rest["lost"].is_string(), "{rest}");
    program.stdout_of(&["cache", "delete", "Story"]);
    assert_eq!(program.json(&["cache", "list", "--json"]), Value::Array(Vec::new()));
    assert_eq!(program.num_chunk_files(), 0);
}

#[tokio::test]
async fn a_failed_command_prints_one_line() {
    let program = Program::new().await;
    let file = program.prompt_file("a.safetensors", "Stones");
    program.check_fails(&["cache", "import", &file], 2, "--yes");
    program.check_fails(&["cache"], 2, "Usage");
    program.check_fails(&["cache", "show"], 2, "<KEY>");
    program.check_fails(&["cache", "delete"], 2, "<KEY>");
    program.check_fails(&["cache", "export", "Story"], 2, "OUT.safetensors");
    program.check_fails(&["cache", "import", "--yes"], 2, "<FILE>");
    program.check_fails(&["cache", "import", "nope"], 1, "cannot import nope: No such file");
    program.check_fails(&["cache", "show", "Story"], 1, "“Story”");
    program.check_fails(&["cache", "delete", "Story"], 1, "nothing was deleted");
    program.check_fails(
        &["cache", "export", "Story", &program.file("b.safetensors")],
        1,
        "“Story”",
    );
    program.check_fails(
        &["cache", "import", &program.file("none.safetensors"), "--yes"],
        1,
        "none.safetensors",
    );
    program.check_fails(&["cache", "import", &file, "--yes", "--model", "other"], 1, "other");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(program.file("half.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    program.check_fails(
        &["cache", "import", &program.file("half.safetensors"), "--yes"],
        1,
        "half.safetensors",
    );
    std::fs::rename(
        program.home().join("models").join(MODEL),
        program.home().join("models").join("renamed"),
    )
    .unwrap();
    program.check_fails(&["cache", "import", &file, "--yes"], 1, "--model");
    assert_eq!(program.num_chunk_files(), 0);
    assert!(
        program
            .stdout_of(&["cache", "import", &file, "--yes", "--model", "renamed"])
            .contains("stored as\ta")
    );
}

#[tokio::test]
async fn an_import_respects_the_disk_budget() {
    let program = Program::with_budget(300_000).await;
    let file =
        |name: &str, num_words: usize| program.prompt_file(name, &"stone ".repeat(num_words));
    let (small, large) = (file("small.safetensors", 60), file("large.safetensors", 200));
    let sizes = [&small, &large].map(|file| std::fs::metadata(file).unwrap().len());
    assert!(sizes[0] < 300_000 && sizes.iter().sum::<u64>() > 300_000, "{sizes:?}");
    program.stdout_of(&["cache", "import", &small, "--yes"]);
    let output = program.run(&["cache", "import", &large, "--yes"]);
    assert!(output.code == Some(1) && output.stderr.contains("disk limit"), "{}", output.stderr);
    let list = program.json(&["cache", "list", "--json"]);
    assert!(
        list.as_array().unwrap().len() == 1
            && list[0]["name"] == "small"
            && list[0]["lost"].is_null(),
        "{list}"
    );
}

// On threads of its own, the app ends what it is writing while the test waits for a command.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_work_while_the_app_has_the_folder_open() {
    let program = Program::new().await;
    let file = program.prompt_file("story.safetensors", "Once there was a pile of stones.");
    let app = program.open_app().await;
    program.stdout_of(&["cache", "import", &file, "--yes"]);
    let named = async || match app.call(wire::Command::GetCache).await.unwrap() {
        Reply::Cache { cache } => cache.named,
        other => panic!("{other:?}"),
    };
    let [cache] = &named().await[..] else { panic!("one is imported") };
    assert_eq!(
        (cache.name.as_str(), cache.imported_from.as_deref()),
        ("story", Some("story.safetensors"))
    );
    program.stdout_of(&["cache", "delete", &cache.id]);
    assert!(named().await.is_empty());
    app.close().await;
}

#[tokio::test]
async fn an_export_replaces_a_file_only_with_force() {
    let program = Program::new().await;
    let file = program.prompt_file("story.safetensors", "Once there was a pile of stones.");
    program.stdout_of(&["cache", "import", &file, "--yes"]);

    let notes = program.file("notes.txt");
    std::fs::write(&notes, "not to be lost").unwrap();
    let export = ["cache", "export", "story", &notes];
    program.check_fails(&export, 1, "--force");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "not to be lost");
    program.stdout_of(&[&export[..], &["--force"]].concat());
    assert_eq!(continued(&program, &notes), continued(&program, &file));
}

#[tokio::test]
async fn cache_prompt_replaces_prompt_caches_alone_and_says_so() {
    let program = Program::new().await;
    let file = program.file("book.safetensors");
    let flags = ["--model", MODEL, "--prompt", "Stones", "--prompt-cache-file", &file];
    let stderr = || {
        let output = program.run(&[&["cache-prompt"], &flags[..]].concat());
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stderr
    };
    let replaced = format!("replaced {file}\n");
    assert!(!stderr().contains("replaced"));
    assert!(stderr().contains(&replaced));
    std::fs::write(&file, "").unwrap();
    assert!(stderr().contains(&replaced));
    let weights = program.home().join("models").join(MODEL).join("model.safetensors");
    let notes = program.file("notes.txt");
    std::fs::write(&notes, "not to be lost").unwrap();
    for other in [weights.to_str().unwrap(), &notes] {
        let before = std::fs::read(other).unwrap();
        let flags = ["--model", MODEL, "--prompt", "Stones", "--prompt-cache-file", other];
        let refused = format!("cannot replace {other}: it is no prompt-cache file");
        program.check_fails(&[&["cache-prompt"], &flags[..]].concat(), 1, &refused);
        assert!(std::fs::read(other).unwrap() == before, "{other} has changed");
    }
    assert!(program.stdout_of(&["cache-prompt", "--help"]).contains("replaced"));
}

/// Checks in which of mlx-lm's layouts a prompt-cache file is written: they hold the user's
/// metadata under different prefixes.
fn check_layout(file: &str, prefix: &str) {
    let bytes = std::fs::read(file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    assert_eq!(header["__metadata__"][format!("{prefix}model")], MODEL, "{file}: {header}");
}

#[tokio::test]
async fn prompt_cache_files_are_written_in_the_layout_that_is_asked_for() {
    let program = Program::new().await;
    let new = program.prompt_file("new.safetensors", "Once there was a pile of stones.");
    check_layout(&new, "0.");
    let expected = continued(&program, &new);

    let old = program.file("old.safetensors");
    let flags = ["--model", MODEL, "--prompt", "Once there was a pile of stones."];
    let to_file = ["--prompt-cache-file", &old, "--layout", "0.30"];
    program.stdout_of(&[&["cache-prompt"], &flags[..], &to_file].concat());
    check_layout(&old, "1.");
    assert_eq!(continued(&program, &old), expected);
    let to_file = ["--prompt-cache-file", &old, "--layout", "0.31"];
    program.stdout_of(&[&["cache-prompt"], &flags[..], &to_file].concat());
    check_layout(&old, "1.");

    program.stdout_of(&["cache", "import", &old, "--yes", "--name", "Story"]);
    for (layout, prefix) in [("0.30", "1."), ("0.31", "1."), ("0.32", "0.")] {
        let file = program.file(layout);
        program.stdout_of(&["cache", "export", "Story", &file, "--layout", layout]);
        check_layout(&file, prefix);
        assert_eq!(continued(&program, &file), expected, "layout {layout}");
    }
    let export = ["cache", "export", "Story", &program.file("x"), "--layout", "0.29"];
    program.check_fails(&export, 2, "0.32, 0.30");
}

#[tokio::test]
async fn repair_rebuilds_the_rows_of_chunk_files_and_leaves_other_files_alone() {
    let program = Program::new().await;
    let prompt = "Once there was a pile of stones. ".repeat(20);
    let file = program.prompt_file("story.safetensors", &prompt);
    program.stdout_of(&["cache", "import", &file, "--yes", "--check"]);
    let num_chunks = program.num_chunk_files();
    assert!(num_chunks > 1);
    let check = |counts: [usize; 4]| {
        let names = ["checked", "rebuilt", "removed", "other files"];
        let lines = names.iter().zip(counts).map(|(name, count)| format!("{name}\t{count}\n"));
        assert_eq!(program.stdout_of(&["cache", "repair"]), lines.collect::<String>());
    };
    check([num_chunks, 0, 0, 0]);

    // A new database beside a full folder.
    for suffix in ["", "-wal", "-shm"] {
        let path = program.home().join(format!("cairn.db{suffix}"));
        assert!(std::fs::remove_file(path).is_ok() || !suffix.is_empty());
    }
    let notes = program.chunk_folder().join("notes.txt");
    std::fs::write(&notes, "not a chunk").unwrap();
    check([0, num_chunks, 0, 1]);
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "not a chunk");
    check([num_chunks, 0, 0, 1]);

    // Damaged files go, with their rows, even if their lengths are right.
    for entry in std::fs::read_dir(program.chunk_folder()).unwrap() {
        let path = entry.unwrap().path();
        if path != notes {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    check([num_chunks, 0, num_chunks, 1]);
    check([0, 0, 0, 1]);
    assert_eq!(program.num_chunk_files(), 1, "the notes");
}

#[tokio::test]
async fn what_programs_have_saved_is_listed_shown_and_deleted() {
    let program = Program::new().await;
    let server = Server::start(&program);
    let text = "Once there was a pile of stones. ".repeat(20);
    for (key, text) in [("one", text.clone()), ("two", text.clone() + "And then?")] {
        let body = serde_json::json!({
            "model": MODEL,
            "messages": [{ "role": "user", "content": text }],
            "max_tokens": 4,
            "prompt_cache_key": key,
        });
        let answer = server.post("/v1/chat/completions", &body.to_string());
        assert!(answer.lines().next().unwrap().contains(" 200 "), "{answer}");
    }
    server.interrupt();
    assert_eq!(server.wait().code(), Some(0));

    let list = program.json(&["cache", "list", "--json"]);
    let [saved] = &list.as_array().unwrap()[..] else { panic!("{list}") };
    let name = "the token of `cairn serve`";
    assert_eq!((&saved["kind"], &saved["name"]), (&"api".into(), &name.into()));
    assert_eq!((&saved["model"], &saved["id"]), (&MODEL.into(), &"token".into()));
    let shown = program.stdout_of(&["cache", "show", "token"]);
    assert!(shown.starts_with(&format!("program\t{name}\nid\ttoken\n")), "{shown}");
    let num_chunks = shown.lines().filter(|line| line.contains(" hits\t")).count();
    assert_eq!(num_chunks, program.num_chunk_files(), "what both requests share once: {shown}");
    let table = program.stdout_of(&["cache", "list"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(lines[0][..2], ["program", name]);
    assert_eq!((lines[1][0], lines[1][1]), ("total", lines[0][3]), "{table}");

    let file = program.file("out.safetensors");
    program.check_fails(&["cache", "export", "token", &file], 1, "what programs have saved");
    program.stdout_of(&["cache", "delete", "token"]);
    assert_eq!(program.json(&["cache", "list", "--json"]), Value::Array(Vec::new()));
    assert_eq!(program.num_chunk_files(), 0);
}
