// The desktop platform: one command, with replies on its channel.
import { emit } from '@tauri-apps/api/event';
import { clearMocks, mockIPC, mockWindows } from '@tauri-apps/api/mocks';
import { afterEach, expect, test, vi } from 'vitest';
import { preview } from '../testing/fake';
import type { Dropped } from './platform';
import { TauriPlatform } from './tauri';
import type { CacheSource, Command, Frame } from './wire';

afterEach(() => {
  clearMocks();
  vi.useRealTimers();
});

interface Asked {
  command: Command;
  channel: { onmessage: (frame: Frame) => void };
}

/** Answers every call by `answer`, which may send frames or throw. */
function shell(answer: (asked: Asked) => void): string[] {
  const names: string[] = [];
  mockIPC((name, payload) => {
    const asked = payload as unknown as Asked;
    names.push(`${name} ${asked.command.type}`);
    answer(asked);
  });
  return names;
}

test('a reply on the channel answers the call', async () => {
  const names = shell(({ channel }) => channel.onmessage({ reply: { type: 'done' } }));
  expect(await new TauriPlatform().call({ type: 'list_models' })).toEqual({ type: 'done' });
  expect(names).toEqual(['call list_models']);
});

test.each<[name: string, answer: (asked: Asked) => void, code: string, message: string]>([
  ['a failure', ({ channel }) => channel.onmessage({ failure: { code: 'engine', message: 'No.' } }), 'engine', 'No.'],
  [
    'a refusal by the shell',
    () => {
      throw new Error('not allowed');
    },
    'unreachable',
    'not allowed',
  ],
])('%s rejects the call', async (_, answer, code, message) => {
  shell(answer);
  await expect(new TauriPlatform().call({ type: 'list_models' })).rejects.toMatchObject({ code, message });
});

test('events come until the subscription ends; a failed one is tried again', async () => {
  vi.useFakeTimers();
  const channels: Asked['channel'][] = [];
  shell(({ channel }) => {
    channels.push(channel);
    channel.onmessage(
      channels.length === 1 ? { failure: { code: 'storage', message: 'Not yet.' } } : { reply: { type: 'done' } },
    );
  });
  const heard: string[] = [];
  const stop = new TauriPlatform().subscribe(
    (event) => heard.push(event.type),
    (state) => heard.push(state),
  );
  await vi.advanceTimersByTimeAsync(1100);
  channels[1]?.onmessage({ event: { type: 'models', models: [] } });
  stop();
  channels[1]?.onmessage({ event: { type: 'models', models: [] } });
  expect(heard).toEqual(['connecting', 'reconnecting', 'open', 'models']);
});

test('files are opened and saved by the shell', async () => {
  const asked: [string, unknown][] = [];
  mockIPC((name, payload) => {
    asked.push([name, payload]);
    return /^(export|save)/.test(name) ? false : preview();
  });
  const platform = new TauriPlatform();
  const source: CacheSource = { type: 'conversation', id: 'a' };
  expect(await platform.exportCache(source, '0.30', 'Notes.safetensors')).toBe(false);
  expect(await platform.exportJob('a', 'Stones.csv')).toBe(false);
  expect(await platform.saveText('x = 1', 'Stones.py')).toBe(false);
  expect(await platform.importCache()).toEqual(preview());
  expect(asked).toEqual([
    ['export_cache', { source, layout: '0.30', suggestedName: 'Notes.safetensors' }],
    ['export_job', { id: 'a', suggestedName: 'Stones.csv' }],
    ['save_text', { text: 'x = 1', suggestedName: 'Stones.py' }],
    ['import_cache', {}],
  ]);
});

test.each<[name: string, thrown: unknown, code: string, message: string]>([
  ['a failure', { code: 'storage', message: 'The disk is full.' }, 'storage', 'The disk is full.'],
  ['a refusal', 'not allowed', 'unreachable', 'not allowed'],
])('%s of the shell is told', async (_, thrown, code, message) => {
  mockIPC(() => {
    throw thrown;
  });
  await expect(new TauriPlatform().importCache()).rejects.toMatchObject({ code, message });
  await expect(new TauriPlatform().call({ type: 'get_status' })).rejects.toMatchObject({ code, message });
});

