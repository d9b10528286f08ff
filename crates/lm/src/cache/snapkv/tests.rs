use cairn_tiny_models::tiny_model;

use super::*;
use crate::batch::{BatchGenerator, BatchOptions, BatchRequest};
use crate::models::Model;
use crate::{GenerateOptions, LoadOptions, PromptReader, Sampler};

const SNAPKV: SnapKv = SnapKv { keep_tokens: 40, min_context: 0 };
/// Longer than what is kept, and than the windows of the tiny models.
const LENGTH: usize = 150;

fn load(name: &str) -> Model {
    Model::load(&tiny_model(name), LoadOptions::new().keep_quantized(true)).unwrap().0
}

fn prompt(model: &Model) -> Vec<u32> {
    (0..LENGTH as u32)
        .map(|index| (index * index * 7 + index * 3) % model.vocab_size() as u32)
        .collect()
}

/// A reader that has read all but the last token, in chunks.
fn read(model: &Model, step: usize, snapkv: Option<SnapKv>) -> PromptReader {
    let options =
        GenerateOptions { snapkv, prefill_step_size: step, max_tokens: 8, ..Default::default() };
    let mut reader =
        PromptReader::new(model, prompt(model), &[], Vec::new(), Sampler::Greedy, options).unwrap();
    reader.read(reader.num_left()).unwrap();
    reader
}

/// The plain caches of all layers.
fn plain(caches: &[LayerCache]) -> Vec<KvCache> {
    let mut found = Vec::new();
    let mut caches = caches.to_vec();
    for_each_plain(&mut caches, &mut |cache| {
        found.push(cache.clone());
        Ok(())
    })
    .unwrap();
    found
}

/// `[1, H, T, D]` as vectors by head and column.
fn vectors(array: &Array) -> Vec<Vec<Vec<f32>>> {
    let &[1, heads, length, width] = array.shape() else { panic!("{:?}", array.shape()) };
    let numbers = array.as_dtype(Dtype::Float32).unwrap().contiguous().unwrap();
    let of_columns: Vec<Vec<f32>> =
        numbers.as_slice::<f32>().chunks(width as usize).map(<[f32]>::to_vec).collect();
    assert_eq!(of_columns.len(), (heads * length) as usize);
    of_columns.chunks(length as usize).map(<[Vec<f32>]>::to_vec).collect()
}

/// The scores as their description says: of one head of keys, by column.
fn by_formula(queries: &[Vec<Vec<f32>>], keys: &[Vec<f32>], heads: &HeadShape) -> Vec<f32> {
    let (num_columns, num_queries) = (keys.len(), queries[0].len());
    let mut largest = vec![0.0f32; num_columns];
    for of_head in queries {
        let mut sums = vec![0.0f32; num_columns];
        for (index, query) in of_head.iter().enumerate() {
            let seen = num_columns - num_queries + index + 1;
            let score = |key: &Vec<f32>| {
                let product: f32 = std::iter::zip(query, key).map(|(q, k)| q * k).sum();
                match heads.softcap {
                    Some(cap) => cap * (product * heads.scale / cap).tanh(),
                    None => product * heads.scale,
                }
            };
            let scores: Vec<f32> = keys[..seen].iter().map(score).collect();
            let most = scores.iter().copied().fold(f32::MIN, f32::max);
            let total: f32 = scores.iter().map(|score| (score - most).exp()).sum();
            for (sum, score) in sums.iter_mut().zip(&scores) {
                *sum += (score - most).exp() / total;
            }
        }
        largest.iter_mut().zip(&sums).for_each(|(most, sum)| *most = most.max(*sum));
    }
    let around = |column: usize| {
        let reach = POOL_WIDTH as usize / 2;
        &largest[column.saturating_sub(reach)..num_columns.min(column + reach + 1)]
    };
    (0..num_columns).map(|column| around(column).iter().copied().fold(0.0, f32::max)).collect()
}

