//! What rounding costs a model: the perplexity of a short text before and after.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use cairn_engine::{Engine, EngineOptions, PromptInput};
use cairn_formats::gguf::{GgufImport, NUM_RANDOM_CHARS, PARTIAL_PREFIX, RoundTo, import_gguf};
use cairn_formats::make_locked_folder;

use crate::output;

/// Some 350 tokens, whatever the model: short enough for a large one.
pub const TEXT: &str = include_str!("perplexity.txt");

/// Says the perplexity of the model in `folder`, and where it was rounded also of the weights that its
/// `file` has.
pub async fn say(file: &Path, folder: &Path, is_rounded: bool) -> Result<()> {
    let (after, num_tokens) = perplexity(folder).await?;
    let before = if is_rounded { Some(before(file, folder).await?) } else { None };
    let of_what = format!("Perplexity of a short text, over {num_tokens} tokens");
    match before {
        Some(before) => eprintln!("{of_what}: {before:.3} before rounding, {after:.3} after."),
        None => eprintln!("{of_what}: {after:.3}."),
    }
    Ok(())
}

/// The perplexity of the file's own weights, of a copy beside `folder` that lives as long as it takes.
async fn before(file: &Path, folder: &Path) -> Result<f64> {
    let models = folder.parent().unwrap_or(folder);
    // Named and locked as a folder that a model is being written to: what a crash leaves is removed.
    let partial = || {
        tempfile::Builder::new()
            .prefix(PARTIAL_PREFIX)
            .rand_bytes(NUM_RANDOM_CHARS)
            .tempdir_in(models)
    };
    let (copy, _lock) = make_locked_folder(partial)
        .with_context(|| format!("cannot write to {}", models.display()))?;
    let options = GgufImport { name: Some("model"), round_to: RoundTo::Float32 };
    let bar = output::bar(0, "unpacking {wide_bar} {bytes}/{total_bytes}");
    let mut on_progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        ControlFlow::Continue(())
    };
    let imported = import_gguf(file, copy.path(), options, &mut on_progress)?;
    bar.finish_and_clear();
    Ok(perplexity(&imported.folder).await?.0)
}

/// The perplexity of the text behind its first token, and of how many tokens it is.
async fn perplexity(folder: &Path) -> Result<(f64, usize)> {
    let (engine, _) = Engine::start(EngineOptions::default());
    let spinner = output::spinner("measuring".to_owned());
    engine.load("model", folder).await?;
    let scores = engine.score_all(vec![PromptInput::Text(TEXT.to_owned())], 0).await?;
    engine.shutdown().await;
    spinner.finish_and_clear();
    let logprobs: Vec<f64> = scores
        .iter()
        .flat_map(|score| &score.logprobs)
        .flatten()
        .map(|&logprob| logprob.into())
        .collect();
    let mean = logprobs.iter().sum::<f64>() / logprobs.len().max(1) as f64;
    Ok(((-mean).exp(), logprobs.len()))
}
