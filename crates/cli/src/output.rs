//! Terminal input and output that the commands share: results, errors, questions, progress.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_formats::printable;
use indicatif::{ProgressBar, ProgressStyle};

/// Prints a note to stderr, as `eprintln!` does, by the rules of [`shown`].
macro_rules! note {
    ($($text:tt)*) => { $crate::output::print_note(format_args!($($text)*)) };
}
pub(crate) use note;

/// Prints `cairn: what failed: why` on one line, for a program that ends with it.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(report(error))
}

/// Prints `cairn: what failed: why` on one line and returns the exit status.
pub fn report(error: &anyhow::Error) -> u8 {
    let is_closed_pipe = |cause: &(dyn Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(is_closed_pipe) {
        // The reader of a pipe has closed it, as in `cairn … | head`.
        return 0;
    }
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Some errors' messages already name their cause.
        if !line.contains(&cause) {
            line += if line.is_empty() { "" } else { ": " };
            line += &cause;
        }
    }
    note!("cairn: {}", line.replace('\n', " "));
    if error.is::<Usage>() { 2 } else { 1 }
}

/// Wrong usage that clap cannot see; ends the program with exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Error for Usage {}

/// Prints a note and a newline to stderr. A program whose stderr is closed runs on without it.
pub fn print_note(text: impl Display) {
    ask(format_args!("{text}\n"));
}

/// Prints a question to stderr, whose answer follows on the same line.
pub fn ask(text: impl Display) {
    let mut stderr = std::io::stderr().lock();
    let is_terminal = stderr.is_terminal();
    let _ = stderr.write_all(shown(&text.to_string(), is_terminal).as_bytes());
}

/// Returns a text as it is printed: unchanged, or for a terminal only what can be shown. Names,
/// errors and answers may contain control sequences from a file's author or a model.
fn shown(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal { printable(text) } else { Cow::Borrowed(text) }
}

/// Prints a result and a newline. Unlike `println!` it returns an error instead of panicking when
/// the reader of a pipe has closed it.
pub fn line(result: impl Display) -> Result<()> {
    text(format_args!("{result}\n"))
}

/// Prints a part of a result and flushes it.
pub fn text(part: impl Display) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let part = part.to_string();
    let part = shown(&part, stdout.is_terminal());
    let written = stdout.write_all(part.as_bytes()).and_then(|()| stdout.flush());
    written.context("cannot write to stdout")
}

/// The prompt given on the command line, or all of stdin where that is `-`. It must not be empty.
pub fn text_or_stdin(text: String) -> Result<String> {
    let text =
        if text == "-" { stdin().context("cannot read the prompt from stdin")? } else { text };
    ensure!(!text.is_empty(), "the prompt is empty");
    Ok(text)
}

/// Fails if a file could not be written to `path`. Commands call it before a long computation.
pub fn check_writable(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        let problem = "- is not stdout here: name a file, or ./- for one of that name";
        return Err(Usage(problem.to_owned()).into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("cannot write {}: there is no folder {}", path.display(), folder.display());
    }
    ensure!(!path.is_dir(), "cannot write {}: it is a folder", path.display());
    Ok(cairn_lm::cache::check_writable(path)?)
}

/// Asks a yes-or-no question on the terminal; anything but `y` or `yes` means no.
pub fn confirm(question: &str) -> Result<bool> {
    ask(format_args!("{question} [y/N] "));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read from the terminal")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// A number of bytes for people to read.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.0} kB", bytes / 1e3),
        bytes => format!("{bytes} B"),
    }
}

/// All of stdin.
pub fn stdin() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// A spinner with a message; hidden where stderr is not a terminal.
pub fn spinner(message: String) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message(printable(&message).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A progress bar; hidden where stderr is not a terminal.
pub fn bar(total: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_for_a_terminal_and_not_for_a_pipe() {
        let pieces = ["\x1b", "]0;title", "\x07 \u{202e}gnp"];
        let all = |is_terminal| -> String {
            pieces.map(|piece| shown(piece, is_terminal).into_owned()).concat()
        };
        assert_eq!(all(false), pieces.concat());
        assert_eq!(all(true), "\\u{1b}]0;title\\u{7} \\u{202e}gnp");
    }
}
