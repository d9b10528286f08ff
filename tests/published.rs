//! Checkpoints that other programs quantized compute what the same weights do that are not: each
//! format is written from its own definition.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use cairn_lm::models::Model;
use cairn_lm::{ConvertOptions, FloatType, LoadOptions, ModelMemory, check_model, convert};
use cairn_tests::copy_tiny_model;
use mlx_rs::Array;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize_to_file};
use serde_json::{Value, json};

use crate::{compare_within, config, forward};

/// A llama with multipliers, whose matrices have 64 and 96 inputs.
const MODEL: &str = "granite/dense";
/// With factors of matrices that published files lack.
const MODEL_WITH_FACTORS: &str = "falcon_h1/dense";
const GROUP_SIZE: usize = 32;
const TOKENS: [u32; 7] = [3, 9, 17, 17, 6, 4, 18];
/// With the matrices of each expert by themselves.
const MODEL_WITH_EXPERTS: &str = "olmoe/unstacked";

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Numbers that look random and are the same in each run.
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    /// One of few digits, around 2^-6.
    fn scale(&mut self) -> f32 {
        (64 + self.next() % 64) as f32 / 4096.0
    }
}

/// A matrix of integers, `[outputs, inputs]`, with a scale and a zero for each group.
struct Grouped {
    outputs: usize,
    inputs: usize,
    numbers: Vec<u32>,
    scales: Vec<f32>,
    zeros: Vec<u32>,
}

impl Grouped {
    fn random(random: &mut Random, outputs: usize, inputs: usize, is_symmetric: bool) -> Grouped {
        let groups = outputs * inputs / GROUP_SIZE;
        Grouped {
            outputs,
            inputs,
            numbers: (0..outputs * inputs).map(|_| random.next() % 16).collect(),
            scales: (0..groups).map(|_| random.scale()).collect(),
            zeros: (0..groups).map(|_| if is_symmetric { 8 } else { random.next() % 16 }).collect(),
        }
    }

    fn groups(&self) -> usize {
        self.inputs / GROUP_SIZE
    }

    fn group(&self, output: usize, input: usize) -> usize {
        output * self.groups() + input / GROUP_SIZE
    }

    fn weights(&self) -> Vec<f32> {
        let weight = |at: usize| {
            let group = self.group(at / self.inputs, at % self.inputs);
            (self.numbers[at] as f32 - self.zeros[group] as f32) * self.scales[group]
        };
        (0..self.numbers.len()).map(weight).collect()
    }

    /// Words of eight numbers: the first dimension's, with the place of each in its word.
    fn words(
        rows: usize,
        columns: usize,
        order: [usize; 8],
        number: impl Fn(usize, usize) -> u32,
    ) -> Vec<u8> {
        let word = |row: usize, first: usize| {
            (0..8).fold(0, |word, at| word | number(row, 8 * first + at) << (4 * order[at]))
        };
        (0..rows)
            .flat_map(|row| (0..columns / 8).map(move |column| (row, column)))
            .flat_map(|(row, column)| word(row, column).to_le_bytes())
            .collect()
    }
}

const IN_ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Even outputs first, then odd ones.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

fn f32_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Scales of `[outputs, groups]` as `[groups, outputs]`.
fn turned_scales(matrix: &Grouped) -> Vec<u8> {
    let (groups, outputs) = (matrix.groups(), matrix.outputs);
    let scale = |at: usize| matrix.scales[at % outputs * groups + at / outputs];
    f32_bytes(&(0..groups * outputs).map(scale).collect::<Vec<_>>())
}

fn put_awq(path: &str, matrix: &Grouped, tensors: &mut Tensors) {
    let &Grouped { outputs, inputs, ref numbers, ref zeros, .. } = matrix;
    let groups = matrix.groups();
    let words = Grouped::words(inputs, outputs, AWQ_ORDER, |i, o| numbers[o * inputs + i]);
    let zeros = Grouped::words(groups, outputs, AWQ_ORDER, |g, o| zeros[o * groups + g]);
    let scales = turned_scales(matrix);
    tensors.insert(format!("{path}.qweight"), (Dtype::I32, vec![inputs, outputs / 8], words));
    tensors.insert(format!("{path}.qzeros"), (Dtype::I32, vec![groups, outputs / 8], zeros));
    tensors.insert(format!("{path}.scales"), (Dtype::F32, vec![groups, outputs], scales));
}

