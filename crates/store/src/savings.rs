//! What answers saved by not reading again what was saved: the answer_savings table, and the sum of
//! conversations that were purged. An answer's row is written with the answer; see
//! [`Store::finish`](crate::Store::finish). How fast a model reads, answers tell, and the readings table
//! of what was read before a question was there.

use std::ops::RangeInclusive;

use cairn_chat::GenerationStats;
use sqlx::sqlite::SqliteConnection;

use crate::{Store, StoreError};

/// With fewer newly read tokens the measured speed is mostly overhead.
const LEAST_READ_TOKENS: i64 = 512;
/// Shorter readings tell nothing.
const LEAST_COUNTED_TOKENS: i64 = 16;
/// Of a model that has read nothing long those readings tell how fast it reads that took so many times as
/// long as the shortest: of the others it is not known whether their tokens took the time.
const LEAST_TIMES_SHORTEST: f64 = 2.0;
/// But only if their tokens took so long: with less there is nothing to save either.
const LEAST_READ_SECONDS: f64 = 0.5;
/// The newest of them that count together.
const MAX_COUNTED: i64 = 32;
/// The newest long readings of which the median counts.
const MAX_COUNTED_LONG: i64 = 9;
/// The newest answers of all conversations that are looked at.
const MAX_OTHERS: i64 = 500;
/// The readings ahead of a model that stay.
const MAX_READINGS: i64 = 32;

/// What answers saved, in milliseconds of reading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Savings {
    /// Of all conversations, purged ones included.
    pub all_ms: f64,
    /// When the first of these answers was asked for, in milliseconds since the Unix epoch; none where
    /// there was none.
    pub since_ms: Option<i64>,
    /// Of each conversation that is not deleted, the one that saved most first.
    pub conversations: Vec<(String, f64)>,
}

/// What stands around the messages of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct AnsweredWith {
    /// Empty where there is none; none: not known.
    pub system_prompt: Option<String>,
    /// A hash of the chat template, and behind a space the model's name; none: not known.
    pub template: Option<String>,
}

/// The readings of a model: of the newest answers of all conversations, and those ahead. Figures that a
/// damaged file has are left out.
macro_rules! all_readings {
    ($rest:literal) => {
        concat!(
            "with newest as (
                 select stats, created_at_ms from messages where stats is not null
                 order by created_at_ms desc limit ?1),
             all_readings as (
                 select stats ->> '$.num_prompt_tokens' - (stats ->> '$.num_cached_tokens') as read,
                     cast(stats ->> '$.prompt_tps' as real) as tps, created_at_ms as at_ms
                 from newest where json_valid(stats) and stats ->> '$.model' = ?2
                     and cast(stats ->> '$.prompt_tps' as real) > 0
                 union all select num_tokens, tps, at_ms from readings where model = ?2) ",
            $rest
        )
    };
}

