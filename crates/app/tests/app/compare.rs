//! Two answers to one question beside each other.

use std::sync::Arc;

use cairn_app::wire::{
    ChatModelSource, Command, CompareColumn, EngineState, Event, FailureCode, Message,
    MessageStatus, Reply,
};
use cairn_app::{App, Options};
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, PATIENCE, answered, check_failure, choose_model, conversation, home_with_model,
    messages, new_conversation, next, open_greedy, open_with_one_turn, options, set_for_all, until,
};
use crate::model_settings::{add_model, wide_heads};
use crate::script::{self, Script, open_scripted};

const OTHER_MODEL: &str = "wide";

fn column(model: Option<&str>, temperature: Option<f64>) -> CompareColumn {
    CompareColumn { model: model.map(str::to_owned), temperature, seed: None, thinking: None }
}

fn compare(id: &str, text: Option<&str>, columns: [CompareColumn; 2]) -> Command {
    Command::Compare {
        conversation_id: id.to_owned(),
        message_id: None,
        text: text.map(str::to_owned),
        columns: columns.to_vec(),
    }
}

fn choose(id: &str, message: &str) -> Command {
    Command::ChooseAnswer { conversation_id: id.to_owned(), message_id: message.to_owned() }
}

/// Begins a comparison; the two answers.
async fn begin(app: &Arc<App>, command: Command) -> [Message; 2] {
    match app.call(command).await.unwrap() {
        Reply::Compared { mut messages, conversation } => {
            assert!(conversation.is_streaming);
            let answers = messages.split_off(messages.len() - 2);
            answers.try_into().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Receives events until both answers have ended. The first one's are those of the branch on screen, the
/// second one's are beside it.
async fn both_ended(events: &mut Receiver<Event>, answers: &[Message; 2]) -> [Message; 2] {
    let mut ended: [Option<Message>; 2] = [None, None];
    while ended.iter().any(Option::is_none) {
        let (index, event) = match next(events).await {
            Event::Beside { event } => (1, *event),
            event => (0, event),
        };
        let about = match &event {
            Event::Segment { message_id, .. }
            | Event::Delta { message_id, .. }
            | Event::Prefill { message_id, .. } => message_id,
            Event::Message { message } => &message.id,
            _ => continue,
        };
        assert!(*about != answers[1 - index].id, "{event:?}");
        if let Event::Message { message } = event
            && message.id == answers[index].id
            && message.status != MessageStatus::Streaming
        {
            ended[index] = Some(message);
        }
    }
    ended.map(Option::unwrap)
}

async fn versions(app: &Arc<App>, id: &str, of: &[Message; 2]) -> Vec<Message> {
    let message_ids = of.iter().map(|message| message.id.clone()).collect();
    let get = Command::GetVersions { conversation_id: id.to_owned(), message_ids };
    match app.call(get).await.unwrap() {
        Reply::Versions { messages } => messages,
        other => panic!("{other:?}"),
    }
}

/// Waits until this model is the one that new chats begin with.
async fn model_is(app: &Arc<App>, name: &str) {
    let until = tokio::time::Instant::now() + PATIENCE;
    let mut events = app.subscribe();
    loop {
        let reply = app.call(Command::GetStatus).await.unwrap();
        let Reply::Status { status } = reply else { panic!("{reply:?}") };
        if matches!(&status.engine, EngineState::Ready { model } if model == name) {
            return;
        }
        tokio::time::timeout_at(until, events.recv()).await.expect("the model").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_answer_beside_each_other_and_both_keep_their_place() {
    let home = home_with_model();
    add_model(&home, OTHER_MODEL, wide_heads);
    let (app, id) = open_with_one_turn(&home).await;
    let first = messages(&app, &id).await;
    let mut events = app.subscribe();
    let columns = [column(None, None), column(Some(OTHER_MODEL), None)];
    let begun = begin(&app, compare(&id, Some("Tell me of the stones"), columns)).await;
    let ended = both_ended(&mut events, &begun).await;
    for (answer, model) in ended.iter().zip([MODEL, OTHER_MODEL]) {
        assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
        assert_eq!(answer.model.as_deref(), Some(model));
        assert_eq!(answer.versions, begun.clone().map(|message| message.id));
    }
    assert_eq!(versions(&app, &id, &begun).await, ended);
    let branch = messages(&app, &id).await;
    assert_eq!((&branch[..2], branch.len()), (&first[..], 4));
    assert_eq!(branch[3], ended[0], "the first is the branch on screen");

    let mut events = app.subscribe();
    app.call(choose(&id, &begun[1].id)).await.unwrap();
    let is_shown = |event| {
        matches!(event, Event::Branch { messages, .. } if messages == ended[1..]).then_some(())
    };
    until(&mut events, is_shown).await;
    let model = conversation(&app, &id).await.model;
    assert_eq!((model.name.as_deref(), model.source), (Some(OTHER_MODEL), ChatModelSource::Answer));
    model_is(&app, MODEL).await;
    assert_eq!(messages(&app, &id).await[3], ended[1]);
    // What was chosen in the chat becomes the model of the answer that it goes on with.
    choose_model(&app, &id, Some(OTHER_MODEL)).await;
    app.call(choose(&id, &begun[0].id)).await.unwrap();
    let model = conversation(&app, &id).await.model;
    assert_eq!((model.name.as_deref(), model.source), (Some(MODEL), ChatModelSource::Chat));
    choose_model(&app, &id, None).await;
    app.close().await;
    drop(app);

    // Nothing is read again, whichever goes on, and also after a restart.
    let app = open_greedy(&home, 8).await;
    for answer in [&ended[1], &ended[0]] {
        let show =
            Command::ShowVersion { conversation_id: id.clone(), message_id: answer.id.clone() };
        app.call(show).await.unwrap();
        let more = answered(&app, &id, "Go on").await;
        let (read, stats) = (answer.stats.clone().unwrap(), more.stats.unwrap());
        assert_eq!(stats.model, read.model);
        let before = read.prompt_tokens + read.generation_tokens;
        assert!(stats.cached_tokens + 1 >= before, "{stats:?} after {read:?}");
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_compared_too_and_an_unfinished_answer_can_be_chosen() {
    let home = Script::endless("abcdefghijklmnopq rstuvwxyz,.").home();
    let app = open_scripted(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let columns = || [column(None, Some(0.0)), column(None, Some(1.5))];
    let begun = begin(&app, compare(&id, Some("why"), columns())).await;
    // Both are being written at once.
    loop {
        let now = versions(&app, &id, &begun).await;
        if now.iter().all(|message| message.text.len() > 20) {
            break;
        }
        next(&mut events).await;
    }
    let more = Command::SendMessage { conversation_id: id.clone(), text: "and".to_owned() };
    check_failure(&app, more.clone(), FailureCode::Invalid, "still").await;

    // The second is chosen while it is written: the first stops, the second is on screen from now on.
    let mut events = app.subscribe();
    app.call(choose(&id, &begun[1].id)).await.unwrap();
    let now = versions(&app, &id, &begun).await;
    assert_eq!(now[0].status, MessageStatus::Stopped);
    assert_eq!(now[1].status, MessageStatus::Streaming);
    assert_eq!(messages(&app, &id).await[1].id, begun[1].id);
    let mut is_shown = false;
    loop {
        match next(&mut events).await {
            Event::Branch { messages, .. } => is_shown = messages[0].id == begun[1].id,
            Event::Delta { message_id, .. } if is_shown => {
                assert_eq!(message_id, begun[1].id);
                break;
            }
            Event::Beside { event } => assert!(!is_shown, "{event:?}"),
            _ => {}
        }
    }
    check_failure(&app, more, FailureCode::Invalid, "still").await;
    let stop = Command::StopAnswer { conversation_id: id.clone(), message_id: begun[1].id.clone() };
    app.call(stop).await.unwrap();
    loop {
        if let Event::Message { message } = next(&mut events).await
            && message.status == MessageStatus::Stopped
            && message.id == begun[1].id
        {
            break;
        }
    }
    let kept = versions(&app, &id, &begun).await;
    assert!(kept.iter().all(|message| message.text.len() > 20), "nothing is lost");
    app.close().await;
}

async fn loaded(app: &Arc<App>) -> Vec<String> {
    match app.call(Command::GetStatus).await.unwrap() {
        Reply::Status { status } => status.models.into_iter().map(|model| model.name).collect(),
        other => panic!("{other:?}"),
    }
}

/// With room for one model only, the second answer begins when the first has ended, each time.
#[tokio::test(flavor = "multi_thread")]
async fn models_that_do_not_fit_together_answer_one_after_the_other() {
    const GB: u64 = 1_000_000_000;
    let home = Script::endless("abcdefghijklmnopq rstuvwxyz,.").home();
    script::add_claiming(&home, OTHER_MODEL, GB);
    let options = Options { memory_limit_bytes: Some(GB * 3 / 2), ..options(home.path()) };
    let app = App::open(options).await.unwrap();
    set_for_all(&app, "temperature", 0.0).await;
    set_for_all(&app, "max_tokens", 40).await;
    set_for_all(&app, "holds_loops", false).await;
    set_for_all(&app, "cache_budget_bytes", 1_u64 << 30).await;
    app.call(Command::LoadModel { name: script::MODEL.to_owned() }).await.unwrap();
    let id = new_conversation(&app).await;
    answered(&app, &id, &"a long story ".repeat(20)).await;

    let mut before: Option<Vec<Message>> = None;
    for question in ["and why?", "and then?", "and after that?"] {
        let mut events = app.subscribe();
        let columns = [column(Some(script::MODEL), None), column(Some(OTHER_MODEL), None)];
        let command = match &before {
            None => compare(&id, Some(question), columns),
            Some(both) => Command::AskBoth {
                conversation_id: id.clone(),
                message_ids: both.iter().map(|answer| answer.id.clone()).collect(),
                text: question.to_owned(),
                columns: columns.to_vec(),
            },
        };
        let begun = begin(&app, command).await;
        let mut has_first_ended = false;
        let ended = loop {
            match next(&mut events).await {
                Event::Beside { event } => match *event {
                    Event::Delta { .. } | Event::Segment { .. } => {
                        assert!(has_first_ended, "the second waits for the memory of the first");
                    }
                    Event::Message { message } if message.status != MessageStatus::Streaming => {
                        break message;
                    }
                    _ => {}
                },
                Event::Message { message }
                    if message.id == begun[0].id && message.status != MessageStatus::Streaming =>
                {
                    assert_eq!(message.status, MessageStatus::Complete, "{:?}", message.error);
                    has_first_ended = true;
                }
                _ => {}
            }
            assert!(loaded(&app).await.len() < 2, "two models would need 2 GB of 1.5 GB");
        };
        assert_eq!(ended.status, MessageStatus::Complete, "{:?}", ended.error);
        let both = versions(&app, &id, &begun).await;
        let models: Vec<_> = both.iter().map(|answer| answer.model.as_deref()).collect();
        assert_eq!(models, [Some(script::MODEL), Some(OTHER_MODEL)]);

        // A later question reads on from each one's own answer, although its model had to leave.
        for (now, earlier) in both.iter().zip(before.iter().flatten()) {
            let (read, stats) = (earlier.stats.clone().unwrap(), now.stats.clone().unwrap());
            let until = read.prompt_tokens + read.generation_tokens;
            assert!(stats.cached_tokens + 1 >= until, "{stats:?} after {read:?}");
        }
        before = Some(both);
    }
    // Each can be chosen, and goes on from its own place.
    let both = before.unwrap();
    for answer in [&both[1], &both[0]] {
        app.call(choose(&id, &answer.id)).await.unwrap();
        let name = answer.model.clone().unwrap();
        app.call(Command::LoadModel { name: name.clone() }).await.unwrap();
        assert_eq!(loaded(&app).await, std::slice::from_ref(&name));
        let branch = messages(&app, &id).await;
        let questions: Vec<&str> =
            branch[2..].iter().step_by(2).map(|message| message.text.as_str()).collect();
        assert_eq!(questions, ["and why?", "and then?", "and after that?"]);
        let written = branch[3..].iter().step_by(2);
        assert!(written.clone().all(|message| message.model == answer.model), "{branch:?}");
        let more = answered(&app, &id, "go on").await;
        let (read, stats) = (answer.stats.clone().unwrap(), more.stats.unwrap());
        assert_eq!(stats.model, name);
        let until = read.prompt_tokens + read.generation_tokens;
        assert!(stats.cached_tokens + 1 >= until, "{stats:?} after {read:?}");
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_that_cannot_be_is_refused_before_anything_is_saved() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let before = messages(&app, &id).await;
    let both = || [column(None, None), column(None, None)];
    let check = async |command: Command, code: FailureCode, named: &str| {
        check_failure(&app, command, code, named).await;
        assert_eq!(messages(&app, &id).await, before);
    };
    check(compare(&id, Some(" "), both()), FailureCode::Invalid, "empty").await;
    let unknown = [column(None, None), column(Some("no-model"), None)];
    check(compare(&id, None, unknown), FailureCode::NotFound, "no-model").await;
    let hot = [column(None, Some(3.0)), column(None, None)];
    check(compare(&id, None, hot), FailureCode::Invalid, "temperature").await;
    let one = Command::Compare {
        conversation_id: id.clone(),
        message_id: None,
        text: None,
        columns: vec![column(None, None)],
    };
    check(one, FailureCode::Invalid, "two").await;
    check(choose(&id, "gone"), FailureCode::NotFound, "message").await;
    let empty = new_conversation(&app).await;
    check(compare(&empty, None, both()), FailureCode::Invalid, "no message").await;
    app.close().await;
}
