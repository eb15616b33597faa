/** How two texts differ, line by line, as `diff -u` and Python's difflib write it; '' where they do not. */
export function unifiedDiff(
  before: string,
  after: string,
  { from, to, context = 3 }: { readonly from: string; readonly to: string; readonly context?: number },
): string {
  if (before === after) return '';
  const edits = editsBetween(linesOf(before), linesOf(after));
  const hunks = hunksOf(edits, context).map((hunk) => writeHunk(hunk));
  return [`--- ${from}`, `+++ ${to}`, ...hunks.flat()].join('\n') + '\n';
}

interface Edit {
  readonly kind: ' ' | '-' | '+';
  readonly line: string;
  /** Lines of each side before this one. */
  readonly at: readonly [before: number, after: number];
}

function linesOf(text: string): string[] {
  const lines = text.split(/\r\n|\r|\n/);
  if (lines.at(-1) === '') lines.pop();
  return lines;
}

/** Prompts have hundreds of lines. Of a model that wrote tens of thousands, the whole is shown as another text. */
const cellsMax = 4_000_000;

/** By the longest common subsequence. */
function editsBetween(a: readonly string[], b: readonly string[]): Edit[] {
  if (a.length * b.length > cellsMax) {
    return [
      ...a.map((line, i): Edit => ({ kind: '-', line, at: [i, 0] })),
      ...b.map((line, j): Edit => ({ kind: '+', line, at: [a.length, j] })),
    ];
  }
  const common = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i]![j] = a[i] === b[j] ? common[i + 1]![j + 1]! + 1 : Math.max(common[i + 1]![j]!, common[i]![j + 1]!);
    }
  }
  const edits: Edit[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const at = [i, j] as const;
    if (i < a.length && j < b.length && a[i] === b[j]) edits.push({ kind: ' ', line: a[i++]!, at: [at[0], j++] });
    else if (j >= b.length || (i < a.length && common[i + 1]![j]! >= common[i]![j + 1]!))
      edits.push({ kind: '-', line: a[i++]!, at });
    else edits.push({ kind: '+', line: b[j++]!, at });
  }
  return edits;
}

function hunksOf(edits: readonly Edit[], context: number): Edit[][] {
  const hunks: Edit[][] = [];
  let end = -1;
  for (const [at, edit] of edits.entries()) {
    if (edit.kind === ' ') continue;
    const from = Math.max(at - context, end);
    const to = Math.min(edits.length, at + context + 1);
    const last = hunks.at(-1);
    if (last === undefined || at - context > end) hunks.push(edits.slice(Math.max(0, at - context), to));
    else last.push(...edits.slice(Math.max(from, end), to));
    end = to;
  }
  return hunks;
}

function writeHunk(hunk: readonly Edit[]): string[] {
  const [first] = hunk;
  const count = (kind: '-' | '+'): number => hunk.filter((edit) => edit.kind === ' ' || edit.kind === kind).length;
  const range = (start: number, length: number): string => {
    if (length === 1) return `${start + 1}`;
    return `${length === 0 ? start : start + 1},${length}`;
  };
  const head = `@@ -${range(first!.at[0], count('-'))} +${range(first!.at[1], count('+'))} @@`;
  return [head, ...hunk.map(({ kind, line }) => kind + line)];
}
