// Which long answers a person has folded. They stay folded when the app is opened again.
import { stored } from '../platform/stored';

const KEY = 'cairn.folded-answers';
/** More than anybody folds; the oldest are forgotten. */
const MOST = 1000;
/** An answer with more lines is long; of a text without line breaks about as many fit in the column. */
const MOST_LINES = 120;
const CHARS_IN_LINE = 84;

type Memory = Pick<Storage, 'getItem' | 'setItem'>;

/** Owns the ids of the folded answers. */
export class FoldedAnswers {
  #ids = $state.raw<ReadonlySet<string>>(new Set());
  /** Of private chats, which leave nothing behind. */
  readonly #private = new Set<string>();
  readonly #memory: Memory | undefined;

  constructor(memory: Memory | undefined) {
    this.#memory = memory;
    const ids: unknown = stored(memory, KEY);
    if (Array.isArray(ids)) this.#ids = new Set(ids.filter((id) => typeof id === 'string'));
  }

  has(id: string): boolean {
    return this.#ids.has(id);
  }

  fold(id: string, isFolded: boolean, isPrivate: boolean): void {
    if (isPrivate) this.#private.add(id);
    const others = [...this.#ids].filter((other) => other !== id);
    this.#ids = new Set(isFolded ? [...others, id].slice(-MOST) : others);
    this.#memory?.setItem(KEY, JSON.stringify([...this.#ids].filter((one) => !this.#private.has(one))));
  }
}

/** Whether an answer is so long that it can be folded. */
export function isLongAnswer(text: string): boolean {
  if (text.length > MOST_LINES * CHARS_IN_LINE) return true;
  let lines = 0;
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) if (++lines >= MOST_LINES) return true;
  return false;
}
