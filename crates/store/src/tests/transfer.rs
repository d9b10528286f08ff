//! Taking whole conversations out and in.

use super::*;
use crate::{DocumentKind, Imported, ImportedConversation, ImportedMessage, NewDocument};
use cairn_chat::Role;

fn message(parent: Option<usize>, role: Role, text: &str) -> ImportedMessage {
    ImportedMessage::new(parent, role, text.to_owned(), 7)
}

/// A question with two answers, the first of which is on screen.
fn conversation() -> ImportedConversation {
    ImportedConversation {
        origin: "other:1".to_owned(),
        id: None,
        title: String::new(),
        system_prompt: "Be brief.".to_owned(),
        settings: Some("{}".to_owned()),
        created_at_ms: 5,
        updated_at_ms: 9,
        is_pinned: true,
        is_archived: true,
        folder: None,
        messages: vec![
            message(None, Role::User, "Which stone?"),
            message(Some(0), Role::Assistant, "Granite."),
            message(Some(0), Role::Assistant, "Basalt."),
            message(Some(2), Role::User, "Why?"),
        ],
        leaf: Some(1),
        ..ImportedConversation::default()
    }
}

async fn added(store: &Store, given: &ImportedConversation) -> String {
    match store.import_conversation(given).await.unwrap() {
        Imported::Added(id) => id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_tree_comes_in_whole_and_once() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let newer = store.create_conversation(10).await.unwrap().id;
    let id = added(&store, &conversation()).await;
    let row = store.conversation(&id).await.unwrap().unwrap();
    assert_eq!((row.title.as_str(), row.system_prompt.as_str()), ("Which stone?", "Be brief."));
    assert_eq!((row.is_pinned, row.archived_at_ms), (true, Some(9)));
    assert_eq!(texts(&store, &id).await, ["Which stone?", "Granite."]);
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 4);
    let order: Vec<String> =
        store.conversations().await.unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(order, [newer.as_str(), &id], "an older one comes in below newer ones");

    let again = store.import_conversation(&conversation()).await.unwrap();
    assert_eq!(again, Imported::AlreadyHere(id.clone()));
    store.delete_conversations(&[&id], 11).await.unwrap();
    assert_ne!(added(&store, &conversation()).await, id);
}

#[tokio::test]
async fn imported_chats_stand_in_the_order_of_their_dates_whatever_that_of_their_file() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut expected = Vec::new();
    for is_newest_first in [true, false] {
        let here = store.create_conversation(50).await.unwrap().id;
        // Older and newer than the chat that is here.
        let mut times = [90, 70, 30, 10];
        if !is_newest_first {
            times.reverse();
        }
        let mut ids = Vec::new();
        for updated_at_ms in times {
            let origin = format!("test:{is_newest_first}:{updated_at_ms}");
            let given = ImportedConversation { origin, updated_at_ms, ..conversation() };
            ids.push((updated_at_ms, added(&store, &given).await));
        }
        ids.push((50, here));
        ids.sort();
        let listed = store.conversations().await.unwrap().into_iter().map(|row| row.id);
        let of_this: Vec<String> =
            listed.filter(|id| ids.iter().any(|(_, one)| one == id)).collect();
        expected = ids.into_iter().rev().map(|(_, id)| id).collect();
        assert_eq!(of_this, expected, "newest first: {is_newest_first}");
        for id in &expected {
            store.delete_conversations(&[id], 100).await.unwrap();
        }
    }
    store.restore_conversations(&[&expected[0]]).await.unwrap();
    store.restore_conversations(&[&expected[1]]).await.unwrap();
    assert_eq!(store.search_conversations("").await.unwrap(), expected[..2]);
}

