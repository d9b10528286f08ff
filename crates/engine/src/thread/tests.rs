//! The loop without a thread: what it does between two slices.

use cairn_chat::{AnswerForm, FinishReason, TextForm};
use cairn_lm::LoadProgress;
use tokio::sync::mpsc;

use super::grammars::GrammarJob;
use super::*;
use crate::PromptInput;
use crate::lookup::query;
use crate::prompt_cache::CacheOptions;
use crate::request::{GenerateEvent, GenerateRequest, ModelOptions, Speculation};
use crate::scripted_model::write_scripted;
use crate::wired_memory::WiredMemory;

#[test]
fn a_model_is_not_loaded_to_its_end_by_an_engine_that_shuts_down() {
    let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
    let (closing, is_closing) = watch::channel(false);
    let (status, _watcher) = watch::channel(EngineStatus::default());
    let (back, jobs) = std::sync::mpsc::channel();
    let (queue, _grammars) = std::sync::mpsc::channel();
    let grammars = GrammarQueue { queue, back };
    let cache = PromptCache::new(StoredCache::none());
    let worker = Worker::new(cache, true, None, status, is_closing);
    let scheduler = Scheduler::new(BatchOptions::default(), Rc::new(SystemClock));
    let engine = Rc::new(RefCell::new(EngineLoop::new(worker, scheduler, jobs, grammars)));
    let load = |name: &str| {
        let (reply, mut answer) = oneshot::channel();
        let reply = LoadReply::Model(reply);
        let (name, folder, options) = (name.to_owned(), folder.clone(), ModelOptions::default());
        load(&engine, LoadJob { name, folder, options, reply });
        answer.try_recv().unwrap()
    };
    assert!(load("tiny").is_ok());
    closing.send_replace(true);
    let cancelled = load("another");
    assert!(matches!(cancelled, Err(EngineError::Closed)), "{cancelled:?}");
    assert_eq!(engine.borrow().worker.models.names(), ["tiny"]);
}

/// The loop without a thread, and the way to give it jobs.
struct TestLoop {
    engine: Rc<RefCell<EngineLoop>>,
    jobs: std::sync::mpsc::Sender<Job>,
    /// Whose grammars are to be compiled; nobody does it.
    grammars: Receiver<GrammarJob>,
    _closing: watch::Sender<bool>,
}

impl TestLoop {
    fn new(stored: StoredCache) -> Self {
        let (closing, is_closing) = watch::channel(false);
        let (status, _) = watch::channel(EngineStatus::default());
        let (jobs, receiver) = std::sync::mpsc::channel();
        let (queue, grammars) = std::sync::mpsc::channel();
        let queue = GrammarQueue { queue, back: jobs.clone() };
        let worker = Worker::new(PromptCache::new(stored), true, None, status, is_closing);
        let scheduler = Scheduler::new(BatchOptions::default(), Rc::new(SystemClock));
        let engine = Rc::new(RefCell::new(EngineLoop::new(worker, scheduler, receiver, queue)));
        TestLoop { engine, jobs, grammars, _closing: closing }
    }

    /// Loads a scripted model.
    fn load(&self, name: &str, fields: &str) {
        let (reply, mut answer) = oneshot::channel();
        self.load_as(name, fields, LoadReply::Model(reply));
        answer.try_recv().unwrap().unwrap();
    }

    /// Loads a scripted draft model of the current one.
    fn load_draft(&self, name: &str, fields: &str) {
        let (reply, mut answer) = oneshot::channel();
        self.load_as(name, fields, LoadReply::Draft(reply));
        answer.try_recv().unwrap().unwrap();
    }

    fn load_as(&self, name: &str, fields: &str, reply: LoadReply) {
        let folder = tempfile::tempdir().unwrap();
        write_scripted(folder.path(), fields);
        let (name, folder) = (name.to_owned(), folder.path().to_owned());
        load(&self.engine, LoadJob { name, folder, options: ModelOptions::default(), reply });
    }

    fn turn(&self) {
        assert!(matches!(self.engine.borrow_mut().turn(), Next::Turn));
    }

