// A core behind the loopback server: POST /api/call, answered with newline-delimited frames; files have routes of their own.
import { pickChatFile, pickFile, pickFiles, saveFile, whyNoCacheFile } from './files';
import { readFrames } from './frames';
import { CallError, type Connection, type ImportOptions, type Platform } from './platform';
import type {
  CacheFileLayout,
  CacheSource,
  ChatFileFormat,
  ChatsImported,
  Command,
  Event,
  ImportedModel,
  ImportPreview,
  Reply,
} from './wire';
import { ofFile, type SourceFile } from '../documents/sources';
import { strings } from '../text';

export interface HttpOptions {
  fetch?: typeof fetch;
  /** Waits before the next try to reconnect. */
  wait?: (milliseconds: number, signal: AbortSignal) => Promise<void>;
  /** Asks for a file; null: the user cancelled. */
  pick?: () => Promise<File | null>;
  /** Hands a file to the browser's downloads. */
  save?: (content: Blob, name: string) => void;
}

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;

/** How long to wait before try number `attempt` (counted from 0): doubles up to five seconds. */
export function reconnectWait(attempt: number): number {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(attempt, 16));
}

/** The request that sends a file with its name. */
function upload(file: File, signal?: AbortSignal): RequestInit {
  const headers = { 'content-type': 'application/octet-stream', 'x-file-name': encodeURIComponent(file.name) };
  return { method: 'POST', headers, body: file, signal: signal ?? null };
}

export class HttpPlatform implements Platform {
  readonly #token: string | null;
  readonly #fetch: typeof fetch;
  readonly #wait: NonNullable<HttpOptions['wait']>;
  readonly #pick: NonNullable<HttpOptions['pick']>;
  readonly #pickChats: NonNullable<HttpOptions['pick']>;
  readonly #save: NonNullable<HttpOptions['save']>;

  constructor(token: string | null, options: HttpOptions = {}) {
    this.#token = token;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.#wait = options.wait ?? pause;
    this.#pick = options.pick ?? pickFile;
    this.#pickChats = options.pick ?? pickChatFile;
    this.#save = options.save ?? saveFile;
  }

  async call(command: Command): Promise<Reply> {
    return replyOf(await asked(this.#post(command)));
  }

  async exportCache(source: CacheSource, layout: CacheFileLayout, suggestedName: string): Promise<boolean> {
    const query = new URLSearchParams({ type: source.type, id: source.id, layout });
    return this.#download(`/api/cache/export?${query}`, suggestedName);
  }

  async exportChats(ids: string[], format: ChatFileFormat, suggestedName: string): Promise<boolean> {
    const query = new URLSearchParams({ ids: ids.join(',') || 'all', format });
    // The ids of many chats are too long for an address.
    return this.#download('/api/chats/export', suggestedName, { method: 'POST', body: query.toString() });
  }

  async importChats(given?: File, onChosen?: (name: string) => void): Promise<ChatsImported | null> {
    const file = given ?? (await this.#pickChats());
    if (!file) return null;
    onChosen?.(file.name);
    const reply = await replyOf(await asked(this.#send('/api/chats/import', upload(file))));
    if (reply.type !== 'chats_imported') throw new CallError('unreachable', strings.connection.unexpectedReply);
    return reply.imported;
  }

  async #download(address: string, name: string, request: RequestInit = { method: 'GET' }): Promise<boolean> {
    const response = await asked(this.#send(address, request));
    if (!response.ok) await replyOf(response);
    const content = await response.blob().catch(() => {
      throw new CallError('unreachable', strings.connection.truncatedFile);
    });
    this.#save(content, name);
    return true;
  }

  async exportJob(id: string, suggestedName: string): Promise<boolean> {
    const reply = await this.call({ type: 'export_job', id });
    if (reply.type !== 'csv') throw new CallError('unreachable', strings.connection.unexpectedReply);
    this.#save(new Blob([reply.text], { type: 'text/csv' }), suggestedName);
    return true;
  }

  async chooseDocuments(): Promise<SourceFile[]> {
    return (await pickFiles()).map((file) => ofFile(file));
  }

  async saveText(text: string, suggestedName: string): Promise<boolean> {
    // No type that a browser would open instead of saving it.
    this.#save(new Blob([text], { type: 'application/octet-stream' }), suggestedName);
    return true;
  }

  async importCache(given?: File, { onChosen, signal }: ImportOptions = {}): Promise<ImportPreview | null> {
    const file = given ?? (await this.#pick());
    if (!file) return null;
    onChosen?.(file.name);
    // The core would refuse it as well, but only after all of it has been sent.
    const problem = await whyNoCacheFile(file);
    if (problem !== null) throw new CallError('invalid', problem);
    try {
      const reply = await replyOf(await asked(this.#send('/api/cache/import', upload(file, signal))));
      if (reply.type !== 'import_preview') throw new Error(strings.connection.unexpectedReply);
      return reply.preview;
    } catch (error) {
      if (signal?.aborted) return null;
      throw error;
    }
  }

  async importModel(file: File, signal: AbortSignal): Promise<ImportedModel | null> {
    try {
      const reply = await replyOf(await asked(this.#send('/api/models/import', upload(file, signal))));
      return reply.type === 'model_imported' ? reply.model : null;
    } catch (error) {
      if (signal.aborted) return null;
      throw error;
    }
  }

  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void {
    const stop = new AbortController();
    void this.#listen(stop.signal, onEvent, onState);
    return () => stop.abort();
  }

  async #listen(signal: AbortSignal, onEvent: (event: Event) => void, onState: (state: Connection) => void) {
    if (!this.#token) return onState('refused');
    onState('connecting');
    for (let attempt = 0; !signal.aborted; attempt++) {
      try {
        const response = await this.#post({ type: 'subscribe' }, signal);
        if (response.status === 401 || response.status === 403) return onState('refused');
        if (response.ok && response.body) {
          for await (const frame of readFrames(response.body)) {
            if (signal.aborted) return;
            if ('reply' in frame) {
              attempt = 0;
              onState('open');
            } else if ('event' in frame) onEvent(frame.event);
            else break;
          }
        }
      } catch {
        // The connection broke or carried no frames: both end in another try.
      }
      if (signal.aborted) return;
      onState('reconnecting');
      await this.#wait(reconnectWait(attempt), signal);
    }
  }

  #post(command: Command, signal?: AbortSignal): Promise<Response> {
    const headers = { 'content-type': 'application/json' };
    return this.#send('/api/call', { method: 'POST', headers, body: JSON.stringify(command), signal: signal ?? null });
  }

  #send(address: string, init: RequestInit): Promise<Response> {
    const headers = { ...init.headers, authorization: `Bearer ${this.#token ?? ''}` };
    return this.#fetch(address, { ...init, headers, credentials: 'omit', cache: 'no-store' });
  }
}

async function asked(response: Promise<Response>): Promise<Response> {
  try {
    return await response;
  } catch {
    throw new CallError('unreachable', strings.connection.noAnswer);
  }
}

/** The one reply of an answer. Anything else rejects with a {@link CallError}. */
async function replyOf(response: Response): Promise<Reply> {
  if (response.body) {
    try {
      for await (const frame of readFrames(response.body)) {
        if ('reply' in frame) return frame.reply;
        if ('failure' in frame) throw CallError.of(frame.failure);
      }
    } catch (error) {
      if (error instanceof CallError) throw error;
      // Neither frames nor JSON: the status below says more than the parser would.
    }
  }
  const { connection } = strings;
  throw new CallError('unreachable', response.ok ? connection.truncatedReply : connection.status(response.status));
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
