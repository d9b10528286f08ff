//! Excerpts of saved tokens: their beginning and end, as text to show.

use cairn_engine::Engine;

/// Tokens that are decoded to show a text's beginning or end.
pub(crate) const SHOWN_TOKENS: usize = 80;
const SHOWN_CHARS: usize = 240;

/// The texts of the first and the last tokens; empty if their model is not in memory.
pub(crate) async fn ends(
    engine: &Engine,
    fingerprint: &str,
    token_ids: &[u32],
) -> (String, String) {
    let Some(model) = in_memory(engine, fingerprint) else {
        return (String::new(), String::new());
    };
    let first = token_ids.iter().copied().take(SHOWN_TOKENS).collect();
    // The end starts after the tokens that the beginning shows.
    let last = token_ids
        [token_ids.len().saturating_sub(SHOWN_TOKENS).max(SHOWN_TOKENS.min(token_ids.len()))..]
        .to_vec();
    let texts = engine.decode(Some(&model), vec![first, last]).await;
    let mut texts = texts.unwrap_or_default().into_iter();
    let (first, last) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    (beginning(&first), ending(&last))
}

/// The name under which a model with this fingerprint is in memory.
pub(crate) fn in_memory(engine: &Engine, fingerprint: &str) -> Option<String> {
    let status = engine.status();
    let models = &status.borrow().models;
    let found = models.iter().find(|model| model.fingerprint == fingerprint);
    found.map(|model| model.name.clone())
}

/// The first characters, without incomplete ones.
pub(crate) fn beginning(text: &str) -> String {
    text.trim_end_matches('\u{FFFD}').chars().take(SHOWN_CHARS).collect()
}

/// The last characters, without incomplete ones.
fn ending(text: &str) -> String {
    let text = text.trim_start_matches('\u{FFFD}');
    let num_chars = text.chars().count();
    text.chars().skip(num_chars.saturating_sub(SHOWN_CHARS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shown_without_half_characters() {
        assert_eq!(beginning("abc\u{FFFD}"), "abc");
        assert_eq!(ending("\u{FFFD}\u{FFFD}abc"), "abc");
        assert_eq!(beginning(&"é".repeat(500)).chars().count(), SHOWN_CHARS);
        assert_eq!(
            ending(&("x".repeat(500) + "end")).chars().rev().take(3).collect::<String>(),
            "dne"
        );
    }
}
