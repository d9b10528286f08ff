// The page of questions about many texts, used as a person does.
import { cleanup, fireEvent, screen, within } from '@testing-library/svelte';
import { expect, test } from 'vitest';
import { CallError } from '../platform/platform';
import type { Job, JobPreview, JobRow, ModelProblem, Reply } from '../platform/wire';
import { bootstrap, conversation, FakePlatform, gate, model, status } from '../testing/fake';
import { charts, job, jobRow } from '../testing/jobs';
import { drawn, openWindow, useWindow } from '../testing/window';

useWindow();

const preview: JobPreview = {
  columns: [],
  column: null,
  num_rows: 0,
  num_empty: 0,
  prompt: null,
  texts_problem: 'There is no text in it.',
  question_problem: 'The question is empty.',
  options_problem: null,
};

const ready: JobPreview = {
  ...preview,
  num_rows: 2,
  prompt: 'Is it?\n\ngranite',
  texts_problem: null,
  question_problem: null,
};
const problem: ModelProblem = { kind: 'broken', detail: 'config.json is not JSON' };

async function open(items: Job[] = [], rows: JobRow[] = [], state: Parameters<typeof bootstrap>[0] = {}) {
  const platform = new FakePlatform();
  platform.answers = {
    bootstrap: bootstrap(state),
    list_jobs: { type: 'jobs', jobs: items },
    get_job_rows: { type: 'job_rows', rows },
    get_job_charts: { type: 'job_charts', charts },
    preview_job: { type: 'job_preview', preview },
  };
  const { app } = await openWindow(platform);
  await fireEvent.click(screen.getByRole('button', { name: 'Ask many' }));
  await drawn();
  return { app, platform };
}

async function openJob(items: Job[], rows: JobRow[]) {
  const opened = await open(items, rows);
  opened.app.jobs.show(items[0]?.id ?? null);
  await drawn();
  return opened;
}

const button = (name: string) => screen.getByRole<HTMLButtonElement>('button', { name });
const bodyRows = () => within(screen.getByRole('table')).getAllByRole('row').slice(1);

test('without a question the page says what it is for, and begins one', async () => {
  await open();
  expect(screen.getByText('Nothing has been asked yet')).toBeTruthy();
  await fireEvent.click(button('New question'));
  await drawn();
  expect(screen.queryByRole('alert')).toBeNull();
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Name' }));
});

test('what is missing is said beside its field, and the first one takes the focus', async () => {
  const { app, platform } = await open();
  app.jobs.begin();
  await drawn();
  await fireEvent.click(screen.getByRole('radio', { name: 'One of several' }));
  await fireEvent.click(button('Ask'));
  await drawn();
  const sentences = screen.getAllByRole('alert').map(({ textContent }) => textContent);
  expect(sentences).toEqual(['Paste some lines or choose a file.', 'Write a question.', 'Write at least two.']);
  const texts = screen.getByRole('textbox', { name: 'Texts' });
  expect(document.activeElement).toBe(texts);
  expect(document.getElementById(texts.getAttribute('aria-describedby')!.split(' ')[1]!)?.textContent).toBe(
    'Paste some lines or choose a file.',
  );
  expect(platform.asked.some(({ type }) => type === 'create_job')).toBe(false);
});

test('the question is asked with the model that was chosen', async () => {
  const models = [model('owner/model'), model('owner/other'), model('owner/broken', { problem })];
  const { app, platform } = await open([], [], { models });
  app.jobs.begin();
  platform.answers.preview_job = { type: 'job_preview', preview: ready };
  platform.answers.create_job = { type: 'job', job: job('7', { model: 'owner/other' }) };
  await drawn();
  const choice = screen.getByRole<HTMLSelectElement>('combobox', { name: 'Model' });
  expect([choice.value, choice.options.length]).toEqual(['owner/model', 2]);
  await fireEvent.change(choice, { target: { value: 'owner/other' } });
  await fireEvent.click(button('Ask'));
  await drawn();
  expect(platform.asked.at(-3)).toMatchObject({ type: 'create_job', model: 'owner/other' });
  platform.emit({ type: 'models', models: [model('owner/model')] });
  platform.emit({ type: 'job', job: job('7', { model: 'owner/other', state: 'paused', reason: 'No model.' }) });
  await drawn();
  expect(screen.getByRole('alert').textContent).toContain('“other” isn’t on');
});

