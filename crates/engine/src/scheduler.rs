//! Decides what the device computes next. Everything that needs it is a run: a batch of sequences,
//! an unbatched sequence, or a task. One call of [`Scheduler::turn`] gives one slice to one of
//! them.

mod run;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use cairn_chat::FinishReason;
use cairn_lm::batch::BatchOptions;
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_lm::device::ComputeDevice;
use cairn_lm::{ffi, memory};

use crate::admission::Admission;
use crate::batch_run::{BatchRun, FailedSlice};
use crate::clock::{EngineClock, Work};
use crate::generate_job::GenerateJob;
use crate::guard::caught;
use crate::lookup::query;
use crate::model_pool::Loaded;
use crate::prompt_cache::Blocking;
use crate::request::{GenerateEvent, Speculation};
use crate::restoring::{Restored, Restoring};
use crate::sequence::Sequence;
use crate::shared_reading::{
    Candidate, Followed, Following, LEAST_SHARED_TOKENS, Leader, ReadBeginning, find_leader,
};
use crate::slice_policy::{QueueCounts, Slice, SliceCosts, SlicePolicy};
use crate::task::Task;
use crate::unbatched::{RunStep, UnbatchedRun};
use crate::worker::Worker;
use crate::{EngineError, EngineState, NeedsMemory};
use run::{Run, RunWork};

/// The runs. Owned by the engine's thread.
///
/// - A run leaves when it has ended, so no run means that nothing is to be computed.
/// - Runs that want the same kind of slice take turns.
pub(crate) struct Scheduler {
    options: BatchOptions,
    policy: SlicePolicy,
    /// The measured speeds, by the model's name.
    costs: HashMap<String, SliceCosts>,
    clock: Rc<dyn EngineClock>,
    runs: Vec<Run>,
    /// Sequences whose prompts are being restored; they become runs then. They take turns.
    restoring: VecDeque<Restoring>,
    /// Requests that wait until another has read the beginning that both share.
    following: Vec<Following>,
    num_slices: u64,
}

/// Chunks are restored for so long before the next slice, and one in any case.
const RESTORE_TIME: Duration = Duration::from_millis(20);

/// As many bytes stay with MLX between the batches of an [`AsyncLm`](crate::AsyncLm).
const REUSED_BYTES: u64 = 128 << 20;

/// The prompt tokens that are read at once while nobody decodes: on a CPU about a second, which is
/// how long a cancellation waits.
fn full_step_tokens() -> usize {
    match ComputeDevice::current() {
        ComputeDevice::Cpu => 256,
        ComputeDevice::Gpu => 2048,
    }
}

impl Scheduler {
    pub(crate) fn new(options: BatchOptions, clock: Rc<dyn EngineClock>) -> Self {
        let options = BatchOptions { prefill_step_size: full_step_tokens(), ..options };
        Scheduler {
            policy: SlicePolicy::new(options.prefer_prefill_when_pending),
            options,
            costs: HashMap::new(),
            clock,
            runs: Vec::new(),
            restoring: VecDeque::new(),
            following: Vec::new(),
            num_slices: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.restoring.is_empty() && self.following.is_empty()
    }

    /// Whether another sequence of this model may begin.
    pub(crate) fn has_room(&self, model: &Rc<Loaded>) -> bool {
        let restoring = self.restoring.iter().map(|restoring| &restoring.loaded);
        let following = self.following.iter().map(|following| &following.loaded);
        let loaded = self.sequences().map(|sequence| &sequence.loaded);
        let loaded = loaded.chain(restoring).chain(following);
        let of_model = loaded.filter(|loaded| Rc::ptr_eq(loaded, model));
        of_model.count() < self.options.completion_batch_size
    }

    /// What the running sequences may come to take besides the weights, and what the passes of tasks
    /// take.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let restoring = self.restoring.iter().map(|restoring| &restoring.job);
        let following = self.following.iter().map(|following| &following.job);
        let jobs = self.sequences().map(|sequence| &sequence.job);
        let jobs = jobs.chain(restoring).chain(following);
        let needs = jobs.filter_map(|job| job.needs);
        let of_sequences: u64 = needs.map(|needs| needs.most_bytes).sum();
        of_sequences + self.reserved_by_tasks()
    }

