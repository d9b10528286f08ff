//! The monitor_minutes table, which is only worth having while nothing waits for it, and the figures of
//! the last answers, which the messages table has.

use std::time::Duration;

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, FromRow};

use crate::store::BUSY_TIMEOUT;
use crate::{Store, StoreError};

/// The rows that stay: two days of minutes.
const MAX_MINUTES: i64 = 2 * 24 * 60;
/// Older rows go.
const MAX_AGE_MS: i64 = 2 * 24 * 60 * 60 * 1000;
/// How long a minute waits for other writes.
const WAIT_LIMIT: Duration = Duration::from_millis(50);
/// At most so many go with a row that is added, so that no write takes long.
const REMOVED_AT_ONCE: i64 = 60;

/// The figures of answers that have something in common: of all columns the sums.
#[derive(Debug, Clone, PartialEq, FromRow)]
pub struct AnswerSums {
    /// The model that answered.
    pub model: String,
    /// The conversation that they belong to.
    pub conversation_id: String,
    /// Its title.
    pub title: String,
    /// How many answers have figures.
    pub num_answers: i64,
    /// Tokens of their prompts, with those from the prompt cache.
    pub num_prompt_tokens: i64,
    /// Tokens from the prompt cache.
    pub num_cached_tokens: i64,
    /// Tokens of the answers.
    pub num_generation_tokens: i64,
    /// How many answers have a first token.
    pub num_first_tokens: i64,
    /// The times to them, in milliseconds.
    pub first_token_ms: f64,
    /// What they saved, in milliseconds of reading, as it was written when they ended; none where that
    /// is known of none.
    pub saved_ms: Option<f64>,
    /// When the newest was asked for, in milliseconds since the Unix epoch.
    pub newest_at_ms: i64,
}

/// The figures of the answers of a stretch of time.
#[derive(Debug, Clone, PartialEq, FromRow)]
pub struct AnswerSpan {
    /// Number of the stretch: the time divided by its length.
    pub span: i64,
    /// How many answers have figures.
    pub num_answers: i64,
    /// Tokens of their prompts, with those from the prompt cache.
    pub num_prompt_tokens: i64,
    /// Tokens from the prompt cache.
    pub num_cached_tokens: i64,
    /// The shortest time to a first token, in milliseconds; none where there was none.
    pub least_first_token_ms: Option<f64>,
    /// The mean of these times.
    pub mean_first_token_ms: Option<f64>,
    /// The longest one.
    pub most_first_token_ms: Option<f64>,
}

/// The figures of each answer between two times whose conversation is not deleted. Figures that a
/// damaged file has are left out.
macro_rules! answers {
    ($rest:literal) => {
        concat!(
            "with answers as (
                 select messages.created_at_ms, conversations.id as conversation_id, conversations.title,
                     coalesce(cast(stats ->> '$.model' as text), '') as model,
                     coalesce(cast(stats ->> '$.num_prompt_tokens' as integer), 0) as num_prompt_tokens,
                     coalesce(cast(stats ->> '$.num_cached_tokens' as integer), 0) as num_cached_tokens,
                     coalesce(cast(stats ->> '$.num_generation_tokens' as integer), 0)
                         as num_generation_tokens,
                     saved_ms,
                     nullif(max(0, coalesce(cast(stats ->> '$.time_to_first_token_ms' as real), 0)), 0)
                         as first_token_ms
                 from messages join conversations on conversations.id = messages.conversation_id
                     left join answer_savings on answer_savings.message_id = messages.id
                 where messages.stats is not null and json_valid(messages.stats)
                     and messages.created_at_ms > ? and messages.created_at_ms <= ?
                     and conversations.deleted_at_ms is null and messages.deletion_id is null
             ) ",
            $rest
        )
    };
}

