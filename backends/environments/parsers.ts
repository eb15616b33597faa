/** Parsers for completions. Every parser accepts any text and never throws. */

/** Removes reasoning: returns the text after the last `</think>`, up to an unclosed `<think>`; trimmed. */
export function withoutThinking(text: string): string {
  const rest = text.slice(text.lastIndexOf(thinkEnd) < 0 ? 0 : text.lastIndexOf(thinkEnd) + thinkEnd.length);
  const open = rest.indexOf('<think>');
  return (open < 0 ? rest : rest.slice(0, open)).trim();
}

const thinkEnd = '</think>';

/** Tags that a completion should have. */
export interface XmlParser<Field extends string> {
  /** Content of the last `<field>…</field>` of each, trimmed; undefined if there is none. Reasoning is ignored. */
  parse(text: string): Readonly<Record<Field, string | undefined>>;
  /** The tags around values, in the order of the fields; for prompts and demonstrations. */
  format(values: Readonly<Partial<Record<Field, string>>>): string;
  /** 1 when every field occurs exactly once, in order, with only spaces beside them; less for each violation. */
  formatReward(text: string): number;
}

export function xmlParser<Field extends string>(fields: readonly Field[]): XmlParser<Field> {
  for (const field of fields) {
    if (!/^[A-Za-z_][\w-]*$/.test(field)) throw new TypeError(`"${field}" cannot be the name of a tag.`);
  }
  const found = (text: string, field: Field) => tagsIn(text, field).map(({ from, to }) => text.slice(from, to).trim());
  return {
    parse(text) {
      const said = withoutThinking(text);
      const values = fields.map((field) => [field, found(said, field).at(-1)] as const);
      return Object.fromEntries(values) as Record<Field, string | undefined>;
    },
    format(values) {
      const given = fields.filter((field) => values[field] !== undefined);
      return given.map((field) => `<${field}>\n${values[field]}\n</${field}>`).join('\n');
    },
    formatReward(text) {
      const said = withoutThinking(text);
      const once = fields.filter((field) => found(said, field).length === 1).length;
      const isBare = once === fields.length && isNothingBeside(said, fields);
      return (once + Number(isBare)) / (fields.length + 1);
    },
  };
}

/**
 * Positions of the contents of each `<field>…</field>`. No regular expression: on a text full of openings it would take
 * hours.
 */
function tagsIn(text: string, field: string): { from: number; to: number; end: number }[] {
  const [opening, closing] = [`<${field}>`, `</${field}>`];
  const tags: { from: number; to: number; end: number }[] = [];
  for (let at = text.indexOf(opening); at >= 0; at = text.indexOf(opening, tags.at(-1)!.end)) {
    const from = at + opening.length;
    const to = text.indexOf(closing, from);
    if (to < 0) break;
    tags.push({ from, to, end: to + closing.length });
  }
  return tags;
}

/** Whether a text with each tag once consists of only these, in order, and spaces. */
function isNothingBeside(text: string, fields: readonly string[]): boolean {
  let end = 0;
  for (const field of fields) {
    const tag = tagsIn(text, field)[0]!;
    const start = tag.from - `<${field}>`.length;
    if (start < end || text.slice(end, start).trim() !== '') return false;
    end = tag.end;
  }
  return text.slice(end).trim() === '';
}

/** Content of the last `\boxed{…}`, with balanced braces inside; undefined if none is closed. */
export function boxed(text: string): string | undefined {
  // One pass over any text, with the positions of the open braces' contents.
  const open: number[] = [];
  let last: { from: number; to: number } | undefined;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === '{') open.push(at + 1);
    if (text[at] !== '}') continue;
    const from = open.pop();
    if (from === undefined || from <= (last?.from ?? 0)) continue;
    if (text.slice(Math.max(0, from - opening.length), from) === opening) last = { from, to: at };
  }
  return last && text.slice(last.from, last.to).trim();
}

const opening = String.raw`\boxed{`;

/** A number in its usual notation: sign, thousands with commas, decimals. */
const numberPattern = /(?<![\d.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?/g;

/** Every number in a text, in order. `3-2` are 3 and 2; `$1,000.50` is 1000.5. */
export function numbersIn(text: string): number[] {
  return [...text.matchAll(numberPattern)].map(({ 0: written, index }) => {
    const value = Number(written.replaceAll(',', ''));
    const isDifference = written.startsWith('-') && /[\w)]/.test(text[index - 1] ?? '');
    return isDifference ? -value : value;
  });
}

/** The last number outside reasoning; undefined when there is none. */
export function lastNumber(text: string): number | undefined {
  return numbersIn(withoutThinking(text)).at(-1);
}

/** The number after the last `####`, the form of gsm8k's answers; undefined when there is none. */
export function numberAfterHashes(text: string): number | undefined {
  const said = withoutThinking(text);
  const at = said.lastIndexOf('####');
  return at < 0 ? undefined : numbersIn(said.slice(at + 4).split('\n')[0]!)[0];
}
