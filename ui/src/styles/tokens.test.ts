// Components take colours, sizes and radii from the tokens, and the tokens keep text readable.
import { expect, test } from 'vitest';
import tokens from './tokens.css?raw';

const components = import.meta.glob<string>('../**/*.svelte', { query: '?raw', import: 'default', eager: true });

/** Colours, sizes of type and radii that a component writes down itself. */
const OWN_VALUES = [
  /#[\da-f]{3,8}\b/gi,
  /\b(rgb|hsl|oklch)a?\(/gi,
  /font-size:[^;]*\d(px|rem)/gi,
  /border-radius:(?![^;]*var\()[^;]*\d+px/gi,
  /font-weight: (?!400|500|600|inherit)\d+/gi,
];

function ownValuesIn(source: string): string[] {
  const style = /<style>(.*)<\/style>/s.exec(source)?.[1] ?? '';
  return OWN_VALUES.flatMap((pattern) => style.match(pattern) ?? []);
}

test.each(Object.entries(components))('%s names roles, not values', (_, source) => {
  expect(ownValuesIn(source)).toEqual([]);
});

test('own values are found', () => {
  const style = 'a { color: #fff; border-radius: 7px; font-size: 12.5px; font-weight: 650; background: rgb(0 0 0) }';
  expect(ownValuesIn(`<style>${style}</style>`)).toEqual([
    '#fff',
    'rgb(',
    'font-size: 12.5px',
    'border-radius: 7px',
    'font-weight: 650',
  ]);
});

/** The light and the dark value of a token, in the block that begins with `selector`. */
function valuesOf(token: string, block: string): [string, string] {
  const found = new RegExp(`--${token}: light-dark\\((#[\\da-f]{6}), (#[\\da-f]{6})\\)`).exec(block);
  if (!found?.[1] || !found[2]) throw new Error(`--${token} is no pair of colours`);
  return [found[1], found[2]];
}

function luminance(colour: string): number {
  const channels = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  const [red = 0, green = 0, blue = 0] = channels.map((value) =>
    value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one: string, other: string): number {
  const [light = 0, dark = 0] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

const TEXT = ['text', 'quiet', 'saved', 'tight', 'danger'];
const GROUNDS = ['paper', 'raised', 'side', 'bubble'];
const pairs: [string, string, number][] = [
  ...TEXT.flatMap((text) => GROUNDS.map((ground): [string, string, number] => [text, ground, 4.5])),
  ...['keyword', 'string', 'number', 'title', 'type'].map((name): [string, string, number] => [
    `code-${name}`,
    'raised',
    4.5,
  ]),
  ['saved', 'saved-soft', 4.5],
  ['on-ink', 'ink', 4.5],
  // What is no text: edges of fields, the ring of the focus, meters.
  ['edge', 'raised', 3],
  ['focus', 'paper', 3],
  ['stone-1', 'raised', 3],
];

test.each(pairs)('%s on %s has a contrast of at least %d', (text, ground, least) => {
  const [texts, grounds] = [valuesOf(text, tokens), valuesOf(ground, tokens)];
  for (const theme of [0, 1] as const) expect(contrast(texts[theme], grounds[theme])).toBeGreaterThanOrEqual(least);
});
