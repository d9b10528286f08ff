//! The tree of a conversation: versions, branches, deletions, answers that go on, and what is saved of
//! each branch.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, Conversation, Event, FailureCode, Message, MessageStatus, Reply};
use cairn_tiny_models::copy_tiny_model;
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, answered, bootstrap, check_failure, ended, home_with_model, messages, new_conversation,
    next, open, open_greedy, open_with_one_turn, send, set_for_all,
};
use crate::script::{SHOWS, STRIPS, Script, ids, open_scripted};

const OTHER_MODEL: &str = "tiny-other";

fn regenerate(id: &str, message: Option<&str>, model: Option<&str>) -> Command {
    Command::Regenerate {
        conversation_id: id.to_owned(),
        message_id: message.map(str::to_owned),
        model: model.map(str::to_owned),
    }
}

fn show(id: &str, message: &str) -> Command {
    Command::ShowVersion { conversation_id: id.to_owned(), message_id: message.to_owned() }
}

fn go_on(id: &str, message: &str) -> Command {
    Command::ContinueAnswer { conversation_id: id.to_owned(), message_id: message.to_owned() }
}

fn edit(id: &str, message: &str, text: &str) -> Command {
    Command::EditMessage {
        conversation_id: id.to_owned(),
        message_id: message.to_owned(),
        text: text.to_owned(),
        document_ids: None,
    }
}

fn delete(id: &str, message: &str, with_following: bool) -> Command {
    Command::DeleteMessage {
        conversation_id: id.to_owned(),
        message_id: message.to_owned(),
        with_following,
    }
}

/// Sends a command that starts an answer, and waits for its end.
async fn answer_to(app: &Arc<App>, command: Command) -> Message {
    let mut events = app.subscribe();
    match app.call(command).await.unwrap() {
        Reply::Sent { messages, .. } => ended(&mut events, &messages.last().unwrap().id).await,
        other => panic!("{other:?}"),
    }
}

async fn ids_of(app: &Arc<App>, id: &str) -> Vec<String> {
    messages(app, id).await.into_iter().map(|message| message.id).collect()
}

async fn conversation(app: &Arc<App>, id: &str) -> Conversation {
    bootstrap(app).await.0.into_iter().find(|row| row.id == id).unwrap()
}

