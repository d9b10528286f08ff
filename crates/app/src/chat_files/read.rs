//! The values of a JSON file, one at a time: the elements of a list, the conversations of one of
//! Cairn's own files, or the objects of a file with one on each line.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::own;

const BUFFER_BYTES: usize = 1 << 18;
/// The most bytes of one chat, which is in memory as a whole, several times as large.
const MAX_CHAT_BYTES: u64 = 256 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// With what a ZIP archive begins.
const ZIP: &[u8] = b"PK\x03\x04";

/// Why a file could not be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It is an archive.
    #[error("it is an archive: unpack it, and choose the file conversations.json in it")]
    Archive,
    /// It is written by a version of Cairn that is to come.
    #[error("it was written by a newer version of Cairn (version {0} of the form, {known} is known)", known = own::VERSION)]
    Newer(u64),
    /// One of its chats is longer than any that a person has.
    #[error("a chat in it has more than {} MiB", MAX_CHAT_BYTES >> 20)]
    TooLong,
    /// It is no JSON, or ends too early.
    #[error("{0}")]
    Json(serde_json::Error),
    /// The receiver of the values wants no more.
    #[error("nobody waits for it")]
    Stopped,
    /// The system cannot read it.
    #[error("it cannot be read ({0})")]
    Io(#[from] std::io::Error),
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file of Cairn's own.
    Own,
    /// Another file, whose form the value shows.
    Other,
}

/// Hands each value of a file to `take`, until that returns false.
pub(crate) fn read(
    file: impl Read,
    take: impl FnMut(Origin, Value) -> bool,
) -> Result<(), ReadError> {
    read_within(MAX_CHAT_BYTES, file, take)
}

fn read_within(
    max_chat_bytes: u64,
    file: impl Read,
    mut take: impl FnMut(Origin, Value) -> bool,
) -> Result<(), ReadError> {
    let left = Cell::new(max_chat_bytes);
    let mut take = |origin, value| {
        left.set(max_chat_bytes);
        take(origin, value)
    };
    let file = Metered { file, left: &left };
    let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
    let start = file.fill_buf()?;
    if start.starts_with(ZIP) {
        return Err(ReadError::Archive);
    }
    if start.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    let mut state = State { take: &mut take, stop: None };
    let mut json = serde_json::Deserializer::from_reader(file);
    loop {
        let done = Document(&mut state).deserialize(&mut json);
        if let Some(stop) = state.stop.take() {
            return Err(stop);
        }
        match done {
            Err(_) if left.get() == 0 => return Err(ReadError::TooLong),
            Err(error) if error.is_io() => return Err(ReadError::Io(error.into())),
            done => done.map_err(ReadError::Json)?,
        }
        // With another value behind it the file has one on each line.
        if json.end().is_ok() {
            return Ok(());
        }
    }
}

/// A file that fails once `left` bytes have been read. Each chat resets `left`.
struct Metered<'a, R> {
    file: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(bytes.len());
        if most == 0 && !bytes.is_empty() {
            return Err(io::Error::other("too long"));
        }
        let count = self.file.read(&mut bytes[..most])?;
        self.left.set(self.left.get() - count as u64);
        Ok(count)
    }
}

struct State<'a> {
    take: &'a mut dyn FnMut(Origin, Value) -> bool,
    stop: Option<ReadError>,
}

impl State<'_> {
    fn take<E: serde::de::Error>(&mut self, origin: Origin, value: Value) -> Result<(), E> {
        if (self.take)(origin, value) {
            return Ok(());
        }
        self.stop = Some(ReadError::Stopped);
        Err(E::custom("stopped"))
    }
}

/// A whole document.
struct Document<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Document<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list of chats or a chat")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element()? {
            self.0.take(Origin::Other, value)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let mut fields = Map::new();
        let mut is_read = false;
        while let Some(key) = object.next_key::<String>()? {
            let is_own = fields.get("format").is_some_and(|format| format == own::FORMAT);
            if is_own && key == "conversations" {
                self.0.check_version(&fields)?;
                object.next_value_seed(Conversations(self.0))?;
                is_read = true;
            } else {
                fields.insert(key, object.next_value()?);
            }
        }
        if fields.get("format").is_none_or(|format| format != own::FORMAT) {
            return self.0.take(Origin::Other, Value::Object(fields));
        }
        if is_read {
            return Ok(());
        }
        self.0.check_version(&fields)?;
        match fields.remove("conversations") {
            // Another program has put the fields into another order.
            Some(Value::Array(conversations)) => {
                conversations.into_iter().try_for_each(|chat| self.0.take(Origin::Own, chat))
            }
            _ => self.0.take(Origin::Other, Value::Object(fields)),
        }
    }
}

