//! How families of models mark reasoning and tool calls: a table, and which rows hold for a model.
//!
//! A row is chosen by what the chat template writes, never by a model's name, so that a fine-tuned
//! or renamed model is read by what it was trained on. A template that shows no form leaves the
//! vocabulary: a marker that is a token of its own is there for a reason.

/// How a model marks the parts of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFormat {
    pub(super) reasoning: Option<&'static ReasoningMarkers>,
    pub(super) calls: Option<&'static CallMarkers>,
    pub(super) channels: bool,
}

/// How reasoning is marked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReasoningMarkers {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
}

/// How tool calls are marked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallMarkers {
    name: &'static str,
    /// Texts of which the template must contain all.
    signs: &'static [&'static str],
    /// The marker before calls.
    pub(super) open: &'static str,
    /// The markers within and behind calls, and around several: structure, wherever they stand.
    pub(super) others: &'static [&'static str],
    pub(super) form: CallForm,
    /// Whether an answer that begins with a call's JSON is one, without a marker.
    pub(super) may_be_bare: bool,
}

/// What stands behind the marker. Where the form is another, JSON is understood too: models fall
/// back to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallForm {
    /// `{"name": …, "arguments": {…}}`, several of them, or a list of them. Cohere's have `tool_name`.
    Json,
    /// A name, `separator`, the arguments as JSON.
    Named { separator: &'static str, id: IdForm },
    /// Tags around the name and each argument.
    Tagged(&'static Tags),
    /// `call:name{key:value}`, with `quote` around strings.
    Braced { quote: &'static str },
    /// `[name(key=value)]` in Python's syntax, `close` behind it; or without a list, a call a line.
    Python { close: &'static str, in_lines: bool },
}

/// Whether a name comes with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdForm {
    None,
    /// Behind the name and this marker.
    After(&'static str),
    /// `functions.name:index` is the id, and contains the name.
    Whole,
}

/// The tags of a call whose arguments are text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Before the name; empty if the call's own marker stands there.
    pub(super) function: &'static str,
    /// Behind the name; empty if it ends with the first argument.
    pub(super) name_end: &'static str,
    pub(super) key: &'static str,
    pub(super) key_end: &'static str,
    /// Before a value, behind the key; empty if there is none.
    pub(super) value: &'static str,
    pub(super) value_end: &'static str,
    pub(super) end: &'static str,
    /// Whether a line end before and behind a value belongs to the tags.
    pub(super) has_lines: bool,
}

/// Of Qwen3-Coder, Qwen3-Next and Seed-OSS.
const FUNCTION_TAGS: Tags = Tags {
    function: "<function=",
    name_end: ">",
    key: "<parameter=",
    key_end: ">",
    value: "",
    value_end: "</parameter>",
    end: "</function>",
    has_lines: true,
};
/// Of MiniMax-M2.
const INVOKE_TAGS: Tags = Tags {
    function: "<invoke name=\"",
    name_end: "\">",
    key: "<parameter name=\"",
    key_end: "\">",
    value: "",
    value_end: "</parameter>",
    end: "</invoke>",
    has_lines: false,
};
/// Of GLM-4.5 and later.
const ARGUMENT_TAGS: Tags = Tags {
    function: "",
    name_end: "",
    key: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    value_end: "</arg_value>",
    end: "</tool_call>",
    has_lines: false,
};

/// The markers of OpenAI's harmony format, which has channels in place of both tables.
pub(super) const CHANNEL_SIGNS: [&str; 2] = ["<|channel|>", "<|message|>"];

/// The first row of which the template contains a marker is chosen.
const REASONING: &[ReasoningMarkers] = &[
    ReasoningMarkers { open: "<|channel>thought", close: "<channel|>" },
    ReasoningMarkers { open: "<seed:think>", close: "</seed:think>" },
    ReasoningMarkers { open: "[THINK]", close: "[/THINK]" },
    ReasoningMarkers { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    ReasoningMarkers { open: "<think>", close: "</think>" },
];

/// The first row whose signs the template contains is chosen, so special forms precede common ones.
const CALLS: &[CallMarkers] = &[
    CallMarkers {
        name: "gemma4",
        signs: &["<|tool_call>"],
        open: "<|tool_call>",
        others: &["<tool_call|>"],
        form: CallForm::Braced { quote: "<|\"|>" },
        may_be_bare: false,
    },
    CallMarkers {
        name: "function-gemma",
        signs: &["<start_function_call>"],
        open: "<start_function_call>",
        others: &["<end_function_call>", "<start_function_response>"],
        form: CallForm::Braced { quote: "<escape>" },
        may_be_bare: false,
    },
    CallMarkers {
        name: "minimax-m2",
        signs: &["<minimax:tool_call>"],
        open: "<minimax:tool_call>",
        others: &["</minimax:tool_call>"],
        form: CallForm::Tagged(&INVOKE_TAGS),
        may_be_bare: false,
    },
    CallMarkers {
        name: "seed-oss",
        signs: &["<seed:tool_call>"],
        open: "<seed:tool_call>",
        others: &["</seed:tool_call>"],
        form: CallForm::Tagged(&FUNCTION_TAGS),
        may_be_bare: false,
    },
    CallMarkers {
        name: "glm-4.5",
        signs: &["<tool_call>", "<arg_key>"],
        open: "<tool_call>",
        others: &["</tool_call>"],
        form: CallForm::Tagged(&ARGUMENT_TAGS),
        may_be_bare: false,
    },
    CallMarkers {
        name: "qwen3-coder",
        signs: &["<tool_call>", "<function="],
        open: "<tool_call>",
        others: &["</tool_call>"],
        form: CallForm::Tagged(&FUNCTION_TAGS),
        may_be_bare: false,
    },
    CallMarkers {
        name: "kimi-k2",
        signs: &["<|tool_call_begin|>"],
        open: "<|tool_call_begin|>",
        others: &[
            "<|tool_call_end|>",
            "<|tool_call_argument_begin|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
        ],
        form: CallForm::Named { separator: "<|tool_call_argument_begin|>", id: IdForm::Whole },
        may_be_bare: false,
    },
    CallMarkers {
        name: "deepseek-v3",
        signs: &["<｜tool▁call▁begin｜>", "```json"],
        open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        others: &[
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "```<｜tool▁call▁end｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ],
        form: CallForm::Named { separator: "\n```json", id: IdForm::None },
        may_be_bare: false,
    },
    CallMarkers {
        name: "deepseek-v3.1",
        signs: &["<｜tool▁call▁begin｜>"],
        open: "<｜tool▁call▁begin｜>",
        others: &[
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        ],
        form: CallForm::Named { separator: "<｜tool▁sep｜>", id: IdForm::None },
        may_be_bare: false,
    },
    CallMarkers {
        name: "mistral",
        signs: &["[TOOL_CALLS]"],
        open: "[TOOL_CALLS]",
        others: &["[CALL_ID]", "[ARGS]"],
        form: CallForm::Named { separator: "[ARGS]", id: IdForm::After("[CALL_ID]") },
        may_be_bare: false,
    },
    CallMarkers {
        name: "lfm2",
        signs: &["<|tool_call_start|>"],
        open: "<|tool_call_start|>",
        others: &["<|tool_call_end|>"],
        form: CallForm::Python { close: "<|tool_call_end|>", in_lines: false },
        may_be_bare: false,
    },
    CallMarkers {
        name: "olmo3",
        signs: &["<function_calls>"],
        open: "<function_calls>",
        others: &["</function_calls>"],
        form: CallForm::Python { close: "</function_calls>", in_lines: true },
        may_be_bare: false,
    },
    // Phi-4-mini, and Granite 3.0, which writes no closing marker.
    CallMarkers {
        name: "phi4",
        signs: &["<|tool_call|>"],
        open: "<|tool_call|>",
        others: &["<|/tool_call|>"],
        form: CallForm::Json,
        may_be_bare: false,
    },
    CallMarkers {
        name: "nemotron",
        signs: &["<TOOLCALL>"],
        open: "<TOOLCALL>",
        others: &["</TOOLCALL>"],
        form: CallForm::Json,
        may_be_bare: false,
    },
    // Command R7B, Command A and North. Their answers stand in markers too.
    CallMarkers {
        name: "command",
        signs: &["<|START_ACTION|>"],
        open: "<|START_ACTION|>",
        others: &[
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ],
        form: CallForm::Json,
        may_be_bare: false,
    },
    // Hermes, Qwen2.5, Qwen3, Granite 3.1 and later, and many that were tuned on their data.
    CallMarkers {
        name: "hermes",
        signs: &["<tool_call>"],
        open: "<tool_call>",
        others: &["</tool_call>"],
        form: CallForm::Json,
        may_be_bare: false,
    },
    CallMarkers {
        name: "llama3",
        signs: &["<|python_tag|>"],
        open: "<|python_tag|>",
        others: &[],
        form: CallForm::Json,
        may_be_bare: true,
    },
    // Llama 3.2's template, whose vocabulary has the tag too.
    CallMarkers {
        name: "llama3.2",
        signs: &["<|start_header_id|>", "\"parameters\": "],
        open: "<|python_tag|>",
        others: &[],
        form: CallForm::Json,
        may_be_bare: true,
    },
    // Gemma 3 has no marker: Google documents the JSON, and Python in a fence.
    CallMarkers {
        name: "gemma3",
        signs: &["<start_of_turn>"],
        open: "```tool_code\n",
        others: &[],
        form: CallForm::Python { close: "```", in_lines: false },
        may_be_bare: true,
    },
];

impl AnswerFormat {
    /// All text is text.
    pub const PLAIN: AnswerFormat = AnswerFormat { reasoning: None, calls: None, channels: false };

    /// The format of a model: the rows whose markers its chat template contains, or else those
    /// whose marker is a token of its own. `has_token` says whether a text is one.
    pub fn of(template: &str, has_token: impl Fn(&str) -> bool) -> AnswerFormat {
        if CHANNEL_SIGNS.iter().all(|sign| template.contains(sign)) {
            return AnswerFormat { channels: true, ..AnswerFormat::PLAIN };
        }
        let shows =
            |row: &&ReasoningMarkers| template.contains(row.open) || template.contains(row.close);
        let knows = |row: &&ReasoningMarkers| has_token(row.open) && has_token(row.close);
        let reasoning = REASONING.iter().find(shows).or_else(|| REASONING.iter().find(knows));
        let shows = |row: &&CallMarkers| row.signs.iter().all(|sign| template.contains(sign));
        let calls = CALLS.iter().find(shows);
        let calls = calls.or_else(|| CALLS.iter().find(|row| has_token(row.open)));
        AnswerFormat { reasoning, calls, channels: false }
    }

    /// The format in which calls have the form that a prompt asks for where the model's template takes
    /// no tools.
    pub fn with_generic_calls(self) -> AnswerFormat {
        AnswerFormat { calls: CALLS.iter().find(|row| row.name == "hermes"), ..self }
    }

    /// The format in which tool calls are text. OpenAI's channels stay, which mark text too.
    pub fn without_calls(self) -> AnswerFormat {
        AnswerFormat { calls: None, ..self }
    }

    /// The format with these names of a reasoning marker and of a family of tool calls, which
    /// [`names`](Self::names) gives. Unknown ones are as none.
    pub fn named(reasoning: &str, calls: &str) -> AnswerFormat {
        AnswerFormat {
            reasoning: REASONING.iter().find(|row| row.open == reasoning),
            calls: CALLS.iter().find(|row| row.name == calls),
            channels: calls == "harmony",
        }
    }

    /// The marker that opens reasoning, and the family of tool calls; empty for none.
    pub fn names(&self) -> (&'static str, &'static str) {
        if self.channels {
            return ("<|channel|>analysis", "harmony");
        }
        (self.reasoning.map_or("", |row| row.open), self.calls.map_or("", |row| row.name))
    }

    /// All formats: every way to mark reasoning with every family of tool calls.
    pub fn all() -> impl Iterator<Item = AnswerFormat> {
        let channels = AnswerFormat { channels: true, ..AnswerFormat::PLAIN };
        let reasoning = REASONING.iter().map(Some).chain([None]);
        let formats = reasoning.flat_map(|reasoning| {
            let calls = CALLS.iter().map(Some).chain([None]);
            calls.map(move |calls| AnswerFormat { reasoning, calls, channels: false })
        });
        formats.chain([channels])
    }

    /// The markers of the format: none of them may be left in text.
    pub fn markers(&self) -> Vec<&'static str> {
        if self.channels {
            return super::channels::MARKERS.to_vec();
        }
        let reasoning = self.reasoning.iter().flat_map(|row| [row.open, row.close]);
        let calls = self.calls.iter().flat_map(|row| {
            let function = match row.form {
                CallForm::Tagged(tags) if !tags.function.is_empty() => Some(tags.function),
                _ => None,
            };
            [row.open].into_iter().chain(row.others.iter().copied()).chain(function)
        });
        reasoning.chain(calls).collect()
    }

    /// The text that ends thoughts where they are, so that the answer follows; `None` if the format
    /// has no thoughts.
    pub fn end_of_thoughts(&self) -> Option<String> {
        if self.channels {
            return Some("<|end|><|start|>assistant<|channel|>final<|message|>".to_owned());
        }
        self.reasoning.map(|row| format!("\n{}\n\n", row.close))
    }

    /// Whether the prompt has opened reasoning already, so that the answer begins within it.
    pub(super) fn is_opened_by(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|row| prompt.trim_end().ends_with(row.open))
    }
}
