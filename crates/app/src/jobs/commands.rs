//! The commands about jobs.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::{JobState, NewJob, UncleanSubject};

use super::answers::{self, Logprobs, Reading};
use super::{conversations, export, question_text, running, texts};
use crate::app::App;
use crate::clock::now_ms;
use crate::decisions::calibration::{fit_temperature, quality};
use crate::decisions::{MAX_LEVELS, MAX_OPTIONS};
use crate::decisions::{Question, QuestionError};
use crate::models::{list, loading};
use crate::names::checked_name;
use crate::undo::UNDO_LIMIT;
use crate::wire::{
    Command, Event, Failure, FailureKind, Job, JobCharts, JobPreview, JobQuestion, JobSource,
    JobTexts, Reply,
};

/// The most rows of a reply.
const MAX_ROWS: u32 = 500;
/// Fewer corrections say nothing about a temperature.
const MIN_CORRECTIONS: usize = 10;
const NUM_HISTOGRAM_BINS: u32 = 20;

/// Runs one command about jobs; every other command is a fault of the caller.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::PreviewJob { question, source } => {
            Ok(Reply::JobPreview { preview: preview(app, &question, &source).await })
        }
        Command::CreateJob { name, model, question, source } => {
            create(app, &name, model, &question, &source).await
        }
        Command::GetJobRows { id, order, offset, limit } => Ok(Reply::JobRows {
            rows: answers::rows(app, &id, order, offset, limit.min(MAX_ROWS)).await?,
        }),
        Command::GetJobCharts { id } => Ok(Reply::JobCharts { charts: charts(app, &id).await? }),
        Command::CorrectJobRow { id, position, option } => {
            correct(app, &id, position, option).await
        }
        Command::CalibrateJob { id } => calibrate(app, &id).await,
        Command::UncalibrateJob { id } => set_temperature(app, &id, None).await,
        Command::PauseJob { id } => pause(app, &id).await,
        Command::ContinueJob { id } => go_on(app, id).await,
        Command::RenameJob { id, name } => {
            app.store.rename_job(&id, checked_name(&name)?).await?;
            changed(app, &id).await
        }
        Command::DeleteJob { id } => delete(app, id).await,
        Command::RestoreJob { id } => {
            app.store.restore_job(&id).await?;
            if app.store.listed_job(&id).await?.state == JobState::Running {
                running::start(app, id.clone());
            }
            changed(app, &id).await
        }
        Command::ExportJob { id } => Ok(Reply::Csv { text: export::csv(app, &id).await? }),
        _ => {
            let jobs = app.store.jobs().await?.into_iter();
            let jobs = jobs.map(|job| answers::shown(app, job)).collect::<Result<_, _>>()?;
            Ok(Reply::Jobs { jobs })
        }
    }
}

/// Sends a job that has changed.
async fn changed(app: &App, id: &str) -> Result<Reply, Failure> {
    running::emit(app, id).await;
    Ok(Reply::Done)
}

async fn preview(app: &App, question: &JobQuestion, source: &JobSource) -> JobPreview {
    let meant = answers::question(question);
    let question_problem = check_instructions(&meant).err().map(|failure| failure.message);
    let options_problem = check_options(&meant).err().map(|failure| failure.message);
    let can_be_asked = question_problem.is_none() && options_problem.is_none();
    let mut preview = match source {
        JobSource::Written(source) => preview_of_file(source),
        JobSource::Conversations { ids, part } => {
            // The first is enough: each has a question.
            let first = ids.get(..1).unwrap_or_default();
            let texts = conversations::texts(app, first, *part).await;
            let num_rows = ids.len();
            previewed(texts.map_err(|failure| failure.message), num_rows)
        }
    };
    let first = preview.prompt.take().filter(|_| can_be_asked);
    let asked = first.and_then(|text| question_text::about(&meant, &text).into_iter().next());
    let prompt = asked.map(|asked| asked.text);
    JobPreview { prompt, question_problem, options_problem, ..preview }
}

fn preview_of_file(source: &JobTexts) -> JobPreview {
    let columns = texts::columns(&source.content, source.format).unwrap_or_default();
    let column = source.column.clone().filter(|column| columns.contains(column));
    let column = column.or_else(|| texts::default_column(&columns).cloned());
    let (num_empty, texts) =
        match texts::read(&source.content, source.format, source.column.as_deref()) {
            Ok(read) => (read.num_empty, Ok(read.texts)),
            Err(error) => (0, Err(error.to_string())),
        };
    let num_rows = texts.as_ref().map_or(0, Vec::len);
    JobPreview { columns, column, num_empty: count(num_empty), ..previewed(texts, num_rows) }
}

