/**
 * Text of a model, an environment or a server, fit for a terminal: what would move its cursor, colour it or turn the
 * direction of writing becomes a visible sign; line breaks stay.
 */
export function withoutControls(text: string): string {
  // oxlint-disable-next-line no-control-regex -- they are what is looked for
  return text
    .replaceAll('\t', ' ')
    .replaceAll(/[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, '�');
}

/** The same in one line: a line break is shown as ⏎. */
export function onOneLine(text: string): string {
  return withoutControls(text.replaceAll('\r\n', '\n')).replaceAll('\n', '⏎');
}
