//! Who holds a place keeps it; who lets go of it does not; and what had to be read again is
//! explained at the next turn.

use cairn_chat::Message;
use cairn_engine::{CacheNode, GenerateRequest};
use tempfile::TempDir;

use crate::keeper::{
    Budgets, CachedItem, Keeper, ON_DISK, ROOMY, Talk, ask, fresh_folder, num_held, talker,
};
use crate::scripted::{Scripted, text_ids};

const OWNER: &str = "conversation/1";
const OTHER: &str = "conversation/2";
const NAMED: &str = "named/1";
const SYSTEM: &str = "YOU ANSWER BRIEFLY AND ALWAYS POLITELY.";

/// Two conversations with one system prompt, each of a turn.
struct Scene {
    keeper: Keeper,
    talk: Talk,
    held: usize,
    other: Talk,
    other_held: usize,
    /// The tokens that the two share.
    shared: usize,
    _place: TempDir,
    model: Scripted,
}

async fn scene() -> Scene {
    let model = Scripted::endless();
    let place = fresh_folder();
    let mut keeper =
        Keeper::start(model.folder(), place.path(), ON_DISK, CachedItem::default()).await;
    let (mut talk, mut other) = (Talk::new(SYSTEM), Talk::new(SYSTEM));
    let first = keeper.answer(ask(talk.asking("What is a cairn?"), OWNER)).await;
    talk.add("What is a cairn?", &first);
    let second = keeper.answer(ask(other.asking("Tell me who builds them."), OTHER)).await;
    other.add("Tell me who builds them.", &second);
    keeper.settle().await;
    let shared = second.finished.stats.num_cached_tokens;
    Scene {
        keeper,
        talk,
        held: num_held(&first),
        other,
        other_held: num_held(&second),
        shared,
        _place: place,
        model,
    }
}

impl Scene {
    /// What the next question of the first conversation finds, without keeping anything new.
    async fn next(&self) -> (usize, Option<String>) {
        self.found(self.talk.asking("And then?"), OWNER).await
    }

    async fn found(&self, messages: Vec<Message>, owner: &str) -> (usize, Option<String>) {
        self.keeper.engine.forget_conversations().await;
        let stats = self.keeper.answer(ask(messages, owner)).await.finished.stats;
        (stats.num_cached_tokens, stats.cache_note)
    }
}

#[tokio::test]
async fn a_pinned_conversation_stays_whatever_the_budget() {
    let mut scene = scene().await;
    scene.keeper.window().pin(OWNER, true);
    scene.keeper.engine.set_cache_budgets(0, 0);
    scene.keeper.settle().await;
    assert!(scene.keeper.kept.refs[OWNER].is_pinned);
    assert_eq!(
        (scene.keeper.kept.refs[OWNER].num_tokens, &scene.keeper.kept.refs[OWNER].loss),
        (scene.held, &None)
    );
    assert_eq!(scene.keeper.kept.refs[OTHER].num_tokens, scene.shared);
    assert_eq!(scene.keeper.window().tokens(OWNER).len(), scene.held);
    assert_eq!(scene.next().await, (scene.held, None));

    scene.keeper.window().pin(OWNER, false);
    scene.keeper.engine.set_cache_budgets(0, 0);
    scene.keeper.settle().await;
    assert!(scene.keeper.kept.rows.is_empty());
    assert_eq!(scene.keeper.kept.refs[OWNER].chunk_key, None);
}

#[tokio::test]
async fn a_purge_removes_what_only_its_owner_holds() {
    let mut scene = scene().await;
    let bytes: u64 = scene.keeper.window().path(OWNER)[1..].iter().map(|record| record.bytes).sum();
    assert_eq!(scene.keeper.window().purge(OWNER), bytes);
    scene.keeper.settle().await;
    assert_eq!(scene.keeper.reasons, ["removed by hand"]);
    assert_eq!(scene.keeper.window().purge(OWNER), 0, "nothing is its own any more");
    assert_eq!(scene.found(scene.other.asking("Why?"), OTHER).await, (scene.other_held, None));
    let (cached, note) = scene.next().await;
    assert_eq!(cached, scene.shared);
    assert!(note.is_some_and(|note| note.ends_with(" tokens: removed by hand, a moment ago")));
    // It ran last, and is in memory as it was left.
    assert!(scene.keeper.window().purge(OWNER) > 0);
    assert_eq!(scene.next().await.0, scene.shared);
}

