//! The texts of a job, from what a person has chosen or pasted. Pure.
//!
//! | Format | Texts |
//! |---|---|
//! | `Csv` | one column, by the name in the first line |
//! | `Jsonl` | `text` of each line's object, or its only field that is a text; or lines that are texts |
//! | `Lines` | each line |
//!
//! Rows without anything are left out, and counted where they are not just empty lines.

use serde_json::Value;

use crate::convert;
use crate::wire::{FailureKind, TextFormat};

/// More rows than this take days on any Mac.
pub(crate) const MAX_ROWS: usize = 1_000_000;
/// The most columns that a refusal names.
const MAX_NAMED_COLUMNS: usize = 20;

/// Why a file has no texts. Lines are counted from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextsError {
    #[error("There is no text in it.")]
    Empty,
    #[error("It has more than {MAX_ROWS} rows.")]
    TooMany,
    #[error("Line {line} is not CSV: {detail}.")]
    Csv { line: u64, detail: String },
    #[error("There is no column “{column}” in line 1: it has {}.", columns.join(", "))]
    NoColumn { column: String, columns: Vec<String> },
    #[error("Line {line} is not JSON: {detail}.")]
    Json { line: usize, detail: String },
    #[error("Line {line} has no field “text”, and not exactly one other field that is a text.")]
    NoText { line: usize },
}

impl TextsError {
    pub(super) fn kind(&self) -> FailureKind {
        let bad_line = |line: u64, form: &str, detail: &str| FailureKind::BadLine {
            line,
            form: form.to_owned(),
            detail: convert::sentence(detail),
        };
        match self {
            TextsError::Empty => FailureKind::NoTexts,
            TextsError::TooMany => FailureKind::TooManyTexts { most: convert::tokens(MAX_ROWS) },
            TextsError::Csv { line, detail } => bad_line(*line, "CSV", detail),
            TextsError::Json { line, detail } => bad_line(*line as u64, "JSON", detail),
            TextsError::NoColumn { column, columns } => {
                FailureKind::NoColumn { column: column.clone(), columns: columns.clone() }
            }
            TextsError::NoText { line } => FailureKind::NoTextInLine { line: *line as u64 },
        }
    }
}

/// The columns that a CSV file names in its first line; none of other formats.
pub(crate) fn columns(text: &str, format: TextFormat) -> Result<Vec<String>, TextsError> {
    if format != TextFormat::Csv {
        return Ok(Vec::new());
    }
    let mut reader = reader(text);
    let headers = reader.headers().map_err(csv_error)?;
    Ok(headers.iter().map(str::to_owned).collect())
}

/// The texts of a file, and how many of its rows have none.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Texts {
    pub(crate) texts: Vec<String>,
    pub(crate) num_empty: usize,
}

/// The texts of all rows. `column` is that of a CSV file: without one “text”, or the first.
pub(crate) fn read(
    text: &str,
    format: TextFormat,
    column: Option<&str>,
) -> Result<Texts, TextsError> {
    let Texts { texts, num_empty } = match format {
        TextFormat::Csv => read_csv(text, column)?,
        TextFormat::Jsonl => Texts::collect(read_jsonl(text), MAX_ROWS)?,
        TextFormat::Lines => {
            let lines = text.lines().map(|line| Ok(line.to_owned()));
            Texts { num_empty: 0, ..Texts::collect(lines, MAX_ROWS)? }
        }
    };
    if texts.is_empty() { Err(TextsError::Empty) } else { Ok(Texts { texts, num_empty }) }
}

impl Texts {
    /// Collects rows with a text, at most `most`.
    fn collect(
        rows: impl Iterator<Item = Result<String, TextsError>>,
        most: usize,
    ) -> Result<Texts, TextsError> {
        let mut all = Texts { texts: Vec::new(), num_empty: 0 };
        for row in rows {
            let text = row?;
            if text.trim().is_empty() {
                all.num_empty += 1;
            } else if all.texts.len() == most {
                return Err(TextsError::TooMany);
            } else {
                all.texts.push(text);
            }
        }
        Ok(all)
    }
}

/// The column that is read unless another is chosen.
pub(crate) fn default_column(columns: &[String]) -> Option<&String> {
    columns.iter().find(|name| name.eq_ignore_ascii_case("text")).or_else(|| columns.first())
}

/// Semicolons are what spreadsheets write where numbers have decimal commas.
fn reader(text: &str) -> csv::Reader<&[u8]> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let first = text.lines().next().unwrap_or_default();
    let count = |delimiter: char| first.matches(delimiter).count();
    let delimiter = [',', ';', '\t'].into_iter().rev().max_by_key(|&one| count(one));
    csv::ReaderBuilder::new()
        .delimiter(delimiter.map_or(b',', |delimiter| delimiter as u8))
        .from_reader(text.as_bytes())
}

fn read_csv(text: &str, column: Option<&str>) -> Result<Texts, TextsError> {
    let mut columns = columns(text, TextFormat::Csv)?;
    let Some(wanted) = column.or(default_column(&columns).map(String::as_str)) else {
        return Err(TextsError::Empty);
    };
    let Some(place) = columns.iter().position(|name| name == wanted) else {
        let column = wanted.to_owned();
        columns.truncate(MAX_NAMED_COLUMNS);
        return Err(TextsError::NoColumn { column, columns });
    };
    let field = |record: Result<csv::StringRecord, csv::Error>| {
        Ok(record.map_err(csv_error)?.get(place).unwrap_or_default().to_owned())
    };
    Texts::collect(reader(text).into_records().map(field), MAX_ROWS)
}

