//! Where the trees of the tables begin in the database file, in a small file of their own. SQLite has that
//! in its list of tables alone; without one page of the list, the rows of the tables on that page could
//! not be told apart.
//!
//! ```text
//! cairn.db-runs/tables.json    the version of the tables, the size of a page, the first page of each table
//! ```
//!
//! It is written when the database is opened, if something has changed: only a migration moves a first
//! page. A recovery believes the list of tables first, and then this file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqlitePool;

use crate::backup::sync_folder;
use crate::run;

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableRoots {
    /// The version of the tables.
    pub(crate) version: i64,
    /// In bytes.
    pub(crate) page_size: usize,
    /// The number of the first page of each table, by its name.
    pub(crate) tables: BTreeMap<String, u32>,
}

impl TableRoots {
    /// Reads the file of a database; none if it is missing or damaged.
    pub(crate) fn load(database: &Path) -> Option<TableRoots> {
        let roots: TableRoots = serde_json::from_slice(&fs::read(path_of(database)).ok()?).ok()?;
        is_page_size(roots.page_size).then_some(roots)
    }

    /// Reads the roots from an open database.
    async fn read(writer: &SqlitePool, version: i64) -> Result<TableRoots, sqlx::Error> {
        let page_size: u32 = sqlx::query_scalar("pragma page_size").fetch_one(writer).await?;
        let tables: Vec<(String, u32)> = sqlx::query_as(
            "select name, rootpage from sqlite_schema where type = 'table' and rootpage > 0",
        )
        .fetch_all(writer)
        .await?;
        let tables = tables.into_iter().collect();
        Ok(TableRoots { version, page_size: page_size as usize, tables })
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let partial = path.with_extension("json-partial");
        let mut file = File::create(&partial)?;
        // Names and numbers always serialize.
        file.write_all(&serde_json::to_vec(self).unwrap_or_default())?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        sync_folder(path);
        Ok(())
    }
}

/// Writes the file of an open database, unless it says the same already. Called with the opening lock
/// held.
pub(crate) async fn note(
    database: &Path,
    writer: &SqlitePool,
    version: i64,
) -> Result<(), sqlx::Error> {
    let roots = TableRoots::read(writer, version).await?;
    if TableRoots::load(database).as_ref() != Some(&roots) {
        // If this fails, as on a full disk, the next program tries again.
        let _ = roots.write(&path_of(database));
    }
    Ok(())
}

/// Whether pages of an SQLite file can have this many bytes.
pub(crate) fn is_page_size(num_bytes: usize) -> bool {
    num_bytes.is_power_of_two() && (512..=1 << 16).contains(&num_bytes)
}

fn path_of(database: &Path) -> PathBuf {
    run::folder_of(database).join("tables.json")
}