    /// Asks for an answer to so many tokens.
    fn begin(&self, num_prompt_tokens: usize, max_tokens: usize) -> Running {
        self.begin_in(num_prompt_tokens, max_tokens, None)
    }

    /// As [`TestLoop::begin`], for an answer in a form.
    fn begin_in(
        &self,
        num_prompt_tokens: usize,
        max_tokens: usize,
        form: Option<AnswerForm>,
    ) -> Running {
        self.begin_with(GenerateRequest { max_tokens, form, ..request(num_prompt_tokens) })
    }

    /// Asks for an answer.
    fn begin_with(&self, request: GenerateRequest) -> Running {
        let (job, running) = asked(request);
        self.jobs.send(Job::Generate(Box::new(job))).unwrap();
        running
    }

    /// Gives turns until a sequence is restored; returns how many. Another gets a token in each of them.
    fn turns_until_restored(&self, restored: &mut Running, other: &mut Running) -> usize {
        let mut num_turns = 1;
        self.turn();
        while restored.num_cached().is_none() {
            assert_eq!(other.num_tokens(), 1, "in turn {num_turns}");
            self.turn();
            num_turns += 1;
        }
        num_turns
    }

    /// Gives turns until its first token.
    fn first_token(&self, running: &mut Running) {
        while running.num_tokens() == 0 {
            self.turn();
        }
    }
}

/// A request with so many tokens.
fn request(num_prompt_tokens: usize) -> GenerateRequest {
    let tokens = vec![num_prompt_tokens as u32 % 256; num_prompt_tokens];
    GenerateRequest::new(PromptInput::Tokens(tokens))
}

/// A job, and what becomes of it.
fn asked(request: GenerateRequest) -> (GenerateJob, Running) {
    let (job, (events, stop)) = GenerateJob::new(request, None, watch::channel(false).1);
    (job, Running { events, stop, cached: None, num_tokens: 0 })
}

struct Running {
    events: mpsc::UnboundedReceiver<GenerateEvent>,
    stop: watch::Sender<bool>,
    cached: Option<usize>,
    num_tokens: usize,
}

impl Running {
    fn receive(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            match event {
                GenerateEvent::Prefill { cached, .. } => self.cached = Some(cached),
                GenerateEvent::Delta { .. } => self.num_tokens += 1,
                GenerateEvent::Failed(error) => panic!("{error}"),
                GenerateEvent::SoFar(_) | GenerateEvent::Finished(_) => {}
            }
        }
    }

    /// The tokens since the last call.
    fn num_tokens(&mut self) -> usize {
        self.receive();
        std::mem::take(&mut self.num_tokens)
    }

    /// How much of its prompt came from the prompt cache, once it has begun.
    fn num_cached(&mut self) -> Option<usize> {
        self.receive();
        self.cached
    }
}

const WRITER: &str = r#"{"script": [97], "max_position_embeddings": 1000000}"#;

#[test]
fn a_sequence_gets_a_token_before_each_part_of_a_load() {
    const NUM_PARTS: usize = 40;
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let mut writer = test.begin(1, 1_000_000);
    test.first_token(&mut writer);
    writer.num_tokens();
    test.load("loaded", &format!(r#"{{"script": [98], "load_parts": {NUM_PARTS}}}"#));
    assert_eq!(writer.num_tokens(), NUM_PARTS);
}

/// An answer that is a number.
fn form() -> Option<AnswerForm> {
    let schema = serde_json::json!({ "type": "integer" });
    Some(AnswerForm { text: TextForm::Json(schema), calls: Vec::new() })
}

#[test]
fn others_get_their_tokens_while_a_grammar_is_compiled() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let mut writer = test.begin(1, 1_000_000);
    test.first_token(&mut writer);
    let mut constrained = test.begin_in(2, 3, form());
    // Taken by nobody, which is as long as a grammar can take to be compiled.
    test.turn();
    let job = test.grammars.try_recv().unwrap();
    writer.num_tokens();
    for _ in 0..20 {
        test.turn();
        assert_eq!((writer.num_tokens(), constrained.num_tokens()), (1, 0));
    }
    // Neither does one wait that came later.
    test.first_token(&mut test.begin(3, 1));
    job.run();
    test.first_token(&mut constrained);
}

#[test]
fn a_request_without_anybody_who_waits_compiles_nothing() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let dropped = test.begin_in(2, 3, form());
    test.turn();
    drop(dropped);
    test.grammars.try_recv().unwrap().run();
    // The loop is idle, so it would wait for a job.
    assert!(test.engine.borrow().is_idle());
    assert!(test.engine.borrow().jobs.try_recv().is_err());
}

