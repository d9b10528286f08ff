// The page of the monitor: what it asks for while it is open, its charts by keyboard, its tables, and nothing yet.
import { fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import type { MonitorDay, MonitorPoint } from '../platform/wire';
import {
  bootstrap,
  conversation,
  FakePlatform,
  message,
  monitorDay,
  monitorPoint,
  monitorRow,
  monitorSpan,
  stats,
} from '../testing/fake';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

async function open(points: MonitorPoint[], day: MonitorDay = monitorDay()) {
  const platform = new FakePlatform();
  const state = { points, day };
  platform.answers = {
    bootstrap: bootstrap({ conversations: [conversation('a')] }),
    get_monitor_now: (command) => ({
      type: 'monitor_now',
      machine_bytes: 16 * 2 ** 30,
      points: state.points.filter(({ number }) => command.type === 'get_monitor_now' && number > command.after),
    }),
    get_monitor_day: () => ({ type: 'monitor_day', day: state.day }),
  };
  const opened = await openWindow(platform);
  opened.app.navigation.go('monitor');
  await drawn();
  return { ...opened, platform, state };
}

const asked = (platform: FakePlatform, type: string) => platform.askedTypes().filter((other) => other === type).length;
const chart = (name: RegExp) => screen.getByRole('slider', { name });

test('while the page is open a point comes each second, and afterwards none', async () => {
  const { app, platform, clock, state } = await open([monitorPoint(0), monitorPoint(1)]);
  expect(app.monitor.points.map(({ number }) => number)).toEqual([1, 2]);
  state.points = [...state.points, monitorPoint(2)];
  clock.run();
  await drawn();
  expect(platform.asked.findLast(({ type }) => type === 'get_monitor_now')).toEqual({
    type: 'get_monitor_now',
    after: 2,
  });
  expect(app.monitor.points.length).toBe(3);
  state.points = [monitorPoint(400)];
  clock.run();
  await drawn();
  expect(app.monitor.points.map(({ elapsed_ms }) => elapsed_ms)).toEqual([400_000]);

  app.navigation.go('chat');
  await drawn();
  const before = platform.asked.length;
  clock.run();
  await drawn();
  expect(platform.asked.length).toBe(before);
});

test('the last day is asked for again when an answer has ended, and only while the page is open', async () => {
  const { app, platform } = await open([]);
  expect(asked(platform, 'get_monitor_day')).toBe(1);
  const ended = { type: 'message' as const, message: message('m', { stats: stats() }) };
  platform.emit(ended);
  await drawn();
  expect(asked(platform, 'get_monitor_day')).toBe(2);
  app.navigation.go('chat');
  await drawn();
  platform.emit(ended);
  expect(asked(platform, 'get_monitor_day')).toBe(2);
});

test('a Cairn that was started again counts anew', async () => {
  const { app, platform, state } = await open([monitorPoint(800)]);
  state.points = [monitorPoint(0)];
  platform.connect('reconnecting');
  platform.connect('open');
  await drawn();
  expect(app.monitor.points).toEqual([]);
});

test('what fails is asked again', async () => {
  const { app, platform, clock } = await open([monitorPoint(0)]);
  const answer = platform.answers.get_monitor_now;
  platform.answers.get_monitor_now = new Error('gone');
  clock.run();
  await drawn();
  platform.answers.get_monitor_now = answer;
  app.monitor.points = [];
  clock.run();
  await drawn();
  expect(app.monitor.points.length).toBe(1);
});

test('arrow keys go through a chart and say the value and the time', async () => {
  await open([monitorPoint(0, { writing_tps: 20 }), monitorPoint(1), monitorPoint(2, { writing_tps: 40 })]);
  const writing = chart(/^Writing speed: Last 5 minutes$/);
  expect(writing.getAttribute('aria-valuetext')).toMatch(/: 40\.0 tok\/s$/);
  const scale = document.getElementById(writing.getAttribute('aria-describedby') ?? '');
  expect(scale?.textContent).toBe('From 0 at the bottom to 40.0 tok/s at the top, from 5 min ago until now');
  expect(screen.getByText('40.0 tok/s', { selector: '.top' })).toBeTruthy();
  writing.focus();
  await fireEvent.keyDown(writing, { key: 'ArrowLeft' });
  expect(writing.getAttribute('aria-valuetext')).toMatch(/: 20\.0 tok\/s$/);
  expect(screen.getByTestId('chosen').textContent).toBe(writing.getAttribute('aria-valuetext'));
  await fireEvent.keyDown(writing, { key: 'End' });
  expect(writing.getAttribute('aria-valuenow')).toBe('1');
  writing.blur();
  await drawn();
  expect(screen.queryByTestId('chosen')).toBeNull();
});

test('a speed that is not one of now is called the last value', async () => {
  const { clock, state } = await open([monitorPoint(0, { writing_tps: 20 })]);
  expect(screen.getByText('now, median 20.0 tok/s')).toBeTruthy();
  state.points = [...state.points, monitorPoint(1)];
  clock.run();
  await drawn();
  expect(screen.getByTestId('rate').textContent).toBe('20.0 tok/s');
  expect(screen.getByText('last value, median 20.0 tok/s')).toBeTruthy();
});

test('the last day is chosen, and can be read as a table', async () => {
  const rate = { least: 10, mean: 20, most: 30 };
  await open([], monitorDay({ spans: [monitorSpan(0, { writing_tps: rate, begins_run: true })] }));
  expect(screen.queryByRole('slider', { name: /^Writing speed/ })).toBeNull();
  await fireEvent.click(screen.getByRole('radio', { name: 'Last day' }));
  expect(chart(/^Writing speed: Last day$/)).toBeTruthy();
  expect(screen.getByText('median, 10.0 tok/s to 30.0 tok/s')).toBeTruthy();
  const details = screen.getByText('Show as a table').closest('details');
  if (!details) throw new Error('the table is folded');
  details.open = true;
  await fireEvent(details, new Event('toggle'));
  const row = within(details).getAllByRole('row')[1];
  expect(row?.textContent).toContain('20.0 tok/s, 10.0 tok/s to 30.0 tok/s');
});

test('models and chats have their figures, private chats no name, and a chat opens', async () => {
  const { app } = await open(
    [],
    monitorDay({
      models: [monitorRow('owner/model')],
      chats: [monitorRow('Title a', { conversation_id: 'a', saved_ms: null })],
      private: monitorRow('', { num_answers: 1 }),
      num_more_chats: 2,
    }),
  );
  expect(screen.getByText('20 s of reading saved in the last day')).toBeTruthy();
  const [, model] = within(screen.getByRole('group', { name: 'Models in the last day' })).getAllByRole('row');
  expect([...(model?.children ?? [])].map((cell) => cell.textContent?.trim())).toEqual([
    'model',
    '3',
    '400',
    '1,600',
    '90',
    '20 s',
    '300 ms',
  ]);
  const chats = within(screen.getByRole('group', { name: 'Chats in the last day' }));
  expect(chats.getByRole('rowheader', { name: 'Private chats' })).toBeTruthy();
  expect(screen.getByText(/^2 more chats\./)).toBeTruthy();
  await fireEvent.click(chats.getByRole('button', { name: 'Title a' }));
  await drawn();
  expect([app.navigation.page, app.chat.selectedId]).toEqual(['chat', 'a']);
});

test.each([
  [-1, 1],
  [1, 0],
])('all that was saved since %i ms into the last day is said %i times', async (since, times) => {
  const day = monitorDay({ models: [monitorRow('owner/model')] });
  const since_ms = day.until_ms - 24 * 3_600_000 + since;
  await open([], { ...day, time_saved: { all_ms: 20_000, since_ms, chats: [] } });
  expect(screen.getByText('20 s of reading saved in the last day')).toBeTruthy();
  expect(screen.queryAllByTestId('time-saved')).toHaveLength(times);
});

test('before anything has happened nothing looks like a failure', async () => {
  await open([monitorPoint(0)]);
  expect(screen.getByText('Nothing has been read in the last day')).toBeTruthy();
  expect(screen.getByTestId('rate').textContent).toBe('–');
  expect(screen.queryByText(/0(\.0)? tok\/s|0%|NaN|Infinity/)).toBeNull();
  expect(chart(/^Memory: Last 5 minutes$/)).toBeTruthy();
  expect(screen.getByText('None')).toBeTruthy();
});
