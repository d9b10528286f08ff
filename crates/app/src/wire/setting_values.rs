//! The values of settings that have names.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Appearance {
    System,
    Light,
    Dark,
}

/// What becomes of a chat that has outgrown its model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum AtOverflow {
    /// It ends there.
    Stop,
    /// Its oldest turns are no longer read.
    Forget,
    /// The model writes a summary, which is read instead of them.
    Summarize,
}

/// How much a model thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// As much as the model's maker chose, but at most `Medium`.
    Automatic,
    Off,
    On,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// How much a model can be told to think.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ThinkingChoices {
    /// The least first; empty if its chat template has no choice.
    pub levels: Vec<Thinking>,
    /// The level that `Automatic` stands for, if that is known.
    pub automatic: Option<Thinking>,
}

/// After what time without use a model leaves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum IdleUnload {
    Never,
    FiveMinutes,
    FifteenMinutes,
    OneHour,
    FourHours,
}

/// Whether tokens are proposed that the model checks, without a draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Speed {
    /// None are.
    Plain,
    /// What followed the same words in the chat before, where that was measured to pay.
    Automatic,
}

/// In how many bits keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum KvBits {
    /// As computed.
    Plain,
    EightBits,
    FourBits,
}
