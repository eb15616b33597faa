/** The part of Python's strftime that templates use: `%d %b %Y`. `time` as `minuteOf` writes it. */
export function strftime(time: string, format: string): string {
  const date = new Date(`${time}Z`); // of no zone: read as UTC, and told as UTC
  const named = (options: Intl.DateTimeFormatOptions) =>
    new Intl.DateTimeFormat('en', { ...options, timeZone: 'UTC' }).format(date);
  const parts: Readonly<Record<string, () => string>> = {
    '%Y': () => time.slice(0, 4),
    '%y': () => time.slice(2, 4),
    '%m': () => time.slice(5, 7),
    '%d': () => time.slice(8, 10),
    '%-d': () => String(Number(time.slice(8, 10))),
    '%H': () => time.slice(11, 13),
    '%M': () => time.slice(14, 16),
    '%b': () => named({ month: 'short' }),
    '%B': () => named({ month: 'long' }),
    '%a': () => named({ weekday: 'short' }),
    '%A': () => named({ weekday: 'long' }),
    '%%': () => '%',
  };
  return format.replaceAll(/%-?[\s\S]/g, (token) => {
    if (!parts[token]) throw new Error(`strftime_now() with "${token}" is not supported.`);
    return parts[token]();
  });
}
