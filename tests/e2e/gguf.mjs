// Writes a tiny llama as a GGUF file, whose numbers follow from their positions.
import { writeFile } from 'node:fs/promises';

const HIDDEN = 32;
const INNER = 256;
const HEAD_DIM = 16;
const KINDS = { u32: 4, i32: 5, f32: 6, text: 8, array: 9 };
const ALIGNMENT = 32;
/** Of a message it writes the text and a break of the line. */
const TEMPLATE = '{% for message in messages %}{{ message.content }}\n{% endfor %}';

/** Weights and bytes of a block of Q6_K, a type without an exact form in MLX. */
const Q6K = { id: 14, weights: 256, bytes: 210 };

/** Writes the file; `isRounded`: the weights of one of its tensors have no exact form in MLX. */
export async function writeGguf(path, { isRounded = false } = {}) {
  await writeFile(path, Buffer.concat([...header(isRounded), ...tensors(isRounded)]));
}

/** Name and shape of each tensor, in rows and columns. */
function shapes() {
  return [
    ['token_embd', [letters().length, HIDDEN]],
    ['blk.0.attn_norm', [HIDDEN]],
    ['blk.0.attn_q', [2 * HEAD_DIM, HIDDEN]],
    ['blk.0.attn_k', [HEAD_DIM, HIDDEN]],
    ['blk.0.attn_v', [HEAD_DIM, HIDDEN]],
    ['blk.0.attn_output', [HIDDEN, 2 * HEAD_DIM]],
    ['blk.0.ffn_norm', [HIDDEN]],
    ['blk.0.ffn_gate', [INNER, HIDDEN]],
    ['blk.0.ffn_up', [INNER, HIDDEN]],
    ['blk.0.ffn_down', [HIDDEN, INNER]],
    ['output_norm', [HIDDEN]],
  ];
}

const ROUNDED = 'blk.0.ffn_down';

const size = (shape) => shape.reduce((product, count) => product * count, 1);

function keys() {
  const tokens = letters();
  const last = tokens.length - 1;
  return [
    ['general.architecture', 'text', text('llama')],
    ['llama.block_count', 'u32', u32(1)],
    ['llama.context_length', 'u32', u32(4096)],
    ['llama.embedding_length', 'u32', u32(HIDDEN)],
    ['llama.feed_forward_length', 'u32', u32(INNER)],
    ['llama.attention.head_count', 'u32', u32(2)],
    ['llama.attention.head_count_kv', 'u32', u32(1)],
    ['llama.rope.dimension_count', 'u32', u32(HEAD_DIM)],
    ['llama.attention.layer_norm_rms_epsilon', 'f32', f32([1e-5])],
    ['tokenizer.ggml.model', 'text', text('gpt2')],
    ['tokenizer.ggml.pre', 'text', text('smollm')],
    ['tokenizer.ggml.tokens', 'array', array('text', tokens.map(text))],
    // The two last ones are control tokens.
    [
      'tokenizer.ggml.token_type',
      'array',
      array(
        'i32',
        tokens.map((_, index) => u32(index < last - 1 ? 1 : 3)),
      ),
    ],
    ['tokenizer.ggml.merges', 'array', array('text', ['h e', 'l l', 'he ll', 'hell o'].map(text))],
    ['tokenizer.ggml.bos_token_id', 'u32', u32(last - 1)],
    ['tokenizer.ggml.eos_token_id', 'u32', u32(last)],
    ['tokenizer.chat_template', 'text', text(TEMPLATE)],
  ];
}

/** Preamble, keys, and where each tensor lies; then zeros up to the first one. */
function header(isRounded) {
  const isBlocks = (name) => isRounded && name === ROUNDED;
  const parts = [Buffer.from('GGUF'), u32(3), u64(shapes().length), u64(keys().length)];
  for (const [key, kind, value] of keys()) parts.push(text(key), u32(KINDS[kind]), value);
  let offset = 0;
  for (const [name, shape] of shapes()) {
    parts.push(
      text(`${name}.weight`),
      u32(shape.length),
      ...shape.toReversed().map(u64),
      u32(isBlocks(name) ? Q6K.id : 0),
      u64(offset),
    );
    offset += aligned(isBlocks(name) ? blocks(shape).length : 4 * size(shape));
  }
  const length = Buffer.concat(parts).length;
  return [...parts, Buffer.alloc(aligned(length) - length)];
}

function tensors(isRounded) {
  return shapes().map(([name, shape], tensor) => {
    // A norm's weights are near one, all others near zero.
    const base = name.endsWith('norm') ? 1 : 0;
    const values = Array.from({ length: size(shape) }, (_, index) => base + Math.sin(index * 12.9898 + tensor) / 4);
    const bytes = isRounded && name === ROUNDED ? blocks(shape) : f32(values);
    return Buffer.concat([bytes, Buffer.alloc(aligned(bytes.length) - bytes.length)]);
  });
}

/** Blocks of Q6_K: lower and upper bits of the numbers, scales that differ, and the scale of those, a half of 2⁻¹². */
function blocks(shape) {
  return Buffer.concat(
    Array.from({ length: size(shape) / Q6K.weights }, (_, block) => {
      const bytes = Buffer.from(Uint8Array.from({ length: Q6K.bytes }, (_, index) => block * 89 + index * 37));
      for (let group = 0; group < 16; group++) bytes[192 + group] = 1 + (group % 5);
      bytes.writeUInt16LE(0x0c00, 208);
      return bytes;
    }),
  );
}

/** The letters that byte-level BPE writes bytes as, then merged ones and two control tokens. */
function letters() {
  const isPrintable = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  let next = 256;
  const bytes = Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
  return [...bytes, 'he', 'll', 'hell', 'hello', '<|begin|>', '<|end|>'];
}

const aligned = (length) => Math.ceil(length / ALIGNMENT) * ALIGNMENT;
const text = (value) => Buffer.concat([u64(Buffer.byteLength(value)), Buffer.from(value)]);
const array = (kind, values) => Buffer.concat([u32(KINDS[kind]), u64(values.length), ...values]);
const f32 = (values) => Buffer.from(Float32Array.from(values).buffer);
const u32 = (value) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value) => Buffer.from(BigUint64Array.of(BigInt(value)).buffer);
