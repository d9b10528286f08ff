//! What a person sets for one model: whether it suits the model, and what follows from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_engine::{
    KvQuantization, LmError, LoadOptions, ModelMemory, check_draft_model,
    default_memory_limit_bytes,
};
use serde_json::Value;

use super::check_child::CheckedFacts;
use super::loaded::loaded_name;
use super::locating::{folder_of, usable_folder};
use super::{checking, draft, list, loading};
use crate::app::App;
use crate::convert;
use crate::wire::{Failure, FailureCode, FailureKind, KvBits, MemoryNeed};

/// As the engine loads a model for the app.
fn load_options(app: &App, name: &str) -> LoadOptions {
    LoadOptions::new().bf16_state(app.settings.of_model(name).bf16_state)
}

/// Fails where a value that its row allows does not suit the model. Opens the model's files.
pub(crate) async fn check(app: &App, name: &str, key: &str, value: &Value) -> Result<(), Failure> {
    // What is taken back need not suit a model, which may be gone.
    if value.is_null() {
        return Ok(());
    }
    check_kept_tokens(app, name, key, value)?;
    let folder = folder_of(app, name).await?;
    match (key, value) {
        ("context_length", Value::Number(length)) => {
            let most = read_memory(app, name, &folder).await?.context_length;
            match length.as_u64().is_some_and(|length| length <= most as u64) {
                true => Ok(()),
                false => Err(Failure::invalid(format!(
                    "The context length of {name} can be at most {most} tokens: it cannot read more."
                ))
                .of_kind(FailureKind::ContextTooLong {
                    model: name.to_owned(),
                    most: convert::tokens(most),
                })),
            }
        }
        ("kv_bits", Value::String(bits)) if bits != "plain" => {
            match read_memory(app, name, &folder).await?.kv_group_size() {
                Some(_) => Ok(()),
                None => Err(Failure::invalid(format!(
                    "The keys and values of {name} cannot be quantized: leave them exact."
                ))
                .of_kind(FailureKind::KvNotQuantizable { model: name.to_owned() })),
            }
        }
        ("draft_model", Value::String(draft)) if !draft.is_empty() => {
            check_draft(app, name, folder, draft).await
        }
        _ => Ok(()),
    }
}

/// Fails where tokens of long prompts would be dropped from a context that another setting of the model
/// needs whole.
fn check_kept_tokens(app: &App, name: &str, key: &str, value: &Value) -> Result<(), Failure> {
    let now = app.settings.of_model(name);
    let sets = |other: &str, is_set: bool, off: &str| match key == other {
        true => value.as_str() != Some(off),
        false => is_set,
    };
    let keeps_some = key == "keep_tokens" || now.keep_tokens.is_some();
    let concerned = ["keep_tokens", "kv_bits", "draft_model"].contains(&key);
    if !concerned || !keeps_some {
        return Ok(());
    }
    if sets("kv_bits", !matches!(now.kv_bits, KvBits::Plain), "plain") {
        return Err(Failure::invalid(format!(
            "A long prompt of {name} can be shortened only while its context is kept exact: choose one \
             of the two."
        ))
        .of_kind(FailureKind::NeedsExactContext { model: name.to_owned() }));
    }
    if sets("draft_model", !now.draft_model.is_empty(), "") {
        return Err(Failure::invalid(format!(
            "With a draft model, {name} needs all of a long prompt: choose one of the two."
        ))
        .of_kind(FailureKind::DraftNeedsAll { model: name.to_owned() }));
    }
    Ok(())
}

/// Fails where an alias names another model. Depends on the settings of the others, so none is saved
/// meanwhile.
pub(crate) async fn check_alias(
    app: &App,
    name: &str,
    key: &str,
    value: &Value,
) -> Result<(), Failure> {
    let alias = match value {
        Value::String(alias) if key == "alias" && !alias.is_empty() => alias.as_str(),
        _ => return Ok(()),
    };
    if alias.trim() != alias {
        return Err(Failure::invalid("An alias cannot begin or end with a space.")
            .of_kind(FailureKind::AliasSpaces));
    }
    let (folders, wanted) = (app.model_folders.clone(), alias.to_owned());
    let with_name = move || {
        let mut names = folders.list().into_iter().map(|model| model.name);
        names.find(|name| is_called(name, &wanted))
    };
    let listed = app.blocking(with_name).await.flatten().filter(|other| other != name);
    let other = app.settings.model_with_alias(alias).filter(|other| other != name);
    match other.or(listed) {
        Some(other) => Err(Failure::invalid(format!(
            "“{alias}” already names the model {other}: choose another alias."
        ))
        .of_kind(FailureKind::AliasTaken { name: alias.to_owned(), model: other })),
        None => Ok(()),
    }
}

