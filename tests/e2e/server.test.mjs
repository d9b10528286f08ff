// Other programs ask: with a key that a person makes in the settings, until it is revoked there.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CACHE_BYTES, Home, program } from './core.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';
import { ENTER, freePort, Window } from './webdriver.mjs';

/** Asks as a program does. */
function ask(address, key) {
  return fetch(new URL('/v1/chat/completions', address), {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify({ max_tokens: 5, messages: [{ role: 'user', content: 'What is a cairn?' }] }),
  });
}

async function isAnswered(address, key) {
  const response = await ask(address, key);
  const { choices } = await response.json();
  assert.equal(response.status, 200);
  assert.ok(choices[0].message.content.length > 0);
}

async function isRefused(address, key) {
  const response = await ask(address, key);
  assert.equal(response.status, 401);
  assert.equal((await response.json()).error.type, 'authentication_error');
}

flow('a key that is made in the settings answers a program until it is revoked', {}, async ({ core, page }) => {
  const { driver } = page;
  await page.openSettings('Server');
  await page.shows('The server already runs');
  assert.equal(await driver.getByRole('switch').count(), 0);
  await page.shows(core.url.origin);

  await page.button('Make key…').click();
  await page.dialog('Make a key').getByRole('textbox', { name: 'Name' }).fill('Editor');
  await driver.keyboard.press('Enter');
  const field = page.box('The new key');
  await field.waitFor();
  await until('it has the focus', async () => (await page.focused()) === 'The new key');
  const key = await field.inputValue();
  assert.match(key, /^cairn-[0-9a-f]{64}$/);
  await page.shows(`export CAIRN_API_KEY=${key}`);
  await isAnswered(core.url, key);

  const list = page.region('Last requests');
  await list.getByRole('cell', { name: 'Editor' }).waitFor();
  await page.button('Done').click();
  await page.shows('export CAIRN_API_KEY=YOUR_KEY');

  await page.button('Revoke Editor…').click();
  await page.dialog('Revoke “Editor”?').getByRole('button', { name: 'Revoke key' }).click();
  await page.shows('No program has a key yet.');
  await until('the focus is not lost', async () => (await page.focused()) === 'Make key…');
  await isRefused(core.url, key);
  await list.getByRole('cell', { name: '401' }).waitFor();
});

test(
  'the desktop app serves programs while its switch is on, also after a restart',
  { timeout: 900_000 },
  async (t) => {
    const home = await Home.make(t);
    const core = await home.start();
    const port = await freePort();
    await core.set({ temperature: 0, api_port: port, cache_budget_bytes: CACHE_BYTES });
    await core.end('SIGTERM');
    const address = `http://127.0.0.1:${port}`;

    let window = await Window.open(t, program('cairn-app'), home.env);
    await window.press('Settings');
    await window.press('Server');
    await window.click('input[role=switch]');
    await until('the address is shown', async () => (await window.texts('.list code')).join() === address);
    await window.press('Make key…');
    await window.type('dialog[open] input', `Editor${ENTER}`);
    const key = await window.valueOf('input[aria-label="The new key"]');
    await isAnswered(address, key);
    await window.close();
    await window.end();
    await assert.rejects(ask(address, key));

    window = await Window.open(t, program('cairn-app'), home.env);
    await until('it serves again', () =>
      fetch(`${address}/health`).then(
        () => true,
        () => false,
      ),
    );
    await isAnswered(address, key);
    await window.press('Settings');
    await window.press('Server');
    await window.press('Revoke Editor…');
    await window.press('Revoke key');
    await until('the key is gone', async () => (await window.texts('.empty')).includes('No program has a key yet.'));
    await isRefused(address, key);
    await window.click('input[role=switch]');
    await until('nobody answers', () =>
      ask(address, key).then(
        () => false,
        () => true,
      ),
    );
  },
);
