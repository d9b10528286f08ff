//! Search over all chats, folders, the archive and pins.

use std::sync::Arc;

use cairn_app::App;
use cairn_app::wire::{Command, Conversation, Event, FailureCode, Folder, FoundMessage, Reply};

use crate::kit::{
    answered, bootstrap, check_failure, ended, home_with_model, messages, new_conversation, next,
    open, send, set_for_all,
};

async fn search(app: &Arc<App>, text: &str) -> Vec<FoundMessage> {
    match app.call(Command::SearchMessages { text: text.to_owned() }).await.unwrap() {
        Reply::FoundMessages { found, .. } => found,
        other => panic!("{other:?}"),
    }
}

async fn folders(app: &Arc<App>) -> Vec<Folder> {
    match app.call(Command::Bootstrap).await.unwrap() {
        Reply::Bootstrap { folders, .. } => folders,
        other => panic!("{other:?}"),
    }
}

async fn row(app: &Arc<App>, id: &str) -> Conversation {
    bootstrap(app).await.0.into_iter().find(|row| row.id == id).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_found_and_its_branch_is_shown() {
    let home = home_with_model();
    let app = open(&home).await;
    set_for_all(&app, "max_tokens", 4).await;
    let id = new_conversation(&app).await;
    let first = answered(&app, &id, "What is granite?").await;
    let mut events = app.subscribe();
    let again = Command::Regenerate { conversation_id: id.clone(), message_id: None, model: None };
    let again = app.call(again).await.unwrap();
    let Reply::Sent { messages: sent, .. } = again else { panic!("{again:?}") };
    ended(&mut events, &sent[0].id).await;
    let found = search(&app, "granite").await;
    assert_eq!((found.len(), found[0].conversation_id.as_str()), (1, id.as_str()));
    let matched: Vec<&str> = found[0]
        .excerpt
        .iter()
        .filter(|piece| piece.is_match)
        .map(|piece| piece.text.as_str())
        .collect();
    assert_eq!(matched, ["granite"]);

    let show = |message_id: &str| Command::ShowMessage {
        conversation_id: id.clone(),
        message_id: message_id.to_owned(),
    };
    let shown = app.call(show(&first.id)).await.unwrap();
    let Reply::Conversation { messages: branch, .. } = shown else { panic!("{shown:?}") };
    assert_eq!(branch.last().unwrap().id, first.id);
    assert_eq!(messages(&app, &id).await.last().unwrap().id, first.id);
    check_failure(&app, show("gone"), FailureCode::NotFound, "message").await;
    app.call(Command::DeleteConversations { ids: vec![id.clone()] }).await.unwrap();
    assert!(search(&app, "granite").await.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_chat_is_found_nowhere() {
    let home = home_with_model();
    let app = open(&home).await;
    set_for_all(&app, "max_tokens", 2).await;
    let made = app.call(Command::NewPrivateConversation).await.unwrap();
    let Reply::Conversation { conversation, .. } = made else { panic!("{made:?}") };
    answered(&app, &conversation.id, "zebrawood").await;
    assert!(search(&app, "zebrawood").await.is_empty());
    let archive = Command::ArchiveConversations { ids: vec![conversation.id], is_archived: true };
    check_failure(&app, archive, FailureCode::Invalid, "private").await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_begins_with_what_its_folder_says() {
    let home = home_with_model();
    let app = open(&home).await;
    let mut events = app.subscribe();
    let made = app.call(Command::CreateFolder { name: " Letters ".to_owned() }).await.unwrap();
    let Reply::Folder { folder } = made else { panic!("{made:?}") };
    assert_eq!(folder.name, "Letters");
    while !matches!(next(&mut events).await, Event::Folders { folders } if folders.len() == 1) {}
    let change = |name: &str| Command::ChangeFolder {
        id: folder.id.clone(),
        name: name.to_owned(),
        system_prompt: "Be formal.".to_owned(),
        model: Some("a-model".to_owned()),
    };
    check_failure(&app, change(" "), FailureCode::Invalid, "one line").await;
    app.call(change("Letters")).await.unwrap();
    assert_eq!(folders(&app).await[0].system_prompt, "Be formal.");
    let begin = || Command::NewConversationIn { folder_id: folder.id.clone() };
    let begun = app.call(begin()).await.unwrap();
    let Reply::Conversation { conversation, .. } = begun else { panic!("{begun:?}") };
    assert_eq!(conversation.system_prompt, "Be formal.");
    assert_eq!(conversation.folder_id, Some(folder.id.clone()));
    // A chat that is moved keeps its prompt.
    let loose = new_conversation(&app).await;
    let into = |folder_id: Option<String>| Command::MoveConversations {
        ids: vec![loose.clone()],
        folder_id,
    };
    app.call(into(Some(folder.id.clone()))).await.unwrap();
    assert_eq!(row(&app, &loose).await.system_prompt, "");
    app.call(Command::DeleteFolder { id: folder.id.clone() }).await.unwrap();
    assert!(folders(&app).await.is_empty());
    check_failure(&app, begin(), FailureCode::NotFound, "folder").await;
    check_failure(&app, into(Some(folder.id.clone())), FailureCode::NotFound, "folder").await;
    assert_eq!(bootstrap(&app).await.0.len(), 2, "its chats stay");
    app.call(Command::RestoreFolder { id: folder.id.clone() }).await.unwrap();
    assert_eq!(row(&app, &loose).await.folder_id, Some(folder.id.clone()));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archived_chat_is_still_found_and_a_pinned_one_keeps_its_context() {
    let home = home_with_model();
    let app = open(&home).await;
    set_for_all(&app, "max_tokens", 2).await;
    let id = new_conversation(&app).await;
    // Pinned before anything of it is saved.
    app.call(Command::PinConversation { id: id.clone(), is_pinned: true }).await.unwrap();
    assert!(row(&app, &id).await.is_pinned);
    let mut events = app.subscribe();
    let [_, answer] = send(&app, &id, "granite").await;
    ended(&mut events, &answer.id).await;
    while !row(&app, &id).await.cache.is_some_and(|cache| cache.is_pinned) {
        next(&mut events).await;
    }
    let archive =
        |is_archived| Command::ArchiveConversations { ids: vec![id.clone()], is_archived };
    app.call(archive(true)).await.unwrap();
    assert!(row(&app, &id).await.is_archived);
    assert_eq!(search(&app, "granite").await.len(), 1);
    app.call(archive(false)).await.unwrap();
    assert!(!row(&app, &id).await.is_archived);
    app.close().await;
}