impl State<'_> {
    fn check_version<E: serde::de::Error>(&mut self, fields: &Map<String, Value>) -> Result<(), E> {
        match fields.get("version").and_then(Value::as_u64) {
            Some(version) if version > own::VERSION => {
                self.stop = Some(ReadError::Newer(version));
                Err(E::custom("newer"))
            }
            _ => Ok(()),
        }
    }
}

/// The list of conversations in a file of Cairn's own.
struct Conversations<'s, 'a>(&'s mut State<'a>);

impl<'de> DeserializeSeed<'de> for Conversations<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Conversations<'_, '_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list of chats")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element()? {
            self.0.take(Origin::Own, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    /// The values of a text, and the sentence about its end.
    fn values(text: &[u8]) -> (Vec<(Origin, String)>, Option<String>) {
        let mut all = Vec::new();
        let read = read(text, |origin, value| {
            all.push((origin, value.to_string()));
            all.len() < 3
        });
        (all, read.err().map(|error| error.to_string()))
    }

    #[test]
    fn refuses_a_chat_that_is_too_long() {
        let chat = format!("\"{}\"", "x".repeat(BUFFER_BYTES));
        let read = |num_chats: usize, max_chat_bytes: u64| {
            let file = format!("[{}]", vec![chat.as_str(); num_chats].join(","));
            read_within(max_chat_bytes, file.as_bytes(), |_, _| true)
        };
        // The reader may be a buffer ahead.
        read(20, 3 * BUFFER_BYTES as u64).unwrap();
        let refused = read(1, BUFFER_BYTES as u64).unwrap_err();
        assert_eq!(refused.to_string(), "a chat in it has more than 256 MiB");
    }

    #[test]
    fn a_file_is_a_list_lines_or_one_of_ours() {
        fn check(text: &str, expected: &[(Origin, &str)], problem: Option<&str>) {
            let (found, error) = values(text.as_bytes());
            let found: Vec<(Origin, &str)> =
                found.iter().map(|(origin, value)| (*origin, value.as_str())).collect();
            assert_eq!(found, expected, "{text}");
            assert_eq!(error.as_deref(), problem, "{text}");
        }
        use Origin::{Other, Own};
        check("[1, 2]", &[(Other, "1"), (Other, "2")], None);
        check("\u{feff}[]", &[], None);
        check("{\"a\":1}\n{\"a\":2}\n", &[(Other, "{\"a\":1}"), (Other, "{\"a\":2}")], None);
        check("{\"conversations\":[1]}", &[(Other, "{\"conversations\":[1]}")], None);
        let head = r#"{"format":"cairn-chats","version":1,"#;
        check(&format!("{head}\"conversations\":[1,2]}}"), &[(Own, "1"), (Own, "2")], None);
        check(&format!("{head}\"conversations\":[]}}"), &[], None);
        check(r#"{"conversations":[1],"format":"cairn-chats"}"#, &[(Own, "1")], None);
        let without_list = r#"{"format":"cairn-chats"}"#;
        check(without_list, &[(Other, without_list)], None);
        let newer =
            "it was written by a newer version of Cairn (version 2 of the form, 1 is known)";
        check(r#"{"format":"cairn-chats","version":2,"conversations":[1]}"#, &[], Some(newer));
        check(
            "[1, 2, 3, 4]",
            &[(Other, "1"), (Other, "2"), (Other, "3")],
            Some("nobody waits for it"),
        );
        check(
            "[1, 2",
            &[(Other, "1"), (Other, "2")],
            Some("EOF while parsing a list at line 1 column 5"),
        );
        check("", &[], Some("EOF while parsing a value at line 1 column 0"));
        check("hello", &[], Some("expected value at line 1 column 1"));
        check(
            "PK\u{3}\u{4}",
            &[],
            Some("it is an archive: unpack it, and choose the file conversations.json in it"),
        );
        assert!(values(&[b'['; 100_000]).1.unwrap().contains("recursion limit"));
    }
}