test('what was written is there after a reload, until it is asked or cleared', async () => {
  const { app } = await open();
  app.jobs.begin();
  await drawn();
  await fireEvent.input(screen.getByRole('textbox', { name: 'Question' }), { target: { value: 'Is it?' } });
  await drawn();
  app.jobs.show(null);
  app.jobs.begin();
  await drawn();
  expect(app.jobs.draft?.instructions).toBe('Is it?');
  cleanup();
  const { app: again } = await open();
  again.jobs.begin();
  await drawn();
  const question = () => screen.getByRole<HTMLTextAreaElement>('textbox', { name: 'Question' });
  expect(question().value).toBe('Is it?');
  await fireEvent.click(button('Clear the form'));
  await drawn();
  expect(question().value).toBe('');
  expect(document.activeElement).toBe(screen.getByRole('textbox', { name: 'Name' }));
});

test('without a model the form says so and leads to the models', async () => {
  const { app } = await open([], [], { models: [], status: { ...status, engine: { state: 'empty' } } });
  app.jobs.begin();
  await drawn();
  expect(screen.getByRole('alert').textContent).toContain('There is no model on');
  await fireEvent.click(button('Open models'));
  expect(app.navigation.page).toBe('models');
});

test('chats that are found can be the texts', async () => {
  const conversations = [conversation('1', { title: 'Stones' }), conversation('2', { title: 'Plants' })];
  const { app, platform } = await open([], [], { conversations });
  app.jobs.begin();
  await drawn();
  platform.answers.search_conversations = { type: 'found_conversations', ids: ['2', '1', 'gone'] };
  await fireEvent.click(screen.getByRole('radio', { name: 'Your chats' }));
  await drawn();
  await fireEvent.click(button('Choose all 2'));
  await drawn();
  expect(screen.getByText('2 chats chosen')).toBeTruthy();
  expect(button('Choose none')).toBeTruthy();
  platform.answers.search_conversations = { type: 'found_conversations', ids: ['1'] };
  const search = screen.getByRole('searchbox', { name: 'Search titles and messages' });
  await fireEvent.input(search, { target: { value: 'gran' } });
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'search_conversations', text: 'gran' });
  await fireEvent.click(screen.getByRole('checkbox', { name: /^Stones/ }));
  await fireEvent.click(screen.getByRole('radio', { name: 'Last question' }));
  await drawn();
  const source = { type: 'conversations', ids: ['2'], part: 'last_question' };
  expect(platform.asked.at(-1)).toMatchObject({ type: 'preview_job', source });
});

test('a question is previewed as it is written, and asked', async () => {
  const { app, platform } = await open();
  app.jobs.begin();
  await drawn();
  platform.answers.preview_job = { type: 'job_preview', preview: ready };
  platform.answers.create_job = { type: 'job', job: job('7', { name: 'Is it?' }) };
  await fireEvent.input(screen.getByRole('textbox', { name: 'Texts' }), { target: { value: 'granite\ngrass' } });
  await fireEvent.input(screen.getByRole('textbox', { name: 'Question' }), { target: { value: 'Is it?' } });
  await fireEvent.click(screen.getByRole('radio', { name: 'One of several' }));
  const options = screen.getByRole('textbox', { name: 'Options, one a line' });
  await fireEvent.input(options, { target: { value: 'stone: hard\nplant' } });
  await drawn();
  expect(screen.getByTestId('prompt').textContent).toBe('Is it?\n\ngranite');
  const question = {
    instructions: 'Is it?',
    kind: 'choice',
    options: [
      { label: 'stone', description: 'hard' },
      { label: 'plant', description: null },
    ],
  };
  const source = { type: 'written', format: 'lines', content: 'granite\ngrass', column: null };
  expect(platform.asked.filter(({ type }) => type === 'preview_job').at(-1)).toEqual({
    type: 'preview_job',
    question,
    source,
  });
  await fireEvent.click(button('Ask'));
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'create_job', name: 'Is it?', model: 'owner/model', question, source });
  expect(app.jobs.openId).toBe('7');
  expect(document.activeElement).toBe(button('Pause'));
});

test('one that is done before its reply comes stays done', async () => {
  const { app, platform } = await open();
  app.jobs.begin();
  const reply = gate<Reply>();
  platform.answers.create_job = reply.promise;
  const asking = app.jobs.create();
  platform.emit({ type: 'job', job: job('7') });
  platform.emit({ type: 'job', job: job('7', { state: 'done' }) });
  reply.open({ type: 'job', job: job('7') });
  await asking;
  expect(app.jobs.open?.state).toBe('done');
});

test('a question that cannot be asked stays, with the reason', async () => {
  const { app, platform } = await open();
  app.jobs.begin();
  platform.answers.preview_job = { type: 'job_preview', preview: ready };
  platform.answers.create_job = new CallError('no_model', 'There is no model to answer with.');
  await drawn();
  await fireEvent.click(button('Ask'));
  await drawn();
  expect(screen.getByRole('alert').textContent).toBe('There is no model to answer with.');
  expect(app.jobs.draft).not.toBeNull();
});