test('a dropped file is looked into, and hovering is told', async () => {
  mockWindows('main');
  const paths: unknown[] = [];
  mockIPC(
    (_, payload) => {
      paths.push(payload);
      return preview();
    },
    { shouldMockEvents: true },
  );
  const heard: unknown[] = [];
  new TauriPlatform().onFileDrop(
    (found) => heard.push(found.type === 'cache' && found.preview),
    (isOver) => heard.push(isOver),
  );
  // The shell is asked for one kind of event after the other.
  const until = (kind: string, isThere: () => boolean) =>
    vi.waitFor(
      async () => {
        await emit(`tauri://drag-${kind}`, { paths: ['/a.safetensors'], position: { x: 0, y: 0 } });
        expect(isThere()).toBe(true);
      },
      { timeout: 20_000 },
    );
  await until('enter', () => heard.at(-1) === true);
  await until('drop', () => paths.length > 0);
  expect(await heard.at(-1)).toEqual(preview());
  expect(heard.at(-2)).toBe(false);
  expect(paths[0]).toEqual({ path: '/a.safetensors' });
});

test.each<[path: string, command: string, dropped?: string[]]>([
  ['/a/Qwen3.gguf', 'import_model'],
  ['/a/notes.safetensors', 'import_cache'],
  // The first part takes the others with it, whichever is dropped first.
  ['/a/Big-00001-of-00002.gguf', 'import_model', ['/a/Big-00002-of-00002.gguf', '/a/Big-00001-of-00002.gguf']],
])('what is dropped is a model or a prompt cache: %s', async (path, command, dropped = [path]) => {
  mockWindows('main');
  const asked: unknown[] = [];
  mockIPC(
    (name, payload) => {
      asked.push([name, payload]);
      return true;
    },
    { shouldMockEvents: true },
  );
  new TauriPlatform().onFileDrop(
    () => undefined,
    () => undefined,
  );
  await vi.waitFor(
    async () => {
      await emit('tauri://drag-drop', { paths: dropped, position: { x: 0, y: 0 } });
      expect(asked).toContainEqual([command, { path }]);
    },
    { timeout: 20_000 },
  );
});

type Listed = { folder: string | null; is_model: boolean; files: object[]; is_cut: boolean };
const file = { path: '/a/letter.txt', name: 'letter.txt', bytes: 4 };

test.each<[what: string, path: string, listed: Partial<Listed>, head: string, type: string]>([
  ['a folder with a model', '/a/Qwen3-0.6B-4bit', { folder: 'Qwen3-0.6B-4bit', is_model: true }, '', 'model'],
  ['a folder with texts', '/a/notes', { folder: 'notes', files: [file] }, '', 'documents'],
  ['a text', '/a/letter.txt', { files: [file] }, '', 'documents'],
  ['an export of chats', '/a/chats.json', { files: [file] }, '{"format":"cairn-chats",', 'chats'],
  ['other data', '/a/stones.json', { files: [file] }, '{"stones":[', 'documents'],
])('what the shell lists decides: %s', async (_, path, change, head, type) => {
  mockWindows('main');
  const listed: Listed = { folder: null, is_model: false, files: [], is_cut: false, ...change };
  mockIPC(
    (command) => {
      if (command === 'list_dropped') return listed;
      return command === 'read_document' ? new TextEncoder().encode(head).buffer : null;
    },
    { shouldMockEvents: true },
  );
  const heard: Dropped[] = [];
  new TauriPlatform().onFileDrop(
    (dropped) => heard.push(dropped),
    () => undefined,
  );
  await vi.waitFor(
    async () => {
      await emit('tauri://drag-drop', { paths: [path], position: { x: 0, y: 0 } });
      expect(heard.length).toBeGreaterThan(0);
    },
    { timeout: 20_000 },
  );
  expect(heard[0]?.type).toBe(type);
  if (heard[0]?.type !== 'documents') return;
  const { folder, files } = await heard[0].dropped;
  expect([folder, files.map(({ name, bytes }) => [name, bytes])]).toEqual([listed.folder, [['letter.txt', 4]]]);
});

test('files are chosen by the shell, and read only when they are wanted', async () => {
  const asked: unknown[] = [];
  mockIPC((command, values) => {
    asked.push([command, values]);
    return command === 'choose_documents' ? [file] : new TextEncoder().encode('text').buffer;
  });
  const [chosen] = await new TauriPlatform().chooseDocuments();
  expect(asked).toEqual([['choose_documents', {}]]);
  expect(new TextDecoder().decode(await chosen?.read())).toBe('text');
  expect(asked.at(-1)).toEqual(['read_document', { path: '/a/letter.txt' }]);
});

test('the shell asks for models and folders', async () => {
  const asked: unknown[] = [];
  mockIPC((command, values) => {
    asked.push([command, values]);
    return command === 'choose_folder' ? '/models' : 'Qwen3';
  });
  const platform = new TauriPlatform();
  expect([await platform.chooseModelFile(), await platform.chooseFolder()]).toEqual(['Qwen3', '/models']);
  expect(asked).toEqual([
    ['import_model', {}],
    ['choose_folder', {}],
  ]);
});
