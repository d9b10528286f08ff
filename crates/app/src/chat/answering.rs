//! One running answer, from the loaded model to the saved message: a task that continues even if the
//! caller of its command goes away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_chat::{Encode, FinishReason, GenerationStats};
use cairn_engine::{
    FinishedGeneration, GenerateEvent, GenerateRequest, LoadedModel, WorkFor, WorkKind,
};
use cairn_prompt_cache::Miss;
use cairn_store::{FinishedMessage, MessageStatus};

use crate::app::App;
use crate::chat::answer_events::{emit_changes, emit_finished, emit_prefill};
use crate::chat::beside;
use crate::chat::branch_to_answer::BranchToAnswer;
use crate::chat::holding::{self, Choice};
use crate::chat::listed;
use crate::chat::overflow::{self, Made};
use crate::chat::progress::{Prefill, Progress};
use crate::chat::running::Running;
use crate::chat::saving::{Saving, is_worth_retrying, retry, save};
use crate::chat::savings;
use crate::chat::segments::Now;
use crate::chat::titles;
use crate::chat::turn::{Turn, Wanted};
use crate::clock::now_ms;
use crate::crashes::record::{RunningStep, Step, StepKind};
use crate::documents::reading;
use crate::models::loaded::loaded_name;
use crate::models::loading;
use crate::settings::{Settings, commands as settings};
use crate::wire::{Failure, FailureCode, FailureKind, NoticeKind, NoticeLevel};
use crate::{convert, platform};

/// How long an answer may take to stop when the app closes. Then its text so far is saved.
const CLOSING_GRACE: Duration = Duration::from_millis(700);

/// What of an answer was generated before the request that runs.
#[derive(Default)]
struct Before {
    /// None of an answer that was interrupted.
    stats: Option<GenerationStats>,
    new_prompt_ids: Vec<u32>,
    num_tokens: usize,
}

impl Before {
    fn of(row: &cairn_store::Message) -> Self {
        Before {
            stats: row.stats.clone(),
            new_prompt_ids: Vec::new(),
            num_tokens: row.token_ids.as_ref().map_or(0, Vec::len),
        }
    }

    /// The figures of the whole answer.
    fn together(self, stats: GenerationStats) -> GenerationStats {
        match self.stats {
            None => holding::with_so_far(stats, self.num_tokens),
            before => holding::with_before(stats, before),
        }
    }
}

/// How the generation of an answer, or of a part of it, ended.
enum Part {
    /// With the answer.
    Ended(Box<Outcome>),
    /// It repeats itself.
    Held(Box<FinishedGeneration>),
    /// Within thoughts, which a person has ended.
    Thought(Box<FinishedGeneration>),
}

impl Part {
    /// Whether the answer has ended without being stopped.
    fn is_complete(&self) -> bool {
        matches!(self, Part::Ended(outcome) if outcome.status == MessageStatus::Complete)
    }
}

/// How an answer ended.
struct Outcome {
    status: MessageStatus,
    error: Option<Failure>,
    /// The token ids that the question added to the prompt; empty if unknown.
    new_prompt_ids: Vec<u32>,
    token_ids: Option<Vec<u32>>,
    stats: Option<GenerationStats>,
}

impl Outcome {
    fn without_figures(status: MessageStatus, error: Option<Failure>, progress: &Progress) -> Self {
        let token_ids = Some(progress.token_ids().to_vec()).filter(|ids| !ids.is_empty());
        Outcome { status, error, new_prompt_ids: Vec::new(), token_ids, stats: None }
    }

    fn stopped(progress: &Progress) -> Self {
        Self::without_figures(MessageStatus::Stopped, None, progress)
    }

    /// With the figures of the part before this one. An answer that was stopped before it went on has
    /// those only, and so has one that could not.
    fn with_before(mut self, before: Option<Before>) -> Self {
        let Some(before) = before else { return self };
        if self.stats.is_none() {
            self.new_prompt_ids = before.new_prompt_ids;
            self.stats = before.stats;
        } else {
            self.stats = self.stats.map(|stats| before.together(stats));
        }
        self
    }

    /// An answer that could not go on is as it was, with the reason: what later prompts have of it must
    /// not depend on that. One that was stopped before it went on keeps its figures.
    fn of_going_on(mut self, before: &cairn_store::Message) -> Self {
        if self.status == MessageStatus::Failed {
            self.status = before.status;
        }
        self.stats = self.stats.or_else(|| before.stats.clone());
        self
    }

