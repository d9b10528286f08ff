//! The model_checks table: what opening a model's files once has shown, as JSON texts that the caller
//! interprets, by an identity that changes with the files.

use crate::{Store, StoreError};

/// Verdicts that are kept: more models than anyone has, in several versions.
const MAX_VERDICTS: i64 = 5000;

impl Store {
    /// Every identity with its verdict.
    pub async fn model_checks(&self) -> Result<Vec<(String, String)>, StoreError> {
        sqlx::query_as("select identity, verdict from model_checks")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Saves a verdict, a JSON text. The oldest ones beyond a few thousand are forgotten.
    pub async fn save_model_check(
        &self,
        identity: &str,
        verdict: &str,
        now_ms: i64,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "insert into model_checks (identity, verdict, checked_at_ms) values (?, ?, ?)
             on conflict (identity) do update set verdict = excluded.verdict, checked_at_ms = excluded.checked_at_ms",
        )
        .bind(identity)
        .bind(verdict)
        .bind(now_ms)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        sqlx::query(
            "delete from model_checks where identity in (
                 select identity from model_checks order by checked_at_ms desc limit -1 offset ?)",
        )
        .bind(MAX_VERDICTS)
        .execute(&mut *tx)
        .await
        .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }

    /// Forgets a verdict.
    pub async fn forget_model_check(&self, identity: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("delete from model_checks where identity = ?")
            .bind(identity)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        self.commit(tx).await
    }
}
