//! Compiles the grammars of answers beside the engine's thread, so that a large schema delays nobody
//! else's tokens. A request goes there with its grammar and comes back as a job.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use cairn_chat::AnswerForm;
use cairn_lm::{GrammarCompiler, ModelIdentity};

use super::job::Job;
use crate::EngineError;
use crate::generate_job::GenerateJob;
use crate::guard::caught;
use crate::model_pool::Loaded;
use crate::segments::AnswerGrammar;

/// So many grammars are compiled at once: a large one does not delay the small ones behind it.
const NUM_THREADS: usize = 2;

/// Schemas are nested, and so are the calls that compile them.
const STACK_BYTES: usize = 32 << 20;

/// A request whose grammar is to be compiled.
pub(crate) struct GrammarJob {
    job: Box<GenerateJob>,
    /// In llguidance's dialect of Lark.
    lark: String,
    compiler: GrammarCompiler,
    /// The model that it is compiled for.
    identity: ModelIdentity,
    back: Sender<Job>,
}

/// The way to those who compile grammars, and back to the engine's thread.
pub(super) struct GrammarQueue {
    pub(super) queue: Sender<GrammarJob>,
    pub(super) back: Sender<Job>,
}

impl GrammarQueue {
    /// Starts threads, which end when nobody can send any more.
    pub(super) fn start(back: Sender<Job>) -> std::io::Result<Self> {
        let (queue, receiver) = std::sync::mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..NUM_THREADS {
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name("cairn-grammars".to_owned());
            thread.stack_size(STACK_BYTES).spawn(move || serve(&receiver))?;
        }
        Ok(GrammarQueue { queue, back })
    }

    /// Has a grammar compiled; the request comes back with it.
    pub(super) fn push(&self, mut job: Box<GenerateJob>, lark: String, loaded: &Loaded) {
        // Another model may become the current one meanwhile.
        job.request.model = Some(loaded.name.clone());
        let model = &loaded.model;
        let (compiler, identity) = (model.grammar_compiler(), model.identity.clone());
        let _ =
            self.queue.send(GrammarJob { job, lark, compiler, identity, back: self.back.clone() });
    }
}

impl GrammarJob {
    /// Compiles the grammar and sends the request back; one whose form cannot be kept to fails. One that
    /// was stopped needs none to end.
    pub(crate) fn run(self) {
        let GrammarJob { mut job, lark, compiler, identity, back } = self;
        if job.events.is_closed() {
            return;
        }
        if job.is_stopped() {
            let _ = back.send(Job::Generate(job));
            return;
        }
        let endless = job.request.form.as_ref().and_then(AnswerForm::endless);
        if let Some(reason) = endless {
            return job.fail(EngineError::Form { reason });
        }
        if !compiler.has(&lark)
            && let Err(error) = check_crowded(&job, &compiler)
        {
            return job.fail(error);
        }
        if job.is_stopped() {
            let _ = back.send(Job::Generate(job));
            return;
        }
        match AnswerGrammar::compile(&compiler, &lark) {
            Ok(grammar) => {
                job.grammar = Some(Box::new((identity, grammar)));
                // Without an engine nobody waits for it any more.
                let _ = back.send(Job::Generate(job));
            }
            Err(error) => job.fail(error),
        }
    }
}

/// Checks that no place of a request's form allows more than can be enforced. A stopped request ends the
/// check early.
fn check_crowded(job: &GenerateJob, compiler: &GrammarCompiler) -> Result<(), EngineError> {
    let refused = |reason| Err(EngineError::Form { reason });
    let Some(form) = &job.request.form else { return Ok(()) };
    caught("looking for crowded schemas", || match form.crowded() {
        Err(reason) => refused(reason),
        Ok(places) => {
            for place in places {
                if job.is_stopped() {
                    return Ok(());
                }
                if compiler.has_crowded_beginning(&place.grammar) {
                    return refused(place.refusal);
                }
            }
            Ok(())
        }
    })
}

fn serve(receiver: &Mutex<Receiver<GrammarJob>>) {
    loop {
        let next = receiver.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).recv();
        match next {
            Ok(job) => job.run(),
            Err(_) => return,
        }
    }
}
