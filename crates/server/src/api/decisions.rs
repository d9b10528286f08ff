//! `POST /v1/decisions`: questions about one text, each with a probability for each option.

use std::sync::Arc;
use std::time::Instant;

use async_openai::types::decisions::{
    AnswerResource, AnswerResourceChoice, AnswerResourcePredicate, AnswerResourceScore,
    ChoiceProbabilityResource, ChoiceValueParam, ChoiceValueResource, DecisionInput,
    DecisionInputAssistantContent, DecisionInputAssistantContentPart, DecisionInputContent,
    DecisionInputContentPart, DecisionInputDeveloperContent, DecisionInputDeveloperContentPart,
    DecisionInputItem, DecisionInputJsonData, DecisionInputMessage, DecisionInputToolOutputContent,
    DecisionInputToolOutputContentPart, DecisionQuestionInputPart, DecisionRequest,
    DecisionResponse, InputTokenDetails, QuestionParam, QuestionParamInstructions, ResponseUsage,
    ScoreProbabilityResource,
};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use cairn_app::decisions::{
    DecideError, DecideRequest, Decision, Described, Question, QuestionKind,
};
use serde_json::{Map, Value};

use super::admission::AdmittedRequest;
use super::answer::ended_early;
use super::body::{self, Body, Fields};
use super::error::{ApiError, Vendor};
use super::record::ReadTokens;
use crate::shared::Shared;

/// The most questions of a request, as at OpenAI.
const MAX_QUESTIONS: usize = 400;

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match decide(&shared, request).await {
        Ok(response) => Json(response).into_response(),
        Err(error) => error.response(Vendor::OpenAi),
    }
}

pub(super) const FIELDS: Fields = Fields {
    schema: "DecisionRequest",
    read: &["input", "questions", "prompt_cache_key"],
    refused: |_: &Map<_, _>| None,
};

async fn decide(shared: &Arc<Shared>, request: Request) -> Result<DecisionResponse, ApiError> {
    let AskedDecisions { request, questions, admitted } =
        body::read(shared, request, &FIELDS, asked).await?;
    let wanted = request.model.clone();
    let start = Instant::now();
    let decided = tokio::select! {
        decided = shared.app.decide(request) => decided.map_err(|error| match error {
            DecideError::Model(failure) => ApiError::of_model(failure, wanted.as_deref()),
            DecideError::Engine(error) => error.into(),
        })?,
        error = ended_early(shared, &admitted) => return Err(error),
    };
    let input =
        ReadTokens { num_tokens: decided.num_input_tokens, num_cached: decided.num_cached_tokens };
    admitted.record.iter().for_each(|record| record.read(&decided.model, input, start.elapsed()));
    drop(admitted);
    let answers = std::iter::zip(questions, decided.decisions).enumerate();
    let answers = answers.map(|(index, (question, decision))| match decision {
        Ok(decision) => Ok(answer(question, &decision)),
        Err(error) => Err(ApiError::from(error).about(format!("questions[{index}]"))),
    });
    let input_tokens = number(decided.num_input_tokens);
    Ok(DecisionResponse {
        model: decided.model,
        answers: answers.collect::<Result<_, _>>()?,
        usage: ResponseUsage {
            input_tokens,
            input_tokens_details: InputTokenDetails {
                cached_tokens: number(decided.num_cached_tokens),
                cache_write_tokens: None,
            },
            total_tokens: input_tokens,
            ..ResponseUsage::default()
        },
    })
}

/// The questions of a request.
struct AskedDecisions {
    request: DecideRequest,
    questions: Vec<QuestionParam>,
    admitted: Arc<AdmittedRequest>,
}

