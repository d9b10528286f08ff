// Decoded tokens as text to show: special tokens, which open and close turns, become parts of their own.
import { strings } from '../text';

export interface TextPart {
  /** The decoded text of this part. Joined, the parts are the whole text. */
  raw: string;
  /** What is shown: for special tokens the speaker of the turn that they open, or a dot; empty where they begin or end the text. */
  words: string;
  isToken: boolean;
}

/** The roles that chat templates write, and their speakers. */
const SPEAKERS: Record<string, keyof typeof strings.content.speakers> = {
  system: 'system',
  developer: 'system',
  user: 'user',
  assistant: 'assistant',
  model: 'assistant',
  tool: 'tool',
};
const roles = Object.keys(SPEAKERS).join('|');
const token = [
  // The chat templates of Qwen, Llama 3, gpt-oss and Gemma write a role directly after the token that opens a turn.
  String.raw`(?:<\|(?:im_start|start_header_id|start)\|>|<start_of_turn>)(?:${roles})\b`,
  String.raw`<\|[^<>|\s]{1,64}\|>`,
  // DeepSeek writes wide bars.
  String.raw`<｜[^<>｜\n]{1,64}｜>`,
  // `<s>` only counts at the beginning: elsewhere it is HTML's tag for struck-out text.
  String.raw`^<s>|</s>`,
  String.raw`<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>`,
  String.raw`\[/?INST\]|<</?SYS>>`,
  // Excerpts are cut to a number of characters, which may be inside a token.
  String.raw`^\w{0,64}\|>(?:(?:${roles})\b)?|<\|\w{0,64}\|?$`,
].join('|');

/** Splits a text into special tokens and other text. Neighbouring special tokens, and the space between them, are one part. */
export function textParts(text: string): TextPart[] {
  const parts: TextPart[] = [];
  const add = (from: number, to: number, isToken: boolean) => {
    const raw = text.slice(from, to);
    if (raw === '') return;
    const [before, after] = [text.slice(0, from).trim(), text.slice(to).trim()];
    const isSign = isToken && before + after !== '';
    parts.push({ raw, words: !isSign ? raw.trim() : before && after ? sign(raw) : '', isToken });
  };
  let end = 0;
  for (const found of text.matchAll(new RegExp(`(?:${token})(?:\\s*(?:${token}))*`, 'g'))) {
    add(end, found.index, false);
    end = found.index + found[0].length;
    add(found.index, end, true);
  }
  add(end, text.length, false);
  return parts;
}

/** A text in two: what stands before the first user message, which is empty if there is none, and the rest. */
export function splitAtFirstMessage(text: string): [before: string, rest: string] {
  const { user } = strings.content.speakers;
  const parts = textParts(text).map(({ raw, words, isToken }) => ({ raw, opens: isToken && words === user }));
  const index = Math.max(
    0,
    parts.findIndex(({ opens }) => opens),
  );
  const joined = (some: typeof parts) => some.map(({ raw }) => raw).join('');
  return [joined(parts.slice(0, index)), joined(parts.slice(index))];
}

/** The words of a text on one line, for labels, which cannot dim parts of it. */
export function plainWords(text: string): string {
  const words = textParts(text).map(({ words }) => words);
  return words.filter(Boolean).join(' ');
}

function sign(tokens: string): string {
  const role = [...tokens.matchAll(new RegExp(`[|>｜](${roles})\\b`, 'gi'))].at(-1)?.[1];
  const speaker = SPEAKERS[role?.toLowerCase() ?? ''];
  return speaker ? strings.content.speakers[speaker] : '·';
}
