//! The types of numbers, in files and in MLX.

use cairn_formats::safetensors;
use mlx_rs::Dtype;

/// The MLX dtype of a file's dtype.
pub(crate) fn mlx_dtype(dtype: safetensors::Dtype) -> Dtype {
    use safetensors::Dtype as File;
    match dtype {
        File::Bool => Dtype::Bool,
        // MLX has no such type, and takes its bytes.
        File::U8 | File::F8E4m3 => Dtype::Uint8,
        File::I8 => Dtype::Int8,
        File::U16 => Dtype::Uint16,
        File::I16 => Dtype::Int16,
        File::F16 => Dtype::Float16,
        File::Bf16 => Dtype::Bfloat16,
        File::U32 => Dtype::Uint32,
        File::I32 => Dtype::Int32,
        File::F32 => Dtype::Float32,
        File::U64 => Dtype::Uint64,
        File::I64 => Dtype::Int64,
    }
}

/// Bytes per number.
pub(crate) fn item_size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
        Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
        Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
        Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 | Dtype::Complex64 => 8,
    }
}

/// Whether it is one of floating-point numbers.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32)
}
