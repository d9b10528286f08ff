//! SIGKILL while a job runs: every answer that was acknowledged stays, and each row is asked once.

use cairn_app::wire::{Command, JobRowOrder, Reply};
use cairn_sweeps::long_case;

use crate::Random;
use crate::home::TestHome;
use crate::victim::{Line, Victim};

const NUM_ROWS: u32 = 5000;
/// How many times the job is killed, unless `CAIRN_SOAK` asks for more.
const NUM_KILLS: u64 = 5;

#[test]
fn a_killed_job_goes_on_where_it_was_saved() {
    let (seed, num_kills) = long_case(NUM_KILLS);
    let home = TestHome::new();
    let mut random = Random::new(0x5eed_0003, seed);
    let mut num_acknowledged = 0;
    let start = || Victim::start_with(home.path(), &["job", &NUM_ROWS.to_string()]);
    for _ in 0..num_kills {
        let victim = start();
        // A job that is done sends nothing more.
        let mut num_lines = 1 + random.below(6);
        while num_lines > 0 {
            num_lines -= 1;
            let Some(Line::Job { num_answered, is_running }) = victim.next() else {
                panic!("the victim tells of no job")
            };
            assert!(num_answered >= num_acknowledged, "{num_answered} of {num_acknowledged}");
            num_acknowledged = num_answered;
            if !is_running {
                break;
            }
        }
        for line in victim.kill() {
            if let Line::Job { num_answered, .. } = line {
                num_acknowledged = num_acknowledged.max(num_answered);
            }
        }
        if num_acknowledged == NUM_ROWS {
            break;
        }
    }
    if num_acknowledged < NUM_ROWS {
        let victim = start();
        while let Some(Line::Job { is_running: true, .. }) = victim.next() {}
        victim.kill();
    }
    home.run(check_rows(&home));
}

/// Every row is there once, in its place, with an answer.
async fn check_rows(home: &TestHome) {
    let app = home.open().await;
    assert_eq!(home.integrity().await, "ok");
    let Ok(Reply::Jobs { jobs }) = app.call(Command::ListJobs).await else { panic!("no list") };
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].num_rows, jobs[0].num_answered), (NUM_ROWS, NUM_ROWS));
    for offset in (0..NUM_ROWS).step_by(500) {
        let (id, order) = (jobs[0].id.clone(), JobRowOrder::Position);
        let get = Command::GetJobRows { id, order, offset, limit: 500 };
        let Ok(Reply::JobRows { rows }) = app.call(get).await else { panic!("no rows") };
        for (position, row) in (offset..).zip(&rows) {
            assert_eq!((row.position, &row.text), (position, &format!("text {position}")));
            assert!(row.probabilities.is_some());
        }
    }
    app.close().await;
}
