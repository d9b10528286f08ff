//! Completes an answer's figures: where its saved context came from, how much reading that saved, and
//! whether another system prompt or chat template had everything read again.
//!
//! Time is saved by tokens that would have been read a second time:
//!
//! | Tokens of the prompt | From | Saved |
//! |---|---|---|
//! | the chat's own, still in memory | `num_in_memory` | no: any program keeps a running chat |
//! | the chat's own, read back from what is saved: after a restart, a change of the model, an eviction | `num_restored` | yes, each time |
//! | read by another chat, the folder or a starting point | `num_shared` | yes |
//! | read for this very question before it was sent, and by no answer used since | `num_read_ahead` | no: they were read once, wherever they are now |
//!
//! If a reading ahead has itself restored or shared tokens, the question claims their time: until then
//! nobody has. The engine says which of the first three it was; the store remembers what was
//! read ahead ([`Store::note_read_ahead`](cairn_store::Store::note_read_ahead)), until an answer of the
//! chat, or of a chat in the folder, has used it. A part of an answer that goes on claims for itself.

use std::ops::Range;

use cairn_chat::{CacheMiss, CachedFrom, GenerationStats};
use cairn_engine::LoadedModel;
use cairn_store::{AheadRange, AheadSource, AnsweredWith, StoreError};

use crate::app::App;
use crate::cache::owners::{conversation_owner, folder_owner};
use crate::chat::turn::Turn;
use crate::convert;
use crate::wire::{ChatTimeSaved, Failure, MissCause, TimeSaved};

/// Says where the cached tokens of a part of an answer came from, and what they saved. What cannot be
/// read from the store is not said.
pub(crate) async fn claim(app: &App, turn: &Turn, stats: &mut GenerationStats) {
    let Some(from) = stats.cached_from.filter(|from| from.num_tokens() > 0) else { return };
    let ahead = read_ahead(app, turn, from, &stats.model).await.unwrap_or_else(|error| {
        tracing::warn!("what was read ahead is not known: {error}");
        // Rather nothing is claimed.
        vec![(AheadSource::Read, 0..usize::MAX)]
    });
    let from = attributed(from, &ahead);
    stats.cached_from = Some(from);
    let num_saved = from.num_restored + from.num_shared;
    if num_saved == 0 {
        return;
    }
    let rate = turn.store.reading_rate(&turn.conversation_id, &stats.model).await;
    stats.saved_ms = rate
        .ok()
        .flatten()
        .map(|tps| num_saved as f64 / tps * 1000.0)
        .filter(|saved_ms| saved_ms.is_finite())
        .map(convert::figure);
}

/// Takes what was read for this question before it was sent: by the chat, and by its folder if the answer
/// shares tokens. An older chat of the folder has its own, and leaves the note to the next new one.
async fn read_ahead(
    app: &App,
    turn: &Turn,
    from: CachedFrom,
    model: &str,
) -> Result<Vec<AheadRange>, StoreError> {
    let owner = conversation_owner(&turn.conversation_id).to_string();
    let mut ahead = app.store.take_read_ahead(&owner, model).await?;
    let is_shared = ahead.iter().any(|(source, _)| *source == AheadSource::Shared);
    if from.num_shared == 0 && !is_shared {
        return Ok(ahead);
    }
    let row = app.store.conversation(&turn.conversation_id).await?;
    if let Some(folder) = row.and_then(|row| row.folder_id) {
        ahead.extend(app.store.take_read_ahead(&folder_owner(&folder).to_string(), model).await?);
    }
    Ok(ahead)
}

/// Where cached tokens came from, with what is known of the readings before the question was sent.
fn attributed(from: CachedFrom, ahead: &[AheadRange]) -> CachedFrom {
    let num_own = from.num_in_memory + from.num_restored;
    let num_cached = num_own + from.num_shared;
    let ends = ahead.iter().flat_map(|(_, Range { start, end })| [*start, *end]);
    let mut cuts: Vec<usize> = ends.filter(|cut| *cut < num_cached).collect();
    cuts.extend([0, num_own, num_cached]);
    cuts.sort_unstable();
    let mut found = CachedFrom::default();
    for pair in cuts.windows(2) {
        let (start, num_tokens) = (pair[0], pair[1] - pair[0]);
        let is_ahead = |source: AheadSource| {
            ahead.iter().any(|(other, range)| *other == source && range.contains(&start))
        };
        let is_in_memory = start < num_own && from.num_in_memory > 0;
        let source = if is_ahead(AheadSource::Read) {
            &mut found.num_read_ahead
        } else if is_in_memory && is_ahead(AheadSource::Restored) {
            &mut found.num_restored
        } else if is_in_memory && is_ahead(AheadSource::Shared) {
            &mut found.num_shared
        } else if is_in_memory {
            &mut found.num_in_memory
        } else if start < num_own {
            &mut found.num_restored
        } else {
            &mut found.num_shared
        };
        *source += num_tokens;
    }
    found
}

/// Notes what an answer was written with; names what has changed since the answer before, if that had
/// everything read again.
pub(crate) async fn complete(
    turn: &Turn,
    stats: &mut GenerationStats,
    answered_with: &AnsweredWith,
) {
    if answered_with.system_prompt.is_none() {
        return;
    }
    let before = turn.store.note_answered_with(&turn.conversation_id, answered_with).await;
    if let (Some(miss), Ok(before)) = (&mut stats.miss, before) {
        name_change(miss, before, answered_with);
    }
}

