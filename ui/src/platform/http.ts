// The door to a core behind the loopback server: POST /api/call, answered with newline-delimited frames.
import { readFrames } from './frames';
import { CallError, type Connection, type Platform } from './platform';
import type { Command, Event, Reply } from './wire';

export interface HttpOptions {
  fetch?: typeof fetch;
  /** Waits before the next try to reconnect. */
  wait?: (milliseconds: number, signal: AbortSignal) => Promise<void>;
}

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;

/** How long to wait before try number `attempt` (counted from 0): doubles up to five seconds. */
export function reconnectWait(attempt: number): number {
  return Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(attempt, 16));
}

export class HttpPlatform implements Platform {
  readonly #token: string | null;
  readonly #fetch: typeof fetch;
  readonly #wait: NonNullable<HttpOptions['wait']>;

  constructor(token: string | null, options: HttpOptions = {}) {
    this.#token = token;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.#wait = options.wait ?? pause;
  }

  async call(command: Command): Promise<Reply> {
    let response: Response;
    try {
      response = await this.#post(command);
    } catch {
      throw new CallError('unreachable', 'Cairn does not answer. Is it still running?');
    }
    if (response.body) {
      try {
        for await (const frame of readFrames(response.body)) {
          if ('reply' in frame) return frame.reply;
          if ('failure' in frame) throw new CallError(frame.failure.code, frame.failure.message);
        }
      } catch (error) {
        if (error instanceof CallError) throw error;
        // Neither frames nor JSON: the status below says more than the parser would.
      }
    }
    const why = response.ok ? 'the answer was cut short' : `status ${response.status}`;
    throw new CallError('unreachable', `Cairn could not be asked: ${why}.`);
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
    return this.#fetch('/api/call', {
      method: 'POST',
      headers: { 'content-type': 'application/json', authorization: `Bearer ${this.#token ?? ''}` },
      body: JSON.stringify(command),
      credentials: 'omit',
      cache: 'no-store',
      signal: signal ?? null,
    });
  }
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
