// Lines, gaps and the nearest point of a chart.
import { expect, test } from 'vitest';
import { areaOf, lineOf, nearest, scaled, scaleTop } from './sparkline';

const scale = { from: 0, to: 10, top: 20, width: 100, height: 50 };
const point = (x: number, value: number | null) => ({ x, value, words: '' });
const lines = (...points: Parameters<typeof scaled>[0]) =>
  scaled(points, scale).map((line) => line.map(({ x, y }) => [x, y]));

test.each([
  [0.7, 0.8],
  [1, 1],
  [14.1, 15],
  [20, 20],
  [164, 200],
  [864e6, 1e9],
  [2.3e9, 3e9],
])('a scale for %d ends at %d', (value, top) => {
  expect(scaleTop([point(5, value)], { ...scale, most: 0 })).toBeCloseTo(top);
});

test('a scale holds what is greatest in its time, and at least what it is said to', () => {
  const ranged = { ...point(5, 5), range: [2, 11] as const };
  expect(scaleTop([point(-1, 90), ranged, point(6, null)], { ...scale, most: 0 })).toBe(15);
  expect(scaleTop([point(5, 0)], { ...scale, most: 2 })).toBe(2);
  expect(scaleTop([point(5, 0)], { ...scale, most: 0 })).toBe(0);
});

test('the top of the scale is at the top, and zero at the bottom', () => {
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
  const ranged = scaled([{ ...point(5, 10), range: [4, 20] }], scale)[0]?.[0];
  expect(ranged).toMatchObject({ y: 25, leastY: 40, mostY: 0 });
  expect(scaled([point(5, 0)], { ...scale, top: 0 })[0]?.[0]?.y).toBe(50);
});

test('a value that is missing, and a time of which nothing is known, are gaps', () => {
  expect(lines(point(0, 1), point(1, null), point(2, 1), { ...point(3, 1), isApart: true }).length).toBe(3);
  expect(lines(point(0, null))).toEqual([]);
  expect(lines()).toEqual([]);
});

test('what lies outside of the time is left out', () => {
  expect(lines(point(-1, 9), point(5, 1), point(11, 9))).toEqual([[[50, 47.5]]]);
});

test('a single point is a dot without an area', () => {
  const [dot = []] = scaled([point(5, 20)], scale);
  expect(lineOf(dot, ({ y }) => y)).toBe('M50 0h0.01');
  expect(areaOf(dot, 50, ({ y }) => y)).toBe('');
});

test('the nearest point is found', () => {
  const points = [{ x: 0 }, { x: 4 }, { x: 10 }];
  expect([-5, 1, 3, 7, 8, 99].map((x) => nearest(points, x))).toEqual([0, 0, 1, 2, 2, 2]);
  expect(nearest([], 3)).toBe(-1);
});
