//! What an interface asks for: documents are attached, removed, brought back, shown and read.

use std::sync::Arc;

use cairn_store::{NewDocument, StoreError};

use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::documents::reading;
use crate::wire::{
    self, AttachedDocuments, Command, DocumentReading, DocumentsOf, Event, Failure, FailureKind,
    Reply,
};

/// The longest text of a document, which is more than any model reads.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// The most documents of one message or folder.
pub(crate) const MAX_DOCUMENTS: usize = 100;
const MAX_NAME_CHARS: usize = 255;

/// Runs a command about documents.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::GetDocuments { of } => {
            let attached = attached(app, &of).await?;
            // After a start nobody knows any more what was read.
            if !attached.documents.is_empty() {
                reading::look(app, &of).await;
            }
            Ok(Reply::Documents { attached })
        }
        Command::AttachDocuments { of, documents } => attach(app, &of, documents).await,
        Command::RemoveDocument { of, document_id } => {
            match &of {
                DocumentsOf::Conversation { id } => {
                    app.store_of(id).await.remove_draft_document(&document_id).await?;
                }
                DocumentsOf::Folder { id } => {
                    app.store.remove_folder_document(id, &document_id).await?;
                }
            }
            changed(app, &of).await
        }
        Command::RestoreDocument { of, document_id } => {
            match &of {
                DocumentsOf::Conversation { id } => {
                    app.store_of(id).await.restore_draft_document(&document_id).await?;
                }
                DocumentsOf::Folder { id } => {
                    app.store.restore_folder_document(id, &document_id).await?;
                }
            }
            changed(app, &of).await
        }
        Command::GetDocument { of, document_id } => document(app, &of, &document_id).await,
        Command::ReadDocuments { of } => {
            reading::begin(app, &of);
            Ok(Reply::Done)
        }
        Command::StopReadingDocuments { of } => {
            reading::stop(app, &of);
            Ok(Reply::Done)
        }
        _ => Err(Failure::invalid("This is no command about documents.")),
    }
}

/// A document with its text. What a conversation begins with is its folder's, or was.
async fn document(app: &App, of: &DocumentsOf, document_id: &str) -> Result<Reply, Failure> {
    let found = match of {
        DocumentsOf::Conversation { id } => {
            let store = app.store_of(id).await;
            match store.document(document_id).await {
                Err(StoreError::NoDocument { .. }) => store.folder_document(document_id).await,
                found => found,
            }
        }
        DocumentsOf::Folder { .. } => app.store.folder_document(document_id).await,
    };
    let (document, text) = found?;
    Ok(Reply::DocumentText { document: convert::document(document), text })
}

async fn attach(
    app: &Arc<App>,
    of: &DocumentsOf,
    documents: Vec<wire::NewDocument>,
) -> Result<Reply, Failure> {
    let what = match of {
        DocumentsOf::Conversation { .. } => "message",
        DocumentsOf::Folder { .. } => "folder",
    };
    check_number(documents_of(app, of).await?.len() + documents.len(), what)?;
    let documents = documents
        .into_iter()
        .map(|wire::NewDocument { name, kind, text }| {
            checked_document(NewDocument { name, kind: convert::document_kind_of_wire(kind), text })
        })
        .collect::<Result<Vec<_>, _>>()?;
    match of {
        DocumentsOf::Conversation { id } => {
            app.store_of(id).await.add_draft_documents(id, &documents, now_ms()).await?;
        }
        DocumentsOf::Folder { id } => {
            app.store.add_folder_documents(id, &documents, now_ms()).await?;
        }
    }
    changed(app, of).await
}

/// Refuses more documents than a message or a folder can have.
pub(crate) fn check_number(num_documents: usize, what: &str) -> Result<(), Failure> {
    match num_documents > MAX_DOCUMENTS {
        false => Ok(()),
        true => Err(Failure::invalid(format!(
            "A {what} can have {MAX_DOCUMENTS} documents at most: attach fewer at once."
        ))
        .of_kind(FailureKind::TooManyDocuments { most: convert::tokens(MAX_DOCUMENTS) })),
    }
}

