// What the next message of the open chat finds in the model's context, and whether it can be sent at all.
import type { DocumentStore } from '../documents/documents.svelte';
import { tokensFor } from '../documents/size';
import type { ChatContext, Document, Message } from '../platform/wire';
import type { ChatStore } from './chat.svelte';
import type { ModelStore } from '../models/models.svelte';
import type { ChatModelStore } from './chatModel.svelte';
import { cutOf, roomOf, type ContextStore, type Room } from './context.svelte';
import { growing } from './segments';

/** About how many characters a token has: what nobody has counted yet is only estimated. */
const CHARS_IN_TOKEN = 4;

const estimated = (numChars: number) => Math.ceil(numChars / CHARS_IN_TOKEN);

const sumOf = (counts: number[]) => counts.reduce((sum, count) => sum + count, 0);

/** The tokens of documents for a model; estimated for documents that it has not counted. */
function documentTokens(documents: readonly Document[], model: string): number {
  return sumOf(documents.map((document) => tokensFor(document, model) ?? estimated(document.num_bytes)));
}

/** How many tokens the text of a message has: of an answer that is written whole its model says it, others are estimated. */
function textTokens({ role, text, segments, status, stats }: Message): number {
  if (status === 'complete' && stats) return stats.generation_tokens;
  return estimated(role === 'user' ? text.length : sumOf(segments.map((segment) => growing(segment).length)));
}

/** The last question, if it only led to a failure. */
function failedAtEnd(messages: readonly Message[]): Message | null {
  const [question, answer] = messages.slice(-2);
  const hasFailed = answer?.status === 'failed' && answer.text === '';
  return hasFailed && question?.role === 'user' ? question : null;
}

/** Messages with what is read of them by the next answer: without questions that only led to a failure. */
function read(messages: readonly Message[]): Message[] {
  const hasFailed = (row: Message | undefined) =>
    row?.role === 'assistant' && row.status === 'failed' && row.text === '';
  return messages.filter((row, index) => !hasFailed(row) && !(row.role === 'user' && hasFailed(messages[index + 1])));
}

/** Whether an earlier turn could be forgotten for what follows. */
const hasTurns = (messages: readonly Message[]) =>
  messages.some(({ role, status, text }) => role === 'assistant' && (status !== 'failed' || text !== ''));

export interface RoomOptions {
  chat: ChatStore;
  chatModel: ChatModelStore;
  context: ContextStore;
  documents: DocumentStore;
  models: ModelStore;
}

/** Adds to what the core has counted what is written and attached since. */
export class ChatRoom {
  constructor(private readonly options: RoomOptions) {}

  readonly #messages = $derived.by((): readonly Message[] => this.options.chat.thread?.messages ?? []);
  readonly #failed = $derived(failedAtEnd(this.#messages));
  /** What the model reads of them. */
  readonly #read = $derived.by(() => this.#messages.slice(this.options.chat.thread?.cut?.index ?? 0));

  /** What has come since the core counted, and what has gone: a question and its answer, another version, what was cut off. */
  readonly #since = $derived.by(() => {
    const { counted } = this.options.context;
    if (counted === null) return { come: [], gone: [] };
    const [cut, before] = [this.options.chat.thread?.cut ?? null, cutOf(counted)];
    const [now, then] = [read(this.#read), read(counted.slice(before?.index ?? 0))];
    if (cut?.id !== before?.id) return { come: now, gone: then };
    // An answer that goes on has the id that it had.
    const isSame = (index: number) => now[index]?.id === then[index]?.id && now[index]?.status !== 'streaming';
    let same = 0;
    while (same < now.length && isSame(same)) same++;
    return { come: now.slice(same), gone: then.slice(same) };
  });

  /** Two answers to its last question stand beside each other. */
  readonly isComparing = $derived.by(() => {
    const { compare, selectedId } = this.options.chat;
    return selectedId !== null && compare.isOpenIn(selectedId) && compare.answers.length > 0;
  });

