//! A conversation cut into spans, with its places caught on the way, goes on from any place that
//! they allow as the original did there.

use std::collections::HashMap;

use mlx_rs::Array;

use super::*;
use crate::LmError;
use crate::cache::{
    ArraysCache, AttentionStep, CacheList, KeysValues, KvCache, QuantizedKvCache, RotatingKvCache,
};

/// Keys, and values, of the tokens `start..stop`, which all differ: `[1, 2, stop - start, 32]`.
fn tokens(start: i32, stop: i32) -> Array {
    let numbers: Vec<f32> = (0..2)
        .flat_map(|head| (start * 32..stop * 32).map(move |n| ((n * 7 + head) % 1009) as f32))
        .collect();
    Array::from_slice(&numbers, &[1, 2, stop - start, 32])
}

/// Reads `length` more tokens and returns everything that the step sees.
fn read(cache: &mut LayerCache, length: i32) -> Vec<Vec<u8>> {
    let bits = |array: &Array| ffi_bytes(array);
    match cache {
        LayerCache::List(list) => {
            list.entries_mut().iter_mut().flat_map(|entry| read(entry, length)).collect()
        }
        LayerCache::Arrays(state) => {
            let before = state.get(0).map_or(0.0, |counted| counted.as_slice::<f32>()[0]);
            state.set(0, Array::from_slice(&[before + length as f32, 1.0], &[1, 2]));
            state.advance(length as usize);
            vec![bits(state.get(0).unwrap()), state.offset().to_le_bytes().to_vec()]
        }
        _ => {
            let start = cache.offset() as i32;
            let AttentionStep { .. } = cache.attention_step(length, None).unwrap();
            match cache
                .update_and_fetch(tokens(start, start + length), tokens(start, start + length))
                .unwrap()
            {
                KeysValues::Dense { keys, values } => vec![bits(&keys), bits(&values)],
                KeysValues::Quantized { keys, values, .. } => [keys, values]
                    .iter()
                    .flat_map(|side| [bits(&side.packed), bits(&side.scales), bits(&side.biases)])
                    .collect(),
            }
        }
    }
}

fn ffi_bytes(array: &Array) -> Vec<u8> {
    crate::ffi::array_bytes(&array.contiguous().unwrap()).unwrap().to_vec()
}

fn kv() -> LayerCache {
    LayerCache::Kv(KvCache::new())
}

fn ring(max_size: i32) -> LayerCache {
    LayerCache::Rotating(RotatingKvCache::new(max_size, 0))
}

fn quantized() -> LayerCache {
    LayerCache::Quantized(QuantizedKvCache::new(32, 8).unwrap())
}

fn state() -> LayerCache {
    LayerCache::Arrays(ArraysCache::new(1))
}

type Stored = Vec<(usize, usize, ChunkState)>;

/// Reads `steps` tokens at a time into `caches`, catching every place of `checkpoints`, and cuts what
/// there is at `cuts` and the end.
fn store(
    caches: &mut [LayerCache],
    steps: &[i32],
    checkpoints: &[usize],
    cuts: &[usize],
) -> Stored {
    let mut caught = Vec::new();
    for &length in steps {
        for cache in caches.iter_mut() {
            read(cache, length);
        }
        if checkpoints.contains(&caches[0].offset()) {
            caught.extend(Checkpoint::of(caches.to_vec()));
        }
    }
    let caught: Vec<EvaluatedLayers> = caught
        .iter()
        .map(|checkpoint| EvaluatedLayers::of_checkpoint(checkpoint).unwrap())
        .collect();
    let held = EvaluatedLayers::of(caches).unwrap();
    let mut start = 0;
    let mut stored = Vec::new();
    for &stop in cuts.iter().chain([&caches[0].offset()]) {
        stored.push((start, stop, held.cut(&caught, start, stop).unwrap()));
        start = stop;
    }
    stored
}

fn join(
    layout: &CacheLayout,
    stored: &Stored,
    num_tokens: usize,
) -> Result<Vec<LayerCache>, LmError> {
    let mut assembler = CacheAssembler::new(layout, num_tokens);
    for (start, stop, span) in stored.iter().filter(|(start, ..)| *start < num_tokens) {
        let by_name: HashMap<&str, &StateTensor> =
            span.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        assembler.add(*start, *stop, |name| {
            let tensor = by_name.get(name)?;
            Some(TensorSlice {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes: &span.bytes[tensor.range.clone()],
            })
        })?;
    }
    assembler.finish()
}

