//! Answers: sending a message, regenerating, stopping, and what is saved of each.

use cairn_app::wire::{
    AnswerSegment, Command, Event, FailureCode, MessageStatus, Reply, Role, SettingTarget,
};

use crate::kit::{
    MODEL, answered, bootstrap, check_failure, ended, home_with_model, messages, new_conversation,
    next, open, open_greedy, send, set_for_all,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_emitted_and_saved() {
    let home = home_with_model();
    let app = open_greedy(&home, 24).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [question, answer] = send(&app, &id, "Hello, stones").await;
    assert_eq!(
        (question.role, question.status, question.text.as_str()),
        (Role::User, MessageStatus::Complete, "Hello, stones")
    );
    assert_eq!(
        (answer.role, answer.status, answer.parent_id.as_ref()),
        (Role::Assistant, MessageStatus::Streaming, Some(&question.id))
    );

    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let stats = answer.stats.clone().unwrap();
    assert_eq!(stats.model, MODEL);
    assert!(
        stats.prompt_tokens > 0 && stats.generation_tokens > 0 && stats.generation_tokens <= 24,
        "{stats:?}"
    );
    assert!(stats.process_bytes > 0 && stats.process_peak_bytes > 0, "{stats:?}");
    assert_eq!(messages(&app, &id).await, [question, answer]);
    let conversations = bootstrap(&app).await.0;
    assert_eq!(
        conversations.iter().map(|c| (c.title.as_str(), c.is_streaming)).collect::<Vec<_>>(),
        [("Hello, stones", false)]
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_resumes_from_its_cache_after_a_restart() {
    let home = home_with_model();
    let app = open_greedy(&home, 24).await;
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "One").await;
    let before = messages(&app, &id).await;
    app.close().await;
    drop(app);

    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await, before);
    assert_eq!(bootstrap(&app).await.1.max_tokens, 24, "the settings are saved");
    let second = answered(&app, &id, "Two").await;
    assert_eq!(second.status, MessageStatus::Complete, "{:?}", second.error);
    let (first, second) = (first.stats.unwrap(), second.stats.unwrap());
    assert!(second.prompt_tokens > first.prompt_tokens + first.generation_tokens, "{second:?}");
    assert!(second.cached_tokens >= first.prompt_tokens, "{second:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_regenerated_answer_is_a_sibling_of_the_first() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "Again").await;
    let mut events = app.subscribe();
    let reply = app.call(Command::regenerate(&id)).await.unwrap();
    let Reply::Sent { messages: sent, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(sent.len(), 1);
    let second = ended(&mut events, &sent[0].id).await;
    assert_eq!(second.parent_id, first.parent_id);
    assert_eq!(second.text, first.text, "greedy answers repeat");
    let branch: Vec<_> = messages(&app, &id).await.into_iter().map(|message| message.id).collect();
    assert_eq!(branch, [first.parent_id.unwrap(), second.id]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_answer_keeps_its_text_and_the_conversation_continues() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, "Tell me everything").await;
    let received = loop {
        if let Event::Segment { segment: AnswerSegment::Text { text }, .. } =
            next(&mut events).await
        {
            break text;
        }
    };
    for command in [
        Command::SendMessage { conversation_id: id.clone(), text: "more".to_owned() },
        Command::regenerate(&id),
        Command::PurgeConversation { id: id.clone() },
    ] {
        check_failure(&app, command, FailureCode::Invalid, "still").await;
    }
    let live = messages(&app, &id).await;
    assert_eq!(live[1].status, MessageStatus::Streaming);
    assert!(live[1].text.starts_with(&received));
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();
    let stopped = loop {
        match next(&mut events).await {
            Event::Message { message }
                if message.id == answer.id && message.status != MessageStatus::Streaming =>
            {
                break message;
            }
            _ => {}
        }
    };
    assert_eq!(stopped.status, MessageStatus::Stopped);
    assert!(stopped.text.starts_with(&live[1].text));
    assert_eq!(messages(&app, &id).await[1], stopped);
    app.call(Command::Stop { conversation_id: id.clone() }).await.unwrap();

    set_for_all(&app, "max_tokens", 4).await;
    assert_eq!(answered(&app, &id, "Go on").await.status, MessageStatus::Complete);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_several_conversations_wait_for_each_other() {
    let home = home_with_model();
    let app = open_greedy(&home, 64).await;
    let ids =
        [new_conversation(&app).await, new_conversation(&app).await, new_conversation(&app).await];
    let mut events = app.subscribe();
    let mut answers = Vec::new();
    // The answer that is to be stopped goes on for as long as the model's context lasts.
    for (id, max_tokens) in ids.iter().zip([64, 1_000_000, 64]) {
        let set = Command::SetSetting {
            scope: SettingTarget::Chat { id: id.clone() },
            key: "max_tokens".to_owned(),
            value: max_tokens.into(),
        };
        app.call(set).await.unwrap();
        answers.push(send(&app, id, "Hello").await[1].id.clone());
    }
    app.call(Command::Stop { conversation_id: ids[1].clone() }).await.unwrap();
    let mut ended = Vec::new();
    while ended.len() < 3 {
        if let Event::Message { message } = next(&mut events).await
            && message.role == Role::Assistant
            && message.status != MessageStatus::Streaming
        {
            ended.push((message.id, message.status));
        }
    }
    let status_of = |id: &String| ended.iter().find(|(ended, _)| ended == id).unwrap().1;
    assert_eq!(
        answers.iter().map(status_of).collect::<Vec<_>>(),
        [MessageStatus::Complete, MessageStatus::Stopped, MessageStatus::Complete]
    );
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_saved_is_retried_later() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    // A database that accepts new rows but refuses to finish an answer.
    let database =
        sqlx::SqlitePool::connect(&format!("sqlite://{}", home.path().join("cairn.db").display()))
            .await
            .unwrap();
    let refuse = "create trigger refuse before update of status on messages begin select raise(abort, 'refused'); end";
    sqlx::query(refuse).execute(&database).await.unwrap();
    let mut events = app.subscribe();
    let [question, answer] = send(&app, &id, "Hi").await;
    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete);
    assert_eq!(
        messages(&app, &id).await,
        [question, answer.clone()],
        "the rows and the events agree"
    );
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "x".to_owned() },
        FailureCode::Storage,
        "saved",
    )
    .await;
    sqlx::query("drop trigger refuse").execute(&database).await.unwrap();
    database.close().await;
    app.close().await;
    drop(app);
    let app = open(&home).await;
    assert_eq!(messages(&app, &id).await[1], answer);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_loaded_fails_the_answer_with_its_reason() {
    let home = home_with_model();
    let weights = home.path().join("models").join(MODEL).join("model.safetensors");
    std::fs::write(weights, b"nonsense").unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    match app
        .call(Command::SendMessage { conversation_id: id.clone(), text: "Hi".to_owned() })
        .await
    {
        // Found while listing the folder.
        Err(failure) => assert_eq!(failure.code, FailureCode::NoModel),
        Ok(Reply::Sent { messages: sent, .. }) => {
            // The end may have been emitted before the subscription, so read the rows.
            let answer = loop {
                let answer = messages(&app, &id).await.pop().unwrap();
                if answer.status != MessageStatus::Streaming {
                    break answer;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(
                (answer.id.as_str(), answer.status),
                (sent[1].id.as_str(), MessageStatus::Failed)
            );
            assert!(answer.error.unwrap().contains(MODEL));
        }
        Ok(other) => panic!("{other:?}"),
    }
    app.close().await;
}
