// The figures of the monitor: samples of memory and the last answers.
import { expect, test } from 'vitest';
import { message, stats, status } from '../testing/fake';
import { FiguresStore, median } from './figures.svelte';

test('memory is sampled at most once a second, and the chart spans the whole time', () => {
  const figures = new FiguresStore();
  const sample = (at: number) => figures.sample({ ...status, process_bytes: at }, at);
  for (const at of [0, 400, 999, 1000, 2500]) sample(at);
  expect(figures.memory.map(({ at_ms }) => at_ms)).toEqual([0, 1000, 2500]);
  for (let at = 4000; at < 2_000_000; at += 1000) sample(at);
  expect(figures.memory.length).toBeLessThanOrEqual(240);
  expect([figures.memory[0]?.at_ms, figures.memory.at(-1)?.at_ms]).toEqual([0, 1_999_000]);
});

test('an answer counts once, when it has its figures', () => {
  const figures = new FiguresStore();
  figures.add(message('a', { status: 'streaming' }));
  figures.add(message('a', { stats: stats() }));
  figures.add(message('a', { stats: stats() }));
  figures.add(message('b', { stats: stats() }));
  expect(figures.answers.map(({ messageId }) => messageId)).toEqual(['b', 'a']);
});

test('the median is a value that was measured', () => {
  expect([median([]), median([3]), median([5, 1, 9])]).toEqual([null, 3, 5]);
});
