//! Models of the hub: found, downloaded, kept through a restart, deleted.

use std::path::Path;
use std::sync::Arc;

use cairn_app::wire::{
    Command, Download, DownloadState, Event, FailureCode, HubAccess, ImportedModel, Model,
    ModelImport, ModelSource, Reply, RoundingForm, TokenPlace,
};
use cairn_app::{App, CacheVariables, Options};
use cairn_fake_hub::{Asked, FakeFile, FakeHub, FakeRepo, Fault, Misdeed};
use cairn_formats::test_files::gguf::TestGguf;
use cairn_hub::{HubLimits, HubOptions};
use cairn_tiny_models::tiny_model;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use crate::kit::{bootstrap, check_failure, next, options, until};

pub const NAME: &str = "tiny/chat";
pub const WEIGHTS: &str = "model.safetensors";

/// The tiny model as a repository of a hub.
pub fn repo() -> FakeRepo {
    let folder = tiny_model("llama/tiny-chat");
    let mut files = vec![FakeFile::small("README.md", "# Tiny\n\nA model of *no* use.")];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = std::fs::read(&path).unwrap();
        files.push(match name == WEIGHTS {
            true => FakeFile::lfs_bytes(&name, bytes),
            false => FakeFile::small(&name, &String::from_utf8(bytes).unwrap()),
        });
    }
    FakeRepo::new(NAME, files)
}

/// Options of an app that downloads from this hub, into a cache of its own, and waits for nothing.
pub fn with_hub(home: &TempDir, hub: &FakeHub) -> Options {
    let cache = home.path().join("hub");
    let instant = std::time::Duration::from_millis(1);
    Options {
        hub_variables: CacheVariables {
            hf_hub_cache: Some(cache.clone()),
            ..CacheVariables::default()
        },
        hub: Some(HubOptions {
            endpoint: hub.endpoint(),
            limits: HubLimits { first_wait: instant, reserve_bytes: 0, ..HubLimits::default() },
            ..HubOptions::new(cache)
        }),
        ..options(&home.path().join("home"))
    }
}

pub async fn download(app: &Arc<App>) {
    app.call(Command::DownloadModel { name: NAME.to_owned() }).await.unwrap();
}

/// Waits until the one download is in this state.
pub async fn reaches(
    app: &Arc<App>,
    events: &mut Receiver<Event>,
    state: DownloadState,
) -> Download {
    let is_there = |download: &Download| download.state == state;
    // The event of one that is done is sent when its model is in use, the list has it before.
    if state != DownloadState::Done
        && let Some(download) = downloads(app).await.into_iter().find(is_there)
    {
        return download;
    }
    loop {
        if let Event::Downloads { downloads } = next(events).await
            && let Some(download) = downloads.into_iter().find(is_there)
        {
            return download;
        }
    }
}

pub async fn downloads(app: &Arc<App>) -> Vec<Download> {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { downloads, .. } => downloads,
        other => panic!("{other:?}"),
    }
}

pub async fn listed(app: &Arc<App>) -> Vec<Model> {
    bootstrap(app).await.2
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_found_looked_at_downloaded_and_loaded() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    match app.call(Command::SearchModels { text: "chat".to_owned() }).await.unwrap() {
        Reply::FoundModels { models } => assert_eq!(models[0].name, NAME),
        other => panic!("{other:?}"),
    }
    let card = match app.call(Command::GetHubModel { name: NAME.to_owned() }).await.unwrap() {
        Reply::HubModel { model } => model,
        other => panic!("{other:?}"),
    };
    assert_eq!(card.description.as_deref(), Some("A model of no use."));
    assert_eq!((card.model_type.as_deref(), card.problem), (Some("llama"), None));
    hub.forget_requests();
    match app.call(Command::GetModelFacts { name: NAME.to_owned() }).await.unwrap() {
        Reply::ModelFacts { facts } => {
            assert_eq!(facts, card.facts, "a row says what the card says")
        }
        other => panic!("{other:?}"),
    }
    let is_asked = |text: &str| hub.requests().iter().any(|asked| asked.target.contains(text));
    assert!(is_asked("config.json") && !is_asked(WEIGHTS) && !is_asked("README"));
    assert!(card.facts.unwrap().memory.total_bytes > 0);
    assert_eq!(card.missing_bytes, card.bytes);
    assert!(card.files.iter().all(|file| file.path != "README.md"), "{:?}", card.files);

    download(&app).await;
    let done = reaches(&app, &mut events, DownloadState::Done).await;
    assert_eq!((done.bytes, done.total_bytes), (card.bytes, card.bytes));
    let models = listed(&app).await;
    assert_eq!((models[0].name.as_str(), models[0].source), (NAME, ModelSource::HubCache));
    assert!(models[0].can_delete);
    app.call(Command::LoadModel { name: NAME.to_owned() }).await.unwrap();
    app.close().await;
}