#[test]
fn a_request_that_is_stopped_ends_without_its_grammar() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    // No grammar can be made of it.
    let schema = serde_json::json!({ "type": "unheard-of" });
    let form = || Some(AnswerForm { text: TextForm::Json(schema.clone()), calls: Vec::new() });
    let is_cancelled = |running: &mut Running| {
        let last = std::iter::from_fn(|| running.events.try_recv().ok()).last();
        matches!(last, Some(GenerateEvent::Finished(finished))
            if finished.stats.finish_reason == FinishReason::Cancelled)
    };
    let mut before = test.begin_in(2, 3, form());
    before.stop.send_replace(true);
    test.turn();
    assert!(test.grammars.try_recv().is_err(), "it is not compiled");
    assert!(is_cancelled(&mut before));

    let mut compiled = test.begin_in(2, 3, form());
    test.turn();
    let job = test.grammars.try_recv().unwrap();
    compiled.stop.send_replace(true);
    job.run();
    test.turn();
    assert!(is_cancelled(&mut compiled));
}

#[test]
fn a_model_that_answers_goes_on_as_it_is_where_it_is_not_loaded_again() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let mut running = test.begin(3, 1000);
    test.first_token(&mut running);
    test.load("current", WRITER);

    let (reply, mut answer) = oneshot::channel();
    test.load_as("writer", r#"{"script": "none"}"#, LoadReply::Model(reply));
    let refused = answer.try_recv().unwrap();
    assert!(matches!(refused, Err(EngineError::Load { .. })), "{refused:?}");
    let ready = EngineState::Ready { model: "current".to_owned() };
    assert_eq!(test.engine.borrow().worker.status().state, ready);
    let unnamed = test.engine.borrow().worker.models.get(None).unwrap();
    assert_eq!(unnamed.name, "current");
    running.num_tokens();
    test.turn();
    assert_eq!(running.num_tokens(), 1);
}

#[test]
fn a_grammar_for_a_model_that_was_replaced_is_compiled_again() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let mut constrained = test.begin_in(2, 3, form());
    test.turn();
    let job = test.grammars.try_recv().unwrap();
    test.load("writer", r#"{"script": [98], "max_position_embeddings": 1000}"#);
    job.run();
    test.turn();
    let again = test.grammars.try_recv().unwrap();
    assert_eq!(constrained.num_tokens(), 0);
    again.run();
    test.first_token(&mut constrained);
}

/// Stored caches in memory, of which nothing waits for the writer.
fn stored(folder: &std::path::Path) -> StoredCache {
    stored_within(folder, 0, 1 << 30)
}

fn stored_within(
    folder: &std::path::Path,
    disk_budget_bytes: u64,
    memory_budget_bytes: u64,
) -> StoredCache {
    let options = CacheOptions {
        folder: folder.to_owned(),
        old_folders: Vec::new(),
        disk_budget_bytes,
        memory_budget_bytes,
        chunks: Vec::new(),
        refs: Vec::new(),
        cleanup_lock: None,
    };
    let (changes, _) = mpsc::unbounded_channel();
    let (status, _) = watch::channel(EngineStatus::default());
    StoredCache::open(Some(options), changes, status)
}

/// Twelve chunks.
const LONG_PROMPT: usize = 12 * 256;

