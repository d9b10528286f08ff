//! The check of a model in a process of its own: what that process does, and what it answers. Its
//! parent is [`super::check::Checker`].

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cairn_engine::{ModelMemory, ProblemKind, check_model};
use cairn_formats::gguf;
use serde::{Deserialize, Serialize};

use super::child::{asked_paths, prepare_device};
use crate::wire::{
    Fit, MemoryNeed, ModelFacts, ModelProblem, ModelProblemKind, ModelProblemWhat, RoundedWeights,
};
use crate::{convert, platform};

/// The arguments before the folder.
pub(super) const ARGUMENTS: [&str; 3] = ["models", "check", "--json"];
/// The variable with the most bytes that the process may allocate.
pub(super) const MEMORY_VARIABLE: &str = "CAIRN_CHECK_MEMORY_BYTES";
/// What it may allocate without that variable.
pub(super) const MEMORY_BYTES: u64 = 2 << 30;

/// The tokens of an ordinary chat, whose memory is estimated if the model can read as much.
const ORDINARY_TOKENS: usize = 8192;
/// The prompt tokens that are read at once.
const PREFILL_STEP_SIZE: usize = 2048;

/// Checks a model and returns the exit status, if these arguments of the process, without its name,
/// ask for it: `models check --json` and the absolute path of a folder.
///
/// The answer is one line of JSON, [`ModelVerdict::to_json`]; the status is 0 whatever the verdict
/// is.
pub(super) fn run_if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    let folder = asked_folder(arguments)?;
    if let Err(status) = prepare_device() {
        return Some(status);
    }
    let asked = std::env::var(MEMORY_VARIABLE).ok().and_then(|bytes| bytes.parse().ok());
    // Where the system has no such limit, the parent watches.
    let limited = platform::limit_memory(asked.unwrap_or(MEMORY_BYTES));
    if let Err(error) = limited {
        eprintln!("the memory of the check is not limited: {error}");
    }
    let answer = ModelVerdict::of(&folder).to_json();
    let written = writeln!(std::io::stdout(), "{answer}");
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn asked_folder(arguments: &[OsString]) -> Option<PathBuf> {
    let [folder] = asked_paths(&ARGUMENTS, arguments)?;
    Some(folder)
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelVerdict {
    /// The model can be used.
    Usable(CheckedFacts),
    /// It cannot.
    Problem(ModelProblem),
}

/// What a model is and takes on this machine; what it may take is decided later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields of `wire::ModelFacts` and `wire::MemoryNeed`
pub struct CheckedFacts {
    pub parameters: u64,
    pub quantization_bits: Option<u32>,
    pub context_length: u32,
    pub weight_bytes: u64,
    /// Of one more token of a conversation that is within every window.
    pub kv_bytes_per_token: u64,
    pub context_tokens: u32,
    pub kv_bytes: u64,
    pub total_bytes: u64,
    /// Not in what earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<LongestChat>,
    /// Not in what earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes_tools: Option<bool>,
    /// Not in what earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounded_weights: Option<RoundedWeights>,
}

/// The longest chat of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongestChat {
    /// Its length.
    pub tokens: u32,
    /// The memory of the model with this chat, as `CheckedFacts::total_bytes`.
    pub bytes: u64,
}

/// The line of JSON.
#[derive(Serialize, Deserialize)]
struct Answer {
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    facts: Option<CheckedFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<ModelProblemKind>,
    /// Not in what earlier versions wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    what: Option<ModelProblemWhat>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl ModelVerdict {
    /// Checks the model in `folder` in this process.
    pub fn of(folder: &Path) -> ModelVerdict {
        match check_model(folder) {
            Ok(check) => ModelVerdict::Usable(CheckedFacts {
                rounded_weights: gguf::RoundedWeights::read(folder).map(convert::rounded_weights),
                takes_tools: Some(check.takes_tools),
                ..CheckedFacts::of(&check.memory)
            }),
            Err(error) => {
                let (kind, detail) = error.as_model_problem();
                let kind = match kind {
                    ProblemKind::Incomplete => ModelProblemKind::Incomplete,
                    ProblemKind::Unsupported => ModelProblemKind::Unsupported,
                    ProblemKind::Broken => ModelProblemKind::Broken,
                };
                ModelVerdict::Problem(ModelProblem { kind, what: None, detail: cut(detail) })
            }
        }
    }

    /// `{"ok": true, "facts": {…}}`, or `{"ok": false, "kind": "broken", "detail": "…"}` with one of
    /// the kinds `incomplete`, `unsupported` and `broken`.
    pub fn to_json(&self) -> serde_json::Value {
        let answer = match self.clone() {
            ModelVerdict::Usable(facts) => {
                Answer { ok: true, facts: Some(facts), kind: None, what: None, detail: None }
            }
            ModelVerdict::Problem(ModelProblem { kind, what, detail }) => {
                Answer { ok: false, facts: None, kind: Some(kind), what, detail: Some(detail) }
            }
        };
        serde_json::to_value(answer).unwrap_or_default()
    }

