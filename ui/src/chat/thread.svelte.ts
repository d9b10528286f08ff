// The messages of one chat, kept equal to the core's while an answer is being written.
import type { AnswerSegment, Document, Event, Message } from '../platform/wire';
import { TimeLeft } from '../ui/timeLeft';
import { cutOf } from './context.svelte';
import { DrawnMessages, type Place } from './drawn.svelte';
import { growing, grown, isOlder } from './segments';

/** Events that belong to one conversation. */
export type ThreadEvent = Extract<
  Event,
  { type: 'message' | 'branch' | 'segment' | 'delta' | 'prefill' | 'summarizing' }
>;
type Branch = Extract<Event, { type: 'branch' }>;
type Part = Extract<Event, { type: 'segment' | 'delta' }>;
type Delta = Extract<Event, { type: 'delta' }>;
type Whole = Extract<Event, { type: 'segment' }>;
export type Prefill = Extract<Event, { type: 'prefill' }>;
/** `secondsLeft`: at most, once it is known. */
export type Summarizing = Extract<Event, { type: 'summarizing' }> & { secondsLeft: number | null };

/** Another version of a message that is being written. */
export interface Editing {
  id: string;
  text: string;
  documents: readonly Document[];
  /** The ids of the documents that were attached for it; until it is sent, they are in the chat's draft. */
  attached: readonly string[];
}

export interface ThreadOptions {
  /** Asks the core for the messages. */
  fetch: () => Promise<Message[]>;
  onFinished?: (message: Message) => void;
  /** Runs a function before the next frame is drawn. */
  nextFrame?: (run: () => void) => void;
  /** A clock in milliseconds. */
  now?: () => number;
}

const REFETCH_WAIT_MS = 500;
/** As many messages of another branch, or of an import, are drawn at once. */
const MOST_AT_ONCE = 12;

/**
 * Owns the messages of one conversation.
 *
 * - Segments change at most once a frame.
 * - Events that arrive while the messages are being fetched are queued and applied after the reply; since they are a suffix of one
 *   ordered stream and text already there is skipped, the result is the same whichever overtook the other.
 */
export class Thread {
  /** Only what is being written changes in place; of all others there may be thousands, which nothing needs to watch. */
  messages = $state.raw<readonly Message[]>([]);
  prefill = $state.raw<Prefill | null>(null);
  isLoaded = $state(false);
  /** Why the messages could not be fetched. */
  problem = $state<unknown>(null);
  /** Which of them are drawn. */
  readonly drawn = new DrawnMessages();
  /** Where a person was; null at the end. */
  place: Place | null = null;
  /** The message to scroll to and to mark, once it is there. */
  goal = $state<string | null>(null);
  /** The message that is being edited. */
  editing = $state.raw<Editing | null>(null);
  /** How far the summary of earlier messages is, which the model writes before it answers. */
  summarizing = $state.raw<Summarizing | null>(null);
  /** Messages that a summary stands for are unfolded. */
  isEarlierShown = $state(false);
  /** How often another branch was put on screen. */
  numSwitches = $state(0);

  readonly last = $derived(this.messages[this.messages.length - 1]);
  /** From where on the model reads it. */
  readonly cut = $derived(cutOf(this.messages));
  /** The index of the first message on screen. */
  readonly firstShown = $derived(
    this.cut && this.cut.cut.summary !== null && !this.isEarlierShown ? this.cut.index : 0,
  );
  readonly isStreaming = $derived(this.last?.status === 'streaming');
  /** Whether the answers are by different models, so that each says by which. */
  readonly hasSeveralModels = $derived(new Set(this.messages.flatMap(({ model }) => model ?? [])).size > 1);

  readonly #options: ThreadOptions;
  /** Segments that have arrived or grown but are not drawn yet, by message and index. */
  #pending = new Map<string, Map<number, AnswerSegment>>();
  #queued: ThreadEvent[] | null = null;
  #summaryPace = new TimeLeft();
  #retry: ReturnType<typeof setTimeout> | undefined;

  constructor(options: ThreadOptions) {
    this.#options = options;
  }

