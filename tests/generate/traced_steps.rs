//! Decode steps that are traced answer as those that are not, across the borders of the buffers that a
//! trace is made for.

use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LoadOptions};
use cairn_tests::tiny_model;
use serde_json::json;

use crate::golden::{golden, options, plain};

/// Plain caches, windows far narrower than the context, experts, and more heads than keys.
const MODELS: [&str; 6] = [
    "llama/dense-tied",
    "llama/quant4-untied",
    "gemma3_text/long-prompt",
    "gemma3_text/pattern3",
    "qwen3/dense",
    "qwen3_moe/dense",
];

fn traced(name: &str) -> Model {
    let options = LoadOptions::new().keep_quantized(true).traces_steps(true);
    Model::load(&tiny_model(name), options).expect("loads").0
}

fn num_traced(model: &Model) -> usize {
    model.num_traced_steps().expect("asked for").expect("can be traced")
}

#[test]
fn traced_steps_answer_as_others() {
    for name in MODELS {
        let (golden, traced) = (golden(name), traced(name));
        for length in [golden.prompt.len(), 250] {
            let prompt: Vec<u32> = golden.prompt.iter().copied().cycle().take(length).collect();
            let before = num_traced(&traced);
            let found = plain(&traced, &prompt, options(40));
            assert_eq!(found, plain(&golden.model, &prompt, options(40)), "{name}, {length}");
            assert!(num_traced(&traced) >= before + 39, "{name}, {length}");
        }
        assert!(golden.model.num_traced_steps().is_none());
    }
}

#[test]
fn a_bounded_cache_is_traced_as_a_ring() {
    for name in ["llama/dense-tied", "qwen3/dense"] {
        let (golden, traced) = (golden(name), traced(name));
        let bounded = GenerateOptions { max_kv_size: Some(24), ..options(60) };
        let expected = plain(&golden.model, &golden.prompt, bounded.clone());
        assert_eq!(plain(&traced, &golden.prompt, bounded), expected, "{name}");
        assert!(num_traced(&traced) > 0, "{name}");
        // The same model without a bound has caches of another kind, and so another trace.
        let expected = plain(&golden.model, &golden.prompt, options(30));
        assert_eq!(plain(&traced, &golden.prompt, options(30)), expected, "{name}");
    }
}

#[test]
fn states_are_not_traced() {
    let name = "qwen3_next/dense";
    let (golden, traced) = (golden(name), traced(name));
    let found = plain(&traced, &golden.prompt, options(20));
    assert_eq!(found, plain(&golden.model, &golden.prompt, options(20)));
    assert_eq!(num_traced(&traced), 0);
}

/// A model that answers from a script, and whose steps are to be traced or not.
fn scripted(fails_traced: bool, traces_steps: bool) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    let script: Vec<u32> = (0..97).map(|index| (index * 31 + 7) % 259).collect();
    let config = json!({
        "model_type": "scripted", "vocab_size": 259, "script": script, "fails_traced": fails_traced,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("config.json");
    let options = LoadOptions::new().traces_steps(traces_steps);
    Model::load(folder.path(), options).expect("loads").0
}

#[test]
fn a_model_whose_trace_fails_answers_without_and_says_so_once() {
    let prompt = [5, 6, 7];
    let expected = plain(&scripted(true, false), &prompt, options(40));
    let failing = scripted(true, true);
    for _ in 0..2 {
        assert_eq!(plain(&failing, &prompt, options(40)), expected);
    }
    let why = failing.num_traced_steps().expect("asked for").expect_err("nothing is traced");
    assert!(why.contains("script"), "{why}");
    assert_eq!((failing.take_tracing_problem(), failing.take_tracing_problem()), (Some(why), None));

    let traced = scripted(false, true);
    assert_eq!(plain(&traced, &prompt, options(40)), expected);
    assert!(num_traced(&traced) >= 39);
    assert_eq!(traced.take_tracing_problem(), None);
}
