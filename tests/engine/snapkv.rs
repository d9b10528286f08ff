//! Conversations of which SnapKV drops tokens: they keep their place, in memory and on disk, and are
//! never taken for whole ones.

use cairn_chat::{Message, Role};
use cairn_engine::{
    GenerateRequest, KvCacheOptions, KvQuantization, PromptInput, PromptKind, PromptPrefix, SnapKv,
    Speculation,
};
use cairn_prompt_cache::{KvFormat, Provenance};

use crate::client::{Answer, finish, request};
use crate::prompt_cache::{App, ROOMY, Rows};

const SNAPKV: SnapKv = SnapKv { keep_tokens: 64, min_context: 0 };

/// Longer than a chunk.
const LENGTH: u32 = 300;

const NUM_SAMPLED: usize = 12;

const MODELS: [&str; 4] =
    ["llama/tiny-chat", "gemma3_text/long-prompt", "qwen3_next/dense", "falcon_h1/dense"];

fn tokens(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|index| (index * index + 7 * index * seed + seed) % 70 + 3).collect()
}

fn compressing(prompt: &[u32]) -> GenerateRequest {
    let kv_cache = KvCacheOptions { snapkv: Some(SNAPKV), ..KvCacheOptions::default() };
    GenerateRequest { kv_cache, ..plain(prompt) }
}

fn plain(prompt: &[u32]) -> GenerateRequest {
    GenerateRequest { ignore_eos: true, prefill_step_size: 64, ..request(prompt, NUM_SAMPLED) }
}

fn cold(request: GenerateRequest) -> GenerateRequest {
    GenerateRequest { use_prompt_cache: false, ..request }
}

fn num_cached(answer: &Answer) -> usize {
    answer.finished.stats.num_cached_tokens
}

fn num_kept(answer: &Answer) -> Option<usize> {
    answer.finished.stats.num_kept_tokens
}

/// What comes next in the conversation, behind all of the answer.
fn next_turn(prompt: &[u32], answer: &Answer) -> Vec<u32> {
    [prompt, &answer.tokens, &tokens(5, 40)].concat()
}

#[tokio::test]
async fn the_next_turn_continues_what_is_left() {
    for model in MODELS {
        let model_folder = cairn_tests::tiny_model(model);
        let prompt = tokens(1, LENGTH);
        let mut second_answers = Vec::new();
        for restarts in [false, true] {
            let folder = tempfile::tempdir().expect("a folder");
            let mut app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
            let first = app.answer(compressing(&prompt)).await;
            let expected = (0, Some(SNAPKV.keep_tokens));
            assert_eq!((num_cached(&first), num_kept(&first)), expected, "{model}");
            app.settle().await;
            if restarts {
                app = App::start(&model_folder, folder.path(), ROOMY, app.close().await).await;
            }
            let next = next_turn(&prompt, &first);
            // The last token of the answer was not read.
            let num_read = prompt.len() + NUM_SAMPLED - 1;
            let second = app.answer(compressing(&next)).await;
            let case = format!("{model}, restarts: {restarts}");
            assert_eq!((num_cached(&second), num_kept(&second)), (num_read, None), "{case}");
            app.settle().await;
            second_answers.push(second.tokens);

            let whole = app.answer(plain(&next)).await;
            assert_eq!(num_cached(&whole), 0, "{case}: what is left is not the whole");
            app.settle().await;
            app.close().await;
        }
        assert_eq!(second_answers[0], second_answers[1], "{model}: as from memory");
    }
}

/// What a question has chosen is stored behind all of its words: an edited one, and another about the same
/// document, choose for themselves.
#[tokio::test]
async fn a_short_question_does_not_choose_for_another() {
    for model in MODELS {
        let model_folder = cairn_tests::tiny_model(model);
        let folder = tempfile::tempdir().expect("a folder");
        let mut app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
        let document = tokens(1, LENGTH);
        let [one, other] = [2, 3].map(|seed| [&document[..], &tokens(seed, 6)].concat());
        app.answer(compressing(&one)).await;
        app.settle().await;
        let mut app = App::start(&model_folder, folder.path(), ROOMY, app.close().await).await;
        let found = app.answer(compressing(&other)).await;
        assert_eq!(
            (num_cached(&found), num_kept(&found)),
            (0, Some(SNAPKV.keep_tokens)),
            "{model}"
        );
        app.settle().await;
        let expected = app.answer(cold(compressing(&other))).await;
        assert_eq!(found.tokens, expected.tokens, "{model}");
        app.close().await;
    }
}

/// All tokens but the last have chosen, and what they chose is stored there: an answer that is asked for
/// again begins at once, and a template may replace the last token when an answer follows.
#[tokio::test]
async fn a_prompt_continues_from_where_it_has_chosen() {
    for model in MODELS {
        let model_folder = cairn_tests::tiny_model(model);
        let folder = tempfile::tempdir().expect("a folder");
        let prompt = tokens(1, LENGTH);
        let mut app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
        let first = app.answer(compressing(&prompt)).await;
        app.settle().await;
        let mut app = App::start(&model_folder, folder.path(), ROOMY, app.close().await).await;
        let again = app.answer(compressing(&prompt)).await;
        assert_eq!(num_cached(&again), prompt.len() - 1, "{model}");
        assert_eq!(again.tokens, first.tokens, "{model}");
        app.settle().await;
        let rewritten = [&prompt[..prompt.len() - 1], &tokens(6, 50)].concat();
        let second = app.answer(compressing(&rewritten)).await;
        assert_eq!(num_cached(&second), prompt.len() - 1, "{model}");
        app.settle().await;
        app.close().await;
    }
}

