// Where the token comes from, and that it does not stay in the address.
import { beforeEach, expect, test } from 'vitest';
import { takeToken } from './token';

beforeEach(() => sessionStorage.clear());

test.each<[name: string, hash: string, kept: string | null, token: string | null, isReplaced: boolean]>([
  ['a fresh address', '#token=abc-_1', null, 'abc-_1', true],
  ['a fresh address over an old token', '#token=new', 'old', 'new', true],
  ['a reload', '', 'old', 'old', false],
  ['nothing', '', null, null, false],
  ['an empty token', '#token=', null, null, false],
  ['another fragment', '#about', null, null, false],
])('%s', (_, hash, kept, token, isReplaced) => {
  if (kept) sessionStorage.setItem('cairn.token', kept);
  const shown: unknown[] = [];
  const history = { replaceState: (_data: unknown, _title: string, url?: string | URL | null) => void shown.push(url) };
  expect(takeToken({ hash, pathname: '/chat', search: '?x=1' }, history, sessionStorage)).toBe(token);
  expect(shown).toEqual(isReplaced ? ['/chat?x=1'] : []);
  expect(sessionStorage.getItem('cairn.token')).toBe(token);
});
