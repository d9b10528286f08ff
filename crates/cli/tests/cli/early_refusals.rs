//! What is refused before a model is loaded. The tests use a model whose weights are damaged, so
//! that loading it fails with another message.

use std::process::Command;

use crate::program::{MODEL, Program};

/// The name of the model that cannot be loaded.
const DAMAGED: &str = "damaged";

fn copy_damaged_model(program: &Program) {
    let weights = program.copy_model(DAMAGED).join("model.safetensors");
    std::fs::write(weights, "no weights").unwrap();
}

#[tokio::test]
async fn an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded() {
    let program = Program::new().await;
    copy_damaged_model(&program);
    let check = |file: &str, expected: &str| {
        let flags = ["--model", DAMAGED, "--prompt", "x", "--prompt-cache-file", file];
        program.check_fails(&[&["cache-prompt"], &flags[..]].concat(), 1, expected);
    };
    let folder = program.file("missing");
    check(&format!("{folder}/x.safetensors"), &format!("there is no folder {folder}"));
    check(&program.home().display().to_string(), "it is a folder");
}

#[tokio::test]
async fn a_name_for_an_import_is_checked_before_the_model_is_loaded() {
    let program = Program::new().await;
    let file = program.prompt_file("story.safetensors", "Once there was a pile of stones.");
    program.stdout_of(&["cache", "import", &file, "--yes"]);
    let titled = program.file("titled.safetensors");
    program.stdout_of(&["cache", "export", "story", &titled]);
    copy_damaged_model(&program);

    let import = ["cache", "import", &file, "--yes", "--model", DAMAGED];
    program.check_fails(&[&import[..], &["--name", ""]].concat(), 2, "--name");
    program.check_fails(&[&import[..], &["--name", " "]].concat(), 2, "--name");
    let taken = |import: &[&str]| {
        program.check_fails(import, 1, "“story”: choose another name with --name");
    };
    taken(&[&import[..], &["--name", "story"]].concat());
    taken(&[&import[..], &["--name", " story "]].concat());
    // The default name is the title in the file, else the file's name.
    taken(&import);
    taken(&["cache", "import", &titled, "--yes", "--model", DAMAGED]);
}

#[tokio::test]
async fn an_image_is_refused_before_the_model_is_loaded() {
    let program = Program::new().await;
    copy_damaged_model(&program);
    let flags = ["--model", DAMAGED, "--prompt", "What is this?", "--image", "stones.png"];
    let expected = "cannot use stones.png: Cairn has no image input for llama models";
    program.check_fails(&[&["generate"], &flags[..]].concat(), 1, expected);
}

#[tokio::test]
async fn refuses_a_pipe_where_a_file_is_named() {
    let program = Program::new().await;
    let pipe = program.file("pipe.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let model = ["--model", MODEL];
    for (command, code) in [
        (&["chats", "import", &pipe][..], 1),
        (&["cache", "import", &pipe, "--yes"], 1),
        (&["models", "import", &pipe], 1),
        (&["models", "compare-state", MODEL, "--text", &pipe], 1),
        (&[&["batch", "--input", &pipe], &model[..]].concat(), 1),
        (&[&["score", "--input", &pipe], &model[..]].concat(), 1),
        (&[&["classify", "--input", &pipe], &model[..]].concat(), 1),
        (&[&["generate", "--prompt", "x", "--prompt-cache-file", &pipe], &model[..]].concat(), 1),
        (&["serve", "--token-file", &pipe], 1),
    ] {
        program.check_fails(command, code, "is not a regular file");
    }
}

#[tokio::test]
async fn reads_what_the_shell_has_opened() {
    let program = Program::new().await;
    let score = ["score", "--model", MODEL, "--json", "--input"];
    let row = "{\"tokens\": [1, 2, 3]}\n";
    let from_dash = program.stdout_with_stdin(&[&score[..], &["-"]].concat(), row);
    let from_path = program.stdout_with_stdin(&[&score[..], &["/dev/stdin"]].concat(), row);
    assert!(!from_dash.is_empty());
    assert_eq!(from_path, from_dash);
}
