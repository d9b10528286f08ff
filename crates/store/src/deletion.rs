//! Deletions that can be undone until the program that made them closes the database: of
//! conversations, named prompt caches, jobs, folders, presets and personas, whose tables have the same
//! two columns for it.

use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::branches::purge_messages;
use crate::conversations::no_conversation;
use crate::documents::purge_documents;
use crate::folder_documents::purge_folder_documents;
use crate::folders::no_folder;
use crate::jobs::no_job;
use crate::named_caches::no_named_cache;
use crate::personas::no_persona;
use crate::presets::no_preset;
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
    /// Hides a row until [`Store::restore_row`]. Deleting it again changes nothing.
    pub(crate) async fn delete_row(
        &self,
        from: Deletable,
        id: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let delete = sqlx::query(from.statement(
            "update TABLE set
                 deleted_at_ms = coalesce(deleted_at_ms, ?), deleted_by_run_id = coalesce(deleted_by_run_id, ?)
             where id = ?",
        ));
        let delete = delete.bind(now_ms).bind(&self.run.id).bind(id);
        self.change_row(delete, || from.missing(id)).await
    }

    pub(crate) async fn restore_row(&self, to: Deletable, id: &str) -> Result<(), StoreError> {
        let restore = sqlx::query(to.statement(
            "update TABLE set deleted_at_ms = null, deleted_by_run_id = null where id = ?",
        ));
        self.change_row(restore.bind(id), || to.missing(id)).await
    }

    /// Removes a row for good that was deleted at `deleted_at_ms`; false if it was restored
    /// meanwhile, deleted again, or does not exist.
    pub(crate) async fn purge_row(
        &self,
        from: Deletable,
        id: &str,
        deleted_at_ms: i64,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let purge = sqlx::query(from.statement(
            "delete from TABLE where id = ? and deleted_at_ms = ? and deleted_by_run_id = ?",
        ));
        let purge = purge.bind(id).bind(deleted_at_ms).bind(&self.run.id);
        let done = purge.execute(&mut *tx).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await?;
        // The log still has the text. If somebody reads it now, the next checkpoint removes it.
        let _ = self.empty_log().await;
        Ok(done.rows_affected() > 0)
    }

    /// Removes for good the conversations, messages, named prompt caches, jobs, folders, presets and
    /// personas that this program has deleted and not restored. The caller purges what these had in the prompt cache: see
    /// [`Store::purged_owners`].
    pub async fn purge_deleted(&self) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        purge_run(&mut tx, &self.run.id).await.map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}

/// Removes for good what a run has deleted.
pub(crate) async fn purge_run(tx: &mut SqliteConnection, run: &str) -> Result<(), sqlx::Error> {
    purge_messages(tx, run).await?;
    purge_documents(tx, run).await?;
    purge_folder_documents(tx, run).await?;
    for table in Deletable::ALL {
        let purge = sqlx::query(table.statement("delete from TABLE where deleted_by_run_id = ?"));
        purge.bind(run).execute(&mut *tx).await?;
    }
    Ok(())
}
