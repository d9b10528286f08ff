// Where the hub's access token goes: from the field of the settings into one file and the hub's own requests, and nowhere else.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { FakeHub } from './hub.mjs';
import { card, download, filesIn, hubFlow, NAME, WEIGHTS } from './hub-flow.mjs';
import { until } from './until.mjs';

const TOKEN = `hf_canary${randomUUID().replaceAll('-', '')}`;

/** Runs in the page: keeps what it sends to the core, and a copy of all that comes back, events too. */
function recordWire() {
  const real = window.fetch;
  window.wire = { sent: [], received: [] };
  window.fetch = async (address, init) => {
    window.wire.sent.push(
      `${address} ${JSON.stringify(init?.headers)} ${typeof init?.body === 'string' ? init.body : ''}`,
    );
    const response = await real(address, init);
    const texts = [];
    window.wire.received.push(texts);
    const stream = response.clone().body?.pipeThrough(new TextDecoderStream());
    stream?.pipeTo(new WritableStream({ write: (text) => void texts.push(text) })).catch(() => {});
    return response;
  };
}

/** Everything that the page has sent and received, and what it shows and keeps. */
async function wireOf(page) {
  const { sent, received } = await page.driver.evaluate(() => window.wire);
  const kept = await page.driver.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  return { sent, received: [...received.map((texts) => texts.join('')), kept, await page.driver.content()] };
}

/** Looks at the arguments and the environment of every process again and again, until it is stopped. */
function watchProcesses() {
  const found = new Set();
  let isOver = false;
  const look = async (pid) => {
    for (const name of ['cmdline', 'environ']) {
      const text = await readFile(`/proc/${pid}/${name}`, 'latin1').catch(() => '');
      if (text.includes(TOKEN)) found.add(`${name} of ${pid}`);
    }
  };
  const watching = (async () => {
    while (!isOver) {
      const pids = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
      await Promise.all(pids.map(look));
      await setTimeout(5);
    }
  })();
  return async () => {
    isOver = true;
    await watching;
    return [...found];
  };
}

async function saveToken(page, token) {
  await page.openSettings('Models');
  await page.driver.getByLabel('New token').fill(token);
  await page.button('Save token').click();
  await page.driver.getByText('Kept in a file that only you can read').waitFor();
  const field = page.driver.getByLabel('New token');
  await until('it is not shown again', async () => (await field.inputValue()) === '');
  await page.backToChat();
}

/** Waits for the sentence that says why the download has failed. */
async function fails(page, sentence) {
  await card(page, 'chat').getByRole('alert').filter({ hasText: sentence }).waitFor();
}

/** Tries the download again, and waits for the sentence that says why it failed. */
async function failsAgain(page, sentence) {
  await page.button('Try again, chat').click();
  await fails(page, sentence);
}

