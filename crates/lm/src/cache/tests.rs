//! Behaviour that all kinds of caches share: masks, trimming, snapshots, quantization,
//! continuation.

use mlx_rs::{Array, ops};

use super::*;
use crate::models::Model;
use crate::nn::attention;
use crate::weights::LoadOptions;

/// Keys, and values, of tokens that all differ; D is 64.
fn tokens(start: i32, stop: i32) -> Array {
    let numbers: Vec<f32> = (start * 128..stop * 128)
        .map(|n| ((n * 37 % 101) as f32 / 101.0) + n as f32 / 8192.0 - 0.5)
        .collect();
    let by_token = Array::from_slice(&numbers, &[1, stop - start, 2, 64]);
    by_token.transpose_axes(&[0, 2, 1, 3]).unwrap().contiguous().unwrap()
}

fn append(cache: &mut LayerCache, length: i32) -> KeysValues {
    let offset = cache.offset() as i32;
    cache
        .update_and_fetch(
            tokens(offset, offset + length),
            ops::negative(tokens(offset, offset + length)).unwrap(),
        )
        .unwrap()
}

fn filled(mut cache: LayerCache, steps: &[i32]) -> LayerCache {
    for &length in steps {
        append(&mut cache, length);
    }
    cache
}

fn kv() -> LayerCache {
    LayerCache::Kv(KvCache::new())
}

fn rotating(max_size: i32, keep: i32) -> LayerCache {
    LayerCache::Rotating(RotatingKvCache::new(max_size, keep))
}

fn quantized() -> LayerCache {
    LayerCache::Quantized(QuantizedKvCache::new(32, 8).unwrap())
}

fn chunked(chunk_size: i32) -> LayerCache {
    LayerCache::Chunked(ChunkedKvCache::new(chunk_size))
}

fn list(entries: Vec<LayerCache>) -> LayerCache {
    LayerCache::List(CacheList::new(entries))
}

fn recurrent() -> LayerCache {
    let mut cache = ArraysCache::new(2);
    cache.set(0, Array::from_slice(&[1.0f32, 2.0], &[1, 2]));
    LayerCache::Arrays(cache)
}

/// What a step of `length` tokens attends to and sees, as bits, so that equal means exact.
fn next(cache: &mut LayerCache, length: i32) -> Vec<Vec<u8>> {
    if let LayerCache::List(list) = cache {
        return list.entries_mut().iter_mut().flat_map(|entry| next(entry, length)).collect();
    }
    if let LayerCache::Arrays(_) = cache {
        return cache.arrays().into_iter().map(bits).collect();
    }
    let mask = cache.attention_step(length, Some(5)).unwrap().mask;
    let mut found = vec![match mask {
        Mask::None => b"none".to_vec(),
        Mask::Causal => b"causal".to_vec(),
        Mask::Array(mask) => bits(&mask),
    }];
    match append(cache, length) {
        KeysValues::Dense { keys, values } => found.extend([keys, values].iter().map(bits)),
        KeysValues::Quantized { keys, values, .. } => {
            found.extend(
                [keys, values]
                    .iter()
                    .flat_map(|side| [bits(&side.packed), bits(&side.scales), bits(&side.biases)]),
            );
        }
        KeysValues::AfterPrefix { .. } => panic!("{cache:?} has one row"),
    }
    found
}

fn bits(array: &Array) -> Vec<u8> {
    crate::ffi::array_bytes(&array.contiguous().unwrap()).unwrap().to_vec()
}

