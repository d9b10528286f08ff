//! Documents: attached, read ahead, continued from, kept by versions and files, and refused.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    AttachedDocuments, ChatContext, ChatFileFormat, ChatOutlook, Command, ContextOf, Document,
    DocumentKind, DocumentReading, DocumentsOf, EngineState, Event, FailureCode, Message,
    MessageStats, MessageStatus, NewDocument, Reply, SettingTarget,
};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, add_model, answered, check_failure, choose_model, ended, home_with_model, messages,
    new_conversation, next, open, open_greedy, overview, save_as, send, start_from,
};

fn document(name: &str, text: &str) -> NewDocument {
    NewDocument { name: name.to_owned(), kind: DocumentKind::Text, text: text.to_owned() }
}

/// A text of about this many lines.
fn long(lines: usize) -> String {
    (0..lines).map(|line| format!("Line {line} of a cairn.\n")).collect()
}

async fn attach(app: &Arc<App>, id: &str, documents: Vec<NewDocument>) -> AttachedDocuments {
    let attach = Command::AttachDocuments { of: DocumentsOf::conversation(id), documents };
    draft_of(app.call(attach).await.unwrap())
}

async fn draft(app: &Arc<App>, id: &str) -> AttachedDocuments {
    draft_of(app.call(Command::GetDocuments { of: DocumentsOf::conversation(id) }).await.unwrap())
}

fn draft_of(reply: Reply) -> AttachedDocuments {
    match reply {
        Reply::Documents { attached } => attached,
        other => panic!("{other:?}"),
    }
}

/// How the reading of a draft ends.
async fn read(events: &mut Receiver<Event>) -> DocumentReading {
    loop {
        if let Event::DocumentsReading { reading, .. } = next(events).await
            && !matches!(reading, DocumentReading::Waiting | DocumentReading::Reading { .. })
        {
            break reading;
        }
    }
}

fn num_read(reading: &DocumentReading) -> u32 {
    match reading {
        DocumentReading::Read { tokens, model, .. } => {
            assert_eq!(model, MODEL);
            *tokens
        }
        other => panic!("{other:?}"),
    }
}

fn names(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|document| document.name.as_str()).collect()
}

fn cached(answer: &Message) -> u32 {
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    answer.stats.as_ref().unwrap().cached_tokens
}

