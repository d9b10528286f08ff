// Documents in a draft, in a message and in the reader, the choice in a folder, and a chat that has nothing else yet.
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fakes } from '../fake-core.mjs';
import { longText } from '../files.mjs';

const MODEL = 'owner/model';
const document = (id, name, kind, tokens) => ({
  id,
  name,
  kind,
  num_bytes: 4 * (tokens ?? 3000),
  tokens,
  counted_by: tokens === null ? null : MODEL,
});
const DOCUMENTS = [
  document('1', 'Lease agreement 2026.pdf', 'pdf', 18_204),
  document('2', 'measurements-of-all-cairns-on-the-western-ridge.csv', 'csv', 2310),
  document('3', 'notes.md', 'markdown', null),
];
/** How far the reading is, and what the window then says. */
const STATES = {
  waiting: [{ type: 'waiting' }, 'Getting ready to read'],
  reading: [
    { type: 'reading', processed_tokens: 9240, total_tokens: 20_538, cached_tokens: 2072, document_tokens: 20_514 },
    'Reading 9,216',
  ],
  read: [{ type: 'read', tokens: 20_538, document_tokens: 20_514, model: MODEL }, '20,514 tokens'],
  unread: [{ type: 'unread' }, 'Not read yet'],
  'too-long': [{ type: 'too_long', exceeds_by: 12_322, model: MODEL }, '12,322 tokens'],
  failed: [{ type: 'failed', why: 'There is no room left on the disk.' }, 'no room left'],
};

export async function documents(stage) {
  await inChat(stage);
  await beforeTheFirstMessage(stage);
}

async function inChat(stage) {
  const core = await stage.fakeCore();
  core.addChat('a', 'The lease', ['May I have a dog?', 'Yes, with the consent of the landlord (§ 9).']);
  core.conversations.get('a').messages[0].documents = DOCUMENTS.slice(0, 2);
  core.documentText = longText(60);
  core.drafts.set('a', { documents: DOCUMENTS, reading: { type: 'waiting' } });
  const page = await stage.open(core.url);
  const { driver } = page;
  await driver.getByText('notes.md').waitFor();
  for (const [name, [reading, words]] of Object.entries(STATES)) {
    core.emit({ type: 'documents_reading', of: { type: 'conversation', id: 'a' }, reading });
    await page.shows(words);
    await stage.look(page, name);
  }
  await driver.getByText('Lease agreement 2026.pdf').first().click();
  await driver.getByText('Cairn number 1 stands').waitFor();
  await driver.getByRole('searchbox').fill('granite');
  await page.shows('1 of 12');
  await stage.look(page, 'reader');
  // The first one empties the field.
  await driver.getByRole('searchbox').fill('');
  await driver.keyboard.press('Escape');
  const project = join(await stage.folder(), 'project');
  for (const name of ['src/main.rs', 'notes.md', '.env', 'node_modules/a.js', 'logo.png', 'data/stones.csv']) {
    await mkdir(dirname(join(project, name)), { recursive: true });
    await writeFile(join(project, name), 'Stone on stone.\n'.repeat(100));
  }
  await page.drop(project, { onOver: () => stage.look(page, 'over') });
  await driver.getByRole('checkbox').first().waitFor();
  await driver.locator('summary').filter({ visible: true }).last().click();
  await stage.look(page, 'folder');
}

async function beforeTheFirstMessage(stage) {
  const core = await stage.fakeCore();
  core.addChat('a', 'The lease', ['May I have a dog?', 'Yes, with the consent of the landlord (§ 9).']);
  core.conversations.set('n', { conversation: fakes.conversation('n', { title: '' }), messages: [] });
  const documents = [DOCUMENTS[0], document('2', 'notes.md', 'markdown', 210)];
  core.drafts.set('n', { documents, reading: { type: 'read', tokens: 18_438, document_tokens: 18_414, model: MODEL } });
  const page = await stage.open(core.url);
  await page.button('New chat').click();
  await page.shows('notes.md');
  await stage.look(page, 'alone');
}
