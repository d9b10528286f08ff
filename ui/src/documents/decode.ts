// The text in the bytes of a file: UTF-8, UTF-16, or else the letters of Western Europe.

/** How much is looked at to tell what a file is. */
const LOOK_BYTES = 65_536;
/** More control characters than this has no text. */
const MOST_CONTROLS = 0.01;

/** The text; null where the bytes are none. `declared`: an encoding that the text itself names. */
export function decode(bytes: Uint8Array, declared?: string): string | null {
  const marked = markedEncoding(bytes);
  if (marked) return textOf(bytes, marked);
  const wide = wideEncoding(bytes);
  if (wide) return textOf(bytes, wide);
  // Only UTF-16 and UTF-32 have them.
  if (bytes.subarray(0, LOOK_BYTES).includes(0)) return null;
  const text = textOf(bytes, 'utf-8') ?? textOf(bytes, known(declared) ?? 'windows-1252');
  return text === null || isNoise(text) ? null : text;
}

/** What a mark at the beginning says; the decoder takes the mark away. */
function markedEncoding([first, second, third]: Uint8Array): string | null {
  if (first === 0xef && second === 0xbb && third === 0xbf) return 'utf-8';
  if (first === 0xff && second === 0xfe) return 'utf-16le';
  if (first === 0xfe && second === 0xff) return 'utf-16be';
  return null;
}

/** UTF-16 without a mark: in most scripts nearly every second byte is the same, in Western ones 0. */
function wideEncoding(bytes: Uint8Array): string | null {
  const look = bytes.subarray(0, Math.min(bytes.length, LOOK_BYTES) & ~1);
  if (look.length < 4) return null;
  const zeros: [number, number] = [0, 0];
  for (let index = 0; index < look.length; index++) if (look[index] === 0) zeros[index & 1 ? 1 : 0]++;
  const pairs = look.length / 2;
  if (zeros[1] > pairs * 0.6 && zeros[0] < pairs * 0.05) return 'utf-16le';
  if (zeros[0] > pairs * 0.6 && zeros[1] < pairs * 0.05) return 'utf-16be';
  return null;
}

function textOf(bytes: Uint8Array, encoding: string): string | null {
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

function known(encoding: string | undefined): string | null {
  if (encoding === undefined) return null;
  try {
    return new TextDecoder(encoding).encoding;
  } catch {
    return null;
  }
}

function isNoise(text: string): boolean {
  const look = text.slice(0, LOOK_BYTES);
  // Tabs, line breaks, form feeds and the escapes of coloured output are no noise.
  const controls = look.match(/[\u0001-\u0008\u000e-\u001a\u001c-\u001f\u007f-\u0084\u0086-\u009f]/g)?.length ?? 0;
  return controls > look.length * MOST_CONTROLS;
}

/** The encoding that a web page names near its beginning. */
export function declaredEncoding(bytes: Uint8Array): string | undefined {
  const start = new TextDecoder('windows-1252').decode(bytes.subarray(0, 4096));
  return /<meta[^>]+charset\s*=\s*["']?\s*([\w-]+)/i.exec(start)?.[1];
}
