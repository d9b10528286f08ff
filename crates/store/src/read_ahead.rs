//! The read_ahead table: what was read for a question before it was sent.

use std::ops::Range;

use sqlx::Row;

use crate::{Store, StoreError};

/// How a beginning of a prompt got into memory before its question was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AheadSource {
    /// It was read.
    Read,
    /// It was restored from what is saved of the same owner.
    Restored,
    /// Another owner had read it.
    Shared,
}

impl AheadSource {
    const ALL: [AheadSource; 3] = [AheadSource::Read, AheadSource::Restored, AheadSource::Shared];

    fn name(self) -> &'static str {
        match self {
            AheadSource::Read => "read",
            AheadSource::Restored => "restored",
            AheadSource::Shared => "shared",
        }
    }
}

/// Tokens of a prompt, by their positions.
pub type AheadRange = (AheadSource, Range<usize>);

impl Store {
    /// Notes what `model` has in memory of an owner's next prompt since it was read ahead.
    ///
    /// Fails if the database cannot be written; then nothing is noted.
    pub async fn note_read_ahead(
        &self,
        owner: &str,
        model: &str,
        ranges: &[AheadRange],
    ) -> Result<(), StoreError> {
        let position = |position: usize| i64::try_from(position).unwrap_or(i64::MAX);
        let mut tx = self.begin().await?;
        for (source, range) in ranges.iter().filter(|(_, range)| !range.is_empty()) {
            let insert = "insert into read_ahead (owner, model, source, first, stop)
                 values (?, ?, ?, ?, ?)";
            sqlx::query(insert)
                .bind(owner)
                .bind(model)
                .bind(source.name())
                .bind(position(range.start))
                .bind(position(range.end))
                .execute(&mut *tx)
                .await
                .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }

    /// Takes what was noted for an owner: after an answer its tokens are nothing new.
    ///
    /// Fails if the database cannot be written; then the notes stay.
    pub async fn take_read_ahead(
        &self,
        owner: &str,
        model: &str,
    ) -> Result<Vec<AheadRange>, StoreError> {
        let failed = |error| self.failed(error);
        let mut tx = self.begin().await?;
        let delete = "delete from read_ahead where owner = ? and model = ?
             returning source, first, stop";
        let rows = sqlx::query(delete).bind(owner).bind(model);
        let mut ranges = Vec::new();
        for row in rows.fetch_all(&mut *tx).await.map_err(failed)? {
            let source: String = row.try_get("source").map_err(failed)?;
            let first: i64 = row.try_get("first").map_err(failed)?;
            let stop: i64 = row.try_get("stop").map_err(failed)?;
            let source = AheadSource::ALL.into_iter().find(|known| known.name() == source);
            let position = |position: i64| usize::try_from(position).unwrap_or(0);
            ranges.extend(source.map(|source| (source, position(first)..position(stop))));
        }
        self.commit(tx).await?;
        Ok(ranges)
    }
}
