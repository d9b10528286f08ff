//! Why tokens were read again, what prevents it, and how much reading was saved.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    ChatTimeSaved, Command, CompareColumn, Message, MissCause, MonitorDay, Reply, TimeSaved,
};

use crate::kit::{
    MODEL, answered, home_with_model, messages, new_conversation, open_greedy, overview,
};

async fn prompt(app: &Arc<App>, id: &str, system_prompt: &str) {
    let system_prompt = system_prompt.to_owned();
    app.call(Command::SetSystemPrompt { id: id.to_owned(), system_prompt }).await.unwrap();
}

/// More than is needed to tell how fast a model reads.
fn long() -> String {
    "all the stones of the shore ".repeat(60)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_system_prompt_is_known_and_going_back_reads_nothing_again() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    prompt(&app, &id, "Be brief.").await;
    let read = answered(&app, &id, &long()).await.stats.unwrap();
    assert_eq!(read.miss, None);
    let steps = [
        ("Be as verbose as you can be, about everything.", Some("Be brief.")),
        // Removed: the engine sees another first message.
        ("", Some("Be as verbose as you can be, about everything.")),
    ];
    for (system_prompt, before) in steps {
        prompt(&app, &id, system_prompt).await;
        let stats = answered(&app, &id, "and?").await.stats.unwrap();
        let miss = stats.miss.clone().unwrap_or_else(|| panic!("{stats:?}"));
        assert_eq!(miss.cause, MissCause::SystemPromptChanged);
        assert_eq!(miss.detail.as_deref(), before);
        assert_eq!(miss.tokens, stats.prompt_tokens - stats.cached_tokens);
        let stored = messages(&app, &id).await.pop().unwrap().stats.unwrap();
        assert_eq!(stored.miss, Some(miss));
    }
    // What prevents it: the prompt from before, with which the first turns are saved.
    prompt(&app, &id, "Be brief.").await;
    let again = answered(&app, &id, "and?").await.stats.unwrap();
    assert!(again.cached_tokens >= read.prompt_tokens, "{again:?} after {read:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_chat_template_is_named_before_and_after_the_answer() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, &long()).await;
    app.call(Command::UnloadModel).await.unwrap();
    let folder = home.path().join("models").join(MODEL);
    let template = "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}[assistant] ";
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let get = Command::GetOutlook { id: id.clone() };
    let Reply::Outlook { outlook } = app.call(get).await.unwrap() else { panic!() };
    let cause = outlook.unwrap().miss.map(|miss| (miss.cause, miss.detail));
    assert_eq!(cause, Some((MissCause::TemplateChanged, None)));
    let miss = answered(&app, &id, "and?").await.stats.unwrap().miss.unwrap();
    assert_eq!((miss.cause, miss.detail), (MissCause::TemplateChanged, None));
    // The next answer reads nothing again.
    assert_eq!(answered(&app, &id, "and?").await.stats.unwrap().miss, None);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_context_names_its_cause() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, &long()).await;
    app.call(Command::UnloadModel).await.unwrap();
    app.call(Command::PurgeConversation { id: id.clone() }).await.unwrap();
    let stats = answered(&app, &id, "and?").await.stats.unwrap();
    let miss = stats.miss.unwrap();
    assert_eq!((miss.cause, miss.detail), (MissCause::Deleted, None));
    assert!(miss.at_ms.is_some());
    app.close().await;
}

async fn day(app: &Arc<App>) -> MonitorDay {
    match app.call(Command::GetMonitorDay).await.unwrap() {
        Reply::MonitorDay { day } => day,
        other => panic!("{other:?}"),
    }
}

