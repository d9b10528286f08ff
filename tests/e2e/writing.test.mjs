// How answers are written: texts that attack the page stay texts, and text is found in chats of any length.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { findings } from './axe.mjs';
import { root } from './core.mjs';
import { FakeCore } from './fake-core.mjs';
import { flow } from './flow.mjs';
import { launchBrowser, Page } from './page.mjs';
import { until } from './until.mjs';

/** Texts that try to run something, to ask a server, or to lead away, by category. */
const hostile = JSON.parse(await readFile(join(root, 'ui/src/testing/hostile.json'), 'utf8'));

let browser;
after(async () => (await browser)?.close());

/** A page on a core without models, which notes what it must never do: run planted code, ask anybody else, navigate, open a window. */
async function openPage(t, core, options = {}) {
  browser ??= launchBrowser();
  const context = await (await browser).newContext({ acceptDownloads: true, ...options });
  t.after(async () => {
    await context.close();
    core.end();
  });
  const page = new Page(await context.newPage());
  page.trespasses = watch(page, context, core.url);
  await page.open(core.url);
  await page.message.waitFor();
  return page;
}

function watch(page, context, url) {
  const trespasses = [];
  const { driver } = page;
  void driver.addInitScript(() => (window.ran = () => (window.hasRun = true)));
  driver.on('request', (request) => {
    const { host, pathname } = new URL(request.url());
    const isOwn = host === url.host && /^\/($|assets\/|api\/call$|cairn\.svg$)/.test(pathname);
    if (!isOwn) trespasses.push(`asked ${request.url()}`);
  });
  driver.on('dialog', (dialog) => trespasses.push(`dialog ${dialog.message()}`));
  driver.on('framenavigated', (frame) => {
    const { host, pathname } = new URL(frame.url());
    if (host !== url.host || pathname !== '/') trespasses.push(`went to ${frame.url()}`);
  });
  context.on('page', (other) => other !== driver && trespasses.push(`opened ${other.url()}`));
  return trespasses;
}

/** The answers that are drawn, and their links; runs in the page. */
const linksOfAnswers = (box) =>
  [...box.querySelectorAll('[data-message]:has(article[aria-label="Answer"])')].map((row) => [
    row.dataset.message,
    [...row.querySelectorAll('a')].map((link) => ({
      href: link.getAttribute('href'),
      rel: link.getAttribute('rel'),
    })),
  ]);

/** Runs in the page: scrolls on once everything that is seen is drawn. */
function stepDown(box) {
  const view = box.getBoundingClientRect();
  const isDrawn = [...box.querySelectorAll('.gap')].every((gap) => {
    const { top, bottom } = gap.getBoundingClientRect();
    return bottom <= view.top || top >= view.bottom;
  });
  if (isDrawn) box.scrollTop += box.clientHeight / 2;
}

async function checkHarmless(page) {
  assert.equal(await page.driver.evaluate(() => window.hasRun), undefined, 'planted code has run');
  assert.deepEqual(page.trespasses, []);
  assert.deepEqual(page.complaints, []);
}

test('no text of a model, no title and no name runs, asks or leads anywhere', { timeout: 900_000 }, async (t) => {
  const core = await FakeCore.start();
  const all = Object.values(hostile).flat();
  core.modelNames = all.slice(0, 40).map((text) => `owner/${text}`);
  for (const [index, [category, texts]] of Object.entries(hostile).entries()) {
    core.addChat(
      `c${index}`,
      category,
      texts.flatMap((text) => [text, text]),
    );
  }
  for (const [index, text] of all.entries()) if (index % 10 === 0) core.addChat(`t${index}`, text, ['a', 'b']);
  const page = await openPage(t, core);
  const box = page.region('Messages');
  for (const [index, [category, texts]] of Object.entries(hostile).entries()) {
    await page.row(category).first().click();
    await page.driver.locator(`[data-message^="c${index}-"]`).first().waitFor();
    // Everything is drawn on the way from the start to the end; what is left behind may be released.
    const links = new Map();
    await box.evaluate((element) => (element.scrollTop = 0));
    await until(`all of ${category} was drawn`, async () => {
      for (const [id, found] of await box.evaluate(linksOfAnswers)) links.set(id, found);
      await box.evaluate(stepDown);
      return links.size === texts.length;
    });
    for (const { href, rel } of [...links.values()].flat()) {
      assert.match(href, /^(https?|mailto):/);
      assert.equal(rel, 'noopener noreferrer');
    }
  }
  // One that is being written goes through every state between.
  const id = core.addChat('growing', 'Growing', ['Go']);
  core.emit({ type: 'conversation', conversation: core.conversations.get(id).conversation });
  await page.row('Growing').click();
  await page.shows('Go');
  const text = all.join('\n\n');
  core.emit({ type: 'message', message: core.message(id, 1, '', 'streaming') });
  core.emit({
    type: 'segment',
    conversation_id: id,
    message_id: 'growing-1',
    index: 0,
    segment: { kind: 'text', text: '' },
  });
  for (let offset = 0; offset < text.length; offset += 61) {
    const part = text.slice(offset, offset + 61);
    core.emit({ type: 'delta', conversation_id: id, message_id: 'growing-1', segment: 0, offset, text: part });
    await page.driver.evaluate(() => new Promise(requestAnimationFrame));
  }
  core.emit({ type: 'message', message: core.message(id, 1, text) });
  await page.finished();
  await page.openPage('Models');
  await page.backToChat();
  await page.driver.keyboard.press('Control+k');
  await page.dialog('Search').locator('input').fill('script');
  await page.driver.keyboard.press('Escape');
  await checkHarmless(page);
});

