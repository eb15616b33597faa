/** The tables of docs/guide/metrics.md, from core/rl/metric-names.ts. */
import { metricSections } from '../../core/rl/metric-names.ts';

const sources = {
  rollouts: 'rollouts',
  batch: 'batch',
  trainer: 'trainer',
  servers: 'servers',
  clock: 'clock',
  recovery: 'recoveries',
  evaluation: 'evaluation',
} as const;

export function metricTables(): string {
  return metricSections
    .map(({ title, text, metrics }) => {
      const rows = metrics.map(
        ({ name, unit, meaning, source, when }) =>
          `| \`${name}\` | ${unit === '1' ? '' : unit} | ${escaped(meaning)} | ${sources[source]} | ${when ?? ''} |`,
      );
      return [
        `## ${title}`,
        '',
        text,
        '',
        '| metric | unit | meaning | measured on | only when |',
        '| --- | --- | --- | --- | --- |',
        ...rows,
        '',
      ].join('\n');
    })
    .join('\n');
}

function escaped(text: string): string {
  return text.replaceAll('|', String.raw`\|`);
}
