//! What goes into the log files while the app works. A test binary of its own, because a process has
//! one subscriber.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::sync::Mutex;

use cairn_app::wire::{Command, Event, MessageStatus, Reply};
use cairn_app::{App, DataFolder, LOG_FILTER, LogFile, Options};
use cairn_tiny_models::copy_tiny_model;
use tracing_subscriber::EnvFilter;

const CANARY: &str = "The heron waits beside nine grey boulders";
const SECRET: &str = "canary-4d1f";

#[tokio::test(flavor = "multi_thread")]
async fn neither_texts_nor_secrets_reach_the_logs_or_the_diagnostics() {
    let home = tempfile::tempdir().unwrap();
    let data_folder = DataFolder::new(home.path());
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(LOG_FILTER))
        .with_writer(Mutex::new(LogFile::new(&data_folder)))
        .with_ansi(false)
        .init();
    copy_tiny_model("llama/tiny-chat", &home.path().join("models/tiny-chat")).unwrap();
    let options = Options::new(data_folder.clone());
    let app = App::open(options).await.unwrap();
    app.call(Command::set_for_all("max_tokens", 8)).await.unwrap();
    app.call(Command::set_for_all("cache_budget_bytes", 1_u64 << 30)).await.unwrap();
    let Reply::Conversation { conversation, .. } =
        app.call(Command::NewConversation).await.unwrap()
    else {
        panic!("no conversation")
    };
    let mut events = app.subscribe();
    let send = Command::SendMessage { conversation_id: conversation.id, text: CANARY.to_owned() };
    app.call(send).await.unwrap();
    loop {
        if let Event::Message { message } = events.recv().await.unwrap()
            && message.stats.is_some()
        {
            break assert_eq!(message.status, MessageStatus::Complete, "{:?}", message.error);
        }
    }
    app.call(Command::ClearCache).await.unwrap();
    tracing::warn!("a request failed: Authorization: Bearer {SECRET}");
    tracing::warn!("a download failed: https://hub/file?token={SECRET}&part=1, hf_{SECRET}");
    tracing::warn!("the last line");

    let Reply::Diagnostics { text } = app.call(Command::GetDiagnostics).await.unwrap() else {
        panic!("no diagnostics")
    };
    app.close().await;
    let log = std::fs::read_to_string(data_folder.logs().join("cairn.log")).unwrap();
    for (name, text) in [("the log", &log), ("the diagnostics", &text)] {
        assert!(
            text.contains("a download failed") && text.contains("the last line"),
            "{name}: {text}"
        );
        for hidden in [CANARY, "heron", SECRET] {
            assert!(!text.contains(hidden), "{name} shows {hidden:?}: {text}");
        }
    }
    for fact in [
        env!("CARGO_PKG_VERSION"),
        "Device: cpu",
        "\"max_tokens\":8",
        "Conversations: 1",
        "tiny-chat",
    ] {
        assert!(text.contains(fact), "{fact:?} is missing: {text}");
    }
}
