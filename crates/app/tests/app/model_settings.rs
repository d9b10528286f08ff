//! What is set for one model: each value reaches what the model does.

use std::path::Path;
use std::sync::Arc;

use cairn_app::completion::PromptInput;
use cairn_app::wire::{
    Command, Conversation, Event, FailureCode, FailureKind, LoadedModel, MemoryNeed, MessageStatus,
    Reply, SettingTarget, Status,
};
use cairn_app::{App, ForcedSpeculation, Options};
use cairn_engine::{SnapKv, Speculation};
use cairn_tiny_models::copy_tiny_model;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::{
    MODEL, answered, check_failure, conversation, home_with_model, messages, new_conversation,
    next, open, open_greedy, options, set_for_all, until,
};

/// Adds a copy of the tiny model, in which `change` may change a file.
pub fn add_model(home: &TempDir, name: &str, change: impl FnOnce(&Path)) {
    let folder = home.path().join("models").join(name);
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    change(&folder);
}

fn replace(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

async fn load(app: &Arc<App>, name: &str) {
    app.call(Command::LoadModel { name: name.to_owned() }).await.unwrap();
}

fn setting(model: &str, key: &str, value: Value) -> Command {
    let scope = SettingTarget::Model { name: model.to_owned() };
    Command::SetSetting { scope, key: key.to_owned(), value }
}

async fn set(app: &Arc<App>, model: &str, key: &str, value: Value) {
    app.call(setting(model, key, value)).await.unwrap();
}

async fn status(app: &Arc<App>) -> Status {
    match app.call(Command::GetStatus).await.unwrap() {
        Reply::Status { status } => status,
        other => panic!("{other:?}"),
    }
}

async fn memory(app: &Arc<App>, name: &str) -> MemoryNeed {
    match app.call(Command::GetModelMemory { name: name.to_owned() }).await.unwrap() {
        Reply::ModelMemory { memory, .. } => memory,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_has_settings_before_it_is_loaded() {
    let home = home_with_model();
    let app = open_greedy(&home, 6).await;
    set(&app, MODEL, "max_tokens", json!(3)).await;
    load(&app, MODEL).await;
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, "Hello").await.stats.unwrap().generation_tokens, 3);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_ends_at_the_context_length_of_its_model() {
    let home = home_with_model();
    let app = open_greedy(&home, 1000).await;
    load(&app, MODEL).await;
    set(&app, MODEL, "context_length", json!(256)).await;
    let id = new_conversation(&app).await;
    let stats = answered(&app, &id, "Hello").await.stats.unwrap();
    assert_eq!(stats.finish_reason, "context");
    assert_eq!(stats.prompt_tokens + stats.generation_tokens, 256);
    // Every byte of it is a token.
    let answer = answered(&app, &new_conversation(&app).await, &"long ".repeat(60)).await;
    assert_eq!(answer.status, MessageStatus::Failed);
    assert!(answer.error.as_ref().is_some_and(|why| why.contains("256")), "{answer:?}");
    let is_full = |kind: &Option<Box<FailureKind>>| match kind.as_deref() {
        Some(FailureKind::ContextFull { tokens, context_length: 256 }) => *tokens > 256,
        _ => false,
    };
    assert!(is_full(&answer.error_kind), "{answer:?}");
    // Also when the chat is opened again.
    let stored = messages(&app, &answer.conversation_id).await;
    assert!(stored.last().is_some_and(|last| is_full(&last.error_kind)), "{stored:?}");

    // It cannot be longer than what the model can read.
    let too_long = setting(MODEL, "context_length", json!(4097));
    check_failure(&app, too_long, FailureCode::Invalid, "at most 4096").await;
    set(&app, MODEL, "context_length", Value::Null).await;
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, &"long ".repeat(60)).await.status, MessageStatus::Complete);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_model_follows_its_settings() {
    let home = home_with_model();
    add_model(&home, "wide", wide_heads);
    let app = open(&home).await;
    let whole = memory(&app, "wide").await;
    assert_eq!(whole.context_tokens, 4096, "what the model can read");
    set(&app, "wide", "context_length", json!(1024)).await;
    let short = memory(&app, "wide").await;
    assert_eq!((short.context_tokens, short.weight_bytes), (1024, whole.weight_bytes));
    assert_eq!(short.kv_bytes * 4, whole.kv_bytes);
    assert!(short.total_bytes < whole.total_bytes, "{short:?} {whole:?}");
    set(&app, "wide", "kv_bits", json!("eight_bits")).await;
    let quantized = memory(&app, "wide").await;
    // 32 numbers of 8 bits with a scale and a bias, instead of as many of 4 bytes.
    assert_eq!(quantized.kv_bytes * 32 * 4, short.kv_bytes * (32 + 8));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_in_16_bits_takes_less_and_the_model_is_loaded_anew_with_it() {
    let home = home_with_model();
    copy_tiny_model("qwen3_next/dense", &home.path().join("models/hybrid")).unwrap();
    let app = open(&home).await;
    let need = async |name: &str| {
        let asked = Command::GetModelMemory { name: name.to_owned() };
        match app.call(asked).await.unwrap() {
            Reply::ModelMemory { memory, takes_bf16_state } => (memory.kv_bytes, takes_bf16_state),
            other => panic!("{other:?}"),
        }
    };
    assert!(!need(MODEL).await.1);
    let (exact, takes_bf16_state) = need("hybrid").await;
    assert!(takes_bf16_state);
    load(&app, "hybrid").await;
    let before = status(&app).await.model_fingerprint;
    assert!(before.is_some());
    let mut events = app.subscribe();
    set(&app, "hybrid", "bf16_state", json!(true)).await;
    assert!(need("hybrid").await.0 < exact);
    loop {
        if let Event::Status { status } = next(&mut events).await
            && status.model_fingerprint.is_some_and(|now| Some(now) != before)
        {
            break;
        }
    }
    app.close().await;
}

/// Half as many heads, each twice as wide: their keys and values can be quantized.
pub fn wide_heads(folder: &Path) {
    let config = folder.join("config.json");
    replace(&config, r#""num_attention_heads": 4"#, r#""num_attention_heads": 2"#);
    replace(&config, r#""num_key_value_heads": 2"#, r#""num_key_value_heads": 1"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn quantized_keys_and_values_are_saved_as_such_and_read_again_after_a_change() {
    let home = home_with_model();
    add_model(&home, "wide", wide_heads);
    let app = open_greedy(&home, 4).await;
    load(&app, "wide").await;
    let plain = new_conversation(&app).await;
    answered(&app, &plain, "Hello").await;
    set(&app, "wide", "kv_bits", json!("eight_bits")).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, "Hello").await;
    let again = answered(&app, &id, "And more").await.stats.unwrap();
    assert!(again.cached_tokens > 0 && again.cache_note.is_none(), "{again:?}");
    let bytes_per_token = |conversation: Conversation| {
        let cache = conversation.cache.unwrap();
        cache.cached_bytes / u64::from(cache.cached_tokens)
    };
    app.close().await;

    let app = open(&home).await;
    load(&app, "wide").await;
    let [quantized, plain] = [
        bytes_per_token(conversation(&app, &id).await),
        bytes_per_token(conversation(&app, &plain).await),
    ];
    assert!(quantized < plain, "{quantized} bytes for a token, plain {plain}");
    let again = answered(&app, &id, "Still").await.stats.unwrap();
    assert!(again.cached_tokens > 0, "a restart changes nothing: {again:?}");
    set(&app, "wide", "kv_bits", Value::Null).await;
    let note = answered(&app, &id, "Plain").await.stats.unwrap().cache_note.unwrap();
    assert!(note.contains("8 bits"), "{note}");

    // Heads that are too narrow for a group.
    let narrow = setting(MODEL, "kv_bits", json!("four_bits"));
    check_failure(&app, narrow, FailureCode::Invalid, "cannot be quantized").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_of_which_tokens_are_dropped_keeps_its_place() {
    let home = home_with_model();
    add_model(&home, "wide", wide_heads);
    let app = open_greedy(&home, 4).await;
    load(&app, "wide").await;
    set(&app, "wide", "keep_tokens", json!(256)).await;
    let id = new_conversation(&app).await;
    // Every byte of it is a token.
    let long = answered(&app, &id, &"a long story ".repeat(40)).await.stats.unwrap();
    assert!(long.prompt_tokens > 400, "{long:?}");
    assert_eq!(long.kept_tokens, Some(256));
    app.close().await;

    let app = open(&home).await;
    load(&app, "wide").await;
    let again = answered(&app, &id, "And more").await.stats.unwrap();
    let is_continued = again.cached_tokens >= long.prompt_tokens && again.cache_note.is_none();
    assert!(is_continued, "a restart changes nothing: {again:?}");
    assert_eq!(again.kept_tokens, None, "it is not compressed with every question");

    // Settings that need the whole context.
    let bits = setting("wide", "kv_bits", json!("eight_bits"));
    check_failure(&app, bits, FailureCode::Invalid, "choose one of the two").await;
    let draft = setting("wide", "draft_model", json!(MODEL));
    check_failure(&app, draft, FailureCode::Invalid, "choose one of the two").await;

    set(&app, "wide", "keep_tokens", Value::Null).await;
    let note = answered(&app, &id, "All of it").await.stats.unwrap().cache_note.unwrap();
    assert!(note.contains("256 most important tokens"), "{note}");
    set(&app, "wide", "kv_bits", json!("eight_bits")).await;
    let kept = setting("wide", "keep_tokens", json!(256));
    check_failure(&app, kept, FailureCode::Invalid, "choose one of the two").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_is_loaded_with_its_model_and_changes_no_answer() {
    let home = home_with_model();
    add_model(&home, "small", |_| ());
    let app = open_greedy(&home, 12).await;
    load(&app, MODEL).await;
    let expected = answered(&app, &new_conversation(&app).await, "Hello").await.text;
    let drafts = async |app: &Arc<App>| {
        status(app)
            .await
            .models
            .into_iter()
            .map(|LoadedModel { draft, .. }| draft)
            .collect::<Vec<_>>()
    };
    assert_eq!(drafts(&app).await, [None]);

    let mut events = app.subscribe();
    set(&app, MODEL, "draft_model", json!("small")).await;
    loop {
        if let Event::Status { status } = next(&mut events).await
            && status.models.iter().any(|model| model.draft.as_deref() == Some("small"))
        {
            break;
        }
    }
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, "Hello").await.text, expected);
    assert!(conversation(&app, &id).await.cache.is_some(), "it continues as without one");
    app.close().await;

    // It comes with its model again, and goes when it is no longer set.
    let app = open(&home).await;
    load(&app, MODEL).await;
    assert_eq!(drafts(&app).await, [Some("small".to_owned())]);
    set(&app, MODEL, "draft_model", Value::Null).await;
    load(&app, MODEL).await;
    assert_eq!(drafts(&app).await, [None]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_speed_changes_no_answer_and_keeps_the_place() {
    let home = home_with_model();
    let app = open_greedy(&home, 60).await;
    load(&app, MODEL).await;
    let asked = "Say it again: say it again: say it again: say it";
    let speculation = async || {
        let prompt = PromptInput::Text("Hello".to_owned());
        app.completion(None, prompt).await.unwrap().speculation
    };
    set(&app, MODEL, "speed", json!("plain")).await;
    assert_eq!(speculation().await, Speculation::Off);
    let expected = answered(&app, &new_conversation(&app).await, asked).await.text;
    // What nobody has chosen.
    set(&app, MODEL, "speed", json!(null)).await;
    assert_eq!(speculation().await, Speculation::Auto);
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, asked).await.text, expected);
    assert!(conversation(&app, &id).await.cache.is_some());
    let next = answered(&app, &id, "And again").await;
    assert!(next.stats.expect("figures").cached_tokens > 0);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_program_was_started_with_counts_before_settings() {
    let home = home_with_model();
    add_model(&home, "small", |_| ());
    let app = open_greedy(&home, 12).await;
    set(&app, MODEL, "speed", json!("automatic")).await;
    app.close().await;
    let small = || "small".to_owned();
    let cases = [
        (None, Speculation::Auto),
        (Some(ForcedSpeculation::Off), Speculation::Off),
        (Some(ForcedSpeculation::Lookup { num_tokens: 5 }), Speculation::Lookup { num_tokens: 5 }),
        (
            Some(ForcedSpeculation::Draft { model: small(), num_tokens: 4 }),
            Speculation::Draft { num_tokens: 4 },
        ),
        (Some(ForcedSpeculation::Auto { draft_model: Some(small()) }), Speculation::Auto),
    ];
    for (speculation, expected) in cases {
        let draft_model =
            speculation.as_ref().and_then(ForcedSpeculation::draft_model).map(str::to_owned);
        let app = App::open(Options { speculation, ..options(home.path()) }).await.unwrap();
        load(&app, MODEL).await;
        let prompt = PromptInput::Text("Hello".to_owned());
        let request = app.completion(None, prompt).await.unwrap();
        assert_eq!(request.speculation, expected);
        let drafts: Vec<_> = status(&app).await.models.into_iter().map(|one| one.draft).collect();
        assert_eq!(drafts, [draft_model]);
        app.close().await;
    }
}

/// Both are for all models, so neither may fail the answers of one that it does not suit.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_program_was_started_with_fails_no_answer() {
    let home = home_with_model();
    add_model(&home, "small", |_| ());
    let app = open_greedy(&home, 12).await;
    set(&app, MODEL, "keep_tokens", json!(1024)).await;
    app.close().await;
    let draft = ForcedSpeculation::Draft { model: "small".to_owned(), num_tokens: 4 };
    let head = ForcedSpeculation::Mtp { num_tokens: 1 };
    for (forced, expected, keeps) in
        [(draft, Speculation::Draft { num_tokens: 4 }, None), (head, Speculation::Off, Some(1024))]
    {
        let speculation = Some(forced);
        let app = App::open(Options { speculation, ..options(home.path()) }).await.unwrap();
        load(&app, MODEL).await;
        let prompt = PromptInput::Text("Hello".to_owned());
        let request = app.completion(None, prompt).await.unwrap();
        assert_eq!(request.speculation, expected);
        assert_eq!(request.kv_cache.snapkv.map(|snapkv| snapkv.keep_tokens), keeps);
        let answer = answered(&app, &new_conversation(&app).await, "Hello").await;
        assert_eq!(answer.status, MessageStatus::Complete, "{expected:?}");
        app.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_program_was_told_to_keep_counts_before_settings() {
    let home = home_with_model();
    let app = open_greedy(&home, 12).await;
    set(&app, MODEL, "keep_tokens", json!(1024)).await;
    app.close().await;
    let snapkv = Some(SnapKv { keep_tokens: 512, min_context: 1000 });
    let app = App::open(Options { snapkv, ..options(home.path()) }).await.unwrap();
    load(&app, MODEL).await;
    let prompt = PromptInput::Text("Hello".to_owned());
    let request = app.completion(None, prompt).await.unwrap();
    assert_eq!(request.kv_cache.snapkv, snapkv);
    let answer = answered(&app, &new_conversation(&app).await, "Hello").await;
    assert_eq!(answer.status, MessageStatus::Complete);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_that_the_program_cannot_find_is_named() {
    let home = home_with_model();
    let speculation = Some(ForcedSpeculation::Draft { model: "missing".to_owned(), num_tokens: 4 });
    let app = App::open(Options { speculation, ..options(home.path()) }).await.unwrap();
    let refused = app.check_forced_draft().await.err().unwrap();
    assert!(refused.message.contains("missing"), "{}", refused.message);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_of_another_tokenizer_is_refused() {
    let home = home_with_model();
    add_model(&home, "other", |folder| {
        replace(&folder.join("tokenizer.json"), "<|im_start|>", "<|turn|>");
    });
    let app = open(&home).await;
    for (draft, code, named) in [
        ("other", FailureCode::Invalid, "another tokenizer"),
        (MODEL, FailureCode::Invalid, "its own draft model"),
        ("missing", FailureCode::NotFound, "missing"),
    ] {
        check_failure(&app, setting(MODEL, "draft_model", json!(draft)), code, named).await;
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_model_that_is_gone_is_named_and_its_model_answers() {
    let home = home_with_model();
    add_model(&home, "small", |_| ());
    let app = open_greedy(&home, 2).await;
    set(&app, MODEL, "draft_model", json!("small")).await;
    std::fs::remove_dir_all(home.path().join("models").join("small")).unwrap();
    let mut events = app.subscribe();
    load(&app, MODEL).await;
    let names_it =
        |event| matches!(event, Event::Notice { text, .. } if text.contains("small")).then_some(());
    until(&mut events, names_it).await;
    let answer = answered(&app, &new_conversation(&app).await, "Hello").await;
    assert_eq!(answer.status, MessageStatus::Complete);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_for_a_model_that_is_gone_can_be_taken_back() {
    let home = home_with_model();
    add_model(&home, "small", |_| ());
    let app = open(&home).await;
    set(&app, "small", "top_k", json!(7)).await;
    std::fs::remove_dir_all(home.path().join("models").join("small")).unwrap();
    set(&app, "small", "top_k", Value::Null).await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_conversation_has_the_system_prompt_of_its_model() {
    let home = home_with_model();
    add_model(&home, "other", |_| ());
    let app = open_greedy(&home, 2).await;
    load(&app, MODEL).await;
    let prompt_tokens = async |app: &Arc<App>| {
        let id = new_conversation(app).await;
        let shown = conversation(app, &id).await.system_prompt;
        (shown, answered(app, &id, "Hello").await.stats.unwrap().prompt_tokens)
    };
    let (none, without) = prompt_tokens(&app).await;
    assert_eq!(none, "");
    set(&app, MODEL, "system_prompt", json!("Be brief.\nBe kind.")).await;
    let (shown, with) = prompt_tokens(&app).await;
    assert_eq!(shown, "Be brief.\nBe kind.");
    assert!(with > without + 18, "every byte of it is a token: {with} and {without}");
    load(&app, "other").await;
    assert_eq!(prompt_tokens(&app).await, (String::new(), without));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_by_its_alias_which_no_other_has() {
    let home = home_with_model();
    add_model(&home, "other", |_| ());
    let app = open(&home).await;
    set(&app, MODEL, "alias", json!("Helper")).await;
    load(&app, "Helper").await;
    let names: Vec<String> = status(&app).await.models.into_iter().map(|m| m.name).collect();
    assert_eq!(names, [MODEL]);
    for taken in ["Helper", MODEL, " x"] {
        let command = setting("other", "alias", json!(taken));
        check_failure(&app, command, FailureCode::Invalid, "alias").await;
    }
    let aliases = async |app: &Arc<App>| {
        let (_, _, models) = crate::kit::bootstrap(app).await;
        models.into_iter().map(|model| (model.name, model.alias)).collect::<Vec<_>>()
    };
    let expected = [("other".to_owned(), None), (MODEL.to_owned(), Some("Helper".to_owned()))];
    assert_eq!(aliases(&app).await, expected);
    app.close().await;
    let app = open(&home).await;
    assert_eq!(aliases(&app).await, expected, "after a restart");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_remembers_its_model() {
    let home = home_with_model();
    add_model(&home, "other", |_| ());
    let app = open_greedy(&home, 2).await;
    load(&app, MODEL).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, "Hello").await;
    load(&app, "other").await;
    let other = new_conversation(&app).await;
    answered(&app, &other, "Hello").await;
    // While another is loaded, and while none is.
    let model = async |id: &str| answered(&app, id, "More").await.stats.unwrap().model;
    assert_eq!(model(&id).await, MODEL);
    app.call(Command::UnloadModel).await.unwrap();
    assert_eq!(model(&id).await, MODEL);
    assert_eq!(model(&other).await, "other");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_settings_do_not_wait_until_a_model_is_checked() {
    let home = tempfile::tempdir().unwrap();
    add_model(&home, "waits", |_| {});
    // Its check ends when somebody writes here.
    let gate = home.path().join("models/waits.go");
    assert!(std::process::Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/models/check_program.sh");
    let check_program = Some(program);
    let app = App::open(Options { check_program, ..options(home.path()) }).await.unwrap();
    let (owner, command) = (app.clone(), setting("waits", "context_length", json!(256)));
    let slow = tokio::spawn(async move { owner.call(command).await });
    // Opens when the check reads.
    let open = tokio::task::spawn_blocking(move || std::fs::File::options().write(true).open(gate));
    let open = open.await.unwrap().unwrap();
    set_for_all(&app, "top_k", 9).await;
    assert!(!slow.is_finished(), "it still waits for the check");
    drop(open);
    slow.await.unwrap().unwrap();
    app.close().await;
}
