/** What a text says as JSON; null where it is none, or torn: whoever asks says what that means. */
export function jsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}