/// A document as it may be stored: its name is one line, and its text neither empty nor too long.
pub(crate) fn checked_document(document: NewDocument) -> Result<NewDocument, Failure> {
    let NewDocument { name, kind, text } = document;
    let plain = |character: char| if character.is_control() { ' ' } else { character };
    let name: String = name.trim().chars().map(plain).take(MAX_NAME_CHARS).collect();
    if name.is_empty() {
        return Err(Failure::invalid("A document needs a name.").of_kind(FailureKind::NoName));
    }
    if text.trim().is_empty() {
        return Err(Failure::invalid(format!(
            "“{name}” is empty: there is nothing to read in it."
        ))
        .of_kind(FailureKind::EmptyDocument { name }));
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(Failure::invalid(format!(
            "“{name}” has {} MB of text, and a document can have {} MB at most: attach a part of it.",
            text.len() >> 20,
            MAX_TEXT_BYTES >> 20
        ))
        .of_kind(FailureKind::DocumentTooLong {
            name,
            bytes: text.len() as u64,
            most_bytes: MAX_TEXT_BYTES as u64,
        }));
    }
    Ok(NewDocument { name, kind, text })
}

/// Begins to read what is there now, and tells of it.
async fn changed(app: &Arc<App>, of: &DocumentsOf) -> Result<Reply, Failure> {
    match documents_of(app, of).await?.is_empty() {
        true => app.readings.forget(Some(of)),
        false => reading::begin(app, of),
    }
    let attached = attached(app, of).await?;
    app.emit(Event::Documents { attached: attached.clone() });
    if let DocumentsOf::Folder { id } = of {
        beginning_changed(app, id).await?;
    }
    Ok(Reply::Documents { attached })
}

/// Conversations of a folder that have not begun begin with what it has now.
pub(crate) async fn beginning_changed(app: &Arc<App>, folder_id: &str) -> Result<(), Failure> {
    for id in app.store.conversations_not_begun(folder_id).await? {
        moved(app, &id).await;
    }
    Ok(())
}

/// A conversation may begin with other documents than before, unless it has begun.
pub(crate) async fn moved(app: &Arc<App>, conversation_id: &str) {
    let of = DocumentsOf::conversation(conversation_id);
    reading::again(app, &of).await;
    emit(app, &of).await;
}

async fn attached(app: &App, of: &DocumentsOf) -> Result<AttachedDocuments, Failure> {
    let beginning = match of {
        DocumentsOf::Conversation { id } => {
            let store = app.store_of(id).await;
            store.listed_conversation(id).await?;
            store.beginning_documents(id).await?
        }
        DocumentsOf::Folder { .. } => Vec::new(),
    };
    let documents = documents_of(app, of).await?;
    let reading = match documents.is_empty() {
        true => DocumentReading::Unread,
        false => app.readings.state(of),
    };
    Ok(AttachedDocuments {
        of: of.clone(),
        beginning: beginning.into_iter().map(convert::document).collect(),
        documents: documents.into_iter().map(convert::document).collect(),
        reading,
    })
}

/// The documents of a draft or a folder.
pub(crate) async fn documents_of(
    app: &App,
    of: &DocumentsOf,
) -> Result<Vec<cairn_store::Document>, Failure> {
    Ok(match of {
        DocumentsOf::Conversation { id } => app.store_of(id).await.draft_documents(id).await?,
        DocumentsOf::Folder { id } => app.store.folder_documents(id).await?,
    })
}

/// Sends documents as they are now, unless what has them is gone.
pub(crate) async fn emit(app: &App, of: &DocumentsOf) {
    if let Ok(attached) = attached(app, of).await {
        app.emit(Event::Documents { attached });
    }
}
