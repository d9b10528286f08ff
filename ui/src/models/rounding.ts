// How much rounding the weights of an imported model costs.
import type { PerplexityChange } from '../platform/wire';

/** From nothing that shows to something that does. */
export type RoundingCost = 'none' | 'hardly' | 'some' | 'much';

/** The most that perplexity grows by, as a share, for what is said of it. */
const NONE = 0.005;
const HARDLY = 0.03;
const SOME = 0.15;

export function costOf({ before, after }: PerplexityChange): RoundingCost {
  const growth = after / before - 1;
  if (growth <= NONE) return 'none';
  if (growth <= HARDLY) return 'hardly';
  return growth <= SOME ? 'some' : 'much';
}
