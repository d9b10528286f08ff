// The desktop door: one command, answered on its channel.
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks';
import { afterEach, expect, test, vi } from 'vitest';
import { TauriPlatform } from './tauri';
import type { Command, Frame } from './wire';

afterEach(() => {
  clearMocks();
  vi.useRealTimers();
});

interface Asked {
  command: Command;
  channel: { onmessage: (frame: Frame) => void };
}

/** Answers every call by `answer`, which may send frames or throw. */
function shell(answer: (asked: Asked) => void): string[] {
  const names: string[] = [];
  mockIPC((name, payload) => {
    const asked = payload as unknown as Asked;
    names.push(`${name} ${asked.command.type}`);
    answer(asked);
  });
  return names;
}

test('a reply on the channel answers the call', async () => {
  const names = shell(({ channel }) => channel.onmessage({ reply: { type: 'done' } }));
  expect(await new TauriPlatform().call({ type: 'list_models' })).toEqual({ type: 'done' });
  expect(names).toEqual(['call list_models']);
});

test.each<[name: string, answer: (asked: Asked) => void, code: string, message: string]>([
  ['a failure', ({ channel }) => channel.onmessage({ failure: { code: 'engine', message: 'No.' } }), 'engine', 'No.'],
  [
    'a refusal by the shell',
    () => {
      throw new Error('not allowed');
    },
    'unreachable',
    'not allowed',
  ],
])('%s rejects the call', async (_, answer, code, message) => {
  shell(answer);
  await expect(new TauriPlatform().call({ type: 'list_models' })).rejects.toMatchObject({ code, message });
});

test('events come until the subscription ends; a failed one is tried again', async () => {
  vi.useFakeTimers();
  const channels: Asked['channel'][] = [];
  shell(({ channel }) => {
    channels.push(channel);
    channel.onmessage(
      channels.length === 1 ? { failure: { code: 'storage', message: 'Not yet.' } } : { reply: { type: 'done' } },
    );
  });
  const heard: string[] = [];
  const stop = new TauriPlatform().subscribe(
    (event) => heard.push(event.type),
    (state) => heard.push(state),
  );
  await vi.advanceTimersByTimeAsync(1100);
  channels[1]?.onmessage({ event: { type: 'models', models: [] } });
  stop();
  channels[1]?.onmessage({ event: { type: 'models', models: [] } });
  expect(heard).toEqual(['connecting', 'reconnecting', 'open', 'models']);
});
