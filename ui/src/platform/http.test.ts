// The HTTP platform: requests, frames, failures, and reconnecting after the connection broke.
import { expect, test, vi } from 'vitest';
import { cacheFile, preview } from '../testing/fake';
import { HttpPlatform, reconnectWait } from './http';
import { cacheFileName, CallError, type Connection } from './platform';
import type { Event } from './wire';

const encoder = new TextEncoder();

function streamOf(...chunks: (string | Uint8Array)[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(typeof chunk === 'string' ? encoder.encode(chunk) : chunk);
      controller.close();
    },
  });
}

function answer(status: number, ...chunks: (string | Uint8Array)[]): Response {
  return new Response(streamOf(...chunks), { status });
}

const done = '{"reply":{"type":"done"}}\n';
const notice = (text: string) => JSON.stringify({ event: { type: 'notice', level: 'info', text } }) + '\n';

async function callWith(response: Response | Error): Promise<string> {
  const platform = new HttpPlatform('key', {
    fetch: async () => {
      if (response instanceof Error) throw response;
      return response;
    },
  });
  return platform.call({ type: 'get_status' }).then(
    (reply) => `reply ${reply.type}`,
    (error: unknown) => (error instanceof CallError ? `${error.code}: ${error.message}` : `other ${error}`),
  );
}

test('a call sends the command with the token and takes the first frame', async () => {
  let asked: [RequestInfo | URL, RequestInit | undefined] | undefined;
  const platform = new HttpPlatform('key', {
    fetch: async (input, init) => {
      asked = [input, init];
      return answer(200, done);
    },
  });
  expect(await platform.call({ type: 'load_model', name: 'm' })).toEqual({ type: 'done' });
  expect(asked?.[0]).toBe('/api/call');
  expect(asked?.[1]).toMatchObject({
    method: 'POST',
    headers: { authorization: 'Bearer key', 'content-type': 'application/json' },
    body: '{"type":"load_model","name":"m"}',
  });
});

test.each<[string, () => Response | Error, string]>([
  ['a reply', () => answer(200, done), 'reply done'],
  ['a reply in pieces', () => answer(200, '{"reply":{"ty', 'pe":"done"}}', '\n'), 'reply done'],
  ['blank lines first', () => answer(200, '\n\r\n', done), 'reply done'],
  ['a failure', () => answer(200, '{"failure":{"code":"no_model","message":"None."}}\n'), 'no_model: None.'],
  [
    'a failure with its status',
    () => answer(404, '{"failure":{"code":"not_found","message":"Gone."}}\n'),
    'not_found: Gone.',
  ],
  ['a refusal without frames', () => answer(401), 'unreachable: Cairn answered with status 401. Try again.'],
  [
    'a page instead of frames',
    () => answer(502, '<html>\n'),
    'unreachable: Cairn answered with status 502. Try again.',
  ],
  [
    'an answer cut short',
    () => answer(200, '{"reply":{"type":"done"}}'),
    'unreachable: Cairn’s answer was incomplete. Try again.',
  ],
  ['no server', () => new TypeError('failed'), 'unreachable: Cairn does not answer. Check that it is still running.'],
])('a call answered with %s', async (_, response, expected) => {
  expect(await callWith(response())).toBe(expected);
});

/** Subscribes, plays one response after the other, and returns what was heard; the last state is always final. */
async function listen(token: string | null, responses: (Response | Error)[], until: Connection = 'refused') {
  const heard: string[] = [];
  const waits: number[] = [];
  await new Promise<void>((resolve) => {
    const platform = new HttpPlatform(token, {
      fetch: async () => {
        const next = responses.shift() ?? answer(401);
        if (next instanceof Error) throw next;
        return next;
      },
      wait: async (milliseconds) => void waits.push(milliseconds),
    });
    platform.subscribe(
      (event: Event) => heard.push(event.type === 'notice' ? event.text : event.type),
      (state) => {
        heard.push(state);
        if (state === until) resolve();
      },
    );
  });
  return { heard, waits };
}

