// One question, answered twice beside each other: by two models, or with two settings.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Command, CompareColumn, Event, Message, Reply } from '../platform/wire';
import { strings } from '../text';
import { Thread, type ThreadEvent } from './thread.svelte';

const KEY = 'cairn.compare';

type Compared = Extract<Reply, { type: 'compared' }>;
type AsksBoth = Extract<Command, { type: 'compare' | 'ask_both' }>;

export interface CompareOptions {
  platform: Platform;
  storage?: Storage;
  nextFrame?: (run: () => void) => void;
  /** Nothing of such a chat is stored. */
  isPrivate: (conversationId: string) => boolean;
  /** Makes the chat of a first question. */
  create: () => Promise<string>;
  /** Why one of the models cannot be asked; null: both can. */
  whyNotAsk: (conversationId: string | null, models: (string | null)[]) => null | Promise<string | null>;
  /** Takes what has begun into the chat. */
  onBegun: (conversationId: string, reply: Compared) => void;
  report: (error: unknown) => void;
}

/** What is asked: a new question, or the one of a message; without one the last of the chat. */
export interface CompareQuestion {
  text: string;
  messageId: string | null;
  isNew: boolean;
}

/** What is stored, so that a comparison is there again when the page was loaded anew. */
interface Stored {
  conversationId: string;
  question: CompareQuestion;
  columns: CompareColumn[];
  ids: string[];
  /** Questions that both were asked before this one. */
  earlier?: { text: string; ids: string[] }[];
}

/** A question that both were asked before, and what they answered. */
export interface Round {
  text: string;
  answers: Message[];
}

/**
 * Owns the comparison on screen: first its question and columns are chosen, then both answers are there.
 * An answer is a thread of one message, so that it grows as those of chats do.
 */
export class CompareStore {
  /** Of the chat that it belongs to; null is the one that the question will make. */
  conversationId = $state<string | null>(null);
  question = $state.raw<CompareQuestion | null>(null);
  columns = $state<CompareColumn[]>([]);
  /** None until they have begun. */
  answers = $state.raw<Thread[]>([]);
  /** What both were asked before, oldest first. */
  earlier = $state.raw<Round[]>([]);
  isStarting = $state(false);
  /** Why it could not begin. */
  problem = $state<string | null>(null);
  /** Counts requests to take the focus. */
  numFocusRequests = $state(0);

  readonly isAnswering = $derived(this.answers.some(({ isStreaming }) => isStreaming));
  /** Both columns are the same, which says nothing. */
  readonly isSame = $derived.by(() => {
    const [a, b] = this.columns;
    if (!a || !b) return false;
    const isSameChance = a.temperature === b.temperature && a.seed === b.seed;
    return a.model === b.model && isSameChance && a.thinking === b.thinking;
  });

