//! The work table: what each request has computed, and its sums.

use std::collections::BTreeMap;

use sqlx::FromRow;

use crate::{Store, StoreError};

/// The rows that stay: more than the monitor shows.
const MAX_ROWS: i64 = 100_000;
/// Older rows go.
const MAX_AGE_MS: i64 = 2 * 24 * 60 * 60 * 1000;
/// At most this many go with each row that is added, so that no write takes long.
const REMOVED_AT_ONCE: i64 = 60;

/// The work of a request that has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Work {
    /// When it ended, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Its kind, by the app's name for it. `answer` and `comparison` are answers.
    pub kind: String,
    /// The name of the model.
    pub model: String,
    /// The conversation that it was for. One that is not in this database is left out.
    pub conversation_id: Option<String>,
    /// The answer that it was for.
    pub message_id: Option<String>,
    /// Tokens read.
    pub num_read_tokens: u64,
    /// Tokens that were still in memory.
    pub num_in_memory_tokens: u64,
    /// Tokens that were restored.
    pub num_restored_tokens: u64,
    /// Tokens that another owner had read.
    pub num_shared_tokens: u64,
    /// Tokens written.
    pub num_written_tokens: u64,
    /// From its arrival to its first token, in milliseconds.
    pub first_token_ms: Option<f64>,
}

/// The sums of the work of one model for one conversation.
#[derive(Debug, Clone, Default, PartialEq, FromRow)]
pub struct WorkSums {
    /// The model.
    pub model: String,
    /// The conversation; none for work without one, and for purged ones together.
    pub conversation_id: Option<String>,
    /// Its title; none if it is deleted.
    pub title: Option<String>,
    /// How many answers it includes.
    pub num_answers: i64,
    /// Tokens read.
    pub num_read_tokens: i64,
    /// Tokens from saved context.
    pub num_cached_tokens: i64,
    /// Tokens written.
    pub num_written_tokens: i64,
    /// How many answers have a first token.
    pub num_first_tokens: i64,
    /// The times to them, in milliseconds.
    pub first_token_ms: f64,
    /// Reading that the answers saved, in milliseconds, as written when they ended; none if no
    /// answer has it.
    pub saved_ms: Option<f64>,
    /// When the newest ended, in milliseconds since the Unix epoch.
    pub newest_at_ms: i64,
}

/// The work in a stretch of time.
#[derive(Debug, Clone, PartialEq, FromRow)]
pub struct WorkSpan {
    /// Number of the stretch: the time divided by its length.
    pub span: i64,
    /// How many answers have a first token.
    pub num_first_tokens: i64,
    /// Tokens read.
    pub num_read_tokens: i64,
    /// Tokens from saved context.
    pub num_cached_tokens: i64,
    /// The shortest time to a first token, in milliseconds; none if there was none.
    pub least_first_token_ms: Option<f64>,
    /// The mean of these times.
    pub mean_first_token_ms: Option<f64>,
    /// The longest one.
    pub most_first_token_ms: Option<f64>,
}

/// The work between two times, with a time to the first token for answers only.
macro_rules! work {
    ($rest:literal) => {
        concat!(
            "with done as (
                 select at_ms, model, conversation_id, message_id, num_read_tokens, num_written_tokens,
                     num_in_memory_tokens + num_restored_tokens + num_shared_tokens as num_cached_tokens,
                     kind in ('answer', 'comparison') as is_answer,
                     case when kind in ('answer', 'comparison') then first_token_ms end as first_token_ms
                 from work where at_ms > ?1 and at_ms <= ?2
             ) ",
            $rest
        )
    };
}

