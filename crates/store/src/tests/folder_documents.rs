//! Documents of folders: what a conversation begins with stays as it was when it began.

use super::{Scratch, finished, turn};
use crate::{DocumentKind, MessageStatus, NewDocument, Store, StoreError};

fn document(name: &str, text: &str) -> NewDocument {
    NewDocument { name: name.to_owned(), kind: DocumentKind::Markdown, text: text.to_owned() }
}

async fn names(store: &Store, conversation_id: &str) -> Vec<String> {
    let documents = store.beginning_documents(conversation_id).await.unwrap();
    let names: Vec<String> = documents.into_iter().map(|document| document.name).collect();
    let texts = store.beginning_texts(conversation_id).await.unwrap();
    assert_eq!(texts.iter().map(|text| text.name.clone()).collect::<Vec<_>>(), names);
    names
}

async fn add(store: &Store, folder_id: &str, name: &str) -> String {
    store.add_folder_documents(folder_id, &[document(name, name)], 5).await.unwrap();
    store.folder_documents(folder_id).await.unwrap().pop().unwrap().id
}

#[tokio::test]
async fn a_conversation_keeps_what_its_folder_had_when_it_began() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let folder = store.create_folder("Stones", 0).await.unwrap().id;
    let a = add(&store, &folder, "a.md").await;
    let begun = store.create_conversation_in(1, &folder, "").await.unwrap().id;
    let new = store.create_conversation_in(2, &folder, "").await.unwrap().id;
    turn(&store, &begun, "One", "1").await;
    add(&store, &folder, "b.md").await;
    assert_eq!(names(&store, &begun).await, ["a.md"]);
    assert_eq!(names(&store, &new).await, ["a.md", "b.md"]);
    assert_eq!(store.conversations_not_begun(&folder).await.unwrap(), std::slice::from_ref(&new));

    // Neither moving it nor taking the document away changes that; its copies begin as it does.
    store.remove_folder_document(&folder, &a).await.unwrap();
    store.move_conversations(&[&begun], None).await.unwrap();
    assert_eq!(names(&store, &begun).await, ["a.md"]);
    assert_eq!(names(&store, &new).await, ["b.md"]);
    let leaf = store.branch(&begun).await.unwrap().pop().unwrap().id;
    let copy = store.copy_branch(&begun, &leaf, "Copy", 9).await.unwrap().id;
    assert_eq!(names(&store, &copy).await, ["a.md"]);
    store.move_conversations(&[&new], None).await.unwrap();
    assert!(names(&store, &new).await.is_empty(), "it has not begun");
    store.move_conversations(&[&new], Some(&folder)).await.unwrap();
    store.restore_folder_document(&folder, &a).await.unwrap();
    assert_eq!(names(&store, &new).await, ["a.md", "b.md"]);
    let (question, answer) = store.begin_turn(&new, "Two", 10).await.unwrap();
    let ended = finished(MessageStatus::Complete, "2");
    store.finish_turn(&question.id, &[1], &answer.id, &ended).await.unwrap();
    store.delete_folder(&folder, 11).await.unwrap();
    assert_eq!(names(&store, &new).await, ["a.md", "b.md"]);

    // When the folder is gone for good, what somebody began with is still there, and goes with the last.
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(names(&store, &begun).await, ["a.md"]);
    assert_eq!(names(&store, &new).await, ["a.md", "b.md"]);
    for id in [&begun, &new] {
        store.delete_conversations(&[id], 20).await.unwrap();
        assert_eq!(store.purge_conversations(&[id], 20).await.unwrap().len(), 1);
    }
    assert_eq!(scratch.scalar::<i64>("select count(*) from folder_documents").await, 1);
    assert_eq!(names(&store, &copy).await, ["a.md"]);
    store.delete_conversations(&[&copy], 20).await.unwrap();
    assert_eq!(store.purge_conversations(&[&copy], 20).await.unwrap().len(), 1);
    assert_eq!(scratch.scalar::<i64>("select count(*) from folder_documents").await, 0);
}

#[tokio::test]
async fn a_document_that_is_removed_comes_back_until_the_program_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let folder = store.create_folder("Stones", 0).await.unwrap().id;
    let [a, b] = [add(&store, &folder, "a.md").await, add(&store, &folder, "b.md").await];
    store.remove_folder_document(&folder, &a).await.unwrap();
    store.restore_folder_document(&folder, &a).await.unwrap();
    let all = store.folder_documents(&folder).await.unwrap();
    assert_eq!(all.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), [&a, &b], "where it was");
    store.remove_folder_document(&folder, &b).await.unwrap();
    let other = store.create_folder("Other", 9).await.unwrap().id;
    let of_other = store.restore_folder_document(&other, &b).await;
    assert!(matches!(of_other, Err(StoreError::NoDocument { .. })), "{of_other:?}");
    let twice = store.remove_folder_document(&folder, &b).await;
    assert!(matches!(twice, Err(StoreError::NoDocument { .. })));
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(store.folder_documents(&folder).await.unwrap().len(), 1);
    assert!(matches!(store.folder_document(&b).await, Err(StoreError::NoDocument { .. })));
    assert_eq!(scratch.scalar::<i64>("select count(*) from folder_documents").await, 1);
    let nowhere = store.add_folder_documents("gone", &[document("a", "A")], 5).await;
    assert!(matches!(nowhere, Err(StoreError::NoFolder { .. })));
}

#[tokio::test]
async fn conversations_are_found_by_the_names_of_their_documents() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let folder = store.create_folder("Stones", 0).await.unwrap().id;
    add(&store, &folder, "Größe der Steine.pdf").await;
    let of_folder = store.create_conversation_in(1, &folder, "").await.unwrap().id;
    turn(&store, &of_folder, "One", "1").await;
    let own = store.create_conversation(2).await.unwrap().id;
    turn(&store, &own, "A first question", "2").await;
    store.add_draft_documents(&own, &[document("lease.md", "A lease.")], 3).await.unwrap();
    let found = async |text: &str| {
        let found = store.search_messages(text, 10, 100).await.unwrap();
        found
            .into_iter()
            .map(|one| (one.conversation_id, one.document.map(|found| found.document.name)))
            .collect::<Vec<_>>()
    };
    assert_eq!(found("lease").await, [], "it is in the draft still");
    turn(&store, &own, "Who leases?", "3").await;
    let expected = [(own.clone(), Some("lease.md".to_owned()))];
    assert_eq!(found("LEASE").await, expected, "once, although a message says it too");
    let hit = store.search_messages("lease", 10, 100).await.unwrap().remove(0);
    assert_eq!(hit.message_id, store.branch(&own).await.unwrap()[2].id);
    let expected = [(of_folder.clone(), Some("Größe der Steine.pdf".to_owned()))];
    assert_eq!(found("grosse ste").await, []);
    assert_eq!(found("größe ste").await, expected);
    assert_eq!(found("one").await, [(of_folder.clone(), None)]);
    store.delete_conversations(&[&of_folder], 9).await.unwrap();
    assert_eq!(found("größe").await, []);
    assert_eq!(found(" ").await, []);
}
