//! `cairn cache`: works on the stored prompt caches, also while the app is running.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail, ensure};
use cairn_app::wire::{CacheKind, CacheSource, Failure, ImportPreview};
use cairn_app::{CachedEntry, CachedItem, DataFolder, OfflineCaches};
use cairn_formats::cache_file::{CacheFile, CacheFileMetadata};
use cairn_formats::safetensors::{Limits, SafetensorsFile};
use cairn_formats::{FileError, open_regular};
use serde_json::{Value, json};

use crate::arguments::{Cache, ExportCache, ImportCache};
use crate::model_folders::{find_model, model_folders};
use crate::output::{self, note};

pub async fn run(command: Cache) -> Result<()> {
    if let Cache::Import(ImportCache { file, .. }) = &command {
        let opened = open_regular(file).map_err(|error| match error {
            // The sentence names the file already.
            FileError::Io { source, .. } => anyhow::Error::from(source),
            error => error.into(),
        });
        opened.with_context(|| format!("cannot import {}", file.display()))?;
    }
    if let Cache::Import(ImportCache { yes: false, .. }) = command
        && !std::io::stdin().is_terminal()
    {
        let problem = "there is no terminal to ask on: add --yes to import without a question";
        return Err(output::Usage(problem.to_owned()).into());
    }
    let caches = OfflineCaches::open(DataFolder::from_environment()?).await?;
    let result = match command {
        Cache::List { json } => list(&caches, json).await,
        Cache::Show { key } => show(&caches, &key).await,
        Cache::Export(arguments) => export(&caches, arguments).await,
        Cache::Import(arguments) => import(&caches, arguments).await,
        Cache::Delete { keys } => delete(&caches, &keys).await,
        Cache::Repair => repair(&caches).await,
    };
    caches.close().await;
    result
}

async fn list(caches: &OfflineCaches, json: bool) -> Result<()> {
    let entries = caches.list().await.map_err(to_error)?;
    if json {
        return output::line(entries.iter().map(object).collect::<Value>());
    }
    if entries.is_empty() {
        note!("There are no stored prompt caches. `cairn cache import FILE` imports one.");
    }
    for entry in entries {
        let marks = [("pinned", entry.is_pinned), ("imported", entry.imported_from.is_some())];
        let marks: String =
            marks.iter().filter(|(_, is_so)| *is_so).map(|(mark, _)| format!("\t{mark}")).collect();
        output::line(format_args!(
            "{}\t{}\t{} tokens\t{}\t{}\t{}\t{}{marks}",
            kind_shown(&entry.item),
            title(&entry),
            entry.tokens,
            output::size(entry.bytes),
            entry.model,
            ago(entry.last_used_at_ms),
            entry.id(),
        ))?;
    }
    // This is less than the sum, because prompt caches share chunks.
    output::line(format_args!(
        "total\t{}",
        output::size(caches.total_bytes().await.map_err(to_error)?)
    ))
}

async fn show(caches: &OfflineCaches, key: &str) -> Result<()> {
    let found = caches.find(key).await.map_err(to_error)?;
    let listed = caches.list().await.map_err(to_error)?;
    if let Some(entry) = listed.into_iter().find(|entry| entry.item == found) {
        output::line(format_args!(
            "{}\t{}\nid\t{}\nmodel\t{}",
            kind_shown(&found),
            title(&entry),
            entry.id(),
            entry.model
        ))?;
        output::line(format_args!("tokens\t{}\nbytes\t{}", entry.tokens, entry.bytes))?;
        for (name, value) in [("imported from", entry.imported_from), ("lost", entry.loss)] {
            if let Some(value) = value {
                output::line(format_args!("{name}\t{value}"))?;
            }
        }
        if let Some((start, end)) = entry.ends {
            output::line(format_args!("begins\t{start:?}\nends\t{end:?}"))?;
        }
    }
    for chunk in caches.chunks(&found).await.map_err(to_error)? {
        let kind = match chunk.kind {
            CacheKind::System => "system",
            CacheKind::User => "user",
            CacheKind::Assistant => "assistant",
        };
        let (from, to) = (chunk.start, chunk.start + chunk.tokens);
        output::line(format_args!(
            "{from}..{to}\t{kind}\t{}\t{} hits\t{}",
            output::size(chunk.bytes),
            chunk.hits,
            chunk.key
        ))?;
    }
    Ok(())
}