hubFlow(
  'an access token is sent to the hub, kept in one private file, and seen nowhere else',
  {
    expected:
      /status of 4\d\d|net::ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE)/,
    prepare: (home) => (home.env.CAIRN_LOG = 'trace'),
  },
  async ({ home, core, page, hub }) => {
    const other = await FakeHub.start({});
    const processes = watchProcesses();
    let wire;
    try {
      await page.driver.addInitScript(recordWire);
      await page.driver.reload();

      // Without a token, with one that does not hold, and with the right one whose account has not accepted the terms.
      // A token that is saved is tried at once.
      await hub.be(`token ${NAME} ${TOKEN}`);
      // A search does not find it yet.
      await core.call({ type: 'download_model', name: NAME });
      await page.openPage('Models');
      await card(page, 'chat')
        .getByRole('alert')
        .getByText(/private.*access token/)
        .waitFor();
      await page.backToChat();
      await saveToken(page, 'hf_another');
      await page.openPage('Models');
      await fails(page, /the access token is not valid/);
      await page.backToChat();
      await hub.be(`gated ${NAME}`);
      await saveToken(page, TOKEN);
      await page.openPage('Models');
      await fails(page, /accept/);
      await hub.be(`open ${NAME}`);
      await hub.be(`token ${NAME} ${TOKEN}`);
      await hub.be(`refuse ${WEIGHTS} 403`);
      await failsAgain(page, /check what the access token allows/);

      // A hub that leads to another host does not lead the token there.
      await hub.be('right');
      await hub.be(`redirect ${WEIGHTS} ${other.endpoint}/elsewhere`);
      await page.button('Try again, chat').click();
      await until('the other host is asked', async () => (await other.requests()).length > 0);

      // It knows no such file, so the hub is asked again, and cancelled.
      await hub.be('right');
      await hub.be(`stall ${WEIGHTS} 10`);
      await until('the weights are asked for', async () => (await hub.requests()).at(-1).side === 'Bytes');
      await page.button('Cancel the download of chat').click();
      await page.shows('Cancelled the download of chat.');
      await until('it is forgotten', async () => (await core.call({ type: 'bootstrap' })).downloads.length === 0);

      // After a restart the saved token opens the model.
      await core.end('SIGTERM');
      await hub.be('right');
      const again = await home.start(core);
      await download(page, NAME);
      await until('the model is here', async () => (await again.call({ type: 'bootstrap' })).models[0]?.facts);
      // The window loads it by itself only if it was connected in time to see it come.
      await again.call({ type: 'load_model', name: NAME });
      await until('the model is loaded', async () => (await page.status('engine-state').innerText()) === 'Ready');
      const asked = (await hub.requests()).filter(({ side }) => side === 'Hub').at(-1);
      assert.ok(asked.headers.some(([name, value]) => name === 'authorization' && value === `Bearer ${TOKEN}`));

      await page.backToChat();
      await page.ask('hello');
      await until('it is saved', async () => (await again.conversations())[0].conversation.cache?.is_whole);
      const inspector = await page.inspector();
      const [file] = await Promise.all([page.driver.waitForEvent('download'), exportOf(page, inspector)]);
      await file.saveAs(join(home.folder, 'exported.safetensors'));
      await page.openSettings('About');
      await page.button('Copy diagnostics').click();
      const diagnostics = await page.box('Diagnostics').inputValue();
      assert.match(diagnostics, /^Cairn: /);
      const copied = await page.driver.evaluate(() => navigator.clipboard.readText());
      wire = await wireOf(page);
      wire.received.push(diagnostics, copied);
      await again.end('SIGTERM');

      const stderr = await Promise.all([core.stderr, again.stderr]);
      assert.ok(
        stderr.every((text) => text.length > 1000),
        'there is a log to look at',
      );
      assert.deepEqual(
        stderr.filter((text) => text.includes(TOKEN)),
        [],
        'stderr',
      );
      assert.ok(!JSON.stringify(await other.requests()).includes(TOKEN), 'another host got the token');
    } finally {
      await other.end();
      assert.deepEqual(await processes(), [], 'a process shows it');
    }

    const sent = wire.sent.filter((text) => text.includes(TOKEN));
    assert.deepEqual(
      sent.map((text) => JSON.parse(text.slice(text.lastIndexOf('} {') + 2))),
      [{ type: 'set_hub_token', token: TOKEN }],
    );
    assert.ok(
      wire.received.some((text) => text.includes('"downloads"')),
      'the events were recorded',
    );
    assert.deepEqual(
      wire.received.filter((text) => text.includes(TOKEN)),
      [],
      'the core said it',
    );

    const kept = join(home.env.CAIRN_HOME, 'hub-token');
    const files = await filesIn(home.folder);
    const contents = await Promise.all(files.map(async (path) => (await readFile(path)).includes(TOKEN)));
    assert.deepEqual(
      files.filter((_, index) => contents[index]),
      [kept],
    );
    assert.equal((await stat(kept)).mode & 0o777, 0o600);
  },
);

/** Writes the saved context of the open chat to a file. */
async function exportOf(page, inspector) {
  await page.savedActions();
  await inspector.getByRole('button', { name: 'Export saved context…' }).click();
  const dialog = page.driver.getByRole('dialog').filter({ has: page.button('Export') });
  await dialog.getByRole('button', { name: 'Export', exact: true }).click();
}
