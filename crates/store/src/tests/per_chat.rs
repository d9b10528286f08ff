//! Presets, personas, and where the context of a conversation is cut.

use super::{Scratch, texts, turn};
use crate::{ContextCut, Persona, Store, StoreError};

fn persona(name: &str) -> Persona {
    Persona {
        id: String::new(),
        name: name.to_owned(),
        system_prompt: "You answer in rhymes.".to_owned(),
        model: Some("owner/model".to_owned()),
        setting_overrides: Some(r#"{"temperature":1.1}"#.to_owned()),
        created_at_ms: 5,
    }
}

async fn preset_names(store: &Store) -> Vec<String> {
    store.presets().await.unwrap().into_iter().map(|preset| preset.name).collect()
}

#[tokio::test]
async fn presets_are_renamed_deleted_and_brought_back() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let exact = store.create_preset("Exact", r#"{"temperature":0}"#, 1).await.unwrap();
    let wild = store.create_preset("Wild", r#"{"temperature":1.5}"#, 2).await.unwrap();
    assert_eq!(store.presets().await.unwrap(), [exact.clone(), wild.clone()]);
    store.rename_preset(&exact.id, "Careful").await.unwrap();
    store.delete_preset(&wild.id, 3).await.unwrap();
    assert_eq!(preset_names(&store).await, ["Careful"]);
    let gone = store.rename_preset(&wild.id, "x").await;
    assert!(matches!(gone, Err(StoreError::NoPreset { id }) if id == wild.id));
    store.restore_preset(&wild.id).await.unwrap();
    assert_eq!(preset_names(&store).await, ["Careful", "Wild"]);

    store.delete_preset(&wild.id, 4).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    assert_eq!(preset_names(&store).await, ["Careful"]);
    assert!(store.restore_preset(&wild.id).await.is_err(), "with the program the undoing ends");
}

#[tokio::test]
async fn a_conversation_has_the_prompt_and_the_settings_of_its_persona() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let poet = store.create_persona(persona("Poet")).await.unwrap();
    assert_eq!(store.personas().await.unwrap(), std::slice::from_ref(&poet));
    let made = store.create_conversation_as(1, &poet.id).await.unwrap();
    assert_eq!(made.system_prompt, "You answer in rhymes.");
    assert_eq!(made.persona_id.as_deref(), Some(poet.id.as_str()));
    assert_eq!(store.conversation(&made.id).await.unwrap(), Some(made.clone()));
    assert_eq!(store.conversations().await.unwrap(), std::slice::from_ref(&made));
    let settings = async || store.settings_of_conversations_persona(&made.id).await.unwrap();
    assert_eq!(settings().await, poet.setting_overrides);

    // Its prompt stays with the conversation, whose saved context begins with it.
    store.change_persona(&poet.id, "Writer", "You write prose.", None).await.unwrap();
    store.set_persona_settings(&poet.id, None).await.unwrap();
    let read = store.conversation(&made.id).await.unwrap().unwrap();
    assert_eq!((read.system_prompt.as_str(), settings().await), ("You answer in rhymes.", None));

    store.set_persona_settings(&poet.id, Some(r#"{"top_k":5}"#)).await.unwrap();
    store.delete_persona(&poet.id, 9).await.unwrap();
    assert_eq!(settings().await, None, "a deleted persona sets nothing");
    assert!(store.create_conversation_as(2, &poet.id).await.is_err());
    store.restore_persona(&poet.id).await.unwrap();
    assert_eq!(settings().await.as_deref(), Some(r#"{"top_k":5}"#));

    turn(&store, &made.id, "Q", "A").await;
    let answer = store.branch(&made.id).await.unwrap()[1].id.clone();
    let copy = store.copy_branch(&made.id, &answer, "Copy", 3).await.unwrap();
    assert_eq!(copy.persona_id.as_deref(), Some(poet.id.as_str()));
    store.set_conversation_persona(&copy.id, None).await.unwrap();
    assert_eq!(store.conversation(&copy.id).await.unwrap().unwrap().persona_id, None);

    store.delete_persona(&poet.id, 9).await.unwrap();
    store.close().await.unwrap();
    let store = scratch.open().await;
    let read = store.conversation(&made.id).await.unwrap().unwrap();
    assert_eq!(read.persona_id, None, "the conversation outlives its persona");
    assert_eq!(texts(&store, &made.id).await, ["Q", "A"]);
}

#[tokio::test]
async fn a_cut_belongs_to_a_message_and_goes_with_copies_of_it() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let made = store.create_conversation(1).await.unwrap();
    turn(&store, &made.id, "Q1", "A1").await;
    turn(&store, &made.id, "Q2", "A2").await;
    let branch = store.branch(&made.id).await.unwrap();
    let (question, answer) = (branch[2].id.clone(), branch[3].id.clone());
    assert!(store.context_cuts(&made.id).await.unwrap().is_empty());
    let forgets = ContextCut { summary: None };
    store.cut_context(&question, &forgets, 1).await.unwrap();
    let cuts = store.context_cuts(&made.id).await.unwrap();
    assert_eq!(cuts.get(&question), Some(&forgets));
    let summary = ContextCut { summary: Some("They said Q1 and A1.".to_owned()) };
    store.cut_context(&question, &summary, 2).await.unwrap();
    let copy = store.copy_branch(&made.id, &answer, "Copy", 3).await.unwrap();
    for (id, position) in [(&made.id, 2), (&copy.id, 2)] {
        let branch = store.branch(id).await.unwrap();
        let cuts = store.context_cuts(id).await.unwrap();
        assert_eq!(cuts.len(), 1);
        assert_eq!(cuts.get(&branch[position].id), Some(&summary));
    }
    for _ in 0..2 {
        store.remove_context_cut(&question).await.unwrap();
    }
    assert!(store.context_cuts(&made.id).await.unwrap().is_empty());
    assert_eq!(store.context_cuts(&copy.id).await.unwrap().len(), 1);
    let none = store.cut_context("no-such-message", &forgets, 1).await;
    assert!(matches!(none, Err(StoreError::NoMessage { .. })));
}