test('events come in order, split wherever the network likes, also inside a character', async () => {
  const bytes = encoder.encode(done + notice('Grüße 🪨') + notice('two'));
  const cut = bytes.indexOf(0xf0) + 2;
  const { heard } = await listen('key', [answer(200, bytes.slice(0, cut), bytes.slice(cut))]);
  expect(heard).toEqual(['connecting', 'open', 'Grüße 🪨', 'two', 'reconnecting', 'refused']);
});

test('a broken connection is tried again, more slowly each time until it holds', async () => {
  const broken = new TypeError('failed');
  const { heard, waits } = await listen('key', [
    broken,
    answer(503),
    broken,
    answer(200, done, notice('back')),
    broken,
  ]);
  expect(heard).toEqual([
    'connecting',
    'reconnecting',
    'reconnecting',
    'reconnecting',
    'open',
    'back',
    'reconnecting',
    'reconnecting',
    'refused',
  ]);
  expect(waits).toEqual([250, 500, 1000, 250, 500]);
});

test('a line that is no frame ends the connection, not the subscription', async () => {
  const { heard } = await listen('key', [answer(200, done, 'nonsense\n'), answer(200, done)]);
  expect(heard).toEqual(['connecting', 'open', 'reconnecting', 'open', 'reconnecting', 'refused']);
});

test('without a token nothing is asked', async () => {
  expect((await listen(null, [])).heard).toEqual(['refused']);
});

test('after stopping nothing is heard', async () => {
  let push: ReadableStreamDefaultController<Uint8Array> | undefined;
  const body = new ReadableStream<Uint8Array>({ start: (controller) => void (push = controller) });
  const heard: string[] = [];
  const platform = new HttpPlatform('key', { fetch: async () => new Response(body) });
  await new Promise<void>((resolve) => {
    const stop = platform.subscribe(
      (event) => heard.push(event.type),
      (state) => {
        if (state === 'connecting') push?.enqueue(encoder.encode(done));
        if (state !== 'open') return;
        stop();
        push?.enqueue(encoder.encode(notice('late')));
        push?.close();
        resolve();
      },
    );
  });
  await body.cancel().catch(() => undefined);
  expect(heard).toEqual([]);
});

test('a prompt cache is saved under its name', async () => {
  const saved: [string, string][] = [];
  let asked: [RequestInfo | URL, RequestInit | undefined] | undefined;
  const platform = new HttpPlatform('key', {
    fetch: async (input, init) => {
      asked = [input, init];
      return answer(200, 'by', 'tes');
    },
    save: (content, name) => void content.text().then((text) => saved.push([text, name])),
  });
  expect(await platform.exportCache({ type: 'named', id: 'a&b' }, '0.30', 'Notes.safetensors')).toBe(true);
  await vi.waitFor(() => expect(saved).toEqual([['bytes', 'Notes.safetensors']]), { timeout: 20_000 });
  expect(asked?.[0]).toBe('/api/cache/export?type=named&id=a%26b&layout=0.30');
  expect(asked?.[1]).toMatchObject({ method: 'GET', headers: { authorization: 'Bearer key' } });
});

test('answers are saved under their name, with the mark that spreadsheets need', async () => {
  const saved: [number[], string][] = [];
  const reply = JSON.stringify({ reply: { type: 'csv', text: '\u{feff}a' } });
  const platform = new HttpPlatform('key', {
    fetch: async () => answer(200, `${reply}\n`),
    save: (content, name) => void content.arrayBuffer().then((bytes) => saved.push([[...new Uint8Array(bytes)], name])),
  });
  expect(await platform.exportJob('1', 'Stones.csv')).toBe(true);
  await vi.waitFor(() => expect(saved).toEqual([[[0xef, 0xbb, 0xbf, 0x61], 'Stones.csv']]), { timeout: 20_000 });
});

