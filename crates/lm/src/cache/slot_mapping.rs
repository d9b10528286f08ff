//! The slot mapping that a step's kernels read, kept in a device's memory.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

/// The slot mapping that was last made for one cache, for the layers that share a step and for the step
/// after it.
///
/// MLX's CUDA backend keeps arrays that the host has written in memory of the host. A kernel that reads
/// them waits for the bus, and one of more than eight bytes is moved whole pages at a time, which takes
/// a tenth of a decode step. But from one step to the next every number mostly grows by the same again:
/// then the device adds.
#[derive(Debug, Clone, Default)]
pub(super) struct LastSlotMapping(Rc<RefCell<Option<Last>>>);

#[derive(Debug)]
struct Last {
    numbers: Vec<i32>,
    array: Array,
    /// By how much the numbers mostly grow, and the same as an array.
    growth: Option<(Vec<i32>, Array)>,
    /// Whether they grew by something else the last time.
    jumped: bool,
    /// How often the growth was added since the host wrote the numbers.
    num_added: u32,
}

/// The host writes the numbers anew after so many steps: where no kernel reads the array, nothing is
/// computed, and each sum would keep the one before it.
const MOST_ADDED: u32 = 64;

impl LastSlotMapping {
    /// The numbers as an array, i32 `[16, N]` with the same in each of the sixteen.
    pub(super) fn array(&self, numbers: Vec<i32>) -> Result<Array> {
        let mut last = self.0.borrow_mut();
        let known = last.take().filter(|known| known.numbers.len() == numbers.len());
        let next = match known {
            Some(known) if known.numbers == numbers => known,
            Some(known) => known.grown_to(numbers)?,
            None => Last {
                array: on_device(&numbers)?,
                numbers,
                growth: None,
                jumped: false,
                num_added: 0,
            },
        };
        Ok(last.insert(next).array.clone())
    }
}

impl Last {
    fn grown_to(self, numbers: Vec<i32>) -> Result<Self> {
        let pairs = std::iter::zip(&numbers, &self.numbers);
        let by: Vec<i32> = pairs.map(|(new, old)| new.wrapping_sub(*old)).collect();
        let (array, growth, jumped, num_added) = match self.growth {
            Some((same, growth)) if same == by && self.num_added < MOST_ADDED => {
                let array = ops::add(&self.array, &growth)?;
                (array, Some((same, growth)), false, self.num_added + 1)
            }
            Some(growth) if growth.0 == by || !self.jumped => {
                (on_device(&numbers)?, Some(growth), true, 0)
            }
            _ => {
                let growth = on_device(&by)?;
                (on_device(&numbers)?, Some((by, growth)), false, 0)
            }
        };
        Ok(Last { numbers, array, growth, jumped, num_added })
    }
}

/// Large enough not to be kept in the host's memory for its size, and computed on the device.
fn on_device(numbers: &[i32]) -> Result<Array> {
    const COPIES: i32 = 16;
    let length = numbers.len() as i32;
    ops::broadcast_to(Array::from_slice(numbers, &[1, length]), &[COPIES, length])?.contiguous()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    #[test]
    fn the_array_has_the_numbers_of_the_step_however_these_grow() {
        let mapping = LastSlotMapping::default();
        let steps = [
            [7, 300, 0],
            [7, 300, 0],
            [8, 300 + (1 << 24), 0],
            [9, 300 + (2 << 24), 0],
            [10, 300 + (3 << 24), 0],
            [11, 304, 0],
            [12, 304 + (1 << 24), 0],
            // That of a ring, whose highest bit is set.
            [13, 8 | 7 << 16 | i32::MIN, 0],
            [14, 8 | i32::MIN, 0],
            [15, 8 | 1 << 16 | i32::MIN, 0],
        ];
        for numbers in steps {
            let array = mapping.array(numbers.to_vec()).unwrap();
            assert!(array.nbytes() > 8, "a device reads smaller ones from the host");
            array.eval().unwrap();
            assert_eq!(array.as_slice::<i32>(), numbers.repeat(16));
        }
        let rows = mapping.array(vec![1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(rows.shape(), [16, 6]);
    }

    #[test]
    fn mappings_that_nobody_reads_do_not_keep_all_before_them() {
        let mapping = LastSlotMapping::default();
        let nodes = |at: i32| {
            let array = mapping.array(vec![at, at << 24]).unwrap();
            crate::ffi::graph_operations(&[&array]).unwrap().len()
        };
        let most = (0..500).map(nodes).max();
        assert!(most.is_some_and(|most| most < 100), "{most:?} operations for a mapping");
    }

    #[test]
    fn a_mapping_that_grows_again_is_added_to() {
        let mapping = LastSlotMapping::default();
        let growth = |mapping: &LastSlotMapping| {
            let last = mapping.0.borrow();
            let (_, array) = last.as_ref().unwrap().growth.as_ref()?;
            array.eval().unwrap();
            Some(array.as_slice::<i32>().as_ptr())
        };
        for at in 0..2 {
            mapping.array(vec![at, at << 24]).unwrap();
        }
        let first = growth(&mapping);
        for at in (2..9).chain(20..30) {
            mapping.array(vec![at, at << 24]).unwrap();
        }
        assert!(first.is_some());
        assert_eq!(growth(&mapping), first, "nothing new comes from the host");
    }
}
