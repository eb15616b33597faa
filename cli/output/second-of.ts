/** A time in UTC to the second, such as `2026-12-01T01:16:04`, from milliseconds since 1970. */
export function secondOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 19);
}
