//! A model whose weights are no numbers answers nothing, whatever it is asked for.

use std::path::Path;

use cairn_engine::{Engine, EngineOptions, GenerateRequest, PromptInput, Speculation};

use crate::client::{finish, request};

/// Makes every number in the weights NaN: all bits set, in each type of floating-point numbers.
fn damage(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("the weights");
    let (length, _) = bytes.split_first_chunk().expect("a length");
    let header = 8 + u64::from_le_bytes(*length) as usize;
    bytes[header..].fill(0xff);
    std::fs::write(path, bytes).expect("written");
}

#[tokio::test]
async fn names_model_whose_weights_are_nan() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("tiny-nan");
    cairn_tests::copy_tiny_model("llama/tiny-chat", &folder).expect("copied");
    damage(&folder);
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("nan", &folder).await.expect("loads");
    let expected = "the model failed: tiny-nan computes no numbers (NaN): its weights are damaged; \
        download or import the model again";
    let asked = request(&[1, 2, 3], 5);
    let mut sampled = asked.clone();
    sampled.sampling.temperature = 0.8;
    let alone = GenerateRequest { speculation: Speculation::Auto, ..asked.clone() };
    for request in [asked.clone(), sampled, alone, asked.clone()] {
        let failure = finish(&mut engine.generate(request)).await.err().expect("fails");
        assert_eq!((failure.message.as_str(), failure.num_tokens), (expected, 0));
    }
    let together = [asked.clone(), asked.clone()].map(|request| engine.generate(request));
    for mut generation in together {
        let failure = finish(&mut generation).await.err().expect("fails");
        assert_eq!((failure.message.as_str(), failure.num_tokens), (expected, 0));
    }
    let score = engine.score(PromptInput::Tokens(vec![1, 2, 3]), 1).await.expect_err("fails");
    assert_eq!(score.to_string(), expected);
    let read = GenerateRequest { answer_so_far: vec![4, 5], ..asked };
    let read = engine.probabilities(read, |_, _| ()).await.expect_err("fails");
    assert_eq!(read.to_string(), expected);
}
