//! `cairn models`: finds, lists, imports, deletes, inspects and checks models.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use cairn_app::{DataFolder, ModelVerdict};
use cairn_engine::PERPLEXITY_TEXT;
use cairn_formats::gguf::{GgufError, GgufImport, RoundedWeights, import_gguf};
use cairn_hub::HubError;
use cairn_lm::models::SUPPORTED;
use cairn_lm::{
    LoadOptions, ModelMemory, StateComparison, Tokenizer, compare_state, has_chat_template, memory,
};
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::arguments::{Delete, Import, Models, Search};
use crate::input::read_text;
use crate::model_folders::{find_model, model_folders};
use crate::output::{self, note};
use crate::signals::{stoppable, unless_stopped};
use crate::{download, rounding};

pub async fn run(command: Models) -> Result<()> {
    if let Models::List { .. } | Models::Delete(_) | Models::Import(_) = command {
        model_folders()?.remove_leftovers();
    }
    match command {
        Models::List { json } => list(json),
        Models::Search(arguments) => search(arguments).await,
        Models::Download(arguments) => download::run(arguments).await,
        Models::Delete(arguments) => delete(&arguments),
        Models::Import(arguments) => stoppable(move |stopped| import(&arguments, stopped)).await,
        Models::CompareState { model, keep_quantized, text, json } => compare(
            &model,
            LoadOptions::new().keep_quantized(keep_quantized),
            text.as_deref(),
            json,
        ),
        Models::Info { model, context, json } => info(&model, context, json),
        Models::Check { model, json } => check(&model, json),
    }
}

fn list(json: bool) -> Result<()> {
    let folders = model_folders()?;
    // A folder that is not there yet holds no models; of one that cannot be read nobody knows.
    match std::fs::read_dir(folders.imported()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let folder = folders.imported().display();
            return Err(error).with_context(|| format!("cannot list the models in {folder}"));
        }
        _ => {}
    }
    let models = folders.list();
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
        note!(
            "There are no models. `cairn models download OWNER/NAME` fetches one, and `cairn models \
             import FILE.gguf` imports one."
        );
    }
    for model in models {
        let problem = model.problem.map(|problem| format!("  ({problem})")).unwrap_or_default();
        output::line(format_args!(
            "{}\t{}\t{}{problem}",
            model.name,
            model.model_type.unwrap_or_default(),
            output::size(model.bytes),
        ))?;
    }
    Ok(())
}

async fn search(arguments: Search) -> Result<()> {
    let cannot = || format!("cannot search for {:?}", arguments.query);
    let hub = download::hub()?;
    let limit = arguments.limit as usize;
    let found = hub.search_models(&arguments.query, limit).await.with_context(cannot)?;
    if arguments.json {
        let entries = found.iter().map(|model| {
            json!({
                "name": model.repo.as_str(),
                "downloads": model.num_downloads,
                "likes": model.num_likes,
                "gated": model.is_gated,
                "last_modified": model.last_modified,
                "parameters": model.num_parameters,
            })
        });
        return output::line(entries.collect::<serde_json::Value>());
    }
    if found.is_empty() {
        note!("The hub has no model with {:?} in its name.", arguments.query);
    }
    for model in found {
        let parameters = model.num_parameters.map_or(String::new(), |count| match count {
            ..1_000_000_000 => format!("{} M parameters", count / 1_000_000),
            _ => format!("{:.1} G parameters", count as f64 / 1e9),
        });
        let gated = if model.is_gated { "  (terms to accept)" } else { "" };
        let downloads = model.num_downloads;
        output::line(format_args!("{}\t{downloads} downloads\t{parameters}{gated}", model.repo))?;
    }
    Ok(())
}

fn delete(arguments: &Delete) -> Result<()> {
    let folders = model_folders()?;
    let deletion = folders.deletion(&arguments.name)?;
    let bytes = output::size(deletion.bytes);
    if !arguments.yes {
        let others = match (deletion.is_shared, deletion.num_revisions) {
            (false, _) => String::new(),
            (true, 0 | 1) => ", which other programs use too".to_owned(),
            (true, count) => format!(", {count} revisions, which other programs use too"),
        };
        let question = format!("Delete {} ({bytes}{others})?", arguments.name);
        if !std::io::stdin().is_terminal() || !output::confirm(&question)? {
            bail!("{} was not deleted: --yes deletes it without asking", arguments.name);
        }
    }
    folders.delete(&deletion)?;
    if arguments.json {
        let (path, bytes) = (&deletion.folder, deletion.bytes);
        return output::line(json!({ "name": arguments.name, "path": path, "bytes": bytes }));
    }
    note!("Deleted {}, which frees {bytes}.", arguments.name);
    Ok(())
}

