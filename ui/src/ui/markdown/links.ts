// Decides which links may be followed. Model output is untrusted: a link whose scheme is not listed stays text.

const ALLOWED = new Set(['https:', 'http:', 'mailto:']);

/** The address to open, or null when the target is relative, malformed or of another scheme. */
export function safeHref(target: string): string | null {
  try {
    const url = new URL(target);
    return ALLOWED.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
