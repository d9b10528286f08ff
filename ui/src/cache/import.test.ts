// The way of a file into Cairn.
import { beforeEach, expect, test } from 'vitest';
import { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { ImportPreview, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, named, overview, preview, settle } from '../testing/fake';

beforeEach(() => localStorage.clear());

async function start() {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap(),
    get_cache: { type: 'cache', cache: overview({ named: [named('n', { name: 'Mine' })] }) },
    confirm_import: { type: 'named', named: named('n', { name: 'Mine' }) },
  };
  const app = new App(platform);
  app.start();
  platform.connect('open');
  await settle();
  platform.asked.length = 0;
  return { app, platform, imports: app.imports, toasts: () => app.toasts.items.map(({ text }) => text) };
}

const file = new File(['x'], 'dropped.safetensors');

test('a chosen file is shown first, then imported under the name that was typed', async () => {
  const { app, imports, platform, toasts } = await start();
  platform.importAnswer = preview();
  await imports.choose();
  expect([imports.step, imports.isOpen, imports.name]).toEqual(['preview', true, 'Suggested']);
  expect(platform.asked).toEqual([]);
  imports.name = ' Mine ';
  imports.isChecking = true;
  await imports.confirm();
  expect(platform.asked[0]).toEqual({ type: 'confirm_import', token: 'token', name: 'Mine', check: true });
  expect([imports.isOpen, app.page, app.cache.highlightedId]).toEqual([false, 'cache', 'n']);
  expect(toasts()).toEqual(['Imported “Mine”.']);

  platform.answers.new_conversation_from = { type: 'conversation', conversation: conversation('c'), messages: [] };
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await settle();
  expect([app.page, app.chat.selectedId]).toEqual(['chat', 'c']);
});

test('nothing happens when no file was chosen', async () => {
  const { imports, platform, toasts } = await start();
  await imports.choose();
  expect([imports.step, imports.isBusy, platform.asked, toasts()]).toEqual([null, false, [], []]);
});

test('a file that is refused can only be let go', async () => {
  const { imports, platform } = await start();
  platform.importAnswer = preview({ problem: 'It was made by another model.' });
  await imports.choose();
  await imports.confirm();
  expect([imports.step, platform.asked]).toEqual(['preview', []]);
  imports.cancel();
  expect([imports.step, platform.asked]).toEqual([null, [{ type: 'cancel_import', token: 'token' }]]);
});

test('a file that could not be read says why', async () => {
  const { imports, platform, toasts } = await start();
  platform.importAnswer = new CallError('invalid', 'This is no safetensors file.');
  await imports.drop(file);
  expect([imports.step, toasts()]).toEqual([null, ['This is no safetensors file.']]);
});

test.each<[name: string, typed: string, canCheck: boolean, asked: object[]]>([
  ['without a name', ' ', true, []],
  [
    'a check that cannot be made is not asked for',
    'Mine',
    false,
    [{ type: 'confirm_import', token: 'token', name: 'Mine', check: false }],
  ],
])('confirming %s', async (_, typed, can_check, asked) => {
  const { imports, platform } = await start();
  platform.importAnswer = preview({ can_check });
  await imports.choose();
  imports.name = typed;
  imports.isChecking = true;
  await imports.confirm();
  expect(platform.asked.filter(({ type }) => type === 'confirm_import')).toEqual(asked);
});

test('an import that fails can be tried again', async () => {
  const { imports, platform } = await start();
  platform.importAnswer = preview();
  platform.answers.confirm_import = new CallError('invalid', 'There is one of this name.');
  await imports.choose();
  await imports.confirm();
  expect([imports.step, imports.problem, imports.isOpen]).toEqual(['preview', 'There is one of this name.', true]);
});

test('closing the dialog while a file is read lets the file go', async () => {
  const { imports, platform } = await start();
  const found = gate<ImportPreview>();
  platform.importAnswer = found.promise;
  const dropping = imports.drop(file);
  expect([imports.step, imports.fileName]).toEqual(['reading', 'dropped.safetensors']);
  imports.cancel();
  found.open(preview());
  await dropping;
  expect([imports.step, platform.asked]).toEqual([null, [{ type: 'cancel_import', token: 'token' }]]);
});

test.each<
  [name: string, ends: (answer: (reply: Reply) => void, fail: (error: Error) => void) => void, isOpen: boolean]
>([
  ['is seen through', (answer) => answer({ type: 'named', named: named('n') }), false],
  ['comes back when it fails', (_, fail) => fail(new CallError('storage', 'The disk is full.')), true],
])('closing the dialog while a file is filed: it %s', async (_, ends, isOpen) => {
  const { imports, platform } = await start();
  platform.importAnswer = preview();
  await imports.choose();
  platform.answers.confirm_import = new Promise<Reply>((resolve, reject) => setTimeout(() => ends(resolve, reject)));
  const confirming = imports.confirm();
  imports.cancel();
  expect([imports.step, imports.isOpen]).toEqual(['importing', false]);
  await confirming;
  expect(imports.isOpen).toBe(isOpen);
  expect(platform.askedTypes()).not.toContain('cancel_import');
});

test('a second file is not looked at while the first is being decided on', async () => {
  const { imports, platform } = await start();
  platform.importAnswer = preview();
  await imports.choose();
  platform.importAnswer = preview({ token: 'second' });
  await imports.drop(file);
  await imports.dropped(Promise.resolve(preview({ token: 'third' })));
  expect(imports.preview?.token).toBe('token');
  expect(platform.asked).toEqual([{ type: 'cancel_import', token: 'third' }]);
});

test('a file that the shell was given is shown like any other', async () => {
  const { imports } = await start();
  imports.isOver = true;
  await imports.dropped(Promise.resolve(preview()));
  expect([imports.step, imports.isOver]).toEqual(['preview', false]);
});
