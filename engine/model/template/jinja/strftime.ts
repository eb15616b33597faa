/** The part of Python's strftime that templates use: `%d %b %Y`. `time` as `minuteOf` writes it. */
export function strftime(time: string, format: string): string {
  const date = new Date(`${time}Z`); // without a zone: read and printed as UTC
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
    // A run's day is kept to the minute.
    '%S': () => '00',
    '%-m': () => String(Number(time.slice(5, 7))),
    '%-H': () => String(Number(time.slice(11, 13))),
    '%I': () => String(Number(time.slice(11, 13)) % 12 || 12).padStart(2, '0'),
    '%-I': () => String(Number(time.slice(11, 13)) % 12 || 12),
    '%p': () => (Number(time.slice(11, 13)) < 12 ? 'AM' : 'PM'),
    '%e': () => String(Number(time.slice(8, 10))).padStart(2, ' '),
    '%F': () => time.slice(0, 10),
    '%T': () => `${time.slice(11, 16)}:00`,
    '%R': () => time.slice(11, 16),
    '%D': () => `${time.slice(5, 7)}/${time.slice(8, 10)}/${time.slice(2, 4)}`,
    '%h': () => named({ month: 'short' }),
    '%j': () => String(dayOfYear(date)).padStart(3, '0'),
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

const dayMs = 86_400_000;

function dayOfYear(date: Date): number {
  return Math.floor((date.getTime() - Date.UTC(date.getUTCFullYear(), 0, 1)) / dayMs) + 1;
}
