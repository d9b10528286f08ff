// Jobs for tests.
import type { Job, JobCharts, JobRow } from '../platform/wire';

export function job(id: string, change: Partial<Job> = {}): Job {
  return {
    id,
    name: `Job ${id}`,
    model: 'owner/model',
    question: { instructions: 'Is it a stone?', kind: 'predicate', options: [] },
    state: 'running',
    reason: null,
    temperature: null,
    created_at_ms: 1,
    num_rows: 100,
    num_answered: 0,
    num_failed: 0,
    num_corrected: 0,
    is_set_aside: false,
    is_waiting: false,
    rows_per_second: null,
    ...change,
  };
}

export function jobRow(position: number, change: Partial<JobRow> = {}): JobRow {
  return { position, text: `Text ${position}`, probabilities: [0.25, 0.75], correction: null, error: null, ...change };
}

export const charts: JobCharts = { histogram: Array<number>(20).fill(0), quality: null, calibrated: null };
