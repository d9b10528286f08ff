// Lines, gaps and the nearest point of a chart.
import { expect, test } from 'vitest';
import { areaOf, lineOf, nearest, scaled } from './sparkline';

const scale = { from: 0, to: 10, most: 0, width: 100, height: 50 };
const point = (x: number, value: number | null) => ({ x, value, words: '' });
const lines = (...points: Parameters<typeof scaled>[0]) =>
  scaled(points, scale).map((line) => line.map(({ x, y }) => [x, y]));

test('the greatest value is at the top, and zero at the bottom', () => {
  expect(lines(point(0, 0), point(5, 10), point(10, 20))).toEqual([
    [
      [0, 50],
      [50, 25],
      [100, 0],
    ],
  ]);
  expect(lines(point(0, 0), point(10, 0))).toEqual([
    [
      [0, 50],
      [100, 50],
    ],
  ]);
  const ranged = scaled([{ ...point(5, 5), range: [2, 10] }], scale)[0]?.[0];
  expect(ranged).toMatchObject({ y: 25, leastY: 40, mostY: 0 });
  expect(scaled([point(5, 5)], { ...scale, most: 50 })[0]?.[0]?.y).toBe(45);
});

test('a value that is missing, and a time of which nothing is known, are gaps', () => {
  expect(lines(point(0, 1), point(1, null), point(2, 1), { ...point(3, 1), isApart: true }).length).toBe(3);
  expect(lines(point(0, null))).toEqual([]);
  expect(lines()).toEqual([]);
});

test('what lies outside of the time is left out', () => {
  expect(lines(point(-1, 9), point(5, 1), point(11, 9))).toEqual([[[50, 0]]]);
});

test('a single point is a dot without an area', () => {
  const [dot = []] = scaled([point(5, 1)], scale);
  expect(lineOf(dot, ({ y }) => y)).toBe('M50 0h0.01');
  expect(areaOf(dot, 50, ({ y }) => y)).toBe('');
});

test('the nearest point is found', () => {
  const points = [{ x: 0 }, { x: 4 }, { x: 10 }];
  expect([-5, 1, 3, 7, 8, 99].map((x) => nearest(points, x))).toEqual([0, 0, 1, 2, 2, 2]);
  expect(nearest([], 3)).toBe(-1);
});
