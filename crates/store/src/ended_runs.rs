//! What becomes of the rows of a run that ends: its deletions become final, and messages that were still
//! streaming, because its program was killed, interrupted.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::{Row, SqliteConnection, SqlitePool};

use crate::branches::purge_messages;
use crate::deletion::purge_deleted_rows;
use crate::documents::purge_documents;
use crate::folder_documents::purge_folder_documents;
use crate::search_text::search_text;
use crate::{Store, StoreError, run};

impl Store {
    /// Removes for good the conversations, messages, named prompt caches, jobs, folders, presets and
    /// personas that this program has deleted and not restored. The caller purges what these had in the
    /// prompt cache: see [`Store::purged_owners`].
    pub async fn purge_deleted(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        purge_run(&mut tx, &self.run.id).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}

/// Finishes the rows of runs that have ended: streaming messages become interrupted, and deletions
/// final. Returns the conversation of the newest message that was interrupted.
pub(crate) async fn finish_ended_runs(
    folder: &Path,
    writer: &SqlitePool,
) -> Result<Option<String>, sqlx::Error> {
    let mut tx = writer.begin_with("begin immediate").await?;
    let runs: BTreeSet<String> = sqlx::query_scalar(
        "select run_id from messages where run_id is not null
         union select deleted_by_run_id from conversations where deleted_by_run_id is not null
         union select deleted_by_run_id from named_caches where deleted_by_run_id is not null
         union select deleted_by_run_id from jobs where deleted_by_run_id is not null
         union select deleted_by_run_id from message_deletions
         union select removed_by_run_id from documents where removed_by_run_id is not null
         union select removed_by_run_id from folder_documents where removed_by_run_id is not null
         union select deleted_by_run_id from folders where deleted_by_run_id is not null
         union select deleted_by_run_id from presets where deleted_by_run_id is not null
         union select deleted_by_run_id from personas where deleted_by_run_id is not null",
    )
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .collect();
    let mut newest = None;
    for run in runs.iter().filter(|run| !run::is_alive(folder, run)) {
        newest = newest.max(interrupt(&mut tx, run).await?);
        purge_run(&mut tx, run).await?;
    }
    let conversation = sqlx::query_scalar("select conversation_id from messages where seq = ?")
        .bind(newest)
        .fetch_optional(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(conversation)
}

/// Ends the answers that a run was writing, and returns the `seq` of the newest.
async fn interrupt(tx: &mut SqliteConnection, run: &str) -> Result<Option<i64>, sqlx::Error> {
    let rows = sqlx::query("select seq, text, segments from messages where run_id = ?")
        .bind(run)
        .fetch_all(&mut *tx)
        .await?;
    let mut newest = None;
    for row in rows {
        let seq: i64 = row.try_get("seq")?;
        newest = newest.max(Some(seq));
        sqlx::query(
            "update messages set status = 'interrupted', run_id = null, search_text = ? where seq = ?",
        )
        .bind(search_text(row.try_get("text")?, row.try_get("segments")?))
        .bind(seq)
        .execute(&mut *tx)
        .await?;
        sqlx::query("insert or ignore into broken_off_answers (message_seq) values (?)")
            .bind(seq)
            .execute(&mut *tx)
            .await?;
    }
    Ok(newest)
}

/// Removes for good what a run has deleted.
async fn purge_run(tx: &mut SqliteConnection, run: &str) -> Result<(), sqlx::Error> {
    purge_messages(tx, run).await?;
    purge_documents(tx, run).await?;
    purge_folder_documents(tx, run).await?;
    purge_deleted_rows(tx, run).await
}
