//! A model that cannot be loaded anew after one of its settings has changed.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, EngineState, Event, FailureKind, MessageStatus, NoticeKind, NoticeLevel, Reply,
    SettingTarget,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use crate::kit::{new_conversation, next, send};
use crate::script::{MODEL, Script, add_claiming, open_scripted};

fn damage(home: &TempDir) {
    let file = home.path().join("models").join(MODEL).join("tokenizer.json");
    std::fs::write(file, "{").unwrap();
}

fn of_model(name: &str) -> SettingTarget {
    SettingTarget::Model { name: name.to_owned() }
}

async fn set_state_of_16_bits(app: &Arc<App>, model: &str) {
    let (scope, key) = (of_model(model), "bf16_state".to_owned());
    app.call(Command::SetSetting { scope, key, value: json!(true) }).await.unwrap();
}

async fn has_state_of_16_bits(app: &Arc<App>, model: &str) -> bool {
    match app.call(Command::GetSettings { scope: of_model(model) }).await.unwrap() {
        Reply::Settings { resolved } => resolved.settings.bf16_state,
        other => panic!("{other:?}"),
    }
}

/// Waits until the window is told, and returns whether the model is said to be in memory.
async fn told(events: &mut Receiver<Event>) -> bool {
    loop {
        let Event::Notice { level, text, kind: Some(kind) } = next(events).await else { continue };
        let NoticeKind::NotReloaded { model, is_in_memory, why } = *kind else { continue };
        assert_eq!((level, model.as_str()), (NoticeLevel::Warning, MODEL));
        assert!(text.contains(MODEL) && text.contains(&why.message), "{text}");
        assert!(matches!(why.kind.as_deref(), Some(FailureKind::LoadFailed { .. })), "{why:?}");
        return is_in_memory;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_answers_goes_on_with_its_old_setting_when_the_new_one_fails() {
    let home = Script::endless("stones ").home();
    let app = open_scripted(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, "why").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    damage(&home);
    set_state_of_16_bits(&app, MODEL).await;
    assert!(told(&mut events).await, "it is in use");
    assert!(!has_state_of_16_bits(&app, MODEL).await);

    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    let ended = loop {
        match next(&mut events).await {
            Event::Message { message }
                if message.id == answer.id && message.status != MessageStatus::Streaming =>
            {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(ended.status, MessageStatus::Stopped);
    // The next question needs none of its files.
    send(&app, &id, "and").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_model_that_is_gone_from_memory_it_is_said_and_its_setting_is_the_new_one() {
    let home = Script::endless("stones ").home();
    let app = open_scripted(&home, 1_000_000).await;
    let mut events = app.subscribe();
    damage(&home);
    set_state_of_16_bits(&app, MODEL).await;
    assert!(!told(&mut events).await);
    assert!(has_state_of_16_bits(&app, MODEL).await);
    let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else { panic!() };
    assert!(status.models.is_empty());
    assert!(matches!(status.engine, EngineState::Failed { .. }), "{:?}", status.engine);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_its_new_setting_is_not_blamed_for_the_one_of_new_chats() {
    const OTHER: &str = "other";
    let home = Script::endless("stones ").home();
    add_claiming(&home, OTHER, 1000);
    let app = open_scripted(&home, 10).await;
    for name in [OTHER, MODEL] {
        app.call(Command::LoadModel { name: name.to_owned() }).await.unwrap();
    }
    let mut events = app.subscribe();
    damage(&home);
    set_state_of_16_bits(&app, OTHER).await;
    loop {
        let event = next(&mut events).await;
        assert!(!matches!(event, Event::Notice { .. }), "{event:?}");
        let Event::Status { status } = event else { continue };
        if matches!(&status.engine, EngineState::Failed { model, .. } if model == MODEL) {
            break;
        }
    }
    // Waits until the change is done with.
    app.call(Command::LoadModel { name: OTHER.to_owned() }).await.unwrap();
    while let Ok(event) = events.try_recv() {
        assert!(!matches!(event, Event::Notice { .. }), "{event:?}");
    }
    assert!(has_state_of_16_bits(&app, OTHER).await);
    app.close().await;
}
