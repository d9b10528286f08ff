//! What an [`AsyncLm`](crate::AsyncLm) asks of the engine's thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::EngineError;
use crate::next_tokens::{LmCounts, LmId, LmLimits, LmQuery, LmState};
use crate::task::Task;
use crate::worker::Worker;

/// A job of an [`AsyncLm`](crate::AsyncLm). Those of one come in the order in which they were sent.
#[derive(Debug)]
pub(crate) struct LmJob {
    pub(crate) lm: LmId,
    /// The name of a loaded model.
    pub(crate) model: String,
    pub(crate) limits: LmLimits,
    pub(crate) ask: LmAsk,
}

/// What it is.
#[derive(Debug)]
pub(crate) enum LmAsk {
    /// Computes a batch.
    Queries(Vec<LmQuery>),
    /// How many tokens have keys and values.
    Walk {
        ids: Arc<[u32]>,
        reply: oneshot::Sender<Result<usize, EngineError>>,
    },
    Counts {
        reply: oneshot::Sender<Result<LmCounts, EngineError>>,
    },
    /// Fails the queries that are not computed.
    Reset,
    /// Drops what was computed.
    Clear {
        reply: oneshot::Sender<Result<(), EngineError>>,
    },
    /// Drops all; nobody asks any more.
    Close,
}

/// Answers a job, or makes a task of it, unless one is under way that takes it.
pub(crate) fn begin(worker: &mut Worker, job: LmJob) -> Option<Task> {
    let LmJob { lm, model, limits, ask } = job;
    let loaded = match worker.models.get(Some(&model)) {
        Ok(loaded) => loaded,
        Err(error) => {
            refuse(ask, error);
            return None;
        }
    };
    let pooled = worker.models.pooled(&loaded)?;
    let memory = pooled.memory.clone();
    if let LmAsk::Close = ask {
        pooled.async_lms.remove(&lm);
        cairn_lm::memory::clear_cache();
        return None;
    }
    let new = || Rc::new(RefCell::new(LmState::new(&loaded.model.model, limits)));
    let state = Rc::clone(pooled.async_lms.entry(lm).or_insert_with(new));
    match ask {
        LmAsk::Queries(queries) => {
            // A task that computes for it holds the state, beside the model and this.
            let is_under_way = Rc::strong_count(&state) > 2;
            state.borrow_mut().push(queries);
            return (!is_under_way).then(|| Task::next_tokens(worker, loaded, memory, state));
        }
        LmAsk::Walk { ids, reply } => drop(reply.send(Ok(state.borrow().num_found(&ids)))),
        LmAsk::Counts { reply } => drop(reply.send(Ok(state.borrow().counts()))),
        LmAsk::Reset => state.borrow_mut().fail_all(|| EngineError::QueryReset),
        LmAsk::Clear { reply } => {
            state.borrow_mut().clear();
            cairn_lm::memory::clear_cache();
            let _ = reply.send(Ok(()));
        }
        LmAsk::Close => {}
    }
    None
}

/// Answers a job whose model is not loaded.
fn refuse(ask: LmAsk, error: EngineError) {
    match ask {
        LmAsk::Queries(queries) => {
            let text = error.to_string();
            for query in queries {
                let error = EngineError::QueryFailed { why: text.clone() };
                let _ = query.reply.send(Err(error));
            }
        }
        LmAsk::Walk { reply, .. } => drop(reply.send(Err(error))),
        LmAsk::Counts { reply } => drop(reply.send(Err(error))),
        LmAsk::Clear { reply } => drop(reply.send(Err(error))),
        LmAsk::Reset | LmAsk::Close => {}
    }
}
