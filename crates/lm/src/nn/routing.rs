//! Routing: which experts a token uses, and what share each of them has.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::argmax_axis;
use mlx_rs::{Array, Dtype, ops};

use crate::ffi;
use crate::nn::Elementwise;
use crate::nn::scalar::constant;

/// How a router's logits choose experts and give them shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// K, how many experts a token uses.
    pub num_chosen: i32,
    pub score: Score,
    /// Whether scores are float32 whatever the type of the logits is.
    pub in_float32: bool,
    /// Where the router's block stores a bias `[E]` that is added to scores when experts are
    /// chosen, and not to their shares.
    pub correction_bias: Option<&'static str>,
    /// Whether files may lack that bias, as those that mlx-lm converted without it.
    pub may_lack_correction_bias: bool,
    /// The groups of experts of which only some are open to a token.
    pub groups: Option<ExpertGroups>,
    /// Whether the shares of the chosen experts are divided by their sum.
    pub adds_up_to_one: bool,
    /// The factor of all shares.
    pub scale: Option<f32>,
}

/// What an expert's logit becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// Its softmax over all experts.
    Softmax,
    /// Its softmax over the chosen experts, which have the largest logits.
    SoftmaxOfChosen,
    /// Its sigmoid.
    Sigmoid,
    /// Its sigmoid, where the largest logits are chosen: a sigmoid rounds large ones to the same.
    SigmoidOfChosen,
    /// SparseMixer (Liu et al. 2023), as it infers: experts are chosen one after another, the one
    /// with the largest logit first. Each has its softmax over the experts that are not chosen yet
    /// and whose logits are near its own: less than twice `jitter` below it, relative to the larger
    /// of the two magnitudes. The shares of a token do not add up to one.
    SparseMixer { jitter: f32 },
}

/// Experts in groups of the same size, which stand one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub count: i32,
    /// How many of them are open to a token: those of the best rank.
    pub num_chosen: i32,
    pub rank: GroupRank,
}

/// What a group is ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRank {
    /// Its largest score.
    Best,
    /// The sum of its two largest scores.
    BestTwo,
}

impl Routing {
    /// The `num_chosen` experts with the largest scores.
    pub const fn of(score: Score, num_chosen: i32) -> Self {
        Routing {
            num_chosen,
            score,
            in_float32: false,
            correction_bias: None,
            may_lack_correction_bias: false,
            groups: None,
            adds_up_to_one: false,
            scale: None,
        }
    }

    /// As [`Routing::of`], with a softmax over all experts, which is normalized over the chosen
    /// ones if `adds_up_to_one`.
    pub const fn softmax(num_chosen: i32, adds_up_to_one: bool) -> Self {
        Routing { adds_up_to_one, ..Routing::of(Score::Softmax, num_chosen) }
    }

    /// Whether a softmax over all experts gives these shares, and if so, whether it is normalized
    /// over the chosen ones: what kernels know.
    pub fn as_softmax(&self) -> Option<bool> {
        if self.correction_bias.is_some() || self.groups.is_some() || self.scale.is_some() {
            return None;
        }
        match self.score {
            Score::Softmax => Some(self.adds_up_to_one),
            Score::SoftmaxOfChosen => Some(true),
            Score::Sigmoid | Score::SigmoidOfChosen | Score::SparseMixer { .. } => None,
        }
    }

    /// How files have the correction bias of so many experts; the first is how it is used.
    pub(crate) fn correction_bias_shapes(num_experts: i32) -> Vec<Vec<i32>> {
        vec![vec![num_experts], vec![1, num_experts]]
    }
}

/// A [`Routing`] with its formulas.
#[derive(Debug)]
pub struct Chooser {
    routing: Routing,
    /// A sigmoid, in float32 if scores are.
    sigmoid: Elementwise<1>,
    /// The sigmoid, and the sigmoid plus the correction bias.
    sigmoid_corrected: Elementwise<2, 2>,
    corrected: Elementwise<2>,
    /// Zeros in place of the scores of closed groups, made at the first use.
    closed_scores: OnceCell<Array>,
    /// Shares by their sum, times the factor of all.
    normalized: Elementwise<2>,
    /// Shares times the factor of all.
    scaled: Elementwise<1>,
    /// The logits of experts that are not chosen yet, and minus infinity in place of those far from
    /// the largest; from all logits, those not chosen yet, and the largest of these.
    near_largest: Elementwise<3>,
}