    /// What [`ModelVerdict::to_json`] has written; none of anything else.
    pub(super) fn from_json(line: &[u8]) -> Option<ModelVerdict> {
        match serde_json::from_slice(line).ok()? {
            Answer { ok: true, facts: Some(facts), .. } => Some(ModelVerdict::Usable(facts)),
            Answer { ok: false, kind: Some(kind), what, detail: Some(detail), .. } => {
                Some(ModelVerdict::Problem(ModelProblem { kind, what, detail: cut(detail) }))
            }
            _ => None,
        }
    }
}

/// The most characters of a detail; parsers repeat what they read.
const MAX_DETAIL_CHARS: usize = 500;

fn cut(detail: String) -> String {
    match detail.char_indices().nth(MAX_DETAIL_CHARS) {
        Some((end, _)) => format!("{}…", &detail[..end]),
        None => detail,
    }
}

impl CheckedFacts {
    /// Reads the facts of a model whose chats may be as long as it can read.
    pub(crate) fn of(memory: &ModelMemory) -> CheckedFacts {
        CheckedFacts::with_limit(memory, memory.context_length)
    }

    /// Reads the facts of a model whose chats have at most `num_tokens` tokens.
    pub(crate) fn with_limit(memory: &ModelMemory, num_tokens: usize) -> CheckedFacts {
        let longest = num_tokens.min(memory.context_length);
        let context = ORDINARY_TOKENS.min(longest);
        let peak_bytes = |num_tokens| memory.peak_bytes(num_tokens, 1, PREFILL_STEP_SIZE);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        CheckedFacts {
            parameters: memory.num_parameters,
            quantization_bits: memory.quantization.and_then(|(bits, _)| u32::try_from(bits).ok()),
            context_length: small(memory.context_length),
            weight_bytes: memory.weight_bytes,
            kv_bytes_per_token: memory.kv_bytes_per_token(),
            context_tokens: small(context),
            kv_bytes: memory.kv_bytes(context),
            total_bytes: peak_bytes(context),
            longest: Some(LongestChat { tokens: small(longest), bytes: peak_bytes(longest) }),
            takes_tools: None,
            rounded_weights: None,
        }
    }

    /// The same, compared with what models may take.
    pub(crate) fn within(&self, budget_bytes: u64) -> ModelFacts {
        let longest = self.longest.unwrap_or_else(|| self.estimated_longest());
        ModelFacts {
            parameters: self.parameters,
            quantization_bits: self.quantization_bits,
            context_length: self.context_length,
            memory: MemoryNeed {
                context_tokens: self.context_tokens,
                weight_bytes: self.weight_bytes,
                kv_bytes: self.kv_bytes,
                total_bytes: self.total_bytes,
                longest_tokens: longest.tokens,
                longest_bytes: longest.bytes,
                budget_bytes,
                fit: fit(self.total_bytes, budget_bytes),
            },
            takes_tools: self.takes_tools,
            rounded_weights: self.rounded_weights,
        }
    }

    /// Estimates the longest chat from the ordinary one, for what an earlier version has found. It is
    /// too high for a model with windows, which do not grow.
    fn estimated_longest(&self) -> LongestChat {
        let more = u64::from(self.context_length.saturating_sub(self.context_tokens));
        let bytes = self.total_bytes.saturating_add(more.saturating_mul(self.kv_bytes_per_token));
        LongestChat { tokens: self.context_length, bytes }
    }
}

