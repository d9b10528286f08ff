//! What an interface asks for: documents are attached, removed, brought back, shown and read.

use std::sync::Arc;

use cairn_store::{NewDocument, Store};

use crate::app::{App, now_ms};
use crate::convert;
use crate::documents::reading;
use crate::wire::{self, Command, Document, DocumentDraft, DocumentReading, Event, Failure, Reply};

/// The longest text of a document, which is more than any model reads.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// The most documents of one message.
const MAX_DOCUMENTS: usize = 100;
const MAX_NAME_CHARS: usize = 255;

/// Runs a command about documents.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::GetDocumentDraft { conversation_id } => {
            Ok(Reply::DocumentDraft { draft: draft(app, &conversation_id).await? })
        }
        Command::AttachDocuments { conversation_id, documents } => {
            attach(app, &conversation_id, documents).await
        }
        Command::RemoveDocument { conversation_id, document_id } => {
            app.store_of(&conversation_id).await.remove_draft_document(&document_id).await?;
            changed(app, &conversation_id).await
        }
        Command::RestoreDocument { conversation_id, document_id } => {
            app.store_of(&conversation_id).await.restore_draft_document(&document_id).await?;
            changed(app, &conversation_id).await
        }
        Command::GetDocument { conversation_id, document_id } => {
            let store = app.store_of(&conversation_id).await;
            let (document, text) = store.document(&document_id).await?;
            Ok(Reply::DocumentText { document: convert::document(document), text })
        }
        Command::ReadDocuments { conversation_id } => {
            reading::begin(app, &conversation_id);
            Ok(Reply::Done)
        }
        Command::StopReadingDocuments { conversation_id } => {
            reading::stop(app, &conversation_id);
            Ok(Reply::Done)
        }
        _ => Err(Failure::invalid("This is no command about documents.")),
    }
}

async fn attach(
    app: &Arc<App>,
    conversation_id: &str,
    documents: Vec<wire::NewDocument>,
) -> Result<Reply, Failure> {
    let store = app.store_of(conversation_id).await;
    let num_before = store.draft_documents(conversation_id).await?.len();
    if num_before + documents.len() > MAX_DOCUMENTS {
        return Err(Failure::invalid(format!(
            "A message can have {MAX_DOCUMENTS} documents at most: attach fewer at once."
        )));
    }
    let documents = documents.into_iter().map(checked).collect::<Result<Vec<_>, _>>()?;
    store.add_draft_documents(conversation_id, &documents, now_ms()).await?;
    changed(app, conversation_id).await
}

fn checked(document: wire::NewDocument) -> Result<NewDocument, Failure> {
    let wire::NewDocument { name, kind, text } = document;
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let name: String = name.trim().chars().map(plain).take(MAX_NAME_CHARS).collect();
    if name.is_empty() {
        return Err(Failure::invalid("A document needs a name."));
    }
    if text.trim().is_empty() {
        return Err(Failure::invalid(format!(
            "“{name}” is empty: there is nothing to read in it."
        )));
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(Failure::invalid(format!(
            "“{name}” has {} MB of text, and a document can have {} MB at most: attach a part of it.",
            text.len() >> 20,
            MAX_TEXT_BYTES >> 20
        )));
    }
    Ok(NewDocument { name, kind: convert::document_kind_of_wire(kind), text })
}

/// Begins to read what a draft has now, and tells of it.
async fn changed(app: &Arc<App>, conversation_id: &str) -> Result<Reply, Failure> {
    if app.store_of(conversation_id).await.draft_documents(conversation_id).await?.is_empty() {
        app.readings.forget(Some(conversation_id));
    } else {
        reading::begin(app, conversation_id);
    }
    let draft = draft(app, conversation_id).await?;
    app.emit(Event::DocumentDraft { draft: draft.clone() });
    Ok(Reply::DocumentDraft { draft })
}

async fn draft(app: &App, conversation_id: &str) -> Result<DocumentDraft, Failure> {
    let store = app.store_of(conversation_id).await;
    store.listed_conversation(conversation_id).await?;
    let documents: Vec<Document> = documents_of_draft(store, conversation_id).await?;
    let reading = match documents.is_empty() {
        true => DocumentReading::Unread,
        false => app.readings.state(conversation_id),
    };
    Ok(DocumentDraft { conversation_id: conversation_id.to_owned(), documents, reading })
}

async fn documents_of_draft(
    store: &Store,
    conversation_id: &str,
) -> Result<Vec<Document>, Failure> {
    let rows = store.draft_documents(conversation_id).await?;
    Ok(rows.into_iter().map(convert::document).collect())
}

/// Sends a draft as it is now, unless its conversation is gone.
pub(crate) async fn emit_draft(app: &App, conversation_id: &str) {
    if let Ok(draft) = draft(app, conversation_id).await {
        app.emit(Event::DocumentDraft { draft });
    }
}