#[tokio::test]
async fn ids_are_kept_where_none_is_in_use() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let uuid = || Some(uuid::Uuid::now_v7().to_string());
    let mut given = conversation();
    given.id = uuid();
    for message in &mut given.messages {
        message.id = uuid();
    }
    assert_eq!(Some(added(&store, &given).await), given.id);
    let ids: Vec<Option<String>> = store
        .all_messages(given.id.as_ref().unwrap())
        .await
        .unwrap()
        .into_iter()
        .map(|message| Some(message.id))
        .collect();
    assert_eq!(ids, given.messages.iter().map(|message| message.id.clone()).collect::<Vec<_>>());
    // Another conversation with the same messages gets new ids.
    (given.id, given.origin) = (uuid(), "other:2".to_owned());
    assert_ne!(Some(added(&store, &given).await), given.id);
}

/// As a Cairn exports it: everything has an id.
fn exported() -> ImportedConversation {
    let id = |number: u32| Some(format!("00000000-0000-7000-8000-{number:012}"));
    let mut given = conversation();
    given.id = id(0);
    given.origin = origin_of(&given);
    for (number, message) in (1..).zip(&mut given.messages) {
        message.id = id(number);
    }
    given
}

fn origin_of(given: &ImportedConversation) -> String {
    format!("cairn:{}:{}", given.id.as_deref().unwrap_or("-"), given.updated_at_ms)
}

/// The same chat after it went on from one of its messages, elsewhere.
fn went_on(mut given: ImportedConversation, after: usize, number: u32) -> ImportedConversation {
    let at = given.messages.len();
    let mut question = message(Some(after), Role::User, "And then?");
    question.id = Some(format!("00000000-0000-7000-8000-{number:012}"));
    question.documents =
        vec![NewDocument { name: "a".into(), kind: DocumentKind::Text, text: "A text".into() }];
    let mut answer = message(Some(at), Role::Assistant, "Then a wall.");
    answer.id = Some(format!("00000000-0000-7000-8000-{:012}", number + 1));
    given.messages.extend([question, answer]);
    given.updated_at_ms += 10;
    given.origin = origin_of(&given);
    given.leaf = Some(at + 1);
    given
}

async fn extended(store: &Store, given: &ImportedConversation) -> (String, usize) {
    match store.import_conversation(given).await.unwrap() {
        Imported::Extended { id, num_messages } => (id, num_messages),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_chat_has_become_elsewhere_comes_into_the_same_tree() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    let longer = went_on(exported(), 1, 100);
    assert_eq!(extended(&store, &longer).await, (id.clone(), 2));
    let branch = ["Which stone?", "Granite.", "And then?", "Then a wall."];
    assert_eq!(texts(&store, &id).await, branch, "nothing follows here, so it is shown");
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 6);
    let documents = store.document_texts_of(&id).await.unwrap();
    assert_eq!(documents[longer.messages[4].id.as_ref().unwrap()][0].text, "A text");
    assert_eq!(store.conversation(&id).await.unwrap().unwrap().updated_at_ms, 19);
    // Once; and an earlier state of it has nothing new.
    for known in [longer, exported()] {
        let again = store.import_conversation(&known).await.unwrap();
        assert_eq!(again, Imported::AlreadyHere(id.clone()));
    }
}

#[tokio::test]
async fn a_chat_that_went_on_here_too_has_both_as_branches_and_keeps_its_place() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    let (question, _) = store.begin_turn(&id, "Here?", 30).await.unwrap();
    store.rename_conversation(&id, "Mine").await.unwrap();
    let before = texts(&store, &id).await;
    assert_eq!(extended(&store, &went_on(exported(), 1, 100)).await, (id.clone(), 2));
    assert_eq!(texts(&store, &id).await, before);
    let row = store.conversation(&id).await.unwrap().unwrap();
    assert_eq!((row.title.as_str(), row.updated_at_ms), ("Mine", 30));
    let versions = store.versions(&id).await.unwrap();
    assert_eq!(versions.siblings(&question.id).len(), 2, "{versions:?}");
}

