//! Models that other programs add and remove while the app runs.

use std::fs;

use cairn_app::wire::{Event, Model};
use cairn_tiny_models::copy_tiny_model;
use tokio::sync::broadcast::Receiver;

use crate::kit::{MODEL, bootstrap, home_with_model, next, open};

/// Waits for a list with these models.
async fn lists(events: &mut Receiver<Event>, expected: &[&str]) {
    let names = |models: &[Model]| models.iter().map(|model| model.name.clone()).collect();
    loop {
        if let Event::Models { models } = next(events).await {
            let names: Vec<String> = names(&models);
            if names == expected {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_models_that_other_programs_add_or_remove() {
    let home = home_with_model();
    let app = open(&home).await;
    let mut events = app.subscribe();
    assert_eq!(bootstrap(&app).await.2.len(), 1);
    let added = home.path().join("models").join("added");
    copy_tiny_model("llama/tiny-chat", &added).unwrap();
    lists(&mut events, &["added", MODEL]).await;
    fs::remove_dir_all(&added).unwrap();
    lists(&mut events, &[MODEL]).await;
    app.close().await;
}
