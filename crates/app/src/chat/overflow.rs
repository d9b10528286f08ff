//! What happens when a chat has outgrown its model's context. Where its settings say so, the oldest turns
//! are no longer read: they are forgotten, or a summary stands for them. They stay in the chat.
//!
//! The rest is read again from its beginning, so much is cut off at once: what is left takes at most half
//! of the room that prompts have, and the next cut is as far away as that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_chat::{Message, Role, SegmentEvent};
use cairn_engine::{
    EngineError, GenerateEvent, GenerateRequest, LoadedModelStatus, PromptInput, SegmentOptions,
    WorkFor, WorkKind,
};
use cairn_store::ContextCut;

use crate::app::App;
use crate::chat::beginning::{Beginning, ReadPart};
use crate::chat::context::{Room, emit_message, num_tokens};
use crate::chat::progress::Pace;
use crate::chat::running::Running;
use crate::chat::turn::Turn;
use crate::clock::now_ms;
use crate::convert;
use crate::documents::prompt::WithDocuments;
use crate::models::loaded::loaded_status;
use crate::settings::Settings;
use crate::settings::sampling::sampling;
use crate::wire::{AtOverflow, Event, Failure, FailureKind};

/// How a model is asked for the summary, behind the turns that it is of.
const ASK_FOR_SUMMARY: &str = "Summarize our conversation so far, so that it can go on from your \
    summary alone. Keep names, numbers, decisions, what I want, and what is still open; leave out \
    greetings and repetitions. Write in the language of the conversation, and nothing but the summary.";
/// The most tokens of a summary, and the share of the context that it may take.
const MAX_SUMMARY_TOKENS: usize = 1024;
const SUMMARY_SHARE: usize = 8;
/// Between two reports of how far a summary is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// What became of a chat that is to be answered.
pub(crate) enum Made {
    /// Everything fits, or nothing can or may be cut off.
    Nothing,
    /// The oldest turns are no longer read.
    Cut,
    /// The answer was stopped meanwhile.
    Stopped,
}

/// Cuts off the oldest turns of a chat if its next answer has no room and its settings allow it.
pub(crate) async fn make_room(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    model: &str,
    settings: &Settings,
) -> Result<Made, Failure> {
    let planned = tokio::select! {
        // Dropping the plan cancels its work.
        () = running.stop.cancelled() => return Ok(Made::Stopped),
        () = app.closing.cancelled() => return Ok(Made::Stopped),
        planned = plan(app, running, turn, model, settings) => planned?,
    };
    let Some((message, cut)) = planned else { return Ok(Made::Nothing) };
    turn.store.cut_context(&message, &cut, now_ms()).await?;
    emit_message(app, &turn.store, &turn.conversation_id, &message).await?;
    Ok(Made::Cut)
}

/// From which message on the chat is to be read, and what stands for the ones before it; none if
/// everything fits, or nothing can or may be cut off.
async fn plan(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    model: &str,
    settings: &Settings,
) -> Result<Option<(String, ContextCut)>, Failure> {
    // An answer that goes on belongs to the prompt that it was begun with.
    let is_stopping = settings.at_overflow == AtOverflow::Stop || turn.before().is_some();
    let Some(model) = loaded_status(app, model).filter(|_| !is_stopping) else {
        return Ok(None);
    };
    let (store, id) = (&turn.store, &turn.conversation_id);
    let (branch, cuts) = (store.branch(id).await?, store.context_cuts(id).await?);
    let branch = WithDocuments::of(store, id, &branch).await?;
    let part = ReadPart::of(branch.rows(), &cuts);
    let starts = starts_of_turns(part.messages);
    let beginning = Beginning::of(app, store, id, Some(&model)).await?;
    let room = Room::of(&model, settings);
    let measure = Measure { app, model: &model, beginning: &beginning, settings };
    if starts.is_empty() || room.fits(measure.of(part).await?) {
        return Ok(None);
    }
    let for_summary = summary_tokens(settings.at_overflow, room.limit);
    let Some(first) = first_kept(&measure, part, &starts, room, for_summary).await? else {
        return Ok(None);
    };
    let summary = match settings.at_overflow {
        AtOverflow::Summarize => {
            let before = ReadPart { messages: &part.messages[..first], ..part };
            let prompt = prompt_for_summary(&measure, before, &starts, room, for_summary).await?;
            let writer = Summary { app, running, turn, settings, max_tokens: for_summary };
            Some(writer.write(&measure, prompt).await?)
        }
        AtOverflow::Stop | AtOverflow::Forget => None,
    };
    Ok(Some((part.messages[first].id.clone(), ContextCut { summary })))
}

