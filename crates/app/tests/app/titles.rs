//! Titles that the model writes.

use cairn_app::wire::{Command, Event};

use crate::kit::{answered, bootstrap, conversation, new_conversation, next, set_for_all};
use crate::script::{STRIPS, Script, ids, open_scripted};

const PROMPT: &str = "Write a title of at most six words for the conversation below, in its language. \
    Answer with the title only, without quotation marks.\n\nQuestion:\nwhy\n\nAnswer:\nBecause.";

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_whose_question_has_no_word_has_messages_and_no_title() {
    let home = Script::new(STRIPS).then(&ids("Q\u{2}A"), &ids("What?")).home();
    let app = open_scripted(&home, 100).await;
    let id = new_conversation(&app).await;
    let row = async || conversation(&app, &id).await;
    assert!(!row().await.has_messages);
    answered(&app, &id, "\u{2}").await;
    let row = row().await;
    assert_eq!((row.title.as_str(), row.has_messages), ("", true));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_writes_a_title_when_that_is_wanted_and_a_persons_own_stays() {
    let asked = format!("Q{PROMPT}A");
    let home = Script::new(STRIPS)
        .then(&ids("QwhyA"), &ids("Because."))
        .then(&ids(&asked), &ids("\"On stones.\""))
        .home();
    let app = open_scripted(&home, 100).await;
    let title_of = async |id: &str| {
        let (rows, ..) = bootstrap(&app).await;
        rows.into_iter().find(|row| row.id == id).unwrap()
    };
    // By default it is the first line.
    let by_line = new_conversation(&app).await;
    answered(&app, &by_line, "why").await;
    assert_eq!(title_of(&by_line).await.title, "why");

    set_for_all(&app, "titles_by_model", true).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    answered(&app, &id, "why").await;
    let named = loop {
        if let Event::Conversation { conversation } = next(&mut events).await
            && conversation.id == id
            && conversation.title != "why"
            && !conversation.title.is_empty()
        {
            break conversation;
        }
    };
    assert_eq!(named.title, "On stones");

    // A person's own title is not replaced, not even one that is the first line.
    let mine = new_conversation(&app).await;
    let rename =
        |title: &str| Command::RenameConversation { id: mine.clone(), title: title.to_owned() };
    app.call(rename("Mine")).await.unwrap();
    answered(&app, &mine, "why").await;
    // The title of a later chat is written after it would have been.
    let last = new_conversation(&app).await;
    let mut events = app.subscribe();
    let whole = answered(&app, &last, "why").await;
    loop {
        if let Event::Conversation { conversation } = next(&mut events).await
            && conversation.id == last
            && conversation.title == "On stones"
        {
            break;
        }
    }
    assert_eq!(title_of(&mine).await.title, "Mine");

    // The chat goes on from what it had read: a title is a prompt of its own.
    let more = answered(&app, &last, "why").await.stats.unwrap();
    let read = whole.stats.unwrap();
    assert!(more.cached_tokens + 1 >= read.prompt_tokens + read.generation_tokens, "{more:?}");
    app.close().await;
}
