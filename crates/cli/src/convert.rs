//! `cairn convert`: makes a model in MLX's layout from another, as `mlx_lm.convert` does.

use std::path::Path;

use anyhow::{Context, Result, bail};
use cairn_hub::RepoId;
use cairn_lm::{
    ConvertOptions, ConvertTo, ConvertedModel, LmError, Quantization, QuantizationMode,
};
use tokio::sync::watch;

use crate::arguments::Convert;
use crate::download::{Questions, find_or_download};
use crate::output::{self, Usage, note, size};
use crate::signals::{stoppable, unless_stopped};

pub async fn run(arguments: Convert) -> Result<()> {
    let to = purpose(&arguments)?;
    let Convert { hf_path: name, mlx_path: target, dtype, yes, .. } = arguments;
    check_is_new(&target)?;
    let folder = find_or_download(&name, yes, Questions::Allowed).await?;
    // A folder's path can look like OWNER/NAME; the card must not name that model.
    let is_on_hub = name.parse::<RepoId>().is_ok() && !Path::new(&name).exists();
    let hub_name = is_on_hub.then_some(name);
    let options = ConvertOptions { to, dtype, hub_name };
    stoppable(move |stopped| convert(&folder, &target, &options, &stopped)).await
}

/// What becomes of the weights. Fails on numbers that the mode has no format for.
fn purpose(arguments: &Convert) -> Result<ConvertTo> {
    let &Convert { quantize, dequantize, quant_predicate: recipe, .. } = arguments;
    if !quantize {
        return Ok(if dequantize { ConvertTo::Dequantized } else { ConvertTo::Same });
    }
    let mode = arguments.q_mode.unwrap_or(QuantizationMode::Affine);
    let name = mode.name().to_string_lossy();
    if recipe.is_some() && mode != QuantizationMode::Affine {
        let problem = format!("--quant-predicate is for --q-mode affine alone, not for {name}");
        return Err(Usage(problem).into());
    }
    let settings = Quantization::new(mode, arguments.q_group_size, arguments.q_bits);
    let settings = settings.map_err(|allowed| Usage(format!("--q-mode {name}: {allowed}")))?;
    Ok(ConvertTo::Quantized { settings, recipe })
}

/// Fails if there is something already, before a model is downloaded for it.
fn check_is_new(target: &Path) -> Result<()> {
    match target.symlink_metadata() {
        Ok(_) => bail!(
            "{} already exists: delete it, or choose another folder with --mlx-path",
            target.display()
        ),
        Err(_) => Ok(()),
    }
}

/// Converts the model and says where it is.
fn convert(
    folder: &Path,
    target: &Path,
    options: &ConvertOptions,
    stopped: &watch::Receiver<bool>,
) -> Result<()> {
    let bar = output::bar(0, "converting {wide_bar} {decimal_bytes}/{decimal_total_bytes}");
    let converted = cairn_lm::convert(folder, target, options, &mut |progress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.bytes_written);
        unless_stopped(stopped)
    });
    bar.finish_and_clear();
    if let Err(LmError::Cancelled) = converted {
        bail!("the conversion of {} was stopped, and nothing of it is left", folder.display());
    }
    let ConvertedModel { num_bytes, bits_per_weight, .. } =
        converted.with_context(|| format!("cannot convert {}", folder.display()))?;
    note!("{} of weights, {bits_per_weight:.3} bits per weight.", size(num_bytes));
    output::line(target.display())
}
