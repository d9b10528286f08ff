//! Says what rounding costs a model, with what is under way meanwhile.

use std::path::Path;

use anyhow::Result;
use cairn_engine::Perplexity;
use cairn_formats::gguf::PerplexityChange;
use tokio::sync::watch;

use crate::output::{self, note};
use crate::signals::unless_stopped;

/// Further digits say no more: the perplexity of random weights has 177 digits.
const MOST_SAID: f64 = 1e6;

/// Says the perplexity of the model in `folder`, and where it was rounded also of the weights that
/// its `file` has, which stays with the model. Ends early where it is `stopped`.
pub async fn say(
    file: &Path,
    folder: &Path,
    is_rounded: bool,
    stopped: &watch::Receiver<bool>,
) -> Result<()> {
    let spinner = output::spinner("measuring".to_owned());
    let Perplexity { value: after, num_tokens } = Perplexity::of(folder, None).await?;
    spinner.finish_and_clear();
    let of_what = format!("Perplexity of a short text, over {num_tokens} tokens");
    if !is_rounded {
        note!("{of_what}: {}.", words(after));
        return Ok(());
    }
    let before = before(file, folder, stopped).await?;
    note!("{of_what}: {} before rounding, {} after.", words(before), words(after));
    let change = PerplexityChange { before, after };
    if change.is_valid() {
        change.write(folder)?;
    }
    Ok(())
}

async fn before(file: &Path, folder: &Path, stopped: &watch::Receiver<bool>) -> Result<f64> {
    let bar = output::bar(0, "unpacking and measuring {wide_bar} {bytes}/{total_bytes}");
    let mut on_progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        unless_stopped(stopped)
    };
    let before = Perplexity::before_rounding(file, folder, None, &mut on_progress).await?;
    bar.finish_and_clear();
    Ok(before.value)
}

/// A perplexity as people read it.
fn words(perplexity: f64) -> String {
    match perplexity > MOST_SAID {
        true => "more than 1,000,000".to_owned(),
        false => format!("{perplexity:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_perplexity_has_three_decimals_up_to_a_million() {
        for (perplexity, expected) in [
            (12.3456, "12.346"),
            (999_999.0, "999999.000"),
            (1e6 + 1.0, "more than 1,000,000"),
            (1e177, "more than 1,000,000"),
            (f64::INFINITY, "more than 1,000,000"),
        ] {
            assert_eq!(words(perplexity), expected);
        }
    }
}
