/** Matches what moves a terminal's cursor, colours it, or turns the direction of writing. Line breaks do not. */
export const steering = /[^\P{Cc}\n]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/gu;

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

/** Text within quotes, of JSON or TOML, that no terminal obeys and every program reads as it was. */
export function escaped(text: string): string {
  return text.replaceAll(steering, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

const shownChars = 60;

/** The beginning of a text from outside, in one line that no terminal obeys. */
export function shortened(text: string, charsMax = shownChars): string {
  const cut = text.length <= charsMax ? text : `${text.slice(0, charsMax)}…`;
  return escaped(cut).replaceAll('\n', '\\n');
}

/** The same as a text of JSON. */
export function quoted(text: string, charsMax = shownChars): string {
  const cut = text.length <= charsMax ? text : `${text.slice(0, charsMax)}…`;
  return escaped(JSON.stringify(cut));
}
