//! The unclean_ends table: how many runs have ended without being closed while a model or a job was at work.

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use crate::error::unknown;
use crate::{Store, StoreError};

/// How many runs have ended uncleanly with one model or job at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UncleanEnds {
    /// The model or job that was at work.
    pub subject: UncleanSubject,
    /// The version of Cairn that counted.
    pub build: String,
    /// At least 1.
    pub num_ends: u32,
}

/// A model or a job that was at work when a run ended uncleanly.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UncleanSubject {
    /// The model of this name.
    Model(String),
    /// The job with this id.
    Job(String),
}

impl UncleanSubject {
    fn columns(&self) -> (&'static str, &str) {
        match self {
            UncleanSubject::Model(name) => ("model", name),
            UncleanSubject::Job(id) => ("job", id),
        }
    }
}

impl FromRow<'_, SqliteRow> for UncleanEnds {
    fn from_row(row: &SqliteRow) -> Result<UncleanEnds, sqlx::Error> {
        let name = row.try_get("name")?;
        let subject = match row.try_get("subject")? {
            "model" => UncleanSubject::Model(name),
            "job" => UncleanSubject::Job(name),
            other => return Err(unknown("subject", other)),
        };
        Ok(UncleanEnds {
            subject,
            build: row.try_get("build")?,
            num_ends: row.try_get("num_ends")?,
        })
    }
}

impl Store {
    /// Every count.
    pub async fn unclean_ends(&self) -> Result<Vec<UncleanEnds>, StoreError> {
        sqlx::query_as("select * from unclean_ends order by subject, name")
            .fetch_all(&self.readers)
            .await
            .map_err(|error| self.failed(error))
    }

    /// Replaces all counts.
    pub async fn set_unclean_ends(&self, ends: &[UncleanEnds]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query("delete from unclean_ends")
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        for UncleanEnds { subject, build, num_ends } in ends {
            let (subject, name) = subject.columns();
            sqlx::query(
                "insert into unclean_ends (subject, name, build, num_ends) values (?, ?, ?, ?)",
            )
            .bind(subject)
            .bind(name)
            .bind(build)
            .bind(num_ends)
            .execute(&mut *tx)
            .await
            .map_err(|error| self.failed(error))?;
        }
        self.commit(tx).await
    }
}
