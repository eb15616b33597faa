import { structuredPatch, type StructuredPatchHunk } from 'diff';

/** Prompts have hundreds of lines. Of a model that wrote a wholly other text, all lines are shown as removed and as added. */
const editsMax = 1_000;

/** How two texts differ, line by line, as `diff -u` and Python's difflib write it; '' where they do not. */
export function unifiedDiff(
  before: string,
  after: string,
  { from, to, context = 3 }: { readonly from: string; readonly to: string; readonly context?: number },
): string {
  if (before === after) return '';
  const [a, b] = [linesOf(before), linesOf(after)];
  const patch = structuredPatch(from, to, a.join(''), b.join(''), '', '', { context, maxEditLength: editsMax });
  const lines = (patch?.hunks ?? [wholeTexts(a, b)]).flatMap((hunk) => [headOf(hunk), ...hunk.lines]);
  return [`--- ${from}`, `+++ ${to}`, ...lines].join('\n') + '\n';
}

/** Each with its end, written in one way. */
function linesOf(text: string): string[] {
  const lines = text.split(/\r\n|\r|\n/);
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line) => `${line}\n`);
}

function wholeTexts(a: readonly string[], b: readonly string[]): StructuredPatchHunk {
  const signed = (sign: string) => (line: string) => sign + line.slice(0, -1);
  const lines = [...a.map(signed('-')), ...b.map(signed('+'))];
  return { oldStart: 1, oldLines: a.length, newStart: 1, newLines: b.length, lines };
}

function headOf({ oldStart, oldLines, newStart, newLines }: StructuredPatchHunk): string {
  const range = (start: number, length: number): string => {
    if (length === 1) return String(start);
    return `${length === 0 ? start - 1 : start},${length}`;
  };
  return `@@ -${range(oldStart, oldLines)} +${range(newStart, newLines)} @@`;
}
