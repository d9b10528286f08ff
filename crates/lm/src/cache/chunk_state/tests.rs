//! A conversation that is stored in chunks, with checkpoints on the way, continues from every
//! position that they allow exactly as the original did.

use std::collections::HashMap;

use mlx_rs::Array;

use super::assemble::Filling;
use super::*;
use crate::LmError;
use crate::cache::{
    ArraysCache, AttentionStep, CacheList, CacheSpec, KeysValues, KvCache, LayerCache,
    QuantizedKvCache, RotatingKvCache,
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
                KeysValues::AfterPrefix { .. } => panic!("{cache:?} has one row"),
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

/// Reads `steps` tokens at a time into `caches`, takes a checkpoint at each position of
/// `checkpoints`, and extracts the chunks that end at `ends` and at the last token.
fn store(
    caches: &mut [LayerCache],
    steps: &[i32],
    checkpoints: &[usize],
    ends: &[usize],
) -> Stored {
    let mut taken = Vec::new();
    for &length in steps {
        for cache in caches.iter_mut() {
            read(cache, length);
        }
        if checkpoints.contains(&caches[0].offset()) {
            taken.extend(Checkpoint::of(caches.to_vec()));
        }
    }
    let taken: Vec<EvaluatedLayers> = taken
        .iter()
        .map(|checkpoint| EvaluatedLayers::of_checkpoint(checkpoint).unwrap())
        .collect();
    let held = EvaluatedLayers::of(caches).unwrap();
    let mut start = 0;
    let mut stored = Vec::new();
    for &stop in ends.iter().chain([&caches[0].offset()]) {
        stored.push((start, stop, held.chunk_state(&taken, start, stop).unwrap()));
        start = stop;
    }
    stored
}

fn assemble(
    spec: &CacheSpec,
    stored: &Stored,
    num_tokens: usize,
) -> Result<Vec<LayerCache>, LmError> {
    assemble_filling(Filling::OnHost, spec, stored, num_tokens)
}

fn assemble_filling(
    filling: Filling,
    spec: &CacheSpec,
    stored: &Stored,
    num_tokens: usize,
) -> Result<Vec<LayerCache>, LmError> {
    let mut assembler = CacheAssembler::filling(filling, spec, num_tokens)?;
    for (start, stop, chunk) in stored.iter().filter(|(start, ..)| *start < num_tokens) {
        let by_name: HashMap<&str, &StateTensor> =
            chunk.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        assembler.add(*start, *stop, |name| {
            let tensor = by_name.get(name)?;
            Some(TensorSlice {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes: &chunk.bytes[tensor.range.clone()],
            })
        })?;
    }
    assembler.finish()
}

/// Stores a conversation of `steps`, and expects it to continue exactly from the positions `from`,
/// and not from `not_from`.
fn check(
    make: impl Fn() -> Vec<LayerCache>,
    steps: &[i32],
    checkpoints: &[usize],
    ends: &[usize],
    from: &[usize],
    not_from: &[usize],
) {
    let spec = CacheSpec::of(&make()).unwrap();
    let stored = store(&mut make(), steps, checkpoints, ends);
    let what =
        format!("{spec:?} after {steps:?}, checkpoints at {checkpoints:?}, chunks end at {ends:?}");
    let both = [Filling::OnHost, Filling::OnDevice];
    for (&position, filling) in from.iter().flat_map(|from| both.map(|filling| (from, filling))) {
        let what = format!("{filling:?}, {what}");
        let mut assembled = assemble_filling(filling, &spec, &stored, position)
            .unwrap_or_else(|error| panic!("{what}: from {position}: {error}"));
        let mut original = make();
        original.iter_mut().for_each(|cache| drop(read(cache, position as i32)));
        for length in [2, 1, 1, 3] {
            for (assembled, original) in assembled.iter_mut().zip(&mut original) {
                assert_eq!(assembled.offset(), original.offset(), "{what}: from {position}");
                assert!(
                    read(assembled, length) == read(original, length),
                    "{what}: continues differently from {position}"
                );
            }
        }
    }
    for &position in not_from {
        assert!(
            assemble(&spec, &stored, position).is_err(),
            "{what}: must not continue from {position}"
        );
    }
}

#[test]
fn a_conversation_continues_from_its_chunks() {
    check(
        || vec![kv(), kv()],
        &[300, 1, 1],
        &[],
        &[100, 256],
        &[302, 300, 256, 255, 100, 1],
        &[303],
    );
    check(|| vec![quantized()], &[70, 1], &[], &[64], &[71, 64, 3], &[72]);
    // A ring holds only its last tokens and those of its checkpoints.
    check(|| vec![kv(), ring(8)], &[20, 1, 1], &[], &[5, 10, 20], &[22], &[21, 14, 10, 8, 3]);
    check(|| vec![kv(), ring(8)], &[20], &[], &[5, 10], &[20, 16, 8, 5], &[]);
    check(|| vec![kv(), ring(8)], &[10, 10, 1], &[10], &[10, 20], &[21, 10, 9], &[15]);
    check(|| vec![ring(8)], &[5, 1, 1], &[], &[4], &[7, 4, 2], &[]);
    // A recurrent state can be continued only from a checkpoint.
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
fn a_chunk_says_what_it_still_holds() {
    fn check(
        make: impl Fn() -> Vec<LayerCache>,
        steps: &[i32],
        checkpoints: &[usize],
        ends: &[usize],
        expected: &[(usize, bool)],
    ) {
        let stored = store(&mut make(), steps, checkpoints, ends);
        let found: Vec<_> =
            stored.iter().map(|(.., chunk)| (chunk.held_from, chunk.has_state)).collect();
        assert_eq!(
            found, expected,
            "after {steps:?}, checkpoints at {checkpoints:?}, chunks end at {ends:?}"
        );
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
fn chunks_that_do_not_fit_are_refused() {
    let spec = CacheSpec::of(&[kv(), kv()]).unwrap();
    let good = || store(&mut [kv(), kv()], &[20], &[], &[10]);
    let check = |change: fn(&mut Stored), named: &str| {
        let mut stored = good();
        change(&mut stored);
        let refusal = assemble(&spec, &stored, 20).map(drop).unwrap_err().to_string();
        assert!(refusal.contains(named), "{refusal:?} should name {named:?}");
    };
    assert!(assemble(&spec, &good(), 20).is_ok());
    check(|stored| drop(stored[1].2.tensors.remove(2)), "keys.1");
    check(|stored| stored[0].2.tensors[1].shape[2] = 9, "values.0");
    check(|stored| stored[0].2.tensors[1].shape = vec![10, 64], "values.0");
    check(|stored| stored[1].2.tensors[0].range.end -= 1, "keys.0");
    check(|stored| stored[1].2.tensors[0].shape = vec![1, 1, 10, 64], "keys.0");
    check(|stored| drop(stored.remove(0)), "keys");
}

#[test]
fn caches_that_cannot_be_chunked_have_no_layout() {
    let chunked = LayerCache::Chunked(crate::cache::ChunkedKvCache::new(8));
    let layout = |caches: &[LayerCache]| CacheSpec::of(caches).unwrap().layout();
    assert!(layout(&[kv(), chunked]).is_none());
    assert!(layout(&[LayerCache::Rotating(RotatingKvCache::new(8, 4))]).is_none());
    let all = [kv(), ring(8), quantized(), state(), LayerCache::List(CacheList::new(vec![kv()]))];
    let (spec, layout) = (CacheSpec::of(&all).unwrap(), layout(&all).unwrap());
    assert_eq!(layout.spec(), spec);
    // What chunk files name since the first version.
    let names = r#"["kv",{"rotating":{"max_size":8}},{"quantized":{"group_size":32,"bits":8}},{"arrays":{"num_slots":1}},{"list":["kv"]}]"#;
    assert_eq!(serde_json::to_string(&layout).unwrap(), names);
    assert_eq!(serde_json::from_str::<CacheLayout>(names).unwrap(), layout);
}

/// Chunks of one forged shape agree with each other, but not with the model's own caches, whose
/// next step would fail on them.
#[test]
fn chunks_of_another_shape_or_type_than_the_model_has_are_refused() {
    let check = |make: fn() -> LayerCache, forge: fn(&mut StateTensor), named: &str| {
        let mut own = [make()];
        read(&mut own[0], 1);
        let spec = CacheSpec::of(&own).unwrap();
        let mut stored = store(&mut [make()], &[20], &[], &[10]);
        assert!(assemble(&spec, &stored, 20).is_ok(), "{spec:?}");
        for (.., chunk) in &mut stored {
            chunk.tensors.iter_mut().for_each(forge);
        }
        let without_sizes = CacheSpec::of(&[make()]).unwrap();
        assert!(assemble(&without_sizes, &stored, 20).is_ok(), "the chunks agree: {spec:?}");
        let refusal = assemble(&spec, &stored, 20).map(drop).unwrap_err().to_string();
        assert!(refusal.contains(named), "{refusal:?} should name {named:?}");
    };
    let swap_heads = |tensor: &mut StateTensor| {
        let [_, heads, _, width] = tensor.shape[..] else { return };
        (tensor.shape[1], tensor.shape[3]) = (heads / 2, width * 2);
    };
    let other_type = |tensor: &mut StateTensor| {
        if tensor.dtype == Dtype::Float32 {
            (tensor.dtype, *tensor.shape.last_mut().unwrap()) =
                (Dtype::Float16, tensor.shape.last().unwrap() * 2);
        }
    };
    check(kv, swap_heads, "[1, 2, 10, 32]");
    check(kv, other_type, "Float32");
    check(|| ring(64), swap_heads, "[1, 2, 10, 32]");
    check(quantized, swap_heads, "[1, 2, 10, 8]");
    check(quantized, other_type, "Float32");
    check(state, one_axis_state, "[1, 2]");
    check(state, other_type, "Float32");
    check(|| LayerCache::List(CacheList::new(vec![kv(), state()])), one_axis_state, "[1, 2]");
}

fn one_axis_state(tensor: &mut StateTensor) {
    if tensor.name.starts_with("state") {
        tensor.shape = vec![tensor.shape.iter().product()];
    }
}
