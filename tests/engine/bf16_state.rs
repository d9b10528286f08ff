//! A model whose recurrent states are held in bf16 saves them so, in a namespace of their own.

use std::path::Path;

use cairn_engine::{GenerateRequest, ModelOptions};

use crate::client::Answer;
use crate::test_engine::{
    CacheRows, ON_DISK, Talk, TestEngine, ask, chat_model, fresh_folder, owner,
};

const BF16: ModelOptions = ModelOptions { bf16_state: true, traces_steps: false };

async fn start(model: &Path, folder: &Path, rows: CacheRows, options: ModelOptions) -> TestEngine {
    let engine = TestEngine::start(model, folder, ON_DISK, rows).await;
    engine.engine.load_with("model", model, options).await.expect("loads");
    engine
}

fn num_cached(answer: &Answer) -> usize {
    answer.finished.stats.num_cached_tokens
}

#[tokio::test]
async fn saved_states_in_bf16_continue_only_as_such() {
    let (model, folder) = (chat_model("qwen3_next/dense"), fresh_folder());
    let (model, folder) = (model.path(), folder.path());
    let owner = owner("conversation/1");
    let mut talk = Talk::new(&"AID ME, MIND ME, LEAD ME HOME. ".repeat(10));
    let engine = start(model, folder, Default::default(), BF16).await;
    let first = engine.answer(ask(talk.asking("LEAD ME HOME"), &owner)).await;
    talk.add("LEAD ME HOME", &first);
    let rows = engine.close().await;

    // After a restart it is what is computed from the start.
    let engine = start(model, folder, rows, BF16).await;
    let asked = || ask(talk.asking("A MILE NO MAN CAN FIND"), &owner);
    let restored = engine.answer(asked()).await;
    assert!(num_cached(&restored) > 300, "{}", num_cached(&restored));
    let computed = GenerateRequest { use_prompt_cache: false, owner: None, ..asked() };
    let computed = engine.answer(computed).await;
    assert_eq!(num_cached(&computed), 0);
    assert_eq!(restored.finished.token_ids, computed.finished.token_ids);
    // Loaded in the other way, nothing of it is used; loaded as before, all of it is.
    let exact = ModelOptions::default();
    engine.engine.load_with("model", model, exact).await.expect("loads");
    let other = GenerateRequest { owner: None, ..asked() };
    assert_eq!(num_cached(&engine.answer(other).await), 0);
    engine.engine.load_with("model", model, BF16).await.expect("loads");
    let again = GenerateRequest { owner: None, ..asked() };
    assert!(num_cached(&engine.answer(again).await) > 300);
    engine.close().await;
}
