import type { EvaluationFigures } from '../../core/eval/summary.ts';
import type { FoundEvaluation } from '../../runs/evaluations/evaluation.ts';
import { onOneLine } from '../output/plain-text.ts';
import {
  aligned,
  counted,
  histogram,
  metricRows,
  passText,
  passesIn,
  placeOf,
  rewardText,
  settingText,
  usageText,
} from './figures.ts';

/** One part of a summary: a heading and its rows. */
interface Section {
  readonly heading: string;
  readonly rows: readonly string[];
}

interface Summarized {
  readonly found: Pick<FoundEvaluation, 'metadata' | 'where'>;
  readonly figures: EvaluationFigures;
  readonly unreadable: number;
  /** Width of the terminal. */
  readonly columns: number;
}

/** Sections of an evaluation's summary; sections without data are left out. */
export function summarySections({ found, figures, unreadable, columns }: Summarized): Section[] {
  const { metadata } = found;
  const { rollouts, examples, distribution, metrics, truncated, failures, policyFailures, notes } = figures;
  const { passAtK, passAllK } = passesIn(metadata, figures);
  const bars = histogram(distribution, Math.min(40, columns - 34));
  const { numExamples } = metadata;
  const expected = numExamples === null || numExamples === examples ? '' : ` (metadata.json: ${numExamples})`;
  const all: Section[] = [
    { heading: 'stored in', rows: [placeOf(found)] },
    {
      heading: 'rollouts',
      rows: [
        `${rollouts}, of ${counted(examples, 'example')}${expected}` +
          (truncated > 0 ? `, ${truncated} truncated` : '') +
          (unreadable > 0 ? `; ${counted(unreadable, 'line')} unreadable (torn), left out` : ''),
      ],
    },
    { heading: 'reward', rows: [rewardText(figures, metadata)] },
    {
      heading: 'distribution',
      rows: bars.map(({ range, bar, count }) => `${range}  ${String(count).padStart(6)}  ${bar}`.trimEnd()),
    },
    { heading: 'metrics', rows: aligned(metricRows(metrics)) },
    {
      heading: 'pass@k',
      rows: [
        passText(passAtK) && `any  ${passText(passAtK)}   (reward ≥ ${metadata.passThreshold})`,
        passText(passAllK) && `all  ${passText(passAllK)}`,
      ].filter((row) => row !== ''),
    },
    { heading: 'usage', rows: [usageText(figures, metadata)].filter((row) => row !== '') },
    {
      heading: 'failures',
      rows: [
        ...failures.map(({ cause, count, message }) => onOneLine(`${count} × ${cause}: ${message}`)),
        ...(policyFailures === 0
          ? []
          : [`of these ${policyFailures} have a reward all the same: the policy itself failed`]),
      ],
    },
    { heading: 'beside', rows: notes.map(({ cause, count, message }) => onOneLine(`${count} × ${cause}: ${message}`)) },
    {
      heading: 'settings',
      rows: Object.entries(metadata.settings).map(([name, value]) => `${onOneLine(name)} = ${settingText(value)}`),
    },
  ];
  return all.filter(({ rows }) => rows.length > 0);
}