#[test]
fn a_sequence_gets_a_token_between_the_chunks_that_another_saves_or_restores() {
    let folder = tempfile::tempdir().unwrap();
    let stored = stored(folder.path());
    let cache = stored.handle().unwrap();
    let test = TestLoop::new(stored);
    test.load("writer", WRITER);
    let mut writer = test.begin(1, 1_000_000);
    test.first_token(&mut writer);
    test.first_token(&mut test.begin(LONG_PROMPT, 1));
    let num_chunks = || cache.view(0).num_chunks;
    writer.num_tokens();
    while test.engine.borrow().worker.cache.is_saving() {
        let before = num_chunks();
        test.turn();
        assert_eq!((num_chunks(), writer.num_tokens()), (before + 1, 1));
    }
    assert!(num_chunks() >= 12, "{}", num_chunks());

    test.engine.borrow_mut().worker.forget_conversations();
    let mut again = test.begin(LONG_PROMPT, 1);
    let num_turns = test.turns_until_restored(&mut again, &mut writer);
    assert_eq!(num_turns, 12, "a chunk a turn");
    assert_eq!(again.cached, Some(LONG_PROMPT - 1));
    test.first_token(&mut again);
}

/// An answer for which a draft model proposes.
fn drafted(num_prompt_tokens: usize, max_tokens: usize) -> GenerateRequest {
    let speculation = Speculation::Draft { num_tokens: 2 };
    GenerateRequest { max_tokens, speculation, ..request(num_prompt_tokens) }
}

#[test]
fn a_sequence_gets_a_token_between_the_chunks_that_a_draft_model_restores() {
    let folder = tempfile::tempdir().unwrap();
    let test = TestLoop::new(stored(folder.path()));
    test.load("writer", WRITER);
    test.load_draft("draft", r#"{"script": [97, 98], "max_position_embeddings": 1000000}"#);
    let mut first = test.begin_with(drafted(LONG_PROMPT, 200));
    test.first_token(&mut first);
    while !test.engine.borrow().is_idle() {
        test.turn();
    }
    test.engine.borrow_mut().worker.forget_conversations();

    let mut writer = test.begin(1, 1_000_000);
    test.first_token(&mut writer);
    let mut again = test.begin_with(drafted(LONG_PROMPT, 1));
    writer.num_tokens();
    let num_turns = test.turns_until_restored(&mut again, &mut writer);
    // The last chunk of the model and the first of the draft model share a turn.
    assert_eq!(num_turns, 23, "a chunk a turn");
    assert_eq!(again.cached, Some(LONG_PROMPT - 1));
    test.first_token(&mut again);
}

#[test]
fn memory_is_reserved_for_what_a_draft_model_reads() {
    let test = TestLoop::new(StoredCache::none());
    test.load("writer", WRITER);
    let engine = || test.engine.borrow_mut();
    let needs = |request: GenerateRequest| {
        let loaded = engine().worker.models.get(None).unwrap();
        engine().needs(&mut asked(request).0, &loaded).unwrap()
    };
    let plain = needs(drafted(500, 100));
    test.load_draft("draft", WRITER);
    let with_draft = needs(drafted(500, 100));
    assert_eq!(with_draft.most_bytes, 2 * plain.most_bytes, "both models are alike");
    assert_eq!(with_draft.least_bytes, 2 * plain.least_bytes);
    let speculation = Speculation::Auto;
    let where_it_pays = needs(GenerateRequest { speculation, ..drafted(500, 100) });
    assert_eq!(where_it_pays.most_bytes, with_draft.most_bytes);
    assert_eq!(where_it_pays.least_bytes, plain.least_bytes, "it answers without one, too");
    let speculation = Speculation::Off;
    let without = needs(GenerateRequest { speculation, ..drafted(500, 100) });
    assert_eq!(without.most_bytes, plain.most_bytes);
}

#[test]
fn a_request_that_is_stopped_while_it_is_restored_ends() {
    let folder = tempfile::tempdir().unwrap();
    let test = TestLoop::new(stored(folder.path()));
    test.load("writer", WRITER);
    test.first_token(&mut test.begin(LONG_PROMPT, 1));
    while test.engine.borrow().worker.cache.is_saving() {
        test.turn();
    }
    test.engine.borrow_mut().worker.forget_conversations();
    let mut writer = test.begin(1, 1_000_000);
    test.first_token(&mut writer);
    let mut stopped = test.begin(LONG_PROMPT, 1);
    let dropped = test.begin(LONG_PROMPT, 1);
    test.turn();
    assert_eq!(stopped.num_cached(), None, "it is being restored");
    drop(dropped);
    stopped.stop.send_replace(true);
    test.turn();
    let last = std::iter::from_fn(|| stopped.events.try_recv().ok()).last();
    assert!(matches!(last, Some(GenerateEvent::Finished(_))), "{last:?}");
    // Only the writer is left.
    writer.stop.send_replace(true);
    test.turn();
    assert!(test.engine.borrow().is_idle() || test.engine.borrow().worker.cache.is_saving());
}

#[test]
fn what_could_not_be_restored_whole_is_no_source_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let stored = stored_within(folder.path(), 1 << 30, 0);
    let handle = stored.handle().unwrap();
    let test = TestLoop::new(stored);
    test.load("writer", WRITER);
    test.first_token(&mut test.begin(LONG_PROMPT, 1));
    while !test.engine.borrow().is_idle() {
        test.turn();
    }
    let worker = &mut test.engine.borrow_mut().worker;
    let (reply, written) = oneshot::channel();
    worker.cache.flush(reply);
    written.blocking_recv().unwrap().unwrap();
    worker.forget_conversations();

    let loaded = worker.models.get(None).unwrap();
    let (mut job, _running) = asked(request(LONG_PROMPT));
    let prompt = job.prompt(&loaded).unwrap().clone();
    let lookup = query(&job.request, &prompt, LONG_PROMPT, &loaded);
    let mut begin = || worker.cache.begin_restore(&loaded.model, &lookup);
    let pending = [begin(), begin()];
    assert!(pending.iter().flatten().all(|pending| pending.num_left() == 12));
    let last = handle.view(1).nodes[0].key;
    let of_model = folder.path().join(&loaded.model.fingerprint);
    std::fs::remove_file(of_model.join(format!("{last}.safetensors"))).unwrap();
    for pending in pending {
        let reuse = worker.cache.longest_prefix(&loaded.model, &lookup, pending);
        assert_eq!(reuse.num_tokens, 11 * 256);
        assert!(reuse.caches.iter().all(|cache| cache.offset() == reuse.num_tokens));
    }
}

