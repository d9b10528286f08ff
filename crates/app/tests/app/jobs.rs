//! Jobs over a tiny model: rows are asked once across restarts, corrected, calibrated and exported.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, ConversationPart, Event, FailureCode, FailureKind, Job, JobCharts, JobOption,
    JobPreview, JobQuestion, JobQuestionKind, JobRow, JobRowOrder, JobSource, JobState, JobTexts,
    Reply, TextFormat,
};

use crate::kit::{
    MODEL, answered, check_failure, home_with_model, new_conversation, next, open, set_for_all,
};

fn question(kind: JobQuestionKind, labels: &[&str]) -> JobQuestion {
    let option = |label: &&str| JobOption { label: (*label).to_owned(), description: None };
    let options = labels.iter().map(option).collect();
    JobQuestion { instructions: "Is it a stone?".to_owned(), kind, options }
}

fn lines(count: usize) -> JobSource {
    let lines: Vec<String> = (0..count).map(|index| format!("text {index}")).collect();
    JobSource::Written(JobTexts {
        format: TextFormat::Lines,
        content: lines.join("\n"),
        column: None,
    })
}

fn creation(question: JobQuestion, source: JobSource) -> Command {
    let model = Some(MODEL.to_owned());
    Command::CreateJob { name: "Stones".to_owned(), model, question, source }
}

async fn create(app: &Arc<App>, question: JobQuestion, source: JobSource) -> Job {
    match app.call(creation(question, source)).await.unwrap() {
        Reply::Job { job } => job,
        other => panic!("{other:?}"),
    }
}

async fn jobs(app: &Arc<App>) -> Vec<Job> {
    match app.call(Command::ListJobs).await.unwrap() {
        Reply::Jobs { jobs } => jobs,
        other => panic!("{other:?}"),
    }
}

async fn rows(app: &Arc<App>, id: &str, order: JobRowOrder, offset: u32) -> Vec<JobRow> {
    let get = Command::GetJobRows { id: id.to_owned(), order, offset, limit: 500 };
    match app.call(get).await.unwrap() {
        Reply::JobRows { rows } => rows,
        other => panic!("{other:?}"),
    }
}

async fn charts(app: &Arc<App>, id: &str) -> JobCharts {
    match app.call(Command::GetJobCharts { id: id.to_owned() }).await.unwrap() {
        Reply::JobCharts { charts } => charts,
        other => panic!("{other:?}"),
    }
}

/// Waits until a job is as wanted, asking after each event: one may have come before.
async fn until(app: &Arc<App>, id: &str, is_wanted: impl Fn(&Job) -> bool) -> Job {
    let mut events = app.subscribe();
    loop {
        let job = jobs(app).await.into_iter().find(|job| job.id == id).expect("the job");
        if is_wanted(&job) {
            return job;
        }
        while !matches!(next(&mut events).await, Event::Job { job } if job.id == id) {}
    }
}

