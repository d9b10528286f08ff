//! The conversations that wait for a title of the model's.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The conversations that wait for a title. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct TitleQueue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<String>,
    /// Of the one that is being written.
    running: Option<CancellationToken>,
}

impl TitleQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the title that is being written. It waits for another moment.
    pub(crate) fn stop(&self) {
        if let Some(running) = self.state().running.take() {
            running.cancel();
        }
    }

    /// Adds a conversation. The token is that of the task that has to write the titles; none where one
    /// does already.
    pub(super) fn add(&self, conversation_id: &str) -> Option<CancellationToken> {
        let mut state = self.state();
        if !state.waiting.iter().any(|waiting| waiting == conversation_id) {
            state.waiting.push_back(conversation_id.to_owned());
        }
        if state.running.is_some() {
            return None;
        }
        let token = CancellationToken::new();
        state.running = Some(token.clone());
        Some(token)
    }

    /// The conversation to write a title for; none when there is no other, and the task ends.
    pub(super) fn next(&self, token: &CancellationToken) -> Option<String> {
        let mut state = self.state();
        if token.is_cancelled() {
            return None;
        }
        let next = state.waiting.front().cloned();
        if next.is_none() {
            state.running = None;
        }
        next
    }

    pub(super) fn remove(&self, conversation_id: &str) {
        self.state().waiting.retain(|waiting| waiting != conversation_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_writes_titles_until_it_is_stopped_and_what_was_not_written_waits() {
        let titles = TitleQueue::default();
        let first = titles.add("a").expect("a task");
        assert!(titles.add("b").is_none(), "one at a time");
        assert!(titles.add("a").is_none());
        assert_eq!(titles.next(&first).as_deref(), Some("a"));
        titles.remove("a");
        assert_eq!(titles.next(&first).as_deref(), Some("b"));
        titles.stop();
        assert!(first.is_cancelled());
        assert_eq!(titles.next(&first), None);
        let second = titles.add("c").expect("another task");
        assert_eq!(titles.next(&second).as_deref(), Some("b"));
        titles.remove("b");
        titles.remove("c");
        assert_eq!(titles.next(&second), None);
        assert!(titles.add("d").is_some(), "the task before has ended");
    }
}
