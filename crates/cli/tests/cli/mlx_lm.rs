//! mlx-lm's command lines: what Cairn accepts of them, and what it refuses in one line.

use std::time::{Duration, Instant};

use crate::program::{MODEL, Program};

#[tokio::test]
async fn refuses_flags_and_commands_in_one_line() {
    let program = Program::new().await;
    let check = |line: &[&str], expected: &str| {
        let output = program.run(line);
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{line:?}");
        assert_eq!(output.stderr, format!("cairn: {expected}\n"), "{line:?}");
    };
    check(
        &["serve", "--adapter-path", "adapters"],
        "cannot use --adapter-path: Cairn does not load adapters yet; give the folder that \
         mlx_lm.fuse writes as model",
    );
    check(
        &["bench", "--model", MODEL, "-qa"],
        "cannot use --quantize-activations: Cairn computes with activations as they are",
    );
    check(
        &["manage", "--scan", "--pattern", "mlx"],
        "there is no `cairn manage`: use `cairn models list` and `cairn models delete NAME`",
    );
}

#[tokio::test]
async fn accepts_flags_that_change_nothing() {
    let program = Program::new().await;
    let generate = ["generate", "--model", MODEL, "--prompt", "Stones", "--max-tokens", "4"];
    let plain = program.stdout_of(&generate);
    assert_eq!(program.stdout_of(&[&generate[..], &["--trust-remote-code"]].concat()), plain);
    let file = program.file("stones.safetensors");
    let line = ["cache_prompt", "--model", MODEL, "--prompt", "Stones", "--eos-token", "x"];
    program.stdout_of(&[&line[..], &["--prompt-cache-file", &file]].concat());
    assert!(std::path::Path::new(&file).is_file());
}

#[tokio::test]
async fn ends_at_each_of_several_tokens() {
    let program = Program::new().await;
    let generate = ["generate", "--model", MODEL, "--json", "--max-tokens", "12", "--prompt"];
    let text = |more: &[&str]| {
        let answer = program.json(&[&generate[..], &["Stones"], more].concat());
        answer["text"].as_str().unwrap().to_owned()
    };
    let all: Vec<char> = text(&[]).chars().collect();
    // The tiny model's tokens are bytes.
    let later = all.iter().rfind(|char| char.is_ascii_graphic()).unwrap().to_string();
    let earlier = all.iter().find(|char| char.is_ascii_graphic()).unwrap().to_string();
    let expected = text(&["--extra-eos-token", &earlier]);
    assert!(expected.chars().count() < all.len(), "{expected:?}");
    assert_eq!(text(&["--extra-eos-token", &later, &earlier]), expected);
    assert_eq!(text(&["--extra-eos-token", &later, "--extra-eos-token", &earlier]), expected);
}

#[tokio::test]
async fn waits_before_each_trial_of_bench() {
    let program = Program::new().await;
    let sizes = ["bench", "--model", MODEL, "-p", "4", "-g", "2", "-n", "1", "--json"];
    let began = Instant::now();
    program.stdout_of(&[&sizes[..], &["--delay", "1"]].concat());
    assert!(began.elapsed() >= Duration::from_secs(1));
}
