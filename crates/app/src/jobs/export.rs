//! The rows of a job as a CSV file: text, label, probability, margin, each option's probability, the
//! corrected label, and the error. Pure.

use super::answers::Reading;
use crate::decisions::calibration::best;
use crate::wire::JobRow;

/// The text of the file.
pub(super) fn csv(reading: &Reading, rows: &[JobRow]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let options = 0..reading.num_options();
    let columns = options.clone().map(|option| format!("p({})", reading.label(option)));
    let header = ["text", "label", "probability", "margin"].map(str::to_owned).into_iter();
    let end = ["correct", "error"].map(str::to_owned);
    writer.write_record(header.chain(columns).chain(end))?;
    for row in rows {
        let answered = row.probabilities.as_deref();
        let number = |number: f64| format!("{number:.6}");
        let likeliest = answered.map(best);
        let label = likeliest.map(|(option, _)| reading.label(option).to_owned());
        let mut fields = vec![row.text.clone(), label.unwrap_or_default()];
        fields.push(likeliest.map(|(_, probability)| number(probability)).unwrap_or_default());
        fields.push(answered.map(|all| number(margin(all))).unwrap_or_default());
        let probability = |option| answered.and_then(|all: &[f64]| all.get(option)).copied();
        fields.extend(options.clone().map(|one| probability(one).map(number).unwrap_or_default()));
        let correct = row.correction.map(|option| reading.label(option as usize).to_owned());
        fields.push(correct.unwrap_or_default());
        fields.push(row.error.clone().unwrap_or_default());
        writer.write_record(fields)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
            row("c\nd", None, None, Some("too long")),
            row("e", None, None, None),
        ];
        let expected = "text,label,probability,margin,p(no),p(yes),correct,error\n\
            \"a, \"\"b\"\"\",yes,0.750000,0.500000,0.250000,0.750000,no,\n\
            \"c\nd\",,,,,,,too long\n\
            e,,,,,,,\n";
        assert_eq!(csv(&Reading::new(question), &rows).expect("a text"), expected);
    }
}
