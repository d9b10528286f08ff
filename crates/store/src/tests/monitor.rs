//! The minutes of the monitor, which never wait.

use super::Scratch;

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;

#[tokio::test]
async fn minutes_stay_after_a_restart_and_come_back_in_their_order() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    // The clock was set back in between.
    for at_ms in [5 * MINUTE, 9 * MINUTE, 7 * MINUTE] {
        assert!(store.add_monitor_minute(at_ms, &at_ms.to_string(), at_ms).await.unwrap());
    }
    assert!(store.add_monitor_minute(1, "no JSON", 1).await.is_err());
    store.close().await.unwrap();
    let store = scratch.open().await;
    let minutes = |since, until| store.monitor_minutes(since, until);
    let all: Vec<i64> = [5, 9, 7].map(|minute| minute * MINUTE).into();
    let times = |rows: Vec<(i64, String)>| rows.into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    assert_eq!(times(minutes(0, DAY).await.unwrap()), all);
    assert_eq!(times(minutes(5 * MINUTE, 7 * MINUTE).await.unwrap()), [7 * MINUTE]);
}

#[tokio::test]
async fn old_minutes_go_a_few_at_a_time_and_their_number_is_bounded() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    scratch
        .execute(
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 4000)
             insert into monitor_minutes (at_ms, figures) select i, '0' from n",
        )
        .await;
    let count = || async { store.monitor_minutes(-1, i64::MAX).await.unwrap().len() };
    let held: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
    assert_eq!(held, 4000);
    let mut removed = Vec::new();
    for minute in 0..30 {
        let before: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
        store.add_monitor_minute(5000 + minute, "1", 5000).await.unwrap();
        let after: i64 = scratch.scalar("select count(*) from monitor_minutes").await;
        removed.push(before + 1 - after);
    }
    assert!(removed.iter().all(|&removed| removed <= 60), "{removed:?}");
    assert_eq!(count().await, 2 * 24 * 60, "too many go, however new their times are");

    for _ in 0..60 {
        store.add_monitor_minute(4 * DAY, "2", 4 * DAY).await.unwrap();
    }
    let rows = store.monitor_minutes(-1, i64::MAX).await.unwrap();
    assert!(rows.iter().all(|(at_ms, _)| *at_ms == 4 * DAY), "old ones go, however few there are");
    assert_eq!(rows.len(), 60);
}

#[tokio::test]
async fn a_minute_does_not_wait_for_a_database_in_use_and_later_writes_do_again() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let transaction = store.begin().await.unwrap();
    assert!(!store.add_monitor_minute(1, "1", 1).await.unwrap(), "another write goes on here");
    drop(transaction);

    let mut other = scratch.connect().await;
    sqlx::query("begin immediate").execute(&mut other).await.unwrap();
    assert!(!store.add_monitor_minute(2, "2", 2).await.unwrap(), "another program writes");
    let waiting = store.set_setting("app", "1");
    let ending = async {
        // It waits by now, or has not begun: both are well.
        tokio::task::yield_now().await;
        sqlx::query("rollback").execute(&mut other).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waiting, ending);
    waited.unwrap();
    let mut connection = store.writer.acquire().await.unwrap();
    let timeout: i64 =
        sqlx::query_scalar("pragma busy_timeout").fetch_one(&mut *connection).await.unwrap();
    assert_eq!(timeout, 5000);
    drop(connection);
    assert!(store.add_monitor_minute(3, "3", 3).await.unwrap());
    assert_eq!(store.monitor_minutes(0, 9).await.unwrap(), [(3, "3".to_owned())]);
}
