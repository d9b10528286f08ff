// The segments of an answer as events change them. The core tells them apart; nothing here reads markers.
import type { AnswerSegment } from '../platform/wire';

export type Reasoning = Extract<AnswerSegment, { kind: 'reasoning' }>;
export type ToolCall = Extract<AnswerSegment, { kind: 'tool_call' }>;

/** The text of a segment that grows. */
export function growing(segment: AnswerSegment): string {
  return segment.kind === 'tool_call' ? segment.arguments : segment.text;
}

export function grown(segment: AnswerSegment, more: string): AnswerSegment {
  return segment.kind === 'tool_call'
    ? { ...segment, arguments: segment.arguments + more }
    : { ...segment, text: segment.text + more };
}

/** Whether a segment is one that is known, as it was before: around a refetch the same events may come twice. */
export function isOlder(segment: AnswerSegment, known: AnswerSegment | undefined): boolean {
  if (segment.kind !== known?.kind) return false;
  const [before, now] = [growing(segment), growing(known)];
  return now.length > before.length && now.startsWith(before);
}

/** What “Copy answer” copies: text without reasoning and tool calls. */
export function readable(segments: AnswerSegment[]): string {
  return segments.flatMap((segment) => (segment.kind === 'text' ? [segment.text] : [])).join('\n\n');
}

/** The arguments of a call, on several lines; JSON that is not whole stays as it is. */
export function prettyArguments(call: ToolCall): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments;
  }
}
