//! Indexes the messages of an earlier version, a few at a time and the newest first, so that opening a
//! large database does not wait for it.

use sqlx::Row;

use crate::search_text::search_text;
use crate::{Store, StoreError};

/// A part of this many messages is written in some milliseconds; other writers wait that long.
const MAX_MESSAGES: i64 = 400;
/// A part ends after about this much text.
const MAX_BYTES: i64 = 1 << 20;

impl Store {
    /// How much of the messages is indexed for search, from 0 to 1.
    pub async fn indexed_share(&self) -> Result<f64, StoreError> {
        let (from, began): (i64, i64) =
            sqlx::query_as("select indexed_from, began_from from search_progress")
                .fetch_one(&self.readers)
                .await
                .map_err(|error| self.failed(error))?;
        Ok(share(from, began))
    }

    /// Indexes some older messages for search; returns how much is indexed then, from 0 to 1. To be
    /// called again until that is 1.
    pub async fn index_older(&self) -> Result<f64, StoreError> {
        let failed = |error| self.failed(error);
        let mut tx = self.begin().await?;
        let (before, began): (i64, i64) =
            sqlx::query_as("select indexed_from, began_from from search_progress")
                .fetch_one(&mut *tx)
                .await
                .map_err(failed)?;
        if before <= 1 {
            return Ok(1.0);
        }
        let sizes: Vec<(i64, i64)> = sqlx::query_as(
            "select seq, octet_length(text) from messages where seq < ? order by seq desc limit ?",
        )
        .bind(before)
        .bind(MAX_MESSAGES)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        let from = first_of_part(&sizes);
        let rows = sqlx::query(
            "select seq, text, segments from messages where seq >= ? and seq < ? and status <> 'streaming'",
        )
        .bind(from)
        .bind(before)
        .fetch_all(&mut *tx)
        .await
        .map_err(failed)?;
        for row in rows {
            let (seq, text): (i64, &str) =
                (row.try_get("seq").map_err(failed)?, row.try_get("text").map_err(failed)?);
            let own = search_text(text, row.try_get("segments").map_err(failed)?);
            if own.is_some() {
                // These triggers leave the index alone: the message is not in it yet.
                sqlx::query("update messages set search_text = ? where seq = ?")
                    .bind(&own)
                    .bind(seq)
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            sqlx::query("insert into message_search (rowid, text) values (?, ?)")
                .bind(seq)
                .bind(own.as_deref().unwrap_or(text))
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
        }
        sqlx::query("update search_progress set indexed_from = ?")
            .bind(from)
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        self.commit(tx).await?;
        Ok(share(from, began))
    }
}

/// The first message of the next part, of those before it in falling order; 1 if all are in it.
fn first_of_part(sizes: &[(i64, i64)]) -> i64 {
    let mut bytes = 0;
    for (seq, size) in sizes {
        bytes += size;
        if bytes > MAX_BYTES {
            return *seq;
        }
    }
    match sizes.last() {
        Some((seq, _)) if sizes.len() as i64 == MAX_MESSAGES => *seq,
        _ => 1,
    }
}

fn share(from: i64, began: i64) -> f64 {
    if from <= 1 { 1.0 } else { 1.0 - from as f64 / began.max(from) as f64 }
}
