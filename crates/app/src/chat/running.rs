//! The running answers: one for each conversation, or two that are compared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{convert, wire};

/// How long deleting waits for the conversation's answer to stop. An answer that takes longer ends
/// in the background.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A running answer, or one that has ended and is not saved yet. Shared by its task and by commands
/// about it.
#[derive(Debug)]
pub(crate) struct Running {
    message: Mutex<wire::Message>,
    /// It is written beside the branch on screen, in a comparison.
    is_beside: AtomicBool,
    /// Cancelled when the engine has begun with it.
    pub(crate) begun: CancellationToken,
    /// Asks the task to stop the answer.
    pub(crate) stop: CancellationToken,
    /// It was being written when Cairn began to close.
    is_interrupted: AtomicBool,
    /// Lets an answer that is held go on.
    pub(crate) go_on: Notify,
    /// Asks the task to end the thoughts, once.
    pub(crate) answer_now: CancellationToken,
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

    /// An event about the answer, as it is sent: as one of the branch on screen, or as one beside it.
    pub(crate) fn event(&self, event: wire::Event) -> wire::Event {
        match self.is_beside.load(Ordering::Acquire) {
            true => wire::Event::Beside { event: Box::new(event) },
            false => event,
        }
    }

    /// The answer is of the branch on screen from now on.
    pub(crate) fn show(&self) {
        self.is_beside.store(false, Ordering::Release);
    }

    /// The message's id.
    pub(crate) fn id(&self) -> String {
        self.message().id.clone()
    }

    /// Stops the answer because Cairn closes.
    pub(crate) fn interrupt(&self) {
        // What a person has stopped just before stays stopped by them.
        let is_interrupted = !self.stop.is_cancelled();
        self.is_interrupted.store(is_interrupted, Ordering::Release);
        self.stop.cancel();
    }

    /// Whether an answer that has stopped did so because Cairn closes, not for a person.
    pub(crate) fn is_interrupted(&self) -> bool {
        // One that is held sees that Cairn closes before anybody stops it.
        self.is_interrupted.load(Ordering::Acquire) || !self.stop.is_cancelled()
    }

    /// Lets the answer go on if it is held.
    pub(crate) fn go_on(&self) {
        // Once for each time it is held: what is let go twice would not be held the next time.
        if std::mem::take(&mut self.message().is_held) {
            self.go_on.notify_one();
        }
    }

    /// Ends the thoughts of the answer if it thinks.
    pub(crate) fn answer_now(&self) {
        let thinks = matches!(
            self.message().segments.last(),
            Some(wire::AnswerSegment::Reasoning { duration_ms: None, .. })
        );
        if thinks {
            self.answer_now.cancel();
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

/// The running answers by message. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct RunningAnswers {
    running: Mutex<HashMap<String, Arc<Running>>>,
}

impl RunningAnswers {
    fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an answer that has no text yet.
    pub(crate) fn begin(&self, message: wire::Message, is_beside: bool) -> Arc<Running> {
        let id = message.id.clone();
        let running = Arc::new(Running {
            message: Mutex::new(message),
            is_beside: AtomicBool::new(is_beside),
            begun: CancellationToken::new(),
            stop: CancellationToken::new(),
            is_interrupted: AtomicBool::new(false),
            go_on: Notify::new(),
            answer_now: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        self.running().insert(id, running.clone());
        running
    }

    /// Removes an answer that is saved. One that goes on in the same message meanwhile stays.
    pub(crate) fn remove(&self, running: &Arc<Running>) {
        let id = running.id();
        let mut listed = self.running();
        if listed.get(&id).is_some_and(|listed| Arc::ptr_eq(listed, running)) {
            listed.remove(&id);
        }
    }

    /// The answers of a conversation.
    pub(crate) fn of(&self, conversation_id: &str) -> Vec<Arc<Running>> {
        let is_of = |running: &Arc<Running>| running.message().conversation_id == conversation_id;
        self.running().values().filter(|running| is_of(running)).cloned().collect()
    }

    /// The answer in a message.
    pub(crate) fn get(&self, message_id: &str) -> Option<Arc<Running>> {
        self.running().get(message_id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Running>> {
        self.running().values().cloned().collect()
    }

    pub(crate) fn is_streaming(&self, conversation_id: &str) -> bool {
        self.of(conversation_id).iter().any(|running| running.is_streaming())
    }
}

/// Stops answers and waits for them to end. One that takes longer ends in the background.
pub(crate) async fn stop_answers(answers: &[Arc<Running>]) {
    let streaming = || answers.iter().filter(|running| running.is_streaming());
    for running in streaming() {
        running.stop.cancel();
    }
    let all_end = async {
        for running in streaming() {
            running.ended.cancelled().await;
        }
    };
    let _ = tokio::time::timeout(STOP_LIMIT, all_end).await;
}