    fn failed(error: impl Into<Failure>, progress: &Progress) -> Self {
        let error = error.into();
        let error = Failure { message: convert::sentence(&error.message), ..error };
        Self::without_figures(MessageStatus::Failed, Some(error), progress)
    }
}

/// As it is kept with an answer: plain names and numbers always serialize.
fn stored_kind(kind: &FailureKind) -> Option<String> {
    serde_json::to_string(kind).ok()
}

/// Generates the answer, saves it, and emits its events.
pub(crate) async fn answer(app: Arc<App>, running: Arc<Running>, turn: Turn) {
    let _end = End { app: &app, running: &running };
    let mut progress = match turn.before() {
        Some(before) => Progress::of_stored(before, Instant::now()),
        None => Progress::new(Instant::now()),
    };
    let mut outcome = write(&app, &running, &turn, &mut progress).await;
    if let Some(stats) = &mut outcome.stats {
        savings::complete(&turn, stats, &progress.answered_with).await;
    }
    if let Some(before) = turn.before() {
        outcome = outcome.of_going_on(before);
    }
    // As after a crash: nobody has stopped it, whatever the engine calls it.
    if outcome.status == MessageStatus::Stopped
        && app.closing.is_cancelled()
        && running.is_interrupted()
    {
        outcome.status = MessageStatus::Interrupted;
    }
    let now = Instant::now();
    progress.end(now);
    emit_changes(&app, &running, progress.flush_changes());
    let finished = FinishedMessage {
        status: outcome.status,
        text: progress.prompt_text().to_owned(),
        segments: progress.stored_segments(now),
        token_ids: outcome.token_ids,
        error_kind: outcome.error.as_ref().and_then(|error| stored_kind(error.kind.as_ref()?)),
        error: outcome.error.map(|error| error.message),
        model: outcome.stats.as_ref().map(|stats| stats.model.clone()).or(progress.model.take()),
        stats: outcome.stats,
    };
    let saved = save(&turn, &outcome.new_prompt_ids, &finished).await;
    let is_saved = match saved {
        Err(error) if is_worth_retrying(&error) => {
            let text = format!(
                "The answer is not saved ({error}); Cairn keeps it in memory and tries again."
            );
            let kind = NoticeKind::AnswerKept { why: error.into() };
            app.emit_notice(NoticeLevel::Error, text, kind);
            false
        }
        // A conversation that was purged in the meantime needs no row.
        _ => true,
    };
    if let Some(stats) = &finished.stats {
        app.monitor.answered(stats);
    }
    if is_saved {
        // Removed before the event, because the next question may follow it at once.
        app.answers.remove(&running);
        emit_finished(&app, &running, &finished);
    } else {
        emit_finished(&app, &running, &finished);
        listed::emit(&app, &turn.conversation_id).await;
        retry(&app, &turn, &outcome.new_prompt_ids, &finished).await;
        app.answers.remove(&running);
    }
    listed::emit(&app, &turn.conversation_id).await;
    if finished.status == MessageStatus::Complete {
        titles::write_when_idle(&app, &turn.conversation_id);
    }
}

/// Removes the answer from the running ones, also if its task panics.
struct End<'a> {
    app: &'a App,
    running: &'a Arc<Running>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.app.answers.remove(self.running);
        self.running.ended.cancel();
    }
}

async fn write(app: &Arc<App>, running: &Running, turn: &Turn, progress: &mut Progress) -> Outcome {
    if let Err(outcome) = load_model(app, running, turn, progress).await {
        return outcome;
    }
    let model = turn.model().map(str::to_owned).or_else(|| loaded_name(app));
    progress.model.clone_from(&model);
    let of_chat = &turn.conversation_id;
    reading::give_way(app, of_chat, &running.stop).await;
    if running.stop.is_cancelled() {
        return Outcome::stopped(progress);
    }
    let mut settings = settings::for_answer(app, &turn.store, of_chat, model.as_deref()).await;
    if let (Ok(settings), Wanted::Compared(compared)) = (&mut settings, &turn.wanted) {
        compared.set(settings);
    }
    let row = turn.store.conversation(of_chat).await.ok().flatten();
    if let Some(row) = row {
        progress.answered_with = savings::with(app, row.system_prompt, model.as_deref()).await;
    }
    let step = begin_step(app, turn, model.as_deref());
    let request = async {
        let settings = settings?;
        if settings.holds_loops {
            progress.watch_for_loops();
        }
        let made = match &model {
            Some(model) => overflow::make_room(app, running, turn, model, &settings).await?,
            None => Made::Nothing,
        };
        Ok::<_, Failure>((request(app, turn, model.as_deref(), &settings).await?, made))
    };
    let request = request.await;
    drop(step);
    let (request, made) = match request {
        Ok((_, Made::Stopped)) => return Outcome::stopped(progress),
        Ok(request) => request,
        Err(failure) => return Outcome::failed(failure, progress),
    };
    let mut saving = Saving::new();
    let mut outcome = in_parts(app, running, turn, progress, request, &mut saving).await;
    if let (Made::Cut, Some(stats)) = (made, &mut outcome.stats)
        && stats.cache_note.is_some()
    {
        let num_read = stats.num_prompt_tokens.saturating_sub(stats.num_cached_tokens);
        stats.cache_note = Some(convert::cut_note(num_read));
        stats.miss = Some(convert::cut_miss(num_read));
    }
    saving.settle(app).await;
    outcome
}