fn put_gptq(path: &str, matrix: &Grouped, tensors: &mut Tensors) {
    let &Grouped { outputs, inputs, ref numbers, ref zeros, .. } = matrix;
    let groups = matrix.groups();
    // A word has eight inputs of one output.
    let of_output = Grouped::words(outputs, inputs, IN_ORDER, |o, i| numbers[o * inputs + i]);
    let word = |row: usize, output: usize| &of_output[(output * inputs / 8 + row) * 4..][..4];
    let words = (0..inputs / 8).flat_map(|row| (0..outputs).flat_map(move |o| word(row, o)));
    let words = words.copied().collect();
    let zeros = Grouped::words(groups, outputs, IN_ORDER, |g, o| (zeros[o * groups + g] + 15) % 16);
    let scales = turned_scales(matrix);
    let group_of = (0..inputs).flat_map(|i| ((i / GROUP_SIZE) as i32).to_le_bytes()).collect();
    tensors.insert(format!("{path}.qweight"), (Dtype::I32, vec![inputs / 8, outputs], words));
    tensors.insert(format!("{path}.qzeros"), (Dtype::I32, vec![groups, outputs / 8], zeros));
    tensors.insert(format!("{path}.scales"), (Dtype::F32, vec![groups, outputs], scales));
    tensors.insert(format!("{path}.g_idx"), (Dtype::I32, vec![inputs], group_of));
}

fn put_packed(path: &str, matrix: &Grouped, tensors: &mut Tensors) {
    let &Grouped { outputs, inputs, ref numbers, ref scales, .. } = matrix;
    let words = Grouped::words(outputs, inputs, IN_ORDER, |o, i| numbers[o * inputs + i]);
    let shape = [outputs as i64, inputs as i64].iter().flat_map(|n| n.to_le_bytes()).collect();
    let (groups, scales) = (matrix.groups(), f32_bytes(scales));
    let packed = (Dtype::I32, vec![outputs, inputs / 8], words);
    tensors.insert(format!("{path}.weight_packed"), packed);
    tensors.insert(format!("{path}.weight_scale"), (Dtype::F32, vec![outputs, groups], scales));
    tensors.insert(format!("{path}.weight_shape"), (Dtype::I64, vec![2], shape));
}

/// The model with its matrices changed: folders of both forms.
fn write(
    folder: &Path,
    model: &str,
    section: Value,
    is_symmetric: bool,
    put: impl Fn(&str, &Grouped, &mut Tensors),
) -> [std::path::PathBuf; 2] {
    let mut random = Random(7);
    write_with(folder, model, section, |path, [outputs, inputs], published| {
        let matrix = Grouped::random(&mut random, outputs, inputs, is_symmetric);
        put(path, &matrix, published);
        matrix.weights()
    })
}

/// `put` adds the published form of a matrix, and returns its weights.
fn write_with(
    folder: &Path,
    model: &str,
    section: Value,
    mut put: impl FnMut(&str, [usize; 2], &mut Tensors) -> Vec<f32>,
) -> [std::path::PathBuf; 2] {
    let [published, dense] = ["published", "dense"].map(|name| folder.join(name));
    let (mut published_tensors, mut dense_tensors) = (Tensors::new(), Tensors::new());
    for target in [&published, &dense] {
        copy_tiny_model(model, target).expect("copies");
    }
    let weights = Array::load_safetensors(dense.join("model.safetensors")).expect("weights");
    let weights: BTreeMap<String, Array> = weights.into_iter().collect();
    for (name, weight) in weights {
        let mut shape: Vec<usize> = weight.shape().iter().map(|&length| length as usize).collect();
        if name.ends_with("conv1d.weight") {
            shape.swap(1, 2); // as published
        }
        let values = match name.strip_suffix(".weight").filter(|path| path.ends_with("_proj")) {
            Some(path) => put(path, [shape[0], shape[1]], &mut published_tensors),
            None => {
                let weight = weight.as_dtype(mlx_rs::Dtype::Float32).expect("numbers");
                weight.eval().expect("numbers");
                let values = weight.as_slice::<f32>().to_vec();
                let entry = (Dtype::F32, shape.clone(), f32_bytes(&values));
                published_tensors.insert(name.clone(), entry);
                values
            }
        };
        dense_tensors.insert(name, (Dtype::F32, shape, f32_bytes(&values)));
    }
    let mut published_config = config(model);
    published_config["quantization_config"] = section;
    for (target, tensors, config) in
        [(&published, published_tensors, published_config), (&dense, dense_tensors, config(model))]
    {
        let views: Vec<(&String, TensorView)> = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| {
                (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
            })
            .collect();
        let file = target.join("model.safetensors");
        std::fs::remove_file(&file).expect("the copy");
        serialize_to_file(views, None, &file).expect("writes");
        std::fs::write(target.join("config.json"), config.to_string()).expect("config.json");
    }
    [published, dense]
}

