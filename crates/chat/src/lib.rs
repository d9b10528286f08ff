//! The text side of a conversation: messages, the template that renders them, and the token ids
//! that the model receives.
//!
//! This crate is pure. It opens no file, never blocks and does not depend on MLX, so everything in
//! it is tested with plain values.
//!
//! A request passes through it once:
//!
//! 1. The caller has the conversation as [`Message`]s and a model's [`ChatTemplate`], parsed once
//!    when the model was loaded.
//! 2. [`assemble`] renders the template and turns the text into a [`Prompt`]. Token ids that an
//!    earlier turn was made of are reused wherever the text still agrees, because text that a model
//!    sampled often encodes differently. [`assemble_after`] does the same for messages that follow
//!    cached tokens. [`Encode`] is the tokenizer's interface.
//! 3. The engine prefills the prompt, samples tokens by [`SamplingParams`] until [`StopTokens`] or
//!    [`StopStrings`] end the answer, and closes with a [`FinishReason`] and [`GenerationStats`].
//! 4. [`SegmentParser`] tells text, reasoning and tool calls in the answer apart, as the model's
//!    family marks them ([`AnswerFormat`]). [`LoopDetector`] says when it repeats itself.
//!
//! ```text
//! Message ─┐
//!          ├─▶ ChatTemplate ─▶ text ─▶ Encode ─▶ Prompt ─▶ (engine) ─▶ StopTokens, StopStrings
//! system ──┘        assemble                                              FinishReason, GenerationStats
//!                                                     answer ◀─ SegmentParser ◀─┘
//! ```
//!
//! # Example
//!
//! A stop string may arrive in pieces. What could become one is held back until it is clear.
//!
//! ```
//! let mut stop = cairn_chat::StopStrings::new(vec!["END".to_owned()]).unwrap();
//! assert_eq!(stop.push("A stone E").text, "A stone ");
//! let step = stop.push("ND and more");
//! assert_eq!((step.text.as_str(), step.stopped.as_deref()), ("", Some("END")));
//! ```
//!
//! Templates are programs from strangers. They run in a sandbox without files or clock, with limits
//! on their length, their steps, their time and their output; see [`ChatTemplate`].

mod after;
mod builtins;
mod date;
mod encoded_prefix;
mod error;
mod generic_tools;
mod late_instructions;
mod limits;
mod loops;
mod message;
mod open_turn;
mod prompt;
mod python_json;
mod retold;
mod sampling;
mod sandbox;
mod segments;
mod stop;
mod stop_tokens;
mod template;
mod thinking;
mod turn;

pub use after::{Ending, assemble_after};
pub use date::Date;
pub use encoded_prefix::{EncodedPrefix, common_beginning};
pub use error::ChatError;
pub use limits::Cancel;
pub use loops::LoopDetector;
pub use message::{
    CacheMiss, CachedFrom, FinishReason, GenerationStats, GuessCounts, Message, Role,
};
pub use prompt::{Encode, Prompt, TextPlace, assemble};
pub use sampling::SamplingParams;
pub use segments::{
    AnswerForm, AnswerFormat, CallOutcome, CallSchema, CrowdedPlace, OfferedTool, Segment,
    SegmentEvent, SegmentParser, TextForm, ToolCall,
};
pub use stop::{StopStep, StopStrings};
pub use stop_tokens::StopTokens;
pub use template::{ChatTemplate, SpecialTokens, TemplateSources};
pub use thinking::{Thinking, ThinkingChoices, forget_thinking};
pub use turn::{CallArguments, MadeCall, PromptEnd, Turn, TurnsPrompt, assemble_turns};