/// Whether so much fits well: it leaves a fifth of the budget or more.
fn fit(total_bytes: u64, budget_bytes: u64) -> Fit {
    if total_bytes <= budget_bytes / 5 * 4 {
        Fit::Well
    } else if total_bytes <= budget_bytes {
        Fit::Tight
    } else {
        Fit::TooLarge
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::PerplexityChange;

    #[test]
    fn only_the_arguments_of_the_check_start_it() {
        fn check(arguments: &[&str], expected: Option<&str>) {
            let given: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(asked_folder(&given), expected.map(PathBuf::from), "{arguments:?}");
        }
        check(&["models", "check", "--json", "/models/a b"], Some("/models/a b"));
        check(&["models", "check", "--json", "owner/name"], None);
        check(&["models", "check", "/models/a", "--json"], None);
        check(&["models", "check", "--json", "/models/a", "/models/b"], None);
        check(&["models", "check", "--json"], None);
        check(&["models", "info", "--json", "/models/a"], None);
        check(&[], None);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let facts = CheckedFacts {
            parameters: 600_000_000,
            quantization_bits: Some(4),
            context_length: 40_960,
            weight_bytes: 335_000_000,
            kv_bytes_per_token: 114_688,
            context_tokens: 8192,
            kv_bytes: 939_524_096,
            total_bytes: 1_500_000_000,
            longest: Some(LongestChat { tokens: 40_960, bytes: 5_300_000_000 }),
            takes_tools: Some(true),
            rounded_weights: None,
        };
        let problem = |kind| {
            let what = Some(ModelProblemWhat::TooSlow { seconds: 30 });
            ModelProblem { kind, what, detail: "tokenizer.json is missing".to_owned() }
        };
        for verdict in [
            ModelVerdict::Usable(facts.clone()),
            ModelVerdict::Usable(CheckedFacts {
                quantization_bits: None,
                takes_tools: None,
                rounded_weights: Some(RoundedWeights {
                    num_tensors: 30,
                    relative_error: 0.003,
                    perplexity: Some(PerplexityChange { before: 12.1, after: 12.4 }),
                }),
                ..facts
            }),
            ModelVerdict::Problem(problem(ModelProblemKind::Incomplete)),
            ModelVerdict::Problem(problem(ModelProblemKind::Unsupported)),
            ModelVerdict::Problem(problem(ModelProblemKind::Broken)),
        ] {
            let line = format!("{}\n", verdict.to_json());
            assert_eq!(ModelVerdict::from_json(line.as_bytes()), Some(verdict));
        }
        for line in ["", "{}", "[]", r#"{"ok": true}"#, r#"{"ok": false, "kind": "broken"}"#] {
            assert_eq!(ModelVerdict::from_json(line.as_bytes()), None, "{line}");
        }
        let long = json!({ "ok": false, "kind": "broken", "detail": "ü".repeat(9999) }).to_string();
        let Some(ModelVerdict::Problem(problem)) = ModelVerdict::from_json(long.as_bytes()) else {
            panic!("a long detail is cut, not refused");
        };
        assert_eq!(problem.detail.chars().count(), MAX_DETAIL_CHARS + 1);
    }

    #[test]
    fn a_model_is_checked_in_its_folder() {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        let ModelVerdict::Usable(facts) = ModelVerdict::of(&folder) else { panic!("is usable") };
        assert!(facts.total_bytes > facts.weight_bytes + facts.kv_bytes, "{facts:?}");
        let longest = LongestChat { tokens: facts.context_tokens, bytes: facts.total_bytes };
        assert_eq!(facts.longest, Some(longest), "its longest chat is an ordinary one");
        assert_eq!(facts.quantization_bits, Some(4));
        assert!(facts.takes_tools.is_some(), "its template was looked at");
        let missing = ModelVerdict::of(Path::new("/no/such/model"));
        let detail = "config.json is missing".to_owned();
        let expected = ModelProblem { kind: ModelProblemKind::Incomplete, what: None, detail };
        assert_eq!(missing, ModelVerdict::Problem(expected));
    }

    #[test]
    fn estimates_longest_chat_of_older_checks() {
        let answer = json!({ "ok": true, "facts": {
            "parameters": 600_000_000, "quantization_bits": 4, "context_length": 40_960,
            "weight_bytes": 335_000_000, "kv_bytes_per_token": 114_688, "context_tokens": 8192,
            "kv_bytes": 939_524_096, "total_bytes": 1_500_000_000,
        }});
        let verdict = ModelVerdict::from_json(answer.to_string().as_bytes());
        let Some(ModelVerdict::Usable(facts)) = verdict else { panic!("{verdict:?}") };
        let memory = facts.within(15_000_000_000).memory;
        let more_tokens = 40_960 - 8192;
        assert_eq!(memory.longest_tokens, 40_960);
        assert_eq!(memory.longest_bytes, 1_500_000_000 + more_tokens * 114_688);
        assert_eq!((memory.context_tokens, memory.total_bytes), (8192, 1_500_000_000));
    }

    #[test]
    fn limit_shortens_ordinary_and_longest_chat() {
        let folder = cairn_tiny_models::tiny_model("llama/tiny-chat");
        let memory = check_model(&folder).expect("usable").memory;
        let facts = CheckedFacts::with_limit(&memory, 1000);
        assert_eq!(facts.context_tokens, 1000);
        assert_eq!(facts.longest, Some(LongestChat { tokens: 1000, bytes: facts.total_bytes }));
        let mut long = memory;
        long.context_length = 100_000;
        let facts = CheckedFacts::of(&long);
        let Some(longest) = facts.longest else { panic!("{facts:?}") };
        assert_eq!((facts.context_tokens, longest.tokens), (8192, 100_000));
        assert!(longest.bytes > facts.total_bytes, "{facts:?}");
    }

    #[test]
    fn a_model_that_leaves_a_fifth_of_the_budget_fits_well() {
        for (total, expected) in [
            (0, Fit::Well),
            (80, Fit::Well),
            (81, Fit::Tight),
            (100, Fit::Tight),
            (101, Fit::TooLarge),
        ] {
            assert_eq!(fit(total, 100), expected, "{total}");
        }
        assert_eq!(fit(u64::MAX, u64::MAX), Fit::Tight);
    }
}
