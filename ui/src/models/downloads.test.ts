// Downloads: how far they are, pause, cancel and undo, and what happens when a model has come.
import { expect, test } from 'vitest';
import { App } from '../app.svelte';
import { CallError } from '../platform/platform';
import type { ImportedModel, Model, PerplexityChange, RoundingChoice, RoundingForm } from '../platform/wire';
import { FakeClock } from '../testing/clock';
import {
  bootstrap,
  download,
  facts,
  FakePlatform,
  gate,
  model,
  problem,
  recommended,
  settle,
  status,
} from '../testing/fake';
import { strings } from '../text';
import { downloadWords } from './downloadWords';

const NAME = 'owner/Model-4B-4bit';
const empty = { ...status, engine: { state: 'empty' as const }, model_fingerprint: null };

async function start(change: Parameters<typeof bootstrap>[0] = {}) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap({ models: [], status: empty, ...change }),
    get_recommended_models: {
      type: 'recommended_models',
      memory_bytes: 2 ** 34,
      models: [recommended(NAME)],
    },
  };
  const clock = new FakeClock();
  const app = new App(platform, { after: clock.after });
  app.start();
  platform.connect('open');
  await settle();
  platform.asked.length = 0;
  const toasts = () => app.toasts.items.map(({ text }) => text);
  const act = (text: string) => app.toasts.act(app.toasts.items.find((item) => item.text === text)?.id ?? 0);
  return { app, downloads: app.downloads, clock, platform, toasts, act };
}

const progress = (platform: FakePlatform, ...list: ReturnType<typeof download>[]) =>
  platform.emit({ type: 'downloads', downloads: list });

test('the time that is shown grows only when the rest has become another matter', async () => {
  const { downloads, platform } = await start();
  const shown = [60, 45, 50, 40, 79, 80, null, 90].map((seconds_left) => {
    progress(platform, download(NAME, { seconds_left }));
    return downloads.get(NAME)?.seconds_left;
  });
  expect(shown).toEqual([60, 45, 45, 40, 40, 80, null, 90]);
});

test('of a time that nobody waits for nothing is said', async () => {
  const { downloads, platform } = await start();
  const shown = [16_876_900, 172_801, 172_800].map((seconds_left) => {
    progress(platform, download(NAME, { seconds_left }));
    return downloads.get(NAME)?.seconds_left;
  });
  expect(shown).toEqual([null, null, 172_800]);
  expect(downloads.total?.secondsLeft).toBe(172_800);
});

test('a download that stands still says so, unless what has come is being checked', () => {
  const standing = download(NAME, { bytes_per_second: 0, seconds_left: null });
  expect(downloadWords(standing, true)).toBe('1 of 2 files, nothing is coming just now');
  const files = standing.files.map((file) =>
    file.state === 'running' ? { ...file, state: 'checking' as const } : file,
  );
  expect(downloadWords({ ...standing, files }, true)).toBe('1 of 2 files');
});

test('a paused download begins with its own time again', async () => {
  const { downloads, platform } = await start();
  progress(platform, download(NAME, { seconds_left: 40 }));
  progress(platform, download(NAME, { state: 'paused', seconds_left: null }));
  progress(platform, download(NAME, { seconds_left: 60 }));
  expect(downloads.get(NAME)?.seconds_left).toBe(60);
});

test('a hub that does not answer is told after three seconds, until it does', async () => {
  const { downloads, clock, platform } = await start();
  const asking = download(NAME, { bytes: 0, total_bytes: 0, files: [], seconds_left: null });
  const isUnanswered = () => downloads.isUnanswered(NAME);
  progress(platform, asking);
  // What is sent again meanwhile does not begin the time anew.
  progress(platform, asking);
  expect([isUnanswered(), downloads.total, clock.waits.filter((time) => time === 3000)]).toEqual([false, null, [3000]]);
  clock.run();
  expect(isUnanswered()).toBe(true);
  // While the hub is looked for again, it goes on being said.
  for (const state of ['offline', 'running', 'offline', 'running'] as const) {
    progress(platform, { ...asking, state });
    expect(isUnanswered()).toBe(true);
  }
  progress(platform, download(NAME));
  expect(isUnanswered()).toBe(false);
  progress(platform, { ...asking, state: 'paused' });
  clock.run();
  expect(isUnanswered()).toBe(false);
});

