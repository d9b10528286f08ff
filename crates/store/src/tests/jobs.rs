//! Jobs: rows are asked once, answers come all or none, and a deletion can be undone.

use super::Scratch;
use crate::{AnsweredRow, Job, JobAnswer, JobRowOrder, JobState, NewJob, Store, StoreError};

async fn job(store: &Store, texts: &[&str]) -> Job {
    let job = NewJob {
        name: "Stones".into(),
        model: "smol".into(),
        question: "{}".into(),
        texts: texts.iter().map(|&text| text.to_owned()).collect(),
    };
    store.create_job(&job, 5).await.unwrap()
}

fn answered(position: i64, certainty: f64) -> JobAnswer {
    let outcome = Ok(AnsweredRow { logprobs: format!("[[{position}]]"), certainty });
    JobAnswer { position, outcome }
}

fn failed(position: i64) -> JobAnswer {
    JobAnswer { position, outcome: Err("too long".into()) }
}

async fn positions(store: &Store, id: &str, order: JobRowOrder) -> Vec<i64> {
    let rows = store.job_rows(id, order, 0, 100).await.unwrap();
    rows.into_iter().map(|row| row.position).collect()
}

#[tokio::test]
async fn a_job_survives_with_what_was_answered() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = job(&store, &["a", "b\0", "c", "d"]).await.id;
    store.save_job_answers(&id, &[answered(2, 0.5), failed(0)]).await.unwrap();
    store.close().await.unwrap();

    let store = scratch.open().await;
    let jobs = store.jobs().await.unwrap();
    let counts = |job: &Job| (job.num_rows, job.num_answered, job.num_failed, job.num_corrected);
    assert_eq!(counts(&jobs[0]), (4, 1, 1, 0));
    assert_eq!((jobs[0].state, jobs[0].temperature), (JobState::Running, None));
    let waiting = store.waiting_job_rows(&id, 10).await.unwrap();
    assert_eq!(waiting, [(1, "b\0".to_owned()), (3, "d".to_owned())]);
    assert_eq!(store.waiting_job_rows(&id, 1).await.unwrap(), [(1, "b\0".to_owned())]);
    store.retry_failed_job_rows(&id).await.unwrap();
    assert_eq!(store.waiting_job_rows(&id, 10).await.unwrap()[0].0, 0);
}

#[tokio::test]
async fn a_row_keeps_its_first_answer() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = job(&store, &["a", "b"]).await.id;
    store.save_job_answers(&id, &[answered(0, 0.5)]).await.unwrap();
    store.save_job_answers(&id, &[answered(0, 0.75), failed(0), answered(1, 1.0)]).await.unwrap();
    assert_eq!(store.job_histogram(&id, 4).await.unwrap(), [0, 0, 1, 1]);
}

#[tokio::test]
async fn a_window_that_cannot_be_saved_whole_is_not_saved() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = job(&store, &["a", "b"]).await.id;
    let outcome = Ok(AnsweredRow { logprobs: "no JSON".into(), certainty: 0.5 });
    let bad = JobAnswer { position: 1, outcome };
    assert!(store.save_job_answers(&id, &[answered(0, 0.5), bad]).await.is_err());
    assert_eq!(store.listed_job(&id).await.unwrap().num_answered, 0);
}

#[tokio::test]
async fn rows_are_listed_in_either_order() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = job(&store, &["a", "b", "c", "d"]).await.id;
    let other = job(&store, &["x"]).await.id;
    let answers = [answered(0, 0.9), failed(1), answered(2, 0.3), answered(3, 0.6)];
    store.save_job_answers(&id, &answers).await.unwrap();
    assert_eq!(positions(&store, &id, JobRowOrder::Position).await, [0, 1, 2, 3]);
    assert_eq!(positions(&store, &id, JobRowOrder::Certainty).await, [2, 3, 0, 1]);
    assert_eq!(positions(&store, &other, JobRowOrder::Certainty).await, [0]);
    let second = store.job_rows(&id, JobRowOrder::Certainty, 1, 1).await.unwrap();
    assert_eq!(second[0].position, 3);
    // A temperature changes how certain rows are, and of those without an answer nothing.
    store.set_job_temperature(&id, Some(2.0), &[(0, 0.2), (1, 0.1)]).await.unwrap();
    assert_eq!(positions(&store, &id, JobRowOrder::Certainty).await, [0, 2, 3, 1]);
    assert_eq!(store.listed_job(&id).await.unwrap().temperature, Some(2.0));
}

#[tokio::test]
async fn corrections_are_counted_and_taken_back() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = job(&store, &["a", "b"]).await.id;
    store.save_job_answers(&id, &[answered(0, 0.9)]).await.unwrap();
    store.correct_job_row(&id, 0, Some(1)).await.unwrap();
    store.correct_job_row(&id, 1, Some(0)).await.unwrap();
    // A row without an answer says nothing about answers.
    let corrected = store.corrected_job_rows(&id).await.unwrap();
    assert_eq!(corrected, [("[[0]]".to_owned(), 1)]);
    assert_eq!(store.listed_job(&id).await.unwrap().num_corrected, 2);
    store.correct_job_row(&id, 0, None).await.unwrap();
    assert_eq!(store.corrected_job_rows(&id).await.unwrap(), []);
    let none = store.correct_job_row(&id, 2, None).await;
    assert!(matches!(none, Err(StoreError::NoJob { .. })), "{none:?}");
}

#[tokio::test]
async fn a_deletion_can_be_undone_until_the_program_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let (kept, gone) = (job(&store, &["a"]).await.id, job(&store, &["b"]).await.id);
    store.delete_job(&kept, 7).await.unwrap();
    store.restore_job(&kept).await.unwrap();
    store.purge_job(&kept, 7).await.unwrap();
    store.delete_job(&gone, 8).await.unwrap();
    let missing = store.listed_job(&gone).await;
    assert!(matches!(&missing, Err(StoreError::NoJob { id }) if *id == gone), "{missing:?}");
    assert_eq!(store.jobs().await.unwrap().len(), 1);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.jobs().await.unwrap()[0].id, kept);
    store.close().await.unwrap();
    assert_eq!(scratch.scalar::<i64>("select count(*) from job_rows").await, 1);
}
