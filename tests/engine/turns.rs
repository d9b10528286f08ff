//! Who waits for whom: no command's answer waits for another conversation's.

use std::time::Duration;

use cairn_engine::{
    CachePromptRequest, Engine, EngineOptions, ExportRequest, GenerateEvent, GenerateRequest,
    Generation, Import, KvCacheOptions, KvQuantization, PromptFileLayout, PromptInput, PromptKind,
    Speculation,
};

use crate::client::{finish, request};
use crate::scripted::Scripted;
use crate::test_engine::{CacheRows, ON_DISK, TestEngine, fresh_folder, owner};

/// A bound for what should take milliseconds; only a hang gets near it.
const SOON: Duration = Duration::from_secs(60);

const ENDLESSLY: usize = 5_000_000;

async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, answer).await.expect("waits for nobody")
}

/// Starts an answer that never ends, and waits for its first token.
async fn endless(engine: &Engine, request: GenerateRequest) -> Generation {
    let mut generation = engine.generate(GenerateRequest { max_tokens: ENDLESSLY, ..request });
    while !matches!(soon(generation.recv()).await.expect("an event"), GenerateEvent::Delta { .. }) {
    }
    generation
}

/// The kinds of sequences: in a batch, with quantized keys and values (from a point that the script
/// never reaches, because it cannot read them), and with a draft model.
fn kinds(prompt: &[u32]) -> [GenerateRequest; 3] {
    let quantization = Some(KvQuantization { bits: 8, group_size: 32, start: ENDLESSLY });
    let kv_cache = KvCacheOptions { quantization, ..KvCacheOptions::default() };
    [
        request(prompt, 20),
        GenerateRequest { kv_cache, ..request(prompt, 20) },
        GenerateRequest {
            speculation: Speculation::Draft { num_tokens: 2 },
            ..request(prompt, 20)
        },
    ]
}

#[tokio::test]
async fn sequences_of_every_kind_take_turns() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("endless", model.folder()).await.expect("loads");
    engine.load_draft("draft", model.folder()).await.expect("loads");
    let mut running = Vec::new();
    for running_kind in kinds(&[1, 2, 3]) {
        running.push(endless(&engine, running_kind).await);
        for asked in kinds(&[9, 8]) {
            let answer = soon(finish(&mut engine.generate(asked))).await.expect("an answer");
            assert_eq!(answer.finished.token_ids, model.answer(&[9, 8], 20));
        }
    }
    for mut generation in running {
        generation.stop();
        loop {
            match soon(generation.recv()).await.expect("an event") {
                GenerateEvent::Delta { .. } => {}
                GenerateEvent::Finished(finished) => {
                    let length = finished.token_ids.len();
                    assert_eq!(finished.token_ids, model.answer(&[1, 2, 3], length));
                    break;
                }
                event => panic!("{event:?}"),
            }
        }
    }
}

