import type { CheckpointRow } from '../../core/eval/checkpoint-curve.ts';
import { sparkline } from '../view/lines.ts';
import { aligned, figure } from './figures.ts';

const curveColumns = 48;

/** A table of checkpoints, and the curve of their rewards, for each environment. */
export function checkpointLines(curves: ReadonlyMap<string, readonly CheckpointRow[]>): string[] {
  return [...curves].flatMap(([environment, rows]) => {
    const ks = [...new Set(rows.flatMap(({ passAtK }) => Object.keys(passAtK)))].sort((a, b) => Number(a) - Number(b));
    const table = aligned([
      ['step', 'reward', ...ks.map((k) => `pass@${k}`), 'rollouts', ''],
      ...rows.map((row) => [
        String(row.step),
        figure(row.reward),
        ...ks.map((k) => figure(row.passAtK[k])),
        String(row.rollouts),
        remark(row),
      ]),
    ]);
    const rewards = rows.map(({ reward }) => reward);
    const curve = sparkline(rewards, curveColumns);
    const [first, last] = [rows[0]!, rows.at(-1)!];
    return [
      '',
      environment,
      ...table.map((line) => `  ${line}`),
      ...(rows.length < 2
        ? []
        : [`  ${curve}  v${first.step} ${figure(first.reward)} → v${last.step} ${figure(last.reward)}`]),
    ];
  });
}

function remark({ isBest, worseThan, isPromptNew, failed }: CheckpointRow): string {
  return [
    ...(isBest ? ['best'] : []),
    ...(worseThan === null ? [] : [`worse than v${worseThan} (95 %)`]),
    ...(isPromptNew ? ['another prompt from here on'] : []),
    ...(failed === 0 ? [] : [`${failed} failed`]),
  ].join(', ');
}