#[tokio::test]
async fn an_answer_that_went_on_elsewhere_comes_in_beside_the_one_here() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    let changed = |text: &str, at_ms: i64| {
        let mut given = exported();
        given.messages[1].text = text.into();
        given.updated_at_ms = at_ms;
        given.origin = origin_of(&given);
        given
    };
    let longer = changed("Granite. It lasts.", 10);
    assert_eq!(extended(&store, &longer).await, (id.clone(), 1));
    let tree = store.all_messages(&id).await.unwrap();
    let text = |of: &str| tree.iter().filter(|message| message.text == of).count();
    assert_eq!((text("Granite."), text("Granite. It lasts.")), (1, 1));
    // What it was before has nothing new.
    let earlier = store.import_conversation(&changed("Gran", 8)).await.unwrap();
    assert_eq!(earlier, Imported::AlreadyHere(id));
}

#[tokio::test]
async fn a_chat_that_came_in_with_other_ids_is_known_by_its_texts() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    store.delete_conversations(&[&id], 11).await.unwrap();
    // Its ids are in use until what was deleted is gone.
    let other = added(&store, &exported()).await;
    assert_ne!(other, id);
    assert_eq!(extended(&store, &went_on(exported(), 3, 100)).await, (other.clone(), 2));
    assert_eq!(store.all_messages(&other).await.unwrap().len(), 6);
}

#[tokio::test]
async fn a_message_that_was_deleted_here_comes_back_only_once_its_deletion_is_final() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    store.delete_messages(&id, &id_of(&exported(), 2), true).await.unwrap();
    let newer = went_on(exported(), 1, 100);
    assert_eq!(extended(&store, &newer).await, (id.clone(), 2), "what was deleted stays away");
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 4);
    // Nobody knows any more that they were here.
    assert_eq!(extended(&store, &went_on(newer, 5, 200)).await, (id.clone(), 4));
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 8);
}

fn id_of(given: &ImportedConversation, place: usize) -> String {
    given.messages[place].id.clone().unwrap()
}

#[tokio::test]
async fn an_import_never_shows_a_branch_that_ends_at_a_deleted_message() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let longer = went_on(exported(), 1, 100);
    let id = added(&store, &longer).await;
    store.delete_messages(&id, &id_of(&longer, 4), true).await.unwrap();
    let before = texts(&store, &id).await;
    assert_eq!(before, ["Which stone?", "Granite."]);
    // It went on in another branch, and what was deleted here is still on screen there.
    let newer = ImportedConversation { leaf: Some(5), ..went_on(longer, 3, 200) };
    assert_eq!(extended(&store, &newer).await, (id.clone(), 2));
    assert_eq!(texts(&store, &id).await, before);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, &id).await, before);
}

#[tokio::test]
async fn a_chat_whose_messages_were_all_deleted_shows_what_came_in() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &exported()).await;
    store.delete_messages(&id, &id_of(&exported(), 0), true).await.unwrap();
    assert!(texts(&store, &id).await.is_empty());
    let mut newer = ImportedConversation { leaf: Some(1), ..went_on(exported(), 0, 100) };
    newer.messages[4].parent = None;
    assert_eq!(extended(&store, &newer).await, (id.clone(), 2));
    assert_eq!(texts(&store, &id).await, ["And then?", "Then a wall."]);
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, &id).await, ["And then?", "Then a wall."]);
}

#[tokio::test]
async fn what_follows_a_deleted_message_comes_in_deleted_with_it() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let longer = went_on(exported(), 1, 100);
    let id = added(&store, &longer).await;
    let deletion = store.delete_messages(&id, &id_of(&longer, 4), true).await.unwrap();
    let newer = went_on(longer, 5, 200);
    let outcome = store.import_conversation(&newer).await.unwrap();
    assert_eq!(outcome, Imported::AlreadyHere(id.clone()), "nothing is seen of it");
    assert_eq!(texts(&store, &id).await, ["Which stone?", "Granite."]);
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 4);
    // With what it follows it comes back, and is not taken in twice.
    assert_eq!(store.import_conversation(&newer).await.unwrap(), outcome);
    store.restore_messages(&id, &deletion.id).await.unwrap();
    assert_eq!(store.all_messages(&id).await.unwrap().len(), 8);
    assert_eq!(store.import_conversation(&newer).await.unwrap(), outcome);
}