/// Compares what is kept of one layer with what the formula chooses of all its tokens.
fn check_layer(case: &str, full: &KvCache, kept: &KvCache) {
    let observed = full.clone().take_observed().unwrap().queries.unwrap();
    let (queries, heads) = (vectors(&observed.0), observed.1);
    let (keys, values) = full.tokens_in_use().unwrap().unwrap();
    let (kept_keys, kept_values) = kept.tokens_in_use().unwrap().unwrap();
    assert_eq!(kept.offset(), full.offset(), "{case}: its position is true");
    assert_eq!(kept.num_columns() as usize, SNAPKV.keep_tokens, "{case}");
    let scored = match queries[0][0].len() == keys.dim(3) as usize {
        true => keys.clone(),
        false => ops::concatenate(&[&keys, &values], -1).unwrap(),
    };
    let all = [vectors(&keys), vectors(&values), vectors(&scored)];
    let left = [vectors(&kept_keys), vectors(&kept_values)];
    let num_columns = keys.dim(2) as usize;
    let (sinks, newest) = (SNAPKV.num_sinks() as usize, SNAPKV.num_newest() as usize);
    let per_head = queries.len() / keys.dim(1) as usize;
    for head in 0..keys.dim(1) as usize {
        let own_queries = &queries[head * per_head..(head + 1) * per_head];
        let scores = by_formula(own_queries, &all[2][head], &heads);
        // Every kept column is one of the cache, key and value, in the order of tokens.
        let mut columns: Vec<usize> = Vec::new();
        for (key, value) in std::iter::zip(&left[0][head], &left[1][head]) {
            let first = columns.last().map_or(0, |last| last + 1);
            let is_it =
                |&column: &usize| all[0][head][column] == *key && all[1][head][column] == *value;
            columns.push((first..num_columns).find(is_it).unwrap_or_else(|| {
                panic!("{case}, head {head}: column {} of those kept is none", columns.len())
            }));
        }
        assert_eq!(columns[..sinks], (0..sinks).collect::<Vec<_>>(), "{case}: sinks");
        let tail: Vec<usize> = (num_columns - newest..num_columns).collect();
        assert_eq!(columns[columns.len() - newest..], tail, "{case}: the newest");
        let chosen = &columns[sinks..columns.len() - newest];
        let least = chosen.iter().map(|&column| scores[column]).fold(f32::MAX, f32::min);
        let between = scores.iter().enumerate().take(num_columns - newest).skip(sinks);
        for (column, &score) in between {
            // Equally many points: pooling makes neighbours equal.
            let is_close = (score - least).abs() <= 1e-4 * least.abs() + 1e-7;
            let is_chosen = chosen.contains(&column);
            assert!(
                is_close || is_chosen == (score > least),
                "{case}, head {head}, column {column}: {score} against {least}"
            );
        }
    }
}

#[test]
fn what_is_kept_is_what_the_newest_queries_attend_to() {
    for (name, num_layers) in [
        ("llama/dense-tied", 2),
        ("llama/gqa", 2),
        ("gemma2/dense", 1),
        ("gemma3_text/dense", 1),
        ("gemma4_text/dense", 1),
        ("qwen3_next/dense", 1),
        ("falcon_h1/dense", 1),
        ("deepseek_v2/dense", 1),
        ("deepseek_v3/dense", 1),
    ] {
        let model = load(name);
        let mut reader = read(&model, 64, Some(SNAPKV));
        let full = plain(reader.caches());
        let compressed = reader.compress().unwrap();
        let expected = Compressed { num_read: LENGTH - 1, num_kept: SNAPKV.keep_tokens };
        assert_eq!(compressed, Some(expected), "{name}");
        let kept = plain(reader.caches());
        assert!(kept.len() >= num_layers, "{name} has {} full layers", kept.len());
        for (layer, (full, kept)) in std::iter::zip(&full, &kept).enumerate() {
            check_layer(&format!("{name}, full layer {layer}"), full, kept);
        }
    }
}

#[test]
fn short_slices_are_observed_like_long_ones() {
    for name in ["llama/dense-tied", "gemma3_text/dense", "qwen3_next/dense"] {
        let model = load(name);
        let observed = |step| {
            let caches = plain(read(&model, step, Some(SNAPKV)).caches());
            caches.into_iter().map(|mut cache| cache.take_observed().unwrap().queries.unwrap().0)
        };
        for (whole, slices) in std::iter::zip(observed(1000), observed(5)) {
            assert_eq!(whole.dim(2), NUM_OBSERVED as i32, "{name}");
            let off = ops::subtract(&whole, &slices).unwrap().abs().unwrap().max(None).unwrap();
            assert!(off.item_exact::<f32>() < 1e-4, "{name} is off");
        }
    }
}

#[test]
fn short_prompts_are_kept_whole_and_nothing_is_observed_afterwards() {
    let model = load("llama/dense-tied");
    for snapkv in [
        SnapKv { keep_tokens: LENGTH - 1, min_context: 0 },
        SnapKv { keep_tokens: 40, min_context: LENGTH },
    ] {
        let mut reader = read(&model, 64, Some(snapkv));
        assert_eq!(reader.compress().unwrap(), None);
        for cache in plain(reader.caches()) {
            assert!(!cache.is_observed() && cache.num_columns() as usize == LENGTH - 1);
        }
    }
}

#[test]
fn positions_go_on_and_only_new_tokens_can_be_trimmed() {
    let model = load("llama/dense-tied");
    let last_key = |caches: &mut Vec<LayerCache>| {
        model.forward(&Array::from_slice(&[9u32], &[1, 1]), caches).unwrap();
        let (keys, _) = plain(caches)[0].tokens_in_use().unwrap().unwrap();
        vectors(&token_range(&keys, keys.dim(2) - 1, keys.dim(2)).unwrap())
    };
    let mut full = read(&model, 64, None).into_caches();
    let mut reader = read(&model, 64, Some(SNAPKV));
    reader.compress().unwrap();
    let mut kept = reader.into_caches();
    // A key of the first layer depends on its token and position alone.
    assert_eq!(last_key(&mut kept), last_key(&mut full));
    assert_eq!(kept[0].offset(), LENGTH);
    let mut cache = kept[0].clone();
    assert!(!cache.is_trimmable());
    assert_eq!(cache.trim(3), 3);
    assert_eq!(cache.offset(), LENGTH - 3);
    let newest = SNAPKV.num_newest() as usize;
    assert_eq!(cache.trim(LENGTH), newest + 1 - 3, "no token before which others are missing");
}

