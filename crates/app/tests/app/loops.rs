//! Answers that repeat themselves: they are held until a person has chosen.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, Event, Message, MessageStatus};
use tokio::sync::broadcast::Receiver;

use crate::kit::{ended, messages, new_conversation, next, open, options, send, set_for_all};
use crate::script::{Script, open_scripted};

/// What the script says after “QwhyA”, again and again.
fn said(script: &str, num_letters: usize) -> String {
    let tokens: Vec<u32> = script.bytes().map(u32::from).collect();
    let mut sum: u32 = "QwhyA".bytes().map(u32::from).sum();
    let mut text = String::new();
    for _ in 0..num_letters {
        let next = tokens[sum as usize % tokens.len()];
        text.push(char::from(u8::try_from(next).unwrap()));
        sum += next;
    }
    text
}

const SCRIPT: &str = "abcdefghijklmnopq rstuvwxyz,.";

async fn open_holding(home: &tempfile::TempDir) -> Arc<App> {
    let app = open_scripted(home, 1_000_000).await;
    set_for_all(&app, "holds_loops", true).await;
    app
}

/// Waits until the answer is held; returns it as it is then.
async fn held(events: &mut Receiver<Event>) -> Message {
    loop {
        if let Event::Message { message } = next(events).await
            && message.is_held
        {
            return message;
        }
    }
}

async fn go_on(app: &Arc<App>, id: &str) {
    app.call(Command::GoOn { conversation_id: id.to_owned() }).await.unwrap();
}

async fn new_private(app: &Arc<App>) -> String {
    match app.call(Command::NewPrivateConversation).await.unwrap() {
        cairn_app::wire::Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_repeats_itself_is_held_goes_on_and_is_stopped() {
    let home = Script::endless(SCRIPT).home();
    let app = open_holding(&home).await;
    for is_private in [false, true] {
        let id = match is_private {
            true => new_private(&app).await,
            false => new_conversation(&app).await,
        };
        let mut events = app.subscribe();
        let mut all_events = app.subscribe();
        let [_, answer] = send(&app, &id, "why").await;
        let first = held(&mut events).await;
        assert_eq!((&first.id, first.status), (&answer.id, MessageStatus::Streaming));
        assert_eq!(messages(&app, &id).await[1], first, "a reader sees that it is held");
        assert!((600..2000).contains(&first.text.len()), "{}", first.text.len());

        // Twice, as by a double click: it is held again all the same.
        go_on(&app, &id).await;
        go_on(&app, &id).await;
        let second = held(&mut events).await;
        let more = second.text.len() - first.text.len();
        assert!((1200..4000).contains(&more), "{more} letters more");
        app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
        let stopped = ended(&mut all_events, &answer.id).await;
        assert_eq!((stopped.status, stopped.is_held), (MessageStatus::Stopped, false));
        assert_eq!(stopped.text, said(SCRIPT, stopped.text.len()), "nothing is lost or twice");
        let stats = stopped.stats.clone().unwrap();
        assert_eq!(stats.generation_tokens as usize, stopped.text.len());
        assert_eq!((stats.prompt_tokens, stats.finish_reason.as_str()), (5, "cancelled"));
        assert_eq!(messages(&app, &id).await[1], stopped);
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_answer_counts_all_of_its_tokens_against_the_limit() {
    let home = Script::endless(SCRIPT).home();
    let app = open_holding(&home).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let mut all_events = app.subscribe();
    set_for_all(&app, "max_tokens", 1500).await;
    let [_, answer] = send(&app, &id, "why").await;
    held(&mut events).await;
    go_on(&app, &id).await;
    let ended = ended(&mut all_events, &answer.id).await;
    assert_eq!(ended.status, MessageStatus::Complete, "{:?}", ended.error);
    assert_eq!(ended.text, said(SCRIPT, 1500));
    assert_eq!(ended.stats.unwrap().finish_reason, "length");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_answer_is_interrupted_by_a_crash_and_by_closing() {
    let home = Script::endless(SCRIPT).home();
    let app = open_holding(&home).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "why").await;
    let shown = held(&mut events).await;
    // What another process would find after a crash. The save begins when the answer is held.
    let crashed = loop {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(home.path()).unwrap() {
            let entry = entry.unwrap();
            let is_file = entry.file_type().unwrap().is_file();
            if is_file && entry.file_name().to_string_lossy().starts_with("cairn.db") {
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
        }
        let other = App::open(options(copy.path())).await.unwrap();
        let found = messages(&other, &id).await.pop().unwrap();
        other.close().await;
        if found.text == shown.text {
            break found;
        }
    };
    assert_eq!((crashed.status, crashed.is_held), (MessageStatus::Interrupted, false));

    app.close().await;
    drop(app);
    let app = open(&home).await;
    let closed = messages(&app, &id).await.pop().unwrap();
    assert_eq!((closed.status, closed.is_held), (MessageStatus::Interrupted, false));
    assert_eq!(closed.text, shown.text);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_not_held_where_the_settings_say_so() {
    let home = Script::endless(SCRIPT).home();
    let app = open_scripted(&home, 3000).await;
    let id = new_conversation(&app).await;
    let answer = crate::kit::answered(&app, &id, "why").await;
    assert_eq!((answer.status, answer.text.len()), (MessageStatus::Complete, 3000));
    app.close().await;
}
