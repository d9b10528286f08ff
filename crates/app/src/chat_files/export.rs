//! Takes chats out: one file, written conversation by conversation.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use cairn_chat::Role;
use cairn_formats::Replacement;
use cairn_store::{Conversation, Document, Message, MessageStatus, NewDocument, Store, StoreError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{OfflineChats, own};
use crate::answer_segment::AnswerSegment;
use crate::app::App;
use crate::cache::{Download, OwnFile};
use crate::clock::now_ms;
use crate::documents::placement::before;
use crate::wire::{ChatFileFormat, Failure, Gone};

/// How many conversations may wait to be written.
const MAX_WAITING: usize = 4;

impl App {
    /// Writes conversations to a file, or all that have a message where none are named. A file that is
    /// there is replaced when all is written.
    pub async fn export_chats(
        &self,
        ids: &[String],
        format: ChatFileFormat,
        path: &Path,
    ) -> Result<(), Failure> {
        if let [id] = ids {
            // A private chat is written to no file but one that a person asks for.
            return export(self.store_of(id).await, ids, format, path).await;
        }
        export(&self.store, ids, format, path).await
    }

    /// Writes conversations to a temporary file that is read once.
    pub async fn download_chats(
        self: &Arc<Self>,
        ids: Vec<String>,
        format: ChatFileFormat,
    ) -> Result<Download, Failure> {
        let own_file = OwnFile::temporary(&self.data_folder);
        self.export_chats(&ids, format, own_file.path()).await?;
        Download::open(own_file).await
    }
}

impl OfflineChats {
    /// As [`App::export_chats`].
    pub async fn export(
        &self,
        ids: &[String],
        format: ChatFileFormat,
        path: &Path,
    ) -> Result<(), Failure> {
        export(&self.store, ids, format, path).await
    }
}

async fn export(
    store: &Store,
    ids: &[String],
    format: ChatFileFormat,
    path: &Path,
) -> Result<(), Failure> {
    let ids = match ids {
        [] => {
            let rows = store.conversations().await?.into_iter();
            rows.filter(|row| row.leaf_message_id.is_some()).map(|row| row.id).collect()
        }
        ids => ids.to_vec(),
    };
    // All are looked up before the first is written.
    for id in &ids {
        store.listed_conversation(id).await.map_err(|error| match error {
            StoreError::NoConversation { .. } => {
                Failure::gone(Gone::Chat, &format!("There is no chat with the id “{id}”."))
            }
            error => error.into(),
        })?;
    }
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    let target = path.to_owned();
    let writing = tokio::task::spawn_blocking(move || write(receiver, &target));
    let read = async {
        let total = ids.len();
        if total == 0 && format == ChatFileFormat::Json {
            // The reader is gone only where the file cannot be written, which is said below.
            let _ = sender.send(Some(format!("{}{END}", start()))).await;
        }
        for (place, id) in ids.iter().enumerate() {
            let text = piece(store, id, format, place, total).await?;
            if sender.send(Some(text)).await.is_err() {
                break;
            }
        }
        let _ = sender.send(None).await;
        Ok::<(), Failure>(())
    };
    let read = read.await;
    drop(sender);
    let written = writing.await;
    read?;
    let failed = |why: String| Failure::not_writable(path, why);
    match written {
        Ok(written) => written.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed("a fault in Cairn".to_owned())),
    }
}

/// Writes pieces up to the end, which is none. Without it nothing is written.
fn write(mut pieces: mpsc::Receiver<Option<String>>, path: &Path) -> std::io::Result<()> {
    let mut replacement = Replacement::create(path)?;
    let mut buffered = BufWriter::new(replacement.file());
    loop {
        match pieces.blocking_recv() {
            Some(Some(piece)) => buffered.write_all(piece.as_bytes())?,
            Some(None) => break,
            None => return Ok(()),
        }
    }
    buffered.flush()?;
    drop(buffered);
    replacement.finish()
}

/// How one of Cairn's own files ends.
const END: &str = "]}\n";

/// How one begins.
fn start() -> String {
    let head =
        json!({ "format": own::FORMAT, "version": own::VERSION, "exported_at_ms": now_ms() });
    format!("{},\"conversations\":[\n", head.to_string().trim_end_matches('}'))
}