/// A repository whose weights are made up and long enough that several starts, each of which gets a
/// few MiB before it stalls, do not finish them.
pub fn large_repo() -> FakeRepo {
    FakeRepo::model(NAME, 50 << 20)
}

pub fn stall_within_the_weights(hub: &FakeHub) {
    hub.add_fault(Fault::always(Asked::Bytes(WEIGHTS), Misdeed::StallAfter(3 << 20)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_after_a_restart_unless_it_was_paused() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![large_repo()]));
    stall_within_the_weights(&hub);
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    loop {
        if let Event::Downloads { downloads } = next(&mut events).await
            && downloads[0].bytes > 2 << 20
        {
            break;
        }
    }
    app.close().await;

    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    assert_eq!(downloads(&app).await.len(), 1, "it goes on by itself");
    app.call(Command::PauseDownload { name: NAME.to_owned() }).await.unwrap();
    reaches(&app, &mut events, DownloadState::Paused).await;
    app.close().await;

    hub.clear_faults();
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    assert_eq!(downloads(&app).await[0].state, DownloadState::Paused);
    hub.forget_requests();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    let resumed = hub.requests().iter().any(|request| request.header("range").is_some());
    assert!(resumed, "what had come was not asked for again: {:?}", hub.requests());
    app.close().await;

    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    assert!(downloads(&app).await.is_empty(), "what is done is not downloaded again");
    assert_eq!(listed(&app).await.len(), 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_download_leaves_nothing() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![large_repo()]));
    stall_within_the_weights(&hub);
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    download(&app).await;
    hub.wait_for_stall(|| false);
    app.call(Command::CancelDownload { name: NAME.to_owned() }).await.unwrap();
    assert!(downloads(&app).await.is_empty());
    let is_partial = |path: &Path| path.to_string_lossy().contains("incomplete");
    let left: Vec<_> = files_in(home.path()).into_iter().filter(|path| is_partial(path)).collect();
    assert!(left.is_empty(), "{left:?}");
    check_failure(
        &app,
        Command::CancelDownload { name: NAME.to_owned() },
        FailureCode::NotFound,
        "not being downloaded",
    )
    .await;
    app.close().await;
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    assert!(downloads(&app).await.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_wants_a_token_comes_once_one_is_saved_and_nothing_shows_it() {
    const TOKEN: &str = "hf_canary0000000000000000000000";
    let private = FakeRepo { token: Some(TOKEN.to_owned()), ..repo() };
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![private]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    let failed = reaches(&app, &mut events, DownloadState::Failed).await;
    assert_eq!(failed.failure.unwrap().code, FailureCode::NeedsToken);
    app.call(Command::SetHubToken { token: "hf_wrong".to_owned() }).await.unwrap();
    let refused = loop {
        let failed = reaches(&app, &mut events, DownloadState::Failed).await.failure.unwrap();
        if failed.code != FailureCode::NeedsToken {
            break failed;
        }
        next(&mut events).await;
    };
    assert_eq!(refused.code, FailureCode::Unauthorized, "it was tried again with this one");

    let access = match app.call(Command::SetHubToken { token: TOKEN.to_owned() }).await.unwrap() {
        Reply::HubAccess { access } => access,
        other => panic!("{other:?}"),
    };
    assert_eq!(access.token_place, Some(TokenPlace::File));
    // Nobody has to ask for it again.
    reaches(&app, &mut events, DownloadState::Done).await;
    app.close().await;
    let token_file = home.path().join("home/hub-token");
    for path in files_in(home.path()).into_iter().filter(|path| *path != token_file) {
        let bytes = std::fs::read(&path).unwrap();
        let has_token = bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
        assert!(!has_token, "the token is in {}", path.display());
    }

    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let removed = app.call(Command::SetHubToken { token: String::new() }).await.unwrap();
    assert!(
        matches!(removed, Reply::HubAccess { access: HubAccess { token_place: None, .. } }),
        "{removed:?}"
    );
    assert!(!token_file.exists());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gated_model_names_the_page_of_its_terms() {
    let gated = FakeRepo { is_gated: true, ..repo() };
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![gated]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    let failed = reaches(&app, &mut events, DownloadState::Failed).await;
    assert_eq!(failed.failure.unwrap().code, FailureCode::Gated);
    assert_eq!(failed.page, Some(format!("{}/{NAME}", hub.endpoint())));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_model_can_be_brought_back_until_its_files_are_gone() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(vec![repo()]));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    download(&app).await;
    reaches(&app, &mut events, DownloadState::Done).await;
    let named = || NAME.to_owned();
    match app.call(Command::GetModelDeletion { name: named() }).await.unwrap() {
        Reply::ModelDeletion { deletion } => assert!(deletion.is_shared && deletion.bytes > 0),
        other => panic!("{other:?}"),
    }
    app.call(Command::DeleteModel { name: named() }).await.unwrap();
    assert!(listed(&app).await.is_empty());
    app.call(Command::RestoreModel { name: named() }).await.unwrap();
    assert_eq!(listed(&app).await.len(), 1);
    app.call(Command::DeleteModel { name: named() }).await.unwrap();
    app.close().await;

    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    assert!(listed(&app).await.is_empty(), "closing made the deletion final");
    let command = Command::RestoreModel { name: named() };
    check_failure(&app, command, FailureCode::NotFound, "no longer").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_was_added_is_listed_and_read_only() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let elsewhere = tempfile::tempdir().unwrap();
    cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &elsewhere.path().join("mine")).unwrap();
    let path = elsewhere.path().to_str().unwrap().to_owned();
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    app.call(Command::AddModelFolder { path: path.clone() }).await.unwrap();
    app.close().await;

    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let models = listed(&app).await;
    assert_eq!((models[0].name.as_str(), models[0].source), ("mine", ModelSource::Added));
    assert!(!models[0].can_delete);
    let command = Command::DeleteModel { name: "mine".to_owned() };
    check_failure(&app, command, FailureCode::Invalid, "only reads").await;
    app.call(Command::RemoveModelFolder { path }).await.unwrap();
    assert!(listed(&app).await.is_empty());
    let command = Command::AddModelFolder { path: "not/absolute".to_owned() };
    check_failure(&app, command, FailureCode::Invalid, "not a folder").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_imported_with_progress_and_other_files_are_refused() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    let model = home.path().join("a-copy");
    cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &model).unwrap();
    let imported = app.import_model(model.clone()).await.unwrap().unwrap();
    assert_eq!((imported.name.as_str(), imported.has_chat_template), ("a-copy", true));
    let mut was_shown = false;
    loop {
        match next(&mut events).await {
            Event::ModelImport { import: Some(import) } => was_shown |= import.total_bytes > 0,
            Event::ModelImport { import: None } => break assert!(was_shown),
            _ => {}
        }
    }
    assert_eq!(listed(&app).await[0].name, "a-copy");
    let base = home.path().join("base");
    std::fs::rename(model, &base).unwrap();
    std::fs::write(base.join("tokenizer_config.json"), "{}").unwrap();
    let imported = app.import_model(base).await.unwrap().unwrap();
    assert!(!imported.has_chat_template);
    let notes = home.path().join("notes.txt");
    std::fs::write(&notes, "no model").unwrap();
    let refused = app.import_model(notes).await.unwrap_err();
    assert!(refused.message.contains("neither a GGUF file"), "{}", refused.message);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_caller_goes_away_makes_room_for_the_next() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    let models = ["left", "next"].map(|name| home.path().join(name));
    for model in &models {
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", model).unwrap();
    }
    let [left, then] = models;
    tokio::select! {
        biased;
        ended = app.import_model(left) => panic!("it ended at once: {ended:?}"),
        () = std::future::ready(()) => {}
    }
    while !matches!(next(&mut events).await, Event::ModelImport { import: None }) {}
    app.import_model(then).await.unwrap();
    assert!(listed(&app).await.iter().any(|model| model.name == "next"));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_whole_at_last_and_a_refused_file_is_named() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let mut events = app.subscribe();
    let model = home.path().join("whole");
    cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &model).unwrap();
    app.import_model(model).await.unwrap();
    let mut last = None;
    let last = loop {
        match next(&mut events).await {
            Event::ModelImport { import: Some(import) } => last = Some(import),
            Event::ModelImport { import: None } => break last.expect("its progress was sent"),
            _ => {}
        }
    };
    assert!(last.bytes > 0 && last.bytes == last.total_bytes, "{last:?}");

    let mut upload = app.start_upload(None).await.unwrap();
    upload.write(b"no model").await.unwrap();
    let refused = app.import_uploaded_model(upload, "Notes.GGUF").await.unwrap_err();
    let expected = "Notes.GGUF cannot be imported: it is not a GGUF file; choose another.";
    assert_eq!((refused.code, refused.message.as_str()), (FailureCode::Invalid, expected));
    app.close().await;
}

