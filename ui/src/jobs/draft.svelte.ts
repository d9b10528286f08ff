// A new question about many texts, and what the core says about it while it is written.
import { SvelteSet } from 'svelte/reactivity';
import { sentenceOf, type Platform } from '../platform/platform';
import type {
  ConversationPart,
  Job,
  JobPreview,
  JobQuestion,
  JobQuestionKind,
  JobSource,
  TextFormat,
} from '../platform/wire';
import { strings } from '../text';
import { optionsFrom } from './results';

/** The core takes this much at once. */
const MAX_BYTES = 60 * 2 ** 20;
/** More than this of pasted lines does not outlive a reload: a browser stores a few megabytes. */
const MAX_STORED_CHARACTERS = 500_000;
const KEY = 'cairn.question';
/** What outlives a reload. */
const STORED = ['name', 'from', 'lines', 'part', 'instructions', 'kind', 'options', 'chosenModel'] as const;

/** What is wrong with each part of the form, as sentences. */
export interface DraftProblems {
  texts: string | null;
  question: string | null;
  options: string | null;
  model: string | null;
}

interface Options {
  platform: Platform;
  /** The model that is taken unless another is chosen; null: there is none. */
  defaultModel: () => string | null;
  /** Why there is none. */
  whyNoModel: () => string;
  storage?: Storage | undefined;
}

/** Owns what was written so far. */
export class Draft {
  name = $state('');
  from = $state<'written' | 'chats'>('written');
  /** The chosen file; null: lines are pasted. */
  file = $state.raw<{ name: string; format: TextFormat; content: string } | null>(null);
  lines = $state('');
  /** Of a CSV file; null: the one that the core takes. */
  column = $state<string | null>(null);
  part = $state<ConversationPart>('whole');
  /** What chats are searched for. */
  search = $state('');
  /** The chats that have it, the one with the newest turn first; null until that is known. */
  found = $state.raw<string[] | null>(null);
  readonly chosen = new SvelteSet<string>();
  instructions = $state('');
  kind = $state<JobQuestionKind>('predicate');
  options = $state('');
  /** The model that was chosen; null: the default one. */
  chosenModel = $state<string | null>(null);
  preview = $state.raw<JobPreview | null>(null);
  isBusy = $state(false);
  /** It was to be asked, so that what is missing is said too. */
  isTried = $state(false);
  /** Why the file could not be read. */
  fileProblem = $state<string | null>(null);
  /** Why the question could not be asked. */
  problem = $state<string | null>(null);

  /** The name that the last file gave it, which the next one replaces. */
  #nameOfFile = '';
  readonly #options: Options;
  readonly #looking = new Latest(() => this.#look());
  readonly #searching = new Latest(() => this.#find());

  constructor(options: Options) {
    this.#options = options;
    this.#restore();
  }

  /** Whether there is anything to lose. */
  get isEmpty(): boolean {
    const { chosen, file, instructions, lines, name, options } = this;
    return file === null && chosen.size === 0 && [instructions, lines, name, options].every((text) => text === '');
  }

  /** Keeps what is written for the next time that the window is opened. A file is not kept. */
  store(): void {
    const { storage } = this.#options;
    if (this.isEmpty) return storage?.removeItem(KEY);
    const fields = STORED.map((key) => [key, this[key]] as const);
    const isShort = this.lines.length <= MAX_STORED_CHARACTERS;
    const kept = Object.fromEntries(fields.filter(([key]) => key !== 'lines' || isShort));
    storage?.setItem(KEY, JSON.stringify({ ...kept, chosen: [...this.chosen] }));
  }

  forget(): void {
    this.#options.storage?.removeItem(KEY);
  }

  #restore(): void {
    const kept: unknown = JSON.parse(this.#options.storage?.getItem(KEY) ?? 'null');
    if (typeof kept !== 'object' || kept === null) return;
    const { chosen, ...fields } = kept as { chosen?: string[] };
    Object.assign(this, fields);
    for (const id of chosen ?? []) this.chosen.add(id);
  }

  get model(): string | null {
    return this.chosenModel ?? this.#options.defaultModel();
  }

  get question(): JobQuestion {
    const options = this.kind === 'predicate' ? [] : optionsFrom(this.options);
    return { instructions: this.instructions, kind: this.kind, options };
  }

