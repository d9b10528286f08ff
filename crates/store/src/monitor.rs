//! The monitor_minutes table, which is only worth having while nothing waits for it.

use std::time::Duration;

use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

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
