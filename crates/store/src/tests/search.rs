//! Searching conversations.

use super::*;

#[tokio::test]
async fn conversations_are_found_by_title_and_by_any_message() {
    let scratch = Scratch::new();
    let store = scratch.open().await;
    let mut ids = Vec::new();
    for (title, question, answer) in [
        ("Stones", "What is granite?", "An igneous rock."),
        ("Refund", "Is 100% of it paid back?", "Yes."),
        ("Plants", "What is grass_seed?", "The seed of C:\\grass."),
    ] {
        let id = store.create_conversation(1).await.unwrap().id;
        turn(&store, &id, question, answer).await;
        store.rename_conversation(&id, title).await.unwrap();
        ids.push(id);
    }
    store.create_conversation(3).await.unwrap();
    let deleted = store.create_conversation(3).await.unwrap().id;
    turn(&store, &deleted, "granite", "A stone.").await;
    store.delete_conversation(&deleted, 5).await.unwrap();

    for (text, expected) in [
        ("", &[2, 1, 0][..]),
        ("STONE", &[0]),
        ("igneous", &[0]),
        ("What is", &[2, 0]),
        ("100%", &[1]),
        ("0%o", &[]),
        ("grass_", &[2]),
        ("g_ass", &[]),
        ("C:\\grass", &[2]),
    ] {
        let expected: Vec<&String> = expected.iter().map(|&index| &ids[index]).collect();
        let found = store.search_conversations(text).await.unwrap();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{text:?}");
    }
}
