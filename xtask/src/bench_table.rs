//! The table that benchmarks print, in Markdown, and the middle of several trials.

/// Prints what was measured, here and there.
pub fn row(what: &str, ours: String, against: String, ratio: f64) {
    println!("| {what} | {ours} | {against} | {ratio:.2} |");
}

/// Not a number without any.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
