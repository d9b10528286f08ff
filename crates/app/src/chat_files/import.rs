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
use crate::clock::now_ms;
use crate::convert::sentence;
use crate::wire::{ChatsImported, Event, Failure, FailureCode, FailureKind, RefusedChat};

/// How many conversations may wait between reading and saving.
const MAX_WAITING: usize = 4;
/// The refused chats that are named; the others are counted.
const MAX_NAMED: usize = 20;
/// More messages in one chat are no chat that a person has had: ten years with fifty a day.
const MAX_MESSAGES: usize = 200_000;
/// A title is one line in a list.
const MAX_TITLE_CHARS: usize = 200;

/// A conversation of a file, or why it cannot be taken in.
type Read = Result<ImportedConversation, (String, Refused)>;

impl App {
    /// Takes the chats of a file in. Fails if nothing in it has a form that Cairn knows; otherwise the
    /// reply says which chats could not be taken. A list of chats may be empty.
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
    let mut number = 0;
    let mut is_any_known = false;
    while let Some(read) = receiver.recv().await {
        number += 1;
        is_any_known |= !matches!(read, Err((_, Refused::Unknown)));
        match read {
            Ok(conversation) => save(store, conversation, &mut done).await?,
            Err((title, refused)) => refuse(&mut done, number, title, why(refused)),
        }
    }
    let ended = reading.await.unwrap_or(Err(ReadError::Stopped));
    match ended {
        Err(error) if !is_any_known => Err(unreadable(name, &error)),
        Ok(()) if number > 0 && !is_any_known => Err(Failure::invalid(format!(
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
            done.first_id.get_or_insert_with(|| id.clone());
            done.added_ids.push(id);
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
    let read = read.and_then(limited).map_err(|refused| (name, refused))?;
    let read = dated(read, now_ms());
    Ok(ImportedConversation { title: one_line(&read.title), ..read })
}

/// Refuses a conversation that is too large to be shown.
fn limited(conversation: ImportedConversation) -> Result<ImportedConversation, Refused> {
    let count = conversation.messages.len();
    if count > MAX_MESSAGES {
        return Err(Refused::Bad(format!(
            "it has {count} messages, and a chat can have at most {MAX_MESSAGES}"
        )));
    }
    Ok(conversation)
}

/// Gives a conversation and its messages the dates that its file does not have: those of its messages, and
/// without any the present one. Its origin knows no such date, so that the same file is known again.
fn dated(mut conversation: ImportedConversation, now_ms: i64) -> ImportedConversation {
    let or = |at_ms: i64, other: i64| if at_ms == 0 { other } else { at_ms };
    let times = || {
        let all = conversation.messages.iter().map(|message| message.created_at_ms);
        all.filter(|at_ms| *at_ms != 0)
    };
    let (oldest, newest) = (times().min(), times().max());
    let created_at_ms = or(conversation.created_at_ms, oldest.unwrap_or(0));
    let updated_at_ms = or(conversation.updated_at_ms, newest.unwrap_or(or(created_at_ms, now_ms)));
    conversation.created_at_ms = or(created_at_ms, updated_at_ms);
    conversation.updated_at_ms = updated_at_ms;
    for place in 0..conversation.messages.len() {
        let message = &conversation.messages[place];
        let before = message.parent.filter(|parent| *parent < place);
        let before = before.map(|parent| conversation.messages[parent].created_at_ms);
        let at_ms = or(message.created_at_ms, before.unwrap_or(conversation.created_at_ms));
        conversation.messages[place].created_at_ms = at_ms;
    }
    conversation
}

/// A title as it stands in a list.
fn one_line(title: &str) -> String {
    let line = title.chars().map(|character| if character.is_control() { ' ' } else { character });
    line.take(MAX_TITLE_CHARS).collect::<String>().trim().to_owned()
}

fn refuse(done: &mut ChatsImported, number: u32, title: String, why: String) {
    done.num_refused += 1;
    if done.refused.len() < MAX_NAMED {
        done.refused.push(RefusedChat { number, title: one_line(&title), why });
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
        ))
        .of_kind(FailureKind::NotJson {
            name: name.to_owned(),
            line: error.line() as u64,
            column: error.column() as u64,
        }),
        ReadError::Io(_) => Failure::new(FailureCode::Storage, format!("“{name}”: {error}."))
            .of_kind(FailureKind::NotReadable { name: name.to_owned() }),
        error => {
            let name = name.to_owned();
            let kind = match error {
                ReadError::Archive => FailureKind::ArchiveFile { name: name.clone() },
                ReadError::Newer(_) => FailureKind::NewerFile { name: name.clone() },
                _ => FailureKind::NotReadable { name: name.clone() },
            };
            Failure::invalid(format!("“{name}” cannot be imported: {error}.")).of_kind(kind)
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_chat::Role;
    use cairn_store::ImportedMessage;

    use super::*;

    #[test]
    fn refuses_chat_with_too_many_messages() {
        let of = |count: usize| {
            let message = ImportedMessage::new(None, Role::User, String::new(), 1);
            limited(ImportedConversation {
                messages: vec![message; count],
                ..ImportedConversation::default()
            })
        };
        assert!(of(MAX_MESSAGES).is_ok());
        let why = "it has 200001 messages, and a chat can have at most 200000".to_owned();
        assert_eq!(of(MAX_MESSAGES + 1), Err(Refused::Bad(why)));
    }

    #[test]
    fn a_chat_without_dates_is_as_old_as_its_messages_or_of_now() {
        /// The dates of a chat and of its messages, each after the one before it; 0: none.
        fn check(given: ([i64; 2], &[i64]), expected: ([i64; 2], &[i64])) {
            let message = |(place, at_ms): (usize, &i64)| {
                let parent = place.checked_sub(1);
                ImportedMessage::new(parent, Role::User, String::new(), *at_ms)
            };
            let [created_at_ms, updated_at_ms] = given.0;
            let conversation = ImportedConversation {
                created_at_ms,
                updated_at_ms,
                messages: given.1.iter().enumerate().map(message).collect(),
                ..ImportedConversation::default()
            };
            let found = dated(conversation, 100);
            let messages: Vec<i64> =
                found.messages.iter().map(|message| message.created_at_ms).collect();
            let dates = [found.created_at_ms, found.updated_at_ms];
            assert_eq!((dates, &messages[..]), expected, "{given:?}");
        }
        check(([0, 0], &[0, 0]), ([100, 100], &[100, 100]));
        check(([0, 0], &[5, 0, 7]), ([5, 7], &[5, 5, 7]));
        check(([3, 0], &[0, 0]), ([3, 3], &[3, 3]));
        check(([0, 9], &[0, 0]), ([9, 9], &[9, 9]));
        check(([3, 9], &[4, 8]), ([3, 9], &[4, 8]));
    }
}
