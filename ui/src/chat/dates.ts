// The list's quiet headings: how long ago something last happened, in calendar days.

export type Age = 'Today' | 'Yesterday' | 'Last 7 days' | 'Earlier';

export function ageOf(milliseconds: number, now: Date): Age {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const day = (back: number) =>
    new Date(midnight.getFullYear(), midnight.getMonth(), midnight.getDate() - back).getTime();
  if (milliseconds >= day(0)) return 'Today';
  if (milliseconds >= day(1)) return 'Yesterday';
  return milliseconds >= day(6) ? 'Last 7 days' : 'Earlier';
}
