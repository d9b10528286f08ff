//! Unloads models that nobody has used for as long as their settings say.

use std::time::{Duration, Instant};

use crate::app::App;
use crate::wire::{IdleUnload, Settings};

/// Unloads what is due at `now`. One that is in use or pinned never is; conversations are saved as
/// at any unload.
pub(crate) fn unload_unused(app: &App, now: Instant) {
    let models = app.engine.status().borrow().models.clone();
    for model in models.iter().filter(|model| !model.is_in_use) {
        if is_due(&app.settings.of_model(&model.name), model.last_used, now) {
            // The engine compares again: an answer may have begun meanwhile.
            app.engine.unload_unused(&model.name, model.last_used);
        }
    }
}

fn is_due(settings: &Settings, last_used: Instant, now: Instant) -> bool {
    let limit = match settings.idle_unload {
        IdleUnload::Never => return false,
        IdleUnload::FiveMinutes => 5,
        IdleUnload::FifteenMinutes => 15,
        IdleUnload::OneHour => 60,
        IdleUnload::FourHours => 240,
    };
    !settings.is_pinned && now.duration_since(last_used) >= Duration::from_secs(60 * limit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::sync::Arc;

    use cairn_engine::{EngineStatus, MemoryPressure};
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::{Command, Event, MessageStatus, Reply, SettingTarget};
    use crate::{DataFolder, Options};

    /// A bound for what should take seconds; only a hang gets near it.
    const SOON: Duration = Duration::from_secs(60);
    const MINUTE: Duration = Duration::from_secs(60);

    async fn set(app: &Arc<App>, scope: SettingTarget, key: &str, value: Value) {
        let command = Command::SetSetting { scope, key: key.to_owned(), value };
        app.call(command).await.unwrap();
    }

    /// Asks a question and returns how many tokens of its prompt were saved.
    async fn ask(app: &Arc<App>, id: &str) -> u32 {
        let mut events = app.subscribe();
        let send =
            Command::SendMessage { conversation_id: id.to_owned(), text: "Hello".to_owned() };
        app.call(send).await.unwrap();
        loop {
            let event = tokio::time::timeout(SOON, events.recv()).await.unwrap().unwrap();
            if let Event::Message { message } = event
                && let Some(stats) = message.stats
            {
                assert_eq!(message.status, MessageStatus::Complete);
                return stats.cached_tokens;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_unused_model_leaves_after_its_time_and_its_chats_continue() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("models").join("m");
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &folder).unwrap();
        let app = App::open(Options::new(DataFolder::new(home.path()))).await.unwrap();
        let model = || SettingTarget::Model { name: "m".to_owned() };
        set(&app, SettingTarget::App, "max_tokens", json!(4)).await;
        set(&app, SettingTarget::App, "cache_budget_bytes", json!(1 << 30)).await;
        app.call(Command::LoadModel { name: "m".to_owned() }).await.unwrap();
        let reply = app.call(Command::NewConversation).await.unwrap();
        let Reply::Conversation { conversation, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(ask(&app, &conversation.id).await, 0);

        let mut status = app.engine.status();
        let is_idle = |status: &EngineStatus| status.models.iter().all(|model| !model.is_in_use);
        tokio::time::timeout(SOON, status.wait_for(is_idle)).await.unwrap().unwrap();
        // Jobs are taken in order: an answer to this one means that those before it are done.
        let is_loaded_after = async |minutes: u32| {
            unload_unused(&app, Instant::now() + minutes * MINUTE);
            app.engine.forget_conversations().await;
            !app.engine.status().borrow().models.is_empty()
        };
        assert!(is_loaded_after(600).await, "by default it stays");
        set(&app, SettingTarget::App, "idle_unload", json!("fifteen_minutes")).await;
        assert!(is_loaded_after(14).await);
        set(&app, model(), "idle_unload", json!("one_hour")).await;
        assert!(is_loaded_after(59).await, "its own time comes first");
        set(&app, model(), "is_pinned", json!(true)).await;
        app.engine.relieve_memory(MemoryPressure::Critical);
        assert!(is_loaded_after(600).await, "it is pinned");
        set(&app, model(), "is_pinned", Value::Null).await;
        assert!(!is_loaded_after(61).await);
        assert!(ask(&app, &conversation.id).await > 0, "its context was saved");
        app.close().await;
    }
}
