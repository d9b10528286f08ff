// How long the rest of something takes, from how fast it went so far.

/** Before this nobody knows how fast it goes. */
const LEAST_MEASURED_MS = 1500;
/** Time left is rounded up to this. */
const STEP_SECONDS = 5;

/** Of one thing that is under way. What it says never grows. */
export class TimeLeft {
  #begun: { at: number; done: number } | null = null;
  #seconds: number | null = null;

  constructor(private readonly now: () => number = () => performance.now()) {}

  /** The seconds that the rest still takes, once that is known. */
  measure(done: number, total: number): number | null {
    this.#begun ??= { at: this.now(), done };
    const milliseconds = this.now() - this.#begun.at;
    const since = done - this.#begun.done;
    if (milliseconds < LEAST_MEASURED_MS || since <= 0) return this.#seconds;
    const exact = ((total - done) * milliseconds) / since / 1000;
    const rounded = Math.max(STEP_SECONDS, Math.ceil(exact / STEP_SECONDS) * STEP_SECONDS);
    this.#seconds = Math.min(this.#seconds ?? rounded, rounded);
    return this.#seconds;
  }
}
