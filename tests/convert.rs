//! Converted models are those that mlx_lm.convert makes (`tests/goldens/convert.py`), they answer as the
//! model that they were made of, and a conversion that ends early leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use cairn_formats::python_json;
use cairn_lm::device::ComputeDevice;
use cairn_lm::models::{Model, SUPPORTED};
use cairn_lm::{
    ConvertError, ConvertOptions, ConvertTo, ConvertedModel, FloatType, GenerateOptions, LmError,
    LoadOptions, LoadedModel, MixedRecipe, Pooling, Quantization, QuantizationMode, Sampler,
    check_model, convert, generate_step,
};
use cairn_tests::{
    checkpoint_digest, copy_tiny_model, goldens, save_decoder_alone, tiny_model, tiny_models,
};
use serde_json::{Value, json};

/// A correction of the choice of experts that mlx-lm drops from one family's files, and that Cairn
/// computes with.
const KEPT: &str = "moe_statics.e_score_correction_bias";

fn to(target: &Path, source: &Path, options: &ConvertOptions) -> Result<ConvertedModel, LmError> {
    convert(source, target, options, &mut |_| ControlFlow::Continue(()))
}

fn quantized(group_size: i32, bits: i32) -> ConvertOptions {
    let settings = Quantization::affine(group_size, bits);
    let to = ConvertTo::Quantized { settings, recipe: None };
    ConvertOptions { to, ..ConvertOptions::default() }
}

fn dequantized() -> ConvertOptions {
    ConvertOptions { to: ConvertTo::Dequantized, ..ConvertOptions::default() }
}

/// The options that mlx-lm's flags stand for.
fn options(flags: &Value) -> ConvertOptions {
    let text = |name: &str| flags.get(name).and_then(Value::as_str);
    let number = |name: &str| flags.get(name).and_then(Value::as_i64);
    let dtype = text("dtype")
        .and_then(|asked_for| FloatType::ALL.into_iter().find(|known| known.name() == asked_for));
    let mode = QuantizationMode::of_name(text("q_mode").unwrap_or("affine")).expect("a mode");
    let settings = Quantization::new(mode, number("q_group_size"), number("q_bits"));
    let settings = settings.expect("a format");
    let recipe = text("quant_predicate").map(|name| {
        MixedRecipe::ALL.into_iter().find(|known| known.name() == name).expect("a recipe")
    });
    let to = match (flags.get("quantize"), flags.get("dequantize")) {
        (Some(_), _) => ConvertTo::Quantized { settings, recipe },
        (_, Some(_)) => ConvertTo::Dequantized,
        _ => ConvertTo::Same,
    };
    ConvertOptions { to, dtype, hub_name: None }
}

