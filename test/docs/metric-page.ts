/** Every metric that a run writes, as docs/guide/metrics.md defines it: the page is the one table there is. */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { effectKinds, effectOutcomes } from '../../core/rl/rollout/effects.ts';
import { failedOutcomes } from '../../core/rl/rollout/rollout.ts';
import { docsFolder } from './documents.ts';

interface MetricDefinition {
  /**
   * Pattern of the name, with `<env>` for an environment's name, `<function>` for a reward function's, `<role>` for an
   * agent's, `<outcome>` for a failure, `<effect>` for a kind of effect and what became of it, `<k>` for a number.
   */
  readonly name: string;
  readonly meaning: string;
  /** In which runs or steps it is there; '' = in every step of RL. */
  readonly when: string;
}

const row = /^\| `([^`|]+)` +\|[^|]*\| ((?:[^|\\]|\\.)*?) *\|[^|]*\| (.*?) *\|$/gm;

export const metricDefinitions: readonly MetricDefinition[] = [
  ...readFileSync(path.join(docsFolder, 'metrics.md'), 'utf8').matchAll(row),
].map(([, name = '', meaning = '', when = '']) => ({ name, meaning, when }));

/** The definition of a metric by the name under which a run with these environments writes it; undefined where the page has none. */
export function definitionOf(name: string, environments: readonly string[]): MetricDefinition | undefined {
  return metricDefinitions.find((metric) => patternOf(metric.name, environments).test(name));
}

function patternOf(name: string, environments: readonly string[]): RegExp {
  const source = name
    .split(/(<\w+>)/)
    .map((part) => {
      if (part === '<env>') return anyOf(environments);
      if (part === '<function>' || part === '<role>') return '.+';
      if (part === '<k>') return String.raw`\d+`;
      if (part === '<effect>')
        return anyOf(effectKinds.flatMap((kind) => [...effectOutcomes, 'again'].map((end) => `${kind}_${end}`)));
      if (part === '<outcome>') return anyOf(failedOutcomes);
      return escaped(part);
    })
    .join('');
  return new RegExp(`^${source}$`);
}

function anyOf(names: readonly string[]): string {
  return `(?:${names.map(escaped).join('|')})`;
}

function escaped(text: string): string {
  return text.replaceAll(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
}
