//! Documents of folders: read once, at the beginning of every chat that is begun in the folder.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{
    AttachedDocuments, ChatContext, ChatOutlook, Command, ContextOf, Document, DocumentKind,
    DocumentReading, DocumentsOf, Event, FailureCode, Message, NewDocument, Reply, SettingTarget,
};
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, answered, check_failure, home_with_model, messages, next, open, open_greedy,
};

fn document(name: &str, text: &str) -> NewDocument {
    NewDocument { name: name.to_owned(), kind: DocumentKind::Text, text: text.to_owned() }
}

/// A text of about this many lines.
fn long(lines: usize) -> String {
    (0..lines).map(|line| format!("Line {line} of a cairn.\n")).collect()
}

async fn new_folder(app: &Arc<App>) -> String {
    match app.call(Command::CreateFolder { name: "Contracts".to_owned() }).await.unwrap() {
        Reply::Folder { folder } => folder.id,
        other => panic!("{other:?}"),
    }
}

async fn new_chat(app: &Arc<App>, folder_id: &str) -> String {
    let begin = Command::NewConversationIn { folder_id: folder_id.to_owned() };
    match app.call(begin).await.unwrap() {
        Reply::Conversation { conversation, .. } => conversation.id,
        other => panic!("{other:?}"),
    }
}

async fn call(app: &Arc<App>, command: Command) -> AttachedDocuments {
    match app.call(command).await.unwrap() {
        Reply::Documents { attached } => attached,
        other => panic!("{other:?}"),
    }
}

async fn attach(app: &Arc<App>, folder_id: &str, name: &str, lines: usize) -> AttachedDocuments {
    let documents = vec![document(name, &long(lines))];
    call(app, Command::AttachDocuments { of: DocumentsOf::folder(folder_id), documents }).await
}

async fn of_folder(app: &Arc<App>, id: &str) -> AttachedDocuments {
    call(app, Command::GetDocuments { of: DocumentsOf::folder(id) }).await
}

async fn beginning(app: &Arc<App>, id: &str) -> Vec<String> {
    let attached = call(app, Command::GetDocuments { of: DocumentsOf::conversation(id) }).await;
    names(&attached.beginning)
}

fn names(documents: &[Document]) -> Vec<String> {
    documents.iter().map(|document| document.name.clone()).collect()
}

/// How many tokens the reading of a folder has read when it ends.
async fn read(events: &mut Receiver<Event>, folder_id: &str) -> u32 {
    loop {
        match next(events).await {
            Event::DocumentsReading { of, reading } if of == DocumentsOf::folder(folder_id) => {
                match reading {
                    DocumentReading::Waiting | DocumentReading::Reading { .. } => {}
                    DocumentReading::Read { tokens, model, .. } => {
                        assert_eq!(model, MODEL);
                        break tokens;
                    }
                    other => panic!("{other:?}"),
                }
            }
            _ => {}
        }
    }
}