/// Names what has changed around the messages since the answer before: the engine sees other tokens, and
/// knows no template and no prompt.
pub(crate) fn name_change(miss: &mut CacheMiss, before: AnsweredWith, now: &AnsweredWith) {
    let is_changed = [MissCause::SystemPromptChanged, MissCause::MessageChanged]
        .map(MissCause::name)
        .contains(&miss.cause.as_str());
    if !is_changed {
        return;
    }
    // With another template all is another, whatever has changed besides.
    let is_other = before.template.zip(now.template.as_ref());
    if is_other.is_some_and(|(before, now)| is_other_template(&before, now)) {
        miss.cause = MissCause::TemplateChanged.name().to_owned();
        miss.detail = None;
    } else if let Some(prompt) = before.system_prompt
        && now.system_prompt.as_ref() != Some(&prompt)
    {
        // A prompt that was removed changes the first message for the engine, which knows no other.
        miss.cause = MissCause::SystemPromptChanged.name().to_owned();
        miss.detail = Some(prompt);
    }
}

/// Whether a model's template has changed; each is a hash, and behind a space its model. Of another
/// model nothing can be said.
fn is_other_template(before: &str, now: &str) -> bool {
    let parts = before.split_once(' ').zip(now.split_once(' '));
    parts.is_some_and(|((hash, model), (now, now_model))| model == now_model && hash != now)
}

/// What stands around the messages of a prompt for a loaded model.
pub(crate) async fn with(app: &App, system_prompt: String, model: Option<&str>) -> AnsweredWith {
    let source = |loaded: &LoadedModel| {
        let template = loaded.tokenizer.chat_template()?;
        Some(blake3::hash(template.source().as_bytes()).to_hex().to_string())
    };
    let template = match model {
        Some(model) => {
            let hash = app.engine.submit(Some(model), source).await.ok().flatten();
            hash.map(|hash| format!("{hash} {model}"))
        }
        None => None,
    };
    AnsweredWith { system_prompt: Some(system_prompt), template }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_cached_tokens_to_first_reading() {
        use AheadSource::{Read, Restored, Shared};
        fn check(engine: [usize; 3], ahead: &[AheadRange], expected: [usize; 4]) {
            let [num_in_memory, num_restored, num_shared] = engine;
            let from = CachedFrom { num_in_memory, num_restored, num_shared, num_read_ahead: 0 };
            let found = attributed(from, ahead);
            let CachedFrom { num_in_memory, num_restored, num_shared, num_read_ahead } = found;
            let found = [num_in_memory, num_restored, num_shared, num_read_ahead];
            assert_eq!(found, expected, "{engine:?} after {ahead:?}");
        }
        // In memory, restored, shared; then read ahead too.
        check([0, 0, 0], &[], [0, 0, 0, 0]);
        check([90, 0, 0], &[], [90, 0, 0, 0]);
        check([0, 60, 30], &[], [0, 60, 30, 0]);
        // A first question about a document.
        check([90, 0, 0], &[(Read, 0..90)], [0, 0, 0, 90]);
        check([95, 0, 0], &[(Read, 0..90)], [5, 0, 0, 90]);
        check([50, 0, 0], &[(Read, 20..90)], [20, 0, 0, 30]);
        // It was read before a restart, or in a folder.
        check([0, 90, 0], &[(Read, 20..90)], [0, 20, 0, 70]);
        check([0, 0, 90], &[(Read, 0..90)], [0, 0, 0, 90]);
        // The reading found the chat on disk, or another chat's beginning.
        check([90, 0, 0], &[(Restored, 0..40), (Read, 40..90)], [0, 40, 0, 50]);
        check([90, 0, 0], &[(Shared, 0..80), (Read, 80..90)], [0, 0, 80, 10]);
        check([90, 0, 0], &[(Shared, 0..80), (Read, 0..80)], [10, 0, 0, 80]);
        // Of two readings the second found the first.
        check([90, 0, 0], &[(Read, 0..40), (Read, 40..90)], [0, 0, 0, 90]);
        check([90, 0, 0], &[(Read, 200..usize::MAX)], [90, 0, 0, 0]);
    }

    #[test]
    fn a_miss_names_what_has_changed_around_the_messages() {
        fn check(
            cause: MissCause,
            before: [&str; 2],
            now: [&str; 2],
            expected: MissCause,
            detail: Option<&str>,
        ) {
            let known = |text: &str| (text != "?").then(|| text.to_owned());
            let with = |[prompt, template]: [&str; 2]| AnsweredWith {
                system_prompt: known(prompt),
                template: known(template),
            };
            let cause = cause.name().to_owned();
            let mut miss = CacheMiss { num_tokens: 9, cause, detail: None, at_ms: None };
            name_change(&mut miss, with(before), &with(now));
            let found = (MissCause::named(&miss.cause), miss.detail.as_deref());
            assert_eq!(found, (Some(expected), detail), "{before:?} and {now:?}");
        }
        use MissCause::{Deleted, MessageChanged, SystemPromptChanged, TemplateChanged};
        check(MessageChanged, ["a", "t m"], ["a", "t m"], MessageChanged, None);
        check(MessageChanged, ["a", "t m"], ["a", "u m"], TemplateChanged, None);
        // Another model has another template.
        check(MessageChanged, ["a", "t m"], ["a", "u n"], MessageChanged, None);
        check(SystemPromptChanged, ["a", "t m"], ["b", "u m"], TemplateChanged, None);
        check(SystemPromptChanged, ["a", "t m"], ["b", "t m"], SystemPromptChanged, Some("a"));
        check(MessageChanged, ["a", "?"], ["", "u m"], SystemPromptChanged, Some("a"));
        check(MessageChanged, ["?", "?"], ["a", "u m"], MessageChanged, None);
        check(Deleted, ["a", "t m"], ["b", "u m"], Deleted, None);
    }
}