test('code is saved without a request, and as nothing that a browser would open', async () => {
  const saved: [string, string][] = [];
  const platform = new HttpPlatform('key', {
    fetch: async () => Promise.reject(new Error('asked')),
    save: ({ type }, name) => void saved.push([type, name]),
  });
  expect(await platform.saveText('<script>', 'Page.html')).toBe(true);
  expect(saved).toEqual([['application/octet-stream', 'Page.html']]);
});

test('a file is sent as it is, with its name', async () => {
  const file = cacheFile('Grüße.safetensors');
  let asked: [RequestInfo | URL, RequestInit | undefined] | undefined;
  const heard: string[] = [];
  const platform = new HttpPlatform('key', {
    fetch: async (input, init) => {
      asked = [input, init];
      return answer(200, JSON.stringify({ reply: { type: 'import_preview', preview: preview() } }) + '\n');
    },
    pick: async () => file,
  });
  expect(await platform.importCache(undefined, { onChosen: (name) => heard.push(name) })).toEqual(preview());
  expect(asked?.[0]).toBe('/api/cache/import');
  expect(asked?.[1]).toMatchObject({
    method: 'POST',
    headers: { authorization: 'Bearer key', 'x-file-name': 'Gr%C3%BC%C3%9Fe.safetensors' },
    body: file,
  });
  expect(heard).toEqual(['Grüße.safetensors']);
});

test('without a file nothing is sent', async () => {
  const platform = new HttpPlatform('key', {
    fetch: async () => {
      throw new Error('asked');
    },
    pick: async () => null,
  });
  expect(await platform.importCache()).toBeNull();
});

test('a file on its way is stopped', async () => {
  const stop = new AbortController();
  const platform = new HttpPlatform('key', {
    fetch: (_, init) =>
      new Promise((_, reject) => {
        init?.signal?.addEventListener('abort', () => reject(new DOMException('stopped', 'AbortError')));
        stop.abort();
      }),
  });
  expect(await platform.importCache(cacheFile(), { signal: stop.signal })).toBeNull();
});

const begins = (...bytes: number[]) => new Uint8Array(bytes);
const rest = (length: number) => ' '.repeat(length);
const other = '“a.safetensors” isn’t a Cairn prompt cache, or it is damaged.';

test.each<[name: string, parts: BlobPart[], fileName: string, why: string | null]>([
  ['the shortest header', [begins(2, 0, 0, 0, 0, 0, 0, 0), '{}'], 'A.SafeTensors', null],
  ['a longer header', [begins(44, 1, 0, 0, 0, 0, 0, 0), rest(300)], 'a.safetensors', null],
  [
    'another name',
    [rest(9)],
    'film.mp4',
    '“film.mp4” isn’t a Cairn prompt cache. Choose a file whose name ends in .safetensors.',
  ],
  ['nothing in it', [], 'a.safetensors', other],
  ['seven bytes', [begins(2, 0, 0, 0, 0, 0, 0)], 'a.safetensors', other],
  ['no header', [begins(0, 0, 0, 0, 0, 0, 0, 0), rest(300)], 'a.safetensors', other],
  ['a header longer than the file', [begins(45, 1, 0, 0, 0, 0, 0, 0), rest(300)], 'a.safetensors', other],
  ['a header longer than any', [begins(1, 0, 128, 0, 0, 0, 0, 0), rest(2 ** 23 + 1)], 'a.safetensors', other],
  ['text', [rest(300)], 'a.safetensors', other],
])('a file with %s is looked at before it is sent', async (_, parts, fileName, why) => {
  let isSent = false;
  const platform = new HttpPlatform('key', {
    fetch: async () => {
      isSent = true;
      return answer(200, JSON.stringify({ reply: { type: 'import_preview', preview: preview() } }) + '\n');
    },
  });
  const found = await platform.importCache(new File(parts, fileName)).catch((error: unknown) => error);
  expect([isSent, found]).toEqual(why === null ? [true, preview()] : [false, new CallError('invalid', why)]);
});