/// Imports a file whose weights have no exact form, up to where it waits for a choice.
async fn waiting_import(
    home: &TempDir,
    app: &Arc<App>,
) -> (Receiver<Event>, tokio::task::JoinHandle<Imported>, ModelImport) {
    let mut events = app.subscribe();
    let file = home.path().join("Rounded.gguf");
    std::fs::write(&file, TestGguf::with_k_quants().bytes()).unwrap();
    let importing = app.clone();
    let imported = tokio::spawn(async move { importing.import_model(file).await });
    let waiting = loop {
        match next(&mut events).await {
            Event::ModelImport { import: Some(import) } if !import.choices.is_empty() => {
                break import;
            }
            _ => {}
        }
    };
    (events, imported, waiting)
}

type Imported = Result<Option<ImportedModel>, cairn_app::wire::Failure>;

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_rounds_waits_for_a_choice_and_takes_it() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let (mut events, imported, waiting) = waiting_import(&home, &app).await;
    let forms: Vec<_> = waiting.choices.iter().map(|choice| choice.form).collect();
    use RoundingForm::{Bfloat16, Bits4, Bits8, Float32};
    assert_eq!(forms, [Bits4, Bits8, Bfloat16, Float32]);
    let proposed = waiting.choices.iter().find(|choice| choice.is_proposed).unwrap();
    assert_eq!(proposed.form, Bits8);
    assert!(listed(&app).await.is_empty());
    // Who opens a window now sees the question, too.
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { model_import, .. } => assert_eq!(model_import, Some(waiting.clone())),
        other => panic!("{other:?}"),
    }

    app.call(Command::ChooseRounding { form: Bits4 }).await.unwrap();
    let is_chosen = |event| {
        matches!(event, Event::ModelImport { import: Some(import) } if import.choices.is_empty())
            .then_some(())
    };
    until(&mut events, is_chosen).await;
    let rounded = imported.await.unwrap().unwrap().unwrap().rounded_weights.unwrap();
    let [four, eight] = [Bits4, Bits8].map(|form| {
        waiting.choices.iter().find(|choice| choice.form == form).unwrap().relative_error
    });
    assert!((rounded.relative_error / four - 1.0).abs() < 0.05 && four > 5.0 * eight);
    // A choice that nobody waits for changes nothing.
    app.call(Command::ChooseRounding { form: Float32 }).await.unwrap();
    let here: Vec<_> = listed(&app).await.into_iter().map(|model| model.name).collect();
    assert_eq!(here, ["Rounded"]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_waits_for_a_choice_can_be_cancelled_and_left() {
    let (home, hub) = (tempfile::tempdir().unwrap(), FakeHub::start(Vec::new()));
    let app = App::open(with_hub(&home, &hub)).await.unwrap();
    let (_events, imported, _) = waiting_import(&home, &app).await;
    app.call(Command::CancelModelImport).await.unwrap();
    assert_eq!(imported.await.unwrap().unwrap(), None);

    let (mut events, imported, _) = waiting_import(&home, &app).await;
    imported.abort();
    while !matches!(next(&mut events).await, Event::ModelImport { import: None }) {}

    let (_events, imported, _) = waiting_import(&home, &app).await;
    app.close().await;
    assert_eq!(imported.await.unwrap().unwrap(), None);
    assert!(!home.path().join("home/models/Rounded").exists());
}

/// Every file below a folder; links are not followed.
fn files_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        if kind.is_dir() {
            files.extend(files_in(&path));
        } else if kind.is_file() {
            files.push(path);
        }
    }
    files
}
