//! The filters, tests, functions and methods that templates may use, with Python's behaviour where
//! the engine's differs.

use crate::Date;
use crate::python_json::to_json;
use crate::sandbox::{Budget, Stop};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use std::sync::Arc;

/// Fills an empty environment. What is not listed here does not exist for templates.
pub(crate) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>, today: Option<Date>) {
    add_filters(env, budget);
    add_tests(env);
    add_functions(env, today);
    add_methods(env, budget);
}

/// The engine's own filters, of which every call is checked.
fn checked_filters() -> [(&'static str, Value); 38] {
    [
        ("abs", Value::from_function(filters::abs)),
        ("attr", Value::from_function(filters::attr)),
        ("bool", Value::from_function(filters::bool)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("count", Value::from_function(filters::length)),
        ("d", Value::from_function(filters::default)),
        ("default", Value::from_function(filters::default)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("first", Value::from_function(filters::first)),
        ("float", Value::from_function(filters::float)),
        ("format", Value::from_function(filters::format)),
        ("indent", Value::from_function(filters::indent)),
        ("int", Value::from_function(filters::int)),
        ("items", Value::from_function(filters::items)),
        ("join", Value::from_function(filters::join)),
        ("last", Value::from_function(filters::last)),
        ("length", Value::from_function(filters::length)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("replace", Value::from_function(filters::replace)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("string", Value::from_function(filters::string)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ]
}

fn add_filters(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    for (name, filter) in checked_filters() {
        let budget = budget.clone();
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            check(&budget, name, &args)?;
            filter.call(state, &args)
        });
    }
    let b = budget.clone();
    env.add_filter("tojson", move |value: Value, ensure_ascii: Option<bool>, kwargs: Kwargs| {
        b.read(&value)?;
        to_json(&value, ensure_ascii, &kwargs)
    });
}

fn add_tests(env: &mut Environment<'_>) {
    env.add_test("boolean", tests::is_boolean);
    env.add_test("defined", tests::is_defined);
    env.add_test("divisibleby", tests::is_divisibleby);
    env.add_test("endingwith", tests::is_endingwith);
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, tests::is_eq);
    }
    env.add_test("even", tests::is_even);
    env.add_test("false", tests::is_false);
    env.add_test("float", tests::is_float);
    for name in ["ge", ">="] {
        env.add_test(name, tests::is_ge);
    }
    for name in ["gt", "greaterthan", ">"] {
        env.add_test(name, tests::is_gt);
    }
    env.add_test("in", tests::is_in);
    env.add_test("integer", tests::is_integer);
    // Templates test whether `tools` is iterable; here it is none, which Python cannot iterate over.
    env.add_test("iterable", |value: &Value| {
        has_items(value) || value.kind() == ValueKind::Iterable
    });
    for name in ["le", "<="] {
        env.add_test(name, tests::is_le);
    }
    env.add_test("lower", tests::is_lower);
    for name in ["lt", "lessthan", "<"] {
        env.add_test(name, tests::is_lt);
    }
    env.add_test("mapping", tests::is_mapping);
    for name in ["ne", "!="] {
        env.add_test(name, tests::is_ne);
    }
    env.add_test("none", tests::is_none);
    env.add_test("number", tests::is_number);
    env.add_test("odd", tests::is_odd);
    env.add_test("sameas", tests::is_sameas);
    env.add_test("sequence", has_items);
    env.add_test("startingwith", tests::is_startingwith);
    env.add_test("string", tests::is_string);
    env.add_test("true", tests::is_true);
    env.add_test("undefined", tests::is_undefined);
    env.add_test("upper", tests::is_upper);
}

fn add_functions(env: &mut Environment<'_>, today: Option<Date>) {
    env.add_function("dict", functions::dict);
    env.add_function("namespace", functions::namespace);
    env.add_function("range", functions::range);
    env.add_function("raise_exception", |message: String| {
        Err::<Value, Error>(Stop::Refused(message).into())
    });
    if let Some(today) = today {
        env.add_function("strftime_now", move |pattern: String| {
            let unknown = |code| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know the code %{code}"),
                )
            };
            today.format(&pattern).map_err(unknown)
        });
    }
}

/// Python's methods on strings, lists and dictionaries.
fn add_methods(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let b = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        let mut all = vec![value.clone()];
        all.extend_from_slice(args);
        match method {
            // The separator stands first in the method and second in the filter.
            "join" if !args.is_empty() => all.swap(0, 1),
            "get" | "keys" | "values" | "items" => {
                return minijinja_contrib::pycompat::unknown_method_callback(
                    state, value, method, args,
                );
            }
            _ => {}
        }
        check(&b, method, &all)?;
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
}

/// Whether Python can iterate over a value. Jinja's undefined values behave like an empty list.
fn has_items(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
    )
}

/// Refuses calls whose result would be too long, before it is built, and accounts for reading the
/// arguments.
fn check(budget: &Budget, name: &str, args: &[Value]) -> Result<(), Error> {
    // These pass containers on without reading them.
    if !matches!(name, "attr" | "count" | "d" | "default" | "first" | "last" | "length") {
        for arg in args {
            budget.read(arg)?;
        }
    } else if let Some(text) = args.first().and_then(Value::as_str) {
        budget.text(Some(text.len()))?;
    }
    match (name, args) {
        ("replace", [text, old, new, ..]) => check_replace(budget, text, old, new),
        ("join", [items, rest @ ..]) => check_join(budget, items, rest.first()),
        ("indent", [text, rest @ ..]) => check_indent(budget, text, rest),
        ("format", [pattern, rest @ ..]) => check_format(budget, pattern, rest),
        ("string", [value, ..]) => budget.text(Some(budget.displayed_bytes(value)?)),
        _ => Ok(()),
    }
}

fn check_replace(budget: &Budget, text: &Value, old: &Value, new: &Value) -> Result<(), Error> {
    let (Some(text), Some(old), Some(new)) = (text.as_str(), old.as_str(), new.as_str()) else {
        return Ok(());
    };
    let added = text.matches(old).count().checked_mul(new.len());
    budget.text(added.and_then(|added| added.checked_add(text.len())))
}

fn check_join(budget: &Budget, items: &Value, separator: Option<&Value>) -> Result<(), Error> {
    let separator = separator.map_or(Ok(0), |separator| budget.displayed_bytes(separator))?;
    let mut bytes = 0usize;
    if let Ok(items) = items.try_iter() {
        for item in items {
            bytes = bytes.saturating_add(separator).saturating_add(budget.displayed_bytes(&item)?);
        }
    }
    budget.text(Some(bytes))
}

fn check_indent(budget: &Budget, text: &Value, rest: &[Value]) -> Result<(), Error> {
    // The width may be an argument or a keyword.
    let named = rest
        .iter()
        .filter(|arg| arg.kind() == ValueKind::Map)
        .filter_map(|arg| arg.get_attr("width").ok()?.as_usize());
    let width = rest.iter().filter_map(Value::as_usize).chain(named).max().unwrap_or(4);
    let text = text.as_str().unwrap_or_default();
    let added = (text.matches('\n').count() + 1).checked_mul(width);
    budget.text(added.and_then(|added| added.checked_add(text.len())))
}

fn check_format(budget: &Budget, pattern: &Value, rest: &[Value]) -> Result<(), Error> {
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
