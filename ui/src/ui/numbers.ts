// Numbers as people read them: grouped digits, decimal units as the Finder shows them.

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export function formatCount(value: number): string {
  return whole.format(value);
}

/** Megabytes without a fraction below 1 GB, one decimal above. */
export function formatBytes(bytes: number): string {
  if (bytes >= 999.5e6) return `${(bytes / 1e9).toFixed(bytes < 99.95e9 ? 1 : 0)} GB`;
  if (bytes >= 999.5e3 || bytes === 0) return `${Math.round(bytes / 1e6)} MB`;
  return `${Math.max(1, Math.round(bytes / 1e3))} kB`;
}

/** A rate per second: one decimal while it says something. */
export function formatRate(perSecond: number): string {
  return perSecond < 99.95 ? perSecond.toFixed(1) : whole.format(perSecond);
}

export function formatMilliseconds(milliseconds: number): string {
  if (milliseconds < 999.5) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 59_950) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${Math.floor(milliseconds / 60_000)} min ${Math.round((milliseconds % 60_000) / 1000)} s`;
}
