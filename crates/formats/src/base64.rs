//! Base64 with padding (RFC 4648), as tokenizer.json writes bytes.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of these bytes.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |index: usize| u32::from(part.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * index) & 63) as usize];
            text.push(if index <= part.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The bytes of this text; `None` where it is no base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for part in digits.as_bytes().chunks(4) {
        let digit = |index: usize| part.get(index).map_or(Some(0), |letter| value(*letter));
        let bits = digit(0)? << 18 | digit(1)? << 12 | digit(2)? << 6 | digit(3)?;
        // Other readers refuse text that encodes bits beyond the last byte, and one of them panics then.
        if bits.trailing_zeros() < 24 - 8 * (part.len() as u32 - 1) {
            return None;
        }
        let of_part = [bits >> 16, bits >> 8, bits].map(|bits| bits as u8);
        bytes.extend(&of_part[..part.len() - 1]);
    }
    Some(bytes)
}

fn value(letter: u8) -> Option<u32> {
    let number = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_text_and_come_back() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_is_no_base64_is_none() {
        for text in ["Z", "Zg=", "Zg", "====", "Z===", "Zm9v!!!!", "Zm 9", "é===", "Zh==", "Zm9="]
        {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
