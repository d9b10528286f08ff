//! Settings of all chats, of a model and of a chat: what holds, what answers follow, what is saved.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, Event, FailureCode, Reply, ResolvedSettings, SettingScope, SettingTarget,
};
use serde_json::{Value, json};

use crate::kit::{
    MODEL, answered, check_failure, home_with_model, new_conversation, next, open, open_greedy,
};

async fn load(app: &Arc<App>) {
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
}

fn model() -> SettingTarget {
    SettingTarget::Model { name: MODEL.to_owned() }
}

fn chat(id: &str) -> SettingTarget {
    SettingTarget::Chat { id: id.to_owned() }
}

async fn resolved(app: &Arc<App>, command: Command) -> ResolvedSettings {
    match app.call(command).await.unwrap() {
        Reply::Settings { resolved } => *resolved,
        other => panic!("{other:?}"),
    }
}

async fn get(app: &Arc<App>, scope: &SettingTarget) -> ResolvedSettings {
    resolved(app, Command::GetSettings { scope: scope.clone() }).await
}

async fn set(app: &Arc<App>, scope: &SettingTarget, key: &str, value: Value) -> ResolvedSettings {
    let command = Command::SetSetting { scope: scope.clone(), key: key.to_owned(), value };
    let told = resolved(app, command).await;
    assert_eq!(told, get(app, scope).await, "the reply is what holds now");
    told
}

/// The number of tokens of an answer; the tiny model does not end one by itself so soon.
async fn answer_length(app: &Arc<App>, id: &str) -> u32 {
    answered(app, id, "Hello").await.stats.unwrap().generation_tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_follows_its_chat_then_its_model_then_the_app() {
    let home = home_with_model();
    let app = open_greedy(&home, 6).await;
    load(&app).await;
    let [id, other] = [new_conversation(&app).await, new_conversation(&app).await];
    assert_eq!([answer_length(&app, &id).await, answer_length(&app, &other).await], [6, 6]);

    set(&app, &model(), "max_tokens", json!(4)).await;
    set(&app, &chat(&id), "max_tokens", json!(2)).await;
    assert_eq!([answer_length(&app, &id).await, answer_length(&app, &other).await], [2, 4]);
    let lengths = async |app: &Arc<App>| {
        let mut lengths = Vec::new();
        for scope in [SettingTarget::App, model(), chat(&other), chat(&id)] {
            let ResolvedSettings { settings, from, .. } = get(app, &scope).await;
            lengths.push((settings.max_tokens, from["max_tokens"]));
        }
        lengths
    };
    let expected = [
        (6, SettingScope::App),
        (4, SettingScope::Model),
        (4, SettingScope::Model),
        (2, SettingScope::Chat),
    ];
    assert_eq!(lengths(&app).await, expected);

    // All of that is saved.
    app.close().await;
    let app = open(&home).await;
    load(&app).await;
    assert_eq!(lengths(&app).await, expected);

    // What is cleared falls through to the next scope.
    let cleared = set(&app, &chat(&id), "max_tokens", Value::Null).await;
    assert_eq!((cleared.settings.max_tokens, cleared.from["max_tokens"]), (4, SettingScope::Model));
    set(&app, &model(), "max_tokens", Value::Null).await;
    let cleared = set(&app, &SettingTarget::App, "max_tokens", Value::Null).await;
    assert_eq!(cleared.settings.max_tokens, 4096);
    assert!(!cleared.from.contains_key("max_tokens"), "{cleared:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_models_own_sampling_is_weaker_than_what_is_set_and_stronger_than_a_default() {
    let home = home_with_model();
    let file = home.path().join("models").join(MODEL).join("generation_config.json");
    let recommended = json!({ "eos_token_id": [258, 256], "temperature": 0.0, "top_p": "wide" });
    std::fs::write(&file, recommended.to_string()).unwrap();
    let app = open(&home).await;
    app.call(Command::set_for_all("max_tokens", 24)).await.unwrap();
    app.call(Command::set_for_all("cache_budget_bytes", 0)).await.unwrap();
    load(&app).await;

    let [one, two] = [new_conversation(&app).await, new_conversation(&app).await];
    let told = get(&app, &chat(&one)).await;
    assert_eq!(told.settings.temperature, 0.0);
    assert_eq!(told.from["temperature"], SettingScope::GenerationConfig);
    assert_eq!(told.settings.top_p, 0.95, "a bad value falls through alone");
    assert!(!told.from.contains_key("top_p"), "{told:?}");
    // Greedy answers to one question are equal; sampled ones of this length never are.
    let greedy = answered(&app, &one, "Hello").await.text;
    assert_eq!(answered(&app, &two, "Hello").await.text, greedy);

    // The default itself, once a person sets it, is theirs.
    let told = set(&app, &SettingTarget::App, "temperature", json!(0.7)).await;
    assert_eq!(told.settings.temperature, 0.7);
    assert_eq!(told.from["temperature"], SettingScope::App);
    let three = new_conversation(&app).await;
    assert_ne!(answered(&app, &three, "Hello").await.text, greedy);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_told_to_other_windows() {
    let home = home_with_model();
    let app = open(&home).await;
    load(&app).await;
    let id = new_conversation(&app).await;
    for scope in [SettingTarget::App, model(), chat(&id)] {
        let mut events = app.subscribe();
        set(&app, &scope, "top_k", json!(20)).await;
        while !matches!(next(&mut events).await, Event::Settings { .. }) {}
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_set_is_refused_and_nothing_changes() {
    let home = home_with_model();
    let app = open(&home).await;
    load(&app).await;
    let id = new_conversation(&app).await;
    let before = get(&app, &chat(&id)).await;
    let check = async |scope: SettingTarget, key: &str, value: Value, code, named: &str| {
        let command = Command::SetSetting { scope, key: key.to_owned(), value };
        check_failure(&app, command, code, named).await;
    };
    check(chat(&id), "top_p", json!(1.5), FailureCode::Invalid, "from 0 to 1").await;
    check(chat(&id), "appearance", json!("dark"), FailureCode::Invalid, "appearance").await;
    check(model(), "cache_budget_bytes", json!(0), FailureCode::Invalid, "for all chats").await;
    check(SettingTarget::App, "kv_bits", json!("eight_bits"), FailureCode::Invalid, "for a model")
        .await;
    check(SettingTarget::App, "no_setting", json!(0), FailureCode::Invalid, "no_setting").await;
    check(chat("gone"), "top_p", json!(0.5), FailureCode::NotFound, "conversation").await;
    let unknown = SettingTarget::Model { name: "unknown".to_owned() };
    check(unknown, "top_p", json!(0.5), FailureCode::NotFound, "unknown").await;
    assert_eq!(get(&app, &chat(&id)).await, before);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_chat_has_settings_that_only_memory_has() {
    let home = home_with_model();
    let app = open(&home).await;
    let reply = app.call(Command::NewPrivateConversation).await.unwrap();
    let Reply::Conversation { conversation, .. } = reply else { panic!("{reply:?}") };
    let told = set(&app, &chat(&conversation.id), "temperature", json!(0.125)).await;
    assert_eq!(told.from["temperature"], SettingScope::Chat);
    app.close().await;
    let on_disk: i64 = sqlx::query_scalar(
        "select count(*) from conversations where setting_overrides is not null",
    )
    .fetch_one(&crate::kit::database(&home).await)
    .await
    .unwrap();
    assert_eq!(on_disk, 0);
}
