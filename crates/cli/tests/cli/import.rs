//! `cairn models import` says what rounding costs.

use cairn_formats::gguf::{PerplexityChange, RoundedWeights};
use cairn_formats::test_files::gguf::TestGguf;

use crate::program::Program;

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
    let measured = program.run(&["models", "measure", "--json", &gguf, folder]);
    let change: PerplexityChange = serde_json::from_str(&measured.stdout).unwrap();
    assert_eq!(measured.code, Some(0), "{}", measured.stderr);
    let is_same = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
    assert!(is_same(change.before, kept.before) && is_same(change.after, kept.after), "{change:?}");

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
