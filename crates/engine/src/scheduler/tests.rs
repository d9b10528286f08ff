//! What several sequences cost each other, on a clock that a device of known speed moves.

use std::time::{Duration, Instant};

use cairn_lm::cache::KvQuantization;
use tokio::sync::{mpsc, watch};

use super::*;
use crate::clock::VirtualClock;
use crate::generate_job::AnswerChannels;
use crate::request::{GenerateRequest, PromptInput};
use crate::scripted_model::{worker_of, worker_with};
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
        Self::with("[97]", BatchOptions::default())
    }

    fn with(script: &str, options: BatchOptions) -> Self {
        let fields = format!(r#"{{"script": {script}, "max_position_embeddings": 1000000}}"#);
        Self::of(worker_with(&fields), options)
    }

    fn of(worker: Worker, options: BatchOptions) -> Self {
        let clock = Rc::new(VirtualClock::new(|work| match work {
            Work::Decode { .. } => Duration::from_millis(14),
            Work::Prefill { num_tokens } => Duration::from_millis(8 + 2 * num_tokens as u64),
        }));
        let scheduler = Scheduler::new(options, clock.clone());
        Simulation { worker, scheduler, clock }
    }

    fn begin(&mut self, num_tokens: usize, request: GenerateRequest) -> Timed {
        let request = GenerateRequest { max_tokens: 100_000, ..request };
        let (events, stop) = self.ask(vec![7; num_tokens], request);
        Timed { events, _stop: stop, tokens_at: Vec::new() }
    }

    fn ask(&mut self, prompt: Vec<u32>, request: GenerateRequest) -> AnswerChannels {
        let request = GenerateRequest { prompt: PromptInput::Tokens(prompt), ..request };
        let (job, channels) = GenerateJob::new(request, None, watch::channel(false).1);
        self.scheduler.begin(&mut self.worker, job);
        channels
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

/// An answer in which no token comes twice in a row, unless a cache is wrong.
const SCRIPT: [u32; 7] = [97, 98, 99, 100, 101, 102, 103];

/// A request among several, with what was received of its answer.
struct Asked {
    prompt: Vec<u32>,
    channels: AnswerChannels,
    tokens: Vec<u32>,
    num_cached: usize,
    has_ended: bool,
}

impl Asked {
    fn receive(&mut self) {
        while let Ok(event) = self.channels.0.try_recv() {
            match event {
                GenerateEvent::Delta { token, .. } => self.tokens.push(token),
                GenerateEvent::Prefill { cached, .. } => self.num_cached = cached,
                GenerateEvent::Finished(_) => self.has_ended = true,
                GenerateEvent::Failed(error) => panic!("{error}"),
                GenerateEvent::SoFar(_) => {}
            }
        }
    }

    /// Checks the answer of the scripted model.
    fn check(&self) {
        let mut sum: u32 = self.prompt.iter().sum();
        for token in &self.tokens {
            let expected = SCRIPT[sum as usize % SCRIPT.len()];
            assert_eq!(*token, expected, "a cache of {} tokens", self.prompt.len());
            sum += expected;
        }
    }
}

/// Several requests of one engine.
struct Crowd {
    simulation: Simulation,
    is_scripted: bool,
    asked: Vec<Asked>,
}

impl Crowd {
    fn new(options: BatchOptions) -> Self {
        let simulation = Simulation::with(&format!("{SCRIPT:?}"), options);
        Crowd { simulation, is_scripted: true, asked: Vec::new() }
    }

    /// Requests of a tiny model.
    fn of_model(name: &str) -> Self {
        let worker = worker_of(&cairn_tiny_models::tiny_model(name));
        let simulation = Simulation::of(worker, BatchOptions::default());
        Crowd { simulation, is_scripted: false, asked: Vec::new() }
    }

    fn ask(&mut self, prompt: Vec<u32>, request: GenerateRequest) {
        let channels = self.simulation.ask(prompt.clone(), request);
        let (tokens, num_cached, has_ended) = (Vec::new(), 0, false);
        self.asked.push(Asked { prompt, channels, tokens, num_cached, has_ended });
    }

    fn turn(&mut self) {
        let Simulation { worker, scheduler, .. } = &mut self.simulation;
        scheduler.turn(worker);
        self.asked.iter_mut().for_each(Asked::receive);
        if self.is_scripted {
            self.asked.iter().for_each(Asked::check);
        }
    }

    /// Gives turns until every answer has `num_tokens`, or has ended.
    fn run_to(&mut self, num_tokens: usize) {
        for _ in 0..10_000 {
            let is_done = |asked: &Asked| asked.has_ended || asked.tokens.len() >= num_tokens;
            if self.asked.iter().all(is_done) {
                return;
            }
            self.turn();
        }
        panic!("requests wait for each other");
    }

    fn num_read(&self) -> u64 {
        self.simulation.worker.work.total().num_read_tokens
    }
}

/// A small generator of numbers (xorshift), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// A prompt that shares some parts of 300 tokens with others, and ends with its own number.
    fn prompt(&mut self, number: usize) -> Vec<u32> {
        let mut prompt = Vec::new();
        for _ in 0..1 + self.below(4) {
            prompt.extend([self.below(2) as u32; 300]);
        }
        prompt.extend(vec![10 + number as u32; 1 + self.below(40)]);
        prompt
    }
}

fn num_common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn endless() -> GenerateRequest {
    GenerateRequest { max_tokens: 100_000, ..plain() }
}

#[test]
fn reads_shared_beginnings_once() {
    for seed in 1..30 {
        let mut random = Random(seed);
        let mut crowd = Crowd::new(BatchOptions::default());
        let mut expected = 0;
        for number in 0..2 + random.below(7) {
            let prompt = random.prompt(number);
            let others = crowd.asked.iter().map(|asked| num_common(&asked.prompt, &prompt));
            let num_shared = others.max().filter(|&num| num >= LEAST_SHARED_TOKENS).unwrap_or(0);
            expected += prompt.len() - num_shared;
            let speculation =
                if random.below(4) == 0 { Speculation::Auto } else { Speculation::Off };
            crowd.ask(prompt, GenerateRequest { speculation, ..endless() });
        }
        crowd.run_to(4);
        assert_eq!(crowd.num_read(), expected as u64, "seed {seed}");
        assert!(crowd.asked.iter().all(|asked| !asked.has_ended));
    }
}

#[test]
fn shares_readings_with_any_arrivals_and_cancellations() {
    for seed in 1..60 {
        let mut random = Random(seed);
        let num_rows = 1 + random.below(4);
        let options = BatchOptions {
            completion_batch_size: num_rows,
            prefill_batch_size: 1 + random.below(num_rows),
            ..BatchOptions::default()
        };
        let mut crowd = Crowd::new(options);
        let mut num_tokens = 0;
        for number in 0..12 {
            let prompt = random.prompt(number);
            num_tokens += prompt.len();
            let request = match random.below(6) {
                0 => unbatched(),
                1 => GenerateRequest { use_prompt_cache: false, ..plain() },
                2 => GenerateRequest { speculation: Speculation::Auto, ..plain() },
                _ => plain(),
            };
            let prefill_step_size = [64, 256, 2048][random.below(3)];
            let max_tokens = random.below(6);
            crowd.ask(prompt, GenerateRequest { prefill_step_size, max_tokens, ..request });
            for _ in 0..random.below(5) {
                crowd.turn();
            }
            let victim = random.below(crowd.asked.len());
            match random.below(6) {
                0 => drop(crowd.asked[victim].channels.1.send(true)),
                1 => drop(crowd.asked.remove(victim)),
                _ => {}
            }
        }
        crowd.run_to(usize::MAX);
        assert!(crowd.num_read() <= num_tokens as u64, "seed {seed}");
        crowd.turn();
        assert!(crowd.simulation.scheduler.is_empty(), "seed {seed}");
    }
}

#[test]
fn shares_caches_that_cannot_be_trimmed() {
    for model in ["cohere2/dense", "qwen3_next/dense"] {
        let mut random = Random(7);
        let mut words =
            |num: usize| -> Vec<u32> { (0..num).map(|_| 1 + random.below(60) as u32).collect() };
        let shared = words(400);
        let prompts = [[&shared[..], &words(30)].concat(), [&shared[..], &words(20)].concat()];
        let request = GenerateRequest { ignore_eos: true, max_tokens: 8, ..plain() };
        let mut together = Crowd::of_model(model);
        for prompt in &prompts {
            together.ask(prompt.clone(), request.clone());
        }
        together.run_to(8);
        assert_eq!(together.num_read(), 450, "{model}");
        for (prompt, asked) in prompts.into_iter().zip(together.asked) {
            let mut alone = Crowd::of_model(model);
            alone.ask(prompt, request.clone());
            alone.run_to(8);
            assert_eq!(asked.tokens, alone.asked[0].tokens, "{model}");
        }
    }
}

#[test]
fn next_reads_on_after_cancellation() {
    let mut crowd = Crowd::new(BatchOptions::default());
    for number in 0..3 {
        crowd.ask([vec![1; 3000], vec![10 + number; 10]].concat(), endless());
    }
    crowd.turn();
    crowd.turn();
    let num_read = crowd.num_read();
    assert!((1..3000).contains(&num_read));
    crowd.asked.remove(0);
    crowd.run_to(2);
    // The second continues what the first has read.
    assert_eq!(crowd.num_read(), 3000 + 2 * 10);
    assert_eq!(crowd.asked[1].num_cached, 3000);
}

#[test]
fn waits_for_no_more_than_is_shared() {
    let mut crowd = Crowd::new(BatchOptions::default());
    crowd.ask([vec![1; 600], vec![2; 9000]].concat(), endless());
    crowd.ask([vec![1; 600], vec![3; 5]].concat(), endless());
    while crowd.asked[1].tokens.is_empty() {
        assert!(crowd.asked[0].tokens.is_empty(), "it has waited for the whole prompt");
        crowd.turn();
    }
    assert!(crowd.num_read() < 9000);
    assert_eq!(crowd.asked[1].num_cached, 600);
}

/// Counts the turns until each of some prompts, given by their lengths, has its first token, while
/// another answer is written.
fn turns_to_first_tokens(prompts: &[usize]) -> Vec<usize> {
    let mut crowd = Crowd::new(BatchOptions::default());
    crowd.ask(vec![200], endless());
    crowd.run_to(3);
    for (number, &num_tokens) in prompts.iter().enumerate() {
        crowd.ask(vec![10 + number as u32; num_tokens], endless());
    }
    let mut turns = vec![0; prompts.len()];
    while crowd.asked.iter().any(|asked| asked.tokens.is_empty()) {
        crowd.turn();
        for (turns, asked) in turns.iter_mut().zip(&crowd.asked[1..]) {
            *turns += usize::from(asked.tokens.is_empty());
        }
    }
    turns
}

#[test]
fn finishes_one_prompt_before_the_next() {
    let turns = turns_to_first_tokens(&[150; 8]);
    let last = turns[7];
    assert!(turns.is_sorted(), "{turns:?}");
    assert!(turns[0] * 4 <= last, "{turns:?}");
    assert!(turns.iter().sum::<usize>() <= last * 6, "{turns:?}");
}

#[test]
fn short_prompts_do_not_wait_for_long_ones() {
    let turns = turns_to_first_tokens(&[3000, 40, 2500, 60]);
    assert!(turns[1] * 10 <= turns[2] && turns[3] * 10 <= turns[2], "{turns:?}");
}

#[test]
fn long_prompts_do_not_wait_for_ever() {
    let mut crowd = Crowd::new(BatchOptions::default());
    crowd.ask(vec![200], endless());
    crowd.ask(vec![9; 600], endless());
    let mut number = 10;
    while crowd.asked[1].tokens.is_empty() {
        // There is always a shorter one.
        if crowd.asked.iter().filter(|asked| asked.tokens.is_empty()).count() < 3 {
            crowd.ask(vec![number % 250; 150], GenerateRequest { max_tokens: 1, ..plain() });
            number += 1;
        }
        crowd.turn();
        assert!(number < 200, "it is never read");
    }
}
