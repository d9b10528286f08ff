//! What several sequences cost each other, on a clock that a device of known speed moves.

use std::time::{Duration, Instant};

use cairn_lm::cache::KvQuantization;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::clock::VirtualClock;
use crate::request::{GenerateRequest, PromptInput};
use crate::scripted_model::worker_with;
use crate::work::{RequestWork, WorkCounter, WorkFor, WorkKind, WorkLog};

/// A sequence, with the time of each of its tokens.
struct Timed {
    events: mpsc::UnboundedReceiver<GenerateEvent>,
    _stop: watch::Sender<bool>,
    tokens_at: Vec<Instant>,
}

struct Simulation {
    worker: Worker,
    scheduler: Scheduler,
    clock: Rc<VirtualClock>,
}

impl Simulation {
    /// A device that decodes in 14 ms, and reads with 8 ms for each slice and 2 ms for each
    /// token: about a model of 135M parameters on a CPU.
    fn new() -> Self {
        let clock = Rc::new(VirtualClock::new(|work| match work {
            Work::Decode { .. } => Duration::from_millis(14),
            Work::Prefill { num_tokens } => Duration::from_millis(8 + 2 * num_tokens as u64),
        }));
        let scheduler = Scheduler::new(BatchOptions::default(), clock.clone());
        let worker = worker_with(r#"{"script": [97], "max_position_embeddings": 1000000}"#);
        Simulation { worker, scheduler, clock }
    }

    fn begin(&mut self, num_tokens: usize, request: GenerateRequest) -> Timed {
        let prompt = PromptInput::Tokens(vec![7; num_tokens]);
        let request = GenerateRequest { prompt, max_tokens: 100_000, ..request };
        let (job, (events, stop)) = GenerateJob::new(request, None, watch::channel(false).1);
        self.scheduler.begin(&mut self.worker, job);
        Timed { events, _stop: stop, tokens_at: Vec::new() }
    }

    /// Runs until `last` has a token, and returns how long that took.
    fn run_to_token_of(&mut self, last: &mut Timed, mut others: Vec<&mut Timed>) -> Duration {
        let start = self.clock.now();
        while last.tokens_at.is_empty() {
            self.scheduler.turn(&mut self.worker);
            for timed in others.iter_mut().map(|timed| &mut **timed).chain([&mut *last]) {
                while let Ok(event) = timed.events.try_recv() {
                    match event {
                        GenerateEvent::Delta { .. } => timed.tokens_at.push(self.clock.now()),
                        GenerateEvent::Failed(error) => panic!("{error}"),
                        _ => {}
                    }
                }
            }
        }
        self.clock.now() - start
    }
}

fn plain() -> GenerateRequest {
    GenerateRequest::new(PromptInput::Tokens(Vec::new()))
}

/// Keys and values that would be quantized after more tokens than there are: the script cannot
/// read quantized ids.
fn unbatched() -> GenerateRequest {
    let quantization = Some(KvQuantization { bits: 8, group_size: 32, start: 1_000_000 });
    let kv_cache = crate::KvCacheOptions { quantization, ..Default::default() };
    GenerateRequest { kv_cache, ..plain() }
}

#[test]
fn a_reader_and_a_writer_lose_little_to_each_other() {
    fn check(name: &str, reader: GenerateRequest, writer: GenerateRequest) {
        let mut alone = Simulation::new();
        let mut read = alone.begin(5000, reader.clone());
        let reader_alone = alone.run_to_token_of(&mut read, Vec::new());

        let mut both = Simulation::new();
        let mut write = both.begin(1, writer);
        both.run_to_token_of(&mut write, Vec::new());
        let mut read = both.begin(5000, reader);
        let took = both.run_to_token_of(&mut read, vec![&mut write]);

        let longest_gap = write.tokens_at.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest_gap.unwrap() < Duration::from_millis(500), "{name}: {longest_gap:?}");
        let reader_speed = reader_alone.as_secs_f64() / took.as_secs_f64();
        let writer_speed = (write.tokens_at.len() - 1) as f64 * 0.014 / took.as_secs_f64();
        let speeds = reader_speed + writer_speed;
        assert!(speeds >= 0.9, "{name}: {reader_speed} and {writer_speed}");
    }
    check("both in a batch", plain(), plain());
    check("an unbatched reader", unbatched(), plain());
    check("an unbatched writer", plain(), unbatched());
}

