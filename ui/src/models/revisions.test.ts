// Versions of models: when the hub is asked, and that a removal can be undone.
import { expect, test, vi } from 'vitest';
import type { Reply } from '../platform/wire';
import { FakePlatform, gate, settle } from '../testing/fake';
import { Toasts } from '../ui/toasts.svelte';
import { UndoStack } from '../ui/undo';
import { RevisionStore } from './revisions.svelte';

const HOUR = 3_600_000;
const found = (...names: string[]): Reply => ({
  type: 'model_updates',
  updates: names.map((name) => ({ name, bytes: 5e8 })),
  failure: null,
});

function open(isFromHub = true) {
  const platform = new FakePlatform();
  const clock = { now: 0 };
  const [toasts, undo, report] = [new Toasts(), new UndoStack(), vi.fn()];
  const revisions = new RevisionStore({
    platform,
    toasts,
    undo,
    report,
    isFromHub: () => isFromHub,
    now: () => clock.now,
  });
  return { clock, platform, report, revisions, toasts, undo };
}

test('the hub is asked when the page is opened, and again only after an hour or by the button', async () => {
  const { clock, platform, revisions, toasts } = open();
  expect(platform.asked).toEqual([]);
  platform.answers.get_model_updates = found('o/a');
  await Promise.all([revisions.look(), revisions.look()]);
  clock.now = HOUR - 1;
  await revisions.look();
  expect([platform.asked.length, revisions.updates.get('o/a')]).toEqual([1, 5e8]);
  clock.now = HOUR;
  await revisions.look();
  await revisions.check();
  expect([platform.asked.length, toasts.items.length]).toEqual([3, 0]);
  revisions.arrived('o/a');
  expect(revisions.updates.size).toBe(0);
  platform.answers.get_model_updates = found();
  await revisions.check();
  expect(toasts.items[0]?.text).toBe('No newer versions were found.');
});

test('only what the person asks is shown as being asked, and it waits for what the page has asked already', async () => {
  const { platform, revisions, toasts } = open();
  const opened = gate<Reply>();
  platform.answers.get_model_updates = opened.promise;
  void revisions.look();
  expect(revisions.isAsking).toBe(false);
  const isChecked = revisions.check();
  expect(revisions.isAsking).toBe(true);
  opened.open(found());
  await isChecked;
  expect([revisions.isAsking, platform.asked.length, toasts.items.length]).toEqual([false, 1, 1]);
});

test('where no model comes from the hub, it is not said that it has nothing newer', async () => {
  const { platform, revisions, toasts } = open(false);
  platform.answers.get_model_updates = found();
  await revisions.check();
  expect(toasts.items[0]?.text).toMatch(/^No model on this computer comes from the hub/);
});

test('a hub that does not answer is silent until a person asks', async () => {
  const { platform, report, revisions, toasts } = open();
  const failure = { code: 'offline' as const, message: 'No route.' };
  platform.answers.get_model_updates = { type: 'model_updates', updates: [], failure };
  await revisions.look();
  expect([revisions.updates.size, toasts.items.length, report.mock.calls.length]).toEqual([0, 0, 0]);
  await revisions.check();
  expect([toasts.items.length, report.mock.calls]).toEqual([0, [[new Error('No route.')]]]);
});

test('older versions that were removed can be brought back', async () => {
  const { platform, report, revisions, undo } = open();
  const answer = (count: number): Reply => ({
    type: 'old_revisions',
    revisions: { name: 'o/a', count, bytes: count * 1e9 },
  });
  platform.answers.get_old_revisions = answer(2);
  await revisions.loadOld('o/a');
  expect(revisions.old.get('o/a')?.count).toBe(2);
  platform.answers.get_old_revisions = answer(0);
  await revisions.removeOld('o/a');
  expect(revisions.old.get('o/a')?.count).toBe(0);
  platform.answers.get_old_revisions = answer(2);
  undo.undo();
  await settle();
  expect(platform.askedTypes()).toContain('restore_old_revisions');
  expect(revisions.old.get('o/a')?.count).toBe(2);

  platform.answers.remove_old_revisions = new Error('It is being downloaded.');
  await revisions.removeOld('o/a');
  expect(report).toHaveBeenCalledOnce();
});
