// What the rows and the pace of a job say, in the figures that the page shows. Pure.
import type { Job, JobOption, JobQuestion, JobRow } from '../platform/wire';
import { strings } from '../text';

/** A probability below this is marked: the answer should be looked at. */
export const UNSURE_BELOW = 0.7;

/** The name of each option; a predicate has no and yes, in this order. */
export function labelsOf({ kind, options }: JobQuestion): string[] {
  return kind === 'predicate' ? [strings.jobs.no, strings.jobs.yes] : options.map(({ label }) => label);
}

export interface Answer {
  option: number;
  probability: number;
  /** How far it is before the next one. */
  margin: number;
}

/** The likeliest option; null until the row is answered. */
export function answerOf({ probabilities }: Pick<JobRow, 'probabilities'>): Answer | null {
  if (!probabilities || probabilities.length === 0) return null;
  const sorted = probabilities.toSorted((a, b) => b - a);
  const probability = sorted[0] ?? 0;
  return { option: probabilities.indexOf(probability), probability, margin: probability - (sorted[1] ?? 0) };
}

/** How many seconds the rest takes, rounded up to 5; null while that is not known. */
export function secondsLeft(job: Job): number | null {
  if (job.state !== 'running' || !job.rows_per_second) return null;
  const seconds = (job.num_rows - job.num_answered - job.num_failed) / job.rows_per_second;
  return Math.max(5, Math.ceil(seconds / 5) * 5);
}

/** Options as they are written, one a line, each with what it stands for behind a colon. */
export function optionsFrom(lines: string): JobOption[] {
  const written = lines.split('\n').map((line) => line.trim());
  return written.filter(Boolean).map((line) => {
    const [label = '', ...rest] = line.split(':');
    const description = rest.join(':').trim();
    return { label: label.trim(), description: description || null };
  });
}

/** What a job does now. */
export function stateWords(job: Job): string {
  return strings.jobs.state[job.is_waiting ? 'waiting' : job.state];
}