impl Chooser {
    /// Of this routing.
    pub fn new(routing: Routing) -> Self {
        let Routing { in_float32, scale, score, .. } = routing;
        let most_distance = match score {
            Score::SparseMixer { jitter } => 2.0 * jitter,
            _ => 0.0,
        };
        let times_scale = move |shares: Array| match scale {
            Some(scale) => ops::multiply(&shares, constant(scale, shares.dtype())?),
            None => Ok(shares),
        };
        let sigmoid = move |logits: &Array| match in_float32 {
            true => ops::sigmoid(logits.as_dtype(Dtype::Float32)?),
            false => ops::sigmoid(logits),
        };
        Chooser {
            routing,
            sigmoid: Elementwise::new(move |[logits]| sigmoid(logits)),
            sigmoid_corrected: Elementwise::with_results(move |[logits, bias]| {
                let scores = sigmoid(logits)?;
                let corrected = ops::add(&scores, bias)?;
                Ok([scores, corrected])
            }),
            corrected: Elementwise::new(|[scores, bias]| ops::add(scores, bias)),
            closed_scores: OnceCell::new(),
            normalized: Elementwise::new(move |[shares, sum]| {
                times_scale(ops::divide(shares, sum)?)
            }),
            scaled: Elementwise::new(move |[shares]| times_scale(shares.clone())),
            near_largest: Elementwise::new(move |[logits, open, largest]| {
                let dtype = logits.dtype();
                let magnitude = ops::maximum(logits.abs()?, largest)?;
                let distance = ops::divide(ops::subtract(largest, logits)?, magnitude)?;
                let is_far = distance.gt(constant(most_distance, dtype)?)?;
                ops::select(is_far, constant(f32::NEG_INFINITY, dtype)?, open)
            }),
        }
    }

    /// Router logits `[B, L, E]` and, if there is one, the correction bias `[E]` to expert indices
    /// (u32) and shares, both `[B, L, K]`.
    pub fn choose(
        &self,
        logits: &Array,
        correction_bias: Option<&Array>,
    ) -> Result<(Array, Array), Exception> {
        let &[batch, length, num_experts] = logits.shape() else {
            let shape = logits.shape();
            let message = format!("a router's outputs have three axes, got {shape:?}");
            return Err(Exception::custom(message));
        };
        let routing = &self.routing;
        let in_type = || match routing.in_float32 {
            true => logits.as_dtype(Dtype::Float32),
            false => Ok(logits.clone()),
        };
        let (scores, mut ranked) = match (routing.score, correction_bias) {
            (Score::Sigmoid, Some(bias)) => {
                let [scores, corrected] = self.sigmoid_corrected.call_all([logits, bias])?;
                (scores, corrected)
            }
            (score, bias) => {
                let scores = match score {
                    Score::Softmax => ops::softmax_axis(in_type()?, -1, true)?,
                    Score::SoftmaxOfChosen | Score::SigmoidOfChosen => in_type()?,
                    Score::Sigmoid => self.sigmoid.call([logits])?,
                    Score::SparseMixer { .. } => return self.mix(in_type()?),
                };
                let ranked = match bias {
                    Some(bias) => self.corrected.call([&scores, bias])?,
                    None => scores.clone(),
                };
                (scores, ranked)
            }
        };
        if let Some(groups) = routing.groups {
            ranked = self.without_closed_groups(groups, &ranked)?;
        }
        let num_chosen = routing.num_chosen;
        let order = ops::argpartition_axis(&ranked, -num_chosen, -1)?;
        let (start, stop) = ([0, 0, num_experts - num_chosen], [batch, length, num_experts]);
        let indices = ffi::slice(&order, &start, &stop)?;
        let mut shares = scores.take_along_axis(&indices, -1)?;
        match routing.score {
            Score::SoftmaxOfChosen => shares = ops::softmax_axis(&shares, -1, true)?,
            Score::SigmoidOfChosen => shares = self.sigmoid.call([&shares])?,
            Score::Softmax | Score::Sigmoid | Score::SparseMixer { .. } => {}
        }
        if routing.adds_up_to_one {
            shares = self.normalized.call([&shares, &shares.sum_axis(-1, true)?])?;
        } else if routing.scale.is_some() {
            shares = self.scaled.call([&shares])?;
        }
        Ok((indices, shares))
    }

