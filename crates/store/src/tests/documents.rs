//! Documents: in the draft, with a message, with its versions and copies, and gone with them.

use super::Scratch;
use crate::{DocumentKind, NewDocument, Store, StoreError};

fn document(name: &str, text: &str) -> NewDocument {
    NewDocument { name: name.to_owned(), kind: DocumentKind::Markdown, text: text.to_owned() }
}

async fn draft_names(store: &Store, conversation_id: &str) -> Vec<String> {
    let draft = store.draft_documents(conversation_id).await.unwrap();
    draft.into_iter().map(|document| document.name).collect()
}

async fn names_of(store: &Store, conversation_id: &str, message_id: &str) -> Vec<String> {
    let mut documents = store.documents_of(conversation_id).await.unwrap();
    let documents = documents.remove(message_id).unwrap_or_default();
    documents.into_iter().map(|document| document.name).collect()
}

#[tokio::test]
async fn a_draft_goes_with_the_next_message_and_its_versions_share_it() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    let both = [document("a.md", "# A"), document("b.md", "# B")];
    store.add_draft_documents(&id, &both, 5).await.unwrap();
    assert_eq!(draft_names(&store, &id).await, ["a.md", "b.md"]);
    let texts = store.draft_texts(&id).await.unwrap();
    assert_eq!((texts[1].1.as_str(), texts[1].0.num_bytes), ("# B", 3));
    store.set_document_tokens(&texts[0].0.id, 7, "smol").await.unwrap();

    let (user, assistant) = store.begin_turn(&id, "Why?", 10).await.unwrap();
    assert!(draft_names(&store, &id).await.is_empty());
    assert_eq!(names_of(&store, &id, &user.id).await, ["a.md", "b.md"]);
    assert!(names_of(&store, &id, &assistant.id).await.is_empty());
    let sent = store.documents_of(&id).await.unwrap();
    assert_eq!(sent[&user.id][0].counted, Some((7, "smol".to_owned())));

    // The draft of the next message is not the edited one's.
    let ended = super::finished(crate::MessageStatus::Complete, "Because.");
    store.finish_turn(&user.id, &[1], &assistant.id, &ended).await.unwrap();
    store.add_draft_documents(&id, &[document("c.md", "# C")], 5).await.unwrap();
    let (edited, answer) = store.begin_edited_turn(&id, &user.id, "How?", None, 20).await.unwrap();
    store.finish_turn(&edited.id, &[1], &answer.id, &ended).await.unwrap();
    assert_eq!(names_of(&store, &id, &edited.id).await, ["a.md", "b.md"]);
    assert_eq!(draft_names(&store, &id).await, ["c.md"]);

    // A branch has copies of its own.
    let copy = store.copy_branch(&id, &answer.id, "Copy", 30).await.unwrap();
    store.delete_conversations(&[&id], 40).await.unwrap();
    assert_eq!(store.purge_conversations(&[&id], 40).await.unwrap().len(), 1);
    let copied = store.branch(&copy.id).await.unwrap();
    assert_eq!(names_of(&store, &copy.id, &copied[0].id).await, ["a.md", "b.md"]);
    let texts = &store.document_texts_of(&copy.id).await.unwrap()[&copied[0].id];
    assert_eq!(texts[..], both);
    assert_eq!(scratch.scalar::<i64>("select count(*) from documents").await, 2);
}

