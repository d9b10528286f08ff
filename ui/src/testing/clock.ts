// A clock that a test turns by hand.
import type { After } from '../ui/clock';

export class FakeClock {
  #waiting: { milliseconds: number; run: () => void }[] = [];

  readonly after: After = (milliseconds, run) => {
    const entry = { milliseconds, run };
    this.#waiting.push(entry);
    return () => (this.#waiting = this.#waiting.filter((other) => other !== entry));
  };

  /** What is being waited for. */
  get waits(): number[] {
    return this.#waiting.map(({ milliseconds }) => milliseconds);
  }

  /** Lets all of it happen. */
  run(): void {
    const due = this.#waiting;
    this.#waiting = [];
    for (const { run } of due) run();
  }
}
