import type { ResultMessage, ResultRow } from '../../../core/eval/result-rows.ts';
import type { JsonValue } from '../../../config/run-spec.ts';
import { counted, figure } from '../../eval/figures.ts';
import { onOneLine, withoutControls } from '../../output/plain-text.ts';
import { cut, folded, type Line, type Span } from '../lines.ts';
import { type DocumentLine, highlighted, page, plain, textOfLine } from './document.ts';
import type { BrowserData, Folds, RolloutScreen } from './state.ts';

/** One rollout: its figures, then its conversation as foldable sections. */

interface Section {
  readonly id: string;
  readonly title: string;
  readonly text: string;
  readonly style?: Span['style'];
  /** Whether it is open at first. */
  readonly isOpen: boolean;
}

/** Characters of a section that are shown; the rest can be copied. */
const charsMax = 200_000;

/** Prompt, completion, and the row's other contents, in order. */
function sectionsOf(row: ResultRow): Section[] {
  const { answer, info, tools, columns } = row;
  const rest = Object.entries(columns);
  return [
    ...row.prompt.flatMap((message, i) => messageSections(message, `prompt.${i}`, i < row.prompt.length - 1)),
    ...row.completion.flatMap((message, i) => messageSections(message, `completion.${i}`, false)),
    ...(answer === null ? [] : [{ id: 'answer', title: 'answer', text: answer, isOpen: true }]),
    ...(info === null ? [] : [{ id: 'info', title: 'info', text: readable(info), isOpen: false }]),
    ...(tools.length === 0 ? [] : [{ id: 'tools', title: 'tools', text: tools.join('\n'), isOpen: false }]),
    ...(rest.length === 0 ? [] : [{ id: 'columns', title: 'other columns', text: readable(columns), isOpen: false }]),
  ];
}

const roleStyles: Readonly<Record<string, Span['style']>> = { assistant: 'cyan', system: 'dim', tool: 'dim' };

function messageSections({ role, text, reasoning, calls }: ResultMessage, id: string, isEarlier: boolean): Section[] {
  const style = roleStyles[role];
  const isOpen = !isEarlier && role !== 'tool' && role !== 'system';
  const said: Section = {
    id,
    title: role === 'tool' ? 'tool result' : role,
    text,
    isOpen,
    ...(style ? { style } : {}),
  };
  return [
    ...(reasoning === ''
      ? []
      : [{ id: `${id}.reasoning`, title: 'reasoning', text: reasoning, style: 'dim', isOpen: false } as const]),
    ...(text === '' && (calls.length > 0 || reasoning !== '') ? [] : [said]),
    ...calls.map(({ name, arguments: args }, i): Section => {
      return {
        id: `${id}.call.${i}`,
        title: `call ${onOneLine(name)}`,
        text: readableText(args),
        style: 'yellow',
        isOpen: false,
      };
    }),
  ];
}

function readableText(text: string): string {
  try {
    return readable(JSON.parse(text) as JsonValue);
  } catch {
    return text; // not JSON: as the model wrote it
  }
}

function readable(value: JsonValue | Readonly<Record<string, JsonValue>>): string {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2);
}

/** Whether a section is open; during a search, those with a match are. */
function isOpen({ id, isOpen: atFirst, text }: Section, { at, toggled }: Folds, search: string): boolean {
  const isOpenByDefault =
    at === 'first' ? atFirst || (search !== '' && text.toLowerCase().includes(search.toLowerCase())) : at === 'open';
  return isOpenByDefault !== toggled.includes(id);
}

const remembered = new WeakMap<ResultRow, { key: string; lines: readonly DocumentLine[] }>();

/** All rows of a rollout, at this width; `target` is the section's id. */
export function rolloutLines(
  row: ResultRow,
  screen: Pick<RolloutScreen, 'folds' | 'search'>,
  columns: number,
): readonly DocumentLine[] {
  const key = JSON.stringify([screen.folds, screen.search, columns]);
  const known = remembered.get(row);
  if (known?.key === key) return known.lines;
  const lines = [
    ...headLines(row, columns),
    ...sectionsOf(row).flatMap((section) => sectionLines(section, screen, columns)),
  ].map(({ line, ...rest }) => ({ line: highlighted(line, screen.search), ...rest }));
  remembered.set(row, { key, lines });
  return lines;
}

