// Copying a text, and saying so for a moment.
import { fireEvent, render, screen } from '@testing-library/svelte';
import { expect, onTestFinished, test, vi } from 'vitest';
import CopyButton from './CopyButton.svelte';

async function press(writeText: () => Promise<void>): Promise<void> {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  onTestFinished(() => void vi.useRealTimers());
  vi.stubGlobal('navigator', { ...navigator, clipboard: { writeText } });
  render(CopyButton, { text: 'words', label: 'Copy answer' });
  await fireEvent.click(screen.getByRole('button', { name: 'Copy answer' }));
  await vi.advanceTimersByTimeAsync(0);
}

test('what is copied is said for a moment', async () => {
  const writeText = vi.fn(async () => undefined);
  await press(writeText);
  expect(writeText).toHaveBeenLastCalledWith('words');
  expect(screen.getByRole('button', { name: 'Copied' })).toBeTruthy();
  expect(screen.getByRole('status').textContent).toBe('Copied');
  await vi.advanceTimersByTimeAsync(2000);
  expect(screen.getByRole('button', { name: 'Copy answer' })).toBeTruthy();
  expect(screen.getByRole('status').textContent).toBe('');
});

test('what could not be copied is not said to be', async () => {
  await press(() => Promise.reject(new Error('not allowed')));
  expect(screen.queryByRole('button', { name: 'Copied' })).toBeNull();
  expect(screen.getByRole('status').textContent).toBe('');
});
