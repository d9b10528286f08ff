//! Forged files: verification recomputes an import from its tokens, and an import that was not
//! verified is reused only by conversations that start from it.

use cairn_chat::{Message, Role};
use cairn_engine::{
    GenerateRequest, Import, KvCacheOptions, PromptFileInfo, PromptInput, PromptPrefix,
};
use cairn_prompt_cache::Provenance;

use super::{ImportFixture, OWNER, plain, quantized};
use crate::client::{Answer, finish, request};
use crate::file_parts::Parts;

/// Verification accepts an undamaged file, whose conversation continues from it, and refuses the
/// file with any array altered, with its tokens swapped, and with the arrays of another prompt.
async fn check_verification(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) {
    let fixture = ImportFixture::of(case, num_tokens, kv_cache).await;
    check_continued(&fixture, case, kv_cache).await;
    fixture.clear().await;
    check_altered_arrays(&fixture, case, kv_cache == plain()).await;

    let mut swapped = fixture.parts.clone();
    let mut tokens = fixture.tokens.clone();
    tokens.swap(1, num_tokens as usize - 2);
    swapped.set_metadata("cairn_token_ids", listed(&tokens));
    check_refused(&fixture, swapped, &format!("{case}: tokens swapped")).await;

    let mut foreign = fixture.parts.clone();
    let other = ImportFixture::of(case, num_tokens + 1, kv_cache).await;
    foreign.set_metadata("cairn_token_ids", listed(&other.tokens[1..]));
    check_refused(&fixture, foreign, &format!("{case}: another prompt")).await;
}

