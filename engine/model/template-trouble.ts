import { Template } from '@huggingface/jinja';
import { shortened } from '../../core/steering.ts';

/** A tag of a template, such as `{% for m in messages %}`. */
interface Tag {
  readonly text: string;
  readonly line: number;
  /** Its first word; null = it is an expression, a comment, or has no word. */
  readonly word: string | null;
}

/** Closing tags, by the tag that they close. */
const closings: Readonly<Record<string, string>> = {
  for: 'endfor',
  if: 'endif',
  macro: 'endmacro',
  call: 'endcall',
  filter: 'endfilter',
  set: 'endset',
  generation: 'endgeneration',
};
/** What a tag needs around it to be a template of its own. */
const around: Readonly<Record<string, readonly [before: string, after: string]>> = {
  ...Object.fromEntries(Object.entries(closings).map(([word, end]) => [word, ['', `{% ${end} %}`] as const])),
  set: ['', ''],
  elif: ['{% if x %}', '{% endif %}'],
};
const tagsTriedMax = 2_000;

/** Describes where a template that cannot be parsed is wrong: the line and the tag. The parser itself tells no place. */
export function whereWrong(template: string): string | null {
  const tags = tagsIn(template);
  const own = tags.slice(0, tagsTriedMax).find((tag) => !isParsed(tag));
  if (own) return `line ${own.line}: ${shortened(own.text)}`;
  const open: Tag[] = [];
  for (const tag of tags) {
    if (tag.word === null) continue;
    const isSetOfValue = tag.word === 'set' && tag.text.includes('=');
    if (Object.hasOwn(closings, tag.word) && !isSetOfValue) open.push(tag);
    const isEnd = Object.values(closings).includes(tag.word);
    if (!isEnd && tag.word !== 'else' && tag.word !== 'elif') continue;
    const last = open.at(-1);
    const fits = last !== undefined && (isEnd ? closings[last.word!] === tag.word : ['if', 'for'].includes(last.word!));
    if (!fits) return `line ${tag.line}: ${shortened(tag.text)} closes nothing that is open`;
    if (isEnd) open.pop();
  }
  const last = open.at(-1);
  if (last === undefined) return null;
  return `line ${last.line}: ${shortened(last.text)} has no {% ${closings[last.word!]} %}`;
}

function tagsIn(template: string): Tag[] {
  const found: Tag[] = [];
  let line = 1;
  let at = 0;
  for (const match of template.matchAll(/\{%[^]*?(?:%\}|$)|\{\{[^]*?(?:\}\}|$)|\{#[^]*?(?:#\}|$)/g)) {
    for (; at < match.index; at++) if (template[at] === '\n') line += 1;
    const [text] = match;
    const word = text.startsWith('{%') ? (/^\{%[-+]?\s*(\w+)/.exec(text)?.[1] ?? '') : null;
    found.push({ text, line, word });
  }
  return found;
}

/** Whether the tag can be parsed alone. Tags that close others are looked at with those. */
function isParsed({ text, word }: Tag): boolean {
  if (word !== null && (word.startsWith('end') || word === 'else')) return true;
  const [before, after] = (word === null ? undefined : around[word]) ?? ['', ''];
  const isBlock = word === 'set' && !text.includes('=');
  try {
    return new Template(`${before}${text}${isBlock ? '{% endset %}' : after}`).parsed !== undefined;
  } catch {
    return false;
  }
}
