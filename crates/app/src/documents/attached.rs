//! The documents of a draft or a folder as they are now.

use crate::app::App;
use crate::convert;
use crate::wire::{AttachedDocuments, DocumentReading, DocumentsOf, Event, Failure};

/// Documents with how far they are read, and what their conversation begins with.
pub(super) async fn attached(app: &App, of: &DocumentsOf) -> Result<AttachedDocuments, Failure> {
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