/// A preview whose prompt is still the first text.
fn previewed(texts: Result<Vec<String>, String>, num_rows: usize) -> JobPreview {
    let (prompt, texts_problem) = match texts {
        Ok(texts) => (texts.into_iter().next(), None),
        Err(problem) => (None, Some(problem)),
    };
    let no_text = || texts::TextsError::Empty.to_string();
    JobPreview {
        columns: Vec::new(),
        column: None,
        num_rows: count(num_rows),
        num_empty: 0,
        texts_problem: texts_problem.or_else(|| prompt.is_none().then(no_text)),
        prompt,
        question_problem: None,
        options_problem: None,
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Refuses instructions that ask nothing, or that have a misspelt place for the text.
fn check_instructions(question: &Question) -> Result<(), Failure> {
    if question.instructions.trim().is_empty() {
        return Err(question_refused(&QuestionError::Empty));
    }
    match question_text::misspelt_placeholder(&question.instructions) {
        None => Ok(()),
        Some(word) => Err(Failure::invalid(format!(
            "{word} stands for nothing: write {} where the text goes, or leave it out.",
            question_text::PLACEHOLDER
        ))
        .of_kind(FailureKind::BadPlaceholder {
            word: word.to_string(),
            meant: question_text::PLACEHOLDER.to_owned(),
        })),
    }
}

fn check_options(question: &Question) -> Result<(), Failure> {
    if question.options().iter().any(|option| option.label.is_empty()) {
        return Err(Failure::invalid("An option has no name.").of_kind(FailureKind::EmptyOption));
    }
    match question.check() {
        Ok(()) | Err(QuestionError::Empty) => Ok(()),
        Err(error) => Err(question_refused(&error)),
    }
}

fn question_refused(error: &QuestionError) -> Failure {
    let of = |most: usize, count: usize| FailureKind::OptionCount {
        most: crate::convert::tokens(most),
        count: crate::convert::tokens(count),
    };
    let kind = match error {
        QuestionError::Empty => FailureKind::EmptyQuestion,
        QuestionError::NumOptions { count } => of(MAX_OPTIONS, *count),
        QuestionError::NumLevels { count } => of(MAX_LEVELS, *count),
        QuestionError::Twice { label } => FailureKind::OptionTwice { label: label.clone() },
    };
    Failure::invalid(crate::convert::sentence(error)).of_kind(kind)
}

async fn create(
    app: &Arc<App>,
    name: &str,
    model: Option<String>,
    question: &JobQuestion,
    source: &JobSource,
) -> Result<Reply, Failure> {
    let name = checked_name(name)?.to_owned();
    let meant = answers::question(question);
    check_instructions(&meant)?;
    check_options(&meant)?;
    let texts = texts_of(app, source).await?;
    let model = match model {
        Some(model) => model,
        None => loading::expected_name(app).await.ok_or_else(loading::no_model)?,
    };
    let question = serde_json::to_string(question)
        .map_err(|error| Failure::invalid(format!("The question cannot be stored: {error}.")))?;
    let job = app.store.create_job(&NewJob { name, model, question, texts }, now_ms()).await?;
    let job = Job { is_waiting: true, ..answers::shown(app, job)? };
    // Told of before it starts: a short one may be done at once, and the last event counts.
    app.emit(Event::Job { job: job.clone() });
    running::start(app, job.id.clone());
    Ok(Reply::Job { job })
}

async fn texts_of(app: &App, source: &JobSource) -> Result<Vec<String>, Failure> {
    let refused =
        |error: texts::TextsError| Failure::invalid(error.to_string()).of_kind(error.kind());
    match source {
        JobSource::Written(JobTexts { format, content, column }) => {
            texts::read(content, *format, column.as_deref()).map(|read| read.texts).map_err(refused)
        }
        JobSource::Conversations { ids, .. } if ids.len() > texts::MAX_ROWS => {
            Err(refused(texts::TextsError::TooMany))
        }
        JobSource::Conversations { ids, part } => {
            let texts = conversations::texts(app, ids, *part).await?;
            if texts.is_empty() { Err(refused(texts::TextsError::Empty)) } else { Ok(texts) }
        }
    }
}

async fn charts(app: &App, id: &str) -> Result<JobCharts, Failure> {
    let job = app.store.listed_job(id).await?;
    let reading = Reading::of_job(&job)?;
    let corrected = corrected(app, id, &reading).await?;
    let quality_at = |temperature| {
        quality(&reading.checked(&corrected, temperature)).map(answers::shown_quality)
    };
    Ok(JobCharts {
        histogram: app.store.job_histogram(id, NUM_HISTOGRAM_BINS).await?,
        quality: quality_at(None),
        calibrated: job.temperature.and_then(|temperature| quality_at(Some(temperature))),
    })
}

/// The log-probabilities of the corrected rows, and their correct options.
async fn corrected(
    app: &App,
    id: &str,
    reading: &Reading,
) -> Result<Vec<(Logprobs, usize)>, Failure> {
    let rows = app.store.corrected_job_rows(id).await?.into_iter();
    let parsed = rows.filter_map(|(logprobs, correct)| {
        let correct = usize::try_from(correct).ok().filter(|&one| one < reading.num_options())?;
        Some((answers::stored_logprobs(&logprobs)?, correct))
    });
    Ok(parsed.collect())
}

async fn correct(
    app: &App,
    id: &str,
    position: u32,
    option: Option<u32>,
) -> Result<Reply, Failure> {
    let reading = Reading::of_job(&app.store.listed_job(id).await?)?;
    let count = reading.num_options();
    if option.is_some_and(|option| option as usize >= count) {
        return Err(Failure::invalid(format!("There are {count} options, counted from 0.")));
    }
    app.store.correct_job_row(id, position.into(), option.map(i64::from)).await?;
    changed(app, id).await
}

async fn calibrate(app: &App, id: &str) -> Result<Reply, Failure> {
    let reading = Reading::of_job(&app.store.listed_job(id).await?)?;
    let corrected = corrected(app, id, &reading).await?;
    if corrected.len() < MIN_CORRECTIONS {
        return Err(Failure::invalid(format!(
            "Check at least {MIN_CORRECTIONS} answered rows first: {} are checked.",
            corrected.len()
        ))
        .of_kind(FailureKind::TooFewChecked {
            least: crate::convert::tokens(MIN_CORRECTIONS),
            count: crate::convert::tokens(corrected.len()),
        }));
    }
    let fit = move || fit_temperature(|temperature| reading.checked(&corrected, Some(temperature)));
    let Some(temperature) = app.blocking(fit).await else {
        return Err(Failure::fault("A fault in Cairn stopped the calibration."));
    };
    set_temperature(app, id, Some(temperature)).await
}

async fn set_temperature(app: &App, id: &str, temperature: Option<f64>) -> Result<Reply, Failure> {
    let reading = Reading::of_job(&app.store.listed_job(id).await?)?;
    let stored = app.store.job_answers(id).await?.into_iter();
    let certainty = |(position, logprobs): (i64, String)| {
        let logprobs = answers::stored_logprobs(&logprobs)?;
        Some((position, reading.certainty(&logprobs, temperature)))
    };
    let certainties: Vec<(i64, f64)> = stored.filter_map(certainty).collect();
    app.store.set_job_temperature(id, temperature, &certainties).await?;
    changed(app, id).await
}

async fn pause(app: &App, id: &str) -> Result<Reply, Failure> {
    if app.store.listed_job(id).await?.state == JobState::Running {
        app.jobs.stop(id);
        app.store.set_job_state(id, JobState::Paused, None).await?;
    }
    changed(app, id).await
}

async fn go_on(app: &Arc<App>, id: String) -> Result<Reply, Failure> {
    let model = app.store.listed_job(&id).await?.model;
    let subjects = [UncleanSubject::Job(id.clone()), UncleanSubject::Model(model)];
    if app.crashes.forgive(&app.store, subjects).await {
        list::emit(app).await;
    }
    app.store.retry_failed_job_rows(&id).await?;
    app.store.set_job_state(&id, JobState::Running, None).await?;
    running::start(app, id.clone());
    changed(app, &id).await
}

async fn delete(app: &Arc<App>, id: String) -> Result<Reply, Failure> {
    let (job, now_ms) = (app.store.listed_job(&id).await?, now_ms());
    // First, so that its task does not end because the row is gone.
    app.jobs.stop(&id);
    let deleted = app.store.delete_job(&id, now_ms).await;
    if deleted.is_err() && job.state == JobState::Running {
        running::start(app, id.clone());
    }
    deleted?;
    app.spawn(purge_later(app.clone(), id.clone(), now_ms, UNDO_LIMIT));
    app.emit(Event::JobDeleted { id });
    Ok(Reply::Done)
}

/// Purges a job that was deleted at `deleted_at_ms` after `undo_limit`, unless it is restored before.
/// If the app closes first, closing purges it.
async fn purge_later(app: Arc<App>, id: String, deleted_at_ms: i64, undo_limit: Duration) {
    if !app.is_open_after(undo_limit).await {
        return;
    }
    if let Err(error) = app.store.purge_job(&id, deleted_at_ms).await {
        tracing::warn!("a deleted job stays until the next start: {error}");
    }
}
