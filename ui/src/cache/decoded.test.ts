// Special tokens in decoded text.
import { expect, test } from 'vitest';
import { plainWords, splitAtFirstMessage, textParts } from './decoded';

test.each<[text: string, words: string]>([
  ['', ''],
  ['  Only words. ', 'Only words.'],
  ['<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n', 'You are kind. You: Why?'],
  ['Why?<|im_end|>\n<|im_start|>assistant\nBecause.', 'Why? Answer: Because.'],
  ['Why?<|im_end|><|im_start|>assistant', 'Why?'],
  [
    '<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHo',
    'Hi Answer: Ho',
  ],
  ['<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHo', 'Hi Answer: Ho'],
  ['<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>Ho', 'Be brief. You: Hi Answer: Ho'],
  ['<s>[INST] Hi [/INST] Ho</s>', 'Hi · Ho'],
  ['Look<|image_pad|><|image_pad|> at it', 'Look · at it'],
  ['<|im_end|>\n', '<|im_end|>'],
  ['start|>user\nWhy?<|im_e', 'Why?'],
  // Text that only looks like a special token.
  ['<|im_end|>user guides', 'user guides'],
  ['<|im_start|>users', 'users'],
  ['a <s>b in HTML, x <| y |> z, a<b, [1]', 'a <s>b in HTML, x <| y |> z, a<b, [1]'],
])('%j reads %j', (text, words) => {
  expect(plainWords(text)).toBe(words);
  expect(
    textParts(text)
      .map(({ raw }) => raw)
      .join(''),
  ).toBe(text);
});

test('neighbouring tokens are one part, which is not read as text', () => {
  expect(textParts('A<|im_end|>\n<|im_start|>user\nB')).toEqual([
    { raw: 'A', words: 'A', isToken: false },
    { raw: '<|im_end|>\n<|im_start|>user', words: 'You:', isToken: true },
    { raw: '\nB', words: 'B', isToken: false },
  ]);
});

test.each<[text: string, before: string, rest: string]>([
  [
    '<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n',
    '<|im_start|>system\nBe kind.',
    '<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n',
  ],
  ['<|im_start|>system\nBe kind.', '', '<|im_start|>system\nBe kind.'],
  ['Only words.', '', 'Only words.'],
])('%j is split before its first user message', (text, before, rest) => {
  expect(splitAtFirstMessage(text)).toEqual([before, rest]);
});
