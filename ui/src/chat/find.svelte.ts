// Finding text in the open chat: what is looked for, how often it is there, and which of these is shown.
import type { AnswerSegment, Message } from '../platform/wire';

/** Text that is searched as one: what a person wrote, or a segment of an answer. Its matches are counted from 0. */
export interface Unit {
  messageId: string;
  /** The position of the segment; 0 in a message of a person. */
  index: number;
  count: number;
}

/** Owns what the bar shows. Counting is the thread's view's, which knows what is drawn. */
export class Find {
  isOpen = $state(false);
  query = $state('');
  /** The match that is shown, counted from 0. */
  current = $state(0);
  units = $state.raw<Unit[]>([]);
  /** Counts requests to open, which the field follows with the focus each time. */
  numRequests = $state(0);

  readonly count = $derived(this.units.reduce((sum, { count }) => sum + count, 0));

  open(): void {
    this.isOpen = true;
    this.numRequests++;
  }

  close(): void {
    this.isOpen = false;
    this.units = [];
    this.current = 0;
  }

  /** Replaces what was found. The shown match stays where it was, as far as there are as many. */
  found(units: Unit[]): void {
    const before = this.place;
    this.units = units;
    const index = before ? this.indexOf(before.unit.messageId, before.unit.index, before.match) : this.current;
    this.current = Math.min(Math.max(0, index), Math.max(0, this.count - 1));
  }

  /** Shows the next match, or with -1 the one before; behind the last comes the first. */
  step(direction: 1 | -1): void {
    if (this.count > 0) this.current = (this.current + direction + this.count) % this.count;
  }

  /** The unit of the shown match, and the number of the match in it. */
  get place(): { unit: Unit; match: number } | null {
    let rest = this.current;
    for (const unit of this.units) {
      if (rest < unit.count) return { unit, match: rest };
      rest -= unit.count;
    }
    return null;
  }

  /** The number of a match among all; of one that is gone, the first behind it. */
  indexOf(messageId: string, index: number, match: number): number {
    let sum = 0;
    for (const unit of this.units) {
      if (unit.messageId === messageId && unit.index === index)
        return sum + Math.min(match, Math.max(0, unit.count - 1));
      sum += unit.count;
    }
    return this.current;
  }
}

/** The texts of a message that can be found, by unit, without the signs of Markdown that are not shown. */
export function unitTexts(message: Pick<Message, 'role' | 'text' | 'segments'>): string[] {
  if (message.role === 'user') return [message.text];
  return message.segments.map(textOf);
}

function textOf(segment: AnswerSegment): string {
  return segment.kind === 'tool_call' ? `${segment.name ?? ''}\n${segment.arguments}` : withoutSigns(segment.text);
}

/** About what is shown of a text in Markdown: it may differ where signs are meant as they are. */
export function withoutSigns(markdown: string): string {
  return markdown
    .replaceAll(/!?\[([^\]\n]*)\]\([^)\n]*\)/g, '$1')
    .replaceAll(/^[ \t]*(?:`{3,}|~{3,}).*$/gm, '')
    .replaceAll(/^[ \t]*(?:#{1,6}|>)[ \t]+/gm, '')
    .replaceAll(/\*+|`+|~~|(?<![\p{L}\p{N}])_+|_+(?![\p{L}\p{N}])/gu, '')
    .replaceAll(/[ \t]*\|[ \t]*/g, '\n');
}

/** Text as it is compared: without case, and with every white space as one kind. Its length is that of the text. */
export function comparable(text: string): string {
  const lower = text.toLowerCase();
  const folded = lower.length === text.length ? lower : [...text].map(lowerOfSameLength).join('');
  return folded.replaceAll(/[ \t\u00a0]/g, ' ');
}

function lowerOfSameLength(letter: string): string {
  const lower = letter.toLowerCase();
  return lower.length === letter.length ? lower : letter;
}

/** Where a query stands in a text: the starts of all matches, which do not overlap. Both are {@link comparable}. */
export function matchesOf(text: string, query: string): number[] {
  const starts: number[] = [];
  if (query === '') return starts;
  for (let at = text.indexOf(query); at >= 0; at = text.indexOf(query, at + query.length)) starts.push(at);
  return starts;
}