/// The most tokens that a summary may have in a context of so many.
pub(crate) fn summary_tokens(at_overflow: AtOverflow, limit: usize) -> usize {
    match at_overflow {
        AtOverflow::Summarize => MAX_SUMMARY_TOKENS.min(limit / SUMMARY_SHARE),
        AtOverflow::Stop | AtOverflow::Forget => 0,
    }
}

/// What of a branch is still read before the next question if as much as possible is cut off; none where
/// nothing can or may be.
pub(crate) fn least_kept<'a>(
    branch: &'a [cairn_store::Message],
    cuts: &'a HashMap<String, ContextCut>,
    at_overflow: AtOverflow,
) -> Option<&'a [cairn_store::Message]> {
    let part = ReadPart::of(branch, cuts).messages;
    if at_overflow == AtOverflow::Stop {
        return None;
    }
    match part.last()?.role {
        // The question begins a turn of its own.
        Role::Assistant => Some(&[]),
        _ => starts_of_turns(part).last().map(|&start| &part[start..]),
    }
}

/// The questions, but for the first, that follow an answer: a cut there leaves whole turns.
fn starts_of_turns(messages: &[cairn_store::Message]) -> Vec<usize> {
    let pairs = messages.windows(2).enumerate();
    let starts =
        pairs.filter(|(_, pair)| (pair[0].role, pair[1].role) == (Role::Assistant, Role::User));
    starts.map(|(index, _)| index + 1).collect()
}

/// Counts the tokens of prompts.
struct Measure<'a> {
    app: &'a App,
    model: &'a LoadedModelStatus,
    beginning: &'a Beginning,
    settings: &'a Settings,
}

impl Measure<'_> {
    async fn of(&self, part: ReadPart<'_>) -> Result<usize, EngineError> {
        let Measure { app, model, beginning, settings } = *self;
        num_tokens(app, &model.name, beginning.with(part), settings).await
    }
}

