//! Limits on templates: a budget and a clock for one rendering, and checks inserted into the compiled
//! instructions.
//!
//! The template engine's fuel bounds how many instructions run, but one instruction can double a
//! string, repeat it a million times, count the letters of a long text or print a value that contains
//! itself. So every instruction whose time depends on its operands is surrounded by calls of the checks
//! below, which are filters that templates cannot name; [`weave`] says which. Filters, tests, functions
//! and methods check their arguments themselves, because `map` and `select` call them too.
//!
//! The prices are rough. What they miss is caught by the clock: it is read at every few checks, and no
//! template runs for long without one.

mod budget;
mod prices;
mod source;
mod weave;

use minijinja::value::ValueOrKwargs;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use budget::Budget;
pub(crate) use prices::{filter, function, method, test};
pub(crate) use source::prepare;
pub(crate) use weave::compile;

/// The longest text that a template may write or hold in a variable; no context window is larger.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;
/// Limit of what a rendering may build and read in all, roughly in bytes. An ordinary template touches each
/// message about ten times.
pub(crate) const MAX_WORK_BYTES: usize = 128 << 20;
/// Instructions of one rendering; the checks are counted too and are up to three of four.
pub(crate) const MAX_STEPS: u64 = 2_000_000;

/// The checks, as names of filters.
mod check {
    /// Accounts for a new value.
    pub(super) const MADE: &str = "check:made";
    /// Accounts for keyword arguments that were joined.
    pub(super) const WALK: &str = "check:walk";
    /// Accounts for the arguments of a call that may go through them.
    pub(super) const READ: &str = "check:read";
    /// Reads the clock.
    pub(super) const LOOK: &str = "check:look";
    pub(super) const ITERATE: &str = "check:iterate";
    pub(super) const SLICE: &str = "check:slice";
    pub(super) const LOOK_UP: &str = "check:look_up";
    pub(super) const ADD: &str = "check:add";
    pub(super) const REPEAT: &str = "check:repeat";
    pub(super) const CONCATENATE: &str = "check:concatenate";
    pub(super) const COMPARE: &str = "check:compare";
    pub(super) const COMPARE_ANY: &str = "check:compare_any";
    pub(super) const CONTAIN: &str = "check:contain";
    pub(super) const CYCLE: &str = "check:cycle";
    pub(super) const CHANGED: &str = "check:changed";
}

/// Why a rendering was stopped on purpose; the source of the engine's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    #[error("{0}")]
    Refused(String),
    #[error("text too long")]
    TextTooLong,
    #[error("too much work")]
    TooMuchWork,
    #[error("too much time")]
    TimeOver(Duration),
    #[error("cancelled")]
    Cancelled,
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Error {
        Error::new(ErrorKind::InvalidOperation, stop.to_string()).with_source(stop)
    }
}

/// Charges an operation on two values.
type PriceOfPair = fn(&Budget, &Value, &Value) -> Result<(), Error>;

/// Registers the checks that [`weave`] inserts in an environment, and how values are written.
pub(crate) fn install(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let pass =
        |env: &mut Environment<'_>, name, price: fn(&Budget, &Value) -> Result<(), Error>| {
            let budget = budget.clone();
            // Keyword arguments are a value too.
            env.add_filter(name, move |value: ValueOrKwargs| {
                price(&budget, &value).map(|()| value.into_value())
            });
        };
    pass(env, check::LOOK, |budget, _| budget.take(0));
    pass(env, check::WALK, Budget::walk);
    pass(env, check::READ, Budget::read);
    pass(env, check::ITERATE, prices::go_through);
    pass(env, check::SLICE, |budget, operands| {
        prices::go_through(budget, &operands.get_item_by_index(0)?)
    });
    let pairs: [(_, PriceOfPair); 7] = [
        (check::LOOK_UP, prices::look_up),
        (check::ADD, prices::add),
        (check::REPEAT, prices::repeat),
        (check::CONCATENATE, prices::concatenate),
        (check::COMPARE, prices::compare),
        (check::COMPARE_ANY, prices::compare_any),
        (check::CONTAIN, prices::contain),
    ];
    for (name, price) in pairs {
        let budget = budget.clone();
        env.add_filter(name, move |pair: Value| {
            price(&budget, &pair.get_item_by_index(0)?, &pair.get_item_by_index(1)?)?;
            Ok::<_, Error>(pair)
        });
    }
    for name in [check::CYCLE, check::CHANGED] {
        let budget = budget.clone();
        env.add_filter(name, move |call: Value| {
            // The first is the value that has the method.
            let args: Vec<Value> = call.try_iter()?.skip(1).collect();
            prices::call_loop(&budget, name == check::CYCLE, &args).map(|()| call)
        });
    }
    let b = budget.clone();
    env.add_filter(check::MADE, move |value: ValueOrKwargs| b.made(value.into_value()));
    let b = budget.clone();
    env.set_formatter(move |out: &mut Output, _: &mut State, value: &Value| {
        b.written(b.displayed_bytes(value)?)?;
        Ok(write!(out, "{value}")?)
    });
}
