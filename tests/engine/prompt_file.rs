//! Prompt-cache files: an answer that continues one equals the answer to the whole prompt.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_engine::{
    CachePromptRequest, Engine, EngineOptions, GenerateRequest, KvCacheOptions, KvQuantization,
    PromptInput, Speculation,
};
use cairn_lm::cache::{PromptFileLayout, load_prompt_cache, save_prompt_cache};

use crate::client::{Answer, Failure, finish, request};
use crate::scripted::Scripted;

async fn engine(folder: &Path) -> Engine {
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("model", folder).await.expect("loads");
    engine
}

fn to_file(prompt: &[u32], kv_cache: KvCacheOptions, file: &Path) -> CachePromptRequest {
    CachePromptRequest {
        prompt: PromptInput::Tokens(prompt.to_vec()),
        kv_cache,
        prefill_step_size: 4,
        file: file.to_owned(),
        layout: PromptFileLayout::default(),
        model_name: "model".to_owned(),
    }
}

async fn continued(
    engine: &Engine,
    file: &Path,
    request: GenerateRequest,
) -> Result<Answer, Failure> {
    finish(
        &mut engine
            .generate(GenerateRequest { prompt_cache_file: Some(file.to_owned()), ..request }),
    )
    .await
}

/// `is_exact`: whether the answer must equal the one to the whole prompt; keys that are dropped or
/// quantized at other positions change the numbers.
async fn check(folder: &Path, kv_cache: KvCacheOptions, is_exact: bool) {
    let engine = engine(folder).await;
    let temp = tempfile::tempdir().expect("folder");
    let file = temp.path().join("prompt.safetensors");
    let prompt: Vec<u32> = (60..90).collect();
    for num_in_file in [1, 4, 29] {
        let (cached, rest) = prompt.split_at(num_in_file);
        let mut steps = Vec::new();
        let written = engine
            .cache_prompt(to_file(cached, kv_cache, &file), |processed, total| {
                steps.push((processed, total))
            })
            .await;
        assert_eq!(written.expect("written").num_tokens, num_in_file);
        assert!(steps.iter().all(|&(_, total)| total == num_in_file));
        let bytes = std::fs::read(&file).expect("the file");

        let request = |prompt: &[u32]| GenerateRequest {
            kv_cache,
            ignore_eos: true,
            use_prompt_cache: false,
            ..request(prompt, 12)
        };
        let whole = finish(&mut engine.generate(request(&prompt))).await.expect("an answer");
        for _ in 0..2 {
            let found = continued(&engine, &file, request(rest)).await.expect("an answer");
            assert_eq!(found.finished.token_ids.len(), 12);
            if is_exact {
                assert_eq!(
                    found.finished.token_ids, whole.finished.token_ids,
                    "{num_in_file} tokens in the file, {kv_cache:?}"
                );
            }
            let stats = &found.finished.stats;
            assert_eq!(
                (stats.num_cached_tokens, stats.num_prompt_tokens),
                (num_in_file, prompt.len())
            );
            assert_eq!(found.prefill.first(), Some(&(num_in_file, prompt.len(), num_in_file)));
            assert_eq!(found.prefill.last(), Some(&(prompt.len(), prompt.len(), num_in_file)));
            assert_eq!(found.finished.new_prompt_ids, rest);
            assert!(std::fs::read(&file).expect("the file") == bytes, "the file is only read");
        }
    }
}

#[tokio::test]
async fn an_answer_after_a_file_equals_the_one_to_the_whole_prompt() {
    check(Scripted::endless().folder(), KvCacheOptions::default(), true).await;
    check(&cairn_tests::tiny_model("llama/tiny-chat"), KvCacheOptions::default(), true).await;
    let moe = tempfile::tempdir().expect("folder");
    cairn_tests::copy_tiny_model("qwen3_moe/quant4", moe.path()).expect("copies");
    let quantized = |start| KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits: 8, group_size: 32, start }),
        snapkv: None,
    };
    check(moe.path(), KvCacheOptions::default(), true).await;
    check(moe.path(), quantized(0), false).await;
    check(moe.path(), quantized(1000), true).await;
    check(
        moe.path(),
        KvCacheOptions { max_size: Some(16), quantization: None, snapkv: None },
        false,
    )
    .await;
    check(
        moe.path(),
        KvCacheOptions { max_size: Some(100), quantization: None, snapkv: None },
        true,
    )
    .await;
}

