//! The rows of a job as a CSV file: text, label, probability, margin, each option's probability, the
//! corrected label, and the error.
//!
//! The file is made for spreadsheets and safe in them. It begins with a byte-order mark, without
//! which Excel takes UTF-8 for an older encoding; programs that read CSV skip it. A cell that a
//! spreadsheet would take for a formula begins with an apostrophe. All texts are quoted, so that one
//! with a semicolon stays one cell where spreadsheets separate cells by semicolons.

use std::io::Write;
use std::path::Path;

use cairn_formats::Replacement;
use csv::QuoteStyle;

use super::answers::{self, Reading};
use crate::app::App;
use crate::decisions::calibration::best;
use crate::wire::{Failure, FailureCode, JobRow, JobRowOrder};

const BYTE_ORDER_MARK: char = '\u{feff}';
/// With what a formula can begin. Spreadsheets skip a tab or a line break before it.
const FORMULA_STARTS: [char; 7] = ['=', '+', '-', '@', '\t', '\r', '\n'];

impl App {
    /// Writes the rows of a job to a CSV file. A file that is there is replaced when all is written.
    pub async fn export_job(&self, id: &str, path: &Path) -> Result<(), Failure> {
        let text = csv(self, id).await?;
        let target = path.to_owned();
        let written = self.blocking(move || write(&text, &target)).await;
        let failed = |why: String| Failure::not_writable(path, why);
        match written {
            Some(written) => written.map_err(|error| failed(error.to_string())),
            None => Err(failed("a fault in Cairn".to_owned())),
        }
    }
}

/// The text of the CSV file with all rows of a job.
pub(super) async fn csv(app: &App, id: &str) -> Result<String, Failure> {
    let reading = Reading::of_job(&app.store.listed_job(id).await?)?;
    let rows = answers::rows(app, id, JobRowOrder::Position, 0, u32::MAX).await?;
    text_of(&reading, &rows).map_err(|error| Failure::new(FailureCode::Storage, error.to_string()))
}

fn write(text: &str, path: &Path) -> std::io::Result<()> {
    let mut replacement = Replacement::create(path)?;
    replacement.file().write_all(text.as_bytes())?;
    replacement.finish()
}

/// The text of a file with these rows.
fn text_of(reading: &Reading, rows: &[JobRow]) -> Result<String, csv::Error> {
    let mut writer =
        csv::WriterBuilder::new().quote_style(QuoteStyle::NonNumeric).from_writer(Vec::new());
    let options = 0..reading.num_options();
    let columns = options.clone().map(|option| format!("p({})", reading.label(option)));
    let header = ["text", "label", "probability", "margin"].map(str::to_owned).into_iter();
    let end = ["correct", "error"].map(str::to_owned);
    writer.write_record(header.chain(columns).chain(end))?;
    for row in rows {
        let answered = row.probabilities.as_deref();
        let number = |number: f64| format!("{number:.6}");
        let likeliest = answered.map(best);
        let label = likeliest.map(|(option, _)| reading.label(option));
        let mut fields = vec![cell(&row.text), label.map(cell).unwrap_or_default()];
        fields.push(likeliest.map(|(_, probability)| number(probability)).unwrap_or_default());
        fields.push(answered.map(|all| number(margin(all))).unwrap_or_default());
        let probability = |option| answered.and_then(|all: &[f64]| all.get(option)).copied();
        fields.extend(options.clone().map(|one| probability(one).map(number).unwrap_or_default()));
        let correct = row.correction.map(|option| reading.label(option as usize));
        fields.push(correct.map(cell).unwrap_or_default());
        fields.push(row.error.as_deref().map(cell).unwrap_or_default());
        writer.write_record(fields)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(format!("{BYTE_ORDER_MARK}{}", String::from_utf8_lossy(&bytes)))
}

/// A text as a cell that no spreadsheet calculates.
fn cell(text: &str) -> String {
    if text.starts_with(FORMULA_STARTS) { format!("'{text}") } else { text.to_owned() }
}

/// How far the likeliest option is before the next.
fn margin(probabilities: &[f64]) -> f64 {
    let mut sorted = probabilities.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.first().copied().unwrap_or_default() - sorted.get(1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::{Question, QuestionKind};

    #[test]
    fn a_file_has_a_line_for_each_row() {
        let question =
            Question { instructions: "Is it?".to_owned(), kind: QuestionKind::Predicate };
        let row = |text: &str, probabilities, correction, error: Option<&str>| JobRow {
            position: 0,
            text: text.to_owned(),
            probabilities,
            correction,
            error: error.map(str::to_owned),
        };
        let rows = [
            row("a, \"b\"", Some(vec![0.25, 0.75]), Some(0), None),
            row("c\nd;e", None, None, Some("too long")),
        ];
        let expected = "\u{feff}\
            \"text\",\"label\",\"probability\",\"margin\",\"p(no)\",\"p(yes)\",\"correct\",\"error\"\n\
            \"a, \"\"b\"\"\",\"yes\",0.750000,0.500000,0.250000,0.750000,\"no\",\"\"\n\
            \"c\nd;e\",\"\",\"\",\"\",\"\",\"\",\"\",\"too long\"\n";
        assert_eq!(text_of(&Reading::new(question), &rows).expect("a text"), expected);
    }

    #[test]
    fn no_cell_is_a_formula() {
        for (text, expected) in [
            ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
            ("+1", "'+1"),
            ("- no", "'- no"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\n=1", "'\n=1"),
            ("a=1", "a=1"),
            ("", ""),
        ] {
            assert_eq!(cell(text), expected);
        }
    }
}
