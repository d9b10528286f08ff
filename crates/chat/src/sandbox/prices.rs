//! Prices of operations: each takes as much work from the budget as the values that it touches are
//! long, before it runs.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::borrow::Cow;

use super::budget::Budget;

/// Each item of a list for which nothing is read, in bytes.
const ITEM_BYTES: usize = 16;
/// Each byte of a path such as `function.name`, which is split and followed for every item.
const PATH_BYTES: usize = 16;
/// The most names of a namespace that is built at once. Whether it is empty takes time for each.
const MAX_NAMES: usize = 1_000;

/// The price of comparing two values in any way.
pub(super) fn compare(budget: &Budget, a: &Value, b: &Value) -> Result<(), Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return budget.take(a.len().min(b.len()));
    }
    // A container is never equal to anything else.
    if is_container(a) && is_container(b) {
        let (a, b) = (budget.size(a)?, budget.size(b)?);
        return budget.take(a.text_bytes.min(b.text_bytes));
    }
    budget.take(0)
}

/// The price of a comparison that may be `in`.
pub(super) fn compare_any(budget: &Budget, a: &Value, b: &Value) -> Result<(), Error> {
    compare(budget, a, b)?;
    contain(budget, a, b)
}

/// The price of looking for an item in a text, list or dictionary.
pub(super) fn contain(budget: &Budget, item: &Value, container: &Value) -> Result<(), Error> {
    if let Some(text) = container.as_str() {
        return budget.take(text.len().saturating_add(budget.displayed_bytes(item)?));
    }
    let item = budget.size(item)?;
    match container.kind() {
        // Its keys are not gone through.
        ValueKind::Map => budget.take(item.text_bytes),
        ValueKind::Seq | ValueKind::Iterable => {
            let size = budget.size(container)?;
            let num_items = container.len().unwrap_or(size.num_nodes);
            budget.take(size.text_bytes.min(num_items.saturating_mul(item.text_bytes)))
        }
        _ => Ok(()),
    }
}

/// The price of `container[key]`.
pub(super) fn look_up(budget: &Budget, container: &Value, key: &Value) -> Result<(), Error> {
    if let Some(text) = container.as_str() {
        // Letters are counted from the start, and first from the end for a negative index.
        return budget.take(match key.as_i64() {
            Some(index @ 0..) => text.len().min((index as usize).saturating_mul(4)),
            Some(_) => 2 * text.len(),
            None => 0,
        });
    }
    match container.kind() {
        ValueKind::Map => budget.read(key),
        ValueKind::Iterable => go_through(budget, container),
        _ => budget.take(0),
    }
}

/// The price of a slice, or of a loop that may end at once: a text's letters are counted.
pub(super) fn go_through(budget: &Budget, value: &Value) -> Result<(), Error> {
    budget.take(match value.as_str() {
        Some(text) => 2 * text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ITEM_BYTES),
    })
}

/// The price of `~`: both sides become one text.
pub(super) fn concatenate(budget: &Budget, left: &Value, right: &Value) -> Result<(), Error> {
    let bytes = budget.displayed_bytes(left)?.checked_add(budget.displayed_bytes(right)?);
    budget.limit(bytes).map(drop)
}

/// The price of `+`, where the result is a text.
pub(super) fn add(budget: &Budget, left: &Value, right: &Value) -> Result<(), Error> {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => budget.limit(left.len().checked_add(right.len())).map(drop),
        _ => budget.take(0),
    }
}

/// The price of a repetition with `*`.
pub(super) fn repeat(budget: &Budget, left: &Value, right: &Value) -> Result<(), Error> {
    for (repeated, times) in [(left, right), (right, left)] {
        let length = match repeated.as_str() {
            Some(text) => Some(text.len()),
            None => repeated.len().and_then(|length| length.checked_mul(size_of::<Value>())),
        };
        let (Some(length), Some(times)) = (length, times.as_usize()) else { continue };
        budget.text(length.checked_mul(times))?;
    }
    Ok(())
}

/// The price of a method of `loop`, which may compare its arguments with the previous call's.
pub(super) fn call_loop(budget: &Budget, is_cycle: bool, args: &[Value]) -> Result<(), Error> {
    // The engine would divide by their number.
    if is_cycle && args.is_empty() {
        return Err(Error::new(ErrorKind::MissingArgument, "loop.cycle has nothing to cycle"));
    }
    args.iter().try_for_each(|arg| budget.read(arg))
}

