//! `cairn models`: what a model is and takes.

use serde_json::{Value, json};

use crate::program::{MODEL, Output, Program};

#[tokio::test]
async fn info_names_the_memory_that_a_model_takes() {
    let program = Program::new().await;
    let info = program.json(&["models", "info", MODEL, "--json"]);
    let mut names: Vec<&String> = info.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "context_length",
            "fits",
            "kv_bytes_per_token",
            "layers",
            "memory_bytes",
            "model_type",
            "name",
            "parameters",
            "quantization",
            "weight_bytes"
        ]
    );
    assert_eq!((&info["name"], &info["model_type"]), (&json!(MODEL), &json!("llama")));
    let quantization = json!({ "bits": 4, "group_size": 32 });
    assert_eq!((&info["quantization"], &info["fits"]), (&quantization, &json!(true)));
    let number = |name: &str| info[name].as_u64().unwrap();
    assert!(number("memory_bytes") > number("weight_bytes"));
    // On a CPU every number is computed in four bytes.
    assert!(number("weight_bytes") >= 2 * number("parameters") && number("parameters") > 0);

    let at = |context: &str| {
        let flags = ["models", "info", MODEL, "--context", context, "--json"];
        program.json(&flags)["memory_bytes"].as_u64().unwrap()
    };
    assert!(at("10") < at("1000"));
    let beyond = program.run(&["models", "info", MODEL, "--context", "99999999999", "--json"]);
    let said =
        format!("note: {MODEL} reads at most 4096 tokens, so the memory shown is for 4096\n");
    assert_eq!((beyond.code, beyond.stderr), (Some(0), said));
    let shown = program.stdout_of(&["models", "info", MODEL]);
    assert!(shown.contains("fits\tyes"), "{shown}");
    // Its longest chat is shorter than a usual one.
    assert!(shown.contains(" in its longest chat (4096 tokens)\n"), "{shown}");
    let shown = program.stdout_of(&["models", "info", MODEL, "--context", "1000"]);
    assert!(shown.contains("GB for 1000 tokens, "), "{shown}");
    assert!(shown.contains(" in its longest chat (4096 tokens)\n"), "{shown}");
    program.check_fails(&["models", "info", "nothing/here"], 1, "nothing/here");
}

/// Runs the check as the app does, with a limit for its memory.
fn check_as_child(program: &Program, model: &str, memory_bytes: u64) -> std::process::Output {
    let folder = program.home().join("models").join(model);
    program
        .command(&["models", "check", "--json", folder.to_str().unwrap()])
        .env("CAIRN_CHECK_MEMORY_BYTES", memory_bytes.to_string())
        .env("OPENBLAS_NUM_THREADS", "1")
        .output()
        .unwrap()
}

#[tokio::test]
async fn check_says_whether_a_model_can_be_used() {
    let program = Program::new().await;
    let usable = program.json(&["models", "check", MODEL, "--json"]);
    assert_eq!(usable["ok"], json!(true));
    let mut names: Vec<&String> = usable["facts"].as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "context_length",
            "context_tokens",
            "kv_bytes",
            "kv_bytes_per_token",
            "longest",
            "parameters",
            "quantization_bits",
            "takes_tools",
            "total_bytes",
            "weight_bytes"
        ]
    );
    let by_child = check_as_child(&program, MODEL, 2 << 30);
    assert_eq!(by_child.status.code(), Some(0), "{by_child:?}");
    assert_eq!(serde_json::from_slice::<Value>(&by_child.stdout).unwrap(), usable);
    let shown = program.stdout_of(&["models", "check", MODEL]);
    assert!(shown.contains("usable\tyes"), "{shown}");
    assert!(shown.contains(" in its longest chat (4096 tokens)\n"), "{shown}");
    program.check_fails(&["models", "check", "nothing/here"], 1, "nothing/here");

    let folder = program.copy_model("broken");
    let without = |file: &str| std::fs::remove_file(folder.join(file)).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let broken = program.json(&["models", "check", "broken", "--json"]);
    assert_eq!((&broken["ok"], &broken["kind"]), (&json!(false), &json!("broken")));
    program.check_fails(&["models", "check", "broken"], 1, "not a usable tokenizer");
    without("tokenizer.json");
    let expected =
        json!({ "ok": false, "kind": "incomplete", "detail": "tokenizer.json is missing" });
    assert_eq!(program.json(&["models", "check", "broken", "--json"]), expected);
    std::fs::write(folder.join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let unsupported = program.json(&["models", "check", "broken", "--json"]);
    assert_eq!(unsupported["kind"], json!("unsupported"));
}

#[tokio::test]
async fn a_tokenizer_that_takes_all_memory_ends_its_check() {
    let program = Program::new().await;
    let folder = program.copy_model("hostile");
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    // Each letter of a token becomes a table of the letters that may follow it.
    let token = "a".repeat(16 << 20);
    tokenizer["model"] = json!({ "type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["?", 0.0], [token, -1.0]] });
    std::fs::write(path, tokenizer.to_string()).unwrap();
    let check = check_as_child(&program, "hostile", 512 << 20);
    let complaint = String::from_utf8(check.stderr).unwrap();
    // Elsewhere the parent kills it.
    if cairn_app::KEEPS_MEMORY_LIMIT {
        assert_eq!(check.status.code(), None, "ended by a signal: {complaint}");
        assert!(complaint.contains("memory allocation of "), "{complaint}");
        assert!(check.stdout.is_empty());
    }
}

#[tokio::test]
async fn a_folder_of_models_that_cannot_be_read_is_no_empty_one() {
    let program = Program::new().await;
    let home = program.file("a-file");
    std::fs::write(&home, "no folder").unwrap();
    let list = |home: &str| {
        Output::of(program.command(&["models", "list"]).env("CAIRN_HOME", home).output().unwrap())
    };
    let unreadable = list(&home);
    assert_eq!((unreadable.code, unreadable.stdout.as_str()), (Some(1), ""));
    let said = format!("cairn: cannot list the models in {home}/models: ");
    assert!(unreadable.stderr.starts_with(&said), "{}", unreadable.stderr);
    let absent = list(&program.file("never-made"));
    assert_eq!(absent.code, Some(0));
    assert!(absent.stderr.starts_with("There are no models."), "{}", absent.stderr);
}