  /** What the longer of two compared branches has more than the one that the chat counts. */
  readonly #beside = $derived.by(() => {
    if (!this.isComparing) return 0;
    const { answers, earlier } = this.options.chat.compare;
    const counted = new Set(this.#read.map(({ id }) => id));
    const sizes = answers.map((answer, index) => {
      const before = earlier.flatMap((round) => round.answers[index] ?? []);
      const column = [...before, ...answer.messages.slice(0, 1)];
      return { all: sumOf(column.map(textTokens)), inChat: column.some(({ id }) => counted.has(id)) };
    });
    const ofChat = Math.max(0, ...sizes.map(({ all, inChat }) => (inChat ? all : 0)));
    return Math.max(0, ...sizes.map(({ all }) => all)) - ofChat;
  });

  /** The next question goes to both of the compared models: the shorter context limits it. */
  readonly #limit = $derived.by(() => {
    const { chat, chatModel, context, models } = this.options;
    const ofChat = context.current?.limit_tokens ?? 0;
    if (!this.isComparing) return ofChat;
    const limits = chat.compare.columns.map(({ model }) =>
      model === null || model === chatModel.current?.name
        ? ofChat
        : (models.get(model)?.facts?.context_length ?? ofChat),
    );
    return Math.min(...limits);
  });

  /** As the core counted it, with what is written, attached and typed since. Null: nothing is known. */
  readonly context = $derived.by((): ChatContext | null => {
    const { chat, context, documents } = this.options;
    const { current } = context;
    if (!current) return null;
    const { come, gone } = this.#since;
    const tokensOf = (attached: readonly Document[]) => documentTokens(attached, current.model);
    const documentsOf = (messages: readonly Message[]) => tokensOf(messages.flatMap((row) => row.documents));
    const inDocuments = tokensOf(documents.draft.documents) + documentsOf(come) - documentsOf(gone);
    const inTexts =
      estimated(chat.draft.length) + sumOf(come.map(textTokens)) - sumOf(gone.map(textTokens)) + this.#beside;
    const document_tokens = Math.max(0, current.document_tokens + inDocuments);
    // Texts are estimated, but no part is larger than the whole.
    const least = current.beginning_tokens + document_tokens + current.summary_tokens;
    const used_tokens = Math.max(least, current.used_tokens + inDocuments + inTexts);
    return { ...current, limit_tokens: this.#limit, document_tokens, used_tokens };
  });

  readonly room = $derived.by((): Room | null => this.context && roomOf(this.context));

  /** Whether the next message fits once earlier turns are forgotten, and there are such. */
  readonly canForget = $derived.by(() => {
    const { chat, context, documents } = this.options;
    const { current } = context;
    if (!current || !hasTurns(this.#read)) return false;
    const draft = documentTokens(documents.draft.documents, current.model) + estimated(chat.draft.length);
    return this.#fitsAlone(draft, current);
  });

  /** Whether the question that has failed fits once turns before it are forgotten. */
  readonly canForgetForFailed = $derived.by(() => {
    const { current } = this.options.context;
    if (!current || !this.#failed || !hasTurns(this.#read)) return false;
    return this.#fitsAlone(documentTokens(this.#failed.documents, current.model) + textTokens(this.#failed), current);
  });

  #fitsAlone(tokens: number, { beginning_tokens, limit_tokens, model }: ChatContext): boolean {
    return beginning_tokens + documentTokens(this.options.documents.beginning, model) + tokens < limit_tokens;
  }

  readonly choice = $derived.by(() => this.options.context.current?.at_overflow ?? 'stop');

  /** Where the context is full, the chat stops. */
  readonly #stops = $derived(this.choice === 'stop');

  /** A question that was refused can be asked again once somebody chooses how room is made for it. */
  readonly asksAgain = $derived(this.canForgetForFailed && this.#stops);

  /** Above the composer it is said that the context is full, and what is done or can be chosen: nobody else need say so. */
  readonly isSaidBelow = $derived.by(() => {
    const { selectedId, thread } = this.options.chat;
    if (selectedId === null || thread?.isStreaming || this.room === null) return false;
    return this.asksAgain || (this.canForget && this.room.state !== 'enough');
  });

  /** The documents of the draft do not fit, as the model that would answer has counted; forgetting may help. */
  readonly isTooLong = $derived.by(() => {
    const { chatModel, documents } = this.options;
    const { reading, documents: attached } = documents.draft;
    const name = chatModel.current?.name ?? null;
    const isThisModel = reading.type === 'too_long' && (name === null || name === reading.model);
    return isThisModel && attached.length > 0;
  });

  /** The next message would only fail. */
  readonly isBlocked = $derived.by(() => {
    return this.isTooLong && (this.#stops || !this.canForget);
  });

  /** The question of this answer was longer than the context, and still is. */
  wouldFailAgain({ error_kind, model }: Message): boolean {
    const { chatModel, context } = this.options;
    if (error_kind?.type !== 'context_full') return false;
    const { current } = context;
    const limit = current?.limit_tokens ?? (model === chatModel.current?.name ? error_kind.context_length : Infinity);
    const isHelped = this.canForgetForFailed && !this.#stops;
    return error_kind.tokens >= limit && !isHelped;
  }
}