/// Stores a conversation of `steps`, and expects to go on exactly from the places `from`, and not
/// from `not_from`.
fn check(
    make: impl Fn() -> Vec<LayerCache>,
    steps: &[i32],
    checkpoints: &[usize],
    cuts: &[usize],
    from: &[usize],
    not_from: &[usize],
) {
    let layout = CacheLayout::of(&make()).unwrap();
    let stored = store(&mut make(), steps, checkpoints, cuts);
    let what = format!("{layout:?} after {steps:?}, caught at {checkpoints:?}, cut at {cuts:?}");
    for &place in from {
        let mut joined = join(&layout, &stored, place)
            .unwrap_or_else(|error| panic!("{what}: from {place}: {error}"));
        let mut original = make();
        original.iter_mut().for_each(|cache| drop(read(cache, place as i32)));
        for length in [2, 1, 1, 3] {
            for (joined, original) in joined.iter_mut().zip(&mut original) {
                assert_eq!(joined.offset(), original.offset(), "{what}: from {place}");
                assert!(
                    read(joined, length) == read(original, length),
                    "{what}: goes on otherwise from {place}"
                );
            }
        }
    }
    for &place in not_from {
        assert!(join(&layout, &stored, place).is_err(), "{what}: must not go on from {place}");
    }
}

#[test]
fn a_conversation_goes_on_from_its_parts() {
    check(
        || vec![kv(), kv()],
        &[300, 1, 1],
        &[],
        &[100, 256],
        &[302, 300, 256, 255, 100, 1],
        &[303],
    );
    check(|| vec![quantized()], &[70, 1], &[], &[64], &[71, 64, 3], &[72]);
    // A ring only knows its last tokens, and what was caught of it.
    check(|| vec![kv(), ring(8)], &[20, 1, 1], &[], &[5, 10, 20], &[22], &[21, 14, 10, 8, 3]);
    check(|| vec![kv(), ring(8)], &[20], &[], &[5, 10], &[20, 16, 8, 5], &[]);
    check(|| vec![kv(), ring(8)], &[10, 10, 1], &[10], &[10, 20], &[21, 10, 9], &[15]);
    check(|| vec![ring(8)], &[5, 1, 1], &[], &[4], &[7, 4, 2], &[]);
    // A state is only good where it was caught.
    check(|| vec![state(), kv()], &[6, 4, 1, 1], &[6], &[6, 10], &[12, 6], &[10, 11, 3]);
    check(
        || vec![LayerCache::List(CacheList::new(vec![state(), ring(4), kv()]))],
        &[6, 6, 1],
        &[6],
        &[6, 12],
        &[13, 6],
        &[12, 5],
    );
}

#[test]
fn what_a_part_still_holds_is_told() {
    fn check(
        make: impl Fn() -> Vec<LayerCache>,
        steps: &[i32],
        checkpoints: &[usize],
        cuts: &[usize],
        expected: &[(usize, bool)],
    ) {
        let stored = store(&mut make(), steps, checkpoints, cuts);
        let told: Vec<_> =
            stored.iter().map(|(.., span)| (span.held_from, span.has_state)).collect();
        assert_eq!(told, expected, "after {steps:?}, caught at {checkpoints:?}, cut at {cuts:?}");
    }
    check(|| vec![kv()], &[20], &[], &[10], &[(0, false), (10, false)]);
    check(
        || vec![kv(), ring(8)],
        &[10, 9, 1],
        &[],
        &[5, 10],
        &[(5, false), (10, false), (12, false)],
    );
    check(
        || vec![kv(), ring(8)],
        &[10, 9, 1],
        &[10],
        &[5, 10],
        &[(0, false), (5, false), (12, false)],
    );
    check(
        || vec![state(), kv()],
        &[10, 9, 1],
        &[10],
        &[5, 10],
        &[(0, false), (5, true), (10, true)],
    );
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let layout = CacheLayout::of(&[kv(), kv()]).unwrap();
    let good = || store(&mut [kv(), kv()], &[20], &[], &[10]);
    let check = |change: fn(&mut Stored), named: &str| {
        let mut stored = good();
        change(&mut stored);
        let refusal = join(&layout, &stored, 20).map(drop).unwrap_err().to_string();
        assert!(refusal.contains(named), "{refusal:?} should name {named:?}");
    };
    assert!(join(&layout, &good(), 20).is_ok());
    check(|stored| drop(stored[1].2.tensors.remove(2)), "keys.1");
    check(|stored| stored[0].2.tensors[1].shape[2] = 9, "values.0");
    check(|stored| stored[0].2.tensors[1].shape = vec![10, 64], "values.0");
    check(|stored| stored[1].2.tensors[0].range.end -= 1, "keys.0");
    check(|stored| stored[1].2.tensors[0].shape = vec![1, 1, 10, 64], "keys.0");
    check(|stored| drop(stored.remove(0)), "keys");
}

#[test]
fn kinds_without_parts_have_no_layout() {
    let chunked = LayerCache::Chunked(crate::cache::ChunkedKvCache::new(8));
    assert!(CacheLayout::of(&[kv(), chunked]).is_none());
    assert!(CacheLayout::of(&[LayerCache::Rotating(RotatingKvCache::new(8, 4))]).is_none());
}
