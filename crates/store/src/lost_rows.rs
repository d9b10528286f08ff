//! Rows that SQLite does not find in a damaged file, read from its pages.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{Arguments, AssertSqlSafe};

use crate::page_owners::{listed_roots, migrated_to, page_owners, row};
use crate::pages::{Pages, TablePage};
use crate::records::{Layout, Value};
use crate::result_code::{CONSTRAINT, MISMATCH, TOOBIG, primary, result_code};
use crate::table_roots::{TableRoots, is_page_size};

/// SQLite's, which Cairn never changes.
const USUAL_PAGE_SIZE: usize = 4096;

/// A damaged file, and what is known of its list of tables.
#[derive(Debug)]
pub(crate) struct DamagedFile {
    pages: Pages,
    roots: HashMap<String, u32>,
    /// The version of its tables, if a page or the file of roots says it.
    pub(crate) version: Option<i64>,
}

impl DamagedFile {
    /// Opens a file that no connection has open; none if the system cannot read it. `noted` is what
    /// was noted of the database at its last start.
    pub(crate) fn open(path: &Path, noted: Option<TableRoots>) -> Option<DamagedFile> {
        let sizes = match &noted {
            Some(noted) => vec![noted.page_size],
            None => page_sizes(path),
        };
        let read = |size: usize| {
            let pages = Pages::open(path, size).ok()?;
            let roots = listed_roots(&pages);
            Some((pages, roots))
        };
        let (pages, listed) =
            sizes.into_iter().filter_map(read).max_by_key(|(_, roots)| roots.len())?;
        let noted_version = noted.as_ref().map(|noted| noted.version);
        let mut roots: HashMap<String, u32> =
            noted.map(|noted| noted.tables.into_iter().collect()).unwrap_or_default();
        roots.extend(listed);
        roots.insert("sqlite_schema".to_owned(), 1);
        let version = migrated_to(&pages).or(noted_version);
        Some(DamagedFile { pages, roots, version })
    }

    /// Copies rows of these tables that the main file does not have; returns how many.
    pub(crate) async fn copy_missing(
        &self,
        connection: &mut SqliteConnection,
        tables: &[String],
    ) -> Result<u64, sqlx::Error> {
        let layouts = Layout::all(connection).await?;
        let owners = page_owners(&self.pages, &layouts, &self.roots);
        let mut num_copied = 0;
        for layout in layouts.iter().filter(|layout| tables.contains(&layout.table)) {
            let leaves = owners.get(layout.table.as_str()).map_or(&[][..], Vec::as_slice);
            sqlx::query("begin").execute(&mut *connection).await?;
            num_copied += self.copy_table(connection, layout, leaves).await?;
            sqlx::query("commit").execute(&mut *connection).await?;
        }
        Ok(num_copied)
    }

    async fn copy_table(
        &self,
        connection: &mut SqliteConnection,
        layout: &Layout,
        leaves: &[u32],
    ) -> Result<u64, sqlx::Error> {
        let select = format!("select rowid from main.\"{}\"", layout.table);
        let known: Vec<i64> =
            sqlx::query_scalar(AssertSqlSafe(select)).fetch_all(&mut *connection).await?;
        let known: HashSet<i64> = known.into_iter().collect();
        let mut num_copied = 0;
        for leaf in leaves {
            let Some(TablePage::Leaf(cells)) = self.pages.table_page(*leaf) else { continue };
            for cell in cells.iter().filter(|cell| !known.contains(&cell.rowid)) {
                let row = row(&self.pages, cell).filter(|row| layout.fits(row));
                if let Some(row) = row {
                    num_copied += insert(connection, layout, cell.rowid, row).await?;
                }
            }
        }
        Ok(num_copied)
    }
}

/// Inserts a row with its number, unless it contradicts the table or a row that is there.
async fn insert(
    connection: &mut SqliteConnection,
    layout: &Layout,
    rowid: i64,
    row: Vec<Value>,
) -> Result<u64, sqlx::Error> {
    let mut names = vec!["rowid".to_owned()];
    let mut arguments = SqliteArguments::default();
    arguments.add(rowid).map_err(sqlx::Error::Encode)?;
    for (column, value) in layout.columns.iter().zip(row).filter(|(column, _)| !column.is_rowid) {
        names.push(format!("\"{}\"", column.name));
        value.bind(&mut arguments)?;
    }
    let places = vec!["?"; names.len()].join(", ");
    let insert = format!(
        "insert or ignore into main.\"{}\" ({}) values ({places})",
        layout.table,
        names.join(", ")
    );
    match sqlx::query_with(AssertSqlSafe(insert), arguments).execute(connection).await {
        Ok(done) => Ok(done.rows_affected()),
        Err(error) if is_refusal(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether the table refuses the values of a row.
fn is_refusal(error: &sqlx::Error) -> bool {
    result_code(error).is_some_and(|code| [CONSTRAINT, MISMATCH, TOOBIG].contains(&primary(code)))
}

/// The sizes that the pages of a file can have: its header may be damaged.
fn page_sizes(path: &Path) -> Vec<usize> {
    let mut header = [0; 18];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    // 1 means 65,536, which two bytes cannot hold.
    let said = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 1 << 16,
        said => usize::from(said),
    };
    // If both sizes lead to equally many tables, the last is taken.
    match read {
        Ok(()) if is_page_size(said) => vec![said, USUAL_PAGE_SIZE],
        _ => vec![USUAL_PAGE_SIZE],
    }
}