#[tokio::test]
async fn a_name_keeps_what_a_conversation_was_when_it_was_saved() {
    let mut scene = scene().await;
    let window = scene.keeper.window();
    assert!(!window.copy_ref("nobody", NAMED, true));
    assert!(window.copy_ref(OWNER, NAMED, true));
    assert_eq!(window.path(NAMED), window.path(OWNER));
    // The conversation goes on, and is purged: its name keeps the rest.
    let next = scene.keeper.answer(ask(scene.talk.asking("And then?"), OWNER)).await;
    scene.keeper.settle().await;
    assert_eq!(scene.keeper.kept.refs[OWNER].num_tokens, num_held(&next));
    assert!(scene.keeper.window().purge(OWNER) > 0);
    scene.keeper.settle().await;
    assert_eq!(
        (scene.keeper.kept.refs[NAMED].num_tokens, scene.keeper.kept.refs[OWNER].num_tokens),
        (scene.held, scene.held)
    );
    // Clearing and budgets go round it.
    assert!(scene.keeper.window().clear() > 0);
    scene.keeper.engine.set_cache_budgets(0, 0);
    scene.keeper.settle().await;
    assert_eq!(scene.keeper.kept.refs[NAMED].loss, None);
    assert_eq!(scene.keeper.kept.refs[OTHER].num_tokens, scene.shared);
    assert_eq!(scene.next().await.0, scene.held);
    // Without the name nothing holds it.
    scene.keeper.window().remove_ref(NAMED);
    assert!(scene.keeper.window().clear() > 0);
    scene.keeper.settle().await;
    assert!(scene.keeper.kept.rows.is_empty());
}

#[tokio::test]
async fn a_removed_node_takes_what_continues_it() {
    let mut scene = scene().await;
    let nodes = scene.keeper.window().view(100).nodes;
    let shared: &CacheNode = nodes.iter().find(|node| node.start == 0).expect("the system prompt");
    assert_eq!(shared.token_ids.len(), scene.shared);
    assert_eq!(scene.keeper.window().remove("no such node"), None);
    let all = scene.keeper.window().view(0).disk.0;
    assert_eq!(scene.keeper.window().remove(&shared.key), Some(all));
    scene.keeper.settle().await;
    assert!(scene.keeper.kept.rows.is_empty());
    assert!(
        scene
            .keeper
            .kept
            .refs
            .values()
            .all(|cache_ref| cache_ref.chunk_key.is_none() && cache_ref.loss.is_some())
    );
}

#[tokio::test]
async fn what_was_read_again_is_told_with_its_reason() {
    // The cache was cleared; the budget was spent, two days ago.
    let mut scene = scene().await;
    scene.keeper.window().clear();
    let (cached, note) = scene.next().await;
    assert_eq!(cached, 0);
    assert!(note.is_some_and(|note| note.starts_with("re-read ")
        && note.ends_with(" tokens: the cache was cleared, a moment ago")));
    scene.keeper.engine.set_cache_budgets(0, 0);
    scene.keeper.settle().await;
    let Scene { keeper, talk, model, _place: place, .. } = scene;
    let mut kept = keeper.close().await;
    kept.refs
        .values_mut()
        .filter_map(|cache_ref| cache_ref.loss.as_mut())
        .for_each(|loss| loss.at_ms -= 2 * 86_400_000);
    let mut keeper = Keeper::start(model.folder(), place.path(), ON_DISK, kept).await;
    let next = keeper.answer(ask(talk.asking("And then?"), OWNER)).await;
    let stats = &next.finished.stats;
    let expected = format!(
        "re-read {} tokens: evicted to keep to the disk budget, 2 days ago",
        stats.num_prompt_tokens
    );
    assert_eq!((stats.num_cached_tokens, stats.cache_note.clone()), (0, Some(expected)));

    // The system prompt is another: as long as both agree, it is read from the cache.
    keeper.settle().await;
    let mut changed = talk.clone();
    changed.0[0].content = SYSTEM.replace("BRIEFLY", "AT LENGTH");
    let messages = changed.asking("And then?");
    keeper.engine.forget_conversations().await;
    let answer = keeper.answer(ask(messages, OWNER)).await;
    let stats = &answer.finished.stats;
    let place_of_change =
        "<|im_start|>system\n".len() - "<|im_start|>".len() + 1 + "YOU ANSWER ".len();
    let reread = stats.num_prompt_tokens - place_of_change;
    assert_eq!(
        stats.cache_note,
        Some(format!(
            "re-read {reread} tokens: the system prompt changed at token {place_of_change}"
        ))
    );

    // Files have changed.
    keeper.settle().await;
    let mut kept = keeper.close().await;
    kept.rows.values_mut().for_each(|row| row.file_hash = "0".repeat(64));
    let keeper = Keeper::start(model.folder(), place.path(), ON_DISK, kept).await;
    let stats = keeper.answer(ask(talk.asking("And then?"), OWNER)).await.finished.stats;
    let reason = "a saved part is damaged (its contents have changed since it was written)";
    assert_eq!(
        stats.cache_note,
        Some(format!("re-read {} tokens: {reason}", stats.num_prompt_tokens))
    );
}

