//! Titles that the model writes, where a person wants that: a short answer in the background, only while
//! the engine has nothing else to do.
//!
//! It delays no answer: whoever asks for one stops it first, and what was begun is begun again after the
//! next answer. It is a prompt of its own, which neither uses nor touches the prompt cache, so that the
//! chat's saved context and its place in memory stay as they are. No model is loaded for it.

use std::sync::Arc;
use std::time::Instant;

use cairn_chat::{Message, Role, Thinking};
use cairn_engine::{
    EngineState, GenerateEvent, GenerateRequest, PromptInput, SegmentOptions, WorkFor, WorkKind,
};

use crate::answer_segment::AnswerSegment;
use crate::app::App;
use crate::chat::listed;
use crate::chat::model;
use crate::chat::progress::Progress;
use crate::chat::segments::Now;
use crate::crashes::record::StepKind;
use crate::models::loaded::loaded_name;

/// A title that is longer is cut anyway.
const MAX_TOKENS: usize = 40;
/// As much of the question and of the answer is read.
const EXCERPT_CHARS: usize = 1200;

/// Has a title written for a conversation that was answered, when there is nothing else to do.
pub(crate) fn write_when_idle(app: &Arc<App>, conversation_id: &str) {
    if !app.settings().titles_by_model {
        return;
    }
    let Some(token) = app.titles.add(conversation_id) else { return };
    let shared = app.clone();
    app.spawn(async move {
        let app = shared;
        while let Some(id) = app.titles.next(&token) {
            tokio::select! {
                () = token.cancelled() => return,
                () = app.closing.cancelled() => return,
                () = write(&app, &id) => app.titles.remove(&id),
            }
        }
    });
}

/// Writes the title of a conversation, unless it has another one than its first line. What fails is not
/// worth a word: the first line stays.
async fn write(app: &Arc<App>, id: &str) {
    let mut status = app.engine.status();
    let is_idle = status.wait_for(|status| matches!(status.state, EngineState::Ready { .. }));
    if is_idle.await.is_err() {
        return;
    }
    let store = app.store_of(id).await;
    let is_private = app.is_private_store(store);
    let Ok(branch) = store.branch(id).await else { return };
    let text_of = |role: Role| {
        branch.iter().find(|row| row.role == role && !row.text.is_empty()).map(|row| match role {
            Role::Assistant => AnswerSegment::said(row.segments.as_deref(), &row.text),
            _ => row.text.clone(),
        })
    };
    let (Some(question), Some(answer)) = (text_of(Role::User), text_of(Role::Assistant)) else {
        return;
    };
    if !store.has_first_line_title(id, &question).await.unwrap_or(false) {
        return;
    }
    let model = model::in_memory(app, id).await.map(|model| model.name);
    let writer = model.clone().or_else(|| loaded_name(app));
    let step = app.begin_step(StepKind::Title, id, writer.as_deref()).await;
    let asked = prompt(&question, &answer);
    let written = generate(app, id, is_private, model, &asked).await;
    let Some(written) = written else { return };
    step.succeeded();
    drop(step);
    match store.set_written_title(id, &question, &cleaned(&written)).await {
        Ok(true) => listed::emit(app, id).await,
        Ok(false) => {}
        Err(error) => tracing::debug!("a title is not saved: {error}"),
    }
}

/// What the model is asked.
fn prompt(question: &str, answer: &str) -> String {
    let excerpt = |text: &str| text.chars().take(EXCERPT_CHARS).collect::<String>();
    format!(
        "Write a title of at most six words for the conversation below, in its language. \
         Answer with the title only, without quotation marks.\n\n\
         Question:\n{}\n\nAnswer:\n{}",
        excerpt(question),
        excerpt(answer)
    )
}

/// What the chat's model answers, or the loaded one if that is not in memory, without its reasoning; none
/// where it does not come to an answer.
async fn generate(
    app: &App,
    conversation_id: &str,
    is_private: bool,
    model: Option<String>,
    prompt: &str,
) -> Option<String> {
    let message = Message { role: Role::User, content: prompt.to_owned(), token_ids: None };
    let mut generation = app.engine.generate(GenerateRequest {
        model,
        thinking: Some(Thinking::Off),
        max_tokens: MAX_TOKENS,
        use_prompt_cache: false,
        work_for: WorkFor::conversation(WorkKind::Title, conversation_id, is_private),
        segments: Some(SegmentOptions::default()),
        ..GenerateRequest::new(PromptInput::Messages(vec![message]))
    });
    let mut progress = Progress::new(Instant::now());
    loop {
        match generation.recv().await? {
            GenerateEvent::Delta { text, token, segments, .. } => {
                progress.token(token, &text, &segments, Now::read());
            }
            GenerateEvent::Finished(finished) => {
                progress.append(&finished.text, &finished.segments, Now::read());
                let stored = progress.stored_segments(Instant::now());
                return Some(AnswerSegment::said(stored.as_deref(), progress.prompt_text()));
            }
            GenerateEvent::Failed(error) => {
                tracing::debug!("a title is not written: {error}");
                return None;
            }
            GenerateEvent::Prefill { .. } | GenerateEvent::SoFar(_) => {}
        }
    }
}

/// The first line without what models put around a title.
fn cleaned(written: &str) -> String {
    let line = written.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let line = line.trim_start_matches(['#', '-', ' ']);
    let line =
        line.strip_prefix("Title:").or_else(|| line.strip_prefix("**Title:**")).unwrap_or(line);
    let around = ['"', '\'', '*', '_', '`', '“', '”', '„', '«', '»', ' '];
    line.trim_matches(around).trim_end_matches(['.', ' ']).trim_matches(around).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_the_first_line_without_what_stands_around_it() {
        for (written, expected) in [
            ("Keeping sourdough alive", "Keeping sourdough alive"),
            ("\n\n“Keeping sourdough alive”\nAnd more.", "Keeping sourdough alive"),
            ("# Keeping sourdough alive", "Keeping sourdough alive"),
            ("**Title:** \"Keeping sourdough alive\".", "Keeping sourdough alive"),
            ("Title: Keeping sourdough alive.", "Keeping sourdough alive"),
            ("„Sauerteig“", "Sauerteig"),
            ("What is C++?", "What is C++?"),
            (" \n ", ""),
            ("***", ""),
        ] {
            assert_eq!(cleaned(written), expected, "of {written:?}");
        }
    }
}
