/** What moves a terminal's cursor, colours it, or turns the direction of writing; line breaks do not. */
const steering = /[^\P{Cc}\n]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu;

/**
 * Text of a model, an environment or a server, fit for a terminal: what would move its cursor, colour it or turn the
 * direction of writing becomes a visible sign; line breaks stay.
 */
export function withoutControls(text: string): string {
  return text.replaceAll('\t', ' ').replaceAll(steering, '�');
}

/** The same in one line: a line break is shown as ⏎. */
export function onOneLine(text: string): string {
  return withoutControls(text.replaceAll('\r\n', '\n')).replaceAll('\n', '⏎');
}

/** A value as JSON that no terminal obeys and every program reads as it was. */
export function jsonText(value: unknown, indent?: number): string {
  return escaped(JSON.stringify(value, null, indent));
}

/** The same of texts within quotes, of JSON or TOML. */
export function escaped(text: string): string {
  return text.replaceAll(steering, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
