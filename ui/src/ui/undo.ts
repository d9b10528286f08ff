// What can be taken back, the last thing first.

type Step = () => void;

/** How long a message offers to take back what it tells of, in milliseconds. */
export const UNDO_MS = 8000;

/** Longer ago than this many steps, nobody remembers what would come back. */
const MOST_STEPS = 20;

/** Owns the steps. Each is run at most once: by its message's button, or by the shortcut. */
export class UndoStack {
  #steps: Step[] = [];
  /** Whether nothing was typed into the message field since the last step was added. */
  isNewest = false;

  /**
   * Adds a step; the returned function runs it, unless it has run. What the window already shows may still be under way:
   * then the step waits until it `isDone`, and goes if that says false.
   */
  push(run: Step, isDone?: Promise<boolean>): () => void {
    const step = () => {
      if (!this.#steps.includes(step)) return;
      this.#drop(step);
      if (isDone) void isDone.then((done) => done && run());
      else run();
    };
    this.#steps = [...this.#steps.slice(1 - MOST_STEPS), step];
    this.isNewest = true;
    void isDone?.then((done) => done || this.#drop(step));
    return step;
  }

  /** Takes a step away that `push` has returned: what it would bring back has nowhere to go any more. */
  forget(step: Step): void {
    this.#drop(step);
    this.isNewest &&= this.#steps.length > 0;
  }

  #drop(step: Step): void {
    this.#steps = this.#steps.filter((other) => other !== step);
  }

  /** Takes back the last thing; returns whether there was any. */
  undo(): boolean {
    const last = this.#steps.at(-1);
    last?.();
    this.isNewest = this.#steps.length > 0;
    return last !== undefined;
  }
}
