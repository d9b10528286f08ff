// How likely the tokens of one answer were: what is shown of that, and the walk through it.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Event, LikelyToken, Message, TokenProbability } from '../platform/wire';
import { strings } from '../text';

/** A token below this was no sure one: another was at least as likely, or many others together. */
export const UNSURE = 0.5;

export type ProbabilityState =
  | { type: 'reading'; processed: number; total: number }
  | { type: 'read'; model: string; tokens: TokenProbability[]; count: number }
  | { type: 'not_loaded'; model: string }
  | { type: 'no_model'; model: string }
  | { type: 'no_tokens' }
  | { type: 'failed'; why: string };

/** A choice at a place: one of the likeliest tokens, or the one that stands there and is not among them. */
export interface Choice extends LikelyToken {
  isChosen: boolean;
}

type Progress = Extract<Event, { type: 'probabilities_read' }>;

/** Owns the probability view: at most one answer is looked at. */
export class ProbabilityStore {
  message = $state.raw<Message | null>(null);
  state = $state.raw<ProbabilityState>({ type: 'reading', processed: 0, total: 0 });
  /** The place of the token that is looked at. */
  at = $state(0);
  /** The place in its choices. */
  choiceAt = $state(0);

  readonly #platform: Platform;
  #readId = '';

  /** Whether there is something to tell beside the text, now or soon. */
  readonly hasPanel = $derived(this.message !== null && (this.state.type === 'reading' || this.state.type === 'read'));
  readonly tokens = $derived(this.state.type === 'read' ? this.state.tokens : []);
  readonly token = $derived(this.tokens[this.at]);
  readonly choices = $derived(this.token ? choicesOf(this.token) : []);
  readonly choice = $derived(this.choices[this.choiceAt]);
  readonly unsure = $derived(this.tokens.flatMap(({ probability }, index) => (probability < UNSURE ? [index] : [])));

  constructor(platform: Platform) {
    this.#platform = platform;
  }

  isOf(id: string): boolean {
    return this.message?.id === id;
  }

  async open(message: Message): Promise<void> {
    this.close();
    this.message = message;
    await this.read(false);
  }

  /** Closes the view unless its answer is among these messages and has ended. */
  keep(messages: readonly Message[]): void {
    const { message } = this;
    if (message && !messages.some(({ id, status }) => id === message.id && status !== 'streaming')) this.close();
  }

  /** Closes the view; what is still being read is not needed any more. */
  close(): void {
    const isReading = this.message !== null && this.state.type === 'reading';
    const read_id = this.#readId;
    this.#readId = '';
    this.message = null;
    if (isReading) this.#platform.call({ type: 'stop_probabilities', read_id }).catch(() => undefined);
  }

  /** Asks for the probabilities, with the model that wrote the answer loaded for it if that is wanted. */
  async read(loads_model: boolean): Promise<void> {
    const { message } = this;
    if (!message) return;
    const read_id = `${message.id}:${Math.random().toString(36).slice(2)}`;
    this.#readId = read_id;
    this.state = { type: 'reading', processed: 0, total: 0 };
    let state: ProbabilityState | null;
    try {
      const { conversation_id, id: message_id } = message;
      const reply = await this.#platform.call({
        type: 'get_probabilities',
        conversation_id,
        message_id,
        read_id,
        loads_model,
      });
      if (reply.type !== 'probabilities') throw new Error(strings.connection.unexpectedReply);
      const { probabilities } = reply;
      if (probabilities.type === 'read') {
        const { model, tokens, num_tokens } = probabilities;
        state = { type: 'read', model, tokens, count: num_tokens };
      } else state = probabilities.type === 'stopped' ? null : probabilities;
    } catch (error) {
      state = { type: 'failed', why: sentenceOf(error) };
    }
    if (this.#readId !== read_id) return;
    if (state === null) return this.close();
    this.state = state;
    this.go(this.unsure[0] ?? 0);
  }

  receive({ read_id, processed_tokens, total_tokens }: Progress): void {
    if (read_id !== this.#readId || this.state.type !== 'reading') return;
    this.state = { type: 'reading', processed: processed_tokens, total: total_tokens };
  }

  /** Looks at a token. */
  go(index: number): void {
    this.at = Math.max(0, Math.min(this.tokens.length - 1, index));
    this.choiceAt = Math.max(
      0,
      this.choices.findIndex(({ isChosen }) => isChosen),
    );
  }

  /** Looks at the next unsure token, or with -1 at the one before. */
  goToUnsure(step: 1 | -1): void {
    const next =
      step > 0 ? this.unsure.find((index) => index > this.at) : this.unsure.findLast((index) => index < this.at);
    if (next !== undefined) this.go(next);
  }

  /** Moves among the choices. */
  choose(step: number): void {
    this.choiceAt = Math.max(0, Math.min(this.choices.length - 1, this.choiceAt + step));
  }
}

/** The likeliest tokens, and the one that stands there if it is none of them. */
function choicesOf(token: TokenProbability): Choice[] {
  const choices = token.likeliest.map((other) => ({ ...other, isChosen: other.token === token.token }));
  if (choices.some(({ isChosen }) => isChosen)) return choices;
  const { text, probability, ends_answer } = token;
  return [...choices, { token: token.token, text, probability, ends_answer, isChosen: true }];
}

/** Why a version cannot go on from a choice; null: it can. */
export function whyNot(choice: Choice): string | null {
  if (choice.isChosen) return strings.probabilities.isChosen;
  return choice.ends_answer ? strings.probabilities.wouldEnd : null;
}

/** 0 to 3: how unsure a token was. Lines tell it to those who see no colours. */
export function unsureness(probability: number): number {
  if (probability >= 0.9) return 0;
  if (probability >= UNSURE) return 1;
  return probability >= 0.2 ? 2 : 3;
}

/** At most `most` numbers: of each part of the answer the least probability. */
export function lowest(tokens: readonly TokenProbability[], most: number): number[] {
  const size = Math.max(1, Math.ceil(tokens.length / most));
  const parts: number[] = [];
  tokens.forEach(({ probability }, index) => {
    const part = Math.floor(index / size);
    parts[part] = Math.min(parts[part] ?? 1, probability);
  });
  return parts;
}

/** A text of which every character can be seen. */
export function visible(text: string): string {
  const shown = text.replaceAll('\n', '↵').replaceAll('\t', '⇥') || '·';
  return shown.trim() === '' ? shown.replaceAll(' ', '␣') : shown;
}
