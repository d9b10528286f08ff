//! The size of a document: how many tokens it adds to a prompt, the marks that name it included.
//! Its chip, the line that says how far it is read, and the gauge of the context all show this
//! number.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_chat::{ChatError, Encode};
use cairn_engine::Tokenizer;
use cairn_store::{Document, DocumentKind, NewDocument, Store};

use crate::app::App;
use crate::documents::counting::prompt_failure;
use crate::documents::placement::before;
use crate::wire::Failure;

/// Counts the tokens that a document adds to a prompt.
pub(super) fn num_added_tokens(
    tokenizer: &Tokenizer,
    name: &str,
    text: &str,
) -> Result<usize, ChatError> {
    // Tokenizers join white space with the text after it, so a question has to follow the marks.
    const QUESTION: &str = "Question";
    let (name, text) = (name.to_owned(), text.to_owned());
    let document = NewDocument { name, kind: DocumentKind::Text, text };
    let with_document = tokenizer.encode_plain(&before(&[document], QUESTION).0)?.len();
    Ok(with_document.saturating_sub(tokenizer.encode_plain(QUESTION)?.len()))
}

/// Converts a size to the type of its column.
pub(super) fn stored(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

pub(super) fn fault() -> Failure {
    Failure::fault("A fault in Cairn stopped the documents from being counted.")
}

/// The sizes of a conversation's documents for one model, in tokens.
pub(crate) struct Sizes {
    /// The documents that the conversation begins with.
    pub(crate) num_in_beginning: usize,
    by_message: HashMap<String, usize>,
    /// Whether documents of the beginning or the draft were counted now.
    pub(crate) has_new_in_draft: bool,
    /// The messages with documents that were counted now.
    pub(crate) new_in_messages: Vec<String>,
}

impl Sizes {
    /// The documents of a message; 0 if it has none.
    pub(crate) fn num_in_message(&self, message_id: &str) -> usize {
        self.by_message.get(message_id).copied().unwrap_or(0)
    }
}

/// Returns the sizes of a conversation's documents for a loaded model. Counts each document that
/// was not counted for this model, and saves the numbers.
pub(crate) async fn for_conversation(
    app: &App,
    store: &Store,
    conversation_id: &str,
    model: &str,
) -> Result<Sizes, Failure> {
    let beginning = store.beginning_documents(conversation_id).await?;
    let sent = store.documents_of(conversation_id).await?;
    let draft = store.draft_documents(conversation_id).await?;
    let counter = Counter { app, store, model };
    let begins_with = counter.count(&beginning, true).await?;
    let in_draft = counter.count(&draft, false).await?;
    let (mut by_message, mut new_in_messages) = (HashMap::new(), Vec::new());
    for (message_id, documents) in sent {
        let in_message = counter.count(&documents, false).await?;
        if in_message.is_new {
            new_in_messages.push(message_id.clone());
        }
        by_message.insert(message_id, in_message.num_tokens);
    }
    Ok(Sizes {
        num_in_beginning: begins_with.num_tokens,
        by_message,
        has_new_in_draft: begins_with.is_new || in_draft.is_new,
        new_in_messages,
    })
}

/// Returns the tokens of a folder's documents for a loaded model, counted and saved as in
/// [`for_conversation`].
pub(crate) async fn for_folder(app: &App, folder_id: &str, model: &str) -> Result<Sum, Failure> {
    let documents = app.store.folder_documents(folder_id).await?;
    let counter = Counter { app, store: &app.store, model };
    counter.count(&documents, true).await
}

struct Counter<'a> {
    app: &'a App,
    store: &'a Store,
    model: &'a str,
}

/// The size of several documents, in tokens.
pub(crate) struct Sum {
    pub(crate) num_tokens: usize,
    /// Whether any of the documents was counted now.
    pub(crate) is_new: bool,
}

impl Counter<'_> {
    async fn count(&self, documents: &[Document], of_folder: bool) -> Result<Sum, Failure> {
        let mut sum = Sum { num_tokens: 0, is_new: false };
        for document in documents {
            let known = document.counted.as_ref().filter(|(_, model)| model == self.model);
            sum.num_tokens += match known {
                Some((num_tokens, _)) => usize::try_from(*num_tokens).unwrap_or(0),
                None => {
                    sum.is_new = true;
                    self.count_again(&document.id, of_folder).await?
                }
            };
        }
        Ok(sum)
    }

    async fn count_again(&self, id: &str, of_folder: bool) -> Result<usize, Failure> {
        let (document, text) = if of_folder {
            self.store.folder_document(id).await?
        } else {
            self.store.document(id).await?
        };
        let tokenizer: Arc<Tokenizer> =
            self.app.engine.submit(Some(self.model), |loaded| loaded.tokenizer.clone()).await?;
        // Long texts take a while, so the engine's thread does other things meanwhile.
        let size =
            self.app.blocking(move || num_added_tokens(&tokenizer, &document.name, &text)).await;
        let size = size.ok_or_else(fault)?.map_err(prompt_failure)?;
        if of_folder {
            self.store.set_folder_document_tokens(id, stored(size), self.model).await?;
        } else {
            self.store.set_document_tokens(id, stored(size), self.model).await?;
        }
        Ok(size)
    }
}
