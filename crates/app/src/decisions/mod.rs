//! Questions about one text, each answered with a probability for each option.
//!
//! ```text
//! state, questions ─▶ Question::wordings ─▶ rows: how to answer + state + question, the answers
//!                                             │ Engine::classify: the state is read once
//!                                             ▼
//!              Decision ◀── Question::probabilities ◀── log-probabilities of the answers
//! ```

pub mod calibration;
mod question;

use std::sync::Arc;

use cairn_chat::{Message, Role, Thinking};
use cairn_engine::{
    ClassifyRequest, ClassifyRow, EngineError, OptionScoring, PromptInput, RowAnswer,
};

use question::HOW_TO_ANSWER;
pub(crate) use question::Wording;
pub use question::{Described, MAX_LEVELS, MAX_OPTIONS, Question, QuestionError, QuestionKind};

use crate::app::App;
use crate::crashes::record::{Step, StepKind};
use crate::models::loading;
use crate::wire::Failure;

/// Questions about one text.
#[derive(Debug, Clone, PartialEq)]
pub struct DecideRequest {
    /// A model on this machine, which is loaded if need be; without a name the loaded one answers.
    pub model: Option<String>,
    /// What the questions are about.
    pub state: String,
    /// The questions, which have been checked.
    pub questions: Vec<Question>,
}

/// The answers to all questions.
#[derive(Debug)]
pub struct Decisions {
    /// The model that answered.
    pub model: String,
    /// In the order of the questions.
    pub decisions: Vec<Result<Decision, EngineError>>,
    /// Tokens of all prompts, with those of the state counted once for each.
    pub num_input_tokens: usize,
    /// How many of these were not read again.
    pub num_cached_tokens: usize,
}

/// The probability of each option, in their order; of a predicate that of “no”, then that of “yes”.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// They add up to 1.
    pub probabilities: Vec<f64>,
}

impl Decision {
    /// The likeliest option and its probability.
    pub fn best(&self) -> (usize, f64) {
        let all = self.probabilities.iter().copied().enumerate();
        all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }

    /// The mean of the options' places, weighted by their probabilities.
    pub fn expected(&self) -> f64 {
        self.probabilities.iter().enumerate().map(|(place, p)| place as f64 * p).sum()
    }
}

impl App {
    /// Answers questions about one text. Dropping the future cancels the work.
    pub async fn decide(
        self: &Arc<Self>,
        request: DecideRequest,
    ) -> Result<Decisions, DecideError> {
        self.titles.stop();
        let model = loading::ensure_answers(self, request.model.as_deref()).await?;
        let wordings: Vec<_> = request.questions.iter().map(Question::wordings).collect();
        let rows = wordings.iter().flatten().map(|wording| {
            let content =
                format!("{HOW_TO_ANSWER}\n\n{}\n\n{}", request.state.trim(), wording.text);
            let message = Message { role: Role::User, content, token_ids: None };
            ClassifyRow {
                prompt: PromptInput::Messages(vec![message]),
                options: wording.answers.iter().map(|(answer, _)| answer.clone()).collect(),
            }
        });
        let classify = answer_request(model.clone(), rows.collect());
        let step = self.crashes.begin(Step::new(StepKind::Program, model.clone()));
        let answers = self.engine.classify(classify).answers(|| ()).await;
        if answers.as_ref().is_ok_and(|answers| answers.iter().any(Result::is_ok)) {
            step.succeeded();
        }
        drop(step);
        let answers = in_groups(answers?, wordings.iter().map(Vec::len));
        let mut result =
            Decisions { model, decisions: Vec::new(), num_input_tokens: 0, num_cached_tokens: 0 };
        let questions = std::iter::zip(&request.questions, &wordings);
        for ((question, wordings), own) in std::iter::zip(questions, answers) {
            result.decisions.push(own.map(|own| {
                result.num_input_tokens +=
                    own.iter().map(|row| row.num_prompt_tokens).sum::<usize>();
                result.num_cached_tokens +=
                    own.iter().map(|row| row.num_cached_tokens).sum::<usize>();
                let logprobs: Vec<Vec<f32>> =
                    own.into_iter().map(|row| row.option_logprobs).collect();
                Decision { probabilities: question.probabilities(wordings, &logprobs, 1.0) }
            }));
        }
        Ok(result)
    }
}

/// Answers in groups of these lengths: all of a group, or why one of them could not be had.
pub(crate) fn in_groups(
    answers: Vec<Result<RowAnswer, EngineError>>,
    lengths: impl IntoIterator<Item = usize>,
) -> Vec<Result<Vec<RowAnswer>, EngineError>> {
    let mut answers = answers.into_iter();
    let group = |length| {
        // Taken whole: collecting results ends at the first error, and leaves the rest of the group.
        let group: Vec<_> = answers.by_ref().take(length).collect();
        group.into_iter().collect()
    };
    lengths.into_iter().map(group).collect()
}

/// Asks a model for the probabilities of the rows' answers.
pub(crate) fn answer_request(model: String, rows: Vec<ClassifyRow>) -> ClassifyRequest {
    ClassifyRequest {
        model: Some(model),
        option_scoring: OptionScoring::Joint,
        // A model that thinks first would not begin with an answer.
        thinking: Some(Thinking::Off),
        ..ClassifyRequest::new(rows)
    }
}

/// Why no question was answered.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// There is no such model, or it could not be loaded.
    #[error("{}", .0.message)]
    Model(Failure),
    /// The engine could not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<Failure> for DecideError {
    fn from(failure: Failure) -> Self {
        DecideError::Model(failure)
    }
}
