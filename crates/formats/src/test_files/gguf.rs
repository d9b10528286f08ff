//! Builds small GGUF files: a llama of one layer with a byte-level vocabulary, any part of which a
//! test may spoil before it is written.

use std::path::PathBuf;

use crate::gguf::GgmlType;

/// Numbers in an embedding.
pub const HIDDEN: usize = 32;
/// Numbers in a head.
pub const HEAD_DIM: usize = 16;
/// Query heads.
pub const HEADS: usize = 2;
/// Key and value heads.
pub const KV_HEADS: usize = 1;
/// Width of the MLP.
pub const INNER: usize = 64;

/// ggml's numbers for the kinds of values that the builder writes.
const U32: u32 = 4;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// One tensor before it is written; nothing in it need be true.
pub struct TestTensor {
    /// The name.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// ggml's number for the type.
    pub type_id: u32,
    /// The values.
    pub data: Vec<u8>,
}

/// The parts of a GGUF file before they are written.
pub struct TestGguf {
    /// The version in the preamble.
    pub version: u32,
    /// Keys, the numbers of their kinds, and their values as written.
    pub keys: Vec<(String, u32, Vec<u8>)>,
    /// Tensors in the order of the header.
    pub tensors: Vec<TestTensor>,
}

impl TestGguf {
    /// A model that imports: embedding Q8_0, matrices Q4_1 except one each of Q4_0, F16 and F32,
    /// norms F32, tied embeddings.
    pub fn tiny() -> TestGguf {
        let mut sample = TestGguf { version: 3, keys: Vec::new(), tensors: Vec::new() };
        sample.set_text("general.architecture", "llama");
        sample.set_text("general.name", "Tiny Llama: 1 layer!");
        for (key, value) in [
            ("llama.block_count", 1),
            ("llama.context_length", 128),
            ("llama.embedding_length", HIDDEN),
            ("llama.feed_forward_length", INNER),
            ("llama.attention.head_count", HEADS),
            ("llama.attention.head_count_kv", KV_HEADS),
            ("llama.rope.dimension_count", HEAD_DIM),
        ] {
            sample.set_u32(key, value as u32);
        }
        sample.set_f32("llama.rope.freq_base", 500_000.0);
        sample.set_f32("llama.attention.layer_norm_rms_epsilon", 1e-5);

        let mut tokens = crate::byte_letters().map(String::from).to_vec();
        tokens
            .extend(["he", "ll", "hell", "hello", "12", "<|begin|>", "<|end|>"].map(String::from));
        let kinds: Vec<i32> =
            tokens.iter().map(|token| if token.starts_with("<|") { 3 } else { 1 }).collect();
        sample.set_text("tokenizer.ggml.model", "gpt2");
        sample.set_text("tokenizer.ggml.pre", "smollm");
        sample.set_texts("tokenizer.ggml.tokens", &tokens);
        sample.set_array(
            "tokenizer.ggml.token_type",
            5,
            kinds.len(),
            kinds.iter().flat_map(|kind| kind.to_le_bytes()).collect(),
        );
        sample.set_texts(
            "tokenizer.ggml.merges",
            &["h e", "l l", "he ll", "hell o", "1 2"].map(String::from),
        );
        sample.set_u32("tokenizer.ggml.bos_token_id", 261);
        sample.set_u32("tokenizer.ggml.eos_token_id", 262);
        sample.set_text("tokenizer.chat_template", "{{ messages }}");

        let mut random = Random(1);
        let (queries, keys) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        for (name, shape, ggml_type) in [
            ("token_embd", vec![tokens.len(), HIDDEN], GgmlType::Q8_0),
            ("blk.0.attn_norm", vec![HIDDEN], GgmlType::F32),
            ("blk.0.attn_q", vec![queries, HIDDEN], GgmlType::Q4_1),
            ("blk.0.attn_k", vec![keys, HIDDEN], GgmlType::Q4_1),
            ("blk.0.attn_v", vec![keys, HIDDEN], GgmlType::F16),
            ("blk.0.attn_output", vec![HIDDEN, queries], GgmlType::Q4_0),
            ("blk.0.ffn_norm", vec![HIDDEN], GgmlType::F32),
            ("blk.0.ffn_gate", vec![INNER, HIDDEN], GgmlType::Q4_1),
            ("blk.0.ffn_up", vec![INNER, HIDDEN], GgmlType::F32),
            ("blk.0.ffn_down", vec![HIDDEN, INNER], GgmlType::Q4_1),
            ("output_norm", vec![HIDDEN], GgmlType::F32),
        ] {
            let data = random.values(ggml_type, shape.iter().product());
            sample.tensors.push(TestTensor {
                name: format!("{name}.weight"),
                shape,
                type_id: ggml_type.id(),
                data,
            });
        }
        sample
    }

    /// The same, wide enough for the longest blocks, with matrices of a type that has no exact form.
    pub fn with_k_quants() -> TestGguf {
        let mut file = TestGguf::tiny();
        for (key, value) in [
            ("llama.context_length", 4096),
            ("llama.embedding_length", 256),
            ("llama.feed_forward_length", 512),
            ("llama.rope.dimension_count", 128),
        ] {
            file.set_u32(key, value);
        }
        for length in file.tensors.iter_mut().flat_map(|tensor| &mut tensor.shape) {
            // What was 16, 32 and 64 wide; rows of the embedding are tokens.
            *length = if *length == 263 { 263 } else { *length * 8 };
        }
        let names: Vec<String> = file.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        for name in names {
            let is_matrix = file.tensor(&name).shape.len() == 2;
            file.store_as(&name, if is_matrix { GgmlType::Q6K } else { GgmlType::F32 });
        }
        file
    }

