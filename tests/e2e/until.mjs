// Waits for conditions by checking them often.
import { setTimeout as pause } from 'node:timers/promises';

const CHECK_INTERVAL_MS = 50;
// Long enough for debug builds on a slow, busy machine; a flow that passes waits only as long as it must.
export const LIMIT_MS = 180_000;

/** Calls `look` until it returns something truthy, and returns that; fails with `what` and the last result. */
export async function until(what, look, limitMs = LIMIT_MS) {
  const deadline = performance.now() + limitMs;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    if (performance.now() > deadline)
      throw new Error(`not true after ${limitMs / 1000} s: ${what}; last seen: ${seen}`);
    await pause(CHECK_INTERVAL_MS);
  }
}

/** What `promise` becomes; fails with `what` where it becomes nothing: a page that hangs never answers. */
export async function within(what, promise, limitMs = LIMIT_MS + 20_000) {
  const ended = new AbortController();
  const late = pause(limitMs, undefined, { signal: ended.signal }).then(() => {
    throw new Error(`nothing came back within ${limitMs / 1000} s: ${what}`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    ended.abort();
  }
}
