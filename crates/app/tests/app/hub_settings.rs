//! The hub's address, the folder for downloads and the proxy as settings: they count at once.

use std::path::Path;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, DownloadState, FailureCode, HubAccess, Reply, TokenPlace};
use cairn_fake_hub::{FakeHub, FakeRepo};
use serde_json::Value;

use crate::kit::{check_failure, set_for_all};
use crate::models::{
    NAME, download, downloads, large_repo, listed, reaches, repo, stall_within_the_weights,
    with_hub,
};

const TOKEN: &str = "hf_canary0000000000000000000000";

async fn access(app: &Arc<App>) -> HubAccess {
    match app.call(Command::GetHubAccess).await.unwrap() {
        Reply::HubAccess { access } => access,
        other => panic!("{other:?}"),
    }
}

async fn found(app: &Arc<App>) -> Vec<String> {
    match app.call(Command::SearchModels { text: "chat".to_owned() }).await.unwrap() {
        Reply::FoundModels { models } => models.into_iter().map(|model| model.name).collect(),
        other => panic!("{other:?}"),
    }
}

/// Whether requests to the hub carried a token, some or all of them; the hub forgets them. A search
/// asks twice.
fn has_token(hub: &FakeHub) -> Vec<bool> {
    let sent = hub.requests();
    hub.forget_requests();
    let mut has_token: Vec<bool> =
        sent.iter().map(|request| request.header("authorization").is_some()).collect();
    has_token.dedup();
    has_token
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_address_is_asked_at_once_and_never_gets_a_token_of_the_first() {
    let home = tempfile::tempdir().unwrap();
    let (first, other) = (FakeHub::start(vec![repo()]), FakeHub::start(vec![]));
    let app = App::open(with_hub(&home, &first)).await.unwrap();
    app.call(Command::SetHubToken { token: TOKEN.to_owned() }).await.unwrap();
    assert_eq!(found(&app).await, [NAME]);
    assert_eq!(has_token(&first), [true]);

    set_for_all(&app, "hub_endpoint", other.endpoint()).await;
    assert!(found(&app).await.is_empty());
    assert_eq!((has_token(&other), has_token(&first)), (vec![false], vec![]));
    let told = access(&app).await;
    assert_eq!((told.endpoint, told.default_endpoint), (other.endpoint(), first.endpoint()));
    assert_eq!((told.token_place, told.other_token_hub), (None, Some(first.endpoint())));
    app.close().await;

    let app = App::open(with_hub(&home, &first)).await.unwrap();
    assert!(found(&app).await.is_empty(), "the address is saved");
    assert_eq!(has_token(&other), [false]);
    set_for_all(&app, "hub_endpoint", Value::Null).await;
    assert_eq!(found(&app).await, [NAME]);
    assert_eq!(has_token(&first), [true], "it is still the first hub's");
    set_for_all(&app, "hub_endpoint", other.endpoint()).await;
    app.call(Command::SetHubToken { token: "hf_other".to_owned() }).await.unwrap();
    assert_eq!(access(&app).await.token_place, Some(TokenPlace::File));
    found(&app).await;
    assert_eq!(has_token(&other), [true]);
    set_for_all(&app, "hub_endpoint", Value::Null).await;
    found(&app).await;
    assert_eq!(has_token(&first), [false], "one token is kept, and it is the other hub's");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_an_earlier_version_goes_to_hugging_face_only() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let data_folder = home.path().join("home");
    std::fs::create_dir(&data_folder).unwrap();
    std::fs::write(data_folder.join("hub-token"), TOKEN).unwrap();
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    found(&app).await;
    assert_eq!(has_token(&hub), [false], "the environment may have named another hub then");
    let told = access(&app).await;
    let hugging_face = "https://huggingface.co".to_owned();
    assert_eq!((told.token_place, told.other_token_hub), (None, Some(hugging_face.clone())));
    set_for_all(&app, "hub_endpoint", hugging_face).await;
    assert_eq!(access(&app).await.token_place, Some(TokenPlace::File));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_the_environment_stays_with_the_hub_of_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let (first, other) = (FakeHub::start(vec![repo()]), FakeHub::start(vec![repo()]));
    let mut options = with_hub(&home, &first);
    options.hub.as_mut().unwrap().token = Some(cairn_hub::Token::new(TOKEN).unwrap());
    let app = App::open(options).await.unwrap();
    assert_eq!(access(&app).await.token_place, Some(TokenPlace::Environment));
    set_for_all(&app, "hub_endpoint", other.endpoint()).await;
    found(&app).await;
    assert_eq!(has_token(&other), [false]);
    assert_eq!(access(&app).await.token_place, None);
    // The same hub, named by hand.
    set_for_all(&app, "hub_endpoint", format!("{}/", first.endpoint())).await;
    found(&app).await;
    assert_eq!(has_token(&first), [true]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_the_environment_names_wrongly_can_be_corrected() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let mut options = with_hub(&home, &hub);
    options.hub.as_mut().unwrap().endpoint = "nowhere".to_owned();
    let app = App::open(options).await.unwrap();
    let mut events = app.subscribe();
    let command = Command::DownloadModel { name: NAME.to_owned() };
    check_failure(&app, command, FailureCode::Invalid, "cannot be the hub's address").await;
    set_for_all(&app, "hub_endpoint", hub.endpoint()).await;
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn models_come_to_the_chosen_folder_and_those_of_the_default_one_stay_listed() {
    let other = FakeRepo { name: "tiny/other".to_owned(), ..repo() };
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo(), other]));
    let chosen = home.path().join("disk/models");
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    set_for_all(&app, "download_folder", text(&chosen)).await;
    assert_eq!(access(&app).await.folder, text(&chosen));
    app.call(Command::DownloadModel { name: "tiny/other".to_owned() }).await.unwrap();
    while downloads(&app).await.iter().any(|one| one.state != DownloadState::Done) {
        crate::kit::next(&mut events).await;
    }
    let in_folder = async |app: &Arc<App>| -> Vec<(String, bool)> {
        let models = listed(app).await;
        let row = |model: &cairn_app::wire::Model| {
            assert_eq!(model.problem, None);
            (model.name.clone(), Path::new(&model.path).starts_with(&chosen))
        };
        models.iter().map(row).collect()
    };
    let expected = [(NAME.to_owned(), false), ("tiny/other".to_owned(), true)];
    assert_eq!(in_folder(&app).await, expected);
    app.close().await;
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    assert_eq!(in_folder(&app).await, expected);
    app.call(Command::DeleteModel { name: "tiny/other".to_owned() }).await.unwrap();
    app.close().await;
    assert!(!chosen.join("models--tiny--other").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_stays_in_the_folder_where_it_began() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![large_repo()]));
    stall_within_the_weights(&hub);
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    download(&app).await;
    hub.wait_for_stall(|| false);
    set_for_all(&app, "download_folder", text(&home.path().join("disk"))).await;
    app.close().await;

    hub.clear_faults();
    hub.forget_requests();
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    reaches(&app, &mut events, DownloadState::Done).await;
    let resumed = hub.requests().iter().any(|request| request.header("range").is_some());
    assert!(resumed, "what had come was not asked for again: {:?}", hub.requests());
    assert!(home.path().join("hub/models--tiny--chat/snapshots").exists());
    assert!(!home.path().join("disk/models--tiny--chat").exists());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_used_is_refused_in_one_sentence_and_not_saved() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let file = home.path().join("a-file");
    std::fs::write(&file, "").unwrap();
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let before = app.call(Command::GetHubAccess).await.unwrap();
    for (key, value, sentence) in [
        ("hub_endpoint", "hub.example", "it is not an address such as"),
        ("hub_endpoint", "ftp://hub.example", "neither https nor http"),
        ("hub_endpoint", "http://hub.example", "use https"),
        ("hub_endpoint", "https://me:canary@hub.example", "contains a password"),
        ("download_folder", "models", "named from the root"),
        ("download_folder", "~/models", "named from the root"),
        ("download_folder", text(&file.join("below")), "annot write to"),
        ("hub_proxy", "proxy.example:8080", "http, https or socks5"),
        ("hub_proxy", "http://me:canary@proxy.example", "contains a password"),
    ] {
        let command = Command::set_for_all(key, value);
        let failure = app.call(command).await.unwrap_err();
        assert!(failure.message.contains(sentence), "{key} {value}: {}", failure.message);
        assert!(!failure.message.contains("canary"), "{}", failure.message);
        assert_eq!(failure.message.matches(". ").count(), 0, "{}", failure.message);
    }
    let after = app.call(Command::GetHubAccess).await.unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
    for proxy in ["http://proxy.example:8080", "socks5://proxy.example:1080", ""] {
        set_for_all(&app, "hub_proxy", proxy).await;
    }
    app.close().await;
}