fn asked(body: Body<DecisionRequest>) -> Result<AskedDecisions, ApiError> {
    let Body { model, own, fields, admitted } = body;
    if own.cairn.start_from.is_some() {
        return Err(ApiError::unsupported("cairn.start_from"));
    }
    let DecisionRequest { input, questions, .. } = fields;
    if !(1..=MAX_QUESTIONS).contains(&questions.len()) {
        let message =
            format!("A request has 1 to {MAX_QUESTIONS} questions, not {}.", questions.len());
        return Err(ApiError::invalid("questions", message));
    }
    let read = |(index, param): (usize, &QuestionParam)| {
        let question = question(index, param)?;
        question.check().map_err(|error| {
            let place = format!("questions[{index}]");
            ApiError::invalid(place.clone(), format!("`{place}` cannot be asked: {error}."))
        })?;
        Ok(question)
    };
    let asked: Vec<Question> =
        questions.iter().enumerate().map(read).collect::<Result<_, ApiError>>()?;
    let request = DecideRequest { model, state: state(input)?, questions: asked };
    Ok(AskedDecisions { request, questions, admitted })
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn question(index: usize, param: &QuestionParam) -> Result<Question, ApiError> {
    let (instructions, kind) = match param {
        QuestionParam::Predicate(asked) => (&asked.instructions, QuestionKind::Predicate),
        QuestionParam::Choice(asked) => {
            let option = |choice: &async_openai::types::decisions::ChoiceOptionParam| Described {
                label: match &choice.value {
                    ChoiceValueParam::Text(text) => text.clone(),
                    ChoiceValueParam::Boolean(value) => value.to_string(),
                },
                description: choice.description.clone(),
            };
            let options = asked.choices.iter().map(option).collect();
            (&asked.instructions, QuestionKind::Choice(options))
        }
        QuestionParam::Score(asked) => {
            let level = |level: &async_openai::types::decisions::ScoreLevelParam| Described {
                label: level.label.clone(),
                description: level.description.clone(),
            };
            let levels = asked.levels.iter().map(level).collect();
            (&asked.instructions, QuestionKind::Score(levels))
        }
    };
    let instructions = match instructions {
        QuestionParamInstructions::Text(text) => text.clone(),
        QuestionParamInstructions::Items(parts) => {
            let text = |part: &DecisionQuestionInputPart| match part {
                DecisionQuestionInputPart::InputText(part) => Ok(part.text.clone()),
                DecisionQuestionInputPart::InputJson(part) => Ok(json(&part.data)),
                DecisionQuestionInputPart::InputImage(_) => {
                    Err(image(&format!("questions[{index}].instructions")))
                }
            };
            parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n")
        }
    };
    Ok(Question { instructions, kind })
}

fn image(place: &str) -> ApiError {
    ApiError::no_text("input_image", place).about(format!("{place}.input_image"))
}

fn answer(question: QuestionParam, decision: &Decision) -> AnswerResource {
    let (best, confidence) = decision.best();
    match question {
        QuestionParam::Predicate(asked) => AnswerResource::Predicate(AnswerResourcePredicate {
            name: asked.name,
            probability: decision.probabilities[1],
        }),
        QuestionParam::Choice(asked) => {
            let values: Vec<ChoiceValueResource> = asked
                .choices
                .into_iter()
                .map(|choice| match choice.value {
                    ChoiceValueParam::Text(text) => ChoiceValueResource::Text(text),
                    ChoiceValueParam::Boolean(value) => ChoiceValueResource::Boolean(value),
                })
                .collect();
            AnswerResource::Choice(AnswerResourceChoice {
                name: asked.name,
                choice: values[best].clone(),
                probabilities: std::iter::zip(values, &decision.probabilities)
                    .map(|(value, &probability)| ChoiceProbabilityResource { value, probability })
                    .collect(),
                confidence,
            })
        }
        QuestionParam::Score(asked) => AnswerResource::Score(AnswerResourceScore {
            name: asked.name,
            score: decision.expected(),
            probabilities: std::iter::zip(asked.levels, &decision.probabilities)
                .enumerate()
                .map(|(value, (level, &probability))| ScoreProbabilityResource {
                    value: value as i64,
                    label: level.label,
                    probability,
                })
                .collect(),
            confidence,
        }),
    }
}

/// The input as one text. A conversation is written down with its authors: it is to be judged, not
/// to be continued.
fn state(input: DecisionInput) -> Result<String, ApiError> {
    let items = match input {
        DecisionInput::Text(text) => return Ok(text),
        DecisionInput::Items(items) => items,
    };
    let is_one = items.len() == 1;
    let mut parts = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let (author, text) = written(item, index)?;
        parts.push(if is_one { text } else { format!("{author}:\n{text}") });
    }
    Ok(parts.join("\n\n"))
}

