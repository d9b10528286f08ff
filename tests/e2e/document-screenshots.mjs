// Pictures of documents in a draft, in a message and in the reader, and of the choice in a folder, into e2e/ of the target folder.
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { target } from './core.mjs';
import { FakeCore } from './fake-core.mjs';
import { longText } from './files.mjs';
import { launchBrowser, Page } from './page.mjs';

const SIZES = { '': { width: 1240, height: 820 }, '-narrow': { width: 480, height: 800 } };
const document = (id, name, kind, tokens) => ({ id, name, kind, num_bytes: 4 * (tokens ?? 3000), tokens });
const DOCUMENTS = [
  document('1', 'Lease agreement 2026.pdf', 'pdf', 18_204),
  document('2', 'measurements-of-all-cairns-on-the-western-ridge.csv', 'csv', 2310),
  document('3', 'notes.md', 'markdown', null),
];
const MODEL = 'owner/model';
const STATES = {
  waiting: { type: 'waiting' },
  reading: { type: 'reading', processed_tokens: 9216, total_tokens: 20_514, cached_tokens: 2048 },
  read: { type: 'read', tokens: 20_514, model: MODEL },
  unread: { type: 'unread' },
  'too-long': { type: 'too_long', exceeds_by: 12_322, model: MODEL },
  failed: { type: 'failed', why: 'There is no room left on the disk to write the saved context.' },
};

const folder = join(target, 'e2e');
const core = await FakeCore.start();
const browser = await launchBrowser();
const scratch = await mkdtemp(join(tmpdir(), 'cairn-pictures-'));
try {
  await mkdir(folder, { recursive: true });
  core.addChat('a', 'The lease', ['May I have a dog?', 'Yes, with the consent of the landlord (§ 9).']);
  core.conversations.get('a').messages[0].documents = DOCUMENTS.slice(0, 2);
  core.documentText = longText(60);
  const draft = (reading) => ({ conversation_id: 'a', documents: DOCUMENTS, reading });
  core.drafts.set('a', draft(STATES.waiting));
  for (const locale of ['en-US', 'de-DE']) {
    const context = await browser.newContext({ locale });
    const page = new Page(await context.newPage());
    const look = async (name, schemes = ['light', 'dark']) => {
      for (const [suffix, size] of Object.entries(SIZES)) {
        await page.driver.setViewportSize(size);
        for (const colorScheme of schemes) {
          await page.driver.emulateMedia({ colorScheme });
          const language = locale === 'en-US' ? '' : '-german';
          const path = join(folder, `documents-${name}${suffix}${language}-${colorScheme}.png`);
          await page.driver.screenshot({ path, animations: 'disabled' });
        }
      }
      await page.driver.setViewportSize(SIZES['']);
    };
    await page.driver.setViewportSize(SIZES['']);
    await page.open(core.url);
    const chips = page.driver.getByText('notes.md');
    await chips.waitFor();
    for (const [name, reading] of Object.entries(STATES)) {
      core.emit({ type: 'documents_reading', conversation_id: 'a', reading });
      await page.driver.waitForTimeout(150);
      await look(name, name === 'reading' || name === 'read' ? undefined : ['light']);
    }
    await page.driver.getByText('Lease agreement 2026.pdf').first().click();
    await page.driver.getByText('Cairn number 1 stands').waitFor();
    await page.driver.getByRole('searchbox').fill('granite');
    await look('reader');
    // The first one empties the field.
    await page.driver.getByRole('searchbox').fill('');
    await page.driver.keyboard.press('Escape');
    for (const name of ['src/main.rs', 'notes.md', '.env', 'node_modules/a.js', 'logo.png', 'data/stones.csv']) {
      await mkdir(dirname(join(scratch, 'project', name)), { recursive: true });
      await writeFile(join(scratch, 'project', name), 'Stone on stone.\n'.repeat(100));
    }
    const session = await context.newCDPSession(page.driver);
    const data = { items: [], files: [join(scratch, 'project')], dragOperationsMask: 1 };
    for (const type of ['dragEnter', 'dragOver'])
      await session.send('Input.dispatchDragEvent', { type, x: 600, y: 400, data });
    await page.driver.waitForTimeout(150);
    await look('over', ['light']);
    await session.send('Input.dispatchDragEvent', { type: 'drop', x: 600, y: 400, data });
    await page.driver.getByRole('checkbox').first().waitFor();
    await page.driver.locator('summary').filter({ visible: true }).last().click();
    await look('folder');
    if (page.complaints.length > 0) throw new Error(page.complaints.join('\n'));
    await context.close();
  }
} finally {
  await browser.close();
  core.end();
  await rm(scratch, { recursive: true, force: true });
}
