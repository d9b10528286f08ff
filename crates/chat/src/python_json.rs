//! The filter `tojson`: JSON as Python's `json.dumps` writes it, with the options of transformers'
//! filter.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use crate::sandbox::{MAX_TEXT_BYTES, Stop};

const MAX_INDENT: usize = 16;

/// A value as JSON. Text outside ASCII stays unless `ensure_ascii` is set, which may be a keyword
/// too; the other keywords are `indent` (at most 16), `separators` and `sort_keys`.
pub(crate) fn to_json(
    value: &Value,
    ensure_ascii: Option<bool>,
    kwargs: &Kwargs,
) -> Result<Value, Error> {
    let formatter = PythonFormatter::of(ensure_ascii, kwargs)?;
    let is_sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let mut out = Bounded(Vec::new());
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    let written = if is_sorted {
        serde_json::to_value(value).and_then(|mut json| {
            json.sort_all_objects();
            json.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    if let Err(error) = written {
        return Err(match error.io_error_kind() {
            Some(_) => Stop::TextTooLong.into(),
            None => Error::new(ErrorKind::BadSerialization, error.to_string()),
        });
    }
    String::from_utf8(out.0)
        .map(Value::from)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

struct PythonFormatter {
    is_ascii: bool,
    /// Blanks for each level; none for all on one line.
    indent: Option<usize>,
    /// Between two values, and between a key and its value.
    separators: (String, String),
    /// How many lists and objects are open.
    depth: usize,
    /// Whether the innermost one has a value.
    has_value: bool,
}

impl PythonFormatter {
    fn of(ensure_ascii: Option<bool>, kwargs: &Kwargs) -> Result<Self, Error> {
        let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
        let indent = kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
        let invalid = |message: &'static str| Error::new(ErrorKind::InvalidOperation, message);
        let check = |indent: Value| indent.as_usize().filter(|indent| *indent <= MAX_INDENT);
        let indent = match indent {
            None => None,
            Some(indent) => {
                let indent = check(indent);
                Some(indent.ok_or_else(|| invalid("tojson takes an indent of at most 16"))?)
            }
        };
        let given = kwargs.get::<Option<Value>>("separators")?.filter(|given| !given.is_none());
        let separators = match given {
            // Where each value has a line, nothing stands behind a comma.
            None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
            Some(given) => {
                let texts = given.try_iter()?.map(|text| text.as_str().map(str::to_owned));
                match texts.collect::<Option<Vec<_>>>().as_deref() {
                    Some([item, key]) => (item.clone(), key.clone()),
                    _ => return Err(invalid("tojson takes two texts as separators")),
                }
            }
        };
        let is_ascii = ensure_ascii.or(ascii).unwrap_or(false);
        Ok(PythonFormatter { is_ascii, indent, separators, depth: 0, has_value: false })
    }

    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.has_value = false;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.has_value {
            self.new_line(out)?;
        }
        self.has_value = true;
        out.write_all(bracket)
    }

    fn begin_item<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.separators.0.as_bytes())?;
        }
        self.new_line(out)
    }

    fn new_line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        for _ in 0..self.depth {
            out.write_all(&[b' '; MAX_INDENT][..indent])?;
        }
        Ok(())
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.separators.1.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_value = true;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if !self.is_ascii {
            return out.write_all(text.as_bytes());
        }
        for letter in text.chars() {
            if matches!(letter, ' '..='~') {
                write!(out, "{letter}")?;
            } else {
                // As UTF-16, so that what is beyond its first plane is a pair.
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        match escape {
            CharEscape::Quote => out.write_all(b"\\\""),
            CharEscape::ReverseSolidus => out.write_all(b"\\\\"),
            CharEscape::Solidus => out.write_all(b"/"),
            CharEscape::Backspace => out.write_all(b"\\b"),
            CharEscape::FormFeed => out.write_all(b"\\f"),
            CharEscape::LineFeed => out.write_all(b"\\n"),
            CharEscape::CarriageReturn => out.write_all(b"\\r"),
            CharEscape::Tab => out.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(out, "\\u{byte:04x}"),
        }
    }
}

/// A finite number as Python writes it: the shortest digits that give it back, with an exponent of
/// two digits at least where it is below -4 or above 15.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match exponent {
        -4..=15 if value.fract() == 0.0 => format!("{value:.1}"),
        -4..=15 => value.to_string(),
        ..=-5 => format!("{digits}e-{:02}", -exponent),
        _ => format!("{digits}e+{exponent:02}"),
    }
}

struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn numbers_are_written_as_in_python() {
        let check = |value: f64, expected: &str| assert_eq!(python_float(value), expected);
        check(0.0, "0.0");
        check(-0.0, "-0.0");
        check(2.5, "2.5");
        check(0.0001, "0.0001");
        check(0.000_01, "1e-05");
        check(-1.25e-7, "-1.25e-07");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(1.5e300, "1.5e+300");
    }
}