async fn branched(events: &mut Receiver<Event>) -> (Option<String>, Vec<Message>) {
    loop {
        if let Event::Branch { after, messages, .. } = next(events).await {
            return (after, messages);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_message_and_the_first_one_both_keep_their_place() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    answered(&app, &id, "and then what happened to all of them?").await;
    let first = messages(&app, &id).await;
    let edited = answer_to(&app, edit(&id, &first[2].id, "no, tell me of the stones")).await;
    let stats = edited.stats.clone().unwrap();
    let before = first[1].stats.clone().unwrap();
    assert!(stats.cached_tokens >= before.prompt_tokens, "{stats:?}");
    let branch = messages(&app, &id).await;
    assert_eq!(branch.len(), 4);
    assert_eq!(branch[..2], first[..2]);
    assert_eq!(branch[2].versions, [first[2].id.clone(), branch[2].id.clone()]);
    assert!(branch[3].versions.is_empty(), "it is the only answer to this version");
    let of_edited = conversation(&app, &id).await.cache.unwrap().cached_tokens;

    let mut events = app.subscribe();
    app.call(show(&id, &first[2].id)).await.unwrap();
    let (after, shown) = branched(&mut events).await;
    assert_eq!(after.as_ref(), Some(&first[1].id), "what both have is not sent again");
    assert_eq!(
        shown.iter().map(|message| &message.id).collect::<Vec<_>>(),
        [&first[2].id, &first[3].id]
    );
    assert_eq!(shown[0].versions.len(), 2);
    // What the window says is about the branch that it shows.
    let last = first[3].stats.clone().unwrap();
    let all = |stats: &cairn_app::wire::MessageStats| stats.prompt_tokens + stats.generation_tokens;
    let cache = conversation(&app, &id).await.cache.unwrap();
    assert!(cache.cached_tokens.abs_diff(all(&last)) <= 1, "{cache:?} of {last:?}");
    assert!(of_edited.abs_diff(all(&stats)) <= 1, "{of_edited} of {stats:?}");
    app.close().await;
    drop(app);

    let app = open_greedy(&home, 8).await;
    assert_eq!(ids_of(&app, &id).await, first.iter().map(|m| m.id.clone()).collect::<Vec<_>>());
    for version in [&first[2].id, &branch[2].id] {
        app.call(show(&id, version)).await.unwrap();
        let read = messages(&app, &id).await.pop().unwrap().stats.unwrap();
        let more = answered(&app, &id, "go on with that").await.stats.unwrap();
        assert!(more.cached_tokens + 1 >= all(&read), "{more:?} after {read:?}");
        assert_eq!(more.cache_note, None);
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_answer_is_written_again_and_what_followed_stays() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    answered(&app, &id, "Two").await;
    let first = messages(&app, &id).await;
    let again = answer_to(&app, regenerate(&id, Some(&first[1].id), None)).await;
    assert_eq!(again.parent_id.as_ref(), Some(&first[0].id));
    assert_eq!(again.versions, [first[1].id.clone(), again.id.clone()]);
    assert_eq!(again.model.as_deref(), Some(MODEL));
    assert_eq!(ids_of(&app, &id).await, [first[0].id.clone(), again.id.clone()]);
    app.call(show(&id, &first[1].id)).await.unwrap();
    assert_eq!(ids_of(&app, &id).await.len(), 4);
    let not_mine = Command::EditMessage {
        conversation_id: id.clone(),
        message_id: first[1].id.clone(),
        text: "x".to_owned(),
        document_ids: None,
    };
    check_failure(&app, not_mine, FailureCode::Invalid, "message").await;
    check_failure(&app, edit(&id, &first[0].id, " "), FailureCode::Invalid, "empty").await;
    check_failure(&app, show(&id, "gone"), FailureCode::NotFound, "message").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_written_again_by_another_model() {
    let home = home_with_model();
    let folder = home.path().join("models").join(OTHER_MODEL);
    copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    let (app, id) = open_with_one_turn(&home).await;
    let first = messages(&app, &id).await.pop().unwrap();
    let unknown = regenerate(&id, Some(&first.id), Some("no-model"));
    check_failure(&app, unknown, FailureCode::NotFound, "no-model").await;
    assert_eq!(messages(&app, &id).await.pop().unwrap(), first, "nothing was begun");
    let other = answer_to(&app, regenerate(&id, Some(&first.id), Some(OTHER_MODEL))).await;
    assert_eq!(other.status, MessageStatus::Complete, "{:?}", other.error);
    assert_eq!(other.model.as_deref(), Some(OTHER_MODEL));
    assert_eq!(other.stats.unwrap().model, OTHER_MODEL);
    let next = answered(&app, &id, "Two").await;
    assert_eq!(next.model.as_deref(), Some(OTHER_MODEL), "it is the model of the chat now");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_as_if_it_had_not_ended() {
    let words = "<think>\nHm, é.\n</think>\n\nSchön: \n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": [1]}}\n</tool_call>\nFin";
    let home = Script::new(SHOWS).then(&ids("QwhyA"), &ids(words)).home();
    let app = open_scripted(&home, 500).await;
    let id = new_conversation(&app).await;
    let whole = answered(&app, &id, "why").await;
    assert!(!whole.can_continue);
    check_failure(&app, go_on(&id, &whole.id), FailureCode::Invalid, "go on").await;
    let all_tokens = whole.stats.clone().unwrap().generation_tokens;
    for at in 1..words.len() as u32 {
        set_for_all(&app, "max_tokens", at).await;
        let part = answer_to(&app, regenerate(&id, None, None)).await;
        assert!(part.can_continue, "after {at} tokens: {part:?}");
        set_for_all(&app, "max_tokens", 500).await;
        let rest = answer_to(&app, go_on(&id, &part.id)).await;
        assert_eq!(
            (&rest.id, rest.status),
            (&part.id, MessageStatus::Complete),
            "{:?}",
            rest.error
        );
        assert_eq!(rest.text, whole.text, "after {at} tokens");
        assert_eq!(rest.segments.len(), whole.segments.len(), "after {at} tokens");
        let stats = rest.stats.clone().unwrap();
        assert_eq!(stats.generation_tokens, all_tokens, "after {at} tokens");
        assert_eq!(stats.prompt_tokens, whole.stats.as_ref().unwrap().prompt_tokens);
        assert_eq!(messages(&app, &id).await.pop().unwrap(), rest);
    }
    let first = messages(&app, &id).await.remove(0);
    check_failure(&app, go_on(&id, &first.id), FailureCode::Invalid, "go on").await;
    app.close().await;
}

const LETTERS: &str = "abcdefghijklmnopq rstuvwxyz,.";

/// Lets an answer that is being written get to some length, then stops it.
async fn stop_at(app: &Arc<App>, id: &str, events: &mut Receiver<Event>, length: usize) -> Message {
    let message = loop {
        let message = messages(app, id).await.pop().unwrap();
        if message.text.len() >= length {
            break message.id;
        }
        next(events).await;
    };
    let mut end = app.subscribe();
    app.call(Command::Stop { conversation_id: id.to_owned() }).await.unwrap();
    loop {
        if let Event::Message { message: found } = next(&mut end).await
            && found.id == message
            && found.status != MessageStatus::Streaming
        {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_answer_goes_on_behind_its_tokens_also_after_a_restart() {
    let home = Script::endless(LETTERS).home();
    let app = open_scripted(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "why").await;
    let first = stop_at(&app, &id, &mut events, 300).await;
    app.close().await;
    drop(app);

    let app = open_scripted(&home, 1_000_000).await;
    let mut events = app.subscribe();
    app.call(go_on(&id, &first.id)).await.unwrap();
    let second = stop_at(&app, &id, &mut events, first.text.len() + 200).await;
    assert!(second.text.starts_with(&first.text), "nothing of it has changed");
    let stats = second.stats.clone().unwrap();
    assert_eq!(stats.generation_tokens as usize, second.text.len(), "a letter is a token");
    assert_eq!((second.status, second.can_continue), (MessageStatus::Stopped, true));
    assert_eq!(messages(&app, &id).await.pop().unwrap(), second);

    // Its model is gone: it stays as it is, and says why.
    std::fs::rename(home.path().join("models/scripted"), home.path().join("elsewhere")).unwrap();
    app.call(Command::UnloadModel).await.unwrap();
    check_failure(&app, go_on(&id, &second.id), FailureCode::NotFound, "scripted").await;
    assert_eq!(messages(&app, &id).await.pop().unwrap(), second);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_chat_continues_the_saved_context_of_the_one_that_it_branches_from() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    answered(&app, &id, "Two").await;
    let first = messages(&app, &id).await;
    let branch = |message: &str, title: &str| Command::BranchConversation {
        conversation_id: id.clone(),
        message_id: message.to_owned(),
        title: title.to_owned(),
    };
    check_failure(&app, branch(&first[1].id, " "), FailureCode::Invalid, "title").await;
    check_failure(&app, branch("gone", "x"), FailureCode::NotFound, "message").await;
    let reply = app.call(branch(&first[1].id, "Another way")).await.unwrap();
    let Reply::Conversation { conversation: copy, messages: copied } = reply else { panic!() };
    assert_eq!(copied.len(), 2);
    assert_eq!(
        (&copied[1].text, copied[1].stats.clone()),
        (&first[1].text, first[1].stats.clone())
    );
    let stats = first[1].stats.clone().unwrap();
    let saved = copy.cache.clone().expect("what is saved is known at once");
    assert!(saved.cached_tokens.abs_diff(stats.prompt_tokens + stats.generation_tokens) <= 1);
    assert_eq!(saved.shared_with.len(), 1, "{saved:?}");
    let more = answered(&app, &copy.id, "Three").await.stats.unwrap();
    assert!(more.cached_tokens >= stats.prompt_tokens + stats.generation_tokens, "{more:?}");
    assert_eq!(messages(&app, &id).await, first, "the first is as it was");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_below_an_answer_that_was_stopped_empty_keeps_what_is_saved() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, &"stone ".repeat(300)).await;
    let stopped = stop_at(&app, &id, &mut events, 0).await;
    assert_eq!((stopped.status, stopped.text.as_str()), (MessageStatus::Stopped, ""));
    let stats = answered(&app, &id, "And then?").await.stats.unwrap();
    let last = messages(&app, &id).await.pop().unwrap().id;
    let branch = Command::BranchConversation {
        conversation_id: id.clone(),
        message_id: last,
        title: "Another way".to_owned(),
    };
    let reply = app.call(branch).await.unwrap();
    let Reply::Conversation { conversation: copy, .. } = reply else { panic!() };
    let saved = copy.cache.expect("what is saved is known at once");
    assert!(saved.cached_tokens + 1 >= stats.prompt_tokens, "{saved:?} of {stats:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_messages_come_back_until_the_app_is_closed() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    answered(&app, &id, "Two").await;
    let first = messages(&app, &id).await;
    let mut events = app.subscribe();
    let reply = app.call(delete(&id, &first[2].id, true)).await.unwrap();
    let Reply::MessagesDeleted { deletion_id, num_messages } = reply else { panic!() };
    assert_eq!(num_messages, 2);
    assert_eq!(branched(&mut events).await, (Some(first[1].id.clone()), Vec::new()));
    assert_eq!(messages(&app, &id).await, first[..2]);
    let restore = Command::RestoreMessages { conversation_id: id.clone(), deletion_id };
    app.call(restore.clone()).await.unwrap();
    assert_eq!(branched(&mut events).await, (Some(first[1].id.clone()), first[2..].to_vec()));
    check_failure(&app, restore, FailureCode::NotFound, "brought back").await;

    // Alone: the answers are one for the model, and what follows stays.
    app.call(delete(&id, &first[2].id, false)).await.unwrap();
    assert_eq!(ids_of(&app, &id).await, [0, 1, 3].map(|index| first[index].id.clone()));
    assert_eq!(answered(&app, &id, "Three").await.status, MessageStatus::Complete);
    let before = ids_of(&app, &id).await;
    app.close().await;
    drop(app);
    let app = open(&home).await;
    assert_eq!(ids_of(&app, &id).await, before);
    check_failure(&app, show(&id, &first[2].id), FailureCode::NotFound, "message").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_conversation_is_answered_its_tree_stays_and_others_do_not_wait() {
    let home = Script::endless(LETTERS).home();
    let app = open_scripted(&home, 20).await;
    let (id, other) = (new_conversation(&app).await, new_conversation(&app).await);
    let done = answered(&app, &id, "why").await;
    answered(&app, &other, "why").await;
    let deleted = answer_to(&app, regenerate(&id, None, None)).await;
    let reply = app.call(delete(&id, &deleted.id, true)).await.unwrap();
    let Reply::MessagesDeleted { deletion_id, .. } = reply else { panic!() };
    set_for_all(&app, "max_tokens", 1_000_000).await;
    let [_, writing] = send(&app, &id, "and").await;
    for command in [
        edit(&id, done.parent_id.as_deref().unwrap(), "x"),
        regenerate(&id, Some(&done.id), None),
        go_on(&id, &done.id),
        show(&id, &done.id),
        delete(&id, &done.id, true),
    ] {
        check_failure(&app, command, FailureCode::Invalid, "still").await;
    }
    let branch = Command::BranchConversation {
        conversation_id: id.clone(),
        message_id: done.id.clone(),
        title: "Aside".to_owned(),
    };
    assert!(matches!(app.call(branch).await.unwrap(), Reply::Conversation { .. }));
    // What was deleted comes back beside what is written, which is not left.
    let restore = Command::RestoreMessages { conversation_id: id.clone(), deletion_id };
    app.call(restore).await.unwrap();
    let now = messages(&app, &id).await;
    assert_eq!(now[1].versions, [done.id.clone(), deleted.id.clone()]);
    assert_eq!((&now[3].id, now[3].status), (&writing.id, MessageStatus::Streaming));

    set_for_all(&app, "max_tokens", 20).await;
    let last = messages(&app, &other).await.pop().unwrap();
    assert_eq!(answer_to(&app, regenerate(&other, Some(&last.id), None)).await.versions.len(), 2);
    assert_eq!(messages(&app, &id).await[3].status, MessageStatus::Streaming);
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_chat_has_branches_too() {
    let home = Script::new(STRIPS).then(&ids("QwhyA"), &ids("Because.")).home();
    let app = open_scripted(&home, 4).await;
    let Reply::Conversation { conversation, .. } =
        app.call(Command::NewPrivateConversation).await.unwrap()
    else {
        panic!()
    };
    let id = conversation.id;
    let part = answered(&app, &id, "why").await;
    set_for_all(&app, "max_tokens", 100).await;
    assert_eq!(answer_to(&app, go_on(&id, &part.id)).await.text, "Because.");
    let branch = Command::BranchConversation {
        conversation_id: id.clone(),
        message_id: part.id.clone(),
        title: "Aside".to_owned(),
    };
    let Reply::Conversation { conversation: copy, .. } = app.call(branch).await.unwrap() else {
        panic!()
    };
    assert!(copy.is_private && copy.cache.is_none());
    app.call(delete(&id, &part.id, true)).await.unwrap();
    assert_eq!(ids_of(&app, &id).await.len(), 1);
    app.close().await;
    drop(app);
    let app = open(&home).await;
    assert!(bootstrap(&app).await.0.is_empty(), "nothing of it was written");
    app.close().await;
}
