//! The running answers: at most one for each conversation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{convert, wire};

/// A running answer, or one that has ended and is not saved yet. Shared by its task and by commands
/// about it.
#[derive(Debug)]
pub(crate) struct Running {
    message: Mutex<wire::Message>,
    /// Asks the task to stop the answer.
    pub(crate) stop: CancellationToken,
    /// Lets an answer that is held go on.
    pub(crate) go_on: Notify,
    /// Cancelled when the task has saved the answer, emitted everything and ended.
    pub(crate) ended: CancellationToken,
}

impl Running {
    /// The message exactly as the events sent so far describe it. A change and its event happen
    /// under the same lock, so that a reader sees each piece of text either here or in a later
    /// event.
    pub(crate) fn message(&self) -> MutexGuard<'_, wire::Message> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The message's id.
    pub(crate) fn id(&self) -> String {
        self.message().id.clone()
    }

    /// Lets the answer go on if it is held.
    pub(crate) fn go_on(&self) {
        // Once for each time it is held: what is let go twice would not be held the next time.
        if std::mem::take(&mut self.message().is_held) {
            self.go_on.notify_one();
        }
    }

    /// A copy of the message. Its text is made of its segments here, because most events name only
    /// what has grown.
    pub(crate) fn shown(&self) -> wire::Message {
        let mut message = self.message().clone();
        message.text = convert::readable(&message.segments);
        message
    }

    /// Whether it is still being generated; one that only waits to be saved is not.
    pub(crate) fn is_streaming(&self) -> bool {
        self.message().status == wire::MessageStatus::Streaming
    }
}

/// The running answers by conversation. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RunningAnswers {
    running: Mutex<HashMap<String, Arc<Running>>>,
}

impl RunningAnswers {
    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer that has no text yet.
    pub(crate) fn begin(&self, message: wire::Message) -> Arc<Running> {
        let conversation_id = message.conversation_id.clone();
        let running = Arc::new(Running {
            message: Mutex::new(message),
            stop: CancellationToken::new(),
            go_on: Notify::new(),
            ended: CancellationToken::new(),
        });
        self.running().insert(conversation_id, running.clone());
        running
    }

    /// Removes an answer that is saved. A later answer of the same conversation stays.
    pub(crate) fn remove(&self, running: &Arc<Running>) {
        let conversation_id = running.message().conversation_id.clone();
        let mut listed = self.running();
        if listed.get(&conversation_id).is_some_and(|listed| Arc::ptr_eq(listed, running)) {
            listed.remove(&conversation_id);
        }
    }

    pub(crate) fn get(&self, conversation_id: &str) -> Option<Arc<Running>> {
        self.running().get(conversation_id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Running>> {
        self.running().values().cloned().collect()
    }

    pub(crate) fn is_streaming(&self, conversation_id: &str) -> bool {
        self.get(conversation_id).is_some_and(|running| running.is_streaming())
    }
}
