//! Which model answers a chat: its own, whatever is loaded elsewhere.

use std::sync::Arc;

use cairn_app::wire::{
    ChatModel, ChatModelSource, Command, ContextOf, Event, FailureCode, Message, MessageStatus,
    Reply, SettingTarget,
};
use cairn_app::{App, Options};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;

use crate::kit::{
    MODEL, answered, bootstrap, check_failure, choose_model, conversation, ended, home_with_model,
    messages, new_conversation, next, open, open_greedy, open_with_one_turn, options, set_for_all,
    until,
};
use crate::model_settings::{add_model, wide_heads};
use crate::script::{self, Script};

const OTHER_MODEL: &str = "wide";

fn home_with_two() -> TempDir {
    let home = home_with_model();
    add_model(&home, OTHER_MODEL, wide_heads);
    home
}

async fn load(app: &Arc<App>, name: &str) {
    app.call(Command::LoadModel { name: name.to_owned() }).await.unwrap();
}

async fn model_of(app: &Arc<App>, id: &str) -> ChatModel {
    let shown = conversation(app, id).await.model;
    let Reply::Bootstrap { conversations, .. } = app.call(Command::Bootstrap).await.unwrap() else {
        panic!("no state");
    };
    let listed = conversations.into_iter().find(|row| row.id == id).unwrap();
    assert_eq!(listed.model, shown, "the list says the same");
    shown
}

fn by(name: &str, source: ChatModelSource) -> ChatModel {
    ChatModel { name: Some(name.to_owned()), source, missing: None }
}

fn by_loaded(missing: Option<&str>) -> ChatModel {
    let missing = missing.map(str::to_owned);
    ChatModel { name: None, source: ChatModelSource::App, missing }
}

/// The model that answers, and how many tokens of what it has read before it reads again.
async fn turn(app: &Arc<App>, id: &str) -> (String, u32) {
    let before = messages(app, id).await;
    let answer = answered(app, id, "Go on").await;
    assert_eq!(answer.status, MessageStatus::Complete, "{:?}", answer.error);
    let stats = answer.stats.unwrap();
    let read = before.into_iter().rev().find_map(|message| message.stats).unwrap();
    // The last token before the limit is not run.
    let known = read.prompt_tokens + read.generation_tokens - 1;
    (stats.model, known.saturating_sub(stats.cached_tokens))
}

