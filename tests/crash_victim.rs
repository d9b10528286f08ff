//! The program that crash tests kill. It opens the app, does the work that its arguments name, and
//! prints one line for each thing that has happened.
//!
//! ```text
//! crash_victim HOME answer CONVERSATION MAX_TOKENS QUESTION      asks the question again and again
//! crash_victim HOME once CONVERSATION MAX_TOKENS QUESTION        asks it once
//! crash_victim HOME rows CONVERSATION MAX_TOKENS QUESTION        asks it once, then watches the rows of the prompt cache
//! crash_victim HOME steps CONVERSATION MAX_TOKENS QUESTION       waits for a line on stdin, asks it once and closes the app
//! crash_victim HOME job NUM_ROWS                                 makes a job of so many rows, unless there is one, and watches it
//! crash_victim HOME crash KIND                                   does work of this kind again and again, and aborts once the crash record names it
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
use cairn_app::completion::{self, PromptInput, Role};
use cairn_app::wire::{
    self, AnswerSegment, Command, CompareColumn, ContextOf, DocumentKind, DocumentReading,
    DocumentsOf, Event, Failure, JobQuestion, JobQuestionKind, JobSource, JobState, JobTexts,
    Message, MessageStatus, NewDocument, Reply, TextFormat,
};
use cairn_app::{App, DataFolder, Options};
use cairn_store::Store;

/// The model of the data folder.
const MODEL: &str = "tiny-chat";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let data_folder =
        DataFolder::new(arguments.first().context("the first argument is the data folder")?);
    let options = Options::new(data_folder.clone());
    match arguments[1..] {
        ["own"] => own(options).await,
        ["job", num_rows] => {
            let texts = (0..num_rows.parse()?).map(|index| format!("text {index}")).collect();
            watch_job(App::open(options).await?, texts).await
        }
        ["crash", kind] => crash(options, kind).await,
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
            "the second argument is answer, once, rows or steps, with a conversation, a number and a question after it, job with a number, crash with a kind of step, or own"
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

/// Makes the job of this folder if there is none, or continues it if it is paused because its
/// process was killed before. Prints each change of it until it is done.
async fn watch_job(app: Arc<App>, texts: Vec<String>) -> anyhow::Result<()> {
    let victim = Victim { app: app.clone(), conversation: String::new() };
    let mut events = app.subscribe();
    // As a person does after several kills.
    victim.call(Command::EndQuietStart).await?;
    let Reply::Jobs { jobs } = victim.call(Command::ListJobs).await? else { bail!("no list") };
    if let [job] = &jobs[..]
        && job.state == JobState::Paused
    {
        victim.call(Command::ContinueJob { id: job.id.clone() }).await?;
    }
    if jobs.is_empty() {
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

/// Repeats the work until the crash record names a step of this kind: a step may be over before the
/// record has been read.
async fn crash(options: Options, kind: &str) -> anyhow::Result<()> {
    let record = options.data_folder.running();
    let app = App::open(options).await?;
    let mut victim = Victim { conversation: "new".to_owned(), app };
    victim.prepare(64).await?;
    let named = format!("\"{kind}\"");
    std::thread::spawn(move || {
        while !std::fs::read_to_string(&record).is_ok_and(|record| record.contains(&named)) {
            std::thread::yield_now();
        }
        std::process::abort();
    });
    if kind == "job" {
        // One window, which takes far longer than seeing it: the next process begins with the same rows.
        let texts = (0..100).map(|index| format!("{index} {}", "granite ".repeat(500)));
        return watch_job(victim.app, texts.collect()).await;
    }
    loop {
        victim.work(kind).await?;
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

    /// Does work in which a step of this kind is in flight.
    async fn work(&self, kind: &str) -> anyhow::Result<()> {
        match kind {
            "loading" => {
                self.call(Command::LoadModel { name: MODEL.to_owned() }).await?;
                self.call(Command::UnloadModel).await?;
            }
            "answering" => self.answer("Tell me about stones.").await?,
            "comparing" => self.compare().await?,
            "program" => {
                let (role, content) = (Role::User, "Tell me about stones.".to_owned());
                let messages = vec![completion::Message { role, content, token_ids: None }];
                let request = self.app.completion(Some(MODEL), PromptInput::Messages(messages));
                let request = request.await.map_err(|Failure { message, .. }| anyhow!(message))?;
                let mut answer = self.app.complete(request);
                while answer.recv().await.is_some() {}
            }
            "reading_ahead" => self.read_ahead().await?,
            "counting" => {
                self.call(Command::LoadModel { name: MODEL.to_owned() }).await?;
                let of = ContextOf::Conversation { id: self.conversation.clone() };
                self.call(Command::GetContext { of }).await?;
            }
            _ => bail!("there is no work in which {kind} is a step"),
        }
        Ok(())
    }

    async fn compare(&self) -> anyhow::Result<()> {
        let mut events = self.app.subscribe();
        let column = |seed| CompareColumn { seed: Some(seed), ..CompareColumn::default() };
        let compare = Command::Compare {
            conversation_id: self.conversation.clone(),
            message_id: None,
            text: Some("Tell me about stones.".to_owned()),
            columns: vec![column(1), column(2)],
        };
        self.call(compare).await?;
        let mut num_ended = 0;
        while num_ended < 2 {
            let message = match events.recv().await? {
                Event::Message { message } => Some(message),
                Event::Beside { event } => match *event {
                    Event::Message { message } => Some(message),
                    _ => None,
                },
                _ => None,
            };
            let is_ended = |message: &Message| {
                message.role == wire::Role::Assistant && message.status != MessageStatus::Streaming
            };
            num_ended += usize::from(message.as_ref().is_some_and(is_ended));
        }
        Ok(())
    }

    /// Attaches a document to a new conversation, and waits until it is read.
    async fn read_ahead(&self) -> anyhow::Result<()> {
        let Reply::Conversation { conversation, .. } = self.call(Command::NewConversation).await?
        else {
            bail!("no conversation")
        };
        let mut events = self.app.subscribe();
        let document = NewDocument {
            name: "stones.txt".to_owned(),
            kind: DocumentKind::Text,
            text: format!("{} {}", conversation.id, "granite ".repeat(100)),
        };
        let of = DocumentsOf::conversation(&conversation.id);
        self.call(Command::AttachDocuments { of, documents: vec![document] }).await?;
        loop {
            if let Event::DocumentsReading { reading, .. } = events.recv().await?
                && !matches!(reading, DocumentReading::Waiting | DocumentReading::Reading { .. })
            {
                return Ok(());
            }
        }
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
