// Copying diagnostics.
import { expect, test, vi } from 'vitest';
import { FakePlatform } from '../testing/fake';
import { SettingsStore } from './settings.svelte';

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
