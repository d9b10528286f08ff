//! The segments of answers: what a person sees of them, what is stored, and what later prompts get.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{AnswerSegment, CallOutcome, Message, MessageStatus};

use crate::kit::{answered, database, messages, new_conversation, open, set_for_all};
use crate::script::{END_THINK, SHOWS, START, STRIPS, Script, THINK, ids, open_scripted};

/// A second question that is long enough for a [`Script`].
const NEXT: &str = "and what else is there to be said about it?";
const CALL: &str = "{\"name\": \"look\", \"arguments\": {\"at\": [1]}}";

fn thought(segment: &AnswerSegment) -> &str {
    match segment {
        AnswerSegment::Reasoning { text, duration_ms: Some(_), .. } => text,
        other => panic!("{other:?} is no reasoning that has ended"),
    }
}

fn said(text: &str) -> AnswerSegment {
    AnswerSegment::Text { text: text.to_owned() }
}

fn call(outcome: CallOutcome, arguments: &str, raw: &str) -> AnswerSegment {
    AnswerSegment::ToolCall {
        name: Some("look".to_owned()),
        arguments: arguments.to_owned(),
        outcome: Some(outcome),
        raw: raw.to_owned(),
    }
}

/// The texts of all answers as they are stored.
async fn stored_texts(home: &tempfile::TempDir) -> Vec<String> {
    let database = database(home).await;
    let texts = "select text from messages where role = 'assistant' order by seq";
    let texts = sqlx::query_scalar(texts).fetch_all(&database).await.unwrap();
    database.close().await;
    texts
}

