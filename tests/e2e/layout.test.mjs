// What only a browser that lays the page out can show, in small windows: that words found are seen, that the messages keep their room.
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { FakeCore, fakes } from './fake-core.mjs';
import { launchBrowser } from './page.mjs';
import { until } from './until.mjs';

const QUESTION = 'What is this contract about?';
let browser;
let core;
let page;

const attached = (...documents) => ({
  of: { type: 'conversation', id: 'a' },
  beginning: [],
  documents,
  reading: { type: 'read', tokens: 900, document_tokens: 876, model: 'owner/model' },
});

before(async () => {
  browser = await launchBrowser();
});

after(() => browser.close());

beforeEach(async () => {
  core = await FakeCore.start();
  core.addChat('b', 'Another chat', ['Hello', 'Hi there']);
  core.addChat('a', QUESTION, [QUESTION, 'A lease. '.repeat(80)]);
  page = await browser.newPage({ viewport: { width: 1240, height: 800 } });
});

async function open() {
  await page.goto(core.url.href);
  await page.getByRole('article').first().waitFor();
}

async function close() {
  await page.close();
  core.end();
}

test('⌘K shows the word that it has found, in a wide window and in a narrow one', async (t) => {
  t.after(close);
  const words = 'You wrote in a long letter to a customer, setting a ';
  const excerpt = [
    { text: words, is_match: false },
    { text: 'price', is_match: true },
    { text: ' for every stone that was wanted', is_match: false },
  ];
  const found = { conversation_id: 'a', message_id: 'a-1', role: 'assistant', document: null, num_messages: 3 };
  const created_at_ms = Date.now() - 9e8;
  core.replies.search_messages = {
    type: 'found_messages',
    indexed_share: 1,
    found: [{ ...found, excerpt, created_at_ms }],
  };
  await open();
  await page.keyboard.press('Control+k');
  await page.getByRole('combobox').fill('price');
  const mark = page.locator('dialog .excerpt mark');
  await mark.waitFor();
  for (const width of [1240, 480]) {
    await page.setViewportSize({ width, height: 800 });
    const isSeen = await mark.evaluate((word) => {
      const [{ left, right }, row] = [word.getBoundingClientRect(), word.closest('bdi').getBoundingClientRect()];
      // The sign for what is cut off stands at the end.
      return left >= row.left && right < row.right - 12;
    });
    assert.ok(isSeen, `the word is seen at ${width} px`);
  }
});

test('a name that is cut off in the list ends with a whole word', async (t) => {
  t.after(close);
  const title = 'A list of seven heavy things that nobody packs for a hike of nine days, and why';
  core.addChat('c', title, ['Why?', 'Because.']);
  await open();
  const ends = await page.locator('[data-conversation="c"] bdi').evaluate((name) => {
    const [text, range] = [name.firstChild, document.createRange()];
    const topOf = (index) => (
      range.setStart(text, index),
      range.setEnd(text, index + 1),
      range.getBoundingClientRect().top
    );
    const first = topOf(0);
    const end = [...text.data].findIndex((_, index) => text.data[index].trim() !== '' && topOf(index) > first + 4);
    return end < 0 ? null : text.data[end - 1];
  });
  assert.equal(ends, ' ', 'the line ends between two words');
});

test('with a message that waits and a document the messages keep a third of a low window', async (t) => {
  t.after(close);
  const { messages, conversation } = core.conversations.get('a');
  messages.push(core.message('a', 2, 'And then?'), core.message('a', 3, '', 'streaming'));
  conversation.is_streaming = true;
  core.drafts.set('a', attached(fakes.textDocument('lease')));
  await open();
  await page.getByRole('textbox', { name: 'Message' }).fill('And after that?');
  await page.keyboard.press('Enter');
  core.emit({ type: 'documents', attached: attached(fakes.textDocument('lease'), fakes.textDocument('rules')) });
  await page.getByRole('button', { name: 'Remove rules.txt' }).waitFor();
  await page.setViewportSize({ width: 620, height: 410 });
  const height = () => page.getByRole('region', { name: 'Messages', exact: true }).evaluate((box) => box.clientHeight);
  await until('the messages have room', async () => (await height()) >= 410 / 3);
});

test('beside a message in a dialog stands the button that closes it, and rings of buttons are whole', async (t) => {
  t.after(close);
  await open();
  await page.getByRole('button', { name: 'Another chat' }).first().click({ button: 'right' });
  await page.getByRole('menuitem', { name: 'Delete' }).click();
  await page.keyboard.press('Control+k');
  const note = page.locator('dialog li', { hasText: 'Deleted' });
  await note.waitFor();
  await note.getByRole('button', { name: 'Dismiss', exact: true }).waitFor();
  // Both in one frame: the note moves while the dialog's list grows.
  const [text, button] = await note.evaluate((element) =>
    ['p', 'button[aria-label="Dismiss"]'].map((part) => element.querySelector(part).getBoundingClientRect().top),
  );
  assert.ok(Math.abs(text - button) < 12, `the text begins at ${text}, the button at ${button}`);
  await page.keyboard.press('Escape');
  const rest = await page
    .locator('.message.is-settled')
    .last()
    .evaluate((row) => {
      const last = row.querySelector('footer').getBoundingClientRect().bottom;
      return row.getBoundingClientRect().bottom - last;
    });
  assert.ok(rest >= 3, `${rest} px are left below the buttons`);
});