/// The price of a test.
pub(crate) fn test(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    match (name, args) {
        (
            "boolean" | "defined" | "divisibleby" | "even" | "false" | "float" | "integer"
            | "iterable" | "mapping" | "none" | "number" | "odd" | "sequence" | "string" | "true"
            | "undefined",
            _,
        ) => budget.take(0),
        ("in", [item, container, ..]) => contain(budget, item, container),
        ("startingwith" | "endingwith", _) => show(budget, args),
        (_, [a, b, ..]) => compare(budget, a, b),
        (_, [value]) => budget.read(value),
        _ => Ok(()),
    }
}

/// The price of a function of the environment.
pub(crate) fn function(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    match name {
        "raise_exception" | "strftime_now" => return show(budget, args),
        "namespace" if args.iter().any(|arg| arg.len().is_some_and(|len| len > MAX_NAMES)) => {
            let what = format!("a namespace takes at most {MAX_NAMES} names at once");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        _ => {}
    }
    args.iter().try_for_each(|arg| budget.walk(arg))
}

/// The price of one of Python's methods. Refuses one whose result would be too long.
pub(crate) fn method(
    budget: &Budget,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<(), Error> {
    match (name, value.kind()) {
        ("get", ValueKind::Map) => match args.first() {
            Some(key) => look_up(budget, value, key),
            None => Ok(()),
        },
        // Lazy; their result is made into a list.
        ("keys" | "values" | "items", _) => Ok(()),
        ("count", ValueKind::Seq) => match args.first() {
            Some(item) => contain(budget, item, value),
            None => Ok(()),
        },
        _ => {
            budget.walk(value)?;
            args.iter().try_for_each(|arg| budget.read(arg))?;
            match (name, args) {
                ("strip" | "lstrip" | "rstrip", [letters, ..]) => strip(budget, value, letters),
                ("replace", [old, new, ..]) => replace(budget, value, old, new),
                // The separator is the value.
                ("join", [items, ..]) => join(budget, items, Some(value)),
                ("format", _) => format(budget, value, args),
                _ => Ok(()),
            }
        }
    }
}

/// The price of a filter, without what its result costs. Refuses one whose result would be too long.
pub(crate) fn filter(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    match (name, args) {
        // These pass on what they are given.
        ("abs" | "bool" | "d" | "default" | "first" | "last" | "round", _) => budget.take(0),
        ("count" | "length", [value, ..]) => match value.as_str() {
            Some(text) => budget.take(text.len()),
            None => budget.take(0),
        },
        ("attr", [value, key, ..]) => look_up(budget, value, key),
        ("items", [value, ..]) => budget.walk(value),
        ("list" | "reverse", [value, ..]) => match value.as_str() {
            Some(text) => budget.take(text.len().saturating_mul(size_of::<Value>())),
            None => budget.walk(value),
        },
        ("map" | "reject" | "rejectattr" | "select" | "selectattr", [items, rest @ ..]) => {
            follow(budget, items, rest)
        }
        ("dictsort" | "max" | "min" | "sort" | "unique", [items, rest @ ..]) => {
            follow(budget, items, rest)?;
            sort(budget, items)
        }
        ("join", [items, rest @ ..]) => {
            let names = match rest {
                [separator, names @ ..] if !separator.is_kwargs() => names,
                names => names,
            };
            follow(budget, items, names)?;
            join(budget, items, rest.first())
        }
        ("tojson", _) => args.iter().try_for_each(|arg| budget.read(arg)),
        // All others take texts, and turn other values into texts.
        _ => {
            show(budget, args)?;
            match (name, args) {
                ("format", [pattern, rest @ ..]) => format(budget, pattern, rest),
                ("indent", [text, rest @ ..]) => indent(budget, text, rest),
                ("replace", [text, old, new, ..]) => replace(budget, text, old, new),
                ("trim", [text, letters, ..]) => strip(budget, text, letters),
                _ => Ok(()),
            }
        }
    }
}

/// Allows for values to be read as texts.
fn show(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|arg| budget.text(Some(budget.displayed_bytes(arg)?)))
}

/// Allows for a path, or the name of a test or filter, to be followed for every item: the first argument
/// and all keywords. Further arguments go to a test or filter, which has a price of its own.
fn follow(budget: &Budget, items: &Value, rest: &[Value]) -> Result<(), Error> {
    budget.walk(items)?;
    let mut path_bytes = 0usize;
    let mut has_index = false;
    for (index, arg) in rest.iter().enumerate() {
        if index == 0 || arg.is_kwargs() {
            path_bytes = path_bytes.saturating_add(budget.displayed_bytes(arg)?);
            has_index |= arg.to_string().contains(|letter: char| letter.is_ascii_digit());
        }
    }
    // An index counts the letters of a text.
    if has_index {
        budget.read(items)?;
    }
    let num_items = match items.as_str() {
        Some(text) => text.len(),
        None => items.len().unwrap_or(0),
    };
    budget.take(num_items.saturating_mul(path_bytes.saturating_mul(PATH_BYTES)))
}

/// Allows for items to be sorted. Each comparison may copy the longest of them, because case is
/// ignored.
fn sort(budget: &Budget, items: &Value) -> Result<(), Error> {
    let Ok(iterator) = items.try_iter() else { return Ok(()) };
    let (mut num_items, mut longest) = (0usize, 0);
    for item in iterator {
        // A dictionary's items are its keys, and may be sorted by their values.
        let mut bytes = budget.size(&item)?.sort_bytes();
        if items.kind() == ValueKind::Map {
            bytes += budget.size(&items.get_item(&item)?)?.sort_bytes();
        }
        num_items += 1;
        longest = longest.max(bytes);
    }
    let num_levels = num_items.checked_ilog2().map_or(0, |levels| levels as usize + 1);
    budget.take(num_items.saturating_mul(num_levels).saturating_mul(longest))
}

/// A value as a text, which is allowed for.
fn text_of<'a>(budget: &Budget, value: &'a Value) -> Result<Cow<'a, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    budget.limit(Some(budget.displayed_bytes(value)?))?;
    Ok(Cow::Owned(value.to_string()))
}

