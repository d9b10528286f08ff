//! Why a prompt was read again although an earlier answer had read its beginning. Clients name that
//! answer, and each vendor has a form for the reason.
//!
//! ```text
//! request ─▶ PromptShape: hashes of system text, tools and turns ──┐
//! engine  ─▶ PromptFacts: its tokens, how many were cached ────────┤
//!                                                                  ▼
//!            AnsweredPrompts: earlier prompts by id ─▶ Diagnosis ─▶ a vendor's form
//! ```
//! The tokens decide whether anything has changed, the shapes what. No text is kept: only hashes, for
//! an hour, of the last 1,000 answers of each key.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Debug, Write};
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_app::ApiClient;
use cairn_app::completion::{Message, PromptFacts, PromptKeys, Role, Turn};
use serde_json::{Map, Value, json};

use super::error::ApiError;

/// How many answers of a key are kept.
const MAX_KEPT: usize = 1_000;
/// How long they are kept.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// More tokens than a template writes after the last message, which a later prompt may lack.
const MAX_END_TOKENS: usize = 64;

/// The parts of a prompt that a client can change, as hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PromptShape {
    /// The instructions that the conversation begins with.
    system: u64,
    tools: u64,
    /// The turns after the instructions.
    turns: Vec<Place>,
}

/// A turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    hash: u64,
    /// The message of the request that it began with.
    message: usize,
}

impl PromptShape {
    /// The shape of a conversation. `first_turns` has for each message of the request how many turns
    /// came before it.
    pub(super) fn new(turns: &[Turn], tools: &[Value], first_turns: &[usize]) -> PromptShape {
        let is_system =
            |turn: &Turn| matches!(turn, Turn::Message(Message { role: Role::System, .. }));
        let num_system = usize::from(turns.first().is_some_and(is_system));
        let place = |(index, turn): (usize, &Turn)| Place {
            hash: hash(turn),
            message: first_turns.partition_point(|&first| first <= index).saturating_sub(1),
        };
        PromptShape {
            system: hash(&&turns[..num_system]),
            tools: hash(&tools),
            turns: turns.iter().enumerate().skip(num_system).map(place).collect(),
        }
    }

    /// Returns the first part of this shape that a client has changed. `None` if it has only added turns.
    fn change(&self, now: &PromptShape) -> Option<Change> {
        if now.system != self.system {
            return Some(Change::System);
        }
        if now.tools != self.tools {
            return Some(Change::Tools);
        }
        let same = self.turns.iter().zip(&now.turns).take_while(|(a, b)| a.hash == b.hash).count();
        let changed = now.turns.get(same).filter(|_| same < self.turns.len());
        let removed = self.turns.get(same);
        let place = changed.or(removed)?;
        Some(Change::Messages { from: place.message })
    }
}

/// Hashes what a value's debug form says, without writing it down.
fn hash(value: &impl Debug) -> u64 {
    struct Hashed(DefaultHasher);
    impl Write for Hashed {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut hashed = Hashed(DefaultHasher::new());
    // Neither the values nor the hasher fail.
    let _ = write!(hashed, "{value:?}");
    hashed.0.finish()
}

/// The first difference from the earlier prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Model,
    System,
    Tools,
    Messages {
        /// The first message that differs, counted from 0.
        from: usize,
    },
    /// Something else that the prompt depends on, such as `chat_template_kwargs`.
    Settings,
    /// Nothing, but what was saved is lost, for this reason.
    Lost(String),
    /// Nothing, but no saved context reaches so far.
    NotSaved,
}

/// The result of a comparison with an earlier answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Diagnosis {
    /// All that the two prompts share came from saved context.
    Reused,
    /// No answer with this id is kept for the key.
    NotFound,
    Missed(Missed),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missed {
    change: Change,
    /// Tokens that had to be read although the earlier answer had read as many.
    num_missed: usize,
    /// Tokens of the earlier prompt.
    num_reusable: usize,
}

/// The prompts of answers.
#[derive(Debug, Default)]
pub(crate) struct AnsweredPrompts(Mutex<HashMap<String, VecDeque<AnsweredPrompt>>>);