/// A cache that verified `drafts` and was restored continues exactly as one that never did.
fn check_restores(cache: LayerCache, steps: &[i32], drafts: &[i32]) {
    let mut plain = if matches!(cache, LayerCache::List(_) | LayerCache::Arrays(_)) {
        cache
    } else {
        filled(cache, steps)
    };
    plain.arrays().into_iter().try_for_each(Array::eval).unwrap();
    let mut verified = plain.clone();
    for &draft in drafts {
        let snapshot = verified.snap();
        let what = format!("{} after {steps:?} and {draft} tokens of {drafts:?}", plain.kind());
        next(&mut verified, draft);
        // Evaluated, so that MLX performs its in-place writes.
        verified.arrays().into_iter().try_for_each(Array::eval).unwrap();
        verified.restore(snapshot).unwrap();
        assert_eq!(verified.offset(), plain.offset(), "{what}");
        for length in [1, 1, 2] {
            assert!(
                next(&mut verified, length) == next(&mut plain, length),
                "{what} goes on otherwise"
            );
        }
    }
}

#[test]
fn a_restored_cache_goes_on_as_if_nothing_had_been_verified() {
    for drafts in [&[1][..], &[3], &[1, 4, 2], &[9, 9]] {
        check_restores(kv(), &[10, 1], drafts);
        check_restores(kv(), &[255], drafts);
        check_restores(quantized(), &[10, 1], drafts);
        check_restores(quantized(), &[255], drafts);
        check_restores(rotating(8, 0), &[3], drafts);
        check_restores(rotating(8, 0), &[7], drafts);
        // Rotated: single tokens have wrapped around, after a short and after a long prompt.
        check_restores(rotating(8, 0), &[6, 1, 1, 1, 1, 1], drafts);
        check_restores(rotating(8, 2), &[20, 1, 1, 1], drafts);
        check_restores(rotating(8, 2), &[20, 1, 1, 1, 3], drafts);
        check_restores(chunked(4), &[3], drafts);
        check_restores(chunked(4), &[6, 1, 1], drafts);
        check_restores(
            list(vec![filled(kv(), &[6]), filled(rotating(4, 1), &[5, 1])]),
            &[],
            drafts,
        );
        check_restores(list(vec![recurrent(), filled(quantized(), &[5])]), &[], drafts);
        check_restores(recurrent(), &[], drafts);
    }
}

#[test]
fn a_recurrent_state_is_restored_with_its_offset() {
    let mut cache = recurrent();
    let before = bits(cache.arrays()[0]);
    let snapshot = cache.snap();
    let state = cache.state().unwrap();
    state.set(0, Array::from_slice(&[5.0f32, 6.0], &[1, 2]));
    state.advance(3);
    cache.restore(snapshot).unwrap();
    assert_eq!((cache.offset(), bits(cache.arrays()[0])), (0, before));
}

#[test]
fn a_cache_does_not_go_back_to_tokens_that_are_gone() {
    let mut cache = filled(kv(), &[5]);
    let snapshot = cache.snap();
    cache.trim(2);
    assert_eq!(
        cache.restore(snapshot).unwrap_err().what(),
        "a cache of 3 tokens cannot be restored to 5 tokens"
    );
    let snapshot = list(vec![kv()]).snap();
    assert!(cache.restore(snapshot).is_err());
}

/// Trims by each number in turn and compares how many tokens were removed.
fn check_trims(mut caches: Vec<LayerCache>, cases: &[(usize, usize)]) {
    for &(num_tokens, expected) in cases {
        assert_eq!(
            can_trim_prompt_cache(&caches),
            expected > 0 || num_tokens == 0 || caches[0].offset() == 0,
            "{caches:?}"
        );
        let before: Vec<_> = caches.iter().map(LayerCache::offset).collect();
        assert_eq!(
            trim_prompt_cache(&mut caches, num_tokens),
            expected,
            "{} tokens of {before:?}",
            num_tokens
        );
        let after: Vec<_> = caches.iter().map(|cache| cache.offset() + expected).collect();
        assert_eq!(before, after);
    }
}

