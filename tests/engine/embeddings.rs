//! Vectors of texts: as mlx-lm's hidden states give them, whatever the batch; pooled and cut as the
//! model's files and the request say.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cairn_engine::{
    EmbedInput, EmbedRequest, Embeddings, Engine, EngineError, EngineOptions, GenerateRequest,
    InputProblem, PromptInput,
};
use cairn_tests::{copy_tiny_model, goldens, tiny_model};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{finish, request};

/// The largest difference of two numbers.
const TOLERANCE: f32 = 1e-5;
/// `<|endoftext|>` of the tokenizer of bytes.
const END_OF_TEXT: u32 = 256;
/// `<|im_end|>`, its end-of-sequence token.
const IM_END: u32 = 258;

fn start() -> Engine {
    Engine::start(EngineOptions::default()).0
}

/// A copy of a tiny model whose files ask for this pooling.
fn with_pooling(model: &str, mode: &str, normalizes: bool) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    copy_tiny_model(model, folder.path()).expect("a copy");
    let module = |path: &str, kind: &str| json!({ "path": path, "type": format!("models.{kind}") });
    let mut modules = vec![module("", "Transformer"), module("1_Pooling", "Pooling")];
    modules.extend(normalizes.then(|| module("2_Normalize", "Normalize")));
    write(folder.path(), "modules.json", &modules.into());
    let config = json!({ format!("pooling_mode_{mode}"): true });
    write(folder.path(), "1_Pooling/config.json", &config);
    folder
}

fn write(folder: &Path, name: &str, value: &Value) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, value.to_string()).expect("a file");
}

fn tokens(rows: &[Vec<u32>]) -> EmbedRequest {
    let inputs = rows.iter().cloned().map(EmbedInput::Tokens).collect();
    EmbedRequest { inputs, ..EmbedRequest::default() }
}

fn texts(texts: &[&str]) -> EmbedRequest {
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    EmbedRequest { inputs, ..EmbedRequest::default() }
}

async fn embed(engine: &Engine, request: EmbedRequest) -> Embeddings {
    engine.embed(request).await.expect("vectors")
}

fn check_close(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, row {index}");
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let most = differences.fold(0.0, f32::max);
        let scale = expected.iter().fold(1.0_f32, |most, number| most.max(number.abs()));
        assert!(most <= TOLERANCE * scale, "{what}, row {index}: {most}");
    }
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    vector.iter().map(|number| number / length).collect()
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|number| number * number).sum::<f32>().sqrt()
}

#[tokio::test]
async fn vectors_equal_mlx_lms_for_each_pooling() {
    let file = fs::read(goldens().join("embeddings.json")).expect("the goldens");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    for case in file["cases"].as_array().expect("cases") {
        let model = case["model"].as_str().expect("a name");
        let rows: Vec<Vec<u32>> = serde_json::from_value(case["rows"].clone()).expect("rows");
        for (mode, vectors) in case["vectors"].as_object().expect("modes") {
            let what = format!("{model}, {mode}");
            let expected: Vec<Vec<f32>> = serde_json::from_value(vectors.clone()).expect(mode);
            let key = match mode.as_str() {
                "lasttoken" => mode.clone(),
                "cls" => "cls_token".to_owned(),
                mode => format!("{mode}_tokens"),
            };
            let engine = start();
            let folder = with_pooling(model, &key, false);
            engine.load("model", folder.path()).await.expect("loads");
            let found = embed(&engine, tokens(&rows)).await;
            check_close(&found.vectors, &expected, &what);
            assert_eq!(found.num_tokens, rows.iter().map(Vec::len).sum::<usize>());

            let folder = with_pooling(model, &key, true);
            engine.load("normalized", folder.path()).await.expect("loads");
            let found = embed(&engine, tokens(&rows)).await.vectors;
            let expected: Vec<_> = expected.iter().map(|vector| normalized(vector)).collect();
            check_close(&found, &expected, &what);
        }
    }
}

#[tokio::test]
async fn model_without_pooling_files_gives_last_token_normalized() {
    let engine = start();
    let rows = vec![vec![1, 2, 3], vec![9]];
    engine.load("plain", &tiny_model("qwen3/dense")).await.expect("loads");
    let plain = embed(&engine, tokens(&rows)).await.vectors;
    let folder = with_pooling("qwen3/dense", "lasttoken", true);
    engine.load("model", folder.path()).await.expect("loads");
    check_close(&plain, &embed(&engine, tokens(&rows)).await.vectors, "as by its files");
    assert!(plain.iter().all(|vector| (length(vector) - 1.0).abs() < TOLERANCE));
}