test('a file that is gone is told', async () => {
  const file = cacheFile();
  file.slice = () => Object.assign(new Blob(), { arrayBuffer: () => Promise.reject(new Error('gone')) });
  const platform = new HttpPlatform('key', { fetch: () => expect.unreachable() });
  await expect(platform.importCache(file)).rejects.toThrow('“file.safetensors” could not be read.');
});

test.each<[string, Response | Error, string]>([
  ['a failure', answer(404, '{"failure":{"code":"not_found","message":"Gone."}}\n'), 'not_found: Gone.'],
  ['a refusal', answer(413), 'unreachable: Cairn answered with status 413. Try again.'],
  ['no server', new TypeError('failed'), 'unreachable: Cairn does not answer. Check that it is still running.'],
])('files answered with %s', async (_, response, expected) => {
  const fetch = async () => {
    if (response instanceof Error) throw response;
    return response.clone();
  };
  const platform = new HttpPlatform('key', { fetch, save: () => expect.unreachable() });
  const why = (error: unknown) => (error instanceof CallError ? `${error.code}: ${error.message}` : `other ${error}`);
  expect(await platform.exportCache({ type: 'named', id: 'a' }, '0.32', 'n').catch(why)).toBe(expected);
  expect(await platform.importCache(cacheFile()).catch(why)).toBe(expected);
});

test.each<[name: string, expected: string]>([
  ['Notes', 'Notes.safetensors'],
  ['../../etc/passwd', 'etc passwd.safetensors'],
  ['a\\b:c*d?e"f<g>h|i\nj', 'a b c d e f g h i j.safetensors'],
  [' . ', 'prompt cache.safetensors'],
  ['🪨'.repeat(100), `${'🪨'.repeat(60)}.safetensors`],
])('the file of %j', (name, expected) => {
  expect(cacheFileName(name)).toBe(expected);
});

test('waits double up to five seconds', () => {
  expect([0, 1, 2, 3, 4, 5, 1000].map(reconnectWait)).toEqual([250, 500, 1000, 2000, 4000, 5000, 5000]);
});

test('a model is sent as it is, with its name and the token', async () => {
  const asked: [string, RequestInit | undefined][] = [];
  const platform = new HttpPlatform('key', {
    fetch: async (input, init) => {
      asked.push([String(input), init]);
      return answer(
        200,
        '{"reply":{"type":"model_imported","model":{"name":"Über 4B","rounded_weights":null,"has_chat_template":true}}}\n',
      );
    },
  });
  const file = new File(['GGUF'], 'Über 4B.gguf');
  expect(await platform.importModel(file, new AbortController().signal)).toEqual({
    name: 'Über 4B',
    rounded_weights: null,
    has_chat_template: true,
  });
  expect(asked[0]?.[0]).toBe('/api/models/import');
  const headers = { authorization: 'Bearer key', 'x-file-name': '%C3%9Cber%204B.gguf' };
  expect(asked[0]?.[1]).toMatchObject({ method: 'POST', body: file, headers });
});

test('a model that is refused says why; one that is no longer wanted says nothing', async () => {
  const refused = new HttpPlatform('key', {
    fetch: async () => answer(200, '{"failure":{"code":"invalid","message":"It is no GGUF file."}}\n'),
  });
  const file = new File(['x'], 'x.gguf');
  await expect(refused.importModel(file, new AbortController().signal)).rejects.toMatchObject({
    code: 'invalid',
    message: 'It is no GGUF file.',
  });
  const stop = new AbortController();
  const stopped = new HttpPlatform('key', {
    fetch: async () => {
      stop.abort();
      throw new DOMException('stopped', 'AbortError');
    },
  });
  await expect(stopped.importModel(file, stop.signal)).resolves.toBeNull();
});