    fn reserved_by_tasks(&self) -> u64 {
        self.tasks().map(Task::reserved_bytes).sum()
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.runs.iter().filter_map(|run| match &run.work {
            RunWork::Task(task) => Some(task),
            RunWork::Batch(_) | RunWork::Unbatched(_) => None,
        })
    }

    /// Starts a request, or first restores its prompt; one that was stopped ends with its figures. If
    /// the request is invalid, its events report the failure.
    pub(crate) fn begin(&mut self, worker: &mut Worker, job: GenerateJob) {
        if job.is_stopped() {
            return self.start(worker, job, None);
        }
        if let Some(job) = self.follow(worker, job, Instant::now(), None) {
            self.restore_or_start(worker, job);
        }
    }

    fn restore_or_start(&mut self, worker: &mut Worker, job: GenerateJob) {
        let is_alone = self.num_sequences() == 0;
        match Restoring::begin(worker, job, is_alone) {
            Ok(restoring) => self.restoring.push_back(restoring),
            Err(job) => self.start(worker, *job, None),
        }
    }

    /// Lets a request wait for another that reads a beginning of both prompts. Returns the request
    /// if there is no such other. `has` is a shorter beginning that it has already, and `began` is
    /// when its lookup began.
    fn follow(
        &mut self,
        worker: &mut Worker,
        mut job: GenerateJob,
        began: Instant,
        has: Option<&mut Option<ReadBeginning>>,
    ) -> Option<GenerateJob> {
        let found = worker.guarded("comparing prompts", |worker| {
            let loaded = worker.models.get(job.request.model.as_deref())?;
            let num_tokens = job.prompt(&loaded)?.tokens.len();
            let own_length = loaded.model.model.context_length();
            if num_tokens >= job.request.context_length(own_length) {
                return Ok(None);
            }
            let is_exact = !loaded.model.model.cache_spec().is_trimmable();
            let leader = find_leader(self.candidates(), &job, &loaded, is_exact);
            let Some((leader, (_, prompt))) = leader.zip(job.prompt.as_ref()) else {
                return Ok(None);
            };
            let query = query(&job.request, prompt, num_tokens, &loaded);
            let num_held = match has.as_ref().and_then(|has| has.as_ref()) {
                Some(has) => has.num_tokens,
                None => worker.cache.num_reusable(&loaded.model, &query).0,
            };
            let is_worth_it = leader.num_shared >= num_held + LEAST_SHARED_TOKENS;
            Ok(is_worth_it.then_some((leader, loaded, is_exact)))
        });
        // If the request is wrong, the sequence fails with the same error when it begins.
        let Ok(Some((leader, loaded, is_exact))) = found else { return Some(job) };
        self.await_beginning(&leader, is_exact);
        // Another model may be loaded meanwhile.
        job.request.model = Some(loaded.name.clone());
        let has = has.and_then(Option::take);
        self.following.push(Following::new(job, loaded, began, has, &leader));
        None
    }

