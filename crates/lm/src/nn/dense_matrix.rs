//! A matrix of floating-point numbers.

use std::cell::OnceCell;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::device::ComputeDevice;
use crate::device_kernels::{Fusion, Kernel, Kernels, MatrixRows, run};
use crate::ffi;

/// A dense matrix `[N, K]` that multiplies vectors of K numbers. All its arrays are views of one.
#[derive(Debug)]
pub struct DenseMatrix {
    weight: Array, // [K, N], in the order of `product_order`
    /// `weight` as `[1, K, N]`: for a product with two axes MLX flattens vectors `[B, L, K]` before
    /// and unflattens them after it, which are two more nodes of the graph.
    of_one_row: Array,
    rows: Array, // [N, K]
    kernels: Kernels,
    product: OnceCell<Option<Box<dyn Kernel>>>, // for `product`, asked for on its first call
}

impl DenseMatrix {
    /// The matrix with these rows, `[N, K]`.
    pub fn new(rows: &Array, kernels: Kernels) -> Result<Self, Exception> {
        Self::with_weight(product_order(rows)?, kernels)
    }

    fn with_weight(weight: Array, kernels: Kernels) -> Result<Self, Exception> {
        let (of_one_row, rows) = (weight.expand_dims(0)?, weight.transpose()?);
        Ok(DenseMatrix { weight, of_one_row, rows, kernels, product: OnceCell::new() })
    }

    /// N, the number of rows.
    pub fn num_rows(&self) -> i32 {
        self.weight.dim(1)
    }

    /// The type of the numbers.
    pub fn dtype(&self) -> Dtype {
        self.weight.dtype()
    }

    /// The rows `[N, K]`, on a CPU as a strided view.
    pub fn rows(&self) -> &Array {
        &self.rows
    }

    /// The device's kernel for products with this matrix.
    pub fn kernel(&self, fusion: Fusion<'_>) -> Option<Box<dyn Kernel>> {
        let kernels = self.kernels.as_ref()?;
        // Launches are traced with the rows: a view that is not made yet would be made every time.
        self.rows.eval().ok()?;
        kernels.product(MatrixRows::Dense(&self.rows), fusion)
    }

    /// `x` `[..., K]` to `[..., N]`.
    pub fn product(&self, x: &Array) -> Result<Array, Exception> {
        let kernel = self.product.get_or_init(|| self.kernel(Fusion::default()));
        match run(kernel.as_deref(), &[x]) {
            Some([product]) => Ok(product),
            None => ops::matmul(x, self.factor(x)),
        }
    }

    /// `x` `[..., K]` to `[..., N]`, with `bias` `[N]` added: one graph node instead of two.
    pub fn product_and_bias(&self, x: &Array, bias: &Array) -> Result<Array, Exception> {
        ops::addmm(bias, x, self.factor(x), None, None)
    }

    /// The array to multiply `x` by.
    fn factor(&self, x: &Array) -> &Array {
        match x.shape() {
            [1, _, _] => &self.of_one_row,
            _ => &self.weight,
        }
    }

    /// The rows of all `matrices`, one after another, copied.
    pub fn stack(matrices: &[&DenseMatrix]) -> Result<Self, Exception> {
        let rows: Vec<&Array> = matrices.iter().map(|matrix| &matrix.rows).collect();
        let kernels = matrices.first().and_then(|matrix| matrix.kernels.clone());
        Self::new(&ops::concatenate(&rows, 0)?, kernels)
    }

    /// The rows of these indices, in that order, copied.
    pub fn select(&self, indices: &Array) -> Result<Self, Exception> {
        Self::new(&self.rows.take_axis(indices, 0)?, self.kernels.clone())
    }

    /// The rows `from..to`, as views.
    pub fn range(&self, from: i32, to: i32) -> Result<Self, Exception> {
        let part = ffi::slice(&self.weight, &[0, from], &[self.weight.dim(0), to])?;
        Self::with_weight(part, self.kernels.clone())
    }

    /// The same matrix in an array of its own.
    pub fn copied(&self) -> Result<Self, Exception> {
        Self::with_weight(self.weight.contiguous()?, self.kernels.clone())
    }

    /// The views of the matrix.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight, &self.of_one_row, &self.rows].into_iter()
    }
}