/// Reads and answers one question in a new conversation.
async fn one_answer(app: &Arc<App>) -> (String, Message) {
    let id = new_conversation(app).await;
    let answer = answered(app, &id, "why").await;
    (id, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_stored_with_the_segments_that_were_shown() {
    let words = format!("<think>\nHm, é.\n</think>\n\nLook: \n<tool_call>\n{CALL}\n</tool_call>\n");
    let home = Script::new(STRIPS).then(&ids("QwhyA"), &ids(&words)).home();
    let app = open_scripted(&home, 500).await;
    let (id, answer) = one_answer(&app).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    assert_eq!(thought(&answer.segments[0]), "Hm, é.");
    let whole = call(CallOutcome::Complete, "{\"at\": [1]}", CALL);
    assert_eq!(answer.segments[1..], [said("Look: "), whole]);
    assert_eq!(answer.text, "Look: ");
    assert_eq!(messages(&app, &id).await[1], answer);
    app.close().await;
    drop(app);
    assert_eq!(stored_texts(&home).await, [words], "later prompts get all of it");
    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await[1], answer, "after a restart");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_answer_is_its_text() {
    let home = Script::new(STRIPS).then(&ids("QwhyA"), &ids("Because.\n")).home();
    let app = open_scripted(&home, 500).await;
    let (id, answer) = one_answer(&app).await;
    assert_eq!(answer.segments, [said("Because.\n")]);
    app.close().await;
    let database = database(&home).await;
    let num_segments = "select count(segments) from messages";
    let num: i64 = sqlx::query_scalar(num_segments).fetch_one(&database).await.unwrap();
    assert_eq!(num, 0, "nothing is stored twice");
    // Segments of a version that knows others.
    let unknown =
        r#"update messages set segments = '[{"kind":"picture"}]' where role = 'assistant'"#;
    sqlx::query(unknown).execute(&database).await.unwrap();
    database.close().await;
    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await[1], answer, "what cannot be read hides no text");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_has_nothing_open_and_no_half_character() {
    async fn check(words: &str, max_tokens: u32, expected: &[AnswerSegment]) {
        let home = Script::new(STRIPS).then(&ids("QwhyA"), &ids(words)).home();
        let app = open_scripted(&home, max_tokens).await;
        let (id, answer) = one_answer(&app).await;
        let is_thought = matches!(answer.segments[0], AnswerSegment::Reasoning { .. });
        assert_eq!(answer.segments[usize::from(is_thought)..], *expected, "{words:?}");
        if is_thought {
            thought(&answer.segments[0]);
        }
        app.close().await;
        drop(app);
        let app = open(&home).await;
        assert_eq!(messages(&app, &id).await[1], answer, "{words:?} after a restart");
        app.close().await;
    }
    check("caf\u{e9}s", 4, &[said("caf")]).await;
    check("caf\u{e9}s", 5, &[said("caf\u{e9}")]).await;
    check("<think>\ncaf\u{e9}s", 12, &[]).await;
    let cut = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": [1]}}\n</tool_call>";
    let length = cut.find("1]").unwrap() as u32 + 1;
    let raw = &cut[12..length as usize];
    check(cut, length, &[call(CallOutcome::Unfinished, "{\"at\": [1", raw)]).await;
    let bad = "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": oops}}\n</tool_call>";
    let raw = "{\"name\": \"look\", \"arguments\": {\"at\": oops}}\n";
    check(bad, 500, &[call(CallOutcome::Malformed, "{\"at\": ", raw)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_are_not_shown() {
    let mut words = ids("So it is.");
    words.insert(3, START);
    words.insert(0, START);
    let home = Script::new(STRIPS).then(&ids("QwhyA"), &words).home();
    let app = open_scripted(&home, 500).await;
    assert_eq!(one_answer(&app).await.1.segments, [said("So it is.")]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_after_reasoning_reuses_what_the_template_leaves() {
    let first = "<think>\nHm.\n</think>\n\nYes.";
    let second_prompt = &format!("QwhyA\n\nYes.Q{NEXT}A");
    let third_prompt = format!("{second_prompt}No.Qso?A");
    let home = Script::new(STRIPS)
        .then(&ids("QwhyA"), &ids(first))
        .then(&ids(second_prompt), &ids("No."))
        .then(&ids(&third_prompt), &ids("Ah."))
        .home();
    let app = open_scripted(&home, 500).await;
    let (id, answer) = one_answer(&app).await;
    assert_eq!(answer.text, "Yes.");
    for (question, expected, prompt, num_reused) in [
        (NEXT, "No.", second_prompt, "QwhyA".len()),
        ("so?", "Ah.", &third_prompt, second_prompt.len() + "No.".len()),
    ] {
        let answer = answered(&app, &id, question).await;
        assert_eq!(answer.text, expected, "{question}");
        let stats = answer.stats.unwrap();
        assert_eq!(stats.prompt_tokens as usize, prompt.len(), "{question}");
        assert_eq!(stats.cached_tokens as usize, num_reused, "{question}");
        // What is read is what the template has changed, so nothing was lost.
        assert_eq!(stats.cache_note, None, "{question}");
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_after_reasoning_that_the_template_shows_reuses_all_of_it() {
    let first = "<think>\nHm.\n</think>\n\nYes.";
    let second_prompt = ids(&format!("QwhyA{first}Q{NEXT}A"));
    let home = Script::new(SHOWS)
        .then(&ids("QwhyA"), &ids(first))
        .then(&second_prompt, &ids("No."))
        .home();
    let app = open_scripted(&home, 500).await;
    let (id, answer) = one_answer(&app).await;
    let answer_stats = answer.stats.unwrap();
    let second = answered(&app, &id, NEXT).await;
    assert_eq!(second.text, "No.");
    let stats = second.stats.unwrap();
    let all = answer_stats.prompt_tokens + answer_stats.generation_tokens;
    assert!(stats.cached_tokens >= all, "{} of {all}", stats.cached_tokens);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_between_special_tokens_does_not_become_the_answer_of_later_prompts() {
    let mut first = vec![THINK];
    first.extend(ids("Hm."));
    first.push(END_THINK);
    first.extend(ids("Yes."));
    let second_prompt = ids(&format!("QwhyAYes.Q{NEXT}A"));
    let home = Script::new(SHOWS)
        .with_special_markers()
        .then(&ids("QwhyA"), &first)
        .then(&second_prompt, &ids("No."))
        .home();
    let app = open_scripted(&home, 500).await;
    let (id, answer) = one_answer(&app).await;
    assert_eq!(thought(&answer.segments[0]), "Hm.");
    assert_eq!(answer.segments[1..], [said("Yes.")]);
    let second = answered(&app, &id, NEXT).await;
    assert_eq!(second.text, "No.");
    assert_eq!(second.stats.unwrap().prompt_tokens as usize, second_prompt.len());
    app.close().await;
    assert_eq!(stored_texts(&home).await, ["Yes.", "No."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_comes_in_the_middle_sees_the_segments_so_far() {
    // A script that never closes its reasoning.
    let home = Script::endless("abcdefghijklmnopq rstuvwxyz,.").home();
    let app = open_scripted(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [_, sent] = crate::kit::send(&app, &id, "why").await;
    assert_eq!(sent.segments, []);
    while messages(&app, &id).await[1].text.len() < 100 {
        crate::kit::next(&mut events).await;
    }
    let live = messages(&app, &id).await.pop().unwrap();
    assert_eq!(live.segments, [said(&live.text)]);
    set_for_all(&app, "max_tokens", 1).await;
    app.close().await;
}