#[tokio::test]
async fn vectors_do_not_depend_on_the_batch() {
    let engine = start();
    let folder = with_pooling("llama/mistral-windows", "mean_tokens", false);
    engine.load("model", folder.path()).await.expect("loads");
    let row = |index: usize| (0..1 + index * 37 % 150).map(|id| (id % 90) as u32).collect();
    let rows: Vec<Vec<u32>> = (0..90).map(row).collect();
    let together = embed(&engine, tokens(&rows)).await.vectors;
    for (row, vector) in rows.iter().zip(&together).step_by(7) {
        let alone = embed(&engine, tokens(std::slice::from_ref(row))).await.vectors;
        check_close(std::slice::from_ref(vector), &alone, "alone");
    }
}

#[tokio::test]
async fn decoder_saved_alone_gives_the_same_vectors() {
    for model in ["qwen3/dense", "llama/dense-untied"] {
        let engine = start();
        engine.load("whole", &tiny_model(model)).await.expect("loads");
        let rows = vec![vec![5, 6, 7, 8], vec![1]];
        let whole = embed(&engine, tokens(&rows)).await.vectors;

        let folder = with_pooling(model, "lasttoken", true);
        cairn_tests::save_decoder_alone(folder.path());
        engine.load("alone", folder.path()).await.expect("loads");
        let alone = embed(&engine, tokens(&rows)).await.vectors;
        check_close(&alone, &whole, model);
        cairn_engine::check_model(folder.path()).expect("is a model");
    }
}

#[tokio::test]
async fn model_without_output_layer_writes_no_text() {
    let engine = start();
    let folder = with_pooling("llama/dense-untied", "lasttoken", true);
    cairn_tests::save_decoder_alone(folder.path());
    engine.load("alone", folder.path()).await.expect("loads");
    let error = finish(&mut engine.generate(request(&[1, 2], 4))).await.map(|_| ());
    let message = error.expect_err("no text").message;
    assert!(message.contains("has no output layer"), "{message}");
    // Without files that say it makes embeddings, a missing tensor is damage.
    fs::remove_file(folder.path().join("modules.json")).expect("removed");
    let error = start().load("damaged", folder.path()).await.expect_err("is damaged");
    assert!(error.to_string().contains("lack the tensor 'lm_head.weight'"), "{error}");
}

#[tokio::test]
async fn texts_get_the_tokens_that_the_model_expects() {
    let engine = start();
    let folder = with_pooling("llama/tiny-chat", "lasttoken", true);
    let tokenizer = folder.path().join("tokenizer.json");
    let mut json: Value =
        serde_json::from_slice(&fs::read(&tokenizer).expect("a file")).expect("JSON");
    let template = json!({
        "type": "TemplateProcessing",
        "single": [
            { "Sequence": { "id": "A", "type_id": 0 } },
            { "SpecialToken": { "id": "<|endoftext|>", "type_id": 0 } },
        ],
        "pair": [],
        "special_tokens": {
            "<|endoftext|>": { "id": "<|endoftext|>", "ids": [END_OF_TEXT], "tokens": ["<|endoftext|>"] },
        },
    });
    json["post_processor"] = template;
    write(folder.path(), "tokenizer.json", &json);
    engine.load("ends", folder.path()).await.expect("loads");
    let found = embed(&engine, texts(&["ab", "c"])).await;
    let same = vec![vec![97, 98, END_OF_TEXT], vec![99, END_OF_TEXT]];
    assert_eq!(found, embed(&engine, tokens(&same)).await);
    assert_eq!(found.num_tokens, 5);

    let folder = with_pooling("llama/tiny-chat", "lasttoken", true);
    let path = folder.path().join("tokenizer_config.json");
    let mut json: Value = serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON");
    json["add_eos_token"] = true.into();
    write(folder.path(), "tokenizer_config.json", &json);
    let prompts = json!({ "prompts": { "q": "x" }, "default_prompt_name": "q" });
    write(folder.path(), "config_sentence_transformers.json", &prompts);
    engine.load("prompted", folder.path()).await.expect("loads");
    let found = embed(&engine, texts(&["a"])).await;
    assert_eq!(found, embed(&engine, tokens(&[vec![120, 97, IM_END]])).await);
}

