// Whether a model fits this machine: in words, in the order of a list, and as an estimate where only its size is known.
import type { Fit, FoundModel, MemoryNeed } from '../platform/wire';
import { strings } from '../text';

const RANKS: Record<Fit, number> = { well: 0, tight: 1, too_large: 2 };
/** Of weights that are not quantized. */
const PLAIN_BITS = 16;

export function fitWords({ fit, total_bytes, budget_bytes }: MemoryNeed): string {
  const words = strings.models.fit;
  if (fit === 'well') return words.well(total_bytes);
  return fit === 'tight' ? words.tight(total_bytes, budget_bytes) : words.tooLarge(total_bytes - budget_bytes);
}

/** Those that fit first; otherwise as they were. */
export function byFit<T>(items: readonly T[], needOf: (item: T) => MemoryNeed): T[] {
  return items.toSorted((a, b) => RANKS[needOf(a).fit] - RANKS[needOf(b).fit]);
}

/** At least what its weights take in memory; null where the hub does not say how many parameters it has. */
export function weightBytes({ parameters, quantization_bits }: FoundModel): number | null {
  return parameters === null ? null : (parameters * (quantization_bits ?? PLAIN_BITS)) / 8;
}
