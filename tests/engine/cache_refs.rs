//! References protect chunks from purges, and a miss is explained at the next turn.

use std::sync::LazyLock;

use cairn_chat::{Message, PromptEnd, Role, TextPlace, Turn, TurnsPrompt};
use cairn_engine::{CacheHandle, CacheNode, GenerateRequest, PromptInput};
use cairn_prompt_cache::{ChunkFile, ChunkKey, ChunkProblem, LossReason, Miss, MissReason, Owner};
use tempfile::TempDir;

use crate::client::finish;
use crate::scripted::{Scripted, text_ids};
use crate::test_engine::{
    Budgets, CacheRows, ON_DISK, ROOMY, Talk, TestEngine, ask, chat_model, fresh_folder,
    num_in_caches, owner,
};

static OWNER: LazyLock<Owner> = LazyLock::new(|| owner("conversation/1"));
static OTHER: LazyLock<Owner> = LazyLock::new(|| owner("conversation/2"));
static NAMED: LazyLock<Owner> = LazyLock::new(|| owner("named/1"));
const SYSTEM: &str = "YOU ANSWER BRIEFLY AND ALWAYS POLITELY.";

/// Two conversations with one system prompt, each of a turn.
struct Scene {
    harness: TestEngine,
    talk: Talk,
    held: usize,
    other: Talk,
    other_held: usize,
    /// The tokens that the two share.
    shared: usize,
    _temp: TempDir,
    model: Scripted,
}

async fn scene() -> Scene {
    let model = Scripted::endless();
    let temp = fresh_folder();
    let mut harness =
        TestEngine::start(model.folder(), temp.path(), ON_DISK, CacheRows::default()).await;
    let (mut talk, mut other) = (Talk::new(SYSTEM), Talk::new(SYSTEM));
    let first = harness.answer(ask(talk.asking("What is a cairn?"), &OWNER)).await;
    talk.add("What is a cairn?", &first);
    let second = harness.answer(ask(other.asking("Tell me who builds them."), &OTHER)).await;
    other.add("Tell me who builds them.", &second);
    harness.settle().await;
    let shared = second.finished.stats.num_cached_tokens;
    Scene {
        harness,
        talk,
        held: num_in_caches(&first),
        other,
        other_held: num_in_caches(&second),
        shared,
        _temp: temp,
        model,
    }
}

impl Scene {
    /// The cached tokens and the miss of the first conversation's next question, which saves
    /// nothing new.
    async fn next(&self) -> (usize, Option<MissReason>) {
        self.found(self.talk.asking("And then?"), &OWNER).await
    }

    async fn found(&self, messages: Vec<Message>, owner: &Owner) -> (usize, Option<MissReason>) {
        self.harness.engine.forget_conversations().await;
        let answer = self.harness.answer(ask(messages, owner)).await.finished;
        (answer.stats.num_cached_tokens, answer.miss.map(|miss| miss.reason))
    }
}

#[tokio::test]
async fn a_pinned_conversation_is_not_evicted_by_any_budget() {
    let mut scene = scene().await;
    scene.harness.handle().pin(&OWNER, true);
    scene.harness.engine.set_cache_budgets(0, 0);
    scene.harness.settle().await;
    assert!(scene.harness.rows.ref_of(&OWNER).is_pinned);
    assert_eq!(
        (scene.harness.rows.ref_of(&OWNER).num_tokens, &scene.harness.rows.ref_of(&OWNER).loss),
        (scene.held, &None)
    );
    assert_eq!(scene.harness.rows.ref_of(&OTHER).num_tokens, scene.shared);
    assert_eq!(scene.harness.handle().tokens(&OWNER).len(), scene.held);
    assert_eq!(scene.next().await, (scene.held, None));

    scene.harness.handle().pin(&OWNER, false);
    scene.harness.engine.set_cache_budgets(0, 0);
    scene.harness.settle().await;
    assert!(scene.harness.rows.chunks.is_empty());
    assert_eq!(scene.harness.rows.ref_of(&OWNER).target, None);
}

