//! The figures of the last minutes, which are only in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cairn_chat::GenerationStats;
use cairn_engine::{TimedTokens, WorkDone};
use tokio::sync::mpsc;

use super::minute::{Minute, NotedMinute};
use super::speed::SpeedOf;
use crate::convert::figure;
use crate::wire::MonitorPoint;

/// Five minutes, with a point a second.
const MAX_POINTS: usize = 300;
/// A little less than a second, so that a caller that comes every second finds a new point.
const POINT_INTERVAL: Duration = Duration::from_millis(900);
/// The most points that a speed is taken from. It takes as few of the newest as are enough to tell.
const MAX_POINTS_OF_SPEED: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// Minutes that wait to be written; more are lost.
const MAX_WAITING_MINUTES: usize = 4;

/// Figures at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) process_bytes: u64,
    pub(crate) mlx_active_bytes: u64,
    pub(crate) mlx_cache_bytes: u64,
    /// None where the system does not say.
    pub(crate) machine_used_bytes: Option<u64>,
    pub(crate) num_waiting: u32,
    pub(crate) work: WorkDone,
}

/// The figures since the app was opened. Owned by [`crate::App`].
#[derive(Debug)]
pub(crate) struct Monitor {
    state: Mutex<State>,
    minutes: mpsc::Sender<NotedMinute>,
    /// Taken by the task that writes them.
    waiting: Mutex<Option<mpsc::Receiver<NotedMinute>>>,
}

#[derive(Debug)]
struct State {
    opened: Instant,
    points: VecDeque<MonitorPoint>,
    num_points: u32,
    /// When the last point was added, and what the engine had done then.
    last: Option<(Instant, WorkDone)>,
    /// The work of the newest points, the newest first.
    work: VecDeque<WorkDone>,
    /// The most requests that have waited since then.
    most_waiting: u32,
    /// What answers that have ended since then say.
    answers: EndedAnswers,
    minute: Minute,
}

#[derive(Debug, Default)]
struct EndedAnswers {
    num_first_tokens: u32,
    first_token_ms: f64,
}

impl Monitor {
    pub(crate) fn new(now: Instant, wall_ms: i64) -> Self {
        let (minutes, waiting) = mpsc::channel(MAX_WAITING_MINUTES);
        let state = State {
            opened: now,
            points: VecDeque::new(),
            num_points: 0,
            last: None,
            work: VecDeque::new(),
            most_waiting: 0,
            answers: EndedAnswers::default(),
            minute: Minute::first(now, wall_ms),
        };
        Monitor { state: Mutex::new(state), minutes, waiting: Mutex::new(Some(waiting)) }
    }

    /// Takes the figures of this moment. They become a point if the last one is about a second old.
    pub(crate) fn sample(&self, sample: &Sample, now: Instant, wall_ms: i64) {
        let mut state = self.guard();
        state.most_waiting = state.most_waiting.max(sample.num_waiting);
        if state.last.is_some_and(|(at, _)| now < at + POINT_INTERVAL) {
            return;
        }
        state.add_point(sample, now, wall_ms);
        if now >= state.minute.began + MINUTE {
            let minute = state.minute.end(now, wall_ms);
            // The writer is behind: then this minute is lost.
            minute.into_iter().for_each(|minute| drop(self.minutes.try_send(minute)));
        }
    }

    /// Takes the time to the first token of a chat's answer that has ended.
    pub(crate) fn answered(&self, stats: &GenerationStats) {
        let answers = &mut self.guard().answers;
        if stats.time_to_first_token_ms > 0.0 {
            answers.num_first_tokens += 1;
            answers.first_token_ms += stats.time_to_first_token_ms;
        }
    }

    /// The points behind the one with this number; 0: all of them.
    pub(super) fn points_after(&self, number: u32) -> Vec<MonitorPoint> {
        let state = self.guard();
        state.points.iter().filter(|point| point.number > number).cloned().collect()
    }

    /// The minutes that are to be written, for the first who asks.
    pub(super) fn take_waiting(&self) -> Option<mpsc::Receiver<NotedMinute>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The minute that is not written yet, if there is something to note about it.
    pub(super) fn minute_so_far(&self) -> Option<NotedMinute> {
        self.guard().minute.noted()
    }

