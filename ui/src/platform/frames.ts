// Newline-delimited JSON: bytes in, one frame per line out.
import type { Frame } from './wire';

/** Reads frames until the stream ends. A last line without its newline is incomplete and is ignored. */
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
    // A caller that leaves the loop early must also close the connection.
    await reader.cancel().catch(() => undefined);
  }
}