test('all running downloads together have a share and a time', async () => {
  const { downloads, platform } = await start();
  expect(downloads.total).toBeNull();
  progress(
    platform,
    download('a', { bytes: 1e9, total_bytes: 2e9, seconds_left: 30 }),
    download('b', { state: 'paused' }),
  );
  expect(downloads.total).toEqual({ share: 0.5, secondsLeft: 30 });
  progress(
    platform,
    download('a', { bytes: 1e9, total_bytes: 2e9, seconds_left: 30 }),
    download('b', { state: 'queued', bytes: 0, total_bytes: 2e9, seconds_left: null }),
  );
  expect(downloads.total).toEqual({ share: 0.25, secondsLeft: null });
});

test('pause, resume and retry ask the core', async () => {
  const { downloads, platform } = await start({ downloads: [download(NAME)] });
  await downloads.pause(NAME);
  await downloads.start(NAME);
  progress(platform, download(NAME, { state: 'failed' }));
  await downloads.retry(NAME);
  progress(platform, download(NAME, { state: 'offline' }));
  await downloads.retry(NAME);
  expect(platform.asked).toEqual([
    { type: 'pause_download', name: NAME },
    { type: 'download_model', name: NAME },
    { type: 'download_model', name: NAME },
    { type: 'retry_downloads' },
  ]);
});

test('a cancelled download is only paused until it cannot be undone any more', async () => {
  const { clock, downloads, platform, toasts } = await start({ downloads: [download(NAME)] });
  await downloads.cancel(NAME);
  expect([downloads.unfinished, toasts()]).toEqual([[], ['Cancelled the download of Model 4B.']]);
  progress(platform, download(NAME, { state: 'paused' }));
  expect(downloads.unfinished).toEqual([]);
  expect(platform.askedTypes()).toEqual(['pause_download']);
  clock.run();
  await settle();
  expect(platform.askedTypes()).toEqual(['pause_download', 'cancel_download']);
  expect([downloads.items, clock.waits]).toEqual([[], []]);
});

test('undo lets a cancelled download go on', async () => {
  const { act, clock, downloads, platform } = await start({ downloads: [download(NAME)] });
  await downloads.cancel(NAME);
  act('Cancelled the download of Model 4B.');
  await settle();
  clock.run();
  await settle();
  expect(platform.askedTypes()).toEqual(['pause_download', 'download_model']);
  expect(downloads.unfinished.map(({ name }) => name)).toEqual([NAME]);
});

test('undo leaves a download paused that was, and command Z does the same', async () => {
  const { app, clock, downloads, platform } = await start({ downloads: [download(NAME, { state: 'paused' })] });
  await downloads.cancel(NAME);
  expect(app.undo.undo()).toBe(true);
  clock.run();
  await settle();
  expect(platform.asked).toEqual([]);
  expect(downloads.unfinished).toHaveLength(1);
});

test('a download that is asked for again while it is being cancelled goes on', async () => {
  const { clock, downloads, platform } = await start({ downloads: [download(NAME)] });
  await downloads.cancel(NAME);
  await downloads.start(NAME);
  clock.run();
  expect(platform.askedTypes()).toEqual(['pause_download', 'download_model']);
  expect(downloads.get(NAME)).toBeDefined();
});

test('a download that cannot begin says why, once', async () => {
  const { downloads, platform, toasts } = await start();
  platform.answers.download_model = new CallError('no_space', 'The disk has no room for it.');
  expect(await downloads.start(NAME)).toBe(false);
  expect([toasts(), downloads.isAsked(NAME)]).toEqual([['The disk has no room for it.'], false]);
});

test('the first model is loaded by itself once it has been checked, and the message field takes the focus', async () => {
  const { app, platform, toasts } = await start({ downloads: [download(NAME)] });
  const before = app.chat.numFocusRequests;
  progress(platform, download(NAME, { state: 'done' }));
  await settle();
  platform.emit({ type: 'models', models: [model(NAME, { is_being_checked: true })] });
  await settle();
  expect(platform.asked).toEqual([]);
  platform.emit({ type: 'models', models: [model(NAME)] });
  await settle();
  expect(platform.asked).toEqual([{ type: 'load_model', name: NAME }]);
  expect([app.chat.numFocusRequests - before, toasts()]).toEqual([1, []]);
});

test('a further model is offered, and starting a chat loads it', async () => {
  const { act, app, platform, toasts } = await start({ models: [model('other')], downloads: [download(NAME)] });
  platform.asked.length = 0;
  platform.emit({ type: 'models', models: [model('other'), model(NAME)] });
  progress(platform, download(NAME, { state: 'done' }));
  expect([toasts(), platform.asked]).toEqual([['Model 4B is ready'], []]);
  app.navigation.go('saved');
  act('Model 4B is ready');
  await settle();
  expect(platform.asked).toEqual([{ type: 'load_model', name: NAME }]);
  expect(app.navigation.page).toBe('chat');
});