#[tokio::test]
async fn a_file_that_does_not_fit_is_refused() {
    let model = Scripted::endless();
    let engine = engine(model.folder()).await;
    let temp = tempfile::tempdir().expect("folder");
    let file = temp.path().join("prompt.safetensors");
    engine
        .cache_prompt(to_file(&[1, 2, 3], KvCacheOptions::default(), &file), |_, _| {})
        .await
        .expect("written");

    engine.load_draft("draft", model.folder()).await.expect("loads");
    let drafted =
        GenerateRequest { speculation: Speculation::Draft { num_tokens: 2 }, ..request(&[4], 5) };
    let message = continued(&engine, &file, drafted).await.err().expect("is refused").message;
    assert!(message.starts_with("a draft model cannot continue a prompt-cache file"), "{message}");

    let message = continued(&engine, &temp.path().join("nowhere"), request(&[4], 5))
        .await
        .err()
        .expect("is refused")
        .message;
    assert!(message.contains("nowhere"), "{message}");

    engine.load("other", &cairn_tests::tiny_model("llama/tiny-chat")).await.expect("loads");
    let message =
        continued(&engine, &file, request(&[4], 5)).await.err().expect("is refused").message;
    assert!(message.contains("was made with another model (model; other is loaded): load that one, or make the file anew"), "{message}");
    assert_eq!(
        finish(&mut engine.generate(request(&[1], 3)))
            .await
            .expect("the engine goes on")
            .finished
            .token_ids
            .len(),
        3
    );
}

/// A file of `written`'s model without Cairn's metadata is refused by `reader`'s model with one
/// sentence.
async fn check_foreign(written: &str, reader: &str, expected: &str) {
    let (from, to) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
    cairn_tests::copy_tiny_model(written, from.path()).expect("copies");
    cairn_tests::copy_tiny_model(reader, to.path()).expect("copies");
    let temp = tempfile::tempdir().expect("folder");
    let (own, foreign) =
        (temp.path().join("own.safetensors"), temp.path().join("foreign.safetensors"));
    let writer = engine(from.path()).await;
    writer
        .cache_prompt(to_file(&[1, 2, 3], KvCacheOptions::default(), &own), |_, _| {})
        .await
        .expect("written");
    writer.shutdown().await;
    let (caches, _) = load_prompt_cache(&own).expect("reads");
    save_prompt_cache(&foreign, &caches, &BTreeMap::new(), PromptFileLayout::V0_32).expect("saves");
    let message = continued(&engine(to.path()).await, &foreign, request(&[4], 5))
        .await
        .err()
        .expect("is refused")
        .message;
    assert!(
        message.starts_with("cannot continue the prompt cache") && message.contains(expected),
        "{written} for {reader}: {message}"
    );
}

#[tokio::test]
async fn keys_and_values_of_another_model_are_refused_by_their_shape() {
    check_foreign(
        "llama/dense-tied",
        "qwen3_next/dense",
        "its layer 0 is a cache of keys and values",
    )
    .await;
    check_foreign(
        "gemma3_text/long-prompt",
        "llama/dense-tied",
        "are for 3 layers, but the model has 2",
    )
    .await;
    check_foreign(
        "llama/gqa",
        "llama/dense-tied",
        "but the model's is a cache of keys and values with",
    )
    .await;
}

#[tokio::test]
async fn an_unwritable_file_is_refused_before_the_prompt_is_computed() {
    let model = Scripted::endless();
    let engine = engine(model.folder()).await;
    let temp = tempfile::tempdir().expect("folder");
    let (link, behind) = (temp.path().join("link"), temp.path().join("behind"));
    std::fs::write(&behind, "older").expect("writes");
    std::os::unix::fs::symlink(&behind, &link).expect("links");
    engine
        .cache_prompt(to_file(&[1, 2, 3], KvCacheOptions::default(), &link), |_, _| {})
        .await
        .expect("written");
    assert!(link.is_symlink() && load_prompt_cache(&behind).is_ok());
    for (file, expected) in
        [(Path::new("/dev/null"), "not a regular file"), (temp.path(), "not a regular file")]
    {
        let written = engine
            .cache_prompt(to_file(&[1, 2, 3], KvCacheOptions::default(), file), |_, _| {
                panic!("nothing is read")
            })
            .await;
        let message = written.expect_err("is refused").to_string();
        assert!(message.starts_with("cannot write") && message.ends_with(expected), "{message}");
    }
}

#[tokio::test]
async fn groups_that_do_not_divide_the_heads_are_refused_at_the_start() {
    let model = Scripted::endless();
    let engine = engine(model.folder()).await;
    let kv_cache = KvCacheOptions {
        max_size: None,
        quantization: Some(KvQuantization { bits: 8, group_size: 128, start: 5000 }),
        snapkv: None,
    };
    let answer = finish(&mut engine.generate(GenerateRequest {
        kv_cache,
        use_prompt_cache: false,
        ..request(&[1], 3)
    }))
    .await;
    let message = answer.err().expect("is refused").message;
    assert!(
        message.contains("kv_group_size = 128, but it must divide the model's head size"),
        "{message}"
    );
}
