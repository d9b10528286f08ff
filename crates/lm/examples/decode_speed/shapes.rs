//! The sizes of the models that are measured, and of small ones for checks.

/// What the architectures differ in.
#[derive(Clone, Copy)]
pub enum Family {
    Llama,
    Qwen3,
    /// With a sliding window in five of six layers.
    Gemma3 {
        window: usize,
    },
    Qwen3Moe(Experts),
    /// Every fourth layer attends.
    Qwen3Next(Experts),
}

/// What matrices are stored as.
#[derive(Clone, Copy, PartialEq)]
pub enum Weights {
    /// MLX's affine format with 4 bits.
    FourBits,
    Bfloat16,
}

#[derive(Clone, Copy)]
pub struct Experts {
    pub count: usize,
    pub chosen: usize,
    pub intermediate: usize,
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    pub family: Family,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub head_dim: usize,
    pub weights: Weights,
}

impl Shape {
    pub fn is_tied(&self) -> bool {
        !matches!(self.family, Family::Qwen3Moe(_) | Family::Qwen3Next(_))
    }
}

const LLAMA_1B: Shape = Shape {
    name: "llama-3.2-1b",
    family: Family::Llama,
    hidden: 2048,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    intermediate: 8192,
    vocab: 128_256,
    head_dim: 64,
    weights: Weights::FourBits,
};

/// What is measured. `qwen3-next-12` has a quarter of its model's layers.
pub const MEASURED: [Shape; 8] = [
    Shape {
        name: "smollm2-135m",
        family: Family::Llama,
        hidden: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        intermediate: 1536,
        vocab: 49_152,
        head_dim: 64,
        weights: Weights::FourBits,
    },
    LLAMA_1B,
    Shape { name: "llama-3.2-1b-bf16", weights: Weights::Bfloat16, ..LLAMA_1B },
    Shape {
        name: "llama-3.1-8b",
        family: Family::Llama,
        hidden: 4096,
        layers: 32,
        heads: 32,
        kv_heads: 8,
        intermediate: 14_336,
        vocab: 128_256,
        head_dim: 128,
        weights: Weights::FourBits,
    },
    Shape {
        name: "qwen3-0.6b",
        family: Family::Qwen3,
        hidden: 1024,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        intermediate: 3072,
        vocab: 151_936,
        head_dim: 128,
        weights: Weights::FourBits,
    },
    Shape {
        name: "gemma-3-1b",
        family: Family::Gemma3 { window: 512 },
        hidden: 1152,
        layers: 26,
        heads: 4,
        kv_heads: 1,
        intermediate: 6912,
        vocab: 262_144,
        head_dim: 256,
        weights: Weights::FourBits,
    },
    Shape {
        name: "qwen3-30b-a3b",
        family: Family::Qwen3Moe(Experts { count: 128, chosen: 8, intermediate: 768 }),
        hidden: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        intermediate: 6144,
        vocab: 151_936,
        head_dim: 128,
        weights: Weights::FourBits,
    },
    Shape {
        name: "qwen3-next-12",
        family: Family::Qwen3Next(Experts { count: 512, chosen: 10, intermediate: 512 }),
        hidden: 2048,
        layers: 12,
        heads: 16,
        kv_heads: 2,
        intermediate: 5120,
        vocab: 151_936,
        head_dim: 256,
        weights: Weights::FourBits,
    },
];

const SMALL: Shape = Shape {
    name: "small-llama",
    family: Family::Llama,
    hidden: 512,
    layers: 3,
    heads: 8,
    kv_heads: 2,
    intermediate: 1536,
    vocab: 1000,
    head_dim: 64,
    weights: Weights::FourBits,
};

const SMALL_BF16: Shape = Shape { name: "small-llama-bf16", weights: Weights::Bfloat16, ..SMALL };

/// Small models on which the kernels are compared with the plain forms: few layers, so that a
/// difference has not been amplified. With every expert chosen, rounding cannot choose another one.
pub const CHECKED: [Shape; 15] = [
    SMALL,
    // A head that `tall_product.cu` computes, with a part of a chunk at the end of its rows.
    Shape { name: "small-llama-576", hidden: 576, heads: 9, kv_heads: 3, vocab: 20_000, ..SMALL },
    Shape { name: "small-llama-80", kv_heads: 8, head_dim: 80, ..SMALL },
    Shape { name: "small-llama-96", kv_heads: 1, head_dim: 96, ..SMALL },
    Shape { name: "small-llama-256", heads: 4, kv_heads: 4, head_dim: 256, ..SMALL },
    Shape { name: "small-qwen3", family: Family::Qwen3, head_dim: 128, ..SMALL },
    Shape { name: "small-gemma", family: Family::Gemma3 { window: 48 }, layers: 6, ..SMALL },
    Shape {
        name: "small-gemma-ring",
        family: Family::Gemma3 { window: 512 },
        layers: 6,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        ..SMALL
    },
    Shape {
        name: "small-moe-all",
        family: Family::Qwen3Moe(Experts { count: 8, chosen: 8, intermediate: 192 }),
        ..SMALL
    },
    Shape {
        name: "small-moe",
        family: Family::Qwen3Moe(Experts { count: 40, chosen: 4, intermediate: 128 }),
        layers: 1,
        ..SMALL
    },
    Shape {
        name: "small-next",
        family: Family::Qwen3Next(Experts { count: 8, chosen: 8, intermediate: 192 }),
        layers: 4,
        ..SMALL
    },
    SMALL_BF16,
    // Rows that warps do not divide evenly, and outputs that blocks do not.
    Shape {
        name: "small-llama-bf16-uneven",
        hidden: 584,
        heads: 9,
        kv_heads: 3,
        intermediate: 1544,
        vocab: 1001,
        ..SMALL_BF16
    },
    // Warps compute several outputs.
    Shape { name: "small-llama-bf16-wide", intermediate: 9000, vocab: 17_000, ..SMALL_BF16 },
    Shape {
        name: "small-gemma-bf16",
        family: Family::Gemma3 { window: 48 },
        layers: 6,
        ..SMALL_BF16
    },
];
