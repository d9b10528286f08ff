// A test of the interface with a data folder, a core and a page of its own. It fails if the page logs an error or a warning.
import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { CACHE_BYTES, Home, target } from './core.mjs';
import { launchBrowser, Page } from './page.mjs';

/** More tokens than any machine writes during a flow: the answer ends when it is stopped. */
export const ENDLESS = 1_000_000;

/** The limit of a whole flow. Each wait has its own limit; this one catches everything else that hangs. */
const LIMIT_MS = 900_000;

/** What a browser itself logs when a core goes away. */
const GONE =
  /net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED)/;

let browser;
after(async () => (await browser)?.close());

/**
 * Declares a flow. The page may only log complaints that `expected` matches, and that a core is gone
 * which the flow itself has ended. A flow that fails leaves a picture of the page.
 * Answers are greedy: the tiny model then never ends by itself, so it writes `maxTokens`, or with `ENDLESS` until it is stopped. It
 * repeats itself, and is not held for that.
 */
export function flow(name, { models, maxTokens = 200, viewport, expected, prepare }, steps) {
  test(name, { timeout: LIMIT_MS }, async (t) => {
    const home = await Home.make(t, models);
    await prepare?.(home, t);
    const core = await home.start();
    await core.set({
      temperature: 0,
      max_tokens: maxTokens,
      holds_loops: false,
      cache_budget_bytes: CACHE_BYTES,
    });
    browser ??= launchBrowser();
    const permissions = ['clipboard-read', 'clipboard-write'];
    const context = await (await browser).newContext({ viewport, permissions });
    t.after(() => context.close());
    const page = new Page(await context.newPage());
    await page.open(core.url);
    try {
      await steps({ home, core, page });
    } catch (error) {
      const picture = join(target, 'e2e', `${name.replaceAll(/\W+/g, '-')}.png`);
      await mkdir(join(target, 'e2e'), { recursive: true });
      await page.driver.screenshot({ path: picture }).catch(() => {});
      t.diagnostic(`the page as it was: ${picture}`);
      throw error;
    }
    const isExpected = (complaint) => expected?.test(complaint) || (core.wasEnded && GONE.test(complaint));
    const complaints = page.complaints.filter((complaint) => !isExpected(complaint));
    assert.deepEqual(complaints, [], 'the page complained');
  });
}
