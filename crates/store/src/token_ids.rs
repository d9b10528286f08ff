//! Token ids as a blob: unsigned 32-bit numbers, little-endian, nothing before or between them.

use sqlx::sqlite::SqliteRow;
use sqlx::{Error, Row};

pub(crate) fn to_blob(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Reads a column of a row; none where it is null.
pub(crate) fn from_row(row: &SqliteRow, column: &str) -> Result<Option<Vec<u32>>, Error> {
    let Some(blob) = row.try_get::<Option<&[u8]>, _>(column)? else { return Ok(None) };
    let (ids, rest) = blob.as_chunks::<4>();
    if !rest.is_empty() {
        let source = format!("{} bytes are no whole number of token ids", blob.len()).into();
        return Err(Error::ColumnDecode { index: column.into(), source });
    }
    Ok(Some(ids.iter().map(|id| u32::from_le_bytes(*id)).collect()))
}