#[derive(Debug)]
struct AnsweredPrompt {
    id: String,
    at: Instant,
    prompt: ComparedPrompt,
}

#[derive(Debug, Clone)]
struct ComparedPrompt {
    model: String,
    shape: PromptShape,
    keys: PromptKeys,
}

/// An answer, with what it can be compared by.
#[derive(Debug)]
pub(super) struct NewAnswer<'a> {
    pub(super) id: &'a str,
    pub(super) model: &'a str,
    pub(super) shape: &'a PromptShape,
    pub(super) facts: &'a PromptFacts,
}

impl AnsweredPrompts {
    /// Keeps the prompt of a client's answer, and compares it with the prompt of the answer `earlier`.
    pub(super) fn add(
        &self,
        client: &ApiClient,
        answer: NewAnswer<'_>,
        earlier: Option<&str>,
    ) -> Option<Diagnosis> {
        self.add_at(Instant::now(), client.id(), answer, earlier)
    }

    fn add_at(
        &self,
        now: Instant,
        client: &str,
        answer: NewAnswer<'_>,
        earlier: Option<&str>,
    ) -> Option<Diagnosis> {
        let NewAnswer { id, model, shape, facts } = answer;
        let keys = PromptKeys::new(&facts.token_ids);
        let prompt = ComparedPrompt { model: model.to_owned(), shape: shape.clone(), keys };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, answers| {
            let is_old = |answer: &AnsweredPrompt| now.duration_since(answer.at) > KEPT_FOR;
            while answers.front().is_some_and(is_old) {
                answers.pop_front();
            }
            !answers.is_empty()
        });
        let answers = all.entry(client.to_owned()).or_default();
        let diagnosis = earlier.map(|earlier| {
            let found = answers.iter().rev().find(|answer| answer.id == earlier);
            found.map_or(Diagnosis::NotFound, |earlier| earlier.prompt.diagnose(&prompt, facts))
        });
        if answers.len() >= MAX_KEPT {
            answers.pop_front();
        }
        answers.push_back(AnsweredPrompt { id: id.to_owned(), at: now, prompt });
        diagnosis
    }
}

impl ComparedPrompt {
    /// Says why a later prompt was read again.
    fn diagnose(&self, now: &ComparedPrompt, facts: &PromptFacts) -> Diagnosis {
        let (num_earlier, num_cached) = (self.keys.num_tokens(), facts.num_cached);
        let num_shared = self.keys.num_shared(&facts.token_ids);
        let shape_change = self.shape.change(&now.shape);
        // The template's end of the earlier prompt may be missing in this one.
        let num_end = if shape_change.is_none() { MAX_END_TOKENS } else { 0 };
        let change = if now.model != self.model {
            Some(Change::Model)
        } else if num_shared + num_end < num_earlier {
            Some(shape_change.unwrap_or(Change::Settings))
        } else if num_cached + MAX_END_TOKENS < num_shared {
            Some(facts.loss.clone().map_or(Change::NotSaved, Change::Lost))
        } else {
            None
        };
        let Some(change) = change else { return Diagnosis::Reused };
        Diagnosis::Missed(Missed {
            change,
            num_missed: num_earlier.min(facts.num_tokens).saturating_sub(num_cached),
            num_reusable: num_earlier,
        })
    }
}

impl Missed {
    /// Cairn's own words for it, which say more than the vendors'. `list` is the name of the request's
    /// messages.
    fn detail(&self, list: &str) -> Value {
        match &self.change {
            Change::Model => json!({ "reason": "model_changed" }),
            Change::System => json!({ "reason": "system_changed" }),
            Change::Tools => json!({ "reason": "tools_changed" }),
            Change::Messages { from } => {
                json!({ "reason": "messages_changed", "first_changed": format!("{list}[{from}]") })
            }
            Change::Settings => json!({ "reason": "settings_changed" }),
            Change::Lost(why) => json!({ "reason": "lost", "why": why }),
            Change::NotSaved => json!({ "reason": "not_saved" }),
        }
    }
}