/// The first message that is still read: of as many turns as fit into half of the room, but of one at
/// least; none where even that one does not fit.
async fn first_kept(
    measure: &Measure<'_>,
    part: ReadPart<'_>,
    starts: &[usize],
    room: Room,
    for_summary: usize,
) -> Result<Option<usize>, EngineError> {
    let goal = room.limit.saturating_sub(room.for_answer) / 2;
    let from = |start: usize| ReadPart { messages: &part.messages[start..], summary: None };
    // Fewer messages are fewer tokens, so the earliest start that fits is found by halving.
    let (mut low, mut high) = (0, starts.len() - 1);
    while low < high {
        let middle = low.midpoint(high);
        match measure.of(from(starts[middle])).await? + for_summary <= goal {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let fits = measure.of(from(starts[low])).await? + for_summary < room.limit;
    Ok(fits.then_some(starts[low]))
}

/// What the model is asked for a summary with. Where turns and summary together do not fit, as after an
/// answer that filled the context, the oldest turns are left out.
async fn prompt_for_summary(
    measure: &Measure<'_>,
    part: ReadPart<'_>,
    starts: &[usize],
    room: Room,
    max_tokens: usize,
) -> Result<PromptInput, Failure> {
    let begins = std::iter::once(0).chain(starts.iter().copied());
    for start in begins.filter(|&start| start < part.messages.len()) {
        let summary = part.summary.filter(|_| start == 0);
        let asked = ReadPart { messages: &part.messages[start..], summary };
        let mut prompt = measure.beginning.with(asked);
        if let PromptInput::Messages(messages) | PromptInput::After { messages, .. } = &mut prompt {
            let content = ASK_FOR_SUMMARY.to_owned();
            messages.push(Message { role: Role::User, content, token_ids: None });
        }
        let Measure { app, model, settings, .. } = *measure;
        let num_tokens = num_tokens(app, &model.name, prompt.clone(), settings).await?;
        if num_tokens + max_tokens <= room.limit {
            return Ok(prompt);
        }
    }
    Err(not_written("the context has no room for it"))
}

/// A summary that is to be written.
struct Summary<'a> {
    app: &'a Arc<App>,
    running: &'a Running,
    turn: &'a Turn,
    settings: &'a Settings,
    max_tokens: usize,
}

impl Summary<'_> {
    /// Has the model write it, behind the turns that it has read already.
    async fn write(&self, measure: &Measure<'_>, prompt: PromptInput) -> Result<String, Failure> {
        let Summary { app, turn, settings, max_tokens, .. } = *self;
        let mut progress = SummaryProgress::default();
        self.emit(progress);
        let is_private = app.is_private_store(&turn.store);
        let kv_cache = match &prompt {
            PromptInput::After { prefix, .. } => prefix.kv_cache(),
            _ => convert::kv_cache(settings, measure.model.kv_group_size),
        };
        let request = GenerateRequest {
            model: Some(measure.model.name.clone()),
            sampling: sampling(settings),
            // As the turns before it were read, which need not be read again so.
            thinking: Some(convert::thinking(settings.thinking)),
            max_tokens,
            context_length: settings.context_length.map(|length| length as usize),
            use_prompt_cache: !is_private,
            work_for: WorkFor::conversation(WorkKind::Summary, &turn.conversation_id, is_private),
            kv_cache,
            segments: Some(SegmentOptions::default()),
            ..GenerateRequest::new(prompt)
        };
        let mut generation = app.engine.generate(request);
        let mut pace = Pace::new(REPORT_INTERVAL);
        let mut summary = String::new();
        let mut add = |events: Vec<SegmentEvent>| {
            for event in events {
                if let SegmentEvent::Text(text) = event {
                    summary.push_str(&text);
                }
            }
        };
        loop {
            match generation.recv().await {
                Some(GenerateEvent::Delta { segments, .. }) => {
                    progress.num_written += 1;
                    add(segments);
                }
                Some(GenerateEvent::Prefill { processed, total, .. }) => {
                    (progress.num_processed, progress.num_total) = (processed, total);
                }
                Some(GenerateEvent::Finished(finished)) => break add(finished.segments),
                Some(GenerateEvent::Failed(error)) => return Err(not_written(&error.to_string())),
                None => return Err(not_written("the engine ended before it was")),
                Some(GenerateEvent::SoFar(_)) => {}
            }
            let now = Instant::now();
            if pace.is_due(now) {
                pace.mark(now);
                self.emit(progress);
            }
        }
        match summary.trim() {
            "" => Err(not_written("the model wrote nothing")),
            summary => Ok(summary.to_owned()),
        }
    }

    fn emit(&self, progress: SummaryProgress) {
        let event = Event::Summarizing {
            conversation_id: self.turn.conversation_id.clone(),
            message_id: self.turn.message_id.clone(),
            processed_tokens: convert::tokens(progress.num_processed),
            total_tokens: convert::tokens(progress.num_total),
            written_tokens: convert::tokens(progress.num_written),
            limit_tokens: convert::tokens(self.max_tokens),
        };
        self.app.emit(self.running.event(event));
    }
}

/// How far a summary is, in tokens.
#[derive(Debug, Default, Clone, Copy)]
struct SummaryProgress {
    num_processed: usize,
    num_total: usize,
    num_written: usize,
}

fn not_written(why: &str) -> Failure {
    Failure::invalid(format!(
        "The summary of the earlier messages could not be written ({why}): choose to forget them instead"
    ))
    .of_kind(FailureKind::SummaryFailed { detail: convert::sentence(why) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::prompt::unsent_question;

    #[test]
    fn turns_begin_with_questions_behind_answers() {
        fn check(roles: &str, expected: &[usize]) {
            let row = |role| cairn_store::Message {
                role: if role == 'Q' { Role::User } else { Role::Assistant },
                ..unsent_question("", "")
            };
            let messages: Vec<_> = roles.chars().map(row).collect();
            assert_eq!(starts_of_turns(&messages), expected, "{roles}");
        }
        check("", &[]);
        check("QA", &[]);
        check("QAQA", &[2]);
        check("QAQAQA", &[2, 4]);
        // A question that stands alone because its answer was deleted belongs to the next turn.
        check("QAQQA", &[2]);
        check("QAAQA", &[3]);
    }
}
