//! Parses large bodies on threads that may block, a few at a time: a body of 28 MB with a million
//! messages takes most of a second and ten times its size in memory.

use std::panic;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The most bytes that are parsed at once on a worker of the runtime, which takes about as long as
/// handing them over.
const MAX_SMALL_BYTES: usize = 256 << 10;
/// How many large bodies are parsed at the same time.
const MAX_LARGE: usize = 2;

/// Parses the bodies of requests.
#[derive(Debug)]
pub(crate) struct Parser {
    large: Arc<Semaphore>,
}

impl Parser {
    pub(crate) fn new() -> Self {
        Parser { large: Arc::new(Semaphore::new(MAX_LARGE)) }
    }

    /// Runs `parse`, which reads a body of `num_bytes`. If that is large, other requests are
    /// answered meanwhile.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        num_bytes: usize,
        parse: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if num_bytes <= MAX_SMALL_BYTES {
            return parse();
        }
        // The semaphore is never closed. The permit belongs to the thread, which continues without
        // its request.
        let permit = self.large.clone().acquire_owned().await;
        let parsed = spawn_blocking(move || {
            let _permit = permit;
            parse()
        });
        match parsed.await.map_err(|error| error.try_into_panic()) {
            Ok(parsed) => parsed,
            Err(Ok(panicked)) => panic::resume_unwind(panicked),
            // The runtime ends, and this request with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::sync::mpsc;

    use futures_util::future::{join, join_all};

    use super::*;

    #[tokio::test]
    async fn parses_small_bodies_while_large_ones_wait() {
        let parser = Parser::new();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(std::sync::Mutex::new(released));
        let large = join_all((0..3 * MAX_LARGE).map(|number| {
            let released = released.clone();
            parser.run(MAX_SMALL_BYTES + 1, move || {
                // Waits until the sender is dropped.
                let _ = released.lock().unwrap().recv();
                number
            })
        }));
        let small = async {
            let small = parser.run(MAX_SMALL_BYTES, || "small").await;
            drop(release);
            small
        };
        let (large, small) = join(large, small).await;
        assert_eq!((large.len(), small), (3 * MAX_LARGE, "small"));
    }

    #[tokio::test]
    async fn parses_few_large_bodies_at_once() {
        let parser = Parser::new();
        let running = Arc::new(Semaphore::new(MAX_LARGE));
        let parsed = join_all((0..20).map(|_| {
            let running = running.clone();
            parser.run(usize::MAX, move || {
                running.try_acquire().map(|_| std::thread::yield_now()).is_ok()
            })
        }));
        assert!(parsed.await.into_iter().all(|is_one_of_few| is_one_of_few));
    }
}
