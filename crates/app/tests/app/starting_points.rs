//! Starting points: save_as, lost, deleted, and the conversations that begin with them.

use cairn_app::wire::{
    CacheFileLayout, CacheSource, Command, Event, FailureCode, Message, MessageStatus, Reply,
};
use cairn_app::{DataFolder, OfflineCaches};

use crate::kit::{
    MODEL, add_model, answered, check_failure, choose_model, chunk_files, home_with_model,
    new_conversation, next, open, open_greedy, open_with_one_turn, overview, save_as, set_for_all,
    start_from,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_starts_from_a_starting_point() {
    let home = home_with_model();
    add_model(&home, "sibling", "config.json", "10000.0", "20000.0");
    add_model(&home, "stranger", "tokenizer.json", "<|im_start|>", "<|im_begin|>");
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    let id = start_from(&app, &notes.id).await;
    check_failure(
        &app,
        Command::SetSystemPrompt { id: id.clone(), system_prompt: "x".to_owned() },
        FailureCode::Invalid,
        "begins with",
    )
    .await;

    let stats = |answer: Message| {
        assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
        answer.stats.unwrap()
    };
    let first = stats(answered(&app, &id, "Two").await);
    assert_eq!((first.cached_tokens, first.cache_note), (notes.tokens, None));
    assert!(first.prompt_tokens > notes.tokens);
    let second = stats(answered(&app, &id, "Three").await);
    // The last token before the limit is not run.
    assert!(second.cached_tokens >= first.prompt_tokens + 7, "{second:?}");

    // Without the starting point, and after a restart.
    app.call(Command::DeleteNamedCache { id: notes.id }).await.unwrap();
    app.close().await;
    drop(app);
    let app = open(&home).await;
    let third = stats(answered(&app, &id, "Four").await);
    assert!(third.cached_tokens >= second.prompt_tokens + 7, "{third:?}");

    // Another model computes its tokens again, if they decode to the same text.
    choose_model(&app, &id, Some("sibling")).await;
    let fourth = stats(answered(&app, &id, "Five").await);
    assert!(fourth.cached_tokens == 0 && fourth.prompt_tokens > third.prompt_tokens, "{fourth:?}");
    choose_model(&app, &id, Some("stranger")).await;
    let refused = answered(&app, &id, "Six").await;
    let error = refused.error.unwrap();
    assert_eq!(
        error,
        "This conversation starts from a context of sibling: choose that model to continue."
    );
    choose_model(&app, &id, Some(MODEL)).await;
    assert_eq!(stats(answered(&app, &id, "Seven").await).model, MODEL);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_point_is_continued_by_the_model_that_has_read_it() {
    let home = home_with_model();
    add_model(&home, "stranger", "tokenizer.json", "<|im_start|>", "<|im_begin|>");
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    app.close().await;
    drop(app);

    let app = open(&home).await;
    app.call(Command::LoadModel { name: "stranger".to_owned() }).await.unwrap();
    let id = start_from(&app, &notes.id).await;
    let stats = answered(&app, &id, "Two").await.stats.unwrap();
    assert_eq!((stats.model.as_str(), stats.cached_tokens), (MODEL, notes.tokens));
    app.close().await;
    drop(app);

    // Where it is gone, the rule for all chats holds.
    std::fs::remove_dir_all(home.path().join("models").join(MODEL)).unwrap();
    let app = open(&home).await;
    let begin = Command::NewConversationFrom { named_id: notes.id };
    let Reply::Conversation { conversation, .. } = app.call(begin).await.unwrap() else { panic!() };
    assert_eq!(conversation.model.name, None);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refreshed_conversation_names_who_shares_its_context_now() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    let mut events = app.subscribe();
    // An event of before may come first.
    let mut is_shared_with = async |names: &[&str]| {
        app.call(Command::RefreshConversation { id: id.clone() }).await.unwrap();
        loop {
            if let Event::Conversation { conversation } = next(&mut events).await
                && conversation.id == id
                && conversation.cache.unwrap().shared_with == names
            {
                break;
            }
        }
    };
    is_shared_with(&["Notes"]).await;
    let rename = Command::RenameNamedCache { id: notes.id.clone(), name: "Stones".to_owned() };
    app.call(rename).await.unwrap();
    is_shared_with(&["Stones"]).await;
    app.call(Command::DeleteNamedCache { id: notes.id }).await.unwrap();
    is_shared_with(&[]).await;
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn context_that_is_only_in_memory_cannot_be_saved_as_a_starting_point() {
    let home = home_with_model();
    let app = open_greedy(&home, 8).await;
    app.call(Command::LoadModel { name: MODEL.to_owned() }).await.unwrap();
    set_for_all(&app, "cache_budget_bytes", 0).await;
    let id = new_conversation(&app).await;
    answered(&app, &id, "One").await;
    let save = Command::SaveNamedCache { conversation_id: id, name: "Notes".to_owned() };
    check_failure(&app, save, FailureCode::Storage, "only last until Cairn closes: the disk limit")
        .await;
    assert!(overview(&app).await.named.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_starting_point_is_computed_again() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    app.close().await;
    drop(app);
    for file in chunk_files(&home) {
        std::fs::remove_file(file).unwrap();
    }
    let app = open(&home).await;
    // The damage is found only by reading.
    let first = start_from(&app, &notes.id).await;
    answered(&app, &first, "Two").await;
    let named = &overview(&app).await.named[0];
    assert_eq!((named.tier, named.problem.as_deref(), named.num_conversations), (None, None, 1));
    let second = start_from(&app, &notes.id).await;
    let again = answered(&app, &second, "Two").await;
    assert_eq!(again.status, MessageStatus::Complete, "{:?}", again.error);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_point_deleted_by_another_program_is_released() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    save_as(&app, &id, "Undone").await;
    let undone =
        overview(&app).await.named.into_iter().find(|named| named.name == "Undone").unwrap();
    app.call(Command::DeleteNamedCache { id: undone.id.clone() }).await.unwrap();

    let mut events = app.subscribe();
    let caches = OfflineCaches::open(DataFolder::new(home.path())).await.unwrap();
    let found = caches.find("Notes").await.unwrap();
    caches.delete(&[found]).await.unwrap();
    caches.close().await;
    let referring = async || {
        overview(&app).await.nodes.into_iter().flat_map(|node| node.named).collect::<Vec<String>>()
    };
    while referring().await.contains(&notes.id) {
        next(&mut events).await;
    }
    assert_eq!(referring().await, [undone.id], "one that can be restored keeps its reference");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_of_the_same_kind_after_saving_and_exporting_it() {
    let home = home_with_model();
    let (app, id) = open_with_one_turn(&home).await;
    let notes = save_as(&app, &id, "Notes").await;
    let file = home.path().join("book\u{1b}[0m.safetensors");
    let source = CacheSource::Named { id: notes.id.clone() };
    app.export_cache(&source, CacheFileLayout::V0_32, &file).await.unwrap();
    // Without them the tokens of the file are known only from the file.
    app.call(Command::DeleteConversations { ids: vec![id] }).await.unwrap();
    app.call(Command::DeleteNamedCache { id: notes.id }).await.unwrap();

    let preview = app.preview_import(file).await;
    assert_eq!(
        (preview.problem, preview.kind.as_str(), preview.file_name.as_str()),
        (None, "conversation", "book [0m.safetensors")
    );
    let import =
        Command::ConfirmImport { token: preview.token, name: "Book".to_owned(), check: false };
    let Reply::Named { named: book } = app.call(import).await.unwrap() else { panic!() };
    let id = start_from(&app, &book.id).await;
    let again = save_as(&app, &id, "Again").await;
    assert_eq!(
        (again.tokens, again.imported_from.as_deref()),
        (book.tokens, Some("book [0m.safetensors"))
    );
    for source in [CacheSource::Conversation { id }, CacheSource::Named { id: again.id }] {
        let file = home.path().join("again.safetensors");
        app.export_cache(&source, CacheFileLayout::V0_32, &file).await.unwrap();
        let preview = app.preview_import(file).await;
        assert_eq!(
            (preview.kind.as_str(), preview.tokens),
            ("conversation", book.tokens),
            "{source:?}"
        );
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_prompt_cache_is_called_so_before_a_model_is_loaded() {
    let home = home_with_model();
    let app = open(&home).await;
    let weights = home.path().join("models").join(MODEL).join("model.safetensors");
    let problem = app.preview_import(weights).await.problem.unwrap();
    assert!(problem.contains("prompt cache") && !problem.contains("Load the model"), "{problem}");
    app.close().await;
}
