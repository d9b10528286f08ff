//! Newer versions of a model, and the older ones that can go.

use std::path::Path;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, DownloadState, Event, Failure, FailureCode, ModelUpdate, NoticeLevel, OldRevisions,
    Reply, SettingTarget,
};
use cairn_fake_hub::{Asked, FakeFile, FakeHub, FakeRepo, Fault, Misdeed};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;

use crate::kit::{check_failure, next, set_for_all};
use crate::models::{NAME, download, downloads, listed, reaches, repo, with_hub};

const NEWER: &str = "2222222222222222222222222222222222222222";

/// The model's newer version: its config.json has another text.
fn newer() -> FakeRepo {
    let mut repo = FakeRepo { commit: NEWER.to_owned(), ..repo() };
    let config = repo.file("config.json").unwrap().content.bytes();
    let config = format!("{}\n ", String::from_utf8(config).unwrap());
    repo.files.retain(|file| file.path != "config.json");
    repo.files.push(FakeFile::small("config.json", &config));
    repo
}

async fn updates(app: &Arc<App>) -> Vec<ModelUpdate> {
    let (updates, failure) = updates_or_why(app).await;
    assert_eq!(failure, None);
    updates
}

async fn updates_or_why(app: &Arc<App>) -> (Vec<ModelUpdate>, Option<Failure>) {
    match app.call(Command::GetModelUpdates).await.unwrap() {
        Reply::ModelUpdates { updates, failure } => (updates, failure),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hub_learns_of_a_model_that_came_from_another() {
    let home = tempfile::tempdir().unwrap();
    let (first, other) = (FakeHub::start(vec![repo()]), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &first)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    for hub in [&first, &other] {
        hub.change(|repos| *repos = vec![newer()]);
    }
    set_for_all(&app, "hub_endpoint", other.endpoint()).await;
    assert!(updates(&app).await.is_empty());
    assert!(other.requests().is_empty(), "{:?}", other.requests());
    app.close().await;

    let app = App::open(with_hub(&home, &first)).await.unwrap();
    assert!(updates(&app).await.is_empty() && other.requests().is_empty(), "it is recorded");
    set_for_all(&app, "hub_endpoint", Value::Null).await;
    assert_eq!(updates(&app).await.len(), 1);
    app.close().await;

    // What is not recorded, as of another program, is asked of the environment's hub only.
    std::fs::remove_dir_all(home.path().join("home")).unwrap();
    first.forget_requests();
    let app = App::open(with_hub(&home, &other)).await.unwrap();
    set_for_all(&app, "hub_endpoint", first.endpoint()).await;
    assert!(updates(&app).await.is_empty() && first.requests().is_empty());
    set_for_all(&app, "hub_endpoint", Value::Null).await;
    assert_eq!(updates(&app).await.len(), 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_for_newer_versions_that_failed_says_why() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    hub.add_fault(Fault::always(Asked::Info, Misdeed::Status(500, Vec::new())));
    let (found, why) = updates_or_why(&app).await;
    assert!(found.is_empty());
    assert_eq!(why.map(|why| why.code), Some(FailureCode::Hub));
    hub.clear_faults();
    hub.change(Vec::clear);
    assert!(updates(&app).await.is_empty(), "a hub that does not have it has answered");
    app.close().await;
}

async fn old(app: &Arc<App>) -> OldRevisions {
    match app.call(Command::GetOldRevisions { name: NAME.to_owned() }).await.unwrap() {
        Reply::OldRevisions { revisions } => revisions,
        other => panic!("{other:?}"),
    }
}

async fn is_newer_used(app: &Arc<App>) -> bool {
    let models = listed(app).await;
    assert_eq!((models.len(), &models[0].problem), (1, &None));
    Path::new(&models[0].path).ends_with(NEWER)
}

/// Downloads the newer version and waits until it is used, or is said not to be.
async fn update(app: &Arc<App>, events: &mut Receiver<Event>) -> Option<String> {
    download(app).await;
    let mut is_warned = None;
    loop {
        match next(events).await {
            Event::Notice { level: NoticeLevel::Warning, text, .. } => is_warned = Some(text),
            Event::Models { .. }
                if downloads(app).await.iter().all(|one| one.state == DownloadState::Done)
                    && (is_warned.is_some() || is_newer_used(app).await) =>
            {
                return is_warned;
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_version_takes_over_and_the_older_one_goes_when_it_is_not_loaded() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    app.call(Command::LoadModel { name: NAME.to_owned() }).await.unwrap();
    let scope = SettingTarget::Model { name: NAME.to_owned() };
    let (key, value) = ("top_k".to_owned(), 7.into());
    app.call(Command::SetSetting { scope: scope.clone(), key, value }).await.unwrap();
    assert!(updates(&app).await.is_empty());

    hub.change(|repos| *repos = vec![newer()]);
    hub.forget_requests();
    let found = updates(&app).await;
    let bytes = newer().file("config.json").unwrap().content.length();
    assert_eq!(found, [ModelUpdate { name: NAME.to_owned(), bytes }]);
    let is_fetched = |path: &str| path.contains("/resolve/");
    assert!(!hub.requests().iter().any(|request| is_fetched(&request.target)), "only asked");
    assert!(!is_newer_used(&app).await);
    assert_eq!(update(&app, &mut events).await, None);
    assert!(updates(&app).await.is_empty());
    match app.call(Command::GetSettings { scope }).await.unwrap() {
        Reply::Settings { resolved } => assert_eq!(resolved.settings.top_k, 7),
        other => panic!("{other:?}"),
    }

    assert_eq!(old(&app).await.count, 0, "the older version is loaded");
    app.call(Command::LoadModel { name: NAME.to_owned() }).await.unwrap();
    let offered = old(&app).await;
    assert_eq!(offered.count, 1);
    assert!(offered.bytes > 0 && offered.bytes <= bytes, "only what the newer one does not use");
    let named = || NAME.to_owned();
    app.call(Command::RemoveOldRevisions { name: named() }).await.unwrap();
    assert_eq!(old(&app).await.count, 0);
    app.call(Command::RestoreOldRevisions { name: named() }).await.unwrap();
    assert_eq!(old(&app).await, offered);
    app.call(Command::RemoveOldRevisions { name: named() }).await.unwrap();
    app.close().await;

    let snapshots = home.path().join("hub/models--tiny--chat/snapshots");
    let left: Vec<_> = std::fs::read_dir(snapshots).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "closing made it final");
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    app.call(Command::LoadModel { name: named() }).await.unwrap();
    let command = Command::RestoreOldRevisions { name: named() };
    check_failure(&app, command, FailureCode::NotFound, "no longer").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_version_that_cannot_be_used_leaves_the_one_before() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    hub.change(|repos| {
        let mut broken = newer();
        broken.files.retain(|file| file.path != "tokenizer.json");
        *repos = vec![broken];
    });
    let warning = update(&app, &mut events).await.unwrap();
    assert!(warning.contains("is not used") && warning.contains("tokenizer"), "{warning}");
    assert!(!is_newer_used(&app).await);
    app.call(Command::LoadModel { name: NAME.to_owned() }).await.unwrap();
    assert_eq!(old(&app).await.count, 1, "what cannot be used can be removed");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_hub_no_model_has_a_newer_version() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    app.close().await;
    let mut options = with_hub(&home, &hub);
    options.hub.as_mut().unwrap().is_offline = true;
    let app = App::open(options).await.unwrap();
    let (found, why) = updates_or_why(&app).await;
    assert!(found.is_empty());
    assert_eq!(why.map(|why| why.code), Some(FailureCode::Offline));
    app.close().await;
}