fn json_in(folder: &Path, name: &str) -> Value {
    python_json(&fs::read(folder.join(name)).expect("a file")).expect("JSON")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_converted_model_is_the_one_that_mlx_lm_makes() {
    let cases = fs::read(goldens().join("convert.json")).expect("the goldens");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("cases");
    // What mlx-lm makes of each model without a flag.
    let mut as_it_is = BTreeMap::new();
    let mut num_compared = 0;
    for case in &cases {
        let (model, flags) = (case["model"].as_str().expect("a name"), &case["flags"]);
        if *flags == json!({}) {
            as_it_is.insert(model, &case["sha256"]);
        }
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("new");
        match to(&target, &tiny_model(model), &options(flags)) {
            Ok(_) => num_compared += 1,
            // mlx-lm changes nothing then and says nothing of it.
            Err(LmError::Convert(
                ConvertError::AlreadyQuantized { .. } | ConvertError::NothingFits { .. },
            )) => {
                assert_eq!(Some(&&case["sha256"]), as_it_is.get(model), "{model} {flags}");
                continue;
            }
            Err(error) => panic!("{model} {flags}: {error}"),
        }
        compare(case, &target);
    }
    assert!(num_compared > 400, "{num_compared}");
    let types: BTreeSet<String> = as_it_is
        .keys()
        .filter_map(|model| {
            let config = json_in(&tiny_model(model), "config.json");
            config["model_type"].as_str().map(str::to_owned)
        })
        .collect();
    for known in SUPPORTED {
        let model_type = known.model_type;
        assert!(types.contains(model_type), "{model_type}: see tests/goldens/convert.py");
    }
}

/// Compares a new model with what mlx-lm made.
fn compare(case: &Value, new: &Path) {
    let name = format!("{} {}", case["model"], case["flags"]);
    let (tensors, digest) = checkpoint_digest(new, |name| !name.ends_with(KEPT));
    let config = json_in(new, "config.json");
    let settings = config.get("quantization").unwrap_or(&Value::Null);
    assert_eq!(*settings, case["settings"], "{name}");
    assert_eq!(config.get("quantization_config").unwrap_or(&Value::Null), settings, "{name}");
    if let Some(expected) = case.get("config") {
        assert_eq!(config, *expected, "{name}");
        assert_eq!(json!(tensors), case["tensors"], "{name}");
    }
    // Other devices round otherwise.
    if ComputeDevice::current() == ComputeDevice::Cpu {
        let expected = case["sha256"].as_str().expect("a digest");
        assert!(digest.starts_with(expected), "{name}: the numbers are others");
    }
}

/// The likeliest tokens behind a short prompt.
fn answer(folder: &Path) -> Vec<u32> {
    let (model, _) = Model::load(folder, LoadOptions::new())
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut caches = model.make_cache();
    let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
    let (prompt, go_on) = ([3, 1, 4, 1, 5], &mut |_, _| ControlFlow::Continue(()));
    let tokens = generate_step(&model, &prompt[..], &mut caches, Sampler::Greedy, options, go_on);
    let mut tokens = tokens.expect("a prompt");
    let mut answer = Vec::new();
    while let Some(sampled) = tokens.next_token().expect("a token") {
        answer.push(sampled.token);
    }
    answer
}

#[test]
fn a_converted_model_answers_as_the_one_it_was_made_of() {
    for name in tiny_models() {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, target) = (tiny_model(&name), folder.path().join("new"));
        let as_numbers =
            ConvertOptions { dtype: Some(FloatType::Float32), ..ConvertOptions::default() };
        to(&target, &source, &as_numbers).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_model(&target).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(answer(&target), answer(&source), "{name}");
    }
}

#[test]
fn what_was_quantized_answers_the_same_when_it_is_dequantized() {
    let folder = tempfile::tempdir().expect("a folder");
    for (index, model) in
        ["llama/quant4-tied", "llama/mxfp4-mixed", "llama/nvfp4", "gpt_oss/published"]
            .into_iter()
            .enumerate()
    {
        let target = folder.path().join(index.to_string());
        to(&target, &tiny_model(model), &dequantized()).expect(model);
        assert_eq!(answer(&target), answer(&tiny_model(model)), "{model}");
        let again = to(&folder.path().join("again"), &target, &dequantized());
        assert!(
            matches!(again, Err(LmError::Convert(ConvertError::NotQuantized { .. }))),
            "{model}: {again:?}"
        );
    }
}

