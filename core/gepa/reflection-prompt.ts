import { toolOfPart } from './prompt-parts.ts';

/** A rollout's record for the reflection model: names to texts, numbers, lists, maps. */
export type RecordValue =
  | string
  | number
  | boolean
  | null
  | readonly RecordValue[]
  | { readonly [name: string]: RecordValue };

export type ReflectionRecord = { readonly [name: string]: RecordValue };

/**
 * The one user message of a reflection. `<curr_param>` is replaced by the current text, `<side_info>` by the records.
 */
export const reflectionTemplate = `An assistant works under the instruction below.

\`\`\`
<curr_param>
\`\`\`

These are examples of its work under this instruction: what it was given, what it answered, and what became of it.

<side_info>

Write a better instruction for the assistant.

- Work out from the examples what the inputs look like and what exactly is asked for, and say so.
- The feedback may hold facts that the assistant cannot know by itself. Keep every one that later tasks of this kind may need.
- Where an answer shows a way of solving such tasks that works in general, put it into the instruction.
- Keep of the current instruction what works.

Answer with the whole new instruction between \`\`\` fences, and nothing else in the fences.`;

/** Template for the description of a tool; `<tool>` is replaced by its name. */
const toolTemplate = `An assistant may call a tool, \`<tool>\`. This description is all that it is told of it, beside the names and types of its parameters, which stay as they are:

\`\`\`
<curr_param>
\`\`\`

These are examples of its work with this description: what it was given, what it did, and what became of it.

<side_info>

Write a better description of the tool.

- Say when it helps and when it does not, what to put into each parameter, and what comes back.
- Work out from the examples how the assistant misused or overlooked it, and write what keeps it from that.
- Keep every fact of the current description that is right. Do not promise what the tool does not do.

Answer with the whole new description between \`\`\` fences, and nothing else in the fences.`;

export function reflectionTemplateFor(part: string): string {
  const tool = toolOfPart(part);
  return tool === null ? reflectionTemplate : toolTemplate.replace('<tool>', () => tool);
}

export function renderReflection(template: string, current: string, records: readonly ReflectionRecord[]): string {
  const sideInfo = renderRecords(records);
  return template.replaceAll(/<curr_param>|<side_info>/g, (place) => (place === '<curr_param>' ? current : sideInfo));
}

/** Records as markdown: a heading per example, one per name, deeper ones for nested values. */
function renderRecords(records: readonly ReflectionRecord[]): string {
  const examples = records.map((record, i) => `# Example ${i + 1}\n${renderNamed(Object.entries(record), 2)}`);
  return examples.join('\n\n');
}

/** Deepest heading of markdown. */
const deepest = 6;

function renderNamed(entries: readonly (readonly [string, RecordValue])[], level: number): string {
  if (entries.length === 0) return '\n';
  const heading = '#'.repeat(Math.min(level, deepest));
  return entries.map(([name, value]) => `${heading} ${name}\n${renderValue(value, level + 1)}`).join('');
}

function renderValue(value: RecordValue, level: number): string {
  if (Array.isArray(value)) {
    const items: readonly RecordValue[] = value;
    return renderNamed(
      items.map((item, i) => [`Item ${i + 1}`, item] as const),
      level,
    );
  }
  if (typeof value === 'object' && value !== null) return renderNamed(Object.entries(value), level);
  return `${asPython(value).trim()}\n\n`;
}

/** Same output as gepa, so that its users' templates read the same. */
function asPython(value: string | number | boolean | null): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return String(value);
}

/**
 * The new text in a model's answer: the text between its first and its last fence, without a language name; a missing
 * opening or closing fence is tolerated. Without fences the whole answer.
 */
export function extractText(answer: string): string {
  const trimmed = answer.trim();
  if (/^`{6,}$/.test(trimmed)) return '';
  const fences = [...trimmed.matchAll(/`{3,}/g)];
  const [first, last] = [fences[0], fences.at(-1)];
  if (first === undefined || last === undefined) return trimmed;
  const afterFirst = first.index + first[0].length;
  if (first !== last) return withoutLanguage(trimmed.slice(afterFirst, last.index)).trim();
  if (first.index === 0) return withoutLanguage(trimmed.slice(afterFirst)).trim();
  return afterFirst === trimmed.length ? trimmed.slice(0, first.index).trim() : trimmed;
}

function withoutLanguage(text: string): string {
  return text.replace(/^\S*\n/, '');
}
