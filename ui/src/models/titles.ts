// What a model is called where it is found, chosen and used: “Qwen3 4B” for `mlx-community/Qwen3-4B-4bit`. The menu bar has the same rule
// in Rust, and both are held to the same table.

const SIZE = /^[ae]?(\d+x)?\d+(\.\d+)?[bm]$/i;
const BITS = /^(\d+)bits?$/i;
const QUANTIZATION = /^(i?q\d\w*|bf16|f16|f32|fp\d+|mxfp\d+|nvfp4|int\d+|dwq|awq|gptq|qat)$/i;
const PACKING = /^(mlx|gguf|hf)$/i;
/** How it was tuned, and in which month. */
const TUNING = /^(instruct|it|chat|\d{4}|\d{6})$/i;

/**
 * What a model can be called, the shortest first and its whole name last. A name without a size or a quantization is one that a person
 * gave to a folder, and stays as it is.
 */
export function titlesOf(name: string): string[] {
  const last = name.slice(name.lastIndexOf('/') + 1) || name;
  const words = last.split('-').flatMap(withoutEnding).filter(Boolean);
  const quantization = words.filter((word) => BITS.test(word) || QUANTIZATION.test(word));
  const rest = words.filter((word) => ![BITS, QUANTIZATION, PACKING, TUNING].some((kind) => kind.test(word)));
  if (rest.length === 0 || (quantization.length === 0 && !words.some((word) => SIZE.test(word)))) return [last, name];
  const title = rest.map(asWritten).join(' ');
  const bits = quantization.map((word) => word.replace(BITS, '$1-bit'));
  const tuning = words.filter((word) => TUNING.test(word)).map(capitalized);
  return [title, withDetails(title, bits), withDetails(title, [...tuning, ...bits]), last, name];
}

/** The quantization of a GGUF file stands behind a dot. */
function withoutEnding(word: string): string[] {
  const dot = word.lastIndexOf('.');
  const end = word.slice(dot + 1);
  return dot >= 0 && QUANTIZATION.test(end) ? [word.slice(0, dot), end] : [word];
}

function asWritten(word: string, index: number): string {
  if (word === 'gpt') return 'GPT';
  if (SIZE.test(word)) return word.replace(/^[ae]|[bm]$/g, (letter) => letter.toUpperCase());
  return index === 0 ? capitalized(word) : word;
}

function capitalized(word: string): string {
  return word.charAt(0).toUpperCase() + word.slice(1);
}

function withDetails(title: string, details: string[]): string {
  return details.length > 0 ? `${title} (${details.join(', ')})` : title;
}

/** The shortest title of a model that is none of the others'. */
export function titleAmong(name: string, others: readonly string[]): string {
  const taken = others.filter((other) => other !== name).map(titlesOf);
  const titles = titlesOf(name);
  return titles.find((title, level) => !taken.some((other) => (other[level] ?? other.at(-1)) === title)) ?? name;
}