#[test]
fn what_grew_to_twice_its_size_is_compressed_again() {
    let model = load("llama/dense-tied");
    let mut reader = read(&model, 64, Some(SNAPKV));
    reader.compress().unwrap();
    let mut caches = reader.into_caches();
    let tokens = prompt(&model);
    for (more, expected) in [
        (30, None),
        (30, Some(Compressed { num_read: LENGTH - 1 + 60, num_kept: SNAPKV.keep_tokens })),
    ] {
        observe_queries(&mut caches);
        model.forward(&Array::from_slice(&tokens[..more], &[1, more as i32]), &mut caches).unwrap();
        assert_eq!(compress(&mut caches, &SNAPKV).unwrap(), expected);
    }
}

#[test]
fn a_choice_in_parts_leaves_caches_whole_until_it_is_applied() {
    let model = load("llama/dense-tied");
    let whole = read(&model, 64, Some(SNAPKV)).into_caches();
    let (mut at_once, mut in_parts) = (whole.clone(), whole.clone());
    let expected = compress(&mut at_once, &SNAPKV).unwrap();
    let (mut choice, mut num_parts) = (Choice::default(), 1);
    while !choice.advance(&in_parts, &SNAPKV, Duration::ZERO).unwrap() {
        num_parts += 1;
        assert_eq!(in_parts[0].nbytes(), whole[0].nbytes());
    }
    assert_eq!(num_parts, whole.len(), "a layer at a time");
    assert_eq!(choice.apply(&mut in_parts, &SNAPKV).unwrap(), expected);
    for (one, other) in plain(&at_once).iter().zip(plain(&in_parts)) {
        for (one, other) in one.arrays().into_iter().zip(other.arrays()) {
            assert!(one.eq_values(other).unwrap());
        }
    }

    // A row of a batch takes as many slices, and others have their turns between them.
    let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
    let request = BatchRequest { snapkv: Some(SNAPKV), ..BatchRequest::new(prompt(&model), 4) };
    batch.insert(request).unwrap();
    let (mut compressed, mut num_ends) = (Vec::new(), 0);
    while batch.num_unread_tokens() > 0 {
        for progress in batch.prefill_slice(64).prompts {
            num_ends += usize::from(progress.end_of_segment && !progress.end_of_prompt);
            compressed.extend(progress.compressed);
        }
    }
    assert_eq!((compressed, num_ends), (vec![expected.unwrap()], 1));
}

#[test]
fn queries_of_trimmed_tokens_do_not_choose() {
    let model = load("llama/dense-tied");
    let mut caches = read(&model, 64, Some(SNAPKV)).into_caches();
    assert!(caches.iter_mut().all(|cache| cache.trim(20) == 20));
    observe_queries(&mut caches);
    assert_eq!(compress(&mut caches, &SNAPKV).unwrap(), None, "nothing was read since");
}

#[test]
fn a_row_with_one_token_left_remembers_no_queries() {
    let model = load("llama/dense-tied");
    let tokens = prompt(&model);
    let caches = read(&model, 64, Some(SNAPKV)).into_caches();
    assert!(caches[0].is_observed());
    for caches in [caches, read(&model, 64, None).into_caches()] {
        let mut batch = BatchGenerator::new(model.clone(), BatchOptions::default());
        let id = batch.insert(BatchRequest {
            snapkv: Some(SNAPKV),
            caches: Some(caches),
            cached_tokens: tokens[..LENGTH - 1].to_vec(),
            ..BatchRequest::new(tokens[LENGTH - 1..].to_vec(), 4)
        });
        let row = batch.extract_cache(id.unwrap()).unwrap().unwrap();
        assert!(!row.caches[0].is_observed());
    }
}

#[test]
fn refusals_name_what_is_wrong() {
    let too_few = SnapKv { keep_tokens: 15, min_context: 0 }.check().unwrap_err().to_string();
    assert_eq!(too_few, "snapkv = 15, but at least 16 tokens must be kept");
    let model = load("llama/dense-tied");
    let mut reader = read(&model, 64, Some(SNAPKV));
    reader.compress().unwrap();
    let cache = plain(reader.caches()).remove(0);
    let error = cache.to_quantized(32, 8).unwrap_err().to_string();
    assert!(error.contains("SnapKV") && error.contains("leave one of them out"), "{error}");
    let error = LayerCache::Kv(cache).as_kind().to_file().map(drop).unwrap_err().to_string();
    assert!(error.contains("prompt-cache file"), "{error}");
}
