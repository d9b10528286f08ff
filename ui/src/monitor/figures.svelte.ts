// Figures of the engine since this window was opened: memory over time, and the last answers.
import type { Message, MessageStats, Status } from '../platform/wire';

export interface MemorySample {
  at_ms: number;
  bytes: number;
}

export interface AnswerFigures {
  messageId: string;
  conversationId: string;
  stats: MessageStats;
}

/** Samples closer together than this say nothing new. */
const SAMPLE_MS = 1000;
/** When there are so many samples, every second one is dropped, so that the chart spans the whole time. */
const MOST_SAMPLES = 240;
const MOST_ANSWERS = 50;

/** Owns the figures. They are the window's own: a reload begins anew. */
export class FiguresStore {
  memory = $state.raw<MemorySample[]>([]);
  /** The newest first. */
  answers = $state.raw<AnswerFigures[]>([]);

  sample({ process_bytes }: Status, now = Date.now()): void {
    const last = this.memory.at(-1);
    if (last && now - last.at_ms < SAMPLE_MS) return;
    const samples = [...this.memory, { at_ms: now, bytes: process_bytes }];
    this.memory = samples.length > MOST_SAMPLES ? samples.filter((_, index) => index % 2 === 0) : samples;
  }

  /** Takes the figures of an answer that has ended. */
  add({ id, conversation_id, stats }: Message): void {
    if (!stats || this.answers.some(({ messageId }) => messageId === id)) return;
    const figures = { messageId: id, conversationId: conversation_id, stats };
    this.answers = [figures, ...this.answers].slice(0, MOST_ANSWERS);
  }
}

/** The middle value; null of none. */
export function median(values: number[]): number | null {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? null;
}
