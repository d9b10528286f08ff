// Flows whose models come from a hub on loopback, and what they do again and again.
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { flow } from './flow.mjs';
import { FakeHub, tinyModel } from './hub.mjs';

export const NAME = 'tiny/chat';
export const WEIGHTS = 'model.safetensors';

/** A flow whose core has no model and asks a hub that has these. */
export function hubFlow(name, { models = { [NAME]: tinyModel }, ...options }, steps) {
  let hub;
  const prepare = async (home) => {
    hub = await FakeHub.start(typeof models === 'function' ? await models() : models);
    home.useHub(hub.endpoint);
    await options.prepare?.(home, hub);
  };
  flow(name, { models: [], ...options, prepare }, async (given) => {
    try {
      await steps({ ...given, hub });
    } finally {
      await hub.end();
    }
  });
}

/** Every file below a folder, by its path in it. */
export async function filesIn(folder) {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
}

/** Looks a model up by its name and begins to download it. */
export async function download(page, name) {
  await page.openPage('Models');
  await page.driver.getByRole('tab', { name: 'Discover', exact: true }).click();
  await page.box('Search models').fill(name);
  await page.box('Search models').press('Enter');
  await page.driver
    .getByRole('button', { name: /^Download / })
    .first()
    .click();
  // The download's card comes when the pointer has left the list, so that nothing moves under it.
  await page.driver.mouse.move(0, 0);
}

/** The card of a download. */
export const card = (page, name) => page.driver.getByRole('article', { name, exact: true });