async fn export(caches: &OfflineCaches, arguments: ExportCache) -> Result<()> {
    let ExportCache { source, file, layout, force } = arguments;
    let cannot = || format!("cannot export {source}");
    if file.exists() && !force {
        bail!("{}: {} exists: add --force to overwrite it", cannot(), file.display());
    }
    output::check_writable(&file).with_context(cannot)?;
    match caches.find(&source).await.map_err(to_error).with_context(cannot)? {
        CachedItem::Source(source) => {
            caches.export(&source, &file, layout).await.map_err(to_error).with_context(cannot)?
        }
        CachedItem::ApiKey { .. } => bail!(
            "{}: what programs have saved cannot be exported; name a conversation or a starting point",
            cannot()
        ),
        CachedItem::Chunk { .. } => {
            bail!("{}: it is a single chunk; name a conversation or a starting point", cannot())
        }
    }
    output::line(file.display())
}

async fn import(caches: &OfflineCaches, arguments: ImportCache) -> Result<()> {
    let file = &arguments.file;
    let cannot = || format!("cannot import {}", file.display());
    let (model, folder) = model_for(file, arguments.model).with_context(cannot)?;
    let name = arguments.name.as_deref();
    refuse_name_in_use(caches, file, name).await.with_context(cannot)?;
    let spinner = output::spinner(format!("loading {model}"));
    let import = caches.begin_import(file, &model, &folder).await;
    spinner.finish_and_clear();
    let import = import.map_err(to_error).with_context(cannot)?;
    if let Some(problem) = &import.preview.problem {
        // The context names the file already.
        let problem = problem.trim_end_matches('.');
        let rest = problem.strip_prefix(&import.preview.file_name).map(|rest| format!("it{rest}"));
        return Err(anyhow!(rest.unwrap_or_else(|| problem.to_owned()))).with_context(cannot);
    }
    print(&import.preview)?;
    let name = arguments.name.unwrap_or_else(|| import.preview.suggested_name.clone());
    if !arguments.yes && !output::confirm(&format!("Store it as the starting point “{name}”?"))?
    {
        note!("The file was not imported.");
        return Ok(());
    }
    let entry =
        import.confirm(&name, arguments.check).await.map_err(to_error).with_context(cannot)?;
    let checked = match arguments.check {
        true => "\nchecked\tall of it is what the model computes from its tokens",
        false => "",
    };
    output::line(format_args!("stored as\t{}\nid\t{}{checked}", entry.title, entry.id()))
}

/// Fails if there is a starting point with the name for an import. The import itself checks this
/// too, but after the model is loaded and the user is asked.
async fn refuse_name_in_use(
    caches: &OfflineCaches,
    file: &Path,
    given: Option<&str>,
) -> Result<()> {
    let name = given.map_or_else(|| default_name(file), str::to_owned);
    let entries = caches.list().await.map_err(to_error)?;
    let is_in_use = entries.iter().any(|entry| is_named(&entry.item) && entry.title == name);
    ensure!(
        !is_in_use,
        "there is already a starting point with the name “{name}”: choose another name with --name"
    );
    Ok(())
}

/// The title in a prompt-cache file, or its file name. A damaged file is refused later.
fn default_name(file: &Path) -> String {
    let title = CacheFile::open(file).ok().and_then(|file| {
        // Without the model its vocabulary is unknown.
        CacheFileMetadata::parse(&file.metadata, file.num_tokens(), usize::MAX).ok()?.title
    });
    title.unwrap_or_else(|| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(".safetensors").unwrap_or(&name).to_owned()
    })
}

async fn delete(caches: &OfflineCaches, keys: &[String]) -> Result<()> {
    let mut found = Vec::new();
    for key in keys {
        // All keys are looked up before the first is deleted.
        found.push(caches.find(key).await.map_err(to_error).context("nothing was deleted")?);
    }
    let freed = caches.delete(&found).await.map_err(to_error)?;
    for (key, bytes) in keys.iter().zip(freed) {
        let shared =
            if bytes == 0 { "\tits chunks are shared with other prompt caches" } else { "" };
        output::line(format_args!("{key}\tfreed {}{shared}", output::size(bytes)))?;
    }
    Ok(())
}

async fn repair(caches: &OfflineCaches) -> Result<()> {
    let repaired = caches.repair().await.map_err(to_error).context("cannot repair the cache")?;
    output::line(format_args!(
        "checked\t{}\nrebuilt\t{}\nremoved\t{}\nother files\t{}",
        repaired.num_checked, repaired.num_adopted, repaired.num_removed, repaired.num_foreign
    ))
}