#[tokio::test]
async fn a_purge_removes_the_chunks_that_only_its_owner_refers_to() {
    let mut scene = scene().await;
    let bytes: u64 =
        scene.harness.handle().path(&OWNER)[1..].iter().map(|record| record.num_file_bytes()).sum();
    assert_eq!(scene.harness.handle().purge(&OWNER), bytes);
    scene.harness.settle().await;
    assert_eq!(scene.harness.reasons, [LossReason::Deleted]);
    assert_eq!(scene.harness.handle().purge(&OWNER), 0, "nothing is its own any more");
    assert_eq!(scene.found(scene.other.asking("Why?"), &OTHER).await, (scene.other_held, None));
    let (cached, reason) = scene.next().await;
    assert_eq!(cached, scene.shared);
    assert!(matches!(reason, Some(MissReason::Lost { reason: LossReason::Deleted, .. })));
    // The other conversation ran last and is resident.
    scene.harness.settle().await;
    assert!(scene.harness.handle().purge(&OWNER) > 0);
    assert_eq!(scene.next().await.0, scene.shared);
}

#[tokio::test]
async fn a_copied_reference_keeps_the_conversation_as_it_was() {
    let mut scene = scene().await;
    let cache = scene.harness.handle();
    assert!(!cache.copy_ref(&owner("conversation/nobody"), &NAMED, true));
    assert!(cache.copy_ref(&OWNER, &NAMED, true));
    assert_eq!(cache.path(&NAMED), cache.path(&OWNER));
    // The conversation continues and is purged: the copied reference keeps the earlier part.
    let next = scene.harness.answer(ask(scene.talk.asking("And then?"), &OWNER)).await;
    scene.harness.settle().await;
    assert_eq!(scene.harness.rows.ref_of(&OWNER).num_tokens, num_in_caches(&next));
    assert!(scene.harness.handle().purge(&OWNER) > 0);
    scene.harness.settle().await;
    assert_eq!(
        (
            scene.harness.rows.ref_of(&NAMED).num_tokens,
            scene.harness.rows.ref_of(&OWNER).num_tokens
        ),
        (scene.held, scene.held)
    );
    // Neither clearing nor budgets remove it.
    assert!(scene.harness.handle().clear() > 0);
    scene.harness.engine.set_cache_budgets(0, 0);
    scene.harness.settle().await;
    assert_eq!(scene.harness.rows.ref_of(&NAMED).loss, None);
    assert_eq!(scene.harness.rows.ref_of(&OTHER).num_tokens, scene.shared);
    assert_eq!(scene.next().await.0, scene.held);
    // Without the copied reference nothing refers to the chunks.
    scene.harness.handle().remove_ref(&NAMED);
    assert!(scene.harness.handle().clear() > 0);
    scene.harness.settle().await;
    assert!(scene.harness.rows.chunks.is_empty());
}

#[tokio::test]
async fn a_removed_node_is_removed_with_its_descendants() {
    let mut scene = scene().await;
    let nodes = scene.harness.handle().view(100).nodes;
    let shared: &CacheNode = nodes.iter().find(|node| node.start == 0).expect("the system prompt");
    assert_eq!((shared.num_tokens, shared.token_ids.len()), (scene.shared, scene.shared));
    let unknown = ChunkKey::from_bytes([0; 16]);
    assert_eq!(scene.harness.handle().remove(&unknown), None);
    let all = scene.harness.handle().view(0).disk.0;
    assert_eq!(scene.harness.handle().remove(&shared.key), Some(all));
    scene.harness.settle().await;
    assert!(scene.harness.rows.chunks.is_empty());
    assert!(
        scene
            .harness
            .rows
            .refs
            .values()
            .all(|cache_ref| cache_ref.target.is_none() && cache_ref.loss.is_some())
    );
}