async fn outlook(app: &Arc<App>, id: &str) -> ChatOutlook {
    match app.call(Command::GetOutlook { id: id.to_owned() }).await.unwrap() {
        Reply::Outlook { outlook } => outlook.unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn context(app: &Arc<App>, id: &str) -> ChatContext {
    let get = Command::GetContext { of: ContextOf::Conversation { id: id.to_owned() } };
    match app.call(get).await.unwrap() {
        Reply::Context { context } => context.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// How many of an answer's prompt tokens were saved, and how many were not.
fn cached_and_read(answer: &Message) -> (u32, u32) {
    let stats = answer.stats.as_ref().unwrap_or_else(|| panic!("{:?}", answer.error));
    (stats.cached_tokens, stats.prompt_tokens - stats.cached_tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_chat_of_a_folder_continues_from_the_end_of_its_documents() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let folder = new_folder(&app).await;
    let mut events = app.subscribe();
    let attached = attach(&app, &folder, "lease.txt", 40).await;
    assert_eq!(names(&attached.documents), ["lease.txt"]);
    let tokens = read(&mut events, &folder).await;
    assert!(of_folder(&app, &folder).await.documents[0].tokens.unwrap() < tokens);

    let (one, two) = (new_chat(&app, &folder).await, new_chat(&app, &folder).await);
    for id in [&one, &two] {
        assert_eq!(beginning(&app, id).await, ["lease.txt"]);
        let outlook = outlook(&app, id).await;
        assert_eq!((outlook.cached_tokens, outlook.miss), (tokens, None));
    }
    let first = answered(&app, &one, "  Who pays?").await;
    assert_eq!(cached_and_read(&first).0, tokens);
    let second = answered(&app, &two, "Until when?").await;
    let (cached, own) = cached_and_read(&second);
    assert_eq!(cached, tokens, "a second chat reads its own tokens only");
    assert!(own < 60, "{own} tokens were read");
    // The question stays as it was asked: the documents are not its own.
    let shown = messages(&app, &one).await;
    assert_eq!((shown[0].text.as_str(), shown[0].documents.len()), ("  Who pays?", 0));

    // Another version of the first question and later ones continue as well.
    let third = answered(&app, &one, "How much?").await;
    assert!(cached_and_read(&third).0 > cached_and_read(&first).0);
    let gauge = context(&app, &one).await;
    assert!(gauge.document_tokens > 100 && gauge.document_tokens <= tokens, "{gauge:?}");
    assert!(gauge.beginning_tokens + gauge.document_tokens < gauge.used_tokens, "{gauge:?}");

    // After a restart it is still known that they are read, and a new chat begins with that.
    app.close().await;
    drop(app);
    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let mut events = app.subscribe();
    of_folder(&app, &folder).await;
    assert_eq!(read(&mut events, &folder).await, tokens);
    let three = new_chat(&app, &folder).await;
    // Its question may begin as another one did.
    assert!(cached_and_read(&answered(&app, &three, "How?").await).0 >= tokens);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_reading_ahead_the_first_chat_reads_for_the_second() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let folder = new_folder(&app).await;
    attach(&app, &folder, "lease.txt", 40).await;
    let stop = Command::StopReadingDocuments { of: DocumentsOf::folder(&folder) };
    app.call(stop).await.unwrap();
    let (one, two) = (new_chat(&app, &folder).await, new_chat(&app, &folder).await);
    let (_, all) = cached_and_read(&answered(&app, &one, "Who?").await);
    let (cached, own) = cached_and_read(&answered(&app, &two, "Why?").await);
    assert!(all > 300 && own < 60 && cached + own == all, "{all}, {cached} and {own}");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_folder_has_later_is_for_chats_that_begin_later() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let folder = new_folder(&app).await;
    let mut events = app.subscribe();
    attach(&app, &folder, "a.txt", 20).await;
    let one = read(&mut events, &folder).await;
    let begun = new_chat(&app, &folder).await;
    answered(&app, &begun, "Why?").await;
    let new = new_chat(&app, &folder).await;

    let both = attach(&app, &folder, "b.txt", 20).await;
    let two = read(&mut events, &folder).await;
    assert!(two > one);
    assert_eq!(beginning(&app, &begun).await, ["a.txt"]);
    assert_eq!(beginning(&app, &new).await, ["a.txt", "b.txt"]);
    assert_eq!(cached_and_read(&answered(&app, &new, "Why?").await).0, two);
    let again = answered(&app, &begun, "How?").await;
    assert!(again.stats.as_ref().unwrap().miss.is_none(), "{:?}", again.stats);

    // A system prompt stands before them, so they are read again.
    let change = Command::ChangeFolder {
        id: folder.clone(),
        name: "Contracts".to_owned(),
        system_prompt: "Be brief.".to_owned(),
        model: None,
    };
    app.call(change).await.unwrap();
    assert!(read(&mut events, &folder).await > two);

    // What is removed comes back, and stays readable in the chat that has it.
    let document_id = both.documents[0].id.clone();
    let (of, gone) = (DocumentsOf::folder(&folder), document_id.clone());
    let left = call(&app, Command::RemoveDocument { of: of.clone(), document_id: gone }).await;
    assert_eq!(names(&left.documents), ["b.txt"]);
    read(&mut events, &folder).await;
    let get = Command::GetDocument {
        of: DocumentsOf::conversation(&begun),
        document_id: document_id.clone(),
    };
    match app.call(get).await.unwrap() {
        Reply::DocumentText { text, .. } => assert_eq!(text, long(20)),
        other => panic!("{other:?}"),
    }
    let back = call(&app, Command::RestoreDocument { of, document_id }).await;
    assert_eq!(names(&back.documents), ["a.txt", "b.txt"]);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_a_folder_that_are_too_long_or_empty_are_refused_with_a_sentence() {
    let home = home_with_model();
    let app = open_greedy(&home, 4).await;
    let scope = SettingTarget::Model { name: MODEL.to_owned() };
    let key = "context_length".to_owned();
    app.call(Command::SetSetting { scope, key, value: 256.into() }).await.unwrap();
    let folder = new_folder(&app).await;
    let of = DocumentsOf::folder(&folder);
    let empty = Command::AttachDocuments { of: of.clone(), documents: vec![document("a", " ")] };
    check_failure(&app, empty, FailureCode::Invalid, "“a” is empty").await;
    let nowhere = Command::AttachDocuments {
        of: DocumentsOf::folder("gone"),
        documents: vec![document("a", "A")],
    };
    check_failure(&app, nowhere, FailureCode::NotFound, "folder").await;
    let many = (0..101).map(|_| document("a", "A")).collect();
    let many = Command::AttachDocuments { of: of.clone(), documents: many };
    check_failure(&app, many, FailureCode::Invalid, "A folder can have 100 documents").await;
    let mut events = app.subscribe();
    attach(&app, &folder, "long.txt", 200).await;
    loop {
        if let Event::DocumentsReading { reading, .. } = next(&mut events).await
            && let DocumentReading::TooLong { exceeds_by, model } = reading
        {
            assert!(exceeds_by > 100 && model == MODEL, "{exceeds_by}");
            break;
        }
    }
    app.close().await;
}