#[test]
fn caches_are_trimmed_together_or_not_at_all() {
    check_trims(vec![filled(kv(), &[10]), filled(kv(), &[10])], &[(7, 7), (4, 3), (1, 0)]);
    check_trims(vec![filled(quantized(), &[10]), filled(kv(), &[10])], &[(7, 7), (4, 3)]);
    check_trims(vec![filled(rotating(6, 0), &[5])], &[(4, 4)]);
    check_trims(vec![filled(chunked(4), &[10])], &[(4, 4)]);
    check_trims(vec![filled(chunked(4), &[3, 1])], &[(2, 2), (9, 2)]);
    check_trims(vec![list(vec![filled(kv(), &[8]), filled(kv(), &[8])])], &[(5, 5)]);
    check_trims(vec![], &[(0, 0)]);
    let rotated = [
        filled(rotating(6, 0), &[5, 10]),
        filled(rotating(6, 0), &[6]),
        filled(chunked(4), &[5, 1]),
    ];
    for stubborn in rotated.into_iter().chain([recurrent(), list(vec![recurrent(), kv()])]) {
        let mut caches = vec![filled(kv(), &[10]), stubborn];
        assert!(!can_trim_prompt_cache(&caches));
        assert_eq!((trim_prompt_cache(&mut caches, 1), caches[0].offset()), (0, 10));
    }
}

#[test]
fn rows_are_trimmed_together_once_their_padding_has_moved() {
    let mut batch = BatchKvCache::merge(&[KvCache::new(), KvCache::new()]).unwrap();
    let step = |from: i32, length: i32| {
        ops::concatenate(&[tokens(from, from + length), tokens(from, from + length)], 0).unwrap()
    };
    batch.prepare(&[5, 3]);
    batch.update_and_fetch(step(0, 5), step(0, 5)).unwrap();
    assert!(!batch.is_trimmable());
    assert_eq!((batch.trim(1), batch.offsets()), (0, vec![5, 3]));
    batch.finalize().unwrap();
    assert_eq!((batch.trim(2), batch.offsets()), (2, vec![3, 1]));
    assert!(
        bits(batch.extract(1).unwrap().arrays()[0]) == bits(&tokens(0, 1).contiguous().unwrap())
    );
    assert_eq!((batch.trim(usize::MAX), batch.offsets()), (1, vec![2, 0]));
}

#[test]
fn what_was_trimmed_can_be_read_again() {
    for cache in [kv(), quantized(), rotating(64, 4), chunked(64)] {
        let mut plain = filled(cache.clone(), &[10]);
        let mut trimmed = filled(cache, &[10, 1, 1, 1]);
        assert_eq!(trim_prompt_cache(std::slice::from_mut(&mut trimmed), 3), 3);
        for length in [1, 2, 1] {
            assert!(
                next(&mut trimmed, length) == next(&mut plain, length),
                "{} after a trim",
                plain.kind()
            );
        }
    }
}

#[test]
fn copies_are_independent() {
    for cache in [kv(), quantized(), rotating(8, 0), rotating(64, 0), chunked(4)] {
        let mut cache = filled(cache, &[10, 1]);
        let copy = cache.clone();
        cache.arrays().into_iter().try_for_each(Array::eval).unwrap();
        let before: Vec<_> = copy.arrays().into_iter().map(bits).collect();
        cache.trim(1);
        append(&mut cache, 1);
        cache.arrays().into_iter().try_for_each(Array::eval).unwrap();
        assert!(copy.arrays().into_iter().map(bits).eq(before), "{}", cache.kind());
        assert_eq!(copy.offset(), 11);
    }
}

#[test]
fn emptiness_and_size_are_those_of_the_arrays() {
    for cache in [
        kv(),
        quantized(),
        rotating(8, 0),
        chunked(4),
        list(vec![kv(), rotating(8, 0)]),
        LayerCache::Arrays(ArraysCache::new(2)),
    ] {
        assert!(cache.is_empty() && cache.nbytes() == 0 && cache.offset() == 0, "{}", cache.kind());
    }
    let bytes_a_token = 2 * 2 * 64 * 4; // keys and values of two heads
    assert_eq!(filled(kv(), &[1]).nbytes(), 256 * bytes_a_token);
    assert_eq!(filled(rotating(300, 0), &[1]).nbytes(), 256 * bytes_a_token);
    assert_eq!(filled(rotating(8, 0), &[20, 1]).nbytes(), 8 * bytes_a_token);
    // One byte per number, and two f32 for each group of 32.
    assert_eq!(filled(quantized(), &[1]).nbytes(), 256 * bytes_a_token * 5 / 16);
    assert!(!filled(list(vec![recurrent(), kv()]).entries().unwrap()[1].clone(), &[1]).is_empty());
}

