//! Which models the row of a conversation names: the chosen one, the last answer's, the folder's.

use super::{Scratch, finished};
use crate::{
    FinishedMessage, Imported, ImportedConversation, MessageStatus, Persona, Store, StoreError,
};

/// Adds a question and an answer by a model, which ended like this.
async fn answer(store: &Store, id: &str, status: MessageStatus, model: Option<&str>) -> String {
    let (user, assistant) = store.begin_turn(id, "q", 10).await.unwrap();
    let model = model.map(str::to_owned);
    let outcome = FinishedMessage { model, ..finished(status, "a") };
    store.finish_turn(&user.id, &[7], &assistant.id, &outcome).await.unwrap();
    assistant.id
}

/// The last answer's model, as the row and the list of conversations say it.
async fn answered(store: &Store, id: &str) -> Option<String> {
    let row = store.conversation(id).await.unwrap().unwrap();
    let listed = store.conversations().await.unwrap().into_iter().find(|row| row.id == id);
    assert_eq!(listed.unwrap().answered_model, row.answered_model);
    row.answered_model
}

#[tokio::test]
async fn the_last_answer_is_that_of_the_branch_on_screen() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    assert_eq!(answered(&store, &id).await, None);
    let first = answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    assert_eq!(answered(&store, &id).await.as_deref(), Some("one"));

    // Another version, and the first one again.
    let other = store.begin_sibling_answer(&id, Some(&first), 20).await.unwrap();
    assert_eq!(answered(&store, &id).await, None, "nothing stands before the question");
    store.save_progress(&other.id, "a", None, &[4], Some("two")).await.unwrap();
    assert_eq!(answered(&store, &id).await.as_deref(), Some("two"), "while it is written");
    let outcome =
        FinishedMessage { model: Some("two".to_owned()), ..finished(MessageStatus::Complete, "b") };
    store.finish(&other.id, &outcome).await.unwrap();
    store.show_version(&id, &first).await.unwrap();
    assert_eq!(answered(&store, &id).await.as_deref(), Some("one"));

    // A question that waits, and an answer that failed before any model was there.
    store.show_version(&id, &other.id).await.unwrap();
    answer(&store, &id, MessageStatus::Failed, None).await;
    assert_eq!(answered(&store, &id).await.as_deref(), Some("two"));
    let last = answer(&store, &id, MessageStatus::Stopped, Some("three")).await;
    assert_eq!(answered(&store, &id).await.as_deref(), Some("three"));
    let deletion = store.delete_messages(&id, &last, true).await.unwrap();
    assert_eq!(answered(&store, &id).await.as_deref(), Some("two"));
    store.restore_messages(&id, &deletion.id).await.unwrap();
    assert_eq!(answered(&store, &id).await.as_deref(), Some("three"));

    // Of an answer that came from elsewhere nobody knows who wrote it.
    answer(&store, &id, MessageStatus::Complete, None).await;
    assert_eq!(answered(&store, &id).await, None);
}

#[tokio::test]
async fn a_deleted_answer_in_the_middle_is_not_the_last_one() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    let second = answer(&store, &id, MessageStatus::Complete, Some("two")).await;
    answer(&store, &id, MessageStatus::Failed, None).await;
    assert_eq!(answered(&store, &id).await.as_deref(), Some("two"));
    store.delete_messages(&id, &second, false).await.unwrap();
    assert_eq!(answered(&store, &id).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_choice_is_kept_copied_and_taken_back() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    let end = answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    store.set_conversation_model(&id, Some("two")).await.unwrap();
    let row = store.conversation(&id).await.unwrap().unwrap();
    assert_eq!((row.model.as_deref(), row.answered_model.as_deref()), (Some("two"), Some("one")));
    let copy = store.copy_branch(&id, &end, "Copy", 30).await.unwrap();
    assert_eq!((copy.model, copy.answered_model), (row.model, row.answered_model));

    store.set_conversation_model(&id, None).await.unwrap();
    assert_eq!(store.conversation(&id).await.unwrap().unwrap().model, None);
    let gone = store.set_conversation_model("none", Some("two")).await;
    assert!(matches!(gone, Err(StoreError::NoConversation { id }) if id == "none"));
}

/// Whether the choice is newer than what was asked, as the row and the list of conversations say it.
async fn is_choice_newer(store: &Store, id: &str) -> bool {
    let row = store.conversation(id).await.unwrap().unwrap();
    let listed = store.conversations().await.unwrap().into_iter().find(|row| row.id == id);
    assert_eq!(listed.unwrap().is_choice_newer, row.is_choice_newer);
    row.is_choice_newer
}

