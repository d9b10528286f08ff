//! How far probabilities can be trusted, and the temperature that makes them trustworthy. Pure.
//!
//! Guo, Pleiss, Sun and Weinberger, “On Calibration of Modern Neural Networks” (2017): one temperature
//! for all rows, which minimizes the negative log-likelihood of the correct options, and the expected
//! calibration error over bins of equal width.

/// The temperatures that are tried. Rows that are all answered correctly would otherwise ask for 0.
const LOWEST: f64 = 0.1;
const HIGHEST: f64 = 10.0;
/// The search ends when the logarithm of the temperature is known this well.
const TOLERANCE: f64 = 1e-6;
/// A probability of 0 for what is correct would outweigh all other rows.
const LEAST_PROBABILITY: f64 = 1e-9;
/// How many bins the calibration curve has.
pub const NUM_BINS: usize = 10;

/// The probabilities of a row's options, and the correct one of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// They add up to 1.
    pub probabilities: Vec<f64>,
    /// Its place among the options.
    pub correct: usize,
}

/// How good the answers of some rows are.
#[derive(Debug, Clone, PartialEq)]
pub struct Quality {
    /// How many rows were checked.
    pub num_rows: usize,
    /// The share of rows whose likeliest option is the correct one.
    pub accuracy: f64,
    /// The mean distance between probability and accuracy over the bins, weighted by their rows.
    pub expected_calibration_error: f64,
    /// The mean over the rows of the squared distances of all options' probabilities, 0 to 2.
    pub brier: f64,
    /// The mean negative logarithm of the correct option's probability.
    pub negative_log_likelihood: f64,
    /// The bins that have rows, by rising probability.
    pub curve: Vec<CurvePoint>,
}

/// The rows of a bin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// The mean probability of the likeliest option.
    pub probability: f64,
    /// How often it was correct.
    pub accuracy: f64,
    /// How many rows there are.
    pub num_rows: usize,
}

/// The likeliest option and its probability; of equal ones the first.
pub fn best(probabilities: &[f64]) -> (usize, f64) {
    let first = (0, probabilities.first().copied().unwrap_or_default());
    let all = probabilities.iter().copied().enumerate();
    all.fold(first, |best, one| if one.1 > best.1 { one } else { best })
}

/// How good these rows are; none of no row.
pub fn quality(rows: &[Checked]) -> Option<Quality> {
    let num_rows = rows.len();
    let mean =
        |value: &dyn Fn(&Checked) -> f64| rows.iter().map(value).sum::<f64>() / num_rows as f64;
    let curve = curve(rows);
    let error = |point: &CurvePoint| {
        (point.probability - point.accuracy).abs() * point.num_rows as f64 / num_rows as f64
    };
    (num_rows > 0).then(|| Quality {
        num_rows,
        accuracy: mean(&|row| f64::from(best(&row.probabilities).0 == row.correct)),
        expected_calibration_error: curve.iter().map(error).sum(),
        brier: mean(&brier),
        negative_log_likelihood: mean(&negative_log_likelihood),
        curve,
    })
}

/// The temperature above 0 at which the correct options are the likeliest as a whole. `checked` gives
/// all rows at a temperature.
pub fn fit_temperature(checked: impl Fn(f64) -> Vec<Checked>) -> f64 {
    let loss = |log_temperature: f64| -> f64 {
        checked(log_temperature.exp()).iter().map(negative_log_likelihood).sum()
    };
    golden_section(LOWEST.ln(), HIGHEST.ln(), loss).exp()
}

/// Where a function with one minimum has it (Kiefer 1953): each step keeps the golden part of the
/// interval, so that one of the two inner places is known already.
fn golden_section(mut low: f64, mut high: f64, loss: impl Fn(f64) -> f64) -> f64 {
    let golden = (5f64.sqrt() - 1.0) / 2.0;
    let (mut left, mut right) = (high - golden * (high - low), low + golden * (high - low));
    let (mut loss_left, mut loss_right) = (loss(left), loss(right));
    while high - low > TOLERANCE {
        if loss_left <= loss_right {
            (high, right, loss_right) = (right, left, loss_left);
            left = high - golden * (high - low);
            loss_left = loss(left);
        } else {
            (low, left, loss_left) = (left, right, loss_right);
            right = low + golden * (high - low);
            loss_right = loss(right);
        }
    }
    f64::midpoint(low, high)
}

