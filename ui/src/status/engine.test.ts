// The engine's state in words.
import { expect, test } from 'vitest';
import type { EngineState } from '../platform/wire';
import { engineWords } from './engine';

test('a load says how much of the model has been read', () => {
  const loading = (read: number, total: number): EngineState => ({
    state: 'loading',
    model: 'm',
    bytes_read: read,
    total_bytes: total,
  });
  expect(engineWords(loading(1.2e9, 4.5e9))).toBe('Loading the model, 1.2 GB of 4.5 GB');
  expect(engineWords(loading(0, 0))).toBe('Loading the model');
});