impl Diagnosis {
    /// Anthropic's `diagnostics` of a message.
    pub(super) fn of_message(&self) -> Value {
        let reason = match self {
            Diagnosis::Reused => return Value::Null,
            Diagnosis::NotFound => json!({ "type": "previous_message_not_found" }),
            Diagnosis::Missed(missed) => {
                let kind = match missed.change {
                    Change::Model => "model_changed",
                    Change::System => "system_changed",
                    Change::Tools => "tools_changed",
                    Change::Messages { .. } => "messages_changed",
                    Change::Settings | Change::Lost(_) | Change::NotSaved => "unavailable",
                };
                let mut reason = json!({ "type": kind, "cairn": missed.detail("messages") });
                if kind != "unavailable" {
                    reason["cache_missed_input_tokens"] = missed.num_missed.into();
                }
                reason
            }
        };
        json!({ "cache_miss_reason": reason })
    }

    /// OpenAI's `prompt_cache_diagnostics`. `list` is the name of the request's messages.
    pub(super) fn of_response(&self, list: &str) -> Value {
        let missed = match self {
            Diagnosis::Reused => return json!({ "type": "cache_hit" }),
            Diagnosis::NotFound => return json!({ "type": "comparison_response_not_found" }),
            Diagnosis::Missed(missed) => missed,
        };
        let reason = match missed.change {
            Change::Model => "model_changed",
            Change::Tools => "tools_changed",
            Change::System | Change::Messages { .. } => "input_changed",
            Change::Settings | Change::Lost(_) | Change::NotSaved => {
                return json!({ "type": "unavailable", "cairn": missed.detail(list) });
            }
        };
        json!({
            "type": "cache_miss", "reason": reason, "cache_missed_tokens": missed.num_missed,
            "comparison_reusable_tokens": missed.num_reusable, "cairn": missed.detail(list),
        })
    }
}

/// Reads the id of the earlier answer, which is a field of an object of the request.
pub(super) fn earlier_answer(
    object: Option<&Value>,
    name: &str,
    field: &str,
) -> Result<Option<String>, ApiError> {
    let invalid = |place: String| {
        let message = format!("`{place}` is the id of an earlier answer, or null.");
        ApiError::invalid(place, message)
    };
    let none = Map::new();
    let object = match object {
        None | Some(Value::Null) => &none,
        Some(Value::Object(object)) => object,
        Some(_) => return Err(ApiError::invalid(name, format!("`{name}` is an object."))),
    };
    match object.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(_) => Err(invalid(format!("{name}.{field}"))),
    }
}

