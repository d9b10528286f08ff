//! The API's keys and switch: what is told once, what is stored, and what a failure changes.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{ApiKey, ApiOverview, ApiServer, Command, Event, FailureCode, Reply};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use crate::kit::{check_failure, next, open};

async fn make(app: &Arc<App>, name: &str) -> (ApiKey, String) {
    match app.call(Command::MakeApiKey { name: name.to_owned() }).await.unwrap() {
        Reply::ApiKeyMade { key, secret } => (key, secret),
        other => panic!("{other:?}"),
    }
}

async fn overview(app: &Arc<App>) -> ApiOverview {
    match app.call(Command::GetApi).await.unwrap() {
        Reply::Api { api } => api,
        other => panic!("{other:?}"),
    }
}

async fn next_keys(events: &mut Receiver<Event>) -> Vec<ApiKey> {
    loop {
        if let Event::ApiKeys { keys } = next(events).await {
            return keys;
        }
    }
}

/// Whether any file of the data folder has a text in it.
fn is_stored(home: &TempDir, text: &str) -> bool {
    let files = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).any(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_told_once_and_only_its_hash_is_on_disk() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let mut events = app.subscribe();
    let (key, secret) = make(&app, " Editor ").await;
    assert_eq!((key.name.as_str(), key.last_used_at_ms), ("Editor", None));
    assert_eq!(next_keys(&mut events).await, std::slice::from_ref(&key));
    assert!(is_stored(&home, "Editor"));
    assert!(!is_stored(&home, &secret) && !is_stored(&home, secret.trim_start_matches("cairn-")));
    let (_, other) = make(&app, "Agent").await;
    assert_ne!(secret, other);
    app.close().await;

    let app = open(&home).await;
    assert!(!is_stored(&home, &secret));
    let names: Vec<String> = overview(&app).await.keys.into_iter().map(|key| key.name).collect();
    assert_eq!(names, ["Editor", "Agent"]);
    let mut events = app.subscribe();
    let client = app.api_client(&secret).await.unwrap().expect("the key is known");
    assert_eq!(client.name(), Some("Editor"));
    assert!(next_keys(&mut events).await[0].last_used_at_ms.is_some());
    for wrong in ["", "cairn-", &secret[..secret.len() - 1], "Editor"] {
        assert!(app.api_client(wrong).await.unwrap().is_none(), "{wrong:?}");
    }
    drop(client);
    app.call(Command::RevokeApiKey { id: key.id.clone(), deletes_saved: false }).await.unwrap();
    assert!(app.api_client(&secret).await.unwrap().is_none());
    assert!(app.api_client(&other).await.unwrap().is_some());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_key_is_refused_with_a_sentence() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    make(&app, "Editor").await;
    let name = |name: &str| Command::MakeApiKey { name: name.to_owned() };
    check_failure(&app, name(" "), FailureCode::Invalid, "empty").await;
    check_failure(&app, name("a\nb"), FailureCode::Invalid, "one line").await;
    check_failure(&app, name("Editor"), FailureCode::Invalid, "“Editor”").await;
    let revoke = Command::RevokeApiKey { id: "none".to_owned(), deletes_saved: true };
    check_failure(&app, revoke, FailureCode::NotFound, "no longer exists").await;
    assert_eq!(overview(&app).await.keys.len(), 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_that_is_wanted_follows_the_settings_also_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let wanted = app.api_wanted();
    assert_eq!(*wanted.borrow(), None);
    app.call(Command::set_for_all("api_port", 23456)).await.unwrap();
    assert_eq!(*wanted.borrow(), None);
    app.call(Command::set_for_all("api_is_on", true)).await.unwrap();
    assert_eq!(*wanted.borrow(), Some(23456));
    let low = Command::set_for_all("api_port", 80);
    check_failure(&app, low, FailureCode::Invalid, "from 1024 to 65535").await;
    app.close().await;

    let app = open(&home).await;
    assert_eq!(*app.api_wanted().borrow(), Some(23456));
    // A server that cannot start switches itself off, for the next start too.
    app.api_stopped(Some("Something was wrong.".to_owned())).await;
    assert_eq!(*app.api_wanted().borrow(), None);
    let problem = Some("Something was wrong.".to_owned());
    assert_eq!(overview(&app).await.server, ApiServer::Off { problem });
    // What is tried again has no problem yet.
    app.call(Command::set_for_all("api_is_on", true)).await.unwrap();
    assert_eq!(overview(&app).await.server, ApiServer::Off { problem: None });
    app.api_stopped(Some("Something was wrong again.".to_owned())).await;
    app.close().await;

    let app = open(&home).await;
    assert_eq!(*app.api_wanted().borrow(), None);
    app.close().await;
}
