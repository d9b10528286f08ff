//! `cairn generate`: prompts, templates, limits, statistics.

use serde_json::Value;

use crate::program::{MODEL, Program};

/// Generates a few tokens with the tiny model and returns the JSON object.
fn generate(program: &Program, flags: &[&str]) -> Value {
    generate_with(program, MODEL, flags)
}

fn generate_with(program: &Program, model: &str, flags: &[&str]) -> Value {
    let command = ["generate", "--model", model, "--max-tokens", "8", "--json"];
    program.json(&[&command, flags].concat())
}

/// Checks that two ways to give the prompt lead to the same prompt and tokens.
fn check_same(program: &Program, flags: &[&str], expected: &[&str]) {
    let [found, expected_object] = [flags, expected].map(|flags| {
        let object = generate(program, flags);
        (object["prompt_tokens"].clone(), object["tokens"].clone())
    });
    assert_eq!(found, expected_object, "{flags:?} should be as {expected:?}");
}

#[tokio::test]
async fn escapes_in_the_prompt_are_replaced() {
    let program = Program::new().await;
    check_same(&program, &["--prompt", r"one\n\ttwo"], &["--prompt", "one\n\ttwo"]);
    let plain = "--ignore-chat-template";
    check_same(&program, &["--prompt", r"a\nb", plain], &["--prompt", "a\nb", plain]);
}

#[tokio::test]
async fn a_prompt_from_stdin_is_used_verbatim() {
    let program = Program::new().await;
    let prompt_tokens = |text: &str| {
        let flags = ["generate", "--model", MODEL, "--max-tokens", "1", "--json"];
        let stdin = ["--ignore-chat-template", "--prompt", "-"];
        let object = program.json_with_stdin(&[&flags[..], &stdin].concat(), text);
        object["prompt_tokens"].clone()
    };
    // The tiny tokenizer has one token for each byte.
    assert_eq!(prompt_tokens(r"a\nb"), 4);
    assert_eq!(prompt_tokens("a\nb"), 3);
}
