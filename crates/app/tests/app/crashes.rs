//! A start after others that ended uncleanly: quiet after three within a minute; and what makes it
//! forget that a model was at work.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_app::wire::{
    Command, ContextOf, EngineState, Event, Job, JobQuestion, JobQuestionKind, JobSource, JobState,
    JobTexts, NoticeKind, NoticeLevel, Reply, TextFormat,
};
use cairn_app::{App, Options};
use tempfile::TempDir;

use crate::kit::{
    MODEL, answered, bootstrap, database, home_with_model, new_conversation, next, open,
    open_greedy, options,
};

/// Leaves the record of a run that started last of several, each ten seconds after the one before.
fn leave_record(home: &TempDir, num_starts: i64) {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let starts_ms: Vec<i64> = (0..num_starts).map(|start| now_ms + 10_000 * start).collect();
    let build = env!("CARGO_PKG_VERSION");
    write_record(home, serde_json::json!({ "build": build, "starts_ms": starts_ms, "steps": [] }));
}

fn write_record(home: &TempDir, record: serde_json::Value) {
    std::fs::write(home.path().join("running.json"), record.to_string()).unwrap();
}

async fn notices(app: &Arc<App>) -> Vec<(NoticeLevel, NoticeKind)> {
    let mut events = app.subscribe();
    bootstrap(app).await;
    let mut notices = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::Notice { level, kind, .. } = event {
            notices.push((level, *kind.unwrap()));
        }
    }
    notices
}

async fn job(app: &Arc<App>) -> Job {
    match app.call(Command::ListJobs).await.unwrap() {
        Reply::Jobs { mut jobs } => jobs.remove(0),
        other => panic!("{other:?}"),
    }
}

async fn engine(app: &Arc<App>) -> EngineState {
    match app.call(Command::GetStatus).await.unwrap() {
        Reply::Status { status } => status.engine,
        other => panic!("{other:?}"),
    }
}

/// A folder with a job that was running when the app was closed.
async fn home_with_job() -> TempDir {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let create = Command::CreateJob {
        name: "Stones".to_owned(),
        model: Some(MODEL.to_owned()),
        question: JobQuestion {
            instructions: "Is it a stone?".to_owned(),
            kind: JobQuestionKind::Predicate,
            options: Vec::new(),
        },
        source: JobSource::Written(JobTexts {
            format: TextFormat::Lines,
            content: "granite\nwater".to_owned(),
            column: None,
        }),
    };
    let Reply::Job { job } = app.call(create).await.unwrap() else { panic!("no job") };
    app.call(Command::PauseJob { id: job.id }).await.unwrap();
    app.close().await;
    let database = database(&home).await;
    let run =
        "update jobs set state = 'running'; update job_rows set logprobs = null, certainty = null";
    sqlx::raw_sql(run).execute(&database).await.unwrap();
    database.close().await;
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn fourth_quick_start_waits_for_a_person() {
    let home = home_with_job().await;
    leave_record(&home, 3);
    let autoloads = Options { autoload: true, ..options(home.path()) };
    let app = App::open(autoloads).await.unwrap();
    for _page in ["first", "reloaded"] {
        assert_eq!(notices(&app).await, [(NoticeLevel::Warning, NoticeKind::StartedQuietly)]);
    }
    assert_eq!(engine(&app).await, EngineState::Empty);
    let waiting = job(&app).await;
    assert_eq!((waiting.state, waiting.is_waiting), (JobState::Running, true));

    // A person may ask a question; work that no one has asked for still waits.
    let id = new_conversation(&app).await;
    answered(&app, &id, "Why?").await;
    let waiting = job(&app).await;
    assert_eq!((waiting.is_waiting, waiting.num_answered), (true, 0));

    let mut events = app.subscribe();
    app.call(Command::EndQuietStart).await.unwrap();
    loop {
        if let Event::Job { job } = next(&mut events).await
            && job.state == JobState::Done
        {
            break assert_eq!(job.num_answered, 2);
        }
    }
    assert_eq!(notices(&app).await, [], "an ordinary start says nothing");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_after_a_quiet_one_is_ordinary() {
    let home = home_with_model();
    leave_record(&home, 3);
    open(&home).await.close().await;
    let app = open(&home).await;
    assert_eq!(notices(&app).await, []);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclean_end_without_steps_is_said() {
    let home = home_with_model();
    leave_record(&home, 2);
    let app = open(&home).await;
    let [(NoticeLevel::Info, NoticeKind::QuitUnexpectedly { quit })] = &notices(&app).await[..]
    else {
        panic!("one notice")
    };
    assert_eq!((quit.during, quit.is_set_aside), (None, false));
    app.close().await;
    assert!(!home.path().join("running.json").exists(), "a close removes it");
}

/// How many runs are known to have ended uncleanly with a model at work.
async fn num_unclean_ends(home: &TempDir) -> i64 {
    let database = database(home).await;
    let num_ends = sqlx::query_scalar("select coalesce(sum(num_ends), 0) from unclean_ends");
    let num_ends = num_ends.fetch_one(&database).await.unwrap();
    database.close().await;
    num_ends
}

#[tokio::test(flavor = "multi_thread")]
async fn forgets_unclean_end_of_model_after_answer_only() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, "Why?").await;
    app.close().await;
    let steps = [serde_json::json!({ "kind": "answering", "model": MODEL })];
    let build = env!("CARGO_PKG_VERSION");
    write_record(&home, serde_json::json!({ "build": build, "starts_ms": [0], "steps": steps }));

    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let of = ContextOf::Conversation { id: id.clone() };
    let counted = app.call(Command::GetContext { of }).await.unwrap();
    assert!(matches!(counted, Reply::Context { context: Some(_) }), "{counted:?}");
    app.close().await;
    assert_eq!(num_unclean_ends(&home).await, 1, "loading and counting show nothing");

    let app = open(&home).await;
    answered(&app, &id, "And now?").await;
    app.close().await;
    assert_eq!(num_unclean_ends(&home).await, 0);
}
