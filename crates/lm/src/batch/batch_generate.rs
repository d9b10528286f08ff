//! Generation for many prompts at once, for callers that want all results at the end.

use cairn_chat::{Encode, FinishReason};

use super::{
    BatchFinish, BatchGenerator, BatchOptions, BatchRequest, BatchStats, BatchStep, RequestId,
};
use crate::models::Model;
use crate::{LmError, LoadedModel, TokenScore};

/// The results of [`batch_generate`], in the order of the requests. As mlx-lm's BatchResponse.
#[derive(Debug)]
pub struct BatchResponse {
    /// The text of each answer, with special tokens; empty for a request that failed.
    pub texts: Vec<String>,
    /// The answers, or why a request failed. An answer has caches if its request asked for them.
    pub answers: Vec<Result<BatchAnswer, LmError>>,
    /// Throughput and memory.
    pub stats: BatchStats,
}

/// The result of one request.
#[derive(Debug)]
pub struct BatchAnswer {
    /// The tokens sampled, without the one that completed a stop sequence.
    pub tokens: Vec<u32>,
    /// The log-probability of each of them and the likeliest tokens, best first; if asked for.
    pub logprobs: Vec<(f32, Vec<TokenScore>)>,
    /// Why it ended.
    pub finish: BatchFinish,
}

/// A sequence that has not ended.
#[derive(Default)]
struct Draft {
    id: Option<RequestId>,
    tokens: Vec<u32>,
    logprobs: Vec<(f32, Vec<TokenScore>)>,
    outcome: Option<Result<BatchFinish, LmError>>,
}

/// Generates for all `requests` together, up to the model's end-of-sequence tokens, and decodes the
/// answers. As mlx-lm's batch_generate.
///
/// Fails as a whole when [`BatchGenerator::next`] fails.
pub fn batch_generate(
    loaded: &LoadedModel,
    requests: Vec<BatchRequest>,
    mut options: BatchOptions,
) -> Result<BatchResponse, LmError> {
    options.stop.extend(loaded.eos_token_ids.iter().map(|&id| vec![id]));
    let (answers, stats) = batch_generate_tokens(&loaded.model, requests, options)?;
    let text = |answer: &Result<BatchAnswer, LmError>| match answer {
        Ok(answer) => Ok(loaded.tokenizer.decode(&answer.tokens)?),
        Err(_) => Ok(String::new()),
    };
    let texts = answers.iter().map(text).collect::<Result<_, LmError>>()?;
    Ok(BatchResponse { texts, answers, stats })
}

/// As [`batch_generate`], for token ids alone: only the stop sequences of `options` and of the
/// requests end an answer. Results are in the order of the requests; a request that fails is an
/// error at its index.
pub fn batch_generate_tokens(
    model: &Model,
    requests: Vec<BatchRequest>,
    options: BatchOptions,
) -> Result<(Vec<Result<BatchAnswer, LmError>>, BatchStats), LmError> {
    let mut batch = BatchGenerator::new(model.clone(), options);
    let mut insert = |request| match batch.insert(request) {
        Ok(id) => Draft { id: Some(id), ..Draft::default() },
        Err(error) => Draft { outcome: Some(Err(error)), ..Draft::default() },
    };
    let mut drafts: Vec<Draft> = requests.into_iter().map(&mut insert).collect();
    while batch.has_work() {
        let BatchStep { tokens, failed, .. } = batch.next()?;
        for token in tokens {
            let Some(draft) = draft(&mut drafts, token.id) else { continue };
            if token.finish.as_ref().is_none_or(|finish| finish.reason != FinishReason::Stop) {
                draft.tokens.push(token.token);
                draft.logprobs.extend(token.logprobs.map(|logprobs| (logprobs.own, logprobs.top)));
            }
            draft.outcome = token.finish.map(Ok);
        }
        for (id, error) in failed {
            if let Some(draft) = draft(&mut drafts, id) {
                draft.outcome = Some(Err(error));
            }
        }
    }
    let answer = |draft: Draft| match draft.outcome {
        Some(Ok(finish)) => {
            Ok(BatchAnswer { tokens: draft.tokens, logprobs: draft.logprobs, finish })
        }
        Some(Err(error)) => Err(error),
        None => Err(LmError::Cancelled), // not reached: every request ends or fails
    };
    Ok((drafts.into_iter().map(answer).collect(), batch.stats()))
}

fn draft(drafts: &mut [Draft], id: RequestId) -> Option<&mut Draft> {
    drafts.iter_mut().find(|draft| draft.id == Some(id))
}