/// Imports a model and says where it is, and what its perplexity is if that is asked for.
fn import(arguments: &Import, mut stopped: watch::Receiver<bool>) -> Result<()> {
    let (folder, is_rounded) = import_files(arguments, &stopped)?;
    // First: the model stays, whether it can be measured or not.
    output::line(folder.display())?;
    // A template that cannot be read is an error when the model is loaded.
    if !has_chat_template(&folder).unwrap_or(true) {
        note!(
            "The model has no chat template, so it can't chat: put the chat_template.jinja of its \
             original model into {}, or give it plain prompts.",
            folder.display()
        );
    }
    if !arguments.perplexity {
        return Ok(());
    }
    let is_stopped = stopped.clone();
    let measured = Handle::current().block_on(async {
        tokio::select! {
            said = rounding::say(&arguments.file, &folder, is_rounded, &is_stopped) => said,
            _ = stopped.wait_for(|is_stopped| *is_stopped) => Err(anyhow!("it was stopped")),
        }
    });
    measured.with_context(|| {
        format!("the model is imported to {}, but was not measured", folder.display())
    })
}

/// Imports a file or a folder: the new folder, and whether weights were rounded now.
fn import_files(arguments: &Import, stopped: &watch::Receiver<bool>) -> Result<(PathBuf, bool)> {
    let Import { file: source, round_to, .. } = arguments;
    let name = arguments.name.as_deref();
    let data_folder = DataFolder::from_environment()?;
    data_folder.create()?;
    let bar = output::bar(0, "importing {wide_bar} {bytes}/{total_bytes}");
    let mut on_progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
        unless_stopped(stopped)
    };
    let mut rounded = None;
    let folder = if source.is_dir() {
        model_folders()?
            .import_folder(source, name, &mut on_progress)
            .inspect(|folder| rounded = RoundedWeights::read(folder))
            .map_err(anyhow::Error::from)
    } else if source.extension().is_some_and(|extension| extension == "gguf") {
        let options = GgufImport { name, round_to: *round_to };
        import_gguf(source, &data_folder.models(), options, &mut on_progress)
            .map(|imported| {
                rounded = imported.rounding.recorded();
                imported.folder
            })
            .map_err(anyhow::Error::from)
    } else {
        bail!("cannot import {}: it is neither a .gguf file nor a model folder", source.display());
    };
    let folder = match folder {
        Err(_) if *stopped.borrow() => {
            bail!("the import of {} was stopped, and nothing of it is left", source.display())
        }
        folder => folder.map_err(name_flag),
    };
    let folder = folder.with_context(|| format!("cannot import {}", source.display()))?;
    bar.finish_and_clear();
    if let Some(RoundedWeights { num_tensors, relative_error, .. }) = rounded {
        // In a folder they are what they are.
        let advice = if source.is_dir() { "" } else { " --round-to chooses the form." };
        note!(
            "{num_tensors} tensors of types without an exact form were rounded: their weights differ by \
             {:.2} % (root mean square).{advice}",
            100.0 * relative_error
        );
    }
    Ok((folder, rounded.is_some() && !source.is_dir()))
}

/// The error for a name in use, with the flag that gives another name; other errors as they are.
fn name_flag(error: anyhow::Error) -> anyhow::Error {
    let path = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(HubError::Exists { path }), _) | (_, Some(GgufError::AlreadyExists { path })) => path,
        _ => return error,
    };
    anyhow!(
        "{} already exists: choose another name with --name, or delete that folder",
        path.display()
    )
}

fn compare(model: &str, options: LoadOptions, text: Option<&Path>, json: bool) -> Result<()> {
    let folder = find_model(model)?;
    let text = match text {
        Some(path) => read_text(path)?,
        None => PERPLEXITY_TEXT.to_owned(),
    };
    let tokens = Tokenizer::load(&folder)?.encode_prompt(&text)?;
    let spinner = output::spinner("comparing".to_owned());
    let compared = compare_state(&folder, options, &tokens);
    spinner.finish_and_clear();
    let compared = compared.with_context(|| format!("cannot compare states of {model}"))?;
    let Some(compared) = compared else {
        bail!("{model} has no gated delta layers: --bf16-state changes nothing");
    };
    let StateComparison { num_tokens, num_same_top, mean_divergence, max_divergence } = compared;
    if json {
        return output::line(json!({
            "tokens": num_tokens,
            "same_top": num_same_top,
            "mean_kl": mean_divergence,
            "max_kl": max_divergence,
        }));
    }
    output::line(format!(
        "Of {num_tokens} tokens the likeliest next one is the same behind {num_same_top}; \
         Kullback-Leibler divergence {mean_divergence:.6} on average, {max_divergence:.6} at most."
    ))
}