/// Generates the answer. Wherever it repeats itself, it is held and continues if a person says so.
/// Thoughts that a person ends are closed, and the answer follows.
async fn in_parts(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    progress: &mut Progress,
    mut request: GenerateRequest,
    saving: &mut Saving,
) -> Outcome {
    let max_tokens = request.max_tokens;
    let mut before = turn.before().map(Before::of);
    let mut may_cut = true;
    loop {
        let part = generate(app, running, turn, progress, request.clone(), saving, &mut may_cut);
        let (mut held, is_thought) = match part.await {
            Part::Held(held) => (*held, false),
            Part::Thought(held) => (*held, true),
            Part::Ended(mut outcome) => {
                if let Some(stats) = &mut outcome.stats {
                    savings::claim(app, turn, stats).await;
                }
                return outcome.with_before(before);
            }
        };
        let mut stats = complete(held.stats, held.miss.take());
        savings::claim(app, turn, &mut stats).await;
        held.stats = match before.take() {
            Some(before) => before.together(stats),
            None => stats,
        };
        if !is_thought
            && let Choice::Stop = holding::hold(app, running, turn, progress, saving).await
        {
            return ended(held, request.max_tokens, progress);
        }
        // Tokens of one model say nothing to another, and this one may have been unloaded meanwhile.
        let model = held.stats.model.clone();
        if let Err(failure) = loading::ensure_loaded_beside(app, &model).await {
            return Outcome::failed(failure, progress);
        }
        // The model may have closed them itself before the engine stopped.
        if is_thought && progress.is_thinking() {
            match end_of_thoughts(app, &model).await {
                Ok(end) => held.token_ids.extend(end),
                Err(failure) => return Outcome::failed(failure, progress),
            }
            progress.go_on_after(&held.token_ids, Instant::now());
        }
        request.model = Some(model);
        // What the engine has not given out yet, it gives out when the answer goes on.
        request.answer_so_far.clone_from(&held.token_ids);
        let num_before = turn.before().map_or(0, |before| Before::of(before).num_tokens);
        let num_tokens = held.token_ids.len();
        request.max_tokens = max_tokens.saturating_sub(num_tokens - num_before).max(1);
        let FinishedGeneration { stats, new_prompt_ids, .. } = held;
        before = Some(Before { stats: Some(stats), new_prompt_ids, num_tokens });
    }
}

/// The tokens that end a loaded model's thoughts; none if it has no marker for that.
async fn end_of_thoughts(app: &App, model: &str) -> Result<Vec<u32>, Failure> {
    let tokens = |loaded: &LoadedModel| {
        let end = loaded.answer_format.end_of_thoughts()?;
        loaded.tokenizer.encode(&end, false).ok()
    };
    Ok(app.engine.submit(Some(model), tokens).await?.unwrap_or_default())
}

