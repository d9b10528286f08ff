//! A crash never repeats by itself. After one, everything continues as before, and a notice says
//! what happened; after two, the model is set aside and the job is paused until a person says
//! otherwise.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use cairn_app::App;
use cairn_app::completion::{Message, PromptInput, Role};
use cairn_app::wire::{
    Command, Event, Failure, FailureCode, Job, JobState, Model, NoticeKind, Reply, UnexpectedQuit,
};

use crate::acknowledged::{call, next_turn};
use crate::home::TestHome;
use crate::victim::{Line, Victim};

const MODEL: &str = "tiny-chat";
/// A victim may abort only after the step has ended, so several are tried.
const MAX_ATTEMPTS: usize = 20;

#[test]
fn a_crash_while_loading_sets_model_aside() {
    check_model("loading", "while loading tiny-chat", "");
}

#[test]
fn a_crash_while_answering_sets_model_aside() {
    check_model("answering", "while answering with tiny-chat", "; your chat is saved");
}

#[test]
fn a_crash_in_comparison_sets_model_aside() {
    let during = "while answering a comparison with tiny-chat";
    check_model("comparing", during, "; your chat is saved");
}

#[test]
fn a_crash_for_program_sets_model_aside() {
    check_model("program", "while answering a program with tiny-chat", "");
}

#[test]
fn a_crash_while_reading_ahead_sets_model_aside() {
    check_model("reading_ahead", "while reading documents with tiny-chat", "");
}

#[test]
fn a_crash_while_counting_sets_model_aside() {
    check_model("counting", "while counting a chat’s tokens with tiny-chat", "");
}

/// Two processes die with this step in flight.
fn check_model(kind: &str, during: &str, saved: &str) {
    let home = TestHome::new();
    crash(&home, kind);
    home.run(async {
        let app = home.open().await;
        let (text, quit) = told(&app).await;
        assert_eq!(text, format!("Cairn quit unexpectedly {during}{saved}."));
        assert_eq!((quit.model.as_deref(), quit.is_set_aside), (Some(MODEL), false));
        assert!(!model(&app).await.is_set_aside && model(&app).await.is_proposed);
        assert_eq!(notices(&app).await.len(), 0, "it is said once");
        app.close().await;
    });

    crash(&home, kind);
    home.run(async {
        let app = home.open().await;
        let (text, quit) = told(&app).await;
        let then = "so tiny-chat isn’t used until you say so";
        assert_eq!(text, format!("Cairn quit unexpectedly again {during}, {then}."));
        assert!(quit.is_set_aside);
        check_set_aside(&app).await;
        app.close().await;

        // A start that went well but did not use the model changes nothing.
        let app = home.open().await;
        assert_eq!(notices(&app).await.len(), 0);
        check_set_aside(&app).await;
        call(&app, Command::UseModelAnyway { name: MODEL.to_owned() }).await;
        let found = model(&app).await;
        assert!(!found.is_set_aside && found.is_proposed);
        let id = new_conversation(&app).await;
        next_turn(&app, &id).await;
        app.close().await;
    });
}

#[test]
fn a_crash_in_job_pauses_it_until_continued() {
    let home = TestHome::new();
    crash(&home, "job");
    // The job continues by itself, and the process dies in the same rows.
    crash(&home, "job");
    home.run(async {
        let app = home.open().await;
        let (text, quit) = told(&app).await;
        let during = "while answering batch questions “Stones” with tiny-chat";
        assert_eq!(text, format!("Cairn quit unexpectedly again {during}, so they are paused."));
        let found = job(&app).await;
        assert_eq!((found.state, found.is_set_aside), (JobState::Paused, true));
        let reason = "Cairn quit unexpectedly twice while it ran.";
        assert_eq!((found.reason.as_deref(), found.num_answered), (Some(reason), 0));
        assert_eq!(quit.job_id.as_deref(), Some(found.id.as_str()));
        check_set_aside(&app).await;
        app.close().await;

        let app = home.open().await;
        assert_eq!(job(&app).await.state, JobState::Paused);
        call(&app, Command::ContinueJob { id: found.id }).await;
        let found = job(&app).await;
        assert_eq!((found.state, found.is_set_aside), (JobState::Running, false));
        assert!(!model(&app).await.is_set_aside, "it is wanted with the job");
        app.close().await;

        let app = home.open().await;
        assert_eq!(job(&app).await.state, JobState::Running);
        app.close().await;
    });
}

