// Waiting for something to become true: looked at often, never slept for.
import { setTimeout as pause } from 'node:timers/promises';

const LOOK_AGAIN_MS = 50;
// For debug builds on a slow machine that compiles meanwhile; a flow that works waits only as long as it must.
export const LIMIT_MS = 180_000;

/** Looks until `look` gives something truthy, and returns that; fails with `what` and what was seen last. */
export async function until(what, look, limitMs = LIMIT_MS) {
  const deadline = performance.now() + limitMs;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    if (performance.now() > deadline)
      throw new Error(`in ${limitMs / 1000} s it never came that ${what}; last seen: ${seen}`);
    await pause(LOOK_AGAIN_MS);
  }
}