  get source(): JobSource {
    const { file } = this;
    if (this.from === 'chats') return { type: 'conversations', ids: [...this.chosen], part: this.part };
    if (!file) return { type: 'written', format: 'lines', content: this.lines, column: null };
    return { type: 'written', format: file.format, content: file.content, column: this.column };
  }

  /** Whatever is written is checked at once; what is missing is only said after a try to ask. */
  get problems(): DraftProblems {
    const { jobs } = strings;
    const hasTexts = this.from === 'chats' ? this.chosen.size > 0 : this.file !== null || this.lines.trim() !== '';
    const hasQuestion = this.instructions.trim() !== '';
    const hasOptions = this.kind === 'predicate' || this.options.trim() !== '';
    const missing = (isThere: boolean, words: string, problem: string | null | undefined) =>
      isThere ? (problem ?? null) : this.isTried ? words : null;
    return {
      texts:
        this.fileProblem ??
        missing(hasTexts, this.from === 'chats' ? jobs.noChats : jobs.noTexts, this.preview?.texts_problem),
      question: missing(hasQuestion, jobs.noQuestion, this.preview?.question_problem),
      options: missing(hasOptions, jobs.noOptions, this.preview?.options_problem),
      model: this.model === null ? this.#options.whyNoModel() : null,
    };
  }

  get canStart(): boolean {
    return !this.isBusy && this.model !== null && this.preview !== null && this.preview.prompt !== null;
  }

  async take(file: File): Promise<void> {
    this.fileProblem = null;
    if (file.size > MAX_BYTES) return void (this.fileProblem = strings.jobs.tooLarge(file.name));
    const content = await file.text().catch(() => null);
    if (content === null) return void (this.fileProblem = strings.imports.unreadable(file.name));
    const ending = file.name.split('.').at(-1)?.toLowerCase() ?? '';
    const format = { csv: 'csv', tsv: 'csv', jsonl: 'jsonl', ndjson: 'jsonl' }[ending] ?? 'lines';
    this.from = 'written';
    this.column = null;
    this.file = { name: file.name, format: format as TextFormat, content };
    const name = file.name.replace(/\.[^.]*$/, '');
    if (this.name === '' || this.name === this.#nameOfFile) this.name = name;
    this.#nameOfFile = name;
  }

  /** Asks what would be asked. */
  look(): Promise<void> {
    return this.#looking.run();
  }

  async #look(): Promise<void> {
    const { question, source } = this;
    try {
      const reply = await this.#options.platform.call({ type: 'preview_job', question, source });
      if (reply.type === 'job_preview') this.preview = reply.preview;
    } catch (error) {
      this.preview = null;
      this.problem = sentenceOf(error);
    }
  }

  /** Searches the titles and messages of chats. */
  find(): Promise<void> {
    return this.#searching.run();
  }

  async #find(): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'search_conversations', text: this.search });
      if (reply.type === 'found_conversations') this.found = reply.ids;
    } catch (error) {
      this.problem = sentenceOf(error);
    }
  }

  /** The new job; null: it could not be made. */
  async create(): Promise<Job | null> {
    if (this.isBusy) return null;
    this.isBusy = true;
    this.problem = null;
    const { model, question, source } = this;
    const name = this.name.trim() || this.instructions.trim().split('\n')[0]?.slice(0, 80) || strings.jobs.title;
    try {
      const reply = await this.#options.platform.call({ type: 'create_job', name, model, question, source });
      return reply.type === 'job' ? reply.job : null;
    } catch (error) {
      this.problem = sentenceOf(error);
      return null;
    } finally {
      this.isBusy = false;
    }
  }
}

/** Work that is done again if it is wanted meanwhile, one after the other: the last result is of what is there now. */
class Latest {
  #running: Promise<void> | null = null;
  #isStale = false;

  constructor(private readonly work: () => Promise<void>) {}

  /** Resolves when the result is that of what was there at the call, or of what came since. */
  run(): Promise<void> {
    this.#isStale = true;
    this.#running ??= this.#repeat().finally(() => (this.#running = null));
    return this.#running;
  }

  async #repeat(): Promise<void> {
    while (this.#isStale) {
      this.#isStale = false;
      await this.work();
    }
  }
}