test('a question is asked although the core still looks at it', async () => {
  const { app, platform } = await open();
  app.jobs.begin();
  await drawn();
  platform.answers.preview_job = { type: 'job_preview', preview: ready };
  platform.answers.create_job = { type: 'job', job: job('7') };
  await fireEvent.input(screen.getByRole('textbox', { name: 'Question' }), { target: { value: 'Is it?' } });
  void app.jobs.draft?.look();
  await fireEvent.click(button('Ask'));
  await drawn();
  expect(app.jobs.openId).toBe('7');
});

test('a file of texts says its column, and another can be chosen', async () => {
  const { app, platform } = await open();
  void app.dropFiles([new File(['id,text\n1,granite\n'], 'stones.csv')], null);
  platform.answers.preview_job = {
    type: 'job_preview',
    preview: { ...preview, columns: ['id', 'text'], column: 'text', num_rows: 1, num_empty: 2, texts_problem: null },
  };
  // Reading a file takes a turn of the event loop.
  await expect.poll(() => screen.queryByText('From stones.csv')).toBeTruthy();
  await drawn();
  expect(screen.getByText('1 text, 2 empty rows left out')).toBeTruthy();
  const columns = screen.getByRole<HTMLSelectElement>('combobox', { name: 'Column' });
  expect(columns.value).toBe('text');
  await fireEvent.change(columns, { target: { value: 'id' } });
  await drawn();
  expect(platform.asked.at(-1)).toMatchObject({ source: { format: 'csv', column: 'id' } });
});

test('progress has a pace, and the rows come with it', async () => {
  const running = job('1', { num_rows: 1000 });
  const { platform } = await openJob([running], [jobRow(0, { probabilities: null })]);
  expect(screen.getByTestId('job-state').textContent).toContain('Asking · 0 of 1,000 texts');
  platform.answers.get_job_rows = { type: 'job_rows', rows: [jobRow(0)] };
  platform.emit({ type: 'job', job: { ...running, num_answered: 500, rows_per_second: 10 } });
  await drawn();
  expect(screen.getByTestId('job-state').textContent).toContain('500 of 1,000 texts · 10.0 texts/s · 50 s left');
  expect(bodyRows()[0]?.textContent).toContain('75%');
  await fireEvent.click(button('Pause'));
  expect(platform.asked).toContainEqual({ type: 'pause_job', id: '1' });
});

test('a job that waits says why, and goes on', async () => {
  const reason = 'There is no model named owner/model.';
  const { platform } = await openJob([job('1', { state: 'paused', reason })], []);
  expect(screen.getByRole('alert').textContent).toBe(reason);
  await fireEvent.click(button('Continue'));
  expect(platform.asked).toContainEqual({ type: 'continue_job', id: '1' });
});

test('number keys correct rows, one after the other', async () => {
  const { app, platform } = await openJob([job('1', { num_rows: 2, num_answered: 2 })], [jobRow(0), jobRow(1)]);
  const [first, second] = bodyRows();
  first?.focus();
  await fireEvent.keyDown(first!, { key: '1' });
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'correct_job_row', id: '1', position: 0, option: 0 });
  expect(document.activeElement).toBe(second);
  await fireEvent.keyDown(second!, { key: '3' });
  expect(app.jobs.rows[1]?.correction).toBeNull();
  platform.answers.correct_job_row = new CallError('storage', 'The disk is full.');
  await fireEvent.keyDown(second!, { key: '2' });
  await drawn();
  expect(app.jobs.rows.map(({ correction }) => correction)).toEqual([0, null]);
  expect(screen.getByText('The disk is full.')).toBeTruthy();
});

test('the least certain come first, a page at a time', async () => {
  const { platform } = await openJob([job('1', { num_rows: 120, num_answered: 120, state: 'done' })], [jobRow(0)]);
  await fireEvent.click(screen.getByRole('radio', { name: 'Least certain first' }));
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'get_job_rows', id: '1', order: 'certainty', offset: 0, limit: 50 });
  await fireEvent.click(button('Next'));
  await fireEvent.click(button('Next'));
  await drawn();
  expect(screen.getByText('101–120 of 120')).toBeTruthy();
  expect(button('Next').disabled).toBe(true);
});

test('the keys go on where a page ends', async () => {
  const all = Array.from({ length: 60 }, (_, position) => jobRow(position));
  const { app, platform } = await openJob(
    [job('1', { num_rows: 60, num_answered: 60, state: 'done' })],
    all.slice(0, 50),
  );
  const last = bodyRows().at(-1)!;
  last.focus();
  platform.answers.get_job_rows = { type: 'job_rows', rows: all.slice(50) };
  await fireEvent.keyDown(last, { key: '2' });
  await drawn();
  expect(app.jobs.offset).toBe(50);
  expect(document.activeElement?.textContent).toContain('Text 50');
  platform.answers.get_job_rows = { type: 'job_rows', rows: all.slice(0, 50) };
  await fireEvent.keyDown(document.activeElement!, { key: 'ArrowUp' });
  await drawn();
  expect(document.activeElement?.textContent).toContain('Text 49');
  await fireEvent.keyDown(document.activeElement!, { key: 'PageUp' });
  expect(app.jobs.offset).toBe(0);
});