#[tokio::test]
async fn tokens_read_again_are_reported_with_their_reason() {
    // The cache was cleared; the budget was exceeded two days ago.
    let mut scene = scene().await;
    scene.harness.handle().clear();
    let (cached, reason) = scene.next().await;
    assert_eq!(cached, 0);
    assert!(matches!(reason, Some(MissReason::Lost { reason: LossReason::Cleared, .. })));
    // A chunk that waits to be written would be evicted from memory instead.
    scene.harness.settle().await;
    scene.harness.engine.set_cache_budgets(0, 0);
    scene.harness.settle().await;
    let Scene { harness, talk, model, _temp: temp, .. } = scene;
    let mut rows = harness.close().await;
    let losses = rows.refs.values_mut().filter_map(|cache_ref| cache_ref.loss.as_mut());
    losses.for_each(|loss| loss.at_ms = 5);
    let mut harness = TestEngine::start(model.folder(), temp.path(), ON_DISK, rows).await;
    let next = harness.answer(ask(talk.asking("And then?"), &OWNER)).await;
    let stats = &next.finished.stats;
    let reason = MissReason::Lost { reason: LossReason::DiskBudget, at_ms: 5 };
    let expected = Miss { num_tokens: stats.num_prompt_tokens, reason };
    assert_eq!((stats.num_cached_tokens, next.finished.miss), (0, Some(expected)));

    // The system prompt has changed: the common beginning is read from the cache.
    harness.settle().await;
    let mut changed = talk.clone();
    changed.0[0].content = SYSTEM.replace("BRIEFLY", "AT LENGTH");
    let messages = changed.asking("And then?");
    harness.engine.forget_conversations().await;
    let answer = harness.answer(ask(messages, &OWNER)).await;
    let stats = &answer.finished.stats;
    let change_at = "<|im_start|>system\n".len() - "<|im_start|>".len() + 1 + "YOU ANSWER ".len();
    let reason = MissReason::SystemPromptChanged { at_token: change_at };
    let num_tokens = stats.num_prompt_tokens - change_at;
    assert_eq!(answer.finished.miss, Some(Miss { num_tokens, reason }));

    // Files were damaged.
    harness.settle().await;
    let mut rows = harness.close().await;
    for row in rows.chunks.values_mut() {
        row.file = Some(ChunkFile { num_bytes: row.num_file_bytes(), hash: "0".repeat(64).into() });
    }
    let harness = TestEngine::start(model.folder(), temp.path(), ON_DISK, rows).await;
    let answer = harness.answer(ask(talk.asking("And then?"), &OWNER)).await.finished;
    let reason = MissReason::Unusable(ChunkProblem::Damaged(None));
    let num_tokens = answer.stats.num_prompt_tokens;
    assert_eq!(answer.miss, Some(Miss { num_tokens, reason }));
}

#[tokio::test]
async fn a_changed_system_prompt_is_the_reason_even_if_the_caches_cannot_be_trimmed_to_it() {
    for case in ["gemma3_text/dense", "gpt_oss/dense", "qwen3_next/dense"] {
        let (model, temp) = (chat_model(case), fresh_folder());
        let harness =
            TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
        let mut talk = Talk::new(&"AID ME AND LEAD ME HOME. ".repeat(8));
        let first = harness.answer(ask(talk.asking("FIND A MILE"), &OWNER)).await;
        talk.add("FIND A MILE", &first);
        talk.0[0].content.replace_range(120..121, "N");
        let changed = harness.answer(ask(talk.asking("NO"), &OWNER)).await.finished;
        let num_tokens = changed.stats.num_prompt_tokens;
        let reason = MissReason::SystemPromptChanged { at_token: 122 };
        let expected = Some(Miss { num_tokens, reason });
        assert_eq!((changed.stats.num_cached_tokens, changed.miss), (0, expected), "{case}");
    }
}

#[tokio::test]
async fn another_model_reads_everything_again_and_the_first_one_resumes() {
    for memory in [0, ROOMY] {
        let (one, two, three) = (
            Scripted::endless(),
            Scripted::new(&text_ids("gfedcba")),
            Scripted::new(&text_ids("gabcdef")),
        );
        let temp = fresh_folder();
        let budgets = Budgets { disk: ROOMY, memory };
        let mut harness =
            TestEngine::start(one.folder(), temp.path(), budgets, CacheRows::default()).await;
        let mut talk = Talk::new(SYSTEM);
        let first = harness.answer(ask(talk.asking("What is a cairn?"), &OWNER)).await;
        talk.add("What is a cairn?", &first);
        harness.settle().await;

        harness.engine.unload().await.expect("unloads");
        let view = harness.handle().view(0);
        assert!(
            view.memory.0 == 0 && view.disk.0 > 0,
            "a model that goes leaves its conversations on disk: {view:?}"
        );
        harness.engine.load("other", two.folder()).await.expect("loads");
        let other = harness
            .answer(GenerateRequest { max_tokens: 3, ..ask(talk.asking("And then?"), &OWNER) })
            .await
            .finished;
        let num_tokens = other.stats.num_prompt_tokens;
        let reason = MissReason::OtherModel { name: "model".to_owned() };
        let expected = Some(Miss { num_tokens, reason });
        assert_eq!((other.stats.num_cached_tokens, other.miss), (0, expected));

        harness.engine.load("model", one.folder()).await.expect("loads");
        let back = harness.answer(ask(talk.asking("And then?"), &OWNER)).await.finished;
        assert_eq!((back.stats.num_cached_tokens, back.miss), (num_in_caches(&first), None));

        // The same name with other weights.
        harness.settle().await;
        harness.engine.load("model", three.folder()).await.expect("loads");
        let revised = harness.answer(ask(talk.asking("And then?"), &OWNER)).await.finished;
        let reason = revised.miss.map(|miss| miss.reason);
        assert_eq!(reason, Some(MissReason::OtherRevision));
    }
}

