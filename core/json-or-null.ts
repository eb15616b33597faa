/** Parses JSON; null if the text is invalid or cut off. The caller decides what that means. */
export function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}