test('a model that came and cannot be loaded says so', async () => {
  const { platform, toasts } = await start({ downloads: [download(NAME)] });
  progress(platform, download(NAME, { state: 'done' }));
  platform.emit({ type: 'models', models: [model(NAME, problem('unsupported', 'mamba is unknown'))] });
  expect(toasts()).toEqual([
    'Model 4B was downloaded and cannot be loaded. This version of Cairn cannot run it: mamba is unknown.',
  ]);
});

test('what was done before the window was opened is no news', async () => {
  const { platform, toasts } = await start({ models: [model(NAME)], downloads: [download(NAME, { state: 'done' })] });
  progress(platform, download(NAME, { state: 'done' }));
  expect([toasts(), platform.asked]).toEqual([[], []]);
});

test('an imported model is announced, and loaded if it is the first', async () => {
  const { app, platform, toasts } = await start();
  platform.emit({ type: 'model_import', import: { file_name: 'a.gguf', bytes: 5, total_bytes: 10, choices: [] } });
  platform.emit({ type: 'model_import', import: { file_name: 'a.gguf', bytes: 10, total_bytes: 10, choices: [] } });
  platform.emit({ type: 'model_import', import: null });
  expect([toasts(), app.modelImport.current]).toEqual([['Imported “a.gguf”.'], null]);
  platform.emit({ type: 'models', models: [model('a')] });
  await settle();
  expect(platform.asked).toEqual([{ type: 'load_model', name: 'a' }]);
});

test('a window that is opened during an import shows it, and its own one ends with a chat to start', async () => {
  const running = { file_name: 'a.gguf', bytes: 5, total_bytes: 10, choices: [] };
  const { act, app, platform, toasts } = await start({ model_import: running });
  expect(app.modelImport.current).toEqual(running);
  const imported = gate<ImportedModel | null>();
  platform.chooseModelFile = () => imported.promise;
  const done = app.modelImport.choose();
  platform.emit({ type: 'model_import', import: { ...running, bytes: 10 } });
  platform.emit({ type: 'model_import', import: null });
  platform.emit({ type: 'models', models: [model('owner/model'), model('a')] });
  const lost = { num_tensors: 30, relative_error: 0.0034, perplexity: null };
  imported.open({ name: 'a', rounded_weights: lost, has_chat_template: true });
  await done;
  const words =
    'Imported “a.gguf”. 30 tensors had to be rounded: the weights differ from the file’s by 0.34% on average.';
  expect(toasts()).toEqual([words]);
  act(words);
  await settle();
  expect(platform.asked).toContainEqual({ type: 'load_model', name: 'a' });
});

const rounded = (form: RoundingForm, change: Partial<RoundingChoice> = {}): RoundingChoice => ({
  form,
  is_proposed: form === 'bits8',
  bytes: 1e9,
  memory: null,
  relative_error: 0.01,
  ...change,
});

test('the window that imports a file asks what its weights are rounded to, and goes on with the answer', async () => {
  const { app, platform, toasts } = await start();
  const imported = gate<ImportedModel | null>();
  platform.chooseModelFile = () => imported.promise;
  const done = app.modelImport.choose();
  const running = { file_name: 'a.gguf', bytes: 0, total_bytes: 0, choices: [rounded('bits4'), rounded('bits8')] };
  platform.emit({ type: 'model_import', import: running });
  expect([app.modelImport.isAsked, app.isCovered]).toEqual([true, true]);
  await app.modelImport.round('bits4');
  app.modelImport.decline();
  expect([app.modelImport.isAsked, platform.asked]).toEqual([false, [{ type: 'choose_rounding', form: 'bits4' }]]);
  platform.emit({ type: 'model_import', import: { ...running, choices: [] } });
  platform.emit({ type: 'model_import', import: null });
  imported.open({ name: 'a', rounded_weights: null, has_chat_template: true });
  await done;
  expect(toasts()).toEqual(['Imported “a.gguf”.']);
});

test('who does not choose has no import, and another window is not asked unbidden', async () => {
  const { app, platform } = await start();
  const running = { file_name: 'a.gguf', bytes: 0, total_bytes: 0, choices: [rounded('bits8')] };
  platform.emit({ type: 'model_import', import: running });
  expect(app.modelImport.isAsked).toBe(false);
  app.modelImport.isAsked = true;
  app.modelImport.decline();
  expect([app.modelImport.isAsked, platform.asked]).toEqual([false, [{ type: 'cancel_model_import' }]]);
  // Whoever chooses, and wherever: the question goes everywhere.
  app.modelImport.isAsked = true;
  platform.emit({ type: 'model_import', import: { ...running, choices: [] } });
  expect(app.modelImport.isAsked).toBe(false);
});

