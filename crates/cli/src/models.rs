//! `cairn models`: lists, imports and inspects the models on this machine.

use std::path::Path;

use anyhow::{Context, Result, bail};
use cairn_app::DataFolder;
use cairn_formats::gguf::import_gguf;
use cairn_formats::read_file;
use cairn_hub::MAX_CONFIG_BYTES;
use serde_json::json;

use crate::arguments::Models;
use crate::output;
use crate::session::{find_model, model_folders};

pub async fn run(command: Models) -> Result<()> {
    match command {
        Models::List { json } => list(json),
        Models::Import { file, name } => import(&file, name.as_deref()),
        Models::Info { model, json } => info(&model, json),
    }
}

fn list(json: bool) -> Result<()> {
    let models = model_folders()?.list();
    if json {
        let entries: Vec<_> = models
            .iter()
            .map(|model| {
                json!({
                    "name": model.name,
                    "path": model.path,
                    "model_type": model.model_type,
                    "bytes": model.bytes,
                })
            })
            .collect();
        output::line(serde_json::Value::from(entries))?;
        return Ok(());
    }
    if models.is_empty() {
        eprintln!("There are no models. `cairn models import FILE.gguf` imports one.");
    }
    for model in models {
        let problem = model.problem.map(|problem| format!("  ({problem})")).unwrap_or_default();
        output::line(format_args!(
            "{}\t{}\t{:.2} GB{problem}",
            model.name,
            model.model_type.unwrap_or_default(),
            model.bytes as f64 / 1e9
        ))?;
    }
    Ok(())
}

fn import(source: &Path, name: Option<&str>) -> Result<()> {
    let data_folder = DataFolder::from_environment()?;
    data_folder.create()?;
    let bar = output::bar(0, "importing {wide_bar} {bytes}/{total_bytes}");
    let mut on_progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let folder = if source.is_dir() {
        model_folders()?.import_folder(source, name, &mut on_progress).map_err(anyhow::Error::from)
    } else if source.extension().is_some_and(|extension| extension == "gguf") {
        import_gguf(source, &data_folder.models(), name, &mut on_progress)
            .map_err(anyhow::Error::from)
    } else {
        bail!("cannot import {}: it is neither a .gguf file nor a model folder", source.display());
    };
    let folder = folder.with_context(|| format!("cannot import {}", source.display()))?;
    bar.finish_and_clear();
    output::line(folder.display())?;
    Ok(())
}

fn info(model: &str, json: bool) -> Result<()> {
    let folder = find_model(model)?;
    let config = read_file(&folder.join("config.json"), MAX_CONFIG_BYTES)?;
    let config: serde_json::Value = serde_json::from_slice(&config)
        .with_context(|| format!("config.json of {model} is not JSON"))?;
    let files = cairn_formats::safetensors::check_weight_files(&folder)?;
    let tensors: usize = files.iter().map(|file| file.tensors().len()).sum();
    let bytes: u64 = files.iter().map(|file| file.data_bytes()).sum();
    if json {
        output::line(json!({
            "name": model,
            "path": folder,
            "config": config,
            "tensors": tensors,
            "bytes": bytes,
        }))?;
        return Ok(());
    }
    output::line(format_args!(
        "name\t{model}\npath\t{}\ntensors\t{tensors}\nbytes\t{bytes}",
        folder.display()
    ))?;
    for key in [
        "model_type",
        "num_hidden_layers",
        "hidden_size",
        "vocab_size",
        "max_position_embeddings",
        "quantization",
    ] {
        if let Some(value) = config.get(key) {
            output::line(format_args!("{key}\t{value}"))?;
        }
    }
    Ok(())
}