/// Transposes a checkpoint's weights `[out, in]` to `[in, out]`: stored in that order on a CPU, as
/// a view on a GPU, whose kernels prefer the checkpoint's order.
///
/// OpenBLAS packs the weights for every product, which takes half as long again if it has to
/// transpose them. Measured with all products of SmolLM2-135M on two Zen cores: 53 ms instead of 69
/// for one row, 81 instead of 107 for eight, 498 instead of 525 for 128.
fn product_order(weight: &Array) -> Result<Array, Exception> {
    match ComputeDevice::current() {
        ComputeDevice::Cpu => weight.transpose()?.contiguous(),
        ComputeDevice::Gpu => weight.transpose(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::device_kernels::{DeviceKernels, Experts, HeadShape, Rotation};

    /// Products of single vectors, computed from the rows that were given, plus a number that tells
    /// them from others.
    #[derive(Debug, Default)]
    struct SingleVectorKernels {
        num_asked: Cell<usize>,
    }

    const MARK: f32 = 1000.0;

    #[derive(Debug)]
    struct Single(Array);

    impl Kernel for Single {
        fn call(&self, inputs: &[&Array]) -> Result<Option<Vec<Array>>, Exception> {
            let [x] = inputs else { panic!("one input, got {}", inputs.len()) };
            if !matches!(x.shape(), [1, 1, _]) {
                return Ok(None);
            }
            let product = ops::matmul(x, self.0.transpose()?)?;
            Ok(Some(vec![ops::add(product, Array::from_f32(MARK))?]))
        }
    }

    impl DeviceKernels for SingleVectorKernels {
        fn product(&self, rows: MatrixRows<'_>, _: Fusion<'_>) -> Option<Box<dyn Kernel>> {
            self.num_asked.set(self.num_asked.get() + 1);
            let MatrixRows::Dense(rows) = rows else { panic!("dense rows") };
            assert!(ffi::is_available(rows), "not evaluated");
            Some(Box::new(Single(rows.clone())))
        }

        fn norm_residual(&self, _: &Array, _: f32) -> Option<Box<dyn Kernel>> {
            None
        }

        fn attention(&self, _: &HeadShape, _: Rotation<'_>) -> Option<Box<dyn Kernel>> {
            None
        }

        fn experts(&self, _: Experts<'_>) -> Option<Box<dyn Kernel>> {
            None
        }
    }

    /// The numbers from `first` on, in `shape`.
    fn count(first: i32, shape: &[i32]) -> Array {
        let numbers: Vec<f32> =
            (0..shape.iter().product()).map(|index| (first + index) as f32).collect();
        Array::from_slice(&numbers, shape)
    }

    fn numbers(array: &Array) -> Vec<f32> {
        array.contiguous().unwrap().try_as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn a_product_has_the_kernels_form_where_it_has_one() {
        let kernels = Rc::new(SingleVectorKernels::default());
        let rows = count(0, &[3, 2]); // 0 1, 2 3, 4 5
        let matrix = DenseMatrix::new(&rows, Some(kernels.clone())).unwrap();
        for _ in 0..2 {
            let single = matrix.product(&count(1, &[1, 1, 2])).unwrap();
            assert_eq!(single.shape(), [1, 1, 3]);
            assert_eq!(numbers(&single), [2.0, 8.0, 14.0].map(|number| number + MARK));
        }
        for shape in [[1, 2, 2], [2, 1, 2]] {
            let several = matrix.product(&count(1, &shape)).unwrap();
            assert_eq!(numbers(&several), [2.0, 8.0, 14.0, 4.0, 18.0, 32.0], "{shape:?}");
        }
        assert_eq!(kernels.num_asked.get(), 1);
        let plain = DenseMatrix::new(&rows, None).unwrap();
        assert_eq!(numbers(&plain.product(&count(1, &[1, 1, 2])).unwrap()), [2.0, 8.0, 14.0]);
    }

    #[test]
    fn parts_of_a_matrix_and_several_together_keep_their_rows_and_kernels() {
        let kernels: Kernels = Some(Rc::new(SingleVectorKernels::default()));
        let matrix = |first, rows| DenseMatrix::new(&count(first, &[rows, 2]), kernels.clone());
        let [first, second] = [matrix(0, 3).unwrap(), matrix(6, 2).unwrap()];
        let stacked = DenseMatrix::stack(&[&first, &second]).unwrap();
        assert_eq!((stacked.num_rows(), numbers(stacked.rows())), (5, numbers(&count(0, &[5, 2]))));
        let indices = Array::from_slice(&[4, 0], &[2]);
        for (what, found, expected) in [
            ("views", stacked.range(1, 3).unwrap(), vec![2.0, 3.0, 4.0, 5.0]),
            ("copied", stacked.range(1, 3).unwrap().copied().unwrap(), vec![2.0, 3.0, 4.0, 5.0]),
            ("selected", stacked.select(&indices).unwrap(), vec![8.0, 9.0, 0.0, 1.0]),
        ] {
            assert_eq!(numbers(found.rows()), expected, "{what}");
            let product = numbers(&found.product(&count(0, &[1, 1, 2])).unwrap());
            assert_eq!(product, [expected[1] + MARK, expected[3] + MARK], "{what}");
        }
    }
}