#[tokio::test]
async fn a_changed_system_prompt_is_told_where_models_cannot_go_back_to_it() {
    for case in ["gemma3_text/dense", "qwen3_next/dense"] {
        let (model, place) = (talker(case), fresh_folder());
        let keeper =
            Keeper::start(model.path(), place.path(), ON_DISK, CachedItem::default()).await;
        let mut talk = Talk::new(&"AID ME AND LEAD ME HOME. ".repeat(8));
        let first = keeper.answer(ask(talk.asking("FIND A MILE"), OWNER)).await;
        talk.add("FIND A MILE", &first);
        talk.0[0].content.replace_range(120..121, "N");
        let changed = keeper.answer(ask(talk.asking("NO"), OWNER)).await.finished.stats;
        let expected = format!(
            "re-read {} tokens: the system prompt changed at token 122",
            changed.num_prompt_tokens
        );
        assert_eq!((changed.num_cached_tokens, changed.cache_note), (0, Some(expected)), "{case}");
    }
}

#[tokio::test]
async fn another_model_starts_anew_and_the_first_one_resumes() {
    for memory in [0, ROOMY] {
        let (one, two, three) = (
            Scripted::endless(),
            Scripted::new(&text_ids("gfedcba")),
            Scripted::new(&text_ids("gabcdef")),
        );
        let place = fresh_folder();
        let budgets = Budgets { disk: ROOMY, memory };
        let mut keeper =
            Keeper::start(one.folder(), place.path(), budgets, CachedItem::default()).await;
        let mut talk = Talk::new(SYSTEM);
        let first = keeper.answer(ask(talk.asking("What is a cairn?"), OWNER)).await;
        talk.add("What is a cairn?", &first);
        keeper.settle().await;
        assert_eq!(keeper.window().view(0).memory.0 > 0, memory > 0);

        keeper.engine.load("other", two.folder()).await.expect("loads");
        let view = keeper.window().view(0);
        assert!(
            view.memory.0 == 0 && view.disk.0 > 0,
            "a model that goes leaves its conversations on disk: {view:?}"
        );
        let other = keeper
            .answer(GenerateRequest { max_tokens: 3, ..ask(talk.asking("And then?"), OWNER) })
            .await
            .finished
            .stats;
        let expected = format!(
            "re-read {} tokens: it was read by another model, model",
            other.num_prompt_tokens
        );
        assert_eq!((other.num_cached_tokens, other.cache_note), (0, Some(expected)));

        keeper.engine.load("model", one.folder()).await.expect("loads");
        let back = keeper.answer(ask(talk.asking("And then?"), OWNER)).await.finished.stats;
        assert_eq!((back.num_cached_tokens, back.cache_note), (num_held(&first), None));

        // The same name with other weights.
        keeper.settle().await;
        keeper.engine.load("model", three.folder()).await.expect("loads");
        let revised = keeper.answer(ask(talk.asking("And then?"), OWNER)).await.finished.stats;
        assert!(revised.cache_note.is_some_and(|note| {
            note.ends_with("the model's files are of another revision than when it was read")
        }));
    }
}
