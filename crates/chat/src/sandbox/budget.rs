//! The budget of one rendering, and how much of it values cost.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{MAX_TEXT_BYTES, MAX_WORK_BYTES, Stop};
use crate::limits::TimeLimit;

/// How deep lists and dictionaries may be nested; dropping and printing them recurses.
const MAX_VALUE_DEPTH: usize = 64;
/// Cost of a value apart from its text, roughly in bytes.
const NODE_BYTES: usize = 64;
/// The clock is read after this much work. Every check counts as at least `CHECK_BYTES` of it.
const LOOK_BYTES: usize = 16 << 10;
const CHECK_BYTES: usize = 1 << 10;

/// The remaining budget of one rendering. One thread uses it; it is atomic only because the engine
/// wants its filters to be `Sync`.
#[derive(Debug)]
pub(crate) struct Budget {
    work_bytes: AtomicUsize,
    written_bytes: AtomicUsize,
    /// Work until the clock is read again.
    until_look: AtomicUsize,
    time: TimeLimit,
}

/// Parts of a value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    /// Values, nested ones included.
    pub(super) num_nodes: usize,
    /// Texts that are keys, in bytes. They are hashed whenever a dictionary is built or compared.
    pub(super) key_bytes: usize,
    /// All other texts, in bytes.
    pub(super) text_bytes: usize,
}

impl Size {
    fn node_bytes(self) -> usize {
        self.num_nodes.saturating_mul(NODE_BYTES).saturating_add(self.key_bytes)
    }

    /// The price of comparing the value with another regardless of case, which copies its texts.
    pub(super) fn sort_bytes(self) -> usize {
        (self.node_bytes() / 4).saturating_add(self.text_bytes)
    }
}

impl Budget {
    pub(crate) fn new(time: TimeLimit) -> Budget {
        // Text captured in a variable is written twice, so writing has more room than the finished
        // text.
        Budget {
            work_bytes: AtomicUsize::new(MAX_WORK_BYTES),
            written_bytes: AtomicUsize::new(4 * MAX_TEXT_BYTES),
            until_look: AtomicUsize::new(LOOK_BYTES),
            time,
        }
    }

    /// Takes work from the budget, and looks at the clock now and then.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Error> {
        let left = self.work_bytes.load(Relaxed);
        self.work_bytes.store(left.checked_sub(bytes).ok_or(Stop::TooMuchWork)?, Relaxed);
        let until_look = self.until_look.load(Relaxed);
        match until_look.checked_sub(bytes.saturating_add(CHECK_BYTES)) {
            Some(left) => self.until_look.store(left, Relaxed),
            None => {
                self.until_look.store(LOOK_BYTES, Relaxed);
                self.time.check()?;
            }
        }
        Ok(())
    }

    /// Allows for a text of this length, which may be built.
    pub(super) fn limit(&self, bytes: Option<usize>) -> Result<usize, Error> {
        Ok(bytes.filter(|bytes| *bytes <= MAX_TEXT_BYTES).ok_or(Stop::TextTooLong)?)
    }

    /// Allows for a text of this length, and takes the work of building it.
    pub(super) fn text(&self, bytes: Option<usize>) -> Result<(), Error> {
        self.take(self.limit(bytes)?)
    }

    pub(super) fn written(&self, bytes: usize) -> Result<(), Error> {
        let left = self.written_bytes.load(Relaxed);
        self.written_bytes.store(left.checked_sub(bytes).ok_or(Stop::TextTooLong)?, Relaxed);
        self.take(0)
    }

    /// Allows for a value to be read from end to end, with all its texts.
    pub(crate) fn read(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.take(text.len()),
            None => {
                let size = self.size(value)?;
                self.take(size.text_bytes)
            }
        }
    }

    /// Allows for a container to be gone through. The texts in it are passed on, not read: they count
    /// for a sixteenth.
    pub(crate) fn walk(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.take(text.len()),
            None => {
                let size = self.size(value)?;
                self.take(size.text_bytes / 16)
            }
        }
    }

    /// Measures a value and takes the work of going through it and its keys, but not through its other
    /// texts. Fails if it is nested too deeply or contains itself.
    pub(super) fn size(&self, value: &Value) -> Result<Size, Error> {
        let mut size = Size::default();
        self.add_size(value, 0, &mut size)?;
        Ok(size)
    }

    fn add_size(&self, value: &Value, depth: usize, size: &mut Size) -> Result<(), Error> {
        if depth > MAX_VALUE_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "values are nested too deeply"));
        }
        self.take(NODE_BYTES)?;
        size.num_nodes += 1;
        if let Some(text) = value.as_str() {
            size.text_bytes = size.text_bytes.saturating_add(text.len());
            return Ok(());
        }
        match value.kind() {
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
                for (key, value) in pairs.into_iter().flatten() {
                    let mut key_size = Size::default();
                    self.add_size(&key, depth + 1, &mut key_size)?;
                    self.take(key_size.text_bytes)?;
                    size.num_nodes += key_size.num_nodes;
                    size.key_bytes += key_size.key_bytes.saturating_add(key_size.text_bytes);
                    self.add_size(&value, depth + 1, size)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add_size(&item, depth + 1, size)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How long a value is when written as text, counting no further than is allowed.
    pub(crate) fn displayed_bytes(&self, value: &Value) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        self.read(value)?;
        let mut length = Length(0);
        write!(length, "{value}").map_err(|_| Stop::TextTooLong)?;
        Ok(length.0)
    }

    /// Accounts for a value that was produced. Lazy sequences become lists, for they would wrap each
    /// other without end.
    pub(crate) fn made(&self, value: Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            self.text(Some(text.len()))?;
            return Ok(value);
        }
        let is_list = value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some();
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !is_list {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                self.take(size_of::<Value>())?;
                items.push(item?);
            }
            let list = Value::from(items);
            self.walk(&list)?;
            return Ok(list);
        }
        self.walk(&value)?;
        Ok(value)
    }
}

struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        if self.0 > MAX_TEXT_BYTES { Err(fmt::Error) } else { Ok(()) }
    }
}
