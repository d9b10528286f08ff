//! Between what the store has of a job and what is shown of it: the question, the log-probabilities
//! of a row, the probabilities at the job's temperature.

use crate::app::App;
use crate::decisions::calibration::{Checked, Quality, best};
use crate::decisions::{Described, Question, QuestionKind, Wording};
use crate::wire::{
    CalibrationPoint, Failure, FailureCode, Job, JobOption, JobQuality, JobQuestion,
    JobQuestionKind, JobRow, JobRowOrder, JobState,
};

/// The log-probabilities of a row's answers, for each order in which its options were listed.
pub(super) type Logprobs = Vec<Vec<f32>>;

/// The question of a job and how it is asked, which is the same for all texts.
pub(super) struct Reading {
    pub question: Question,
    wordings: Vec<Wording>,
}

impl Reading {
    pub(super) fn new(question: Question) -> Reading {
        let wordings = question.wordings();
        Reading { question, wordings }
    }

    /// Of a row that was stored. A row that no version writes fails.
    pub(super) fn of_job(job: &cairn_store::Job) -> Result<Reading, Failure> {
        Ok(Reading::new(question(&stored_question(job)?)))
    }

    /// How many prompts a row has.
    pub(super) fn num_prompts(&self) -> usize {
        self.wordings.len()
    }

    pub(super) fn num_options(&self) -> usize {
        self.question.options().len().max(2)
    }

    pub(super) fn probabilities(&self, logprobs: &Logprobs, temperature: Option<f64>) -> Vec<f64> {
        self.question.probabilities(&self.wordings, logprobs, temperature.unwrap_or(1.0))
    }

    pub(super) fn certainty(&self, logprobs: &Logprobs, temperature: Option<f64>) -> f64 {
        best(&self.probabilities(logprobs, temperature)).1
    }

    pub(super) fn checked(
        &self,
        rows: &[(Logprobs, usize)],
        temperature: Option<f64>,
    ) -> Vec<Checked> {
        let checked = |(logprobs, correct): &(Logprobs, usize)| Checked {
            probabilities: self.probabilities(logprobs, temperature),
            correct: *correct,
        };
        rows.iter().map(checked).collect()
    }

    /// The name of an option, in the words of the exported file.
    pub(super) fn label(&self, option: usize) -> &str {
        match (&self.question.kind, option) {
            (QuestionKind::Predicate, 0) => "no",
            (QuestionKind::Predicate, _) => "yes",
            _ => self.question.options().get(option).map_or("", |option| option.label.as_str()),
        }
    }
}

/// The question that is meant.
pub(super) fn question(wire: &JobQuestion) -> Question {
    let described = |option: &JobOption| Described {
        label: option.label.trim().to_owned(),
        description: option
            .description
            .as_ref()
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty()),
    };
    let options = || wire.options.iter().map(described).collect();
    let kind = match wire.kind {
        JobQuestionKind::Predicate => QuestionKind::Predicate,
        JobQuestionKind::Choice => QuestionKind::Choice(options()),
        JobQuestionKind::Score => QuestionKind::Score(options()),
    };
    Question { instructions: wire.instructions.clone(), kind }
}

pub(super) fn stored_question(job: &cairn_store::Job) -> Result<JobQuestion, Failure> {
    serde_json::from_str(&job.question).map_err(|error| unreadable(job, &error))
}

pub(super) fn stored_logprobs(text: &str) -> Option<Logprobs> {
    // Minus infinity has no number in JSON.
    let stored: Vec<Vec<Option<f32>>> = serde_json::from_str(text).ok()?;
    let number = |logprob: Option<f32>| logprob.unwrap_or(f32::NEG_INFINITY);
    Some(stored.into_iter().map(|row| row.into_iter().map(number).collect()).collect())
}

fn unreadable(job: &cairn_store::Job, error: &serde_json::Error) -> Failure {
    let message = format!("The question of “{}” cannot be read: {error}.", job.name);
    Failure::new(FailureCode::Storage, message)
}

/// A job as it is shown.
pub(super) fn shown(app: &App, job: cairn_store::Job) -> Result<Job, Failure> {
    let question = stored_question(&job)?;
    let state = match job.state {
        cairn_store::JobState::Running => JobState::Running,
        cairn_store::JobState::Paused => JobState::Paused,
        cairn_store::JobState::Done => JobState::Done,
        cairn_store::JobState::Failed => JobState::Failed,
    };
    let (is_waiting, rows_per_second) = app.jobs.pace(&job.id);
    Ok(Job {
        question,
        state,
        // A quiet start has not begun with it yet.
        is_waiting: state == JobState::Running
            && (is_waiting || (app.crashes.is_quiet() && !app.jobs.has(&job.id))),
        is_set_aside: state == JobState::Paused && app.crashes.is_job_set_aside(&job.id),
        rows_per_second: rows_per_second.filter(|_| state == JobState::Running),
        id: job.id,
        name: job.name,
        model: job.model,
        reason: job.reason,
        temperature: job.temperature,
        created_at_ms: job.created_at_ms,
        num_rows: count(job.num_rows),
        num_answered: count(job.num_answered),
        num_failed: count(job.num_failed),
        num_corrected: count(job.num_corrected),
    })
}

pub(super) fn shown_row(
    reading: &Reading,
    temperature: Option<f64>,
    row: cairn_store::JobRow,
) -> JobRow {
    let logprobs = row.logprobs.as_deref().and_then(stored_logprobs);
    JobRow {
        position: count(row.position),
        text: row.text,
        probabilities: logprobs.map(|logprobs| reading.probabilities(&logprobs, temperature)),
        correction: row.correction.map(count),
        error: row.error,
    }
}

pub(super) fn shown_quality(quality: Quality) -> JobQuality {
    let num_rows = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let point = |point: crate::decisions::calibration::CurvePoint| CalibrationPoint {
        probability: point.probability,
        accuracy: point.accuracy,
        num_rows: num_rows(point.num_rows),
    };
    JobQuality {
        num_rows: num_rows(quality.num_rows),
        accuracy: quality.accuracy,
        expected_calibration_error: quality.expected_calibration_error,
        brier: quality.brier,
        curve: quality.curve.into_iter().map(point).collect(),
    }
}

fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

/// Some rows of a job as they are shown.
pub(super) async fn rows(
    app: &App,
    id: &str,
    order: JobRowOrder,
    offset: u32,
    limit: u32,
) -> Result<Vec<JobRow>, Failure> {
    let job = app.store.listed_job(id).await?;
    let reading = Reading::of_job(&job)?;
    let order = match order {
        JobRowOrder::Position => cairn_store::JobRowOrder::Position,
        JobRowOrder::Certainty => cairn_store::JobRowOrder::Certainty,
    };
    let rows = app.store.job_rows(id, order, offset.into(), limit.into()).await?.into_iter();
    Ok(rows.map(|row| shown_row(&reading, job.temperature, row)).collect())
}