fn negative_log_likelihood(row: &Checked) -> f64 {
    let probability = row.probabilities.get(row.correct).copied().unwrap_or_default();
    -probability.max(LEAST_PROBABILITY).ln()
}

fn brier(row: &Checked) -> f64 {
    let distance = |(option, probability): (usize, &f64)| {
        (probability - f64::from(option == row.correct)).powi(2)
    };
    row.probabilities.iter().enumerate().map(distance).sum()
}

/// The bins of equal width that have rows; a probability of 1 belongs to the last.
fn curve(rows: &[Checked]) -> Vec<CurvePoint> {
    let mut bins = [(0.0, 0_usize, 0_usize); NUM_BINS];
    for row in rows {
        let (option, probability) = best(&row.probabilities);
        let bin = ((probability * NUM_BINS as f64) as usize).min(NUM_BINS - 1);
        let (sum, num_correct, num_rows) = &mut bins[bin];
        *sum += probability;
        *num_correct += usize::from(option == row.correct);
        *num_rows += 1;
    }
    let point = |(sum, num_correct, num_rows): (f64, usize, usize)| CurvePoint {
        probability: sum / num_rows as f64,
        accuracy: num_correct as f64 / num_rows as f64,
        num_rows,
    };
    bins.into_iter().filter(|bin| bin.2 > 0).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::question::softmax;

    fn row(probabilities: &[f64], correct: usize) -> Checked {
        Checked { probabilities: probabilities.to_vec(), correct }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-4, "{found} instead of {expected}");
    }

    #[test]
    fn quality_is_what_its_definitions_say() {
        struct Case {
            rows: Vec<Checked>,
            accuracy: f64,
            ece: f64,
            brier: f64,
        }
        let sure = vec![row(&[1.0, 0.0], 0); 4];
        let sure_and_wrong = vec![row(&[1.0, 0.0], 1); 4];
        // Two bins: three rows of 0.8, of which two are right; one of 0.6, which is right.
        let mixed = vec![
            row(&[0.8, 0.2], 0),
            row(&[0.2, 0.8], 1),
            row(&[0.8, 0.2], 1),
            row(&[0.6, 0.3, 0.1], 0),
        ];
        let mixed_ece = 0.75 * (0.8 - 2.0 / 3.0) + 0.25 * 0.4;
        let mixed_brier = (0.08 + 0.08 + 1.28 + 0.26) / 4.0;
        for Case { rows, accuracy, ece, brier } in [
            Case { rows: sure, accuracy: 1.0, ece: 0.0, brier: 0.0 },
            Case { rows: sure_and_wrong, accuracy: 0.0, ece: 1.0, brier: 2.0 },
            Case { rows: mixed, accuracy: 0.75, ece: mixed_ece, brier: mixed_brier },
        ] {
            let found = quality(&rows).expect("rows");
            near(found.accuracy, accuracy);
            near(found.expected_calibration_error, ece);
            near(found.brier, brier);
            assert_eq!(found.curve.iter().map(|point| point.num_rows).sum::<usize>(), rows.len());
        }
        assert_eq!(quality(&[]), None);
    }

    #[test]
    fn equal_options_are_answered_by_the_first() {
        assert_eq!(best(&[0.2, 0.4, 0.4]), (1, 0.4));
        assert_eq!(best(&[]), (0, 0.0));
    }

    #[test]
    fn the_temperature_undoes_the_one_that_sharpened_the_answers() {
        for sharpened in [0.25, 1.0, 3.0] {
            // Of ten rows with the logit 1.5 as many are right as its probability says.
            let truth = softmax(&[1.5, 0.0])[0];
            let temperature = fit_temperature(|temperature| {
                let logits = [1.5 / sharpened / temperature, 0.0];
                let num_right = (truth * 10_000.0).round() as usize;
                let correct = |index: usize| usize::from(index >= num_right);
                (0..10_000).map(|index| row(&softmax(&logits), correct(index))).collect()
            });
            assert!((temperature * sharpened - 1.0).abs() < 1e-3, "{temperature} for {sharpened}");
        }
    }

    #[test]
    fn the_temperature_stays_in_its_bounds() {
        for (correct, expected) in [(0, LOWEST), (1, HIGHEST)] {
            let temperature = fit_temperature(|temperature| {
                vec![row(&softmax(&[2.0 / temperature, 0.0]), correct)]
            });
            near(temperature, expected);
        }
    }
}
