// Which long answers a person has folded. They stay folded when the app is opened again.
import { stored } from '../platform/stored';

const KEY = 'cairn.folded-answers';
/** More than anybody folds; the oldest are forgotten. */
const MOST = 1000;
/** An answer with more lines is long; of a text without line breaks about as many fit in the column. */
const MOST_LINES = 120;
const CHARS_IN_LINE = 84;

type Memory = Pick<Storage, 'getItem' | 'setItem'>;

/** An answer, and the chat that it goes with. */
export interface AnswerPlace {
  id: string;
  chatId: string;
  /** A private chat leaves nothing behind. */
  isPrivate: boolean;
}

/** Owns the folded answers. */
export class FoldedAnswers {
  /** Their chats, by their ids; the oldest first. */
  #chats = $state.raw<ReadonlyMap<string, string>>(new Map());
  /** Chats of which nothing is written: private ones, and deleted ones, which *Undo* brings back as they were. */
  readonly #unwritten = new Set<string>();
  readonly #memory: Memory | undefined;

  constructor(memory: Memory | undefined) {
    this.#memory = memory;
    const kept: unknown = stored(memory, KEY);
    // A list without the chats, which an earlier version wrote, could never be cleared.
    if (Array.isArray(kept)) this.#chats = new Map(kept.filter(isEntry).slice(-MOST));
  }

  has(id: string): boolean {
    return this.#chats.has(id);
  }

  fold({ id, chatId, isPrivate }: AnswerPlace, isFolded: boolean): void {
    if (isPrivate) this.#unwritten.add(chatId);
    const others = [...this.#chats].filter(([other]) => other !== id);
    this.#chats = new Map(isFolded ? [...others, [id, chatId] as const].slice(-MOST) : others);
    this.#write();
  }

  /** A chat was deleted: nothing of it stays behind. */
  forget(chatId: string): void {
    if (![...this.#chats.values()].includes(chatId)) return;
    this.#unwritten.add(chatId);
    this.#write();
  }

  /** A chat is there, perhaps again. */
  restore(chatId: string, isPrivate: boolean): void {
    if (!isPrivate && this.#unwritten.delete(chatId)) this.#write();
  }

  /** Forgets the answers of all other chats: these were deleted while the window was closed. */
  keep(chatIds: string[]): void {
    const wanted = new Set(chatIds);
    const left = [...this.#chats].filter(([, chatId]) => wanted.has(chatId));
    if (left.length === this.#chats.size) return;
    this.#chats = new Map(left);
    this.#write();
  }

  #write(): void {
    const written = [...this.#chats].filter(([, chatId]) => !this.#unwritten.has(chatId));
    this.#memory?.setItem(KEY, JSON.stringify(written));
  }
}

function isEntry(entry: unknown): entry is [id: string, chatId: string] {
  return Array.isArray(entry) && entry.length === 2 && entry.every((one) => typeof one === 'string');
}

/** Whether an answer is so long that it can be folded. */
export function isLongAnswer(text: string): boolean {
  if (text.length > MOST_LINES * CHARS_IN_LINE) return true;
  let lines = 0;
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) if (++lines >= MOST_LINES) return true;
  return false;
}
