// From figures to lines: gaps, what stays, and clocks that jump.
import { expect, test } from 'vitest';
import { monitorDay, monitorPoint, monitorSpan } from '../testing/fake';
import { median, rowsDay, rowsNow, seriesDay, seriesNow, valuesOf } from './series';

test('the last minutes follow the clock that does not jump', () => {
  const points = [
    monitorPoint(0, { writing_tps: 20 }),
    monitorPoint(1, { at_ms: 5, writing_tps: 30 }),
    monitorPoint(2),
    // The machine slept.
    monitorPoint(200, { writing_tps: 40 }),
  ];
  const { points: drawn, from, to } = seriesNow(points, 'writing');
  expect(drawn.map(({ x, value, isApart }) => [x, value, isApart])).toEqual([
    [0, 20, false],
    [1000, 30, false],
    [2000, null, false],
    [200_000, 40, true],
  ]);
  expect([from, to]).toEqual([-100_000, 200_000]);
  expect(drawn[0]?.words).toMatch(/: 20\.0 tok\/s$/);
  expect(seriesNow([], 'memory').points).toEqual([]);
});

test('nothing read is not a share of nothing, and nobody waiting is a value', () => {
  const points = [monitorPoint(0), monitorPoint(1, { prompt_tokens: 200, cached_tokens: 50, num_waiting: 2 })];
  expect(valuesOf(seriesNow(points, 'fromSaved'))).toEqual([0.25]);
  expect(valuesOf(seriesNow(points, 'waiting'))).toEqual([0, 2]);
});

test('memory of the day stays until it is noted again, and is unknown while Cairn was closed', () => {
  const day = monitorDay({
    spans: [
      monitorSpan(10, { begins_run: true }),
      monitorSpan(50),
      monitorSpan(60, { process_bytes: null, mlx_active_bytes: null, prompt_tokens: 5 }),
      monitorSpan(90, { begins_run: true }),
    ],
  });
  const { points } = seriesDay(day, 'memory');
  expect(points.map(({ x, isApart }) => [x / 600_000, isApart])).toEqual([
    [10.5, true],
    [50.5, false],
    [90.5, true],
    [144, false],
  ]);
  expect(points[0]).toMatchObject({ value: 600e6, part: 250e6 });
});

test('speeds of the day have a range, and a gap where nothing was done', () => {
  const rate = { least: 10, mean: 20, most: 30 };
  const day = monitorDay({
    spans: [monitorSpan(0, { writing_tps: rate }), monitorSpan(1), monitorSpan(9, { writing_tps: rate })],
  });
  const { points, from, to } = seriesDay(day, 'writing');
  expect(points.map(({ value, isApart }) => [value, isApart])).toEqual([
    [20, true],
    [null, false],
    [20, true],
  ]);
  expect([from, to]).toEqual([0, 86_400_000]);
  expect(points[0]).toMatchObject({ range: [10, 30] });
  expect(points[0]?.words).toContain('20.0 tok/s, 10.0 tok/s to 30.0 tok/s');
});

test('the tables have the newest first, and of the last minutes only one', () => {
  const points = Array.from({ length: 100 }, (_, second) => monitorPoint(second));
  expect(rowsNow(points).map(({ key }) => key)).toEqual(
    points
      .map(({ number }) => number)
      .slice(39)
      .toReversed(),
  );
  const [newest] = rowsDay(
    monitorDay({ spans: [monitorSpan(1), monitorSpan(2, { prompt_tokens: 4, cached_tokens: 1 })] }),
  );
  expect(newest?.cells).toEqual(['600 MB, 250 MB of it MLX', '–', '–', '–', 'None', '25%']);
});

test('the median is a value that was measured', () => {
  expect([median([]), median([3]), median([5, 1, 9])]).toEqual([null, 3, 5]);
});