    /// Chooses by [`Score::SparseMixer`], from logits `[B, L, E]`.
    fn mix(&self, logits: Array) -> Result<(Array, Array), Exception> {
        let closed = constant(f32::NEG_INFINITY, logits.dtype())?;
        let mut open = logits.clone();
        let (mut indices, mut shares) = (Vec::new(), Vec::new());
        for _ in 0..self.routing.num_chosen {
            let index = argmax_axis(&open, -1, true)?;
            let largest = open.take_along_axis(&index, -1)?;
            let near = self.near_largest.call([&logits, &open, &largest])?;
            shares.push(ops::softmax_axis(near, -1, true)?.take_along_axis(&index, -1)?);
            open = open.put_along_axis(&index, &closed, -1)?;
            indices.push(index);
        }
        Ok((ops::concatenate(&indices, -1)?, ops::concatenate(&shares, -1)?))
    }

    /// The scores `[B, L, E]` with zeros for all experts in groups that are not open.
    fn without_closed_groups(
        &self,
        groups: ExpertGroups,
        scores: &Array,
    ) -> Result<Array, Exception> {
        let &[batch, length, num_experts] = scores.shape() else {
            return Err(Exception::custom("scores have three axes".to_owned()));
        };
        let (num_closed, group_size) =
            (groups.count - groups.num_chosen, num_experts / groups.count);
        if num_closed == 0 {
            return Ok(scores.clone());
        }
        let grouped = ops::reshape(scores, &[batch, length, groups.count, group_size])?;
        let ranks = match groups.rank {
            GroupRank::Best => grouped.max_axis(-1, true)?,
            GroupRank::BestTwo => ops::indexing::topk_axis(&grouped, 2, -1)?.sum_axis(-1, true)?,
        };
        let order = ops::argpartition_axis(&ranks, num_closed - 1, -2)?; // [B, L, G, 1]
        let closed = ffi::slice(&order, &[0; 4], &[batch, length, num_closed, 1])?;
        let zeros = match self.closed_scores.get() {
            Some(zeros) => zeros,
            None => {
                let zeros = ops::zeros_dtype(&[1, 1, num_closed, group_size], scores.dtype())?;
                zeros.eval()?;
                self.closed_scores.get_or_init(|| zeros)
            }
        };
        let open = grouped.put_along_axis(closed, zeros, -2)?;
        ops::reshape(open, scores.shape())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: usize = 6;

    /// The chosen experts of a token by number, with their shares.
    fn chosen(
        routing: Routing,
        logits: [f32; EXPERTS],
        bias: Option<[f32; EXPERTS]>,
    ) -> Vec<(u32, f32)> {
        let logits = Array::from_slice(&logits, &[1, 1, EXPERTS as i32]);
        let bias = bias.map(|bias| Array::from_slice(&bias, &[EXPERTS as i32]));
        let (indices, shares) =
            Chooser::new(routing).choose(&logits, bias.as_ref()).expect("choose");
        let [indices, shares] = [indices.as_dtype(Dtype::Uint32), shares.as_dtype(Dtype::Float32)]
            .map(|array| array.and_then(|array| array.contiguous()).expect("numbers"));
        let mut chosen: Vec<(u32, f32)> = indices
            .as_slice::<u32>()
            .iter()
            .copied()
            .zip(shares.as_slice::<f32>().iter().copied())
            .collect();
        chosen.sort_by_key(|(expert, _)| *expert);
        chosen
    }

    fn check(
        routing: Routing,
        logits: [f32; EXPERTS],
        bias: Option<[f32; EXPERTS]>,
        expected: &[(u32, f32)],
    ) {
        let found = chosen(routing, logits, bias);
        let is_near = |(found, expected): (&(u32, f32), &(u32, f32))| {
            found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6
        };
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(is_near),
            "{routing:?}: {found:?} instead of {expected:?}"
        );
    }

    fn sigmoid(logit: f32) -> f32 {
        1.0 / (1.0 + (-logit).exp())
    }

