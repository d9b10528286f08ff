//! Nothing stays of conversations that were deleted or private.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, Conversation, Event, FailureCode, MessageStatus, Reply};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, answered, bootstrap, check_failure, chunk_files, database, ended, home_with_model,
    messages, new_conversation, next, open, open_greedy, open_with_one_turn, overview, until,
};

/// Rows and files of the prompt cache.
async fn num_rows_and_files(home: &TempDir) -> (i64, i64, usize) {
    let database = database(home).await;
    let count = async |statement: &'static str| {
        sqlx::query_scalar::<_, i64>(statement).fetch_one(&database).await.unwrap()
    };
    let refs = count("select count(*) from cache_refs").await;
    let chunks = count("select count(*) from chunks").await;
    database.close().await;
    (refs, chunks, chunk_files(home).len())
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_removes_every_row_and_file_of_a_deleted_conversation() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    app.call(Command::DeleteConversations { ids: vec![id.clone()] }).await.unwrap();
    app.call(Command::RestoreConversations { ids: vec![id.clone()] }).await.unwrap();
    app.close().await;
    drop(app);
    assert!(num_rows_and_files(&home).await.0 > 0, "a deletion that was undone changes nothing");
    let app = open(&home).await;
    app.call(Command::DeleteConversations { ids: vec![id] }).await.unwrap();
    app.close().await;
    drop(app);
    assert_eq!(num_rows_and_files(&home).await, (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_conversations_are_deleted_and_restored_by_one_command_and_one_event() {
    let home = home_with_model();
    let app = open(&home).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(new_conversation(&app).await);
    }
    let private = app.call(Command::NewPrivateConversation).await.unwrap();
    let Reply::Conversation { conversation, .. } = private else { panic!("{private:?}") };
    let left = ids.pop().unwrap();
    ids.push(conversation.id.clone());
    let listed = async || {
        let rows = bootstrap(&app).await.0;
        rows.into_iter().map(|row| row.id).collect::<HashSet<_>>()
    };
    let mut events = app.subscribe();
    app.call(Command::DeleteConversations { ids: ids.clone() }).await.unwrap();
    assert_eq!(told_deleted(&mut events).await, ids);
    assert_eq!(listed().await, [left.clone()].into());
    app.call(Command::RestoreConversations { ids: ids.clone() }).await.unwrap();
    let conversations = told_changed(&mut events).await;
    let told: HashSet<String> = conversations.iter().map(|row| row.id.clone()).collect();
    assert_eq!(told, ids.iter().cloned().collect());
    assert!(conversations.iter().any(|row| row.is_private && row.id == conversation.id));
    // A private one is nowhere but in memory, so that none of them is moved or archived.
    let archive = Command::ArchiveConversations { ids: ids.clone(), is_archived: true };
    check_failure(&app, archive, FailureCode::Invalid, "private").await;
    ids.pop();
    app.call(Command::ArchiveConversations { ids: ids.clone(), is_archived: true }).await.unwrap();
    let conversations = told_changed(&mut events).await;
    assert!(conversations.len() == 2 && conversations.iter().all(|row| row.is_archived));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn context_of_a_deleted_conversation_is_hidden_until_it_is_restored() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    // Closing the app saves all of it.
    app.close().await;
    drop(app);
    let app = open(&home).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    let texts = async || {
        let nodes = overview(&app).await.nodes;
        nodes.into_iter().filter_map(|node| node.text).collect::<Vec<_>>()
    };
    let before = texts().await;
    assert!(!before.is_empty());
    app.call(Command::DeleteConversations { ids: vec![id.clone()] }).await.unwrap();
    assert_eq!(texts().await, Vec::<String>::new());
    let hidden = overview(&app).await;
    assert_eq!(hidden.num_hidden_nodes as usize, before.len());
    assert!(hidden.num_chunks > 0, "it still takes room on the disk");
    app.call(Command::RestoreConversations { ids: vec![id] }).await.unwrap();
    assert_eq!(texts().await, before);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_chat_is_deleted_and_restored_beside_one_that_is_not_there() {
    let home = home_with_model();
    let app = open(&home).await;
    let private = new_private_conversation(&app).await;
    let ids = vec!["unknown".to_owned(), private.clone()];
    let mut events = app.subscribe();
    app.call(Command::DeleteConversations { ids: ids.clone() }).await.unwrap();
    assert_eq!(told_deleted(&mut events).await, std::slice::from_ref(&private));
    assert!(bootstrap(&app).await.0.is_empty());
    app.call(Command::RestoreConversations { ids }).await.unwrap();
    let is_told = |event| {
        matches!(event, Event::Conversation { conversation } if conversation.id == private)
            .then_some(())
    };
    until(&mut events, is_told).await;
    let unknown = Command::DeleteConversations { ids: vec!["unknown".to_owned()] };
    check_failure(&app, unknown, FailureCode::NotFound, "").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_of_a_process_that_died_are_completed_at_the_next_start() {
    let home = home_with_model();
    let (app, _) = open_with_one_turn(&home).await;
    app.close().await;
    drop(app);
    let database = database(&home).await;
    let delete = "update conversations set deleted_at_ms = 1, deleted_by_run_id = 'one that died'";
    sqlx::query(delete).execute(&database).await.unwrap();
    database.close().await;
    let app = open(&home).await;
    let mut events = app.subscribe();
    while overview(&app).await.num_chunks > 0 {
        next(&mut events).await;
    }
    app.close().await;
    assert_eq!(num_rows_and_files(&home).await, (0, 0, 0));
}

/// Waits for the next event about deleted chats, and returns their ids.
async fn told_deleted(events: &mut Receiver<Event>) -> Vec<String> {
    let deleted = |event| match event {
        Event::ConversationsDeleted { ids } => Some(ids),
        _ => None,
    };
    until(events, deleted).await
}

/// Waits for the next event about changed rows, and returns them.
async fn told_changed(events: &mut Receiver<Event>) -> Vec<Conversation> {
    let changed = |event| match event {
        Event::Conversations { conversations } => Some(conversations),
        _ => None,
    };
    until(events, changed).await
}

async fn new_private_conversation(app: &Arc<App>) -> String {
    match app.call(Command::NewPrivateConversation).await.unwrap() {
        Reply::Conversation { conversation, .. } if conversation.is_private => conversation.id,
        other => panic!("{other:?}"),
    }
}

/// The files below a folder, except models, that contain any of these byte sequences.
fn files_with(folder: &Path, wanted: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("models") {
                found.extend(files_with(&path, wanted));
            }
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let contains = |wanted: &Vec<u8>| bytes.windows(wanted.len()).any(|part| part == wanted);
        if wanted.iter().any(contains) {
            found.push(path);
        }
    }
    found
}

/// The token ids of the middle of a text, as files store them. They are the same at every position
/// in a prompt.
async fn token_bytes(home: &TempDir, text: &str) -> Vec<u8> {
    let (engine, _events) = cairn_engine::Engine::start(cairn_engine::EngineOptions::default());
    engine.load(MODEL, &home.path().join("models").join(MODEL)).await.unwrap();
    let ids = engine.tokenize(text).await.unwrap();
    engine.shutdown().await;
    let bytes: Vec<u8> = ids[3..ids.len() - 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(bytes.len() > 16, "{ids:?}");
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_conversation_writes_nothing_to_the_disk() {
    const CANARY: &str = "The heron waits beside nine grey boulders";
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    let canary = [CANARY.as_bytes().to_vec(), token_bytes(&home, CANARY).await];

    let id = new_private_conversation(&app).await;
    let system_prompt = format!("{CANARY}, and the system knows");
    app.call(Command::SetSystemPrompt { id: id.clone(), system_prompt }).await.unwrap();
    let mut answers = Vec::new();
    for text in [CANARY, "And then?"] {
        let answer = answered(&app, &id, text).await;
        assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
        answers.push(answer);
    }
    let mut events = app.subscribe();
    let reply = app.call(Command::regenerate(&id)).await.unwrap();
    let Reply::Sent { messages: sent, conversation } = reply else { panic!("{reply:?}") };
    assert!(conversation.is_private && conversation.is_streaming);
    ended(&mut events, &sent[0].id).await;
    assert_eq!(messages(&app, &id).await.len(), 4);
    let listed = bootstrap(&app).await.0;
    assert_eq!(
        listed.iter().map(|row| (&row.id, row.is_private)).collect::<Vec<_>>(),
        [(&id, true)]
    );
    for command in [
        Command::PinConversation { id: id.clone(), is_pinned: true },
        Command::SaveNamedCache { conversation_id: id.clone(), name: "Notes".to_owned() },
    ] {
        check_failure(&app, command, FailureCode::Invalid, "private").await;
    }
    app.call(Command::RenameConversation { id: id.clone(), title: CANARY.to_owned() })
        .await
        .unwrap();
    app.call(Command::DeleteConversations { ids: vec![id.clone()] }).await.unwrap();
    app.call(Command::RestoreConversations { ids: vec![id.clone()] }).await.unwrap();
    assert_eq!(files_with(home.path(), &canary), Vec::<PathBuf>::new());
    assert_eq!(overview(&app).await.num_chunks, 0);
    app.close().await;
    drop(app);
    assert_eq!(files_with(home.path(), &canary), Vec::<PathBuf>::new());

    // The search finds the same text in the files of a conversation that is not private.
    let app = open(&home).await;
    assert!(bootstrap(&app).await.0.is_empty());
    let id = new_conversation(&app).await;
    answered(&app, &id, CANARY).await;
    app.close().await;
    for part in &canary {
        assert!(!files_with(home.path(), std::slice::from_ref(part)).is_empty());
    }

    // Of one that was deleted nothing stays either, not even in pages that the database has freed.
    drop(app);
    let app = open(&home).await;
    app.call(Command::DeleteConversations { ids: vec![id] }).await.unwrap();
    app.close().await;
    assert_eq!(files_with(home.path(), &canary), Vec::<PathBuf>::new());
}