/// Reads the id of the earlier answer from OpenAI's `prompt_cache_options`.
pub(super) fn compared_answer(options: Option<&Value>) -> Result<Option<String>, ApiError> {
    earlier_answer(options, "prompt_cache_options", "comparison_response_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation of texts, the first of which are the instructions.
    fn shape(texts: &[&str], tools: &[Value]) -> PromptShape {
        let turn = |(index, text): (usize, &&str)| {
            let role = if index == 0 { Role::System } else { Role::User };
            Turn::Message(Message { role, content: (*text).to_owned(), token_ids: None })
        };
        let turns: Vec<Turn> = texts.iter().enumerate().map(turn).collect();
        let first_turns: Vec<usize> = (0..turns.len()).collect();
        PromptShape::new(&turns, tools, &first_turns)
    }

    /// As if each byte of the texts were a token.
    fn facts(texts: &[&str], num_cached: usize) -> PromptFacts {
        let token_ids: Vec<u32> = texts.concat().bytes().map(u32::from).collect();
        PromptFacts { num_tokens: token_ids.len(), num_cached, token_ids, loss: None }
    }

    fn add(
        prompts: &AnsweredPrompts,
        at: Instant,
        (client, id): (&str, &str),
        (texts, num_cached): (&[&str], usize),
        earlier: Option<&str>,
    ) -> Option<Diagnosis> {
        let (shape, facts) = (shape(texts, &[]), facts(texts, num_cached));
        let answer = NewAnswer { id, model: "m", shape: &shape, facts: &facts };
        prompts.add_at(at, client, answer, earlier)
    }

    #[test]
    fn names_first_changed_part() {
        let (long, other) = ("a".repeat(200), "b".repeat(200));
        let earlier = [long.as_str(), &long, &long];
        let check = |now: &[&str], num_cached: usize, expected: Option<Change>| {
            let (prompts, at) = (AnsweredPrompts::default(), Instant::now());
            assert_eq!(add(&prompts, at, ("k", "1"), (&earlier, 0), None), None);
            let found = add(&prompts, at, ("k", "2"), (now, num_cached), Some("1"));
            let expected = expected.map_or(Diagnosis::Reused, |change| {
                let num_tokens = now.concat().len().min(600);
                let num_missed = num_tokens - num_cached;
                Diagnosis::Missed(Missed { change, num_missed, num_reusable: 600 })
            });
            assert_eq!(found, Some(expected), "{now:?}");
        };
        check(&[&long, &long, &long, &other], 600, None);
        check(&[&other, &long, &long], 0, Some(Change::System));
        check(&[&long, &long, &other], 400, Some(Change::Messages { from: 2 }));
        check(&[&long, &other, &other], 200, Some(Change::Messages { from: 1 }));
        // The last message is gone.
        check(&[&long, &long], 399, Some(Change::Messages { from: 2 }));
        check(&[&long, &long, &long, &other], 0, Some(Change::NotSaved));
    }

    #[test]
    fn keeps_a_thousand_answers_of_each_key() {
        let (prompts, at) = (AnsweredPrompts::default(), Instant::now());
        let find = |client: &str, earlier: &str| {
            add(&prompts, at, (client, "x"), (&["text"], 0), Some(earlier))
        };
        add(&prompts, at, ("first", "0"), (&["text"], 0), None);
        for number in 0..MAX_KEPT {
            add(&prompts, at, ("second", &number.to_string()), (&["text"], 0), None);
        }
        assert_eq!(find("first", "0"), Some(Diagnosis::Reused));
        assert_eq!(find("first", "999"), Some(Diagnosis::NotFound));
        assert_eq!(find("second", "0"), Some(Diagnosis::Reused));
        assert_eq!(find("second", "0"), Some(Diagnosis::NotFound));
    }

    #[test]
    fn forgets_answers_after_an_hour() {
        let (prompts, at) = (AnsweredPrompts::default(), Instant::now());
        add(&prompts, at, ("k", "0"), (&["text"], 0), None);
        let find = |at| add(&prompts, at, ("k", "x"), (&["text"], 0), Some("0"));
        assert_eq!(find(at + KEPT_FOR), Some(Diagnosis::Reused));
        assert_eq!(find(at + KEPT_FOR + Duration::from_secs(1)), Some(Diagnosis::NotFound));
    }

    #[test]
    fn names_changed_model_tools_and_losses() {
        let texts = ["a".repeat(200), "b".repeat(200)];
        let texts = [texts[0].as_str(), &texts[1]];
        let earlier = ComparedPrompt {
            model: "m".to_owned(),
            shape: shape(&texts, &[]),
            keys: PromptKeys::new(&facts(&texts, 0).token_ids),
        };
        let check = |now: &ComparedPrompt, facts: &PromptFacts, kind: &str, reason: &str| {
            let message = earlier.diagnose(now, facts).of_message();
            assert_eq!(message["cache_miss_reason"]["type"], kind);
            let response = earlier.diagnose(now, facts).of_response("input");
            assert_eq!(response["cairn"]["reason"], reason, "{response}");
        };
        let model = ComparedPrompt { model: "other".to_owned(), ..earlier.clone() };
        check(&model, &facts(&texts, 0), "model_changed", "model_changed");
        let tools = shape(&texts, &[json!({ "name": "look" })]);
        let tools = ComparedPrompt { shape: tools, ..earlier.clone() };
        let told = facts(&["tools", texts[0], texts[1]], 0);
        check(&tools, &told, "tools_changed", "tools_changed");
        // A template that does not tell of them changes nothing.
        assert_eq!(earlier.diagnose(&tools, &facts(&texts, 399)), Diagnosis::Reused);
        let lost = PromptFacts { loss: Some("it was evicted".to_owned()), ..facts(&texts, 0) };
        check(&earlier, &lost, "unavailable", "lost");
        check(&earlier, &told, "unavailable", "settings_changed");
    }
}
