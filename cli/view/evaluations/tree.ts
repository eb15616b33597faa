import { figure } from '../../eval/figures.ts';
import { onOneLine } from '../../output/plain-text.ts';
import { type Line, padded } from '../lines.ts';
import { type DocumentLine, page } from './document.ts';
import type { BrowserData, TreeScreen } from './state.ts';

/** A row of the tree: an environment, a model on it, or an evaluation. */
interface TreeNode {
  readonly depth: 0 | 1 | 2;
  /** Key of a branch. */
  readonly key: string;
  readonly isOpen: boolean;
  readonly text: string;
  /** null for a branch. */
  readonly evaluation: number | null;
}

/** The rows that are seen, in order. */
export function treeNodes({ evaluations }: BrowserData, toggled: readonly string[]): TreeNode[] {
  const environments = new Map<string, Map<string, number[]>>();
  for (const [i, { environment, model, of }] of evaluations.entries()) {
    const models = environments.get(environment) ?? new Map<string, number[]>();
    environments.set(environment, models);
    const name = of === 'training' ? `${model} (sampled in training)` : model;
    models.set(name, [...(models.get(name) ?? []), i]);
  }
  return [...environments].sort(byName).flatMap(([environment, models]): TreeNode[] => {
    const isOpen = !toggled.includes(environment);
    const count = [...models.values()].reduce((sum, { length }) => sum + length, 0);
    const branch = {
      depth: 0,
      key: environment,
      isOpen,
      text: `${environment}  (${count})`,
      evaluation: null,
    } as const;
    return isOpen ? [branch, ...[...models].sort(byName).flatMap((entry) => modelNodes(entry))] : [branch];

    function modelNodes([model, members]: [string, number[]]): TreeNode[] {
      const key = `${environment}\u0000${model}`;
      const isOpenByDefault = evaluations[members[0]!]!.of === 'evaluation';
      const isModelOpen = isOpenByDefault !== toggled.includes(key);
      const node = {
        depth: 1,
        key,
        isOpen: isModelOpen,
        text: `${model}  (${members.length})`,
        evaluation: null,
      } as const;
      const runs = members.map((evaluation) => ({ depth: 2, key: '', isOpen: false, text: '', evaluation }) as const);
      return isModelOpen ? [node, ...runs] : [node];
    }
  });
}

function byName([a]: [string, unknown], [b]: [string, unknown]): number {
  return a.localeCompare(b);
}

export function treePage(
  data: BrowserData,
  screen: TreeScreen,
  { columns, rows, marked }: { readonly columns: number; readonly rows: number; readonly marked: number | null },
): Line[] {
  const nodes = treeNodes(data, screen.toggled);
  if (nodes.length === 0) {
    return [
      [{ text: ' no evaluation found', style: 'yellow' }],
      [{ text: ' ratchet eval run ENV makes one; ratchet eval tui FOLDER|RUN looks elsewhere', style: 'dim' }],
    ].slice(0, rows) as Line[];
  }
  return page(
    nodes.map((node): DocumentLine => ({ line: lineOf(data, node, { columns, marked }) })),
    screen.cursor,
    rows,
  );
}

function lineOf(
  { evaluations }: BrowserData,
  { depth, isOpen, text, evaluation }: TreeNode,
  { columns, marked }: { readonly columns: number; readonly marked: number | null },
): Line {
  if (evaluation === null) {
    const sign = isOpen ? '▾' : '▸';
    return [{ text: `${'  '.repeat(depth)}${sign} ${onOneLine(text)}`, ...(depth === 0 ? { style: 'bold' } : {}) }];
  }
  const { id, metadata, where } = evaluations[evaluation]!;
  const { avgReward, numExamples, rolloutsPerExample } = metadata;
  const size = numExamples === null ? '' : `${numExamples} × ${rolloutsPerExample ?? '?'}`;
  const name = padded(onOneLine(id), Math.min(30, Math.max(10, Math.floor(columns / 3))));
  return [
    { text: `     ${marked === evaluation ? 'A ' : '  '}`, style: 'yellow' },
    { text: name },
    { text: `  ${figure(avgReward).padStart(7)}`, style: 'green' },
    { text: `  ${size.padEnd(9)}  ${onOneLine(where)}`, style: 'dim' },
  ];
}
