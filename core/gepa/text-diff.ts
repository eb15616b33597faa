import { structuredPatch, type StructuredPatchHunk } from 'diff';

/** Prompts have hundreds of lines. An entirely different text is shown as all lines removed and added. */
const editsMax = 1_000;

/** Difference of two texts by line, in the format of `diff -u` and Python's difflib; '' if they are equal. */
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

/** Lines with a normalized end. */
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
