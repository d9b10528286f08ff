//! What is said of an answer beside its figures: how much reading it saved, and what the system prompt
//! was before a change that had everything read again.

use cairn_chat::GenerationStats;

use crate::app::App;
use crate::chat::answering::Turn;
use crate::convert;
use crate::wire::{ChatTimeSaved, Failure, MissCause, TimeSaved};

/// Completes the figures of an answer that has ended, before they are stored. `system_prompt` is the one
/// that it was written with. What cannot be read from the store is not said.
pub(crate) async fn complete(
    turn: &Turn,
    stats: &mut GenerationStats,
    system_prompt: Option<&str>,
) {
    let rate = turn.store.reading_rate(&turn.conversation_id, &stats.model).await;
    stats.saved_ms = rate
        .ok()
        .flatten()
        .map(|tps| stats.num_cached_tokens as f64 / tps * 1000.0)
        .filter(|saved_ms| saved_ms.is_finite())
        .map(convert::figure);
    let Some(system_prompt) = system_prompt else { return };
    let before = turn.store.note_answered_prompt(&turn.conversation_id, system_prompt).await;
    let Some(miss) = &mut stats.miss else { return };
    let is_changed = [MissCause::SystemPromptChanged, MissCause::MessageChanged]
        .map(MissCause::name)
        .contains(&miss.cause.as_str());
    // A prompt that was removed changes the first message for the engine, which knows no other.
    if let Some(before) = before.ok().flatten().filter(|before| before != system_prompt)
        && is_changed
    {
        miss.cause = MissCause::SystemPromptChanged.name().to_owned();
        miss.detail = Some(before);
    }
}

/// What all answers saved.
pub(crate) async fn overview(app: &App) -> Result<TimeSaved, Failure> {
    let savings = app.store.savings().await?;
    let of_chat = |(conversation_id, saved_ms)| ChatTimeSaved {
        conversation_id,
        saved_ms: convert::figure(saved_ms),
    };
    Ok(TimeSaved {
        all_ms: convert::figure(savings.all_ms),
        since_ms: savings.since_ms,
        chats: savings.conversations.into_iter().map(of_chat).collect(),
    })
}
