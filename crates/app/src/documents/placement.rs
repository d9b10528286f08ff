//! Where documents stand: before the text of a question, each between two marks that name it.

use cairn_store::NewDocument;

/// A question behind its documents, and where each of these ends. White space before the question goes:
/// tokenizers would join it with the end of the documents, which then would not be what was read ahead.
pub(crate) fn before(documents: &[NewDocument], question: &str) -> (String, Vec<usize>) {
    let (mut text, mut ends) = (String::new(), Vec::with_capacity(documents.len()));
    for NewDocument { name, text: content, .. } in documents {
        let plain = |character: char| match character {
            '"' => '\'',
            character if character.is_control() => ' ',
            character => character,
        };
        let name: String = name.chars().map(plain).collect();
        text.push_str(&format!("<document name=\"{name}\">\n{content}\n</document>\n\n"));
        ends.push(text.len());
    }
    text.push_str(if documents.is_empty() { question } else { question.trim_start() });
    (text, ends)
}
