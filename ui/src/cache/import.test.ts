// Imports of prompt cache files.
import { beforeEach, expect, test } from 'vitest';
import { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { ImportPreview, Reply } from '../platform/wire';
import {
  bootstrap,
  cacheFile,
  conversation,
  FakePlatform,
  gate,
  startingPoint,
  overview,
  preview,
  settle,
} from '../testing/fake';

beforeEach(() => localStorage.clear());

async function start() {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap(),
    get_cache: { type: 'cache', cache: overview({ named: [startingPoint('n', { name: 'Mine' })] }) },
    confirm_import: { type: 'named', named: startingPoint('n', { name: 'Mine' }) },
  };
  const app = new App(platform);
  app.start();
  platform.connect('open');
  await settle();
  platform.asked.length = 0;
  return { app, platform, imports: app.imports, toasts: () => app.toasts.items.map(({ text }) => text) };
}

const file = cacheFile('dropped.safetensors');

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
  expect([imports.isOpen, app.navigation.page, app.cache.highlightedId]).toEqual([false, 'saved', 'n']);
  expect(toasts()).toEqual(['Imported “Mine”.']);

  platform.answers.new_conversation_from = { type: 'conversation', conversation: conversation('c'), messages: [] };
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  await settle();
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'c']);
});

test('nothing happens when no file was chosen', async () => {
  const { imports, platform, toasts } = await start();
  await imports.choose();
  expect([imports.step, imports.isBusy, platform.asked, toasts()]).toEqual([null, false, [], []]);
});

test('a file that is refused can only be dropped', async () => {
  const { imports, platform } = await start();
  platform.importAnswer = preview({ problem: 'It was made by another model.' });
  await imports.choose();
  await imports.confirm();
  expect([imports.step, platform.asked]).toEqual(['preview', []]);
  imports.cancel();
  expect([imports.step, platform.asked]).toEqual([null, [{ type: 'cancel_import', token: 'token' }]]);
});

test('a file that could not be read says why, until the dialog is closed', async () => {
  const { imports, platform } = await start();
  platform.importAnswer = new CallError('invalid', 'This is no safetensors file.');
  await imports.drop(file);
  expect([imports.step, imports.isOpen, imports.problem]).toEqual(['refused', true, 'This is no safetensors file.']);
  imports.cancel();
  expect([imports.step, imports.problem, imports.isBusy]).toEqual([null, null, false]);
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

test('closing the dialog while a file is read stops it and leaves room for another at once', async () => {
  const { imports, platform } = await start();
  const found = gate<ImportPreview>();
  platform.importAnswer = found.promise;
  const dropping = imports.drop(file);
  expect([imports.step, imports.fileName]).toEqual(['reading', 'dropped.safetensors']);
  const signal = platform.importSignal;
  imports.cancel();
  expect([signal?.aborted, imports.isBusy, imports.step]).toEqual([true, false, null]);

  platform.importAnswer = preview({ token: 'second' });
  await imports.drop(file);
  // The preview of the first one, which could not be stopped, comes too late.
  found.open(preview());
  await dropping;
  expect([imports.step, imports.preview?.token]).toEqual(['preview', 'second']);
  expect(platform.asked).toEqual([{ type: 'cancel_import', token: 'token' }]);
});

/** An import whose dialog was closed while it was running; `ends` says how it ends. */
async function hide() {
  const started = await start();
  const { imports, platform } = started;
  platform.importAnswer = preview();
  await imports.choose();
  const imported = gate<Reply | Error>();
  platform.answers.confirm_import = imported.promise.then((answer) => {
    if (answer instanceof Error) throw answer;
    return answer;
  });
  const confirming = imports.confirm();
  imports.cancel();
  expect([imports.step, imports.isOpen]).toEqual(['importing', false]);
  const ends = async (answer: Reply | Error) => {
    imported.open(answer);
    await confirming;
  };
  return { ...started, ends };
}

test('an import whose dialog was closed goes on, and only a message tells', async () => {
  const { app, platform, imports, toasts, ends } = await hide();
  await ends({ type: 'named', named: startingPoint('n', { name: 'Mine' }) });
  expect([imports.step, imports.isOpen, app.navigation.page]).toEqual([null, false, 'chat']);
  expect(toasts()).toEqual(['Imported “Mine”.']);
  expect(platform.askedTypes()).not.toContain('cancel_import');
});

test('an import whose dialog was closed tells that it failed, and comes back when asked', async () => {
  const { app, imports, toasts, ends } = await hide();
  await ends(new CallError('storage', 'The disk is full.'));
  expect([imports.step, imports.isOpen]).toEqual(['preview', false]);
  expect(toasts()).toEqual(['“Suggested” was not imported. The disk is full.']);
  app.toasts.act(app.toasts.items[0]?.id ?? 0);
  expect([imports.isOpen, imports.problem]).toEqual([true, 'The disk is full.']);
});

test.each<[name: string, ask: (imports: App['imports']) => Promise<void>]>([
  ['choosing', (imports) => imports.choose()],
  ['dropping', (imports) => imports.drop(file)],
  ['dropping on the window', (imports) => imports.dropped(Promise.resolve(preview()))],
])('%s a file shows the import that is under way', async (_, ask) => {
  const { imports, ends } = await hide();
  await ask(imports);
  expect([imports.step, imports.isOpen]).toEqual(['importing', true]);
  await ends({ type: 'named', named: startingPoint('n') });
  expect([imports.step, imports.isOpen]).toEqual([null, false]);
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
