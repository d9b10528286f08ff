//! `cairn classify`: one token, or one of several labels, for each line of a file.

mod results;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use cairn_chat::{Message, Role};
use cairn_engine::{ClassifyRequest, ClassifyRow, EngineError, PromptInput, RowAnswer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments;
use crate::download::Questions;
use crate::input::read_text;
use crate::json_lines;
use crate::output::{self, Usage, note};
use crate::session::Session;
use results::Results;

/// Rows are computed the shortest first and written in the order of the input, so many at a time. A
/// run that is ended loses at most as many.
const ROWS_AT_A_TIME: usize = 512;

/// One line of an input file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt_tokens: Option<Vec<u32>>,
    messages: Option<Vec<LineMessage>>,
    prompt: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineMessage {
    role: Role,
    content: String,
}

impl Line {
    fn parse(text: &str) -> Result<Self> {
        let line: Line = json_lines::object(text)?;
        match &line {
            Line { prompt_tokens: Some(tokens), messages: None, prompt: None } => {
                ensure!(!tokens.is_empty(), "prompt_tokens is empty");
            }
            Line { prompt_tokens: None, messages: Some(messages), prompt: None } => {
                ensure!(!messages.is_empty(), "messages is empty");
            }
            Line { prompt_tokens: None, messages: None, prompt: Some(text) } => {
                ensure!(!text.is_empty(), "the prompt is empty");
            }
            _ => bail!("give one of prompt_tokens, messages and prompt"),
        }
        Ok(line)
    }
}

/// What every prompt begins with.
struct Prefix {
    text: String,
    tokens: Vec<u32>,
    has_chat_template: bool,
}

impl Prefix {
    fn prompt(&self, line: Line) -> PromptInput {
        match line {
            Line { prompt_tokens: Some(tokens), .. } => {
                PromptInput::Tokens([self.tokens.as_slice(), &tokens].concat())
            }
            Line { prompt: Some(text), .. } if !self.has_chat_template => {
                PromptInput::Text(format!("{}{text}", self.text))
            }
            Line { messages, prompt, .. } => {
                let message = |role, content| Message { role, content, token_ids: None };
                let system = Some(self.text.clone()).filter(|text| !text.is_empty());
                let system = system.map(|text| message(Role::System, text));
                let messages = messages.into_iter().flatten();
                let messages = messages.map(|line| message(line.role, line.content));
                let user = prompt.map(|text| message(Role::User, text));
                PromptInput::Messages(system.into_iter().chain(messages).chain(user).collect())
            }
        }
    }
}

pub async fn run(arguments: arguments::Classify) -> Result<()> {
    check_labels(&arguments.labels)?;
    let lines = json_lines::read(&arguments.input, Line::parse)?;
    let text = match (&arguments.prefix, &arguments.prefix_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => String::new(),
    };
    if let Some(path) = &arguments.output {
        check_is_not_read(path, &arguments)?;
        output::check_writable(path)?;
    }
    let mut results = Results::open(&arguments, lines.len())?;
    if results.num_done() == lines.len() {
        note!("cairn: all {} rows are done", lines.len());
        return Ok(());
    }
    let questions = Questions::unless(arguments.json || arguments.output.is_some());
    let session = Session::open(&arguments.model, questions).await?;
    let has_tokens = lines.iter().any(|line| line.prompt_tokens.is_some());
    let tokens = match has_tokens && !text.is_empty() {
        true => session.engine.tokenize(&text).await?,
        false => Vec::new(),
    };
    let has_chat_template = session.model.has_chat_template;
    let prefix = Prefix { text, tokens, has_chat_template };
    let options: Arc<[String]> = arguments.labels.clone().into();
    let row = |line| ClassifyRow { prompt: prefix.prompt(line), options: Arc::clone(&options) };
    let rows: Vec<ClassifyRow> = lines.into_iter().map(row).collect();

    let template = "classifying {wide_bar} {pos}/{len} rows  {per_sec}  {eta} left";
    let bar = output::bar(rows.len() as u64, template);
    bar.set_position(results.num_done() as u64);
    bar.reset_eta();
    let request = |rows: &[ClassifyRow]| ClassifyRequest {
        batch_size: arguments.batch_size as usize,
        num_top: arguments.top,
        keep_prefix: true,
        ..ClassifyRequest::new(rows.to_vec())
    };
    // One row says whether the labels can be used, before the results of an earlier run go.
    if results.replaces_earlier() {
        let answers = session.engine.classify(request(&rows[..1])).answers(|| ()).await?;
        refuse_unusable_labels(&answers).inspect_err(|_| bar.finish_and_clear())?;
    }
    results.begin()?;
    while results.num_done() < rows.len() {
        let stop = rows.len().min(results.num_done() + ROWS_AT_A_TIME);
        let request = request(&rows[results.num_done()..stop]);
        let answers = session.engine.classify(request).answers(|| bar.inc(1)).await?;
        ensure!(answers.len() == stop - results.num_done(), "the engine has left out rows");
        if results.num_done() == 0 {
            refuse_unusable_labels(&answers).inspect_err(|_| bar.finish_and_clear())?;
        }
        bar.suspend(|| results.write(answers))?;
    }
    bar.finish_and_clear();
    session.engine.shutdown().await;
    results.end()
}

/// Refuses labels of which one would answer for nothing or for another.
fn check_labels(labels: &[String]) -> Result<()> {
    let refuse = |problem: String| Err(Usage(format!("--labels: {problem}")).into());
    for (index, label) in labels.iter().enumerate() {
        if label.is_empty() {
            return refuse(format!("label {} is empty", index + 1));
        }
        if labels[..index].contains(label) {
            return refuse(format!("“{label}” is there twice"));
        }
    }
    Ok(())
}

/// Refuses to write the results over what the run reads.
fn check_is_not_read(output: &Path, arguments: &arguments::Classify) -> Result<()> {
    let identity = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let written = identity(output);
    let read = [Some(&arguments.input), arguments.prefix_file.as_ref()];
    match read.into_iter().flatten().find(|path| written.is_some() && identity(path) == written) {
        Some(read) => {
            let read = read.display();
            let problem = format!("--output is {read}, which is read: choose another file");
            Err(Usage(problem).into())
        }
        None => Ok(()),
    }
}

/// Fails if the labels are the problem of all of these rows. It is not found earlier: the tokens of
/// a label are known behind a row.
fn refuse_unusable_labels(answers: &[Result<RowAnswer, EngineError>]) -> Result<()> {
    use EngineError::{EmptyOption, OptionsBeginAlike};

    let is_of_labels = |answer: &Result<_, _>| {
        matches!(answer, Err(OptionsBeginAlike { .. } | EmptyOption { .. }))
    };
    match answers.first() {
        Some(Err(error)) if answers.iter().all(is_of_labels) => {
            bail!("cannot use the labels: {error}")
        }
        _ => Ok(()),
    }
}

/// The object of one row.
fn object(index: usize, answer: &Result<RowAnswer, EngineError>, labels: &[String]) -> Value {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return json!({"index": index, "error": error.to_string()}),
    };
    let labels: serde_json::Map<String, Value> = std::iter::zip(labels, &answer.option_logprobs)
        .map(|(label, &logprob)| (label.clone(), logprob.into()))
        .collect();
    json!({
        "index": index,
        "token": answer.token,
        "text": answer.text,
        "logprob": answer.logprob,
        "labels": labels,
        "top": answer.top,
        "prompt_tokens": answer.num_prompt_tokens,
        "cached_tokens": answer.num_cached_tokens,
    })
}

/// The line of one row for people: its number, its text and its probability.
fn plain(index: usize, answer: &RowAnswer) -> String {
    let text = answer.text.replace('\n', "\\n");
    format!("{index}\t{text}\t{:.4}", answer.logprob.exp())
}

fn failed(count: usize, total: usize) -> Result<()> {
    match count {
        0 => Ok(()),
        _ => Err(anyhow!("{count} of {total} rows failed")),
    }
}