fn csv_error(error: csv::Error) -> TextsError {
    let line = error.position().map_or(1, csv::Position::line);
    let detail = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let fields = if *len == 1 { "field" } else { "fields" };
            format!("it has {len} {fields}, and the first line {expected_len}")
        }
        _ => error.to_string(),
    };
    TextsError::Csv { line, detail }
}

fn read_jsonl(text: &str) -> impl Iterator<Item = Result<String, TextsError>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(index, line)| text_of(line, index + 1))
}

fn text_of(json: &str, line: usize) -> Result<String, TextsError> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| TextsError::Json { line, detail: error.to_string() })?;
    let object = match value {
        Value::String(text) => return Ok(text),
        Value::Object(object) => object,
        _ => return Err(TextsError::NoText { line }),
    };
    if let Some(text) = object.get("text").and_then(Value::as_str) {
        return Ok(text.to_owned());
    }
    let mut texts = object.values().filter_map(Value::as_str);
    match (texts.next(), texts.next()) {
        (Some(text), None) => Ok(text.to_owned()),
        _ => Err(TextsError::NoText { line }),
    }
}

#[cfg(test)]
mod tests {
    use cairn_formats::test_files::growth::check_linear;

    use super::*;

    #[test]
    fn rows_are_read_from_every_format() {
        for (format, column, text, expected) in [
            (TextFormat::Lines, None, "one\r\n\n two \n", &["one", " two "][..]),
            (TextFormat::Csv, None, "id,Text\n1,\"a, b\nc\"\n2,d\n", &["a, b\nc", "d"]),
            (TextFormat::Csv, Some("id"), "id,text\n1,a\n2,b", &["1", "2"]),
            (TextFormat::Csv, None, "\u{feff}satz;zahl\neins;1,5\n", &["eins"]),
            (TextFormat::Csv, None, "first\tsecond\na, b\tc\n", &["a, b"]),
            (
                TextFormat::Jsonl,
                None,
                "{\"text\":\"a\",\"by\":\"x\"}\n\n{\"t\":\"b\",\"n\":1}\n\"c\"",
                &["a", "b", "c"],
            ),
        ] {
            assert_eq!(read(text, format, column).expect(text).texts, expected, "{text}");
        }
    }

    #[test]
    fn rows_of_a_file_without_a_text_are_counted() {
        for (format, text, expected) in [
            (TextFormat::Csv, "id,text\n1,a\n2,\n3, \n4,b\n", 2),
            (TextFormat::Jsonl, "{\"text\":\"\"}\n\n{\"text\":\"a\"}\n", 1),
            (TextFormat::Lines, "a\n\n\nb\n", 0),
        ] {
            assert_eq!(read(text, format, None).expect(text).num_empty, expected, "{text}");
        }
    }

    #[test]
    fn refuses_more_rows_than_the_limit() {
        let rows = |count| (0..count).map(|number: usize| Ok(number.to_string()));
        let with_empty = rows(3).chain([Ok(" ".to_owned())]);
        let all = Texts::collect(with_empty, 3).expect("three texts");
        assert_eq!((all.texts.len(), all.num_empty), (3, 1));
        assert_eq!(Texts::collect(rows(4), 3), Err(TextsError::TooMany));
    }

    #[test]
    fn names_few_of_many_columns() {
        let header: Vec<String> = (0..1000).map(|number| format!("c{number}")).collect();
        let error = read(&header.join(","), TextFormat::Csv, Some("text")).expect_err("no column");
        assert!(error.to_string().len() < 200, "{error}");
    }

    #[test]
    fn reads_texts_in_linear_time() {
        for (what, format, row) in [
            ("lines", TextFormat::Lines, "a text\n"),
            ("CSV", TextFormat::Csv, "1,\"a, text\"\n"),
            ("JSONL", TextFormat::Jsonl, "{\"text\":\"a\"}\n"),
        ] {
            let rows = |count| row.repeat(count);
            check_linear(what, 2000, rows, |text| drop(read(&text, format, None)));
        }
        let columns = |count| format!("{}\n{}", "c,".repeat(count), "1,".repeat(count));
        check_linear("columns", 2000, columns, |text| drop(read(&text, TextFormat::Csv, None)));
    }

    #[test]
    fn an_error_names_its_line() {
        for (format, column, text, named) in [
            (TextFormat::Lines, None, " \n\n", "There is no text in it."),
            (TextFormat::Csv, None, "", "There is no text in it."),
            (
                TextFormat::Csv,
                None,
                "a,b\n1,2\n3\n",
                "Line 3 is not CSV: it has 1 field, and the first line 2.",
            ),
            (TextFormat::Csv, Some("c"), "a,b\n1,2\n", "no column “c” in line 1: it has a, b."),
            (TextFormat::Jsonl, None, "{\"text\":\"a\"}\n\nno", "Line 3 is not JSON"),
            (TextFormat::Jsonl, None, "{\"a\":\"a\",\"b\":\"b\"}", "Line 1 has no field “text”"),
            (TextFormat::Jsonl, None, "{\"text\":\"a\"}\n[1]", "Line 2 has no field “text”"),
        ] {
            let error = read(text, format, column).expect_err(text).to_string();
            assert!(error.contains(named), "{error:?} should name {named:?}");
        }
    }
}