/// A conversation as the file has it, with what stands before the first and behind the last.
async fn piece(
    store: &Store,
    id: &str,
    format: ChatFileFormat,
    place: usize,
    total: usize,
) -> Result<String, Failure> {
    let row = store.listed_conversation(id).await?;
    let is_last = place + 1 == total;
    Ok(match format {
        ChatFileFormat::Json => {
            let chat = own::Chat::of(store, row).await?;
            // Texts and numbers always serialize.
            let chat = serde_json::to_string(&chat).unwrap_or_default();
            let before = if place == 0 { start() } else { String::new() };
            let behind = if is_last { format!("\n{END}") } else { ",\n".to_owned() };
            format!("{before}{chat}{behind}")
        }
        ChatFileFormat::Markdown => {
            let before = if place == 0 { "" } else { "\n---\n\n" };
            let (branch, documents) = (store.branch(id).await?, store.documents_of(id).await?);
            let beginning = store.beginning_documents(id).await?;
            format!("{before}{}", markdown(&row, &branch, &beginning, &documents))
        }
        ChatFileFormat::Openai => {
            let (branch, documents) = (store.branch(id).await?, store.document_texts_of(id).await?);
            let beginning = store.beginning_texts(id).await?;
            format!("{}\n", messages(&row, &branch, &beginning, &documents))
        }
    })
}

/// The branch on screen, to be read. Documents are named; their text is in the other forms.
fn markdown(
    row: &Conversation,
    branch: &[Message],
    beginning: &[Document],
    documents: &HashMap<String, Vec<Document>>,
) -> String {
    let title = if row.title.is_empty() { "New chat" } else { &row.title };
    let mut text = format!("# {title}\n");
    if !row.system_prompt.is_empty() {
        text.push_str(&format!("\n## System prompt\n\n{}\n", row.system_prompt.trim()));
    }
    if !beginning.is_empty() {
        text.push_str(&format!("\n*Begins with: {}*\n", names(beginning)));
    }
    for message in branch {
        let said = AnswerSegment::said(message.segments.as_deref(), &message.text);
        let author = match (message.role, &message.stats) {
            (Role::User, _) => "You",
            (Role::System, _) => "System",
            (Role::Assistant, Some(stats)) => &stats.model,
            (Role::Assistant, None) => "Assistant",
        };
        text.push_str(&format!("\n## {author}\n"));
        let documents = documents.get(&message.id).map_or(&[][..], Vec::as_slice);
        if !documents.is_empty() {
            text.push_str(&format!("\n*Attached: {}*\n", names(documents)));
        }
        if !said.is_empty() {
            text.push_str(&format!("\n{said}\n"));
        }
        if let Some(note) = note(message) {
            text.push_str(&format!("\n*{note}*\n"));
        }
    }
    text
}

fn names(documents: &[Document]) -> String {
    let names = documents.iter().map(|document| plain_markdown(&document.name));
    names.collect::<Vec<String>>().join(", ")
}

/// A name as Markdown that says nothing else.
fn plain_markdown(name: &str) -> String {
    let escaped = |character: char| match character {
        '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '!' | '|' | '&' => {
            vec!['\\', character]
        }
        character => vec![character],
    };
    name.chars().flat_map(escaped).collect()
}

fn note(message: &Message) -> Option<String> {
    match message.status {
        MessageStatus::Complete => None,
        MessageStatus::Stopped => Some("This answer was stopped.".to_owned()),
        MessageStatus::Streaming => Some("This answer is being written.".to_owned()),
        MessageStatus::Interrupted => Some("This answer was interrupted.".to_owned()),
        MessageStatus::Failed => {
            Some(message.error.clone().unwrap_or_else(|| "This answer failed.".to_owned()))
        }
    }
}

/// The branch on screen as a request of OpenAI's API has it: what was said, without reasoning, and
/// documents as the model has read them: those of the beginning before the first question.
fn messages(
    row: &Conversation,
    branch: &[Message],
    beginning: &[NewDocument],
    documents: &HashMap<String, Vec<NewDocument>>,
) -> Value {
    let system = (!row.system_prompt.is_empty())
        .then(|| json!({ "role": "system", "content": row.system_prompt }));
    let first = branch.iter().find(|message| message.role == Role::User);
    let said = branch.iter().filter_map(|message| {
        let said = AnswerSegment::said(message.segments.as_deref(), &message.text);
        let said = match documents.get(&message.id) {
            Some(documents) => before(documents, &said).0,
            None => said.to_string(),
        };
        let said = match first.filter(|first| first.id == message.id && !beginning.is_empty()) {
            Some(_) => before(beginning, &said).0,
            None => said,
        };
        (!said.is_empty()).then(|| json!({ "role": message.role.as_str(), "content": said }))
    });
    json!({ "messages": system.into_iter().chain(said).collect::<Vec<Value>>() })
}
