// The settings store: whose values it shows and sets, and that it copies diagnostics.
import { expect, test, vi } from 'vitest';
import type { SettingScope } from '../platform/wire';
import { strings } from '../text';
import { FakePlatform, gate, settings as values, settle } from '../testing/fake';
import type { Reply, Settings } from '../platform/wire';
import { SettingsStore } from './settings.svelte';
import { table } from './table';

const resolved = (change: Partial<Settings>, from: Partial<Record<keyof Settings, SettingScope>>): Reply => ({
  type: 'settings',
  resolved: { settings: { ...values, ...change }, from, thinking: null },
});

function rowOf(key: keyof Settings) {
  const row = table.find((row) => row.key === key);
  if (!row) throw new Error(key);
  return row;
}

test.each(table)('the catalogue has the words of $key', ({ key, text_key, kind }) => {
  const words = strings.settings.rows[key];
  expect(text_key).toBe(`settings.rows.${key}`);
  expect(words.label).not.toBe('');
  if (kind.type === 'choice') expect(Object.keys(words.choices ?? {})).toEqual(kind.values);
});

test('a chat shows what holds for it, and where that was set', async () => {
  const platform = new FakePlatform();
  const settings = new SettingsStore(platform, vi.fn());
  settings.receive(values);
  platform.answers.get_settings = resolved(
    { temperature: 0.2, top_k: 20 },
    { temperature: 'chat', top_k: 'generation_config' },
  );
  settings.open({ type: 'chat', id: 'a' });
  expect(settings.isKnown).toBe(false);
  await settings.refresh();
  expect(platform.asked.at(-1)).toEqual({ type: 'get_settings', scope: { type: 'chat', id: 'a' } });
  expect(settings.valueOf(rowOf('temperature'))).toBe(0.2);
  const sources = (['temperature', 'top_k', 'top_p', 'appearance'] as const).map((key) =>
    settings.sourceOf(rowOf(key)),
  );
  expect(sources).toEqual(['chat', 'generation_config', 'default', null]);
});

test('a value of a chat is shown at once, and taken back when it cannot be saved', async () => {
  const platform = new FakePlatform();
  const report = vi.fn();
  const settings = new SettingsStore(platform, report);
  settings.receive(values);
  platform.answers.get_settings = resolved({}, {});
  settings.open({ type: 'chat', id: 'a' });
  await settings.refresh();
  const saving = gate<Reply>();
  platform.answers.set_setting = saving.promise;
  const done = settings.set('top_p', 0.5);
  const shown = () => [settings.valueOf(rowOf('top_p')), settings.sourceOf(rowOf('top_p')), settings.current?.top_p];
  expect(shown()).toEqual([0.5, 'chat', 0.95]);
  expect(platform.asked.at(-1)).toEqual({
    type: 'set_setting',
    scope: { type: 'chat', id: 'a' },
    key: 'top_p',
    value: 0.5,
  });
  saving.open(resolved({ top_p: 0.5 }, { top_p: 'chat' }));
  await done;
  expect(shown()).toEqual([0.5, 'chat', 0.95]);

  platform.answers.set_setting = new Error('No.');
  await settings.set('top_p', 0.1);
  expect(shown()).toEqual([0.5, 'chat', 0.95]);
  expect(report).toHaveBeenCalledOnce();
});

test('a value that is cleared is the core’s to say', async () => {
  const platform = new FakePlatform();
  const settings = new SettingsStore(platform, vi.fn());
  settings.receive(values);
  settings.open();
  platform.answers.set_setting = resolved({ temperature: 0.6 }, { temperature: 'generation_config' });
  await settings.set('temperature', null);
  await settle();
  expect(settings.valueOf(rowOf('temperature'))).toBe(0.6);
  expect(settings.sourceOf(rowOf('temperature'))).toBe('generation_config');
});

test('an answer about another target is not shown', async () => {
  const platform = new FakePlatform();
  const settings = new SettingsStore(platform, vi.fn());
  settings.receive(values);
  const late = gate<Reply>();
  platform.answers.get_settings = ({ type, ...command }) =>
    type === 'get_settings' && JSON.stringify(command).includes('chat') ? late.promise : resolved({}, {});
  settings.open({ type: 'chat', id: 'a' });
  const refreshed = settings.refresh();
  settings.show({ type: 'app' });
  await settings.refresh();
  late.open(resolved({ temperature: 0 }, { temperature: 'chat' }));
  await refreshed;
  expect(settings.valueOf(rowOf('temperature'))).toBe(0.7);
});

test('diagnostics are copied, and shown where they cannot be copied', async () => {
  const platform = new FakePlatform();
  platform.answers = { get_diagnostics: { type: 'diagnostics', text: 'Cairn 1' } };
  const report = vi.fn();
  const settings = new SettingsStore(platform, report);
  const writeText = vi.fn().mockResolvedValueOnce(undefined).mockRejectedValueOnce(new Error('not allowed'));
  vi.stubGlobal('navigator', { clipboard: { writeText } });

  await settings.copyDiagnostics();
  expect(writeText).toHaveBeenCalledWith('Cairn 1');
  expect([settings.hasCopied, settings.diagnostics]).toEqual([true, 'Cairn 1']);

  await settings.copyDiagnostics();
  expect([settings.hasCopied, settings.diagnostics]).toEqual([false, 'Cairn 1']);
  expect(report).toHaveBeenCalledOnce();
  vi.unstubAllGlobals();
});

test('what a model takes in memory is asked again once its settings are shown and when one was set', async () => {
  const platform = new FakePlatform();
  const [report, onModelChanged] = [vi.fn(), vi.fn()];
  const settings = new SettingsStore(platform, report, onModelChanged);
  settings.receive(values);
  platform.answers.get_settings = resolved({}, {});
  settings.open({ type: 'app' });
  await settings.refresh();
  expect(onModelChanged).not.toHaveBeenCalled();
  settings.show({ type: 'model', name: 'o/a' });
  await settings.refresh();
  onModelChanged.mockClear();
  platform.answers.set_setting = resolved({ top_k: 7 }, { top_k: 'model' });
  await settings.set('top_k', 7);
  expect([settings.valueOf(rowOf('top_k')), settings.problem]).toEqual([7, null]);
  expect(onModelChanged.mock.calls).toEqual([['o/a']]);
  expect(report).not.toHaveBeenCalled();
});
