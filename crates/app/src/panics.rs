//! Logs panics: where, on which thread and why, but no text that a person may have written.
//!
//! The task or engine thread in which a panic happens catches it, so that it ends one answer and
//! not the app. Its message goes to standard error, which no one sees if the app was opened by a
//! click.

use std::panic::{self, PanicHookInfo};

/// Longer messages are cut after this many characters.
const MAX_CHARS: usize = 300;

/// Logs every panic from here on, then runs the hook that was set before. Call it once, after the
/// log is set up.
pub fn log_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        log(info);
        before(info);
    }));
}

fn log(info: &PanicHookInfo<'_>) {
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let message = info.payload_as_str().map_or("", without_quotes);
    tracing::error!("a panic at {place}, thread {thread}: {message}");
}

/// Returns the first line of a message up to its first quotation mark. Messages quote what a person
/// may have written: a slice its whole text, a wrong value its content, an error the file's
/// content.
fn without_quotes(message: &str) -> &str {
    let quotes = ['"', '\'', '`', '“', '”', '„', '‘', '’', '‚', '«', '»', '‹', '›', '\n'];
    let end = message.find(quotes).unwrap_or(message.len());
    let most = message.char_indices().nth(MAX_CHARS).map_or(message.len(), |(index, _)| index);
    message[..end.min(most)].trim_end()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn cuts_messages_before_quoted_text() {
        fn check(message: &str, expected: &str) {
            assert_eq!(without_quotes(message), expected, "{message:?}");
        }
        check("", "");
        check(
            "index out of bounds: the len is 3 but the index is 5",
            "index out of bounds: the len is 3 but the index is 5",
        );
        check(
            "byte index 1 is not a char boundary; it is inside 'é' (bytes 0..2) of `é secret`",
            "byte index 1 is not a char boundary; it is inside",
        );
        check("called `Result::unwrap()` on an `Err` value: Parse(\"secret\")", "called");
        check("no “secret”", "no");
        check("first\nsecret", "first");
        check(&"x".repeat(1_000), &"x".repeat(MAX_CHARS));
        check(&"ü".repeat(1_000), &"ü".repeat(MAX_CHARS));
    }

    /// Lines that are logged on this thread.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn logs_place_thread_and_reason_of_panic() {
        let lines = Lines::default();
        let writer = lines.clone();
        // The hook stays for the whole process. Lines from other tests have no subscriber.
        log_panics();
        let panics = move || {
            let to_lines = tracing_subscriber::fmt().with_ansi(false);
            let to_lines = to_lines.with_writer(move || writer.clone()).finish();
            tracing::subscriber::with_default(to_lines, || {
                let text = "é of a person";
                let end = text.len() - 13;
                let _ = std::hint::black_box(&text[..end]);
            });
        };
        let thread = std::thread::Builder::new().name("cairn-test".to_owned()).spawn(panics);
        assert!(thread.expect("a thread").join().is_err(), "it panics");
        let logged = String::from_utf8(lines.0.lock().expect("no panic").clone()).expect("a text");
        for expected in ["ERROR", "panics.rs:", "thread cairn-test", "char boundary"] {
            assert!(logged.contains(expected), "{expected:?} is missing: {logged}");
        }
        assert!(!logged.contains("person"), "{logged}");
    }
}