const ATTACK = `<img src=x onerror=ran()><script>ran()</script>

![x](https://evil.test/i.png) [x](javascript:ran()) [y](https://evil.test/ "t" onclick=ran())

$\\href{javascript:ran()}{x}$ <iframe srcdoc="<script>parent.ran()</script>"></iframe>`;
const NAME = '<img src=x onerror=ran()>';

flow(
  'a model whose name and answer attack the page does no harm',
  { models: [], maxTokens: 1000, prepare: (home) => home.addScripted(NAME, ATTACK) },
  async ({ core, page }) => {
    await page.driver.evaluate(() => (window.ran = () => (window.hasRun = true)));
    page.trespasses = [];
    page.driver.on('request', (request) => {
      if (new URL(request.url()).host !== core.url.host) page.trespasses.push(request.url());
    });
    await core.call({ type: 'load_model', name: NAME });
    await page.button(`Model: ${NAME}`).waitFor();
    await page.ask(NAME);
    await page.answer.locator('math').waitFor();
    assert.match(await page.answer.innerText(), /<script>ran\(\)<\/script>/);
    assert.equal(await page.answer.locator('img, iframe, script').count(), 0);
    const [{ conversation }] = await core.conversations();
    assert.equal(conversation.title, NAME);
    await checkHarmless(page);
  },
);

test(
  'text is found in a chat of 2,000 messages, also where it is not drawn or folded',
  { timeout: 900_000 },
  async (t) => {
    const core = await FakeCore.start();
    const texts = Array.from({ length: 2000 }, (_, index) => `Message ${index} of this chat.`);
    texts[4] = `${'A line that is written to be folded away.\n'.repeat(40)}Here is the Needle.`;
    texts[1001] = 'Between **nee**`dle` and\n\n```rust\nlet needle = 1;\n```';
    texts[1999] = 'No more.';
    core.addChat('long', 'Long', texts);
    const { messages } = core.conversations.get('long');
    messages[1501].segments.unshift({ kind: 'reasoning', text: 'A needle?', began_at_ms: 1, duration_ms: 2000 });
    const page = await openPage(t, core, { viewport: { width: 1000, height: 700 } });
    await page.shows('No more.');
    const found = () =>
      page.driver.evaluate(() => [...(CSS.highlights.get('cairn-found-current') ?? [])].map(String).join());
    const bar = page.driver.getByRole('search', { name: 'Find' });

    await page.driver.keyboard.press('Control+f');
    const field = bar.getByRole('textbox', { name: 'Find in this chat' });
    await until('the field has the focus', async () => (await page.focused()) === 'Find in this chat');
    await field.fill('NEEDLE');
    await bar.getByText('1 of 4').waitFor();
    await until('it is shown', async () => (await found()) === 'Needle');
    await page.driver.getByRole('button', { name: 'Show less' }).waitFor();
    assert.deepEqual(await findings(page.driver), []);
    const isSeen = () =>
      page.driver.evaluate(() => {
        const [range] = CSS.highlights.get('cairn-found-current');
        const { top, bottom } = range.getBoundingClientRect();
        return top > 60 && bottom < innerHeight - 100;
      });
    assert.equal(await isSeen(), true);
    for (const [number, text] of [
      [2, 'needle'],
      [3, 'needle'],
      [4, 'needle'],
      [1, 'Needle'],
    ]) {
      await field.press('Enter');
      await bar.getByText(`${number} of 4`).waitFor();
      await until(`number ${number} is shown`, async () => (await found()) === text && (await isSeen()));
    }
    await field.press('Shift+Enter');
    await bar.getByText('4 of 4').waitFor();
    await page.driver.getByRole('button', { name: 'Thought for 2 s', expanded: true }).waitFor();
    await field.fill('not to be found');
    await bar.getByText('Nothing found').waitFor();
    await field.press('Escape');
    await bar.waitFor({ state: 'detached' });
    await until('the message field has the focus', async () => (await page.focused()) === 'Message');
    await checkHarmless(page);
  },
);

