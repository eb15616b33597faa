/**
 * Text of a model, an environment or a server, fit for a terminal: what would move its cursor, colour it or turn the
 * direction of writing becomes a visible sign; line breaks stay.
 */
export function withoutControls(text: string): string {
  return text.replaceAll('\t', ' ').replaceAll(/[^\P{Cc}\n]|[\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu, '�');
}

/** The same in one line: a line break is shown as ⏎. */
export function onOneLine(text: string): string {
  return withoutControls(text.replaceAll('\r\n', '\n')).replaceAll('\n', '⏎');
}
