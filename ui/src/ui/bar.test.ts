// Bars.
import { render, screen } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import ProgressBar from './ProgressBar.svelte';

test('a bar of unknown length is empty', async () => {
  const { rerender } = render(ProgressBar, { label: 'Loading', words: 'Loading…', share: null });
  const bar = screen.getByRole('progressbar', { name: 'Loading' });
  expect(bar.getAttribute('aria-valuenow')).toBeNull();
  // From there it only grows.
  expect((bar.firstElementChild as HTMLElement).style.width).toMatch(/^0(px)?$/);
  await rerender({ share: 0.3 });
  expect(bar.getAttribute('aria-valuenow')).toBe('30');
});