/// Loads the model that is wanted, or any if one is as good as another. The error is the outcome if there is no model, or if the answer was stopped before.
async fn load_model(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    progress: &Progress,
) -> Result<(), Outcome> {
    let (shared, wanted) = (app.clone(), turn.model().map(str::to_owned));
    let is_chosen = matches!(turn.wanted, Wanted::Model(_));
    let stop = running.stop.clone();
    let beside = match &turn.wanted {
        Wanted::Compared(compared) => Some(compared.beside.clone()),
        _ => None,
    };
    if let Some(Some(other)) = &beside {
        // What has begun keeps its model, so that loading this one says whether both fit.
        tokio::select! {
            () = running.stop.cancelled() => return Err(Outcome::stopped(progress)),
            () = other.begun.cancelled() => {}
            () = other.ended.cancelled() => {}
        }
    }
    // In a task, so that loading continues when the answer is stopped: the next one needs the model
    // too.
    let loading = app.spawn(async move {
        match wanted {
            None => loading::ensure_loaded(shared, None).await,
            Some(name) if beside.is_some() => {
                beside::load(&shared, &name, beside.flatten(), stop).await
            }
            Some(name) if loaded_name(&shared).as_ref() == Some(&name) => Ok(()),
            // Nobody has chosen another model for the next answers of new chats.
            Some(name) if !is_chosen => loading::ensure_loaded_for_chat(&shared, &name).await,
            Some(name) => loading::load_named(&shared, &name).await,
        }
    });
    let loaded = tokio::select! {
        () = running.stop.cancelled() => return Err(Outcome::stopped(progress)),
        loaded = loading => loaded,
    };
    match loaded {
        Ok(Ok(())) => Ok(()),
        Ok(Err(failure)) => Err(Outcome::failed(failure, progress)),
        Err(fault) => {
            let error = format!("A fault in Cairn stopped the model from being loaded: {fault}");
            Err(Outcome::failed(Failure::fault(error), progress))
        }
    }
}

/// Notes in the crash record that a model reads and writes for a turn.
fn begin_step(app: &App, turn: &Turn, model: Option<&str>) -> RunningStep {
    let kind = match turn.wanted {
        Wanted::Compared(_) => StepKind::Comparing,
        _ => StepKind::Answering,
    };
    let is_private = app.is_private_store(&turn.store);
    let conversation_id = Some(turn.conversation_id.clone()).filter(|_| !is_private);
    app.crashes.begin(Step { conversation_id, ..Step::new(kind, model.map(str::to_owned)) })
}

/// Generates until the answer ends, is stopped, fails or repeats itself, or a person ends its
/// thoughts, which is possible once (`may_cut`). Emits and saves the text whenever that is due.
async fn generate(
    app: &Arc<App>,
    running: &Running,
    turn: &Turn,
    progress: &mut Progress,
    request: GenerateRequest,
    saving: &mut Saving,
    may_cut: &mut bool,
) -> Part {
    let max_tokens = request.max_tokens;
    let step = begin_step(app, turn, request.model.as_deref());
    let mut generation = app.engine.generate(request);
    let give_up = async {
        app.closing.cancelled().await;
        tokio::time::sleep(CLOSING_GRACE).await;
    };
    tokio::pin!(give_up);
    let (mut is_stopping, mut is_holding, mut is_cutting) = (false, false, false);
    loop {
        let due = progress.next_due(Instant::now(), saving.running.is_some());
        tokio::select! {
            event = generation.recv() => {
                running.begun.cancel();
                let is_held = (is_holding || is_cutting) && !running.stop.is_cancelled();
                if let Some(part) = end_of_part(event, max_tokens, is_held, progress) {
                    let part = match part {
                        Part::Held(held) if is_cutting => Part::Thought(held),
                        part => part,
                    };
                    if part.is_complete() {
                        step.succeeded();
                    }
                    return part;
                }
                if progress.takes_loop() && !is_stopping && !is_holding && !is_cutting {
                    is_holding = true;
                    generation.stop();
                }
            }
            () = running.stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                generation.stop();
            }
            () = running.answer_now.cancelled(), if *may_cut && !is_stopping && !is_holding => {
                *may_cut = false;
                // It may have begun to answer just now.
                if progress.is_thinking() {
                    is_cutting = true;
                    generation.stop();
                }
            }
            () = &mut give_up => return Part::Ended(Box::new(Outcome::stopped(progress))),
            result = saving.ended(), if saving.running.is_some() => saving.note(app, result),
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
        }
        let now = Instant::now();
        if let Some(prefill) = progress.take_prefill(now) {
            emit_prefill(app, running, turn, prefill);
        }
        emit_changes(app, running, progress.take_changes(now));
        if saving.running.is_none() && progress.wants_save(now) {
            progress.mark_saved(now);
            saving.begin(app, turn, progress);
        }
    }
}

/// Takes an event of the engine. The result is how this part ended if it was the last one; a request
/// that was stopped to hold the answer has not ended it.
fn end_of_part(
    event: Option<GenerateEvent>,
    max_tokens: usize,
    is_held: bool,
    progress: &mut Progress,
) -> Option<Part> {
    match event {
        Some(GenerateEvent::Finished(held))
            if is_held && held.stats.finish_reason == FinishReason::Cancelled =>
        {
            Some(Part::Held(held))
        }
        event => apply(event, max_tokens, progress).map(Box::new).map(Part::Ended),
    }
}

