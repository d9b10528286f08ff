//! Deletions that can be undone until the program that made them closes the database: of
//! conversations, named prompt caches, jobs, folders, presets and personas, whose tables have the same
//! two columns for it.

use serde_json::Value;
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::error::{no_conversation, no_folder, no_job, no_named_cache, no_persona, no_preset};
use crate::{Store, StoreError};

/// A table whose rows can be deleted and restored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Deletable {
    Conversations,
    NamedCaches,
    Jobs,
    Folders,
    Presets,
    Personas,
}

impl Deletable {
    const ALL: [Deletable; 6] = [
        Deletable::Conversations,
        Deletable::NamedCaches,
        Deletable::Jobs,
        Deletable::Folders,
        Deletable::Presets,
        Deletable::Personas,
    ];

    fn table(self) -> &'static str {
        match self {
            Deletable::Conversations => "conversations",
            Deletable::NamedCaches => "named_caches",
            Deletable::Jobs => "jobs",
            Deletable::Folders => "folders",
            Deletable::Presets => "presets",
            Deletable::Personas => "personas",
        }
    }

    fn missing(self, id: &str) -> StoreError {
        match self {
            Deletable::Conversations => no_conversation(id),
            Deletable::NamedCaches => no_named_cache(id),
            Deletable::Jobs => no_job(id),
            Deletable::Folders => no_folder(id),
            Deletable::Presets => no_preset(id),
            Deletable::Personas => no_persona(id),
        }
    }

    /// A statement with this table's name in the place of `TABLE`.
    fn statement(self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("TABLE", self.table()))
    }
}

impl Store {
    /// Hides rows until [`Store::restore_rows`]. Deleting them again changes nothing. Passes over ids
    /// without a row; fails if none has one.
    pub(crate) async fn delete_rows(
        &self,
        from: Deletable,
        ids: &[impl AsRef<str>],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let delete = sqlx::query(from.statement(
            "update TABLE set
                 deleted_at_ms = coalesce(deleted_at_ms, ?), deleted_by_run_id = coalesce(deleted_by_run_id, ?)
             where id in (select value from json_each(?))",
        ));
        let delete = delete.bind(now_ms).bind(&self.run.id).bind(json_ids(ids));
        self.change_row(delete, || from.missing(first(ids))).await
    }

    /// Undoes [`Store::delete_rows`]. Passes over ids without a row; fails if none has one.
    pub(crate) async fn restore_rows(
        &self,
        to: Deletable,
        ids: &[impl AsRef<str>],
    ) -> Result<(), StoreError> {
        let restore = sqlx::query(to.statement(
            "update TABLE set deleted_at_ms = null, deleted_by_run_id = null
             where id in (select value from json_each(?))",
        ));
        self.change_row(restore.bind(json_ids(ids)), || to.missing(first(ids))).await
    }

    /// Removes rows for good that were deleted at `deleted_at_ms`, and returns their ids: without those
    /// that were restored meanwhile, deleted again, or do not exist.
    pub(crate) async fn purge_rows(
        &self,
        from: Deletable,
        ids: &[impl AsRef<str>],
        deleted_at_ms: i64,
    ) -> Result<Vec<String>, StoreError> {
        let mut tx = self.begin().await?;
        let purge = sqlx::query_scalar(from.statement(
            "delete from TABLE
             where id in (select value from json_each(?)) and deleted_at_ms = ? and deleted_by_run_id = ?
             returning id",
        ));
        let purge = purge.bind(json_ids(ids)).bind(deleted_at_ms).bind(&self.run.id);
        let purged = purge.fetch_all(&mut *tx).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        // The log still has the text. If somebody reads it now, the next checkpoint removes it.
        let _ = self.empty_log().await;
        Ok(purged)
    }
}

/// Ids for `json_each`.
pub(crate) fn json_ids(ids: &[impl AsRef<str>]) -> String {
    Value::from_iter(ids.iter().map(AsRef::as_ref)).to_string()
}

/// The one that an error names.
pub(crate) fn first(ids: &[impl AsRef<str>]) -> &str {
    ids.first().map_or("", AsRef::as_ref)
}

/// Removes for good the rows of these tables that a run has deleted.
pub(crate) async fn purge_deleted_rows(
    tx: &mut SqliteConnection,
    run: &str,
) -> Result<(), sqlx::Error> {
    for table in Deletable::ALL {
        let purge = sqlx::query(table.statement("delete from TABLE where deleted_by_run_id = ?"));
        purge.bind(run).execute(&mut *tx).await?;
    }
    Ok(())
}