function headLines(row: ResultRow, columns: number): DocumentLine[] {
  const { reward, error, metrics, stopCondition, isTruncated, inputTokens, outputTokens, seconds } = row;
  const figures = Object.entries(metrics).map(([name, value]) => `${onOneLine(name)} ${figure(value)}`);
  const failed = reward === null ? 'failed: no reward' : `reward ${figure(reward)}, and the policy failed`;
  const score = error === null ? `reward ${figure(reward)}` : failed;
  const about = [
    ...(stopCondition === null ? [] : [`ended: ${onOneLine(stopCondition)}`]),
    ...(isTruncated ? ['truncated'] : []),
    ...(inputTokens === null ? [] : [`${inputTokens} input tokens`]),
    ...(outputTokens === null ? [] : [`${outputTokens} output tokens`]),
    ...(seconds === null ? [] : [`${seconds.toFixed(1)} s`]),
  ];
  return [
    plain(score, error === null ? 'green' : 'yellow'),
    ...(error === null ? [] : folded(error.message, columns - 4).map((text) => plain(`  ${text}`, 'yellow'))),
    ...(figures.length === 0 ? [] : folded(figures.join(' · '), columns - 2).map((text) => plain(text))),
    ...(about.length === 0 ? [] : folded(about.join(' · '), columns - 2).map((text) => plain(text, 'dim'))),
  ];
}

function sectionLines(
  section: Section,
  { folds, search }: Pick<RolloutScreen, 'folds' | 'search'>,
  columns: number,
): DocumentLine[] {
  const { id, title, text, style } = section;
  if (!isOpen(section, folds, search)) {
    const beginning = onOneLine(
      text
        .slice(0, 2 * columns)
        .trim()
        .replaceAll(/\s+/g, ' '),
    );
    const line: Line = [
      { text: `▸ ${title}`, style: 'bold' },
      { text: `  ${cut(beginning, columns - title.length - 6)}`, style: 'dim' },
    ];
    return [{ line, target: id }];
  }
  const shown = text.length > charsMax ? text.slice(0, charsMax) : text;
  const rows = folded(shown.trimEnd(), columns - 4);
  return [
    { line: [{ text: `▾ ${title}`, style: 'bold' }], target: id },
    ...rows.map((row) => ({ ...plain(`  ${row}`, style), target: id })),
    ...(text.length > charsMax
      ? [{ ...plain(`  … ${counted(text.length - charsMax, 'character')} more: c copies all`, 'dim'), target: id }]
      : []),
  ];
}

export function rolloutPage(data: BrowserData, screen: RolloutScreen, columns: number, rows: number): Line[] {
  const row = shownRow(data, screen);
  if (row === 'reading') return [[{ text: ' reading …', style: 'dim' }]];
  if (row === null) return [[{ text: ' this row is no longer in the file as it was read', style: 'yellow' }]];
  return page(rolloutLines(row, screen, columns - 1), screen.cursor, rows);
}

export function shownRow(
  data: BrowserData,
  { evaluation, list, position }: RolloutScreen,
): ResultRow | 'reading' | null {
  return data.row(evaluation, list[position]!);
}

/** Row of the next match, from the cursor on and wrapping around; null without one. */
export function nextHit(lines: readonly DocumentLine[], search: string, cursor: number, by: 1 | -1): number | null {
  const wanted = search.toLowerCase();
  for (let i = 1; i <= lines.length; i++) {
    const at = (((cursor + by * i) % lines.length) + lines.length) % lines.length;
    if (textOfLine(lines[at]!.line).toLowerCase().includes(wanted)) return at;
  }
  return null;
}

/** Text copied by `c`: the section at the cursor, or the whole conversation. */
export function copiedText(
  row: ResultRow,
  target: string | undefined,
): { readonly what: string; readonly text: string } {
  const sections = sectionsOf(row);
  const section = sections.find(({ id }) => id === target);
  if (section) return { what: section.title, text: withoutControls(section.text) };
  const all = sections.map(({ title, text }) => `${title}\n${text}`).join('\n\n');
  return { what: 'the rollout', text: withoutControls(all) };
}
