//! Rows of an SQLite file as bytes, and which table they can be of.

use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{Arguments, Row};

use crate::pages::varint;

/// A value of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    /// Bytes that are no UTF-8 are replaced: a text that cannot be read would hide its whole list.
    Text(String),
    Blob(Vec<u8>),
}

/// The columns of a table, in the order in which rows have them.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) table: String,
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    kind: Kind,
    is_required: bool,
    has_default: bool,
    /// The row's number, which its content does not repeat.
    pub(crate) is_rowid: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Real,
    Text,
    Blob,
    Any,
}

/// The values of a row's content; none if it contradicts itself.
pub(crate) fn values(content: &[u8]) -> Option<Vec<Value>> {
    let (header_bytes, _) = varint(content)?;
    let header_bytes = usize::try_from(header_bytes).ok()?;
    let (_, mut types) = varint(content.get(..header_bytes)?)?;
    let mut body = content.get(header_bytes..)?;
    let mut values = Vec::new();
    while !types.is_empty() {
        let (kind, rest) = varint(types)?;
        let (value, behind) = value(kind, body)?;
        values.push(value);
        (types, body) = (rest, behind);
    }
    Some(values)
}

fn value(kind: u64, body: &[u8]) -> Option<(Value, &[u8])> {
    let num_bytes = match kind {
        0 | 8 | 9 => 0,
        1..=4 => kind as usize,
        5 => 6,
        6 | 7 => 8,
        10 | 11 => return None,
        longer => usize::try_from((longer - 12) / 2).ok()?,
    };
    let (bytes, rest) = body.split_at_checked(num_bytes)?;
    let value = match kind {
        0 => Value::Null,
        8 => Value::Integer(0),
        9 => Value::Integer(1),
        7 => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
        1..=6 => {
            let sign = if bytes[0] & 0x80 == 0 { 0 } else { 0xff };
            let mut number = [sign; 8];
            number[8 - num_bytes..].copy_from_slice(bytes);
            Value::Integer(i64::from_be_bytes(number))
        }
        blob if blob % 2 == 0 => Value::Blob(bytes.to_vec()),
        _ => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
    };
    Some((value, rest))
}

impl Layout {
    /// The layout of every table of the main file that has rows with a number.
    pub(crate) async fn all(connection: &mut SqliteConnection) -> Result<Vec<Layout>, sqlx::Error> {
        let tables: Vec<String> = sqlx::query_scalar(
            "select name from pragma_table_list
             where schema = 'main' and type in ('table', 'shadow') and not wr",
        )
        .fetch_all(&mut *connection)
        .await?;
        let mut layouts = Vec::new();
        for table in tables {
            let rows = sqlx::query(
                "select name, type, \"notnull\" or pk as is_required, dflt_value is not null as has_default,
                     pk and type = 'INTEGER' collate nocase and sum(pk > 0) over () = 1 as is_rowid
                 from pragma_table_info(?, 'main') order by cid",
            )
            .bind(&table)
            .fetch_all(&mut *connection)
            .await?;
            let columns = rows.iter().map(|row| {
                let kind: String = row.try_get("type")?;
                Ok(Column {
                    name: row.try_get("name")?,
                    kind: Kind::named(&kind),
                    is_required: row.try_get("is_required")?,
                    has_default: row.try_get("has_default")?,
                    is_rowid: row.try_get("is_rowid")?,
                })
            });
            let columns = columns.collect::<Result<_, sqlx::Error>>()?;
            layouts.push(Layout { table, columns });
        }
        Ok(layouts)
    }

    /// Whether a row can be one of this table. A row may lack columns that were added later.
    pub(crate) fn fits(&self, row: &[Value]) -> bool {
        let lacks = self.columns.get(row.len()..);
        let may_lack = |column: &Column| !column.is_required || column.has_default;
        !row.is_empty()
            && lacks.is_some_and(|lacks| lacks.iter().all(may_lack))
            && self.columns.iter().zip(row).all(|(column, value)| column.fits(value))
    }
}

impl Column {
    fn fits(&self, value: &Value) -> bool {
        match value {
            Value::Null => self.is_rowid || !self.is_required,
            _ if self.is_rowid => false,
            _ if self.kind == Kind::Any => true,
            // A whole number takes less room as an integer.
            Value::Integer(_) => matches!(self.kind, Kind::Integer | Kind::Real),
            Value::Real(_) => self.kind == Kind::Real,
            Value::Text(_) => self.kind == Kind::Text,
            Value::Blob(_) => self.kind == Kind::Blob,
        }
    }
}

impl Kind {
    fn named(name: &str) -> Kind {
        match name.to_ascii_lowercase().as_str() {
            "integer" | "bigint" => Kind::Integer,
            "real" => Kind::Real,
            "text" => Kind::Text,
            "blob" => Kind::Blob,
            _ => Kind::Any,
        }
    }
}

impl Value {
    pub(crate) fn bind(self, arguments: &mut SqliteArguments) -> Result<(), sqlx::Error> {
        let added = match self {
            Value::Null => arguments.add(None::<i64>),
            Value::Integer(number) => arguments.add(number),
            Value::Real(number) => arguments.add(number),
            Value::Text(text) => arguments.add(text),
            Value::Blob(bytes) => arguments.add(bytes),
        };
        added.map_err(sqlx::Error::Encode)
    }
}
