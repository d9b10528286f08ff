//! Says what rounding costs a model, with what is under way meanwhile.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Result;
use cairn_engine::Perplexity;
use cairn_formats::gguf::PerplexityChange;

use crate::output;

/// Says the perplexity of the model in `folder`, and where it was rounded also of the weights that its
/// `file` has, which stays with the model.
pub async fn say(file: &Path, folder: &Path, is_rounded: bool) -> Result<()> {
    let spinner = output::spinner("measuring".to_owned());
    let Perplexity { value: after, num_tokens } = Perplexity::of(folder, None).await?;
    spinner.finish_and_clear();
    let of_what = format!("Perplexity of a short text, over {num_tokens} tokens");
    if !is_rounded {
        eprintln!("{of_what}: {after:.3}.");
        return Ok(());
    }
    let before = before(file, folder).await?;
    eprintln!("{of_what}: {before:.3} before rounding, {after:.3} after.");
    let change = PerplexityChange { before, after };
    if change.is_valid() {
        change.write(folder)?;
    }
    Ok(())
}

async fn before(file: &Path, folder: &Path) -> Result<f64> {
    let bar = output::bar(0, "unpacking and measuring {wide_bar} {bytes}/{total_bytes}");
    let mut on_progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    };
    let before = Perplexity::before_rounding(file, folder, None, &mut on_progress).await?;
    bar.finish_and_clear();
    Ok(before.value)
}