async fn done(app: &Arc<App>, id: &str) -> Job {
    let job = until(app, id, |job| job.state != JobState::Running).await;
    assert_eq!((job.state, job.reason.as_deref()), (JobState::Done, None));
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_interrupted_again_and_again_asks_every_row_once() {
    const NUM_ROWS: u32 = 1500;
    let home = home_with_model();
    let app = open(&home).await;
    let predicate = question(JobQuestionKind::Predicate, &[]);
    let id = create(&app, predicate, lines(NUM_ROWS as usize)).await.id;
    let mut app = app;
    for _ in 0..3 {
        let before = jobs(&app).await[0].num_answered;
        let more = until(&app, &id, |job| job.num_answered > before).await.num_answered;
        app.close().await;
        drop(app);
        app = open(&home).await;
        let after = jobs(&app).await[0].num_answered;
        assert!(after >= more, "{after} of {more} answers are left");
    }
    let job = done(&app, &id).await;
    assert_eq!((job.num_rows, job.num_answered, job.num_failed), (NUM_ROWS, NUM_ROWS, 0));
    for offset in (0..NUM_ROWS).step_by(500) {
        for (index, row) in rows(&app, &id, JobRowOrder::Position, offset).await.iter().enumerate()
        {
            let position = offset + index as u32;
            assert_eq!((row.position, &row.text), (position, &format!("text {position}")));
            let probabilities = row.probabilities.as_ref().expect("an answer");
            assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-6);
        }
    }
    assert_eq!(charts(&app, &id).await.histogram.iter().sum::<u32>(), NUM_ROWS);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_paused_continued_deleted_and_restored() {
    let home = home_with_model();
    let app = open(&home).await;
    let choice = question(JobQuestionKind::Choice, &["granite", "basalt", "slate"]);
    let id = create(&app, choice, lines(2000)).await.id;
    until(&app, &id, |job| job.num_answered > 0).await;
    app.call(Command::PauseJob { id: id.clone() }).await.unwrap();
    let paused = jobs(&app).await.remove(0);
    assert_eq!((paused.state, paused.reason), (JobState::Paused, None));
    app.call(Command::RenameJob { id: id.clone(), name: " Rocks ".to_owned() }).await.unwrap();
    app.call(Command::ContinueJob { id: id.clone() }).await.unwrap();
    until(&app, &id, |job| job.num_answered > paused.num_answered).await;

    app.call(Command::DeleteJob { id: id.clone() }).await.unwrap();
    assert_eq!(jobs(&app).await, []);
    let get = |id| Command::GetJobCharts { id };
    check_failure(&app, get(id.clone()), FailureCode::NotFound, "no longer exists").await;
    app.call(Command::RestoreJob { id: id.clone() }).await.unwrap();
    let job = done(&app, &id).await;
    assert_eq!((job.name.as_str(), job.num_answered), ("Rocks", 2000));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_calibrate_and_are_exported() {
    let home = home_with_model();
    let app = open(&home).await;
    let id = create(&app, question(JobQuestionKind::Score, &["low", "high"]), lines(12)).await.id;
    done(&app, &id).await;
    let calibrate = || Command::CalibrateJob { id: id.clone() };
    check_failure(&app, calibrate(), FailureCode::Invalid, "at least 10").await;
    let wrong = Command::CorrectJobRow { id: id.clone(), position: 0, option: Some(2) };
    check_failure(&app, wrong, FailureCode::Invalid, "2 options").await;
    for position in 0..12 {
        let option = Some(u32::from(position % 3 == 0));
        app.call(Command::CorrectJobRow { id: id.clone(), position, option }).await.unwrap();
    }
    app.call(calibrate()).await.unwrap();
    let job = jobs(&app).await.remove(0);
    assert_eq!(job.num_corrected, 12);
    assert!(job.temperature.is_some_and(|temperature| temperature > 0.0));
    let charts = charts(&app, &id).await;
    let (before, after) = (charts.quality.unwrap(), charts.calibrated.unwrap());
    // A temperature changes no order of two options.
    assert_eq!((before.num_rows, before.accuracy), (12, after.accuracy));
    let certainty =
        |row: &JobRow| row.probabilities.as_ref().unwrap().iter().copied().fold(0.0, f64::max);
    let sorted = rows(&app, &id, JobRowOrder::Certainty, 0).await;
    assert!(sorted.is_sorted_by(|a, b| certainty(a) <= certainty(b) + 1e-12));

    app.call(Command::UncalibrateJob { id: id.clone() }).await.unwrap();
    assert_eq!(jobs(&app).await[0].temperature, None);
    match app.call(Command::ExportJob { id: id.clone() }).await.unwrap() {
        Reply::Csv { text } => {
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines[0].starts_with("\u{feff}\"text\",\"label\","), "{text}");
            assert!(lines[0].contains("\"p(low)\",\"p(high)\""), "{text}");
            assert_eq!(lines.len(), 13);
            assert!(lines[1].starts_with("\"text 0\","), "{text}");
            assert!(lines[1].ends_with(",\"high\",\"\""), "{text}");
            let file = home.path().join("stones.csv");
            std::fs::write(&file, "older").unwrap();
            app.export_job(&id, &file).await.unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
            let dangling = home.path().join("dangling.csv");
            std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
            assert!(app.export_job(&id, &dangling).await.is_err());
            assert!(dangling.is_symlink());
            let missing = home.path().join("no folder/stones.csv");
            let failure = app.export_job(&id, &missing).await.unwrap_err();
            assert_eq!(failure.code, FailureCode::Storage);
            assert!(failure.message.contains("no folder/stones.csv"), "{}", failure.message);
            let Some(FailureKind::NotWritable { detail: Some(why), .. }) = failure.kind.as_deref()
            else {
                panic!("{failure:?}")
            };
            assert!(failure.message.contains(why), "the system's reason: {why}");
        }
        other => panic!("{other:?}"),
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_its_model_waits_with_the_reason() {
    let home = home_with_model();
    let app = open(&home).await;
    let predicate = question(JobQuestionKind::Predicate, &[]);
    let id = create(&app, predicate, lines(1000)).await.id;
    until(&app, &id, |job| job.num_answered > 0).await;
    app.close().await;
    drop(app);
    let (models, away) = (home.path().join("models"), home.path().join("away"));
    std::fs::rename(&models, &away).unwrap();

    let app = open(&home).await;
    let job = until(&app, &id, |job| job.state != JobState::Running).await;
    assert_eq!(job.state, JobState::Paused);
    assert!(job.reason.is_some_and(|reason| reason.contains(MODEL)));
    let _ = std::fs::remove_dir_all(&models);
    std::fs::rename(&away, &models).unwrap();
    app.call(Command::ContinueJob { id: id.clone() }).await.unwrap();
    assert_eq!(done(&app, &id).await.num_answered, 1000);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_says_what_would_be_asked_and_what_is_missing() {
    async fn preview(app: &Arc<App>, question: JobQuestion, source: JobSource) -> JobPreview {
        match app.call(Command::PreviewJob { question, source }).await.unwrap() {
            Reply::JobPreview { preview } => preview,
            other => panic!("{other:?}"),
        }
    }
    let home = home_with_model();
    let app = open(&home).await;
    let csv = |column: Option<&str>| {
        let content = "id,text\n1,granite\n2,grass\n3,\n".to_owned();
        let column = column.map(str::to_owned);
        JobSource::Written(JobTexts { format: TextFormat::Csv, content, column })
    };
    let ready = preview(&app, question(JobQuestionKind::Predicate, &[]), csv(None)).await;
    assert_eq!((ready.num_rows, ready.num_empty), (2, 1));
    assert_eq!(ready.column.as_deref(), Some("text"));
    assert_eq!(ready.columns, ["id", "text"]);
    let expected = "Is it a stone?\nAnswer Yes or No.\n\ngranite";
    assert_eq!(ready.prompt.as_deref(), Some(expected));
    let missing = preview(&app, question(JobQuestionKind::Choice, &["a"]), csv(Some("x"))).await;
    assert_eq!(missing.prompt, None);
    assert!(missing.texts_problem.unwrap().contains("no column “x”"));
    assert!(missing.options_problem.unwrap().contains("2 to 255 options"));

    let twice = question(JobQuestionKind::Choice, &["a", "a"]);
    check_failure(&app, creation(twice, csv(None)), FailureCode::Invalid, "twice").await;
    let predicate = || question(JobQuestionKind::Predicate, &[]);
    check_failure(&app, creation(predicate(), lines(0)), FailureCode::Invalid, "no text").await;
    let misspelt = JobQuestion { instructions: "Is {Text} a stone?".to_owned(), ..predicate() };
    let refused = preview(&app, misspelt, csv(None)).await.question_problem.unwrap();
    assert_eq!(
        refused,
        "{Text} stands for nothing: write {text} where the text goes, or leave it out."
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_that_are_found_are_the_texts_of_a_job() {
    async fn found(app: &Arc<App>, text: &str) -> Vec<String> {
        match app.call(Command::SearchConversations { text: text.to_owned() }).await.unwrap() {
            Reply::FoundConversations { ids } => ids,
            other => panic!("{other:?}"),
        }
    }
    let home = home_with_model();
    let app = open(&home).await;
    set_for_all(&app, "max_tokens", 2).await;
    let mut ids = Vec::new();
    for questions in [&["Is granite hard?", "And basalt?"][..], &["Is grass green?"]] {
        let id = new_conversation(&app).await;
        for question in questions {
            answered(&app, &id, question).await;
        }
        ids.push(id);
    }
    assert_eq!(found(&app, " BASALT ").await, ids[..1]);
    let all = found(&app, "").await;
    assert_eq!(all, [ids[1].clone(), ids[0].clone()]);

    let source = |part| JobSource::Conversations { ids: all.clone(), part };
    let predicate = || question(JobQuestionKind::Predicate, &[]);
    let last = create(&app, predicate(), source(ConversationPart::LastQuestion)).await.id;
    let texts: Vec<String> =
        rows(&app, &last, JobRowOrder::Position, 0).await.into_iter().map(|row| row.text).collect();
    assert_eq!(texts, ["Is grass green?", "And basalt?"]);
    let whole = create(&app, predicate(), source(ConversationPart::Whole)).await.id;
    let text = rows(&app, &whole, JobRowOrder::Position, 0).await.remove(1).text;
    assert!(text.starts_with("User: Is granite hard?\n\n"), "{text}");
    assert!(text.contains("\n\nUser: And basalt?"), "{text}");
    done(&app, &last).await;
    done(&app, &whole).await;

    app.call(Command::DeleteConversations { ids: vec![ids[0].clone()] }).await.unwrap();
    assert_eq!(found(&app, "").await, ids[1..]);
    let gone = creation(predicate(), source(ConversationPart::Whole));
    check_failure(&app, gone, FailureCode::NotFound, "no longer exists").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_is_too_long_is_the_only_one_without_an_answer() {
    let home = home_with_model();
    let app = open(&home).await;
    let content = format!("short\n{}", "word ".repeat(20_000));
    let format = TextFormat::Lines;
    let source = JobSource::Written(JobTexts { format, content, column: None });
    let id = create(&app, question(JobQuestionKind::Predicate, &[]), source).await.id;
    let job = done(&app, &id).await;
    assert_eq!((job.num_answered, job.num_failed), (1, 1));
    let rows = rows(&app, &id, JobRowOrder::Position, 0).await;
    assert!(rows[0].probabilities.is_some());
    let expected = "The text does not fit into the model’s context.";
    assert_eq!(rows[1].error.as_deref(), Some(expected));
    app.close().await;
}

/// Each text is asked about twice, with the options in two orders.
#[tokio::test(flavor = "multi_thread")]
async fn texts_behind_one_that_is_too_long_have_their_own_answers() {
    let home = home_with_model();
    let app = open(&home).await;
    let choice = || question(JobQuestionKind::Choice, &["stone", "wood", "glass"]);
    let source = |texts: &[&str]| {
        let content = texts.join("\n");
        JobSource::Written(JobTexts { format: TextFormat::Lines, content, column: None })
    };
    let long = "word ".repeat(20_000);
    let with_long = source(&["a pebble", &long, "a plank", "a bottle of milk"]);
    let id = create(&app, choice(), with_long).await.id;
    let job = done(&app, &id).await;
    assert_eq!((job.num_answered, job.num_failed), (3, 1));
    let found = rows(&app, &id, JobRowOrder::Position, 0).await;
    assert!(found[1].error.is_some(), "{:?}", found[1]);

    let id = create(&app, choice(), source(&["a pebble", "a plank", "a bottle of milk"])).await.id;
    done(&app, &id).await;
    let expected = rows(&app, &id, JobRowOrder::Position, 0).await;
    for (found, expected) in std::iter::zip([&found[0], &found[2], &found[3]], &expected) {
        let [found, expected] = [found, expected].map(|row| row.probabilities.as_ref().unwrap());
        for (found, expected) in std::iter::zip(found, expected) {
            assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
        }
    }
    app.close().await;
}