impl Store {
    /// Adds the work of requests that have ended, and removes a few of the rows that are too old or too
    /// many.
    ///
    /// Fails if the database cannot be written; then nothing is added or removed.
    pub async fn add_work(&self, work: &[Work], now_ms: i64) -> Result<(), StoreError> {
        let failed = |error| self.failed(error);
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let mut tx = self.begin().await?;
        for done in work {
            sqlx::query(
                "insert into work (at_ms, kind, model, conversation_id, message_id, num_read_tokens,
                     num_in_memory_tokens, num_restored_tokens, num_shared_tokens, num_written_tokens,
                     first_token_ms)
                 values (?, ?, ?, (select id from conversations where id = ?), ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(done.at_ms)
            .bind(&done.kind)
            .bind(&done.model)
            .bind(&done.conversation_id)
            .bind(&done.message_id)
            .bind(count(done.num_read_tokens))
            .bind(count(done.num_in_memory_tokens))
            .bind(count(done.num_restored_tokens))
            .bind(count(done.num_shared_tokens))
            .bind(count(done.num_written_tokens))
            .bind(done.first_token_ms.filter(|ms| ms.is_finite()))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        }
        sqlx::query(
            "delete from work where id in (
                 select id from work where id <= (select max(id) from work) - ?1 or at_ms < ?2
                 order by id limit ?3)",
        )
        .bind(MAX_ROWS)
        .bind(now_ms.saturating_sub(MAX_AGE_MS))
        .bind(REMOVED_AT_ONCE.saturating_mul(work.len() as i64))
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.commit(tx).await
    }

    /// The sums of the work that ended between two times, for each model of each conversation; the
    /// newest first. The work of deleted conversations is among it.
    pub async fn work_sums(
        &self,
        since_ms: i64,
        until_ms: i64,
    ) -> Result<Vec<WorkSums>, StoreError> {
        let failed = |error| self.failed(error);
        let mut sums: Vec<WorkSums> = sqlx::query_as(work!(
            "select done.model, conversation_id, conversations.title,
                 count(distinct case when is_answer then coalesce(message_id, done.at_ms) end)
                     as num_answers,
                 sum(num_read_tokens) as num_read_tokens,
                 sum(num_cached_tokens) as num_cached_tokens,
                 sum(num_written_tokens) as num_written_tokens,
                 count(first_token_ms) as num_first_tokens,
                 coalesce(sum(first_token_ms), 0.0) as first_token_ms,
                 cast(null as real) as saved_ms, max(at_ms) as newest_at_ms
             from done left join conversations
                 on conversations.id = conversation_id and conversations.deleted_at_ms is null
             group by done.model, conversation_id order by newest_at_ms desc"
        ))
        .bind(since_ms)
        .bind(until_ms)
        .fetch_all(&self.readers)
        .await
        .map_err(failed)?;
        let saved: Vec<(String, String, f64)> = sqlx::query_as(
            "select model, conversation_id, sum(saved_ms) from answer_savings
             where model is not null and at_ms > ? and at_ms <= ? group by model, conversation_id",
        )
        .bind(since_ms)
        .bind(until_ms)
        .fetch_all(&self.readers)
        .await
        .map_err(failed)?;
        let saved: BTreeMap<(String, String), f64> =
            saved.into_iter().map(|(model, id, saved_ms)| ((model, id), saved_ms)).collect();
        for sums in &mut sums {
            let key = sums.conversation_id.clone().map(|id| (sums.model.clone(), id));
            sums.saved_ms = key.and_then(|key| saved.get(&key).copied());
        }
        Ok(sums)
    }

    /// The work that ended between two times, for each stretch of `span_ms`; the oldest first.
    pub async fn work_spans(
        &self,
        since_ms: i64,
        until_ms: i64,
        span_ms: i64,
    ) -> Result<Vec<WorkSpan>, StoreError> {
        sqlx::query_as(work!(
            "select at_ms / ?3 as span, count(first_token_ms) as num_first_tokens,
                 sum(num_read_tokens) as num_read_tokens,
                 sum(num_cached_tokens) as num_cached_tokens,
                 min(first_token_ms) as least_first_token_ms,
                 avg(first_token_ms) as mean_first_token_ms,
                 max(first_token_ms) as most_first_token_ms
             from done group by span order by span"
        ))
        .bind(since_ms)
        .bind(until_ms)
        .bind(span_ms)
        .fetch_all(&self.readers)
        .await
        .map_err(|error| self.failed(error))
    }
}