fn print(preview: &ImportPreview) -> Result<()> {
    let size = output::size(preview.bytes);
    output::line(format_args!(
        "title\t{}",
        preview.title.as_deref().unwrap_or(&preview.file_name)
    ))?;
    output::line(format_args!(
        "model\t{}\nkind\t{}\ntokens\t{}\nsize\t{size}",
        preview.model, preview.kind, preview.tokens
    ))?;
    if let (Some(start), Some(end)) = (&preview.start_text, &preview.end_text) {
        // {:?} escapes control characters, so that none of the file's reach the terminal.
        output::line(format_args!("begins\t{start:?}\nends\t{end:?}"))?;
    }
    if let Some(made_by) = &preview.made_by {
        output::line(format_args!("created by\t{made_by}"))?;
    }
    if let Some(at_ms) = preview.created_at_ms {
        output::line(format_args!("created\t{}", ago(at_ms)))?;
    }
    for warning in &preview.warnings {
        output::line(format_args!("note\t{warning}"))?;
    }
    Ok(())
}

/// Name and folder of the model that computed a file: the one given with --model, or else the one
/// on this machine that the file names.
fn model_for(file: &Path, given: Option<String>) -> Result<(String, PathBuf)> {
    if let Some(name) = given {
        let folder = find_model(&name)?;
        return Ok((name, folder));
    }
    let header = SafetensorsFile::open(file, Limits::CACHE)?;
    // mlx-lm writes user metadata under `0.` since 0.32, and wrote it under `1.` before.
    let named = ["0.model", "1.model"].iter().find_map(|key| header.metadata().get(*key)).cloned();
    let named = named.ok_or_else(|| {
        anyhow!("it does not name the model that computed it: give that one with --model")
    })?;
    // The name is only looked up among the listed models: a file must not choose which folder is
    // loaded.
    let found = model_folders()?
        .list()
        .into_iter()
        .find(|model| model.name == named || model.path == Path::new(&named));
    let found = found.ok_or_else(|| {
        anyhow!("its model {named:?} is not on this machine: give the model with --model")
    })?;
    Ok((found.name, found.path))
}

fn object(entry: &CachedEntry) -> Value {
    let name_or_title = if is_conversation(&entry.item) { "title" } else { "name" };
    let mut object = json!({
        "kind": kind(&entry.item),
        name_or_title: entry.title,
        "id": entry.id(),
        "tokens": entry.tokens,
        "bytes": entry.bytes,
        "model": entry.model,
        "last_used_at_ms": entry.last_used_at_ms,
        "is_pinned": entry.is_pinned,
        "lost": entry.loss,
    });
    if is_named(&entry.item) {
        object["imported_from"] = entry.imported_from.clone().into();
    }
    object
}

fn is_named(item: &CachedItem) -> bool {
    matches!(item, CachedItem::Source(CacheSource::Named { .. }))
}

fn is_conversation(item: &CachedItem) -> bool {
    matches!(item, CachedItem::Source(CacheSource::Conversation { .. }))
}

/// The kind as JSON has it.
fn kind(item: &CachedItem) -> &'static str {
    match item {
        CachedItem::Source(CacheSource::Conversation { .. }) => "conversation",
        CachedItem::Source(CacheSource::Named { .. }) => "named",
        CachedItem::ApiKey { .. } => "api",
        CachedItem::Chunk { .. } => "chunk",
    }
}

/// The kind as people read it.
fn kind_shown(item: &CachedItem) -> &'static str {
    match item {
        CachedItem::ApiKey { .. } => "program",
        item if is_named(item) => "starting point",
        item => kind(item),
    }
}

fn title(entry: &CachedEntry) -> &str {
    if entry.title.is_empty() { "New chat" } else { &entry.title }
}

/// How long ago a time was, in words.
fn ago(at_ms: i64) -> String {
    let now_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let minutes = now_ms.saturating_sub(at_ms) / 60_000;
    match minutes {
        ..2 => "just now".to_owned(),
        2..120 => format!("{minutes} minutes ago"),
        120..2880 => format!("{} hours ago", minutes / 60),
        _ => format!("{} days ago", minutes / 1440),
    }
}

/// An app failure as an error of this program, whose messages have no full stop.
fn to_error(failure: Failure) -> anyhow::Error {
    anyhow!(failure.message.trim_end_matches('.').to_owned())
}
