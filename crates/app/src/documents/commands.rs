//! What an interface asks for: documents are attached, removed, brought back, shown and read.

use std::sync::Arc;

use cairn_store::{NewDocument, StoreError};

use crate::app::App;
use crate::clock::now_ms;
use crate::convert;
use crate::documents::attached::{attached, documents_of, emit};
use crate::documents::limits::{check_number, checked_document};
use crate::documents::reading;
use crate::wire::{self, Command, DocumentsOf, Event, Failure, Reply};

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
