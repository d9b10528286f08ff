//! Takes chats in: each is saved whole in a transaction of its own, or not at all.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use cairn_store::{Imported, ImportedConversation, Store};
use serde_json::Value;
use tokio::sync::mpsc;

use super::foreign::Refused;
use super::read::{Origin, ReadError};
use super::{OfflineChats, foreign, own, read};
use crate::app::App;
use crate::cache::Upload;
use crate::cache::previews::file_name;
use crate::convert::sentence;
use crate::wire::{ChatsImported, Event, Failure, FailureCode, FailureKind, RefusedChat};

/// How many conversations may wait between reading and saving.
const MAX_WAITING: usize = 4;
/// The refused chats that are named; the others are counted.
const MAX_NAMED: usize = 20;
/// A title is one line in a list.
const MAX_TITLE_CHARS: usize = 200;

/// A conversation of a file, or why it cannot be taken in.
type Read = Result<ImportedConversation, (String, Refused)>;

impl App {
    /// Takes the chats of a file in. Fails if there is none in it; otherwise the reply says which could
    /// not be taken.
    pub async fn import_chats(self: &Arc<Self>, path: &Path) -> Result<ChatsImported, Failure> {
        self.import_chats_named(path, &file_name(path)).await
    }

    /// As [`App::import_chats`], from a file that was received.
    pub async fn import_uploaded_chats(
        self: &Arc<Self>,
        upload: Upload,
        name: &str,
    ) -> Result<ChatsImported, Failure> {
        let own_file = upload.finish().await?;
        self.import_chats_named(own_file.path(), name).await
    }

    async fn import_chats_named(
        self: &Arc<Self>,
        path: &Path,
        name: &str,
    ) -> Result<ChatsImported, Failure> {
        let imported = import(&self.store, path, name).await;
        self.emit(Event::ConversationsChanged);
        imported
    }
}

impl OfflineChats {
    /// As [`App::import_chats`].
    pub async fn import(&self, path: &Path) -> Result<ChatsImported, Failure> {
        import(&self.store, path, &file_name(path)).await
    }
}

async fn import(store: &Store, path: &Path, name: &str) -> Result<ChatsImported, Failure> {
    let file = File::open(path).map_err(|error| {
        Failure::new(FailureCode::Storage, format!("“{name}” cannot be read: {error}."))
            .of_kind(FailureKind::NotReadable { name: name.to_owned() })
    })?;
    let (sender, mut receiver) = mpsc::channel(MAX_WAITING);
    let reading = tokio::task::spawn_blocking(move || {
        read::read(file, |origin, value| sender.blocking_send(conversation(origin, value)).is_ok())
    });
    let mut done = ChatsImported::default();
    let mut is_any_known = false;
    while let Some(read) = receiver.recv().await {
        is_any_known |= !matches!(read, Err((_, Refused::Unknown)));
        match read {
            Ok(conversation) => save(store, conversation, &mut done).await?,
            Err((title, refused)) => refuse(&mut done, title, why(refused)),
        }
    }
    let ended = reading.await.unwrap_or(Err(ReadError::Stopped));
    match ended {
        Err(error) if !is_any_known => Err(unreadable(name, &error)),
        Ok(()) if !is_any_known => Err(Failure::invalid(format!(
            "“{name}” has no chats that Cairn can read: it reads its own files, and the exports of ChatGPT (conversations.json), Open WebUI and ShareGPT."
        ))
        .of_kind(FailureKind::NoChats { name: name.to_owned() })),
        Err(error) => {
            done.problem = Some(format!("The rest of “{name}” cannot be read: {error}."));
            Ok(done)
        }
        Ok(()) => Ok(done),
    }
}

async fn save(
    store: &Store,
    conversation: ImportedConversation,
    done: &mut ChatsImported,
) -> Result<(), Failure> {
    match store.import_conversation(&conversation).await? {
        Imported::Added(id) => {
            done.num_added += 1;
            done.first_id.get_or_insert(id);
        }
        Imported::AlreadyHere(_) => done.num_here += 1,
        Imported::Extended { id, num_messages } => {
            done.num_extended += 1;
            done.num_new_messages += u32::try_from(num_messages).unwrap_or(u32::MAX);
            done.first_id.get_or_insert(id);
        }
    }
    Ok(())
}

fn conversation(origin: Origin, value: Value) -> Read {
    let name = foreign::title(&value).unwrap_or_default().to_owned();
    let read = match origin {
        Origin::Own => own::Chat::read(value).map_err(Refused::Bad),
        Origin::Other => foreign::read(&value),
    };
    let read = read.map_err(|refused| (name, refused))?;
    Ok(ImportedConversation { title: one_line(&read.title), ..read })
}

/// A title as it stands in a list.
fn one_line(title: &str) -> String {
    let line = title.chars().map(|character| if character.is_control() { ' ' } else { character });
    line.take(MAX_TITLE_CHARS).collect::<String>().trim().to_owned()
}

fn refuse(done: &mut ChatsImported, title: String, why: String) {
    done.num_refused += 1;
    if done.refused.len() < MAX_NAMED {
        done.refused.push(RefusedChat { title: one_line(&title), why });
    }
}

fn why(refused: Refused) -> String {
    match refused {
        Refused::Unknown => "It is no chat in a form that Cairn knows.".to_owned(),
        Refused::Bad(why) => sentence(why),
    }
}

fn unreadable(name: &str, error: &ReadError) -> Failure {
    match error {
        ReadError::Json(error) => Failure::invalid(format!(
            "“{name}” is no file of chats: it is not valid JSON (line {}, column {}).",
            error.line(),
            error.column()
        )),
        ReadError::Io(_) => Failure::new(FailureCode::Storage, format!("“{name}”: {error}.")),
        error => Failure::invalid(format!("“{name}” cannot be imported: {error}.")),
    }
}