/// Adds an event of the engine to the progress. The result is the outcome if it was the last one.
fn apply(
    event: Option<GenerateEvent>,
    max_tokens: usize,
    progress: &mut Progress,
) -> Option<Outcome> {
    match event {
        Some(GenerateEvent::SoFar(so_far)) => {
            progress.so_far(&so_far.text, &so_far.segments, Now::read());
            None
        }
        Some(GenerateEvent::Prefill { processed, total, cached }) => {
            progress.prefill(Prefill { processed, total, cached });
            None
        }
        Some(GenerateEvent::Delta { text, token, segments, .. }) => {
            progress.token(token, &text, &segments, Now::read());
            None
        }
        Some(GenerateEvent::Finished(finished)) => Some(ended(*finished, max_tokens, progress)),
        Some(GenerateEvent::Failed(error)) => Some(Outcome::failed(error, progress)),
        None => {
            let why = Failure::new(FailureCode::Engine, "The engine ended before the answer did.");
            Some(Outcome::failed(why.of_kind(FailureKind::EngineFault), progress))
        }
    }
}

/// The outcome of an answer that has ended, whose last text is added to the progress.
fn ended(mut finished: FinishedGeneration, max_tokens: usize, progress: &mut Progress) -> Outcome {
    progress.append(&finished.text, &finished.segments, Now::read());
    let stats = &mut finished.stats;
    // An answer that was cut although it may be longer has filled the context.
    if stats.finish_reason == FinishReason::Length && stats.num_generation_tokens < max_tokens {
        stats.finish_reason = FinishReason::Context;
    }
    let status = match stats.finish_reason {
        FinishReason::Cancelled => MessageStatus::Stopped,
        FinishReason::Stop | FinishReason::Length | FinishReason::Context => {
            MessageStatus::Complete
        }
    };
    Outcome {
        status,
        error: None,
        new_prompt_ids: finished.new_prompt_ids,
        token_ids: Some(finished.token_ids),
        stats: Some(complete(finished.stats, finished.miss)),
    }
}

async fn request(
    app: &App,
    turn: &Turn,
    model: Option<&str>,
    settings: &Settings,
) -> Result<GenerateRequest, Failure> {
    let branch = turn.store.branch_to(&turn.message_id).await?;
    let conversation_id = &turn.conversation_id;
    let store = &turn.store;
    let to_answer = BranchToAnswer { store, conversation_id, branch: &branch, model, draft: &[] };
    let so_far = turn.before().and_then(|before| before.token_ids.clone());
    Ok(GenerateRequest {
        model: model.map(str::to_owned),
        answer_so_far: so_far.unwrap_or_default(),
        work_for: work_for(app, turn),
        ..to_answer.request(app, settings).await?
    })
}

/// The label under which the engine records an answer's work.
fn work_for(app: &App, turn: &Turn) -> WorkFor {
    let kind = match turn.wanted {
        Wanted::Compared(_) => WorkKind::Comparison,
        Wanted::OfChat(_) | Wanted::Model(_) | Wanted::GoesOn(_) => WorkKind::Answer,
    };
    let message = Some(turn.message_id.clone());
    let is_private = app.is_private_store(&turn.store);
    WorkFor { message, ..WorkFor::conversation(kind, &turn.conversation_id, is_private) }
}

/// Adds the process's memory and the words about the prompt cache, and replaces numbers that JSON
/// cannot represent: for one of them the store would drop all figures. So the event has the same
/// figures as the saved row.
fn complete(stats: GenerationStats, miss: Option<Miss>) -> GenerationStats {
    let memory = platform::process_memory();
    GenerationStats {
        cache_note: miss
            .as_ref()
            .map(|miss| convert::cache_note(miss, now_ms()))
            .or(stats.cache_note),
        miss: miss.as_ref().map(convert::cache_miss).or(stats.miss),
        queue_ms: convert::figure(stats.queue_ms),
        prompt_tps: convert::figure(stats.prompt_tps),
        generation_tps: convert::figure(stats.generation_tps),
        time_to_first_token_ms: convert::figure(stats.time_to_first_token_ms),
        process_bytes: memory.now,
        process_peak_bytes: memory.peak,
        ..stats
    }
}
