// Documents in Chromium against a real core: attached, read ahead, asked about, continued after a restart, looked into, refused.
import assert from 'node:assert/strict';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { findings } from './axe.mjs';
import { root } from './core.mjs';
import { eastAsianPdf, longText, pdf } from './files.mjs';
import { flow } from './flow.mjs';
import { until } from './until.mjs';

/** Attaches files by the button. */
async function attach(page, files) {
  const [chooser] = await Promise.all([page.driver.waitForEvent('filechooser'), page.button('Attach files').click()]);
  await chooser.setFiles(files);
}

const file = (name, content) => ({ name, mimeType: 'application/octet-stream', buffer: Buffer.from(content) });

/** Whether a prompt was saved up to the end of documents: before these stands only what the template writes. */
const isEnd = (cached, tokens) => cached > tokens && cached - tokens < 64;

/** The tokens that the line under the documents says were read. */
async function read(page) {
  const line = page.region('Documents').getByText(/^Read \([\d,]+ tokens\)/);
  await line.waitFor();
  return Number(/\(([\d,]+)/.exec(await line.innerText())[1].replaceAll(',', ''));
}

flow(
  'a document is read before it is asked about, and after a restart the chat continues',
  { models: [], maxTokens: 24, prepare: (home) => home.addStarter() },
  async ({ home, core, page }) => {
    await page.button('Model: SmolLM2 135M').waitFor();
    await attach(page, file('cairns.md', longText(24)));
    const tokens = await read(page);
    assert.ok(tokens > 500, `${tokens} tokens`);
    assert.deepEqual(await findings(page.driver), []);

    await page.ask('What is the first cairn built of?');
    const first = await page.cached();
    assert.ok(isEnd(first.cached, tokens), `${first.cached} saved, the document has ${tokens}`);
    assert.match(await page.statusLine.innerText(), /^(Continued|Read while you typed)/);
    await page
      .region('Messages')
      .getByRole('button', { name: /^cairns\.md, .*: open$/ })
      .waitFor();
    assert.equal(await page.region('Documents').count(), 0, 'the next message has no documents');

    await core.end('SIGTERM');
    const again = await home.start({ port: core.port, token: core.token });
    await page.driver.reload();
    await page.button('Model: SmolLM2 135M').waitFor();
    await page.ask('And the second one?');
    const second = await page.cached();
    assert.ok(second.cached >= first.prompt, `${second.cached} of ${second.prompt} were saved, ${first.prompt} before`);
    const [{ messages }] = await again.conversations();
    assert.deepEqual(
      messages.map(({ documents }) => documents.map(({ name }) => name)),
      [['cairns.md'], [], [], []],
    );

    await page
      .region('Messages')
      .getByRole('button', { name: /^cairns\.md, .*: open$/ })
      .click();
    const reader = page.dialog('cairns.md');
    await reader.getByText('Cairn number 24 stands at 1161 metres.').waitFor({ state: 'attached' });
    await page.driver.keyboard.press('Control+f');
    await page.driver.keyboard.type('granite');
    await reader.getByText('1 of 5', { exact: true }).waitFor();
    assert.deepEqual(await findings(page.driver), []);
    await page.driver.keyboard.press('Escape');
    assert.notEqual(await page.focused(), null);
  },
);

flow(
  'a chat that has only a document is the new chat, outlives a crash, and goes with its document',
  { maxTokens: 8 },
  async ({ home, core, page }) => {
    const { driver } = page;
    await page.button('Model: tiny-chat').waitFor();
    await page.ask('hello');
    const rows = () => driver.locator('[data-conversation]').count();
    await page.button('New chat').click();
    await attach(page, file('cairns.md', longText(2)));
    await read(page);
    assert.equal(await rows(), 1, 'it stands in no list');
    assert.deepEqual(await findings(driver), []);

    await core.end('SIGKILL');
    const again = await home.start({ port: core.port, token: core.token });
    await driver.reload();
    await page.button('Remove cairns.md').waitFor();
    await driver.locator('[data-conversation]').click();
    await page.button('Remove cairns.md').waitFor({ state: 'detached' });
    await page.button('New chat').click();
    await page.button('Remove cairns.md').click();
    await driver.getByRole('heading', { name: 'A conversation keeps its place' }).waitFor();
    assert.equal((await again.conversations()).length, 2, 'it can be taken back here');
    await driver.locator('[data-conversation]').click();
    const numRows = async () => (await again.call({ type: 'bootstrap' })).conversations.length;
    await until('its row is gone', async () => (await numRows()) === 1);

    await page.button('Undo').click();
    await page.button('Remove cairns.md').waitFor();
    assert.equal(await rows(), 1);
    await page.ask('What is it?');
    await until('it stands in the list', async () => (await rows()) === 2);
    const sent = (await again.conversations()).flatMap(({ messages }) =>
      messages.flatMap(({ documents }) => documents),
    );
    assert.deepEqual(
      sent.map(({ name }) => name),
      ['cairns.md'],
    );
  },
);

flow('an edited message loses a document and gets another', {}, async ({ home, core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await attach(page, [file('old.txt', longText(4)), file('kept.txt', longText(2))]);
  await read(page);
  await page.ask('How many?');
  const question = page.region('Messages').getByRole('article', { name: 'You' });
  await question.getByRole('button', { name: 'Edit', exact: true }).click();
  await question.getByRole('button', { name: 'Remove old.txt' }).click();
  await page.driver.keyboard.press('Control+z');
  await question.getByRole('button', { name: 'Remove old.txt' }).waitFor();
  await question.getByRole('button', { name: 'Remove old.txt' }).click();

  const path = join(home.folder, 'new.md');
  await writeFile(path, longText(3));
  await page.drop(path);
  await question.getByRole('button', { name: /^new\.md, .*: open$/ }).waitFor();
  assert.equal(await page.region('Documents').count(), 0, 'the composer has none of it');
  assert.deepEqual(await findings(page.driver), []);
  assert.equal(await page.focused(), 'Your message');
  await page.driver.keyboard.press('Enter');
  await question.getByRole('group', { name: 'Version 2 of 2' }).waitFor();
  await page.finished();
  await question.getByRole('button', { name: /^new\.md, .*: open$/ }).waitFor();
  const names = async () => {
    const [{ messages }] = await core.conversations();
    return messages[0].documents.map(({ name }) => name);
  };
  assert.deepEqual(await names(), ['kept.txt', 'new.md']);

  // Nothing of an edit that is given up stays.
  await question.getByRole('button', { name: 'Edit', exact: true }).click();
  const [chooser] = await Promise.all([
    page.driver.waitForEvent('filechooser'),
    question.getByRole('button', { name: 'Attach files to this message' }).click(),
  ]);
  await chooser.setFiles(file('later.txt', longText(2)));
  await question.getByRole('button', { name: 'Remove later.txt' }).waitFor();
  await page.driver.keyboard.press('Escape');
  await question.getByRole('button', { name: 'Edit', exact: true }).waitFor();
  const [{ conversation }] = await core.conversations();
  await until('the draft is empty', async () => {
    const of = { type: 'conversation', id: conversation.id };
    return (await core.call({ type: 'get_documents', of })).attached.documents.length === 0;
  });
  assert.equal(await page.region('Documents').count(), 0);
  await question.getByRole('button', { name: 'Previous version' }).click();
  await question.getByRole('button', { name: /^old\.txt, .*: open$/ }).waitFor();
});

flow('a document becomes a starting point with its name', {}, async ({ page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await attach(page, file('stones.txt', longText(6)));
  const tokens = await read(page);
  await page.button('Save as starting point…').click();
  const dialog = page.driver.getByRole('dialog');
  assert.equal(await dialog.getByRole('textbox', { name: 'Name' }).inputValue(), 'stones.txt');
  await dialog.getByRole('button', { name: 'Save', exact: true }).click();
  await page.startingPoint('stones.txt').click();
  await page.driver.getByRole('heading', { name: 'stones.txt', exact: true }).waitFor();
  await page.ask('How many?');
  const { cached } = await page.cached();
  assert.ok(isEnd(cached, tokens), `${cached} saved, the document has ${tokens}`);
});

flow('texts of many kinds are attached, and what has none is refused by name', {}, async ({ core, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  await attach(page, [
    file('gb.pdf', eastAsianPdf('77f359345806', 'UniGB-UCS2-H', 'GB1')),
    file('gbk.pdf', eastAsianPdf('caafcdb7', 'GBK-EUC-H', 'GB1')),
    file('big5.pdf', eastAsianPdf('a5dbc059', 'ETen-B5-H', 'CNS1')),
    file('sjis.pdf', eastAsianPdf('90ce82cc92cb', '90ms-RKSJ-H', 'Japan1')),
    file('uhc.pdf', eastAsianPdf('b5b9c5be', 'KSCms-UHC-H', 'Korea1')),
    file('report.pdf', pdf(['A cairn is built\nof flat stones.', 'It marks the way.'])),
    file('page.html', '<title>Ridge</title><p>Wind: <b>40</b> km/h<script>document.title = "ran"</script><img src=x>'),
    file('wide.txt', Buffer.from('\ufeffGröße in UTF-16', 'utf16le')),
    file('quotes.txt', Buffer.from([0x84, 0x47, 0x72, 0xf6, 0xdf, 0x65, 0x93])),
    file('stones.csv', 'name,height\r\nfirst,12\r\n'),
    file('empty.txt', ''),
    file('photo.png', 'x'),
    file('mixed.txt', Buffer.from([1, 0, 0, 2, 250, 0, 0, 3])),
    file('scan.pdf', pdf(['', ''])),
    file('secret.pdf', pdf(['Secret'], { isEncrypted: true })),
    file('broken.pdf', '%PDF-1.7\nno objects here'),
  ]);
  await read(page);
  const problems = await page.region('Documents').getByRole('alert').getByRole('listitem').allInnerTexts();
  // Those with the same problem share a sentence.
  const words = [
    /“empty.txt” is empty/,
    /2 files aren’t text: “photo.png” and “mixed.txt”/,
    /“scan.pdf” has .* no text\./,
    /“secret.pdf” is protected by a password/,
    /“broken.pdf” can’t be read .* damaged/,
  ];
  assert.equal(problems.length, words.length, problems.join('\n'));
  for (const [index, problem] of problems.entries()) assert.match(problem, words[index]);
  const [{ conversation }] = await core.conversations();
  const { attached } = await core.call({ type: 'get_documents', of: { type: 'conversation', id: conversation.id } });
  const texts = await Promise.all(
    attached.documents.map(({ id }) => core.call({ type: 'get_document', of: attached.of, document_id: id })),
  );
  assert.deepEqual(Object.fromEntries(texts.map(({ document, text }) => [document.name, [document.kind, text]])), {
    'gb.pdf': ['pdf', '石头堆'],
    'gbk.pdf': ['pdf', '石头'],
    'big5.pdf': ['pdf', '石頭'],
    'sjis.pdf': ['pdf', '石の塚'],
    'uhc.pdf': ['pdf', '돌탑'],
    'report.pdf': ['pdf', 'A cairn is built\nof flat stones.\n\nIt marks the way.'],
    'page.html': ['html', 'Ridge\n\nWind: 40 km/h'],
    'wide.txt': ['text', 'Größe in UTF-16'],
    'quotes.txt': ['text', '„Größe“'],
    'stones.csv': ['csv', 'name,height\nfirst,12\n'],
  });
  assert.notEqual(await page.driver.title(), 'ran');
});

// The policy forbids what nothing would run anyway, and the browser says so for each text.
const FORBIDDEN =
  /^(Executing inline event handler|Applying inline style|Setting the document|Refused to|forbidden by the policy: (script-src|style-src|img-src|base-uri))/;

flow(
  'hostile web pages become text: nothing runs, nothing is fetched',
  { expected: FORBIDDEN, maxTokens: 4 },
  async ({ core, page }) => {
    await page.button('Model: tiny-chat').waitFor();
    const requested = [];
    page.driver.on('request', (request) => requested.push(request.url()));
    await page.driver.evaluate(() => (window.ran = () => (window.hasRun = true)));
    const hostile = JSON.parse(await readFile(join(root, 'ui/src/testing/hostile.json'), 'utf8'));
    const texts = Object.values(hostile).flat();
    assert.ok(texts.length >= 300, `${texts.length} texts`);
    // A message takes a hundred documents.
    const pages = texts.map((text, index) => file(`${index} ${text}.html`, `<p>Stone ${index}</p>${text}`));
    for (let start = 0; start < pages.length; start += 90) {
      await page.button('New chat').first().click();
      await attach(page, pages.slice(start, start + 90));
      await read(page);
      await page.ask('What is this?');
    }
    assert.equal(await page.driver.evaluate(() => window.hasRun ?? false), false);
    const own = new URL(core.url).origin;
    assert.deepEqual(
      requested.filter((url) => new URL(url).origin !== own),
      [],
    );
  },
);

flow('of a folder that is dropped some files are attached', {}, async ({ home, page }) => {
  await page.button('Model: tiny-chat').waitFor();
  const folder = join(home.folder, 'project');
  for (const name of ['src/main.rs', 'notes.md', '.env', 'node_modules/a.js', 'logo.png']) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), 'Stone on stone.\n');
  }
  await page.drop(folder);
  const dialog = page.dialog('Attach files of “project”');
  await dialog.getByText('Left out (3)').waitFor();
  await dialog.getByRole('checkbox', { name: /notes\.md/ }).uncheck();
  await dialog.getByRole('button', { name: 'Attach 1 file' }).click();
  await read(page);
  await page.button('Remove src/main.rs').click();
  await until('the chip is gone', async () => (await page.region('Documents').count()) === 0);
  await page.driver.keyboard.press('Escape');
  await page.button('Undo').click();
  await page.button('Remove src/main.rs').waitFor();
});
