// A platform without a core, for tests: answers from a table, events on demand.
import type { Connection, Platform } from '../platform/platform';
import type {
  Command,
  Conversation,
  Event,
  Message,
  MessageStats,
  Model,
  Reply,
  Settings,
  Status,
} from '../platform/wire';

type Answer = Reply | Error | Promise<Reply> | ((command: Command) => Reply | Promise<Reply>);

/** Records what it was asked. A command without an answer in the table is `done`. */
export class FakePlatform implements Platform {
  readonly asked: Command[] = [];
  answers: Partial<Record<Command['type'], Answer>> = {};
  isStopped = false;
  #onEvent: (event: Event) => void = () => undefined;
  #onState: (state: Connection) => void = () => undefined;

  async call(command: Command): Promise<Reply> {
    this.asked.push(command);
    const answer = this.answers[command.type] ?? { type: 'done' };
    if (answer instanceof Error) throw answer;
    return typeof answer === 'function' ? answer(command) : answer;
  }

  subscribe(onEvent: (event: Event) => void, onState: (state: Connection) => void): () => void {
    this.#onEvent = onEvent;
    this.#onState = onState;
    return () => (this.isStopped = true);
  }

  emit(...events: Event[]): void {
    for (const event of events) this.#onEvent(event);
  }

  connect(state: Connection): void {
    this.#onState(state);
  }

  askedTypes(): string[] {
    return this.asked.map((command) => command.type);
  }
}

/** A promise that a test settles by hand. */
export function gate<T>(): { promise: Promise<T>; open: (value: T) => void } {
  let open: (value: T) => void = () => undefined;
  const promise = new Promise<T>((resolve) => (open = resolve));
  return { promise, open };
}

/** Lets everything that is ready to run do so. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
}

export function conversation(id: string, change: Partial<Conversation> = {}): Conversation {
  return {
    id,
    title: `Title ${id}`,
    system_prompt: '',
    created_at_ms: 1,
    updated_at_ms: 1,
    is_streaming: false,
    ...change,
  };
}

export function message(id: string, change: Partial<Message> = {}): Message {
  return {
    id,
    conversation_id: 'a',
    parent_id: null,
    role: 'assistant',
    status: 'complete',
    text: '',
    error: null,
    created_at_ms: 1,
    stats: null,
    ...change,
  };
}

export function stats(change: Partial<MessageStats> = {}): MessageStats {
  return {
    model: 'owner/model',
    finish_reason: 'stop',
    prompt_tokens: 1236,
    cached_tokens: 1204,
    cache_note: null,
    generation_tokens: 312,
    queue_ms: 0.2,
    prompt_tps: 812.44,
    generation_tps: 42.13,
    time_to_first_token_ms: 312.4,
    process_bytes: 512e6,
    process_peak_bytes: 648e6,
    mlx_active_bytes: 271e6,
    mlx_peak_bytes: 1402e6,
    ...change,
  };
}

export function model(name: string, problem: string | null = null): Model {
  return { name, path: `/models/${name}`, model_type: 'llama', bytes: 270e6, problem };
}

export const settings: Settings = {
  default_model: '',
  temperature: 0.7,
  top_p: 0.95,
  max_tokens: 1024,
  seed: null,
  cache_budget_bytes: 20e9,
  appearance: 'system',
};

export const status: Status = {
  engine: { state: 'ready', model: 'owner/model' },
  device: 'cpu',
  process_bytes: 512e6,
  process_peak_bytes: 648e6,
  mlx_active_bytes: 271e6,
  mlx_peak_bytes: 402e6,
  mlx_cache_bytes: 0,
  cache_disk_bytes: 0,
};

export function bootstrap(change: Partial<Extract<Reply, { type: 'bootstrap' }>> = {}): Reply {
  return { type: 'bootstrap', conversations: [], models: [model('owner/model')], settings, status, ...change };
}
