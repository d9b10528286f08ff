//! The probabilities of an answer's tokens.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// The answer to `GetProbabilities`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum Probabilities {
    /// By the model that wrote the answer.
    Read {
        model: String,
        /// In their order; of a very long answer the first ones.
        tokens: Vec<TokenProbability>,
        /// Of the whole answer.
        num_tokens: u32,
    },
    /// The model that wrote the answer is here, but not loaded.
    NotLoaded { model: String },
    /// The model that wrote the answer is not here any more.
    NoModel { model: String },
    /// The tokens of the answer, or the model that wrote it, are not known.
    NoTokens,
    /// `StopProbabilities` came first.
    Stopped,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct TokenProbability {
    pub token: u32,
    /// The text that it completes: empty while a character is still in pieces, and of a token that ends
    /// the answer.
    pub text: String,
    /// Before sampling filters, from 0 to 1.
    pub probability: f64,
    /// How many tokens were likelier.
    pub rank: u32,
    /// Over the whole vocabulary, in bits.
    pub entropy_bits: f64,
    pub ends_answer: bool,
    /// The likeliest tokens in its place, itself included if it is one of them; best first.
    pub likeliest: Vec<LikelyToken>,
}

/// A token that could stand in the place of another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct LikelyToken {
    pub token: u32,
    /// With a leading space where it has one; empty of one that ends the answer.
    pub text: String,
    pub probability: f64,
    pub ends_answer: bool,
}