#[test]
fn caches_of_one_kind_are_not_used_as_another() {
    let message = |result: Result<KeysValues>| result.unwrap_err().what().to_owned();
    assert_eq!(
        message(recurrent().update_and_fetch(tokens(0, 1), tokens(0, 1))),
        "a recurrent state cannot be used for attention"
    );
    assert_eq!(
        message(list(vec![kv()]).update_and_fetch(tokens(0, 1), tokens(0, 1))),
        "a list of caches cannot be used for attention"
    );
    assert_eq!(
        kv().state().unwrap_err().what(),
        "a cache of keys and values cannot be used for a recurrent layer"
    );
    assert!(rotating(8, 0).entries().is_err() && recurrent().attention_step(1, None).is_err());
}

/// The mask of a step of `length` tokens, one row per query: `T` where it sees the key.
fn check_mask(cache: &LayerCache, length: i32, window: Option<i32>, expected: &[&str]) {
    let found = match cache.attention_step(length, window).unwrap().mask {
        Mask::None => vec!["none".to_owned()],
        Mask::Causal => vec!["causal".to_owned()],
        Mask::Array(mask) => {
            let row = |row: &[bool]| row.iter().map(|&seen| if seen { 'T' } else { 'F' }).collect();
            mask.contiguous()
                .unwrap()
                .as_slice::<bool>()
                .chunks(mask.dim(-1) as usize)
                .map(row)
                .collect()
        }
    };
    assert_eq!(
        found,
        expected,
        "{} tokens in a window of {window:?} after {} in a {}",
        length,
        cache.offset(),
        cache.kind()
    );
}

#[test]
fn masks_hide_what_lies_outside_the_window() {
    check_mask(&kv(), 1, None, &["none"]);
    check_mask(&kv(), 4, None, &["causal"]);
    check_mask(&kv(), 4, Some(4), &["causal"]);
    check_mask(&kv(), 4, Some(3), &["TFFF", "TTFF", "TTTF", "FTTT"]);
    check_mask(&filled(kv(), &[6]), 1, Some(4), &["FFFTTTT"]);
    check_mask(&filled(kv(), &[4]), 3, Some(2), &["FFFTTFF", "FFFFTTF", "FFFFFTT"]);
    check_mask(&filled(quantized(), &[6]), 1, Some(4), &["FFFTTTT"]);
    check_mask(&filled(quantized(), &[6]), 2, None, &["causal"]);

    let ring = rotating(8, 0);
    check_mask(&ring, 4, Some(5), &["causal"]);
    check_mask(&ring, 6, Some(5), &["TFFFFF", "TTFFFF", "TTTFFF", "TTTTFF", "TTTTTF", "FTTTTT"]);
    check_mask(&ring, 1, Some(5), &["none"]);
    let ring = filled(ring, &[10]);
    check_mask(&ring, 3, Some(5), &["FFFTTTTTFF", "FFFFTTTTTF", "FFFFFTTTTT"]);
    check_mask(&ring, 1, None, &["none"]);
    check_mask(&ring, 1, Some(8), &["none"]);
    check_mask(&ring, 1, Some(5), &["TFFFTTTT"]);
    let ring = filled(ring, &[1]);
    check_mask(&ring, 1, Some(5), &["TTFFFTTT"]);
    check_mask(&ring, 2, None, &["TTTTTTTTF", "FTTTTTTTT"]);
    check_mask(&filled(rotating(8, 0), &[6]), 1, Some(5), &["FFTTTTT"]);
    check_mask(&filled(rotating(8, 0), &[3]), 2, None, &["causal"]);
    // The first `keep` tokens are outside the ring and outside the window.
    check_mask(&filled(rotating(8, 2), &[10, 1]), 1, Some(3), &["FFTTFFFT"]);
}