#[tokio::test]
async fn a_choice_is_newer_until_something_is_asked_on_the_branch() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let id = store.create_conversation(1).await.unwrap().id;
    assert!(!is_choice_newer(&store, &id).await, "nothing was chosen");
    store.set_conversation_model(&id, Some("two")).await.unwrap();
    assert!(is_choice_newer(&store, &id).await);
    let first = answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    assert!(!is_choice_newer(&store, &id).await);
    let second = answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    let other = store.begin_sibling_answer(&id, Some(&second), 20).await.unwrap();
    store.finish(&other.id, &finished(MessageStatus::Complete, "b")).await.unwrap();

    // An answer in another chat is not one of it, and a version that was there before is none since.
    store.set_conversation_model(&id, Some("three")).await.unwrap();
    let elsewhere = store.create_conversation(2).await.unwrap().id;
    answer(&store, &elsewhere, MessageStatus::Complete, Some("one")).await;
    assert!(is_choice_newer(&store, &id).await);
    store.show_version(&id, &second).await.unwrap();
    assert!(is_choice_newer(&store, &id).await);
    let copy = store.copy_branch(&id, &first, "Copy", 30).await.unwrap();
    assert!(copy.is_choice_newer);
    answer(&store, &copy.id, MessageStatus::Complete, Some("one")).await;
    assert!(!is_choice_newer(&store, &copy.id).await);

    let third = answer(&store, &id, MessageStatus::Complete, Some("one")).await;
    assert!(!is_choice_newer(&store, &id).await);
    let copy = store.copy_branch(&id, &third, "Copy", 40).await.unwrap();
    assert!(!copy.is_choice_newer);
    store.set_conversation_model(&id, None).await.unwrap();
    assert!(!is_choice_newer(&store, &id).await);
}

#[tokio::test]
async fn a_persona_gives_its_model_and_a_folder_names_its_own() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let persona = Persona {
        id: String::new(),
        name: "Poet".to_owned(),
        system_prompt: String::new(),
        model: Some("poet".to_owned()),
        setting_overrides: None,
        created_at_ms: 1,
    };
    let persona = store.create_persona(persona).await.unwrap();
    let begun = store.create_conversation_as(2, &persona.id).await.unwrap();
    assert_eq!(begun.model.as_deref(), Some("poet"));

    let folder = store.create_folder("Letters", 1).await.unwrap().id;
    store.change_folder(&folder, "Letters", "", Some("letters")).await.unwrap();
    let begun = store.create_conversation_in(2, &folder, "").await.unwrap();
    assert_eq!((begun.model.as_deref(), begun.folder_model.as_deref()), (None, Some("letters")));
    let of_folder =
        async || store.conversation(&begun.id).await.unwrap().unwrap().folder_model.clone();
    store.delete_folder(&folder, 3).await.unwrap();
    assert_eq!(of_folder().await, None, "a deleted folder says nothing");
    store.restore_folder(&folder).await.unwrap();
    assert_eq!(of_folder().await.as_deref(), Some("letters"));
}

#[tokio::test]
async fn a_choice_comes_in_with_a_file() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let given = ImportedConversation {
        origin: "cairn:1".to_owned(),
        model: Some("two".to_owned()),
        messages: vec![crate::ImportedMessage::new(
            None,
            cairn_chat::Role::User,
            "Which stone?".to_owned(),
            7,
        )],
        ..ImportedConversation::default()
    };
    let Imported::Added(id) = store.import_conversation(&given).await.unwrap() else { panic!() };
    assert_eq!(store.conversation(&id).await.unwrap().unwrap().model.as_deref(), Some("two"));
}

#[tokio::test]
async fn older_answers_name_their_model_after_the_migration() {
    let scratch = Scratch::new();
    let options = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(scratch.database())
        .create_if_missing(true);
    let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
    crate::store::MIGRATIONS.run_to(24, &old).await.unwrap();
    let statement = |stats: &str, id: &str| {
        format!(
            "insert into conversations (id, title, system_prompt, activity_seq, created_at_ms, updated_at_ms)
                 values ('{id}', 't', '', 1, 1, 1);
             insert into messages (id, conversation_id, role, status, text, stats, created_at_ms)
                 values ('m{id}', '{id}', 'assistant', 'complete', 'a', {stats}, 1);
             update conversations set leaf_message_id = 'm{id}' where id = '{id}';"
        )
    };
    for statement in
        [statement(r#"'{"model":"one"}'"#, "a"), statement("'{'", "b"), statement("null", "c")]
    {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&old).await.unwrap();
    }
    old.close().await;
    let store = scratch.open().await;
    assert_eq!(answered(&store, "a").await.as_deref(), Some("one"));
    assert_eq!(answered(&store, "b").await, None);
    assert_eq!(answered(&store, "c").await, None);
}
