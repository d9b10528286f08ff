// Whoever calls the platform may know it; it knows no store and no component.
import { expect, test } from 'vitest';

const modules = import.meta.glob<string>(['./*.ts', '!./*.test.ts'], { query: '?raw', import: 'default', eager: true });
/** The words, and what is pure. */
const ALLOWED = ['../text', '../documents/sources', '../ui/shortcuts'];

test('the platform imports what is below it', () => {
  const imported = Object.entries(modules).flatMap(([file, text]) =>
    [...text.matchAll(/from '(\.\.\/[^']+)'/g)].map(([, path]) => ({ file, path })),
  );
  expect(imported.length).toBeGreaterThan(0);
  expect(imported.filter(({ path }) => !ALLOWED.includes(path ?? ''))).toEqual([]);
});