/// Cached tokens: still in memory, restored, shared with others, read ahead.
fn sources(stats: &MessageStats) -> [u32; 4] {
    let from = stats.cached_from.unwrap();
    let all = [from.in_memory, from.restored, from.shared, from.read_ahead];
    assert_eq!(all.iter().sum::<u32>(), stats.cached_tokens, "{stats:?}");
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_no_time_for_reading_ahead() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let mut events = app.subscribe();
    // Long enough to tell how fast the model reads.
    let text = long(120);
    let id = new_conversation(&app).await;
    attach(&app, &id, vec![document("stones.txt", &text)]).await;
    let tokens = num_read(&read(&mut events).await);
    // Read before a restart, and restored for the first question: it was read once.
    app.close().await;
    drop(app);
    let app = open(&home).await;
    let first = answered(&app, &id, "How many?").await.stats.unwrap();
    assert_eq!(first.saved_ms, None, "{first:?}");
    assert!(sources(&first)[3] + 1 >= tokens.min(first.cached_tokens), "{first:?}");

    // Another chat with the same document: the reading finds it there, and its question claims that.
    let mut events = app.subscribe();
    let other = new_conversation(&app).await;
    attach(&app, &other, vec![document("stones.txt", &text)]).await;
    num_read(&read(&mut events).await);
    let shared = answered(&app, &other, "How many?").await.stats.unwrap();
    let [_, _, from_other, ahead] = sources(&shared);
    assert!(from_other + 300 >= tokens && ahead < 300, "{shared:?}");
    assert!(shared.saved_ms > Some(0.0), "{shared:?}");
    let next = answered(&app, &other, "And now?").await.stats.unwrap();
    assert_eq!((next.saved_ms, sources(&next)[0]), (None, next.cached_tokens));

    // A branch shares its beginning, once.
    let answer = messages(&app, &other).await.pop().unwrap();
    let (conversation_id, message_id) = (other.clone(), answer.id);
    let title = "Branch".to_owned();
    let branch = Command::BranchConversation { conversation_id, message_id, title };
    let Reply::Conversation { conversation, .. } = app.call(branch).await.unwrap() else {
        panic!()
    };
    let branched = answered(&app, &conversation.id, "Else?").await.stats.unwrap();
    assert!(branched.saved_ms > Some(0.0) && sources(&branched)[0] == 0, "{branched:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_read_at_once_and_its_question_continues_from_its_end() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let attached = attach(&app, &id, vec![document("stones.txt", &long(40))]).await;
    assert_eq!(names(&attached.documents), ["stones.txt"]);
    let tokens = num_read(&read(&mut events).await);
    let known = draft(&app, &id).await;
    let own = known.documents[0].tokens.unwrap();
    assert!(own > 100 && own < tokens, "{known:?}");
    let DocumentReading::Read { document_tokens, .. } = known.reading else { panic!() };
    assert_eq!(document_tokens, own, "the line says what the chip says");
    let outlook = outlook(&app, &id).await;
    assert_eq!(outlook.cached_tokens, tokens, "the next question finds it");
    let before = context(&app, &id).await;

    let answer = answered(&app, &id, "  How many?").await;
    assert_eq!(cached(&answer), tokens, "{:?}", answer.stats);
    let gauge = context(&app, &id).await;
    assert_eq!((before.document_tokens, gauge.document_tokens), (0, own), "so does the gauge");
    let shown = messages(&app, &id).await;
    assert_eq!(shown[0].documents[0].tokens, Some(own));
    assert_eq!(
        (names(&shown[0].documents), shown[0].text.as_str()),
        (vec!["stones.txt"], "  How many?")
    );
    assert!(draft(&app, &id).await.documents.is_empty());
    let document_id = shown[0].documents[0].id.clone();
    let get = Command::GetDocument { of: DocumentsOf::conversation(&id), document_id };
    match app.call(get).await.unwrap() {
        Reply::DocumentText { text, .. } => assert_eq!(text, long(40)),
        other => panic!("{other:?}"),
    }

    // What was read for this question saves it nothing, nor does a chat that stays in memory.
    let stats = answer.stats.unwrap();
    assert!(stats.prompt_tokens - stats.cached_tokens < 512, "{stats:?}");
    assert_eq!((stats.saved_ms, sources(&stats)), (None, [0, 0, 0, tokens]));
    let again = answered(&app, &id, "Are you sure?").await.stats.unwrap();
    assert_eq!((again.saved_ms, sources(&again)), (None, [again.cached_tokens, 0, 0, 0]));

    // After a restart the next turn continues, and so does another version of the question. The
    // reading tells how much time that saves, though answers read little themselves.
    let before = stats.prompt_tokens;
    app.close().await;
    drop(app);
    let app = open(&home).await;
    let second = answered(&app, &id, "And how high?").await;
    assert!(cached(&second) >= before, "{second:?}");
    let stats = second.stats.unwrap();
    assert_eq!(sources(&stats), [0, stats.cached_tokens, 0, 0]);
    assert!(stats.saved_ms > Some(0.0), "{stats:?}");
    let mut events = app.subscribe();
    let edit = Command::EditMessage {
        conversation_id: id.clone(),
        message_id: shown[0].id.clone(),
        text: "How old?".to_owned(),
        document_ids: None,
    };
    let Reply::Sent { messages: sent, .. } = app.call(edit).await.unwrap() else { panic!() };
    assert_eq!(names(&sent[0].documents), ["stones.txt"]);
    let edited = ended(&mut events, &sent[1].id).await;
    assert!(cached(&edited) >= tokens, "{edited:?}");
    app.close().await;
}

async fn context(app: &Arc<App>, id: &str) -> ChatContext {
    let of = ContextOf::Conversation { id: id.to_owned() };
    match app.call(Command::GetContext { of }).await.unwrap() {
        Reply::Context { context } => context.unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn outlook(app: &Arc<App>, id: &str) -> ChatOutlook {
    match app.call(Command::GetOutlook { id: id.to_owned() }).await.unwrap() {
        Reply::Outlook { outlook } => outlook.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_are_what_documents_add_to_the_prompt() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let prompt_tokens = |answer: Message| answer.stats.unwrap().prompt_tokens;
    let plain = new_conversation(&app).await;
    let without = prompt_tokens(answered(&app, &plain, "Why?").await);
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    let two = vec![document("a.txt", &long(20)), document("b \"2\".md", "Stone.\n")];
    attach(&app, &id, two).await;
    read(&mut events).await;
    let sizes: u32 = draft(&app, &id).await.documents.iter().filter_map(|row| row.tokens).sum();
    let with = prompt_tokens(answered(&app, &id, "Why?").await);
    assert_eq!(with - without, sizes);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_documents_again_for_another_model() {
    let home = home_with_model();
    add_model(&home, "sibling", "config.json", "10000.0", "20000.0");
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    choose_model(&app, &id, Some(MODEL)).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(20))]).await;
    num_read(&read(&mut events).await);
    answered(&app, &id, "Why?").await;
    let counted = async |model: &str| {
        let documents = messages(&app, &id).await[0].documents.clone();
        assert_eq!(documents[0].counted_by.as_deref(), Some(model));
        documents[0].tokens.unwrap()
    };
    let first = counted(MODEL).await;
    assert_eq!(context(&app, &id).await.document_tokens, first);
    choose_model(&app, &id, Some("sibling")).await;
    app.call(Command::LoadModel { name: "sibling".to_owned() }).await.unwrap();
    let mut events = app.subscribe();
    let gauge = context(&app, &id).await;
    assert_eq!(gauge.model, "sibling");
    assert_eq!(gauge.document_tokens, counted("sibling").await);
    // The window is told, so that the chip follows.
    loop {
        if let Event::Message { message } = next(&mut events).await
            && let [document] = &message.documents[..]
        {
            assert_eq!(document.tokens, Some(gauge.document_tokens));
            break;
        }
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_saved_context_takes_back_what_is_read() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(20))]).await;
    num_read(&read(&mut events).await);
    app.call(Command::PurgeConversation { id: id.clone() }).await.unwrap();
    assert_eq!(read(&mut events).await, DocumentReading::Unread);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_question_loses_a_document_and_gets_another() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    attach(&app, &id, vec![document("a.txt", &long(20)), document("b.txt", &long(10))]).await;
    let first = answered(&app, &id, "How many?").await;
    let prompt_tokens = |answer: &Message| answer.stats.as_ref().unwrap().prompt_tokens;
    let question = messages(&app, &id).await[0].clone();
    let edit = |document_ids: Vec<String>| Command::EditMessage {
        conversation_id: id.clone(),
        message_id: question.id.clone(),
        text: "How many?".to_owned(),
        document_ids: Some(document_ids),
    };
    check_failure(&app, edit(vec!["gone".to_owned()]), FailureCode::NotFound, "document").await;
    let many = (0..101).map(|number| number.to_string()).collect();
    check_failure(&app, edit(many), FailureCode::Invalid, "100 documents at most").await;

    let without = async |document_ids| {
        let mut events = app.subscribe();
        let sent = match app.call(edit(document_ids)).await.unwrap() {
            Reply::Sent { messages, .. } => messages,
            other => panic!("{other:?}"),
        };
        let names = names(&sent[0].documents).into_iter().map(str::to_owned).collect::<Vec<_>>();
        (names, ended(&mut events, &sent[1].id).await)
    };
    let kept = question.documents[1].id.clone();
    let (names_now, second) = without(vec![kept.clone()]).await;
    assert_eq!(names_now, ["b.txt"]);
    assert!(prompt_tokens(&second) < prompt_tokens(&first), "{second:?}");

    // What is added comes from the draft, whose other documents stay there.
    let more = vec![document("c.txt", &long(5)), document("later.txt", "Stone.")];
    let added = attach(&app, &id, more).await.documents[0].id.clone();
    let (names_now, third) = without(vec![kept, added]).await;
    assert_eq!(names_now, ["b.txt", "c.txt"]);
    assert!(prompt_tokens(&third) > prompt_tokens(&second), "{third:?}");
    assert_eq!(names(&draft(&app, &id).await.documents), ["later.txt"]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_was_read_before_a_restart_is_known_to_be_read() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("stones.txt", &long(40))]).await;
    let tokens = num_read(&read(&mut events).await);
    app.close().await;
    drop(app);

    let app = open(&home).await;
    draft(&app, &id).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let mut events = app.subscribe();
    draft(&app, &id).await;
    assert_eq!(num_read(&read(&mut events).await), tokens);
    assert_eq!(num_read(&draft(&app, &id).await.reading), tokens);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_offered_as_a_starting_point() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("stones.txt", &long(30))]).await;
    let tokens = num_read(&read(&mut events).await);
    // Its chunks are written behind the reply.
    while overview(&app).await.num_chunks == 0 {
        next(&mut events).await;
    }
    let point = save_as(&app, &id, "stones.txt").await;
    assert_eq!(point.tokens, tokens);
    let other = start_from(&app, &point.id).await;
    let first = answered(&app, &other, "How many?").await;
    assert_eq!(cached(&first), tokens);
    // The prompt is that of a chat with the document.
    let own = answered(&app, &id, "How many?").await;
    let prompt_tokens = |answer: &Message| answer.stats.as_ref().unwrap().prompt_tokens;
    assert_eq!((prompt_tokens(&own), own.text), (prompt_tokens(&first), first.text));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_before_the_question_is_read_again() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(20))]).await;
    let one = num_read(&read(&mut events).await);
    let two = attach(&app, &id, vec![document("b.txt", &long(20))]).await;
    assert_eq!(names(&two.documents), ["a.txt", "b.txt"]);
    let both = num_read(&read(&mut events).await);
    assert!(both > one);
    let prompt = Command::SetSystemPrompt { id: id.clone(), system_prompt: "Be brief.".to_owned() };
    app.call(prompt).await.unwrap();
    let with_prompt = num_read(&read(&mut events).await);
    assert!(with_prompt > both);

    let gone = two.documents[0].id.clone();
    let (of, document_id) = (DocumentsOf::conversation(&id), gone.clone());
    app.call(Command::RemoveDocument { of, document_id }).await.unwrap();
    let without = num_read(&read(&mut events).await);
    assert!(without < with_prompt);
    let (of, document_id) = (DocumentsOf::conversation(&id), gone);
    app.call(Command::RestoreDocument { of, document_id }).await.unwrap();
    assert_eq!(num_read(&read(&mut events).await), with_prompt);
    let answer = answered(&app, &id, "Why?").await;
    assert_eq!(cached(&answer), with_prompt);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_chosen_reads_the_documents_in_place_of_another() {
    let home = home_with_model();
    add_model(&home, "sibling", "config.json", "10000.0", "20000.0");
    let app = open_greedy(&home, 8).await;
    let id = new_conversation(&app).await;
    choose_model(&app, &id, Some(MODEL)).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(20))]).await;
    let tokens = num_read(&read(&mut events).await);
    choose_model(&app, &id, Some("sibling")).await;
    let DocumentReading::Read { model, .. } = read(&mut events).await else { panic!() };
    assert_eq!(model, "sibling");
    let answer = answered(&app, &id, "Why?").await;
    assert_eq!((cached(&answer), answer.model.as_deref()), (tokens, Some("sibling")));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_does_not_wait_for_its_documents_and_loses_nothing_of_them() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(120))]).await;
    let [question, answer] = send(&app, &id, "Why?").await;
    assert_eq!(names(&question.documents), ["a.txt"]);
    let answer = ended(&mut events, &answer.id).await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    assert!(draft(&app, &id).await.documents.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_is_stopped_and_begun_again() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("a.txt", &long(60))]).await;
    let of = DocumentsOf::conversation(&id);
    app.call(Command::StopReadingDocuments { of }).await.unwrap();
    assert_eq!(read(&mut events).await, DocumentReading::Unread);
    assert_eq!(draft(&app, &id).await.reading, DocumentReading::Unread);
    app.call(Command::ReadDocuments { of: DocumentsOf::conversation(&id) }).await.unwrap();
    num_read(&read(&mut events).await);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_cannot_be_used_are_refused_with_a_sentence() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let scope = SettingTarget::Model { name: MODEL.to_owned() };
    let key = "context_length".to_owned();
    app.call(Command::SetSetting { scope, key, value: 512.into() }).await.unwrap();
    let id = new_conversation(&app).await;
    let attach_one = |conversation_id: &str, name: &str, text: String| Command::AttachDocuments {
        of: DocumentsOf::conversation(conversation_id),
        documents: vec![document(name, &text)],
    };
    let gone = "01890000-0000-7000-8000-000000000000";
    check_failure(
        &app,
        attach_one(gone, "a", "A".to_owned()),
        FailureCode::NotFound,
        "conversation",
    )
    .await;
    check_failure(
        &app,
        attach_one(&id, "a.txt", " \n".to_owned()),
        FailureCode::Invalid,
        "“a.txt” is empty",
    )
    .await;
    check_failure(&app, attach_one(&id, " ", "A".to_owned()), FailureCode::Invalid, "name").await;
    let large = "x".repeat((16 << 20) + 1);
    check_failure(&app, attach_one(&id, "b.txt", large), FailureCode::Invalid, "“b.txt” has 16 MB")
        .await;
    assert!(draft(&app, &id).await.documents.is_empty());
    let remove = Command::RemoveDocument {
        of: DocumentsOf::conversation(&id),
        document_id: gone.to_owned(),
    };
    check_failure(&app, remove, FailureCode::NotFound, "document").await;

    let mut events = app.subscribe();
    attach(&app, &id, vec![document("long.txt", &long(150))]).await;
    match read(&mut events).await {
        DocumentReading::TooLong { exceeds_by, model } => {
            assert!(exceeds_by > 100 && model == MODEL, "{exceeds_by}");
        }
        other => panic!("{other:?}"),
    }
    // With a longer context they are read without being asked to.
    let scope = SettingTarget::Model { name: MODEL.to_owned() };
    let key = "context_length".to_owned();
    app.call(Command::SetSetting { scope, key, value: Value::Null }).await.unwrap();
    num_read(&read(&mut events).await);
    app.close().await;
}

