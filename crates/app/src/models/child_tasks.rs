//! What a process of the app's own program is asked to do: `check_child`, or `measure_child`.

use std::ffi::OsString;
use std::process::ExitCode;

use super::{check_child, measure_child};

/// Does what the app asks of a process of its own, if these arguments of the process, its name
/// first, ask for it, and returns the exit status. A program that opens an [`crate::App`] calls it
/// before all else, because the app starts that program again.
pub fn run_child_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let arguments: Vec<OsString> = arguments.into_iter().skip(1).collect();
    check_child::run_if_asked(&arguments).or_else(|| measure_child::run_if_asked(&arguments))
}