    /// Requests that others may follow: their prompts are being read, or restored first.
    fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        let reading = self.sequences().filter(|sequence| sequence.is_reading());
        let reading = reading.map(|sequence| {
            let Sequence { job, loaded, prompt, .. } = sequence;
            Candidate { job, loaded, tokens: &prompt.tokens, num_read: sequence.progress().0 }
        });
        let restoring = self.restoring.iter().filter_map(|Restoring { job, loaded, .. }| {
            let (_, prompt) = job.prompt.as_ref()?;
            Some(Candidate { job, loaded, tokens: &prompt.tokens, num_read: 0 })
        });
        reading.chain(restoring)
    }

    /// Makes a leader keep a beginning of its prompt once that is read.
    fn await_beginning(&mut self, leader: &Leader, is_exact: bool) {
        let Leader { stop, num_shared } = leader;
        let is_leader = |job: &GenerateJob| job.stop.same_channel(stop);
        let mut restoring = self.restoring.iter_mut();
        if let Some(restoring) = restoring.find(|restoring| is_leader(&restoring.job)) {
            return restoring.restored.awaited.add(*num_shared, is_exact);
        }
        for run in &mut self.runs {
            let RunWork::Batch(batch) = &mut run.work else { continue };
            if is_exact {
                batch.stop_reading_at(stop, *num_shared);
            }
        }
        if let Some(sequence) = self.sequences_mut().find(|sequence| is_leader(&sequence.job)) {
            sequence.awaited.add(*num_shared, is_exact);
        }
    }

    /// Begins the requests whose shared beginning has been read or never will be. If it never will
    /// be, the first request that waited takes over, and the others follow it.
    fn begin_followers(&mut self, worker: &mut Worker) {
        let mut begins = Vec::new();
        for following in std::mem::take(&mut self.following) {
            let is_restoring = || self.restoring.iter().any(|other| following.follows(&other.job));
            let leader = self.sequences().find(|sequence| following.follows(&sequence.job));
            let followed = match leader {
                Some(leader) => following.look_at(&leader.awaited, leader.is_reading()),
                None if is_restoring() => Followed::Waits,
                None => Followed::Lost,
            };
            match followed {
                Followed::Waits => self.following.push(following),
                Followed::Read(read) => begins.push((following, Some(read))),
                Followed::Lost => begins.push((following, None)),
            }
        }
        self.sequences_mut().for_each(|sequence| sequence.awaited.forget_read());
        for (following, read) in begins {
            let Following { job, loaded, began, has, .. } = following;
            let now = worker.models.get(Some(&loaded.name));
            let is_same = now.is_ok_and(|now| Rc::ptr_eq(&now, &loaded));
            let mut shared = read.or(has).filter(|_| is_same);
            let Some(job) = self.follow(worker, job, began, Some(&mut shared)) else { continue };
            match shared {
                Some(_) => {
                    let restored = Restored { began, shared, ..Restored::default() };
                    self.start(worker, job, Some(restored));
                }
                None => self.restore_or_start(worker, job),
            }
        }
    }

    fn start(&mut self, worker: &mut Worker, job: GenerateJob, restored: Option<Restored>) {
        // MLX has one peak counter for the whole process; each sequence records the peak of its own
        // time.
        self.sequences_mut().for_each(Sequence::note_peak_memory);
        memory::reset_peak();
        let events = job.events.clone();
        let begun = worker.guarded("starting an answer", |worker| {
            let mut restored = restored.unwrap_or_default();
            let of_draft = restored.of_draft.take();
            let (mut sequence, caches) = Sequence::begin(worker, job, restored)?;
            let ends = match sequence.job.is_stopped() {
                true => Some(FinishReason::Cancelled),
                false => (sequence.max_tokens == 0).then_some(FinishReason::Length),
            };
            if let Some(reason) = ends {
                sequence.prefilled(0);
                sequence.finish(worker, reason, caches);
                return Ok(());
            }
            // An imported file may be quantized although the request does not ask for it.
            let spec = CacheSpec::of(&caches);
            let is_quantized = spec.is_some_and(|spec| spec.quantization().is_some());
            let request = &sequence.job.request;
            let looks_up = request.speculation == Speculation::Auto && self.num_sequences() == 0;
            if is_quantized || looks_up || request.is_unbatched() {
                let run = UnbatchedRun::new(worker, sequence, caches, of_draft)?;
                self.add(RunWork::Unbatched(Box::new(run)));
                return Ok(());
            }
            sequence.prefilled(0);
            self.join(sequence, caches)
        });
        if let Err(error) = begun {
            let _ = events.send(GenerateEvent::Failed(error));
        }
        self.remove_ended(worker);
    }

    /// Adds a task.
    pub(crate) fn begin_task(&mut self, task: Task) {
        self.add(RunWork::Task(task));
    }

    /// Ends what was cancelled, then gives one slice to one run.
    pub(crate) fn turn(&mut self, worker: &mut Worker) {
        if self.is_empty() {
            return;
        }
        self.begin_followers(worker);
        self.remove_stopped(worker, GenerateJob::is_stopped);
        self.restore(worker);
        self.share_passes();
        let reader = self.next_reader();
        let costs = reader.and_then(|index| self.costs.get(self.runs[index].model())).copied();
        match self.policy.next(&self.counts(reader), &costs.unwrap_or_default()) {
            Slice::Decode => self.decode_slice(worker),
            Slice::Prefill { max_tokens } => self.prefill_slice(worker, reader, max_tokens),
            Slice::Idle => {}
        }
        self.publish(worker);
        self.remove_ended(worker);
    }

    /// Moves answers that decode by themselves, because tokens are looked up for them, into the batches
    /// of their models as soon as other answers are computed too.
    fn share_passes(&mut self) {
        if self.num_sequences() < 2 {
            return;
        }
        let mut leaving = Vec::new();
        for index in (0..self.runs.len()).rev() {
            let RunWork::Unbatched(run) = &mut self.runs[index].work else { continue };
            if !run.may_share() {
                continue;
            }
            let drained = caught("answering", || run.drain());
            if matches!(drained, Ok(false)) {
                continue;
            }
            if let RunWork::Unbatched(run) = self.runs.remove(index).work {
                leaving.push((*run, drained));
            }
        }
        for (run, drained) in leaving {
            let events = run.sequence().job.events.clone();
            let moved = drained.and_then(|_| caught("answering", || self.join_batch(run)));
            if let Err(error) = moved {
                let _ = events.send(GenerateEvent::Failed(error));
            }
        }
    }

    /// Puts a run that is drained into its model's batch.
    fn join_batch(&mut self, run: UnbatchedRun) -> Result<(), EngineError> {
        let (sequence, caches) = run.into_drained()?;
        let tokens = sequence.all_tokens().ok_or(EngineError::Interrupted)?;
        let num_held = caches.iter().map(LayerCache::offset).max().unwrap_or(0);
        let (held, unread) = tokens.split_at(num_held.min(tokens.len()));
        self.join_with(sequence, held.to_vec(), unread.to_vec(), caches)
    }

    /// How many answers are being computed, or will be once their prompts are restored.
    fn num_sequences(&self) -> usize {
        self.sequences().count() + self.restoring.len() + self.following.len()
    }

    /// Restores a chunk of each prompt, so that those that come together are read together. If
    /// nothing else is to be computed, waits for the first to be read.
    fn restore(&mut self, worker: &mut Worker) {
        let until = self.clock.now() + RESTORE_TIME;
        let mut may_wait = self.runs.is_empty();
        for _ in 0..self.restoring.len() {
            let Some(mut restoring) = self.restoring.pop_front() else { break };
            // What begins alike is restored once.
            let follows = self.restoring.iter().any(|other| restoring.follows(other));
            let blocking = Blocking::if_idle(may_wait && !follows);
            may_wait &= follows;
            if !follows && restoring.advance(worker, blocking) {
                let Restoring { job, restored, .. } = restoring;
                self.start(worker, job, Some(restored));
            } else {
                self.restoring.push_back(restoring);
            }
            if self.clock.now() >= until {
                break;
            }
        }
        let waiting = self.restoring.iter().filter_map(|one| one.restored.pending.as_ref());
        worker.cache.keep_restored_for(waiting);
    }

    /// Begins the requests that are restored or follow others, if `is_stopped` holds for them, so
    /// that they end with their figures. A part that is not restored yet is not looked up.
    fn stop_waiting(&mut self, worker: &mut Worker, is_stopped: impl Fn(&GenerateJob) -> bool) {
        let mut stopped = Vec::new();
        for restoring in std::mem::take(&mut self.restoring) {
            if is_stopped(&restoring.job) {
                stopped.push(restoring.job);
            } else {
                self.restoring.push_back(restoring);
            }
        }
        for following in std::mem::take(&mut self.following) {
            if is_stopped(&following.job) {
                stopped.push(following.job);
            } else {
                self.following.push(following);
            }
        }
        for mut job in stopped {
            job.request.use_prompt_cache = false;
            if !job.events.is_closed() {
                self.start(worker, job, None);
            }
        }
    }

    /// Cancels everything.
    pub(crate) fn cancel_all(&mut self, worker: &mut Worker) {
        self.remove_stopped(worker, |_| true);
        self.runs.clear();
    }

    /// Puts a sequence into its model's batch.
    fn join(&mut self, sequence: Sequence, caches: Vec<LayerCache>) -> Result<(), EngineError> {
        let (cached, uncached) = sequence.cached_and_uncached();
        self.join_with(sequence, cached, uncached, caches)
    }

    /// As [`Scheduler::join`], with caches of `cached` tokens that `uncached` ones follow.
    fn join_with(
        &mut self,
        sequence: Sequence,
        cached: Vec<u32>,
        uncached: Vec<u32>,
        caches: Vec<LayerCache>,
    ) -> Result<(), EngineError> {
        let batch = self.runs.iter_mut().find_map(|run| match &mut run.work {
            RunWork::Batch(batch)
                if batch.is_shared && Rc::ptr_eq(&batch.loaded, &sequence.loaded) =>
            {
                Some(batch)
            }
            _ => None,
        });
        if let Some(batch) = batch {
            return batch.insert(sequence, cached, uncached, caches);
        }
        let mut batch = BatchRun::new(Rc::clone(&sequence.loaded), self.options.clone(), true);
        batch.insert(sequence, cached, uncached, caches)?;
        self.add(RunWork::Batch(Box::new(batch)));
        Ok(())
    }

    fn add(&mut self, work: RunWork) {
        // It is served after the runs that wait already.
        let now = self.num_slices;
        let waited_for_decode = Duration::ZERO;
        self.runs.push(Run { work, last_decode: now, last_prefill: now, waited_for_decode });
    }

    fn counts(&self, reader: Option<usize>) -> QueueCounts {
        QueueCounts {
            num_decoding: self.runs.iter().filter(|run| run.is_decoding()).count(),
            num_reading: self.runs.iter().filter(|run| run.is_reading()).count(),
            num_decoding_rows: self.runs.iter().map(Run::num_decoding_rows).sum(),
            num_waiting_rows: self.runs.iter().map(Run::num_waiting_rows).sum(),
            num_unread_tokens: self.runs.iter().map(Run::num_unread_tokens).sum(),
            full_step_tokens: reader.map_or(1, |index| {
                let asked = self.runs[index].prefill_step_size();
                asked.map_or(self.options.prefill_step_size, |asked| {
                    asked.min(self.options.prefill_step_size)
                })
            }),
        }
    }

    /// The run that reads next: the one that has waited longest.
    fn next_reader(&self) -> Option<usize> {
        let readers = self.runs.iter().enumerate().filter(|(_, run)| run.is_reading());
        readers.min_by_key(|(_, run)| run.last_prefill).map(|(index, _)| index)
    }

    fn decode_slice(&mut self, worker: &mut Worker) {
        let decoders = self.runs.iter().enumerate().filter(|(_, run)| run.is_decoding());
        let Some((index, _)) = decoders.min_by_key(|(_, run)| run.last_decode) else { return };
        self.num_slices += 1;
        self.runs[index].last_decode = self.num_slices;
        let start = self.clock.now();
        let run = &mut self.runs[index];
        let waited = std::mem::take(&mut run.waited_for_decode);
        let model = run.model().to_owned();
        let outcome = match &mut run.work {
            RunWork::Batch(batch) => batch.decode(worker).map_err(Failure::Batch),
            RunWork::Unbatched(run) => step(run.decode()).map(|()| 1),
            RunWork::Task(_) => Ok(0),
        };
        let num_rows = *outcome.as_ref().unwrap_or(&1);
        self.clock.worked(Work::Decode { num_rows });
        let took = self.clock.now() - start;
        worker.work.writing_took(took);
        if outcome.as_ref().is_ok_and(|&num_rows| num_rows > 1) {
            worker.work.shared_a_pass();
        }
        let took = took + waited;
        self.policy.decoded(took);
        self.costs.entry(model).or_default().decoded(took);
        self.settle(worker, index, outcome.map(drop));
    }

    fn prefill_slice(&mut self, worker: &mut Worker, reader: Option<usize>, max_tokens: usize) {
        let Some(index) = reader else { return };
        let beside_decoding = self.runs.iter().any(Run::is_decoding);
        if beside_decoding {
            self.wait_for_decode(worker);
        }
        self.num_slices += 1;
        self.runs[index].last_prefill = self.num_slices;
        let room = match self.make_room(worker, index, max_tokens) {
            Ok(Room::None) => {
                // Others go on, which may end.
                return self.policy.prefilled(Duration::ZERO, beside_decoding);
            }
            Ok(room) => room,
            Err(error) => return self.settle(worker, index, Err(Failure::Run(error))),
        };
        let start = self.clock.now();
        let run = &mut self.runs[index];
        let model = run.model().to_owned();
        // Without padding, where that differs from what was computed.
        let mut num_read = None;
        let outcome = match &mut run.work {
            RunWork::Batch(batch) => batch.prefill(worker, max_tokens).map_err(Failure::Batch),
            RunWork::Unbatched(run) => {
                let num_before = run.num_left_to_read();
                step(run.prefill(max_tokens))
                    .map(|()| num_before.saturating_sub(run.num_left_to_read()))
            }
            RunWork::Task(task) => {
                let free_bytes = if let Room::Free(bytes) = room { Some(bytes) } else { None };
                let slice = task.advance(worker, max_tokens, free_bytes).map_err(Failure::Run);
                slice.map(|slice| {
                    num_read = Some(slice.num_read);
                    slice.num_tokens
                })
            }
        };
        let num_tokens = *outcome.as_ref().unwrap_or(&0);
        self.clock.worked(Work::Prefill { num_tokens });
        let took = self.clock.now() - start;
        // A task that only stores, or an answer's first pass that was only launched, has read nothing.
        if num_tokens > 0 {
            worker.work.reading_took(num_read.unwrap_or(num_tokens), took);
        }
        self.policy.prefilled(took, beside_decoding);
        self.costs.entry(model).or_default().prefilled(num_tokens, took);
        self.settle(worker, index, outcome.map(drop));
    }

    /// Makes room for the next pass of the task at `index`, as for an answer. What cannot have any is
    /// answered; an error ends the task.
    fn make_room(
        &mut self,
        worker: &mut Worker,
        index: usize,
        max_tokens: usize,
    ) -> Result<Room, EngineError> {
        loop {
            let (all, of_tasks) = (self.reserved_bytes(), self.reserved_by_tasks());
            let Some(used) = worker.memory_use(all) else { return Ok(Room::Unlimited) };
            let RunWork::Task(task) = &mut self.runs[index].work else {
                return Ok(Room::Unlimited);
            };
            let own = task.reserved_bytes();
            if task.waits_for_tasks(of_tasks > own) {
                return Ok(Room::None);
            }
            let needed = task.least_bytes(max_tokens);
            if needed == 0 {
                return Ok(Room::Free(used.free_bytes()));
            }
            let admission = used.admit_pass(&task.loaded().name, needed, all - own);
            if let Admission::Wait { .. } = admission {
                if self.will_memory_be_freed() || self.let_youngest_give_way() == Some(index) {
                    return Ok(Room::None);
                }
                continue;
            }
            match worker.make_room(admission, NeedsMemory::Texts) {
                Ok(()) => {
                    let used = worker.memory_use(all);
                    return Ok(used.map_or(Room::Unlimited, |used| Room::Free(used.free_bytes())));
                }
                Err(error) => task.refuse(error)?,
            }
        }
    }

    /// Whether a sequence or a pass under way holds memory, which it frees when it ends.
    fn will_memory_be_freed(&self) -> bool {
        self.tasks().map(Task::held_bytes).sum::<u64>() < self.reserved_bytes()
    }

    /// Frees what the youngest task holds between its passes, and returns its place: tasks that all
    /// hold something would otherwise wait for each other without end.
    fn let_youngest_give_way(&mut self) -> Option<usize> {
        let holds = |run: &Run| matches!(&run.work, RunWork::Task(task) if task.held_bytes() > 0);
        let index = self.runs.iter().rposition(holds)?;
        if let RunWork::Task(task) = &mut self.runs[index].work {
            task.give_way();
        }
        Some(index)
    }

    /// Waits until the device has computed what the last decode slice launched, so that a prefill
    /// slice is not measured with it.
    fn wait_for_decode(&mut self, worker: &Worker) {
        let start = self.clock.now();
        // Work that fails is reported to whoever asks for its result.
        let _ = ffi::synchronize();
        let waited = self.clock.now() - start;
        // At once: the run that waits longest may never decode again.
        worker.work.writing_took(waited);
        let decoding = self.runs.iter_mut().filter(|run| run.is_decoding());
        if let Some(run) = decoding.max_by_key(|run| run.last_decode) {
            run.waited_for_decode += waited;
        }
    }

    /// Removes the run at `index` if its slice has ended it, and reports how.
    fn settle(&mut self, worker: &mut Worker, index: usize, outcome: Result<(), Failure>) {
        match (outcome, &mut self.runs[index].work) {
            (Ok(()), RunWork::Batch(batch)) => {
                let lost = batch.take_lost();
                lost.into_iter().for_each(|sequence| self.isolate(sequence));
            }
            (Ok(()), RunWork::Task(task)) if task.is_done() => self.end_task(worker, index, Ok(())),
            (Ok(()), _) => {}
            (Err(Failure::Batch(failed)), _) => {
                self.runs.remove(index);
                self.retry(worker, *failed);
            }
            (Err(Failure::Ends(reason)), _) => {
                if let RunWork::Unbatched(run) = self.runs.remove(index).work {
                    run.finish(worker, reason);
                }
            }
            (Err(Failure::Run(error)), RunWork::Task(_)) => {
                self.end_task(worker, index, Err(error));
            }
            (Err(Failure::Run(error)), _) => {
                if let RunWork::Unbatched(run) = self.runs.remove(index).work {
                    run.fail(error);
                }
            }
        }
    }

    /// Answers a task. What it used is freed and the idle state published before, so that whoever
    /// gets the answer sees both.
    fn end_task(&mut self, worker: &mut Worker, index: usize, result: Result<(), EngineError>) {
        if let RunWork::Task(task) = self.runs.remove(index).work {
            let send = task.answer(result);
            self.remove_ended(worker);
            send();
        }
    }

    /// Handles a slice of a batch that failed as a whole: a lone sequence is at fault; several are
    /// computed again from their tokens, each by itself, so that only the one at fault fails.
    fn retry(&mut self, worker: &mut Worker, failed: FailedSlice) {
        let FailedSlice { error, mut sequences } = failed;
        worker.forget_conversations();
        if sequences.len() == 1
            && let Some(sequence) = sequences.pop()
        {
            sequence.job.fail(error);
        }
        sequences.into_iter().for_each(|sequence| self.isolate(sequence));
    }

    /// Computes a sequence again in a batch of its own, which takes turns with the others.
    fn isolate(&mut self, sequence: Sequence) {
        let events = sequence.job.events.clone();
        let Some(prompt) = sequence.all_tokens() else {
            // The tokens in its file are unknown and were lost with the caches.
            return sequence.job.fail(EngineError::Interrupted);
        };
        let mut batch = BatchRun::new(Rc::clone(&sequence.loaded), self.options.clone(), false);
        let inserted = caught("answering", || {
            let caches = sequence.new_caches()?;
            batch.insert(sequence, Vec::new(), prompt, caches)
        });
        match inserted {
            Ok(()) => self.add(RunWork::Batch(Box::new(batch))),
            Err(error) => drop(events.send(GenerateEvent::Failed(error))),
        }
    }

    /// Ends the sequences and tasks that were cancelled; what sequences have computed is saved.
    fn remove_stopped(&mut self, worker: &mut Worker, is_stopped: impl Fn(&GenerateJob) -> bool) {
        self.stop_waiting(worker, &is_stopped);
        let mut stay = Vec::with_capacity(self.runs.len());
        for mut run in std::mem::take(&mut self.runs) {
            match run.work {
                RunWork::Batch(mut batch) => {
                    batch.cancel(worker, &is_stopped);
                    let lost = batch.take_lost();
                    run.work = RunWork::Batch(batch);
                    stay.push(run);
                    lost.into_iter().for_each(|sequence| self.isolate(sequence));
                }
                RunWork::Unbatched(unbatched) if is_stopped(&unbatched.sequence().job) => {
                    unbatched.finish(worker, FinishReason::Cancelled);
                }
                RunWork::Task(task) if task.is_cancelled() => {}
                work => stay.push(Run { work, ..run }),
            }
        }
        stay.append(&mut self.runs);
        self.runs = stay;
    }

    /// Drops batches without sequences. If nothing is left, frees what MLX holds for reuse; where
    /// programs ask for batch after batch, only if that is much: the next one would have to get it
    /// from the system again.
    fn remove_ended(&mut self, worker: &mut Worker) {
        self.runs
            .retain(|run| !matches!(&run.work, RunWork::Batch(batch) if batch.rows.is_empty()));
        if self.is_empty() {
            let has_async_lm = worker.models.iter().any(|pooled| !pooled.async_lms.is_empty());
            if !has_async_lm || memory::cache_bytes() > REUSED_BYTES {
                memory::clear_cache();
            }
            worker.publish_idle();
        }
    }

    fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.runs.iter().flat_map(|run| -> Box<dyn Iterator<Item = &Sequence>> {
            match &run.work {
                RunWork::Batch(batch) => Box::new(batch.rows.values()),
                RunWork::Unbatched(run) => Box::new(std::iter::once(run.sequence())),
                RunWork::Task(_) => Box::new(std::iter::empty()),
            }
        })
    }

    fn sequences_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.runs.iter_mut().flat_map(|run| -> Box<dyn Iterator<Item = &mut Sequence>> {
            match &mut run.work {
                RunWork::Batch(batch) => Box::new(batch.rows.values_mut()),
                RunWork::Unbatched(run) => Box::new(std::iter::once(run.sequence_mut())),
                RunWork::Task(_) => Box::new(std::iter::empty()),
            }
        })
    }

    fn publish(&self, worker: &mut Worker) {
        let Some(sequence) = self.sequences().next() else {
            return self.publish_task(worker);
        };
        // Which model answers next is what a watcher asks, not whose answer was begun first.
        let model = worker.models.current().unwrap_or(&sequence.loaded.name).to_owned();
        let decoding = self.sequences().filter(|sequence| !sequence.sampled.is_empty());
        let (generation_tokens, generation_tps) = decoding
            .fold((0, 0.0), |(tokens, tps), sequence| {
                (tokens + sequence.sampled.len(), tps + sequence.shown_tps())
            });
        worker.publish_progress(|| match generation_tokens {
            0 => {
                let (processed_tokens, total_tokens) = sequence.progress();
                EngineState::Prefilling { model, processed_tokens, total_tokens }
            }
            _ => EngineState::Generating { model, generation_tokens, generation_tps },
        });
    }

    fn publish_task(&self, worker: &mut Worker) {
        let task = self.runs.iter().find_map(|run| match &run.work {
            RunWork::Task(task) => Some(task),
            _ => None,
        });
        let Some(task) = task else { return };
        let (processed_tokens, total_tokens) = task.progress();
        let model = worker.models.current().unwrap_or(&task.loaded().name).to_owned();
        let state = || EngineState::Prefilling { model, processed_tokens, total_tokens };
        worker.publish_progress(state);
    }
}

/// What the next pass of a task may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Unlimited,
    Free(u64),
    /// It waits until others have ended.
    None,
}

/// How a slice ended its run.
enum Failure {
    Batch(Box<FailedSlice>),
    Run(EngineError),
    /// Not a failure: the answer of an unbatched sequence is complete.
    Ends(FinishReason),
}

fn step(step: Result<RunStep, EngineError>) -> Result<(), Failure> {
    match step {
        Ok(RunStep::Continues) => Ok(()),
        Ok(RunStep::Ends(reason)) => Err(Failure::Ends(reason)),
        Err(error) => Err(Failure::Run(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