impl Store {
    /// Adds what was noted in a minute, and removes a few of the rows that are too old or too many.
    /// Hardly waits: `false` if another write goes on here or in another program, and then nothing was
    /// added. To be run to its end: until then writes of this program do not wait for other programs.
    pub async fn add_monitor_minute(
        &self,
        at_ms: i64,
        figures: &str,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        // The connection is back a moment after the write before has ended.
        let acquired = tokio::time::timeout(WAIT_LIMIT, self.writer.acquire()).await;
        let Ok(acquired) = acquired else { return Ok(false) };
        let mut connection = acquired.map_err(|error| self.failed(error))?;
        let added = async {
            set_busy_timeout(&mut connection, Duration::ZERO).await?;
            let added = add_minute(&mut connection, at_ms, figures, now_ms).await;
            set_busy_timeout(&mut connection, BUSY_TIMEOUT).await?;
            added
        };
        match added.await.map_err(|error| self.failed(error)) {
            Ok(()) => Ok(true),
            Err(StoreError::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What was noted in the minutes that began between two times, in the order in which they were
    /// noted: the time, and the JSON text.
    pub async fn monitor_minutes(
        &self,
        since_ms: i64,
        until_ms: i64,
    ) -> Result<Vec<(i64, String)>, StoreError> {
        sqlx::query_as(
            "select at_ms, figures from monitor_minutes where at_ms > ? and at_ms <= ?
             order by id desc limit ?",
        )
        .bind(since_ms)
        .bind(until_ms)
        .bind(MAX_MINUTES)
        .fetch_all(&self.readers)
        .await
        .map(|mut rows: Vec<(i64, String)>| {
            rows.reverse();
            rows
        })
        .map_err(|error| self.failed(error))
    }

    /// The sums of the answers that were asked for between two times, for each model of each
    /// conversation; the newest first.
    pub async fn answer_sums(
        &self,
        since_ms: i64,
        until_ms: i64,
    ) -> Result<Vec<AnswerSums>, StoreError> {
        sqlx::query_as(answers!(
            "select model, conversation_id, title, count(*) as num_answers,
                 sum(num_prompt_tokens) as num_prompt_tokens,
                 sum(num_cached_tokens) as num_cached_tokens,
                 sum(num_generation_tokens) as num_generation_tokens,
                 count(first_token_ms) as num_first_tokens,
                 coalesce(sum(first_token_ms), 0.0) as first_token_ms, sum(saved_ms) as saved_ms,
                 max(created_at_ms) as newest_at_ms
             from answers group by model, conversation_id order by newest_at_ms desc"
        ))
        .bind(since_ms)
        .bind(until_ms)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }

    /// The figures of the answers that were asked for between two times, for each stretch of
    /// `span_ms`; the oldest first.
    pub async fn answer_spans(
        &self,
        since_ms: i64,
        until_ms: i64,
        span_ms: i64,
    ) -> Result<Vec<AnswerSpan>, StoreError> {
        sqlx::query_as(answers!(
            "select created_at_ms / ? as span, count(*) as num_answers,
                 sum(num_prompt_tokens) as num_prompt_tokens,
                 sum(num_cached_tokens) as num_cached_tokens,
                 min(first_token_ms) as least_first_token_ms,
                 avg(first_token_ms) as mean_first_token_ms,
                 max(first_token_ms) as most_first_token_ms
             from answers group by span order by span"
        ))
        .bind(since_ms)
        .bind(until_ms)
        .bind(span_ms)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }
}

/// How long a connection waits for another program that writes.
async fn set_busy_timeout(
    connection: &mut SqliteConnection,
    timeout: Duration,
) -> Result<(), sqlx::Error> {
    let pragma = format!("pragma busy_timeout = {}", timeout.as_millis());
    sqlx::query(sqlx::AssertSqlSafe(pragma)).execute(connection).await.map(drop)
}

async fn add_minute(
    connection: &mut SqliteConnection,
    at_ms: i64,
    figures: &str,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin_with("begin immediate").await?;
    let added = sqlx::query("insert into monitor_minutes (at_ms, figures) values (?, ?)")
        .bind(at_ms)
        .bind(figures)
        .execute(&mut *tx)
        .await?;
    let newest = added.last_insert_rowid();
    sqlx::query(
        "delete from monitor_minutes where id in (
             select id from monitor_minutes where id <= ? or (at_ms < ? and id < ?)
             order by id limit ?)",
    )
    .bind(newest - MAX_MINUTES)
    .bind(now_ms.saturating_sub(MAX_AGE_MS))
    .bind(newest)
    .bind(REMOVED_AT_ONCE)
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}
