//! The filters, tests, functions and methods that templates may use, with Python's behaviour where
//! the engine's differs.

use crate::Date;
use crate::python_json::to_json;
use crate::sandbox::{self, Budget, Stop};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use std::sync::Arc;

/// Fills an empty environment. What is not listed here does not exist for templates.
pub(crate) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>, today: Option<Date>) {
    add_filters(env, budget);
    add_tests(env, budget);
    add_functions(env, budget, today);
    add_methods(env, budget);
}

/// The engine's own filters.
fn engine_filters() -> [(&'static str, Value); 38] {
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
    let to_json = |value: Value, ensure_ascii: Option<bool>, kwargs: Kwargs| {
        to_json(&value, ensure_ascii, &kwargs)
    };
    let own = [("tojson", Value::from_function(to_json))];
    for (name, filter) in engine_filters().into_iter().chain(own) {
        let budget = budget.clone();
        env.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            sandbox::filter(&budget, name, &args)?;
            budget.made(filter.call(state, &args)?)
        });
    }
}

/// The engine's own tests, with their other names.
fn engine_tests() -> [(&'static str, Value); 37] {
    [
        ("boolean", Value::from_function(tests::is_boolean)),
        ("defined", Value::from_function(tests::is_defined)),
        ("divisibleby", Value::from_function(tests::is_divisibleby)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
        ("eq", Value::from_function(tests::is_eq)),
        ("equalto", Value::from_function(tests::is_eq)),
        ("==", Value::from_function(tests::is_eq)),
        ("even", Value::from_function(tests::is_even)),
        ("false", Value::from_function(tests::is_false)),
        ("float", Value::from_function(tests::is_float)),
        ("ge", Value::from_function(tests::is_ge)),
        (">=", Value::from_function(tests::is_ge)),
        ("gt", Value::from_function(tests::is_gt)),
        ("greaterthan", Value::from_function(tests::is_gt)),
        (">", Value::from_function(tests::is_gt)),
        ("in", Value::from_function(tests::is_in)),
        ("integer", Value::from_function(tests::is_integer)),
        // Templates test whether `tools` is iterable; here it is none, which Python cannot iterate
        // over.
        (
            "iterable",
            Value::from_function(|value: &Value| {
                has_items(value) || value.kind() == ValueKind::Iterable
            }),
        ),
        ("le", Value::from_function(tests::is_le)),
        ("<=", Value::from_function(tests::is_le)),
        ("lower", Value::from_function(tests::is_lower)),
        ("lt", Value::from_function(tests::is_lt)),
        ("lessthan", Value::from_function(tests::is_lt)),
        ("<", Value::from_function(tests::is_lt)),
        ("mapping", Value::from_function(tests::is_mapping)),
        ("ne", Value::from_function(tests::is_ne)),
        ("!=", Value::from_function(tests::is_ne)),
        ("none", Value::from_function(tests::is_none)),
        ("number", Value::from_function(tests::is_number)),
        ("odd", Value::from_function(tests::is_odd)),
        ("sameas", Value::from_function(tests::is_sameas)),
        ("sequence", Value::from_function(has_items)),
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("string", Value::from_function(tests::is_string)),
        ("true", Value::from_function(tests::is_true)),
        ("undefined", Value::from_function(tests::is_undefined)),
        ("upper", Value::from_function(tests::is_upper)),
    ]
}

fn add_tests(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    for (name, test) in engine_tests() {
        let budget = budget.clone();
        env.add_test(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            sandbox::test(&budget, name, &args)?;
            test.call(state, &args)
        });
    }
}

fn add_functions(env: &mut Environment<'_>, budget: &Arc<Budget>, today: Option<Date>) {
    let mut functions = vec![
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
        ("range", Value::from_function(functions::range)),
        (
            "raise_exception",
            Value::from_function(|message: String| {
                Err::<Value, Error>(Stop::Refused(message).into())
            }),
        ),
    ];
    if let Some(today) = today {
        let strftime_now = move |pattern: String| {
            let unknown = |code| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know the code %{code}"),
                )
            };
            today.format(&pattern).map_err(unknown)
        };
        functions.push(("strftime_now", Value::from_function(strftime_now)));
    }
    for (name, function) in functions {
        let budget = budget.clone();
        env.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            sandbox::function(&budget, name, &args)?;
            function.call(state, &args)
        });
    }
}

/// Python's methods on strings, lists and dictionaries.
fn add_methods(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let budget = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        sandbox::method(&budget, value, method, args)?;
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
