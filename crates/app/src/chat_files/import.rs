//! Takes chats in: each is saved whole in a transaction of its own, or not at all.

use std::path::Path;
use std::sync::Arc;

use cairn_formats::{FileError, open_regular};
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
/// The most messages of one chat: ten years with fifty a day.
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
    let (file, _) = open_regular(path).map_err(|error| {
        let why = match error {
            FileError::Io { source, .. } => format!("cannot be read: {source}"),
            _ => "is not a regular file: choose another".to_owned(),
        };
        Failure::new(FailureCode::Storage, format!("“{name}” {why}."))
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
    conversation_within(MAX_MESSAGES, origin, value)
}

fn conversation_within(max_messages: usize, origin: Origin, value: Value) -> Read {
    let name = foreign::title(&value).unwrap_or_default().to_owned();
    let read = match origin {
        Origin::Own => own::Chat::read(value).map_err(Refused::Bad),
        Origin::Other => foreign::read(&value),
    };
    let read = match read {
        Ok(read) if read.messages.len() > max_messages => Err(Refused::Bad(format!(
            "it has {} messages, and Cairn takes chats of at most {max_messages}",
            read.messages.len()
        ))),
        read => read,
    };
    let read = dated(read.map_err(|refused| (name, refused))?, now_ms());
    Ok(ImportedConversation { title: one_line(&read.title), ..read })
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
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_chat::Role;
    use cairn_formats::test_files::growth::check_linear;
    use cairn_store::ImportedMessage;

    use super::*;

    /// How the messages of a chat follow each other.
    #[derive(Debug, Clone, Copy)]
    enum Shape {
        Chain,
        /// One question with all others as its answers.
        Star,
        /// Every second message ends a branch.
        Comb,
    }

    impl Shape {
        fn parent(self, place: usize) -> Option<usize> {
            match self {
                Shape::Chain => place.checked_sub(1),
                Shape::Star => (place > 0).then_some(0),
                Shape::Comb => place.checked_sub(if place.is_multiple_of(2) { 2 } else { 1 }),
            }
        }
    }

    /// The files of each program with one chat.
    fn file(program: &str, shape: Shape, num_messages: usize) -> String {
        use serde_json::json;

        let id = |place: usize| format!("m{place}");
        let role = |place: usize| if place.is_multiple_of(2) { "user" } else { "assistant" };
        let places = 0..num_messages;
        let file = match program {
            "own" => {
                let message = |at: usize| json!({"id": id(at), "parent_id": shape.parent(at).map(id), "role": role(at), "text": "t"});
                let messages: Vec<Value> = places.map(message).collect();
                json!({"format": "cairn-chats", "version": 1, "conversations": [{"title": "c", "messages": messages}]})
            }
            "chatgpt" => {
                let node = |at: usize| {
                    let content = json!({"content_type": "text", "parts": ["t"]});
                    let message = json!({"author": {"role": role(at)}, "content": content});
                    (id(at), json!({"parent": shape.parent(at).map(id), "message": message}))
                };
                json!([{"title": "c", "mapping": places.map(node).collect::<serde_json::Map<_, _>>()}])
            }
            "open-webui" => {
                let node = |at: usize| {
                    (
                        id(at),
                        json!({"parentId": shape.parent(at).map(id), "role": role(at), "content": "t"}),
                    )
                };
                let messages: serde_json::Map<_, _> = places.map(node).collect();
                json!([{"chat": {"title": "c", "history": {"messages": messages}}}])
            }
            "sharegpt" => {
                let message = |at: usize| json!({"from": role(at), "value": "t"});
                json!([{"conversations": places.map(message).collect::<Vec<_>>()}])
            }
            _ => {
                let message = |at: usize| json!({"role": role(at), "content": "t"});
                json!({"messages": places.map(message).collect::<Vec<_>>()})
            }
        };
        file.to_string()
    }

    /// The chat of a file, or why it is refused.
    fn chat(file: &str, max_messages: usize) -> Read {
        let mut chats = Vec::new();
        read::read(file.as_bytes(), |origin, value| {
            chats.push(conversation_within(max_messages, origin, value));
            true
        })
        .unwrap();
        chats.remove(0)
    }

    #[test]
    fn reads_chats_in_linear_time() {
        let check = |program: &str, shape: Shape| {
            let what = format!("{program}, {shape:?}");
            let file = |count| file(program, shape, count);
            check_linear(&what, 500, file, |file| assert!(chat(&file, MAX_MESSAGES).is_ok()));
        };
        for program in ["own", "chatgpt", "open-webui"] {
            for shape in [Shape::Chain, Shape::Star, Shape::Comb] {
                check(program, shape);
            }
        }
        // Files without branches.
        for program in ["sharegpt", "messages"] {
            check(program, Shape::Chain);
        }
    }

    #[test]
    fn refuses_a_chat_of_too_many_messages() {
        for program in ["own", "chatgpt", "open-webui", "sharegpt", "messages"] {
            let file = file(program, Shape::Chain, 10);
            assert!(chat(&file, 10).is_ok(), "{program}");
            let (_, refused) = chat(&file, 9).unwrap_err();
            let expected = "it has 10 messages, and Cairn takes chats of at most 9";
            assert_eq!(refused, Refused::Bad(expected.to_owned()), "{program}");
        }
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
