//! A JSON scanner that takes a text byte by byte: it says where values begin and end, and refuses
//! the first byte that cannot belong to JSON.
//!
//! The grammar is RFC 8259's, which is also what serde_json skips over, down to the depth limit,
//! with one addition: models forget to escape. So a string may contain control characters, and a
//! backslash that begins no escape sequence stands for itself. [`Mender`] makes JSON of such a
//! text.

/// Deeper nesting is refused, as in serde_json.
const MAX_DEPTH: usize = 127;

/// What a byte did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is inside a token, or between tokens.
    Inner,
    /// It opened an object or a list.
    Open,
    /// It closed one.
    Close,
    /// It is the first quote of a string; see [`Scanner::is_key`].
    StringStart,
    /// It is the last quote of a string.
    StringEnd,
    /// It is the first byte of a number, `true`, `false` or `null`.
    Scalar,
}

/// The text is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoJson;

/// The state between two bytes.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    /// The bytes that close the open objects and lists.
    closers: Vec<u8>,
    expected: Expected,
    token: Token,
    is_key: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Value,
    FirstValueOrEnd,
    FirstKeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    Nothing,
}

/// The token that the last byte was part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    String,
    Escape,
    /// So many hexadecimal digits are missing.
    Hex(u8),
    Literal(&'static [u8]),
    Number(Number),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Scanner {
    pub(super) fn new() -> Scanner {
        Scanner {
            closers: Vec::new(),
            expected: Expected::Value,
            token: Token::None,
            is_key: false,
        }
    }

    /// How many objects and lists are open.
    pub(super) fn depth(&self) -> usize {
        self.closers.len()
    }

    /// Whether the last string that started is an object's key.
    pub(super) fn is_key(&self) -> bool {
        self.is_key
    }

    /// Whether a whole object or list has been read.
    pub(super) fn is_closed(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// Takes the next byte.
    pub(super) fn push(&mut self, byte: u8) -> Result<Step, NoJson> {
        match self.token {
            Token::None => self.between(byte),
            Token::String => Ok(self.in_string(byte)),
            Token::Escape => {
                self.token = if byte == b'u' { Token::Hex(4) } else { Token::String };
                Ok(Step::Inner)
            }
            Token::Hex(missing) if byte.is_ascii_hexdigit() => {
                self.token = if missing == 1 { Token::String } else { Token::Hex(missing - 1) };
                Ok(Step::Inner)
            }
            Token::Hex(_) => {
                self.token = Token::String;
                Ok(self.in_string(byte))
            }
            Token::Literal(rest) => {
                if rest.first() != Some(&byte) {
                    return Err(NoJson);
                }
                self.token = Token::Literal(&rest[1..]);
                if rest.len() == 1 {
                    self.end_value();
                }
                Ok(Step::Inner)
            }
            Token::Number(number) => match number.next(byte) {
                Some(next) => {
                    self.token = Token::Number(next);
                    Ok(Step::Inner)
                }
                None if number.may_end() => {
                    self.end_value();
                    self.between(byte)
                }
                None => Err(NoJson),
            },
        }
    }

    fn in_string(&mut self, byte: u8) -> Step {
        match byte {
            b'"' if self.is_key => {
                self.token = Token::None;
                self.expected = Expected::Colon;
                Step::StringEnd
            }
            b'"' => {
                self.end_value();
                Step::StringEnd
            }
            b'\\' => {
                self.token = Token::Escape;
                Step::Inner
            }
            _ => Step::Inner,
        }
    }

    fn between(&mut self, byte: u8) -> Result<Step, NoJson> {
        use Expected::{Colon, CommaOrEnd, FirstKeyOrEnd, FirstValueOrEnd, Key, Nothing, Value};
        match (self.expected, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => Ok(Step::Inner),
            (FirstKeyOrEnd, b'}') | (FirstValueOrEnd, b']') => Ok(self.close()),
            (CommaOrEnd, b'}' | b']') if self.closers.last() == Some(&byte) => Ok(self.close()),
            (FirstKeyOrEnd | Key, b'"') => Ok(self.start_string(true)),
            (Colon, b':') => {
                self.expected = Value;
                Ok(Step::Inner)
            }
            (CommaOrEnd, b',') => {
                self.expected = if self.closers.last() == Some(&b'}') { Key } else { Value };
                Ok(Step::Inner)
            }
            (Value | FirstValueOrEnd, _) => self.start_value(byte),
            (FirstKeyOrEnd | Key | Colon | CommaOrEnd | Nothing, _) => Err(NoJson),
        }
    }

    fn start_value(&mut self, byte: u8) -> Result<Step, NoJson> {
        self.token = match byte {
            b'{' => return self.open(b'}', Expected::FirstKeyOrEnd),
            b'[' => return self.open(b']', Expected::FirstValueOrEnd),
            b'"' => return Ok(self.start_string(false)),
            b't' => Token::Literal(b"rue"),
            b'f' => Token::Literal(b"alse"),
            b'n' => Token::Literal(b"ull"),
            b'-' => Token::Number(Number::Minus),
            b'0' => Token::Number(Number::Zero),
            b'1'..=b'9' => Token::Number(Number::Digits),
            _ => return Err(NoJson),
        };
        Ok(Step::Scalar)
    }

    fn start_string(&mut self, is_key: bool) -> Step {
        self.token = Token::String;
        self.is_key = is_key;
        Step::StringStart
    }

    fn open(&mut self, closer: u8, expected: Expected) -> Result<Step, NoJson> {
        if self.closers.len() == MAX_DEPTH {
            return Err(NoJson);
        }
        self.closers.push(closer);
        self.expected = expected;
        Ok(Step::Open)
    }

    fn close(&mut self) -> Step {
        self.closers.pop();
        self.end_value();
        Step::Close
    }

    fn end_value(&mut self) {
        self.token = Token::None;
        self.expected =
            if self.closers.is_empty() { Expected::Nothing } else { Expected::CommaOrEnd };
    }
}

impl Number {
    fn next(self, byte: u8) -> Option<Number> {
        use Number::{
            Digits, Exponent, ExponentDigits, ExponentSign, Fraction, Minus, Point, Zero,
        };
        match (self, byte) {
            (Minus, b'0') => Some(Zero),
            (Minus, b'1'..=b'9') | (Digits, b'0'..=b'9') => Some(Digits),
            (Zero | Digits, b'.') => Some(Point),
            (Point | Fraction, b'0'..=b'9') => Some(Fraction),
            (Zero | Digits | Fraction, b'e' | b'E') => Some(Exponent),
            (Exponent, b'+' | b'-') => Some(ExponentSign),
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => Some(ExponentDigits),
            _ => None,
        }
    }

    fn may_end(self) -> bool {
        matches!(self, Number::Zero | Number::Digits | Number::Fraction | Number::ExponentDigits)
    }
}

/// Makes JSON of a text that the scanner has taken: escapes what its strings should have escaped.
#[derive(Debug, Clone, Default)]
pub(super) struct Mender {
    is_in_string: bool,
    /// An escape sequence that is not complete.
    escape: String,
}

impl Mender {
    /// Returns the next piece of JSON. An escape sequence is held until it is complete.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut mended = String::with_capacity(text.len());
        for char in text.chars() {
            if !self.escape.is_empty() && self.take_escaped(char, &mut mended) {
                continue;
            }
            match char {
                '\\' if self.is_in_string => self.escape.push(char),
                '\0'..' ' if self.is_in_string => push_control(char, &mut mended),
                _ => {
                    self.is_in_string ^= char == '"';
                    mended.push(char);
                }
            }
        }
        mended
    }

    /// Takes a character after a backslash. Returns false if the character is not part of an escape
    /// sequence; the backslash is then escaped.
    fn take_escaped(&mut self, char: char, mended: &mut String) -> bool {
        let is_unicode = self.escape.len() > 1;
        let is_part =
            if is_unicode { char.is_ascii_hexdigit() } else { "\"\\/bfnrtu".contains(char) };
        if is_part {
            self.escape.push(char);
        } else {
            self.escape.insert(0, '\\');
        }
        let is_complete = !is_part || self.escape.len() == if is_unicode { 6 } else { 2 };
        if is_complete && self.escape != "\\u" {
            mended.push_str(&self.escape);
            self.escape.clear();
        }
        is_part
    }
}

fn push_control(char: char, mended: &mut String) {
    match char {
        '\n' => mended.push_str("\\n"),
        '\r' => mended.push_str("\\r"),
        '\t' => mended.push_str("\\t"),
        _ => mended.push_str(&format!("\\u{:04x}", u32::from(char))),
    }
}

/// Whether the text is one JSON object, perhaps with strings that [`Mender`] must mend.
pub(super) fn is_object(text: &str) -> bool {
    let mut scanner = Scanner::new();
    text.trim_start().starts_with('{')
        && text.bytes().all(|byte| scanner.push(byte).is_ok())
        && scanner.is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::IgnoredAny;

    /// serde_json must agree on whether the mended text is one object. JSON needs no mending.
    fn check(text: &str) {
        let mended = Mender::default().push(text);
        let is_json = |text| serde_json::from_str::<IgnoredAny>(text).is_ok();
        let expected = text.trim_start().starts_with('{') && is_json(&mended);
        assert_eq!(is_object(text), expected, "{text:?}");
        if is_object(text) && is_json(text) {
            assert_eq!(mended, text);
        }
    }

    #[test]
    fn mends_strings() {
        fn check(text: &str, expected: &str) {
            assert_eq!(Mender::default().push(text), expected);
            let mut mender = Mender::default();
            let pieces = text.split_inclusive(|_: char| true).map(|piece| mender.push(piece));
            assert_eq!(pieces.collect::<String>(), expected, "{text:?} in characters");
            assert!(is_object(text), "{text:?}");
        }
        check("{\n\t\"a\": \"b\nc\td\re\u{1}\"}", "{\n\t\"a\": \"b\\nc\\td\\re\\u0001\"}");
        check(r#"{"a": "\d\w \. \é"}"#, r#"{"a": "\\d\\w \\. \\é"}"#);
        check(r#"{"a": "\\d \" \/ \n \u00e9"}"#, r#"{"a": "\\d \" \/ \n \u00e9"}"#);
        check(r#"{"a": "\u12", "b": "\users\n"}"#, r#"{"a": "\\u12", "b": "\\users\n"}"#);
        check(r#"{"a": "\u1\\"}"#, r#"{"a": "\\u1\\"}"#);
        check("{\"a\": \"b\\\nc\"}", r#"{"a": "b\\\nc"}"#);
    }

    #[test]
    fn objects_are_those_of_serde_json() {
        for value in [
            "1",
            "-0",
            "-",
            "01",
            "1.",
            "1.5",
            ".5",
            "1e5",
            "1e",
            "1e+",
            "1E-07",
            "-1.5e+3",
            "1e5x",
            "true",
            "tru",
            "truee",
            "nul",
            "null",
            r#""""#,
            r#""\u12aB""#,
            r#""\u12""#,
            r#""\x""#,
            "\"a\nb\"",
            r#""é\n\"""#,
            "[]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[1, [2], {}]",
            "{,}",
            "[}",
            "{\"a\"}",
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":1 "b":2}"#,
            "'a'",
            "NaN",
        ] {
            check(&format!("{{\"key\": {value}}}"));
            check(&format!(" {{\"key\":[{value} , {value}]\n}} "));
            check(value);
        }
        check("{}{}");
        check("{} x");
        check("");
    }

    #[test]
    fn objects_may_be_as_deep_as_serde_json_reads_them() {
        for depth in [126, 127, 128, 129] {
            let text = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
            let expected = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            assert_eq!(is_object(&text), expected, "{depth}");
        }
    }

    #[test]
    fn objects_with_a_byte_changed_are_those_of_serde_json() {
        let text = r#"{"a": [1.5e-3, true, "x\n\u0041"], "b": {"c": null, "d": [[], {}]}}"#;
        for position in 0..text.len() {
            for byte in *br#"{}[]",:\0-.eEtx u"# {
                let mut bytes = text.as_bytes().to_vec();
                bytes[position] = byte;
                check(std::str::from_utf8(&bytes).expect("ASCII"));
            }
            check(&text[..position]);
        }
    }
}
