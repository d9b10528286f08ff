// Whether a model fits this machine: in words, and as an estimate where only its size is known.
import type { FoundModel, MemoryNeed } from '../platform/wire';
import { strings } from '../text';

/** Of weights that are not quantized. */
const PLAIN_BITS = 16;

export function fitWords({ fit, total_bytes, budget_bytes }: MemoryNeed): string {
  const words = strings.models.fit;
  if (fit === 'well') return words.well(total_bytes);
  return fit === 'tight' ? words.tight(total_bytes, budget_bytes) : words.tooLarge(total_bytes - budget_bytes);
}

/** The memory of the longest chat, in words; null if it is no longer than an ordinary one, or if even that does not fit. */
export function longestWords({ context_tokens, fit, longest_bytes, longest_tokens }: MemoryNeed): string | null {
  if (fit === 'too_large' || longest_tokens <= context_tokens) return null;
  return strings.models.atLongest(longest_bytes);
}

/** Whether an ordinary chat fits, and what the longest one takes. */
export function fitAndLongest(need: MemoryNeed): string {
  return [fitWords(need), longestWords(need)].filter((words) => words !== null).join(', ');
}

/** The memory of an ordinary chat and of the longest one. */
export function needWords(need: MemoryNeed): string {
  const { context_tokens, longest_bytes, longest_tokens, total_bytes } = need;
  const words = strings.models;
  if (longest_tokens <= context_tokens) return words.atLongest(total_bytes);
  return words.need(total_bytes, longest_bytes);
}

/** At least what its weights take in memory; null where the hub does not say how many parameters it has. */
export function weightBytes({ parameters, quantization_bits }: FoundModel): number | null {
  return parameters === null ? null : (parameters * (quantization_bits ?? PLAIN_BITS)) / 8;
}