/// The conversation whose memory is shown, where the model can read so much.
const DEFAULT_CONTEXT_TOKENS: usize = 8192;

/// The prompt tokens that are read at once.
const PREFILL_STEP_SIZE: usize = 2048;

fn info(model: &str, context: Option<usize>, json: bool) -> Result<()> {
    let memory = ModelMemory::read(&find_model(model)?, LoadOptions::new())
        .with_context(|| format!("cannot describe {model}"))?;
    if context.is_some_and(|context| context > memory.context_length) {
        let most = memory.context_length;
        note!("note: {model} reads at most {most} tokens, so the memory shown is for {most}");
    }
    let context = context.unwrap_or(DEFAULT_CONTEXT_TOKENS).min(memory.context_length);
    let memory_bytes = memory.peak_bytes(context, 1, PREFILL_STEP_SIZE);
    let fits = memory_bytes <= memory::default_limit_bytes();
    let quantization =
        memory.quantization.map(|(bits, size)| json!({ "bits": bits, "group_size": size }));
    if json {
        output::line(json!({
            "name": model,
            "model_type": memory.model_type,
            "parameters": memory.num_parameters,
            "layers": memory.num_layers(),
            "quantization": quantization,
            "context_length": memory.context_length,
            "weight_bytes": memory.weight_bytes,
            "kv_bytes_per_token": memory.kv_bytes_per_token(),
            "memory_bytes": memory_bytes,
            "fits": fits,
        }))?;
        return Ok(());
    }
    let quantization = memory
        .quantization
        .map_or("none".to_owned(), |(bits, size)| format!("{bits} bits in groups of {size}"));
    let known = SUPPORTED.iter().find(|known| known.model_type == memory.model_type);
    let architecture = match known {
        Some(known) => format!("{} ({})", known.model_type, known.models),
        None => memory.model_type.clone(),
    };
    let longest =
        (memory.context_length, memory.peak_bytes(memory.context_length, 1, PREFILL_STEP_SIZE));
    let lines = [
        ("name", model.to_owned()),
        ("architecture", architecture),
        ("parameters", memory.num_parameters.to_string()),
        ("layers", memory.num_layers().to_string()),
        ("quantization", quantization),
        ("context length", format!("{} tokens", memory.context_length)),
        ("weights", gigabytes(memory.weight_bytes)),
        ("each token", format!("{:.1} KB", memory.kv_bytes_per_token() as f64 / 1e3)),
        ("memory", memory_words((context, memory_bytes), longest)),
        ("fits", if fits { "yes" } else { "no" }.to_owned()),
    ];
    for (name, value) in lines {
        output::line(format_args!("{name}\t{value}"))?;
    }
    Ok(())
}

fn check(model: &str, json: bool) -> Result<()> {
    let folder = match model_folders()?.resolve(model) {
        // The check says more about what is missing.
        Ok(folder) | Err(HubError::Unusable { path: folder, .. }) => folder,
        Err(error) => return Err(error.into()),
    };
    let verdict = ModelVerdict::of(&folder);
    if json {
        return output::line(verdict.to_json());
    }
    let facts = match verdict {
        ModelVerdict::Usable(facts) => facts,
        ModelVerdict::Problem(problem) => bail!("{model} cannot be used: {}", problem.detail),
    };
    let quantization =
        facts.quantization_bits.map_or("none".to_owned(), |bits| format!("{bits} bits"));
    let usual = (facts.context_tokens as usize, facts.total_bytes);
    let longest = facts.longest.map_or(usual, |longest| (longest.tokens as usize, longest.bytes));
    let lines = [
        ("name", model.to_owned()),
        ("parameters", facts.parameters.to_string()),
        ("quantization", quantization),
        ("context length", format!("{} tokens", facts.context_length)),
        ("weights", gigabytes(facts.weight_bytes)),
        ("memory", memory_words(usual, longest)),
        ("usable", "yes".to_owned()),
    ];
    for (name, value) in lines {
        output::line(format_args!("{name}\t{value}"))?;
    }
    Ok(())
}

/// Says what a model takes with a chat and with its longest one, each given as its tokens and the
/// bytes in all.
fn memory_words(chat: (usize, u64), longest: (usize, u64)) -> String {
    let (most_tokens, most_bytes) = longest;
    let longest = format!("{} in its longest chat ({most_tokens} tokens)", gigabytes(most_bytes));
    let (tokens, bytes) = chat;
    if tokens >= most_tokens {
        longest
    } else if tokens == DEFAULT_CONTEXT_TOKENS {
        format!("{} in a usual chat ({tokens} tokens), {longest}", gigabytes(bytes))
    } else {
        format!("{} for {tokens} tokens, {longest}", gigabytes(bytes))
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}