#[tokio::test]
async fn another_version_of_a_question_can_have_other_documents() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let [id, other] = [
        store.create_conversation(0).await.unwrap().id,
        store.create_conversation(0).await.unwrap().id,
    ];
    store.add_draft_documents(&other, &[document("other.md", "# O")], 5).await.unwrap();
    let foreign = store.draft_documents(&other).await.unwrap()[0].id.clone();
    let both = [document("a.md", "# A"), document("b.md", "# B")];
    store.add_draft_documents(&id, &both, 5).await.unwrap();
    let (user, assistant) = store.begin_turn(&id, "Why?", 10).await.unwrap();
    let ended = super::finished(crate::MessageStatus::Complete, "Because.");
    store.finish_turn(&user.id, &[1], &assistant.id, &ended).await.unwrap();
    let more = ["c.md", "d.md", "e.md"].map(|name| document(name, "# C"));
    store.add_draft_documents(&id, &more, 5).await.unwrap();
    let draft = store.draft_documents(&id).await.unwrap();
    let sent = &store.documents_of(&id).await.unwrap()[&user.id];
    store.remove_draft_document(&draft[2].id).await.unwrap();

    // What is not there is named, and nothing has changed.
    for wrong in [&foreign, &draft[2].id, "gone"] {
        let ids = [draft[0].id.clone(), wrong.to_owned()];
        let begun = store.begin_edited_turn(&id, &user.id, "How?", Some(&ids), 20).await;
        assert!(matches!(begun, Err(StoreError::NoDocument { id }) if id == wrong));
        assert_eq!(draft_names(&store, &id).await, ["c.md", "d.md"]);
        assert_eq!(store.branch(&id).await.unwrap().len(), 2);
    }

    // One of the message, one of the draft, and one named twice.
    let ids = [draft[0].id.clone(), sent[1].id.clone(), draft[0].id.clone()];
    let edited = store.begin_edited_turn(&id, &user.id, "How?", Some(&ids), 20).await.unwrap();
    store.finish_turn(&edited.0.id, &[1], &edited.1.id, &ended).await.unwrap();
    assert_eq!(names_of(&store, &id, &edited.0.id).await, ["b.md", "c.md"]);
    assert_eq!(names_of(&store, &id, &user.id).await, ["a.md", "b.md"]);
    assert_eq!(draft_names(&store, &id).await, ["d.md"]);

    // What an earlier version alone has can be had again.
    let ids = [sent[0].id.clone()];
    let third = store.begin_edited_turn(&id, &edited.0.id, "So?", Some(&ids), 30).await.unwrap();
    store.finish_turn(&third.0.id, &[1], &third.1.id, &ended).await.unwrap();
    assert_eq!(names_of(&store, &id, &third.0.id).await, ["a.md"]);
    let none = store.begin_edited_turn(&id, &third.0.id, "None", Some(&[]), 40).await.unwrap();
    assert!(names_of(&store, &id, &none.0.id).await.is_empty());
}

#[tokio::test]
async fn what_is_removed_from_a_draft_comes_back_until_the_program_ends() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    store
        .add_draft_documents(&id, &[document("a.md", "A"), document("b.md", "B")], 5)
        .await
        .unwrap();
    let [a, b] = store.draft_documents(&id).await.unwrap().try_into().unwrap();
    store.remove_draft_document(&a.id).await.unwrap();
    assert_eq!(draft_names(&store, &id).await, ["b.md"]);
    assert!(matches!(store.remove_draft_document(&a.id).await, Err(StoreError::NoDocument { .. })));
    store.restore_draft_document(&a.id).await.unwrap();
    assert_eq!(draft_names(&store, &id).await, ["a.md", "b.md"], "where it was");
    store.remove_draft_document(&b.id).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(draft_names(&store, &id).await, ["a.md"]);
    assert!(matches!(store.document(&b.id).await, Err(StoreError::NoDocument { .. })));
    let nowhere = store.add_draft_documents("gone", &[document("a", "A")], 5).await;
    assert!(matches!(nowhere, Err(StoreError::NoConversation { .. })));
}

#[tokio::test]
async fn documents_go_with_the_last_message_that_has_them() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(0).await.unwrap().id;
    store.add_draft_documents(&id, &[document("a.md", "A")], 5).await.unwrap();
    super::turn(&store, &id, "One", "1").await;
    super::turn(&store, &id, "Two", "2").await;
    let first = store.branch(&id).await.unwrap().remove(0);
    let deletion = store.delete_messages(&id, &first.id, false).await.unwrap();
    store.restore_messages(&id, &deletion.id).await.unwrap();
    assert_eq!(names_of(&store, &id, &first.id).await, ["a.md"]);
    store.delete_messages(&id, &first.id, false).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(super::texts(&store, &id).await, ["1", "Two", "2"]);
    assert_eq!(scratch.scalar::<i64>("select count(*) from documents").await, 0);
}
