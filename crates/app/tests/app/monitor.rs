//! The monitor: the figures of the last minutes, and those of the last day after a restart.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, MonitorDay, MonitorPoint, Reply};

use crate::kit::{
    MODEL, answered, database, home_with_model, new_conversation, open, open_greedy, send,
};

async fn points(app: &Arc<App>, after: u32) -> Vec<MonitorPoint> {
    match app.call(Command::GetMonitorNow { after }).await.unwrap() {
        Reply::MonitorNow { points, .. } => points,
        other => panic!("{other:?}"),
    }
}

async fn day(app: &Arc<App>) -> MonitorDay {
    match app.call(Command::GetMonitorDay).await.unwrap() {
        Reply::MonitorDay { day } => day,
        other => panic!("{other:?}"),
    }
}

async fn new_private(app: &Arc<App>) -> String {
    match app.call(Command::NewPrivateConversation).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

/// Asks until a point has what is looked for.
async fn point_with(app: &Arc<App>, is_it: impl Fn(&MonitorPoint) -> bool) -> MonitorPoint {
    let found = async {
        loop {
            if let Some(point) = points(app, 0).await.into_iter().find(&is_it) {
                return point;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::kit::PATIENCE, found).await.expect("a point comes")
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_in_the_last_minutes_and_in_the_last_day_after_a_restart() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    assert!(day(&app).await.models.is_empty(), "nothing has happened yet");
    // Two short readings, but slow ones: they tell what is saved of chats that are as short.
    sqlx::query("insert into readings (model, num_tokens, tps, at_ms) values (?1, 16, 50.0, 1), (?1, 100, 50.0, 2)")
        .bind(MODEL)
        .execute(&database(&home).await)
        .await
        .unwrap();
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "How are you?").await.stats.unwrap();
    app.close().await;
    drop(app);
    let app = open(&home).await;
    let second = answered(&app, &id, "And now?").await.stats.unwrap();
    assert_eq!((first.saved_ms, second.saved_ms > Some(0.0)), (None, true), "{second:?}");
    let private = new_private(&app).await;
    let third = answered(&app, &private, "Nobody knows").await.stats.unwrap();

    let all = point_with(&app, |point| point.prompt_tokens > 0).await;
    assert!(all.cached_tokens <= all.prompt_tokens, "{all:?}");
    point_with(&app, |point| point.first_token_ms.is_some()).await;
    assert!(point_with(&app, |point| point.writing_tps.is_some()).await.writing_tps > Some(0.0));
    assert!(all.process_bytes > 0 && all.machine_used_bytes > Some(0), "{all:?}");
    let known = points(&app, 0).await.last().unwrap().number;
    assert!(points(&app, known).await.iter().all(|point| point.number > known));

    let told = day(&app).await;
    assert_eq!(told.models.len(), 1);
    let model = &told.models[0];
    assert_eq!((model.name.as_str(), model.num_answers), (MODEL, 3));
    let cached = u64::from(first.cached_tokens + second.cached_tokens);
    let read = u64::from(first.prompt_tokens + second.prompt_tokens) - cached;
    let [chat] = &told.chats[..] else { panic!("{told:?}") };
    assert_eq!((chat.name.as_str(), chat.conversation_id.as_deref()), ("How are you?", Some(&*id)));
    assert_eq!((chat.read_tokens, chat.cached_tokens, chat.written_tokens), (read, cached, 16));
    let (said, summed) = (second.saved_ms.unwrap(), chat.saved_ms.unwrap());
    assert!((summed - said).abs() < 0.1, "{summed} of {said}");
    let hidden = told.private.as_ref().unwrap();
    assert_eq!((hidden.name.as_str(), hidden.num_answers), ("", 1), "without a name");
    assert!(!serde_json::to_string(&told).unwrap().contains("Nobody"));
    let prompts: u64 = told.spans.iter().map(|span| span.prompt_tokens).sum();
    assert_eq!(prompts, cached + read + u64::from(third.prompt_tokens));
    assert!(told.spans.iter().any(|span| span.begins_run && span.process_bytes.is_some()));
    assert!(told.spans.iter().any(|span| span.writing_tps.is_some()));
    app.close().await;

    let rows: i64 = sqlx::query_scalar("select count(*) from monitor_minutes")
        .fetch_one(&database(&home).await)
        .await
        .unwrap();
    assert_eq!(rows, 2, "the minute under way is written when the app closes");
    let app = open(&home).await;
    let told = day(&app).await;
    assert_eq!((told.chats.len(), told.private.is_none()), (1, true));
    assert!(told.spans.iter().any(|span| span.writing_tps.is_some()), "{told:?}");
    app.call(Command::DeleteConversations { ids: vec![id] }).await.unwrap();
    let after = day(&app).await;
    assert_eq!((after.chats.len(), after.models), (0, told.models), "its work stays done");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_table_the_monitor_loses_points_and_answers_come_all_the_same() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    sqlx::query("drop table monitor_minutes").execute(&database(&home).await).await.unwrap();
    let id = new_conversation(&app).await;
    send(&app, &id, "Hello").await;
    let point = point_with(&app, |point| point.prompt_tokens > 0).await;
    assert!(point.number > 0);
    app.close().await;
    let app = open(&home).await;
    assert_eq!(crate::kit::messages(&app, &id).await.len(), 2);
    app.close().await;
}
