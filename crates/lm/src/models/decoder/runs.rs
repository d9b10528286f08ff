//! A decoder's layers in runs, each of which a device may compute in one launch for one token.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::layers::{Block, Steps};
use crate::cache::LayerCache;
use crate::device_kernels::{Kernels, LayerParts, MOST_LAYERS};
use crate::nn::{LayersAhead, WholeLayers};

/// Layers that follow each other.
#[derive(Debug)]
pub(super) struct LayerRun {
    blocks: Vec<Block>,
    /// All of them for one token, where the device computes several in one launch. Then each has a cache.
    whole: Option<WholeLayers>,
}

impl LayerRun {
    /// All layers of a decoder in runs. Their kernels are asked for in the order in which a pass calls
    /// them: that of a run, and those of its layers, which are for caches that the run's cannot take.
    pub(super) fn of_all(blocks: Vec<Block>, kernels: &Kernels) -> Vec<Self> {
        let lengths = lengths(&blocks);
        let mut blocks = blocks.into_iter();
        let mut next = |length| LayerRun::new(blocks.by_ref().take(length).collect(), kernels);
        lengths.into_iter().map(&mut next).collect()
    }

    fn new(mut blocks: Vec<Block>, kernels: &Kernels) -> Self {
        let parts: Vec<_> = blocks.iter().filter_map(Block::parts).collect();
        let whole = match parts.len() > 1 {
            true => WholeLayers::new(kernels, &parts),
            false => None,
        };
        for block in &mut blocks {
            block.prepare_whole(kernels);
        }
        LayerRun { blocks, whole }
    }

    /// The residual stream `[B, L, D]` after the last layer. Each layer with a mixer takes the next cache.
    pub(super) fn forward<'a>(
        &self,
        x: Array,
        caches: &mut impl Iterator<Item = &'a mut LayerCache>,
        steps: &mut Steps,
        ahead: &mut LayersAhead,
    ) -> Result<Array, Exception> {
        if let (Some(whole), [1, 1, _]) = (&self.whole, x.shape()) {
            let mut own: Vec<_> = caches.take(self.blocks.len()).collect();
            return match self.forward_whole(whole, &x, &mut own, steps)? {
                Some(output) => Ok(output),
                None => self.forward_each(x, &mut own.into_iter(), steps, ahead),
            };
        }
        self.forward_each(x, caches, steps, ahead)
    }

    /// The residual stream of one token after the last layer, computed in one launch; `None`, with
    /// nothing appended, where the layers have to run.
    fn forward_whole(
        &self,
        whole: &WholeLayers,
        x: &Array,
        caches: &mut [&mut LayerCache],
        steps: &mut Steps,
    ) -> Result<Option<Array>, Exception> {
        let (Some(block), Some(cache)) = (self.blocks.first(), caches.first()) else {
            return Ok(None);
        };
        let Some(reach) = block.reach() else { return Ok(None) };
        let step = steps.of_attention(1, reach, cache)?;
        whole.forward(x, caches, step)
    }

    fn forward_each<'a>(
        &self,
        mut x: Array,
        caches: &mut impl Iterator<Item = &'a mut LayerCache>,
        steps: &mut Steps,
        ahead: &mut LayersAhead,
    ) -> Result<Array, Exception> {
        for block in &self.blocks {
            x = block.forward(x, caches, steps)?;
            ahead.launch(&x)?;
        }
        Ok(x)
    }
}

/// The lengths of all runs: layers that one launch could compute are together, up to [`MOST_LAYERS`].
fn lengths(blocks: &[Block]) -> Vec<usize> {
    type Known<'a> = (LayerParts<'a>, Option<[Option<i32>; 2]>);
    let known = |block| Some((Block::parts(block)?, block.reach()));
    let layers: Vec<Option<Known<'_>>> = blocks.iter().map(known).collect();
    let are_alike = |one: &Option<Known<'_>>, next: &Option<Known<'_>>| match (one, next) {
        (Some((one, reach)), Some((next, other))) => reach == other && one.is_shaped_like(next),
        _ => false,
    };
    layers.chunk_by(are_alike).flat_map(|alike| even_lengths(alike.len(), MOST_LAYERS)).collect()
}

/// As few parts of `count` as have at most `most` each, as equal as they can be.
fn even_lengths(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |part| (count + part) / parts)
}

#[cfg(test)]
mod tests {
    use super::even_lengths;

    #[test]
    fn layers_are_divided_into_few_runs_of_equal_lengths() {
        let lengths = |count| even_lengths(count, 8).collect::<Vec<_>>();
        assert_eq!(lengths(1), [1]);
        assert_eq!(lengths(8), [8]);
        assert_eq!(lengths(9), [4, 5]);
        assert_eq!(lengths(16), [8, 8]);
        assert_eq!(lengths(28), [7, 7, 7, 7]);
        assert_eq!(lengths(30), [7, 7, 8, 8]);
    }
}
