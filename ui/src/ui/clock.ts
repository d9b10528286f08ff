// A timer that tests replace by their own.

/** Runs something later; the returned function forgets it. */
export type After = (milliseconds: number, run: () => void) => () => void;

export const after: After = (milliseconds, run) => {
  const timer = setTimeout(run, milliseconds);
  return () => clearTimeout(timer);
};
