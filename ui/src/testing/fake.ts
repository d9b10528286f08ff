// A platform without a core, for tests: replies from a table, events on demand.
import type { SourceFile } from '../documents/sources';
import type { Connection, Dropped, ImportOptions, Platform } from '../platform/platform';
import type {
  ApiKey,
  ApiOverview,
  ApiRequest,
  CacheFileLayout,
  CacheNode,
  CacheOverview,
  CacheSource,
  ChatFileFormat,
  ChatsImported,
  Command,
  Conversation,
  ConversationCache,
  Document,
  Download,
  Event,
  FoundModel,
  HubAccess,
  HubModel,
  ImportPreview,
  MemoryNeed,
  Message,
  MessageStats,
  Model,
  ModelFacts,
  ModelProblem,
  MonitorDay,
  MonitorPoint,
  MonitorRow,
  MonitorSpan,
  NamedCache,
  RecommendedModel,
  Reply,
  Settings,
  Status,
} from '../platform/wire';

type Answer = Reply | Error | Promise<Reply> | ((command: Command) => Reply | Promise<Reply>);

/** Records the commands it receives. One without a reply in the table gets `done`. */
export class FakePlatform implements Platform {
  readonly asked: Command[] = [];
  answers: Partial<Record<Command['type'], Answer>> = {};
  isStopped = false;
  /** What was written to files: source, layout and file name. */
  readonly exported: [CacheSource, CacheFileLayout, string][] = [];
  readonly exportedJobs: [string, string][] = [];
  /** The chats that were written to files: their ids, the form and the file name. */
  readonly exportedChats: [string[], ChatFileFormat, string][] = [];
  /** What became of a file of chats; null: none was chosen. */
  importedChats: ChatsImported | null | Error = null;
  readonly savedTexts: [string, string][] = [];
  exportAnswer: boolean | Error = true;
  /** The preview of a file; null: no file was chosen. */
  importAnswer: ImportPreview | null | Error | Promise<ImportPreview> = null;
  /** The signal of the last import. */
  importSignal: AbortSignal | undefined;
  /** What the platform of a shell has besides. */
  chooseModelFile: Platform['chooseModelFile'];
  chooseFolder: Platform['chooseFolder'];
  importModel: Platform['importModel'];
  /** Drops something on the window, once the platform listens to that. */
  drop: (dropped: Dropped) => void = () => undefined;
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

  async exportCache(source: CacheSource, layout: CacheFileLayout, suggestedName: string): Promise<boolean> {
    this.exported.push([source, layout, suggestedName]);
    if (this.exportAnswer instanceof Error) throw this.exportAnswer;
    return this.exportAnswer;
  }

  async exportJob(id: string, suggestedName: string): Promise<boolean> {
    this.exportedJobs.push([id, suggestedName]);
    if (this.exportAnswer instanceof Error) throw this.exportAnswer;
    return this.exportAnswer;
  }

  async exportChats(ids: string[], format: ChatFileFormat, suggestedName: string): Promise<boolean> {
    this.exportedChats.push([ids, format, suggestedName]);
    if (this.exportAnswer instanceof Error) throw this.exportAnswer;
    return this.exportAnswer;
  }

  /** The files that are chosen to be attached. */
  chosenDocuments: SourceFile[] = [];

  async chooseDocuments(): Promise<SourceFile[]> {
    return this.chosenDocuments;
  }

  async saveText(text: string, suggestedName: string): Promise<boolean> {
    this.savedTexts.push([text, suggestedName]);
    if (this.exportAnswer instanceof Error) throw this.exportAnswer;
    return this.exportAnswer;
  }

  async importChats(file?: File, onChosen?: (name: string) => void): Promise<ChatsImported | null> {
    if (this.importedChats !== null) onChosen?.(file?.name ?? 'chosen.json');
    if (this.importedChats instanceof Error) throw this.importedChats;
    return this.importedChats;
  }

