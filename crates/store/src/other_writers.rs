//! Whether another program has written to the database.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::sqlite::SqlitePool;

use crate::{Store, StoreError};

/// The state of other writers at the last check. Owned by the store.
#[derive(Debug, Default)]
pub(crate) struct OtherWriters {
    /// How many connections the writer has had: SQLite's counter is only comparable within one
    /// connection.
    pub(crate) num_connections: Arc<AtomicU64>,
    last: Mutex<Version>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Version {
    connection: u64,
    data_version: i64,
}

impl OtherWriters {
    /// Whether another program has written since the last call; true where that is unknown.
    pub(crate) async fn have_written(&self, writer: &SqlitePool) -> Result<bool, sqlx::Error> {
        // Read on the writing connection, because its counter covers the commits of all others and
        // not its own.
        let mut connection = writer.acquire().await?;
        let data_version =
            sqlx::query_scalar("pragma data_version").fetch_one(&mut *connection).await?;
        // The connection is still acquired, so no other call can come between these two lines.
        let version =
            Version { connection: self.num_connections.load(Ordering::Relaxed), data_version };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *last, version) != version)
    }
}

impl Store {
    /// Whether another program has committed to the database since the last call, or since this
    /// store was opened; what this store writes does not count. Also true after the store had to
    /// open its file again.
    pub async fn changes_by_others(&self) -> Result<bool, StoreError> {
        self.other_writers.have_written(&self.writer).await.map_err(|error| self.failed(error))
    }
}
