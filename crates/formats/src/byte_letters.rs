//! The letters that stand for bytes in byte-level vocabularies.

/// The letter of each byte: printable ones of Latin-1 stand for themselves, the others are U+0100 and
/// what follows, in order, as in GPT-2.
pub fn byte_letters() -> [char; 256] {
    let is_itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        // There are 68 others, and far more letters.
        if is_itself(&byte) { char::from(byte) } else { others.next().unwrap_or_default() }
    })
}
