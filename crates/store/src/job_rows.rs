//! The job_rows table: the texts of jobs, and what was answered about each.

use crate::error::no_job;
use crate::{Store, StoreError};

/// A text of a job, and what was answered about it.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct JobRow {
    /// Its place in the job, from 0.
    pub position: i64,
    /// The text.
    pub text: String,
    /// The log-probabilities of the options, as a JSON text; none until it is answered.
    pub logprobs: Option<String>,
    /// The place of the option that a person has called correct.
    pub correction: Option<i64>,
    /// Why it could not be answered.
    pub error: Option<String>,
}

/// What is saved of a row that was asked.
#[derive(Debug, Clone, PartialEq)]
pub struct JobAnswer {
    /// The row's place in the job.
    pub position: i64,
    /// What was answered, or why nothing could be.
    pub outcome: Result<AnsweredRow, String>,
}

/// The answer of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct AnsweredRow {
    /// The log-probabilities of the options, as a JSON text.
    pub logprobs: String,
    /// The probability of the likeliest option.
    pub certainty: f64,
}

/// In which order the rows of a job are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRowOrder {
    /// As they were given.
    Position,
    /// Least certain first; rows without an answer last.
    Certainty,
}

impl Store {
    /// Rows of a job, from the one at `offset` of this order.
    pub async fn job_rows(
        &self,
        id: &str,
        order: JobRowOrder,
        offset: i64,
        limit: i64,
    ) -> Result<Vec<JobRow>, StoreError> {
        let select = match order {
            JobRowOrder::Position => {
                "select position, text, logprobs, correction, error from job_rows
                 where job_id = ? order by position limit ? offset ?"
            }
            JobRowOrder::Certainty => {
                "select position, text, logprobs, correction, error from job_rows
                 where job_id = ? order by certainty is null, certainty, position limit ? offset ?"
            }
        };
        let rows = sqlx::query_as(select).bind(id).bind(limit).bind(offset);
        rows.fetch_all(&self.readers).await.map_err(|error| self.failed(error))
    }

    /// The first rows that were not asked yet: their places and texts.
    pub async fn waiting_job_rows(
        &self,
        id: &str,
        limit: i64,
    ) -> Result<Vec<(i64, String)>, StoreError> {
        sqlx::query_as(
            "select position, text from job_rows
             where job_id = ? and certainty is null and error is null order by position limit ?",
        )
        .bind(id)
        .bind(limit)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Saves what was answered about some rows, all or nothing. A row that has an answer keeps it.
    pub async fn save_job_answers(
        &self,
        id: &str,
        answers: &[JobAnswer],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for JobAnswer { position, outcome } in answers {
            let answered = outcome.as_ref().ok();
            sqlx::query(
                "update job_rows set logprobs = ?, certainty = ?, error = ?
                 where job_id = ? and position = ? and certainty is null and error is null",
            )
            .bind(answered.map(|answered| &answered.logprobs))
            .bind(answered.map(|answered| answered.certainty))
            .bind(outcome.as_ref().err())
            .bind(id)
            .bind(position)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }

    /// Lets the rows that could not be answered wait again.
    pub async fn retry_failed_job_rows(&self, id: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("update job_rows set error = null where job_id = ? and error is not null")
            .bind(id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Sets which option a person has called correct, or takes that back.
    pub async fn correct_job_row(
        &self,
        id: &str,
        position: i64,
        correction: Option<i64>,
    ) -> Result<(), StoreError> {
        let change =
            sqlx::query("update job_rows set correction = ? where job_id = ? and position = ?")
                .bind(correction)
                .bind(id)
                .bind(position);
        self.change_row(change, || no_job(id)).await
    }

    /// The rows that are answered and corrected: log-probabilities and the correct option.
    pub async fn corrected_job_rows(&self, id: &str) -> Result<Vec<(String, i64)>, StoreError> {
        sqlx::query_as(
            "select logprobs, correction from job_rows
             where job_id = ? and correction is not null and logprobs is not null order by position",
        )
        .bind(id)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// The answers of a job: each row's place and log-probabilities.
    pub async fn job_answers(&self, id: &str) -> Result<Vec<(i64, String)>, StoreError> {
        sqlx::query_as(
            "select position, logprobs from job_rows
             where job_id = ? and logprobs is not null order by position",
        )
        .bind(id)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// Sets the temperature of a job, and with it how certain its rows are.
    pub async fn set_job_temperature(
        &self,
        id: &str,
        temperature: Option<f64>,
        certainties: &[(i64, f64)],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("update jobs set temperature = ? where id = ?")
            .bind(temperature)
            .bind(id)
            .execute(&mut *tx)
            .await;
        self.changed_a_row(done, || no_job(id))?;
        for (position, certainty) in certainties {
            sqlx::query(
                "update job_rows set certainty = ?
                 where job_id = ? and position = ? and logprobs is not null",
            )
            .bind(certainty)
            .bind(id)
            .bind(position)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }

    /// How many answered rows have a certainty in each of `num_bins` bins of equal width; a certainty
    /// of 1 is in the last.
    pub async fn job_histogram(&self, id: &str, num_bins: u32) -> Result<Vec<u32>, StoreError> {
        let found: Vec<(u32, u32)> = sqlx::query_as(
            "select min(cast(certainty * ?1 as integer), ?1 - 1) as bin, count(*) from job_rows
             where job_id = ?2 and certainty is not null group by bin",
        )
        .bind(num_bins)
        .bind(id)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))?;
        let count =
            |bin| found.iter().find(|(found, _)| *found == bin).map_or(0, |(_, count)| *count);
        Ok((0..num_bins).map(count).collect())
    }
}