    fn guard(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add_point(&mut self, sample: &Sample, now: Instant, wall_ms: i64) {
        let before = self.last.map_or(WorkDone::default(), |(_, work)| work);
        let work = work_since(before, sample.work);
        self.last = Some((now, sample.work));
        self.num_points += 1;
        self.work.truncate(MAX_POINTS_OF_SPEED - 1);
        self.work.push_front(work);
        let answers = std::mem::take(&mut self.answers);
        let first_tokens = f64::from(answers.num_first_tokens);
        let elapsed = now.saturating_duration_since(self.opened).as_millis();
        let num_waiting = std::mem::replace(&mut self.most_waiting, sample.num_waiting);
        let point = MonitorPoint {
            number: self.num_points,
            at_ms: wall_ms,
            elapsed_ms: u64::try_from(elapsed).unwrap_or(u64::MAX),
            process_bytes: sample.process_bytes,
            mlx_active_bytes: sample.mlx_active_bytes,
            mlx_cache_bytes: sample.mlx_cache_bytes,
            machine_used_bytes: sample.machine_used_bytes,
            num_waiting,
            reading_tps: self.speed(SpeedOf::Reading),
            writing_tps: self.speed(SpeedOf::Writing),
            first_token_ms: (answers.num_first_tokens > 0)
                .then(|| figure(answers.first_token_ms / first_tokens)),
            prompt_tokens: work.num_read_tokens + work.num_cached_tokens,
            cached_tokens: work.num_cached_tokens,
        };
        self.minute.add(&point, work);
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Returns the speed over as few of the newest points as are enough to tell. `None` if all are
    /// too few, or if nothing was done since the point before.
    fn speed(&self, of: SpeedOf) -> Option<f64> {
        let timed = |work: &WorkDone| match of {
            SpeedOf::Reading => work.reading,
            SpeedOf::Writing => work.writing,
        };
        let mut sum = TimedTokens::default();
        let newest = self.work.iter().map(timed);
        let mut newest =
            newest.enumerate().take_while(|(age, timed)| *age > 0 || timed.num_tokens > 0);
        newest.find_map(|(_, timed)| {
            sum.num_tokens += timed.num_tokens;
            sum.took += timed.took;
            of.rate(sum)
        })
    }
}

/// What was done between two counts. An engine that was started again begins at zero.
fn work_since(before: WorkDone, now: WorkDone) -> WorkDone {
    let is_same = now.num_read_tokens >= before.num_read_tokens
        && now.num_written_tokens >= before.num_written_tokens;
    let before = if is_same { before } else { WorkDone::default() };
    let timed = |now: TimedTokens, before: TimedTokens| TimedTokens {
        num_tokens: now.num_tokens.saturating_sub(before.num_tokens),
        took: now.took.saturating_sub(before.took),
    };
    WorkDone {
        num_read_tokens: now.num_read_tokens - before.num_read_tokens,
        num_cached_tokens: now.num_cached_tokens.saturating_sub(before.num_cached_tokens),
        num_written_tokens: now.num_written_tokens - before.num_written_tokens,
        reading: timed(now.reading, before.reading),
        writing: timed(now.writing, before.writing),
        num_shared_passes: now.num_shared_passes.saturating_sub(before.num_shared_passes),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn work(num_read_tokens: u64, num_written_tokens: u64) -> WorkDone {
        let timed = |num_tokens, ms| TimedTokens { num_tokens, took: Duration::from_millis(ms) };
        WorkDone {
            num_read_tokens,
            num_written_tokens,
            reading: timed(num_read_tokens, num_read_tokens * 10),
            writing: timed(num_written_tokens, num_written_tokens * 50),
            ..WorkDone::default()
        }
    }

    fn sample(work: WorkDone) -> Sample {
        Sample { process_bytes: 1 << 30, work, ..Sample::default() }
    }

    #[test]
    fn points_are_a_second_apart_and_only_the_newest_stay() {
        let start = Instant::now();
        let monitor = Monitor::new(start, 0);
        // Four times a second, for ten minutes.
        for quarter in 0_u32..2400 {
            let at = start + quarter * Duration::from_millis(250);
            monitor.sample(&sample(WorkDone::default()), at, i64::from(quarter) * 250);
        }
        let points = monitor.points_after(0);
        assert_eq!((points.len(), points[0].number, points[299].number), (300, 301, 600));
        assert!(points.windows(2).all(|pair| pair[1].elapsed_ms - pair[0].elapsed_ms == 1000));
        assert_eq!(monitor.points_after(598).len(), 2);
    }

    #[test]
    fn speeds_are_those_of_the_time_that_the_work_took() {
        let start = Instant::now();
        let monitor = Monitor::new(start, 0);
        let rates = |second: u32, work: WorkDone| {
            monitor.sample(&sample(work), start + second * Duration::from_secs(1), 0);
            let point = monitor.points_after(0).pop().unwrap();
            (point.reading_tps, point.writing_tps)
        };
        assert_eq!(rates(0, work(0, 0)), (None, None), "nothing is not a speed of zero");
        assert_eq!(rates(1, work(20, 0)), (Some(100.0), None));
        assert_eq!(rates(2, work(20, 10)), (None, Some(20.0)));
        assert_eq!(rates(3, work(16, 8)), (Some(100.0), Some(20.0)), "the engine began anew");
    }

    #[test]
    fn sums_speed_of_points_with_few_tokens() {
        let start = Instant::now();
        let monitor = Monitor::new(start, 0);
        let mut done = WorkDone::default();
        let mut writing = |second: u32, num_tokens: u64, ms: u64| {
            done.num_written_tokens += num_tokens;
            done.writing.num_tokens += num_tokens;
            done.writing.took += Duration::from_millis(ms);
            monitor.sample(&sample(done), start + second * Duration::from_secs(1), 0);
            monitor.points_after(0).pop().unwrap().writing_tps
        };
        // A token whose pass was waited for in another second.
        assert_eq!(writing(0, 1, 3), None);
        assert_eq!(writing(1, 3, 997), None, "four tokens tell nothing");
        assert_eq!(writing(2, 4, 1000), Some(4.0), "eight in two seconds");
        assert_eq!(writing(3, 0, 0), None, "nothing was written");
        assert_eq!(writing(4, 1, 200), Some(figure(8.0 / 2.197)));
        // Long after the others.
        for second in 5..20 {
            assert_eq!(writing(second, 0, 0), None);
        }
        assert_eq!(writing(20, 1, 0), None);
    }

    #[test]
    fn a_request_that_waited_between_two_points_and_an_answer_that_ended_are_in_the_next() {
        let start = Instant::now();
        let monitor = Monitor::new(start, 0);
        let at = |ms| start + Duration::from_millis(ms);
        let waiting = |num_waiting| Sample { num_waiting, ..sample(WorkDone::default()) };
        monitor.sample(&waiting(0), at(0), 0);
        monitor.sample(&waiting(3), at(250), 0);
        monitor.sample(&waiting(1), at(1000), 0);
        monitor.sample(&waiting(0), at(2000), 0);
        monitor.sample(&waiting(0), at(3000), 0);
        let waited: Vec<u32> = monitor.points_after(0).iter().map(|p| p.num_waiting).collect();
        assert_eq!(waited, [0, 3, 1, 0]);
    }

    #[test]
    fn minutes_without_anything_to_note_are_not_written_and_a_jump_of_the_clock_breaks_nothing() {
        let start = Instant::now();
        let monitor = Monitor::new(start, 1_000_000);
        let mut waiting = monitor.take_waiting().unwrap();
        let mut minutes = |seconds: std::ops::Range<u32>, sample: &Sample, wall_ms: i64| {
            for second in seconds {
                monitor.sample(sample, start + second * Duration::from_secs(1), wall_ms);
            }
            let mut times = Vec::new();
            while let Ok(minute) = waiting.try_recv() {
                times.push((minute.at_ms, minute.figures.begins_run));
            }
            times
        };
        let idle = sample(WorkDone::default());
        assert_eq!(minutes(0..61, &idle, 2_000_000), [(1_000_000, true)]);
        assert!(minutes(61..600, &idle, 3_000_000).is_empty());
        let busy = sample(work(10, 0));
        // The clock was set back.
        assert_eq!(minutes(600..721, &busy, 500), [(3_000_000, false)]);
        let larger = Sample { process_bytes: 2 << 30, ..busy };
        assert_eq!(minutes(721..850, &larger, 600).len(), 1, "memory has changed once");
    }
}