impl Store {
    /// What all answers saved.
    pub async fn savings(&self) -> Result<Savings, StoreError> {
        let failed = |error| self.failed(error);
        let (all_ms, since_ms): (f64, Option<i64>) = sqlx::query_as(
            "select coalesce(sum(saved_ms), 0.0), min(at_ms) from (
                 select saved_ms, at_ms from answer_savings
                 union all select saved_ms, since_ms from purged_savings)",
        )
        .fetch_one(&self.readers)
        .await
        .map_err(failed)?;
        let conversations = sqlx::query_as(
            "select conversation_id, sum(saved_ms) from answer_savings
             where conversation_id in (select id from conversations where deleted_at_ms is null)
             group by conversation_id order by sum(saved_ms) desc, conversation_id",
        )
        .fetch_all(&self.readers)
        .await
        .map_err(failed)?;
        Ok(Savings { all_ms, since_ms, conversations })
    }

    /// How many tokens a second a model reads: the median of the newest long readings of any conversation
    /// and of what was read ahead, for one that shared the processor is slower than what was saved would
    /// have been. Where the conversation itself has a long one, those count that are about as long as its
    /// longest, and without any that one alone. Without long readings shorter ones count. None where those
    /// do not tell.
    pub async fn reading_rate(
        &self,
        conversation_id: &str,
        model: &str,
    ) -> Result<Option<f64>, StoreError> {
        let own: Option<(i64, f64)> = sqlx::query_as(
            "with readings as (
                 select stats ->> '$.num_prompt_tokens' - (stats ->> '$.num_cached_tokens') as read,
                     cast(stats ->> '$.prompt_tps' as real) as tps, stats ->> '$.model' as model
                 from messages where conversation_id = ? and stats is not null and json_valid(stats))
             select read, tps from readings where model = ? and tps > 0 and read >= ?
             order by read desc limit 1",
        )
        .bind(conversation_id)
        .bind(model)
        .bind(LEAST_READ_TOKENS)
        .fetch_optional(&self.readers)
        .await
        .map_err(|error| self.failed(error))?;
        let lengths = match own {
            Some((read, _)) => LEAST_READ_TOKENS.max(read / 2)..=read.saturating_mul(2),
            None => LEAST_READ_TOKENS..=i64::MAX,
        };
        let median = self.long_reading_rate(model, lengths).await;
        let long = median.map_err(|error| self.failed(error))?.or(own.map(|(_, tps)| tps));
        if long.is_some() {
            return Ok(long);
        }
        self.short_reading_rate(model).await.map_err(|error| self.failed(error))
    }

    /// The median speed of a model's newest readings of these lengths, in tokens a second; of two in the
    /// middle the faster one, with which less seems saved.
    async fn long_reading_rate(
        &self,
        model: &str,
        lengths: RangeInclusive<i64>,
    ) -> Result<Option<f64>, sqlx::Error> {
        sqlx::query_scalar(all_readings!(
            ", counted as (
                 select tps from all_readings where read between ?3 and ?4
                 order by at_ms desc limit ?5),
             placed as (
                 select tps, row_number() over (order by tps desc) as place, count(*) over () as num
                 from counted)
             select tps from placed where place = (num + 1) / 2"
        ))
        .bind(MAX_OTHERS)
        .bind(model)
        .bind(lengths.start())
        .bind(lengths.end())
        .bind(MAX_COUNTED_LONG)
        .fetch_optional(&self.readers)
        .await
    }

    /// How many tokens a second a model reads that has read nothing long: at least as many as it did. A
    /// reading has a cost beside its tokens, which is at most what the shortest one took altogether. So
    /// much is taken from the time of each, for what was saved must not seem more than it was.
    async fn short_reading_rate(&self, model: &str) -> Result<Option<f64>, sqlx::Error> {
        sqlx::query_scalar(all_readings!(
            ", counted as (
                 select read, read / tps as seconds from all_readings where read >= ?3
                 order by at_ms desc limit ?4),
             shortest as (select min(seconds) as seconds from counted)
             select sum(read) / sum(counted.seconds - shortest.seconds) from counted, shortest
             where counted.seconds >= ?5 * shortest.seconds
             having sum(counted.seconds - shortest.seconds) >= ?6"
        ))
        .bind(MAX_OTHERS)
        .bind(model)
        .bind(LEAST_COUNTED_TOKENS)
        .bind(MAX_COUNTED)
        .bind(LEAST_TIMES_SHORTEST)
        .bind(LEAST_READ_SECONDS)
        .fetch_optional(&self.readers)
        .await
    }

    /// Notes how fast a model read what no answer has the figures of; one that tells nothing is left out.
    /// Of each model the newest stay.
    pub async fn note_reading(
        &self,
        model: &str,
        num_tokens: usize,
        tps: f64,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let num_tokens = i64::try_from(num_tokens).unwrap_or(i64::MAX);
        if num_tokens < LEAST_COUNTED_TOKENS || !(tps.is_finite() && tps > 0.0) {
            return Ok(());
        }
        let failed = |error| self.failed(error);
        let mut tx = self.begin().await?;
        sqlx::query("insert into readings (model, num_tokens, tps, at_ms) values (?, ?, ?, ?)")
            .bind(model)
            .bind(num_tokens)
            .bind(tps)
            .bind(now_ms)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        sqlx::query(
            "delete from readings where model = ?1 and id not in (
                 select id from readings where model = ?1 order by id desc limit ?2)",
        )
        .bind(model)
        .bind(MAX_READINGS)
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
        self.commit(tx).await
    }

    /// What the last answer of a conversation was written with.
    pub async fn answered_with(&self, conversation_id: &str) -> Result<AnsweredWith, StoreError> {
        let found = sqlx::query_as(ANSWERED_WITH).bind(conversation_id);
        let found = found.fetch_optional(&self.readers).await;
        Ok(found.map_err(|error| self.failed(error))?.unwrap_or_default())
    }

    /// Notes what an answer was written with, and returns what the answer before was.
    pub async fn note_answered_with(
        &self,
        conversation_id: &str,
        now: &AnsweredWith,
    ) -> Result<AnsweredWith, StoreError> {
        let mut tx = self.begin().await?;
        let before = sqlx::query_as(ANSWERED_WITH).bind(conversation_id);
        let before: Option<AnsweredWith> =
            before.fetch_optional(&mut *tx).await.map_err(|error| self.failed(error))?;
        let before = before.unwrap_or_default();
        if before != *now {
            sqlx::query(
                "update conversations set answered_system_prompt = ?, answered_template = ?
                 where id = ?",
            )
            .bind(&now.system_prompt)
            .bind(&now.template)
            .bind(conversation_id)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
            self.commit(tx).await?;
        }
        Ok(before)
    }
}

const ANSWERED_WITH: &str = "select answered_system_prompt as system_prompt,
    answered_template as template from conversations where id = ?";

/// Writes what an answer saved; what it had saved before is replaced, so that an answer that goes on
/// counts once.
pub(crate) async fn write(
    tx: &mut SqliteConnection,
    message_id: &str,
    stats: &GenerationStats,
) -> Result<(), sqlx::Error> {
    let Some(saved_ms) = stats.saved_ms.filter(|saved_ms| saved_ms.is_finite()) else {
        return Ok(());
    };
    sqlx::query(
        "insert or replace into answer_savings (message_id, conversation_id, saved_ms, at_ms, model)
         select id, conversation_id, ?, created_at_ms, ? from messages where id = ?",
    )
    .bind(saved_ms)
    .bind(&stats.model)
    .bind(message_id)
    .execute(tx)
    .await
    .map(drop)
}
