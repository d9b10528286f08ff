//! Runs jobs: window after window of rows that wait, each saved before the next begins.

use std::sync::Arc;
use std::time::Instant;

use cairn_chat::{Message, Role};
use cairn_engine::{
    ClassifyRequest, ClassifyRow, EngineError, PromptInput, RowAnswer, WorkFor, WorkKind,
};
use cairn_store::{AnsweredRow, JobAnswer, JobState, StoreError, UncleanSubject};
use tokio_util::sync::CancellationToken;

use super::answers::{self, Logprobs, Reading};
use super::question_text;
use crate::app::App;
use crate::crashes::record::Step;
use crate::decisions::{answer_request, in_groups};
use crate::models::loading;
use crate::wire::{Event, Failure, NoticeKind};

/// How many rows are asked at once. A kill loses what was computed of one window.
const WINDOW: i64 = 128;

/// Pauses the jobs that are set aside, before the others are resumed.
pub(crate) async fn pause_set_aside(app: &App) {
    let reason = "Cairn quit unexpectedly twice while it ran.";
    let paused = async {
        for job in app.store.jobs().await? {
            if job.state == JobState::Running && app.crashes.is_job_set_aside(&job.id) {
                app.store.set_job_state(&job.id, JobState::Paused, Some(reason)).await?;
            }
        }
        Ok::<_, StoreError>(())
    };
    if let Err(error) = paused.await {
        tracing::warn!("jobs that are set aside are not paused: {error}");
    }
}

/// Starts the jobs that ran when the app was closed, in the order in which they were made.
pub(crate) async fn resume(app: Arc<App>) {
    match app.store.jobs().await {
        Ok(jobs) => {
            let running = jobs.into_iter().rev().filter(|job| job.state == JobState::Running);
            // A job that is set aside is not resumed even if it could not be paused.
            let resumed = running.filter(|job| !app.crashes.is_job_set_aside(&job.id));
            resumed.for_each(|job| start(&app, job.id));
        }
        Err(error) => tracing::warn!("jobs do not go on: {error}"),
    }
}

/// Starts the task of a job whose row says that it runs, unless it has one.
pub(super) fn start(app: &Arc<App>, id: String) {
    if let Some(stop) = app.jobs.begin(&id, &app.closing) {
        app.spawn(run(app.clone(), id, stop));
    }
}

/// Sends a job as it is now, unless it is deleted.
pub(super) async fn emit(app: &App, id: &str) {
    let Ok(job) = app.store.listed_job(id).await else { return };
    match answers::shown(app, job) {
        Ok(job) => app.emit(Event::Job { job }),
        Err(failure) => tracing::warn!("{}", failure.message),
    }
}

async fn run(app: Arc<App>, id: String, stop: CancellationToken) {
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => return,
        ended = run_in_turn(&app, &id) => ended,
    };
    if !app.jobs.end(&id, &stop) {
        return;
    }
    let (state, reason) = match ended {
        Ok(()) => (JobState::Done, None),
        Err(Ended::NoModel(failure)) => (JobState::Paused, Some(failure.message)),
        Err(Ended::Failed(failure)) => (JobState::Failed, Some(failure.message)),
    };
    if let Err(error) = app.store.set_job_state(&id, state, reason.as_deref()).await {
        let text = format!("What became of a job was not saved: {error}.");
        app.emit_warning(text, NoticeKind::JobNotSaved { why: error.into() });
    }
    emit(&app, &id).await;
}

/// Why a job does not go on.
enum Ended {
    /// Its model is missing or cannot be loaded now.
    NoModel(Failure),
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Ended {
    fn from(error: E) -> Self {
        Ended::Failed(error.into())
    }
}

async fn run_in_turn(app: &Arc<App>, id: &str) -> Result<(), Ended> {
    let _turn = app.jobs.turn.lock().await;
    app.jobs.has_turn(id);
    emit(app, id).await;
    let job = app.store.listed_job(id).await?;
    let reading = Reading::of_job(&job)?;
    loop {
        let waiting = app.store.waiting_job_rows(id, WINDOW).await?;
        if waiting.is_empty() {
            return Ok(());
        }
        // For each window, because a person may unload the model in between.
        let model = loading::ensure_loaded_beside(app, &job.model).await.map_err(Ended::NoModel)?;
        let begun = Instant::now();
        let step = app.crashes.begin(Step::of_job(id, &model));
        let rows = ask(app, model, &reading, &waiting).await;
        if rows.as_ref().is_ok_and(|rows| rows.iter().any(Result::is_ok)) {
            step.succeeded();
        }
        drop(step);
        let rows = rows?;
        let temperature = app.store.listed_job(id).await?.temperature;
        let answers = std::iter::zip(&waiting, rows);
        let answers: Vec<JobAnswer> = answers
            .map(|((position, _), row)| answer(&reading, temperature, *position, row))
            .collect();
        app.store.save_job_answers(id, &answers).await?;
        app.crashes.forgive(&app.store, [UncleanSubject::Job(id.to_owned())]).await;
        let rows_per_second = answers.len() as f64 / begun.elapsed().as_secs_f64().max(1e-3);
        app.jobs.is_at(id, rows_per_second);
        emit(app, id).await;
    }
}

/// The answers to all prompts of some rows.
async fn ask(
    app: &App,
    model: String,
    reading: &Reading,
    waiting: &[(i64, String)],
) -> Result<Vec<Result<Logprobs, EngineError>>, EngineError> {
    let asked = waiting.iter().flat_map(|(_, text)| question_text::about(&reading.question, text));
    let rows = asked.map(|asked| {
        let message = Message { role: Role::User, content: asked.text, token_ids: None };
        ClassifyRow {
            prompt: PromptInput::Messages(vec![message]),
            options: asked.answers.into_iter().map(|(answer, _)| answer).collect(),
        }
    });
    let request = ClassifyRequest {
        work_for: WorkFor::kind(WorkKind::Job),
        ..answer_request(model, rows.collect())
    };
    let answers = app.engine.classify(request).answers(|| ()).await?;
    let rows = in_groups(answers, waiting.iter().map(|_| reading.num_prompts()));
    let logprobs = |row: Vec<RowAnswer>| row.into_iter().map(|answer| answer.option_logprobs);
    Ok(rows.into_iter().map(|row| row.map(|row| logprobs(row).collect())).collect())
}

fn answer(
    reading: &Reading,
    temperature: Option<f64>,
    position: i64,
    row: Result<Logprobs, EngineError>,
) -> JobAnswer {
    let saved = |logprobs: Logprobs| {
        let certainty = reading.certainty(&logprobs, temperature);
        let text = serde_json::to_string(&logprobs).map_err(|error| error.to_string())?;
        Ok(AnsweredRow { logprobs: text, certainty })
    };
    let reason = |error: EngineError| match error.is_too_long() {
        // What the engine advises is about a conversation.
        true => "The text does not fit into the model’s context.".to_owned(),
        false => Failure::from(error).message,
    };
    let outcome = row.map_err(reason).and_then(saved);
    JobAnswer { position, outcome }
}