#[tokio::test]
async fn dimensions_cut_and_normalize_again() {
    let engine = start();
    engine.load("model", &tiny_model("qwen3/dense")).await.expect("loads");
    let rows = [vec![1, 2, 3]];
    let whole = embed(&engine, tokens(&rows)).await.vectors.remove(0);
    let cut = EmbedRequest { dimensions: Some(7), ..tokens(&rows) };
    let cut = embed(&engine, cut).await.vectors;
    check_close(&cut, &[normalized(&whole[..7])], "cut");
    for dimensions in [0, whole.len() + 1] {
        let request = EmbedRequest { dimensions: Some(dimensions), ..tokens(&rows) };
        let error = engine.embed(request).await.expect_err("is refused");
        assert_eq!((error.parameter(), error.is_bad_request()), (Some("dimensions"), true));
        assert!(error.to_string().contains(&format!("from 1 to {}", whole.len())), "{error}");
    }
}

#[tokio::test]
async fn refuses_inputs_by_their_number() {
    let engine = start();
    let folder = with_pooling("qwen3/dense", "lasttoken", true);
    write(folder.path(), "sentence_bert_config.json", &json!({ "max_seq_length": 6 }));
    engine.load("model", folder.path()).await.expect("loads");
    let problem = async |request| match engine.embed(request).await.expect_err("is refused") {
        EngineError::Input { index, problem } => (index, problem),
        other => panic!("{other}"),
    };
    let too_long = InputProblem::TooLong { num_tokens: 7, max_tokens: 6 };
    assert_eq!(problem(texts(&["a", "b", "1234567"])).await, (2, too_long));
    assert_eq!(problem(texts(&["a", ""])).await, (1, InputProblem::Empty));
    assert_eq!(problem(tokens(&[vec![]])).await, (0, InputProblem::Empty));
    let vocab_size = engine.load("model", folder.path()).await.expect("loads").vocab_size;
    let token = vocab_size as u32;
    let unknown = InputProblem::UnknownToken { token, vocab_size };
    assert_eq!(problem(tokens(&[vec![1], vec![1, token]])).await, (1, unknown));
    assert_eq!(embed(&engine, tokens(&[])).await.vectors.len(), 0);
    let absent = EmbedRequest { model: Some("absent".to_owned()), ..texts(&["a"]) };
    assert!(matches!(engine.embed(absent).await, Err(EngineError::NotLoaded { .. })));
}

#[tokio::test]
async fn refuses_models_that_make_vectors_in_another_way() {
    let engine = start();
    let folder = with_pooling("qwen3/dense", "max_tokens", true);
    engine.load("max", folder.path()).await.expect("writes text all the same");
    let error = engine.embed(texts(&["a"])).await.expect_err("is refused");
    assert!(error.is_bad_request() && error.to_string().contains("max_tokens"), "{error}");

    write(folder.path(), "config.json", &json!({ "model_type": "bert", "hidden_size": 8 }));
    let error = engine.load("bert", folder.path()).await.expect_err("is refused");
    assert!(error.to_string().contains("bert is an encoder"), "{error}");
}

#[tokio::test]
async fn answers_continue_while_many_texts_are_read() {
    let engine = start();
    engine.load("model", &tiny_model("llama/tiny-chat")).await.expect("loads");
    let rows: Vec<Vec<u32>> = (0..2000).map(|index| vec![97 + index % 20; 200]).collect();
    let embedding = tokio::spawn({
        let engine = engine.clone();
        async move { engine.embed(tokens(&rows)).await }
    });
    let prompt = PromptInput::Text("Hello".to_owned());
    let request = GenerateRequest { max_tokens: 8, ..GenerateRequest::new(prompt) };
    finish(&mut engine.generate(request)).await.expect("an answer");
    assert!(!embedding.is_finished(), "the answer came first");
    // Dropped, it ends after its slice, and the next request is served.
    embedding.abort();
    let _ = embedding.await;
    let next = tokio::time::timeout(Duration::from_secs(60), embed(&engine, texts(&["a"])));
    assert_eq!(next.await.expect("is served").vectors.len(), 1);
}