#[test]
fn counts_work_with_its_time() {
    fn check(name: &str, request: GenerateRequest) {
        let mut simulation = Simulation::new();
        let mut timed = simulation.begin(100, request);
        simulation.run_to_token_of(&mut timed, Vec::new());
        let before = simulation.worker.work.total();
        assert_eq!((before.num_read_tokens, before.num_written_tokens), (100, 1), "{name}");
        // The last token of a prompt is read by the pass that samples the first one.
        assert_eq!(before.reading.num_tokens, 99, "{name}: {before:?}");
        assert!(before.reading.took >= Duration::from_millis(2 * 99), "{name}: {before:?}");
        assert!(before.writing.took >= Duration::from_millis(14), "{name}: {before:?}");
        for _ in 0..10 {
            simulation.scheduler.turn(&mut simulation.worker);
        }
        let after = simulation.worker.work.total();
        assert_eq!(after.num_written_tokens, 11, "{name}");
        assert_eq!(after.writing.num_tokens, 11, "{name}");
        assert_eq!(after.writing.took - before.writing.took, Duration::from_millis(140), "{name}");
        let read = (before.num_read_tokens, before.reading);
        assert_eq!((after.num_read_tokens, after.reading), read, "{name}");
    }
    check("in a batch", plain());
    check("unbatched", unbatched());
}

#[test]
fn times_no_reading_of_one_token() {
    fn check(name: &str, request: GenerateRequest) {
        let mut simulation = Simulation::new();
        let mut timed = simulation.begin(1, request);
        simulation.run_to_token_of(&mut timed, Vec::new());
        let work = simulation.worker.work.total();
        assert_eq!((work.num_read_tokens, work.reading.num_tokens), (1, 0), "{name}: {work:?}");
        assert_eq!((work.num_written_tokens, work.writing.num_tokens), (1, 1), "{name}");
    }
    check("in a batch", plain());
    check("unbatched", unbatched());
}

#[test]
fn logs_work_however_request_ends() {
    let log = WorkLog::default();
    let mut simulation = Simulation::new();
    simulation.worker.work = WorkCounter::new(Some(log.clone()));
    let work_for = |kind| WorkFor::conversation(kind, "chat", true);
    let request = |kind| GenerateRequest { work_for: work_for(kind), ..plain() };
    let mut stopped = simulation.begin(30, request(WorkKind::Answer));
    simulation.run_to_token_of(&mut stopped, Vec::new());
    assert!(log.take().is_empty(), "it has not ended");
    let mut ahead = simulation.begin(40, request(WorkKind::ReadAhead));
    simulation.run_to_token_of(&mut ahead, vec![&mut stopped]);
    let total = simulation.worker.work.total();
    drop((stopped, ahead));
    simulation.scheduler.turn(&mut simulation.worker);
    let ended = log.take();
    let of =
        |work: &RequestWork| (work.work_for.clone(), work.num_read_tokens, work.num_written_tokens);
    let [first, second] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(of(first), (work_for(WorkKind::Answer), 30, total.num_written_tokens));
    assert_eq!(of(second), (work_for(WorkKind::ReadAhead), 40, 0), "its token is thrown away");
    assert!(first.first_token_ms.is_some());
    assert_eq!(total.num_read_tokens, 70);
}

#[test]
fn answers_that_a_failure_has_dropped_go_on_while_another_prompt_is_read() {
    let mut simulation = Simulation::new();
    let (mut first, mut second) = (simulation.begin(3, plain()), simulation.begin(4, plain()));
    simulation.run_to_token_of(&mut second, vec![&mut first]);
    let mut reading = simulation.begin(5000, plain());
    simulation.scheduler.turn(&mut simulation.worker);
    let RunWork::Batch(batch) = &mut simulation.scheduler.runs[0].work else { panic!() };
    batch.drop_decoding();
    assert!(batch.is_reading() && !batch.is_decoding());

    first.tokens_at.clear();
    second.tokens_at.clear();
    simulation.run_to_token_of(&mut first, vec![&mut second, &mut reading]);
    simulation.run_to_token_of(&mut second, vec![&mut reading]);
    assert!(reading.tokens_at.is_empty(), "its prompt is still being read");
}

#[test]
fn prompts_that_wait_together_are_read_together() {
    let mut simulation = Simulation::new();
    let mut short: Vec<Timed> = (0..8).map(|_| simulation.begin(30, plain())).collect();
    let mut last = short.pop().unwrap();
    let took = simulation.run_to_token_of(&mut last, short.iter_mut().collect());
    assert!(short.iter().all(|timed| timed.tokens_at.len() == 1));
    // One slice for all eight, then a step that reads their last tokens and one that samples.
    let together = Duration::from_millis(8 + 2 * 8 * 30 + 2 * 14);
    assert!(took <= together, "{took:?} is more than {together:?}");
}
