// Newline-delimited JSON: bytes in, one frame per line out.
import type { Frame } from './wire';

/** Reads frames until the stream ends. A last line without its newline is cut short, therefore it is no frame. */
export async function* readFrames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) {
        if (line.trim() !== '') yield JSON.parse(line) as Frame;
      }
    }
  } finally {
    // Leaving the loop early (an answer is one frame) must also let the connection go.
    await reader.cancel().catch(() => undefined);
  }
}