test('a dropped file is named although the core has said nothing of it yet', async () => {
  const { app, platform, toasts } = await start();
  platform.emit({ type: 'model_import', import: { file_name: 'other.gguf', bytes: 10, total_bytes: 10, choices: [] } });
  platform.emit({ type: 'model_import', import: null });
  platform.importModel = async () => ({ name: 'b', rounded_weights: null, has_chat_template: true });
  void app.dropFiles([new File(['GGUF'], 'b.gguf')], null);
  await settle();
  expect(toasts()).toContain('Imported “b.gguf”.');
});

test('a model without a chat template is announced as one, and no chat is offered', async () => {
  const { app, platform } = await start();
  platform.importModel = async () => ({ name: 'b', rounded_weights: null, has_chat_template: false });
  void app.dropFiles([new File(['GGUF'], 'b.gguf')], null);
  await settle();
  const toast = app.toasts.items.find((toast) => toast.text.startsWith('Imported “b.gguf”. It has no chat template'));
  expect([toast?.tone, toast?.actions]).toEqual(['warning', []]);
});

test('a cancelled import is not announced, and its transfer stops', async () => {
  const { app, platform, toasts } = await start();
  let signal: AbortSignal | undefined;
  platform.importModel = (_, given) => {
    signal = given;
    return new Promise((_, reject) => given.addEventListener('abort', () => reject(new Error('stopped'))));
  };
  void app.dropFiles([new File(['GGUF'], 'a.GGUF')], null);
  platform.emit({ type: 'model_import', import: { file_name: 'a.GGUF', bytes: 10, total_bytes: 10, choices: [] } });
  await app.modelImport.cancel();
  platform.emit({ type: 'model_import', import: null });
  expect([signal?.aborted, toasts(), platform.asked]).toEqual([true, [], [{ type: 'cancel_model_import' }]]);
});

test('a folder that is dropped on a page of a browser is explained', async () => {
  const { app, platform, toasts } = await start();
  const entry = (name: string) => ({
    name,
    isFile: true,
    isDirectory: false,
    file: (done: (file: File) => void) => done(new File(['x'], name)),
  });
  const rest = [[entry('config.json'), entry('model.safetensors')], []];
  const createReader = () => ({ readEntries: (done: (entries: unknown) => void) => done(rest.shift()) });
  const folder = { name: 'folder', isDirectory: true, isFile: false, createReader };
  await app.dropFiles([], folder as unknown as FileSystemDirectoryEntry);
  expect([toasts(), platform.asked]).toEqual([
    ['A folder can be added in the app only. Drop a GGUF file instead.'],
    [],
  ]);
});

test('what rounding costs an imported model is told once, when it was measured', async () => {
  const { app, platform, toasts } = await start();
  const rounded = (perplexity: PerplexityChange | null) => ({
    facts: facts({ rounded_weights: { num_tensors: 30, relative_error: 0.0034, perplexity } }),
  });
  const list = (change: Partial<Model>) => platform.emit({ type: 'models', models: [model('o/a', change)] });
  list({ ...rounded(null), is_being_measured: true });
  await app.models.stopMeasuring('o/a');
  expect(platform.asked).toEqual([{ type: 'cancel_model_measurement', name: 'o/a' }]);
  list(rounded(null));
  expect(toasts()).toEqual([]);

  list({ ...rounded(null), is_being_measured: true });
  const measured = rounded({ before: 12.1, after: 12.4 });
  list(measured);
  list(measured);
  const words = 'Answers about as well as the original: perplexity 12.1 → 12.4 on a short text.';
  expect(toasts()).toEqual([`Compared “a” with its original. ${words}`]);
});

test('a perplexity that says nothing any more is not written in full', () => {
  expect(strings.models.import.perplexity({ before: 1e6, after: 1e177 })).toBe(
    'Answers worse than the original: perplexity 1,000,000 → more than 1,000,000 on a short text.',
  );
});

test('the cost of rounding is said in four degrees', () => {
  const degree = (after: number) => strings.models.import.perplexity({ before: 10, after }).split(':')[0];
  expect([9.9, 10.04, 10.2, 11, 14].map(degree)).toEqual([
    'Answers as well as the original',
    'Answers as well as the original',
    'Answers about as well as the original',
    'Answers a little less well than the original',
    'Answers worse than the original',
  ]);
});
