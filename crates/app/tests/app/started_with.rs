//! Options that the program was started with count before the settings.

use std::sync::Arc;

use cairn_app::completion::{GenerateRequest, PromptInput};
use cairn_app::wire::{Command, FailureCode, MessageStatus};
use cairn_app::{AnswerDefaults, App, ForcedKvQuantization, Options, SavedContextOptions};
use cairn_engine::KvQuantization;
use serde_json::{Map, json};
use tempfile::TempDir;

use crate::kit::{
    MODEL, answered, check_failure, chunk_files, home_with_model, open, open_with_one_turn,
    options, overview, set_for_all,
};
use crate::model_settings::{add_model, wide_heads};

async fn open_with(home: &TempDir, change: impl FnOnce(&mut Options)) -> Arc<App> {
    let mut options = options(home.path());
    change(&mut options);
    App::open(options).await.unwrap()
}

async fn request_to(app: &Arc<App>, model: &str) -> GenerateRequest {
    app.completion(Some(model), PromptInput::Text("Hello".to_owned())).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_get_answers_with_its_defaults() {
    let home = home_with_model();
    let template_variables = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let answer_defaults = AnswerDefaults {
        temperature: Some(0.25),
        top_k: Some(7),
        min_p: Some(0.125),
        max_tokens: Some(9),
        prefill_step_size: Some(64),
        template_variables: template_variables.clone(),
        ..AnswerDefaults::default()
    };
    let app = open_with(&home, |options| options.answer_defaults = answer_defaults).await;
    for (key, value) in
        [("temperature", json!(0.5)), ("top_p", json!(0.5)), ("max_tokens", json!(5))]
    {
        set_for_all(&app, key, value).await;
    }
    let request = request_to(&app, MODEL).await;
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_p), (0.25, 0.5));
    assert_eq!((sampling.top_k, sampling.min_p), (7, 0.125));
    assert_eq!((request.max_tokens, request.prefill_step_size), (9, 64));
    assert_eq!(request.template_variables, template_variables);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quantizes_keys_where_heads_allow() {
    let home = home_with_model();
    add_model(&home, "wide", wide_heads);
    for (group_size, expected) in [(None, 32), (Some(64), 64)] {
        let forced = ForcedKvQuantization { bits: 6, group_size };
        let app = open_with(&home, |options| options.kv_quantization = Some(forced)).await;
        let expected = KvQuantization { bits: 6, group_size: expected, start: 0 };
        assert_eq!(request_to(&app, "wide").await.kv_cache.quantization, Some(expected));
        assert_eq!(request_to(&app, MODEL).await.kv_cache.quantization, None);
        app.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_context_stays_while_it_is_off() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    app.close().await;
    drop(app);
    let files = chunk_files(&home);
    assert!(!files.is_empty());

    let off = SavedContextOptions { is_off: true, ..SavedContextOptions::default() };
    let app = open_with(&home, |options| options.saved_context = off).await;
    check_failure(&app, Command::GetCache, FailureCode::Storage, "without saved context").await;
    assert_eq!(answered(&app, &id, "Two").await.status, MessageStatus::Complete);
    app.close().await;
    drop(app);
    assert_eq!(chunk_files(&home), files);

    let app = open(&home).await;
    assert!(answered(&app, &id, "Three").await.stats.unwrap().cached_tokens > 0);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_saved_context_outlast_settings() {
    let home = home_with_model();
    let budgets = SavedContextOptions {
        disk_budget_bytes: Some(3 << 20),
        memory_budget_bytes: Some(2 << 20),
        ..SavedContextOptions::default()
    };
    let app = open_with(&home, |options| options.saved_context = budgets).await;
    let check = async || {
        let overview = overview(&app).await;
        assert_eq!((overview.disk_budget_bytes, overview.memory_budget_bytes), (3 << 20, 2 << 20));
    };
    check().await;
    set_for_all(&app, "cache_budget_bytes", 1_u64 << 30).await;
    // The engine's thread changes budgets before it answers what is asked later.
    assert_eq!(request_to(&app, MODEL).await.model.as_deref(), Some(MODEL));
    check().await;
    app.close().await;
}
