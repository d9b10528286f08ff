//! What victims have acknowledged, and whether the app still has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{self, Event, Message, MessageStats, MessageStatus, Reply};

use crate::TIMEOUT;
use crate::victim::Line;

/// What the victim acknowledged of a question and its answer.
pub struct Turn {
    pub question_id: String,
    pub question: String,
    pub answer_id: String,
    /// The texts of all deltas.
    streamed: String,
    /// What another process read in the database before the kill.
    pub seen_saved: String,
    /// The text of the answer, once it was acknowledged.
    pub complete: Option<String>,
}

impl Turn {
    pub fn new(question_id: String, question: String, answer_id: String) -> Turn {
        Turn {
            question_id,
            question,
            answer_id,
            streamed: String::new(),
            seen_saved: String::new(),
            complete: None,
        }
    }

    pub fn note(turns: &mut Vec<Turn>, line: &Line) {
        match line {
            Line::Sent { question_id, question, answer_id } => {
                turns.push(Turn::new(question_id.clone(), question.clone(), answer_id.clone()));
            }
            Line::Delta(id, text) => Turn::last(turns, id).streamed.push_str(text),
            Line::Complete(id, text) => Turn::last(turns, id).complete = Some(text.clone()),
            Line::Conversation(_) | Line::Rows(_) | Line::Job { .. } => {}
        }
    }

    pub fn last<'a>(turns: &'a mut [Turn], answer_id: &str) -> &'a mut Turn {
        turns
            .last_mut()
            .filter(|turn| turn.answer_id == answer_id)
            .expect("an answer that was sent")
    }

    /// Checks the stored messages; returns whether the answer was interrupted after some text.
    pub fn check(&self, messages: &BTreeMap<String, Message>) -> bool {
        let message = |id: &String| {
            messages
                .get(id)
                .unwrap_or_else(|| panic!("the message {id} was acknowledged and is gone"))
        };
        let (question, answer) = (message(&self.question_id), message(&self.answer_id));
        assert_eq!((question.status, &question.text), (MessageStatus::Complete, &self.question));
        let text = &answer.text;
        match (&self.complete, answer.status) {
            (Some(complete), status) => {
                assert_eq!((status, text), (MessageStatus::Complete, complete))
            }
            // The answer was saved, but the kill came before its line was printed.
            (None, MessageStatus::Complete) => {
                assert!(text.starts_with(&self.streamed), "{text:?} is not {:?}", self.streamed)
            }
            // Text is saved and printed independently, so either may be ahead.
            (None, MessageStatus::Interrupted) => {
                assert!(
                    text.starts_with(&self.streamed) || self.streamed.starts_with(text),
                    "{text:?} is not {:?}",
                    self.streamed
                );
                assert!(text.starts_with(&self.seen_saved), "{text:?} was {:?}", self.seen_saved);
                return !text.is_empty();
            }
            (None, status) => panic!("an answer that was killed is {status:?}"),
        }
        false
    }
}

/// What victims have acknowledged.
#[derive(Default)]
pub struct Acknowledged {
    /// By conversation.
    pub turns: BTreeMap<String, Vec<Turn>>,
}

impl Acknowledged {
    /// Checks that the app has everything; returns how many of the newest answers were interrupted
    /// after some text.
    pub async fn check(&self, app: &Arc<App>) -> usize {
        let mut num_interrupted = 0;
        for (id, turns) in &self.turns {
            let Reply::Conversation { messages, .. } =
                call(app, wire::Command::GetConversation { id: id.clone() }).await
            else {
                panic!("no conversation")
            };
            let messages: BTreeMap<String, Message> =
                messages.into_iter().map(|message| (message.id.clone(), message)).collect();
            assert!(
                messages.values().all(|message| message.status != MessageStatus::Streaming),
                "no answer is being written: {messages:?}"
            );
            let interrupted: Vec<bool> = turns.iter().map(|turn| turn.check(&messages)).collect();
            num_interrupted += usize::from(interrupted.last() == Some(&true));
        }
        num_interrupted
    }
}

/// Asks a short question in this process; returns the turn and its figures.
pub async fn next_turn(app: &Arc<App>, conversation: &str) -> (Turn, MessageStats) {
    call(app, wire::Command::set_for_all("max_tokens", 8)).await;
    let mut events = app.subscribe();
    let send = wire::Command::SendMessage {
        conversation_id: conversation.to_owned(),
        text: "Go on.".to_owned(),
    };
    let Reply::Sent { messages, .. } = call(app, send).await else { panic!("nothing was sent") };
    let [question, answer] = &messages[..] else { panic!("{messages:?}") };
    let ended = loop {
        match tokio::time::timeout(TIMEOUT, events.recv()).await.expect("an event").unwrap() {
            Event::Message { message }
                if message.id == answer.id && message.status != MessageStatus::Streaming =>
            {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(ended.status, MessageStatus::Complete, "{ended:?}");
    let mut turn = Turn::new(question.id.clone(), question.text.clone(), answer.id.clone());
    turn.complete = Some(ended.text);
    (turn, ended.stats.unwrap())
}

pub async fn call(app: &Arc<App>, command: wire::Command) -> Reply {
    app.call(command).await.unwrap_or_else(|failure| panic!("{failure:?}"))
}