#[tokio::test]
async fn a_database_opens_whose_branch_ends_at_a_deleted_message() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let longer = went_on(exported(), 1, 100);
    let id = added(&store, &longer).await;
    store.delete_messages(&id, &id_of(&longer, 4), true).await.unwrap();
    sqlx::query("update conversations set leaf_message_id = ? where id = ?")
        .bind(id_of(&longer, 5))
        .bind(&id)
        .execute(&store.writer)
        .await
        .unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(texts(&store, &id).await, ["Which stone?", "Granite."]);
}

#[tokio::test]
async fn why_an_answer_failed_comes_in_as_its_kind_too() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let kind = Some(r#"{"type":"closing"}"#.to_owned());
    let mut given = exported();
    given.messages[1].error_kind = kind.clone();
    let id = added(&store, &given).await;
    assert_eq!(store.all_messages(&id).await.unwrap()[1].error_kind, kind);
}

#[tokio::test]
async fn the_branch_of_a_message_is_shown() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = added(&store, &conversation()).await;
    let tree = store.all_messages(&id).await.unwrap();
    store.show_version(&id, &tree[2].id).await.unwrap();
    assert_eq!(texts(&store, &id).await, ["Which stone?", "Basalt.", "Why?"]);
    // A message of the branch that is shown changes nothing.
    store.show_version(&id, &tree[0].id).await.unwrap();
    assert_eq!(texts(&store, &id).await.len(), 3);
    assert!(matches!(
        store.show_version(&id, "gone").await,
        Err(crate::StoreError::NoMessage { .. })
    ));
}

#[tokio::test]
async fn a_deleted_folder_gives_its_conversations_free_until_it_is_restored() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let folder = store.create_folder("Letters", 1).await.unwrap();
    store.change_folder(&folder.id, "Letters", "Be formal.", Some("m")).await.unwrap();
    let id = store.create_conversation_in(2, &folder.id, "Be formal.").await.unwrap().id;
    let loose = store.create_conversation(3).await.unwrap().id;
    store.move_conversations(&[&loose], Some(&folder.id)).await.unwrap();
    store.delete_folder(&folder.id, 4).await.unwrap();
    assert!(store.folders().await.unwrap().is_empty());
    assert!(store.move_conversations(&[&loose], Some(&folder.id)).await.is_err());
    store.restore_folder(&folder.id).await.unwrap();
    assert_eq!(store.folders().await.unwrap()[0].system_prompt, "Be formal.");
    store.delete_folder(&folder.id, 5).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    for id in [&id, &loose] {
        assert_eq!(store.conversation(id).await.unwrap().unwrap().folder_id, None);
    }
}

#[tokio::test]
async fn what_a_conversation_begins_with_comes_in_in_its_order_and_as_often() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let document = |name: &str| NewDocument {
        name: name.to_owned(),
        kind: DocumentKind::Text,
        text: "The same text.".to_owned(),
    };
    for (origin, given) in [
        ("1", vec!["b", "a"]),
        ("2", vec!["a", "b"]),
        ("3", vec!["a", "a", "b"]),
        ("4", vec!["b", "a"]),
    ] {
        let beginning = given.iter().map(|name| document(name)).collect();
        let chat = ImportedConversation { origin: origin.to_owned(), beginning, ..conversation() };
        let id = added(&store, &chat).await;
        let found = store.beginning_texts(&id).await.unwrap();
        let names: Vec<&str> = found.iter().map(|document| document.name.as_str()).collect();
        assert_eq!(names, given);
    }
    let stored: i64 = sqlx::query_scalar("select count(*) from folder_documents")
        .fetch_one(&store.writer)
        .await
        .unwrap();
    // b, a of the first, b of the second, and a, b of the third behind the a that all share.
    assert_eq!(stored, 5, "what stands in the right order is shared");
}