/// An item's author and text.
fn written(item: DecisionInputItem, index: usize) -> Result<(String, String), ApiError> {
    let image = || image(&format!("input[{index}]"));
    Ok(match item {
        DecisionInputItem::Message(DecisionInputMessage::User(message)) => {
            let text = match message.content {
                DecisionInputContent::Text(text) => text,
                DecisionInputContent::DecisionInputContentParts(parts) => {
                    let text = |part| match part {
                        DecisionInputContentPart::InputText(part) => Ok(part.text),
                        DecisionInputContentPart::InputJson(part) => Ok(json(&part.data)),
                        DecisionInputContentPart::InputImage(_) => Err(image()),
                    };
                    parts.into_iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n")
                }
            };
            ("User".to_owned(), text)
        }
        DecisionInputItem::Message(DecisionInputMessage::Assistant(message)) => {
            let text = match message.content {
                DecisionInputAssistantContent::Text(text) => text,
                DecisionInputAssistantContent::DecisionInputAssistantContentParts(parts) => {
                    let text = |part| match part {
                        DecisionInputAssistantContentPart::OutputText(part) => part.text,
                        DecisionInputAssistantContentPart::Refusal(part) => part.refusal,
                    };
                    parts.into_iter().map(text).collect::<Vec<_>>().join("\n")
                }
            };
            ("Assistant".to_owned(), text)
        }
        DecisionInputItem::Message(DecisionInputMessage::System(message)) => {
            ("System".to_owned(), developer_text(message.content))
        }
        DecisionInputItem::Message(DecisionInputMessage::Developer(message)) => {
            ("System".to_owned(), developer_text(message.content))
        }
        DecisionInputItem::FunctionCall(call) => (format!("Call of {}", call.name), call.arguments),
        DecisionInputItem::CustomToolCall(call) => (format!("Call of {}", call.name), call.input),
        DecisionInputItem::FunctionCallOutput(result) => {
            ("Result".to_owned(), output(result.output).ok_or_else(image)?)
        }
        DecisionInputItem::CustomToolCallOutput(result) => {
            ("Result".to_owned(), output(result.output).ok_or_else(image)?)
        }
    })
}

fn developer_text(content: DecisionInputDeveloperContent) -> String {
    match content {
        DecisionInputDeveloperContent::Text(text) => text,
        DecisionInputDeveloperContent::DecisionInputDeveloperContentParts(parts) => {
            let text = |DecisionInputDeveloperContentPart::InputText(part)| part.text;
            parts.into_iter().map(text).collect::<Vec<_>>().join("\n")
        }
    }
}

/// The text of a tool's output; none if there is an image.
fn output(content: DecisionInputToolOutputContent) -> Option<String> {
    match content {
        DecisionInputToolOutputContent::Text(text) => Some(text),
        DecisionInputToolOutputContent::DecisionInputToolOutputContentParts(parts) => {
            let text = |part| match part {
                DecisionInputToolOutputContentPart::InputText(part) => Some(part.text),
                DecisionInputToolOutputContentPart::InputImage(_) => None,
            };
            Some(parts.into_iter().map(text).collect::<Option<Vec<_>>>()?.join("\n"))
        }
    }
}

fn json(data: &DecisionInputJsonData) -> String {
    match data {
        DecisionInputJsonData::Item(value) => value.to_string(),
        DecisionInputJsonData::Items(values) => Value::Array(values.clone()).to_string(),
    }
}
