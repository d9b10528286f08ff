//! Texts that are no longer UTF-8 after damage. SQLite does not mind them, but reading one fails,
//! and a title that cannot be read would hide the whole list of chats.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::result_code::{CONSTRAINT, primary, result_code};

/// How many rows are read at once.
const MAX_ROWS: i64 = 500;

/// Replaces every byte that is no UTF-8 by U+FFFD, in all tables; returns how many texts were changed.
/// Reads the whole file.
pub(crate) async fn repair_texts(connection: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let columns: Vec<(String, String)> = sqlx::query_as(
        "select tables.name, columns.name
         from pragma_table_list as tables, pragma_table_info(tables.name, 'main') as columns
         where tables.schema = 'main' and tables.type = 'table' and not wr
             and tables.name not like 'sqlite\\_%' escape '\\' and columns.type = 'TEXT' collate nocase",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut num_changed = 0;
    for (table, column) in columns {
        num_changed += repair_column(connection, &table, &column).await?;
    }
    Ok(num_changed)
}

async fn repair_column(
    connection: &mut SqliteConnection,
    table: &str,
    column: &str,
) -> Result<u64, sqlx::Error> {
    let select = format!(
        "select rowid as number, cast(\"{column}\" as blob) as bytes from main.\"{table}\"
         where rowid > ? and \"{column}\" is not null order by rowid limit {MAX_ROWS}"
    );
    let update = format!("update main.\"{table}\" set \"{column}\" = ? where rowid = ?");
    let (mut num_changed, mut last) = (0, i64::MIN);
    loop {
        let rows = sqlx::query(AssertSqlSafe(select.clone())).bind(last);
        let rows = rows.fetch_all(&mut *connection).await?;
        for row in &rows {
            last = row.try_get("number")?;
            let bytes: &[u8] = row.try_get("bytes")?;
            if std::str::from_utf8(bytes).is_ok() {
                continue;
            }
            let text = String::from_utf8_lossy(bytes).into_owned();
            let update = sqlx::query(AssertSqlSafe(update.clone())).bind(text).bind(last);
            match update.execute(&mut *connection).await {
                Ok(done) => num_changed += done.rows_affected(),
                // Something refers to this text; it stays as it is.
                Err(error) if result_code(&error).map(primary) == Some(CONSTRAINT) => {}
                Err(error) => return Err(error),
            }
        }
        if rows.len() < MAX_ROWS as usize {
            return Ok(num_changed);
        }
    }
}
