//! Commands about conversations, and those that are refused.

use std::path::Path;

use cairn_app::Consent;
use cairn_app::wire::{Command, Event, FailureCode, MessageStatus, Reply, SettingTarget};

use crate::kit::{
    MODEL, bootstrap, check_failure, home_with_model, messages, new_conversation, next, open,
    open_greedy, send, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn deleting_stops_the_answer_and_can_be_undone() {
    let home = home_with_model();
    let app = open_greedy(&home, 1_000_000).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    send(&app, &id, "Tell me everything").await;
    while !matches!(next(&mut events).await, Event::Delta { .. }) {}
    app.call(Command::DeleteConversations { ids: vec![id.clone()] }).await.unwrap();
    let mut was_ended = false;
    loop {
        match next(&mut events).await {
            Event::Message { message } => was_ended |= message.status == MessageStatus::Stopped,
            Event::ConversationsDeleted { ids } => {
                break assert_eq!(ids, std::slice::from_ref(&id));
            }
            _ => {}
        }
    }
    assert!(was_ended, "the answer stops before its conversation goes");
    assert!(bootstrap(&app).await.0.is_empty());
    check_failure(
        &app,
        Command::GetConversation { id: id.clone() },
        FailureCode::NotFound,
        "exist",
    )
    .await;
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "x".to_owned() },
        FailureCode::NotFound,
        "exist",
    )
    .await;
    app.call(Command::RestoreConversations { ids: vec![id.clone()] }).await.unwrap();
    assert_eq!(messages(&app, &id).await.len(), 2);
    assert_eq!(bootstrap(&app).await.0.len(), 1);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_commands_are_refused_with_a_sentence() {
    let home = home_with_model();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    let gone = || "01890000-0000-7000-8000-000000000000".to_owned();
    let send = |conversation_id, text: &str| Command::SendMessage {
        conversation_id,
        text: text.to_owned(),
    };
    let rename = |id, title: &str| Command::RenameConversation { id, title: title.to_owned() };
    let of_one_that_is_gone = [
        Command::GetConversation { id: gone() },
        Command::RefreshConversation { id: gone() },
        Command::GetOutlook { id: gone() },
        rename(gone(), "x"),
        Command::SetSystemPrompt { id: gone(), system_prompt: String::new() },
        Command::DeleteConversations { ids: vec![gone()] },
        Command::RestoreConversations { ids: vec![gone()] },
        send(gone(), "x"),
    ];
    for command in of_one_that_is_gone {
        check_failure(&app, command, FailureCode::NotFound, "conversation").await;
    }
    let invalid = [
        (rename(id.clone(), " \t"), "title"),
        (rename(id.clone(), "a\nb"), "title"),
        (send(id.clone(), "  \n"), "message"),
        (Command::regenerate(&id), "message"),
        (Command::set_for_all("top_p", 1.5), "top_p"),
    ];
    for (command, named) in invalid {
        check_failure(&app, command, FailureCode::Invalid, named).await;
    }
    let load = Command::LoadModel { name: "no/such-model".to_owned() };
    check_failure(&app, load, FailureCode::NotFound, "no/such-model").await;
    assert!(messages(&app, &id).await.is_empty(), "nothing was saved");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loads_listed_models_only_never_paths() {
    let (home, elsewhere) = (home_with_model(), tempfile::tempdir().unwrap());
    let folder = elsewhere.path().join("stranger");
    cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &folder).unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    // The test may run in any folder.
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let absolute = folder.to_str().unwrap().to_owned();
    for path in [format!("{up}{}", absolute.trim_start_matches('/')), absolute.clone()] {
        assert!(Path::new(&path).is_dir(), "{path}");
        let (name, model) = (path.clone(), Some(path.clone()));
        let draft = SettingTarget::Model { name: MODEL.to_owned() };
        for command in [
            Command::LoadModel { name: name.clone() },
            Command::ChooseModel { id: id.clone(), model },
            Command::GetModelMemory { name: name.clone() },
            Command::DeleteModel { name: name.clone() },
            Command::SetSetting { scope: draft, key: "draft_model".to_owned(), value: name.into() },
        ] {
            check_failure(&app, command, FailureCode::NotFound, &path).await;
        }
    }
    app.load_model(&absolute).await.unwrap();
    let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else { panic!() };
    assert_eq!(status.models[0].name, "stranger", "whoever starts the process may name a path");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_need_consent_for_folders_and_addresses() {
    let (home, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let app = open(&home).await;
    let path = || folder.path().to_str().unwrap().to_owned();
    let add = || Command::AddModelFolder { path: path() };
    let set = |key: &str, value: &str| Command::set_for_all(key, value);
    for (command, expected) in [
        (add(), Some(Consent::ModelFolder(path().into()))),
        (set("download_folder", &path()), Some(Consent::DownloadFolder(path().into()))),
        (set("hub_endpoint", " https://hub.example "), {
            Some(Consent::HubAddress("https://hub.example".to_owned()))
        }),
        (set("hub_proxy", "socks5://p"), Some(Consent::HubProxy("socks5://p".to_owned()))),
        (set("hub_endpoint", " "), None),
        (Command::set_for_all("hub_proxy", serde_json::Value::Null), None),
        (Command::set_for_all("temperature", 0.5), None),
        (Command::ListModels, None),
    ] {
        assert_eq!(app.needed_consent(&command), expected, "{command:?}");
    }
    app.call(set("hub_proxy", "socks5://p")).await.unwrap();
    assert_eq!(app.needed_consent(&set("hub_proxy", "socks5://p")), None, "it is set already");
    app.call(Command::RemoveModelFolder { path: path() }).await.unwrap();
    assert!(app.needed_consent(&add()).is_some(), "it was never there");
    app.call(add()).await.unwrap();
    app.call(Command::RemoveModelFolder { path: path() }).await.unwrap();
    assert_eq!(app.needed_consent(&add()), None, "taking it off the list can be undone");
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_model_nothing_is_sent() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    assert!(bootstrap(&app).await.2.is_empty());
    check_failure(
        &app,
        Command::SendMessage { conversation_id: id.clone(), text: "Hi".to_owned() },
        FailureCode::NoModel,
        "model",
    )
    .await;
    assert!(messages(&app, &id).await.is_empty());
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn titles_and_system_prompts_are_saved_and_emitted() {
    let home = tempfile::tempdir().unwrap();
    let app = open(&home).await;
    let id = new_conversation(&app).await;
    let mut events = app.subscribe();
    app.call(Command::RenameConversation {
        id: id.clone(),
        title: "  Granite \u{202e}🪨 ".to_owned(),
    })
    .await
    .unwrap();
    app.call(Command::SetSystemPrompt { id: id.clone(), system_prompt: " Be brief.\n".to_owned() })
        .await
        .unwrap();
    let title = "Granite \u{202e}🪨".to_owned();
    for expected in [(title.clone(), String::new()), (title, " Be brief.\n".to_owned())] {
        let is_told = |event| match event {
            Event::Conversation { conversation } => {
                ((conversation.title, conversation.system_prompt) == expected).then_some(())
            }
            _ => None,
        };
        until(&mut events, is_told).await;
    }
    app.call(Command::SetSystemPrompt { id, system_prompt: " \n".to_owned() }).await.unwrap();
    assert_eq!(bootstrap(&app).await.0[0].system_prompt, "");
    app.close().await;
}
