// What can be taken back.
import { expect, test } from 'vitest';
import { gate } from '../testing/fake';
import { UndoStack } from './undo';

test('the last step is taken back first, and each once', () => {
  const undo = new UndoStack();
  const taken: string[] = [];
  const first = undo.push(() => taken.push('first'));
  undo.push(() => taken.push('second'));
  expect([undo.undo(), undo.undo(), undo.undo()]).toEqual([true, true, false]);
  first();
  expect(taken).toEqual(['second', 'first']);
});

test('what is still under way is taken back when it is done, and nothing before it', async () => {
  const undo = new UndoStack();
  const taken: string[] = [];
  undo.push(() => taken.push('rename'));
  const deletion = gate<boolean>();
  undo.push(() => taken.push('deletion'), deletion.promise);
  undo.undo();
  expect(taken).toEqual([]);
  deletion.open(true);
  await deletion.promise;
  await Promise.resolve();
  expect(taken).toEqual(['deletion']);
});

test('what was typed since is taken back before the last step', () => {
  const undo = new UndoStack();
  expect(undo.isNewest).toBe(false);
  undo.push(() => {});
  expect(undo.isNewest).toBe(true);
  undo.isNewest = false;
  undo.push(() => {});
  undo.undo();
  expect(undo.isNewest).toBe(true);
  undo.undo();
  expect(undo.isNewest).toBe(false);
});

test('what failed cannot be taken back', async () => {
  const undo = new UndoStack();
  const taken: string[] = [];
  undo.push(() => taken.push('rename'));
  undo.push(() => taken.push('deletion'), Promise.resolve(false));
  await Promise.resolve();
  await Promise.resolve();
  undo.undo();
  expect(taken).toEqual(['rename']);
});
