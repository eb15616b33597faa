/** A time by the local calendar and clock, to the minute and without its zone: `2026-11-26T14:05`. */
export function minuteOf(date: Date): string {
  const two = (value: number): string => String(value).padStart(2, '0');
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join('-');
  return `${day}T${two(date.getHours())}:${two(date.getMinutes())}`;
}

export const minutePattern = /^\d{4}-\d\d-\d\dT\d\d:\d\d$/;
