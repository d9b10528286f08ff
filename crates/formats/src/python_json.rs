//! JSON as Python writes it: `Infinity`, `-Infinity` and `NaN` stand in it as numbers, which are none
//! in JSON.

use std::borrow::Cow;

use serde_json::Value;

/// The words that Python writes for such numbers.
const WORDS: [&str; 3] = ["Infinity", "-Infinity", "NaN"];

/// Parses a configuration that Python may have written. A number that JSON has no form for becomes a
/// text of that name, so that only a field that is read as such accepts it.
pub fn python_json(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&with_quoted_words(text))
}

fn with_quoted_words(text: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted: Vec<u8> = Vec::new();
    let (mut copied, mut index, mut in_text) = (0, 0, false);
    while index < text.len() {
        match text[index] {
            b'\\' if in_text => index += 1,
            b'"' => in_text = !in_text,
            _ if !in_text => {
                let word = WORDS.iter().find(|word| text[index..].starts_with(word.as_bytes()));
                if let Some(word) = word {
                    quoted.extend_from_slice(&text[copied..index]);
                    quoted.extend_from_slice(format!("\"{word}\"").as_bytes());
                    index += word.len();
                    copied = index;
                    continue;
                }
            }
            _ => {}
        }
        index += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    quoted.extend_from_slice(&text[copied..]);
    Cow::Owned(quoted)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_python_writes_become_texts() {
        for (text, expected) in [
            (r#"{"limits": [0.0, Infinity]}"#, json!({"limits": [0.0, "Infinity"]})),
            (r#"[-Infinity,NaN]"#, json!(["-Infinity", "NaN"])),
            (r#"{"a \" NaN": "Infinity"}"#, json!({"a \" NaN": "Infinity"})),
            (r#"{"a\\": NaN}"#, json!({"a\\": "NaN"})),
        ] {
            assert_eq!(python_json(text.as_bytes()).expect(text), expected, "{text}");
        }
        for text in ["Infinityx", "[1, Infinity", "{Infinity: 1", "[1 NaN]", "\"NaN"] {
            assert!(python_json(text.as_bytes()).is_err(), "{text}");
        }
    }
}
