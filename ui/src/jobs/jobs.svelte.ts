// The questions that are asked about many texts: their list, and the rows and charts of the open one.
import type { ModelStore } from '../models/models.svelte';
import { fileName, type Platform, runOrReport, sentenceOf } from '../platform/platform';
import type { Event, Job, JobCharts, JobRow, JobRowOrder } from '../platform/wire';
import type { StatusStore } from '../status/status.svelte';
import { strings } from '../text';
import type { Toasts } from '../ui/toasts.svelte';
import { offerUndo } from '../ui/offerUndo';
import type { UndoStack } from '../ui/undo';
import { Draft } from './draft.svelte';

/** How many rows are shown at once. */
export const PAGE_ROWS = 50;
/** Fewer corrections are refused. */
export const MIN_CORRECTIONS = 10;

interface Options {
  platform: Platform;
  models: ModelStore;
  status: StatusStore;
  storage?: Storage | undefined;
  toasts: Toasts;
  undo: UndoStack;
  report: (error: unknown) => void;
}

/** Owns what is known of the jobs. */
export class JobStore {
  /** The newest first; null until they are known. */
  items = $state.raw<Job[] | null>(null);
  openId = $state<string | null>(null);
  /** The new question that is being written; null: none is. */
  draft = $state.raw<Draft | null>(null);
  order = $state<JobRowOrder>('position');
  offset = $state(0);
  rows = $state.raw<JobRow[]>([]);
  /** Which rows these are: their job, order and offset. */
  rowsAre = $state('');
  charts = $state.raw<JobCharts | null>(null);
  /** Why the list or the rows are not known. */
  problem = $state<string | null>(null);
  /** The job in the list that takes the focus of one that was deleted or has come back; without an id the page takes it. */
  focus = $state.raw<{ id: string | null } | null>(null);

  /** A reply that is on its way when the job changes may be too old. */
  #isLoading = false;
  #isStale = false;
  /** The next reply's rows are not shown: only the charts have changed. */
  #keepsRows = false;
  /** What was written and not asked, also while something else is shown. */
  #written: Draft | null = null;
  readonly #options: Options;

  constructor(options: Options) {
    this.#options = options;
  }

  get open(): Job | null {
    return this.items?.find(({ id }) => id === this.openId) ?? null;
  }

  /** What `rowsAre` is when the rows that are wanted now have come. */
  get wantedRows(): string {
    return `${this.openId} ${this.order} ${this.offset}`;
  }

  async load(): Promise<void> {
    try {
      const reply = await this.#options.platform.call({ type: 'list_jobs' });
      if (reply.type === 'jobs') this.items = reply.jobs;
      this.problem = null;
    } catch (error) {
      this.problem = sentenceOf(error);
    }
    await this.refresh();
  }

  receive(event: Extract<Event, { type: 'job' | 'job_deleted' }>): void {
    if (event.type === 'job_deleted') return this.#forget(event.id);
    if (this.items === null) return;
    const before = this.open;
    this.#put(event.job);
    if (event.job.id !== this.openId) return;
    // A row that would move while a person works through the list stays where it is.
    const isSame = before?.state === event.job.state && before.temperature === event.job.temperature;
    this.#keepsRows = isSame && this.order === 'certainty' && this.rows.length > 0;
    void this.refresh();
  }

  show(id: string | null): void {
    this.draft = null;
    this.openId = id;
    this.order = 'position';
    this.offset = 0;
    this.rows = [];
    this.rowsAre = '';
    this.charts = null;
    this.#keepsRows = false;
    void this.refresh();
  }

  begin(): void {
    this.openId = null;
    this.draft = this.#written ??= this.#newDraft();
  }

  /** Empties the form. */
  clear(): void {
    this.#written?.forget();
    this.draft = this.#written = this.#newDraft();
  }

