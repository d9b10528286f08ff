//! `cairn models import` says what rounding costs, and leaves nothing that it has not finished.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use cairn_formats::gguf::{PerplexityChange, RoundedWeights};
use cairn_formats::test_files::gguf::TestGguf;

use crate::program::{MODEL, Output, Program};

#[tokio::test]
async fn rounding_is_said_in_perplexity_where_it_is_asked_for() {
    let program = Program::new().await;
    let gguf = program.file("wide.gguf");
    std::fs::write(&gguf, TestGguf::with_k_quants().bytes()).unwrap();
    let import = |name: &str, form: &str, more: &[&str]| {
        let arguments = ["models", "import", &gguf, "--name", name, "--round-to", form];
        let output = program.run(&[&arguments[..], more].concat());
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        assert!(output.stdout.trim_end().ends_with(name), "{}", output.stdout);
        output.stderr
    };
    let said = import("rounded", "4", &["--perplexity"]);
    let folder = program.home().join("models").join("rounded");
    let kept = RoundedWeights::read(&folder).unwrap().perplexity.unwrap();
    assert!(kept.is_valid() && kept.before != kept.after, "{kept:?}");
    // The weights are random, and so is what they say of a text.
    let huge = "more than 1,000,000";
    assert!(kept.before > 1e6 && kept.after > 1e6, "{kept:?}");
    assert!(said.contains(&format!("tokens: {huge} before rounding, {huge} after.\n")), "{said}");
    // The app measures in a process of its own, with a limit of memory.
    let folder = folder.to_str().unwrap();
    let measure = ["models", "measure", "--json", &gguf, folder];
    let change: PerplexityChange = serde_json::from_str(&program.stdout_of(&measure)).unwrap();
    let is_same = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
    assert!(is_same(change.before, kept.before) && is_same(change.after, kept.after), "{change:?}");
    // As much of the disk stays free as it is told.
    let mut without_disk = program.command(&measure);
    without_disk.env("CAIRN_MEASURE_RESERVE_BYTES", u64::MAX.to_string());
    let refused = Output::of(without_disk.output().unwrap());
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    assert!(refused.stderr.contains("would stay free on the disk"), "{}", refused.stderr);

    let said = import("exact", "f32", &["--perplexity"]);
    assert!(!said.contains("rounded"), "{said}");
    assert!(said.contains(&format!("tokens: {huge}.\n")), "{said}");
    assert!(!import("silent", "4", &[]).contains("erplexity"));
    let models = std::fs::read_dir(program.home().join("models")).unwrap();
    assert_eq!(models.count(), 4, "nothing is left of the copy that was measured");
}

#[tokio::test]
async fn a_model_that_cannot_be_measured_is_imported_all_the_same() {
    let program = Program::new().await;
    let gguf = program.file("short.gguf");
    // Its context is shorter than the text.
    std::fs::write(&gguf, TestGguf::tiny().bytes()).unwrap();
    let output = program.run(&["models", "import", &gguf, "--name", "short", "--perplexity"]);
    assert_ne!(output.code, Some(0), "{}", output.stderr);
    let folder = std::path::Path::new(output.stdout.trim_end());
    assert!(folder.ends_with("short") && folder.join("config.json").is_file(), "{folder:?}");
    let said = format!("the model is imported to {}, but was not measured", folder.display());
    assert!(output.stderr.contains(&said), "{}", output.stderr);
}

#[tokio::test]
async fn says_that_a_model_has_no_chat_template() {
    let program = Program::new().await;
    let import = |name: &str, gguf: &TestGguf| {
        let file = program.file(&format!("{name}.gguf"));
        std::fs::write(&file, gguf.bytes()).unwrap();
        let output = program.run(&["models", "import", &file, "--name", name]);
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output
            .stderr
            .contains("has no chat template, so it can't chat: put the chat_template.jinja")
    };
    assert!(!import("chat", &TestGguf::tiny()));
    let mut base = TestGguf::tiny();
    base.remove("tokenizer.chat_template");
    assert!(import("base", &base));
}

/// The names in the folder of imported models, in order.
fn names_of_models(program: &Program) -> Vec<String> {
    let entries = fs::read_dir(program.home().join("models")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Imports a file and sends the signal once a folder for it is there. The file is as large as it
/// takes for the import not to be done before.
fn imported_with_signal(program: &Program, gguf: &str, signal: &str) -> Output {
    for num_bytes in (26..34).map(|exponent| 1 << exponent) {
        let mut file = TestGguf::tiny();
        file.widen(num_bytes);
        fs::write(gguf, file.bytes()).unwrap();
        let mut command = program.command(&["models", "import", gguf, "--name", "large"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while names_of_models(program) == [MODEL] && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let output = Output::of(child.wait_with_output().unwrap());
        if output.code != Some(0) {
            return output;
        }
        fs::remove_dir_all(program.home().join("models/large")).unwrap();
    }
    panic!("each import was done before the signal came");
}

#[tokio::test]
async fn a_signal_ends_an_import_and_nothing_of_it_is_left() {
    let program = Program::new().await;
    let gguf = program.file("large.gguf");
    for signal in ["-INT", "-TERM"] {
        let output = imported_with_signal(&program, &gguf, signal);
        let said = format!("cairn: the import of {gguf} was stopped, and nothing of it is left\n");
        assert_eq!((output.code, output.stderr), (Some(1), said), "{signal}");
        assert_eq!((output.stdout.as_str(), names_of_models(&program)), ("", vec![MODEL.into()]));
    }
}

#[tokio::test]
async fn what_a_dead_import_has_left_is_removed_by_the_next_command() {
    let program = Program::new().await;
    let models = program.home().join("models");
    let source = models.join(MODEL).display().to_string();
    let [left, in_use] = ["a", "b"].map(|letter| format!(".importing-gguf-{}", letter.repeat(12)));
    fs::create_dir(models.join(&in_use)).unwrap();
    let folder_in_use = File::open(models.join(&in_use)).unwrap();
    folder_in_use.try_lock().unwrap();
    for command in
        [&["list"][..], &["import", &source, "--name", "again"], &["delete", "again", "--yes"]]
    {
        fs::create_dir(models.join(&left)).unwrap();
        fs::write(models.join(&left).join("model.safetensors"), "half").unwrap();
        program.stdout_of(&[&["models"], command].concat());
        let names = names_of_models(&program);
        assert!(!names.contains(&left) && names.contains(&in_use), "{command:?}: {names:?}");
    }
}