#[test]
fn a_ring_is_never_longer_than_its_tokens_need() {
    let mut cache = filled(rotating(8, 0), &[10, 1, 1, 1]);
    let KeysValues::Dense { keys, values } = append(&mut cache, 3) else {
        panic!("a ring is dense")
    };
    assert_eq!((keys.dim(2), values.dim(2)), (10, 10));
}

/// Attention over a quantized cache differs from attention over the plain one by at most
/// `tolerance`.
fn check_quantized(group_size: i32, bits: i32, tolerance: f32) {
    let LayerCache::Kv(mut plain) = filled(kv(), &[300]) else { panic!("it is a plain cache") };
    let mut small = plain.to_quantized(group_size, bits).unwrap();
    assert_eq!((small.offset(), small.bits(), small.group_size()), (300, bits, group_size));
    let queries = tokens(7, 9);
    let (keys, values) = plain.update_and_fetch(tokens(300, 302), tokens(300, 302)).unwrap();
    let expected =
        attention(&queries, &KeysValues::Dense { keys, values }, 0.125, &Mask::Causal).unwrap();
    let (keys, values) = small.update_and_fetch(&tokens(300, 302), &tokens(300, 302)).unwrap();
    let found = attention(
        &queries,
        &KeysValues::Quantized { keys, values, group_size, bits },
        0.125,
        &Mask::Causal,
    )
    .unwrap();
    let is_close = found.all_close(&expected, tolerance as f64, 1e-3, None).unwrap();
    assert!(is_close, "{bits} bits in groups of {group_size}: {found:?} for {expected:?}");
}

#[test]
fn a_cache_can_be_quantized_when_it_has_grown() {
    // The tolerance of mlx-lm's own test, which compares logits at 8 bits.
    check_quantized(32, 8, 4e-2);
    check_quantized(64, 8, 4e-2);
}

#[test]
fn quantization_settings_are_checked_by_name() {
    let refused =
        |group_size, bits| QuantizedKvCache::new(group_size, bits).unwrap_err().to_string();
    assert_eq!(refused(64, 5), "kv_bits = 5, but it must be one of [2, 3, 4, 6, 8]");
    assert_eq!(refused(16, 4), "kv_group_size = 16, but it must be one of [32, 64, 128]");
    assert!(QuantizedKvCache::GROUP_SIZES.iter().all(|&size| {
        QuantizedKvCache::BITS.iter().all(|&bits| QuantizedKvCache::new(size, bits).is_ok())
    }));
    let mut grown = [filled(kv(), &[3])];
    let too_wide = KvQuantization { bits: 4, group_size: 128, start: 0 };
    assert_eq!(
        too_wide.apply(&mut grown).unwrap_err().to_string(),
        "kv_group_size = 128, but it must divide the model's head size, 64"
    );
    assert!(matches!(grown[0], LayerCache::Kv(_)));
    let empty = QuantizedKvCache::new(128, 4)
        .unwrap()
        .update_and_fetch(&tokens(0, 1), &tokens(0, 1))
        .unwrap_err();
    assert_eq!(empty.what(), "kv_group_size = 128, but it must divide the model's head size, 64");
}