/// The same text begins the questions of several requests, each a user's message of two parts.
#[tokio::test]
async fn a_prompt_is_continued_from_its_breakpoint_where_caches_cannot_be_trimmed() {
    let document = "LINE AND LIME CAN HIDE A MELON. ".repeat(6);
    let ask_about = |question: &str, has_breakpoint: bool| {
        let content = format!("{document}{question}");
        let message = Message { role: Role::User, content, token_ids: None };
        let place = TextPlace { turn: 0, num_bytes: document.len() };
        let prompt = TurnsPrompt {
            turns: vec![Turn::Message(message)],
            tools: Vec::new(),
            end: PromptEnd::NewAnswer,
            breakpoints: has_breakpoint.then_some(place).into_iter().collect(),
        };
        GenerateRequest { prompt: PromptInput::Turns(prompt), ..ask(Vec::new(), &OWNER) }
    };
    let mut answers = Vec::new();
    for has_breakpoint in [false, true] {
        let (model, temp) = (chat_model("qwen3_next/dense"), fresh_folder());
        let mut harness =
            TestEngine::start(model.path(), temp.path(), ON_DISK, CacheRows::default()).await;
        harness.answer(ask_about("FIND A MILE AND A HALF OF LIME", has_breakpoint)).await;
        harness.settle().await;
        // What is resident goes; the chunks stay.
        harness.engine.forget_conversations().await;
        let second = harness.answer(ask_about("NAME A LINE", has_breakpoint)).await.finished;
        // Conversations diverge where the user's text begins.
        let num_before = if has_breakpoint { document.len() } else { 0 };
        let expected = "1:".len() + num_before;
        assert_eq!(second.stats.num_cached_tokens, expected);
        answers.push(second.token_ids);
    }
    assert_eq!(answers[0], answers[1]);
}

/// What is done with the saved context of a conversation while a request of it waits behind other work.
/// How many chunks of it are left then, and once what the request has computed is saved.
async fn while_it_waits(
    harness: &mut TestEngine,
    talk: &Talk,
    act: impl FnOnce(&CacheHandle),
) -> (usize, usize) {
    harness.settle().await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let (is_busy, busy) = tokio::sync::oneshot::channel();
    let blocked = harness.engine.submit(None, move |_| {
        let _ = is_busy.send(());
        let _ = wait.recv();
    });
    let asked_meanwhile = async {
        busy.await.expect("the engine is busy");
        let mut generation = harness.engine.generate(ask(talk.asking("And a trail?"), &OWNER));
        act(harness.handle());
        // What another conversation, or a pin, keeps.
        let left = harness.handle().path(&OWNER).len();
        release.send(()).expect("the engine waits");
        (left, finish(&mut generation).await.expect("an answer"))
    };
    let (submitted, (left, answer)) = tokio::join!(blocked, asked_meanwhile);
    submitted.expect("it was run");
    assert!(!answer.finished.token_ids.is_empty(), "it is answered all the same");
    harness.settle().await;
    (left, harness.handle().path(&OWNER).len())
}

#[tokio::test]
async fn what_waits_while_its_conversation_is_purged_saves_nothing() {
    let Scene { mut harness, talk, .. } = scene().await;
    let purge = |handle: &CacheHandle| assert!(handle.purge(&OWNER) > 0);
    let (left, saved) = while_it_waits(&mut harness, &talk, purge).await;
    assert_eq!(saved, left);

    // A purge says nothing about what is asked after it.
    harness.answer(ask(talk.asking("And a trail?"), &OWNER)).await;
    harness.settle().await;
    assert!(harness.handle().path(&OWNER).len() > left);
}

#[tokio::test]
async fn what_waits_while_all_but_pinned_is_deleted_saves_nothing_unless_it_is_pinned() {
    for is_pinned in [false, true] {
        let Scene { mut harness, talk, .. } = scene().await;
        harness.settle().await;
        harness.handle().pin(&OWNER, is_pinned);
        let clear = |handle: &CacheHandle| {
            handle.clear();
        };
        let (left, saved) = while_it_waits(&mut harness, &talk, clear).await;
        assert_eq!((left > 0, saved > left), (is_pinned, is_pinned), "{left} and {saved}");
    }
}
