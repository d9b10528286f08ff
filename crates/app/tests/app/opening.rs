//! Opening and closing the app: its data folder, its models, the answer that is running.

use std::path::PathBuf;

use cairn_app::wire::{Command, EngineState, Event, FailureCode, MessageStatus, Reply};
use cairn_app::{App, OpenError, Options};

use crate::kit::{
    MODEL, PATIENCE, bootstrap, check_failure, home_with_model, messages, new_conversation, next,
    open, open_greedy, options, send,
};

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_loaded_and_dropped() {
    let home = home_with_model();
    let app = App::open(Options { autoload: true, ..options(home.path()) }).await.unwrap();
    let mut events = app.subscribe();
    let models = bootstrap(&app).await.2;
    assert_eq!(
        models.iter().map(|m| (m.name.as_str(), m.model_type.as_str())).collect::<Vec<_>>(),
        [(MODEL, "llama")]
    );
    assert_eq!(PathBuf::from(&models[0].path), home.path().join("models").join(MODEL));
    assert!(models[0].bytes > 10_000);
    assert_eq!(models[0].problem, None);
    let engine = |wanted: &'static str| {
        let mut events = events.resubscribe();
        let app = app.clone();
        async move {
            loop {
                let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else {
                    panic!()
                };
                let json = serde_json::to_value(&status.engine).unwrap();
                if json["state"] == wanted {
                    assert!(wanted == "empty" || json["model"] == MODEL, "{json}");
                    return;
                }
                next(&mut events).await;
            }
        }
    };
    engine("ready").await;
    app.call(Command::UnloadModel).await.unwrap();
    engine("empty").await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    engine("ready").await;
    // The status is also emitted as an event.
    while !matches!(next(&mut events).await, Event::Status { .. }) {}
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opens_without_metal_library_and_says_so() {
    let home = home_with_model();
    let why = "cannot compute on the GPU: /Cairn.app/mlx.metallib is missing: install Cairn again";
    let said =
        "Cannot compute on the GPU: /Cairn.app/mlx.metallib is missing: install Cairn again.";
    let device_failure = Some(why.to_owned());
    let options = Options { autoload: true, device_failure, ..options(home.path()) };
    let app = App::open(options).await.unwrap();
    let mut events = app.subscribe();
    let conversation = new_conversation(&app).await;
    let load = Command::LoadModel { name: MODEL.to_owned() };
    check_failure(&app, load, FailureCode::Engine, said).await;
    send(&app, &conversation, "Hello").await;
    let answer = loop {
        match next(&mut events).await {
            Event::Message { message, .. } if message.status == MessageStatus::Failed => {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(answer.error.as_deref(), Some(said));
    let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else { panic!() };
    let expected = EngineState::Failed { model: String::new(), message: said.to_owned() };
    assert_eq!(status.engine, expected, "it is said without a model, whatever was tried");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_app_at_a_time_owns_a_data_folder() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    match App::open(options(home.path())).await {
        Err(OpenError::AlreadyRunning { folder }) => assert_eq!(folder, home.path()),
        other => panic!("{:?}", other.map(|_| ())),
    }
    app.close().await;
    app.close().await;
    open(&home).await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_data_folder_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let blocked = folder.path().join("blocked");
    std::fs::create_dir_all(blocked.join("cairn.db")).unwrap();
    for home in [file.clone(), file.join("below"), blocked] {
        let error = App::open(options(&home)).await.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&home.display().to_string()), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_interrupts_the_answer_being_written_and_saves_it() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "Tell me everything").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    let received = messages(&app, &id).await[1].text.clone();
    tokio::time::timeout(PATIENCE, app.close()).await.unwrap();
    check_failure(&app, Command::GetStatus, FailureCode::Engine, "closing").await;
    drop(app);

    let app = open(&home).await;
    let saved = &messages(&app, &id).await[1];
    assert_eq!((saved.status, saved.can_continue), (MessageStatus::Interrupted, true));
    assert!(saved.text.starts_with(&received));
    app.close().await;
}