async fn set(app: &Arc<App>, scope: SettingTarget, key: &str, value: Value) {
    let key = key.to_owned();
    app.call(Command::SetSetting { scope, key, value }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_for_which_a_chat_makes_room_are_not_too_long() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    set(&app, SettingTarget::Model { name: MODEL.to_owned() }, "context_length", 600.into()).await;
    let id = new_conversation(&app).await;
    let chat = || SettingTarget::Chat { id: id.clone() };
    answered(&app, &id, &"What is granite made of? ".repeat(10)).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("fits.txt", &long(22))]).await;
    assert!(matches!(read(&mut events).await, DocumentReading::TooLong { .. }));
    for (choice, is_too_long) in [("forget", false), ("stop", true), ("summarize", false)] {
        set(&app, chat(), "at_overflow", choice.into()).await;
        match (read(&mut events).await, is_too_long) {
            (DocumentReading::TooLong { .. }, true) | (DocumentReading::WithQuestion, false) => {}
            (reading, _) => panic!("{choice}: {reading:?}"),
        }
    }
    // The question is answered, as it was said.
    set(&app, chat(), "at_overflow", "forget".into()).await;
    assert_eq!(read(&mut events).await, DocumentReading::WithQuestion);
    let mut events_of_cut = app.subscribe();
    let answer = answered(&app, &id, "How many?").await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let cut = loop {
        match next(&mut events_of_cut).await {
            Event::Message { message } if message.cut.is_some() => break message,
            _ => {}
        }
    };
    assert_eq!(names(&cut.documents), ["fits.txt"], "the question keeps them in sight");

    // Where no room can be made, the documents are too long after all.
    attach(&app, &id, vec![document("long.txt", &long(60))]).await;
    let reading = read(&mut events).await;
    assert!(matches!(reading, DocumentReading::TooLong { .. }), "{reading:?}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_question_has_nothing_to_make_room_with() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    set(&app, SettingTarget::Model { name: MODEL.to_owned() }, "context_length", 300.into()).await;
    let id = new_conversation(&app).await;
    set(&app, SettingTarget::Chat { id: id.clone() }, "at_overflow", "forget".into()).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("long.txt", &long(60))]).await;
    assert!(matches!(read(&mut events).await, DocumentReading::TooLong { .. }));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_counted_before_a_model_is_loaded() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let scope = SettingTarget::Model { name: MODEL.to_owned() };
    let key = "context_length".to_owned();
    app.call(Command::SetSetting { scope, key, value: 512.into() }).await.unwrap();
    app.call(Command::UnloadModel).await.unwrap();
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("long.txt", &long(200))]).await;
    match read(&mut events).await {
        DocumentReading::TooLong { exceeds_by, model } => {
            assert!(exceeds_by > 100 && model == MODEL, "{exceeds_by}");
        }
        other => panic!("{other:?}"),
    }
    assert!(draft(&app, &id).await.documents[0].tokens.is_some_and(|count| count > 512));
    let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else { panic!() };
    assert_eq!(status.engine, EngineState::Empty);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_chats_read_documents_with_the_question() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = match app.call(Command::NewPrivateConversation).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    };
    let mut events = app.subscribe();
    attach(&app, &id, vec![document("secret.txt", "A secret.")]).await;
    assert_eq!(read(&mut events).await, DocumentReading::WithQuestion);
    let answer = answered(&app, &id, "Which?").await;
    assert_eq!(cached(&answer), 0);
    assert_eq!(overview(&app).await.num_chunks, 0);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_chats_have_their_documents() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let id = new_conversation(&app).await;
    attach(&app, &id, vec![document("a*b.txt", "Stone on stone.")]).await;
    answered(&app, &id, "Why?").await;
    let file = |name: &str| home.path().join(name);
    for (format, name) in [
        (ChatFileFormat::Json, "chats.json"),
        (ChatFileFormat::Markdown, "chats.md"),
        (ChatFileFormat::Openai, "chats.jsonl"),
    ] {
        app.export_chats(std::slice::from_ref(&id), format, &file(name)).await.unwrap();
    }
    let markdown = std::fs::read_to_string(file("chats.md")).unwrap();
    assert!(markdown.contains("*Attached: a\\*b.txt*"), "{markdown}");
    let lines = std::fs::read_to_string(file("chats.jsonl")).unwrap();
    assert!(lines.contains("Stone on stone.") && lines.contains("Why?"), "{lines}");
    app.close().await;
    drop(app);

    let elsewhere = home_with_model();
    let app = open(&elsewhere).await;
    let imported = app.import_chats(&file("chats.json")).await.unwrap();
    let shown = messages(&app, &imported.first_id.unwrap()).await;
    assert_eq!((names(&shown[0].documents), shown[0].text.as_str()), (vec!["a*b.txt"], "Why?"));
    app.close().await;
}