  /** The fields that hold what is not allowed: until it is right, nothing is asked. */
  #refused = $state.raw<ReadonlySet<string>>(new Set());
  readonly isRefused = $derived(this.#refused.size > 0);

  /** Answers that are written beside a branch, by their ids: in which chat. Another window may have begun them. */
  #beside = $state.raw(new Map<string, string>());
  #ids: string[] = [];
  /** Counts what was opened and closed: what was begun before that is not about what is on screen now. */
  #numOpened = 0;
  readonly #options: CompareOptions;

  constructor(options: CompareOptions) {
    this.#options = options;
  }

  isOpenIn(conversationId: string | null): boolean {
    return this.question !== null && this.conversationId === conversationId;
  }

  /** Whether an answer is written beside the branch of a chat. */
  isWritingIn(conversationId: string | null): boolean {
    return [...this.#beside.values()].some((id) => id === conversationId);
  }

  /** Shows the choice of models and settings for a question. */
  open(conversationId: string | null, question: CompareQuestion, models: [string | null, string | null]): void {
    this.conversationId = conversationId;
    this.question = question;
    this.columns = models.map((model) => ({ model, temperature: null, seed: null, thinking: null }));
    this.#clear();
    this.numFocusRequests++;
  }

  /** Closes it; both answers stay as versions. */
  close(): void {
    this.question = null;
    this.#clear();
  }

  #clear(): void {
    this.#numOpened++;
    this.earlier = [];
    this.#take([]);
  }

  /** Back to the choice, with the same columns. */
  again(): void {
    const id = this.#ids[0];
    if (!this.question || this.isAnswering || this.isStarting || id === undefined) return;
    this.question = { ...this.question, messageId: id, isNew: false };
    this.#clear();
    this.numFocusRequests++;
  }

  /** Notes whether a field holds what is not allowed. */
  refuse(field: string, isRefused: boolean): void {
    if (this.#refused.has(field) === isRefused) return;
    const refused = new Set(this.#refused);
    if (isRefused) refused.add(field);
    else refused.delete(field);
    this.#refused = refused;
  }

  /** Asks both. */
  async start(): Promise<void> {
    if (!this.#hasQuestion || this.isRefused || this.answers.length > 0) return;
    await this.#ask(async (isOpen) => {
      const conversation_id = this.conversationId ?? (await this.#options.create());
      const { question } = this;
      if (!isOpen() || !question) return null;
      this.conversationId = conversation_id;
      return {
        type: 'compare',
        conversation_id,
        message_id: question.isNew ? null : question.messageId,
        text: question.isNew ? question.text : null,
        columns: $state.snapshot(this.columns),
      };
    });
    // The button that was pressed is gone.
    if (this.answers.length > 0) this.numFocusRequests++;
  }

  /** Asks both the next question, each behind its own answer; returns whether that worked. */
  async askBoth(text: string): Promise<boolean> {
    const { conversationId: conversation_id, question } = this;
    const answers = this.answers.flatMap(({ messages }) => messages.slice(0, 1));
    if (conversation_id === null || !question || answers.length !== 2 || this.isAnswering) return false;
    const columns = $state.snapshot(this.columns);
    return this.#ask(
      () => ({ type: 'ask_both', conversation_id, message_ids: [...this.#ids], text, columns }),
      () => {
        this.earlier = [...this.earlier, { text: question.text, answers }];
        this.question = { text, messageId: null, isNew: false };
      },
    );
  }

  get #hasQuestion(): boolean {
    return this.question !== null && (!this.question.isNew || this.question.text.trim() !== '');
  }

  /** Asks both, unless the comparison is closed before that; returns whether they have begun. */
  async #ask(
    command: (isOpen: () => boolean) => AsksBoth | null | Promise<AsksBoth | null>,
    onBegun: () => void = () => {},
  ): Promise<boolean> {
    if (this.isStarting) return false;
    const numOpened = this.#numOpened;
    const isOpen = () => numOpened === this.#numOpened;
    this.isStarting = true;
    this.problem = null;
    try {
      const why = await this.#whyNot(isOpen);
      if (isOpen()) this.problem = why;
      // Meanwhile it may have been closed, or the question taken away.
      const asked = why === null && isOpen() && this.#hasQuestion && !this.isSame ? await command(isOpen) : null;
      if (asked === null) return false;
      const reply = await this.#options.platform.call(asked);
      if (reply.type !== 'compared') throw new Error(strings.connection.unexpectedReply);
      if (isOpen()) {
        onBegun();
        this.#take(reply.messages.slice(-2));
      }
      this.#options.onBegun(asked.conversation_id, reply);
      return isOpen();
    } catch (error) {
      if (isOpen()) this.problem = sentenceOf(error);
      else this.#options.report(error);
      return false;
    } finally {
      this.isStarting = false;
    }
  }

  /** Why one of the models cannot be asked. What is chosen while they are looked for is looked for too. */
  async #whyNot(isOpen: () => boolean): Promise<string | null> {
    for (;;) {
      const models = this.columns.map(({ model }) => model);
      const why = await this.#options.whyNotAsk(this.conversationId, models);
      if (!isOpen() || models.every((model, index) => model === this.columns[index]?.model)) return why;
    }
  }

  /** Shows the comparison that was on screen when the page was left, if its chat is still there. */
  async restore(isThere: (conversationId: string) => boolean): Promise<void> {
    const stored = parsed(this.#options.storage?.getItem(KEY) ?? null);
    if (!stored || !isThere(stored.conversationId)) return;
    try {
      const messages = await this.#fetch(stored.conversationId, stored.ids);
      const earlier: Round[] = [];
      for (const { text, ids } of stored.earlier ?? [])
        earlier.push({ text, answers: await this.#fetch(stored.conversationId, ids) });
      if (this.question || messages.length !== 2) return;
      this.earlier = earlier;
      this.conversationId = stored.conversationId;
      this.question = stored.question;
      // Columns that an earlier version has stored lack `thinking`.
      this.columns = stored.columns.map((column) => ({ ...column, thinking: column.thinking ?? null }));
      this.#take(messages);
    } catch {
      // The answers are gone.
      this.#options.storage?.removeItem(KEY);
    }
  }

  /** After a reconnect events may have been missed. */
  catchUp(): void {
    this.#beside = new Map();
    for (const answer of this.answers) void answer.refetch().then(() => this.#noteAll());
  }

  /** The chat is gone. */
  forget(conversationId: string): void {
    if (this.conversationId === conversationId && this.question) this.close();
  }

  receive(event: Event, isBeside = false): void {
    if (!isAboutAnswer(event)) return;
    const id = event.type === 'message' ? event.message.id : event.message_id;
    this.answers[this.#ids.indexOf(id)]?.receive(event);
    // An answer that was chosen while it was written is still known here.
    if (event.type === 'message' && (isBeside || this.#beside.has(id))) this.#note(event.message);
  }

  async stop(index: number): Promise<void> {
    const message_id = this.#ids[index];
    const conversation_id = this.conversationId;
    if (message_id === undefined || conversation_id === null) return;
    await this.#options.platform
      .call({ type: 'stop_answer', conversation_id, message_id })
      .catch((error: unknown) => this.#options.report(error));
  }

  /** Goes on with one of the answers; returns whether that worked. */
  async choose(index: number): Promise<boolean> {
    const message_id = this.#ids[index];
    const conversation_id = this.conversationId;
    if (message_id === undefined || conversation_id === null) return false;
    try {
      await this.#options.platform.call({ type: 'choose_answer', conversation_id, message_id });
      this.close();
      return true;
    } catch (error) {
      this.#options.report(error);
      return false;
    }
  }

  /** The answer of a column as it is now. */
  answer(index: number): Message | undefined {
    return this.answers[index]?.messages[0];
  }

  #take(messages: Message[]): void {
    this.problem = null;
    this.#ids = messages.map(({ id }) => id);
    const { conversationId, question } = this;
    this.answers = messages.map((message) => {
      const thread = new Thread({
        fetch: () => this.#fetch(message.conversation_id, [message.id]),
        nextFrame: this.#options.nextFrame,
      });
      thread.startWith([message]);
      // It may have grown, or ended, before the reply came.
      void thread.refetch().then(() => this.#noteAll());
      return thread;
    });
    messages.forEach((message) => this.#note(message));
    const { isPrivate, storage } = this.#options;
    if (messages.length === 0 || conversationId === null || !question || isPrivate(conversationId)) {
      return storage?.removeItem(KEY);
    }
    const columns = $state.snapshot(this.columns);
    const earlier = this.earlier.map(({ text, answers }) => ({ text, ids: answers.map(({ id }) => id) }));
    const stored: Stored = { conversationId, question, columns, ids: this.#ids, earlier };
    storage?.setItem(KEY, JSON.stringify(stored));
  }

  async #fetch(conversation_id: string, message_ids: string[]): Promise<Message[]> {
    const reply = await this.#options.platform.call({ type: 'get_versions', conversation_id, message_ids });
    if (reply.type !== 'versions') throw new Error(strings.connection.unexpectedReply);
    return reply.messages;
  }

  #noteAll(): void {
    for (const { messages } of this.answers) for (const message of messages) this.#note(message);
  }

  #note({ id, conversation_id, status }: Message): void {
    if (this.#beside.has(id) === (status === 'streaming')) return;
    const beside = new Map(this.#beside);
    if (status === 'streaming') beside.set(id, conversation_id);
    else beside.delete(id);
    this.#beside = beside;
  }
}

function isAboutAnswer(event: Event): event is Exclude<ThreadEvent, { type: 'branch' }> {
  return ['message', 'segment', 'delta', 'prefill'].includes(event.type);
}

function parsed(text: string | null): Stored | null {
  try {
    const stored = JSON.parse(text ?? 'null') as Partial<Stored> | null;
    const isWhole =
      stored?.conversationId && stored.question && stored.columns?.length === 2 && stored.ids?.length === 2;
    return isWhole ? (stored as Stored) : null;
  } catch {
    return null;
  }
}