#[test]
fn quantization_begins_when_it_is_due() {
    let quantization = KvQuantization { bits: 4, group_size: 64, start: 5 };
    let mut caches = vec![
        filled(kv(), &[4]),
        recurrent(),
        filled(quantized(), &[9]),
        list(vec![filled(kv(), &[9])]),
    ];
    quantization.apply(&mut caches).unwrap();
    assert!(matches!(caches[0], LayerCache::Kv(_)));
    append(&mut caches[0], 1);
    quantization.apply(&mut caches).unwrap();
    quantization.apply(&mut caches).unwrap();
    let LayerCache::Quantized(cache) = &caches[0] else { panic!("five tokens are due") };
    assert_eq!((cache.bits(), cache.group_size(), cache.offset()), (4, 64, 5));
    // Recurrent, listed and quantized caches are unchanged.
    assert!(matches!(&caches[2], LayerCache::Quantized(cache) if cache.bits() == 8));
    assert!(
        matches!(&caches[3], LayerCache::List(list) if matches!(list.entries()[0], LayerCache::Kv(_)))
    );
    let mut windows = [filled(kv(), &[9]), rotating(8, 0)];
    let error = quantization.apply(&mut windows).unwrap_err().to_string();
    assert!(error.starts_with("kv_bits = 4, but this model's sliding-window caches"), "{error}");
    assert!(matches!(windows[0], LayerCache::Kv(_)), "nothing is quantized by halves");
}

fn llama() -> Model {
    let folder = cairn_tiny_models::tiny_model("llama/gqa");
    Model::load(&folder, LoadOptions::new()).unwrap().0
}

/// Logits of each step's last token, as bits.
fn logits(model: &Model, caches: &mut [LayerCache], steps: &[&[i32]]) -> Vec<Vec<u8>> {
    let step = |tokens: &&[i32]| {
        let hidden =
            model.forward(&Array::from_slice(tokens, &[1, tokens.len() as i32]), caches).unwrap();
        bits(&model.logits(&hidden).unwrap())
    };
    steps.iter().map(step).collect()
}

#[test]
fn a_model_goes_on_from_a_file_and_in_a_ring_that_is_wide_enough() {
    let model = llama();
    let (prompt, rest): (&[i32], &[&[i32]]) = (&[5, 9, 33, 2, 71, 8, 4], &[&[12], &[3, 44], &[6]]);
    let mut plain = make_prompt_cache(&model, None).unwrap();
    let mut bounded = make_prompt_cache(&model, Some(16)).unwrap();
    assert!(bounded.iter().all(|cache| matches!(cache, LayerCache::Rotating(ring) if (ring.max_size(), ring.keep()) == (16, 4))));
    assert!(logits(&model, &mut plain, &[prompt]) == logits(&model, &mut bounded, &[prompt]));
    let folder = tempfile::tempdir().unwrap();
    let mut restored = [&plain, &bounded].map(|caches| {
        let path = folder.path().join("prompt.safetensors");
        save_prompt_cache(&path, caches, &Default::default(), PromptFileLayout::V0_32).unwrap();
        load_prompt_cache(&path).unwrap().0
    });
    let expected = logits(&model, &mut plain, rest);
    assert!(logits(&model, &mut bounded, rest) == expected, "in a ring");
    for caches in &mut restored {
        assert!(logits(&model, caches, rest) == expected, "{}s from a file", caches[0].kind());
    }
}

#[test]
fn a_ring_smaller_than_the_prompt_goes_on_from_a_file() {
    let model = llama();
    let (prompt, rest): (&[i32], &[&[i32]]) =
        (&[5, 9, 33, 2, 71, 8, 4, 5, 1, 2], &[&[12], &[3, 44], &[6], &[7]]);
    let mut caches = make_prompt_cache(&model, Some(6)).unwrap();
    logits(&model, &mut caches, &[prompt, &[11], &[13]]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt.safetensors");
    save_prompt_cache(&path, &caches, &Default::default(), PromptFileLayout::V0_32).unwrap();
    let mut restored = load_prompt_cache(&path).unwrap().0;
    assert!(logits(&model, &mut restored, rest) == logits(&model, &mut caches, rest));
}

#[test]
fn a_bound_that_holds_nothing_is_refused() {
    let model = llama();
    for max_kv_size in [0, 4, 1 << 31] {
        let error = make_prompt_cache(&model, Some(max_kv_size)).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "max_kv_size = {max_kv_size}, but it must be from 5 to 1073741824, because the first 4 tokens are always kept"
            )
        );
    }
    let error = prompt::bounded(&CacheSpec::of(&[kv(), rotating(8, 0)]).unwrap(), 64)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "max_kv_size = 64, but this model decides by itself what it keeps (a rotating cache among its caches): leave it out"
    );
}

