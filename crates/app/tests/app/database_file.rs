//! A database that is taken away while the app runs.

use cairn_app::wire::{Event, NoticeKind};

use crate::kit::{answered, home_with_model, messages, new_conversation, next, open, open_greedy};

#[tokio::test(flavor = "multi_thread")]
async fn deleted_database_is_saved_again_and_said() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let mut events = app.subscribe();
    let id = new_conversation(&app).await;
    answered(&app, &id, "One?").await;
    std::fs::remove_file(home.path().join("cairn.db")).unwrap();
    answered(&app, &id, "Two?").await;
    let said = loop {
        if let Event::Notice { kind: Some(kind), .. } = next(&mut events).await
            && let NoticeKind::DatabaseSaved { path, is_in_place } = *kind
        {
            break (path, is_in_place);
        }
    };
    assert_eq!(said, (home.path().join("cairn.db").display().to_string(), true));
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