#[tokio::test]
async fn no_job_waits_for_a_sequence_that_never_ends() {
    let model = Scripted::endless();
    let folder = fresh_folder();
    let test =
        TestEngine::start(model.folder(), folder.path(), ON_DISK, CacheRows::default()).await;
    let engine = &test.engine;
    engine.load_draft("draft", model.folder()).await.expect("loads");
    let prompt: Vec<u32> = (0..600).map(|index| index % 256).collect();
    let owned = GenerateRequest { owner: Some(owner("conversation/1")), ..request(&prompt, 3) };
    finish(&mut engine.generate(owned)).await.expect("an answer");
    engine.flush_cache().await;

    for (number, asked) in kinds(&[1, 2, 3]).into_iter().enumerate() {
        let running = endless(engine, asked).await;
        let exported = folder.path().join(format!("exported-{number}.safetensors"));
        let export = ExportRequest {
            owner: owner("conversation/1"),
            file: exported.clone(),
            layout: PromptFileLayout::V0_32,
            kind: PromptKind::Prompt,
            title: "A title".to_owned(),
            made_by: "a test".to_owned(),
            created_at_ms: 7,
        };
        let written = soon(engine.export_prompt(export)).await.expect("exports");
        let info = soon(engine.inspect_prompt_file(&exported)).await.expect("is read");
        assert_eq!(info.num_tokens, written.num_tokens);
        for check in [true, false] {
            let import = Import { owner: owner(&format!("named/{check}-{number}")), check };
            let imported =
                soon(engine.import_prompt_file(&exported, import)).await.expect("imports");
            assert_eq!(imported.token_ids, info.token_ids);
        }
        let cached = CachePromptRequest {
            prompt: PromptInput::Tokens(prompt.clone()),
            kv_cache: KvCacheOptions::default(),
            prefill_step_size: 128,
            file: folder.path().join(format!("prompt-{number}.safetensors")),
            layout: PromptFileLayout::V0_32,
            model_name: "endless".to_owned(),
        };
        let mut steps = Vec::new();
        let saved = soon(engine.cache_prompt(cached, |read, total| steps.push((read, total))));
        assert_eq!(saved.await.expect("is saved").num_tokens, 600);
        assert!(steps.len() > 4 && steps.iter().all(|&(_, total)| total == 600), "{steps:?}");
        let score = soon(engine.score(PromptInput::Tokens(prompt.clone()), 1)).await;
        assert_eq!(score.expect("a score").logprobs.len(), 600);
        assert_eq!(soon(engine.tokenize("ab")).await.expect("tokens"), [97, 98]);
        assert_eq!(soon(engine.decode(None, vec![vec![97, 98]])).await.expect("texts"), ["ab"]);
        engine.set_cache_budgets(1 << 30, 1 << 20);
        soon(engine.flush_cache()).await;
        soon(engine.forget_conversations()).await;
        soon(engine.load("another", Scripted::new(&[65]).folder())).await.expect("loads");
        let mut other = engine.generate(request(&[1], 2));
        let answer = soon(finish(&mut other)).await.expect("an answer");
        assert_eq!(answer.finished.token_ids, [65, 65]);
        drop(running);
        soon(engine.load("model", model.folder())).await.expect("loads");
        soon(engine.load_draft("draft", model.folder())).await.expect("loads");
    }
}

#[tokio::test]
async fn a_model_in_use_is_unloaded_after_its_answers_and_holds_up_nobody() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("endless", model.folder()).await.expect("loads");
    let running = endless(&engine, request(&[1, 2, 3], 1)).await;
    assert_eq!(soon(engine.unload()).await.expect("is noted"), ["endless"]);
    for _ in 0..3 {
        let answer = soon(finish(&mut engine.generate(request(&[9, 8], 20)))).await;
        assert_eq!(answer.expect("an answer").finished.token_ids, model.answer(&[9, 8], 20));
    }
    let mut status = engine.status();
    drop(running);
    let is_empty = |status: &cairn_engine::EngineStatus| status.models.is_empty();
    soon(status.wait_for(is_empty)).await.expect("unloads");
    let failure = finish(&mut engine.generate(request(&[1], 1))).await.err().expect("no model");
    assert_eq!(failure.message, "no model is loaded: choose one first");
}

#[tokio::test]
async fn a_model_that_is_loaded_again_is_not_unloaded() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("endless", model.folder()).await.expect("loads");
    let running = endless(&engine, request(&[1, 2, 3], 1)).await;
    assert_eq!(soon(engine.unload()).await.expect("is noted"), ["endless"]);
    soon(engine.load("endless", model.folder())).await.expect("is loaded");
    drop(running);
    for _ in 0..3 {
        let answer = soon(finish(&mut engine.generate(request(&[9, 8], 20)))).await;
        assert_eq!(answer.expect("an answer").finished.token_ids, model.answer(&[9, 8], 20));
    }
    assert_eq!(soon(engine.unload()).await.expect("unloads"), [""; 0]);
}

#[tokio::test]
async fn a_score_is_cancelled_with_its_future() {
    let model = Scripted::endless();
    let (engine, _) = Engine::start(EngineOptions::default());
    engine.load("endless", model.folder()).await.expect("loads");
    // So many tokens that their score would take hours.
    let endless = PromptInput::Tokens(vec![7; 9_000_000]);
    let mut score = Box::pin(engine.score(endless, 1));
    let mut asked = engine.generate(request(&[9, 8], 20));
    tokio::select! {
        biased;
        _ = &mut score => panic!("it cannot be done yet"),
        answer = soon(finish(&mut asked)) => drop(answer.expect("an answer")),
    }
    drop(score);
    let mut asked = engine.generate(request(&[9, 8], 20));
    soon(finish(&mut asked)).await.expect("an answer");
    // Only an engine without work is ready.
    engine.flush_cache().await;
    let mut status = engine.status();
    let is_ready = |state: &cairn_engine::EngineStatus| {
        matches!(state.state, cairn_engine::EngineState::Ready { .. })
    };
    soon(status.wait_for(is_ready)).await.expect("becomes idle");
}