/// Runs a schedule of steps, and compares what each query sees with `first(position)..=position`.
fn check_sees(
    mut cache: LayerCache,
    steps: &[i32],
    window: Option<i32>,
    first: impl Fn(i32) -> i32,
) {
    for (index, &length) in steps.iter().enumerate() {
        let offset = cache.offset() as i32;
        let positions: Vec<f32> =
            (offset..offset + length).map(|position| position as f32).collect();
        let positions = Array::from_slice(&positions, &[1, 1, length, 1]);
        let mask = cache.attention_step(length, window).unwrap().mask;
        let KeysValues::Dense { keys, .. } =
            cache.update_and_fetch(positions.clone(), positions).unwrap()
        else {
            panic!("it is dense")
        };
        let held: Vec<i32> = keys
            .contiguous()
            .unwrap()
            .as_slice::<f32>()
            .iter()
            .map(|&position| position as i32)
            .collect();
        let num_keys = held.len() as i32;
        let mask = match mask {
            Mask::None => ops::ones::<bool>(&[length, num_keys]).unwrap(),
            Mask::Causal => causal_mask(length, num_keys - length, None).unwrap(),
            Mask::Array(mask) => mask,
        };
        let rows: Vec<bool> = mask.contiguous().unwrap().as_slice::<bool>().to_vec();
        for (query, row) in (offset..).zip(rows.chunks(held.len())) {
            let mut seen: Vec<i32> = held
                .iter()
                .zip(row)
                .filter(|(_, seen)| **seen)
                .map(|(&position, _)| position)
                .collect();
            seen.sort_unstable();
            let expected: Vec<i32> = (first(query).max(0)..=query).collect();
            assert_eq!(
                seen,
                expected,
                "token {query} of a {} in a window of {window:?}, steps {:?}",
                cache.kind(),
                &steps[..=index]
            );
        }
    }
}

#[test]
fn whatever_the_steps_every_query_sees_its_window() {
    let mut state = 7u32;
    for _ in 0..40 {
        let mut random = |below: i32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as i32 % below
        };
        let steps: Vec<i32> =
            (0..12).map(|_| if random(3) == 0 { 1 + random(9) } else { 1 }).collect();
        let (max_size, window) = (2 + random(8), 1 + random(12));
        check_sees(kv(), &steps, None, |_| 0);
        check_sees(kv(), &steps, Some(window), |query| query - window + 1);
        check_sees(rotating(max_size, 0), &steps, None, |query| query - max_size + 1);
        let narrow = window.min(max_size);
        check_sees(rotating(max_size, 0), &steps, Some(narrow), |query| query - narrow + 1);
        check_sees(chunked(max_size), &steps, None, |query| query / max_size * max_size);
    }
}

#[test]
fn single_tokens_are_written_in_place() {
    for cache in [
        filled(kv(), &[3]),
        filled(quantized(), &[3]),
        filled(rotating(8, 2), &[9, 1]),
        filled(chunked(4), &[9, 1]),
    ] {
        let mut cache = cache;
        let mut addresses = || {
            append(&mut cache, 1);
            let arrays = cache.arrays();
            arrays
                .into_iter()
                .map(|array| crate::ffi::array_bytes(array).unwrap().as_ptr())
                .collect::<Vec<_>>()
        };
        let before = addresses();
        for _ in 0..12 {
            assert_eq!(addresses(), before);
        }
    }
}
