//! Columns that several tables of the prompt cache have: namespaces, and counts.

use cairn_prompt_cache::Namespace;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// The namespace in a row of chunks, references or named prompt caches; none where a text is
/// unknown.
pub(crate) fn namespace(row: &SqliteRow) -> Result<Option<Namespace>, sqlx::Error> {
    let model: &str = row.try_get("fingerprint")?;
    let kv_format: &str = row.try_get("kv_format")?;
    let provenance: &str = row.try_get("provenance")?;
    let parsed = kv_format.parse().ok().zip(provenance.parse().ok());
    Ok(parsed.map(|(kv_format, provenance)| Namespace {
        model: model.into(),
        kv_format,
        provenance,
    }))
}

/// A count as a column stores it.
pub(crate) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
