//! Models that other programs add and remove while the app runs.

use std::fs;

use cairn_app::wire::{Command, Event, Model};
use cairn_tiny_models::copy_tiny_model;
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_list_is_followed_by_an_older_one() {
    const NUM_ADDED: usize = 64;
    let home = home_with_model();
    let made = tempfile::tempdir_in(home.path()).unwrap();
    let name = |number: usize| format!("added-{number}");
    for number in 0..NUM_ADDED {
        copy_tiny_model("llama/tiny-chat", &made.path().join(name(number))).unwrap();
    }
    let app = open(&home).await;
    let mut events = app.subscribe();
    let mut asking = JoinSet::new();
    for number in 0..NUM_ADDED {
        let from = made.path().join(name(number));
        let to = home.path().join("models").join(name(number));
        let app = app.clone();
        asking.spawn(async move {
            fs::rename(from, to).unwrap();
            app.call(Command::ListModels).await.unwrap();
        });
    }
    let mut num_listed = 0;
    while num_listed < 1 + NUM_ADDED {
        if let Event::Models { models } = next(&mut events).await {
            assert!(models.len() >= num_listed, "{} after {num_listed}", models.len());
            num_listed = models.len();
        }
    }
    asking.join_all().await;
    app.close().await;
}