/// Both forms compute the same, quantized or not, and the first passes the check of its headers.
fn check(name: &str, [published, dense]: &[std::path::PathBuf; 2], tolerance: f32) {
    let logits = |folder: &Path, keep_quantized: bool| {
        let (model, _) = Model::load(folder, LoadOptions::new().keep_quantized(keep_quantized))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        forward(&model, &TOKENS, &mut model.make_cache())
    };
    let expected = logits(dense, false);
    for keep_quantized in [true, false] {
        let found = logits(published, keep_quantized);
        compare_within(name, "logits", &found, &expected, tolerance);
    }
    // Converted it is MLX's own form of the same.
    let converted = published.with_file_name("converted");
    // Of the weights' own type, whatever config.json says.
    let dtype = Some(FloatType::Float32);
    let options = ConvertOptions { dtype, ..ConvertOptions::default() };
    let made = convert(published, &converted, &options, &mut |_| ControlFlow::Continue(()));
    made.unwrap_or_else(|error| panic!("{name}: {error}"));
    let found = logits(&converted, true);
    compare_within(name, "logits of the converted model", &found, &expected, tolerance);
    let section = json_in(&converted).get("quantization_config").cloned();
    assert!(section.is_none_or(|section| section.get("quant_method").is_none()), "{name}");
    let checked = check_model(published).unwrap_or_else(|error| panic!("{name}: {error}"));
    let options = LoadOptions::new().keep_quantized(true);
    let memory = ModelMemory::read(published, options).expect("its size");
    let of_dense = ModelMemory::read(dense, options).expect("its size");
    assert_eq!(memory.num_parameters, of_dense.num_parameters, "{name}");
    assert_eq!(checked.memory.num_parameters, of_dense.num_parameters, "{name}");
}

fn json_in(folder: &Path) -> Value {
    let config = std::fs::read(folder.join("config.json")).expect("a config");
    serde_json::from_slice(&config).expect("JSON")
}

fn awq() -> Value {
    json!({ "quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm" })
}

fn gptq() -> Value {
    json!({ "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false })
}

fn packed() -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": { "group_0": { "targets": ["Linear"], "weights": {
            "type": "int", "num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": true,
        } } },
    })
}

#[test]
fn numbers_of_four_bits_compute_what_their_weights_do() {
    for (name, model, section, is_symmetric, put) in [
        ("awq", MODEL, awq(), false, put_awq as fn(&str, &Grouped, &mut Tensors)),
        ("gptq", MODEL, gptq(), false, put_gptq),
        ("pack-quantized", MODEL, packed(), true, put_packed),
        ("awq, with experts", MODEL_WITH_EXPERTS, awq(), false, put_awq),
        ("gptq, with experts", MODEL_WITH_EXPERTS, gptq(), false, put_gptq),
        ("pack-quantized, with experts", MODEL_WITH_EXPERTS, packed(), true, put_packed),
        ("pack-quantized, with factors", MODEL_WITH_FACTORS, packed(), true, put_packed),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        check(name, &write(folder.path(), model, section, is_symmetric, put), 1e-4);
    }
}