    /// Makes each matrix of the feed-forward network as large as this, in zeros of F32.
    pub fn widen(&mut self, matrix_bytes: usize) {
        let inner = matrix_bytes / 4 / HIDDEN;
        self.set_u32("llama.feed_forward_length", inner as u32);
        for (name, shape) in [
            ("blk.0.ffn_gate.weight", [inner, HIDDEN]),
            ("blk.0.ffn_up.weight", [inner, HIDDEN]),
            ("blk.0.ffn_down.weight", [HIDDEN, inner]),
        ] {
            let tensor = self.tensor(name);
            tensor.type_id = GgmlType::F32.id();
            tensor.data = vec![0; 4 * inner * HIDDEN];
            tensor.shape = shape.to_vec();
        }
    }

    /// Sets or replaces a key.
    pub fn set(&mut self, key: &str, kind: u32, value: Vec<u8>) {
        self.remove(key);
        self.keys.push((key.into(), kind, value));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(known, ..)| known != key);
    }

    /// Sets an integer.
    pub fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, U32, value.to_le_bytes().into());
    }

    /// Sets a number.
    pub fn set_f32(&mut self, key: &str, value: f32) {
        self.set(key, F32, value.to_le_bytes().into());
    }

    /// Sets a boolean.
    pub fn set_flag(&mut self, key: &str, value: bool) {
        self.set(key, BOOL, vec![value.into()]);
    }

    /// Sets a string.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, TEXT, text(value));
    }

    /// Sets an array of strings.
    pub fn set_texts(&mut self, key: &str, values: &[String]) {
        self.set_array(
            key,
            TEXT,
            values.len(),
            values.iter().flat_map(|value| text(value)).collect(),
        );
    }

    /// An array whose count need not be true.
    pub fn set_array(&mut self, key: &str, element: u32, count: usize, elements: Vec<u8>) {
        self.set(
            key,
            ARRAY,
            [&element.to_le_bytes()[..], &(count as u64).to_le_bytes(), &elements].concat(),
        );
    }

    /// The tensor of that name. Panics where there is none.
    pub fn tensor(&mut self, name: &str) -> &mut TestTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    /// Gives a tensor another type, with values to match.
    pub fn store_as(&mut self, name: &str, ggml_type: GgmlType) {
        let tensor = self.tensor(name);
        tensor.type_id = ggml_type.id();
        tensor.data = Random(7).values(ggml_type, tensor.shape.iter().product());
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        const ALIGNMENT: usize = 32;
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.keys {
            bytes.extend(text(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            bytes.extend(tensor.shape.iter().rev().flat_map(|dim| (*dim as u64).to_le_bytes()));
            bytes.extend(tensor.type_id.to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            bytes.extend(&tensor.data);
        }
        bytes
    }
}

/// A file with these bytes in a folder of its own, which lives as long as the first value.
pub fn file_with(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("file stem.gguf");
    std::fs::write(&path, bytes).expect("a written file");
    (folder, path)
}

/// A string as GGUF writes it: its length, then its bytes.
pub fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

/// A small generator: the tests need variety, not chance.
pub struct Random(/** The seed, then the state. */ pub u64);

impl Random {
    /// The next 31 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// An f16 between about 2^-7 and 2^-5, of either sign.
    fn half(&mut self) -> [u8; 2] {
        ((0x2000 | (self.next_bits() & 0x07ff) | (self.next_bits() & 1) << 15) as u16).to_le_bytes()
    }

    fn values(&mut self, ggml_type: GgmlType, count: usize) -> Vec<u8> {
        let (per_block, block_bytes) = ggml_type.block().unwrap_or((1, 1));
        let mut data = Vec::new();
        for _ in 0..count / per_block {
            let start = data.len();
            if ggml_type == GgmlType::F32 {
                data.extend((self.next_bits() as f32 / (1u64 << 31) as f32 - 0.5).to_le_bytes());
            }
            data.resize_with(start + block_bytes, || self.next_bits() as u8);
            if ggml_type == GgmlType::Mxfp4 {
                data[start] = 120 + (self.next_bits() % 4) as u8;
            }
            for at in factors(ggml_type) {
                data[start + at..start + at + 2].copy_from_slice(&self.half());
            }
        }
        data
    }
}

/// Where a block has its f16, which must be finite.
fn factors(ggml_type: GgmlType) -> &'static [usize] {
    match ggml_type {
        GgmlType::F32 | GgmlType::Mxfp4 | GgmlType::Other(_) => &[],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
        _ => &[0],
    }
}

/// The weights of whole blocks, or of numbers that are not quantized, as F32 has them.
pub fn as_f32(ggml_type: GgmlType, data: &[u8]) -> Vec<u8> {
    crate::gguf::weights(ggml_type, data).into_iter().flat_map(f32::to_le_bytes).collect()
}