async fn loaded(app: &Arc<App>) -> (Option<String>, Vec<String>) {
    let Reply::Status { status } = app.call(Command::GetStatus).await.unwrap() else {
        panic!("no status");
    };
    let current = status.models.iter().find(|model| {
        status.model_fingerprint.as_ref().is_some_and(|current| *current == model.fingerprint)
    });
    let current = current.map(|model| model.name.clone());
    (current, status.models.into_iter().map(|model| model.name).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_loaded_elsewhere_changes_no_chat_that_has_begun() {
    let home = home_with_two();
    let (app, id) = open_with_one_turn(&home).await;
    let unasked = new_conversation(&app).await;
    assert_eq!(model_of(&app, &id).await, by(MODEL, ChatModelSource::Answer));
    assert_eq!(model_of(&app, &unasked).await, by_loaded(None));
    load(&app, OTHER_MODEL).await;
    assert_eq!(model_of(&app, &id).await, by(MODEL, ChatModelSource::Answer));

    let Reply::Outlook { outlook: Some(outlook) } =
        app.call(Command::GetOutlook { id: id.clone() }).await.unwrap()
    else {
        panic!("both are in memory")
    };
    assert_eq!((outlook.model.as_str(), outlook.miss), (MODEL, None));
    let context = Command::GetContext { of: ContextOf::Conversation { id: id.clone() } };
    let Reply::Context { context: Some(context) } = app.call(context).await.unwrap() else {
        panic!("both are in memory")
    };
    assert_eq!(context.model, MODEL);
    assert_eq!(turn(&app, &id).await, (MODEL.to_owned(), 0));
    assert_eq!(loaded(&app).await.0.as_deref(), Some(OTHER_MODEL), "new chats begin with it");
    assert_eq!(answered(&app, &unasked, "Hello").await.model.as_deref(), Some(OTHER_MODEL));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_with_two_models_alternate_and_each_keeps_its_place() {
    let home = home_with_two();
    let (app, first) = open_with_one_turn(&home).await;
    load(&app, OTHER_MODEL).await;
    let second = new_conversation(&app).await;
    answered(&app, &second, "Hello").await;
    for _ in 0..2 {
        assert_eq!(turn(&app, &first).await, (MODEL.to_owned(), 0));
        assert_eq!(turn(&app, &second).await, (OTHER_MODEL.to_owned(), 0));
    }
    // Also when nothing is loaded, and after a restart.
    app.call(Command::UnloadModel).await.unwrap();
    assert_eq!(turn(&app, &second).await, (OTHER_MODEL.to_owned(), 0));
    app.close().await;
    drop(app);
    let app = open_greedy(&home, 8).await;
    assert_eq!(turn(&app, &first).await, (MODEL.to_owned(), 0));
    assert_eq!(turn(&app, &second).await, (OTHER_MODEL.to_owned(), 0));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_room_for_one_model_a_chat_has_its_own_loaded_again() {
    const GB: u64 = 1_000_000_000;
    let home = Script::endless("abcdefghijklmnopq rstuvwxyz,.").home();
    script::add_claiming(&home, OTHER_MODEL, GB);
    let options = Options { memory_limit_bytes: Some(GB * 3 / 2), ..options(home.path()) };
    let app = App::open(options).await.unwrap();
    for (key, value) in [("max_tokens", 20), ("cache_budget_bytes", 1 << 30)] {
        set_for_all(&app, key, value).await;
    }
    set_for_all(&app, "holds_loops", false).await;
    let mut ids = Vec::new();
    for model in [script::MODEL, OTHER_MODEL] {
        load(&app, model).await;
        let id = new_conversation(&app).await;
        answered(&app, &id, &"a long story ".repeat(20)).await;
        ids.push((id, model));
    }
    for (id, model) in ids.iter().chain(&ids) {
        assert_eq!(turn(&app, id).await, ((*model).to_owned(), 0));
        assert_eq!(loaded(&app).await, (Some((*model).to_owned()), vec![(*model).to_owned()]));
    }
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_chosen_in_a_chat_holds_before_its_last_answer() {
    let home = home_with_two();
    let (app, id) = open_with_one_turn(&home).await;
    check_failure(
        &app,
        Command::ChooseModel { id: id.clone(), model: Some("none".to_owned()) },
        FailureCode::NotFound,
        "none",
    )
    .await;
    assert_eq!(model_of(&app, &id).await, by(MODEL, ChatModelSource::Answer));
    let mut events = app.subscribe();
    choose_model(&app, &id, Some(OTHER_MODEL)).await;
    let chosen = by(OTHER_MODEL, ChatModelSource::Chat);
    // The row may be sent for another reason first.
    let is_told = |event| {
        matches!(event, Event::Conversation { conversation } if conversation.model == chosen)
            .then_some(())
    };
    until(&mut events, is_told).await;
    assert_eq!(loaded(&app).await.1, [MODEL], "nothing is loaded for it before it is asked");
    assert_eq!(answered(&app, &id, "Two").await.model.as_deref(), Some(OTHER_MODEL));

    // The branch with the first answer too, in a copy, and after a restart.
    let first = messages(&app, &id).await[1].id.clone();
    let branch = Command::BranchConversation {
        conversation_id: id.clone(),
        message_id: first,
        title: "Copy".to_owned(),
    };
    let Reply::Conversation { conversation: copy, .. } = app.call(branch).await.unwrap() else {
        panic!("no copy")
    };
    assert_eq!(copy.model, chosen);
    app.close().await;
    drop(app);
    let app = open(&home).await;
    assert_eq!(model_of(&app, &id).await, chosen);
    choose_model(&app, &copy.id, None).await;
    assert_eq!(model_of(&app, &copy.id).await, by(MODEL, ChatModelSource::Answer));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_of_the_model_that_the_window_named_before() {
    let home = home_with_two();
    let (app, id) = open_with_one_turn(&home).await;
    let regenerate = async |model: Option<&str>| -> Message {
        let mut events = app.subscribe();
        let command = Command::Regenerate {
            conversation_id: id.clone(),
            message_id: None,
            model: model.map(str::to_owned),
        };
        let Reply::Sent { messages, .. } = app.call(command).await.unwrap() else {
            panic!("not begun")
        };
        ended(&mut events, &messages.last().unwrap().id).await
    };
    let first = messages(&app, &id).await[1].id.clone();
    assert_eq!(regenerate(Some(OTHER_MODEL)).await.model.as_deref(), Some(OTHER_MODEL));
    load(&app, MODEL).await;
    assert_eq!(model_of(&app, &id).await, by(OTHER_MODEL, ChatModelSource::Answer));
    assert_eq!(regenerate(None).await.model.as_deref(), Some(OTHER_MODEL));
    // The branch on screen says whose the next answer is.
    let show = Command::ShowVersion { conversation_id: id.clone(), message_id: first };
    app.call(show).await.unwrap();
    assert_eq!(model_of(&app, &id).await, by(MODEL, ChatModelSource::Answer));
    assert_eq!(regenerate(None).await.model.as_deref(), Some(MODEL));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_gone_is_passed_over_and_named() {
    let home = home_with_two();
    let (app, id) = open_with_one_turn(&home).await;
    choose_model(&app, &id, Some(OTHER_MODEL)).await;
    app.call(Command::DeleteModel { name: OTHER_MODEL.to_owned() }).await.unwrap();
    let missing = Some(OTHER_MODEL.to_owned());
    let expected = ChatModel { missing, ..by(MODEL, ChatModelSource::Answer) };
    assert_eq!(model_of(&app, &id).await, expected);
    app.call(Command::RestoreModel { name: OTHER_MODEL.to_owned() }).await.unwrap();
    assert_eq!(model_of(&app, &id).await, by(OTHER_MODEL, ChatModelSource::Chat));
    // Once another has answered, that is the chat's.
    app.call(Command::DeleteModel { name: OTHER_MODEL.to_owned() }).await.unwrap();
    assert_eq!(model_of(&app, &id).await, expected);
    assert_eq!(answered(&app, &id, "Still there?").await.model.as_deref(), Some(MODEL));
    assert_eq!(model_of(&app, &id).await, by(MODEL, ChatModelSource::Answer));
    app.call(Command::RestoreModel { name: OTHER_MODEL.to_owned() }).await.unwrap();
    choose_model(&app, &id, None).await;

    // The one that it was with; the loaded one answers then.
    app.call(Command::DeleteModel { name: MODEL.to_owned() }).await.unwrap();
    assert_eq!(model_of(&app, &id).await, by_loaded(Some(MODEL)));
    load(&app, OTHER_MODEL).await;
    assert_eq!(answered(&app, &id, "Two").await.model.as_deref(), Some(OTHER_MODEL));
    assert_eq!(model_of(&app, &id).await, by(OTHER_MODEL, ChatModelSource::Answer));
    app.close().await;
}

/// What is said of a chat's model without having been asked.
async fn told(events: &mut Receiver<Event>, id: &str) -> ChatModel {
    loop {
        let Event::ChatModels { models } = next(events).await else { continue };
        if let Some(told) = models.into_iter().find(|told| told.conversation_id == id) {
            return told.model;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_chat_is_told_its_model_when_models_come_and_go_and_folders_change() {
    let home = home_with_two();
    let (app, id) = open_with_one_turn(&home).await;
    let Reply::Folder { folder } =
        app.call(Command::CreateFolder { name: "Letters".to_owned() }).await.unwrap()
    else {
        panic!("none")
    };
    let begun = Command::NewConversationIn { folder_id: folder.id.clone() };
    let Reply::Conversation { conversation: letter, .. } = app.call(begun).await.unwrap() else {
        panic!("none")
    };
    let mut events = app.subscribe();
    app.call(Command::DeleteModel { name: MODEL.to_owned() }).await.unwrap();
    assert_eq!(told(&mut events, &id).await, by_loaded(Some(MODEL)));
    app.call(Command::RestoreModel { name: MODEL.to_owned() }).await.unwrap();
    assert_eq!(told(&mut events, &id).await, by(MODEL, ChatModelSource::Answer));

    let change = |model: Option<&str>| Command::ChangeFolder {
        id: folder.id.clone(),
        name: folder.name.clone(),
        system_prompt: String::new(),
        model: model.map(str::to_owned),
    };
    app.call(change(Some(OTHER_MODEL))).await.unwrap();
    let of_folder = by(OTHER_MODEL, ChatModelSource::Folder);
    assert_eq!(told(&mut events, &letter.id).await, of_folder);
    app.call(Command::DeleteFolder { id: folder.id.clone() }).await.unwrap();
    assert_eq!(told(&mut events, &letter.id).await, by_loaded(None));
    app.call(Command::RestoreFolder { id: folder.id.clone() }).await.unwrap();
    assert_eq!(told(&mut events, &letter.id).await, of_folder);
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn personas_and_folders_name_a_model_and_settings_are_those_of_the_model() {
    let home = home_with_two();
    let app = open_greedy(&home, 8).await;
    load(&app, MODEL).await;
    let persona = Command::CreatePersona {
        name: "Poet".to_owned(),
        system_prompt: String::new(),
        model: Some(OTHER_MODEL.to_owned()),
        values: Default::default(),
    };
    let Reply::Persona { persona } = app.call(persona).await.unwrap() else { panic!("none") };
    let begun = Command::NewConversationAs { persona_id: persona.id };
    let Reply::Conversation { conversation: poem, .. } = app.call(begun).await.unwrap() else {
        panic!("none")
    };
    assert_eq!(poem.model, by(OTHER_MODEL, ChatModelSource::Chat));

    let made = Command::CreateFolder { name: "Letters".to_owned() };
    let Reply::Folder { folder } = app.call(made).await.unwrap() else { panic!("none") };
    let change = Command::ChangeFolder {
        id: folder.id.clone(),
        name: folder.name,
        system_prompt: String::new(),
        model: Some(OTHER_MODEL.to_owned()),
    };
    app.call(change).await.unwrap();
    let scope = SettingTarget::Model { name: OTHER_MODEL.to_owned() };
    for (key, value) in [("system_prompt", "Be brief.".into()), ("top_k", 7.into())] {
        let set = Command::SetSetting { scope: scope.clone(), key: key.to_owned(), value };
        app.call(set).await.unwrap();
    }
    let begun = Command::NewConversationIn { folder_id: folder.id };
    let Reply::Conversation { conversation: letter, .. } = app.call(begun).await.unwrap() else {
        panic!("none")
    };
    assert_eq!(letter.model, by(OTHER_MODEL, ChatModelSource::Folder));
    assert_eq!(letter.system_prompt, "Be brief.", "that of the folder's model");
    let scope = SettingTarget::Chat { id: letter.id.clone() };
    let Reply::Settings { resolved } = app.call(Command::GetSettings { scope }).await.unwrap()
    else {
        panic!("none")
    };
    assert_eq!(resolved.settings.top_k, 7);
    assert_eq!(answered(&app, &letter.id, "Hello").await.model.as_deref(), Some(OTHER_MODEL));
    assert_eq!(model_of(&app, &letter.id).await, by(OTHER_MODEL, ChatModelSource::Answer));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_chat_keeps_its_model_too() {
    let home = home_with_two();
    let app = open_greedy(&home, 8).await;
    load(&app, MODEL).await;
    let begun = app.call(Command::NewPrivateConversation).await.unwrap();
    let Reply::Conversation { conversation, .. } = begun else { panic!("none") };
    choose_model(&app, &conversation.id, Some(OTHER_MODEL)).await;
    assert_eq!(answered(&app, &conversation.id, "Hello").await.model.as_deref(), Some(OTHER_MODEL));
    choose_model(&app, &conversation.id, None).await;
    load(&app, MODEL).await;
    let answer = answered(&app, &conversation.id, "More").await;
    assert_eq!(answer.model.as_deref(), Some(OTHER_MODEL));
    app.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_models_one_is_proposed_and_answers_a_chat_without_a_model() {
    let home = home_with_two();
    let app = open_greedy(&home, 4).await;
    let proposed = async || {
        let models = bootstrap(&app).await.2;
        let mut proposed = models.into_iter().filter(|model| model.is_proposed);
        let name = proposed.next().unwrap().name;
        assert!(proposed.next().is_none(), "one at most");
        name
    };
    // Nobody has used one: the smallest, of models of which is not known whether they fit.
    let first = proposed().await;
    assert_eq!(loaded(&app).await, (None, vec![]), "nothing is loaded before somebody asks");
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, "Hello").await.model, Some(first.clone()));

    let other = [MODEL, OTHER_MODEL].into_iter().find(|name| *name != first).unwrap();
    let mut events = app.subscribe();
    load(&app, other).await;
    // The list says so by itself.
    while !matches!(next(&mut events).await, Event::Models { models }
        if models.iter().any(|model| model.is_proposed && model.name == other))
    {}
    app.call(Command::UnloadModel).await.unwrap();
    assert_eq!(proposed().await, other);
    let id = new_conversation(&app).await;
    assert_eq!(answered(&app, &id, "Hello").await.model.as_deref(), Some(other));

    set_for_all(&app, "default_model", first.as_str()).await;
    assert_eq!(proposed().await, first);
    app.close().await;
}