test(
  'a long chat is scrolled without leaps, and a person returns to where they were',
  { timeout: 900_000 },
  async (t) => {
    const core = await FakeCore.start();
    const texts = Array.from(
      { length: 600 },
      (_, index) => `Message ${index}. ${'It goes on. '.repeat((index * 7) % 90)}`,
    );
    core.addChat('long', 'Long', texts);
    core.addChat('short', 'Short', ['One', 'Two']);
    const page = await openPage(t, core, { viewport: { width: 1000, height: 700 } });
    await page.row('Long').click();
    await page.shows('Message 599.');
    const box = page.region('Messages');
    /** The first message that is seen, and where. */
    const place = () =>
      box.evaluate((element) => {
        const { top } = element.getBoundingClientRect();
        const first = [...element.querySelectorAll('[data-message]')].find(
          (row) => row.getBoundingClientRect().bottom > top,
        );
        return first && { id: first.dataset.message, top: Math.round(first.getBoundingClientRect().top - top) };
      });
    const frames = () =>
      page.driver.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await page.driver.mouse.move(600, 300);
    // What a person used is kept as it is.
    await page.driver.locator('[data-message="long-599"]').click();
    for (let turn = 0; turn < 40; turn++) {
      const seen = await place();
      const before = await box.evaluate(
        (element, id) => element.querySelector(`[data-message="${id}"]`).getBoundingClientRect().top,
        seen.id,
      );
      await box.evaluate((element) => (element.scrollTop -= 300));
      await frames();
      const now = await box.evaluate(
        (element, id) => element.querySelector(`[data-message="${id}"]`).getBoundingClientRect().top,
        seen.id,
      );
      assert.ok(Math.abs(now - before - 300) <= 1, `${seen.id} moved by ${now - before} of 300 pixels`);
    }
    const drawn = page.driver.locator('[data-message]');
    await until('what is far away is released', async () => (await drawn.count()) <= 60);
    assert.equal(await page.driver.locator('[data-message="long-599"]').count(), 1);
    const left = await place();
    await page.row('Short').click();
    await page.shows('Two');
    await page.row('Long').click();
    await until('the place is there again', async () => {
      const now = await place();
      return now?.id === left.id && Math.abs(now.top - left.top) <= 1;
    });
    await box.evaluate((element) => (element.scrollTop = element.scrollHeight / 3));
    await until(
      'something is drawn there',
      async () => (await place()) !== undefined && (await box.getByText(/^Message 2\d\d\./).count()) > 0,
    );
    assert.deepEqual(page.complaints, []);
  },
);

test('code is copied, wrapped and saved as a file', { timeout: 900_000 }, async (t) => {
  const core = await FakeCore.start();
  const code = Array.from(
    { length: 400 },
    (_, index) => `line_${index} = "${'x'.repeat(index % 60)}"${index % 9 ? '' : '\n'}`,
  ).join('\n');
  core.addChat('code', 'My program', ['Write it', `Here:\n\n\`\`\`python\n${code}\n\`\`\``]);
  const page = await openPage(t, core, { permissions: ['clipboard-read', 'clipboard-write'] });
  const block = page.answer.getByRole('group', { name: 'Code, Python' });
  await block.getByRole('button', { name: 'Copy code' }).click();
  assert.equal(await page.driver.evaluate(() => navigator.clipboard.readText()), code);
  const downloading = page.driver.waitForEvent('download');
  await block.getByRole('button', { name: 'Save as a file…' }).click();
  const download = await downloading;
  assert.equal(download.suggestedFilename(), 'My program.py');
  assert.equal(await readFile(await download.path(), 'utf8'), code);
  const copied = await block.locator('pre').evaluate((pre) => {
    getSelection().selectAllChildren(pre);
    return String(getSelection());
  });
  assert.equal(copied, code, 'what is selected is the code, without lines of its own');
  await block.getByRole('button', { name: 'Wrap long lines' }).click();
  await block.getByRole('button', { name: 'Wrap long lines', pressed: true }).waitFor();
  assert.deepEqual(await findings(page.driver), []);
});
