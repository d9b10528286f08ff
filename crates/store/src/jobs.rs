//! The jobs table: questions that are asked about many texts. Their rows are in `job_rows.rs`.

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use crate::deletion::Deletable;
use crate::error::{no_job, unknown};
use crate::new_id;
use crate::{Store, StoreError};

/// What a new job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Its name.
    pub name: String,
    /// The name of the model that answers.
    pub model: String,
    /// The question, as a JSON text.
    pub question: String,
    /// What it is asked about; each text is a row.
    pub texts: Vec<String>,
}

/// A job, without its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// UUID v7.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The name of the model that answers.
    pub model: String,
    /// The question, as a JSON text.
    pub question: String,
    /// Whether it goes on.
    pub state: JobState,
    /// Why it does not; none if a person has paused it.
    pub reason: Option<String>,
    /// What its log-probabilities are divided by; none until it is calibrated.
    pub temperature: Option<f64>,
    /// In milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// Set while the deletion can still be undone.
    pub deleted_at_ms: Option<i64>,
    /// How many rows it has.
    pub num_rows: i64,
    /// How many of them were answered.
    pub num_answered: i64,
    /// How many could not be answered.
    pub num_failed: i64,
    /// How many a person has checked.
    pub num_corrected: i64,
}

/// Whether a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It does, also after a restart.
    Running,
    /// It waits until a person continues it.
    Paused,
    /// Every row has been asked.
    Done,
    /// It cannot go on.
    Failed,
}

impl JobState {
    fn as_str(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Done => "done",
            JobState::Failed => "failed",
        }
    }

    fn named(name: &str) -> Result<JobState, sqlx::Error> {
        match name {
            "running" => Ok(JobState::Running),
            "paused" => Ok(JobState::Paused),
            "done" => Ok(JobState::Done),
            "failed" => Ok(JobState::Failed),
            _ => Err(unknown("state", name)),
        }
    }
}

impl FromRow<'_, SqliteRow> for Job {
    fn from_row(row: &SqliteRow) -> Result<Job, sqlx::Error> {
        Ok(Job {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            model: row.try_get("model")?,
            question: row.try_get("question")?,
            state: JobState::named(row.try_get("state")?)?,
            reason: row.try_get("reason")?,
            temperature: row.try_get("temperature")?,
            created_at_ms: row.try_get("created_at_ms")?,
            deleted_at_ms: row.try_get("deleted_at_ms")?,
            num_rows: row.try_get("num_rows")?,
            num_answered: row.try_get("num_answered")?,
            num_failed: row.try_get("num_failed")?,
            num_corrected: row.try_get("num_corrected")?,
        })
    }
}

/// Jobs with the counts of their rows, each of which an index has.
const SELECT: &str = "
    select jobs.*,
        (select count(*) from job_rows where job_id = jobs.id) as num_rows,
        (select count(*) from job_rows where job_id = jobs.id and certainty is not null) as num_answered,
        (select count(*) from job_rows where job_id = jobs.id and error is not null) as num_failed,
        (select count(*) from job_rows where job_id = jobs.id and correction is not null) as num_corrected
    from jobs";

impl Store {
    /// Creates a running job with all of its rows.
    pub async fn create_job(&self, job: &NewJob, now_ms: i64) -> Result<Job, StoreError> {
        let id = new_id().to_string();
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into jobs (id, name, model, question, state, created_at_ms)
             values (?, ?, ?, ?, 'running', ?)",
        )
        .bind(&id)
        .bind(&job.name)
        .bind(&job.model)
        .bind(&job.question)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        for (position, text) in (0_i64..).zip(&job.texts) {
            sqlx::query("insert into job_rows (job_id, position, text) values (?, ?, ?)")
                .bind(&id)
                .bind(position)
                .bind(text)
                .execute(&mut *tx)
                .await
                .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await?;
        self.listed_job(&id).await
    }

    /// The jobs that are not deleted, the newest first.
    pub async fn jobs(&self) -> Result<Vec<Job>, StoreError> {
        let select = select_jobs(" where deleted_at_ms is null order by jobs.rowid desc");
        sqlx::query_as(sqlx::AssertSqlSafe(select))
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// A job that is not deleted; otherwise [`StoreError::NoJob`].
    pub async fn listed_job(&self, id: &str) -> Result<Job, StoreError> {
        let select = select_jobs(" where id = ? and deleted_at_ms is null");
        let job = sqlx::query_as(sqlx::AssertSqlSafe(select))
            .bind(id)
            .fetch_optional(&self.readers)
            .await
            .map_err(|error| self.failed(error))?;
        job.ok_or_else(|| no_job(id))
    }

    /// Sets the name, verbatim.
    pub async fn rename_job(&self, id: &str, name: &str) -> Result<(), StoreError> {
        let change = sqlx::query("update jobs set name = ? where id = ?").bind(name).bind(id);
        self.change_row(change, || no_job(id)).await
    }

    /// Sets the state and its reason.
    pub async fn set_job_state(
        &self,
        id: &str,
        state: JobState,
        reason: Option<&str>,
    ) -> Result<(), StoreError> {
        let change = sqlx::query("update jobs set state = ?, reason = ? where id = ?")
            .bind(state.as_str())
            .bind(reason)
            .bind(id);
        self.change_row(change, || no_job(id)).await
    }

    /// Removes a job from the list, as [`Store::delete_conversations`] does a conversation.
    pub async fn delete_job(&self, id: &str, now_ms: i64) -> Result<(), StoreError> {
        self.delete_rows(Deletable::Jobs, &[id], now_ms).await
    }

    /// Undoes [`Store::delete_job`].
    pub async fn restore_job(&self, id: &str) -> Result<(), StoreError> {
        self.restore_rows(Deletable::Jobs, &[id]).await
    }

    /// Removes a job for good that was deleted at `deleted_at_ms`, unless it was restored or deleted
    /// again meanwhile.
    pub async fn purge_job(&self, id: &str, deleted_at_ms: i64) -> Result<(), StoreError> {
        self.purge_rows(Deletable::Jobs, &[id], deleted_at_ms).await.map(|_| ())
    }
}

/// The query for jobs, with what follows it.
fn select_jobs(rest: &'static str) -> String {
    format!("{SELECT}{rest}")
}