    const LOGITS: [f32; EXPERTS] = [0.5, 2.0, -1.0, 1.0, 0.0, 1.5];

    #[test]
    fn a_softmax_gives_shares_of_all_experts_or_of_the_chosen_ones() {
        let all: f32 = LOGITS.iter().map(|logit| logit.exp()).sum();
        let [second, last] = [2.0f32, 1.5].map(f32::exp);
        let of_all = [(1, second / all), (5, last / all)];
        let of_chosen = [(1, second / (second + last)), (5, last / (second + last))];
        check(Routing::softmax(2, false), LOGITS, None, &of_all);
        check(Routing::softmax(2, true), LOGITS, None, &of_chosen);
        check(Routing::of(Score::SoftmaxOfChosen, 2), LOGITS, None, &of_chosen);
        let precise = Routing { in_float32: true, ..Routing::of(Score::SoftmaxOfChosen, 2) };
        check(precise, LOGITS, None, &of_chosen);
    }

    #[test]
    fn a_sigmoid_is_corrected_for_the_choice_and_not_for_the_shares() {
        let routing = Routing { correction_bias: Some("bias"), ..Routing::of(Score::Sigmoid, 2) };
        let of_chosen = Routing { in_float32: true, ..Routing::of(Score::SigmoidOfChosen, 1) };
        check(of_chosen, [60.0, 61.0, 59.0, 0.0, 0.0, 0.0], None, &[(1, 1.0)]);
        let bias = Some([0.0, -1.0, 0.0, 0.0, 1.0, 0.0]);
        check(routing, LOGITS, bias, &[(4, 0.5), (5, sigmoid(1.5))]);
        let scaled = Routing { adds_up_to_one: true, scale: Some(2.5), ..routing };
        let sum = 0.5 + sigmoid(1.5);
        check(scaled, LOGITS, bias, &[(4, 1.25 / sum), (5, 2.5 * sigmoid(1.5) / sum)]);
    }

    #[test]
    fn sparse_mixer_shares_with_near_logits_only() {
        let routing = |jitter| Routing::of(Score::SparseMixer { jitter }, 2);
        // 1.5 is a quarter below 2.0 and 1.0 a third below 1.5: no other logit is as near.
        check(routing(0.01), LOGITS, None, &[(1, 1.0), (5, 1.0)]);
        let [e_20, e_15, e_10] = [2.0f32, 1.5, 1.0].map(f32::exp);
        let first = e_20 / (e_20 + e_15);
        check(routing(0.13), LOGITS, None, &[(1, first), (5, 1.0)]);
        check(routing(0.17), LOGITS, None, &[(1, first), (5, e_15 / (e_15 + e_10))]);
        // A negative logit is compared by its own magnitude where that is the larger one.
        let below_zero = [-1.0, -1.1, -3.0, -4.0, -5.0, -6.0];
        let [e_10, e_11, e_30] = [-1.0f32, -1.1, -3.0].map(f32::exp);
        let shares = [(0, e_10 / (e_10 + e_11)), (1, 1.0)];
        check(routing(0.05), below_zero, None, &shares);
        let shares = [(0, e_10 / (e_10 + e_11 + e_30)), (1, e_11 / (e_11 + e_30))];
        check(routing(0.35), below_zero, None, &shares);
    }

    #[test]
    fn only_experts_of_the_best_groups_are_chosen() {
        // Pairs: the second has the best expert after the first pair's, the last the best sum of two.
        let logits = [3.0, -3.0, 2.0, -2.0, 1.0, 1.5];
        let groups = |num_chosen, rank| Some(ExpertGroups { count: 3, num_chosen, rank });
        let routing = |groups| Routing { groups, ..Routing::of(Score::Sigmoid, 2) };
        let share = |expert: usize| (expert as u32, sigmoid(logits[expert]));
        check(routing(groups(1, GroupRank::Best)), logits, None, &[share(0), share(1)]);
        check(routing(groups(2, GroupRank::Best)), logits, None, &[share(0), share(2)]);
        check(routing(groups(1, GroupRank::BestTwo)), logits, None, &[share(4), share(5)]);
        check(routing(groups(3, GroupRank::BestTwo)), logits, None, &[share(0), share(2)]);
    }
}