/// Whether this is a model's name, or what the window shows of it: the name without its owner.
fn is_called(name: &str, shown: &str) -> bool {
    name == shown || name.rsplit_once('/').is_some_and(|(_, title)| title == shown)
}

async fn check_draft(app: &App, name: &str, folder: PathBuf, draft: &str) -> Result<(), Failure> {
    if draft == name {
        return Err(Failure::invalid(
            "A model cannot be its own draft model: choose a smaller one.",
        )
        .of_kind(FailureKind::OwnDraft));
    }
    let draft_folder = usable_folder(app, draft).await?;
    // Reading a tokenizer blocks.
    match app.blocking(move || check_draft_model(&folder, &draft_folder)).await {
        Some(Ok(())) => Ok(()),
        Some(Err(LmError::DraftTokenizer | LmError::DraftVocabulary { .. })) => {
            Err(Failure::invalid(format!(
                "{draft} cannot draft for {name}, because it has another tokenizer: choose a smaller model of the same family."
            ))
            .of_kind(FailureKind::DraftDiffers {
                draft: draft.to_owned(),
                model: name.to_owned(),
            }))
        }
        Some(Err(error)) => Err(unreadable(error)),
        None => Err(Failure::fault("A fault in Cairn stopped the check of the draft model.")),
    }
}

/// Returns the memory of a model with its settings: of an ordinary chat, and of one as long as the
/// settings allow.
///
/// Also whether its recurrent state can be held in bf16.
pub(crate) async fn memory(app: &App, name: &str) -> Result<(MemoryNeed, bool), Failure> {
    let folder = folder_of(app, name).await?;
    let memory = read_memory(app, name, &folder).await?;
    let takes_bf16_state = memory.takes_bf16_state;
    let settings = app.settings.of_model(name);
    let quantization = convert::kv_cache(&settings, memory.kv_group_size()).quantization;
    let memory = match quantization {
        Some(quantization) => quantized(&memory, &quantization)?,
        None => memory,
    };
    let facts = match settings.context_length {
        Some(length) => CheckedFacts::with_limit(&memory, length as usize),
        None => CheckedFacts::of(&memory),
    };
    Ok((facts.within(default_memory_limit_bytes()).memory, takes_bf16_state))
}

fn quantized(memory: &ModelMemory, quantization: &KvQuantization) -> Result<ModelMemory, Failure> {
    memory.quantized(quantization).map_err(unreadable)
}

fn unreadable(error: LmError) -> Failure {
    let detail = convert::sentence(error);
    Failure::new(FailureCode::Engine, detail.clone()).of_kind(FailureKind::Engine { detail })
}

/// Reads the headers of a model that was checked before.
pub(crate) async fn read_memory(
    app: &App,
    name: &str,
    folder: &Path,
) -> Result<ModelMemory, Failure> {
    checking::require_usable(app, name, folder).await?;
    let (folder, options) = (folder.to_owned(), load_options(app, name));
    match app.blocking(move || ModelMemory::read(&folder, options)).await {
        Some(Ok(memory)) => Ok(memory),
        Some(Err(error)) => Err(unreadable(error)),
        None => Err(Failure::fault("A fault in Cairn stopped the estimate of its memory.")),
    }
}

/// Does at once what follows from a value that was set for a model.
pub(crate) fn apply(app: &Arc<App>, name: &str, key: &str) {
    if matches!(key, "alias" | "is_pinned") {
        app.engine.set_pinned(app.settings.pinned_models());
        let owner = app.clone();
        app.spawn(async move { list::emit(&owner).await });
    }
    if key == "bf16_state" {
        app.spawn(loading::reload(app.clone(), name.to_owned()));
    }
    if key == "draft_model" {
        let (owner, name) = (app.clone(), name.to_owned());
        // The caller does not wait until it is loaded.
        app.spawn(async move {
            let _loading = owner.loading.lock().await;
            if loaded_name(&owner).as_deref() == Some(name.as_str()) {
                draft::load(&owner, &name).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_by_its_name_with_and_without_its_owner() {
        fn check(shown: &str, expected: bool) {
            assert_eq!(is_called("owner/Qwen3-0.6B-4bit", shown), expected, "{shown}");
        }
        check("owner/Qwen3-0.6B-4bit", true);
        check("Qwen3-0.6B-4bit", true);
        check("owner", false);
        check("Qwen3", false);
    }
}
