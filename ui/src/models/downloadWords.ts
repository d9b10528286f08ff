// A download in words.
import { failureSentence } from '../platform/failures';
import type { Download, Failure } from '../platform/wire';
import { strings } from '../text';

/** What stands under its name: how far it is, and how long the rest takes. */
export function downloadWords(download: Download, hasRate = false, isUnanswered = false): string {
  const words = strings.downloads;
  const { bytes_per_second, files, seconds_left, state, total_bytes } = download;
  if (state === 'queued') return words.queued;
  if (state === 'offline') return words.offline;
  const done = files.filter((file) => file.state === 'done').length;
  const parts = files.length > 0 ? [words.files(done, files.length)] : [];
  if (state === 'paused') return words.list([words.paused, ...parts]);
  if (state !== 'running') return words.list(parts);
  if (total_bytes === 0) return isUnanswered ? words.unanswered : words.preparing;
  if (hasRate && bytes_per_second !== null && bytes_per_second > 0) parts.push(words.rate(bytes_per_second));
  // The rate says 0 once nothing has come for a while, also where what has come is being checked.
  if (bytes_per_second === 0 && files.some((file) => file.state === 'running')) parts.push(words.stalled);
  else if (seconds_left !== null) parts.push(words.left(seconds_left));
  return words.list(parts);
}

/** Why it has failed. Without a token the core names the variable of the environment, which nobody who uses the window sets. */
export function failureWords(failure: Failure): string {
  const { code } = failure;
  if (code === 'offline') return strings.downloads.cut;
  if (code === 'gated') return strings.discover.gatedHelp;
  return code === 'needs_token' ? strings.downloads.privateHelp : failureSentence(failure);
}

/** It waits for the person's account: their consent, or a token. */
export function needsAccount({ failure }: Download): boolean {
  return ['gated', 'needs_token', 'unauthorized'].includes(failure?.code ?? '');
}

/** It failed where nothing is wrong with the download: trying again later may be enough, or an account is needed. */
export function isCalm(download: Download): boolean {
  return needsAccount(download) || download.failure?.code === 'offline' || download.failure?.code === 'hub';
}

export function downloadShare({ bytes, total_bytes }: Download): number | null {
  return total_bytes > 0 ? Math.min(1, bytes / total_bytes) : null;
}
