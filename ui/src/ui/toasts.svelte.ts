// Short-lived messages in a corner, each with an action or two.

export type ToastTone = 'info' | 'warning' | 'error';

export interface Toast {
  id: number;
  tone: ToastTone;
  text: string;
  actions: readonly ToastAction[];
  topic?: string;
}

export interface ToastAction {
  label: string;
  run: () => void;
  /** The question that it answers: `settle` dismisses the toast once that is answered elsewhere. */
  decides?: string;
  /** Whether it would change anything now; without this it always does. */
  isNeeded?: () => boolean;
}

export interface ToastOptions {
  actions?: readonly ToastAction[];
  milliseconds?: number;
  /** A toast replaces the one before it on the same topic. */
  topic?: string;
}

const SHORT_MS = 6000;
const LONG_MS = 12_000;

/** Owns the toasts on screen. Their clocks stop while the pointer or the focus is on them. */
export class Toasts {
  items = $state<Toast[]>([]);
  #nextId = 1;
  #clocks = new Map<number, { timer: ReturnType<typeof setTimeout> | undefined; milliseconds: number }>();

  show(tone: ToastTone, text: string, options: ToastOptions = {}): number {
    // The same sentence twice is one message, with its clock started again.
    const { actions = [], topic } = options;
    const outdated = topic === undefined ? undefined : this.items.find((item) => item.topic === topic);
    if (outdated) this.dismiss(outdated.id);
    const isSame = (item: Toast) => item.text === text && item.tone === tone && item.actions.length === 0;
    const twin = actions.length === 0 ? this.items.find(isSame) : undefined;
    if (twin) {
      this.#wind(twin.id);
      return twin.id;
    }
    const id = this.#nextId++;
    this.items.push({ id, tone, text, actions, topic });
    this.#clocks.set(id, {
      timer: undefined,
      milliseconds: options.milliseconds ?? (tone === 'info' ? SHORT_MS : LONG_MS),
    });
    this.#wind(id);
    return id;
  }

  dismiss(id: number): void {
    clearTimeout(this.#clocks.get(id)?.timer);
    this.#clocks.delete(id);
    this.items = this.items.filter((item) => item.id !== id);
  }

  /** Dismisses the toasts that ask what has been decided elsewhere. */
  settle(question: string): void {
    const asks = ({ actions }: Toast) => actions.some(({ decides }) => decides === question);
    for (const { id } of this.items.filter(asks)) this.dismiss(id);
  }

  /** Dismisses all: they were said in the language that the window had. What they offer to take back, the shortcut still does. */
  clear(): void {
    for (const { id } of this.items) this.dismiss(id);
  }

  act(id: number, index = 0): void {
    const toast = this.items.find((item) => item.id === id);
    this.dismiss(id);
    toast?.actions[index]?.run();
  }

  hold(): void {
    for (const clock of this.#clocks.values()) clearTimeout(clock.timer);
  }

  release(): void {
    for (const id of this.#clocks.keys()) this.#wind(id);
  }

  #wind(id: number): void {
    const clock = this.#clocks.get(id);
    if (!clock) return;
    clearTimeout(clock.timer);
    clock.timer = setTimeout(() => this.dismiss(id), clock.milliseconds);
  }
}