/// The published form of a matrix of eight bits with a scale for each block of so many rows and
/// columns.
fn put_fp8(
    random: &mut Random,
    scale_name: &str,
    [height, width]: [usize; 2],
    path: &str,
    [rows, columns]: [usize; 2],
    tensors: &mut Tensors,
) -> Vec<f32> {
    // Without the two codes that are no numbers.
    let bytes: Vec<u8> = (0..rows * columns)
        .map(|_| (random.next() % 256) as u8)
        .map(|b| if b & 127 == 127 { 0 } else { b })
        .collect();
    let (height, width) = (height.min(rows), width.min(columns));
    let across = columns.div_ceil(width);
    let count = rows.div_ceil(height) * across;
    // Of so few digits that products are whole bfloat16.
    let scales: Vec<f32> = (0..count).map(|_| (1 + random.next() % 3) as f32 / 8192.0).collect();
    let value = |byte: u8| {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
        let sign = if byte > 127 { -1.0 } else { 1.0 };
        match exponent {
            0 => sign * mantissa / 8.0 * 2f32.powi(-6),
            _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
        }
    };
    let scale = |at: usize| scales[at / columns / height * across + at % columns / width];
    let weights = bytes.iter().enumerate().map(|(at, byte)| value(*byte) * scale(at)).collect();
    let shape = vec![rows.div_ceil(height), across];
    tensors.insert(format!("{path}.weight"), (Dtype::F8_E4M3, vec![rows, columns], bytes));
    let scales = (Dtype::F32, shape, f32_bytes(&scales));
    tensors.insert(format!("{path}.{scale_name}"), scales);
    tensors.insert(format!("{path}.input_scale"), (Dtype::F32, vec![1], f32_bytes(&[1.0])));
    weights
}

#[test]
fn numbers_of_eight_bits_compute_what_their_weights_do() {
    let float = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": { "group_0": { "weights": {
            "type": "float", "num_bits": 8, "strategy": "channel", "symmetric": true,
        } } },
    });
    let of_blocks = json!({ "quant_method": "fp8", "weight_block_size": [40, 48] });
    let of_all = || json!({ "quant_method": "fp8" });
    for (name, model, section, scale_name, block) in [
        ("blocks", MODEL, of_blocks, "weight_scale_inv", [40, 48]),
        ("one scale", MODEL, of_all(), "weight_scale", [1 << 20, 1 << 20]),
        ("factors", MODEL_WITH_FACTORS, of_all(), "weight_scale", [1 << 20, 1 << 20]),
        ("experts", MODEL_WITH_EXPERTS, of_all(), "weight_scale", [1 << 20, 1 << 20]),
        ("rows", MODEL, float, "weight_scale", [1, 1 << 20]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut random = Random(11);
        let both = write_with(folder.path(), model, section, |path, shape, tensors| {
            put_fp8(&mut random, scale_name, block, path, shape, tensors)
        });
        check(name, &both, 1e-4);
    }
}

#[test]
fn what_is_not_as_the_config_says_is_refused_before_it_is_read() {
    type Put = fn(&str, &Grouped, &mut Tensors);
    let without_zeros: Put = |path, matrix, tensors| {
        put_awq(path, matrix, tensors);
        tensors.remove(&format!("{path}.qzeros"));
    };
    let with_order: Put = |path, matrix, tensors| {
        put_packed(path, matrix, tensors);
        let order = (Dtype::I32, vec![matrix.inputs], vec![0; 4 * matrix.inputs]);
        tensors.insert(format!("{path}.weight_g_idx"), order);
    };
    let of_other_groups: Put = |path, matrix, tensors| {
        put_gptq(path, matrix, tensors);
        let scales = f32_bytes(&vec![1.0; matrix.outputs]);
        let scales = (Dtype::F32, vec![1, matrix.outputs], scales);
        tensors.insert(format!("{path}.scales"), scales);
    };
    for (section, put, named) in [
        (awq(), without_zeros, "qzeros"),
        (packed(), with_order, "weight_g_idx"),
        (gptq(), of_other_groups, "scales"),
        (Value::Null, put_gptq as Put, "granite"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let [published, _] = write(folder.path(), MODEL, section, true, put);
        let options = LoadOptions::new().keep_quantized(true);
        let error = Model::load(&published, options).expect_err(named).to_string();
        assert!(error.contains(named) || error.contains("weight"), "{named}: {error}");
        check_model(&published).expect_err(named);
    }

    // Groups of inputs that are not neighbours are found where they are read.
    let folder = tempfile::tempdir().expect("a folder");
    let [published, _] = write(folder.path(), MODEL, gptq(), true, |path, matrix, tensors| {
        put_gptq(path, matrix, tensors);
        let order = (0..matrix.inputs).flat_map(|i| ((i % 2) as i32).to_le_bytes()).collect();
        tensors.insert(format!("{path}.g_idx"), (Dtype::I32, vec![matrix.inputs], order));
    });
    let error =
        Model::load(&published, LoadOptions::new().keep_quantized(true)).expect_err("refused");
    assert!(error.to_string().contains("desc_act"), "{error}");
}