/// Token ids as the metadata lists them.
fn listed(tokens: &[u32]) -> String {
    tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Imports the undamaged file with verification, and checks that a request for its tokens reuses
/// all of them and gets the answer that it gets without the prompt cache.
async fn check_continued(fixture: &ImportFixture, case: &str, kv_cache: KvCacheOptions) {
    let num_tokens = fixture.tokens.len();
    assert_eq!(fixture.import(true).await, Ok(num_tokens), "{case}, undamaged");
    let found = answer(fixture, kv_cache, true).await.finished;
    assert_eq!(found.stats.num_cached_tokens, num_tokens, "{case}: {:?}", found.miss);
    // The numbers of quantized caches depend on how a prompt was divided into chunks.
    if kv_cache == plain() {
        let uncached = answer(fixture, kv_cache, false).await.finished;
        assert_eq!(found.token_ids, uncached.token_ids, "{case}: the answer after an import");
    }
}

/// The answer to the fixture's tokens and a few more.
async fn answer(
    fixture: &ImportFixture,
    kv_cache: KvCacheOptions,
    use_prompt_cache: bool,
) -> Answer {
    let prompt = [&fixture.tokens[..], &[5, 6, 7]].concat();
    let request =
        GenerateRequest { kv_cache, use_prompt_cache, ignore_eos: true, ..request(&prompt, 8) };
    finish(&mut fixture.engine.generate(request)).await.expect("an answer")
}

/// The names of all arrays of f32 numbers.
fn f32_arrays(parts: &Parts) -> Vec<String> {
    let arrays = parts.tensors.iter().filter(|tensor| tensor.dtype == "F32");
    arrays.map(|tensor| tensor.name.clone()).collect()
}

/// Alters every array in turn: all of its numbers, and a single one.
async fn check_altered_arrays(fixture: &ImportFixture, case: &str, is_plain: bool) {
    for name in &f32_arrays(&fixture.parts) {
        let mut altered = fixture.parts.clone();
        altered.tensor(name).edit(|numbers| numbers.reverse());
        check_refused(fixture, altered, &format!("{case}: all of {name}")).await;
        // In quantized caches after the first layer, a change of one number of one token is within
        // rounding.
        if !is_plain && !name.starts_with("0.") {
            continue;
        }
        let mut altered = fixture.parts.clone();
        altered.tensor(name).edit(|numbers| {
            let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
            numbers[numbers.len() / 2] += largest;
        });
        check_refused(fixture, altered, &format!("{case}: one number of {name}")).await;
    }
}

/// Checks that verification refuses `parts`, and that nothing of them is stored.
async fn check_refused(fixture: &ImportFixture, parts: Parts, what: &str) {
    parts.write(&fixture.file);
    let message =
        fixture.import(true).await.err().unwrap_or_else(|| panic!("{what} is not noticed"));
    assert!(
        message.contains("its contents are not what the model computes from its tokens"),
        "{what}: {message}"
    );
    fixture.check_is_empty(what).await;
}

/// Imports a file with altered arrays, not verified. A request for the same tokens that does not
/// start from the import must not reuse it: it gets the answer of a computed cache.
async fn check_namespaces(case: &str, kv_cache: KvCacheOptions) -> (ImportFixture, PromptFileInfo) {
    let fixture = ImportFixture::of(case, 40, kv_cache).await;
    let expected = answer(&fixture, kv_cache, false).await.finished;
    let mut altered = fixture.parts.clone();
    for name in f32_arrays(&fixture.parts) {
        altered.tensor(&name).edit(|numbers| numbers.reverse());
    }
    altered.write(&fixture.file);
    let import = Import { owner: OWNER.clone(), check: false };
    let imported = fixture.engine.import_prompt_file(&fixture.file, import).await.expect("imports");
    assert!(
        matches!(imported.namespace.provenance, Provenance::Import(_)),
        "{case}: {:?}",
        imported.namespace
    );
    for turn in 0..2 {
        fixture.engine.forget_conversations().await;
        let found = answer(&fixture, kv_cache, true).await.finished;
        // The second time, the caches that the first one computed are reused.
        let num_computed = turn * (expected.stats.num_prompt_tokens - 1);
        assert_eq!(found.stats.num_cached_tokens, num_computed, "{case}, {turn}");
        assert_eq!(found.token_ids, expected.token_ids, "{case}, {turn}");
    }
    (fixture, imported)
}

/// A conversation continues the import, and continues again after its own first turn.
async fn check_continues_unverified(fixture: &ImportFixture, imported: PromptFileInfo) {
    let question = Message { role: Role::User, content: "AND".to_owned(), token_ids: None };
    let prefix = PromptPrefix {
        num_tokens: imported.num_tokens,
        token_ids: imported.token_ids,
        kind: imported.kind,
        kv_format: imported.namespace.kv_format,
        provenance: imported.namespace.provenance,
    };
    let after = PromptInput::After { prefix, messages: vec![question] };
    let mut held = imported.num_tokens;
    for turn in 0..2 {
        fixture.engine.forget_conversations().await;
        let ask = GenerateRequest {
            max_tokens: 4,
            ignore_eos: true,
            ..GenerateRequest::new(after.clone())
        };
        let found = finish(&mut fixture.engine.generate(ask)).await.expect("an answer").finished;
        assert_eq!(found.stats.num_cached_tokens, held, "turn {turn}: {:?}", found.miss);
        held = found.stats.num_prompt_tokens - 1;
    }
}

#[tokio::test]
async fn an_unverified_import_is_reused_only_by_conversations_that_start_from_it() {
    let (fixture, imported) = check_namespaces("llama/tiny-chat", plain()).await;
    check_continues_unverified(&fixture, imported).await;
    check_namespaces("qwen3_moe/quant4", quantized(8, 32)).await;
}

#[tokio::test]
async fn verification_detects_altered_keys_and_values() {
    check_verification("llama/tiny-chat", 40, plain()).await;
    check_verification("llama/dense-bf16", 40, plain()).await;
    check_verification("llama/quant4-tied", 40, plain()).await;
}

#[tokio::test]
async fn verification_detects_altered_windows_and_states() {
    // Longer than the window, and shorter.
    check_verification("gemma3_text/long-prompt", 40, plain()).await;
    check_verification("gemma3_text/long-prompt", 5, plain()).await;
    for case in [
        "qwen3_next/dense",
        "mamba2/dense",
        "falcon_h1/dense",
        "lfm2/dense",
        "granitemoehybrid/dense",
        "jamba/dense",
        "nemotron_h/dense",
    ] {
        check_verification(case, 40, plain()).await;
    }
}

#[tokio::test]
async fn verification_detects_altered_quantized_keys_and_values() {
    check_verification("qwen3_moe/quant4", 40, quantized(8, 32)).await;
    check_verification("qwen3_moe/quant4", 40, quantized(4, 32)).await;
}

#[tokio::test]
async fn verification_accepts_rounding_but_not_the_numbers_of_another_token() {
    async fn check(case: &str, num_tokens: u32, kv_cache: KvCacheOptions) {
        let fixture = ImportFixture::of(case, num_tokens, kv_cache).await;
        assert_eq!(fixture.import(true).await, Ok(num_tokens as usize), "{case}, undamaged");
        fixture.clear().await;
        // One token among many, and only after the first layer, where a few numbers may differ.
        let mut altered = fixture.parts.clone();
        let is_row = |parts: &Parts, index: usize| {
            let tensor = &parts.tensors[index];
            !tensor.name.starts_with("0.")
                && tensor.shape.len() == 4
                && tensor.shape[2] == u64::from(num_tokens)
        };
        let rows: Vec<usize> =
            (0..altered.tensors.len()).filter(|&index| is_row(&fixture.parts, index)).collect();
        assert!(rows.len() >= 2, "{case}");
        for index in rows {
            altered.tensors[index].copy_token(7, num_tokens as usize - 9);
        }
        check_refused(
            &fixture,
            altered,
            &format!("{case}, {kv_cache:?}: one token of {num_tokens}"),
        )
        .await;
    }
    check("llama/tiny-chat", 400, plain()).await;
    check("llama/dense-bf16", 100, plain()).await;
    check("qwen3_moe/dense", 400, plain()).await;
    check("qwen3_moe/quant4", 100, quantized(8, 32)).await;
}

#[tokio::test]
async fn a_cancelled_verification_ends_and_imports_nothing() {
    // With recurrent states all tokens are computed again.
    let fixture = ImportFixture::of("qwen3_next/dense", 1500, plain()).await;
    let import = Import { owner: OWNER.clone(), check: true };
    tokio::select! {
        biased;
        imported = fixture.engine.import_prompt_file(&fixture.file, import) => panic!("it has not even begun: {imported:?}"),
        () = std::future::ready(()) => {}
    }
    fixture.check_is_empty("a cancelled import").await;
    assert_eq!(fixture.import(true).await, Ok(1500));
}

#[tokio::test]
async fn the_namespace_of_an_unverified_import_is_the_hash_of_its_contents() {
    let fixture = ImportFixture::of("llama/tiny-chat", 30, plain()).await;
    let provenance = async |parts: &Parts| {
        parts.write(&fixture.file);
        let import = Import { owner: OWNER.clone(), check: false };
        fixture
            .engine
            .import_prompt_file(&fixture.file, import)
            .await
            .expect("imports")
            .namespace
            .provenance
    };
    for lists_tokens in [true, false] {
        let mut unaltered = fixture.parts.clone();
        if !lists_tokens {
            unaltered.remove_cairn_metadata();
        }
        let name = provenance(&unaltered).await;
        let mut with_capacity = unaltered.clone();
        for tensor in with_capacity.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 4) {
            let head_bytes = tensor.bytes.len() / 2;
            tensor.bytes = tensor
                .bytes
                .chunks(head_bytes)
                .flat_map(|head| [head, &[1; 5 * 16 * 4]].concat())
                .collect();
            tensor.shape[2] += 5;
        }
        assert_eq!(
            provenance(&with_capacity).await,
            name,
            "spare capacity is not part of the contents"
        );
        let mut titled = unaltered.clone();
        titled.set_metadata("cairn_title", "Another");
        assert_ne!(provenance(&titled).await, name);
        let mut altered = unaltered.clone();
        altered.tensor("1.1").edit(|numbers| numbers[5] += 1.0);
        assert_ne!(provenance(&altered).await, name);
        let mut swapped = unaltered.clone();
        let keys = swapped.tensor("0.0").bytes.clone();
        let values = std::mem::replace(&mut swapped.tensor("0.1").bytes, keys);
        swapped.tensor("0.0").bytes = values;
        assert_ne!(provenance(&swapped).await, name);
    }
}

#[tokio::test]
async fn every_token_of_a_long_file_is_verified() {
    let fixture = ImportFixture::of("llama/tiny-chat", 3000, plain()).await;
    assert_eq!(fixture.import(true).await, Ok(3000));
    fixture.clear().await;
    for token in [0, 1234, 2999] {
        let mut altered = fixture.parts.clone();
        let head_dim = altered.tensor("1.1").shape[3] as usize;
        let row = token * head_dim..(token + 1) * head_dim;
        altered
            .tensor("1.1")
            .edit(|numbers| numbers[row].iter_mut().for_each(|number| *number += 20.0));
        check_refused(&fixture, altered, &format!("token {token}")).await;
    }
}
