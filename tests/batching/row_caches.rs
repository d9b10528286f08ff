//! Rows that go on, fork, are dropped and joined in any order give what each gives alone.

use cairn_lm::batch::{NextTokenLogprobs, RowCaches};
use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_sweeps::sweep;
use mlx_rs::Array;

use crate::shared_prefix::{MODELS, TOLERANCE, alone, assert_near, quantized_after};
use crate::{Numbers, model};

/// Rows under test, and what each has read behind the caches it began with.
struct Rows {
    model: Model,
    caches: RowCaches,
    ids: Vec<Vec<u32>>,
    beginnings: Vec<Vec<LayerCache>>,
    tolerance: f32,
}

impl Rows {
    /// `num_rows` that continue `prefix`.
    fn behind(model: &Model, prefix: Vec<LayerCache>, num_rows: usize) -> Self {
        Rows {
            model: model.clone(),
            caches: RowCaches::repeated(prefix.clone(), num_rows).expect("rows"),
            ids: vec![Vec::new(); num_rows],
            beginnings: vec![prefix; num_rows],
            tolerance: TOLERANCE,
        }
    }

    /// Reads some tokens of each row, and compares with the row alone.
    fn go_on(&mut self, case: &str, random: &mut Numbers) {
        let most = [1, 1, 9][random.below(3)];
        let new: Vec<Vec<u32>> = (0..self.ids.len())
            .map(|_| {
                let length = 1 + random.below(most);
                random.tokens(&self.model, length)
            })
            .collect();
        let slice = 1 + random.below(60);
        let caches = self.caches.clone();
        let mut work =
            NextTokenLogprobs::new(&self.model, caches, new.clone()).expect("rows to read");
        while work.num_left() > 0 {
            work.read(slice).expect("a slice");
        }
        let (found, caches) = work.finish().expect("a result").expect("all is read");
        self.caches = caches;
        for (row, new) in new.into_iter().enumerate() {
            self.ids[row].extend(new);
            let expected = alone(&self.model, self.beginnings[row].clone(), &self.ids[row], 1);
            let case = format!("{case}, row {row} of {}", self.ids.len());
            assert_near(&case, &found[row], &expected, self.tolerance);
        }
    }

    /// These rows of them.
    fn gathered(&self, kept: &[usize]) -> Rows {
        Rows {
            model: self.model.clone(),
            caches: self.caches.gathered(kept).expect("kept rows"),
            ids: kept.iter().map(|&row| self.ids[row].clone()).collect(),
            beginnings: kept.iter().map(|&row| self.beginnings[row].clone()).collect(),
            tolerance: self.tolerance,
        }
    }

    fn joined(parts: Vec<Rows>) -> Rows {
        let (model, tolerance) = (parts[0].model.clone(), parts[0].tolerance);
        let (mut caches, mut ids, mut beginnings) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            caches.push(part.caches);
            ids.extend(part.ids);
            beginnings.extend(part.beginnings);
        }
        let caches = RowCaches::joined(caches).expect("joined rows");
        Rows { model, caches, ids, beginnings, tolerance }
    }

    /// Random rows of them, some perhaps several times.
    fn some(&self, random: &mut Numbers) -> Rows {
        let kept: Vec<usize> =
            (0..1 + random.below(5)).map(|_| random.below(self.ids.len())).collect();
        self.gathered(&kept)
    }

    /// One row, which goes on by itself.
    fn one(&self, row: usize) -> Rows {
        let caches = RowCaches::one(self.caches.row(row).expect("a row"));
        Rows { caches, ..self.gathered(&[row]) }
    }
}

fn after(model: &Model, tokens: &[u32]) -> Vec<LayerCache> {
    let mut caches = model.make_cache();
    let ids = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    model.forward(&ids, &mut caches).expect("a pass");
    caches
}

fn check(case: &str, seed: u64) {
    let model = model(case);
    let mut random = Numbers(seed);
    let num_shared = [0, 1, 21, 70][random.below(4)];
    let tokens = random.tokens(&model, num_shared);
    let prefix = if num_shared == 0 { model.make_cache() } else { after(&model, &tokens) };
    let case = format!("{case}, seed {seed}, {num_shared} shared");
    let mut rows = Rows::behind(&model, prefix, 1 + random.below(5));
    for _ in 0..8 {
        rows.go_on(&case, &mut random);
        rows = match random.below(5) {
            0 => rows.some(&mut random),
            1 => Rows::joined(vec![rows.some(&mut random), rows.some(&mut random)]),
            2 => {
                let fresh = Rows::behind(&model, model.make_cache(), 1 + random.below(2));
                Rows::joined(vec![fresh, rows.some(&mut random), rows.one(0)])
            }
            3 => rows.one(random.below(rows.ids.len())),
            _ => rows,
        };
    }
}

#[test]
fn rows_that_fork_and_join_give_what_each_gives_alone() {
    for case in MODELS {
        for seed in sweep("rows fork and join", 4) {
            check(case, seed);
        }
    }
}

#[test]
fn rows_behind_a_quantized_prefix_fork_and_end_as_if_alone() {
    let model = model("qwen3_moe/quant4");
    for seed in sweep("rows behind a quantized prefix", 4) {
        let mut random = Numbers(seed);
        let tokens = random.tokens(&model, 40);
        let mut rows = Rows::behind(&model, quantized_after(&model, &tokens), 3);
        // A sum in another order may round a key to the next of its 256 steps, and then those of the
        // layers behind it.
        rows.tolerance = 5e-3;
        for step in 0..6 {
            rows.go_on(&format!("seed {seed}, step {step}"), &mut random);
            rows = match random.below(3) {
                0 => rows.some(&mut random),
                1 => Rows::joined(vec![rows.some(&mut random), rows.some(&mut random)]),
                _ => rows,
            };
        }
        rows.one(0).go_on("one row", &mut random);
    }
}

#[test]
fn what_rows_share_is_held_once_however_they_fork() {
    let model = model("llama/gqa");
    let mut random = Numbers(3);
    let tokens = random.tokens(&model, 70);
    let mut rows = Rows::behind(&model, after(&model, &tokens), 16);
    for _ in 0..4 {
        rows.go_on("shared", &mut random);
        let halves = vec![rows.some(&mut random), rows.some(&mut random)];
        rows = Rows::joined(halves);
    }
    let num_own: usize = rows.ids.iter().map(Vec::len).max().expect("rows");
    assert_eq!(rows.caches.num_tokens(), 70 + rows.ids.len() * num_own);
    // One row of another kind takes that away.
    let fresh = Rows::behind(&model, model.make_cache(), 1);
    let mixed = Rows::joined(vec![rows.gathered(&[0, 1]), fresh]);
    assert!(mixed.caches.num_tokens() > 3 * 70);
}
