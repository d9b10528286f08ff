//! A caller of the engine: sends a request and receives its events to the end.

use cairn_chat::SegmentEvent;
use cairn_engine::{
    FinishedGeneration, GenerateEvent, GenerateRequest, Generation, PromptInput, SoFar,
    TokenLogprob,
};

/// An answer that finished.
pub struct Answer {
    /// What an answer that goes on had already.
    pub so_far: Option<SoFar>,
    /// `(processed, total, cached)` of each step of the prefill.
    pub prefill: Vec<(usize, usize, usize)>,
    /// The tokens of the deltas.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Their texts and the final one, joined.
    pub text: String,
    /// Their segments and the final ones, if requested.
    pub segments: Vec<SegmentEvent>,
    pub finished: FinishedGeneration,
}

/// An answer that failed.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    /// Tokens that were received before.
    pub num_tokens: usize,
}

pub fn request(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest { max_tokens, ..GenerateRequest::new(PromptInput::Tokens(prompt.to_vec())) }
}

/// Receives the events to the end, checking their order.
pub async fn finish(generation: &mut Generation) -> Result<Answer, Failure> {
    let (mut prefill, mut tokens, mut logprobs, mut text, mut segments) =
        (Vec::<(usize, usize, usize)>::new(), Vec::new(), Vec::new(), String::new(), Vec::new());
    let mut so_far = None;
    loop {
        match generation.recv().await.expect("an answer ends with Finished or Failed") {
            GenerateEvent::SoFar(before) => {
                assert!(prefill.is_empty() && tokens.is_empty(), "what it has comes first");
                assert!(so_far.replace(*before).is_none(), "once");
            }
            GenerateEvent::Prefill { processed, total, cached } => {
                assert!(tokens.is_empty(), "the prompt is read before tokens come");
                assert!(
                    prefill.last().is_none_or(|&(before, ..)| before < processed),
                    "the prefill goes on"
                );
                prefill.push((processed, total, cached));
            }
            GenerateEvent::Delta { text: piece, token, logprob, segments: pieces } => {
                logprobs.extend(logprob);
                text.push_str(&piece);
                tokens.push(token);
                segments.extend(pieces);
            }
            GenerateEvent::Finished(finished) => {
                assert!(generation.recv().await.is_none(), "nothing comes after Finished");
                text.push_str(&finished.text);
                segments.extend(finished.segments.iter().cloned());
                let finished = *finished;
                return Ok(Answer { so_far, prefill, tokens, logprobs, text, segments, finished });
            }
            GenerateEvent::Failed(error) => {
                assert!(generation.recv().await.is_none(), "nothing comes after Failed");
                return Err(Failure { message: error.to_string(), num_tokens: tokens.len() });
            }
        }
    }
}
