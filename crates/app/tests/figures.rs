//! The monitor's totals equal the engine's work, and the figures of answers and readings, no matter
//! what a person does. In a process of its own, because MLX keeps a thread for every engine that
//! was ever started.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

#[path = "app/kit.rs"]
#[allow(dead_code)] // used by the tests of the app
mod kit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    Command, CompareColumn, DocumentKind, DocumentReading, DocumentsOf, Event, JobQuestion,
    JobQuestionKind, JobSource, JobState, JobTexts, Message, MessageStats, MessageStatus,
    MonitorDay, MonitorRow, NewDocument, Reply, Role, TextFormat,
};
use cairn_engine::WorkDone;
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use kit::{MODEL, PATIENCE, home_with_model, next, open, open_greedy, overview};

/// Steps of a sequence.
const NUM_STEPS: usize = 8;
/// More tokens than anything here reads at once.
const MANY: u64 = 10_000;

/// Numbers that are the same for a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Read, cached and written tokens.
type Figures = [u64; 3];

/// Figures as they are known without asking the engine: exact, or a range if something was stopped.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds {
    least: Figures,
    most: Figures,
}

impl Bounds {
    fn add(&mut self, least: Figures, most: Figures) {
        for index in 0..3 {
            self.least[index] += least[index];
            self.most[index] += most[index];
        }
    }

    fn check(&self, found: Figures, what: &str) {
        let is_within = (0..3).all(|at| (self.least[at]..=self.most[at]).contains(&found[at]));
        assert!(is_within, "{what}: {found:?} is not within {self:?}");
    }
}

fn figures(row: &MonitorRow) -> Figures {
    [row.read_tokens, row.cached_tokens, row.written_tokens]
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a MonitorRow>) -> Figures {
    rows.into_iter().map(figures).fold([0; 3], |all, own| [0, 1, 2].map(|at| all[at] + own[at]))
}

fn figures_of(work: WorkDone) -> Figures {
    [work.num_read_tokens, work.num_cached_tokens, work.num_written_tokens]
}

/// The app with what was done in it, over all sequences of a test.
struct World {
    home: TempDir,
    app: Arc<App>,
    random: Random,
    /// The work of engines that have ended.
    before: Figures,
    all: Bounds,
    /// Figures by chat, of the sequence that runs.
    chats: BTreeMap<String, Bounds>,
    private: Bounds,
    deleted: BTreeSet<String>,
    private_chats: BTreeSet<String>,
    /// Chats that have had a document attached.
    drafts: BTreeSet<String>,
    log: Vec<String>,
}

