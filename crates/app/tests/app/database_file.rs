//! A database that is taken away while the app runs.

use cairn_app::wire::{Event, NoticeKind};

use crate::kit::{
    answered, bootstrap, home_with_model, messages, new_conversation, open, open_greedy, until,
};

/// Where a copy was saved, and whether it is in the database's place.
fn saved(event: Event) -> Option<(String, bool)> {
    let Event::Notice { kind: Some(kind), .. } = event else { return None };
    match *kind {
        NoticeKind::DatabaseSaved { path, is_in_place } => Some((path, is_in_place)),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_database_is_saved_again_and_said() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let mut events = app.subscribe();
    let id = new_conversation(&app).await;
    answered(&app, &id, "One?").await;
    std::fs::remove_file(home.path().join("cairn.db")).unwrap();
    answered(&app, &id, "Two?").await;
    let expected = (home.path().join("cairn.db").display().to_string(), true);
    assert_eq!(until(&mut events, saved).await, expected);
    // The page that received it may have been loading or may crash, so the next one is told too.
    bootstrap(&app).await;
    assert_eq!(until(&mut events, saved).await, expected);
    answered(&app, &id, "Three?").await;

    // As a kill leaves the files.
    let copy = tempfile::tempdir().unwrap();
    for name in ["cairn.db", "cairn.db-wal"] {
        std::fs::copy(home.path().join(name), copy.path().join(name)).unwrap();
    }
    app.close().await;
    let app = open(&copy).await;
    let texts: Vec<String> =
        messages(&app, &id).await.into_iter().map(|message| message.text).collect();
    assert_eq!([&texts[0], &texts[2], &texts[4]], ["One?", "Two?", "Three?"]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_save_is_said_and_tried_again() {
    let home = home_with_model();
    let app = open(&home).await;
    let mut events = app.subscribe();
    // The copy cannot be created.
    let blocked = home.path().join("cairn.saving.db");
    std::fs::create_dir(&blocked).unwrap();
    std::fs::remove_file(home.path().join("cairn.db")).unwrap();
    until(&mut events, |event| is_gone(&event).then_some(())).await;
    std::fs::remove_dir(&blocked).unwrap();
    until(&mut events, saved).await;
    // Nothing outdated waits.
    bootstrap(&app).await;
    let told = until(&mut events, |event| {
        assert!(!is_gone(&event));
        saved(event)
    });
    told.await;
    app.close().await;
}

fn is_gone(event: &Event) -> bool {
    let Event::Notice { kind: Some(kind), .. } = event else { return false };
    matches!(**kind, NoticeKind::DatabaseGone { .. })
}