#[tokio::test]
async fn a_saved_whole_context_is_continued_and_then_compressed() {
    for model in ["llama/tiny-chat", "qwen3_next/dense"] {
        let model_folder = cairn_tests::tiny_model(model);
        let folder = tempfile::tempdir().expect("a folder");
        let prompt = tokens(1, LENGTH);
        let mut app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
        let first = app.answer(plain(&prompt)).await;
        app.settle().await;
        let next = next_turn(&prompt, &first);
        let second = app.answer(compressing(&next)).await;
        assert_eq!(num_kept(&second), Some(SNAPKV.keep_tokens), "{model}");
        assert!(num_cached(&second) >= prompt.len(), "{model}: {}", num_cached(&second));
        let expected = app.answer(cold(compressing(&next))).await;
        assert_eq!(second.tokens, expected.tokens, "{model}");
        app.settle().await;
        app.close().await;
    }
}

/// An answer that is asked for again: all of its prompt is saved, and nothing would be left to choose by.
#[tokio::test]
async fn queries_to_choose_by_are_computed_again() {
    let model_folder = cairn_tests::tiny_model("llama/tiny-chat");
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = tokens(1, LENGTH);
    let mut app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
    app.answer(plain(&prompt)).await;
    app.settle().await;
    let again = app.answer(compressing(&prompt)).await;
    let found = (num_cached(&again), num_kept(&again));
    assert_eq!(found, (prompt.len() - 1 - 32, Some(SNAPKV.keep_tokens)));
    let expected = app.answer(cold(compressing(&prompt))).await;
    assert_eq!(again.tokens, expected.tokens);
    app.settle().await;
    app.close().await;
}

#[tokio::test]
async fn answers_that_look_tokens_up_are_the_same() {
    let model_folder = cairn_tests::tiny_model("llama/tiny-chat");
    let folder = tempfile::tempdir().expect("a folder");
    let app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
    let part = tokens(2, 31);
    let prompt: Vec<u32> = part.iter().cycle().take(LENGTH as usize).copied().collect();
    // So many that the answer repeats itself, and something that is looked up is right.
    let asked = || GenerateRequest { max_tokens: 100, ..cold(compressing(&prompt)) };
    let expected = app.answer(asked()).await;
    for speculation in [Speculation::Auto, Speculation::Lookup { num_tokens: 4 }] {
        let found = app.answer(GenerateRequest { speculation, ..asked() }).await;
        assert_eq!(found.tokens, expected.tokens, "{speculation:?}");
        assert_eq!(num_kept(&found), Some(SNAPKV.keep_tokens), "{speculation:?}");
        let is_lookup = matches!(speculation, Speculation::Lookup { .. });
        assert!(!is_lookup || found.finished.acceptance.num_accepted > 0, "{speculation:?}");
    }
    app.close().await;
}

/// A head has read what the model drops; it proposes by that, and the model checks with what it kept.
#[tokio::test]
async fn answers_that_a_head_proposes_for_are_the_same() {
    let model_folder = cairn_tests::tiny_model("qwen3_next/head");
    let folder = tempfile::tempdir().expect("a folder");
    let app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
    let asked = || GenerateRequest { max_tokens: 60, ..cold(compressing(&tokens(2, LENGTH))) };
    let expected = app.answer(asked()).await;
    for speculation in [Speculation::Auto, Speculation::Mtp { num_tokens: 2 }] {
        let found = app.answer(GenerateRequest { speculation, ..asked() }).await;
        assert_eq!(found.tokens, expected.tokens, "{speculation:?}");
        assert_eq!(num_kept(&found), Some(SNAPKV.keep_tokens), "{speculation:?}");
        assert!(found.finished.acceptance.num_drafted > 0, "{speculation:?}");
    }
    app.close().await;
}

#[tokio::test]
async fn what_needs_the_whole_context_is_refused_in_a_sentence() {
    let model_folder = cairn_tests::tiny_model("llama/tiny-chat");
    let folder = tempfile::tempdir().expect("a folder");
    let app = App::start(&model_folder, folder.path(), ROOMY, Rows::new()).await;
    let prompt = tokens(1, LENGTH);
    let mut quantized = compressing(&prompt);
    quantized.kv_cache.quantization = Some(KvQuantization { bits: 8, group_size: 32, start: 0 });
    let draft = Speculation::Draft { num_tokens: 3 };
    let with_draft = GenerateRequest { speculation: draft, ..compressing(&prompt) };
    let prefix = PromptPrefix {
        token_ids: None,
        num_tokens: 9,
        kind: PromptKind::Prompt,
        kv_format: KvFormat::Plain,
        provenance: Provenance::OpaqueImport("0".into()),
    };
    let question = Message { role: Role::User, content: "Why?".to_owned(), token_ids: None };
    let after_opaque = PromptInput::After { prefix, messages: vec![question] };
    let after_opaque = GenerateRequest { prompt: after_opaque, ..compressing(&prompt) };
    for (request, expected) in
        [(quantized, "SnapKV"), (with_draft, "draft model"), (after_opaque, "name its tokens")]
    {
        let generation = finish(&mut app.engine.generate(request)).await;
        let message = generation.err().expect("a refusal").message;
        assert!(message.contains(expected) && message.contains("leave"), "{message}");
    }
    app.close().await;
}
