//! What is said of an answer beside its figures: how much reading it saved, and whether another system
//! prompt or chat template had everything read again.

use cairn_chat::{CacheMiss, GenerationStats};
use cairn_engine::LoadedModel;
use cairn_store::AnsweredWith;

use crate::app::App;
use crate::chat::turn::Turn;
use crate::convert;
use crate::wire::{ChatTimeSaved, Failure, MissCause, TimeSaved};

/// Completes the figures of an answer that has ended, before they are stored. What cannot be read from
/// the store is not said.
pub(crate) async fn complete(
    turn: &Turn,
    stats: &mut GenerationStats,
    answered_with: &AnsweredWith,
) {
    let rate = turn.store.reading_rate(&turn.conversation_id, &stats.model).await;
    stats.saved_ms = rate
        .ok()
        .flatten()
        .map(|tps| stats.num_cached_tokens as f64 / tps * 1000.0)
        .filter(|saved_ms| saved_ms.is_finite())
        .map(convert::figure);
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