fn saved(answers: &[&Message]) -> f64 {
    answers.iter().filter_map(|answer| answer.stats.clone()?.saved_ms).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_answers_say_they_saved_adds_up_also_after_restarts_and_deletions() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    assert_eq!(overview(&app).await.time_saved, TimeSaved::default());
    let (a, b) = (new_conversation(&app).await, new_conversation(&app).await);
    answered(&app, &a, &long()).await;
    answered(&app, &b, "Hello").await;
    let running = answered(&app, &b, "or").await;
    assert_eq!(saved(&[&running]), 0.0, "it was still in memory: {running:?}");
    app.close().await;
    drop(app);
    let app = open_greedy(&home, 4).await;
    let more = answered(&app, &a, "and?").await;
    let stats = more.stats.clone().unwrap();
    let expected = f64::from(stats.cached_tokens) / stats_rate(&app, &a).await * 1000.0;
    let of_more = stats.saved_ms.expect("a long reading tells how fast the model reads");
    assert!((of_more - expected).abs() <= 0.01 * expected, "{of_more} for {expected}");
    // Another chat: the speed is known from the first.
    let in_b = answered(&app, &b, "and?").await;
    assert!(saved(&[&in_b]) > 0.0, "{in_b:?}");
    app.close().await;
    drop(app);
    let app = open_greedy(&home, 4).await;
    // An answer beside another saves reading of its own.
    let columns = vec![CompareColumn::default(), CompareColumn::default()];
    let compare =
        Command::Compare { conversation_id: b.clone(), message_id: None, text: None, columns };
    let mut events = app.subscribe();
    let Reply::Compared { messages: begun, .. } = app.call(compare).await.unwrap() else {
        panic!()
    };
    while app_is_answering(&app, &b).await {
        crate::kit::next(&mut events).await;
    }
    let get = Command::GetVersions {
        conversation_id: b.clone(),
        message_ids: begun.iter().map(|message| message.id.clone()).collect(),
    };
    let Reply::Versions { messages: compared } = app.call(get).await.unwrap() else { panic!() };
    let all_of_b = messages(&app, &b).await;

    let of_a = saved(&messages(&app, &a).await.iter().collect::<Vec<_>>());
    let mut all: Vec<&Message> = compared.iter().collect();
    all.push(&in_b);
    let is_new = |message: &&Message| all.iter().all(|known| known.id != message.id);
    let others: Vec<&Message> = all_of_b.iter().filter(is_new).collect();
    let of_b = saved(&all) + saved(&others);
    assert!(saved(&compared.iter().collect::<Vec<_>>()) > 0.0, "{compared:?}");
    let total = of_a + of_b;
    let near = |found: f64, expected: f64| (found - expected).abs() < 0.1;
    let check = |found: &TimeSaved, chats: &[(&String, f64)]| {
        assert!(near(found.all_ms, total), "{found:?} is not {total}");
        assert!(found.since_ms.is_some());
        assert_eq!(found.chats.len(), chats.len(), "{found:?}");
        for ChatTimeSaved { conversation_id, saved_ms } in &found.chats {
            let (_, expected) = chats.iter().find(|(id, _)| *id == conversation_id).unwrap();
            assert!(near(*saved_ms, *expected), "{found:?}");
        }
    };
    check(&overview(&app).await.time_saved, &[(&a, of_a), (&b, of_b)]);
    let told = day(&app).await;
    check(&told.time_saved, &[(&a, of_a), (&b, of_b)]);
    // The day says what the answers said, and no more than there is altogether.
    for rows in [&told.models, &told.chats] {
        let in_a_day: f64 = rows.iter().filter_map(|row| row.saved_ms).sum();
        assert!(near(in_a_day, total), "{told:?} is not {total}");
    }
    app.call(Command::DeleteConversations { ids: vec![b.clone()] }).await.unwrap();
    check(&overview(&app).await.time_saved, &[(&a, of_a)]);
    app.close().await;
    drop(app);
    let app = open_greedy(&home, 4).await;
    check(&overview(&app).await.time_saved, &[(&a, of_a)]);
    app.close().await;
}

/// How fast the model read the longest prompt of a chat.
async fn stats_rate(app: &Arc<App>, id: &str) -> f64 {
    let stats = messages(app, id).await.into_iter().filter_map(|message| message.stats);
    let longest = stats.max_by_key(|stats| stats.prompt_tokens - stats.cached_tokens).unwrap();
    assert!(longest.prompt_tokens - longest.cached_tokens >= 512, "{longest:?}");
    longest.prompt_tps
}

async fn app_is_answering(app: &Arc<App>, id: &str) -> bool {
    let (rows, ..) = crate::kit::bootstrap(app).await;
    rows.iter().any(|row| row.id == id && row.is_streaming)
}