#[test]
fn a_run_that_used_model_and_closed_starts_count_anew() {
    let home = TestHome::new();
    for _ in 0..2 {
        crash(&home, "answering");
        home.run(async {
            let app = home.open().await;
            let (_, quit) = told(&app).await;
            assert!(!quit.is_set_aside);
            let id = new_conversation(&app).await;
            next_turn(&app, &id).await;
            app.close().await;
        });
    }
}

/// Lets processes work until one dies with a step of this kind in flight.
fn crash(home: &TestHome, kind: &str) {
    let record = home.data_folder().running();
    for _ in 0..MAX_ATTEMPTS {
        let mut victim = Victim::start_with(home.path(), &["crash", kind]);
        while let Some(line) = victim.next() {
            assert!(!matches!(line, Line::Job { num_answered: 1.., .. }), "a window is saved");
        }
        assert_eq!(victim.child.wait().unwrap().signal(), Some(6), "it aborts");
        if fs::read_to_string(&record).unwrap().contains(&format!("\"{kind}\"")) {
            return;
        }
        // It died just after the step. Without the record it counts as closed.
        fs::remove_file(&record).unwrap();
    }
    panic!("no process dies while {kind}");
}

/// Returns the notice for the first window.
async fn told(app: &Arc<App>) -> (String, UnexpectedQuit) {
    let mut notices = notices(app).await;
    assert_eq!(notices.len(), 1, "{notices:?}");
    match notices.remove(0) {
        (text, Some(NoticeKind::QuitUnexpectedly { quit })) => (text, quit),
        other => panic!("{other:?}"),
    }
}

/// Returns the notices that a window gets when it asks for the state. They are sent before the
/// reply.
async fn notices(app: &Arc<App>) -> Vec<(String, Option<NoticeKind>)> {
    let mut events = app.subscribe();
    call(app, Command::Bootstrap).await;
    let mut notices = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::Notice { text, kind, .. } = event {
            notices.push((text, kind.map(|kind| *kind)));
        }
    }
    notices
}

/// Checks that a model that is set aside is not used, no matter who asks.
async fn check_set_aside(app: &Arc<App>) {
    let found = model(app).await;
    assert!(found.is_set_aside && !found.is_proposed, "{found:?}");
    let id = new_conversation(app).await;
    let asks = Command::SendMessage { conversation_id: id.clone(), text: "Why?".to_owned() };
    let choose = Command::ChooseModel { id: id.clone(), model: Some(MODEL.to_owned()) };
    let load = Command::LoadModel { name: MODEL.to_owned() };
    refused(app.call(asks.clone()).await.map(drop));
    refused(app.call(load).await.map(drop));
    call(app, choose).await;
    refused(app.call(asks).await.map(drop));
    let Reply::Conversation { messages, .. } = call(app, Command::GetConversation { id }).await
    else {
        panic!("no conversation")
    };
    assert!(messages.is_empty(), "nothing is saved of what is refused: {messages:?}");
    for named in [Some(MODEL), None] {
        let message = Message { role: Role::User, content: "Why?".to_owned(), token_ids: None };
        let asked = app.completion(named, PromptInput::Messages(vec![message]));
        refused(asked.await.map(drop));
    }
}

fn refused(reply: Result<(), Failure>) {
    let failure = reply.expect_err("it is set aside");
    let expected = "tiny-chat is set aside because Cairn quit unexpectedly twice while using it.";
    assert_eq!((failure.code, failure.message.as_str()), (FailureCode::SetAside, expected));
}

async fn new_conversation(app: &Arc<App>) -> String {
    match call(app, Command::NewConversation).await {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

async fn model(app: &Arc<App>) -> Model {
    match call(app, Command::ListModels).await {
        Reply::Models { mut models } if models.len() == 1 => models.remove(0),
        other => panic!("{other:?}"),
    }
}

async fn job(app: &Arc<App>) -> Job {
    match call(app, Command::ListJobs).await {
        Reply::Jobs { mut jobs } if jobs.len() == 1 => jobs.remove(0),
        other => panic!("{other:?}"),
    }
}