  async importCache(file?: File, { onChosen, signal }: ImportOptions = {}): Promise<ImportPreview | null> {
    this.importSignal = signal;
    if (!file && this.importAnswer !== null) onChosen?.('chosen.safetensors');
    if (this.importAnswer instanceof Error) throw this.importAnswer;
    return this.importAnswer;
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

/** A file that begins as prompt-cache files do: the length of a header, and a header of that length. */
export function cacheFile(name = 'file.safetensors'): File {
  return new File([new Uint8Array([2, 0, 0, 0, 0, 0, 0, 0]), '{}'], name);
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
    has_messages: change.title !== '',
    system_prompt: '',
    created_at_ms: 1,
    updated_at_ms: 1,
    is_streaming: false,
    is_private: false,
    is_pinned: false,
    is_archived: false,
    folder_id: null,
    persona_id: null,
    branch_of: null,
    model: { name: null, source: 'app', missing: null },
    cache: null,
    prefix: null,
    ...change,
  };
}

export function saved(change: Partial<ConversationCache> = {}): ConversationCache {
  return {
    cached_tokens: 3120,
    cached_bytes: 143e6,
    own_bytes: 12e6,
    tier: 'memory',
    is_pinned: false,
    model: 'owner/model',
    fingerprint: 'f',
    is_whole: true,
    shared_with: [],
    loss: null,
    ...change,
  };
}

export function startingPoint(id: string, change: Partial<NamedCache> = {}): NamedCache {
  return {
    id,
    name: `Name ${id}`,
    model: 'owner/model',
    tokens: 2048,
    bytes: 94e6,
    tier: 'disk',
    start_text: 'It begins',
    end_text: 'and ends.',
    imported_from: null,
    fingerprint: 'f',
    created_at_ms: 1,
    last_used_at_ms: 1,
    num_conversations: 0,
    problem: null,
    ...change,
  };
}

export function node(key: string, change: Partial<CacheNode> = {}): CacheNode {
  return {
    key,
    parent_key: null,
    start: 0,
    tokens: 256,
    bytes: 12e6,
    kind: 'user',
    tier: 'disk',
    hits: 0,
    last_used_at_ms: 1,
    text: `Text ${key}`,
    model: 'owner/model',
    conversations: [],
    named: [],
    folders: [],
    is_pinned: false,
    ...change,
  };
}

export function overview(change: Partial<CacheOverview> = {}): CacheOverview {
  return {
    disk_bytes: 1.2e9,
    disk_budget_bytes: 20e9,
    memory_bytes: 143e6,
    memory_budget_bytes: 1e9,
    num_chunks: 12,
    lookups: 3,
    prompt_tokens: 4000,
    cached_tokens: 3000,
    nodes: [],
    num_hidden_nodes: 0,
    named: [],
    problem: null,
    time_saved: { all_ms: 0, since_ms: null, chats: [] },
    ...change,
  };
}

export function preview(change: Partial<ImportPreview> = {}): ImportPreview {
  return {
    token: 'token',
    file_name: 'file.safetensors',
    suggested_name: 'Suggested',
    title: 'Title',
    model: 'owner/model',
    kind: 'prompt',
    tokens: 2048,
    bytes: 94e6,
    start_text: 'It begins',
    end_text: 'and ends.',
    made_by: 'Cairn 0.1.0',
    created_at_ms: null,
    problem: null,
    warnings: [],
    can_check: true,
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
    segments: change.text && change.role !== 'user' ? [{ kind: 'text', text: change.text }] : [],
    documents: [],
    is_held: false,
    error: null,
    created_at_ms: 1,
    stats: null,
    model: null,
    versions: [],
    can_continue: false,
    cut: null,
    ...change,
  };
}

export function textDocument(id: string, change: Partial<Document> = {}): Document {
  return { id, name: `${id}.txt`, kind: 'text', num_bytes: 4200, tokens: 1024, counted_by: 'owner/model', ...change };
}

export function stats(change: Partial<MessageStats> = {}): MessageStats {
  return {
    model: 'owner/model',
    finish_reason: 'stop',
    prompt_tokens: 1236,
    cached_tokens: 1204,
    cached_from: null,
    kept_tokens: null,
    guesses: null,
    cache_note: null,
    miss: null,
    saved_ms: null,
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

export function memory(change: Partial<MemoryNeed> = {}): MemoryNeed {
  return {
    context_tokens: 32768,
    weight_bytes: 2.3e9,
    kv_bytes: 0.9e9,
    total_bytes: 3.4e9,
    longest_tokens: 32768,
    longest_bytes: 3.4e9,
    budget_bytes: 14e9,
    fit: 'well',
    ...change,
  };
}

export function facts(change: Partial<ModelFacts> = {}): ModelFacts {
  return {
    parameters: 4.02e9,
    quantization_bits: 4,
    context_length: 32768,
    memory: memory(),
    takes_tools: true,
    rounded_weights: null,
    ...change,
  };
}

export function model(name: string, change: Partial<Model> = {}): Model {
  return {
    name,
    alias: null,
    is_pinned: false,
    path: `/models/${name}`,
    model_type: 'llama',
    bytes: 270e6,
    source: 'hub_cache',
    can_delete: change.source !== 'lm_studio' && change.source !== 'added',
    problem: null,
    facts: change.problem || change.is_being_checked ? null : facts(),
    is_being_checked: false,
    is_proposed: false,
    is_set_aside: false,
    is_being_measured: false,
    ...change,
  };
}

export function problem(kind: ModelProblem['kind'], detail = 'tokenizer.json is missing'): Pick<Model, 'problem'> {
  return { problem: { kind, detail } };
}

export function download(name: string, change: Partial<Download> = {}): Download {
  return {
    name,
    state: 'running',
    bytes: 1e9,
    total_bytes: 2.5e9,
    bytes_per_second: 25e6,
    seconds_left: 60,
    files: [
      { path: 'config.json', bytes: 700, total_bytes: 700, state: 'done' },
      { path: 'model.safetensors', bytes: 1e9, total_bytes: 2.5e9, state: 'running' },
    ],
    failure: null,
    page: null,
    ...change,
  };
}

export function recommended(name: string, change: Partial<RecommendedModel> = {}): RecommendedModel {
  return {
    name,
    title: `Title of ${name}`,
    maker: 'Maker',
    licence: 'Apache 2.0',
    download_bytes: 2.3e9,
    facts: facts(),
    choices: [],
    ...change,
  };
}

export function found(name: string, change: Partial<FoundModel> = {}): FoundModel {
  return {
    name,
    downloads: 12_000,
    likes: 10,
    is_gated: false,
    is_mlx: true,
    parameters: 4e9,
    quantization_bits: 4,
    model_type: 'qwen3',
    updated_at_ms: 1,
    ...change,
  };
}

export function hubModel(name: string, change: Partial<HubModel> = {}): HubModel {
  return {
    name,
    commit: 'c',
    description: 'It writes.',
    licence: 'apache-2.0',
    is_gated: false,
    page: `https://huggingface.co/${name}`,
    files: [{ path: 'model.safetensors', bytes: 2.3e9 }],
    bytes: 2.3e9,
    missing_bytes: 2.3e9,
    model_type: 'qwen3',
    facts: facts(),
    problem: null,
    ...change,
  };
}

export const settings: Settings = {
  default_model: '',
  temperature: 0.7,
  top_p: 0.95,
  top_k: 0,
  min_p: 0,
  repetition_penalty: 1,
  max_tokens: 1024,
  thinking: 'automatic',
  holds_loops: true,
  titles_by_model: false,
  at_overflow: 'stop',
  presence_penalty: 0,
  frequency_penalty: 0,
  xtc_probability: 0,
  xtc_threshold: 0.1,
  stop: '',
  seed: null,
  cache_budget_bytes: 20e9,
  cache_ram_budget_bytes: 1e9,
  system_prompt: '',
  context_length: null,
  kv_bits: 'plain',
  bf16_state: false,
  wires_memory: false,
  compresses_cache: false,
  keep_tokens: null,
  alias: '',
  is_pinned: false,
  idle_unload: 'never',
  speed: 'automatic',
  draft_model: '',
  appearance: 'system',
  hub_endpoint: '',
  download_folder: '',
  hub_proxy: '',
  api_is_on: false,
  api_port: 11435,
};

export function apiKey(id: string, change: Partial<ApiKey> = {}): ApiKey {
  return { id, name: `Key ${id}`, created_at_ms: 1, last_used_at_ms: null, ...change };
}

export function apiRequest(number: number, change: Partial<ApiRequest> = {}): ApiRequest {
  return {
    number,
    at_ms: 1,
    key: 'Editor',
    route: 'POST /v1/chat/completions',
    model: 'owner/model',
    figures: {
      prompt_tokens: 1236,
      cached_tokens: 1204,
      generation_tokens: 312,
      time_to_first_token_ms: 312.4,
      generation_tps: 42.13,
    },
    status: 200,
    ...change,
  };
}

export function api(change: Partial<ApiOverview> = {}): Reply {
  return {
    type: 'api',
    api: { server: { state: 'off', problem: null }, keys: [], requests: [], ...change },
  };
}

export function hubAccess(change: Partial<HubAccess> = {}): HubAccess {
  return {
    endpoint: 'https://huggingface.co',
    folder: '/home/me/.cache/huggingface/hub',
    default_endpoint: 'https://huggingface.co',
    default_folder: '/home/me/.cache/huggingface/hub',
    token_place: null,
    other_token_hub: null,
    is_offline: false,
    ...change,
  };
}

export const status: Status = {
  engine: { state: 'ready', model: 'owner/model' },
  model_fingerprint: 'f',
  models: [{ name: 'owner/model', fingerprint: 'f', bytes: 271e6, draft: null }],
  device: 'cpu',
  process_bytes: 512e6,
  process_peak_bytes: 648e6,
  mlx_active_bytes: 271e6,
  mlx_peak_bytes: 402e6,
  mlx_cache_bytes: 0,
  cache_disk_bytes: 0,
  cache_ram_bytes: 0,
  wired_memory: null,
};

export function bootstrap(change: Partial<Extract<Reply, { type: 'bootstrap' }>> = {}): Reply {
  return {
    type: 'bootstrap',
    folders: [],
    presets: [],
    personas: [],
    conversations: [],
    models: [model('owner/model')],
    settings,
    status,
    named: [],
    downloads: [],
    model_import: null,
    interrupted: null,
    ...change,
  };
}

/** A point of the monitor so many seconds after the start. */
export function monitorPoint(second: number, change: Partial<MonitorPoint> = {}): MonitorPoint {
  return {
    number: second + 1,
    at_ms: 1_700_000_000_000 + second * 1000,
    elapsed_ms: second * 1000,
    process_bytes: 512e6,
    mlx_active_bytes: 271e6,
    mlx_cache_bytes: 30e6,
    machine_used_bytes: 6e9,
    num_waiting: 0,
    reading_tps: null,
    writing_tps: null,
    first_token_ms: null,
    prompt_tokens: 0,
    cached_tokens: 0,
    ...change,
  };
}

/** Ten minutes of the monitor, by their number in the day. */
export function monitorSpan(index: number, change: Partial<MonitorSpan> = {}): MonitorSpan {
  return {
    at_ms: index * 600_000,
    begins_run: false,
    process_bytes: { least: 400e6, mean: 500e6, most: 600e6 },
    mlx_active_bytes: { least: 200e6, mean: 250e6, most: 300e6 },
    mlx_cache_bytes: null,
    machine_used_bytes: null,
    reading_tps: null,
    writing_tps: null,
    most_waiting: 0,
    first_token_ms: null,
    prompt_tokens: 0,
    cached_tokens: 0,
    ...change,
  };
}

export function monitorRow(name: string, change: Partial<MonitorRow> = {}): MonitorRow {
  return {
    name,
    conversation_id: null,
    num_answers: 3,
    read_tokens: 400,
    cached_tokens: 1600,
    written_tokens: 90,
    saved_ms: 20_000,
    first_token_ms: 300,
    ...change,
  };
}

export function monitorDay(change: Partial<MonitorDay> = {}): MonitorDay {
  return {
    until_ms: 144 * 600_000,
    span_ms: 600_000,
    spans: [],
    models: [],
    chats: [],
    num_more_chats: 0,
    private: null,
    time_saved: { all_ms: 0, since_ms: null, chats: [] },
    ...change,
  };
}
