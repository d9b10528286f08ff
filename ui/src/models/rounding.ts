// What rounding the weights of an imported model costs, in words.
import type { PerplexityChange } from '../platform/wire';
import { strings } from '../text';

/** From nothing that shows to something that does. */
export type RoundingCost = 'none' | 'hardly' | 'some' | 'much';

/** The most that perplexity grows by, as a share, for what is said of it. */
const NONE = 0.005;
const HARDLY = 0.03;
const SOME = 0.15;

function howMuch({ before, after }: PerplexityChange): RoundingCost {
  const growth = after / before - 1;
  if (growth <= NONE) return 'none';
  if (growth <= HARDLY) return 'hardly';
  return growth <= SOME ? 'some' : 'much';
}

/** One sentence. */
export function costOf(change: PerplexityChange): string {
  return strings.models.import.perplexity(howMuch(change), change.before, change.after);
}
