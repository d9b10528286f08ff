//! Jobs: a question asked about each of many texts.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A question that is asked about each of many texts, without its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct Job {
    pub id: String,
    pub name: String,
    pub model: String,
    pub question: JobQuestion,
    pub state: JobState,
    /// Why it does not go on; none if a person has paused it.
    pub reason: Option<String>,
    /// What its log-probabilities are divided by; none until it is calibrated.
    pub temperature: Option<f64>,
    #[ts(type = "number")]
    pub created_at_ms: i64,
    pub num_rows: u32,
    pub num_answered: u32,
    /// Rows that could not be answered.
    pub num_failed: u32,
    pub num_corrected: u32,
    /// It is paused because Cairn quit unexpectedly twice while it ran; `ContinueJob` ends that.
    pub is_set_aside: bool,
    /// It runs after the jobs before it.
    pub is_waiting: bool,
    /// How many rows were answered in a second; none before the first.
    pub rows_per_second: Option<f64>,
}

/// Whether a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It does, also after a restart.
    Running,
    Paused,
    Done,
    Failed,
}

/// What is asked about each text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct JobQuestion {
    /// `{text}` stands for the text; without it the text follows.
    pub instructions: String,
    pub kind: JobQuestionKind,
    /// Of a choice or a score, whose levels begin with the lowest. A predicate has none.
    pub options: Vec<JobOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum JobQuestionKind {
    /// No or yes, in this order.
    Predicate,
    Choice,
    Score,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct JobOption {
    pub label: String,
    /// What it stands for, if its name does not say.
    pub description: Option<String>,
}

/// Where the texts of a job come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "snake_case")]
pub enum JobSource {
    Written(JobTexts),
    /// Each conversation is a text, in this order.
    Conversations {
        ids: Vec<String>,
        part: ConversationPart,
    },
}

/// What of a conversation is a text of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ConversationPart {
    /// All messages of its current branch, each behind who wrote it.
    Whole,
    /// What was asked last.
    LastQuestion,
}

/// The texts of a job, as they were chosen or pasted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct JobTexts {
    pub format: TextFormat,
    /// All of the file.
    pub content: String,
    /// Of a CSV file: the column; none: “text”, or the first.
    pub column: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// The first line names the columns.
    Csv,
    /// `text` of the object in each line, or its only field that is a text.
    Jsonl,
    /// Each line is a text.
    Lines,
}

/// What a job would ask. The texts, the question and its options have errors of their own, as
/// sentences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct JobPreview {
    /// Of a CSV file.
    pub columns: Vec<String>,
    /// The column that is read.
    pub column: Option<String>,
    pub num_rows: u32,
    /// Rows of a file that have no text, which are left out.
    pub num_empty: u32,
    /// The first prompt; none while something is missing.
    pub prompt: Option<String>,
    pub texts_problem: Option<String>,
    pub question_problem: Option<String>,
    pub options_problem: Option<String>,
}

/// A text of a job, and what was answered about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct JobRow {
    /// From 0.
    pub position: u32,
    pub text: String,
    /// Of each option, in their order, which add up to 1; of a predicate those of no and yes. None
    /// until it is answered.
    pub probabilities: Option<Vec<f64>>,
    /// The place of the option that a person has called correct.
    pub correction: Option<u32>,
    /// Why it could not be answered.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum JobRowOrder {
    Position,
    /// Least certain first; rows without an answer last.
    Certainty,
}

/// How certain the answers of a job are, and how often those that were corrected are right.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct JobCharts {
    /// How many rows have a likeliest option with a probability in each of 20 bins of equal width.
    pub histogram: Vec<u32>,
    /// As the model has the probabilities; none before the first correction.
    pub quality: Option<JobQuality>,
    /// At the job's temperature; none without one.
    pub calibrated: Option<JobQuality>,
}

/// How good the answers of the corrected rows are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, TS)]
pub struct JobQuality {
    pub num_rows: u32,
    pub accuracy: f64,
    /// The mean distance between probability and accuracy, over ten bins.
    pub expected_calibration_error: f64,
    pub brier: f64,
    /// By rising probability.
    pub curve: Vec<CalibrationPoint>,
}

/// Rows with a likeliest option of a similar probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, TS)]
pub struct CalibrationPoint {
    pub probability: f64,
    pub accuracy: f64,
    pub num_rows: u32,
}
