//! What a document may be, and how many there may be.

use cairn_store::NewDocument;

use crate::convert;
use crate::wire::{Failure, FailureKind};

/// The longest text of a document, which is more than any model reads.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// The most documents of one message or folder.
pub(crate) const MAX_DOCUMENTS: usize = 100;
const MAX_NAME_CHARS: usize = 255;

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