  /** Asks for all messages; a second call while one is under way does nothing. */
  async refetch(): Promise<void> {
    if (this.#queued) return;
    clearTimeout(this.#retry);
    this.#retry = undefined;
    this.#queued = [];
    try {
      const messages = await this.#options.fetch();
      this.#pending.clear();
      if (!this.isLoaded || this.#numNew(messages) > MOST_AT_ONCE) this.drawn.begin(messages, this.place);
      this.messages = messages.map(watched);
      this.prefill = null;
      this.isLoaded = true;
      this.problem = null;
    } catch (error) {
      this.problem = error;
    } finally {
      const queued = this.#queued;
      this.#queued = null;
      for (const event of queued) this.#apply(event, true);
    }
  }

  #numNew(messages: readonly Message[]): number {
    const known = new Set(this.messages.map(({ id }) => id));
    return messages.filter(({ id }) => !known.has(id)).length;
  }

  /** Marks a conversation that was just created: there is nothing to fetch. */
  startEmpty(): void {
    this.isLoaded = true;
  }

  /** Takes the messages of a conversation that was just copied. */
  startWith(messages: Message[]): void {
    this.drawn.begin(messages, null);
    this.messages = messages.map(watched);
    this.isLoaded = true;
  }

  /** Adds the rows of a reply, unless events brought them already. */
  add(messages: Message[]): void {
    for (const message of messages) {
      if (!this.messages.some((known) => known.id === message.id)) this.receive({ type: 'message', message });
    }
  }

  receive(event: ThreadEvent): void {
    if (this.#queued) this.#queued.push(event);
    else this.#apply(event, false);
  }

  /** Has a message scrolled to and marked, once it is there. */
  reveal(messageId: string): void {
    this.goal = messageId;
  }

  /** Sees to it that a message is drawn; returns whether it is in this branch. */
  uncover(messageId: string): boolean {
    const index = this.messages.findIndex(({ id }) => id === messageId);
    if (index >= 0 && index < this.firstShown) this.isEarlierShown = true;
    if (index >= 0) this.drawn.draw(this.messages, index - 1, 3);
    return index >= 0;
  }

  #apply(event: ThreadEvent, isReplay: boolean): void {
    if (event.type === 'message') this.#put(event.message);
    else if (event.type === 'branch') this.#switch(event);
    else if (event.type === 'summarizing') this.#summarize(event);
    else if (event.type === 'prefill') {
      this.summarizing = null;
      this.prefill = event;
    } else this.#change(event, isReplay);
  }

  #put(message: Message): void {
    this.#pending.delete(message.id);
    const index = this.messages.findIndex((known) => known.id === message.id);
    if (index >= 0) {
      const wasStreaming = this.messages[index]?.status === 'streaming';
      this.messages = this.messages.with(index, watched(message));
      if (message.status !== 'streaming') {
        if (this.prefill?.message_id === message.id) this.prefill = null;
        if (this.summarizing?.message_id === message.id) this.summarizing = null;
        if (wasStreaming) this.#options.onFinished?.(message);
      }
      return;
    }
    // A new message ends the branch at its parent: what followed it before (an earlier answer) is on another branch now.
    const parent = this.messages.findIndex((known) => known.id === message.parent_id);
    if (message.parent_id !== null && parent < 0) return this.#refetchSoon();
    this.messages = [...this.messages.slice(0, parent + 1), watched(message)];
  }

  #summarize(event: Omit<Summarizing, 'secondsLeft'>): void {
    const { message_id, written_tokens, limit_tokens } = event;
    if (written_tokens === 0 || this.summarizing?.message_id !== message_id)
      this.#summaryPace = new TimeLeft(this.#options.now);
    const secondsLeft = written_tokens === 0 ? null : this.#summaryPace.measure(written_tokens, limit_tokens);
    this.summarizing = { ...event, secondsLeft };
  }

  /** Shows another branch: what stands behind `after` is replaced. */
  #switch({ after, messages }: Branch): void {
    const index = this.messages.findIndex((known) => known.id === after);
    if (after !== null && index < 0) return this.#refetchSoon();
    this.#pending.clear();
    this.messages = [...this.messages.slice(0, index + 1), ...messages.map(watched)];
    // Of a long branch what follows the chosen version is drawn, and the rest when it is looked at.
    const first = messages[0];
    if (first && messages.length > MOST_AT_ONCE) this.drawn.begin(this.messages, { id: first.id, top: 0 });
    if (!this.messages.some(({ id }) => id === this.editing?.id)) this.editing = null;
    this.numSwitches++;
  }

  #change(part: Part, isReplay: boolean): void {
    const message = this.messages.findLast((known) => known.id === part.message_id);
    if (!message) return this.#closeGap(part, isReplay);
    const pending = this.#pending.get(message.id);
    const index = part.type === 'segment' ? part.index : part.segment;
    const known = pending?.get(index) ?? message.segments[index];
    if (part.type === 'segment') {
      const hasAllBefore = index === 0 || pending?.has(index - 1) || index - 1 in message.segments;
      if (!hasAllBefore) return this.#closeGap(part, isReplay);
    }
    const changed = part.type === 'segment' ? replaced(part, known) : extended(part, known);
    if (changed === 'gap') return this.#closeGap(part, isReplay);
    if (changed === known || changed === undefined) return;
    const isScheduled = this.#pending.size > 0;
    this.#pending.set(message.id, (pending ?? new Map<number, AnswerSegment>()).set(index, changed));
    if (!isScheduled) this.#nextFrame(() => this.#flush());
  }

  #closeGap(part: Part, isReplay: boolean): void {
    if (isReplay) return this.#refetchSoon();
    void this.refetch();
    this.#queued?.push(part);
  }

  #flush(): void {
    for (const [id, segments] of this.#pending) {
      const message = this.messages.findLast((known) => known.id === id);
      for (const [index, segment] of segments) if (message) message.segments[index] = segment;
      if (this.prefill?.message_id === id) this.prefill = null;
    }
    this.#pending.clear();
  }

  #nextFrame(run: () => void): void {
    (this.#options.nextFrame ?? requestAnimationFrame)(run);
  }

  /** Waits before fetching again: doing so at once could meet the same gap again. */
  #refetchSoon(): void {
    this.#retry ??= setTimeout(() => void this.refetch(), REFETCH_WAIT_MS);
  }
}

/** An answer whose parts are watched while it is written. */
function watched(message: Message): Message {
  if (message.status !== 'streaming') return message;
  const growing = $state(message);
  return growing;
}

function replaced({ segment }: Whole, known: AnswerSegment | undefined): AnswerSegment | undefined {
  return isOlder(segment, known) ? known : segment;
}

function extended({ offset, text }: Delta, known: AnswerSegment | undefined): AnswerSegment | 'gap' {
  const length = known ? growing(known).length : 0;
  if (!known || offset > length) return 'gap';
  // Around a refetch the same text may arrive twice: only what is beyond the known length is new.
  return offset + text.length <= length ? known : grown(known, text.slice(length - offset));
}
