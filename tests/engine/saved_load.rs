//! Many conversations at once with budgets for a few: the budgets hold at every moment, and pinned
//! conversations stay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use cairn_engine::{CacheHandle, Engine, GenerateRequest, PromptInput};
use cairn_prompt_cache::Owner;
use cairn_sweeps::long_case;
use tokio::task::JoinSet;

use crate::client::finish;
use crate::scripted::Scripted;
use crate::test_engine::{
    Budgets, CacheRows, Random, Talk, TestEngine, ask, fresh_folder, num_in_caches,
};

/// In a run of `make test`: enough to write several times what the budgets hold.
const NUM_CONVERSATIONS: u64 = 200;
const NUM_WRITERS: u64 = 5;
const BUDGETS: Budgets = Budgets { disk: 400_000, memory: 150_000 };
/// More than the file of any chunk here: 256 bytes per token, fewer than 200 tokens, and a header.
const LARGEST_CHUNK: u64 = 52_000;

const SYSTEMS: [&str; 5] = [
    "You answer briefly.",
    "You answer briefly and always politely.",
    "You are a pirate, and speak of nothing but the sea and of what lies at the ground of it.",
    "Think first.",
    "Be kind.",
];

/// The files of all models with their modification times, which distinguish versions of a file.
fn files(folder: &Path) -> BTreeMap<(PathBuf, SystemTime), u64> {
    let entries = |folder: &Path| {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let files = entries(folder).flat_map(|model| entries(&model).collect::<Vec<_>>());
    // A file that was removed meanwhile is skipped.
    let described = files.filter_map(|path| {
        path.metadata().ok().and_then(|file| Some(((path, file.modified().ok()?), file.len())))
    });
    described.collect()
}

/// The bytes of files that existed at one moment.
fn bytes_at_a_moment(folder: &Path) -> u64 {
    // Files in both of two listings existed between them.
    let (before, after) = (files(folder), files(folder));
    after.iter().filter(|(file, _)| before.contains_key(file)).map(|(_, bytes)| bytes).sum()
}

/// Checks budgets and references over and over until `is_done`, and once more after that.
fn watch(cache: &CacheHandle, folder: &Path, is_done: &AtomicBool) {
    let (mut num_checks, mut is_last) = (0, false);
    while !is_last {
        is_last = is_done.load(Ordering::Relaxed);
        let bytes = bytes_at_a_moment(folder);
        assert!(bytes <= BUDGETS.disk + LARGEST_CHUNK, "{bytes} bytes are on disk");
        let view = cache.view(0);
        assert!(view.disk.0 <= view.disk.1, "{:?} on disk", view.disk);
        // The usages are many, and other threads wait while they are listed.
        for ref_usage in if num_checks % 50 == 0 { cache.ref_usages() } else { Vec::new() } {
            let cache_ref = &ref_usage.cache_ref;
            assert_eq!(
                cache_ref.target.is_some(),
                cache_ref.num_tokens > 0 && ref_usage.num_bytes > 0,
                "{cache_ref:?}"
            );
        }
        num_checks += 1;
        std::thread::yield_now();
    }
}

/// One short conversation; its answer must be exact.
async fn converse(engine: &Engine, random: &mut Random, owner: Owner) {
    let mut talk = Talk::new(SYSTEMS[random.below(SYSTEMS.len())]);
    for _ in 0..=random.below(5) / 4 {
        let words = format!("{} {}", random.below(40), "stone ".repeat(1 + random.below(6)));
        let request =
            GenerateRequest { max_tokens: 1 + random.below(6), ..ask(talk.asking(&words), &owner) };
        let answer = finish(&mut engine.generate(request)).await.expect("an answer");
        talk.add(&words, &answer);
    }
}

fn check_refs(harness: &TestEngine) {
    for ref_usage in harness.handle().ref_usages() {
        let cache_ref = ref_usage.cache_ref;
        let path = harness.handle().path(cache_ref.owner());
        let end = path.last().map(|record| (record.key, record.stop()));
        assert_eq!(
            end,
            cache_ref.target.map(|key| (key, cache_ref.num_tokens)),
            "{}",
            cache_ref.name
        );
        assert_eq!(
            path.iter().map(|record| record.num_tokens()).sum::<usize>(),
            cache_ref.num_tokens,
            "{}",
            cache_ref.name
        );
    }
}

#[tokio::test]
async fn budgets_hold_under_load_and_pinned_conversations_stay() {
    let model = Scripted::endless();
    let temp = fresh_folder();
    let mut harness =
        TestEngine::start(model.folder(), temp.path(), BUDGETS, CacheRows::default()).await;
    let mut pinned = Vec::new();
    for (number, system) in SYSTEMS[..3].iter().enumerate() {
        let (mut talk, owner) = (Talk::new(system), Owner::Named(number.to_string()));
        let answer = harness.answer(ask(talk.asking("What is a cairn?"), &owner)).await;
        talk.add("What is a cairn?", &answer);
        harness.handle().pin(&owner, true);
        pinned.push((talk, owner, num_in_caches(&answer)));
    }

    let is_done = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (cache, folder, is_done) =
            (harness.handle().clone(), temp.path().to_owned(), Arc::clone(&is_done));
        std::thread::spawn(move || watch(&cache, &folder, &is_done))
    };
    let (seed, num_conversations) = long_case(NUM_CONVERSATIONS);
    let mut writers = JoinSet::new();
    for writer in 0..NUM_WRITERS {
        let engine = harness.engine.clone();
        writers.spawn(async move {
            let mut random = Random::new(seed ^ (writer << 32));
            for number in 0..num_conversations / NUM_WRITERS {
                converse(&engine, &mut random, Owner::Conversation(format!("{writer}-{number}")))
                    .await;
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.expect("every answer comes");
    }
    harness.settle().await;
    is_done.store(true, Ordering::Relaxed);
    watcher.join().expect("the budgets hold");
    assert!(harness.most_bytes <= BUDGETS.disk, "the rows took {} bytes", harness.most_bytes);

    let view = harness.handle().view(usize::MAX);
    assert!(view.memory.0 <= view.memory.1 && view.disk.0 <= view.disk.1, "{view:?}");
    assert!(view.disk.0 > view.disk.1 / 2, "{} bytes are used", view.disk.0);
    check_refs(&harness);
    for (talk, owner, held) in &pinned {
        let cache_ref = harness.rows.ref_of(owner);
        assert_eq!(
            (cache_ref.num_tokens, &cache_ref.loss, cache_ref.is_pinned),
            (*held, &None, true)
        );
        harness.drop_residents().await;
        let next = harness.answer(ask(talk.asking("Who builds them?"), owner)).await;
        assert_eq!((next.finished.stats.num_cached_tokens, next.finished.miss), (*held, None));
    }

    // A budget below the pinned bytes: only the pinned chunks stay.
    harness.settle().await;
    harness.engine.set_cache_budgets(0, 0);
    harness.settle().await;
    check_refs(&harness);
    let pinned_keys = pinned
        .iter()
        .flat_map(|(_, owner, _)| harness.handle().path(owner))
        .map(|record| record.key);
    assert_eq!(harness.rows.chunks.keys().copied().collect::<BTreeSet<_>>(), pinned_keys.collect());
    assert!(pinned.iter().all(|(_, owner, held)| harness.rows.ref_of(owner).num_tokens > *held));
}

#[tokio::test]
async fn a_prompt_larger_than_the_budgets_leaves_no_unreachable_chunks() {
    let model = Scripted::endless();
    let temp = fresh_folder();
    for (disk, memory) in
        [(100_000, 0), (100_000, 70_000), (10_000, 100_000), (0, 100_000), (0, 10_000)]
    {
        let budgets = Budgets { disk, memory };
        let mut harness =
            TestEngine::start(model.folder(), temp.path(), budgets, CacheRows::default()).await;
        for first in 1..5 {
            let prompt: Vec<u32> = (0..1200).map(|token| (token * first) % 250).collect();
            let request = GenerateRequest {
                max_tokens: 3,
                ..GenerateRequest::new(PromptInput::Tokens(prompt.clone()))
            };
            let owner = Some(Owner::Conversation(first.to_string()));
            let answer = harness.answer(GenerateRequest { owner, ..request }).await;
            assert_eq!(answer.finished.token_ids, model.answer(&prompt, 3));
            harness.settle().await;
            check_refs(&harness);
            let view = harness.handle().view(usize::MAX);
            assert!(
                view.memory.0 <= view.memory.1 && view.disk.0 <= view.disk.1,
                "{budgets:?}: {view:?}"
            );
            // A chunk in both tiers counts once in the tree.
            let reached: u64 = view.nodes.iter().map(|node| node.bytes).sum();
            let expected = view.disk.0.max(view.memory.0)..=view.disk.0 + view.memory.0;
            assert!(
                expected.contains(&reached),
                "{budgets:?}: {reached} bytes are reached of {expected:?}"
            );
        }
        harness.close().await;
        std::fs::remove_dir_all(temp.path()).expect("removed");
        std::fs::create_dir(temp.path()).expect("made");
    }
}
