//! Excerpts of saved tokens: their beginning and end, as text to show.

use cairn_engine::Engine;

/// Tokens that are decoded to show a text's beginning or end.
pub(crate) const SHOWN_TOKENS: usize = 80;
const SHOWN_CHARS: usize = 240;

/// The texts of the first and the last tokens; empty if another model is loaded.
pub(crate) async fn ends(
    engine: &Engine,
    fingerprint: &str,
    token_ids: &[u32],
) -> (String, String) {
    let is_loaded = engine.status().borrow().model_fingerprint.as_deref() == Some(fingerprint);
    if !is_loaded {
        return (String::new(), String::new());
    }
    let first = token_ids.iter().copied().take(SHOWN_TOKENS).collect();
    // The end starts after the tokens that the beginning shows.
    let last = token_ids
        [token_ids.len().saturating_sub(SHOWN_TOKENS).max(SHOWN_TOKENS.min(token_ids.len()))..]
        .to_vec();
    let mut texts = engine.decode(None, vec![first, last]).await.unwrap_or_default().into_iter();
    let (first, last) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
    (beginning(&first), ending(&last))
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