#[test]
fn a_load_reports_how_much_has_been_read() {
    let engine = TestLoop::new(StoredCache::none()).engine;
    let total_bytes = 100;
    engine.borrow_mut().worker.loading = Some(("m".to_owned(), LoadProgress::default()));
    for bytes_read in [0, 60, 99] {
        let progress = LoadProgress { bytes_read, total_bytes };
        engine.borrow_mut().worker.publish_loading(progress);
        // Watchers are told at most ten times a second; whoever looks sees the last.
        engine.borrow_mut().worker.publish(EngineState::Empty);
        let expected = EngineState::Loading { model: "m".to_owned(), progress };
        assert_eq!(engine.borrow().worker.status().state, expected);
    }
}

#[test]
fn wired_memory_changes_only_while_nothing_is_computed() {
    let tested = TestLoop::new(StoredCache::none());
    let calls = Rc::new(RefCell::new(Vec::new()));
    let record = Rc::clone(&calls);
    tested.engine.borrow_mut().worker.wired = WiredMemory::new(Some(1 << 30), move |bytes| {
        record.borrow_mut().push(bytes);
        Ok(())
    });
    tested.load("writer", WRITER);
    let mut running = tested.begin(8, 100_000);
    tested.first_token(&mut running);
    tested.jobs.send(Job::SetWiredMemory(true)).unwrap();
    for _ in 0..20 {
        tested.turn();
    }
    assert!(calls.borrow().is_empty(), "an answer is being written");
    // It ends, and the limit changes in the next turn.
    running.stop.send_replace(true);
    while !tested.engine.borrow().scheduler.is_empty() {
        tested.turn();
    }
    tested.jobs.send(Job::SetPinned(Vec::new())).unwrap();
    tested.turn();
    assert_eq!(*calls.borrow(), [1 << 30]);
}