impl World {
    async fn new() -> World {
        let home = home_with_model();
        let app = open_greedy(&home, 6).await;
        World {
            home,
            app,
            random: Random(0),
            before: [0; 3],
            all: Bounds::default(),
            chats: BTreeMap::new(),
            private: Bounds::default(),
            deleted: BTreeSet::new(),
            private_chats: BTreeSet::new(),
            drafts: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    async fn call(&self, command: Command) -> Option<Reply> {
        self.app.call(command).await.ok()
    }

    fn count(&mut self, chat: Option<&str>, least: Figures, most: Figures) {
        self.all.add(least, most);
        match chat {
            Some(id) if self.private_chats.contains(id) => self.private.add(least, most),
            Some(id) => self.chats.entry(id.to_owned()).or_default().add(least, most),
            None => {}
        }
    }

    /// Counts an answer by its own figures.
    fn count_answer(&mut self, answer: &Message) {
        let Some(stats) = &answer.stats else { return };
        let read = u64::from(stats.prompt_tokens - stats.cached_tokens);
        let [cached, written] = [stats.cached_tokens, stats.generation_tokens].map(u64::from);
        // Without a first token the prompt was read in part.
        let least_read = if stats.time_to_first_token_ms > 0.0 { read } else { 0 };
        let chat = answer.conversation_id.clone();
        self.count(Some(&chat), [least_read, cached, written], [read, cached, written]);
    }

    /// Counts the work that an answer did after it was continued, on top of its work before.
    fn count_continued(&mut self, before: &MessageStats, answer: &Message) {
        let Some(stats) = &answer.stats else { return };
        let written = u64::from(stats.generation_tokens - before.generation_tokens);
        let prompt = u64::from(before.prompt_tokens + before.generation_tokens) + 1;
        let chat = answer.conversation_id.clone();
        self.count(Some(&chat), [0, 0, written], [prompt, prompt, written]);
    }

    fn chat(&mut self) -> Option<String> {
        let ids: Vec<String> = self
            .chats
            .keys()
            .chain(&self.private_chats)
            .filter(|id| !self.deleted.contains(*id))
            .cloned()
            .collect();
        let index = self.random.below(ids.len().max(1));
        ids.get(index).cloned()
    }

    async fn messages(&self, id: &str) -> Vec<Message> {
        match self.call(Command::GetConversation { id: id.to_owned() }).await {
            Some(Reply::Conversation { messages, .. }) => messages,
            _ => Vec::new(),
        }
    }

    /// One of the chat's answers that have ended.
    async fn answer_of(&mut self, id: &str) -> Option<Message> {
        let mut messages = self.messages(id).await;
        messages.retain(|message| message.role == Role::Assistant && message.stats.is_some());
        let index = self.random.below(messages.len().max(1));
        messages.into_iter().nth(index)
    }

    /// Waits until these answers have ended, and counts them.
    async fn count_ended(&mut self, mut events: Receiver<Event>, ids: &[String]) {
        let mut waiting: BTreeSet<&String> = ids.iter().collect();
        while !waiting.is_empty() {
            let event = match next(&mut events).await {
                Event::Beside { event } => *event,
                event => event,
            };
            if let Event::Message { message } = event
                && message.status != MessageStatus::Streaming
                && waiting.remove(&message.id)
            {
                self.count_answer(&message);
            }
        }
    }

    async fn new_chat(&mut self, is_private: bool) {
        let command =
            if is_private { Command::NewPrivateConversation } else { Command::NewConversation };
        let Some(Reply::Conversation { conversation, .. }) = self.call(command).await else {
            return;
        };
        match is_private {
            true => drop(self.private_chats.insert(conversation.id)),
            false => drop(self.chats.insert(conversation.id, Bounds::default())),
        }
    }

    async fn ask(&mut self, id: &str, stops: bool) {
        let events = self.app.subscribe();
        let text = "stone ".repeat(1 + self.random.below(40));
        let send = Command::SendMessage { conversation_id: id.to_owned(), text };
        let Some(Reply::Sent { messages, .. }) = self.call(send).await else { return };
        if stops {
            for _ in 0..self.random.below(50) {
                tokio::task::yield_now().await;
            }
            self.call(Command::Stop { conversation_id: id.to_owned() }).await;
        }
        let answer = messages[1].id.clone();
        self.count_ended(events, &[answer]).await;
    }

    async fn regenerate(&mut self, id: &str) {
        let Some(answer) = self.answer_of(id).await else { return };
        let events = self.app.subscribe();
        let (conversation_id, message_id) = (id.to_owned(), Some(answer.id));
        let regenerate = Command::Regenerate { conversation_id, message_id, model: None };
        let Some(Reply::Sent { messages, .. }) = self.call(regenerate).await else { return };
        let ids: Vec<String> = messages.into_iter().map(|message| message.id).collect();
        self.count_ended(events, &ids[ids.len() - 1..]).await;
    }

    async fn continue_answer(&mut self, id: &str) {
        let Some(last) = self.messages(id).await.pop() else { return };
        let Some(before) = last.stats else { return };
        let mut events = self.app.subscribe();
        let (conversation_id, message_id) = (id.to_owned(), last.id.clone());
        let continued = Command::ContinueAnswer { conversation_id, message_id };
        if self.call(continued).await.is_none() {
            return;
        }
        loop {
            if let Event::Message { message } = next(&mut events).await
                && message.id == last.id
                && message.status != MessageStatus::Streaming
            {
                return self.count_continued(&before, &message);
            }
        }
    }

    async fn compare(&mut self, id: &str) {
        let events = self.app.subscribe();
        let column = |temperature| CompareColumn {
            model: None,
            temperature: Some(temperature),
            seed: None,
            thinking: None,
        };
        let text = (self.random.below(2) == 0).then(|| "How high is a cairn?".to_owned());
        let columns = vec![column(0.0), column(0.7)];
        let conversation_id = id.to_owned();
        let compare = Command::Compare { conversation_id, message_id: None, text, columns };
        let Some(Reply::Compared { messages, .. }) = self.call(compare).await else { return };
        let ids: Vec<String> = messages.into_iter().map(|message| message.id).collect();
        self.count_ended(events, &ids[ids.len() - 2..]).await;
        let chosen = ids[ids.len() - 1 - self.random.below(2)].clone();
        let conversation_id = id.to_owned();
        self.call(Command::ChooseAnswer { conversation_id, message_id: chosen }).await;
    }

    /// A branch changes no figure.
    async fn branch(&mut self, id: &str) {
        let Some(answer) = self.answer_of(id).await else { return };
        let before = self.settled().await;
        let (conversation_id, message_id) = (id.to_owned(), answer.id);
        let title = "Branch".to_owned();
        let branch = Command::BranchConversation { conversation_id, message_id, title };
        let Some(Reply::Conversation { conversation, .. }) = self.call(branch).await else {
            return;
        };
        let after = self.settled().await;
        let of = |day: &MonitorDay| {
            let spans: Vec<_> =
                day.spans.iter().map(|span| (span.prompt_tokens, span.cached_tokens)).collect();
            (day.models.clone(), day.chats.clone(), spans, day.time_saved.all_ms)
        };
        assert_eq!(of(&before), of(&after), "a copy is no work");
        match self.private_chats.contains(id) {
            true => drop(self.private_chats.insert(conversation.id)),
            false => drop(self.chats.insert(conversation.id, Bounds::default())),
        }
    }

    /// Attaches a document, and waits until it is read, or stops that.
    async fn read_ahead(&mut self, id: &str, stops: bool) {
        if self.private_chats.contains(id) {
            return;
        }
        let mut events = self.app.subscribe();
        let of = DocumentsOf::conversation(id);
        let lines = 1 + self.random.below(20);
        let text: String =
            (0..lines).map(|line| format!("Line {line} of {}.\n", self.log.len())).collect();
        let documents =
            vec![NewDocument { name: "stones.txt".to_owned(), kind: DocumentKind::Text, text }];
        if self.call(Command::AttachDocuments { of: of.clone(), documents }).await.is_none() {
            return;
        }
        self.drafts.insert(id.to_owned());
        if stops {
            self.call(Command::StopReadingDocuments { of }).await;
            return self.count(Some(id), [0; 3], [MANY, MANY, 0]);
        }
        let mut known = None;
        loop {
            let Event::DocumentsReading { of: read, reading } = next(&mut events).await else {
                continue;
            };
            if read != of {
                continue;
            }
            match reading {
                DocumentReading::Waiting => {}
                DocumentReading::Reading { total_tokens, cached_tokens, .. } => {
                    known = Some((total_tokens, cached_tokens));
                }
                DocumentReading::Read { .. } => {
                    let (total, cached) = known.expect("it says what it reads");
                    let (read, cached) = (u64::from(total - cached), u64::from(cached));
                    return self.count(Some(id), [read, cached, 0], [read, cached, 0]);
                }
                _ => return,
            }
        }
    }

    async fn job(&mut self) {
        let mut events = self.app.subscribe();
        let instructions = "Is it a stone?".to_owned();
        let question =
            JobQuestion { instructions, kind: JobQuestionKind::Predicate, options: Vec::new() };
        let lines = 1 + self.random.below(5);
        let content = (0..lines).map(|line| format!("text {line}\n")).collect();
        let source =
            JobSource::Written(JobTexts { format: TextFormat::Lines, content, column: None });
        let (name, model) = ("Stones".to_owned(), Some(MODEL.to_owned()));
        let create = Command::CreateJob { name, model, question, source };
        let Some(Reply::Job { job }) = self.call(create).await else { return };
        loop {
            if let Event::Job { job: now } = next(&mut events).await
                && now.id == job.id
                && now.state != JobState::Running
            {
                break;
            }
        }
        self.count(None, [lines as u64, 0, 0], [MANY, 0, 0]);
    }

    async fn probabilities(&mut self, id: &str) {
        let Some(answer) = self.answer_of(id).await else { return };
        let read = Command::GetProbabilities {
            conversation_id: id.to_owned(),
            message_id: answer.id,
            read_id: "read".to_owned(),
            loads_model: true,
        };
        self.call(read).await;
        self.count(Some(id), [0; 3], [MANY, MANY, 0]);
    }

    async fn delete(&mut self, id: &str) {
        let ids = vec![id.to_owned()];
        self.call(Command::DeleteConversations { ids: ids.clone() }).await;
        match self.random.below(3) {
            0 => drop(self.call(Command::RestoreConversations { ids }).await),
            _ => drop(self.deleted.insert(id.to_owned())),
        }
    }

    async fn delete_message(&mut self, id: &str) {
        let Some(answer) = self.answer_of(id).await else { return };
        let with_following = self.random.below(2) == 0;
        let (conversation_id, message_id) = (id.to_owned(), answer.id);
        let delete = Command::DeleteMessage { conversation_id, message_id, with_following };
        let Some(Reply::MessagesDeleted { deletion_id, .. }) = self.call(delete).await else {
            return;
        };
        if self.random.below(2) == 0 {
            let conversation_id = id.to_owned();
            self.call(Command::RestoreMessages { conversation_id, deletion_id }).await;
        }
    }

    /// Opens the app again; private chats are gone, with their work.
    async fn reload(&mut self) {
        self.check().await;
        let app = self.app.clone();
        app.close().await;
        let done = figures_of(app.work_done());
        self.before = [0, 1, 2].map(|at| self.before[at] + done[at]);
        self.app = open(&self.home).await;
        drop(app);
        // Only the work in the database is left.
        let day = self.day().await;
        let left = sum(&day.models);
        self.private.check([0, 1, 2].map(|at| self.before[at] - left[at]), "private chats");
        self.before = left;
        let bounds = std::mem::take(&mut self.private);
        for at in 0..3 {
            self.all.least[at] = self.all.least[at].saturating_sub(bounds.most[at]);
            self.all.most[at] -= bounds.least[at];
        }
        self.private_chats.clear();
    }

    async fn day(&self) -> MonitorDay {
        match self.app.call(Command::GetMonitorDay).await.unwrap() {
            Reply::MonitorDay { day } => day,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the engine's work that the database should have.
    fn done(&self) -> Figures {
        let done = figures_of(self.app.work_done());
        [0, 1, 2].map(|at| self.before[at] + done[at])
    }

    /// Returns the day, once all of the work is in it.
    async fn settled(&self) -> MonitorDay {
        let settled = async {
            loop {
                let (before, day) = (self.done(), self.day().await);
                if sum(&day.models) == before && self.done() == before {
                    return day;
                }
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(PATIENCE, settled).await {
            Ok(day) => day,
            Err(_) => {
                let models = sum(&self.day().await.models);
                panic!(
                    "{models:?} in the monitor, {:?} in the engine: {:#?}",
                    self.done(),
                    self.log
                )
            }
        }
    }

    /// Checks that all totals are equal.
    async fn check(&mut self) {
        let day = self.settled().await;
        let log = format!("{:#?}", self.log);
        let models = sum(&day.models);
        self.all.check(models, &log);
        let prompts: u64 = day.spans.iter().map(|span| span.prompt_tokens).sum();
        let cached: u64 = day.spans.iter().map(|span| span.cached_tokens).sum();
        assert_eq!([prompts - cached, cached], [models[0], models[1]], "in spans: {log}");
        self.check_page(&log).await;
        let private = day.private.as_ref().map_or([0; 3], figures);
        self.private.check(private, &log);
        for (id, bounds) in &self.chats {
            let row = day.chats.iter().find(|row| row.conversation_id.as_ref() == Some(id));
            match self.deleted.contains(id) {
                true => assert!(row.is_none(), "a deleted chat is listed: {log}"),
                false => bounds.check(row.map_or([0; 3], figures), &log),
            }
        }
    }

    /// Checks that the page of saved context says the same, also while something is read ahead.
    async fn check_page(&self, log: &str) {
        loop {
            let before = self.app.work_done();
            let page = overview(&self.app).await;
            if self.app.work_done() == before {
                let [read, cached, _] = figures_of(before);
                let found = [page.prompt_tokens, page.cached_tokens];
                assert_eq!(found, [read + cached, cached], "on the page of saved context: {log}");
                return;
            }
        }
    }

    async fn step(&mut self) {
        let (kind, chat) = (self.random.below(24), self.chat());
        self.log.push(format!("{kind} in {chat:?}"));
        let Some(id) = chat else { return self.new_chat(false).await };
        if self.drafts.contains(&id) {
            // If the prompt before documents changes, they are read again, and no answer says so.
            self.count(Some(&id), [0; 3], [MANY, MANY, 0]);
        }
        match kind {
            0 => self.new_chat(false).await,
            1 => self.new_chat(true).await,
            2..=7 => self.ask(&id, false).await,
            8 | 9 => self.ask(&id, true).await,
            10 => self.regenerate(&id).await,
            11 => self.continue_answer(&id).await,
            12 | 13 => self.compare(&id).await,
            14 | 15 => self.branch(&id).await,
            16 | 17 => self.read_ahead(&id, false).await,
            18 => self.read_ahead(&id, true).await,
            19 => self.job().await,
            20 => self.probabilities(&id).await,
            21 => self.delete(&id).await,
            22 => self.delete_message(&id).await,
            _ => self.reload().await,
        }
    }

    async fn run(&mut self, seed: u64) {
        self.random = Random(seed);
        self.chats.clear();
        self.deleted.clear();
        self.drafts.clear();
        self.log.clear();
        for _ in 0..NUM_STEPS {
            self.step().await;
        }
        self.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn monitor_totals_equal_work_done() {
    let mut world = World::new().await;
    for seed in cairn_sweeps::sweep("figures", 40) {
        world.run(seed).await;
    }
    world.app.close().await;
}
