//! The program that crash tests kill. It opens the app, does the work that its arguments name, and
//! prints one line for each thing that has happened.
//!
//! ```text
//! crash_victim HOME answer CONVERSATION MAX_TOKENS QUESTION      asks the question again and again
//! crash_victim HOME once CONVERSATION MAX_TOKENS QUESTION        asks it once
//! crash_victim HOME rows CONVERSATION MAX_TOKENS QUESTION        asks it once, then watches the rows of the prompt cache
//! crash_victim HOME steps CONVERSATION MAX_TOKENS QUESTION       waits for a line on stdin, asks it once and closes the app
//! crash_victim HOME job NUM_ROWS                                 makes a job of so many rows, unless there is one, and watches it
//! crash_victim HOME own                                          says whether it owns the folder, and holds it until stdin ends
//! ```
//! A line is a JSON array of texts: `["conversation", id]`, `["sent", question id, question, answer
//! id]` (both rows are saved), `["delta", answer id, text]`, `["complete", answer id, text]` (the
//! answer is saved), `["rows", number of chunks that have a row]`, `["job", number
//! of rows that are answered, state]`, `["owner"]`, `["refused",
//! sentence]`. CONVERSATION is an id, or `new` for a new one.

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use cairn_app::wire::{
    AnswerSegment, Command, Event, Failure, JobQuestion, JobQuestionKind, JobSource, JobTexts,
    MessageStatus, Reply, TextFormat,
};
use cairn_app::{App, DataFolder, Options};
use cairn_store::Store;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let data_folder =
        DataFolder::new(arguments.first().context("the first argument is the data folder")?);
    let options = Options::new(data_folder.clone());
    match arguments[1..] {
        ["own"] => own(options).await,
        ["job", num_rows] => watch_job(options, num_rows.parse()?).await,
        [work @ ("answer" | "once" | "rows" | "steps"), conversation, max_tokens, question] => {
            let app = App::open(options).await?;
            let mut victim = Victim { conversation: conversation.to_owned(), app };
            victim.prepare(max_tokens.parse()?).await?;
            if work == "steps" {
                tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
                    .await??;
            }
            loop {
                victim.answer(question).await?;
                match work {
                    "steps" => {
                        victim.app.close().await;
                        return Ok(());
                    }
                    "once" => std::future::pending().await,
                    "rows" => victim.watch_rows(&data_folder).await?,
                    _ => {}
                }
            }
        }
        _ => bail!(
            "the second argument is answer, once, rows or steps, with a conversation, a number and a question after it, job with a number, or own"
        ),
    }
}

async fn own(options: Options) -> anyhow::Result<()> {
    match App::open(options).await {
        Ok(app) => {
            print(&["owner"]);
            tokio::task::spawn_blocking(|| {
                std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
            })
            .await??;
            app.close().await;
        }
        Err(error) => print(&["refused", &error.to_string()]),
    }
    Ok(())
}

/// Makes the job of this folder if there is none, and prints each change of it until it is done.
async fn watch_job(options: Options, num_rows: usize) -> anyhow::Result<()> {
    let app = App::open(options).await?;
    let victim = Victim { app: app.clone(), conversation: String::new() };
    let mut events = app.subscribe();
    let Reply::Jobs { jobs } = victim.call(Command::ListJobs).await? else { bail!("no list") };
    if jobs.is_empty() {
        let texts: Vec<String> = (0..num_rows).map(|index| format!("text {index}")).collect();
        let create = Command::CreateJob {
            name: "Stones".to_owned(),
            model: None,
            question: JobQuestion {
                instructions: "Is it a stone?".to_owned(),
                kind: JobQuestionKind::Predicate,
                options: Vec::new(),
            },
            source: JobSource::Written(JobTexts {
                format: TextFormat::Lines,
                content: texts.join("\n"),
                column: None,
            }),
        };
        victim.call(create).await?;
    }
    loop {
        if let Event::Job { job } = events.recv().await? {
            print(&["job", &job.num_answered.to_string(), &format!("{:?}", job.state)]);
        }
    }
}

struct Victim {
    app: Arc<App>,
    conversation: String,
}

impl Victim {
    /// Sets greedy answers of `max_tokens` tokens, and makes the conversation if it is new.
    async fn prepare(&mut self, max_tokens: u32) -> anyhow::Result<()> {
        self.call(Command::set_for_all("temperature", 0.0)).await?;
        self.call(Command::set_for_all("holds_loops", false)).await?;
        self.call(Command::set_for_all("max_tokens", max_tokens)).await?;
        self.call(Command::set_for_all("cache_budget_bytes", 1_u64 << 30)).await?;
        if self.conversation == "new" {
            let Reply::Conversation { conversation, .. } =
                self.call(Command::NewConversation).await?
            else {
                bail!("no conversation")
            };
            self.conversation = conversation.id;
        }
        print(&["conversation", &self.conversation]);
        Ok(())
    }

    async fn answer(&self, question: &str) -> anyhow::Result<()> {
        let mut events = self.app.subscribe();
        let send = Command::SendMessage {
            conversation_id: self.conversation.clone(),
            text: question.to_owned(),
        };
        let Reply::Sent { messages, .. } = self.call(send).await? else {
            bail!("nothing was sent")
        };
        let [question, answer] = &messages[..] else { bail!("{messages:?}") };
        print(&["sent", &question.id, &question.text, &answer.id]);
        loop {
            match events.recv().await? {
                Event::Segment { message_id, segment: AnswerSegment::Text { text }, .. }
                | Event::Delta { message_id, text, .. }
                    if message_id == answer.id =>
                {
                    print(&["delta", &message_id, &text])
                }
                Event::Message { message }
                    if message.id == answer.id && message.status != MessageStatus::Streaming =>
                {
                    ensure!(message.status == MessageStatus::Complete, "{message:?}");
                    print(&["complete", &message.id, &message.text]);
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// Prints the number of chunk rows whenever it changes, until the process is killed.
    async fn watch_rows(&self, data_folder: &DataFolder) -> anyhow::Result<()> {
        let store = Store::open(&data_folder.database()).await?;
        let mut printed = None;
        loop {
            let count = store.chunks().await?.len();
            if printed.replace(count) != Some(count) {
                print(&["rows", &count.to_string()]);
            }
            tokio::task::yield_now().await;
        }
    }

    async fn call(&self, command: Command) -> anyhow::Result<Reply> {
        self.app.call(command).await.map_err(|Failure { message, .. }| anyhow!(message))
    }
}

/// Prints a line and flushes it, so that a test sees it at once.
fn print(words: &[&str]) {
    let line = format!("{}\n", serde_json::Value::from(words));
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).expect("stdout is read");
}
