//! `cairn chats`: takes the app's chats out and in, also while the app is running.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use cairn_app::wire::{ChatFileFormat, ChatsImported, Failure, RefusedChat};
use cairn_app::{DataFolder, OfflineChats};
use serde_json::{Value, json};

use crate::arguments::{Chats, ExportChats};
use crate::output::{self, note};

pub async fn run(command: Chats) -> Result<()> {
    let chats = OfflineChats::open(DataFolder::from_environment()?).await?;
    let result = match command {
        Chats::List { json } => list(&chats, json).await,
        Chats::Export(arguments) => export(&chats, arguments).await,
        Chats::Import { file, json } => import(&chats, &file, json).await,
    };
    chats.close().await;
    result
}

async fn list(chats: &OfflineChats, json: bool) -> Result<()> {
    let listed = chats.list().await.map_err(to_error)?;
    if json {
        let object = |chat: &cairn_app::ListedChat| json!({ "id": chat.id, "title": chat.title, "updated_at_ms": chat.updated_at_ms });
        return output::line(listed.iter().map(object).collect::<Value>());
    }
    if listed.is_empty() {
        note!("There are no chats. `cairn chats import FILE` imports some.");
    }
    for chat in listed {
        let title = if chat.title.is_empty() { "New chat" } else { &chat.title };
        output::line(format_args!("{}\t{title}", chat.id))?;
    }
    Ok(())
}

async fn export(chats: &OfflineChats, arguments: ExportChats) -> Result<()> {
    let ExportChats { ids_and_file, all, format, force } = arguments;
    let Some((file, ids)) = ids_and_file.split_last() else { bail!("there is no file to write") };
    if ids.is_empty() != all {
        let problem = match all {
            true => "--all needs no ids: give only the file to write",
            false => "name the chats to export before the file, or add --all",
        };
        return Err(output::Usage(problem.to_owned()).into());
    }
    let file = PathBuf::from(file);
    let cannot = || format!("cannot export to {}", file.display());
    output::check_writable(&file).with_context(cannot)?;
    if file.exists() && !force {
        bail!("{}: it exists: add --force to overwrite it", cannot());
    }
    let has_none = all && chats.list().await.map_err(to_error)?.is_empty();
    if has_none && format == ChatFileFormat::Markdown {
        // It would be an empty file, which says nothing; the other formats can be imported again.
        return Err(anyhow!("there are no chats")).with_context(cannot);
    }
    chats.export(ids, format, &file).await.map_err(to_error).with_context(cannot)?;
    if has_none {
        note!("There are no chats, so {} has none.", file.display());
    }
    output::line(file.display())
}

async fn import(chats: &OfflineChats, file: &Path, json: bool) -> Result<()> {
    let cannot = || format!("cannot import {}", file.display());
    let done = chats.import(file).await.map_err(to_error).with_context(cannot)?;
    match json {
        true => output::line(serde_json::to_value(&done)?)?,
        false => print(&done)?,
    }
    let num_taken = done.num_added + done.num_here + done.num_extended;
    match done.problem {
        Some(problem) => Err(anyhow!(problem.trim_end_matches('.').to_owned())),
        None if num_taken > 0 => Ok(()),
        None if done.num_refused > 0 => {
            Err(anyhow!("none of its chats could be imported")).with_context(cannot)
        }
        None => {
            note!("{} has no chats.", file.display());
            Ok(())
        }
    }
}

fn print(done: &ChatsImported) -> Result<()> {
    output::line(format_args!(
        "imported\t{}\nhere already\t{}\nrefused\t{}",
        done.num_added, done.num_here, done.num_refused
    ))?;
    if done.num_extended > 0 {
        let (chats, messages) = (done.num_extended, done.num_new_messages);
        output::line(format_args!("extended\t{chats}\tby messages\t{messages}"))?;
    }
    for refused in &done.refused {
        // {:?} escapes control characters, so that none of the file's reach the terminal.
        let RefusedChat { number, title, why } = refused;
        output::line(format_args!("refused\tchat {number}\t{title:?}\t{why}"))?;
    }
    Ok(())
}

/// An app failure as an error of this program, whose messages have no full stop.
fn to_error(failure: Failure) -> anyhow::Error {
    anyhow!(failure.message.trim_end_matches('.').to_owned())
}
