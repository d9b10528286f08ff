//! Times questions about one text: one question, and 16 of yes or no with two choices, which are asked
//! in two orders each.
//!
//! usage: decisions MODEL_FOLDER [STATE_TOKENS]
//!
//! Prints one JSON object: the medians of trials that take turns, and the median of their ratios. A
//! state is about as long as asked for: its sentences are counted as 22 tokens each.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use cairn_app::decisions::{DecideRequest, Described, Question, QuestionKind};
use cairn_app::wire::{Command, Reply};
use cairn_app::{App, DataFolder, Options};

const TRIALS: usize = 5;
const TOKENS_OF_A_SENTENCE: usize = 22;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: decisions MODEL_FOLDER [STATE_TOKENS]")?;
    let state_tokens: usize = arguments.next().map_or(Ok(1500), |text| text.parse())?;
    let home = tempfile::tempdir()?;
    let app = open(home.path(), Path::new(&folder)).await?;
    // The first pass allocates.
    time(&app, state(0, 100), one()).await?;
    let (mut alone, mut together, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for trial in 1..=TRIALS {
        let (one_took, num_tokens) = time(&app, state(2 * trial, state_tokens), one()).await?;
        let (all_took, num_all) = time(&app, state(2 * trial + 1, state_tokens), all()).await?;
        eprintln!(
            "{num_tokens} tokens {one_took:.3} s, {num_all} tokens {all_took:.3} s: {:.3}",
            all_took / one_took
        );
        alone.push(one_took);
        together.push(all_took);
        ratios.push(all_took / one_took);
    }
    println!(
        "{{\"one_question_s\": {:.3}, \"all_questions_s\": {:.3}, \"ratio\": {:.3}}}",
        median(alone),
        median(together),
        median(ratios)
    );
    app.close().await;
    Ok(())
}

/// An app with one model, which is loaded.
async fn open(home: &Path, folder: &Path) -> Result<Arc<App>> {
    let models = home.join("models");
    std::fs::create_dir_all(&models)?;
    std::os::unix::fs::symlink(folder.canonicalize()?, models.join("model"))?;
    let app = App::open(Options::new(DataFolder::new(home))).await?;
    match app.call(Command::LoadModel { name: "model".to_owned() }).await {
        Ok(Reply::Done) => Ok(app),
        other => Err(format!("the model was not loaded: {other:?}").into()),
    }
}

/// Seconds until all questions are answered, and the tokens of all prompts that were read.
async fn time(app: &Arc<App>, state: String, questions: Vec<Question>) -> Result<(f64, usize)> {
    let start = Instant::now();
    let decided = app.decide(DecideRequest { model: None, state, questions }).await?;
    let seconds = start.elapsed().as_secs_f64();
    for decision in decided.decisions {
        decision?;
    }
    Ok((seconds, decided.num_input_tokens - decided.num_cached_tokens))
}

/// An inspector's log; no two of them begin alike.
fn state(number: usize, num_tokens: usize) -> String {
    let sentence = |line: usize| {
        let (room, windows) = (line * 7 % 90 + 10, line % 5);
        format!(
            "In room {room} the inspector counted {windows} broken windows and wrote it down.\n"
        )
    };
    let lines: String = (0..num_tokens / TOKENS_OF_A_SENTENCE).map(sentence).collect();
    format!("{number}. log of the house.\n{lines}")
}

fn one() -> Vec<Question> {
    all().into_iter().take(1).collect()
}

fn all() -> Vec<Question> {
    let predicates = [
        "Are windows broken?",
        "Is the house empty?",
        "Was every room visited?",
        "Is anyone hurt?",
        "Is there a room without damage?",
        "Did the inspector write it down?",
        "Is the roof mentioned?",
        "Is the text a log?",
        "Are there more than ten rooms?",
        "Does the log name a date?",
        "Is a price mentioned?",
        "Is the writer angry?",
        "Should a glazier be called?",
        "Is the kitchen mentioned?",
        "Are doors broken?",
        "Was the damage repaired?",
    ];
    let predicate =
        |text: &str| Question { instructions: text.to_owned(), kind: QuestionKind::Predicate };
    let choice = |text: &str, labels: [&str; 4]| Question {
        instructions: text.to_owned(),
        kind: QuestionKind::Choice(
            labels.map(|label| Described { label: label.to_owned(), description: None }).to_vec(),
        ),
    };
    let mut all: Vec<Question> = predicates.map(predicate).to_vec();
    all.push(choice("What is broken?", ["doors", "windows", "walls", "nothing"]));
    all.push(choice("Who wrote this?", ["an owner", "an inspector", "a tenant", "a child"]));
    all
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