#[test]
fn a_quantized_model_is_whole_and_chats() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("some/where/new");
    let source = tiny_model("llama/tiny-chat");
    let numbers = folder.path().join("numbers");
    to(&numbers, &source, &dequantized()).expect("converts");
    let made = to(&target, &numbers, &quantized(32, 8)).expect("converts");
    assert_eq!((&made.folder, made.bits_per_weight > 8.0), (&target, true));
    assert_eq!(
        names_in(&target),
        [
            "README.md",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    assert_eq!(names_in(&folder.path().join("some/where")), ["new"]);
    let index = json_in(&target, "model.safetensors.index.json");
    let (tensors, _) = checkpoint_digest(&target, |_| true);
    let listed = index["weight_map"].as_object().expect("a map");
    assert_eq!(listed.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>());
    assert!(listed.values().all(|file| file == "model.safetensors"));
    assert_eq!(index["metadata"]["total_size"], made.num_bytes);
    let loaded = LoadedModel::load(&target, LoadOptions::new()).expect("loads");
    let source = LoadedModel::load(&source, LoadOptions::new()).expect("loads");
    assert_eq!(loaded.eos_token_ids, source.eos_token_ids);
    assert!(loaded.tokenizer.chat_template().is_some());
}

#[test]
fn a_conversion_that_is_stopped_leaves_nothing_wherever_that_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("parent/new");
    let source = tiny_model("llama/sharded");
    let stopped_at = |limit: usize| {
        let mut calls = 0;
        let stopped = convert(&source, &target, &quantized(32, 4), &mut |_| {
            calls += 1;
            if calls > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (stopped, calls)
    };
    let mut limit = 0;
    loop {
        match stopped_at(limit) {
            (Err(LmError::Cancelled), calls) => {
                assert_eq!(calls, limit + 1, "it goes on");
                assert_eq!(names_in(folder.path()), Vec::<String>::new(), "at {limit}");
            }
            (made, _) => {
                made.expect("converts");
                break;
            }
        }
        limit += 1;
    }
    assert!(limit > 10, "{limit}");
    assert_eq!(names_in(&folder.path().join("parent")), ["new"]);
}

#[test]
fn converted_embedding_model_keeps_its_pooling_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, target) = (folder.path().join("old"), folder.path().join("new"));
    copy_tiny_model("llama/dense-untied", &source).expect("copies");
    save_decoder_alone(&source);
    fs::create_dir(source.join("1_Pooling")).expect("a folder");
    let modules = json!([
        { "path": "", "type": "models.Transformer" },
        { "path": "1_Pooling", "type": "models.Pooling" },
    ]);
    for (name, contents) in [
        ("modules.json", modules),
        ("1_Pooling/config.json", json!({ "pooling_mode_mean_tokens": true })),
        ("config_sentence_transformers.json", json!({ "prompts": {} })),
    ] {
        fs::write(source.join(name), contents.to_string()).expect("a file");
    }
    fs::write(source.join("1_Pooling/pooling.py"), "import os").expect("a file");
    to(&target, &source, &quantized(32, 8)).expect("converts");
    for name in ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"] {
        assert_eq!(json_in(&target, name), json_in(&source, name), "{name}");
    }
    assert_eq!(names_in(&target.join("1_Pooling")), ["config.json"]);
    let load = |folder: &Path| LoadedModel::load(folder, LoadOptions::new()).expect("loads");
    let [old, new] = [load(&source).embedding, load(&target).embedding];
    assert_eq!(old, new);
    assert_eq!(new.expect("settings").pooling, Pooling::Mean);
    check_model(&target).expect("is a model");
}

#[test]
fn what_cannot_be_converted_is_refused_by_name_and_nothing_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let check = |source: &Path, options: &ConvertOptions, expected: &str| {
        let error = to(&home.join("new"), source, options).expect_err(expected).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(!home.join("new").exists(), "{expected}");
    };
    let of = |name: &str| tiny_model(name);
    check(&of("llama/quant4-tied"), &quantized(32, 4), "already quantized");
    check(&of("llama/dense-tied"), &dequantized(), "not quantized");
    check(&of("llama/dense-tied"), &quantized(64, 4), "no matrix of");
    check(&of("qwen3_moe/dense"), &quantized(32, 4), "mlp.gate' has 32 inputs");
    let settings = Quantization::affine(32, 4);
    let recipe = Some(MixedRecipe::Mixed3And6);
    let by_recipe = ConvertTo::Quantized { settings, recipe };
    let by_recipe = ConvertOptions { to: by_recipe, ..ConvertOptions::default() };
    check(&of("mamba2/dense"), &by_recipe, "the recipe mixed_3_6 asks for");
    check(&home.join("nothing"), &ConvertOptions::default(), "config.json");

    let broken = home.join("broken");
    copy_tiny_model("llama/dense-tied", &broken).expect("copies");
    fs::remove_file(broken.join("tokenizer.json")).expect("removes");
    let file = broken.join("model.safetensors");
    let bytes = fs::read(&file).expect("weights");
    fs::remove_file(&file).expect("removes");
    check(&broken, &ConvertOptions::default(), "broken");
    fs::write(&file, &bytes[..bytes.len() - 1]).expect("writes");
    check(&broken, &ConvertOptions::default(), "is incomplete");

    let mine = home.join("mine");
    fs::create_dir(&mine).expect("a folder");
    fs::write(mine.join("notes"), "kept").expect("writes");
    let error = to(&mine, &of("llama/dense-tied"), &ConvertOptions::default()).expect_err("exists");
    assert!(error.to_string().ends_with("already exists: delete it, or choose another folder"));
    assert_eq!(names_in(&mine), ["notes"]);
    assert_eq!(names_in(home), ["broken", "mine"]);
}