  #newDraft(): Draft {
    const { models, platform, status, storage } = this.#options;
    return new Draft({
      platform,
      storage,
      defaultModel: () => {
        const isUsable = (name: string | null) => models.loadable.some((model) => model.name === name);
        return isUsable(status.model) ? status.model : (models.loadable[0]?.name ?? null);
      },
      whyNoModel: () => models.whyNotReady ?? strings.welcome.noneLoadable,
    });
  }

  /** Takes a file of texts that was dropped, for the question that is being written or a new one. */
  take(file: File): void {
    if (!this.draft) this.begin();
    void this.draft?.take(file);
  }

  /** Asks the question that was written; why it cannot be asked is shown beside it. */
  async create(): Promise<void> {
    const job = await this.draft?.create();
    if (!job) return;
    this.#written?.forget();
    this.#written = null;
    // Events may have told of it since, even that it is done.
    if (!this.items?.some(({ id }) => id === job.id)) this.#put(job);
    this.show(job.id);
  }

  /** Asks for the rows and charts of the open job, one request after the other. */
  async refresh(): Promise<void> {
    this.#isStale = true;
    if (this.#isLoading) return;
    this.#isLoading = true;
    while (this.#isStale && this.openId !== null) {
      this.#isStale = false;
      const keepsRows = this.#keepsRows;
      this.#keepsRows = false;
      await this.#load(this.openId, keepsRows);
    }
    this.#isLoading = false;
  }

  async #load(id: string, keepsRows: boolean): Promise<void> {
    const { platform } = this.#options;
    const { offset, order, wantedRows } = this;
    try {
      const rows = { type: 'get_job_rows', id, order, offset, limit: PAGE_ROWS } as const;
      const page = keepsRows && this.rowsAre === wantedRows ? null : await platform.call(rows);
      const charts = await platform.call({ type: 'get_job_charts', id });
      if (id !== this.openId || offset !== this.offset || order !== this.order) return void (this.#isStale = true);
      if (page?.type === 'job_rows') {
        this.rows = page.rows;
        this.rowsAre = wantedRows;
      }
      if (charts.type === 'job_charts') this.charts = charts.charts;
      this.problem = null;
    } catch (error) {
      if (id === this.openId) this.problem = sentenceOf(error);
    }
  }

  sortBy(order: JobRowOrder): void {
    this.order = order;
    this.offset = 0;
    this.#keepsRows = false;
    void this.refresh();
  }

  turn(pages: number): void {
    const last = Math.max(0, (this.open?.num_rows ?? 0) - 1);
    this.offset = Math.min(Math.max(0, this.offset + pages * PAGE_ROWS), last - (last % PAGE_ROWS));
    this.#keepsRows = false;
    void this.refresh();
  }

  /** Says which option is right for a row; null takes that back. */
  async correct(position: number, option: number | null): Promise<void> {
    if (this.openId === null) return;
    const put = (correction: number | null) =>
      (this.rows = this.rows.map((row) => (row.position === position ? { ...row, correction } : row)));
    const before = this.rows.find((row) => row.position === position)?.correction ?? null;
    put(option);
    if (!(await runOrReport(this.#options, { type: 'correct_job_row', id: this.openId, position, option })))
      put(before);
  }

  calibrate = (id: string) => runOrReport(this.#options, { type: 'calibrate_job', id });
  uncalibrate = (id: string) => runOrReport(this.#options, { type: 'uncalibrate_job', id });
  pause = (id: string) => runOrReport(this.#options, { type: 'pause_job', id });
  continue = (id: string) => runOrReport(this.#options, { type: 'continue_job', id });

  async rename(job: Job, name: string): Promise<void> {
    if (name.trim() === '' || name.trim() === job.name) return;
    this.#put({ ...job, name: name.trim() });
    if (!(await runOrReport(this.#options, { type: 'rename_job', id: job.id, name }))) this.#put(job);
  }

  async remove(job: Job): Promise<void> {
    const items = this.items ?? [];
    const index = items.findIndex(({ id }) => id === job.id);
    this.focus = { id: (items[index + 1] ?? items[index - 1])?.id ?? null };
    this.#forget(job.id);
    const isDone = runOrReport(this.#options, { type: 'delete_job', id: job.id });
    const wasDone = await offerUndo(
      this.#options,
      strings.jobs.deleted(job.name),
      () => {
        this.focus = { id: job.id };
        void runOrReport(this.#options, { type: 'restore_job', id: job.id });
      },
      isDone,
    );
    if (!wasDone) {
      this.focus = { id: job.id };
      return this.#put(job);
    }
  }

  async export(job: Job): Promise<void> {
    const { platform, report, toasts } = this.#options;
    try {
      const isDone = await platform.exportJob(job.id, fileName(job.name, 'csv', strings.jobs.title));
      if (isDone) toasts.show('info', strings.jobs.exported(job.name));
    } catch (error) {
      report(error);
    }
  }

  /** Replaces a job, or adds it where its age has it. */
  #put(job: Job): void {
    const others = (this.items ?? []).filter(({ id }) => id !== job.id);
    this.items = [...others, job].sort((a, b) => (a.id < b.id ? 1 : -1));
  }

  #forget(id: string): void {
    if (this.items) this.items = this.items.filter((job) => job.id !== id);
    if (this.openId === id) this.show(null);
  }
}