/// Allows for letters to be taken off both ends of a text: each is looked for in the list of letters.
fn strip(budget: &Budget, text: &Value, letters: &Value) -> Result<(), Error> {
    if letters.is_none() || letters.is_undefined() {
        return Ok(());
    }
    let num_letters = text_of(budget, letters)?.chars().count();
    budget.take(text_of(budget, text)?.len().saturating_mul(num_letters))
}

fn replace(budget: &Budget, text: &Value, old: &Value, new: &Value) -> Result<(), Error> {
    let (text, old, new) = (text_of(budget, text)?, text_of(budget, old)?, text_of(budget, new)?);
    let added = text.matches(&*old).count().checked_mul(new.len());
    budget.text(added.and_then(|added| added.checked_add(text.len())))
}

fn join(budget: &Budget, items: &Value, separator: Option<&Value>) -> Result<(), Error> {
    let separator = separator.map_or(Ok(0), |separator| budget.displayed_bytes(separator))?;
    let mut bytes = 0usize;
    if let Ok(items) = items.try_iter() {
        for item in items {
            bytes = bytes.saturating_add(separator).saturating_add(budget.displayed_bytes(&item)?);
            budget.limit(Some(bytes))?;
        }
    }
    budget.text(Some(bytes))
}

fn indent(budget: &Budget, text: &Value, rest: &[Value]) -> Result<(), Error> {
    // The width may be an argument or a keyword.
    let named = rest
        .iter()
        .filter(|arg| arg.kind() == ValueKind::Map)
        .filter_map(|arg| arg.get_attr("width").ok()?.as_usize());
    let width = rest.iter().filter_map(Value::as_usize).chain(named).max().unwrap_or(4);
    let text = text_of(budget, text)?;
    let added = (text.matches('\n').count() + 1).checked_mul(width);
    budget.text(added.and_then(|added| added.checked_add(text.len())))
}

fn format(budget: &Budget, pattern: &Value, rest: &[Value]) -> Result<(), Error> {
    let pattern = pattern.as_str().unwrap_or_default();
    let mut argument_bytes = 0usize;
    for argument in rest {
        argument_bytes = argument_bytes.saturating_add(budget.displayed_bytes(argument)?);
    }
    let fields = pattern.matches(['%', '{']).count();
    // A field is as long as its argument or its width; a number has at most 309 digits and a
    // precision.
    let field_bytes = argument_bytes.saturating_add(309).saturating_add(longest_number(pattern));
    budget
        .text(fields.checked_mul(field_bytes).and_then(|added| added.checked_add(pattern.len())))?;
    if pattern.contains('*') && pattern.contains('%') || pattern.contains(":{") {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a format's width cannot be an argument here",
        ));
    }
    Ok(())
}

/// The largest number written in a text.
fn longest_number(text: &str) -> usize {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).max().unwrap_or(0)
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable | ValueKind::Plain)
}
