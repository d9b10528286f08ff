//! When a batch of queries goes: when it is full, or a fixed time after its first query came. Pure:
//! the caller passes the time.

use std::time::{Duration, Instant};

/// Queries that wait to become a batch.
///
/// The deadline counts from the first of them: a steady trickle of others does not move it.
#[derive(Debug)]
pub(super) struct BatchQueue<T> {
    batch_size: usize,
    timeout: Duration,
    waiting: Vec<T>,
    first_came: Option<Instant>,
}

impl<T> BatchQueue<T> {
    /// A batch holds at least one query, whatever `batch_size` is.
    pub(super) fn new(batch_size: usize, timeout: Duration) -> Self {
        BatchQueue { batch_size: batch_size.max(1), timeout, waiting: Vec::new(), first_came: None }
    }

    /// Adds a query, and returns the batch if that fills it.
    pub(super) fn push(&mut self, query: T, now: Instant) -> Option<Vec<T>> {
        self.first_came.get_or_insert(now);
        self.waiting.push(query);
        (self.waiting.len() >= self.batch_size).then(|| self.take())
    }

    /// When the queries that wait go although they fill no batch; `None` if none wait.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.first_came.map(|came| came + self.timeout)
    }

    /// The queries that wait, if their deadline has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<Vec<T>> {
        self.deadline().is_some_and(|deadline| deadline <= now).then(|| self.take())
    }

    /// All that wait.
    pub(super) fn take(&mut self) -> Vec<T> {
        self.first_came = None;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens at a millisecond, and the batch that goes then.
    enum At {
        Comes(u64, char, &'static str),
        Looks(u64, &'static str),
    }
    use At::{Comes, Looks};

    fn check(batch_size: usize, timeout_ms: u64, events: &[At]) {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut queue = BatchQueue::new(batch_size, Duration::from_millis(timeout_ms));
        for event in events {
            let (gone, expected) = match *event {
                Comes(ms, query, expected) => (queue.push(query, at(ms)), expected),
                Looks(ms, expected) => (queue.due(at(ms)), expected),
            };
            assert_eq!(gone.unwrap_or_default().into_iter().collect::<String>(), expected);
        }
    }

    #[test]
    fn a_batch_goes_when_it_is_full_or_its_first_query_has_waited() {
        check(3, 10, &[Comes(0, 'a', ""), Comes(0, 'b', ""), Comes(0, 'c', "abc"), Looks(99, "")]);
        check(3, 10, &[Comes(0, 'a', ""), Looks(9, ""), Looks(10, "a"), Looks(30, "")]);
        // No later query moves the deadline.
        check(9, 10, &[Comes(0, 'a', ""), Comes(9, 'b', ""), Looks(10, "ab"), Looks(19, "")]);
        // The next batch has a deadline of its own.
        check(2, 10, &[Comes(0, 'a', ""), Comes(5, 'b', "ab"), Comes(8, 'c', ""), Looks(17, "")]);
        check(2, 10, &[Comes(8, 'c', ""), Looks(17, ""), Looks(18, "c")]);
        check(1, 10, &[Comes(0, 'a', "a"), Comes(0, 'b', "b")]);
        check(0, 10, &[Comes(0, 'a', "a")]);
        check(3, 0, &[Comes(4, 'a', ""), Looks(4, "a")]);
    }

    #[test]
    fn what_was_taken_waits_no_longer() {
        let now = Instant::now();
        let mut queue = BatchQueue::new(3, Duration::from_millis(1));
        assert_eq!(queue.deadline(), None);
        queue.push('a', now);
        assert_eq!(queue.deadline(), Some(now + Duration::from_millis(1)));
        assert_eq!((queue.take(), queue.deadline()), (vec!['a'], None));
        assert_eq!(queue.push('b', now), None);
    }
}
