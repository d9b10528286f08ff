//! How likely the tokens of an answer were, and versions that go on from another token.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, EngineState, Event, FailureCode, MessageStatus, Probabilities, Reply, TokenProbability,
};
use cairn_tiny_models::copy_tiny_model;

use crate::kit::{
    MODEL, PATIENCE, answered, check_failure, database, ended, home_with_model, messages,
    new_conversation, next, open, open_greedy, open_with_one_turn,
};
use crate::script::{SHOWS, Script, ids, open_scripted};

fn get(id: &str, message: &str, read: &str, loads_model: bool) -> Command {
    Command::GetProbabilities {
        conversation_id: id.to_owned(),
        message_id: message.to_owned(),
        read_id: read.to_owned(),
        loads_model,
    }
}

fn write_from(id: &str, message: &str, position: u32, token: u32) -> Command {
    Command::WriteFromToken {
        conversation_id: id.to_owned(),
        message_id: message.to_owned(),
        position,
        token,
    }
}

async fn probabilities(app: &Arc<App>, command: Command) -> Probabilities {
    match app.call(command).await.unwrap() {
        Reply::Probabilities { probabilities } => probabilities,
        other => panic!("{other:?}"),
    }
}

async fn tokens_of(app: &Arc<App>, id: &str, message: &str) -> Vec<TokenProbability> {
    match probabilities(app, get(id, message, "a", false)).await {
        Probabilities::Read { model, tokens, num_tokens } => {
            assert_eq!(model, MODEL);
            assert_eq!(tokens.len(), num_tokens as usize);
            tokens
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_its_probabilities_and_their_alternatives() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    answered(&app, &id, "Two").await;
    let rows = messages(&app, &id).await;
    for answer in [&rows[1], &rows[3]] {
        let mut events = app.subscribe();
        let tokens = tokens_of(&app, &id, &answer.id).await;
        let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(text.trim(), answer.text.trim());
        for token in &tokens {
            // The answers are greedy.
            assert_eq!((token.rank, token.likeliest[0].token), (0, token.token));
            assert_eq!(token.likeliest.len(), 8);
            assert_eq!(token.likeliest[0].probability, token.probability);
            assert!(token.likeliest.is_sorted_by(|a, b| a.probability >= b.probability));
            let sum: f64 = token.likeliest.iter().map(|other| other.probability).sum();
            assert!(token.probability > 0.0 && sum <= 1.0 + 1e-6, "{token:?}");
            assert!(token.entropy_bits > 0.0, "{token:?}");
        }
        loop {
            if let Event::ProbabilitiesRead { read_id, processed_tokens, total_tokens } =
                next(&mut events).await
            {
                assert_eq!(read_id, "a");
                assert!(processed_tokens <= total_tokens);
                break;
            }
        }
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_goes_on_from_another_token() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let first = messages(&app, &id).await;
    let tokens = tokens_of(&app, &id, &first[1].id).await;
    let other = tokens[3].likeliest[2].clone();
    let mut events = app.subscribe();
    let begun = match app.call(write_from(&id, &first[1].id, 3, other.token)).await.unwrap() {
        Reply::Sent { messages, .. } => messages,
        other => panic!("{other:?}"),
    };
    assert_eq!(begun.len(), 1);
    assert_eq!(begun[0].parent_id.as_ref(), Some(&first[0].id));
    let branched = ended(&mut events, &begun[0].id).await;
    assert_eq!(branched.status, MessageStatus::Complete, "{:?}", branched.error);
    assert_eq!(branched.versions, [first[1].id.clone(), branched.id.clone()]);
    let now = tokens_of(&app, &id, &branched.id).await;
    for (now, before) in now.iter().zip(&tokens[..3]) {
        assert_eq!(now.token, before.token, "what stands before is the same");
        assert!((now.probability - before.probability).abs() < 1e-4);
    }
    assert_eq!((now[3].token, now[3].rank), (other.token, 2));
    assert!((now[3].probability - other.probability).abs() < 1e-4);
    assert!(now.len() > 4, "and it goes on");
    let text: String = now.iter().map(|token| token.text.as_str()).collect();
    assert_eq!(text.trim(), branched.text.trim());

    // The first version is as it was, also after a restart.
    app.close().await;
    drop(app);
    let app = open_greedy(&home, 8).await;
    let show =
        Command::ShowVersion { conversation_id: id.clone(), message_id: first[1].id.clone() };
    app.call(show).await.unwrap();
    let stays = messages(&app, &id).await.pop().unwrap();
    assert_eq!((&stays.id, &stays.text), (&first[1].id, &first[1].text));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_may_begin_in_the_middle_of_reasoning() {
    let words = "<think>\nHm.\n</think>\n\nYes";
    let home = Script::new(SHOWS).then(&ids("QwhyA"), &ids(words)).home();
    let app = open_scripted(&home, 500).await;
    let id = new_conversation(&app).await;
    let answer = answered(&app, &id, "why").await;
    let at = words.find('m').unwrap() as u32;
    let mut events = app.subscribe();
    let begun = match app.call(write_from(&id, &answer.id, at, u32::from(b'a'))).await.unwrap() {
        Reply::Sent { mut messages, .. } => messages.pop().unwrap(),
        other => panic!("{other:?}"),
    };
    let branched = ended(&mut events, &begun.id).await;
    assert_eq!(branched.error, None);
    let shown = format!("{:?}", branched.segments[0]);
    assert!(shown.contains("Reasoning") && shown.contains("Ha"), "{shown}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_model_says_so_and_loads_it_when_asked() {
    let home = home_with_model();
    let other = home.path().join("models/tiny-other");
    copy_tiny_model("llama/tiny-chat", &other).unwrap();
    let (app, id) = open_with_one_turn(&home).await;
    let answer = messages(&app, &id).await.pop().unwrap();
    app.call(Command::UnloadModel).await.unwrap();
    let unloaded = probabilities(&app, get(&id, &answer.id, "a", false)).await;
    assert_eq!(unloaded, Probabilities::NotLoaded { model: MODEL.to_owned() });
    let loaded = probabilities(&app, get(&id, &answer.id, "b", true)).await;
    assert!(matches!(loaded, Probabilities::Read { .. }), "{loaded:?}");
    app.close().await;
    drop(app);
    std::fs::rename(home.path().join("models").join(MODEL), home.path().join("away")).unwrap();
    let app = open(&home).await;
    for loads_model in [false, true] {
        let gone = probabilities(&app, get(&id, &answer.id, "c", loads_model)).await;
        assert_eq!(gone, Probabilities::NoModel { model: MODEL.to_owned() });
    }
    check_failure(&app, write_from(&id, &answer.id, 0, 65), FailureCode::NotFound, MODEL).await;
    assert_eq!(messages(&app, &id).await.len(), 2, "nothing was begun");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_tokens_has_none_and_no_place_to_go_on_from() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let rows = messages(&app, &id).await;
    sqlx::query("update messages set token_ids = null")
        .execute(&database(&home).await)
        .await
        .unwrap();
    let none = probabilities(&app, get(&id, &rows[1].id, "a", false)).await;
    assert_eq!(none, Probabilities::NoTokens);
    let invalid = FailureCode::Invalid;
    check_failure(&app, write_from(&id, &rows[1].id, 0, 65), invalid, "no such token").await;
    check_failure(&app, get(&id, &rows[0].id, "a", false), invalid, "answer").await;
    check_failure(&app, get(&id, "gone", "a", false), FailureCode::NotFound, "message").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_stopped_while_its_model_is_loaded() {
    let home = Script::new(SHOWS).home();
    // A model that is loaded without end.
    let config = home.path().join("models/scripted/config.json");
    let mut endless: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    endless["load_parts"] = (1_u64 << 52).into();
    std::fs::write(&config, endless.to_string()).unwrap();
    copy_tiny_model("llama/tiny-chat", &home.path().join("models").join(MODEL)).unwrap();
    let (app, id) = open_with_one_turn(&home).await;
    let answer = messages(&app, &id).await.pop().unwrap();
    let other_model = sqlx::query("update messages set model = 'scripted' where id = ?");
    other_model.bind(&answer.id).execute(&database(&home).await).await.unwrap();

    let mut events = app.subscribe();
    let reading = tokio::spawn({
        let (app, command) = (app.clone(), get(&id, &answer.id, "a", true));
        async move { probabilities(&app, command).await }
    });
    loop {
        if let Event::Status { status } = next(&mut events).await
            && matches!(status.engine, EngineState::Loading { .. })
        {
            break;
        }
    }
    check_failure(&app, get(&id, &answer.id, "a", false), FailureCode::Invalid, "read").await;
    let stop = || Command::StopProbabilities { read_id: "a".to_owned() };
    app.call(stop()).await.unwrap();
    let stopped = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
    assert_eq!(stopped, Probabilities::Stopped);
    app.call(stop()).await.unwrap();
    app.call(Command::StopLoading).await.unwrap();
    app.close().await;
}