test('the answers are exported under the name of the question', async () => {
  const { platform } = await openJob([job('1', { name: 'A/B: stones?', state: 'done', num_answered: 1 })], [jobRow(0)]);
  await fireEvent.click(button('Export CSV…'));
  await drawn();
  expect(platform.exportedJobs).toEqual([['1', 'A B stones.csv']]);
  expect(screen.getByText('Exported “A/B: stones?”')).toBeTruthy();
});

test('rows that are sorted by certainty stay in place while more are answered', async () => {
  const running = job('1', { num_answered: 2 });
  const { platform } = await openJob([running], [jobRow(0)]);
  await fireEvent.click(screen.getByRole('radio', { name: 'Least certain first' }));
  await drawn();
  platform.answers.get_job_rows = { type: 'job_rows', rows: [jobRow(5)] };
  platform.emit({ type: 'job', job: { ...running, num_answered: 50 } });
  await drawn();
  expect(bodyRows()[0]?.textContent).toContain('Text 0');
  platform.emit({ type: 'job', job: { ...running, num_answered: 100, state: 'done' } });
  await drawn();
  expect(bodyRows()[0]?.textContent).toContain('Text 5');
});

test('a row that goes leaves the focus to the one in its place', async () => {
  const { platform } = await openJob(
    [job('1', { num_rows: 3, num_answered: 3, state: 'done' })],
    [jobRow(0), jobRow(1)],
  );
  bodyRows()[1]?.focus();
  platform.answers.get_job_rows = { type: 'job_rows', rows: [jobRow(2), jobRow(0)] };
  await fireEvent.click(screen.getByRole('radio', { name: 'Least certain first' }));
  bodyRows()[1]?.focus();
  await drawn();
  expect(document.activeElement?.textContent).toContain('Text 0');
});

test('a question gets another name', async () => {
  const { platform } = await openJob([job('1', { state: 'done' })], []);
  await fireEvent.click(button('Rename'));
  await fireEvent.input(screen.getByRole('textbox', { name: 'Name' }), { target: { value: 'Stones' } });
  await fireEvent.submit(screen.getByRole('textbox', { name: 'Name' }).closest('form')!);
  await drawn();
  expect(platform.asked).toContainEqual({ type: 'rename_job', id: '1', name: 'Stones' });
});

test('calibration is offered once enough rows were checked, and shows both curves', async () => {
  const quality = (accuracy: number) => ({
    num_rows: 12,
    accuracy,
    expected_calibration_error: 0.25,
    brier: 0.5,
    curve: [{ probability: 0.95, accuracy, num_rows: 12 }],
  });
  const checked = job('1', { state: 'done', num_answered: 100, num_corrected: 12 });
  const { app, platform } = await openJob([checked], [jobRow(0)]);
  expect(screen.queryByRole('button', { name: 'Calibrate' })).toBeNull();
  const before: Reply = { type: 'job_charts', charts: { ...charts, quality: quality(0.75) } };
  platform.answers.get_job_charts = before;
  await app.jobs.refresh();
  await drawn();
  await fireEvent.click(button('Calibrate'));
  expect(platform.asked).toContainEqual({ type: 'calibrate_job', id: '1' });
  platform.answers.get_job_charts = { ...before, charts: { ...before.charts, calibrated: quality(0.75) } };
  platform.emit({ type: 'job', job: { ...checked, temperature: 1.5 } });
  await drawn();
  expect(screen.getByText('Temperature 1.5')).toBeTruthy();
  expect(screen.getByRole('img', { name: /95% said, 75% right, 12 texts/ })).toBeTruthy();
});

test('a deleted question comes back', async () => {
  const { app, platform } = await open([job('1'), job('2')]);
  await fireEvent.click(screen.getAllByRole('button', { name: 'Delete question' })[0]!);
  await drawn();
  expect(app.jobs.items?.map(({ id }) => id)).toEqual(['2']);
  expect(document.activeElement?.textContent).toContain('Job 2');
  await fireEvent.click(button('Undo'));
  expect(platform.asked).toContainEqual({ type: 'restore_job', id: '1' });
  platform.emit({ type: 'job', job: job('1') });
  await drawn();
  expect(app.jobs.items?.map(({ id }) => id)).toEqual(['2', '1']);
  expect(document.activeElement?.textContent).toContain('Job 1');
});
