//! What interfaces are sent of a running answer. Its message is changed with each event, see
//! [`Running::message`].

use cairn_store::FinishedMessage;

use crate::app::App;
use crate::chat::progress::Prefill;
use crate::chat::running::Running;
use crate::chat::segments::Change;
use crate::chat::turn::Turn;
use crate::convert;
use crate::wire::{AnswerSegment, Event};

/// Sends how far the prompt is read.
pub(super) fn emit_prefill(app: &App, running: &Running, turn: &Turn, prefill: Prefill) {
    let event = Event::Prefill {
        conversation_id: turn.conversation_id.clone(),
        message_id: turn.message_id.clone(),
        processed_tokens: convert::tokens(prefill.processed),
        total_tokens: convert::tokens(prefill.total),
        cached_tokens: convert::tokens(prefill.cached),
    };
    app.emit(running.event(event));
}

/// Sends what has changed of the text.
pub(super) fn emit_changes(app: &App, running: &Running, changes: Vec<Change>) {
    let mut message = running.message();
    for change in changes {
        let (conversation_id, message_id) = (message.conversation_id.clone(), message.id.clone());
        let event = match change {
            Change::Whole { index, segment } => {
                let segment = convert::segment(segment);
                message.segments.truncate(index);
                message.segments.push(segment.clone());
                let index = convert::tokens(index);
                Event::Segment { conversation_id, message_id, index, segment }
            }
            Change::Grown { index, offset, text } => {
                grow(&mut message.segments, index, &text);
                let segment = convert::tokens(index);
                Event::Delta { conversation_id, message_id, segment, offset, text }
            }
        };
        app.emit(running.event(event));
    }
}

fn grow(segments: &mut [AnswerSegment], index: usize, more: &str) {
    match segments.get_mut(index) {
        Some(AnswerSegment::Text { text } | AnswerSegment::Reasoning { text, .. }) => {
            text.push_str(more);
        }
        Some(AnswerSegment::ToolCall { arguments, .. }) => arguments.push_str(more),
        None => {}
    }
}

/// Sends the answer as it has ended.
pub(super) fn emit_finished(app: &App, running: &Running, finished: &FinishedMessage) {
    let mut message = running.message();
    message.status = convert::message_status(finished.status);
    message.error.clone_from(&finished.error);
    message.error_kind = convert::error_kind(finished.error_kind.as_deref());
    message.stats = finished.stats.clone().map(convert::message_stats);
    message.text = convert::readable(&message.segments);
    message.is_held = false;
    message.model.clone_from(&finished.model);
    let FinishedMessage { status, token_ids, stats, model, .. } = finished;
    message.can_continue =
        convert::can_continue(*status, token_ids.as_deref(), stats.as_ref(), model.as_deref());
    app.emit(running.event(Event::Message { message: message.clone() }));
}
