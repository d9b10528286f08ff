// A new question about many texts, and what the core says about it while it is written.
import { sentenceOf, type Platform } from '../platform/platform';
import type { Job, JobPreview, JobQuestion, JobQuestionKind, JobTexts, TextFormat } from '../platform/wire';
import { strings } from '../text';
import { optionsFrom } from './results';

/** The core takes this much at once. */
const MAX_BYTES = 60 * 2 ** 20;

/** Owns what was written so far. */
export class Draft {
  name = $state('');
  /** The chosen file; null: lines are pasted. */
  file = $state.raw<{ name: string; format: TextFormat; content: string } | null>(null);
  lines = $state('');
  /** Of a CSV file; null: the one that the core takes. */
  column = $state<string | null>(null);
  instructions = $state('');
  kind = $state<JobQuestionKind>('predicate');
  options = $state('');
  preview = $state.raw<JobPreview | null>(null);
  isBusy = $state(false);
  /** Why the file could not be read, or the question not be asked. */
  problem = $state<string | null>(null);

  #isAsking = false;
  #isStale = false;

  constructor(private readonly platform: Platform) {}

  get question(): JobQuestion {
    const options = this.kind === 'predicate' ? [] : optionsFrom(this.options);
    return { instructions: this.instructions, kind: this.kind, options };
  }

  get source(): JobTexts {
    const { file } = this;
    if (!file) return { format: 'lines', content: this.lines, column: null };
    return { format: file.format, content: file.content, column: this.column };
  }

  get hasTexts(): boolean {
    return this.file !== null || this.lines.trim() !== '';
  }

  get canStart(): boolean {
    return !this.isBusy && this.preview !== null && this.preview.prompt !== null;
  }

  async take(file: File): Promise<void> {
    this.problem = null;
    if (file.size > MAX_BYTES) return void (this.problem = strings.jobs.tooLarge(file.name));
    const content = await file.text().catch(() => null);
    if (content === null) return void (this.problem = strings.imports.unreadable(file.name));
    const ending = file.name.split('.').at(-1)?.toLowerCase() ?? '';
    const format = { csv: 'csv', tsv: 'csv', jsonl: 'jsonl', ndjson: 'jsonl' }[ending] ?? 'lines';
    this.column = null;
    this.file = { name: file.name, format: format as TextFormat, content };
    if (this.name === '') this.name = file.name.replace(/\.[^.]*$/, '');
  }

  /** Asks what would be asked, one request after the other, always for what is written last. */
  async look(): Promise<void> {
    this.#isStale = true;
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#isStale) {
      this.#isStale = false;
      try {
        const reply = await this.platform.call({ type: 'preview_job', question: this.question, source: this.source });
        if (reply.type === 'job_preview') this.preview = reply.preview;
      } catch (error) {
        this.problem = sentenceOf(error);
      }
    }
    this.#isAsking = false;
  }

  /** The new job; null: it could not be made. */
  async create(): Promise<Job | null> {
    if (this.isBusy) return null;
    this.isBusy = true;
    this.problem = null;
    const { question, source } = this;
    const name = this.name.trim() || this.instructions.trim().split('\n')[0]?.slice(0, 80) || strings.jobs.title;
    try {
      const reply = await this.platform.call({ type: 'create_job', name, model: null, question, source });
      return reply.type === 'job' ? reply.job : null;
    } catch (error) {
      this.problem = sentenceOf(error);
      return null;
    } finally {
      this.isBusy = false;
    }
  }
}
