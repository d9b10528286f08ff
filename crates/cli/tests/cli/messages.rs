//! What commands tell people: refused values, sizes, names of things.

use crate::program::{MODEL, Program};

#[tokio::test]
async fn numbers_out_of_range_are_refused_with_the_allowed_ones() {
    let program = Program::new().await;
    let check = |flag: &str, value: &str, expected: &str| {
        let prompt: &[&str] = if flag == "--prompt-tokens" { &[] } else { &["--prompt", "x"] };
        let flags = [&["generate", "--model", MODEL, "--json"], prompt, &[flag, value]].concat();
        program.check_fails(&flags, 2, flag);
        program.check_fails(&flags, 2, expected);
    };
    let whole = "give a whole number from 0 on";
    for flag in ["--top-k", "--seed", "--logprobs", "--quantized-kv-start"] {
        check(flag, "-1", whole);
        check(flag, "many", whole);
    }
    for kind in ["repetition", "presence", "frequency"] {
        check(&format!("--{kind}-context-size"), "-1", whole);
    }
    for value in ["-1", "0", "many"] {
        check("--prefill-step-size", value, "give a whole number from 1 on");
    }
    for ids in ["", "1,,2", "1 2", "one"] {
        check("--prompt-tokens", ids, "give token ids separated by commas, such as 1,2,3");
    }
}

#[tokio::test]
async fn a_bad_line_of_a_batch_is_named() {
    let program = Program::new().await;
    let file = program.file("b.jsonl");
    let check = |second: &str, expected: &str| {
        std::fs::write(&file, format!("{{\"prompt\": \"x\"}}\n{second}\n")).unwrap();
        let batch = ["batch", "--model", MODEL, "--input", &file];
        program.check_fails(&batch, 1, &format!("line 2 of {file}{expected}"));
    };
    check("stones", " is not JSON\n");
    check("{\"prompt\": ", " is not JSON\n");
    check("{}", ": give one of prompt_tokens, messages and prompt\n");
    // The position within the line looks like another number of a line.
    check("{\"prompt\": 5}", ": invalid type: integer `5`, expected a string\n");
}

#[tokio::test]
async fn sizes_have_a_unit_that_fits_them() {
    let program = Program::new().await;
    let list = program.stdout_of(&["models", "list"]);
    let size = list.trim_end().rsplit('\t').next().unwrap();
    let (number, unit) = size.split_once(' ').unwrap();
    assert_eq!(unit, "kB", "{list}");
    let bytes = program.json(&["models", "list", "--json"])[0]["bytes"].as_f64().unwrap();
    assert_eq!(number, format!("{:.0}", bytes / 1e3));
}

#[tokio::test]
async fn people_read_of_starting_points_where_json_says_named() {
    let program = Program::new().await;
    let file = program.prompt_file("story.safetensors", "Once there was a pile of stones.");
    program.stdout_of(&["cache", "import", &file, "--yes"]);
    for command in [&["cache", "list"][..], &["cache", "show", "story"]] {
        let table = program.stdout_of(command);
        assert!(table.contains("starting point\tstory"), "{command:?}: {table}");
    }
    assert_eq!(program.json(&["cache", "list", "--json"])[0]["kind"], "named");

    for command in [&["cache", "--help"][..], &["cache", "import", "-h"], &["cache", "show", "-h"]]
    {
        let help = program.stdout_of(command);
        assert!(help.contains("starting point") && !help.contains("named"), "{command:?}: {help}");
    }
    let help = program.stdout_of(&["cache", "import", "--help"]);
    let words: Vec<&str> = help.split_whitespace().collect();
    let check = "Checks that the file really is what this model computes. Without it, a damaged or \
                 forged file goes unnoticed";
    assert!(words.join(" ").contains(check), "{help}");
}

#[tokio::test]
async fn an_import_over_an_existing_model_says_what_to_do() {
    let program = Program::new().await;
    let source = program.home().join("models").join(MODEL).display().to_string();
    let expected =
        format!("{source} already exists: choose another name with --name, or delete that folder");
    program.check_fails(&["models", "import", &source], 1, &expected);

    let gguf = program.file("stones.gguf");
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/gguf/untied");
    std::fs::copy(seed, &gguf).unwrap();
    program.check_fails(&["models", "import", &gguf, "--name", MODEL], 1, &expected);
}
